"""LensKit's linear models of items: EASE, and SLIM, which is sparse."""

from __future__ import annotations

import numpy as np
import pandas as pd
from adapter import Task
from lenskit.data import from_interactions_df
from lenskit.knn.ease import EASEScorer
from lenskit.knn.slim import SLIMScorer
from lenskit.training import TrainingOptions
from ranker import best, choices
from threadpoolctl import threadpool_limits

PACKAGES = ("lenskit", "torch", "scipy")
KINDS = {"ease": EASEScorer, "slim": SLIMScorer}


def rank(task: Task, users: np.ndarray, n: int) -> np.ndarray:
    settings = dict(task.settings)
    name, level = settings.pop("model"), settings.pop("level", None)
    matrix = choices(task, level)
    pairs = matrix.tocoo()
    frame = pd.DataFrame({"user_id": pairs.row, "item_id": pairs.col})
    model = KINDS[name](**settings)
    with threadpool_limits(1, "blas"):
        with task.clock.running("fit"):
            model.train(from_interactions_df(frame), TrainingOptions(rng=task.seed))
        columns = np.asarray(model.items.ids())

        def scores(part: np.ndarray) -> np.ndarray:
            found = np.zeros((part.size, task.n_items), np.float32)
            product = matrix[part][:, columns] @ model.weights
            found[:, columns] = product if isinstance(product, np.ndarray) else product.toarray()
            return found

        with task.clock.running("predict"):
            return best(task, users, n, scores)
