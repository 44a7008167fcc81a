"""``hemf evaluate``: learn from one file, predict another, say how well and at what cost."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
import typer

from hemf.cli import arguments
from hemf.cli.arguments import (
    FEATURED,
    MODELS,
    ItemFeatures,
    UserFeatures,
    parse_model,
    read_features,
)
from hemf.cli.output import READ, WRITTEN, Output
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf import Ratings
    from hemf.cli.arguments import Learner
    from hemf.evaluation import Calibration, RankingMetrics


def evaluate(
    output: Output,
    train: Annotated[
        str, typer.Option(help="Ratings to learn from: a file or a data set's name."), READ
    ],
    test: Annotated[str, typer.Option(help="Ratings to predict."), READ],
    model_name: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME[:K=V,…]",
            help=f"What learns: {', '.join(MODELS)}, with settings, as in bpmf:samples=100.",
        ),
    ] = "hemf",
    user_features: UserFeatures = None,
    item_features: ItemFeatures = None,
    settings: arguments.Settings = None,
    seed: arguments.Seed = 0,
    columns: arguments.ColumnNames = None,
    n_jobs: arguments.Jobs = None,
    top: Annotated[
        int | None,
        typer.Option(help="Also judge the N items that would be recommended.", min=1, metavar="N"),
    ] = None,
    relevant: Annotated[
        float | None,
        typer.Option(help="Rating from which an item is relevant; else above the mean."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="HTML file with pictures to write.", metavar="FILE"),
        WRITTEN,
        ".html",
    ] = None,
) -> None:
    """Learn from one file, predict another.

    Prints errors and costs as JSON, and how honest the predictions are: the share of ratings inside
    intervals, negative log predictive density (nlpd), continuous ranked probability score (crps),
    negative log probability of the levels of a scale (log_score), and shares of the ratings in
    each tenth of what was predicted (pit). With --top, how well the model ranks.

    Predictions are clipped to the range of the training ratings. Times cover reading, learning
    and predicting the test ratings, but not the compilation of kernels. What a model does not
    know, such as its communities, is null. Settings are given with the model or by --set: gibbs,
    bpmf and m3f draw burn_in times and then as often as samples says, and average over the latter;
    the topics of m3f are user_topics and item_topics.
    """
    from hemf import evaluation
    from hemf.cli.progress import warm_up

    arguments.check_writable(report, apart_from=[train, test])
    name, own = parse_model(model_name)
    model = MODELS[name]([*(settings or []), *own], seed, n_jobs)
    if name not in FEATURED and (user_features or item_features):
        those = " and ".join(FEATURED)
        raise ParameterError(f"--model {name}: only {those} learn from features", value=name)
    options: dict[str, Any] = {"duplicates": model.duplicates}
    clock = Stopwatch()
    with clock:
        learnt = arguments.read_ratings(output, train, columns, **options)
        options |= {"users": learnt.users, "items": learnt.items}
        withheld = arguments.read_ratings(output, test, columns, **options)
        features = read_features(output, learnt, columns, user=user_features, item=item_features)
    warm_up(output, model)
    with clock:
        learn(output, model, learnt, **features)
    with clock, output.status("predicting"):
        actual, mean, std = predicted(model, withheld)
    train_actual, train_mean, _ = predicted(model, getattr(model, "ratings_", learnt))
    with output.status("judging"):
        found = calibration(model, learnt, withheld, actual, mean, std)
    ranks = None if top is None else ranking(output, model, learnt, withheld, top, relevant)
    answer = with_figures(
        {
            "rmse": evaluation.rmse(actual, mean),
            "mae": evaluation.mae(actual, mean),
            "train_rmse": evaluation.rmse(train_actual, train_mean),
            "coverage90": None,
            "seconds": round(clock.seconds, 3),
            "cpu_seconds": round(clock.cpu_seconds, 3),
            "peak_rss_mb": peak_memory(),
            "sweeps": model.n_sweeps_,
            "user_communities": getattr(model, "n_user_communities_", None),
            "item_communities": getattr(model, "n_item_communities_", None),
        },
        found,
        ranks,
    )
    if report is not None:
        write_report(report, f"{model!r}", f"{train} → {test}", answer, found, ranks)
    output.document(answer)


def learn(output: Output, model: Learner, ratings: Ratings, **features: Any) -> None:
    """Fit a model, and show how far it has come; only HeMF and its sampler have ``features``."""
    from hemf import HeMF
    from hemf.cli.progress import FitProgress, rounds

    if isinstance(model, HeMF):
        with FitProgress(output) as progress:
            model.fit(ratings, callbacks=[progress], **features)
    else:
        with rounds(output) as show:
            model.fit(ratings, callbacks=[show], **features)


def predicted(model: Learner, ratings: Ratings) -> tuple[Any, Any, Any]:
    """Ratings, what the model expects of them, and how sure it is: None where it cannot say."""
    from hemf import HeMF
    from hemf.baselines import SGD, Bias

    users, items, actual = ratings.triples()
    pairs = ratings.users.ids[users], ratings.items.ids[items]
    if isinstance(model, SGD | Bias):
        return actual, model.predict(*pairs), None
    if isinstance(model, HeMF):
        return actual, *model.predict(*pairs, timestamps=ratings.timestamps, return_std=True)
    return actual, *model.predict(*pairs, return_std=True)


class Stopwatch:
    """Seconds of the wall clock, and of all cores together, that its ``with`` blocks took."""

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
    """Most memory this process has had in use, in MB; None where the system does not tell.

    >>> peak_memory() is None or peak_memory() > 10
    True
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


