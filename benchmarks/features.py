"""What implicit features are worth on MovieLens, and what they cost.

By default everything is measured on a seeded tenth of the training ratings, which is what settings
are chosen by. The test parts are for reporting:

    python benchmarks/features.py                # held out of train
    python benchmarks/features.py --test         # the classic split; 100K, 90/10 by seed 0
    python benchmarks/features.py --given        # ages, occupations, genres and years beside them
    python benchmarks/features.py --stream       # MovieLens 1M by time, one rating at a time
    python benchmarks/features.py --newcomers    # 1,000 users of it join with 5 ratings each
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import _streams
from _data import FOLDER
from hemf import HeMF
from hemf.evaluation import coverage, rmse, warm_start_size

ONE = {"max_user_communities": 1, "max_item_communities": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "ml-1m": {"n_factors": 32, **ONE},
    "ml-100k": {"n_factors": 10, "tol": 2e-5, **ONE},
}
BARS = {"ml-1m": (0.8225, 60.0), "ml-100k": (0.8680, None)}
"""RMSE on the test part and CPU seconds."""
Columns = list[np.ndarray]


def read(name: str) -> Columns:
    table = pq.read_table(FOLDER / f"{name}.parquet", columns=["user", "item", "rating"])
    return [table[column].to_numpy() for column in ("user", "item", "rating")]


def split(name: str) -> tuple[Columns, Columns]:
    """Return the training and the test part."""
    if name == "ml-1m":
        return read("ml-1m-classic-train"), read("ml-1m-classic-test")
    columns = read(name)
    order = np.random.default_rng(0).permutation(columns[0].size)
    return [part[order[10_000:]] for part in columns], [part[order[:10_000]] for part in columns]


def held_out(train: Columns) -> tuple[Columns, Columns]:
    """Split a tenth off the training part."""
    order = np.random.default_rng(12345).permutation(train[0].size)
    held, kept = order[: order.size // 10], np.sort(order[order.size // 10 :])
    return [part[kept] for part in train], [part[held] for part in train]


def given_features(name: str) -> dict[str, Any]:
    """Return what is known of the users and films of MovieLens 1M."""
    import pandas as pd

    users = pd.read_parquet(FOLDER / f"{name}-users.parquet").drop(columns="zip")
    films = pd.read_parquet(FOLDER / f"{name}-movies.parquet")
    year = films.pop("title").str.extract(r"\((\d{4})\)")[0].astype(float)
    kinds = {column: users[column].astype(str) for column in ("age", "occupation")}
    return {
        "user_features": users.assign(**kinds),
        "item_features": films.assign(year=year, years=(year // 5).astype(str)),
    }


def stream(settings: dict[str, Any]) -> None:
    """Learn MovieLens 1M by time after a tenth in batch, without and with implicit features."""
    columns = _streams.in_time_order("ml-1m")
    start = warm_start_size(len(columns.ratings), 0.1)
    rest = columns.part(start, len(columns.ratings))
    for implicit in (False, True):
        model = HeMF(n_factors=20, implicit_features=implicit, **settings)
        model.fit(columns.part(0, start)).partial_fit(columns.part(0, 1))  # what is made once, once
        begin = time.process_time()
        forecasts = model.predict_then_learn(rest)
        spent = time.process_time() - begin
        row = {
            "implicit": implicit,
            "rmse": round(rmse(rest.ratings, forecasts), 4),
            "microseconds": round(1e6 * spent / rest.ratings.size, 1),
        }
        print(json.dumps(row), flush=True)


def newcomers(settings: dict[str, Any]) -> None:
    """1,000 users stay out of a fit, then bring 5 ratings each; judged on all their others."""
    old, brought, others = _streams.newcomers(1000, brings=5)
    joined = tuple(np.concatenate(both) for both in zip(old, brought))
    told = given_features("ml-1m")
    users = told["user_features"]
    is_new = users["user"].isin(np.unique(brought.users))

    def error(model: HeMF) -> float:
        return round(rmse(others.ratings, model.predict(others.users, others.items)), 4)

    for kind, features, later in (
        ("none", {}, {}),
        ("implicit", {}, {}),
        (
            "implicit and given",
            {**told, "user_features": users[~is_new]},
            {"user_features": users[is_new]},
        ),
    ):
        made = {"n_factors": 20, "implicit_features": kind != "none", **settings}
        model = HeMF(**made).fit(tuple(old), **features)
        row: dict[str, Any] = {"features": kind, "strangers": error(model)}
        if later:
            row["by their features"] = error(model.partial_fit(**later))
        begin = time.process_time()
        model.partial_fit(tuple(brought))
        row["seconds of CPU"] = round(time.process_time() - begin, 2)
        row["5 ratings each"] = error(model)
        row["of a refit"] = error(HeMF(**made).fit(joined, **(told if features else {})))
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=list(SETTINGS), metavar="SET")
    parser.add_argument("--test", action="store_true", help="report on the test part")
    parser.add_argument("--given", action="store_true", help="with given features, of ml-1m alone")
    parser.add_argument("--stream", action="store_true", help="learn ml-1m online")
    parser.add_argument("--newcomers", action="store_true", help="of ml-1m, with 5 ratings each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.stream or arguments.newcomers:
        (stream if arguments.stream else newcomers)(
            {"rng": arguments.seed, "n_jobs": arguments.jobs}
        )
        return
    missed = []
    for name in ["ml-1m"] if arguments.given else arguments.sets:
        train, test = split(name) if arguments.test else held_out(split(name)[0])
        features = given_features(name) if arguments.given else {}
        begin = time.process_time()
        settings = {**SETTINGS[name], "rng": arguments.seed, "n_jobs": arguments.jobs}
        model = HeMF(implicit_features=True, **settings).fit(tuple(train), **features)
        seconds = time.process_time() - begin
        mean, std = model.predict(test[0], test[1], return_std=True)
        away = (test[2] - mean) / std
        row = {
            "set": name,
            "part": "test" if arguments.test else "held out of train",
            "rmse": round(rmse(test[2], mean), 4),
            "coverage90": round(coverage(test[2], mean, std), 3),
            "nlpd": round(float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * away**2)), 4),
            "sweeps": model.n_sweeps_,
            "cpu_seconds": round(seconds, 1),
            "elbo": round(model.elbo_),
        }
        print(json.dumps(row), flush=True)
        most, most_seconds = BARS[name]
        late = most_seconds is not None and seconds > most_seconds
        if arguments.test and (row["rmse"] > most or late):
            missed.append(name)
    if missed:
        raise SystemExit(f"a bar was missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
