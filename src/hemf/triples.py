"""Ratings as a learner takes them that goes over them one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError, DuplicateWarning, warn_caller
from hemf.ratings import Ratings, pairs_from_any
from hemf.reading.identifiers import CodedIds
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
        by_time = () if times is None else (times[order],)
        ratings, columns = (user_ids[order], item_ids[order], values[order], *by_time), None
    return read_columns(ratings, columns, users=users, items=items)


def averaged(
    users: RowNumbers, items: RowNumbers, values: Any, times: Any
) -> tuple[RowNumbers, RowNumbers, Any, Any]:
    """Return each pair once, with the mean of its ratings and the time of its last.

    >>> averaged(np.int32([0, 1, 0]), np.int32([0, 0, 0]), np.float64([5, 3, 4]), None)[2]
    array([4.5, 3. ])
    """
    key = users.astype(np.int64) * (int(items.max(initial=0)) + 1) + items
    _, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    if first.size == key.size:
        return users, items, values, times
    means = np.bincount(inverse, values) / counts
    if times is not None:
        latest = np.full(first.size, np.iinfo(np.int64).min)
        np.maximum.at(latest, inverse, times)
        times = latest
    return users[first], items[first], means, times


def without_repeats(
    users: CodedIds, items: CodedIds, values: Any, before: Any, duplicates: str, times: Any = None
) -> tuple[CodedIds, CodedIds, Any, Any, Any]:
    """Settle pairs that a batch holds more than once; ``before`` is what each was rated earlier.

    Of ``times``, if there are any, the last of each pair is kept.

    >>> from hemf.reading.identifiers import factorise
    >>> users, items = factorise(["al", "bo", "al"]), factorise(["tea", "tea", "tea"])
    >>> values, nan = np.float32([5, 3, 4]), np.full(3, np.nan, np.float32)
    >>> users, _, values, _, _ = without_repeats(users, items, values, nan, "mean")
    >>> users.decode().tolist(), values.tolist()
    (['bo', 'al'], [3.0, 4.5])
    """
    key = users.codes.astype(np.int64) * len(items.distinct) + items.codes
    ascending = np.sort(key)
    if not (ascending[1:] == ascending[:-1]).any():
        return users, items, values, before, times
    _, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    twice = int(np.flatnonzero(counts > 1)[0])
    rows = np.flatnonzero(inverse == twice)
    pair = (users.decode().item(int(rows[0])), items.decode().item(int(rows[0])))
    where = f"user {pair[0]!r} and item {pair[1]!r} at rows {rows[0]} and {rows[1]}"
    if duplicates == "error":
        raise DataError(
            f"{key.size - first.size} ratings are of a pair that is in the batch twice, such as "
            f'{where}; remove them, or choose duplicates="last" or "mean"',
            value=pair,
            row=int(rows[1]),
        )
    last = np.full(first.size, -1)
    np.maximum.at(last, inverse, np.arange(key.size))
    kept = np.sort(last)
    if duplicates == "mean":
        means = np.bincount(inverse, values.astype(np.float64)) / counts
        values = means[inverse]
    else:
        warn_caller(
            f"{key.size - first.size} ratings were replaced by a later one of the same pair, such "
            f"as {where}",
            DuplicateWarning,
        )
    return (
        replace(users, codes=users.codes[kept]),
        replace(items, codes=items.codes[kept]),
        values[kept],
        before[first][inverse][kept],
        None if times is None else times[kept],
    )
