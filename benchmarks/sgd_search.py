"""Search for SGD's best constants on the streams of online.py, judged on those very streams.

That favours SGD: what it is measured on is what its constants were chosen for. A trial fits the
first tenth, then predicts and learns the rest one by one; its score is the RMSE of that.

    python benchmarks/sgd_search.py                        # both orders, some minutes
    python benchmarks/sgd_search.py random --trials 100
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import numpy as np

from _streams import SGD_CONSTANTS, Stream, in_random_order, in_time_order
from hemf.baselines import SGD
from hemf.errors import ParameterError
from hemf.evaluation import rmse

START = 0.1
FACTORS = 20
# From the smallest to the largest that makes sense; all but power and epochs on a log scale.
RANGES = {
    "step": (0.005, 0.5),
    "decay": (1e4, 1e8),
    "power": (0.0, 1.0),
    "factor_penalty": (1e-4, 0.3),
    "offset_penalty": (1e-5, 0.1),
    "start_scale": (3e-4, 0.3),
    "epochs": (1, 40),
}
LINEAR = ("power",)


def score(stream: Stream, constants: dict[str, Any], seed: int = 0) -> float:
    """Return the prequential RMSE after the start, infinite where the descent diverges."""
    start = round(START * len(stream.ratings))
    model = SGD(n_factors=FACTORS, rating_range=(1, 5), rng=seed, **constants)
    try:
        model.fit(stream.part(0, start))
        rest = stream.part(start, len(stream.ratings))
        return rmse(rest.ratings, model.predict_then_learn(rest))
    except ParameterError:
        return math.inf


def anywhere(rng: np.random.Generator) -> dict[str, Any]:
    """Return constants drawn evenly from their ranges."""
    return {name: _at(name, rng.random()) for name in RANGES}


def near(constants: dict[str, Any], width: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return constants of which about half were moved, by about ``width`` of their range."""
    new = dict(constants)
    for name in [name for name in RANGES if rng.random() < 0.5] or [rng.choice(list(RANGES))]:
        new[name] = _at(name, _place(name, new[name]) + width * rng.normal())
    return new


def _at(name: str, place: float) -> float:
    """Return the value at a place between 0, the least, and 1, the most."""
    low, high = RANGES[name]
    place = min(1.0, max(0.0, place))
    value = low + place * (high - low) if name in LINEAR else low * (high / low) ** place
    return round(value) if name == "epochs" else value


def _place(name: str, value: float) -> float:
    low, high = RANGES[name]
    return (value - low) / (high - low) if name in LINEAR else math.log(value / low, high / low)


def search(stream: Stream, trials: int, seed: int) -> tuple[float, dict[str, Any]]:
    """Draw a third of the trials anywhere, the rest ever closer to the best three so far."""
    rng = np.random.default_rng(seed)
    found: list[tuple[float, dict[str, Any]]] = []
    for trial in range(trials):
        if not found or trial < trials // 3:
            tried = anywhere(rng)
        else:
            parent = found[rng.integers(min(3, trial) if trial < trials * 2 // 3 else 1)][1]
            tried = near(parent, 0.15 * (1.0 - trial / trials) + 0.01, rng)
        found.append((score(stream, tried), tried))
        found.sort(key=lambda pair: pair[0])
        if found[0][1] is tried:
            print(f"{trial:5d} {found[0][0]:.4f} {json.dumps(rounded(tried))}", flush=True)
    return found[0]


def rounded(constants: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.3g}") for name, value in constants.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("orders", nargs="*", default=("time", "random"), metavar="time|random")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for order in arguments.orders:
        if order == "time":
            stream = in_time_order("ml-1m")
        else:
            stream = in_random_order("ml-1m-classic-train", seed=0)
        _, found = search(stream, arguments.trials, arguments.seed)
        constants = {**rounded(found), "epochs": found["epochs"]}
        figures = [score(stream, constants, seed) for seed in range(3)]
        line = {"order": order, "rmse": np.round(figures, 4).tolist(), "constants": constants}
        if SGD_CONSTANTS[order]:
            line["rmse of those in _streams.py"] = round(score(stream, SGD_CONSTANTS[order]), 4)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
