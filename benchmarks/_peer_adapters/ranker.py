"""One ranking by one method, in the process and the environment of its own that ranking.py made.

    python benchmarks/_peer_adapters/ranker.py ADAPTER FOLDER

FOLDER is that of adapter.py. ADAPTER is a module of this folder with

    PACKAGES                    # whose versions are reported
    def rank(task, users, n)    # fits, and returns the n best unseen items of each user

It ranks for the users of the test part; what they chose there is not in FOLDER.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from adapter import Task, peak_rss_mb
from scipy.sparse import csr_matrix

N = 20  # items of a list
BLOCK_BYTES = 1 << 26


def choices(task: Task, level: float | None = None) -> csr_matrix:
    """Return 1 for every training pair, or for those rated ``level`` or more."""
    kept = np.ones(task.ratings.size, bool) if level is None else task.ratings >= level
    pairs = task.users[kept], task.items[kept]
    shape = task.n_users, task.n_items
    return csr_matrix((np.ones(pairs[0].size, np.float32), pairs), shape=shape)


def best(
    task: Task, users: np.ndarray, n: int, scores: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the n best unseen items of each user by a function that scores all items."""
    seen = choices(task)
    unrated = np.bincount(task.items, minlength=task.n_items) == 0
    found = np.full((users.size, n), -1)
    step = max(1, BLOCK_BYTES // (4 * task.n_items))
    for start in range(0, users.size, step):
        part = users[start : start + step]
        values = np.array(scores(part), np.float32)
        values[seen[part].nonzero()] = -np.inf
        values[:, unrated] = -np.inf
        top = np.argpartition(-values, n - 1, axis=1)[:, :n]
        at_top = np.take_along_axis(values, top, axis=1)
        order = np.argsort(-at_top, axis=1, kind="stable")
        ranked = np.take_along_axis(top, order, axis=1)
        usable = np.isfinite(np.take_along_axis(at_top, order, axis=1))
        found[start : start + step] = np.where(usable, ranked, -1)
    return found


def main() -> None:
    adapter, folder = importlib.import_module(sys.argv[1]), Path(sys.argv[2])
    task = Task(folder)
    users = np.unique(task.test_users)
    np.save(folder / "lists.npy", adapter.rank(task, users, N))
    versions = {name: importlib.metadata.version(name) for name in adapter.PACKAGES}
    result = {
        "fit_cpu_seconds": task.clock.spent["fit"],
        "rank_cpu_seconds": task.clock.spent["predict"],
        "peak_rss_mb": peak_rss_mb(),
        "versions": {**versions, "numpy": np.__version__},
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
