"""``hemf explain``: the parts of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from hemf.cli import arguments
from hemf.cli.models import find_id
from hemf.cli.output import Columns, Output, RowFormat, columns_of

if TYPE_CHECKING:
    from hemf.queries.explain import Explanation


def explain(
    output: Output,
    model_file: arguments.Model,
    user: Annotated[str, typer.Argument(metavar="U")],
    item: Annotated[str, typer.Argument(metavar="I")],
    n: Annotated[int, typer.Option("-n", help="Number of rated items to list.", min=0)] = 5,
    format: RowFormat = None,
) -> None:
    """Explain a prediction."""
    model = output.load_model(model_file)
    user_id, _ = find_id(model.ratings_.users, user)
    item_id, _ = find_id(model.ratings_.items, item)
    explanation = model.explain(user_id, item_id, n=n)
    output.rows(
        explanation_rows(explanation),
        lambda: output.line(str(explanation)),
        document=explanation.to_dict(),
        format=format,
    )


def explanation_rows(why: Explanation) -> Columns:
    """Return one row for each part of an explanation; rows of rated items have more columns."""
    sums = (
        "global_mean", "user_offset", "item_offset", "interaction", "from_ratings",
        "from_features", "from_communities",
    )  # fmt: skip
    groups: dict[str, Mapping[str, float] | Mapping[int, float]] = {
        "prediction": {"mean": why.mean, "std": why.std},
        "part": {name: getattr(why, name) for name in sums},
        "uncertainty": why.uncertainty,
        "user community": why.user_communities,
        "item community": why.item_communities,
    }
    rows: list[tuple[object, ...]] = [
        (what, str(name), value, None, None)
        for what, entries in groups.items()
        for name, value in entries.items()
    ]
    rows += [
        ("rated item", str(r.item), r.contribution, r.rating, r.similarity) for r in why.reasons
    ]
    return columns_of(("what", "name", "value", "rating", "similarity"), rows)
