"""The largest entries of the rows of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def top_columns(scores: npt.NDArray[np.floating[Any]], n: int) -> npt.NDArray[np.int64]:
    """Columns of the n highest scores of every row, best first; ties in the order of the columns.

    Columns at -inf are never chosen; -1 fills the places that are left.

    >>> top_columns(np.array([[1.0, 3.0, 3.0, 3.0], [-np.inf, 2.0, -np.inf, -np.inf]]), 2)
    array([[ 1,  2],
           [ 1, -1]])
    """
    n = min(n, scores.shape[1])
    chosen = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    last = np.take_along_axis(scores, chosen, axis=1).min(axis=1, keepdims=True)
    tied = np.flatnonzero((scores >= last).sum(axis=1) > n)  # argpartition picks any of them
    if tied.size:
        chosen[tied] = np.argsort(-scores[tied], axis=1, kind="stable")[:, :n]
    values = np.take_along_axis(scores, chosen, axis=1)
    order = np.lexsort((chosen, -values), axis=1)
    best = np.take_along_axis(values, order, axis=1)
    return np.where(np.isneginf(best), -1, np.take_along_axis(chosen, order, axis=1))
