"""Ratings that learning has seen, held so that new ones can be added to any row.

A rating takes 12 bytes: on each side 4 for the row of the other side and 2 for its code, which is
the place of its value in a `RatingBook`. Where more than 65,536 different values occur, codes take
4 bytes, and a rating 16. Where raters have moods, each side also has the number of the rating's
sitting: 8 bytes more.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hemf._typing import Int32Array, Int64Array
from hemf.online.journal import Undo, restore

Values = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.unsignedinteger[Any]]

NARROW_CODES = 65_536
"""As many codes fit into 16 bits."""
LEAST_ROOM = 16  # rows, entries or values
RECENT_VALUES = 1024


def distinct(rows: Int64Array) -> Int64Array:
    """Return the rows that occur, ascending.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    if rows.size < 2:
        return rows
    # NumPy's own, which can do much more, takes several times as long for a thousand.
    ascending = np.sort(rows)
    is_first = np.ones(rows.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return ascending[is_first]


def by_pair(name: str, indptr: Int64Array, others: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Return the row of each entry of a side's lists, and the order of entries by user and item.

    >>> rows, order = by_pair("item", np.array([0, 2, 3]), np.array([1, 0, 0]))
    >>> rows.tolist(), order.tolist()
    ([0, 0, 1], [1, 2, 0])
    """
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return rows, np.lexsort((others, rows) if name == "user" else (rows, others))


class RatingBook:
    """The distinct rating values, numbered in the order in which they were first seen.

    They are kept in float64, which holds every value that is given.

    >>> book = RatingBook()
    >>> book.codes(np.float32([4, 3.5, 4])).tolist(), book.values.tolist()
    ([0, 1, 0], [4.0, 3.5])
    >>> book.known(np.float32([3.5, 2])).tolist(), len(book)
    ([1, -1], 2)
    """

    def __init__(self) -> None:
        self._values: Values = np.empty(0, np.float64)
        self._count = 0
        # Most values are in the long index, the latest in a short one: where every rating is
        # another number, adding one would otherwise move millions.
        self._settled = self._recent = _Index.empty()

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Values:
        """The value of each code; good until values are added or taken back."""
        return self._values[: self._count]

    def known(self, values: Values) -> Int64Array:
        """Return the code of each value, -1 for those not in the book, which stays as it is."""
        values = values.astype(np.float64, copy=False)
        codes = self._recent.find(values)
        if len(self._settled.values):
            missed = np.flatnonzero(codes < 0)
            if len(missed):
                codes[missed] = self._settled.find(values[missed])
        return codes

    def codes(self, values: Values) -> Int64Array:
        """Return the code of each value; those not seen before are added."""
        codes = self.known(values)
        new = codes < 0
        if new.any():
            self._add(values[new].astype(np.float64))
            codes = self.known(values)
        return codes

    def truncate(self, count: int) -> None:
        """Take back all values but the first ``count``: with an earlier length, all added since.

        >>> book = RatingBook()
        >>> _ = book.codes(np.float32([4])), book.codes(np.float32([3, 5]))
        >>> book.truncate(1)
        >>> book.values.tolist(), book.known(np.float32([5, 4])).tolist()
        ([4.0], [-1, 0])
        """
        if count < self._count:
            self._settled, self._recent = self._settled.below(count), self._recent.below(count)
            self._count = count

    def _add(self, values: Values) -> None:
        distinct, first = np.unique(values, return_index=True)
        rank = np.empty(len(first), np.uint32)
        rank[np.argsort(first)] = np.arange(len(first))
        count = self._count + len(distinct)
        stored = _with_room(self._values, self._count, count)
        stored[self._count + rank.astype(np.int64)] = distinct
        settled = self._settled
        recent = self._recent.merged(_Index(distinct, rank + np.uint32(self._count)))
        if len(recent.values) > max(RECENT_VALUES, 8 * int(len(settled.values) ** 0.5)):
            settled, recent = settled.merged(recent), _Index.empty()
        self._values, self._settled, self._recent = stored, settled, recent
        self._count = count


class _Index(NamedTuple):
    """Values in ascending order, each with its code."""

    values: Values
    codes: npt.NDArray[np.uint32]

    @classmethod
    def empty(cls) -> _Index:
        return cls(np.empty(0, np.float64), np.empty(0, np.uint32))

    def find(self, wanted: Values) -> Int64Array:
        if not len(self.values):
            return np.full(len(wanted), -1)
        place = self.values.searchsorted(wanted)
        codes = self.codes.take(place, mode="clip").astype(np.int64)
        codes[self.values.take(place, mode="clip") != wanted] = -1
        return codes

    def merged(self, other: _Index) -> _Index:
        values = np.concatenate([self.values, other.values])
        order = np.argsort(values, kind="stable")  # of two sorted parts, a mere merge
        return _Index(values[order], np.concatenate([self.codes, other.codes])[order])

    def below(self, count: int) -> _Index:
        kept = self.codes < count
        return _Index(self.values[kept], self.codes[kept])


class History:
    """The ratings of one side: for each row a list of (row of the other side, code), newest last.

    Kernels read and change the lists through ``start``, ``length``, ``other`` and ``code`` (see
    `hemf.kernels.record`), which are good until the next `reserve`, `add_rows` or `widen`.

    >>> history = History.from_rows(np.array([0, 2, 3]), np.array([7, 5, 7]), np.array([0, 1, 1]))
    >>> history.row(0)
    (array([7, 5], dtype=int32), array([0, 1], dtype=uint16))
    >>> history.n_rows, history.n_ratings, history.other.nbytes + history.code.nbytes
    (2, 3, 18)
    """

    other: Int32Array
    """Pool of the lists' rows of the other side."""
    code: Codes
    """Pool of the lists' codes, 16 bits each or, after `widen`, 32."""
    sitting: Int32Array
    """Pool of the lists' sittings, of no size where there are none."""

    def __init__(self, n_rows: int = 0, *, has_sittings: bool = False) -> None:
        self._lists: Int64Array = np.zeros((3, n_rows), np.int64)
        self._count = n_rows
        # In an array, so that the kernel that moves lists can say itself where they end: an
        # interruption must not come between.
        self._used: Int64Array = np.zeros(1, np.int64)
        self.other, self.code = np.empty(0, np.int32), np.empty(0, np.uint16)
        self.sitting, self.has_sittings = np.empty(0, np.int32), has_sittings

    @classmethod
    def from_rows(cls, indptr: Any, indices: Any, codes: Any, sittings: Any = None) -> History:
        """Hold the lists ``indptr[i]`` to ``indptr[i + 1]`` of ``indices`` and ``codes``.

        ``sittings`` are those of the ratings, where raters have moods.
        """
        history = cls(len(indptr) - 1, has_sittings=sittings is not None)
        if sittings is not None:
            history.sitting = np.array(sittings, np.int32)
        wide = len(codes) > 0 and int(codes.max()) >= NARROW_CODES
        history._lists[0] = indptr[:-1]
        history._lists[1:] = np.diff(indptr)
        history._used[0] = len(indices)
        history.other = np.array(indices, np.int32)
        history.code = np.array(codes, np.uint32 if wide else np.uint16)
        return history

    @property
    def start(self) -> Int64Array:
        """Where in the pools each row's list begins."""
        return self._lists[0, : self._count]

    @property
    def length(self) -> Int64Array:
        """How many entries each row has."""
        return self._lists[1, : self._count]

    @property
    def room(self) -> Int64Array:
        """How many entries each row's list can have where it is."""
        return self._lists[2, : self._count]

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self._count

    @property
    def n_ratings(self) -> int:
        """How many entries all rows have together."""
        return int(self.length.sum())

    @property
    def nbytes(self) -> int:
        """Memory of the lists, room to grow included; it does not shrink."""
        pools = self.other.nbytes + self.code.nbytes + self.sitting.nbytes
        return self._lists.nbytes + pools

    def add_rows(self, n: int) -> None:
        """Add n rows without entries."""
        lists, count = self._lists, self._count + n
        if count > lists.shape[1]:
            grown = np.zeros((3, max(count, 2 * lists.shape[1], LEAST_ROOM)), np.int64)
            grown[:, : self._count] = lists[:, : self._count]
            self._lists = grown
        self._count = count

    def reserve(self, rows: Any, extra: Any, n_codes: int = 0) -> None:
        """Make room for ``extra[k]`` more entries in ``rows[k]``, no row being there twice.

        Codes are widened where ``n_codes`` different ones would not fit. Lists that outgrow their
        room move to the end of the pools; where these end too, all lists are copied to larger ones
        without the gaps that the moved ones left, so that gaps never need more than the quarter of
        the pools that was free at first.

        >>> history = History(2)
        >>> history.reserve(np.array([1]), np.array([5]))
        >>> history.room.tolist()
        [0, 8]
        """
        if n_codes > NARROW_CODES:
            self.widen()
        rows, extra = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(extra, np.int64)
        halves, width = self._halves()
        lists = self._lists
        if not _kernels().extend(
            rows, extra, lists[0], lists[1], lists[2], self._used, self.other, halves, width,
            self.sitting,
        ):  # fmt: skip
            self._rebuild(rows, extra)

    def make_room(self) -> None:
        """Make room at the end of the pools, where lists that grow move to."""
        nothing = np.empty(0, np.int64)
        self._rebuild(nothing, nothing)

    def widen(self) -> None:
        """Hold codes in 32 bits from now on."""
        self.code = self.code.astype(np.uint32, copy=False)

    def row(self, row: int) -> tuple[Int32Array, Codes]:
        """Return a copy of a row's entries: rows of the other side, and codes."""
        first = int(self.start[row])
        entries = slice(first, first + int(self.length[row]))
        return self.other[entries].copy(), self.code[entries].copy()

    def to_rows(self) -> tuple[Int64Array, Int32Array, Codes]:
        """Return what `from_rows` takes: indptr, indices and codes, without room to grow.

        >>> history = History(3)
        >>> [part.tolist() for part in history.to_rows()]
        [[0, 0, 0, 0], [], []]
        """
        indptr = np.concatenate([[0], np.cumsum(self.length)])
        indices, codes, _ = self._gathered(indptr[:-1], int(indptr[-1]))
        return indptr, indices, codes

    def sittings(self) -> Int32Array:
        """Return the sitting of each entry that `to_rows` returns; of no size without moods."""
        ends = np.cumsum(self.length)
        last = int(ends[-1]) if ends.size else 0
        return self._gathered(ends - self.length, last)[2]

    def outside(self, rows: Int64Array, n: Any, window: int, *, back: bool) -> Int64Array:
        """Return the other rows of entries that leave the newest ``window`` of these rows.

        They are the ``n`` that came before those, for each row. With ``back``, ``n`` are still to
        come, and all older entries are returned too.
        """
        if rows.size == 1 and not back:
            row = rows.item(0)
            n_old = self._lists.item(1, row) - window
            if n_old <= 0:
                return np.zeros(0, np.int64)
            end = self._lists.item(0, row) + n_old
            return distinct(self.other[end - min(n_old, n.item(0)) : end].astype(np.int64))
        length = self.length[rows]
        old = np.minimum(length - window + n, length) if back else length - window
        if not (old > 0).any():
            return np.zeros(0, np.int64)
        count = np.maximum(old if back else np.minimum(old, n), 0)
        first = self.start[rows] + (np.maximum(old, 0) - count)
        step = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return distinct(self.other[np.repeat(first, count) + step].astype(np.int64))

    def arrays(self) -> tuple[Any, ...]:
        """Return the lists as `hemf.kernels.undo` takes them."""
        code, width = self.code, self.code.itemsize // 2
        return (
            self._lists,
            self.other,
            code if width == 1 else self._halves()[0],
            width,
            self.sitting,
        )

    def mark(self) -> Undo:
        """Return a function that puts back all but the content of the lists; see `RowStore.mark`.

        Rows that will be added are taken away.
        """
        return partial(self._back_to, vars(self).copy(), int(self._used[0]))

    def _back_to(self, before: dict[str, Any], end: int) -> None:
        n = before["_count"]
        if self._count > n:
            before["_lists"][:, n : self._count] = 0
        before["_used"][0] = end
        restore(vars(self), before)

    def copy(self) -> History:
        """Return the same history, apart from this one."""
        other = History.__new__(History)
        other._lists, other._count, other._used = self._lists.copy(), self._count, self._used.copy()
        other.other, other.code = self.other.copy(), self.code.copy()
        other.sitting, other.has_sittings = self.sitting.copy(), self.has_sittings
        return other

    def _rebuild(self, rows: Int64Array, extra: Int64Array) -> None:
        """Move all lists to new pools, a quarter of which is free."""
        count, lists = self._count, np.zeros_like(self._lists)
        start, length, room = lists[:, :count]
        length[:] = self.length
        end = _kernels().lay_out(rows, extra, length, self.room, start, room)
        # Looking at all rows has to pay even where most of them are empty.
        free = max(end // 3, count // 4, LEAST_ROOM)
        other, code, sitting = self._gathered(start, end + free)
        used = np.array([end])
        self._lists, self._used, self.other, self.code = lists, used, other, code
        self.sitting = sitting

    def _gathered(self, start: Int64Array, size: int) -> tuple[Int32Array, Codes, Int32Array]:
        """Return pools of a size in which the lists begin at ``start``."""
        other, code = np.empty(size, np.int32), np.empty(size, self.code.dtype)
        sitting = np.full(size if self.has_sittings else 0, -1, np.int32)
        halves, width = self._halves()
        _kernels().gather(
            self.start,
            self.length,
            self.other,
            halves,
            width,
            self.sitting,
            np.ascontiguousarray(start),
            other,
            code.view(np.uint16),
            sitting,
        )
        return other, code, sitting

    def _halves(self) -> tuple[npt.NDArray[np.uint16], int]:
        return self.code.view(np.uint16), self.code.itemsize // 2


class _Kernels(NamedTuple):
    extend: Any
    lay_out: Any
    gather: Any


@cache
def _kernels() -> _Kernels:
    from hemf.kernels import record

    # They hold whole numbers only: there is one version, whatever the storage of the model.
    found = (record.extend, record.lay_out, record.gather)
    return _Kernels(*(kernel.compiled(np.float64) for kernel in found))


def _with_room(values: Values, used: int, wanted: int) -> Values:
    """Return the same values, the used ones, in an array that has room for as many as wanted."""
    if wanted <= len(values):
        return values
    grown = np.empty(max(wanted, 2 * len(values), LEAST_ROOM), values.dtype)
    grown[:used] = values[:used]
    return grown
