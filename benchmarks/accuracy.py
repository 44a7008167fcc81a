"""Accuracy on held-out ratings: user + item biases, one community, and the defaults.

Every rating set in the data folder is split once (its own test part where it has one, else a
random tenth) and nothing is chosen on the test parts. MovieLens 100K is split twice more, for
its mean with ten factors.

    python benchmarks/accuracy.py                     # all sets; a few minutes
    python benchmarks/accuracy.py ml-1m ml-100k       # some
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER
from hemf import HeMF
from hemf.evaluation import coverage, random_split, rmse

SETS = (
    "ml-1m",
    "ml-100k",
    "monti-douban",
    "monti-flixster",
    "monti-yahoo-music",
    "filmtrust",
    "kiba-dta",
    "chembl-ic50-346targets",
    "eachmovie-ads-sample",
    "jester-1",
)
MODELS = {
    "one community": {"max_user_communities": 1, "max_item_communities": 1},
    "defaults": {},
}
BARS = {  # set and model: RMSE, CPU seconds
    ("ml-1m", "defaults"): (0.8320, 60.0),
    ("ml-1m", "one community"): (0.8345, None),
}
BAR_100K = 0.885
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def split(name: str, seed: int = 0) -> tuple[Columns, Columns]:
    """Return train and test columns of a set; the seed is for those without a test part."""
    if name == "ml-1m":
        return read(f"{name}-classic-train"), read(f"{name}-classic-test")
    table = pq.read_table(FOLDER / f"{name}.parquet")
    users, items, ratings = read(name)
    if "is_test" in table.column_names:
        test = table["is_test"].to_numpy().astype(bool)
        kept, held = np.flatnonzero(~test), np.flatnonzero(test)
    else:
        kept, held = random_split(ratings.size, 0.1, rng=seed)
    return (users[kept], items[kept], ratings[kept]), (users[held], items[held], ratings[held])


def read(name: str) -> Columns:
    table = pq.read_table(FOLDER / f"{name}.parquet", columns=["user", "item", "rating"])
    return tuple(table[column].to_numpy() for column in ("user", "item", "rating"))


def biases(train: Columns, test: Columns, ridge: float = 5.0) -> float:
    """RMSE of mean + user offset + item offset, by alternating ridge regressions."""
    n_users = 1 + max(train[0].max(), test[0].max())
    n_items = 1 + max(train[1].max(), test[1].max())
    users, items, ratings = train
    mean = ratings.mean(dtype=np.float64)
    of_user, of_item = np.zeros(n_users), np.zeros(n_items)
    for _ in range(20):
        left = ratings - mean - of_user[users]
        of_item = np.bincount(items, left, n_items) / (ridge + np.bincount(items, None, n_items))
        left = ratings - mean - of_item[items]
        of_user = np.bincount(users, left, n_users) / (ridge + np.bincount(users, None, n_users))
    predicted = mean + of_user[test[0]] + of_item[test[1]]
    return rmse(test[2], np.clip(predicted, ratings.min(), ratings.max()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET")
    parser.add_argument("--factors", type=int, default=HeMF().n_factors)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = ("set", "model", "RMSE", "of biases", "cover 90 %", "communities", "sweeps", "CPU s")
    print(" | ".join(columns))
    missed = []
    for name in arguments.sets:
        if not (FOLDER / f"{name}.parquet").exists():
            print(f"{name}: not in {FOLDER}")
            continue
        train, test = split(name)
        base = biases(train, test)
        print(f"{name} | biases | {base:.4f} | 1")
        for label, settings in MODELS.items():
            begin = time.process_time()
            model = HeMF(n_factors=arguments.factors, rng=arguments.seed, **settings).fit(train)
            seconds = time.process_time() - begin
            mean, std = model.predict(test[0], test[1], return_std=True)
            row = {
                "set": name,
                "model": label,
                "rmse": round(rmse(test[2], mean), 4),
                "of_biases": round(rmse(test[2], mean) / base, 4),
                "coverage90": round(coverage(test[2], mean, std), 3),
                "communities": f"{model.n_user_communities_}x{model.n_item_communities_}",
                "sweeps": model.n_sweeps_,
                "cpu_seconds": round(seconds, 1),
                "elbo": round(model.elbo_),
            }
            print(json.dumps(row), flush=True)
            most, most_seconds = BARS.get((name, label), (base, None))
            if row["rmse"] > most or (most_seconds is not None and seconds > most_seconds):
                missed.append(f"{name}, {label}")
        if name == "ml-100k":
            errors = [ten_factors(*split(name, seed), arguments.seed) for seed in range(3)]
            typical = float(np.mean(errors))
            print(f"{name} | 10 factors, three splits | {np.round(errors, 4)}, mean {typical:.4f}")
            if typical > BAR_100K:
                missed.append(f"{name}, 10 factors")
    if missed:
        raise SystemExit(f"a bar was missed: {'; '.join(missed)}")


def ten_factors(train: Columns, test: Columns, seed: int) -> float:
    model = HeMF(n_factors=10, rng=seed).fit(train)
    return rmse(test[2], model.predict(test[0], test[1]))


if __name__ == "__main__":
    main()
