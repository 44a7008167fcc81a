"""``hemf communities``: the communities of a model."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hemf.cli import arguments
from hemf.cli.output import Columns, Document, Output, RowFormat, columns_of

if TYPE_CHECKING:
    from hemf.queries.communities import Biclusters, CommunityView

MEMBERS_SHOWN = 10  # of each community, for people


class Side(StrEnum):
    """Side of the table."""

    user = "user"
    item = "item"


def communities(
    output: Output,
    model_file: arguments.Model,
    side: Annotated[Side | None, typer.Option(help="Side; both by default.")] = None,
    members: Annotated[
        bool,
        typer.Option(
            "--members", help="List the members; all of them with --json, in a file or a pipe."
        ),
    ] = False,
    format: RowFormat = None,
) -> None:
    """Show the communities and their mean ratings.

    A file or a pipe gets one row for each community or, with --members, one row for each user and
    item with its most probable community.
    """
    model = output.load_model(model_file)
    with output.status("computing the communities"):
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
    output.rows(
        member_rows(views) if members else community_rows(document),
        show,
        document={**document, "biclusters": table.to_dict()},
        format=format,
    )


def community_rows(document: Document) -> Columns:
    """Return one row for each community."""
    names = ("community", "size", "weight", "members", "typical")
    rows = (
        (side, *(community[name] for name in names))
        for side, view in document.items()
        for community in view["communities"]
    )
    return columns_of(("side", *names), rows)


def member_rows(views: dict[str, CommunityView]) -> Columns:
    """Return one row for each user and item: its most probable community."""
    rows = (
        (side, id, community, float(probability))
        for side, view in views.items()
        for id, community, probability in zip(
            view.ids.tolist(), view.assignment.tolist(), view.probabilities.max(axis=1), strict=True
        )
    )
    return columns_of(("side", "id", "community", "probability"), rows)


def show_communities(output: Output, view: CommunityView) -> None:
    """Print one side's communities, largest first, and the most divisive ids of the other."""
    other = "items" if view.side == "user" else "users"
    output.line(f"{view.side} communities", style="bold")
    rows = [
        (
            number,
            f"{size:,.0f}",
            f"{100 * weight:.0f} %",
            ", ".join(f"{one.id} ({one.rating:.1f})" for one in typical),
        )
        for number, (size, weight, typical) in enumerate(
            zip(view.sizes, view.weights, view.typical, strict=True)
        )
    ]
    output.table(("", "size", "weight", f"typical {other} (expected rating)"), rows, (0, 1, 2))
    if view.divisive:
        numbers = [str(number) for number in range(len(view))]
        output.line(f"divisive {other}: expected rating in each community", style="bold")
        output.table(
            (other[:-1], *numbers),
            ((one.id, *(f"{rating:.2f}" for rating in one.ratings)) for one in view.divisive),
            numbers=range(1, len(view) + 1),
        )


def show_members(output: Output, view: CommunityView) -> None:
    """Print the first members of each community, most probable first."""
    rows = []
    for number in range(len(view)):
        found = view.members(number)
        rest = len(found) - MEMBERS_SHOWN
        names = ", ".join(map(str, found[:MEMBERS_SHOWN])) or "-"
        rows.append((number, f"{names}, and {rest:,} more" if rest > 0 else names))
    output.table(("", f"{view.side}s, most probable first"), rows, (0,))


def show_biclusters(output: Output, table: Biclusters) -> None:
    """Print mean and number of ratings of each user × item community."""
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
