"""What is known of users and items beside their ratings, as a fit takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hemf.model.design import Design
from hemf.ratings import Ratings, Sparse

RATED = "rated"
HOW_MANY = "how many"


def implicit_blocks(table: Sparse, n_other: int) -> dict[str, Any]:
    """Return what a row chose to rate, as features: which of the other side, and how many.

    x_ij = 1/√n_i for the n_i that row i has a rating of, whatever it is; and the logarithm of n_i
    with its square, standardised. They are of the ratings that are learnt from and of no others.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)])
    >>> implicit_blocks(data.by_user, 2)["rated"].toarray().round(2).tolist()
    [[0.71, 0.71], [1.0, 0.0]]
    """
    counts = np.diff(table.indptr)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    rated = csr_array((values, table.indices, table.indptr), shape=(counts.size, n_other))
    return {RATED: rated, HOW_MANY: how_many(counts)}


def how_many(counts: np.ndarray) -> np.ndarray:
    """Return ln n and its square, both standardised over rows that have a rating; else zero.

    >>> how_many(np.array([1, 1, 7, 0])).round(2).tolist()
    [[-0.71, -0.5], [-0.71, -0.5], [1.41, 1.0], [0.0, 0.0]]
    """
    logs, some = np.log(np.maximum(counts, 1.0)), counts > 0
    spread = logs[some].std() if some.any() else 0.0
    away = (logs - logs[some].mean()) / spread if spread > 0.0 else np.zeros(counts.size)
    return np.where(some[:, None], np.column_stack([away, away * away - 1.0]), 0.0)


def designs(
    ratings: Ratings, *, implicit: bool, dtype: type[np.floating] = np.float64
) -> dict[str, Design]:
    """Return the features of each side that has any."""
    tables = {"user": (ratings.by_user, ratings.n_items), "item": (ratings.by_item, ratings.n_users)}
    made = {}
    for side, (table, n_other) in tables.items():
        blocks = implicit_blocks(table, n_other) if implicit else {}
        if blocks:
            made[side] = Design.of(blocks, dtype)
    return made
