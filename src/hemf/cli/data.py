"""``hemf data``: public data sets, what they are, and how to get them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hemf.cli.arguments import show_terms
from hemf.cli.command import command
from hemf.cli.output import Output, RowFormat

app = typer.Typer(
    help="Public data sets: list, fetch, describe.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set, as `list` shows.")]


def list_data(output: Output, format: RowFormat = None) -> None:
    """List the data sets that can be fetched, or read once their files are placed."""
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

    One that is here already is not fetched again; its place is printed.
    """
    from hemf.cli.progress import download
    from hemf.experiments import datasets

    entry = datasets.find(name)
    show_terms(output, entry)
    with download(output, name) as progress:
        place = datasets.fetch(name, progress=progress)
    document = {"name": name, "path": str(place), "terms": entry.terms, "citation": entry.citation}
    output.result(document, lambda: output.line(str(place)))


def describe(output: Output, name: Name) -> None:
    """Say what a data set is, and on what terms it may be used."""
    from hemf.experiments import datasets

    place = datasets.cached(name)
    document = {
        **_facts(datasets.find(name)),
        "cached": place and str(place),
    }

    def show() -> None:
        output.line(datasets.describe(name))
        how = "gets it" if document["url"] else "says where to put its files"
        output.line(f"Here: {place or f'no; hemf data fetch {name} {how}'}")

    output.result(document, show)


def _facts(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "users": entry.users,
        "items": entry.items,
        "ratings": entry.ratings,
        "scale": entry.scale and list(entry.scale),
        "megabytes": entry.megabytes,
        "url": entry.url,
        "md5": entry.md5,
        "terms": entry.terms,
        "citation": entry.citation,
    }


command(app, list_data, name="list")
command(app, fetch)
command(app, describe)
