"""Answers that are lists: ids and scores, best first, one list for each id of a request."""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf._typing import AnyArray, BoolArray, Float64Array
from hemf.model.rows import BestColumns


class BestLists:
    """Ids and scores of lists of the same length; None and NaN where a list is shorter.

    >>> lists = BestLists(np.array([7, 8, 9]), n_lists=1, length=2)
    >>> lists.put(slice(0, 1), BestColumns(np.array([[2, -1]]), np.array([[0.5, -np.inf]])))
    >>> lists.ids.tolist(), lists.scores.tolist()
    ([[9, None]], [[0.5, nan]])
    >>> [answer.tolist() for answer in lists.first()]
    [[9], [0.5]]
    """

    def __init__(self, known: AnyArray, n_lists: int, length: int) -> None:
        self._known = known
        self.ids: AnyArray = np.full((n_lists, length), None, dtype=object)
        self.scores: Float64Array = np.full((n_lists, length), np.nan)

    def put(self, part: slice, best: BestColumns) -> None:
        """Set the lists of this part."""
        there = best.columns >= 0
        self.ids[part][there] = self._known[best.columns[there]]
        self.scores[part] = np.where(there, best.scores, np.nan)

    def first(self, *figures: AnyArray) -> tuple[Any, ...]:
        """Return ids and scores of the first list, and its other figures, without empty places."""
        there: BoolArray = ~np.isnan(self.scores[0])
        ids = self.ids[0][there]
        if self._known.dtype != object:  # integer ids are given back as integers
            ids = ids.astype(self._known.dtype)
        return ids, self.scores[0][there], *(figure[0][there] for figure in figures)
