"""hemf's recommendations, and its baselines. Kernels are compiled before the clock runs."""

from __future__ import annotations

import warnings

import numpy as np
from adapter import Task
from ranker import best
from with_hemf import compile_kernels

from hemf import HeMF
from hemf.baselines import EASE, Popularity

PACKAGES = ("hemf", "numba", "scipy")


def rank(task: Task, users: np.ndarray, n: int) -> np.ndarray:
    warnings.simplefilter("ignore")
    settings = dict(task.settings)
    name = settings.pop("model", "hemf")
    columns = task.users, task.items, task.ratings
    if name == "hemf":
        compile_kernels(HeMF, settings)
        with task.clock.running("fit"):
            model = HeMF(**settings, n_jobs=task.threads, rng=task.seed).fit(columns)
        with task.clock.running("predict"):
            return numbers(model.recommend(users, n)[0], n)
    kind = {"ease": EASE, "popularity": Popularity}[name]
    with task.clock.running("fit"):
        baseline = kind(**settings).fit(columns)
    with task.clock.running("predict"):
        everything = np.arange(task.n_items)
        return best(task, users, n, lambda part: baseline.scores(part, everything))


def numbers(lists: np.ndarray, n: int) -> np.ndarray:
    """Return lists of items as numbers, of length n, -1 where there are no more."""
    found = np.full((len(lists), n), -1)
    found[:, : lists.shape[1]] = np.where(lists == None, -1, lists)  # noqa: E711
    return found
