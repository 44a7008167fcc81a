"""The two-way map between ids and rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, reduce
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf.reading.identifiers import CodedIds, Distinct, as_array, factorise

_OFTEN = 2  # once so many times as many ids as are known have been looked up, they are indexed
_BULK = 8  # looking up more than 1/8 as many ids as are known: hash them all at once in Arrow
_PLACES = 8  # for each id, at most, of a table of whole numbers …
_FREE_PLACES = 4096  # … and some more
_FAR = 2**62
_SEARCHES = 100  # for similar ids, in all
_ALIKE = 1000  # more ids that share a part with a text are not looked through


class _Table:
    """Rows of whole numbers that lie close together, at the places of the numbers.

    >>> table = _Table.of(np.array([7, 5]))
    >>> table.find(np.array([5, 6, 7, -9]))
    array([ 1, -1,  0, -1])
    """

    def __init__(self, before: int, rows: NDArray[np.int64]) -> None:
        self._before = before  # the number whose place is the first
        self._rows = rows  # the first and the last are of no number: all that are outside go there

    @classmethod
    def of(cls, ids: NDArray[np.int64], room: int = 0) -> _Table | None:
        """Return a table of ids, with ``room`` for others; None where they are far apart."""
        if not len(ids):
            return None
        low, high = int(ids.min()), int(ids.max())
        if max(-low, high) > _FAR or high - low > _PLACES * len(ids) + _FREE_PLACES:
            return None
        table = cls(low - 1 - room, np.full(high - low + 3 + 2 * room, -1))
        table._rows[ids - table._before] = np.arange(len(ids))
        return table

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each id, or -1."""
        return self._rows.take(ids - self._before, mode="clip")

    def forget(self, size: int) -> None:
        """Keep the first ``size`` rows alone."""
        self._rows[self._rows >= size] = -1

    def with_more(self, ids: NDArray[Any], first: int) -> _Table | None:
        """Return a table of all these ids, of which those from row ``first`` on are new."""
        if ids.dtype != np.int64:
            return None
        new = ids[first:]
        if new.min() <= self._before or new.max() >= self._before + len(self._rows) - 1:
            return self.of(ids, room=len(ids))
        self._rows[new - self._before] = np.arange(first, len(ids))
        return self


