"""``hemf predict``: predict the ratings of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hemf.cli import arguments
from hemf.cli.arguments import READ, WRITTEN
from hemf.cli.output import Document, Output, RowFormat, check_table_name, write_table
from hemf.errors import ParameterError

SHOWN = 20  # pairs on a terminal


def predict(
    output: Output,
    model_file: arguments.Model,
    pairs: Annotated[
        Path,
        typer.Argument(metavar="PAIRS", help="File of users and items: CSV, TSV, JSONL, Parquet."),
        READ,
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: .csv, .tsv, .jsonl or .parquet, or - for stdout.",
        ),
        WRITTEN,
        ".csv",
    ] = None,
    format: RowFormat = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Columns of user and item.")
    ] = None,
) -> None:
    """Predict the ratings of pairs.

    Prints mean, standard deviation, and whether user and item are known. A model with moods uses
    the timestamps of the pairs, if the file has these. A terminal shows the first pairs; a file or
    a pipe gets all of them.
    """
    from hemf.data.ratings import timed_pairs_from_any

    if output.aside:
        output.check_binary(format)
    if output.json and target is None and format is not None:
        raise ParameterError("--json and --format exclude each other; give one of them")
    check_table_name(target, format)
    arguments.check_writable(target, apart_from=[pairs, model_file])
    model = output.load_model(model_file)
    with output.status(f"predicting {pairs}"):
        known_ids = model.ratings_
        users, items, times = timed_pairs_from_any(
            pairs,
            arguments.parse_columns(columns),
            timed=model.has_moods_,
            users=known_ids.users,
            items=known_ids.items,
        )
        mean, std, known = model.predict(
            users, items, timestamps=times, return_std=True, return_known=True
        )
        table = {"user": users, "item": items, "mean": mean, "std": std, "known": known}
        if target is not None:
            write_table(target, table, format)
    strangers = int((~known).sum())
    if strangers:
        output.remark(
            f"{strangers:,} of {known.size:,} pairs have an unknown user or item; their "
            "predictions are those of a newcomer"
        )
    document: Document = {"pairs": known.size, "unknown": strangers}
    if target is not None:
        document["output"] = str(target)
        output.result(document, lambda: output.line(f"{known.size:,} predictions: {target}"))
        return

    def rows(stop: int | None) -> Iterator[tuple[object, ...]]:
        cut = [column[:stop].tolist() for column in table.values()]
        return zip(*cut, strict=True)

    def show() -> None:
        output.table(
            ("user", "item", "mean", "std", "known"),
            (
                (user, item, f"{mean:.3f}", f"{std:.3f}", "yes" if known else "no")
                for user, item, mean, std, known in rows(SHOWN)
            ),
            numbers=(2, 3),
        )
        if known.size > SHOWN:
            output.line(f"… and {known.size - SHOWN:,} more; -o FILE writes all")

    if output.json:
        document["predictions"] = [dict(zip(table, row, strict=True)) for row in rows(None)]
    output.rows(table, show, document=document, format=format)
