"""Pictures of learners on a stream, side by side: as one figure, and as a page around it.

>>> from hemf.evaluation import CurvePoint
>>> figure = stream_figure([("hemf", [CurvePoint(1000, 0.95, 0.95, test_rmse=0.94)])])
>>> [axes.get_title("left") for axes in figure.axes]
['each rating, predicted before it was learnt', 'test ratings, at every tenth of the stream']
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf import plots
from hemf.report_page import card, page, picture, section, table, write_drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hemf.evaluation import CurvePoint

Curves = Sequence[tuple[str, Sequence["CurvePoint"]]]
"""Name of each learner, and its curve of `Prequential`."""

KINDS = (".html", ".png")
# Each stands out on light and on dark ground; the first two follow the page's own.
COLOURS = (plots.USERS, plots.ITEMS, "#009e73", "#b8609a", "#8a7f00", "#7a5cc4")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
BEGINNING = 0.05  # of the points, which may leave the picture so that the rest can be seen
WINDOW = 20  # a point of the stream stands for the last 1/20 of all points
CHARACTERS = 12  # of the legend, in an inch


def stream_figure(curves: Curves, *, start: int = 0) -> Figure:
    """Draw RMSE against ratings seen, in the stream and, where measured, on test ratings.

    ``curves`` are names of learners and the curves of their `Prequential`; ``start`` is how many
    ratings were learnt before the stream began.

    >>> from hemf.evaluation import CurvePoint
    >>> figure = stream_figure([("sgd", [CurvePoint(999, 0.95, 0.95), CurvePoint(1998, 0.9, 0.9)])])
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['ratings seen']
    """
    tested = any(point.test_rmse is not None for _, curve in curves for point in curve)
    with plots.style():
        from matplotlib.figure import Figure

        width = plots.WHOLE if tested else 8.0
        figure = Figure(figsize=(width, 4.2), layout="constrained")
        panels = figure.subplots(1, 2 if tested else 1, squeeze=False, sharex=True)[0]
        _draw(panels[0], [windowed(curve) for _, curve in curves], start)
        panels[0].set_title("each rating, predicted before it was learnt")
        if tested:
            _draw(panels[1], [_tested(curve) for _, curve in curves], start)
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


def _tested(curve: Sequence[CurvePoint]) -> list[tuple[int, float]]:
    return [(point.ratings, point.test_rmse) for point in curve if point.test_rmse is not None]


def _draw(axes: Axes, lines: Sequence[Sequence[tuple[int, float]]], start: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    later: list[float] = []
    for number, points in enumerate(lines):
        values = [value for _, value in points]
        later += values[round(BEGINNING * len(values)) :]
        axes.plot(
            [start + ratings for ratings, _ in points],
            values,
            color=COLOURS[number % len(COLOURS)],
            ls=DASHES[number % len(DASHES)],
            marker="o" if len(points) <= 12 else None,
            ms=4,
        )
    if later:
        # A learner that starts from nothing begins far above all that is worth comparing.
        room = 0.06 * (max(later) - min(later)) + 0.002 * max(later)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, min(later) - room), min(high, max(later) + room))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlim(left=0)
    axes.set_xlabel("ratings seen")
    axes.set_ylabel("RMSE (rating units)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def check_plot_name(path: Path | None) -> None:
    """Complain of a file name that does not say what to draw.

    >>> check_plot_name(Path("stream.gif"))
    Traceback (most recent call last):
    hemf.errors.ParameterError: stream.gif: the name must end in .html or .png
    """
    from hemf.errors import ParameterError

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
    rows: Sequence[Sequence[Any]],
) -> None:
    """Write the figure as a PNG or, with a table of what was measured, as a page, by the name."""
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
