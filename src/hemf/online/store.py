"""Data of online learning: the ratings and rows of each side.

A rating takes 12 bytes: on each side 4 for the row of the other side and 2 for its code, the
position of its value in a `hemf.data.vocabulary.RatingBook`. With more than 65,536 different values
codes take 4 bytes. Where raters have moods, each side also holds the number of the rating's
session, 4 bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hemf._typing import AnyArray, Array, Float64Array, Int32Array, Int64Array
from hemf.model.communities import Statistics
from hemf.model.rows import Layout, Moments, NoiseScales, lower_triangle, pack

if TYPE_CHECKING:
    from hemf.kernels.structures import Outer, Pools, Rows, Scratch, Shared

Codes: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Kernel: TypeAlias = Callable[..., Any]
Undo: TypeAlias = Callable[[], None]

NARROW_CODES = 65_536  # as many codes fit into 16 bits
MIN_ROOM = 16  # rows, entries or values
CHUNK = 16_384  # rows whose parts are turned to double precision at a time


def distinct(rows: Int64Array) -> Int64Array:
    """Return the rows that occur, ascending.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    if rows.size < 2:
        return rows
    # Several times as fast as `np.unique` for a thousand rows.
    ascending = np.sort(rows)
    is_first = np.ones(rows.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return ascending[is_first]


def row_of_each(indptr: Int64Array) -> Int64Array:
    """Return the row of each entry of compressed rows.

    >>> row_of_each(np.array([0, 2, 2, 3])).tolist()
    [0, 0, 2]
    """
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))


