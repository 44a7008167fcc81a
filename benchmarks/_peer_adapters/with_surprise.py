"""Surprise: SVD (biased matrix factorization by SGD) and KNNBaseline, both on one thread."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from adapter import Fitted, Task, by_refitting
from surprise import SVD, KNNBaseline
from surprise.trainset import Trainset

PACKAGES = ("scikit-surprise",)


def trainset(task: Task, ratings: np.ndarray) -> Trainset:
    """Build the package's own form from columns; ids stay as they are."""
    of_user, of_item = defaultdict(list), defaultdict(list)
    for user, item, rating in zip(task.users.tolist(), task.items.tolist(), ratings.tolist()):
        of_user[user].append((item, rating))
        of_item[item].append((user, rating))
    scale = (float(ratings.min()), float(ratings.max()))
    users, items = ({k: k for k in range(n)} for n in (task.n_users, task.n_items))
    return Trainset(of_user, of_item, task.n_users, task.n_items, ratings.size, scale, users, items)


def run(task: Task, settings: dict[str, Any]) -> None:
    (svd if settings["algorithm"] == "svd" else neighbours)(task, settings)


def svd(task: Task, settings: dict[str, Any]) -> None:
    def fit(settings: dict[str, Any]) -> Fitted:
        ratings, centre, scale = task.ratings, 0.0, 1.0
        if settings["standardise"]:  # steps and penalties are meant for ratings like 1 to 5
            ratings, centre, scale = task.standardised()
        model = SVD(
            n_factors=settings["rank"],
            n_epochs=settings["epochs"],
            lr_all=settings["rate"],
            reg_all=settings["penalty"],
            random_state=task.seed,
        )
        model.fit(trainset(task, ratings))

        def predict() -> np.ndarray:
            users, items = task.test_users, task.test_items
            known_user = np.isin(users, task.users)
            known_item = np.isin(items, task.items)
            product = np.einsum("nk,nk->n", model.pu[users], model.qi[items])
            return centre + scale * (
                model.trainset.global_mean
                + known_user * model.bu[users]
                + known_item * model.bi[items]
                + (known_user & known_item) * product
            )

        return predict, settings["epochs"]

    by_refitting(task, settings, "epochs", fit)


def neighbours(task: Task, settings: dict[str, Any]) -> None:
    """Fit and predict once: there is nothing to iterate."""
    with task.clock.running("fit"):
        alike = {"name": settings["similarity"], "user_based": settings["of"] == "users"}
        model = KNNBaseline(k=settings["neighbours"], sim_options=alike, verbose=False)
        model.fit(trainset(task, task.ratings))
    with task.clock.running("predict"):
        known_user = set(task.users.tolist())
        known_item = set(task.items.tolist())
        mean = np.empty(task.test_users.size)
        pairs = zip(task.test_users.tolist(), task.test_items.tolist())
        for row, (user, item) in enumerate(pairs):
            if user in known_user and item in known_item:
                found = model.estimate(user, item)
                mean[row] = found[0] if isinstance(found, tuple) else found
            else:  # offsets of those without a rating are zero
                mean[row] = model.trainset.global_mean + model.bu[user] + model.bi[item]
    task.finish(mean)
    if task.curve:
        task.point(task.clock.spent["fit"], 1, mean)
        task.result["curve_by"] = "the whole fit"
