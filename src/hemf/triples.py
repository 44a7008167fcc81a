"""Ratings as a learner takes them that goes over them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.ratings import Ratings, pairs_from_any
from hemf.reading.readers import Columns, read_columns
from hemf.vocabulary import Vocabulary

RowNumbers = npt.NDArray[np.int32]


def rated_ids(ids: Vocabulary, rows: RowNumbers) -> tuple[Vocabulary, RowNumbers]:
    """Return the ids that occur in ``rows``, and the rows numbered without the others.

    >>> ids, rows = rated_ids(Vocabulary(["ann", "bob", "eve"]), np.array([2, 0, 2]))
    >>> ids.ids.tolist(), rows.tolist()
    (['ann', 'eve'], [1, 0, 1])
    """
    occurs = np.zeros(len(ids), dtype=bool)
    occurs[rows] = True
    numbers = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    return Vocabulary(ids.ids[occurs]), numbers[rows]


def in_order(
    ratings: Any, y: Any, columns: Any, *, users: Vocabulary, items: Vocabulary
) -> Columns:
    """Read anything that holds ratings, row by row; ids of text as those that are known.

    `Ratings`, which have no order of their own, come by time or, without times, user by user.

    >>> data = Ratings.from_any([("al", "tea", 5, 30), ("bo", "tea", 3, 10), ("bo", "ale", 1, 20)])
    >>> in_order(data, None, None, users=Vocabulary(), items=Vocabulary()).ratings
    array([3., 1., 5.], dtype=float32)
    """
    if y is not None:
        ratings, columns = (*pairs_from_any(ratings, columns, users=users, items=items), y), None
    elif isinstance(ratings, Ratings):
        user_ids, item_ids = pairs_from_any(ratings)
        times, values = ratings.timestamps, ratings.by_user.values
        order = slice(None) if times is None else np.argsort(times, kind="stable")
        ratings, columns = (user_ids[order], item_ids[order], values[order]), None
    return read_columns(ratings, columns, users=users, items=items)
