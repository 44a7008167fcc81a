"""What a search has found, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf import plots
from hemf.report_page import card, page, picture, section, table, write_drawn
from hemf.tuning.search import Tuning
from hemf.tuning.trial import BEHIND, FAILED, RISEN, SETTLED, TIME, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"rmse": "held-out RMSE", "nlpd": "held-out NLPD", "elbo": "ELBO"}


def table_of(found: Tuning) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the trials, the best one marked."""
    folds = max(len(trial.scores) for trial in found.trials)
    headers, rows = table_rows(found.trials, found.by, folds=folds)
    for trial, row in zip(found.trials, rows, strict=True):
        row[-1] += " ← best" if trial is found.best else ""
    return headers, rows


def table_rows(
    trials: Sequence[Trial], by: str, *, folds: int
) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of trials, the first of which others are described by."""
    headers = ["trial", "settings", "sweeps", TITLES["rmse"]]
    headers += [TITLES[by]] if by != "rmse" else []
    headers += ["±"] if folds > 1 else []
    rows = []
    for trial in trials:
        row = [str(trial.number), trial.described(trials[0].settings), str(trial.sweeps)]
        row.append(shown_score(trial.rmse))
        if by != "rmse":
            row.append(shown(trial, by))
        if folds > 1:
            row.append("" if trial.error is None else f"{trial.error:.4f}")
        rows.append([*row, f"{trial.cpu_seconds:.1f}", how_it_ended(trial)])
    return [*headers, "CPU s", "ended"], rows


def numbers_in(headers: Sequence[str]) -> list[int]:
    """Return which columns of the table hold numbers: all but the settings and the end.

    >>> numbers_in(["trial", "settings", "sweeps", "ended"])
    [0, 2]
    """
    return [0, *range(2, len(headers) - 1)]


def shown(trial: Trial, by: str) -> str:
    """Write what a trial is judged by; bounds are better the higher, and are not turned around."""
    return shown_score(-trial.score if by == "elbo" else trial.score)


def shown_score(score: float) -> str:
    """Write a score, or nothing where there is none.

    >>> shown_score(0.91234), shown_score(float("inf"))
    ('0.9123', '-')
    """
    return f"{score:.4f}" if np.isfinite(score) else "-"


def how_it_ended(trial: Trial) -> str:
    """Say whether a trial was stopped early, and why."""
    return {
        SETTLED: "settled",
        RISEN: f"error rose after {trial.max_sweeps}",
        BEHIND: "stopped, behind",
        TIME: "time was up",
        FAILED: f"failed: {trial.reason}",
    }[trial.ended]


def tuning_figure(found: Tuning) -> Figure:
    """Draw what trials were stopped by, sweep by sweep: the first, the best, and the others."""
    with plots.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.0, 4.2), layout="constrained")
        axes = figure.subplots()
        later: list[float] = []
        others = "others"
        for trial in sorted(found.trials, key=lambda trial: trial is found.best):
            if not trial.curves:
                continue
            curve = np.array(trial.curves[0])
            later += curve[len(curve) // 4 :].tolist()
            look: dict[str, Any]
            if trial is found.best:
                look = {"color": plots.USERS, "lw": 2.2, "label": "best"}
            elif trial is found.trials[0]:
                look = {"color": plots.ITEMS, "ls": "--", "label": "first"}
            else:
                look = {"color": plots.OTHER, "lw": 0.8, "alpha": 0.6, "label": others}
                others = "_"
            axes.plot(np.arange(1, len(curve) + 1), curve, **look)
        if later:
            room = 0.06 * (max(later) - min(later)) + 0.001 * abs(max(later))
            axes.set_ylim(min(later) - room, max(later) + room)
        elbo = found.by == "elbo"
        axes.set_xlabel("sweep")
        axes.set_ylabel("minus ELBO for each rating" if elbo else "held-out RMSE")
        axes.legend()
    return figure


def write_tuning_plot(path: Path, found: Tuning, *, title: str) -> None:
    """Write the figure as a PNG or, with the table of trials, as a page, by the name."""
    figure = tuning_figure(found)

    def html() -> str:
        drawn = card(
            "Error against sweeps",
            "Of each candidate, on the held-out ratings; lower is better. Lines that end early are "
            "of candidates that were stopped.",
            picture("tuning", figure, "held-out error against sweeps"),
            wide=True,
        )
        headers, rows = table_of(found)
        measured = card("Trials", "", table(headers, rows, numbers=numbers_in(headers)), wide=True)
        said = f"{len(found.trials)} trials, judged by {TITLES[found.by]}"
        return page(title, said, [section("Choosing settings", [drawn, measured])])

    write_drawn(path, figure, html)
