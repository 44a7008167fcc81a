"""Results beside those of the paper: comparisons, conclusions, and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hemf._files import atomic_write, library_version
from hemf.evaluation import PairedDifference, Summary, paired_difference, summarise
from hemf.experiments.catalog import (
    BPMF,
    BY_CHUNKS,
    CHUNKS,
    ONLINE_OURS,
    OURS,
    Experiment,
    Part,
    Printed,
)
from hemf.experiments.data import Found
from hemf.experiments.plan import Entry, Plan, version_of
from hemf.report import plots
from hemf.report.page import Markup, card, page, picture, section, table, tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 0.005  # of a printed error
ALIKE = 0.001  # errors that differ by less over all sizes of chunks
REPORT = "report.html"
NOTHING = "–"
HEADERS = (
    "method", "splits", "train", "test", "paper, train", "paper, test", "test less paper's",
    "HeMF less it, paired", "CPU s",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method under one protocol."""

    label: str
    entries: list[Entry]  # one of each split
    train: Summary
    test: Summary
    cpu_seconds: float
    printed: Printed | None
    ahead: PairedDifference | None
    """Error of ours less this one's, split by split; None for ours itself, and of one split."""
    reached: Reached | None
    """When ours had this one's final error; None for ours itself."""

    @property
    def sequential(self) -> bool:
        """Whether it was fed with chunks, several times."""
        return "passes" in self.entries[0]["settings"]


@dataclass(frozen=True)
class Reached:
    """When our method had the final error of another, in the mean over splits."""

    splits: int  # on which it got there at all
    of: int
    cpu_seconds: float
    share: float  # of the other's time in all


@dataclass(frozen=True)
class Comparison:
    """Measurements of a part."""

    part: Part
    data: str  # title
    protocol: str
    stand_in: str | None
    rows: list[Row]

    @property
    def title(self) -> str:
        """The data and what was withheld of them."""
        return f"{self.data}, {_protocol(self.protocol)}"

    @property
    def ours(self) -> Row | None:
        """Our method's row."""
        return next((row for row in self.rows if row.label in (OURS, ONLINE_OURS)), None)

    @property
    def rivals(self) -> list[Row]:
        """Rows of methods that are not ours."""
        return [row for row in self.rows if not row.label.startswith("HeMF")]


def compare_all(
    plan: Plan, experiment: Experiment, results: Mapping[str, Entry]
) -> list[Comparison]:
    """Return the comparisons of an experiment."""
    compared = (_compare(plan, part, results) for part in experiment.parts)
    return [comparison for comparison in compared if comparison is not None]


def _compare(plan: Plan, part: Part, results: Mapping[str, Entry]) -> Comparison | None:
    tasks = plan.tasks_of(part)
    found: dict[str, dict[int, Entry]] = {}
    for task in tasks:
        if task.key in results:
            found.setdefault(task.method.label, {})[task.split] = results[task.key]
    if not found:
        return None
    task = tasks[0]
    ours = next((found[label] for label in (OURS, ONLINE_OURS) if label in found), {})
    rows = [_row(label, entries, ours, part) for label, entries in found.items()]
    return Comparison(part, task.found.title, task.protocol, task.found.stand_in, rows)


def _protocol(name: str) -> str:
    words = {"weak": "one rating of every user withheld", "random 90/10": "a random tenth withheld"}
    return words.get(name, f"a random tenth withheld, the rest in {name}")


