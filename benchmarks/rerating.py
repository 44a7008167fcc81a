"""Pairs that are measured again and again, with every history, and how right the model stays.

A table of true rank 2 is learnt with 4 factors. Of its pairs 40 % are rated again and again, in
random order and with fresh noise; the others are held out, and compared with the truth.

    python benchmarks/rerating.py                            # 20 seeds, 200,000 ratings: hours
    python benchmarks/rerating.py --seeds 2 --ratings 20000  # a look
    python benchmarks/rerating.py --sizes 40x30 --histories 8 none --batches 1 100
    python benchmarks/rerating.py --kinds previous drift forgetting passes

Kinds of streams: `fresh` as above; `previous` the same with the rating before, so that it is a
change and each pair counts once; `drift` with a truth that moves all the time; `forgetting` the
same with forgetting=0.99; `passes` the same ratings over and over in random order.

With `duplicates="mean"` (the default here) every rating counts, whatever the history, and errors in
the end are compared with those of a batch fit of each pair's mean. With `--duplicates last` only a
pair's latest rating counts while it is on record, so they are compared with a batch fit of those;
history "none" cannot know and counts all of them.

Bars where the truth does not move: at most 1.2 times the error of the batch fit in the end; after a
burn-in of 10 ratings for each pair never more than twice the lowest so far (where latest ratings
count, their noise makes the error rise and fall: there it may also be 1.2 times that of the batch
fit); a noise variance within 20 % of the truth; no warning. Where the truth moves: an error below
that of predicting the mean, and no warning. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from hemf import HeMF, StreamWarning

RANK, FACTORS = 2, 4
SHARE = 0.4  # of the pairs are rated
NOISE = 0.5  # standard deviation of a rating
BURN_IN = 10  # ratings for each pair that is rated
LOOKS = 40  # at the held-out pairs
KINDS = ("fresh", "previous", "drift", "forgetting", "passes")
DRIFT = 1.0  # what the factors of the truth move by in all, in their standard deviations
MOST_RATIO, MOST_RISE, NOISE_BAR = 1.2, 2.0, 0.2


@dataclass(frozen=True)
class Case:
    """One stream."""

    kind: str
    history: str | int
    n_users: int
    n_items: int
    batch: int
    dtype: str
    start: str
    duplicates: str
    seed: int
    n_ratings: int


@dataclass(frozen=True)
class Outcome:
    """How a stream went."""

    case: Case
    error: float
    """Root mean squared error of held-out pairs in the end."""
    rise: float
    """The highest quotient of an error and the lowest before it, after the burn-in."""
    highest: float
    """The highest error after the burn-in."""
    of_means: float
    of_latest: float
    """Errors of batch fits of each pair's mean and latest rating."""
    constant: float
    """Error of predicting the mean."""
    noise: float
    """Learnt variance over the true one."""
    warned: bool
    seconds: float

    @property
    def reference(self) -> float:
        """Error of a batch fit of what counts."""
        counts_all = self.case.history == "none" or self.case.duplicates == "mean"
        return self.of_means if counts_all and self.case.kind == "fresh" else self.of_latest

    @property
    def allowed(self) -> float:
        """Error that is no rise, whatever was lowest."""
        return 0.0 if self.reference == self.of_means else MOST_RATIO * self.reference

    @property
    def missed(self) -> list[str]:
        """Bars that are missed."""
        if self.case.kind in ("drift", "forgetting"):
            checks = {"error": self.error > self.constant, "warning": self.warned}
        else:
            # Passes over the same file count each of its ratings again, and noise seems smaller.
            wrong = abs(self.noise - 1.0) > NOISE_BAR and self.case.kind == "fresh"
            checks = {
                "error": self.error > MOST_RATIO * self.reference,
                "rise": self.rise > MOST_RISE and self.highest > self.allowed,
                "noise": wrong,
                "warning": self.warned,
            }
        return [name for name, is_missed in checks.items() if is_missed]


