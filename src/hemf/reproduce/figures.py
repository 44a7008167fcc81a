"""Pictures of the experiments, in the look of the other reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hemf import plots
from hemf.stream_plots import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[Mapping[str, Any]]
"""Points of a result."""
Lines = Sequence[tuple[str, Curve]]
"""Names of methods and their curves."""

BEGINNING = 0.3  # of a curve, which may leave the picture so that the rest can be seen


def error_figure(lines: Lines, steps: str) -> Figure:
    """Draw RMSE on withheld ratings by step and by second.

    >>> curve = [{"iteration": 1, "cpu_seconds": 0.5, "test_rmse": 0.9}]
    >>> [axes.get_xlabel() for axes in error_figure([("SGD", curve)], "chunks fed").axes]
    ['chunks fed', 'CPU seconds']
    """
    with plots.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(plots.WHOLE, 4.0), layout="constrained")
        by_step, by_second = figure.subplots(1, 2, sharey=True)
        _draw(by_step, lines, "iteration")
        _draw(by_second, lines, "cpu_seconds")
        by_step.set_xlabel(steps)
        by_step.set_xlim(left=0)
        by_second.set_xlabel("CPU seconds")
        by_second.set_xscale("log")
        by_second.xaxis.set_major_formatter(_plain_number)
        by_step.set_ylabel("RMSE on withheld ratings")
        _legend(figure, by_step, lines)
    return figure


def passes_figure(lines: Sequence[tuple[str, int, Curve]]) -> Figure:
    """Draw RMSE by how often all ratings were fed, of learners with other numbers of chunks.

    >>> curve = [{"iteration": 10, "cpu_seconds": 0.5, "test_rmse": 0.9}]
    >>> passes_figure([("10 chunks", 10, curve)]).axes[0].get_lines()[0].get_xdata().tolist()
    [1.0]
    """
    scaled = [
        (name, [{**point, "passes": point["iteration"] / chunks} for point in curve])
        for name, chunks, curve in lines
    ]
    with plots.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(plots.WHOLE, 4.0), layout="constrained")
        whole, late = figure.subplots(1, 2)
        _draw(whole, scaled, "passes", beginning=0.0)
        _draw(late, scaled, "passes")
        whole.set_title("all of it")
        late.set_title("the later part, enlarged")
        for axes in (whole, late):
            axes.set_xlim(left=0)
            axes.set_xlabel("passes over all training ratings")
        whole.set_ylabel("RMSE on withheld ratings")
        _legend(figure, whole, scaled)
    return figure


def communities_figure(curve: Curve, steps: str) -> Figure:
    """Draw the numbers of communities by step.

    >>> points = [{"iteration": 1, "communities": (3, 2)}, {"iteration": 2, "communities": (2, 2)}]
    >>> [line.get_label() for line in communities_figure(points, "sweep").axes[0].get_lines()]
    ['users', 'items']
    """
    with plots.style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(plots.HALF, 3.0), layout="constrained")
        axes = figure.subplots()
        shown = [point for point in curve if point.get("communities")]
        at = [point["iteration"] for point in shown]
        for side, (name, colour) in enumerate((("users", plots.USERS), ("items", plots.ITEMS))):
            numbers = [point["communities"][side] for point in shown]
            axes.step(at, numbers, where="post", color=colour, ls=DASHES[side], label=name)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(steps)
        axes.set_ylabel("communities")
        axes.legend()
    return figure


def _draw(axes: Axes, lines: Lines, along: str, *, beginning: float = BEGINNING) -> None:
    later: list[float] = []
    for number, (_, curve) in enumerate(lines):
        values = [point["test_rmse"] for point in curve]
        later += values[round(beginning * len(values)) :]
        axes.plot(
            [point[along] for point in curve],
            values,
            color=COLOURS[number % len(COLOURS)],
            ls=DASHES[number % len(DASHES)],
        )
    if later:
        room = 0.06 * (max(later) - min(later)) + 0.0005
        axes.set_ylim(min(later) - room, max(later) + room)
    axes.ticklabel_format(axis="y", useOffset=False)


def _legend(figure: Figure, axes: Axes, lines: Lines) -> None:
    names = [name for name, _ in lines]
    figure.legend(axes.get_lines(), names, loc="outside upper left", ncols=min(len(names), 4))


def _plain_number(value: float, _position: Any) -> str:
    return f"{value:g}"
