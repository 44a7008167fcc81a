"""``hemf recommend``: the best items for users."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hemf.cli import arguments
from hemf.cli.models import Seed, find_id, ranked_items
from hemf.cli.output import Document, Output, RowFormat, columns_of

_FIGURES = ("score", "mean", "std")


class Strategy(StrEnum):
    """Score that items are ranked by."""

    relevance = "relevance"
    mean = "mean"
    ucb = "ucb"
    thompson = "thompson"


def recommend(
    output: Output,
    model_file: arguments.Model,
    users: Annotated[list[str], typer.Option("--user", metavar="U", help="User; may be repeated.")],
    n: Annotated[int, typer.Option("-n", help="Number of items.", min=1)] = 10,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="Rank by relevance (the expected rating where choices are not learnt), expected "
            "rating, upper confidence bound, or Thompson sampling."
        ),
    ] = Strategy.relevance,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Include items that the user has rated.")
    ] = False,
    diversity: Annotated[
        float,
        typer.Option(
            help="How much the items of a list are to differ, from 0 to 1.", min=0.0, max=1.0
        ),
    ] = 0.0,
    seed: Seed = 0,
    format: RowFormat = None,
) -> None:
    """List the best items for users, with expected rating and standard deviation."""
    model = output.load_model(model_file)
    ids = [find_id(model.ratings_.users, text)[0] for text in users]
    known_users = model.recommend(ids, 1, return_known=True)[-1].tolist()
    found = list(zip(ids, known_users, strict=True))
    for user, known in found:
        if not known:
            output.remark(f"user {user} is unknown; the items are those for a newcomer")
    options = {
        "strategy": strategy.value,
        "exclude_seen": not include_seen,
        "diversity": diversity,
        "rng": seed,
    }
    answers = [
        {"user": user, "known": known, "items": ranked_items(model, user, n, **options)}
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
            output.remark(f"user {answer['user']}: no items are left to recommend")


def show_ranked(output: Output, items: list[Document]) -> None:
    """Print ranked items with mean ± standard deviation."""
    output.table(
        ("item", "rating"),
        ((row["item"], f"{row['mean']:.1f} ± {row['std']:.1f}") for row in items),
        numbers=(1,),
    )
