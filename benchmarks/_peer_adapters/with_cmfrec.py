"""cmfrec: collective matrix factorization by alternating least squares, with threads.

With ``implicit``, which entries are there at all is factorized too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from adapter import Fitted, Task, by_refitting
from cmfrec import CMF

PACKAGES = ("cmfrec",)


def run(task: Task, settings: dict[str, Any]) -> None:
    def fit(settings: dict[str, Any]) -> Fitted:
        ratings, centre, scale = task.ratings, 0.0, 1.0
        if settings["standardise"]:  # penalties are meant for ratings like 1 to 5
            ratings, centre, scale = task.standardised()
        model = CMF(
            k=settings["rank"],
            lambda_=settings["penalty"],
            scale_lam=True,
            method="als",
            niter=settings["iterations"],
            add_implicit_features=settings["implicit"],
            random_state=task.seed + 1,
            nthreads=task.threads,
            verbose=False,
            precompute_for_predictions=False,
        )
        columns = {"UserId": task.users, "ItemId": task.items, "Rating": ratings}
        model.fit(pd.DataFrame(columns))

        def predict() -> np.ndarray:
            guess = model.predict(user=task.test_users, item=task.test_items)
            return centre + scale * np.asarray(guess, dtype=np.float64)

        return predict, settings["iterations"]

    by_refitting(task, settings, "iterations", fit)
