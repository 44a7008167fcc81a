"""One HTML file that shows a model: how it went, what it found, how sure it is.

>>> import tempfile
>>> from hemf import HeMF
>>> from hemf.report import write_report
>>> model = HeMF(n_factors=1, max_sweeps=1, rng=0).fit([("ann", "tea", 5), ("bob", "milk", 1)])
>>> write_report(tempfile.mkdtemp() + "/report.html", model)
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf import plots
from hemf.errors import HistoryWarning
from hemf.evaluation import Predictive, judge
from hemf.evaluation import rmse as rmse_of
from hemf.evaluation.distribution import is_scale
from hemf.judgement_page import honesty
from hemf.report_page import Markup, card, interval, isolated, page, picture, section, table, tiles
from hemf.writing import replacing

if TYPE_CHECKING:
    from hemf.estimator import HeMF
    from hemf.ratings import Ratings
    from hemf.views import Biclusters, CommunityView

MOST_JUDGED = 200_000  # ratings that errors and intervals are measured on: more show no more
RECOMMENDED = 10
NAMED = 5  # examples of a community
NO_RATINGS = "it takes ratings, and none of those that were learnt are kept."
NO_SWEEPS = "it shows the sweeps of a fit, and this model has learnt online from the beginning."


def write_report(
    path: str | os.PathLike[str],
    model: HeMF,
    *,
    title: str = "Ratings",
    held_out: Ratings | None = None,
    example_user: Any = None,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a report on a model; the file needs nothing but a browser.

    What a model that learns online does not keep is not shown, and the report says so.

    ``held_out`` are ratings that the model has not seen, to measure errors and intervals on.
    ``example_user`` is whom recommendations are shown for, by default the one with most ratings.
    ``facts`` are shown beside the model's own figures.
    """
    html = render_report(
        model, title=title, held_out=held_out, example_user=example_user, facts=facts
    )
    with replacing(path) as fresh:
        fresh.write_text(html, encoding="utf-8")


def render_report(
    model: HeMF,
    *,
    title: str = "Ratings",
    held_out: Ratings | None = None,
    example_user: Any = None,
    facts: Mapping[str, str] | None = None,
) -> str:
    """Return the HTML of a report; see `write_report`."""
    state, kept = model._fitted(), model.ratings_
    seen = _judged(model, kept) if kept.n_ratings else None
    unseen = None if held_out is None else _judged(model, held_out)
    if example_user is None:
        example_user = kept.users.ids[int(np.argmax(state.counts("user")))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)  # the report itself says what is missing
        return page(
            title,
            f"{model!r}, {date.today():%d %B %Y}",
            [
                tiles({**_figures(model, seen, unseen), **(facts or {})}),
                section("Learning", _learning(model, unseen)),
                section("Communities", _communities(model)),
                section("How sure", _certainty(model, seen, unseen)),
                section("Recommendations", _recommendations(model, example_user)),
            ],
        )


def _gap(model: HeMF) -> str:
    """Say which ratings a figure is of where not all are kept; nothing where all are."""
    kept, learnt = model.ratings_.n_ratings, model.n_ratings_
    if kept == learnt:
        return ""
    return f"Of the {kept:,} ratings that are kept, of {learnt:,} learnt. "


def _missing(title: str, why: str) -> str:
    return card(title, f"Not shown: {why}", "", wide=True)


class _Judgement:
    """Ratings beside what the model expected of them."""

    def __init__(self, actual: Any, said: Predictive, levels: Any) -> None:
        self.rmse = rmse_of(actual, said.mean)
        self.found = judge(actual, said, levels=levels)


