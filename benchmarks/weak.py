"""Weak generalisation on MovieLens 1M: one random rating of every user withheld, ten times.

Split s is `hemf.evaluation.weak_generalisation(users, items, rng=s)`, the same for every method.
The model has implicit and given features; it is fitted without timestamps, then with moods. A
withheld part has 6,040 ratings, which is ±0.007 by itself: compare methods split by split.

    python benchmarks/weak.py                     # ten splits; about twenty minutes of one core
    python benchmarks/weak.py --seeds 0 1 2 --forms "with times"
    python benchmarks/weak.py --peer FILE         # with myFM on the same splits, by
        python benchmarks/peers.py --sets weak-{0..9} --peers myfm-features --no-curve --json FILE
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER, given_features
from hemf import HeMF
from hemf.evaluation import coverage, nlpd, rmse, weak_generalisation

SETTINGS: dict[str, Any] = {
    "n_factors": 32,
    "max_user_communities": 1,
    "max_item_communities": 1,
    "implicit_features": True,
}
FORMS: dict[str, dict[str, Any]] = {"without times": {}, "with times": {"moods": True}}
AHEAD = {"without times": 0.002, "with times": 0.007}
"""How much lower than the peer's the mean RMSE must be."""
PEER = "myfm-features"
"""The peer: with SVD++-like features both ways."""
PAPER = 0.8311


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--peer", type=Path, metavar="FILE", help="rows of benchmarks/peers.py")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    peer = {} if arguments.peer is None else peer_errors(arguments.peer)
    table = pq.read_table(FOLDER / "ml-1m.parquet")
    columns = [table[name].to_numpy() for name in ("user", "item", "rating", "timestamp")]
    errors: dict[str, dict[int, float]] = {form: {} for form in arguments.forms}
    for seed in arguments.seeds:
        train, test = weak_generalisation(columns[0], columns[1], rng=seed)
        kept, held = ([column[rows] for column in columns] for rows in (train, test))
        for form in arguments.forms:
            row = measured(kept, held, form, n_jobs=arguments.jobs)
            errors[form][seed] = row["rmse"]
            print(json.dumps({"split": seed, "form": form, **row}), flush=True)
    missed = [form for form in arguments.forms if not summary(form, errors[form], peer)]
    if missed:
        raise SystemExit(f"not far enough below the peer: {', '.join(missed)}")


def peer_errors(path: Path) -> dict[int, float]:
    """Return the peer's RMSE by split."""
    found = {}
    for row in json.loads(path.read_text())["rows"]:
        if row["peer"] == PEER and row["set"].startswith("weak-") and "rmse" in row:
            found[int(row["set"].removeprefix("weak-"))] = row["rmse"]
    return found


def measured(
    kept: list[np.ndarray], held: list[np.ndarray], form: str, *, n_jobs: int
) -> dict[str, Any]:
    """Fit to one part, and say how well the other is predicted and what it took."""
    begin = time.process_time()
    model = HeMF(rng=0, n_jobs=n_jobs, **SETTINGS, **FORMS[form])
    timed = model.moods
    model.fit(tuple(kept if timed else kept[:3]), **given_features("ml-1m"))
    seconds = time.process_time() - begin
    when = {"timestamps": held[3]} if timed else {}
    mean, std = model.predict(held[0], held[1], return_std=True, **when)
    return {
        "rmse": round(rmse(held[2], mean), 5),
        "coverage90": round(coverage(held[2], mean, std), 3),
        "nlpd": round(nlpd(held[2], mean, std), 4),
        "sweeps": model.n_sweeps_,
        "cpu_seconds": round(seconds, 1),
    }


def summary(form: str, errors: dict[int, float], peer: dict[int, float]) -> bool:
    """Print the mean over splits and how far it is from others'; return whether the bar is met."""
    found = np.array(list(errors.values()))
    both = [seed for seed in errors if seed in peer]
    row: dict[str, Any] = {
        "form": form,
        "splits": found.size,
        "rmse": round(float(found.mean()), 4),
        "from_paper": round(float(found.mean() - PAPER), 4),
    }
    if found.size > 1:
        row["standard_error"] = round(float(found.std(ddof=1) / np.sqrt(found.size)), 4)
    if both:
        below = np.array([peer[seed] - errors[seed] for seed in both])
        row |= {"below_peer": round(float(below.mean()), 4), "splits_with_peer": len(both)}
    print(json.dumps(row), flush=True)
    return not both or row["below_peer"] >= AHEAD[form]


if __name__ == "__main__":
    main()