# ------------------------------------------------------------------------------------------------
# What ``hemf evaluate`` says beyond errors: honesty, ranking, and a page of both.


UNKNOWN = (
    "coverage50", "coverage80", "coverage90", "coverage95", "nlpd", "crps", "log_score",
    "pit_distance", "pit",
)  # fmt: skip
"""What is null for a model that does not say how sure it is."""


def calibration(
    model: Learner, learnt: Ratings, withheld: Ratings, actual: Any, mean: Any, std: Any
) -> Calibration | None:
    """Say how honest predictions were, or None of a model that does not say how sure it is."""
    from hemf import HeMF
    from hemf.evaluation import Predictive, judge
    from hemf.evaluation.distribution import distinct_levels, is_scale

    if std is None:
        return None
    if isinstance(model, HeMF):
        users, items, _ = withheld.triples()
        pairs = withheld.users.ids[users], withheld.items.ids[items]
        said = model.predict_distribution(*pairs, timestamps=withheld.timestamps)
    else:
        said = Predictive(np.asarray(mean, np.float64), np.maximum(std, np.finfo(float).tiny))
    levels = distinct_levels(learnt.by_user.values)
    return judge(actual, said, levels=levels if is_scale(levels) else None)


def ranking(
    output: Output,
    model: Learner,
    learnt: Ratings,
    withheld: Ratings,
    top: int,
    relevant: float | None,
) -> RankingMetrics:
    """Say how well a model ranks, and meanwhile how far that has come."""
    from hemf.cli.progress import counted
    from hemf.evaluation import ranking_metrics

    with counted(output, "ranking") as progress:
        return ranking_metrics(model, learnt, withheld, top, relevant=relevant, progress=progress)


def with_figures(
    answer: dict[str, Any], found: Calibration | None, ranks: RankingMetrics | None
) -> dict[str, Any]:
    """Add these figures to the answer, whose own keys stay where they are."""
    figures = dict.fromkeys(UNKNOWN) if found is None else found.to_dict()
    return {**answer, **figures, **({} if ranks is None else ranks.to_dict())}


def write_report(
    path: Path,
    title: str,
    subtitle: str,
    answer: dict[str, Any],
    found: Calibration | None,
    ranks: RankingMetrics | None,
) -> None:
    """Write a page with the figures and pictures of an evaluation."""
    from hemf._files import atomic_write
    from hemf.report.model import render

    html = render(title, subtitle, answer, found, ranks)
    with atomic_write(path) as fresh:
        fresh.write_text(html, encoding="utf-8")
