"""``hemf fit``: learn a model from ratings, keep it, and draw how it went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.arguments import ItemFeatures, UserFeatures, read_features
from hemf.cli.output import READ, WRITTEN, Output

if TYPE_CHECKING:
    from hemf import HeMF

Data = Annotated[
    str,
    typer.Argument(
        help="Ratings: CSV, TSV, Parquet or .dat file, or the name of a data set.", metavar="DATA"
    ),
    READ,
]


def fit(
    output: Output,
    data: Data,
    model_file: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="M", help="Where to keep the model."),
        WRITTEN,
        ".hemf",
    ],
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="R.html", help="Where to write a report with pictures."),
        WRITTEN,
        ".html",
    ] = None,
    user_features: UserFeatures = None,
    item_features: ItemFeatures = None,
    settings: arguments.Settings = None,
    seed: arguments.Seed = 0,
    columns: arguments.ColumnNames = None,
    n_jobs: arguments.Jobs = None,
) -> None:
    """Learn from ratings and keep the model in a file.

    Files of features may be several for each side. Numbers count as such, text by its values, and
    Action|Comedy is two labels.
    """
    from hemf._files import file_lock
    from hemf.cli.progress import FitProgress, warm_up
    from hemf.persistence.model import check_ids

    model = arguments.new_model(settings, seed, n_jobs)
    read = [data, *(user_features or ()), *(item_features or ())]
    arguments.check_writable(model_file, apart_from=read, regular=True)
    arguments.check_writable(report, apart_from=[*read, model_file])
    ratings = arguments.read_ratings(output, data, columns, duplicates=model.duplicates)
    check_ids(ratings)
    features = read_features(output, ratings, columns, user=user_features, item=item_features)
    warm_up(output, model)
    with file_lock(model_file, waiting=output.remark):
        with FitProgress(output) as progress:
            model.fit(ratings, callbacks=[progress], **features)
        with output.status(f"writing {model_file}"):
            model.save(model_file)
    if report is not None:
        from hemf.report.model import write_report

        with output.status(f"drawing {report}"):
            write_report(report, model, title=Path(data).name, held_out=model.held_out_)
    document = {**summary(model), "model": str(model_file), "report": report and str(report)}
    output.result(document, lambda: _show(output, model, model_file, report))


def summary(model: HeMF) -> dict[str, Any]:
    """Figures of a fitted model that a person or a script asks for first."""
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
