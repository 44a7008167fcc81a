"""``hemf similar``: the items or users that are most similar to some."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hemf.cli import arguments
from hemf.cli.models import find_id
from hemf.cli.output import Document, Output, RowFormat, columns_of
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf.estimator import HeMF


class By(StrEnum):
    """Data that similarity goes by."""

    choices = "choices"
    ratings = "ratings"


_COLUMNS = ("side", "id", "rank", "similar", "similarity", "std")


def similar(
    output: Output,
    model_file: arguments.Model,
    items: Annotated[
        list[str] | None, typer.Option("--item", metavar="I", help="Item; may be repeated.")
    ] = None,
    users: Annotated[
        list[str] | None, typer.Option("--user", metavar="U", help="User; may be repeated.")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Number of similar ones.", min=1)] = 10,
    by: Annotated[
        By | None,
        typer.Option(help="Data to go by: by default choices where they are learnt, else ratings."),
    ] = None,
    format: RowFormat = None,
) -> None:
    """List the items or users that are most similar to some, with standard deviations."""
    if not items and not users:
        raise ParameterError("similar to what? give --item or --user, once or several times")
    model = output.load_model(model_file)
    answers = [
        _answer(model, side, text, n, by)
        for side, texts in (("item", items), ("user", users))
        for text in texts or ()
    ]

    def show() -> None:
        for answer in answers:
            if len(answers) > 1:
                output.line(f"{answer['side']} {answer['id']}", style="bold")
            found = [
                (row["id"], f"{row['similarity']:.2f} ± {row['std']:.2f}")
                for row in answer["similar"]
            ]
            output.table((answer["side"], "similarity"), found, numbers=(1,))

    rows = [
        (answer["side"], answer["id"], rank, row["id"], row["similarity"], row["std"])
        for answer in answers
        for rank, row in enumerate(answer["similar"], start=1)
    ]
    output.rows(columns_of(_COLUMNS, rows), show, document={"answers": answers}, format=format)


def _answer(model: HeMF, side: str, text: str, n: int, by: By | None) -> Document:
    ratings = model.ratings_
    id, _ = find_id(ratings.items if side == "item" else ratings.users, text)
    ask = model.similar_items if side == "item" else model.similar_users
    ids, similarities, std = ask(id, n, by=None if by is None else by.value, return_std=True)
    columns = ids.tolist(), similarities.tolist(), std.tolist()
    names = ("id", "similarity", "std")
    found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return {"side": side, "id": id, "similar": found}
