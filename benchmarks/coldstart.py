"""Cold start on MovieLens 1M: what features, and then five ratings, tell of users and films.

A tenth of the users is taken out (then, apart from that, a tenth of the films), and a tenth of
their ratings, the same throughout, is what they are judged on:

    cold    fitted to everyone else; they are predicted from their given features alone
    few     five of their other ratings each are known as well
    warm    all of their other ratings are

Cold must be better than the means of the other side, and `few` is to close most of the distance
from cold to warm. Beside `few` stand what the model itself expects its error to be, from the
uncertainty that it states, and mean + offsets with the best possible shrinkage. `offset known` is
the error of `cold` if a newcomer's own mean error on what is judged were taken off: what no
number of ratings could do better by offsets alone. `taste known` is the error if everything of a
newcomer were known from the start as well as `warm` knows it, all ratings in it, but how high it
rates on average, and the few ratings had nothing to tell but that: `at most` is the part of the
distance which that closes, with the shrinkage that is best on what is judged.

    python benchmarks/coldstart.py                     # six fits; about five minutes of one core
    python benchmarks/coldstart.py --sides user --few 5 10 20
    python benchmarks/coldstart.py --online            # `few` by partial_fit of the cold model
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER, given_features
from hemf import HeMF
from hemf.evaluation import rmse

SIDES = {"user": 0, "item": 1}
SHARE = 0.1  # of a side that is withheld, and of its ratings that it is judged on
CLOSED = 0.8
SHRINKAGES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0)  # of offsets, as of so many ratings
Columns = list[np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--few", type=int, nargs="+", default=[5], help="ratings each")
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--communities", type=int, default=1)
    parser.add_argument("--without-implicit", action="store_true")
    parser.add_argument("--online", action="store_true", help="learn the few by partial_fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    settings = {
        "n_factors": arguments.factors,
        "max_user_communities": arguments.communities,
        "max_item_communities": arguments.communities,
        "implicit_features": not arguments.without_implicit,
        "n_jobs": arguments.jobs,
        "rng": 0,
    }
    table = pq.read_table(FOLDER / "ml-1m.parquet", columns=["user", "item", "rating"])
    ratings = [table[name].to_numpy() for name in ("user", "item", "rating")]
    missed = []
    for side in arguments.sides:
        parts = withheld(ratings, SIDES[side], arguments.seed)
        missed += measured(side, ratings, parts, settings, arguments.few, arguments.online)
    if missed:
        raise SystemExit(f"a bar was missed: {'; '.join(missed)}")


def withheld(ratings: Columns, which: int, seed: int) -> dict[str, np.ndarray]:
    """Return positions: ratings of others, those to judge newcomers on, and their known ones.

    The known ones are in a random order within each newcomer, and ``place`` is theirs in it.
    """
    rng = np.random.default_rng(seed)
    ids = np.unique(ratings[which])
    newcomers = rng.permutation(ids)[: round(SHARE * ids.size)]
    own = rng.permutation(np.flatnonzero(np.isin(ratings[which], newcomers)))
    judged, known = np.split(own, [round(SHARE * own.size)])
    known = known[np.argsort(ratings[which][known], kind="stable")]
    begins = np.flatnonzero(np.diff(ratings[which][known], prepend=-1))
    place = np.arange(known.size) - np.repeat(begins, np.diff(begins, append=known.size))
    others = np.flatnonzero(~np.isin(ratings[which], newcomers))
    return {"others": others, "judged": judged, "known": known, "place": place}


def measured(
    side: str,
    ratings: Columns,
    parts: dict[str, np.ndarray],
    settings: dict[str, Any],
    few: list[int],
    online: bool,
) -> list[str]:
    """Print the errors of one side's newcomers; return the bars that were missed."""
    features, others, known = given_features("ml-1m"), parts["others"], parts["known"]
    judged = [column[parts["judged"]] for column in ratings]

    def fitted(rows: np.ndarray) -> HeMF:
        return HeMF(**settings).fit(tuple(column[rows] for column in ratings), **features)

    def error(model: HeMF) -> float:
        return rmse(judged[2], model.predict(judged[0], judged[1]))

    model, whole = fitted(others), fitted(np.concatenate([others, known]))
    cold, warm = error(model), error(whole)
    own = np.concatenate([known, parts["judged"]])
    level = taste_without_level(model, whole, ratings, own, SIDES[side])
    best = known_offset(model.predict(judged[0], judged[1]), judged, SIDES[side])
    means = rmse(judged[2], other_means(ratings, others, 1 - SIDES[side], judged))
    bare = HeMF(**settings).fit(tuple(column[others] for column in ratings))
    errors = {"means": means, "stranger": error(bare), "cold": cold, "offset known": best}
    print_row(side, errors | {"warm": warm, "wanted": cold - CLOSED * (cold - warm)})
    missed = [] if cold < means else [f"{side}s from features alone"]
    learnt = 0
    for count in sorted(few):
        some = known[parts["place"] < count]
        if online:
            new = known[(parts["place"] >= learnt) & (parts["place"] < count)]
            model.partial_fit(tuple(column[new] for column in ratings))
            learnt = count
        else:
            model = fitted(np.concatenate([others, some]))
        mean, std = model.predict(judged[0], judged[1], return_std=True)
        after, expected = rmse(judged[2], mean), np.sqrt(np.mean(std**2))
        closed = (cold - after) / (cold - warm)
        plain = best_offsets(ratings, others, some, SIDES[side], judged)
        oracle = best_level(ratings, some, parts["judged"], SIDES[side], level)
        marks = {
            "offsets": plain,
            "taste known": oracle,
            "at most": (cold - oracle) / (cold - warm),
        }
        print_row(
            side, {"few": count, "rmse": after, "expected": expected, "closed": closed} | marks
        )
        if count == min(few) and closed < CLOSED:
            missed.append(f"{side}s with {count} ratings")
    return missed


