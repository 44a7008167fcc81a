"""``hemf reproduce``: run the paper's experiments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hemf._files import library_version
from hemf.cli.arguments import STANDARD
from hemf.cli.models import Seed
from hemf.cli.output import Document, LiveDisplay, Output, duration, progress_bar
from hemf.errors import DataError, DatasetError

if TYPE_CHECKING:
    from hemf.experiments.plan import Entry, Plan, Task

OUTPUT = Path("hemf-reproduce")


def reproduce(
    output: Output,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="table1, figure4 to figure10, or all; may be several."),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes, not hours: fewer splits, samples, methods.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of results and report.")
    ] = OUTPUT,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder to search for data sets first."),
    ] = None,
    splits: Annotated[int | None, typer.Option("--splits", min=1, help="Number of splits.")] = None,
    seed: Seed = 0,
) -> None:
    """Run the paper's experiments.

    Writes every result to DIR/results.jsonl at once, and a report with the paper's numbers beside
    ours. The same command continues where it was stopped. Data sets that are not available are
    replaced by stand-ins, marked as such.
    """
    from hemf.experiments.catalog import select
    from hemf.experiments.plan import RESULTS, Request, Results, plan
    from hemf.experiments.report import REPORT, write_report
    from hemf.experiments.runner import run

    experiments = select(names)
    _check(folder, data)
    with output.status("reading the data"):
        planned = plan(experiments, Request(folder, quick, data, seed, splits))
    folder.mkdir(parents=True, exist_ok=True)
    for found in {task.found.source.name: task.found for task in planned.tasks}.values():
        if found.stand_in is not None:
            output.remark(found.title)
        elif found.shortfall is not None:
            output.remark(f"{found.title}: {found.shortfall} are here")
    there = Results(folder / RESULTS)
    for note in (*there.notes, planned.remark_on_versions(there.by_key)):
        if note is not None:
            output.remark(note)
    begin = time.perf_counter()
    try:
        with RunProgress(output) as callback:
            run(planned, callback)
    except KeyboardInterrupt:
        output.remark(f"finished results are in {folder / RESULTS}; the same command continues")
        raise
    finally:
        results = Results(folder / RESULTS).by_key
        if any(task.key in results for task in planned.tasks):
            write_report(folder / REPORT, planned, results)
    document = _document(planned, results, folder / REPORT, time.perf_counter() - begin)
    output.result(document, lambda: _show(output, planned, results, document))
    if planned.missing:
        raise DatasetError("; ".join(planned.missing))


def _check(folder: Path, data: Path | None) -> None:
    if str(folder) == STANDARD:
        raise DataError(
            "--output takes a folder, which cannot be standard output; --json prints the results",
            value=STANDARD,
        )
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; --output takes a folder", value=str(folder))
    if data is not None and not data.is_dir():
        raise DataError(f"{data}: no such folder; --data takes one with data sets", value=str(data))


class RunProgress(LiveDisplay):
    """Callback of a run that shows the present task, the progress of all, and the time left."""

    def __call__(self, task: Task, share: float, word: str) -> None:
        """Show the task."""
        left = "time left not known yet"
        if share > 0.01:
            left = f"{duration((time.monotonic() - self._begin) * (1 - share) / share)} left"
        name = f"{task.found.name}, {task.protocol}, split {task.split}, {task.method.label}"
        percent = f"{100 * share:3.0f} %"
        self._show(
            lambda: progress_bar(percent, share, 1.0, f"{left}  {name}  {word}"),
            lambda: f"{percent} · {left} · {name} · {word}",
        )


def _document(
    planned: Plan, results: Mapping[str, Entry], report: Path, seconds: float
) -> Document:
    from hemf.experiments.report import compare_all, conclusions, findings

    document: Document = {
        "version": library_version(),
        "other_versions": planned.other_versions(results),
        "quick": planned.request.quick,
        "seed": planned.request.seed,
        "report": str(report),
        "results": str(planned.request.output / "results.jsonl"),
        "seconds": round(seconds, 1),
        "missing": planned.missing,
        "experiments": {},
    }
    for experiment in planned.experiments:
        compared = compare_all(planned, experiment, results)
        document["experiments"][experiment.name] = {
            "title": experiment.title,
            "findings": findings(planned, experiment, compared),
            "comparisons": [
                {
                    "title": one.title,
                    "stand_in": one.stand_in,
                    "findings": conclusions(one),
                    "methods": [
                        {
                            "method": row.label,
                            "splits": len(row.entries),
                            "train_rmse": row.train.mean,
                            "test_rmse": row.test.mean,
                            "test_standard_error": row.test.standard_error,
                            "paper_train_rmse": row.printed and row.printed.train,
                            "paper_test_rmse": row.printed and row.printed.test,
                            "cpu_seconds": row.cpu_seconds,
                            "paired_p_value": row.ahead and row.ahead.p_value,
                        }
                        for row in one.rows
                    ],
                }
                for one in compared
            ],
        }
    return document


def _show(output: Output, planned: Plan, results: Mapping[str, Entry], document: Document) -> None:
    from hemf.experiments.report import (
        compare_all,
        conclusions,
        findings,
        group_title,
        in_one_table,
        table_of,
    )

    for experiment in planned.experiments:
        output.line(experiment.title, style="bold")
        compared = compare_all(planned, experiment, results)
        for group in in_one_table(experiment, compared):
            output.line(group_title(group))
            headers, rows = table_of(group)
            output.table(headers, rows, numbers=range(1, len(headers)))
            for sentence in (text for one in group for text in conclusions(one)):
                output.line(f"  {sentence}")
        for sentence in findings(planned, experiment, compared):
            output.line(sentence)
        output.line()
    output.line(f"Report: {document['report']}  ({document['seconds']:.0f} s)", style="bold")
