"""Honesty and ranking on ratings held out of the training parts: the figures of docs/evaluation.md.

A tenth of each training part is held out; test parts are not looked at.

    python benchmarks/judging.py                     # all; some minutes, Jester most of them
    python benchmarks/judging.py ml-1m --ranking     # ranking too, beside simple rankers
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from typing import Any

import numpy as np

from _data import FOLDER
from accuracy import split
from hemf import HeMF, Ratings
from hemf.baselines import EASE
from hemf.evaluation import Predictive, judge, random_split, ranking_metrics
from hemf.evaluation.distribution import is_scale

SETS = ("ml-1m", "ml-100k", "eachmovie-ads-sample", "kiba-dta", "jester-1")
COLUMNS = ("nlpd", "log_score", "crps", "coverage50", "coverage90", "coverage95", "pit_distance")
RANKED = ("ndcg@10", "recall@10", "hit_rate@10", "coverage@10", "novelty@10")
BAR = (0.88, 0.92)  # of what 90 % intervals hold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET")
    parser.add_argument("--ranking", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    missed = []
    for name in arguments.sets:
        if not (FOLDER / f"{name}.parquet").exists():
            print(f"{name}: not in {FOLDER}")
            continue
        columns, _ = split(name)
        kept, held = random_split(columns[2].size, 0.1, rng=1)
        train, (users, items, actual) = ([c[part] for c in columns] for part in (kept, held))
        model = HeMF(rng=0).fit(tuple(train))
        predicted = model.predict_distribution(users, items)
        model._model.derived["freedom"] = float("inf")
        rows_only = model.predict_distribution(users, items)
        levels = model.levels_ if is_scale(model.levels_) else None
        freedom = f"{np.median(predicted.freedom):.0f}"
        print(f"{name}: degrees of freedom {freedom} (median) | {' | '.join(COLUMNS)}")
        shapes = {
            "normal": Predictive(predicted.mean, predicted.std),
            "rows' scales alone": rows_only,
            "used": predicted,
        }
        for label, shape in shapes.items():
            found = judge(actual, shape, levels=levels).to_dict()
            print(f"  {label} | {' | '.join(written(found[column]) for column in COLUMNS)}")
        if not BAR[0] <= found["coverage90"] <= BAR[1]:
            missed.append(name)
        if arguments.ranking:
            rank(model, Ratings.from_any((users, items, actual)))
    if missed:
        raise SystemExit(f"90 % intervals hold too few or too many: {', '.join(missed)}")


def rank(model: HeMF, test: Ratings, level: float = 4.0) -> None:
    """Print how the model ranks beside popularity, and a linear model of what goes with what."""
    train = model.ratings_
    print(f"  ranking | {' | '.join(RANKED)} | CPU s")
    counts, rng = np.diff(train.by_item.indptr), np.random.default_rng(0)
    sums = np.bincount(train.by_user.indices, train.by_user.values, train.n_items)
    shrunk = (sums + 5 * train.mean) / (counts + 5)

    def same_for_all(values: np.ndarray, users: Any, items: Any) -> np.ndarray:
        return np.tile(values[train.items.rows(items)], (len(users), 1))

    rankers = {
        "expected rating": model,
        "ucb": partial(model.scores, strategy="ucb"),
        "ucb, exploration 2": partial(model.scores, strategy="ucb", exploration=2.0),
        "thompson": partial(model.scores, strategy="thompson", rng=0),
        "mean rating of the item": partial(same_for_all, shrunk),
        "number of ratings": partial(same_for_all, counts),
        "EASE": EASE().fit(train),
        "at random": lambda users, items: rng.random((len(users), len(items))),
    }
    for label, ranker in rankers.items():
        begin = time.process_time()
        found = ranking_metrics(ranker, train, test, 10, level=level).to_dict()
        seconds = time.process_time() - begin
        print(f"  {label} | {' | '.join(written(found[key]) for key in RANKED)} | {seconds:.1f}")


def written(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main()