def _row(label: str, by_split: dict[int, Entry], ours: dict[int, Entry], part: Part) -> Row:
    entries = [by_split[split] for split in sorted(by_split)]
    both = [split for split in sorted(by_split) if split in ours]
    rival = not label.startswith("HeMF")
    ahead = None
    if len(both) > 1 and by_split is not ours:
        share = by_split[both[0]]["n_test"] / by_split[both[0]]["n_train"]
        ahead = paired_difference(
            [ours[split]["test_rmse"] for split in both],
            [by_split[split]["test_rmse"] for split in both],
            test_per_train=share,
        )
    return Row(
        label,
        entries,
        summarise([entry["train_rmse"] for entry in entries]),
        summarise([entry["test_rmse"] for entry in entries]),
        float(np.mean([entry["cpu_seconds"] for entry in entries])),
        part.printed.get(label),
        ahead,
        reached([(ours[split], by_split[split]) for split in both]) if rival and both else None,
    )


def reached(pairs: Sequence[tuple[Entry, Entry]]) -> Reached:
    """Return when the first of each pair reached the final error of the second.

    >>> first = {"curve": [{"cpu_seconds": 1.0, "test_rmse": 0.9},
    ...                    {"cpu_seconds": 2.0, "test_rmse": 0.8}]}
    >>> reached([(first, {"test_rmse": 0.85, "cpu_seconds": 20.0})])
    Reached(splits=1, of=1, cpu_seconds=2.0, share=0.1)
    """
    times, shares = [], []
    for ours, other in pairs:
        for point in ours["curve"]:
            if point["test_rmse"] <= other["test_rmse"]:
                times.append(point["cpu_seconds"])
                shares.append(point["cpu_seconds"] / other["cpu_seconds"])
                break
    if not times:
        return Reached(0, len(pairs), float("nan"), float("nan"))
    return Reached(len(times), len(pairs), float(np.mean(times)), float(np.mean(shares)))


# -- sentences ---------------------------------------------------------------------------------


def conclusions(comparison: Comparison) -> list[str]:
    """Return sentences on the order of methods, their speed, and the printed errors."""
    ours, sentences = comparison.ours, []
    if comparison.stand_in is not None:
        sentences.append(
            "These are not the paper's data: the order of the methods can be compared, the numbers "
            "cannot."
        )
    sentences += _versions(comparison)
    if ours is None:
        return sentences
    rivals = comparison.rivals
    above = [row for row in rivals if _gap(ours, row) >= 0]
    for words, rows in (
        (f"{ours.label} ends below", [row for row in rivals if _gap(ours, row) < 0]),
        (
            f"Unlike in the paper, {ours.label} does not end below",
            [row for row in above if row.label != BPMF.label],
        ),
        (
            f"{ours.label} does not end below one that the paper did not try:",
            [row for row in above if row.label == BPMF.label],
        ),
    ):
        if rows:
            sentences.append(f"{words} {'; '.join(_against(ours, row) for row in rows)}.")
    soon = [row for row in rivals if row.reached is not None and not row.sequential]
    if soon:
        sentences.append(
            f"{ours.label} has the final error of {'; of '.join(_speed(row) for row in soon)}."
        )
    if comparison.stand_in is None:
        sentences += _printed(comparison)
    return sentences


def _versions(comparison: Comparison) -> list[str]:
    """Return a sentence if results of several versions of hemf are compared."""
    by_method = {
        row.label: sorted({version_of(entry) for entry in row.entries}) for row in comparison.rows
    }
    if len({version for found in by_method.values() for version in found}) < 2:
        return []
    listed = "; ".join(f"{label} by {' and '.join(found)}" for label, found in by_method.items())
    return [f"These were not run with one version of hemf: {listed}."]


def _gap(ours: Row, row: Row) -> float:
    return ours.test.mean - row.test.mean


def _against(ours: Row, row: Row) -> str:
    gap, ahead = abs(_gap(ours, row)), row.ahead
    if ahead is None:
        return f"{row.label} (by {gap:.4f}, on one split)"
    chance = "" if ahead.p_value < 0.05 else ": not significant"
    return f"{row.label} (by {gap:.4f}, p = {ahead.p_value:.2g} over {ahead.n} splits{chance})"


