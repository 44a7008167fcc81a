"""myFM: Bayesian factorization machines by Gibbs sampling, on one thread.

With ``features``, the relation blocks of its own MovieLens examples: a user is its id and the items
it has rated, 1/√n each; an item is its id and the users it was rated by. Groups of columns have
priors of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from adapter import Task, worth_a_point
from myfm import MyFMRegressor, RelationBlock
from scipy import sparse

PACKAGES = ("myfm", "scipy")


def blocks(task: Task, features: bool) -> tuple[list[sparse.csr_matrix], list[int]]:
    """Return the columns that describe users and items, and the sizes of their groups."""
    sizes = (task.n_users, task.n_items)
    seen = sparse.csr_matrix((np.ones(task.users.size), (task.users, task.items)), shape=sizes)
    seen.data[:] = 1.0  # a pair rated twice was still seen once
    tables, groups = [], []
    for n, other in ((sizes[0], seen), (sizes[1], seen.T.tocsr())):
        parts = [sparse.identity(n, format="csr")]
        if features:
            counts = np.maximum(np.diff(other.indptr), 1)
            parts.append(sparse.diags(1 / np.sqrt(counts)) @ other)
        groups += [part.shape[1] for part in parts]
        tables.append(sparse.csr_matrix(sparse.hstack(parts)))
    return tables, groups


def run(task: Task, settings: dict[str, Any]) -> None:
    """Average the draws after the burn-in, predicting the test part at each."""
    burn_in, sweeps = settings["burn_in"], settings["sweeps"]
    mean, squares = np.zeros(task.test_users.size), np.zeros(task.test_users.size)
    noise: list[float] = []
    empty = sparse.csr_matrix((task.test_users.size, 0), dtype=np.float64)
    with task.clock.running("fit"):
        ratings, centre, scale = task.standardised()
        tables, groups = blocks(task, settings["features"])
        train = [RelationBlock(c, t) for c, t in zip((task.users, task.items), tables)]
        test = [RelationBlock(c, t) for c, t in zip((task.test_users, task.test_items), tables)]

        def after_sweep(sweep: int, machine: Any, hyper: Any, history: Any) -> tuple[bool, None]:
            if sweep < burn_in:
                return False, None
            with task.clock.running("predict"):
                drawn = np.asarray(machine.predict_score(empty, test))
                n = len(noise) + 1
                step = drawn - mean
                mean[:] += step / n
                squares[:] += step * (drawn - mean)
                noise.append(1 / hyper.alpha)
                if task.curve and worth_a_point(n):
                    task.point(task.clock.fitted(), sweep + 1, centre + scale * mean)
            return False, None

        model = MyFMRegressor(rank=settings["rank"], random_seed=task.seed)
        model.fit(
            None,
            ratings,
            X_rel=train,
            n_iter=sweeps,
            n_kept_samples=1,  # draws are averaged on the way: keeping them takes much memory
            group_shapes=groups,
            callback=after_sweep,
        )
    variance = squares / max(len(noise) - 1, 1) + np.mean(noise)
    final, std = centre + scale * mean, scale * np.sqrt(variance)
    if task.curve:
        task.point(task.clock.spent["fit"], sweeps, final)
        task.result["curve_by"] = "callback after every sweep"
    task.finish(final, std, noise_variance=scale**2 * float(np.mean(noise)))