def print_row(side: str, row: dict[str, float]) -> None:
    print(json.dumps({"side": side} | {k: round(float(v), 4) for k, v in row.items()}), flush=True)


def other_means(ratings: Columns, rows: np.ndarray, which: int, judged: Columns) -> np.ndarray:
    """Return the mean rating of each judged pair's row of the side ``which``."""
    ids, values = ratings[which][rows], ratings[2][rows].astype(np.float64)
    size = int(max(ids.max(), judged[which].max())) + 1
    counts = np.bincount(ids, minlength=size)
    means = np.bincount(ids, values, size) / np.maximum(counts, 1)
    return np.where(counts > 0, means, values.mean())[judged[which]]


def known_offset(mean: np.ndarray, judged: Columns, which: int) -> float:
    """RMSE if each newcomer's mean error on what is judged were known; no method either."""
    _, newcomers = np.unique(judged[which], return_inverse=True)
    away = np.bincount(newcomers, judged[2] - mean) / np.bincount(newcomers)
    return rmse(judged[2], mean + away[newcomers])


def taste_without_level(
    cold: HeMF, warm: HeMF, ratings: Columns, own: np.ndarray, which: int
) -> np.ndarray:
    """Return what is expected of all newcomers' ratings, at ``own``: warm's, but at cold's level.

    By position in ``ratings``; elsewhere nothing.
    """
    before, after = (model.predict(ratings[0][own], ratings[1][own]) for model in (cold, warm))
    _, newcomers = np.unique(ratings[which][own], return_inverse=True)
    raised = np.bincount(newcomers, after - before) / np.bincount(newcomers)
    expected = np.full(ratings[2].size, np.nan)
    expected[own] = after - raised[newcomers]
    return expected


def best_level(
    ratings: Columns, some: np.ndarray, judged: np.ndarray, which: int, expected: np.ndarray
) -> float:
    """RMSE where each newcomer's level is found from ``some``; looks at what it is judged on."""
    size = int(ratings[which].max()) + 1
    total = np.bincount(ratings[which][some], ratings[2][some] - expected[some], size)
    counts = np.bincount(ratings[which][some], minlength=size)
    low, high = ratings[2].min(), ratings[2].max()
    return min(
        rmse(
            ratings[2][judged],
            np.clip(
                expected[judged] + (total / (counts + ridge))[ratings[which][judged]], low, high
            ),
        )
        for ridge in SHRINKAGES
    )


def best_offsets(
    ratings: Columns, others: np.ndarray, some: np.ndarray, which: int, judged: Columns
) -> float:
    """RMSE of the other side's means and the newcomers' own offsets, best shrunk on what is judged.

    It looks at what it is judged on, and is a mark to compare with, no method.
    """
    away = ratings[2][some] - other_means(ratings, others, 1 - which, [c[some] for c in ratings])
    size = int(max(ratings[which].max(), judged[which].max())) + 1
    total = np.bincount(ratings[which][some], away, size)
    counts = np.bincount(ratings[which][some], minlength=size)
    base = other_means(ratings, others, 1 - which, judged)
    return min(
        rmse(judged[2], base + (total / (counts + ridge))[judged[which]]) for ridge in SHRINKAGES
    )


if __name__ == "__main__":
    main()
