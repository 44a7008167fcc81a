"""hemf itself, as its users have it. Kernels are compiled before the clock runs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from adapter import Fitted, Task, by_refitting

from hemf import GibbsHeMF, HeMF

PACKAGES = ("hemf", "numba", "scipy")


def run(task: Task, settings: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    settings = dict(settings)
    kind = GibbsHeMF if settings.pop("sampled", False) else HeMF
    if settings.pop("communities", "many") == "one":
        settings |= {"max_user_communities": 1, "max_item_communities": 1}
    compile_kernels(kind, settings)
    columns = (task.users, task.items, task.ratings)

    def fit(settings: dict[str, Any]) -> Fitted:
        model = kind(**settings, n_jobs=task.threads, rng=task.seed).fit(columns)

        def predict() -> tuple[np.ndarray, np.ndarray]:
            return model.predict(task.test_users, task.test_items, return_std=True)

        return predict, model.n_sweeps_

    by_refitting(task, settings, "max_sweeps" if kind is HeMF else "samples", fit)


def compile_kernels(kind: type[HeMF | GibbsHeMF], settings: dict[str, Any]) -> None:
    """Fit something small the same way."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(2000)[:1000], 40)
    few = {"max_sweeps": 12} if kind is HeMF else {"samples": 1, "burn_in": 0}
    model = kind(**{**settings, **few}, rng=0)
    model.fit((users, items, rng.integers(1, 6, 1000))).predict([0], [0], return_std=True)
