"""``hemf tune``: choose settings by held-out ratings."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hemf._files import file_lock
from hemf.cli import arguments, models
from hemf.cli.arguments import WRITTEN
from hemf.cli.output import (
    Document,
    FitProgress,
    LiveDisplay,
    Output,
    RowFormat,
    duration,
    empty_table,
)
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hemf.tuning.search import SearchReport, Tuning


class Criterion(StrEnum):
    """Score that candidates are compared by."""

    rmse = "rmse"
    nlpd = "nlpd"
    elbo = "elbo"


@dataclass(frozen=True)
class SearchOptions:
    """Candidates, the metric to compare them by, and limits of the search."""

    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="K=V1,V2,…",
            help="Values of a parameter to try, instead of the default choices; may be repeated.",
        ),
    ] = None
    by: Annotated[
        Criterion, typer.Option(help="Score: held-out RMSE or NLPD, or the lower bound of the fit.")
    ] = Criterion.rmse
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximal number of trials.")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(metavar="M", min=0.0, help="Time limit, after the first trial.")
    ] = None
    folds: Annotated[
        int, typer.Option(metavar="F", min=1, help="Folds held out in turn, for standard errors.")
    ] = 1
    share: Annotated[
        float, typer.Option(min=0.01, max=0.5, help="Share of the ratings that is held out.")
    ] = 0.1
    patience: Annotated[int, typer.Option(min=1, help="Sweeps that a held-out error may rise.")] = 5


def tune(
    output: Output,
    data: arguments.Data,
    *,
    search: SearchOptions,
    feature_files: arguments.FeatureFiles,
    model_file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="M", help="Model file to write, fitted to all ratings."
        ),
        WRITTEN,
        ".hemf",
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="R.jsonl", help="File of trials; the same command continues from it."),
        WRITTEN,
        ".jsonl",
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="P", help="Plot of held-out errors to write: P.html or P.png."),
        WRITTEN,
        ".html",
    ] = None,
    options: models.ModelOptions,
    columns: arguments.ColumnNames = None,
    format: RowFormat = None,
) -> None:
    """Choose settings by ratings that are held out of DATA.

    The first trial has the defaults. Then one choice after the other is made, each with the best
    settings so far: implicit features, communities, moods if there are timestamps, given features,
    number of factors, noise. Candidates whose held-out error rises, or that cannot win, are stopped
    early. Ctrl-C ends the search and keeps its result.
    """
    from hemf.report.model import check_plot_name
    from hemf.tuning.search import check_space, tune, write_tuning_plot

    fixed, space = models.parse_settings(options.settings), parse_tried(search.tried)
    files = feature_files.by_name
    check_space(fixed, space, list(files))
    check_plot_name(plot)
    read: list[str | Path] = [data, *feature_files.paths]
    written = (model_file, results, plot)
    for place, path in enumerate(written):
        others = [other for other in written[:place] if other is not None]
        arguments.check_writable(path, apart_from=[*read, *others], regular=True)
    duplicates = fixed.get("duplicates", "last")
    ratings = arguments.read_ratings(output, data, columns, duplicates=duplicates)
    features = feature_files.read(output, ratings, columns)
    moody = ratings.timestamps is not None and (space is None or "moods" in space)
    quick = ["moods=true"] if moody else []
    with output.status(models.WARM_UP):
        models.warm_up(models.MODELS["hemf"].new(replace(options, settings=quick)))
    with TuneProgress(output, search.folds) as progress:
        found = tune(
            ratings,
            **features,
            metric=search.by.value,
            holdout=search.share,
            folds=search.folds,
            rng=options.seed,
            n_jobs=options.n_jobs,
            fixed=fixed,
            space=space,
            patience=search.patience,
            trials=search.trials,
            minutes=search.minutes,
            results=results,
            callback=progress,
        )
    interrupted = found.ended == "interrupted"
    if plot is not None:
        with output.status(f"drawing {plot}"):
            write_tuning_plot(plot, found, title=Path(data).name)
    document = document_of(found, fit_command(found, data, files, columns), files)
    document |= {"plot": plot and str(plot), "results": results and str(results), "model": None}
    if model_file is not None and not interrupted:
        from hemf.persistence.model import check_ids

        check_ids(ratings)
        with file_lock(model_file, waiting=output.remark):
            with FitProgress(output) as watch:
                model = found.fit(callbacks=[watch])
            output.save_model(model_file, model)
        document |= {"model": str(model_file), "fitted": models.summary(model)}
    rows = [{**trial, "scores": list(trial["scores"])} for trial in document["trials"]]
    output.rows(
        {name: [row[name] for row in rows] for name in rows[0] if name != "curves"},
        lambda: _show(output, found),
        document=document,
        format=format,
    )
    say = output.line if output.is_table(format) else output.remark
    for sentence in _conclusion(found, document):
        say(sentence)
    if interrupted:
        raise KeyboardInterrupt


def parse_tried(tried: list[str] | None) -> dict[str, list[object]] | None:
    """Parse ``--try`` options.

    >>> parse_tried(["n_factors=5,10", "noise_scales=both,none"])
    {'n_factors': [5, 10], 'noise_scales': ['both', None]}
    """
    if not tried:
        return None
    space: dict[str, list[object]] = {}
    for text in tried:
        name, equals, values = text.partition("=")
        parts = [part for part in values.split(",") if part.strip()]
        if not equals or not parts:
            raise ParameterError(
                f"--try {text}: expected name=value,value, such as --try n_factors=10,20",
                value=text,
            )
        chosen = space.setdefault(name.strip().replace("-", "_"), [])
        chosen += [models.parse_value(part) for part in parts]
    return space


def fit_command(found: Tuning, data: str, files: dict[str, list[Path]], columns: str | None) -> str:
    """Return the command that fits a model with the best settings to all ratings."""
    words = ["hemf", "fit", data, "-o", "model.hemf"]
    for name, value in found.changed.items():
        words += ["--set", f"{name}={written(value)}"]
    for name, paths in files.items():
        for path in paths if found.settings.get(name, True) else ():
            words += [f"--{name.replace('_', '-')}", str(path)]
    words += ["--seed", str(found.rng)] if found.rng else []
    words += ["--columns", columns] if columns else []
    return shlex.join(words)


def written(value: object) -> str:
    """Return a value as ``--set`` takes it.

    >>> [written(value) for value in (None, True, 5, (1, 5), "tied")]
    ['none', 'true', '5', '1,5', 'tied']
    """
    if isinstance(value, tuple | list):
        return ",".join(map(written, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def python_call(found: Tuning, files: dict[str, list[Path]]) -> str:
    """Return the Python call that fits the same model."""
    used = [name for name in files if found.settings.get(name, True)]
    model = found.model()
    model.n_jobs = None
    return f"{model!r}.fit({', '.join(['ratings', *(f'{name}={name}' for name in used)])})"


def document_of(found: Tuning, command: str, files: dict[str, list[Path]]) -> Document:
    """Return the result as a JSON document."""
    first, best = found.trials[0], found.best
    return {
        "by": found.metric,
        "ended": found.ended,
        "best": best.number,
        "score": best.score,
        "rmse": best.rmse,
        "default_score": first.score,
        "default_rmse": first.rmse,
        "settings": found.settings,
        "cpu_seconds": round(sum(trial.cpu_seconds for trial in found.trials), 3),
        "seconds": round(sum(trial.seconds for trial in found.trials), 3),
        "command": command,
        "python": python_call(found, files),
        "trials": [
            {**asdict(trial), "described": found.described(trial)} for trial in found.trials
        ],
    }


def _show(output: Output, found: Tuning) -> None:
    from hemf.tuning.search import numbers_in, table_of

    headers, rows = table_of(found)
    output.table(headers, rows, numbers=numbers_in(headers))
    output.line()


def _conclusion(found: Tuning, document: Document) -> list[str]:
    """Return sentences on the end of the search and the next command."""
    from hemf.tuning.search import TITLES, shown

    reasons = {
        "interrupted": "Interrupted; the result is the best so far.",
        "minutes": "Time was up before all choices were made.",
        "trials": "The trials were used up before all choices were made.",
    }
    sentences = [reasons[found.ended]] if found.ended in reasons else []
    first, best = found.trials[0], found.best
    cost = f"{document['cpu_seconds']:.0f} CPU s"
    if best is first:
        sentences.append(f"Nothing was better than the first trial ({cost}).")
    else:
        before, after = (shown(trial, found.metric) for trial in (first, best))
        sentences.append(
            f"Best is trial {best.number}: {TITLES[found.metric]} {after} for {before} ({cost})."
        )
    sentences += [document["command"], document["python"]]
    return sentences + [f"{kind}: {document[kind]}" for kind in ("model", "plot") if document[kind]]


class TuneProgress(LiveDisplay):
    """Callback of `hemf.tuning.tune`: a table of trials, and the present candidate."""

    def __init__(self, output: Output, folds: int) -> None:
        super().__init__(output)
        self._folds = folds
        self._n_trials = 0

    def __call__(self, report: SearchReport) -> None:
        """Show the search."""
        ended = len(report.trials) > self._n_trials
        self._n_trials = len(report.trials)
        if not ended and report.sweep is None and not self._output.live:
            return

        def line() -> str:
            now = self._last(report) if ended else self._current(report)
            return f"{now} · {self._outlook(report)}"

        self._show(lambda: self._drawn(report), line, now=ended)

    def _last(self, report: SearchReport) -> str:
        from hemf.tuning.search import how_it_ended, shown_score

        trial, first = report.trials[-1], report.trials[0]
        return (
            f"trial {trial.number} · {trial.described(first.settings)} · RMSE "
            f"{shown_score(trial.rmse)} · {trial.sweeps} sweeps, {how_it_ended(trial)}"
        )

    def _current(self, report: SearchReport) -> str:
        if report.sweep is None:
            return ""
        fold = f" · fold {report.fold + 1}/{self._folds}" if self._folds > 1 else ""
        return (
            f"trial {len(report.trials) + 1}{fold} · sweep {report.sweep.sweep} · held-out RMSE "
            f"{report.sweep.validation_rmse:.4f}"
        )

    def _outlook(self, report: SearchReport) -> str:
        done, left = len(report.trials), report.seconds_left
        if report.settings is None:
            return "done"
        if done:
            mean = sum(trial.seconds for trial in report.trials) / done
            expected = mean * report.planned
            left = expected if left is None else min(left, expected)
        if left is None:
            return f"up to {report.planned} more trials"
        return f"about {duration(left)} left in this round"

    def _drawn(self, report: SearchReport) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        from hemf.tuning.search import numbers_in, table_rows

        whole = Table.grid()
        if report.trials:
            headers, rows = table_rows(report.trials, "rmse", folds=self._folds)
            table = empty_table(headers, numbers_in(headers), header_style="dim")
            finished = [trial for trial in report.trials if trial.finished]
            best = min(finished, key=lambda trial: trial.score) if finished else None
            for trial, row in zip(report.trials, rows, strict=True):
                table.add_row(*row, style="bold" if trial is best else None)
            whole.add_row(table)
        line = " · ".join(filter(None, [self._current(report), self._outlook(report)]))
        whole.add_row(Text(line, style="dim"))
        return whole