def run(case: Case) -> Outcome:
    """Learn a stream."""
    rng = np.random.default_rng([case.seed, case.n_users, case.n_items])
    left = rng.normal(size=(case.n_users, RANK))
    right = rng.normal(size=(case.n_items, RANK))
    goal = rng.normal(size=left.shape)
    n_pairs = round(SHARE * case.n_users * case.n_items)
    order = rng.permutation(case.n_users * case.n_items)
    rated, held = order[:n_pairs], order[n_pairs:]
    moves = case.kind in ("drift", "forgetting")

    def truth(pairs: Any, part: float) -> Any:
        turned = left if not moves else left + DRIFT * part * (goal - left)
        return 3.0 + np.einsum(
            "ij,ij->i", turned[pairs // case.n_items], right[pairs % case.n_items]
        )

    size = case.n_users * case.n_items
    total, count, latest = np.zeros(size), np.zeros(size), np.full(size, np.nan)
    fixed = truth(np.arange(size), 0.0) + NOISE * rng.normal(size=size)

    def drawn(pairs: Any, part: float) -> Any:
        values = truth(pairs, part) + NOISE * rng.normal(size=pairs.size)
        values = (fixed[pairs] if case.kind == "passes" else values).astype(np.float32)
        total[pairs] += values
        count[pairs] += 1
        latest[pairs] = values
        return values

    model = HeMF(
        n_factors=FACTORS, history=case.history, duplicates=case.duplicates, rng=case.seed,
        dtype=case.dtype, n_jobs=1, rating_range=None,
        forgetting=0.99 if case.kind == "forgetting" else 1.0,
    )  # fmt: skip
    begun = time.perf_counter()
    warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", StreamWarning)
        first = (rated // case.n_items, rated % case.n_items, drawn(rated, 0.0))
        if case.start == "fit":
            model.fit(first)
        else:
            model.partial_fit(first)
        seen, errors, look = n_pairs, [], max((case.n_ratings - n_pairs) // LOOKS, 1)
        next_look = max(BURN_IN * n_pairs, n_pairs)
        while seen < case.n_ratings:
            if case.kind == "passes":
                pairs = rng.permutation(rated)[: case.batch]
            else:
                pairs = np.unique(rng.choice(rated, size=case.batch))
                rng.shuffle(pairs)
            known = {"previous": latest[pairs].astype(np.float32)}
            known = known if case.kind == "previous" else {}
            values = drawn(pairs, seen / case.n_ratings)
            model.partial_fit((pairs // case.n_items, pairs % case.n_items, values), **known)
            seen += pairs.size
            if seen >= next_look or seen >= case.n_ratings:
                found = model.predict(held // case.n_items, held % case.n_items)
                wrong = found - truth(held, seen / case.n_ratings)
                errors.append(float(np.sqrt(np.mean(wrong**2))))
                next_look += look
        warned = any(issubclass(w.category, StreamWarning) for w in caught)
        seconds = time.perf_counter() - begun
        of = []
        for values in (total[rated] / count[rated], latest[rated]):
            fit = HeMF(n_factors=FACTORS, rng=case.seed, n_jobs=1, rating_range=None)
            fit.fit((rated // case.n_items, rated % case.n_items, values.astype(np.float32)))
            found = fit.predict(held // case.n_items, held % case.n_items)
            of.append(float(np.sqrt(np.mean((found - truth(held, 1.0)) ** 2))))
    lowest = np.minimum.accumulate(errors)
    return Outcome(
        case,
        errors[-1],
        float(np.max(errors / lowest)),
        float(np.max(errors)),
        *of,
        float(np.std(truth(held, 1.0))),
        float(model.noise_variance_) / NOISE**2,
        warned,
        seconds,
    )


def main() -> int:
    """Run all streams that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ratings", type=int, default=200_000)
    parser.add_argument("--sizes", nargs="+", default=["40x30", "120x60", "400x120"])
    parser.add_argument("--histories", nargs="+", default=["full", "64", "8", "none"])
    parser.add_argument("--batches", nargs="+", type=int, default=[100])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--kinds", nargs="+", default=["fresh"], choices=KINDS)
    parser.add_argument("--starts", nargs="+", default=["nothing"], choices=["nothing", "fit"])
    parser.add_argument("--duplicates", nargs="+", default=["mean"], choices=["last", "mean"])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    cases = [
        Case(
            kind, int(history) if history.isdigit() else history, *map(int, size.split("x")),
            batch, dtype, start, duplicates, seed, options.ratings,
        )
        for kind, size, history, batch, dtype, start, duplicates, seed in itertools.product(
            options.kinds, options.sizes, options.histories, options.batches, options.dtypes,
            options.starts, options.duplicates,
            range(options.first_seed, options.first_seed + options.seeds),
        )
    ]  # fmt: skip
    print(
        f"{'stream':42} {'seed':>4} {'error':>7} {'rise':>5} {'/means':>6} {'/latest':>7} "
        f"{'noise':>6} {'s':>5}  missed"
    )
    n_missed = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for outcome in pool.imap(run, cases):
            case, missed = outcome.case, outcome.missed
            n_missed += bool(missed)
            stream = f"{case.kind} {case.n_users}x{case.n_items} {case.history} "
            stream += f"batch {case.batch} {case.dtype} from {case.start}"
            print(
                f"{stream:42} {case.seed:4} {outcome.error:7.4f} {outcome.rise:5.2f} "
                f"{outcome.error / outcome.of_means:6.2f} {outcome.error / outcome.of_latest:7.2f} "
                f"{outcome.noise:6.2f} {outcome.seconds:5.0f}  {' '.join(missed)}",
                flush=True,
            )
    print(f"{n_missed} of {len(cases)} streams miss a bar")
    return int(n_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
