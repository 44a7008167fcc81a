"""The two-way map between ids and row numbers, and ids as callers pass them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import reduce
from itertools import repeat

import numpy as np

from hemf._arrays import with_room
from hemf._typing import AnyArray, ArrowArray, DistinctIds, IdsLike, Int32Array, Int64Array
from hemf.data.columns import CodedIds, as_array, factorise
from hemf.errors import DataError

_INDEX_AFTER = 2  # build an index once this many times the number of ids have been looked up
_BULK = 8  # hash all ids in Arrow to look up more than 1/8 of their number
_PLACES_PER_ID = 8  # in a table of integers, at most …
_FREE_PLACES = 4096  # … and these in addition
_MAX_TABLE_ID = 2**62
_MAX_SEARCHES = 100  # for similar ids
_MAX_SIMILAR = 1000


class _Table:
    """Rows of integers in a small range, found by the integer itself."""

    def __init__(self, offset: int, rows: Int64Array) -> None:
        self._offset = offset  # the integer of the first place
        self._rows = rows  # -1 at the first and last place, where integers out of range end up

    @classmethod
    def of(cls, ids: Int64Array, room: int = 0) -> _Table | None:
        """Return a table of ids with ``room`` on both sides; None if they are too far apart."""
        if not len(ids):
            return None
        low, high = int(ids.min()), int(ids.max())
        if max(-low, high) > _MAX_TABLE_ID:
            return None
        if high - low > _PLACES_PER_ID * len(ids) + _FREE_PLACES:
            return None
        offset, rows = low - 1 - room, np.full(high - low + 3 + 2 * room, -1)
        rows[ids - offset] = np.arange(len(ids))
        return cls(offset, rows)

    def find(self, ids: Int64Array) -> Int64Array:
        """Return the row of each id, or -1."""
        return self._rows.take(ids - self._offset, mode="clip")

    def truncate(self, size: int) -> None:
        """Remove rows from ``size`` on."""
        self._rows[self._rows >= size] = -1

    def extended(self, ids: AnyArray, first: int) -> _Table | None:
        """Return a table of all ids; those from row ``first`` on are new."""
        if ids.dtype != np.int64:
            return None
        new = ids[first:]
        if new.min() <= self._offset or new.max() >= self._offset + len(self._rows) - 1:
            return self.of(ids, room=len(ids))
        self._rows[new - self._offset] = np.arange(first, len(ids))
        return self


class Vocabulary:
    """Growable map between ids (any hashable) and row numbers, in order of first appearance.

    Ids that are equal in Python are the same id: ``np.int32(5)``, ``5`` and ``5.0`` are one,
    ``1`` and ``"1"`` are two. ``None`` and NaN are not allowed.

    >>> people = Vocabulary(["ann", "bob"])
    >>> people.add(["bob", "eve"])
    array([1, 2])
    >>> people.rows(["eve", "zoe"])
    array([ 2, -1])
    >>> people.ids[2], len(people), "zoe" in people
    ('eve', 3, False)
    """

    def __init__(self, ids: IdsLike = ()) -> None:
        self._size = 0
        self._buffer: AnyArray | None = np.empty(0, np.int64)  # None: the ids are in _text only
        self._text: ArrowArray = None  # all ids as Arrow text, until another id is added
        self._index: dict[object, int] | None = None  # built on demand
        self._table: _Table | None = None  # used instead of the index for suitable integers
        self._n_lookups = 0
        self._n_searches = 0
        self.add(ids)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, id: object) -> bool:
        return id in self._rows_by_id()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return len(self) == len(other) and self.ids.tolist() == other.ids.tolist()

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self.ids[:3].tolist())) + (", …" if len(self) > 3 else "")
        return f"Vocabulary({len(self)} ids: {some})"

    @property
    def ids(self) -> AnyArray:
        """The id of each row: an int64 array if all ids are integers, else an object array."""
        view = self._objects()[: self._size]
        view.flags.writeable = False
        return view

    def rows(self, ids: IdsLike) -> Int64Array:
        """Return the row number of each id, -1 for unknown ids."""
        is_array = type(ids) is np.ndarray and ids.ndim == 1  # a masked array may lack ids
        if is_array and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
            self._prepare(len(ids))
            if self._table is not None:
                return self._table.find(ids.astype(np.int64, copy=False))
        if self._index is not None and is_array and len(ids) < self._size:
            kind = ids.dtype.kind
            if kind in "iuU" or (kind == "O" and set(map(type, ids.tolist())) <= {int, str}):
                return self._find_in_index(ids)
        coded = factorise(ids)
        rows: Int64Array = self._find(coded.distinct)[coded.codes]
        return rows

    def add(self, ids: IdsLike) -> Int64Array:
        """Return the row number of each id; append unknown ids."""
        return self.add_coded(factorise(ids)).astype(np.int64)

    def add_coded(self, coded: CodedIds) -> Int32Array:
        """Add factorised ids and return their rows."""
        if not len(coded.distinct):
            return np.empty(0, np.int32)
        if self._size == 0:
            self._append(coded.distinct)
            return coded.codes
        rows = self._find(coded.distinct)
        new = rows < 0
        if new.any():
            rows[new] = np.arange(self._size, self._size + new.sum())
            self._append(as_array(coded.distinct)[new])
        translated: Int32Array = rows.astype(np.int32)[coded.codes]
        return translated

    def knows_all(self, coded: CodedIds) -> bool:
        """Whether every factorised id has a row."""
        return bool((self._find(coded.distinct) >= 0).all())

    def similar(self, text: str, *, length_difference: int = 2) -> list[str]:
        """Return text ids of similar length that share the digits and a third of ``text``.

        Returns none if there are more than 1,000 of them, and none after 100 searches: unknown ids
        are then usual.

        >>> Vocabulary(["Matrix", "Alien", "matrx"]).similar("matrix")
        ['Matrix', 'matrx']
        """
        if self._n_searches >= _MAX_SEARCHES or not self._size or not _is_utf8(text):
            return []
        if self._text is None and self._objects().dtype != object:
            return []
        self._n_searches += 1
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._text
        if known is None:
            texts = [id for id in self.ids.tolist() if isinstance(id, str) and _is_utf8(id)]
            known = pa.array(texts, pa.large_string())
        for digits in re.findall("[0-9]+", text):
            known = known.filter(pc.match_substring(known, digits))
        difference = pc.abs(pc.subtract(pc.utf8_length(known), len(text)))
        known = known.filter(pc.less_equal(difference, length_difference))
        lower = pc.utf8_lower(known)
        third = max(1, len(text) // 3)
        # An id with two typos has one of three parts without any.
        parts = text[:third], text[third:-third] or text, text[-third:]
        shared = reduce(pc.or_, (pc.match_substring(lower, part.lower()) for part in parts))
        chosen = known.filter(shared)
        similar: list[str] = chosen.to_pylist() if len(chosen) <= _MAX_SIMILAR else []
        return similar

    def copy(self) -> Vocabulary:
        """Return an independent copy with the same rows."""
        twin = Vocabulary()
        twin._size = self._size
        twin._text = self._text  # Arrow arrays are immutable
        twin._buffer = None if self._buffer is None else self._buffer[: self._size].copy()
        twin._index = None if self._index is None else self._index.copy()
        return twin

    def mark(self) -> Callable[[], None]:
        """Return a function that removes all ids added after this call."""
        size, buffer, text = self._size, self._buffer, self._text
        index, table = self._index, self._table
        n_lookups, n_searches = self._n_lookups, self._n_searches

        def undo() -> None:
            if self._size != size:
                if table is not None:
                    table.truncate(size)
                if index is not None:
                    for id in [id for id, row in index.items() if row >= size]:
                        index.pop(id, None)
            self._buffer, self._text, self._index, self._table = buffer, text, index, table
            self._n_lookups, self._n_searches = n_lookups, n_searches
            self._size = size  # last: an interrupted undo can be repeated

        return undo

    def _find(self, distinct: DistinctIds) -> Int64Array:
        """Return the row of each distinct id, or -1."""
        self._prepare(len(distinct))
        is_array = isinstance(distinct, np.ndarray)
        are_integers = is_array and distinct.dtype == np.int64
        if self._table is not None and are_integers:
            return self._table.find(distinct)
        if len(distinct) * (_BULK if self._index is None else 1) >= self._size:
            known = self._text
            if is_array:
                buffer = self._buffer
                both = are_integers and buffer is not None and buffer.dtype == np.int64
                known = buffer[: self._size] if both and buffer is not None else None
            if known is not None:
                import pyarrow as pa
                import pyarrow.compute as pc

                wanted = pa.array(distinct) if is_array else distinct
                values = pa.array(known) if is_array else known
                found = pc.index_in(wanted, value_set=values).fill_null(-1)
                rows: Int64Array = found.to_numpy(zero_copy_only=False).astype(np.int64)
                return rows
        return self._find_in_index(as_array(distinct))

    def _prepare(self, n: int) -> None:
        """Build a table or an index if n ids are few, or many have been looked up by now."""
        self._n_lookups += n
        if not self._size or self._table is not None or self._index is not None:
            return
        if self._n_lookups >= _INDEX_AFTER * self._size or n * _BULK < self._size:
            if self._buffer is not None and self._buffer.dtype == np.int64:
                self._table = _Table.of(self._buffer[: self._size])
            if self._table is None:
                self._rows_by_id()

    def _find_in_index(self, ids: AnyArray) -> Int64Array:
        found = map(self._rows_by_id().get, ids.tolist(), repeat(-1))
        return np.fromiter(found, np.int64, count=len(ids))

    def _rows_by_id(self) -> dict[object, int]:
        if self._index is None:
            self._index = dict(zip(self.ids.tolist(), range(self._size), strict=True))
        return self._index

    def _objects(self) -> AnyArray:
        if self._buffer is None:
            self._buffer = as_array(self._text)
        return self._buffer

    def _append(self, distinct: DistinctIds) -> None:
        start, end = self._size, self._size + len(distinct)
        if start == 0:
            is_array = isinstance(distinct, np.ndarray)
            self._buffer = distinct.copy() if is_array else None
            self._text = None if is_array else distinct
        else:
            buffer = self._objects()
            if buffer.dtype != distinct.dtype:
                buffer = buffer.astype(object)
            buffer = with_room(buffer, start, end)
            buffer[start:end] = distinct
            self._buffer, self._text = buffer, None
        self._size = end
        if self._table is not None:
            self._table = self._table.extended(self._objects()[:end], start)
        if self._index is not None:
            self._index.update(zip(as_array(distinct).tolist(), range(start, end), strict=True))


def _is_utf8(text: str) -> bool:
    """Whether text is not empty and without lone surrogates, which Arrow cannot hold."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def as_ids(ids: IdsLike, known: Vocabulary) -> tuple[IdsLike, bool]:
    """Return a list or array of ids, and whether a single id was passed.

    A tuple is a single id if any ``known`` id is a tuple; otherwise it holds several ids.

    >>> as_ids("ann", Vocabulary(["ann"]))
    (array(['ann'], dtype=object), True)
    >>> as_ids(("ann", "bob"), Vocabulary(["ann"]))
    (['ann', 'bob'], False)
    >>> as_ids(("ann", 3), Vocabulary([("bob", 1)]))
    (array([('ann', 3)], dtype=object), True)
    """
    if isinstance(ids, np.ndarray) and ids.ndim == 0:
        ids = ids[()]
    if isinstance(ids, tuple) and not (
        known.ids.dtype == object and any(isinstance(id, tuple) for id in known.ids)
    ):
        return list(ids), False
    if isinstance(ids, str | bytes | tuple | Set | Mapping):
        return repeat_id(ids, 1), True
    has_many = hasattr(ids, "__len__") or isinstance(ids, Iterator)
    if not has_many or getattr(ids, "ndim", 1) == 0:
        return repeat_id(ids, 1), True
    return (list(ids) if isinstance(ids, Iterator) else ids), False


def pair_up(
    users: tuple[IdsLike, bool], items: tuple[IdsLike, bool]
) -> tuple[IdsLike, IdsLike, bool]:
    """Return as many users as items, and whether it is a single pair.

    Takes two results of `as_ids`. A single id is repeated for each id of the other side.
    """
    (user_ids, one_user), (item_ids, one_item) = users, items
    if one_user and not one_item:
        user_ids = repeat_id(user_ids[0], len(item_ids))
    elif one_item and not one_user:
        item_ids = repeat_id(item_ids[0], len(user_ids))
    if len(user_ids) != len(item_ids):
        raise DataError(f"{len(user_ids)} users and {len(item_ids)} items do not pair up")
    return user_ids, item_ids, one_user and one_item


def repeat_id(id: object, times: int) -> AnyArray:
    """Return an object array that holds an id several times, even if it is a tuple."""
    ids = np.empty(times, dtype=object)
    ids[:] = [id] * times
    return ids
