"""Ids as people pass them: one, many, or one for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError
from hemf.vocabulary import Vocabulary


def as_ids(ids: Any, known: Vocabulary) -> tuple[Any, bool]:
    """Return a list or array of ids, and whether it was a single id rather than many.

    A tuple is one id where ids are tuples, that is, where any that is ``known`` is one; otherwise
    it holds several ids, as a list does.

    >>> as_ids("ann", Vocabulary(["ann"]))
    (array(['ann'], dtype=object), True)
    >>> as_ids(("ann", "bob"), Vocabulary(["ann"]))
    (['ann', 'bob'], False)
    >>> as_ids(("ann", 3), Vocabulary([("bob", 1)]))
    (array([('ann', 3)], dtype=object), True)
    """
    if isinstance(ids, np.ndarray) and ids.ndim == 0:
        ids = ids[()]
    if isinstance(ids, tuple) and not _holds_tuples(known):
        return list(ids), False
    if _is_one(ids):
        return repeated(ids, 1), True
    return (list(ids) if isinstance(ids, Iterator) else ids), False


def as_times(timestamps: Any, n: int) -> npt.NDArray[np.int64]:
    """Return times as whole numbers, one for each of n pairs; a single one is for all of them.

    >>> as_times(7, 2)
    array([7, 7])
    """
    from hemf.reading.values import timestamps_from

    timestamps = list(timestamps) if isinstance(timestamps, Iterator) else timestamps
    if isinstance(timestamps, np.datetime64):
        timestamps = np.array([timestamps])
    alone = isinstance(timestamps, str | bytes) or np.ndim(timestamps) == 0
    values = [timestamps] if alone else timestamps
    times = timestamps_from(values) if len(values) else np.empty(0, np.int64)
    if times.size == 1:
        times = np.repeat(times, n)
    if times.size != n:
        raise DataError(f"there are {times.size} timestamps for {n} pairs", value=times.size)
    return times


def paired(users: tuple[Any, bool], items: tuple[Any, bool]) -> tuple[Any, Any, bool]:
    """Return ids of equal number, one repeated for many, and whether it was a single pair.

    >>> users, items, single = paired((["ann"], True), (["tea", "milk"], False))
    >>> users.tolist(), single
    (['ann', 'ann'], False)
    """
    (user_ids, one_user), (item_ids, one_item) = users, items
    if one_user and not one_item:
        user_ids = repeated(user_ids[0], len(item_ids))
    elif one_item and not one_user:
        item_ids = repeated(item_ids[0], len(user_ids))
    if len(user_ids) != len(item_ids):
        raise DataError(f"{len(user_ids)} users and {len(item_ids)} items do not pair up")
    return user_ids, item_ids, one_user and one_item


def repeated(value: Any, times: int) -> npt.NDArray[Any]:
    """Return an object array that holds the same id many times, whatever its type.

    >>> repeated(("ann", 3), 1)
    array([('ann', 3)], dtype=object)
    """
    ids = np.empty(times, dtype=object)
    ids[:] = [value] * times
    return ids


def _is_one(ids: Any) -> bool:
    if isinstance(ids, str | bytes | tuple | Set | Mapping):
        return True
    many = hasattr(ids, "__len__") or isinstance(ids, Iterator)
    return not many or getattr(ids, "ndim", 1) == 0


def _holds_tuples(known: Vocabulary) -> bool:
    return known.ids.dtype == object and any(isinstance(id, tuple) for id in known.ids)
