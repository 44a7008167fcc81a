"""HTML report of the experiments: tables with the paper's numbers beside ours, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hemf._files import atomic_write, library_version
from hemf.experiments.analysis import (
    Comparison,
    Row,
    compare_all,
    conclusions,
    findings,
    mean_of,
)
from hemf.experiments.catalog import BY_CHUNKS, CHUNKS, Experiment
from hemf.experiments.data import Found
from hemf.experiments.plan import Entry, Plan, Task
from hemf.report import plots
from hemf.report.page import Markup, card, page, picture, section, table, tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


REPORT = "report.html"
NOTHING = "–"
HEADERS = (
    "method", "splits", "train", "test", "paper, train", "paper, test", "test less paper's",
    "HeMF less it, paired", "CPU s",
)  # fmt: skip


def write_report(path: Path, plan: Plan, results: Mapping[str, Entry]) -> None:
    """Write the page of a plan, with the results that are there."""
    with atomic_write(path) as fresh:
        fresh.write_text(render(plan, results), encoding="utf-8")


def render(plan: Plan, results: Mapping[str, Entry]) -> str:
    """Return the page as HTML."""
    form = "quick form" if plan.request.quick else "full form"
    done = [task for task in plan.tasks if task.key in results]
    return page(
        "The paper's experiments, run again",
        f"{form}, seed {plan.request.seed}, hemf {library_version()}, {date.today():%d %B %Y}",
        [
            tiles(
                {
                    "experiments": str(len(plan.experiments)),
                    "runs of a method on a split": f"{len({task.key for task in done})}",
                    "CPU seconds of learning": f"{_seconds(results, done):,.0f}",
                    "form": form,
                }
            ),
            section("What these data are", [_data(plan), _code(plan, results)]),
            *(_experiment(plan, experiment, results) for experiment in plan.experiments),
        ],
    )


def _seconds(results: Mapping[str, Entry], tasks: Sequence[Task]) -> float:
    return float(sum(results[key]["cpu_seconds"] for key in {task.key for task in tasks}))


def _data(plan: Plan) -> str:
    found = {task.found.source.name: task.found for task in plan.tasks}.values()
    rows = [
        [
            each.source.title,
            _what(each),
            each.name,
            f"{each.ratings.n_ratings:,}",
            f"{each.ratings.n_users:,}",
            f"{each.ratings.n_items:,}",
            each.fingerprint[:12],
        ]
        for each in found
    ]
    text = (
        "Errors on a stand-in cannot be compared with those of the paper; the order of methods can."
    )
    missing = "".join(f"<p>Not run: {escape(one)}</p>" for one in plan.missing)
    headers = ["data set of the paper", "here", "name", "ratings", "users", "items", "fingerprint"]
    return card("Data", text, table(headers, rows, numbers=[3, 4, 5]) + missing, wide=True)


def _what(found: Found) -> str:
    if found.stand_in is not None:
        return Markup(f"<b>stand-in</b>: {escape(found.stand_in)}")
    return Markup(f"<b>in part</b>: {found.shortfall}") if found.shortfall else "itself"


def _code(plan: Plan, results: Mapping[str, Entry]) -> str:
    """Warn of results that other versions of the code have left here."""
    remark = plan.remark_on_versions(results)
    return card("Results of other versions", remark, "", wide=True) if remark else ""


def _experiment(plan: Plan, experiment: Experiment, results: Mapping[str, Entry]) -> str:
    compared = compare_all(plan, experiment, results)
    cards = [_outcome(plan, experiment, compared)]
    if experiment.name == BY_CHUNKS and compared:
        cards.append(_chunk_sizes(experiment, compared))
    number = 0
    for group in in_one_table(experiment, compared):
        cards.append(_table(group))
        for comparison in group:
            name = f"{experiment.name}-{number}"
            number += 1
            if len(group) == 1:
                cards.append(_curves(name, comparison))
            if sentences := conclusions(comparison):
                cards.append(card(f"Conclusions: {comparison.title}", "", _list(sentences)))
            cards.append(_communities(name, comparison))
    return section(experiment.title, cards)


def _outcome(plan: Plan, experiment: Experiment, compared: Sequence[Comparison]) -> str:
    sentences = findings(plan, experiment, compared) if compared else ["Not run yet."]
    return card(
        "Claim and outcome",
        f"The paper: {experiment.claim}",
        _list(sentences),
        wide=True,
    )


def _list(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _table(group: Sequence[Comparison]) -> str:
    text = (
        "RMSE of predictions, mean over splits ± standard error. Training errors are of the final "
        "predictions; the paper does not say how it took its own."
    )
    headers, rows = table_of(group)
    whole = [[Markup(f'<span class="whole">{escape(row[0])}</span>'), *row[1:]] for row in rows]
    body = table(headers, whole, numbers=range(1, len(headers)))
    return card(group_title(group), text, body, wide=True)


def in_one_table(
    experiment: Experiment, compared: Sequence[Comparison]
) -> list[Sequence[Comparison]]:
    """Return what to show together: all numbers of chunks, and else each comparison alone."""
    if experiment.name == BY_CHUNKS and compared:
        return [compared]
    return [[comparison] for comparison in compared]


def group_title(group: Sequence[Comparison]) -> str:
    """Return what the comparisons of a table have in common."""
    return group[0].title if len(group) == 1 else f"{group[0].data}, by the number of chunks"


def table_of(group: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    """Return headers and texts of what was measured; columns that would hold nothing are left out.

    The first column is always there.
    """
    rows = []
    for comparison in group:
        before = "" if len(group) == 1 else f"{comparison.part.n_chunks} chunks: "
        for row in comparison.rows:
            method, *numbers = _cells(row, comparison.stand_in is not None)
            rows.append([before + method, *numbers])
    used = [at for at in range(len(HEADERS)) if any(row[at] != NOTHING for row in rows)]
    return [HEADERS[at] for at in used], [[row[at] for at in used] for row in rows]


def _cells(row: Row, stand_in: bool) -> list[str]:
    printed, ahead = row.printed, row.ahead
    return [
        row.label + _chosen(row),
        str(len(row.entries)),
        mean_of(row.train),
        mean_of(row.test),
        f"{printed.train:.4f}" if printed else NOTHING,
        f"{printed.test:.4f}" if printed else NOTHING,
        f"{row.test.mean - printed.test:+.4f}" if printed and not stand_in else NOTHING,
        f"{ahead.mean:+.4f} ± {ahead.standard_error:.4f}, p = {ahead.p_value:.2g}"
        if ahead
        else NOTHING,
        f"{row.cpu_seconds:.1f}",
    ]


def _chosen(row: Row) -> str:
    """Say how often a learner was fed, and what was searched for."""
    parts = [f"{row.entries[0]['settings']['passes']} passes"] if row.sequential else []
    chosen = [entry["chosen"] for entry in row.entries if entry.get("chosen")]
    if chosen:
        steps = ", ".join(sorted({f"{each['step']:g}" for each in chosen}))
        parts.append(f"step {steps}, the best of {chosen[0]['tried']} settings")
    return f" ({'; '.join(parts)})" if parts else ""


def _steps(comparison: Comparison) -> str:
    return "chunks fed" if comparison.part.protocol == CHUNKS else "iteration or sweep"


def _curves(name: str, comparison: Comparison) -> str:
    lines = [(row.label, row.entries[0]["curve"]) for row in comparison.rows]
    samplers = any(row.label.startswith(("M³F", "BPMF")) for row in comparison.rows)
    searched = (
        " The search for SGD's step is not in its seconds."
        if any(entry.get("chosen") for row in comparison.rows for entry in row.entries)
        else ""
    )
    averaged = (
        " That of a sampler is of its latest draw until it is burnt in, then of the average."
        if samplers
        else ""
    )
    return card(
        f"Error by step and by second: {comparison.title}",
        f"First split; lower is better.{averaged}{searched} Beginnings may leave the picture.",
        picture(f"{name}-error", error_figure(lines, _steps(comparison)), "RMSE by step"),
        wide=True,
    )


def _chunk_sizes(experiment: Experiment, compared: Sequence[Comparison]) -> str:
    lines = [
        (f"{number} chunks", number, row.entries[0]["curve"])
        for comparison in compared
        if (number := comparison.part.n_chunks) is not None
        for row in comparison.rows
    ]
    return card(
        "Error by passes over the ratings",
        "First split. The fewer chunks, the more ratings each brings.",
        picture(f"{experiment.name}-passes", passes_figure(lines), "RMSE by passes"),
        wide=True,
    )


def _communities(name: str, comparison: Comparison) -> str:
    ours = comparison.ours
    if ours is None:
        return ""
    curve = ours.entries[0]["curve"]
    how = (
        "They open and go as ratings arrive."
        if ours.sequential
        else "Many are seeded; those alike are merged."
    )
    numbers = {tuple(point["communities"]) for point in curve if point.get("communities")}
    title, text = f"Number of communities: {comparison.title}", f"{ours.label}, first split."
    if len(numbers) == 1:  # a picture of two lines on top of each other would say less
        ((users, items),) = numbers
        always = f"{text} At every step {users} of users and {items} of items."
        return card(title, always, "")
    drawn = communities_figure(curve, _steps(comparison))
    shown = picture(f"{name}-communities", drawn, "Communities by step")
    return card(title, f"{text} {how}", shown)


# ------------------------------------------------------------------------------------------------
# Plots of the experiments.


Curve = Sequence[Entry]
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
    with plots.drawing(plots.WHOLE, 4.0) as figure:
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
    with plots.drawing(plots.WHOLE, 4.0) as figure:
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
    from matplotlib.ticker import MaxNLocator

    with plots.drawing(plots.HALF, 3.0) as figure:
        axes = figure.subplots()
        shown = [point for point in curve if point.get("communities")]
        at = [point["iteration"] for point in shown]
        for side, (name, colour) in enumerate((("users", plots.USERS), ("items", plots.ITEMS))):
            numbers = [point["communities"][side] for point in shown]
            axes.step(at, numbers, where="post", color=colour, ls=plots.DASHES[side], label=name)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(steps)
        axes.set_ylabel("communities")
        axes.legend()
    return figure


def _draw(axes: Axes, lines: Lines, along: str, *, beginning: float = BEGINNING) -> None:
    curves = [
        ([point[along] for point in curve], [point["test_rmse"] for point in curve])
        for _, curve in lines
    ]
    plots.draw_curves(axes, curves, beginning=beginning)


def _legend(figure: Figure, axes: Axes, lines: Lines) -> None:
    names = [name for name, _ in lines]
    figure.legend(axes.get_lines(), names, loc="outside upper left", ncols=min(len(names), 4))


def _plain_number(value: float, _position: object) -> str:
    return f"{value:g}"