def _speed(row: Row) -> str:
    when = row.reached
    assert when is not None
    if not when.splits:
        return f"{row.label} never"
    some = "" if when.splits == when.of else f", on {when.splits} of {when.of} splits"
    return (
        f"{row.label} after {when.cpu_seconds:.1f} CPU seconds, {100 * when.share:.0f} % of its "
        f"{row.cpu_seconds:.0f}{some}"
    )


def _printed(comparison: Comparison) -> list[str]:
    gaps = [(row, row.test.mean - row.printed.test) for row in comparison.rows if row.printed]
    near = [row.label for row, gap in gaps if abs(gap) <= NEAR]
    far = [
        f"{row.label} {abs(gap):.4f} {'above' if gap > 0 else 'below'}"
        for row, gap in gaps
        if abs(gap) > NEAR
    ]
    both = {f"Within {NEAR} of": near, "Further from": far}
    return [f"{how} the printed test error: {', '.join(of)}." for how, of in both.items() if of]


def findings(plan: Plan, experiment: Experiment, compared: Sequence[Comparison]) -> list[str]:
    """Return sentences on an experiment as a whole, and its differences from the paper."""
    sentences = _by_chunks(compared) if experiment.name == BY_CHUNKS else []
    sentences += _protocols(compared)
    if plan.request.quick:
        sentences.append(_of_quick_form(compared))
    return sentences


def _of_quick_form(compared: Sequence[Comparison]) -> str:
    """Return what the quick form does less of."""
    if all(row.sequential for comparison in compared for row in comparison.rows):
        return (
            "This is the quick form: fewer splits, and ratings are fed less often. What still "
            "falls at the end would fall further in the full form."
        )
    return (
        "This is the quick form: fewer splits, fewer samples, fewer methods. A sampler would end "
        "lower in the full form, and take longer."
    )


def _by_chunks(compared: Sequence[Comparison]) -> list[str]:
    ends = sorted(
        (comparison.part.n_chunks or 1, comparison.ours.test.mean)
        for comparison in compared
        if comparison.ours is not None
    )
    if len(ends) < 2:
        return []
    errors = [error for _, error in ends]
    listed = ", ".join(f"{n} chunks {error:.4f}" for n, error in ends)
    if max(errors) - min(errors) < ALIKE:
        verdict = (
            "Unlike the paper, the final error hardly depends on the size of chunks: with a "
            "history, a row is refreshed with all its ratings so far however they arrived"
        )
    elif all(before <= after for before, after in pairwise(errors)):
        verdict = "As in the paper, larger chunks end lower"
    else:
        verdict = "Unlike the paper, larger chunks do not always end lower"
    alone = all(comparison.ours.test.n == 1 for comparison in compared if comparison.ours)
    chance = " (one split each: small differences may be chance)" if alone else ""
    return [f"{verdict}: {listed}{chance}."]


def _protocols(compared: Sequence[Comparison]) -> list[str]:
    """Return with which of the two protocols of the paper each printed error agrees."""
    fits: dict[str, list[str]] = {}  # protocols whose error agrees with the printed one, by method
    errors: dict[str, list[str]] = {}
    protocols = set()
    for comparison in compared:
        for row in comparison.rows:
            if comparison.stand_in is None and row.printed is not None:
                name = _protocol(comparison.part.protocol)
                protocols.add(name)
                errors.setdefault(row.label, []).append(f"{mean_of(row.test)} with {name}")
                fits.setdefault(row.label, [])
                if _agrees(row.test, row.printed.test):
                    fits[row.label].append(name)
    if len(protocols) < 2:
        return []
    sentences = [
        "The paper describes two protocols, and they are not equally hard: with one rating of "
        "every user withheld, those with few ratings weigh as much as those with many."
    ]
    sentences += [
        f"{label}: {', '.join(errors[label])}; the printed error agrees with "
        f"{' and with '.join(names) if names else 'neither'}."
        for label, names in fits.items()
    ]
    if len({names[0] for names in fits.values() if len(names) == 1}) > 1:
        sentences.append(
            "So the printed errors seem not to be of one protocol, and cannot be compared with "
            "each other."
        )
    return sentences


