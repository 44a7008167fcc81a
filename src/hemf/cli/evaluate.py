"""``hemf evaluate``: fit to one file, predict another, and report quality and cost."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from hemf.cli import arguments, models
from hemf.cli.arguments import READ, WRITTEN
from hemf.cli.output import Document, FitProgress, Output, counted
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf.data.ratings import Ratings
    from hemf.evaluation import Calibration, RankingMetrics


def evaluate(
    output: Output,
    train: Annotated[
        str, typer.Option(help="Training ratings: a file or the name of a data set."), READ
    ],
    test: Annotated[str, typer.Option(help="Ratings to predict."), READ],
    model_name: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME[:K=V,…]",
            help=f"Model: {', '.join(models.MODELS)}, with settings, as in bpmf:samples=100.",
        ),
    ] = "hemf",
    *,
    feature_files: arguments.FeatureFiles,
    options: models.ModelOptions,
    columns: arguments.ColumnNames = None,
    top: Annotated[
        str | None,
        typer.Option(
            help="Also evaluate rankings of the best N items, beside a list of the most rated "
            "ones; several lengths with commas, as in 5,10,20.",
            metavar="N[,N…]",
        ),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Lowest rating of a relevant item; by default above the mean."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML report to write.", metavar="FILE"), WRITTEN, ".html"
    ] = None,
) -> None:
    """Fit to one file, predict another.

    Prints errors and costs as JSON, and the calibration of predictions: the share of ratings inside
    intervals, negative log predictive density (nlpd), continuous ranked probability score (crps),
    negative log probability of the levels of a scale (log_score), and the shares of ratings in the
    tenths of their predictive distributions (pit). With --top also ranking metrics of all items
    that a user has not rated in training; those of the most rated items are under popularity.

    Predictions are clipped to the range of the training ratings. Times cover reading, fitting
    and predicting the test ratings, but not the compilation of kernels. What a model does not
    have, such as communities, is null; ease only ranks, it predicts no ratings. Settings are given
    with the model or by --set: gibbs, bpmf and m3f average over as many samples as samples says,
    after burn_in iterations; the topics of m3f are user_topics and item_topics.
    """
    cutoffs = arguments.parse_cutoffs(top)
    arguments.check_writable(report, apart_from=[train, test])
    name, own = models.parse_model(model_name)
    if cutoffs is None and not models.MODELS[name].predicts:
        raise ParameterError(
            f"--model {name}: it ranks, and predicts no ratings; add --top 10", value=name
        )
    model = models.MODELS[name].new(options, own)
    if not models.MODELS[name].features and feature_files.paths:
        those = " and ".join(name for name, kind in models.MODELS.items() if kind.features)
        raise ParameterError(f"--model {name}: only {those} learn from features", value=name)
    clock = Stopwatch()
    with clock:
        duplicates = model.duplicates
        learnt = arguments.read_ratings(output, train, columns, duplicates=duplicates)
        withheld = arguments.read_ratings(
            output, test, columns, duplicates=duplicates, users=learnt.users, items=learnt.items
        )
        features = feature_files.read(output, learnt, columns)
    with output.status(models.WARM_UP):
        models.warm_up(model)
    with clock, FitProgress(output) as progress:
        model.fit(learnt, callbacks=[progress], **features)
    errors: Document = dict.fromkeys(("rmse", "mae", "train_rmse"))
    if models.MODELS[name].predicts:
        errors = prediction_errors(output, model, learnt, withheld, clock)
    with output.status("evaluating"):
        found = calibration(model, learnt, withheld)
    ranks = None
    if cutoffs is not None:
        ranks = ranked(output, model, learnt, withheld, cutoffs, level)
    document: Document = {
        **errors,
        "coverage90": None,
        "seconds": round(clock.seconds, 3),
        "cpu_seconds": round(clock.cpu_seconds, 3),
        "peak_rss_mb": peak_memory(),
        "sweeps": model.n_sweeps_,
        "user_communities": getattr(model, "n_user_communities_", None),
        "item_communities": getattr(model, "n_item_communities_", None),
        **(dict.fromkeys(UNCALIBRATED) if found is None else found.to_dict()),
        **({} if ranks is None else ranks.to_dict()),
    }
    if report is not None:
        from hemf.report.model import render

        lists = [] if ranks is None else [("", ranks.model), ("most rated", ranks.popularity)]
        html = render(f"{model!r}", f"{train} → {test}", document, found, lists)
        write_html(report, html)
    output.document(document)


def prediction_errors(
    output: Output, model: models.Model, learnt: Ratings, withheld: Ratings, clock: Stopwatch
) -> Document:
    """Return the errors of predictions; predicting the test ratings is timed."""
    from hemf.evaluation import mae, rmse

    with clock, output.status("predicting"):
        actual, mean = models.predictions(model, withheld)
    train_actual, train_mean = models.predictions(model, getattr(model, "ratings_", learnt))
    return {
        "rmse": rmse(actual, mean),
        "mae": mae(actual, mean),
        "train_rmse": rmse(train_actual, train_mean),
    }


@dataclass(frozen=True)
class Ranks:
    """Ranking metrics of a model and of the most rated items, for each length of lists."""

    model: list[RankingMetrics]
    popularity: list[RankingMetrics]

    def to_dict(self) -> Document:
        """Return the figures in JSON's types, those of the most rated items under popularity."""
        own: Document = {}
        popular: dict[str, object] = {}
        for metrics, others in zip(self.model, self.popularity, strict=True):
            own |= metrics.to_dict()
            popular |= {key: value for key, value in others.to_dict().items() if "@" in key}
        return own | {"popularity": popular}


def ranked(
    output: Output,
    model: models.Model,
    learnt: Ratings,
    withheld: Ratings,
    cutoffs: list[int],
    level: float | None,
) -> Ranks:
    """Judge the rankings of a model and of the most rated items."""
    from hemf.baselines import Popularity
    from hemf.evaluation import ranking_metrics

    popularity = Popularity(duplicates=model.duplicates).fit(learnt)
    with counted(output, "ranking") as counter:
        own = ranking_metrics(model, learnt, withheld, cutoffs, level=level, progress=counter)
    return Ranks(own, ranking_metrics(popularity, learnt, withheld, cutoffs, level=level))


def write_html(path: Path, html: str) -> None:
    """Write a page, whole or not at all."""
    from hemf._files import atomic_write

    with atomic_write(path) as fresh:
        fresh.write_text(html, encoding="utf-8")


UNCALIBRATED = (
    "coverage50", "coverage80", "coverage90", "coverage95", "nlpd", "crps", "log_score",
    "pit_distance", "pit",
)  # fmt: skip
"""JSON keys that are null for a model without predictive distributions."""


def calibration(model: models.Model, learnt: Ratings, withheld: Ratings) -> Calibration | None:
    """Return the calibration of predictions, or None if the model predicts no distributions."""
    from hemf.evaluation import judge
    from hemf.evaluation.distribution import distinct_levels, is_scale

    if not isinstance(model, models.Probabilistic):
        return None
    users, items, actual = withheld.id_columns()
    predicted = model.predict_distribution(users, items, **models.times_for(model, withheld))
    levels = distinct_levels(learnt.by_user.values)
    return judge(actual, predicted, levels=levels if is_scale(levels) else None)


class Stopwatch:
    """Seconds of wall clock and of CPU that its ``with`` blocks took."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> Self:
        self.seconds -= time.perf_counter()
        self.cpu_seconds -= time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()


def peak_memory() -> float | None:
    """Return the peak memory of this process in MB; None where the system does not report it.

    >>> peak_memory() is None or peak_memory() > 10
    True
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
