"""``hemf data``: list, fetch and describe public data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hemf.cli.output import Document, Output, RowFormat

if TYPE_CHECKING:
    from hemf.data.datasets import Dataset

FACTS = (
    "name", "title", "users", "items", "ratings", "scale", "megabytes", "url", "md5", "terms",
    "citation",
)  # fmt: skip
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set, as `list` shows.")]


def list_data(output: Output, format: RowFormat = None) -> None:
    """List the data sets that can be fetched, or read from files put in place by hand."""
    from hemf.experiments import datasets

    rows = []
    for entry in datasets.DATASETS.values():
        place = datasets.cached(entry.name)
        rows.append({**_facts(entry), "cached": place and str(place)})

    def show() -> None:
        output.table(
            ("name", "ratings", "users", "items", "MB", "here", "title"),
            (
                (
                    row["name"],
                    *(f"{row[k]:,}" if row[k] else "varies" for k in ("ratings", "users", "items")),
                    f"{row['megabytes']:g}",
                    "yes" if row["cached"] else "no",
                    row["title"],
                )
                for row in rows
            ),
            numbers=(1, 2, 3, 4),
        )

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    output.rows(columns, show, document={"datasets": rows}, format=format)


def fetch(output: Output, name: Name) -> None:
    """Download a data set once, verified.

    A data set in the cache is not fetched again. Prints its path.
    """
    from hemf.experiments import datasets

    entry = datasets.find(name)
    output.remark(f"{entry.title}: {entry.terms}")
    with output.download(name) as progress:
        place = datasets.fetch(name, progress=progress)
    document = {"name": name, "path": str(place), "terms": entry.terms, "citation": entry.citation}
    output.result(document, lambda: output.line(str(place)))


def describe(output: Output, name: Name) -> None:
    """Describe a data set and its terms of use."""
    from hemf.experiments import datasets

    place = datasets.cached(name)
    document = {**_facts(datasets.find(name)), "cached": place and str(place)}

    def show() -> None:
        output.line(datasets.describe(name))
        how = "gets it" if document["url"] else "says where to put its files"
        output.line(f"Here: {place or f'no; hemf data fetch {name} {how}'}")

    output.result(document, show)


def _facts(entry: Dataset) -> Document:
    return {name: getattr(entry, name) for name in FACTS}
