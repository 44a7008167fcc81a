"""How many communities a fit should begin with: chosen on the training part of MovieLens 1M alone.

Each tenth of the classic training part is held out in turn, fits to the rest run until they have
converged (a stricter tolerance than the default, so that no lucky sweep decides), and the number
with the lowest mean error on what is held out is the one to take. The test part is not opened.

    python benchmarks/truncation.py                   # all tenths; half an hour of one core
    python benchmarks/truncation.py --tenths 0 1 2    # some
"""

from __future__ import annotations

import argparse
import json
import warnings

import numpy as np

from accuracy import read
from hemf import HeMF
from hemf.evaluation import rmse

TRIED = (8, 12, 16, 20)
TOLERANCE = 5e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tenths", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--communities", type=int, nargs="+", default=list(TRIED))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    train = read("ml-1m-classic-train")
    tenth_of = np.random.default_rng(100).permutation(train[2].size) % 10
    errors = np.empty((len(arguments.tenths), len(arguments.communities)))
    for row, tenth in enumerate(arguments.tenths):
        kept, held = (
            tuple(c[rows] for c in train) for rows in (tenth_of != tenth, tenth_of == tenth)
        )
        for column, count in enumerate(arguments.communities):
            model = HeMF(
                rng=arguments.seed, n_factors=20, tol=TOLERANCE,
                max_user_communities=count, max_item_communities=count,
            ).fit(kept)  # fmt: skip
            errors[row, column] = rmse(held[2], model.predict(held[0], held[1]))
        print(
            json.dumps({"tenth": tenth, **_by_count(arguments.communities, errors[row])}),
            flush=True,
        )
    means = errors.mean(axis=0)
    print(json.dumps({"mean": _by_count(arguments.communities, means)}))
    best = int(means.argmin())
    apart = errors - errors[:, [best]]
    spread = apart.std(axis=0, ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else apart[0] * 0
    for count, mean, error in zip(arguments.communities, apart.mean(axis=0), spread, strict=True):
        print(f"{count:3}: {mean:+.5f} ± {error:.5f} against {arguments.communities[best]}")


def _by_count(counts: list[int], errors: np.ndarray) -> dict[str, float]:
    return {str(count): round(float(error), 5) for count, error in zip(counts, errors, strict=True)}


if __name__ == "__main__":
    main()
