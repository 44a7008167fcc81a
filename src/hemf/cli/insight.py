"""``hemf communities`` and ``hemf explain``: what a kept model has found."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.output import Output


class Side(StrEnum):
    """Whose communities."""

    user = "user"
    item = "item"


def communities(
    output: Output,
    model_file: arguments.Model,
    side: Annotated[
        Side | None, typer.Option(help="Whose communities; both sides without.")
    ] = None,
) -> None:
    """Show the communities, and who rates what how."""
    from hemf import HeMF

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
    with output.status("looking at the communities"):
        sides = [side.value] if side else [entry.value for entry in Side]
        views = {name: model.communities(name) for name in sides}
        table = model.biclusters()

    def show() -> None:
        for name, view in views.items():
            show_communities(output, name, view)
            output.line()
        show_biclusters(output, table)

    document = {name: view.to_dict() for name, view in views.items()}
    output.result({**document, "biclusters": table.to_dict()}, show)


def show_communities(output: Output, side: str, view: Any) -> None:
    """Print one side's communities, largest first."""
    output.line(f"{side} communities", style="bold")
    output.table(
        ("", "size", "weight", "typical", "divisive"),
        (
            (number, f"{size:,.0f}", f"{100 * weight:.0f} %", _few(typical), _few(divisive))
            for number, (size, weight, typical, divisive) in enumerate(
                zip(view.sizes, view.weights, view.typical, view.divisive, strict=True)
            )
        ),
    )


def show_biclusters(output: Output, table: Any) -> None:
    """Print how each user community rates each item community."""
    import numpy as np

    mean, size = np.asarray(table.mean_rating), np.asarray(table.size)
    output.line("mean rating (number of ratings): user communities down, items across", "bold")
    output.table(
        ("", *map(str, range(mean.shape[1]))),
        (
            (
                number,
                *(
                    f"{rating:.2f} ({count:,.0f})" if count else "-"
                    for rating, count in zip(*row, strict=True)
                ),
            )
            for number, row in enumerate(zip(mean, size, strict=True))
        ),
    )


def _few(ids: Any) -> str:
    return ", ".join(map(str, ids))


def explain(
    output: Output,
    model_file: arguments.Model,
    user: Annotated[str, typer.Argument(metavar="U")],
    item: Annotated[str, typer.Argument(metavar="I")],
    n: Annotated[int, typer.Option("-n", help="How many rated items to name.", min=0)] = 5,
) -> None:
    """Say what went into a prediction."""
    from hemf import HeMF

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
    user_id, _ = arguments.find_id(model.ratings_.users, user)
    item_id, _ = arguments.find_id(model.ratings_.items, item)
    explanation = model.explain(user_id, item_id, n=n)
    output.result(explanation.to_dict(), lambda: output.line(str(explanation)))
