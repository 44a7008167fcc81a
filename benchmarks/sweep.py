"""Cost of one full sweep (both sides, hyper-parameters, bound), as ratios.

The yardstick is SciPy's ``CSR @ packed moments``, once for each side, one thread, in the same run:
the least that accumulating the Gram matrices must cost.

    python benchmarks/sweep.py            # prints a table and one line of JSON
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from _data import drawn, movielens_like
from hemf import HeMF, Ratings
from hemf._checks import one_blas_thread
from hemf._options import fit_options
from hemf.batch.fit import BatchState, start_state, sweep
from hemf.engines.threads import Threads

BARS = {
    "one community / scipy": ("<=", 3.0),
    "default communities / scipy": ("<=", 6.0),
    "two threads speed-up, one community": (">=", 1.6),
    "two threads speed-up, default communities": (">=", 1.6),
    "10M / 1M ratings": ("<=", 11.0),
}

SIZES = ((10_000, 1_000_000), (100_000, 1_000_000), (100_000, 10_000_000))  # users, ratings


def best(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def scipy_products(ratings: Ratings, n_factors: int) -> Callable[[], object]:
    """Both sides' CSR @ packed moments, float32."""
    width = n_factors * (n_factors + 1) // 2
    tables = []
    for table, others in ((ratings.by_user, ratings.n_items), (ratings.by_item, ratings.n_users)):
        ones = np.ones(table.nnz, np.float32)
        matrix = sp.csr_array((ones, table.indices, table.indptr), shape=(table.n_rows, others))
        tables.append((matrix, np.ones((others, width), np.float32)))
    return lambda: [matrix @ packed for matrix, packed in tables]


def prepared(ratings: Ratings, model: HeMF, warm: int) -> tuple[BatchState, Callable[..., None]]:
    """Return a state after some sweeps, and a function that does one more on n_jobs threads."""
    options = fit_options(model)
    engine = Threads.load(ratings, dtype=np.float32)
    rng = np.random.default_rng(0)
    state = start_state(engine, ratings.scale, options, rng)

    def one_more(n_jobs: int) -> None:
        engine.components["ratings"].n_jobs = n_jobs
        sweep(state, options, rng)
        state.bound_terms()

    for _ in range(warm):
        one_more(2)
    return state, one_more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factors", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--skip-large", action="store_true", help="leave out 1M against 10M")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    source, name = movielens_like()
    ratings = Ratings.from_any(source)
    figures: dict[str, float] = {}
    with one_blas_thread():
        yardstick = best(scipy_products(ratings, arguments.factors), arguments.repeats)
        settings = {
            "one community": HeMF(
                n_factors=arguments.factors, max_user_communities=1, max_item_communities=1
            ),
            "default communities": HeMF(n_factors=arguments.factors),
        }
        for label, model in settings.items():
            state, one_more = prepared(ratings, model, warm=24)  # past all that is held at first
            single, double = [], []
            for _ in range(arguments.repeats):
                single.append(best(lambda run=one_more: run(1), 1))
                double.append(best(lambda run=one_more: run(2), 1))
            yardstick = min(
                yardstick, best(scipy_products(ratings, arguments.factors), arguments.repeats)
            )
            one, two = float(np.median(single)), float(np.median(double))
            figures[f"{label} / scipy"] = one / yardstick
            figures[f"two threads speed-up, {label}"] = one / two
            paired = float(np.median(np.divide(single, double)))
            alive = " x ".join(str(side.n_communities) for side in state.sides.values())
            print(
                f"{label} ({alive} left): {one:.3f} s one thread, {two:.3f} s two threads; "
                f"of sweeps next to each other {paired:.2f}"
            )
        print(f"scipy: {yardstick:.3f} s on {name}")
        if not arguments.skip_large:
            costs = []
            for n_users, n_ratings in SIZES:
                rows = Ratings.from_any(drawn(n_users, n_users // 5, n_ratings))
                _, one_more = prepared(
                    rows, settings["one community"], warm=4
                )  # the same work a row
                costs.append(best(lambda run=one_more: run(2), 3))
                print(f"{n_users:,} x {n_users // 5:,}, {n_ratings:,} ratings: {costs[-1]:.3f} s")
                del rows, one_more
            figures["10M / 1M ratings"] = costs[2] / costs[1]
            print(f"with ten times the users and items too: {costs[2] / costs[0]:.1f} times")
    missed = 0
    for label, value in figures.items():
        sign, bar = BARS[label]
        met = value <= bar if sign == "<=" else value >= bar
        missed += not met
        print(f"{label:45} {value:6.2f}   bar {sign} {bar:g}   {'met' if met else 'MISSED'}")
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