def _judged(model: HeMF, ratings: Ratings) -> _Judgement:
    users, items, actual = ratings.triples()
    step = max(1, -(-actual.size // MOST_JUDGED))
    users, items, actual = users[::step], items[::step], actual[::step]
    times = None if ratings.timestamps is None else ratings.timestamps[::step]
    said = model.predict_distribution(
        ratings.users.ids[users], ratings.items.ids[items], timestamps=times
    )
    levels = model.levels_
    return _Judgement(actual, said, levels if is_scale(levels) else None)


def _figures(model: HeMF, seen: _Judgement | None, unseen: _Judgement | None) -> dict[str, str]:
    figures = {
        "ratings learnt from": f"{model.n_ratings_:,}",
        "users": f"{model.n_users_:,}",
        "items": f"{model.n_items_:,}",
        "user × item communities": f"{model.n_user_communities_} × {model.n_item_communities_}",
    }
    if model.history_:
        settled = "" if model.converged_ else " (not settled)"
        figures["sweeps"] = f"{model.n_sweeps_}{settled}"
        if not math.isnan(model.history_[-1].seconds):
            figures["seconds"] = f"{model.history_[-1].seconds:.1f}"
    figures["ELBO (nats)"] = f"{model.elbo_:,.0f}"
    figures["noise of a rating (σ)"] = f"{model.noise_variance_**0.5:.3f}"
    if seen is not None:
        figures["RMSE, ratings kept" if _gap(model) else "RMSE, training"] = f"{seen.rmse:.4f}"
    if unseen is not None:
        figures["RMSE, held out"] = f"{unseen.rmse:.4f}"
        figures["in 90 % intervals, held out"] = f"{100 * unseen.found.coverage[0.9]:.1f} %"
    return figures


def _learning(model: HeMF, unseen: _Judgement | None) -> list[str]:
    history = model.history_
    if not history:
        return [_missing("Lower bound and error by sweep", NO_SWEEPS)]
    held_out = None if unseen is None else unseen.rmse
    skipped = f"The first {plots.SKIPPED} sweeps are left out. " if len(history) > 4 else ""
    since = "" if model._learner is None else " What was learnt online since is not in these."
    return [
        card(
            "Lower bound",
            f"What every sweep raises. {skipped}It may dip where communities are seeded or tried."
            f"{since}",
            picture("elbo", plots.elbo(history), "Lower bound by sweep"),
        ),
        card(
            "Error",
            "Root mean squared error; in training its expectation over what is still uncertain.",
            picture("rmse", plots.rmse(history, held_out), "RMSE by sweep"),
        ),
        card(
            "Terms of the lower bound",
            "Each on a scale of its own: look at shapes within a panel, not across panels.",
            picture("terms", plots.elbo_terms(history), "Terms of the lower bound by sweep"),
            wide=True,
        ),
    ]


def _communities(model: HeMF) -> list[str]:
    users, items = model.communities("user", n=NAMED), model.communities("item", n=NAMED)
    biclusters = model.biclusters()
    wide = biclusters.size.shape[1] > plots.FEW
    sizes = plots.community_sizes(users.sizes, items.sizes)
    return [
        _active(model),
        card(
            "Community sizes",
            "Expected number of members; who is between two communities counts in part in both.",
            picture("sizes", sizes, "Community sizes"),
        ),
        _map(model, biclusters, wide=wide),
        _divisive(users, wide=wide),
        _typical(users),
        _typical(items),
    ]


def _active(model: HeMF) -> str:
    title = "Active communities"
    if not model.history_:
        return _missing(title, NO_SWEEPS)
    return card(
        title,
        "Many are seeded; those that are fragments of one another are merged.",
        picture("active", plots.active_communities(model.history_), "Communities by sweep"),
    )


def _map(model: HeMF, biclusters: Biclusters, *, wide: bool) -> str:
    title = "Who rates what how"
    if not biclusters.size.any():
        return _missing(title, NO_RATINGS)
    drawn = plots.bicluster_map(biclusters.mean_rating, biclusters.size)
    return card(
        title,
        "Mean rating of each item community by each user community; below it, the number of "
        f"ratings. {_gap(model)}".rstrip(),
        picture("biclusters", drawn, "Mean rating of each user by item community"),
        wide=wide,
    )


def _typical(view: CommunityView) -> str:
    other = "items" if view.side == "user" else "users"
    if view.side == "user":
        text = "Typical items are those with the highest ratings to expect."
        beyond = "are rated higher here than the averages of this community and of the item suggest"
    else:
        text = "Typical users are those who rate highest."
        beyond = "rate these items higher than the averages of the items and of the user suggest"
    if len(view) > 1:
        text = (
            f"Typical {other} {beyond}. Where a community's ratings are low, those elsewhere may "
            "still be higher."
        )
    rows = [
        [
            number,
            f"{size:,.0f}",
            _listed(isolated(id) for id in view.members(number)[:NAMED]),
            _listed(f"{isolated(one.id)} {_soft(f'{one.rating:.1f}')}" for one in typical),
        ]
        for number, (size, typical) in enumerate(zip(view.sizes, view.typical, strict=True))
    ]
    headers = ["", "members", "surest members", f"typical {other}, and the rating to expect"]
    return card(
        f"{view.side.capitalize()} communities",
        text,
        table(headers, rows, numbers=[1]),
        wide=True,
    )


def _listed(parts: Iterable[str]) -> Markup:
    """Return HTML with commas between parts that are not broken across lines."""
    return Markup(", ".join(f'<span class="whole">{part}</span>' for part in parts))


def _soft(text: str) -> str:
    return f'<span class="soft">{text}</span>'


def _divisive(view: CommunityView, *, wide: bool) -> str:
    if not view.divisive:
        return ""
    headers = ["item", *map(str, range(len(view))), "spread"]
    rows = [
        [one.id, *(f"{rating:.1f}" for rating in one.ratings), f"{one.spread:.2f}"]
        for one in view.divisive
    ]
    return card(
        "Divisive items",
        "What each user community is expected to rate the items that they agree on least.",
        table(headers, rows, numbers=range(1, len(headers))),
        wide=wide,
    )


def _certainty(model: HeMF, seen: _Judgement | None, unseen: _Judgement | None) -> list[str]:
    judged, whose = (seen, "training") if unseen is None else (unseen, "held-out")
    if judged is None:
        return [_missing("Calibration of intervals", NO_RATINGS)]
    caution = (
        "These are the ratings learnt from: new ones are held a little less often. " + _gap(model)
        if unseen is None
        else ""
    )
    return honesty(judged.found, whose, caution)


def _recommendations(model: HeMF, user: Any) -> list[str]:
    items, _ = model.recommend(user, RECOMMENDED)
    name = isolated(user) if isinstance(user, str) else f"user {isolated(user)}"
    cards = []
    if len(items):
        mean, std = model.predict(user, items, return_std=True)
        low, high = model.rating_range_ or (float((mean - std).min()), float((mean + std).max()))
        rows = [
            [item, f"{m:.1f} ± {s:.1f}", interval(m, s, low, high)]
            for item, m, s in zip(items, mean, std, strict=True)
        ]
        new = "may have been rated: not all ratings are kept" if _gap(model) else "not rated so far"
        cards.append(
            card(
                Markup(f"Best for {name}"),
                f"Rating to expect, ± one standard deviation; {new}.",
                table(["item", "rating", f"{low:g} to {high:g}"], rows, numbers=[1]),
            )
        )
    return [*cards, _favourites(model, user, Markup(f"Rated highest by {name}"))]


def _favourites(model: HeMF, user: Any, title: str) -> str:
    ratings = model.ratings_
    row = int(ratings.users.rows([user])[0])
    if row < 0:
        return _missing(title, "no rating of theirs has been learnt.")
    seen, values = ratings.by_user.row(row)
    given = int(model._fitted().counts("user")[row])
    if given and not seen.size:
        return _missing(title, NO_RATINGS)
    best = np.argsort(-values, kind="stable")[:RECOMMENDED]
    favourites = [[ratings.items.ids[seen[place]], f"{values[place]:g}"] for place in best]
    kept = "" if seen.size == given else f" that are kept, of {given:,} learnt"
    return card(
        title,
        f"Of {seen.size:,} ratings{kept}.",
        table(["item", "rating"], favourites, numbers=[1]),
    )
