"""What is kept of one side's rows while ratings arrive: arrays that double as rows are added."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.inference.history import History
from hemf.inference.journal import Undo, content_of, restore, rows_of
from hemf.model.communities import Statistics
from hemf.model.layout import Layout
from hemf.model.noise import NoiseScales
from hemf.model.packing import Array, Float64, pack, unpack
from hemf.model.side import Moments

LEAST_ROOM = 16  # rows
MOST_PARTS = 4
"""Communities that a row can belong to at once while it learns online, its likeliest ones."""

SUMS = ("gram", "moment", "square", "settled")
"""Of ratings that are no longer listed."""
RECORDED = ("count", "pending", "chosen", *SUMS)
"""What changes when a rating is recorded, before its row is refreshed."""
OF_FEATURES = ("shift", "base", "chosen", "voice")
"""Tables that are there where features tell of rows."""

Wholes = npt.NDArray[np.int64]


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
    shape: Float64
    rate: Float64
    error: Float64
    entropy: Float64
    count: Wholes
    worth: Float64
    judged: Wholes
    pending: Wholes
    touched: Wholes
    met: Wholes
    gram: Array
    moment: Array
    square: Float64
    settled: Float64
    shift: Float64
    base: Float64
    chosen: Float64
    doubt: Float64
    told: Float64
    voice: Float64

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
            doubt=np.zeros(0),
            told=np.zeros(0),
            **{name: np.zeros((0, order if name in told else 0)) for name in OF_FEATURES},
        )


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
        # What refreshes change of these.
        self._refreshed: tuple[dict[str, Any] | None, list[Any]] = None, []
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
        return {**self.__dict__, "_in_use": None, "_refreshed": (None, [])}

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
        self.__dict__.update(_arrays=arrays, n_rows=n_rows, _in_use=None)

    def keep(self, rows: Wholes | None = None, only: Collection[str] | None = None) -> Undo:
        """Return a function that puts rows back as they are now; without ``rows``, all of them.

        ``only`` are the names of those `RowArrays` that will change.
        """
        arrays = self.in_use()
        if only is not None:
            return rows_of([array for name in only if (array := arrays[name]).size], rows)
        return rows_of([array for array in arrays.values() if array.size], rows)

    def keep_refreshed(self, rows: Wholes) -> Undo:
        """Do so for rows that will be refreshed, which changes no sums."""
        arrays = self.in_use()
        if self._refreshed[0] is not arrays:
            filled = [array for name, array in arrays.items() if array.size and name not in SUMS]
            self._refreshed = arrays, filled
        return rows_of(self._refreshed[1], rows)

    def mark(self) -> Undo:
        """Return a function that puts back all but the content of the rows and their history.

        Rows that will be added are taken away: what is not in use is zero.
        """
        arrays, n, own = self._arrays, self.n_rows, vars(self).copy()
        shared = content_of(self.size, self.first, self.scatter, self.totals)

        def undo() -> None:
            if self.n_rows > n:  # it is put back last, so that this is done again if it must be
                for array in vars(arrays).values():
                    array[n : self.n_rows] = 0
            shared()
            restore(vars(self), own)

        return undo

    def moments_and(self, mean: Float64, second: Float64) -> Moments:
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
    def noise_scales(self) -> tuple[Float64, Float64]:
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

    def regroup(self, target: Wholes, count: int) -> None:
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
