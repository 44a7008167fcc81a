"""``hemf communities`` and ``hemf explain``: what a kept model has found."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf._files import expand_home
from hemf.cli import arguments
from hemf.cli.output import Output, RowFormat, columns_of

if TYPE_CHECKING:
    from hemf.queries.communities import Biclusters, CommunityView
    from hemf.queries.explain import Explanation


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
        typer.Option(
            "--members",
            help="Name the members; all of them with --json, to a file or to another program.",
        ),
    ] = False,
    format: RowFormat = None,
) -> None:
    """Show the communities, and who rates what how.

    To a file or another program go the communities, one in each row, or with --members the users
    and items with the community that each most probably belongs to.
    """
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
    output.rows(
        member_rows(views) if members else community_rows(document),
        show,
        document={**document, "biclusters": table.to_dict()},
        format=format,
    )


def community_rows(document: dict[str, Any]) -> dict[str, list[Any]]:
    """Return one row for each community."""
    names = ("community", "size", "weight", "members", "typical")
    rows = (
        (side, *(community[name] for name in names))
        for side, view in document.items()
        for community in view["communities"]
    )
    return columns_of(("side", *names), rows)


def member_rows(views: dict[str, CommunityView]) -> dict[str, list[Any]]:
    """Return one row for each user and item: where it most probably belongs."""
    rows = (
        (side, id, community, float(probability))
        for side, view in views.items()
        for id, community, probability in zip(
            view.ids.tolist(), view.assignment.tolist(), view.probabilities.max(axis=1), strict=True
        )
    )
    return columns_of(("side", "id", "community", "probability"), rows)


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
    format: RowFormat = None,
) -> None:
    """Say what went into a prediction."""
    from hemf import HeMF

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
    user_id, _ = arguments.find_id(model.ratings_.users, user)
    item_id, _ = arguments.find_id(model.ratings_.items, item)
    explanation = model.explain(user_id, item_id, n=n)
    output.rows(
        explanation_rows(explanation),
        lambda: output.line(str(explanation)),
        document=explanation.to_dict(),
        format=format,
    )


def explanation_rows(why: Explanation) -> dict[str, list[Any]]:
    """Return one row for each part of an explanation; those of rated items say more."""
    sums = (
        "global_mean", "user_offset", "item_offset", "interaction", "from_ratings",
        "from_features", "from_communities",
    )  # fmt: skip
    groups: dict[str, dict[Any, float]] = {
        "prediction": {"mean": why.mean, "std": why.std},
        "part": {name: getattr(why, name) for name in sums},
        "uncertainty": why.uncertainty,
        "user community": why.user_communities,
        "item community": why.item_communities,
    }
    rows: list[tuple[Any, ...]] = [
        (what, str(name), value, None, None)
        for what, entries in groups.items()
        for name, value in entries.items()
    ]
    rows += [
        ("rated item", str(r.item), r.contribution, r.rating, r.similarity) for r in why.reasons
    ]
    return columns_of(("what", "name", "value", "rating", "similarity"), rows)


# ------------------------------------------------------------------------------------------------
# ``hemf describe``: what is in a model file.


SHOWN = 5  # batches, for people


def describe(output: Output, model_file: arguments.Model) -> None:
    """Say what is in a model file, and which batches it has learnt.

    The batches are those that `hemf update` has applied since the fit, the last 1,000 of them.
    """
    from hemf import HeMF
    from hemf.persistence.model import read_versions

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
        versions = read_versions(model_file)
    document = {
        "model": output.named(str(model_file)),
        "bytes": expand_home(model_file).stat().st_size,
        **versions,
        "users": model.n_users_,
        "items": model.n_items_,
        "ratings": model.n_ratings_,
        "factors": model.n_factors,
        "user_communities": model.n_user_communities_,
        "item_communities": model.n_item_communities_,
        "noise_std": model.noise_variance_**0.5,
        "sweeps": model.n_sweeps_,
        "converged": model.converged_,
        "history": model.history,
        "online": model.is_online_,
        "batches": [batch._asdict() for batch in model.batches_],
    }
    output.result(document, lambda: _show(output, document))


def _show(output: Output, facts: dict[str, Any]) -> None:
    output.line(facts["model"], style="bold")
    output.line(
        f"{facts['bytes'] / 1e6:,.1f} MB, format {facts['format_version']}, written by hemf "
        f"{facts['library_version']}"
    )
    output.line(
        f"{facts['ratings']:,} ratings of {facts['items']:,} items by {facts['users']:,} users"
    )
    output.line(
        f"{facts['user_communities']} user × {facts['item_communities']} item communities, "
        f"{facts['factors']} factors, noise ±{facts['noise_std']:.3g}"
    )
    how = "learns online" if facts["online"] else "fitted in batch"
    output.line(f"{facts['sweeps']:,} sweeps, {how}, history {facts['history']}")
    batches = facts["batches"]
    if not batches:
        output.line("no batches applied by hemf update")
        return
    output.line(f"{len(batches):,} batches applied by hemf update; the last ones:")
    for batch in batches[-SHOWN:]:
        output.line(f"  {batch['id']}  {batch['ratings']:,} ratings")
