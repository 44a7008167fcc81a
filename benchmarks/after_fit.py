"""What the first ratings after a fit do: errors, jumps and the time of each call.

Fits 85 % of a set in random order, lets the model learn the next 5 % in batches, and measures on
the other 10 %. Prints the error after the fit, in the end and of a refit of the 90 %, the largest
step up from one evaluation to the next, what one rating that is known already moves elsewhere, and
how long the first, the median and the slowest call took (seconds of this process, so that others on
the machine do not count).

    python benchmarks/after_fit.py                                  # all sets; hours
    python benchmarks/after_fit.py filmtrust ml-100k --history full
    python benchmarks/after_fit.py ml-1m --batch 1 1000 --no-refit
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from _data import FOLDER
from hemf import HeMF
from hemf._options import online_options
from hemf.evaluation import rmse
from hemf.online.start import prepare

SETS = (
    "filmtrust", "ml-100k", "monti-flixster", "kiba-dta", "ml-1m", "eachmovie-ads-sample",
    "jester-1",
)  # fmt: skip
HISTORIES = ("full", "64", "none")
BATCHES = (1, 10, 1000)
SINGLES, EVERY = 2000, 50  # ratings learnt one at a time, and calls between two evaluations
ABOVE_REFIT = {"full": 0.001, "64": 0.003, "none": 0.003}  # of the rating range
STEP_UP, TIMES_MEDIAN = 0.0005, 20.0

Table = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Parts:
    """A set of ratings, in three parts."""

    fitted: Table
    learnt: Table
    test: Table

    @classmethod
    def read(cls, name: str, seed: int) -> Parts:
        """Cut a set at random; of a pair that is rated twice, the last rating counts."""
        import pandas as pd

        table = pd.read_parquet(FOLDER / f"{name}.parquet", columns=["user", "item", "rating"])
        table = table.drop_duplicates(["user", "item"], keep="last")
        order = np.random.default_rng(seed).permutation(len(table))
        columns = [table[column].to_numpy()[order] for column in table.columns]
        ends = round(0.85 * len(table)), round(0.9 * len(table))
        cut = [[column[a:b] for column in columns] for a, b in zip((0, *ends), (*ends, None))]
        return cls(*(tuple(part) for part in cut))  # type: ignore[arg-type]

    @property
    def range(self) -> float:
        """Largest less smallest rating."""
        return float(np.ptp(np.concatenate([self.fitted[2], self.test[2]])))

    def error(self, model: HeMF) -> float:
        """Root mean squared error on the test part."""
        return rmse(self.test[2], model.predict(*self.test[:2]))


def part(table: Table, begin: int, end: int) -> Table:
    return table[0][begin:end], table[1][begin:end], table[2][begin:end]


def model(seed: int) -> HeMF:
    return HeMF(n_factors=20, rng=seed, n_jobs=1)


def prepared(fitted: HeMF, history: str) -> HeMF:
    """Return a copy of a fitted model as its fit would have left it with another history."""
    learner = copy.deepcopy(fitted)
    learner.set_params(history=int(history) if history.isdigit() else history)
    prepared = prepare(
        learner.state_, learner.ratings_, learner.global_mean_, online_options(learner)
    )
    learner._holder.replace(replace(learner._fit, prepared=prepared))
    return learner


def learn(
    parts: Parts, fitted: HeMF, history: str, batch: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Learn what comes after a fit, in batches of one size, and return what was measured."""
    begun = time.process_time()
    learner = prepared(fitted, history)
    facts: dict[str, Any] = {"preparing": time.process_time() - begun}
    errors = [parts.error(learner)]
    n = min(parts.learnt[2].size, SINGLES if batch == 1 else args.most)
    seconds = []
    for call, begin in enumerate(range(0, n, batch), 1):
        ratings = part(parts.learnt, begin, min(begin + batch, n))
        begun = time.process_time()
        learner.partial_fit(ratings)
        seconds.append(time.process_time() - begun)
        if call % (EVERY if batch == 1 else max(1, round(1000 / batch))) == 0:
            errors.append(parts.error(learner))
    errors.append(parts.error(learner))
    median = float(np.median(seconds))
    facts |= {
        "at the fit": errors[0],
        "in the end": errors[-1],
        "step up": max(float(np.diff(errors).max()), 0.0) / parts.range,
        "first ms": 1e3 * seconds[0],
        "median ms": 1e3 * median,
        "slowest ms": 1e3 * max(seconds),
        "times median": max(seconds) / median,
        "slowest at": int(np.argmax(seconds)),
        "learnt": n,
    }
    return facts


def known_rating(parts: Parts, fitted: HeMF, history: str) -> tuple[float, float]:
    """Mean and largest move of the test predictions by one rating that the fit knows."""
    learner = prepared(fitted, history)
    before = learner.predict(*parts.test[:2])
    again = part(parts.fitted, 0, 1)
    learner.partial_fit(again, previous=None if history == "full" else again[2])
    moved = np.abs(learner.predict(*parts.test[:2]) - before)
    return float(moved.mean()), float(moved.max())


def verdict(value: float, bar: float) -> str:
    if np.isnan(value):
        return "not measured"
    return f"{value:9.5f} (bar {bar:g}) {'met   ' if value <= bar else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--history", nargs="+", default=HISTORIES)
    parser.add_argument("--batch", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10**9, help="ratings learnt in larger batches")
    parser.add_argument("--no-refit", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.sets:
        parts = Parts.read(name, args.seed)
        begun = time.process_time()
        fitted = model(args.seed).fit(parts.fitted)
        spent = time.process_time() - begun
        print(
            f"{name}: fitted in {spent:.1f} s, {fitted.n_user_communities_} x "
            f"{fitted.n_item_communities_} communities"
        )
        refits: dict[int, float] = {}
        for history in args.history:
            mean, largest = known_rating(parts, fitted, history)
            print(f"{name} {history}: a known rating moves {mean:.2g}, at most {largest:.2g}")
            for batch in args.batch:
                facts = learn(parts, fitted, history, batch, args)
                n = facts["learnt"]
                if not args.no_refit and n not in refits:
                    both = [np.concatenate(c) for c in zip(parts.fitted, part(parts.learnt, 0, n))]
                    refits[n] = parts.error(model(args.seed).fit(tuple(both)))
                above = (facts["in the end"] - refits.get(n, np.nan)) / parts.range
                print(
                    f"  batches of {batch:4}: RMSE {facts['at the fit']:.4f} -> "
                    f"{facts['in the end']:.4f}, refit {refits.get(n, np.nan):.4f}; above it "
                    f"{verdict(above, ABOVE_REFIT.get(history, 0.003))}; step up "
                    f"{verdict(facts['step up'], STEP_UP)}\n"
                    f"      first {facts['first ms']:.2f} ms, median {facts['median ms']:.3f}, "
                    f"slowest {facts['slowest ms']:.2f} at call {facts['slowest at']}: "
                    f"{verdict(facts['times median'], TIMES_MEDIAN)} times; "
                    f"prepared in {facts['preparing']:.2f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
