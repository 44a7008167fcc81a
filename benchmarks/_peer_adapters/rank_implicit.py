"""implicit: factors of choices by ALS, or by Bayesian personalised ranking."""

from __future__ import annotations

import numpy as np
from adapter import Task
from implicit.cpu.als import AlternatingLeastSquares
from implicit.cpu.bpr import BayesianPersonalizedRanking
from ranker import best, choices
from threadpoolctl import threadpool_limits

PACKAGES = ("implicit", "scipy")
KINDS = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}


def rank(task: Task, users: np.ndarray, n: int) -> np.ndarray:
    settings = dict(task.settings)
    kind, level = KINDS[settings.pop("model")], settings.pop("level", None)
    model = kind(**settings, num_threads=task.threads, random_state=task.seed)
    with threadpool_limits(1, "blas"):  # as implicit asks for: its threads are its own
        with task.clock.running("fit"):
            model.fit(choices(task, level), show_progress=False)
        left, right = model.user_factors, model.item_factors
        with task.clock.running("predict"):
            return best(task, users, n, lambda part: left[part] @ right.T)
