"""Lists whose items differ: maximal marginal relevance."""

from __future__ import annotations

import numpy as np

from hemf._typing import Array, Float64Array, Int64Array
from hemf.model.rows import BestColumns

CANDIDATES = 10  # best items that are looked at, for each one of a list
BLOCK_BYTES = 1 << 26  # of candidates' vectors that are in memory at once


# docs/model.md#diversity
def diversified(found: BestColumns, units: Array, n: int, diversity: float) -> BestColumns:
    """Choose n of the best items of each user, one after the other, that differ.

    Each choice has the highest (1-δ) score - δ max similarity to those chosen before. Scores are
    scaled to 0 … 1 over the candidates of a user; the first choice is the best item.

    Parameters
    ----------
    found
        Candidates of each user, best first.
    units
        Vectors of length 1, or 0, whose products are the similarities of items, (items, factors).
    n
        Number of items of each list.
    diversity
        δ, from 0 to 1.

    Returns
    -------
    BestColumns
        The items chosen, in the order of the choice, and their scores.

    Examples
    --------
    >>> found = BestColumns(np.array([[0, 1, 2]]), np.array([[0.9, 0.8, 0.1]]))
    >>> units = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> diversified(found, units, 2, 0.0).columns.tolist()
    [[0, 1]]
    >>> diversified(found, units, 2, 0.6).columns.tolist()
    [[0, 2]]

    """
    n_users, size = found.columns.shape
    if not size:
        return found
    chosen = np.zeros((n_users, min(n, size)), np.int64)
    step = max(1, BLOCK_BYTES // max(1, size * units.shape[1] * units.itemsize))
    for start in range(0, n_users, step):
        part = slice(start, start + step)
        own = BestColumns(found.columns[part], found.scores[part])
        chosen[part] = _chosen(own, units[own.columns], chosen.shape[1], diversity)
    is_empty = np.arange(chosen.shape[1]) >= (found.columns >= 0).sum(axis=1)[:, None]
    columns = np.take_along_axis(found.columns, chosen, axis=1)
    scores = np.take_along_axis(found.scores, chosen, axis=1)
    return BestColumns(np.where(is_empty, -1, columns), np.where(is_empty, -np.inf, scores))


def _chosen(found: BestColumns, own: Array, n: int, diversity: float) -> Int64Array:
    """Return the places of the choices of each user among the candidates."""
    users = np.arange(found.columns.shape[0])
    scores = _scaled(found)
    closest = np.full(scores.shape, -np.inf)
    places = np.zeros((users.size, n), np.int64)
    is_left = found.columns >= 0
    for k in range(1, n):
        last = places[:, k - 1]
        is_left[users, last] = False
        similarity = np.matmul(own, own[users, last][:, :, None])[:, :, 0]
        np.maximum(closest, similarity, out=closest)
        gain = (1.0 - diversity) * scores - diversity * closest
        places[:, k] = np.where(is_left, gain, -np.inf).argmax(axis=1)
    return places


def _scaled(found: BestColumns) -> Float64Array:
    """Return the scores of each user's candidates scaled to 0 … 1; any in empty places."""
    there = found.columns >= 0
    best = np.where(there[:, :1], found.scores[:, :1], 0.0)
    scores = np.where(there, found.scores, best)
    low = scores.min(axis=1, keepdims=True)
    return np.asarray((scores - low) / np.where(best > low, best - low, 1.0))
