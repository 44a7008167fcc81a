"""``hemf communities`` and ``hemf explain``: what a kept model has found."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.output import Output

if TYPE_CHECKING:
    from hemf.views import Biclusters, CommunityView

MEMBERS_SHOWN = 10  # of each community, for people


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
    members: Annotated[
        bool,
        typer.Option("--members", help="Name the members; all of them with --json."),
    ] = False,
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
        for view in views.values():
            show_communities(output, view)
            if members:
                show_members(output, view)
            output.line()
        show_biclusters(output, table)

    document = {name: view.to_dict(member_ids=members) for name, view in views.items()}
    output.result({**document, "biclusters": table.to_dict()}, show)


def show_communities(output: Output, view: CommunityView) -> None:
    """Print one side's communities, largest first, and what they disagree on."""
    other = "items" if view.side == "user" else "users"
    output.line(f"{view.side} communities", style="bold")
    rows = [
        (number, f"{size:,.0f}", f"{100 * weight:.0f} %", _named(typical))
        for number, (size, weight, typical) in enumerate(
            zip(view.sizes, view.weights, view.typical, strict=True)
        )
    ]
    output.table(("", "size", "weight", f"typical {other} (rating to expect)"), rows, (0, 1, 2))
    if view.divisive:
        numbers = [str(number) for number in range(len(view))]
        output.line(f"divisive {other}: rating to expect in each community", style="bold")
        output.table(
            (other[:-1], *numbers),
            ((one.id, *(f"{rating:.2f}" for rating in one.ratings)) for one in view.divisive),
            numbers=range(1, len(view) + 1),
        )


def show_members(output: Output, view: CommunityView) -> None:
    """Print who belongs to each community, the surest first, as far as a line goes."""
    rows = []
    for number in range(len(view)):
        found = view.members(number)
        rest = len(found) - MEMBERS_SHOWN
        names = ", ".join(map(str, found[:MEMBERS_SHOWN])) or "-"
        rows.append((number, f"{names}, and {rest:,} more" if rest > 0 else names))
    output.table(("", f"{view.side}s in it, the surest first"), rows, (0,))


def _named(typical: Any) -> str:
    return ", ".join(f"{one.id} ({one.rating:.1f})" for one in typical)


def show_biclusters(output: Output, table: Biclusters) -> None:
    """Print how each user community rates each item community, and how often."""
    headers = ("", *map(str, range(table.size.shape[1])))
    for title, values, form in (
        ("mean rating by user community (down) and item community", table.mean_rating, ".2f"),
        ("number of ratings", table.size, ",d"),
    ):
        output.line(title, style="bold")
        rows = (
            (number, *("-" if value != value else format(value, form) for value in row))
            for number, row in enumerate(values.tolist())
        )
        output.table(headers, rows, numbers=range(len(headers)))


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
