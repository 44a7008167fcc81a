"""What implicit features are worth on MovieLens and other sets, and what they cost.

By default everything is measured on a seeded tenth of the training ratings, which is what settings
are chosen by. The test parts are for reporting:

    python benchmarks/features.py                # held out of train
    python benchmarks/features.py --test         # the classic split; 100K, 90/10 by seed 0; others'
    python benchmarks/features.py --given        # ages, occupations, genres and years beside them
    python benchmarks/features.py --stream       # MovieLens 1M by time, one rating at a time
    python benchmarks/features.py --newcomers    # 1,000 users of it join with 5 ratings each
    python benchmarks/features.py --given --moods         # and times: everything there is
    python benchmarks/features.py --sampled      # Douban and Flixster by Gibbs sampling; minutes
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import _streams
from _data import FOLDER, given_features
from _peer_settings import peer
from hemf import GibbsHeMF, HeMF
from hemf.evaluation import coverage, nlpd, rmse, warm_start_size

ONE = {"max_user_communities": 1, "max_item_communities": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "ml-1m": {"n_factors": 32, **ONE},
    "ml-100k": {"n_factors": 10, "tol": 2e-5, **ONE},
    "monti-douban": {"n_factors": 10, "implicit_features": "item", **ONE},
    "monti-flixster": {"n_factors": 10, "implicit_features": "item", **ONE},
    "monti-yahoo-music": {"n_factors": 10, **ONE},
}
SAMPLED = {
    "monti-douban": peer("hemf-gibbs", "douban"),
    "monti-flixster": peer("hemf-gibbs", "flixster"),
}
"""What is drawn from its posterior instead, and how; the bars of these sets are for that."""
BARS: dict[str, tuple[float, float | None]] = {
    "ml-1m": (0.8225, 60.0),
    "ml-100k": (0.8680, None),
    "monti-yahoo-music": (19.0, None),
}
"""RMSE on the test part and CPU seconds."""
SAMPLED_BARS: dict[str, tuple[float, float | None]] = {
    "monti-douban": (0.7208, None),
    "monti-flixster": (0.8715, None),
}
EVERYTHING = (0.8160, None)
"""The same for MovieLens 1M with given features and moods."""
Columns = list[np.ndarray]


def split(name: str) -> tuple[Columns, Columns]:
    """Return the training and the test part; times are the last column where they are known."""
    if name == "ml-1m":
        return read("ml-1m-classic-train"), read("ml-1m-classic-test")
    columns = read(name)
    if "is_test" in (table := pq.read_table(FOLDER / f"{name}.parquet")).column_names:
        test = table["is_test"].to_numpy().astype(bool)
        return [part[~test] for part in columns], [part[test] for part in columns]
    order = np.random.default_rng(0).permutation(columns[0].size)
    count = columns[0].size // 10
    return [part[order[count:]] for part in columns], [part[order[:count]] for part in columns]


def read(name: str) -> Columns:
    table = pq.read_table(FOLDER / f"{name}.parquet")
    wanted = ("user", "item", "rating", "timestamp")
    return [table[column].to_numpy() for column in wanted if column in table.column_names]


def held_out(train: Columns) -> tuple[Columns, Columns]:
    """Split a tenth off the training part."""
    order = np.random.default_rng(12345).permutation(train[0].size)
    held, kept = order[: order.size // 10], np.sort(order[order.size // 10 :])
    return [part[kept] for part in train], [part[held] for part in train]


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
    features_given = given_features("ml-1m")
    users = features_given["user_features"]
    is_new = users["user"].isin(np.unique(brought.users))

    def error(model: HeMF) -> float:
        return round(rmse(others.ratings, model.predict(others.users, others.items)), 4)

    for kind, features, later in (
        ("none", {}, {}),
        ("implicit", {}, {}),
        (
            "implicit and given",
            {**features_given, "user_features": users[~is_new]},
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
        row["of a refit"] = error(HeMF(**made).fit(joined, **(features_given if features else {})))
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=list(SETTINGS), metavar="SET")
    parser.add_argument("--test", action="store_true", help="report on the test part")
    parser.add_argument("--given", action="store_true", help="with given features, of ml-1m alone")
    parser.add_argument("--stream", action="store_true", help="learn ml-1m online")
    parser.add_argument("--newcomers", action="store_true", help="of ml-1m, with 5 ratings each")
    parser.add_argument("--sampled", action="store_true", help="by Gibbs sampling, of some sets")
    parser.add_argument("--moods", action="store_true", help="with raters' moods")
    parser.add_argument("--factors", type=int, help="other than the usual number of them")
    parser.add_argument("--communities", type=int, help="the most on each side, if not one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.stream or arguments.newcomers:
        (stream if arguments.stream else newcomers)(
            {"rng": arguments.seed, "n_jobs": arguments.jobs}
        )
        return
    missed = []
    sets = ["ml-1m"] if arguments.given else arguments.sets
    for name in [name for name in sets if name in SAMPLED] if arguments.sampled else sets:
        train, test = split(name) if arguments.test else held_out(split(name)[0])
        features = given_features(name) if arguments.given else {}
        begin = time.process_time()
        settings = {"implicit_features": True, **SETTINGS[name], "rng": arguments.seed}
        if arguments.factors is not None:
            settings["n_factors"] = arguments.factors
        if arguments.communities is not None:
            settings |= dict.fromkeys(ONE, arguments.communities)
        model: HeMF | GibbsHeMF = HeMF(moods=arguments.moods, n_jobs=arguments.jobs, **settings)
        if arguments.sampled:
            drawn = {k: v for k, v in SAMPLED[name].settings.items() if k != "sampled"}
            model = GibbsHeMF(n_jobs=arguments.jobs, rng=arguments.seed, **drawn)
        model.fit(tuple(train if arguments.moods else train[:3]), **features)
        seconds = time.process_time() - begin
        when = {"timestamps": test[3]} if arguments.moods else {}
        mean, std = model.predict(test[0], test[1], return_std=True, **when)
        row = {
            "set": name,
            "part": "test" if arguments.test else "held out of train",
            "rmse": round(rmse(test[2], mean), 4),
            "coverage90": round(coverage(test[2], mean, std), 3),
            "nlpd": round(nlpd(test[2], mean, std), 4),
            "sweeps": model.n_sweeps_,
            "cpu_seconds": round(seconds, 1),
        }
        if isinstance(model, HeMF):
            row["elbo"] = round(model.elbo_)
        print(json.dumps(row), flush=True)
        everything = name == "ml-1m" and arguments.given and arguments.moods
        bars = SAMPLED_BARS if arguments.sampled else BARS
        most, most_seconds = EVERYTHING if everything else bars.get(name, (np.inf, None))
        late = most_seconds is not None and seconds > most_seconds
        if arguments.test and (row["rmse"] > most or late):
            missed.append(name)
    if missed:
        raise SystemExit(f"a bar was missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
