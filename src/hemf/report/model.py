"""HTML reports of models, evaluations and streams."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hemf._files import atomic_write
from hemf._typing import AnyArray
from hemf.data.ratings import Ratings
from hemf.errors import HistoryWarning, ParameterError
from hemf.evaluation.distribution import Calibration, is_scale, judge
from hemf.evaluation.metrics import CurvePoint
from hemf.evaluation.metrics import rmse as rmse_of
from hemf.evaluation.ranking import RankingMetrics
from hemf.model.state import FittedModel
from hemf.online.record import Fit
from hemf.queries.communities import Biclusters, CommunityView, biclusters, community_view
from hemf.queries.predict import levels, predict, predict_distribution
from hemf.report import plots
from hemf.report.page import (
    Markup,
    card,
    interval,
    isolated,
    page,
    picture,
    section,
    table,
    tiles,
    write_drawn,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_JUDGED = 200_000  # ratings that errors and intervals are measured on
FAVOURITES = 10  # items
NAMED = 5  # examples of a community
NO_RATINGS = "it takes ratings, and none of those that were learnt are kept."
NO_SWEEPS = "it shows the sweeps of a fit, and this model has learnt online from the beginning."


class Example(NamedTuple):
    """A user, and the items that are recommended to them."""

    user: Hashable
    items: AnyArray


def write_report(
    path: str | os.PathLike[str],
    fit: Fit,
    subtitle: str,
    *,
    title: str,
    held_out: Ratings | None,
    example: Example,
    facts: Mapping[str, str],
) -> None:
    """Write a report on what was learnt; see `hemf.HeMF.report`."""
    model = fit.model
    seen = _judged(model, model.ratings) if model.ratings.n_ratings else None
    unseen = None if held_out is None else _judged(model, held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)  # the report itself says what is missing
        html = page(
            title,
            f"{subtitle}, {date.today():%d %B %Y}",
            [
                tiles({**_figures(fit, seen, unseen), **facts}),
                section("Learning", _learning(fit, unseen)),
                section("Communities", _communities(fit)),
                section("How sure", _certainty(model, seen, unseen)),
                section("Recommendations", _recommendations(model, example)),
            ],
        )
    with atomic_write(path) as fresh:
        fresh.write_text(html, encoding="utf-8")


def _gap(model: FittedModel) -> str:
    """Return which ratings a figure is of if not all are kept, otherwise an empty text."""
    kept, learnt = model.ratings.n_ratings, model.state.n_ratings
    if kept == learnt:
        return ""
    return f"Of the {kept:,} ratings that are kept, of {learnt:,} learnt. "


def _missing(title: str, why: str) -> str:
    return card(title, f"Not shown: {why}", wide=True)


class _Judgement(NamedTuple):
    """Error and calibration of predictions."""

    rmse: float
    found: Calibration


def _judged(model: FittedModel, ratings: Ratings) -> _Judgement:
    step = max(1, -(-ratings.n_ratings // MAX_JUDGED))
    users, items, actual = (column[::step] for column in ratings.id_columns())
    times = None if ratings.timestamps is None else ratings.timestamps[::step]
    predicted = predict_distribution(model, users, items, times)
    known = levels(model)
    found = judge(actual, predicted, levels=known if is_scale(known) else None)
    return _Judgement(rmse_of(actual, predicted.mean), found)


def _figures(fit: Fit, seen: _Judgement | None, unseen: _Judgement | None) -> dict[str, str]:
    model, state = fit.model, fit.model.state
    users, items = state.sides["user"], state.sides["item"]
    figures = {
        "ratings learnt from": f"{state.n_ratings:,}",
        "users": f"{users.n_rows:,}",
        "items": f"{items.n_rows:,}",
        "user × item communities": f"{users.n_communities} × {items.n_communities}",
    }
    if fit.history:
        figures["sweeps"] = f"{state.sweeps}{'' if fit.converged else ' (not converged)'}"
        if not math.isnan(fit.history[-1].seconds):
            figures["seconds"] = f"{fit.history[-1].seconds:.1f}"
    figures["ELBO (nats)"] = f"{sum(state.bound_terms().values()):,.0f}"
    figures["noise of a rating (σ)"] = f"{(state.noise * model.scale**2) ** 0.5:.3f}"
    if seen is not None:
        figures["RMSE, ratings kept" if _gap(model) else "RMSE, training"] = f"{seen.rmse:.4f}"
    if unseen is not None:
        figures["RMSE, held out"] = f"{unseen.rmse:.4f}"
        figures["in 90 % intervals, held out"] = f"{100 * unseen.found.coverage[0.9]:.1f} %"
    return figures


def _learning(fit: Fit, unseen: _Judgement | None) -> list[str]:
    history = fit.history
    if not history:
        return [_missing("Lower bound and error by sweep", NO_SWEEPS)]
    held_out = None if unseen is None else unseen.rmse
    skipped = f"The first {plots.SKIPPED} sweeps are left out. " if len(history) > 4 else ""
    since = "" if fit.learner is None else " What was learnt online since is not in these."
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


def _communities(fit: Fit) -> list[str]:
    users, items = (community_view(fit.model, side, NAMED) for side in ("user", "item"))
    found = biclusters(fit.model)
    wide = found.size.shape[1] > plots.FEW
    active, sizes = "Active communities", plots.community_sizes(users.sizes, items.sizes)
    return [
        card(
            active,
            "Many are seeded; those that are fragments of one another are merged.",
            picture("active", plots.active_communities(fit.history), "Communities by sweep"),
        )
        if fit.history
        else _missing(active, NO_SWEEPS),
        card(
            "Community sizes",
            "Expected number of members; who is between two communities counts in part in both.",
            picture("sizes", sizes, "Community sizes"),
        ),
        _map(found, _gap(fit.model), wide=wide),
        _divisive(users, wide=wide),
        _typical(users),
        _typical(items),
    ]


def _map(found: Biclusters, gap: str, *, wide: bool) -> str:
    title = "Who rates what how"
    if not found.size.any():
        return _missing(title, NO_RATINGS)
    return card(
        title,
        "Mean rating of each item community by each user community; below it, the number of "
        f"ratings. {gap}".rstrip(),
        picture(
            "biclusters",
            plots.bicluster_map(found.mean_rating, found.size),
            "Mean rating of each user by item community",
        ),
        wide=wide,
    )


def _typical(view: CommunityView) -> str:
    if view.side == "user":
        other, text = "items", "Typical items are those with the highest ratings to expect."
        beyond = "are rated higher here than the averages of this community and of the item suggest"
    else:
        other, text = "users", "Typical users are those who rate highest."
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
            _listed(
                f'{isolated(one.id)} <span class="soft">{one.rating:.1f}</span>' for one in typical
            ),
        ]
        for number, (size, typical) in enumerate(zip(view.sizes, view.typical, strict=True))
    ]
    headers = ["", "members", "surest members", f"typical {other}, and the rating to expect"]
    title = f"{view.side.capitalize()} communities"
    return card(title, text, table(headers, rows, numbers=[1]), wide=True)


def _listed(parts: Iterable[str]) -> Markup:
    """Return HTML with commas between parts that are not broken across lines."""
    return Markup(", ".join(f'<span class="whole">{part}</span>' for part in parts))


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


def _certainty(model: FittedModel, seen: _Judgement | None, unseen: _Judgement | None) -> list[str]:
    if unseen is not None:
        return calibration_cards(unseen.found, "held-out")
    if seen is None:
        return [_missing("Calibration of intervals", NO_RATINGS)]
    caution = "These are the ratings learnt from: new ones are held a little less often. "
    return calibration_cards(seen.found, "training", caution + _gap(model))


def _recommendations(model: FittedModel, example: Example) -> list[str]:
    user, items = example
    name = isolated(user) if isinstance(user, str) else f"user {isolated(user)}"
    cards = []
    if len(items):
        mean, std = predict(model, user, items)
        low, high = model.rating_range or (float((mean - std).min()), float((mean + std).max()))
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


def _favourites(model: FittedModel, user: Hashable, title: str) -> str:
    ratings = model.ratings
    row = int(ratings.users.rows([user])[0])
    if row < 0:
        return _missing(title, "no rating of theirs has been learnt.")
    seen, values = ratings.by_user.row(row)
    given = int(model.state.counts["user"][row])
    if given and not seen.size:
        return _missing(title, NO_RATINGS)
    best = np.argsort(-values, kind="stable")[:FAVOURITES]
    favourites = [[ratings.items.ids[seen[place]], f"{values[place]:g}"] for place in best]
    kept = "" if seen.size == given else f" that are kept, of {given:,} learnt"
    text = f"Of {seen.size:,} ratings{kept}."
    return card(title, text, table(["item", "rating"], favourites, numbers=[1]))


# -- page of an evaluation: errors, calibration, ranking ------------------------------------------

TILES = {
    "rmse": ("RMSE", "{:.4f}"),
    "mae": ("mean absolute error", "{:.4f}"),
    "train_rmse": ("RMSE, training", "{:.4f}"),
    "coverage90": ("in 90 % intervals", "{:.1%}"),
    "nlpd": ("NLPD (nats)", "{:.4f}"),
    "log_score": ("log score of levels (nats)", "{:.4f}"),
    "sweeps": ("sweeps", "{:,}"),
    "cpu_seconds": ("CPU seconds", "{:,.1f}"),
    "peak_rss_mb": ("MB of memory at most", "{:,.0f}"),
}
RANKED = {
    "ndcg": ("NDCG", "{:.4f}", "gain of relevant items, more the earlier they come; 1 is perfect"),
    "recall": ("recall", "{:.4f}", "share of what is relevant to a user that is recommended"),
    "precision": ("precision", "{:.4f}", "share of what is recommended that is relevant"),
    "average_precision": ("MAP", "{:.4f}", "precision at each relevant item, averaged"),
    "reciprocal_rank": ("MRR", "{:.4f}", "one over the rank of the first relevant item"),
    "hit_rate": ("hit rate", "{:.1%}", "users with a relevant item among those recommended"),
    "coverage": ("catalogue coverage", "{:.1%}", "items that are recommended to anybody"),
    "novelty": ("novelty (bits)", "{:.2f}", "of an item that one user in 2ⁿ has rated, n"),
}


def render(
    title: str,
    subtitle: str,
    figures: Mapping[str, float | None],
    found: Calibration | None,
    ranks: Sequence[tuple[str, Sequence[RankingMetrics]]],
) -> str:
    """Return the HTML of the page; ``figures`` are those that `hemf evaluate` prints.

    ``ranks`` are names of rankings and their metrics, the model's first.
    """
    shown = {
        name: form.format(figures[key])
        for key, (name, form) in TILES.items()
        if figures.get(key) is not None
    }
    body = [tiles(shown), section("How sure", calibration_cards(found, "withheld"))]
    if ranks:
        body.append(section("How it ranks", [_ranking(ranks)]))
    return page(title, subtitle, body)


def calibration_cards(found: Calibration | None, whose: str, caution: str = "") -> list[str]:
    """Return cards on intervals and on the distribution of ratings in their predictions."""
    if found is None:
        return [_missing("Calibration of intervals", "this model predicts no distributions.")]
    scores = [
        ["negative log predictive density (NLPD), nats", f"{found.nlpd:.4f}"],
        ["continuous ranked probability score (CRPS), rating units", f"{found.crps:.4f}"],
    ]
    if found.log_score is not None:
        scores.append(["negative log probability of the level, nats", f"{found.log_score:.4f}"])
    shares = [
        [f"{100 * level:g} %", f"{100 * share:.1f} %"] for level, share in found.coverage.items()
    ]
    return [
        card(
            "Calibration of intervals",
            "An interval that should hold 90 % of the ratings does so if predictions are "
            f"calibrated: points lie on the diagonal. {caution}The grey band is what chance alone "
            "would do. Above it intervals are too wide, below it too narrow.",
            picture(
                "calibration",
                plots.calibration(found.curve, found.n_ratings),
                f"Observed against nominal coverage on {whose} ratings",
            ),
        ),
        card(
            "Where ratings fall in what was predicted",
            "Each tenth of a prediction should hold a tenth of the ratings (PIT). A hump says that "
            "predictions are too cautious, high ends that they are too sure, a slope that they are "
            f"too low or too high. {100 * found.pit_distance:.1f} % of the ratings are in a tenth "
            "where they should not be.",
            picture(
                "pit",
                plots.pit_histogram(found.pit, found.n_ratings),
                f"Share of {whose} ratings in each tenth of the predictions",
            ),
        ),
        card(
            f"Intervals on {found.n_ratings:,} {whose} ratings",
            "",
            table(["should hold", "holds"], shares, numbers=[0, 1]),
        ),
        card(
            "Scores of the distributions",
            "Lower is better; they compare models on the same ratings.",
            table(["", "score"], scores, numbers=[1]),
        ),
    ]


def _ranking(ranks: Sequence[tuple[str, Sequence[RankingMetrics]]]) -> str:
    own = ranks[0][1]
    rows = [
        [name, *(form.format(getattr(one, key)) for _, found in ranks for one in found), meaning]
        for key, (name, form, meaning) in RANKED.items()
    ]
    left = own[0].left_out
    without = f" {left:,} ratings of unknown users or items are left out." if left else ""
    lengths = " and ".join(str(one.n) for one in own)
    headers = [f"{name} at {one.n}".strip() for name, found in ranks for one in found]
    return card(
        f"The best {lengths} for {own[0].users:,} users",
        f"All items not rated in training are ranked; those rated {own[0].level:.4g} or more in "
        f"test are relevant, all others are not, be they merely not rated.{without}",
        table(["", *headers, ""], rows, numbers=range(1, len(headers) + 1)),
        wide=True,
    )


# -- plot of models on a stream, as a figure and as a page ---------------------------------------

Curves = Sequence[tuple[str, Sequence[CurvePoint]]]
"""Name of each learner, and its curve of `Prequential`."""

KINDS = (".html", ".png")
BEGINNING = 0.05  # of the points, which may leave the picture so that the rest can be seen
WINDOW = 20  # a point of the stream stands for the last 1/20 of all points
CHARACTERS = 12  # of the legend, in an inch


def stream_figure(curves: Curves, *, start: int = 0) -> Figure:
    """Draw RMSE against ratings seen, in the stream and, where measured, on test ratings.

    ``start`` is how many ratings were learnt before the stream began.

    >>> from hemf.evaluation import CurvePoint
    >>> figure = stream_figure([("sgd", [CurvePoint(999, 0.95, 0.95), CurvePoint(1998, 0.9, 0.9)])])
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['ratings seen']
    """
    tested = any(point.test_rmse is not None for _, curve in curves for point in curve)
    width = plots.WHOLE if tested else 8.0
    with plots.drawing(width, 4.2) as figure:
        panels = figure.subplots(1, 2 if tested else 1, squeeze=False, sharex=True)[0]
        _draw(panels[0], [windowed(curve) for _, curve in curves], start)
        panels[0].set_title("each rating, predicted before it was learnt")
        if tested:
            tests = [
                [(point.ratings, point.test_rmse) for point in curve if point.test_rmse is not None]
                for _, curve in curves
            ]
            _draw(panels[1], tests, start)
            panels[1].set_title("test ratings, at every tenth of the stream")
        lines = panels[0].get_lines()
        names = [name for name, _ in curves]
        wide = [len(name) + 7 for name in names]  # with the line and a gap
        fit = sum(wide) <= CHARACTERS * width
        ncols = len(names) if fit else max(1, int(CHARACTERS * width) // max(wide))
        figure.legend(lines, names, loc="outside upper left", ncols=ncols)
    return figure


def windowed(curve: Sequence[CurvePoint]) -> list[tuple[int, float]]:
    """Return how many ratings were streamed, and the RMSE of the last twentieth of the stream.

    >>> from hemf.evaluation import CurvePoint
    >>> windowed([CurvePoint(10, 3.0, 3.0), CurvePoint(20, 4.0, 3.5)])
    [(10, 3.0), (20, 4.0)]
    """
    ends = np.array([point.ratings for point in curve], dtype=np.int64)
    sums = np.diff(ends, prepend=0) * np.array([point.rmse for point in curve]) ** 2
    total, before = np.append(0.0, np.cumsum(sums)), np.append(0, ends)
    first = np.maximum(np.arange(len(curve)) + 1 - max(1, len(curve) // WINDOW), 0)
    mean = (total[1:] - total[first]) / (before[1:] - before[first])
    return list(zip(ends.tolist(), np.sqrt(mean).tolist(), strict=True))


def _draw(axes: Axes, lines: Sequence[Sequence[tuple[int, float]]], start: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    curves = [
        ([start + ratings for ratings, _ in points], [value for _, value in points])
        for points in lines
    ]
    plots.draw_curves(axes, curves, beginning=BEGINNING)
    axes.set_xlim(left=0)
    axes.set(xlabel="ratings seen", ylabel="RMSE (rating units)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def check_plot_name(path: Path | None) -> None:
    """Reject a file name with an unknown ending.

    >>> check_plot_name(Path("stream.gif"))
    Traceback (most recent call last):
    hemf.errors.ParameterError: stream.gif: the name must end in .html or .png
    """
    if path is not None and path.suffix.lower() not in KINDS:
        raise ParameterError(f"{path}: the name must end in {' or '.join(KINDS)}", value=str(path))


def write_stream_plot(
    path: Path,
    curves: Curves,
    *,
    start: int,
    title: str,
    subtitle: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
) -> None:
    """Write the figure as PNG or, with a table of figures, as HTML, by the name."""
    figure = stream_figure(curves, start=start)

    def html() -> str:
        drawn = card(
            "Error against ratings seen",
            "Root mean squared error, in the stream that of its latest twentieth; lower is better.",
            picture("stream", figure, "RMSE against ratings seen"),
            wide=True,
        )
        measured = card(
            "What was measured",
            "Times are those of predicting and learning, compilation aside.",
            table(headers, rows, numbers=range(1, len(headers))),
            wide=True,
        )
        return page(title, subtitle, [section("Learning from a stream", [drawn, measured])])

    write_drawn(path, figure, html)
