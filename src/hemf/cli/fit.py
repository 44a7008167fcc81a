"""``hemf fit``: fit a model and save it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hemf.cli import arguments
from hemf.cli.arguments import WRITTEN
from hemf.cli.models import ModelOptions
from hemf.cli.output import Document, Output

if TYPE_CHECKING:
    from hemf.estimator import HeMF


def fit(
    output: Output,
    data: arguments.Data,
    model_file: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="M", help="Model file to write."),
        WRITTEN,
        ".hemf",
    ],
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="R.html", help="HTML report to write."),
        WRITTEN,
        ".html",
    ] = None,
    *,
    feature_files: arguments.FeatureFiles,
    options: ModelOptions,
    columns: arguments.ColumnNames = None,
) -> None:
    """Fit a model to ratings and save it.

    There may be several files of features for each side. Columns of numbers are numeric features,
    other columns are categories; Action|Comedy is two labels.
    """
    from hemf.cli.models import MODELS, warm_up
    from hemf.persistence.model import check_ids

    model = cast("HeMF", MODELS["hemf"].new(options))
    read: list[str | Path] = [data, *feature_files.paths]
    arguments.check_writable(model_file, apart_from=read, regular=True)
    arguments.check_writable(report, apart_from=[*read, model_file])
    ratings = arguments.read_ratings(output, data, columns, duplicates=model.duplicates)
    check_ids(ratings)
    features = feature_files.read(output, ratings, columns)
    warm_up(output, model)
    fit_and_save(output, model_file, partial(model.fit, ratings, **features))
    if report is not None:
        with output.status(f"drawing {report}"):
            model.report(report, title=Path(data).name, held_out=model.held_out_)
    document = {**summary(model), "model": str(model_file), "report": report and str(report)}
    output.result(document, lambda: _show(output, model, model_file, report))


def fit_and_save(output: Output, path: Path, fit: Callable[..., HeMF]) -> HeMF:
    """Fit with progress, and save the model under the lock of its file."""
    from hemf._files import file_lock
    from hemf.cli.output import FitProgress

    with file_lock(path, waiting=output.remark):
        with FitProgress(output) as progress:
            model = fit(callbacks=[progress])
        with output.status(f"writing {path}"):
            model.save(path)
        output.note_saved(path)
    return model


def summary(model: HeMF) -> Document:
    """Return the main figures of a fitted model."""
    last = model.history_[-1]
    held = [r.validation_rmse for r in model.history_ if r.validation_rmse is not None]
    return {
        "users": model.n_users_,
        "items": model.n_items_,
        "ratings": model.ratings_.n_ratings,
        "user_communities": model.n_user_communities_,
        "item_communities": model.n_item_communities_,
        "sweeps": model.n_sweeps_,
        "converged": model.converged_,
        "elbo": model.elbo_,
        "noise_std": model.noise_variance_**0.5,
        "validation_rmse": min(held) if held else None,
        "seconds": last.seconds,
    }


def _show(output: Output, model: HeMF, model_file: Path, report: Path | None) -> None:
    facts = summary(model)
    output.line(
        f"{facts['ratings']:,} ratings of {facts['items']:,} items by {facts['users']:,} users"
    )
    output.line(
        f"{facts['user_communities']} user × {facts['item_communities']} item communities, "
        f"noise ±{facts['noise_std']:.3g}, ELBO {facts['elbo']:,.0f}"
    )
    if facts["validation_rmse"] is not None:
        output.line(f"RMSE on held-out ratings {facts['validation_rmse']:.4f}")
    output.line(f"{facts['sweeps']} sweeps in {facts['seconds']:.1f} s")
    output.line(f"model: {model_file}", style="bold")
    if report is not None:
        output.line(f"report: {report}", style="bold")
