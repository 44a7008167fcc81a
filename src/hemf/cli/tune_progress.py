"""How far a search for settings has come: a table that grows, and the candidate at work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hemf.cli.progress import (
    SECONDS_BETWEEN_LINES,
    SECONDS_BETWEEN_PICTURES,
    LivePicture,
    duration,
)

if TYPE_CHECKING:
    from hemf.cli.output import Output
    from hemf.tuning import Standing


class TuneProgress(LivePicture):
    """What `hemf.tuning.tune` tells how it stands; use as a context manager around it."""

    def __init__(self, output: Output, folds: int) -> None:
        super().__init__(output)
        self._folds = folds
        self._told = 0

    def __call__(self, standing: Standing) -> None:
        """Show how the search stands."""
        if self._output.silent:
            return
        now, ended = time.monotonic(), len(standing.trials) > self._told
        self._told = len(standing.trials)
        if self._output.live:
            if ended or now - self._said >= SECONDS_BETWEEN_PICTURES:
                self._said = now
                self._live.update(self._drawn(standing), refresh=True)
        elif ended:
            self._said = now
            self._output.remark(f"{self._last(standing)} · {self._outlook(standing)}")
        elif standing.report is not None and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._output.remark(f"{self._current(standing)} · {self._outlook(standing)}")

    def _last(self, standing: Standing) -> str:
        from hemf.tuning.plots import how_it_ended, shown_score

        trial, first = standing.trials[-1], standing.trials[0]
        return (
            f"trial {trial.number} · {trial.described(first.settings)} · RMSE "
            f"{shown_score(trial.rmse)} · {trial.sweeps} sweeps, {how_it_ended(trial)}"
        )

    def _current(self, standing: Standing) -> str:
        report = standing.report
        if report is None:
            return ""
        fold = f" · fold {standing.fold + 1}/{self._folds}" if self._folds > 1 else ""
        return (
            f"trial {len(standing.trials) + 1}{fold} · sweep {report.sweep} · held-out RMSE "
            f"{report.validation_rmse:.4f}"
        )

    def _outlook(self, standing: Standing) -> str:
        done, left = len(standing.trials), standing.seconds_left
        if standing.settings is None:
            return "done"
        if done:
            mean = sum(trial.seconds for trial in standing.trials) / done
            expected = mean * standing.planned
            left = expected if left is None else min(left, expected)
        if left is None:
            return f"up to {standing.planned} more trials"
        return f"about {duration(left)} left in this round"

    def _drawn(self, standing: Standing) -> Any:
        from rich.table import Table
        from rich.text import Text

        from hemf.tuning.plots import numbers_in, table_rows

        whole = Table.grid()
        if standing.trials:
            headers, rows = table_rows(standing.trials, "rmse", folds=self._folds)
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            for place, header in enumerate(headers):
                side: Any = "right" if place in numbers_in(headers) else "left"
                table.add_column(header, justify=side, overflow="fold")
            finished = [trial for trial in standing.trials if trial.finished]
            best = min(finished, key=lambda trial: trial.score) if finished else None
            for trial, row in zip(standing.trials, rows, strict=True):
                table.add_row(*row, style="bold" if trial is best else None)
            whole.add_row(table)
        line = " · ".join(filter(None, [self._current(standing), self._outlook(standing)]))
        whole.add_row(Text(line, style="dim"))
        return whole
