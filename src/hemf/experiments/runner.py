"""Run the tasks of experiments: each learner on a split, with its error after every step.

Batch learners report after each iteration; sequential ones are tested after each chunk, or after
some of them. Seconds, of wall clock and CPU, are those of learning; if a learner computes the error
after each iteration itself, they include that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hemf._files import library_version
from hemf._typing import AnyArray, Array
from hemf.baselines.sgd import SGD
from hemf.data.ratings import Ratings
from hemf.data.synthetic import draw
from hemf.errors import ParameterError
from hemf.estimator import HeMF
from hemf.evaluation.metrics import rmse
from hemf.evaluation.protocols import Splits, kept_splits
from hemf.evaluation.splits import random_split
from hemf.experiments.catalog import Settings
from hemf.experiments.plan import RESULTS, Plan, Request, Results, Task
from hemf.online.journal import uninterrupted
from hemf.samplers.bpmf import BPMF, M3FTIB, M3FTIF

Columns = tuple[AnyArray, AnyArray, Array]
Progress = Callable[[float, str], None]
"""Called with the share that is done, and a short text."""

MAX_POINTS = 90  # of the curve of a sequential learner
MAX_JUDGED = 500_000  # ratings that the training error is computed on
STEPS = (0.01, 0.02, 0.04, 0.08, 0.16)
PENALTIES = (0.02, 0.05, 0.1)
SEARCH_SEED = 1


@dataclass(frozen=True, eq=False)
class Trial:
    """A split: training ratings, maybe in chunks, and test ratings."""

    train: Ratings
    test: Ratings
    chunks: Sequence[Columns] = ()


@dataclass(frozen=True)
class Point:
    """Figures of a learner after an iteration, or after some chunks."""

    iteration: int
    cpu_seconds: float
    seconds: float
    test_rmse: float
    train_rmse: float | None = None
    communities: tuple[int, int] | None = None


@dataclass
class Outcome:
    """Result of a learner on a split."""

    test_rmse: float
    train_rmse: float
    cpu_seconds: float
    seconds: float
    curve: list[Point]
    chosen: Settings = field(default_factory=dict)  # settings that were searched for


Learner = Callable[[Trial, Settings, int, Progress], Outcome]
Sequential: TypeAlias = HeMF | SGD
"""Estimators that learn chunk by chunk."""


class _Clock:
    """Seconds of wall clock and CPU since it was made, without pauses."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._paused = (0.0, 0.0)

    def read(self) -> tuple[float, float]:
        """Return the seconds of CPU and of wall clock."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall

    def pause(self) -> None:
        self._paused = self.read()

    def go_on(self) -> None:
        cpu, wall = self.read()
        self._cpu += cpu - self._paused[0]
        self._wall += wall - self._paused[1]


def _error(model: Sequential | BPMF | M3FTIB | M3FTIF, ratings: Ratings) -> float:
    users, items, actual = ratings.id_columns()
    step = max(1, -(-len(actual) // MAX_JUDGED))
    return rmse(actual[::step], model.predict(users[::step], items[::step]))


# -- batch -------------------------------------------------------------------------------------


def _batch(kind: Callable[..., Any]) -> Learner:
    """Return a function that runs an estimator fitted to all ratings at once."""

    def run(trial: Trial, settings: Settings, seed: int, progress: Progress) -> Outcome:
        warm = {"samples": 2, "burn_in": 0} if kind is not HeMF else {}
        kind(**{**settings, **warm}, rng=0).fit(_FEW, validation=_FEW).predict([0], [0])
        model, curve = kind(**settings, rng=seed), []
        clock = _Clock()

        def note(report: Any) -> None:
            seconds = clock.read()
            number = getattr(report, "sweep", None) or report.iteration
            most = getattr(report, "iterations", None)
            errors = report.validation_rmse, report.train_rmse
            communities = _pair(report, "user_communities", "item_communities")
            point = Point(number, *seconds, *errors, communities)
            curve.append(point)
            # A fit usually converges long before its last allowed sweep.
            progress(number / (most or max(2 * USUAL_SWEEPS, number + 1)), _standing(point))

        model.fit(trial.train, validation=trial.test, callbacks=[note])
        cpu, wall = clock.read()
        # A sampler's last report averages over all samples; it keeps only some of them.
        test = _error(model, trial.test) if kind is HeMF else curve[-1].test_rmse
        return Outcome(test, _error(model, trial.train), cpu, wall, curve)

    return run


USUAL_SWEEPS = 40
_FEW = [(user, item, float(1 + (user * item) % 5)) for user in range(4) for item in range(4)]


def _pair(owner: object, users: str, items: str) -> tuple[int, int] | None:
    """Return the numbers of communities of users and items, if there are any."""
    return (getattr(owner, users), getattr(owner, items)) if hasattr(owner, users) else None


def _standing(point: Point) -> str:
    message = f"{point.iteration}: RMSE {point.test_rmse:.4f}"
    if point.communities is not None:
        message += f", communities {point.communities[0]} × {point.communities[1]}"
    return message


# -- chunk by chunk ----------------------------------------------------------------------------


def _learn(model: Sequential, chunk: Columns, *, again: bool) -> None:
    """Learn a chunk; a repeated one comes with its old ratings if the model does not keep them."""
    if again and isinstance(model, HeMF) and model.history != "full":
        model.partial_fit(chunk, previous=chunk[2])
    else:
        model.partial_fit(chunk)


def _feed(model: Sequential, trial: Trial, n_passes: int, progress: Progress) -> Outcome:
    """Let a learner learn all chunks several times."""
    steps = n_passes * len(trial.chunks)
    shown = set(np.linspace(1, steps, min(steps, MAX_POINTS)).round().astype(int).tolist())
    test = trial.test.id_columns()
    curve: list[Point] = []
    clock = _Clock()
    fed = product(range(n_passes), trial.chunks)
    for done, (again, chunk) in enumerate(fed, start=1):
        _learn(model, chunk, again=again > 0)
        if done in shown:
            clock.pause()
            seconds = clock.read()  # without those of the test
            error = rmse(test[2], model.predict(test[0], test[1]))
            communities = _pair(model, "n_user_communities_", "n_item_communities_")
            point = Point(done, *seconds, error, communities=communities)
            curve.append(point)
            progress(done / steps, _standing(point))
            clock.go_on()
    cpu, wall = clock.read()
    train = _error(model, trial.train)
    return Outcome(curve[-1].test_rmse, train, cpu, wall, curve)


def _warm_up(model: Sequential) -> None:
    """Compile all kernels that a stream needs."""
    drawn = draw(60, 40, density=0.5, rng=0)
    users, items = np.array_split(drawn.users, 6), np.array_split(drawn.items, 6)
    ratings = np.array_split(drawn.ratings.astype(np.float32), 6)
    for again in (False, True):
        for chunk in zip(users, items, ratings, strict=True):
            _learn(model, chunk, again=again)
    model.predict([0], [0])


def _range(trial: Trial) -> tuple[float, float]:
    low, high = trial.train.minimum, trial.train.maximum
    return (low, high) if low < high else (low, low + 1.0)


def _online(trial: Trial, settings: Settings, seed: int, progress: Progress) -> Outcome:
    """Run oVB without a previous fit."""
    options = dict(settings)
    n_passes = options.pop("passes")
    _warm_up(HeMF(**options, rating_range=None, rng=0))
    model = HeMF(**options, rating_range=_range(trial), rng=seed)
    return _feed(model, trial, n_passes, progress)


def _descent(trial: Trial, settings: Settings, seed: int, progress: Progress) -> Outcome:
    """Run SGD with the best step and penalty on a held-out part of the training ratings."""
    options = dict(settings) | {"rating_range": _range(trial)}
    n_passes = options.pop("passes")
    inner = _without_tenth(trial)
    errors: dict[tuple[float, float], float] = {}
    tries = [(step, penalty) for step in STEPS for penalty in PENALTIES]
    for number, (step, penalty) in enumerate(tries):
        model = SGD(**options, step=step, factor_penalty=penalty, rng=SEARCH_SEED)
        try:
            for _, chunk in product(range(n_passes), inner.chunks):
                model.partial_fit(chunk)
            errors[step, penalty] = _error(model, inner.test)
        except ParameterError:  # diverged
            errors[step, penalty] = float("inf")
        progress(0.9 * (number + 1) / len(tries), f"step {step:g}: {errors[step, penalty]:.4f}")
    step, penalty = min(errors, key=lambda tried: errors[tried])
    model = SGD(**options, step=step, factor_penalty=penalty, rng=seed)
    outcome = _feed(
        model, trial, n_passes, lambda share, message: progress(0.9 + 0.1 * share, message)
    )
    outcome.chosen = {
        "step": step,
        "factor_penalty": penalty,
        "held_out_rmse": errors[step, penalty],
        "tried": len(tries),
    }
    return outcome


def _without_tenth(trial: Trial) -> Trial:
    """Return a trial of the training ratings, with a tenth of every chunk held out."""
    chunks: list[Columns] = []
    withheld: list[Columns] = []
    for number, chunk in enumerate(trial.chunks):
        if len(chunk[2]) < 2:
            chunks.append(chunk)
            continue
        learn, rest = random_split(len(chunk[2]), 0.1, rng=number)
        chunks.append((chunk[0][learn], chunk[1][learn], chunk[2][learn]))
        withheld.append((chunk[0][rest], chunk[1][rest], chunk[2][rest]))
    joined = [np.concatenate(column) for column in zip(*withheld, strict=True)]
    held_out = Ratings.from_any(tuple(joined))
    return Trial(trial.train, held_out, chunks)


LEARNERS: dict[str, Learner] = {
    "hemf": _batch(HeMF),
    "bpmf": _batch(BPMF),
    "m3f-tib": _batch(M3FTIB),
    "m3f-tif": _batch(M3FTIF),
    "ovb": _online,
    "sgd": _descent,
}
"""Learners by name: functions of a trial, settings, a seed and a callback."""


def expected_cost(task: Task) -> float:
    """Return the approximate relative cost of a task."""
    learner, settings = task.method.learner, task.settings
    factors = settings.get("n_factors", 20)
    if learner == "sgd":
        steps, each = settings["passes"] * len(STEPS) * len(PENALTIES), 0.3
    elif learner == "ovb":
        steps, each = settings["passes"], 7.0
    elif learner == "hemf":
        steps, each = USUAL_SWEEPS, 0.5 * (factors / 20) ** 1.5
    else:
        steps = settings.get("samples", 200) + settings.get("burn_in", 50)
        each = (0.12 if learner == "bpmf" else 0.15) * (factors / 20) ** 1.5
    return float(steps * each * task.found.ratings.n_ratings / 1e6)


# -- all tasks -----------------------------------------------------------------------------------

SPLITS = "splits"
Callback = Callable[[Task, float, str], None]
"""Called with the task at work, the share of all work that is done, and a message."""


def run(planned: Plan, callback: Callback = lambda task, share, message: None) -> Results:
    """Run what is not there yet; every result is on disk before the next task begins."""
    request = planned.request
    results = Results(request.output / RESULTS)
    splits = _KeptSplits(request)
    for part in {id(task.part): task for task in planned.tasks}.values():
        splits.of(part)  # made, or found to be of other data, before hours of work
    unique = {task.key: task for task in planned.tasks}
    left = [task for key, task in unique.items() if key not in results.by_key]
    costs = {task.key: expected_cost(task) for task in left}
    total = sum(costs.values()) or 1.0
    done = 0.0
    for task in left:
        start, cost = done, costs[task.key]

        def report(
            share: float, message: str, task: Task = task, start: float = start, cost: float = cost
        ) -> None:
            callback(task, (start + min(share, 1.0) * cost) / total, message)

        report(0.0, "begins")
        trial = splits.trial(task)
        learn = LEARNERS[task.method.learner]
        outcome = learn(trial, task.settings, task.seed + task.split, report)
        with uninterrupted():
            results.add(
                {
                    "key": task.key,
                    "version": library_version(),
                    "dataset": task.found.name,
                    "stand_in": task.found.stand_in,
                    "fingerprint": task.found.fingerprint,
                    "protocol": task.protocol,
                    "split": task.split,
                    "seed": task.seed,
                    "method": task.method.label,
                    "learner": task.method.learner,
                    "settings": dict(task.settings),
                    "n_train": trial.train.n_ratings,
                    "n_test": trial.test.n_ratings,
                    **asdict(outcome),
                }
            )
        done += cost
    return results


class _KeptSplits:
    """Splits in files of the output folder; the one at work is held in memory."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._folder = request.output / SPLITS
        self._splits: dict[Path, Splits] = {}
        self._trial: tuple[tuple[Path, int], Trial] | None = None

    def _path(self, task: Task) -> Path:
        protocol = task.protocol.replace("/", "-").replace(" ", "-")
        count = self._request.splits_of(task.part)
        return self._folder / f"{task.found.name}-{protocol}-seed{task.seed}-{count}.npz"

    def of(self, task: Task) -> Splits:
        """Return the splits of a task's part: from the file, or made and saved."""
        path = self._path(task)
        if path not in self._splits:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._splits[path] = kept_splits(
                path,
                task.part.protocol,
                task.found.ratings,
                n_splits=self._request.splits_of(task.part),
                n_chunks=task.part.n_chunks,
                seed=task.seed,
            )
        return self._splits[path]

    def trial(self, task: Task) -> Trial:
        """Return the ratings of a task's split."""
        place = self._path(task), task.split
        if self._trial is None or self._trial[0] != place:
            splits, ratings = self.of(task), task.found.ratings
            train, test = splits[task.split]
            chunks: list[Columns] = []
            if task.part.n_chunks is not None:
                users, items, values = ratings.id_columns()
                chunks = [
                    (users[rows], items[rows], values[rows]) for rows in splits.chunks(task.split)
                ]
            self._trial = place, Trial(ratings.select(train), ratings.select(test), chunks)
        return self._trial[1]
