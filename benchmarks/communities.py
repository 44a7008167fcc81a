"""What communities are worth: RMSE with one on each side less RMSE with the defaults, converged.

On the classic split of MovieLens 1M and on random ones, 20 factors, a stricter tolerance than the
default so that no lucky sweep decides.

    python benchmarks/communities.py              # classic split and three random ones
    python benchmarks/communities.py --seed 1     # fits begin elsewhere
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from accuracy import MODELS, Columns, read, split
from hemf import HeMF
from hemf.evaluation import random_split

BAR = 0.002
TOLERANCE = 4e-6


def splits(count: int) -> Iterator[tuple[str, Columns, Columns]]:
    yield "classic", *split("ml-1m")
    whole = read("ml-1m")
    for number in range(1, count + 1):
        kept, held = random_split(whole[2].size, 0.1, rng=number)
        train, test = (tuple(column[rows] for column in whole) for rows in (kept, held))
        yield f"random {number}", train, test


def gain(train: Columns, test: Columns, seed: int) -> dict[str, Any]:
    """Both errors, their difference with its standard error, and the difference of the bounds."""
    errors, bounds, roots, converged = [], [], [], True
    for settings in MODELS.values():
        model = HeMF(rng=seed, tol=TOLERANCE, **settings).fit(train)
        errors.append((test[2] - model.predict(test[0], test[1])) ** 2)
        roots.append(float(np.sqrt(errors[-1].mean())))
        bounds.append(model.elbo_)
        converged = converged and model.converged_
    apart = errors[0] - errors[1]
    return {
        "one community": round(roots[0], 5),
        "defaults": round(roots[1], 5),
        "gain": round(roots[0] - roots[1], 5),
        "standard error": round(float(apart.std() / np.sqrt(apart.size) / sum(roots)), 5),
        "bound": round(bounds[1] - bounds[0]),
        "converged": converged,
        "communities": [model.n_user_communities_, model.n_item_communities_],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--splits", type=int, default=3, help="random splits beside the classic one"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, train, test in splits(arguments.splits):
        row = gain(train, test, arguments.seed)
        rows.append(row)
        print(json.dumps({"split": name, **row}), flush=True)
    classic = rows[0]
    met = classic["gain"] >= BAR and classic["bound"] > 0 and classic["converged"]
    print(
        f"classic split: gain {classic['gain']:.5f}, bound higher by {classic['bound']}   "
        f"bar >= {BAR} and > 0, converged   {'met' if met else 'MISSED'}"
    )
    print(f"mean of all: {np.mean([row['gain'] for row in rows]):.5f}")
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
