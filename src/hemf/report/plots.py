"""Plots of a fit, without global state.

Every function returns a matplotlib ``Figure``: save it with ``figure.savefig("name.png")``.

>>> from hemf import HeMF
>>> from hemf.report import plots
>>> model = HeMF(n_factors=1, rng=0).fit([("ann", "tea", 5), ("bob", "tea", 3), ("bob", "milk", 1)])
>>> figure = plots.rmse(model.history_)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import StrMethodFormatter

    from hemf.batch.callbacks import SweepReport
    from hemf.evaluation.distribution import CalibrationCurve

    MaskedArray = np.ma.MaskedArray[tuple[int, ...], np.dtype[np.float64]]

INK = "#22272e"  # text and axes
FAINT = "#d4d9e0"  # grid
USERS = "#0068a8"  # blue and orange suit all colour vision
ITEMS = "#c75100"
OTHER = "#5b6470"
PAPER = "#ffffff"

HALF, WHOLE = 5.6, 11.0  # inches wide, for half and all of a page that is read at 100 %
FEW = 6  # communities that half a page has room for
FEW_POINTS = 12  # which are marked on their line
# Each stands out on light and on dark ground.
COLOURS = (USERS, ITEMS, "#009e73", "#b8609a", "#8a7f00", "#7a5cc4")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
SKIPPED = 2  # first sweeps, not plotted: their changes would hide the rest
_STYLE: Any = {  # not a plain dict to the type checker: newer matplotlib wants known keys
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "font.size": 10,
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "savefig.facecolor": PAPER,
}


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure to draw on, in our style; the settings of matplotlib are restored."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: nothing is registered, nothing to close

    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def draw_curves(
    axes: Axes, curves: Sequence[tuple[Sequence[float], Sequence[float]]], *, beginning: float
) -> None:
    """Draw lines, each of places and values.

    The ``beginning`` of each line, a share of its points, may leave the picture so that differences
    of the rest can be seen.
    """
    later: list[float] = []
    for number, (places, values) in enumerate(curves):
        later += values[round(beginning * len(values)) :]
        axes.plot(
            places,
            values,
            color=COLOURS[number % len(COLOURS)],
            ls=DASHES[number % len(DASHES)],
            marker="o" if len(places) <= FEW_POINTS else None,
            ms=4,
        )
    if later:
        room = 0.06 * (max(later) - min(later)) + 0.001 * abs(max(later))
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, min(later) - room), min(high, max(later) + room))
    axes.ticklabel_format(axis="y", useOffset=False)


def elbo(history: Sequence[SweepReport]) -> Figure:
    """Draw the lower bound after every sweep.

    >>> from hemf.batch.callbacks import SweepReport
    >>> report = SweepReport(1, 9, -30.0, {"ratings": -30.0}, 1.0, None, 1, 1, 1.0, 0.1)
    >>> elbo([report]).axes[0].get_ylabel()
    'ELBO (nats)'
    """
    with drawing(HALF, 3.0) as figure:
        axes = figure.subplots()
        shown = _shown(history)
        values = [report.elbo for report in shown]
        axes.plot([report.sweep for report in shown], values, color=USERS, **_marks(shown))
        _sweeps(axes, shown)
        axes.set_ylabel("ELBO (nats)")
        axes.yaxis.set_major_formatter(_digits(values))
    return figure


def elbo_terms(history: Sequence[SweepReport]) -> Figure:
    """Draw the terms of the lower bound after every sweep, each on a scale of its own.

    The two sides' terms of one name share a panel.

    >>> from hemf.batch.callbacks import SweepReport
    >>> terms = {"ratings": -30.0, "user factors": -2.0, "item factors": -3.0}
    >>> figure = elbo_terms([SweepReport(1, 9, -35.0, terms, 1.0, None, 1, 1, 1.0, 0.1)])
    >>> [axes.get_title("left") for axes in figure.axes]
    ['ratings', 'factors']
    """
    shown = _shown(history)
    panels: dict[str, list[tuple[str, str, str]]] = {}
    for term in shown[0].elbo_terms:
        side, _, name = term.rpartition(" ")
        colour = {"user": USERS, "item": ITEMS}.get(side, OTHER)
        panels.setdefault(name, []).append((term, side, colour))
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    rows = -(-len(panels) // columns)
    with drawing(WHOLE, 2.1 * rows + 0.3) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).flat
        sweeps = [report.sweep for report in shown]
        named: dict[str, Line2D] = {}
        for axes, (name, lines) in zip(grid, panels.items(), strict=False):
            all_values: list[float] = []
            for term, side, colour in lines:
                values = [report.elbo_terms[term] for report in shown]
                all_values += values
                dashes = "--" if side == "item" else "-"
                (line,) = axes.plot(sweeps, values, color=colour, ls=dashes, **_marks(shown))
                if side:
                    named[f"{side}s"] = line
            axes.set_title(name)
            axes.yaxis.set_major_formatter(_digits(all_values))
            axes.locator_params(axis="y", nbins=4)
            _sweeps(axes, shown, label=False)
        figure.supxlabel("sweep", fontsize=10)
        figure.supylabel("nats", fontsize=10)
        if named:
            figure.legend(named.values(), named.keys(), loc="outside upper right", ncols=len(named))
        for unused in figure.axes[len(panels) :]:
            figure.delaxes(unused)
    return figure


def rmse(history: Sequence[SweepReport], held_out: float | None = None) -> Figure:
    """Draw the error on training and, where there are, held-out ratings after every sweep.

    ``held_out`` is the final error on other ratings, drawn as a level line.

    >>> from hemf.batch.callbacks import SweepReport
    >>> rmse([SweepReport(1, 9, -3.0, {}, 1.0, 1.1, 1, 1, 1.0, 0.1)]).axes[0].get_ylabel()
    'RMSE (rating units)'
    """
    with drawing(HALF, 3.0) as figure:
        axes = figure.subplots()
        shown = _shown(history)
        sweeps = [report.sweep for report in shown]
        marks = _marks(shown)
        axes.plot(
            sweeps, [r.train_rmse for r in shown], color=USERS, label="training, expected", **marks
        )
        validation = [r.validation_rmse for r in shown if r.validation_rmse is not None]
        if len(validation) == len(shown):
            axes.plot(sweeps, validation, color=ITEMS, ls="--", label="held out", **marks)
        elif held_out is not None:
            axes.axhline(held_out, color=ITEMS, ls="--", label="held out, at the end")
        _sweeps(axes, shown)
        axes.set_ylabel("RMSE (rating units)")
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def active_communities(history: Sequence[SweepReport]) -> Figure:
    """Draw the number of communities of each side after every sweep.

    >>> from hemf.batch.callbacks import SweepReport
    >>> figure = active_communities([SweepReport(1, 9, -3.0, {}, 1.0, None, 4, 3, 1.0, 0.1)])
    >>> figure.axes[0].get_ylabel()
    'active communities'
    """
    from matplotlib.ticker import MaxNLocator

    with drawing(HALF, 3.0) as figure:
        axes = figure.subplots()
        sweeps = [report.sweep for report in history]
        users = [report.user_communities for report in history]
        items = [report.item_communities for report in history]
        marks = _marks(history)
        axes.step(sweeps, users, where="mid", color=USERS, label="users", **marks)
        axes.step(sweeps, items, where="mid", color=ITEMS, ls="--", label="items", **marks)
        _sweeps(axes, history)
        axes.set_ylabel("active communities")
        axes.set_ylim(0, max(*users, *items) * 1.08 + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def bicluster_map(mean_rating: ArrayLike, size: ArrayLike) -> Figure:
    """Draw mean rating and number of ratings of each user × item community.

    Both are tables with a row for every user community and a column for every item community.

    >>> bicluster_map([[4.5, 2.0]], [[30, 10]]).axes[0].get_xlabel()
    'item community'
    """
    import matplotlib

    mean = np.asarray(mean_rating, dtype=np.float64)
    count = np.asarray(size, dtype=np.float64)
    rated = np.ma.masked_where((count <= 0) | ~np.isfinite(mean), mean)
    rows, columns = mean.shape
    low, high = _range(rated)
    with drawing(HALF if columns <= FEW else WHOLE, min(1.2 + 0.56 * rows, 12)) as figure:
        axes = figure.subplots()
        colours = matplotlib.colormaps["cividis"]
        picture = axes.pcolormesh(
            rated, cmap=colours, edgecolors=PAPER, linewidth=1.5, vmin=low, vmax=high
        )
        axes.invert_yaxis()
        axes.grid(False)
        axes.set_xticks(np.arange(columns) + 0.5, [str(number) for number in range(columns)])
        axes.set_yticks(np.arange(rows) + 0.5, [str(number) for number in range(rows)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="item community", ylabel="user community")
        bar = figure.colorbar(picture, ax=axes, label="mean rating", shrink=0.9, aspect=14)
        bar.outline.set_visible(False)
        if columns <= 2 * FEW:
            for row, column in np.ndindex(mean.shape):
                _cell(axes, row, column, rated, count, picture)
    return figure


def _range(values: MaskedArray) -> tuple[float, float]:
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _cell(
    axes: Axes,
    row: int,
    column: int,
    rated: MaskedArray,
    count: NDArray[np.float64],
    picture: QuadMesh,
) -> None:
    place = (column + 0.5, row + 0.5)
    if np.ma.getmaskarray(rated)[row, column]:
        axes.text(*place, "none", ha="center", va="center", fontsize=8.5)
        return
    red, green, blue, _ = picture.cmap(picture.norm(rated[row, column]))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    colour = "#fffffe" if dark else "#101010"  # unlike PAPER and INK: a cell has its own ground
    axes.text(
        place[0], place[1] - 0.12, f"{rated[row, column]:.2f}",
        ha="center", va="center", color=colour, fontsize=10.5, fontweight="bold",
    )  # fmt: skip
    axes.text(
        place[0], place[1] + 0.25, _short(count[row, column]),
        ha="center", va="center", color=colour, fontsize=8.5,
    )  # fmt: skip


def community_sizes(user_sizes: ArrayLike, item_sizes: ArrayLike) -> Figure:
    """Draw the expected number of members of every community, users left, items right.

    >>> [axes.get_title("left") for axes in community_sizes([30.2, 9.8], [20]).axes]
    ['users', 'items']
    """
    from matplotlib.ticker import MaxNLocator

    with drawing(HALF, 3.0) as figure:
        sides = (("users", user_sizes, USERS), ("items", item_sizes, ITEMS))
        for axes, (name, sizes, colour) in zip(figure.subplots(1, 2), sides, strict=True):
            values = np.asarray(sizes, dtype=np.float64)
            bars = axes.bar(np.arange(values.size), values, color=colour, width=0.75)
            if values.size <= 2 * FEW:
                axes.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=8, padding=2)
            axes.set_title(name)
            axes.set_xlabel(f"{name[:-1]} community")
            axes.set_xlim(-0.6, values.size - 0.4)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
            axes.yaxis.set_major_formatter(_digits([0.0, *values]))
            axes.grid(False, axis="x")
            axes.margins(y=0.12)
        figure.axes[0].set_ylabel("members (expected)")
    return figure


def calibration(curve: CalibrationCurve, n_ratings: int) -> Figure:
    """Draw the share of ratings that intervals hold against the share they should hold.

    The band is where the curve of a calibrated model lies, 19 times in 20.

    >>> from hemf.evaluation import calibration_curve
    >>> curve = calibration_curve([1.0, 2.0], mean=[1.5, 1.5], std=[0.5, 0.5])
    >>> calibration(curve, 2).axes[0].get_xlabel()
    'nominal coverage (%)'
    """
    nominal, observed = 100 * curve.nominal, 100 * curve.observed
    level = np.linspace(0, 1, 101)
    spread = 196 * np.sqrt(level * (1 - level) / max(n_ratings, 1))
    with drawing(4.6, 3.9) as figure:
        axes = figure.subplots()
        axes.fill_between(
            100 * level, 100 * level - spread, 100 * level + spread, color=OTHER, alpha=0.3, lw=0
        )
        axes.plot([0, 100], [0, 100], color=OTHER, ls="--", lw=1.2, label="calibrated")
        axes.plot(nominal, observed, color=USERS, marker="o", ms=4, label="observed")
        axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
        axes.set(xlabel="nominal coverage (%)", ylabel="observed coverage (%)")
        axes.legend(loc="upper left")
    return figure


def pit_histogram(shares: ArrayLike, n_ratings: int) -> Figure:
    """Draw the share of ratings in each part of the distributions that were predicted of them.

    The band is where the bars of a calibrated model end, 19 times in 20.

    >>> pit_histogram([0.1] * 10, 500).axes[0].get_ylabel()
    'ratings (%)'
    """
    values = 100 * np.asarray(shares, dtype=np.float64)
    expected = 100 / values.size
    spread = 1.96 * np.sqrt(expected * (100 - expected) / max(n_ratings, 1))
    places = (np.arange(values.size) + 0.5) / values.size
    with drawing(4.6, 3.9) as figure:
        axes = figure.subplots()
        axes.bar(places, values, width=0.92 / values.size, color=USERS)
        axes.axhspan(expected - spread, expected + spread, color=OTHER, alpha=0.3, lw=0)
        axes.axhline(expected, color=ITEMS, ls="--", lw=1.4, label="calibrated")
        axes.set(xlim=(0, 1), ylim=(0, max(1.6 * expected, 1.15 * float(values.max()))))
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.set(xlabel="predicted probability of a lower rating", ylabel="ratings (%)")
        axes.grid(False, axis="x")
        axes.legend(loc="upper left")
    return figure


def _shown(history: Sequence[SweepReport]) -> Sequence[SweepReport]:
    return history[SKIPPED:] if len(history) > 2 * SKIPPED else history


def _marks(history: Sequence[SweepReport]) -> dict[str, Any]:
    """Mark the points if there are few."""
    return {"marker": "o", "ms": 4} if len(history) <= FEW_POINTS else {}


def _sweeps(axes: Axes, history: Sequence[SweepReport], *, label: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8 if label else 5))
    first, last = history[0].sweep, history[-1].sweep
    edge = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - edge, last + edge)
    if label:
        axes.set_xlabel("sweep")


def _digits(values: Sequence[float]) -> StrMethodFormatter:
    """Return a formatter with as many digits as the span of an axis needs."""
    from matplotlib.ticker import StrMethodFormatter

    span = float(np.ptp(values))
    digits = 0 if span >= 10 or span == 0 else min(6, int(np.ceil(-np.log10(span))) + 1)
    return StrMethodFormatter(f"{{x:,.{digits}f}}")


def _short(value: float) -> str:
    """Return a short text for a number.

    >>> [_short(value) for value in (-24001.2, 1500000, 0.25, 17)]
    ['-24,001', '1.5M', '0.25', '17']
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
