"""What it costs that a `partial_fit` can be undone; bar: 10 % of the median time.

python benchmarks/journal.py

Calls with and without the journal take turns, on a table of the size of MovieLens 1M.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import time
import warnings
from typing import Any
from unittest import mock

import numpy as np

from hemf import HeMF
from hemf.online import journal as transaction
from hemf.online.journal import Journal

N_USERS, N_ITEMS, N_RATINGS = 6040, 3706, 1_000_000
BAR = 1.10


def closed() -> Journal:
    """Return a journal that keeps nothing."""
    journal = Journal()
    journal.close()
    return journal


def table(n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Draw ratings, of some users and items more than of others."""
    users = (N_USERS * rng.random(n) ** 2).astype(np.int64)
    items = (N_ITEMS * rng.random(n) ** 2).astype(np.int64)
    values = 3 + (users % 2 * 2 - 1) * (items % 2 * 2 - 1) * 0.7 + rng.normal(size=n)
    return users, items, np.clip(np.round(values), 1, 5).astype(np.float32)


def times(model: HeMF, batch: int, calls: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the median milliseconds of calls with the journal and without."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    gc.disable()
    try:
        for call in range(2 * calls):
            columns = table(batch, rng)
            is_kept = bool(call % 2)
            with mock.patch.object(transaction, "Journal", Journal if is_kept else closed):
                begun = time.thread_time()  # whatever else the machine does
                model.partial_fit(columns)
                taken[is_kept].append(time.thread_time() - begun)
            if not call % 50:
                gc.collect()
    finally:
        gc.enable()
    with_it, without = (1e3 * float(np.median(taken[kept])) for kept in (True, False))
    return {"with_ms": with_it, "without_ms": without, "ratio": with_it / without}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=1500, help="calls of one rating, each way")
    parser.add_argument("--batches", type=int, default=40, help="calls of 1,000, each way")
    parser.add_argument("--ratings", type=int, default=N_RATINGS)
    parser.add_argument("--histories", nargs="*", default=["full", "64", "none"])
    parser.add_argument("--factors", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    fitted = HeMF(n_factors=options.factors, max_sweeps=3, rng=0, rating_range=(1, 5))
    fitted.fit(table(options.ratings, np.random.default_rng(0)))
    for name in options.histories:
        rng = np.random.default_rng(1)
        fitted.history = int(name) if name.isdigit() else name
        model = copy.deepcopy(fitted)
        model.partial_fit(table(1, rng))
        figures = {
            "history": name,
            "one": times(model, 1, options.singles, rng),
            "thousand": times(model, 1000, options.batches, rng),
        }
        for size in ("one", "thousand"):
            figures[size]["within_bar"] = figures[size]["ratio"] <= BAR
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