class History:
    """The ratings of one side: for each row a list of (row of the other side, code), newest last.

    Kernels read and change the lists through ``start``, ``length``, ``other`` and ``code`` (see
    `hemf.kernels.record`), which are valid until the next `reserve`, `add_rows` or `widen`.

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
    session: Int32Array
    """Pool of the lists' sessions; empty without moods."""

    def __init__(self, n_rows: int = 0, *, has_sessions: bool = False) -> None:
        self._lists: Int64Array = np.zeros((3, n_rows), np.int64)
        self._count = n_rows
        # In an array, so that the kernel that moves lists updates it too: an interruption must
        # not come between.
        self._used: Int64Array = np.zeros(1, np.int64)
        self.other, self.code = np.empty(0, np.int32), np.empty(0, np.uint16)
        self.session, self.has_sessions = np.empty(0, np.int32), has_sessions

    @classmethod
    def from_rows(
        cls,
        indptr: Int64Array,
        indices: AnyArray,
        codes: AnyArray,
        sessions: AnyArray | None = None,
    ) -> History:
        """Hold the lists ``indptr[i]`` to ``indptr[i + 1]`` of ``indices`` and ``codes``."""
        history = cls(len(indptr) - 1, has_sessions=sessions is not None)
        if sessions is not None:
            history.session = np.array(sessions, np.int32)
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
        """Memory of the lists, room to grow included."""
        pools = self.other.nbytes + self.code.nbytes + self.session.nbytes
        return self._lists.nbytes + pools

    def add_rows(self, n: int) -> None:
        """Add n rows without entries."""
        lists, count = self._lists, self._count + n
        if count > lists.shape[1]:
            grown = np.zeros((3, max(count, 2 * lists.shape[1], MIN_ROOM)), np.int64)
            grown[:, : self._count] = lists[:, : self._count]
            self._lists = grown
        self._count = count

    def reserve(self, rows: Int64Array, extra: Int64Array, n_codes: int = 0) -> None:
        """Make room for ``extra[k]`` more entries in ``rows[k]``, all rows being different.

        Codes are widened where ``n_codes`` different ones would not fit. Lists that outgrow their
        room move to the end of the pools or, where these are full, all lists to larger pools.

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
        if not _record_kernel("extend")(
            rows, extra, lists[0], lists[1], lists[2], self._used, self.other, halves, width,
            self.session,
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

    def triples(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return own row, other row and code of each entry, in the order of `to_rows`."""
        indptr, others, codes = self.to_rows()
        return row_of_each(indptr), others.astype(np.int64), codes.astype(np.int64)

    def sessions(self) -> Int32Array:
        """Return the session of each entry that `to_rows` returns; empty without moods."""
        ends = np.cumsum(self.length)
        last = int(ends[-1]) if ends.size else 0
        return self._gathered(ends - self.length, last)[2]

    def outside(
        self, rows: Int64Array, n: Int64Array, window: int, *, back: bool = False
    ) -> Int64Array:
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

    def arrays(self) -> tuple[Int64Array, Pools]:
        """Return the lists as `hemf.kernels.undo` takes them."""
        from hemf.kernels.structures import Pools

        return self._lists, Pools(self.other, *self._halves(), self.session)

    def mark(self) -> Undo:
        """Return a function that restores all but the content of the lists: `RowStore.mark`."""
        return partial(self._back_to, vars(self).copy(), int(self._used[0]))

    def _back_to(self, before: dict[str, Any], end: int) -> None:
        n = before["_count"]
        if self._count > n:
            before["_lists"][:, n : self._count] = 0
        before["_used"][0] = end
        vars(self).update(before)

    def _rebuild(self, rows: Int64Array, extra: Int64Array) -> None:
        """Move all lists to new pools, a quarter of which is free."""
        count, lists = self._count, np.zeros_like(self._lists)
        start, length, room = lists[:, :count]
        length[:] = self.length
        end = _record_kernel("lay_out")(rows, extra, length, self.room, start, room)
        # Looking at all rows has to pay even where most of them are empty.
        free = max(end // 3, count // 4, MIN_ROOM)
        other, code, session = self._gathered(start, end + free)
        used = np.array([end])
        self._lists, self._used, self.other, self.code = lists, used, other, code
        self.session = session

    def _gathered(self, start: Int64Array, size: int) -> tuple[Int32Array, Codes, Int32Array]:
        """Return pools of a size in which the lists begin at ``start``."""
        other, code = np.empty(size, np.int32), np.empty(size, self.code.dtype)
        session = np.full(size if self.has_sessions else 0, -1, np.int32)
        halves, width = self._halves()
        _record_kernel("gather")(
            self.start, self.length, self.other, halves, width, self.session,
            np.ascontiguousarray(start), other, code.view(np.uint16), session,
        )  # fmt: skip
        return other, code, session

    def _halves(self) -> tuple[npt.NDArray[np.uint16], int]:
        return self.code.view(np.uint16), self.code.itemsize // 2


@cache
def _record_kernel(name: str) -> Kernel:
    from hemf.kernels import record

    kernel: Kernel = getattr(record, name).compiled(np.float64)  # whole numbers: one version
    return kernel


# -- rows ----------------------------------------------------------------------------------------


SUMS = ("gram", "moment", "square", "summed_weight")
"""Sums over evicted ratings."""
COUNTED = ("count", "pending", "coefficient_sum")
RECORDED = (*COUNTED, *SUMS)
"""Arrays that recording a rating changes, before its row is refreshed."""
OF_FEATURES = ("shift", "base", "coefficient_sum", "coefficients")
"""Tables that sides with features have."""
ALL_ARRAYS = (
    "mean", "second", "membership", "listed", "parts", "weight", "shape", "rate", "error",
    "entropy", "count", "effective_count", "considered_count", "pending", "last_refresh",
    "other_refreshes", *SUMS, "shift", "base", "coefficient_sum", "leverage",
    "information", "coefficients",
)  # fmt: skip
"""Arrays with one entry for each row: `hemf.kernels.structures.Rows`."""
_NAMES = frozenset(ALL_ARRAYS)
_OF_MODEL = {"mean", "second", "membership", "parts", "weight", "gram", "moment"}
_WHOLE_NUMBERS = {"count", "considered_count", "pending", "last_refresh", "other_refreshes"}
REFRESHED = tuple(name for name in ALL_ARRAYS if name not in SUMS)
"""Arrays that a refresh of a row may change."""
_PARTS = {
    1: SUMS,
    2: COUNTED,
    4: tuple(name for name in REFRESHED if name not in COUNTED),
}
"""Parts of a row that `hemf.kernels.undo` does not copy again."""
PLACE = 8
WHOLE = 24
"""Parts of a row's list: its position; position and content."""
BITS = 5  # as in `hemf.kernels.undo`, which is loaded when it is needed

RowArrays: TypeAlias = dict[str, AnyArray]
"""`ALL_ARRAYS` by name."""


def empty_rows(
    layout: Layout, dtype: npt.DTypeLike, *, parts: int, sums: bool, tables: Collection[str] = ()
) -> RowArrays:
    """Return arrays of no rows, with ``sums`` of evicted ratings and ``tables`` of features."""
    order = layout.order
    widths: dict[str, tuple[int, ...]] = {
        "mean": (layout.total,),
        "second": (layout.packed,),
        "membership": (1,),
        "listed": (parts,),
        "parts": (parts, 1 + order + order * (order + 1) // 2),
        "gram": (layout.packed if sums else 0,),
        "moment": (layout.total if sums else 0,),
        **{name: (order if name in tables else 0,) for name in OF_FEATURES},
    }
    types = dict.fromkeys(_OF_MODEL, dtype) | dict.fromkeys(_WHOLE_NUMBERS, np.int64)
    types["listed"] = np.int32
    return {
        name: np.zeros((0, *widths.get(name, ())), types.get(name, np.float64))
        for name in ALL_ARRAYS
    }


class ChangeLog(Protocol):
    """Where rows are copied to before they change: `hemf.online.journal.Journal`."""

    stamp: int

    def room(self, size: int) -> tuple[Int64Array, int]:
        """Return a buffer with room for a copy, and the position of an empty copy."""

    def add(self, undo: Undo) -> None:
        """Add a function that undoes a change."""


class _Tables:
    """Addresses of `RowArrays` for `hemf.kernels.undo`; valid while this object lives."""

    def __init__(self, arrays: RowArrays) -> None:
        assert all(array.flags.c_contiguous for array in arrays.values())
        self.arrays = arrays
        self.stamps = np.zeros(len(arrays["count"]), np.int64)
        self._selected: dict[tuple[str, ...], tuple[Int64Array, int, int, int]] = {}

    def select(self, names: tuple[str, ...]) -> tuple[Int64Array, int, int, int]:
        """Return address and row size of these arrays, the sum of sizes, and parts.

        Parts are those that contain any of them, and those of which they are all.
        """
        found = self._selected.get(names)
        if found is None:
            arrays = [self.arrays[name] for name in names]
            tables = np.array(
                [(array.ctypes.data, array.nbytes // len(array)) for array in arrays if array.size],
                np.int64,
            ).reshape(-1, 2)
            touched = sum(part for part, of in _PARTS.items() if set(of) & set(names))
            covered = sum(part for part, of in _PARTS.items() if set(of) <= set(names))
            found = self._selected[names] = tables, int(tables[:, 1].sum()), touched, covered
        return found


class RowStore:
    """Rows of one side, their ratings, and the statistics of their communities.

    >>> store = RowStore(Layout.of("user", n_factors=2, offsets=True), np.float32, sums=False)
    >>> store.add(3, mean=np.ones(4), second=np.ones(10), prior_shape=10.0)
    >>> store.n_rows, store.moments.mean.shape, store.room
    (3, (3, 4), 16)
    """

    def __init__(
        self,
        layout: Layout,
        dtype: npt.DTypeLike,
        *,
        sums: bool,
        communities: int = 1,
        most: int = 1,
        tables: Collection[str] = (),
    ) -> None:
        self.layout = layout
        self.sums = sums
        self.max_parts = most
        self.n_rows = 0
        self._in_use: dict[str, AnyArray] | None = None
        self._tables: _Tables | None = None
        self.derived: dict[str, Any] = {}
        """Working memory and arguments of kernels; a copy has its own."""
        self.history = History()
        parts = min(most, communities)
        self._arrays = empty_rows(layout, dtype, parts=parts, sums=sums, tables=tables)
        self._arrays["membership"] = np.zeros((0, communities), dtype)
        order = layout.order
        self.size = np.zeros(communities)
        self.first = np.zeros((communities, order))
        self.scatter = np.zeros((communities, order * (order + 1) // 2))
        self.totals = np.zeros(4)
        rows, columns = lower_triangle(order)
        self._triangle = np.empty((order, order), np.int64)  # places of entries when packed
        self._triangle[rows, columns] = self._triangle[columns, rows] = np.arange(rows.size)
        self.mean_covariance: Array | None = None
        """Mean posterior covariance over ratings, packed, as of the clock "covariance"."""
        self.rotated_means: Float64Array | None = None
        """Row means when the other side's sums were last rotated: `hemf.online.eviction`."""

    @property
    def room(self) -> int:
        """How many rows fit before arrays grow."""
        return len(self._arrays["count"])

    def __getattr__(self, name: str) -> Any:
        """Return one of `ALL_ARRAYS`, in place, as far as there are rows."""
        if name not in _NAMES:
            raise AttributeError(name)
        return self.in_use()[name]

    @property
    def refreshes(self) -> float:
        """How many rows have been refreshed so far."""
        return float(self.totals[2])

    def in_use(self) -> dict[str, AnyArray]:
        """Return `ALL_ARRAYS` by name, in place, as far as there are rows."""
        if self._in_use is None:
            n = self.n_rows
            self._in_use = {name: array[:n] for name, array in self._arrays.items()}
        return self._in_use

    def rows(self) -> Rows:
        """Return rows and ratings as kernels take them, in place."""
        from hemf.kernels.structures import Rows

        history = self.history
        return Rows(
            **self.in_use(),
            start=history.start,
            length=history.length,
            other=history.other,
            code=history.code,
            session=history.session,
        )

    def scratch(self, own: Rows, common: Shared) -> Scratch:
        """Return working memory for refreshes."""
        from hemf.kernels import structures

        known: Scratch | None = self.derived.get("scratch")
        if known is None or known.solutions.shape != common.natural_mean.shape:
            self.derived["scratch"] = known = structures.scratch(own, common)
        return known

    def outer(self) -> Outer:
        """Return working memory for sums."""
        from hemf.kernels import structures

        known: Outer | None = self.derived.get("outer")
        if known is None:
            self.derived["outer"] = known = structures.outer(self.mean, self.second)
        return known

    def __getstate__(self) -> dict[str, Any]:
        # Copied, the parts in use would be arrays of their own.
        return {**self.__dict__, "_in_use": None, "_tables": None, "derived": {}}

    def add(
        self, n: int, *, mean: npt.ArrayLike, second: npt.ArrayLike, prior_shape: float
    ) -> None:
        """Add rows without ratings, with these expected moments."""
        first, last = self.n_rows, self.n_rows + n
        if last + 1 > self.room:  # one more than needed: see `moments_and`
            self._grow(last + 1)
        new, arrays = slice(first, last), self._arrays  # what is not in use yet is zero
        arrays["mean"][new], arrays["second"][new] = mean, second
        arrays["listed"][new] = -1
        arrays["weight"][new] = 1.0
        arrays["shape"][new] = arrays["rate"][new] = prior_shape
        self.history.add_rows(n)
        self.n_rows = last
        self._in_use = None

    def begin_sums(self) -> None:
        """Make room for sums of evicted ratings, none so far."""
        widths = {"gram": self.layout.packed, "moment": self.layout.total}
        dtype = self._arrays["mean"].dtype
        self.sums = True
        self._replace({name: np.zeros((self.room, n), dtype) for name, n in widths.items()})

    def reserve(self, n: int) -> None:
        """Make room for n rows altogether."""
        if n > self.room:
            self._grow(n)

    def _grow(self, room: int) -> None:
        room, n = max(room, 2 * self.room, MIN_ROOM), self.n_rows
        grown = {}
        for name, array in self._arrays.items():
            grown[name] = np.zeros((room, *array.shape[1:]), array.dtype)
            grown[name][:n] = array[:n]
        self._replace(grown)

    def _replace(self, arrays: RowArrays, n_rows: int | None = None) -> None:
        """Replace some of the arrays in one step that nothing can interrupt."""
        n_rows = self.n_rows if n_rows is None else n_rows
        arrays = self._arrays | arrays
        self.__dict__.update(_arrays=arrays, n_rows=n_rows, _in_use=None, _tables=None)

    def backup(
        self,
        journal: ChangeLog,
        rows: Int64Array,
        names: tuple[str, ...] = ALL_ARRAYS,
        *,
        lists: int = 0,
    ) -> None:
        """Copy the present values of these rows to a journal.

        ``names`` are the arrays that will change. ``lists`` is `PLACE` where entries will be added
        to the rows' lists, and `WHOLE` where existing entries will change too.
        """
        from hemf.kernels.structures import Copy

        tables = self._tables
        if tables is None or tables.arrays is not self._arrays:
            tables = self._tables = _Tables(self._arrays)
        selected, width, parts, stamped = tables.select(names)
        parts, stamped = parts | lists, stamped | lists
        if rows.size == 1:
            known = int(tables.stamps[rows[0]])
            if known >> BITS == journal.stamp and known & parts == parts:
                return
        rows, copy_rows = np.ascontiguousarray(rows, np.int64), copy_rows_kernel()
        size = 2 + rows.size * (4 + width // 8 + 1)
        while True:
            buffer, at = journal.room(size)
            copied = (
                rows, selected, tables.stamps, *self.history.arrays(), buffer,
                Copy(at, journal.stamp, parts, stamped),
            )  # fmt: skip
            # Until there is a copy, one of no rows is put back.
            journal.add(partial(_put_back, tables, copied))
            end = copy_rows(*copied, False)
            if end <= buffer.size:
                return
            size = end - at

    def mark(self) -> Undo:
        """Return a function that restores all but the content of the arrays.

        Rows added in the meantime are removed: what is not in use is zero.
        """
        return partial(self._back_to, vars(self).copy())

    def _back_to(self, before: dict[str, Any]) -> None:
        n = before["n_rows"]
        if self.n_rows > n:  # n_rows is restored last, so that this can be repeated
            for array in before["_arrays"].values():
                array[n : self.n_rows] = 0
        vars(self).update(before)

    def moments_and(self, mean: Float64Array, second: Float64Array) -> Moments:
        """Return the moments of the rows, in place, with one more row at the end.

        There is always room for it, so that queries move no array.
        """
        means, seconds, n = self._arrays["mean"], self._arrays["second"], self.n_rows
        means[n], seconds[n] = mean, second
        return Moments(means[: n + 1], seconds[: n + 1])

    def copy(self) -> RowStore:
        """Return a copy that shares the history."""
        return copy.deepcopy(self, {id(self.history): self.history})

    def take_rows(self, arrays: dict[str, AnyArray]) -> None:
        """Take over arrays by their names in `ALL_ARRAYS`."""
        n, taken = len(arrays["count"]), self._arrays | arrays
        more = {name: [(0, 1), *[(0, 0)] * (array.ndim - 1)] for name, array in taken.items()}
        grown = {name: np.pad(array, more[name]) for name, array in taken.items()}
        self._replace(grown, n)

    @property
    def moments(self) -> Moments:
        """Moments of the rows, in place."""
        return Moments(self.mean, self.second)

    @property
    def statistics(self) -> Statistics:
        """Statistics of the communities."""
        rounding = self.layout.order * float(np.finfo(self.mean.dtype).eps)
        return Statistics(
            self.size.copy(),
            self.first.copy(),
            self.scatter.take(self._triangle, axis=1),
            float(self.totals[0]),
            rounding,
        )

    def take_statistics(self, statistics: Statistics) -> None:
        """Replace the statistics of the communities."""
        self.size = statistics.size.copy()
        self.first = np.ascontiguousarray(statistics.first).copy()
        self.scatter = pack(statistics.scatter)
        self.totals[0] = statistics.entropy

    def adopt(self, moments: Moments, membership: Array, scales: NoiseScales | None) -> None:
        """Take over the posterior of all rows; communities have no statistics yet."""
        self.mean[:], self.second[:] = moments.mean, moments.second
        self.membership[:] = membership
        if scales is not None:
            self.shape[:], self.rate[:] = scales.shape, scales.rate
            self.weight[:] = scales.mean

    def regroup(self, target: Int64Array, count: int) -> None:
        """Renumber communities: ``target[d]`` is the new number of d, or -1 where it is dropped.

        Parts of communities that are merged are added up; ``count`` is their new number.
        """
        n, parts = self.n_rows, self.parts
        listed = np.where(self.listed >= 0, target[self.listed], -1)
        for later in range(1, listed.shape[1]):
            for earlier in range(later):
                same = np.flatnonzero(
                    (listed[:, earlier] == listed[:, later]) & (listed[:, later] >= 0)
                )
                parts[same, earlier] += parts[same, later]
                listed[same, later] = -1
        width = min(self.max_parts, count)
        if width > listed.shape[1]:
            wider = np.zeros((self.room, width, parts.shape[2]), parts.dtype)
            wider[:n, : parts.shape[1]] = parts
            kept = np.full((self.room, width), -1, np.int32)
            kept[:n, : listed.shape[1]] = listed
            self._replace({"parts": wider, "listed": kept})
        else:
            self.listed[:] = listed
        self.write_membership(count)

    def write_membership(self, count: int) -> None:
        """Compute the table of memberships from the rows' parts."""
        membership = np.zeros((self.room, count), self.membership.dtype)
        for slot, listed in enumerate(self.listed.T):  # a row lists a community once
            rows = np.flatnonzero(listed >= 0)
            membership[rows, listed[rows]] = self.parts[rows, slot, 0]
        self._replace({"membership": membership})

    def shift_parts(self, change: Float64Array) -> None:
        """Update the rows' contributions, those of a_i - f_i, to other f_i, and sum them again.

        With y = a - f, q y → q y - q Δ and q yyᵀ → q yyᵀ - q yΔᵀ - q Δyᵀ + q ΔΔᵀ.
        """
        order = self.layout.order
        left, right = lower_triangle(order)
        first, scatter = np.zeros_like(self.first), np.zeros_like(self.scatter)
        for begin in range(0, self.n_rows, CHUNK):
            rows = slice(begin, min(self.n_rows, begin + CHUNK))
            d = change[rows]
            products = d[:, left] * d[:, right]
            for slot in range(self.listed.shape[1]):
                listed, given = self.listed[rows, slot], self.parts[rows, slot]
                there = np.flatnonzero(listed >= 0)
                part, q = given[there].astype(np.float64), given[there, :1].astype(np.float64)
                m, away = part[:, 1 : 1 + order], d[there]
                part[:, 1 + order :] += q * products[there]
                part[:, 1 + order :] -= m[:, left] * away[:, right] + away[:, left] * m[:, right]
                m -= q * away
                given[there] = part
                part = given[there].astype(np.float64)  # as it is stored
                np.add.at(first, listed[there], part[:, 1 : 1 + order])
                if scatter.shape[0] == 1:
                    scatter[0] += part[:, 1 + order :].sum(axis=0)
                else:
                    np.add.at(scatter, listed[there], part[:, 1 + order :])
        self.first[:], self.scatter[:] = first, scatter


@cache
def copy_rows_kernel() -> Kernel:
    """Return the kernel that copies rows to a journal, and back."""
    from hemf.kernels import undo

    kernel: Kernel = undo.copy_rows.trusting(np.float64)  # one version for all types of rows
    return kernel


def _put_back(tables: _Tables, copied: tuple[Any, ...]) -> None:
    """Restore what was copied; ``tables`` keeps the addresses valid."""
    copy_rows_kernel()(*copied, True)
