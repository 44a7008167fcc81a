"""``hemf evaluate``: learn from one file, predict another, say how well and at what cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from hemf.cli import arguments
from hemf.cli.output import Output
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf import HeMF, Ratings

MODELS: dict[str, Callable[[list[str] | None, int, int | None], HeMF]] = {
    "hemf": arguments.new_model,
}
"""How to make a model of each name from its settings, a seed and a number of threads."""


def evaluate(
    output: Output,
    train: Annotated[str, typer.Option(help="Ratings to learn from: a file or a data set's name.")],
    test: Annotated[str, typer.Option(help="Ratings to predict.")],
    model_name: Annotated[
        str, typer.Option("--model", help=f"What learns: {', '.join(MODELS)}.")
    ] = "hemf",
    settings: arguments.Settings = None,
    seed: arguments.Seed = 0,
    columns: arguments.ColumnNames = None,
    n_jobs: arguments.Jobs = None,
) -> None:
    """Learn from one file, predict another.

    Prints errors and costs as JSON.

    Predictions are clipped to the range of the training ratings. Times cover reading, learning
    and predicting the test ratings, but not the compilation of kernels.
    """
    from hemf import evaluation
    from hemf.cli.progress import FitProgress, warm_up

    if model_name not in MODELS:
        raise ParameterError(
            f"--model {model_name}: there is no such model; choose one of {', '.join(MODELS)}",
            value=model_name,
        )
    model = MODELS[model_name](settings, seed, n_jobs)
    options: dict[str, Any] = {"duplicates": model.duplicates}
    clock = Stopwatch()
    with clock:
        learnt = arguments.read_ratings(output, train, columns, **options)
        options |= {"users": learnt.users, "items": learnt.items}
        withheld = arguments.read_ratings(output, test, columns, **options)
    warm_up(output, model)
    with clock, FitProgress(output) as progress:
        model.fit(learnt, callbacks=[progress])
    with clock, output.status("predicting"):
        actual, mean, std = predicted(model, withheld)
    train_actual, train_mean, _ = predicted(model, model.ratings_)
    output.document(
        {
            "rmse": evaluation.rmse(actual, mean),
            "mae": evaluation.mae(actual, mean),
            "train_rmse": evaluation.rmse(train_actual, train_mean),
            "coverage90": evaluation.coverage(actual, mean, std, level=0.9),
            "seconds": round(clock.seconds, 3),
            "cpu_seconds": round(clock.cpu_seconds, 3),
            "peak_rss_mb": peak_memory(),
            "sweeps": model.n_sweeps_,
            "user_communities": model.n_user_communities_,
            "item_communities": model.n_item_communities_,
        }
    )


def predicted(model: HeMF, ratings: Ratings) -> tuple[Any, Any, Any]:
    """Ratings, and mean and standard deviation of what the model expects of them."""
    users, items, actual = ratings.triples()
    mean, std = model.predict(ratings.users.ids[users], ratings.items.ids[items], return_std=True)
    return actual, mean, std


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