def mean_of(summary: Summary) -> str:
    """Return a mean, with its standard error if there is one.

    >>> mean_of(Summary(0.8311, float("nan"), 1))
    '0.8311'
    """
    return f"{summary.mean:.4f}" if summary.n == 1 else str(summary)


def _agrees(ours: Summary, printed: float) -> bool:
    """Whether a printed error is within two standard errors of ours, or near enough anyway."""
    chance = 2 * ours.standard_error if ours.n > 1 else 0.0
    return abs(ours.mean - printed) <= max(NEAR, chance)


# -- page ----------------------------------------------------------------------------------------


def write_report(path: Path, plan: Plan, results: Mapping[str, Entry]) -> None:
    """Write the page of a plan, with the results that are there."""
    with atomic_write(path) as fresh:
        fresh.write_text(render(plan, results), encoding="utf-8")


def render(plan: Plan, results: Mapping[str, Entry]) -> str:
    """Return the page as HTML."""
    form = "quick form" if plan.request.quick else "full form"
    keys = {task.key for task in plan.tasks} & results.keys()
    seconds = sum(results[key]["cpu_seconds"] for key in keys)
    remark = plan.remark_on_versions(results)
    others = card("Results of other versions", remark, wide=True) if remark else ""
    return page(
        "The paper's experiments, run again",
        f"{form}, seed {plan.request.seed}, hemf {library_version()}, {date.today():%d %B %Y}",
        [
            tiles(
                {
                    "experiments": str(len(plan.experiments)),
                    "runs of a method on a split": str(len(keys)),
                    "CPU seconds of learning": f"{seconds:,.0f}",
                    "form": form,
                }
            ),
            section("What these data are", [_data(plan), others]),
            *(_experiment(plan, experiment, results) for experiment in plan.experiments),
        ],
    )


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
    missing = _paragraphs([f"Not run: {one}" for one in plan.missing])
    headers = ["data set of the paper", "here", "name", "ratings", "users", "items", "fingerprint"]
    return card("Data", text, table(headers, rows, numbers=[3, 4, 5]) + missing, wide=True)


def _what(found: Found) -> str:
    if found.stand_in is not None:
        return Markup(f"<b>stand-in</b>: {escape(found.stand_in)}")
    return Markup(f"<b>in part</b>: {found.shortfall}") if found.shortfall else "itself"


def _experiment(plan: Plan, experiment: Experiment, results: Mapping[str, Entry]) -> str:
    compared = compare_all(plan, experiment, results)
    outcome = findings(plan, experiment, compared) if compared else ["Not run yet."]
    claim = f"The paper: {experiment.claim}"
    cards = [card("Claim and outcome", claim, _paragraphs(outcome), wide=True)]
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
                cards.append(card(f"Conclusions: {comparison.title}", "", _paragraphs(sentences)))
            cards.append(_communities(name, comparison))
    return section(experiment.title, cards)


def _paragraphs(sentences: Sequence[str]) -> str:
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
    searched = any(entry.get("chosen") for row in comparison.rows for entry in row.entries)
    text = "First split; lower is better."
    if samplers:
        text += (
            " That of a sampler is of its latest draw until it is burnt in, then of the average."
        )
    if searched:
        text += " The search for SGD's step is not in its seconds."
    return card(
        f"Error by step and by second: {comparison.title}",
        f"{text} Beginnings may leave the picture.",
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
        return card(title, always)
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
        by_step.set(xlabel=steps, ylabel="RMSE on withheld ratings")
        by_step.set_xlim(left=0)
        by_second.set(xlabel="CPU seconds", xscale="log")
        by_second.xaxis.set_major_formatter("{x:g}")
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
        axes.set(xlabel=steps, ylabel="communities")
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
