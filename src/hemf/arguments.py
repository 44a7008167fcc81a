"""Ids as people pass them: one, many, or one for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError


def paired(users: Any, items: Any) -> tuple[Any, Any, bool]:
    """Return ids of equal number, one repeated for many, and whether it was a single pair.

    >>> users, items, single = paired("ann", ["tea", "milk"])
    >>> users.tolist(), single
    (['ann', 'ann'], False)
    """
    one_user, one_item = is_one(users), is_one(items)
    users, items = as_ids(users), as_ids(items)
    if one_user and not one_item:
        users = repeated(users[0], len(items))
    elif one_item and not one_user:
        items = repeated(items[0], len(users))
    if len(users) != len(items):
        raise DataError(f"{len(users)} users and {len(items)} items do not pair up")
    return users, items, one_user and one_item


def is_one(ids: Any) -> bool:
    """Whether this is a single id rather than many; a tuple is an id, as in a dict.

    >>> is_one("ann"), is_one(["ann"]), is_one(("ann", 3))
    (True, False, True)
    """
    if isinstance(ids, str | bytes | tuple | Set | Mapping):
        return True
    many = hasattr(ids, "__len__") or isinstance(ids, Iterator)
    return not many or getattr(ids, "ndim", 1) == 0


def as_ids(ids: Any) -> Any:
    """Return a list or array of ids."""
    if isinstance(ids, np.ndarray) and ids.ndim == 0:
        ids = ids[()]
    if is_one(ids):
        return repeated(ids, 1)
    return list(ids) if isinstance(ids, Iterator) else ids


def repeated(value: Any, times: int) -> npt.NDArray[Any]:
    """Return an object array that holds the same id many times, whatever its type."""
    ids = np.empty(times, dtype=object)
    ids[:] = [value] * times
    return ids
