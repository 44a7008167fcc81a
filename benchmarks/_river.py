"""The peer: river's BiasedMF on one stream, predicting each rating and then learning it.

Run by an interpreter that has river, which need not be the one that has hemf; it prints one line
of JSON. See ``peer`` in ``_streams.py``, and there also the constants.

    python benchmarks/_river.py FOLDER --constants '{"n_factors": 20, ...}' --start 100000

FOLDER holds users.npy, items.npy and ratings.npy, in the order of the stream, and test_users.npy,
test_items.npy and test_ratings.npy where errors on a test part are wanted, at the start and at
every tenth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 2_000  # ratings between two looks at the clock
TIMED = 5  # every fifth chunk is timed rating by rating, which the others' speed must not bear


def model(constants: dict[str, float]) -> Any:
    from river import optim, reco

    return reco.BiasedMF(
        n_factors=int(constants["n_factors"]),
        bias_optimizer=optim.SGD(constants["offset_step"]),
        latent_optimizer=optim.SGD(constants["factor_step"]),
        l2_bias=constants["offset_penalty"],
        l2_latent=constants["factor_penalty"],
        latent_initializer=optim.initializers.Normal(sigma=constants["start_scale"], seed=0),
        seed=0,
    )


def columns(folder: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]


def pieces(stream: list[np.ndarray], begin: int, end: int) -> Iterator[tuple[list[Any], ...]]:
    for low in range(begin, end, CHUNK):
        yield tuple(column[low : min(low + CHUNK, end)].tolist() for column in stream)


class Stopwatch:
    """Predicts and learns, and keeps the time that it took."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.ratings = 0
        self.seconds = 0.0
        self.learning: list[float] = []
        self.both: list[float] = []

    def quickly(self, users: list[int], items: list[int], ratings: list[float]) -> list[float]:
        predict, learn = self.learner.predict_one, self.learner.learn_one
        forecasts = []
        begin = time.process_time()
        for user, item, rating in zip(users, items, ratings):
            forecasts.append(predict(user, item))
            learn(user, item, rating)
        self.seconds += time.process_time() - begin
        self.ratings += len(ratings)
        return forecasts

    def one_by_one(self, users: list[int], items: list[int], ratings: list[float]) -> list[float]:
        predict, learn, clock = self.learner.predict_one, self.learner.learn_one, time.perf_counter
        forecasts = []
        for user, item, rating in zip(users, items, ratings):
            begin = clock()
            forecasts.append(predict(user, item))
            middle = clock()
            learn(user, item, rating)
            end = clock()
            self.learning.append(end - middle)
            self.both.append(end - begin)
        return forecasts


def run(folder: Path, constants: dict[str, float], start: int) -> dict[str, Any]:
    stream = columns(folder, ("users", "items", "ratings"))
    truth = np.asarray(stream[2], np.float64)
    lowest, highest = truth.min(), truth.max()
    watch = Stopwatch(model(constants))
    for part in pieces(stream, 0, start):
        watch.quickly(*part)
    watch.ratings, watch.seconds = 0, 0.0  # what counts begins here
    forecasts: list[float] = []
    curve: list[float] = []
    test = None
    if (folder / "test_users.npy").exists():
        test = columns(folder, ("test_users", "test_items", "test_ratings"))
        pairs = list(zip(test[0].tolist(), test[1].tolist()))

    def test_error() -> float:
        expected = np.array([watch.learner.predict_one(user, item) for user, item in pairs])
        return float(np.sqrt(np.mean((np.clip(expected, lowest, highest) - test[2]) ** 2)))

    marks = np.linspace(start, len(truth), 11, dtype=int) if test else np.array([start, len(truth)])
    if test:
        curve.append(test_error())
    for begin, end in pairwise(marks.tolist()):
        for number, part in enumerate(pieces(stream, begin, end)):
            forecasts += (watch.quickly if (number + 1) % TIMED else watch.one_by_one)(*part)
        if test:
            curve.append(test_error())
    errors = (np.clip(forecasts, lowest, highest) - truth[start:]) ** 2
    learning, both = (
        np.percentile(times, (50, 99)) * 1e6 for times in (watch.learning, watch.both)
    )
    return {
        "rmse": float(np.sqrt(errors.mean())),
        "ratings_per_second": watch.ratings / watch.seconds,
        "learn_us": learning.tolist(),
        "predict_and_learn_us": both.tolist(),
        "test_rmse": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--constants", type=json.loads, required=True)
    parser.add_argument("--start", type=int, default=0, help="ratings learnt before it counts")
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.folder, arguments.constants, arguments.start)))


if __name__ == "__main__":
    main()
