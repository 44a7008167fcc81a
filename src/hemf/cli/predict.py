"""``hemf predict`` and ``hemf recommend``: what a kept model expects, and how sure it is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.output import READ, WRITTEN, Output, RowFormat, columns_of
from hemf.errors import ParameterError

SHOWN = 20  # pairs on the screen; a file holds all of them
_FIGURES = ("score", "mean", "std")


class Strategy(StrEnum):
    """What items are ranked by."""

    mean = "mean"
    ucb = "ucb"
    thompson = "thompson"


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
            help="Where to write: .csv, .tsv, .jsonl or .parquet, or - for stdout.",
        ),
        WRITTEN,
        ".csv",
    ] = None,
    format: RowFormat = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="Columns of user and item."),
    ] = None,
) -> None:
    """Predict the ratings of pairs.

    Gives mean, standard deviation, and whether user and item are known to the model. A model with
    moods predicts them at their timestamps, where the file has these. A terminal shows the first
    pairs; a file or a pipe gets all of them.
    """
    from hemf import HeMF
    from hemf.cli.output import check_table_name, write_table
    from hemf.data.ratings import timed_pairs_from_any

    if output.aside:
        output.check_binary(format)
    if output.json and target is None and format is not None:
        raise ParameterError("--json and --format exclude each other; give one of them")
    check_table_name(target, format)
    arguments.check_writable(target, apart_from=[pairs, model_file])
    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
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
            f"{strangers:,} of {known.size:,} pairs have a user or item that the model does not "
            "know; what is expected of a newcomer stands there"
        )
    document: dict[str, Any] = {"pairs": known.size, "unknown": strangers}
    if target is not None:
        document["output"] = str(target)
        output.result(document, lambda: output.line(f"{known.size:,} predictions: {target}"))
        return

    def rows(stop: int | None) -> Any:
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


def recommend(
    output: Output,
    model_file: arguments.Model,
    users: Annotated[
        list[str], typer.Option("--user", metavar="U", help="Whom for; may be repeated.")
    ],
    n: Annotated[int, typer.Option("-n", help="How many items.", min=1)] = 10,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="Expected rating, what it may well be (ucb), or a draw of it (thompson)."
        ),
    ] = Strategy.mean,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what the user has rated.")
    ] = False,
    seed: arguments.Seed = 0,
    format: RowFormat = None,
) -> None:
    """List the best items for users.

    Each comes with the rating to expect and its standard deviation.
    """
    from hemf import HeMF

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
    ids = [arguments.find_id(model.ratings_.users, text)[0] for text in users]
    known_users = model.recommend(ids, 1, return_known=True)[-1].tolist()
    found = list(zip(ids, known_users, strict=True))
    for user, known in found:
        if not known:
            output.remark(f"user {user} is not known; this is what suits a newcomer")
    answers = [
        {
            "user": user,
            "known": known,
            "items": ranked_items(
                model, user, n, strategy=strategy.value, exclude_seen=not include_seen, rng=seed
            ),
        }
        for user, known in found
    ]

    def show() -> None:
        for answer in answers:
            if len(answers) > 1:
                output.line(f"user {answer['user']}", style="bold")
            if answer["items"]:
                show_ranked(output, answer["items"])

    best = [
        (answer["user"], item["item"], rank, *(item[k] for k in _FIGURES), answer["known"])
        for answer in answers
        for rank, item in enumerate(answer["items"], start=1)
    ]
    names = ("user", "item", "rank", *_FIGURES, "known")
    output.rows(
        columns_of(names, best),
        show,
        document={"strategy": strategy.value, "recommendations": answers},
        format=format,
    )
    for answer in answers:
        if not answer["items"] and not output.json:
            output.remark(f"user {answer['user']}: nothing is left to recommend")


def ranked_items(model: Any, user: Any, n: int, **options: Any) -> list[dict[str, Any]]:
    """Best items of a user, each with its score and the rating to expect."""
    items, scores = model.recommend(user, n, **options)
    if not len(items):
        return []
    mean, std = model.predict(user, items, return_std=True)
    return [
        {"item": item, "score": float(score), "mean": float(m), "std": float(s)}
        for item, score, m, s in zip(items.tolist(), scores, mean, std, strict=True)
    ]


def show_ranked(output: Output, items: list[dict[str, Any]]) -> None:
    """Print ranked items with mean ± standard deviation."""
    output.table(
        ("item", "rating"),
        ((row["item"], f"{row['mean']:.1f} ± {row['std']:.1f}") for row in items),
        numbers=(1,),
    )
