"""libmf: matrix factorization by parallel stochastic gradient descent.

Predictions are made from its factors: the package's own ``predict`` is wrong. Ids pass through
float32 there, which holds integers up to 2²⁴; larger ones are refused here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from adapter import Fitted, Task, by_refitting
from libmf import mf

PACKAGES = ("libmf",)


def run(task: Task, settings: dict[str, Any]) -> None:
    if max(task.n_users, task.n_items) > 2**24:
        raise ValueError("libmf passes ids through float32, which cannot hold as many")

    def fit(settings: dict[str, Any]) -> Fitted:
        # No offsets in the model: it is to explain what is left of the mean.
        ratings, centre, scale = task.standardised() if settings["centre"] else plain(task)
        model = mf.MF(
            k=settings["rank"],
            nr_iters=settings["epochs"],
            lambda_p2=settings["penalty"],
            lambda_q2=settings["penalty"],
            lambda_p1=0.0,
            lambda_q1=0.0,
            eta=settings["rate"],
            nr_threads=task.threads,
            quiet=True,
        )
        model.fit(np.column_stack([task.users, task.items, ratings]))
        of_user = unseen_as_zero(model.p_factors(), task.n_users)
        of_item = unseen_as_zero(model.q_factors(), task.n_items)

        def predict() -> np.ndarray:
            product = np.einsum("nk,nk->n", of_user[task.test_users], of_item[task.test_items])
            unknown = ~(np.isin(task.test_users, task.users) & np.isin(task.test_items, task.items))
            product[unknown] = 0.0 if settings["centre"] else task.ratings.mean()
            return centre + scale * product

        return predict, settings["epochs"]

    by_refitting(task, settings, "epochs", fit)


def plain(task: Task) -> tuple[np.ndarray, float, float]:
    return task.ratings, 0.0, 1.0


def unseen_as_zero(factors: np.ndarray, rows: int) -> np.ndarray:
    """Return factors of all rows; those without a rating have none, and may lie beyond the end."""
    full = np.zeros((rows, factors.shape[1]))
    full[: len(factors)] = np.nan_to_num(factors)
    return full
