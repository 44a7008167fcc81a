"""What is kept of one side's rows while ratings arrive: arrays that double as rows are added."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf._typing import Array, Float64Array, Int64Array
from hemf.model.communities import Prior, Statistics
from hemf.model.layout import Layout, lower_triangle, pack, unpack
from hemf.model.noise import NoiseScales
from hemf.model.side import Moments, Side
from hemf.online.history import History
from hemf.online.journal import Journal, Undo, content_of, restore

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


LEAST_ROOM = 16  # rows
MOST_PARTS = 4
"""Communities that a row can belong to at once while it learns online, its likeliest ones."""

SUMS = ("gram", "moment", "square", "settled")
"""Of ratings that are no longer listed."""
COUNTED = ("count", "pending", "chosen")
RECORDED = (*COUNTED, *SUMS)
"""What changes when a rating is recorded, before its row is refreshed."""
OF_FEATURES = ("shift", "base", "chosen", "voice")
"""Tables that are there where features tell of rows."""


@dataclass(frozen=True)
class RowArrays:
    """One entry for each row, with room for more; see `hemf.kernels.structures.Rows`.

    Others are put in the place of all of them at once, so that they have room for as many rows.
    """

    mean: Array
    second: Array
    membership: Array
    listed: npt.NDArray[np.int32]
    parts: Array
    weight: Array
    shape: Float64Array
    rate: Float64Array
    error: Float64Array
    entropy: Float64Array
    count: Int64Array
    worth: Float64Array
    judged: Int64Array
    pending: Int64Array
    touched: Int64Array
    met: Int64Array
    gram: Array
    moment: Array
    square: Float64Array
    settled: Float64Array
    shift: Float64Array
    base: Float64Array
    chosen: Float64Array
    leverage: Float64Array
    information: Float64Array
    voice: Float64Array

    @classmethod
    def empty(
        cls, layout: Layout, dtype: Any, *, parts: int, sums: bool, told: Collection[str] = ()
    ) -> RowArrays:
        """Return arrays of no rows; ``sums`` keeps what the history does not.

        ``told`` are those `OF_FEATURES` that have columns.
        """
        order = layout.order
        width = 1 + order + order * (order + 1) // 2
        return cls(
            mean=np.zeros((0, layout.total), dtype),
            second=np.zeros((0, layout.packed), dtype),
            membership=np.zeros((0, 1), dtype),
            listed=np.zeros((0, parts), np.int32),
            parts=np.zeros((0, parts, width), dtype),
            weight=np.zeros(0, dtype),
            shape=np.zeros(0),
            rate=np.zeros(0),
            error=np.zeros(0),
            entropy=np.zeros(0),
            count=np.zeros(0, np.int64),
            worth=np.zeros(0),
            judged=np.zeros(0, np.int64),
            pending=np.zeros(0, np.int64),
            touched=np.zeros(0, np.int64),
            met=np.zeros(0, np.int64),
            gram=np.zeros((0, layout.packed if sums else 0), dtype),
            moment=np.zeros((0, layout.total if sums else 0), dtype),
            square=np.zeros(0),
            settled=np.zeros(0),
            leverage=np.zeros(0),
            information=np.zeros(0),
            **{name: np.zeros((0, order if name in told else 0)) for name in OF_FEATURES},
        )


ALL_ARRAYS = tuple(RowArrays.__dataclass_fields__)
REFRESHED = tuple(name for name in ALL_ARRAYS if name not in SUMS)
"""What a refresh of a row may change."""
_PARTS = {
    1: SUMS,
    2: COUNTED,
    4: tuple(name for name in REFRESHED if name not in COUNTED),
}
"""Parts of a row that `hemf.kernels.undo` does not copy again."""
PLACE = 8
WHOLE = 24
"""Parts of its list: where it is; that, and what is in it."""
BITS = 5
"""As in `hemf.kernels.undo`, which is not loaded before it is needed."""


class _Tables:
    """Addresses of `RowArrays` for `hemf.kernels.undo`; they hold as long as this object does."""

    def __init__(self, arrays: RowArrays) -> None:
        assert all(array.flags.c_contiguous for array in vars(arrays).values())
        self.arrays = arrays
        self.stamps = np.zeros(len(arrays.count), np.int64)
        self._chosen: dict[tuple[str, ...], tuple[Int64Array, int, int, int]] = {}

    def chosen(self, names: tuple[str, ...]) -> tuple[Int64Array, int, int, int]:
        """Return address and row size of the arrays of these names, and the sum of the sizes.

        Also the parts that they are of, and those that they are all of.
        """
        found = self._chosen.get(names)
        if found is None:
            arrays = [getattr(self.arrays, name) for name in names]
            tables = np.array(
                [(array.ctypes.data, array.nbytes // len(array)) for array in arrays if array.size],
                np.int64,
            ).reshape(-1, 2)
            touched = sum(part for part, of in _PARTS.items() if set(of) & set(names))
            covered = sum(part for part, of in _PARTS.items() if set(of) <= set(names))
            found = self._chosen[names] = tables, int(tables[:, 1].sum()), touched, covered
        return found


class RowStore:
    """Rows of one side with their history and what they have given to their communities.

    >>> store = RowStore(Layout.of("user", n_factors=2, offsets=True), np.float32, sums=False)
    >>> store.add(3, mean=np.ones(4), second=np.ones(10), prior_shape=10.0)
    >>> store.n_rows, store.moments.mean.shape, store.room
    (3, (3, 4), 16)
    """

    def __init__(
        self,
        layout: Layout,
        dtype: Any,
        *,
        sums: bool,
        communities: int = 1,
        most: int = MOST_PARTS,
        told: Collection[str] = (),
    ) -> None:
        self.layout = layout
        self.sums = sums
        self.most_parts = most
        self.n_rows = 0
        self._in_use: dict[str, Any] | None = None
        self._tables: _Tables | None = None
        self.history = History()
        parts = min(most, communities)
        self._arrays = replace(
            RowArrays.empty(layout, dtype, parts=parts, sums=sums, told=told),
            membership=np.zeros((0, communities), dtype),
        )
        order = layout.order
        self.size = np.zeros(communities)
        self.first = np.zeros((communities, order))
        self.scatter = np.zeros((communities, order * (order + 1) // 2))
        self.totals = np.zeros(4)

    @property
    def room(self) -> int:
        """How many rows fit before arrays grow."""
        return int(self._arrays.count.size)

    def __getattr__(self, name: str) -> Any:
        """Return the part in use of one of the `RowArrays`; writing to it writes to the store."""
        if name not in RowArrays.__dataclass_fields__:
            raise AttributeError(name)
        return self.in_use()[name]

    def in_use(self) -> dict[str, Any]:
        """All of the `RowArrays` by their names, as far as there are rows."""
        if self._in_use is None:
            n = self.n_rows
            self._in_use = {name: array[:n] for name, array in vars(self._arrays).items()}
        return self._in_use

    def __getstate__(self) -> dict[str, Any]:
        # Copied, the parts in use would be arrays of their own.
        return {**self.__dict__, "_in_use": None, "_tables": None}

    def add(self, n: int, *, mean: Any, second: Any, prior_shape: float) -> None:
        """Add rows that have no ratings; ``mean`` and ``second`` are what is expected of them."""
        first, last = self.n_rows, self.n_rows + n
        self._make_room(last + 1)  # one more than that: see `moments_and`
        new, arrays = slice(first, last), self._arrays  # what is not in use yet is zero
        arrays.mean[new] = mean
        arrays.second[new] = second
        arrays.listed[new] = -1
        arrays.weight[new] = 1.0
        arrays.shape[new] = arrays.rate[new] = prior_shape
        self.history.add_rows(n)
        self.n_rows = last
        self._in_use = None

    def begin_sums(self) -> None:
        """Make room for sums of ratings that the history does not keep; there are none so far."""
        arrays, layout = self._arrays, self.layout
        gram = np.zeros((self.room, layout.packed), arrays.mean.dtype)
        moment = np.zeros((self.room, layout.total), arrays.mean.dtype)
        self.sums = True
        self._replace(replace(arrays, gram=gram, moment=moment), self.n_rows)

    def reserve(self, n: int) -> None:
        """Make room for as many rows altogether."""
        if n > self.room:
            self._grow(n)

    def _make_room(self, n: int) -> None:
        if n > self.room:
            self._grow(max(n, 2 * self.room, LEAST_ROOM))

    def _grow(self, room: int) -> None:
        grown = {}
        for field in fields(RowArrays):
            old = getattr(self._arrays, field.name)
            grown[field.name] = new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: self.n_rows] = old[: self.n_rows]
        self._replace(RowArrays(**grown), self.n_rows)

    def _replace(self, arrays: RowArrays, n_rows: int) -> None:
        """Put other arrays in the place of these, in one step that nothing can interrupt."""
        self.__dict__.update(_arrays=arrays, n_rows=n_rows, _in_use=None, _tables=None)

    def keep(
        self,
        journal: Journal,
        rows: Int64Array,
        names: tuple[str, ...] = ALL_ARRAYS,
        *,
        lists: int = 0,
    ) -> None:
        """Let a journal put these rows back as they are now.

        ``names`` are those of the `RowArrays` that will change. Of the rows' lists that is
        `PLACE` where entries will be added, and `WHOLE` where those there are will change too.
        """
        tables = self._tables
        if tables is None or tables.arrays is not self._arrays:
            tables = self._tables = _Tables(self._arrays)
        chosen, width, parts, noted = tables.chosen(names)
        parts, noted = parts | lists, noted | lists
        if rows.size == 1:
            known = int(tables.stamps[rows[0]])
            if known >> BITS == journal.stamp and known & parts == parts:
                return
        rows, copy_rows = np.ascontiguousarray(rows, np.int64), _copy_rows()
        size = 2 + rows.size * (4 + width // 8 + 1)
        while True:
            buffer, at = journal.room(size)
            copied = (
                rows, chosen, tables.stamps, *self.history.arrays(), buffer, at, journal.stamp,
                parts, noted,
            )  # fmt: skip
            # Until there is a copy, one of no rows is put back.
            journal.add(partial(_put_back, tables, copied))
            end = copy_rows(*copied, False)
            if end <= buffer.size:
                return
            size = end - at

    def keep_all(self, journal: Journal, names: Collection[str]) -> None:
        """Let a journal put these of the `RowArrays` back as they are now."""
        arrays = self.in_use()
        journal.add(content_of(*(arrays[name] for name in names if arrays[name].size)))

    def mark(self) -> Undo:
        """Return a function that puts back all but the content of the arrays.

        Rows that will be added are taken away: what is not in use is zero.
        """
        return partial(self._back_to, vars(self).copy())

    def _back_to(self, before: dict[str, Any]) -> None:
        n = before["n_rows"]
        if self.n_rows > n:  # it is put back last, so that this is done again if it must be
            for array in vars(before["_arrays"]).values():
                array[n : self.n_rows] = 0
        restore(vars(self), before)

    def moments_and(self, mean: Float64Array, second: Float64Array) -> Moments:
        """Moments of the rows, in place, with one more at the end that is not one of them.

        There is always room for it, so that to ask a model moves no array.
        """
        arrays, n = self._arrays, self.n_rows
        arrays.mean[n], arrays.second[n] = mean, second
        return Moments(arrays.mean[: n + 1], arrays.second[: n + 1])

    def copy(self) -> RowStore:
        """Return a store that can change without this one; the history is this one's."""
        other = copy.copy(self)
        other._arrays = copy.copy(self._arrays)
        other._grow(self.room)
        other.size, other.first = self.size.copy(), self.first.copy()
        other.scatter, other.totals = self.scatter.copy(), self.totals.copy()
        return other

    def take_rows(self, arrays: dict[str, Any]) -> None:
        """Take over arrays of as many rows, by their names in `RowArrays`."""
        n = len(arrays["count"])
        taken = vars(self._arrays) | {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in taken.items():
            with_room = np.zeros((n + 1, *array.shape[1:]), array.dtype)
            with_room[:n] = array[:n]
            taken[name] = with_room
        self._replace(RowArrays(**taken), n)

    @property
    def moments(self) -> Moments:
        """Moments of the rows, in place."""
        return Moments(self.mean, self.second)

    @property
    def noise_scales(self) -> tuple[Float64Array, Float64Array]:
        """Shape and rate of q(τ) of the rows, in place."""
        return self.shape, self.rate

    @property
    def statistics(self) -> Statistics:
        """What the rows give to their communities."""
        rounding = self.layout.order * float(np.finfo(self.mean.dtype).eps)
        return Statistics(
            self.size.copy(),
            self.first.copy(),
            unpack(self.scatter),
            float(self.totals[0]),
            rounding,
        )

    def take_statistics(self, statistics: Statistics) -> None:
        """Take over statistics that a move has changed."""
        self.size = statistics.size.copy()
        self.first = np.ascontiguousarray(statistics.first).copy()
        self.scatter = pack(statistics.scatter)
        self.totals[0] = statistics.entropy

    def adopt(self, moments: Moments, membership: Array, scales: NoiseScales | None) -> None:
        """Take over the posterior of as many rows; they have given nothing to communities yet."""
        self.mean[:], self.second[:] = moments.mean, moments.second
        self.membership[:] = membership
        if scales is not None:
            self.shape[:], self.rate[:] = scales.shape, scales.rate
            self.weight[:] = scales.mean

    def regroup(self, target: Int64Array, count: int) -> None:
        """Renumber communities: ``target[d]`` is the new number of d, or -1 where it is gone.

        Parts of communities that become one are added up; ``count`` is how many there are then.
        """
        arrays, n = self._arrays, self.n_rows
        listed = np.where(arrays.listed[:n] >= 0, target[arrays.listed[:n]], -1)
        parts = arrays.parts[:n]
        for later in range(1, listed.shape[1]):
            for earlier in range(later):
                same = np.flatnonzero(
                    (listed[:, earlier] == listed[:, later]) & (listed[:, later] >= 0)
                )
                parts[same, earlier] += parts[same, later]
                listed[same, later] = -1
        width = max(arrays.listed.shape[1], min(self.most_parts, count))
        if width > arrays.listed.shape[1]:
            wider = np.zeros((self.room, width, parts.shape[2]), parts.dtype)
            wider[:n, : parts.shape[1]] = parts
            kept = np.full((self.room, width), -1, np.int32)
            kept[:n, : listed.shape[1]] = listed
            self._replace(replace(arrays, parts=wider, listed=kept), n)
        else:
            arrays.listed[:n] = listed
        self.spell_out(count)  # also the end of what was in use

    def spell_out(self, count: int) -> None:
        """Write the table of memberships from the rows' parts."""
        arrays, n = self._arrays, self.n_rows
        membership = np.zeros((self.room, count), arrays.membership.dtype)
        rows, slots = np.nonzero(arrays.listed[:n] >= 0)
        np.add.at(membership, (rows, arrays.listed[rows, slots]), arrays.parts[rows, slots, 0])
        self._replace(replace(arrays, membership=membership), n)


@cache
def _copy_rows() -> Any:
    from hemf.kernels import undo

    return undo.copy_rows.trusting(np.float64)  # one version, whatever the rows hold


def _put_back(tables: _Tables, copied: tuple[Any, ...]) -> None:
    """Put back what was copied; ``tables`` are here to be held as long as their addresses."""
    _copy_rows()(*copied, True)


# ------------------------------------------------------------------------------------------------
# How online learning begins: with rows that nothing is known of, and with few ratings.


WIDE = 1.0  # variance of factors under the wide prior
# A stream that began from nothing restarts as its ratings double, until there are enough.
FIRST_RESTART = 200
LAST_RESTART = 100_000


def widen(side: Side, variance: float = WIDE) -> None:
    """Put the wide prior in the place of a side's own."""
    wide = Prior.start(side.layout.order, variance=variance, concentration=1.0, mean_scale=1.0)
    side.prior = replace(side.prior, scale=wide.scale, dof=wide.dof)
    side.refresh()


def add_rows(
    store: RowStore,
    side: Side,
    n: int,
    start_scale: float = 0.0,
    rng: np.random.Generator | None = None,
) -> None:
    """Add rows to a store; with a ``start_scale``, at random factors that break the symmetry."""
    mean, second = side.stranger
    shape = 0.0 if side.noise_scales is None else side.noise_scales.prior_shape
    first = store.n_rows
    store.add(n, mean=mean, second=second, prior_shape=shape)
    if rng is not None and start_scale > 0.0:
        factors = side.layout.factors
        new = store.mean[first:]
        noise = rng.normal(scale=start_scale, size=(n, factors.size))
        new[:, factors] += noise.astype(new.dtype)
        rows, columns = lower_triangle(side.layout.total)
        covariance = second - mean[rows] * mean[columns]
        store.second[first:] = covariance + new[:, rows] * new[:, columns]


def is_young(state: OnlineState) -> bool:
    """Whether a stream began from nothing, has not grown yet, and lists all its ratings.

    Until then it restarts each time its ratings have doubled.
    """
    few = state.seen < LAST_RESTART and not state.has_plenty
    return state.fit is not None and state.is_complete and few
