"""``hemf fit``: fit a model and save it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hemf._files import file_lock
from hemf.cli import arguments
from hemf.cli.arguments import WRITTEN
from hemf.cli.models import MODELS, WARM_UP, ModelOptions, summary, warm_up
from hemf.cli.output import Document, FitProgress, Output

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
    from hemf.persistence.model import check_ids

    model = cast("HeMF", MODELS["hemf"].new(options))
    read: list[str | Path] = [data, *feature_files.paths]
    arguments.check_writable(model_file, apart_from=read, regular=True)
    arguments.check_writable(report, apart_from=[*read, model_file])
    ratings = arguments.read_ratings(output, data, columns, duplicates=model.duplicates)
    check_ids(ratings)
    features = feature_files.read(output, ratings, columns)
    with output.status(WARM_UP):
        warm_up(model)
    with file_lock(model_file, waiting=output.remark):
        with FitProgress(output) as progress:
            model.fit(ratings, callbacks=[progress], **features)
        output.save_model(model_file, model)
    if report is not None:
        with output.status(f"drawing {report}"):
            model.report(report, title=Path(data).name, held_out=model.held_out_)
    document: Document = {
        **summary(model),
        "model": str(model_file),
        "report": report and str(report),
    }
    output.result(document, lambda: _show(output, document))


def _show(output: Output, facts: Document) -> None:
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
    for written in ("model", "report"):
        if facts[written] is not None:
            output.line(f"{written}: {facts[written]}", style="bold")
