"""Analysis of results: means over splits, paired differences, comparison with the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hemf.evaluation import PairedDifference, Summary, paired_difference, summarise
from hemf.experiments.catalog import BPMF, BY_CHUNKS, ONLINE_OURS, OURS, Experiment, Part, Printed
from hemf.experiments.plan import Entry, Plan, version_of

NEAR = 0.005  # of a printed error
ALIKE = 0.001  # errors that differ by less over all sizes of chunks


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
        within = (
            point["cpu_seconds"]
            for point in ours["curve"]
            if point["test_rmse"] <= other["test_rmse"]
        )
        at = next(within, None)
        if at is not None:
            times.append(at)
            shares.append(at / other["cpu_seconds"])
    none = float("nan")
    return Reached(
        len(times),
        len(pairs),
        float(np.mean(times)) if times else none,
        float(np.mean(shares)) if shares else none,
    )


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
    below = [row for row in comparison.rivals if _gap(ours, row) < 0]
    above = [row for row in comparison.rivals if _gap(ours, row) >= 0]
    for words, rows in (
        (f"{ours.label} ends below", below),
        (f"Unlike in the paper, {ours.label} does not end below", _tried(above, True)),
        (f"{ours.label} does not end below one that the paper did not try:", _tried(above, False)),
    ):
        if rows:
            sentences.append(f"{words} {'; '.join(_against(ours, row) for row in rows)}.")
    soon = [row for row in comparison.rivals if row.reached is not None and not row.sequential]
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


def _tried(rows: Sequence[Row], by_the_paper: bool) -> list[Row]:
    return [row for row in rows if (row.label != BPMF.label) == by_the_paper]


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
    if not gaps:
        return []
    near = [row.label for row, gap in gaps if abs(gap) <= NEAR]
    far = [
        f"{row.label} {abs(gap):.4f} {'above' if gap > 0 else 'below'}"
        for row, gap in gaps
        if abs(gap) > NEAR
    ]
    sentences = []
    if near:
        sentences.append(f"Within {NEAR} of the printed test error: {', '.join(near)}.")
    if far:
        sentences.append(f"Further from the printed test error: {', '.join(far)}.")
    return sentences


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