class Vocabulary:
    """Growable map between ids (any hashable) and dense row numbers, in order of first appearance.

    An id found to equal a known one is that one: ``np.int32(5)``, ``5`` and ``5.0`` are one id,
    ``1`` and ``"1"`` are two. ``None`` and NaN are no ids.

    >>> people = Vocabulary(["ann", "bob"])
    >>> people.add(["bob", "eve"])
    array([1, 2])
    >>> people.rows(["eve", "zoe"])
    array([ 2, -1])
    >>> people.ids[2], len(people), "zoe" in people
    ('eve', 3, False)
    """

    def __init__(self, ids: Any = ()) -> None:
        self._size = 0
        self._buffer: NDArray[Any] | None = np.empty(0, np.int64)  # None while only text is held
        self._text: Any = None  # all ids as Arrow text, as long as nothing was added to them
        self._index: dict[Any, int] | None = None  # built when first needed
        self._table: _Table | None = None  # instead of an index, where ids are suitable
        self._asked = 0  # ids looked up so far
        self._searches = 0  # for similar ids so far
        self.add(ids)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, id: Any) -> bool:
        return id in self._rows_by_id()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return len(self) == len(other) and self.ids.tolist() == other.ids.tolist()

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self.ids[:3].tolist())) + (", …" if len(self) > 3 else "")
        return f"Vocabulary({len(self)} ids: {some})"

    @property
    def ids(self) -> NDArray[Any]:
        """The id of each row: an int64 array where all ids are integers, else an object array.

        >>> Vocabulary([30, 10]).ids
        array([30, 10])
        """
        view = self._objects()[: self._size]
        view.flags.writeable = False
        return view

    def rows(self, ids: Any) -> NDArray[np.int64]:
        """Row number of each id, -1 where it is not known.

        >>> Vocabulary([30, 10]).rows(np.array([10, 20, 30]))
        array([ 1, -1,  0])
        """
        is_array = type(ids) is np.ndarray and ids.ndim == 1  # a masked one may lack ids
        if is_array and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
            self._prepare(len(ids))
            if self._table is not None:
                return self._table.find(ids.astype(np.int64, copy=False))
        if self._index is not None and _is_plain(ids, fewer_than=self._size):
            return self._one_by_one(ids)
        coded = factorise(ids)
        rows: NDArray[np.int64] = self._find(coded.distinct)[coded.codes]
        return rows

    def add(self, ids: Any) -> NDArray[np.int64]:
        """Row number of each id; those not known yet are appended.

        >>> Vocabulary().add(["b", "a", "b"])
        array([0, 1, 0])
        """
        return self.add_coded(factorise(ids)).astype(np.int64)

    def add_coded(self, coded: CodedIds) -> NDArray[np.int32]:
        """Add ids that are factorised already, and return their rows in 32 bits.

        >>> Vocabulary(["a"]).add_coded(factorise(["b", "a"])).tolist()
        [1, 0]
        """
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
        translated: NDArray[np.int32] = rows.astype(np.int32)[coded.codes]
        return translated

    def knows_all(self, coded: CodedIds) -> bool:
        """Whether every one of these factorised ids has a row.

        >>> Vocabulary(["a"]).knows_all(factorise(["a", "b"]))
        False
        """
        return bool((self._find(coded.distinct) >= 0).all())

    def similar(self, text: str, *, spread: int = 2) -> list[str]:
        """Return ids of text that have the numbers of ``text`` and a third of it, and its length.

        Of more than 1,000 such ids none: they are alike anyway. After a hundred searches, unknown
        ids are usual here, and there are no more.

        >>> Vocabulary(["Matrix", "Alien", "matrx"]).similar("matrix")
        ['Matrix', 'matrx']
        """
        if self._searches >= _SEARCHES or not self._size or not _is_utf8(text):
            return []
        if self._text is None and self._objects().dtype != object:
            return []
        self._searches += 1
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._text
        if known is None:
            texts = [id for id in self.ids.tolist() if isinstance(id, str) and _is_utf8(id)]
            known = pa.array(texts, pa.large_string())
        for digits in re.findall("[0-9]+", text):
            known = known.filter(pc.match_substring(known, digits))
        length = pc.utf8_length(known)
        known = known.filter(pc.less_equal(pc.abs(pc.subtract(length, len(text))), spread))
        lower = pc.utf8_lower(known)
        third = max(1, len(text) // 3)
        # An id with two typos has one of three parts without any.
        parts = text[:third], text[third:-third] or text, text[-third:]
        shared = reduce(pc.or_, (pc.match_substring(lower, part.lower()) for part in parts))
        chosen = known.filter(shared)
        similar: list[str] = chosen.to_pylist() if len(chosen) <= _ALIKE else []
        return similar

    def copy(self) -> Vocabulary:
        """Make an independent copy with the same rows.

        >>> first = Vocabulary(["a"])
        >>> second = first.copy()
        >>> second.add(["b"]).tolist(), len(first)
        ([1], 1)
        """
        twin = Vocabulary()
        twin._size = self._size
        twin._text = self._text  # Arrow arrays do not change
        twin._buffer = None if self._buffer is None else self._buffer[: self._size].copy()
        twin._index = None if self._index is None else self._index.copy()
        return twin

    def mark(self) -> Callable[[], None]:
        """Return a function that takes back the ids that will be added from now on.

        >>> people = Vocabulary(["ann"])
        >>> undo = people.mark()
        >>> people.add(["bob"]), undo(), people.rows(["bob", "ann"])
        (array([1]), None, array([-1,  0]))
        """
        return partial(self._back_to, vars(self).copy())

    def _back_to(self, before: dict[str, Any]) -> None:
        size = before["_size"]
        if self._size != size:  # it is put back last, so that this is done again if it must be
            index, table = before["_index"], before["_table"]
            if table is not None:
                table.forget(size)
            if index is not None:
                for id in [id for id, row in index.items() if row >= size]:
                    index.pop(id, None)
        vars(self).update(before)

    def _find(self, distinct: Distinct) -> NDArray[np.int64]:
        """Row of each distinct id, or -1."""
        self._prepare(len(distinct))
        is_whole = isinstance(distinct, np.ndarray) and distinct.dtype == np.int64
        if self._table is not None and is_whole:
            return self._table.find(distinct)
        dear = _BULK if self._index is None else 1
        is_bulk = len(distinct) * dear >= self._size
        known = self._as_arrow_like(distinct) if is_bulk else None
        if known is not None:
            import pyarrow as pa
            import pyarrow.compute as pc

            wanted = pa.array(distinct) if isinstance(distinct, np.ndarray) else distinct
            found = pc.index_in(wanted, value_set=known).fill_null(-1)
            rows: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
            return rows
        return self._one_by_one(as_array(distinct))

    def _prepare(self, n: int) -> None:
        """Make a table or an index where n ids are few to look up, or many were by now."""
        self._asked += n
        if not self._size or self._table is not None or self._index is not None:
            return
        if self._asked >= _OFTEN * self._size or n * _BULK < self._size:
            if self._buffer is not None and self._buffer.dtype == np.int64:
                self._table = _Table.of(self._buffer[: self._size])
            if self._table is None:
                self._rows_by_id()

    def _one_by_one(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        found = map(self._rows_by_id().get, ids.tolist(), repeat(-1))
        return np.fromiter(found, np.int64, count=len(ids))

    def _as_arrow_like(self, distinct: Distinct) -> Any:
        """All known ids as an Arrow array of the type of ``distinct``; None where they are not."""
        if not isinstance(distinct, np.ndarray):
            return self._text
        if distinct.dtype != np.int64 or self._buffer is None or self._buffer.dtype != np.int64:
            return None
        import pyarrow as pa

        return pa.array(self._buffer[: self._size])

    def _rows_by_id(self) -> dict[Any, int]:
        if self._index is None:
            self._index = dict(zip(self.ids.tolist(), range(self._size), strict=True))
        return self._index

    def _objects(self) -> NDArray[Any]:
        if self._buffer is None:
            self._buffer = as_array(self._text)
        return self._buffer

    def _append(self, distinct: Distinct) -> None:
        start, end = self._size, self._size + len(distinct)
        if start == 0:
            is_array = isinstance(distinct, np.ndarray)
            self._buffer = distinct.copy() if is_array else None
            self._text = None if is_array else distinct
        else:
            buffer = self._objects()
            if buffer.dtype != distinct.dtype:
                buffer = buffer.astype(object)
            if end > len(buffer):  # doubling keeps the cost of one addition constant
                grown = np.empty(max(end, 2 * start), buffer.dtype)
                grown[:start] = buffer[:start]
                buffer = grown
            buffer[start:end] = distinct
            self._buffer, self._text = buffer, None
        self._size = end
        if self._table is not None:
            self._table = self._table.with_more(self._objects()[:end], start)
        if self._index is not None:
            self._index.update(zip(as_array(distinct).tolist(), range(start, end), strict=True))


def _is_utf8(text: str) -> bool:
    """Whether it is text that Arrow can hold: some, and without half surrogates."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _is_plain(ids: Any, *, fewer_than: int) -> bool:
    """Whether it is a short array of text or whole numbers alone, which are ids as they are."""
    if type(ids) is not np.ndarray or ids.ndim != 1 or len(ids) >= fewer_than:
        return False
    if ids.dtype == object:
        return set(map(type, ids.tolist())) <= {int, str}
    return ids.dtype.kind in "iuU"
