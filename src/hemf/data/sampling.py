"""Distinct pairs of which some users and some items have far more than others."""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from hemf._typing import Float64Array

_EQUAL_GROUPS = 24  # of the users but for the busiest …
_BUSIEST = 0.04  # … who are halved again and again, for their numbers differ most
_MARGIN_ROUNDS = 100
_CLOSE = 1e-4  # rounding to whole ratings changes more


class UnevenPairs:
    """A stream of ``n_ratings`` (user, item) pairs, all different, in random order.

    Items have ratings in proportion to ``item_weights``, up to rounding. Users are in groups of
    like weight, and have in the mean what their group has; who of a group rates an item is random.
    A busy user and a popular item cannot meet twice, so the more of both there are, the more of
    what they would have goes to others. Memory does not grow with the number of ratings.

    >>> pairs = UnevenPairs(np.array([1.0, 1, 4]), np.array([1.0, 3, 1, 1]), 6, key=5)
    >>> users, items = pairs(0, 6)
    >>> len(set(zip(users.tolist(), items.tolist()))), int(np.sum(items == 1))
    (6, 3)
    """

    def __init__(
        self, user_weights: Float64Array, item_weights: Float64Array, n_ratings: int, *, key: int
    ) -> None:
        self._by_weight = np.argsort(user_weights, kind="stable").astype(np.int32)
        bounds = _group_bounds(len(user_weights))
        sizes = np.diff(bounds)
        groups = np.add.reduceat(user_weights[self._by_weight], bounds[:-1])
        expected = _expected(item_weights, groups, sizes, n_ratings)
        counts = _rounded(
            expected, sizes, n_ratings, float(uniforms(key, np.zeros(1, np.uint64))[0])
        )
        self._order = Permutation(n_ratings, key)
        self._ends = np.cumsum(counts)
        self._firsts, self._sizes = bounds[:-1], sizes
        self._raters = Permutation(len(user_weights), key + 2)

    def __call__(self, start: int, stop: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return users and items of the pairs at positions ``start`` to ``stop``."""
        drawn = self._order(np.arange(start, stop, dtype=np.uint64)).astype(np.int64)
        cells = np.searchsorted(self._ends, drawn, side="right")  # of an item and a group each
        within = drawn - np.where(cells > 0, self._ends[cells - 1], 0)
        items, groups = np.divmod(cells, len(self._sizes))
        places = self._raters(within, tweak=cells, sizes=self._sizes[groups]).astype(np.int64)
        return self._by_weight[places + self._firsts[groups]], items.astype(np.int32)


def _group_bounds(n_users: int) -> NDArray[np.int64]:
    """Where groups of users begin, in rising order of their weights, and the end."""
    most = np.linspace(0, 1 - _BUSIEST, _EQUAL_GROUPS)
    halvings = 1 - _BUSIEST * 0.5 ** np.arange(1, max(2, int(np.log2(n_users))))
    shares = np.concatenate((most, halvings, [1.0]))
    return np.unique(np.round(shares * n_users).astype(np.int64))


def _expected(
    item_weights: Float64Array,
    group_weights: Float64Array,
    sizes: NDArray[np.int64],
    n_ratings: int,
) -> Float64Array:
    """Ratings of every item from every group, such that both sides have their shares.

    A user rates an item with probability 1 - exp(-a b), a of the item and b of the group: in
    proportion to both as long as that is small, and never above 1.
    """
    wanted_items = n_ratings * item_weights / item_weights.sum()
    wanted_groups = n_ratings * group_weights / group_weights.sum()
    n_users, n_items = sizes.sum(), len(item_weights)
    # What is beyond the reach of a row goes to the others, which the last step below sees to.
    wanted_items = np.minimum(wanted_items, 0.999 * n_users)
    wanted_groups = np.minimum(wanted_groups, 0.999 * n_items * sizes)
    a = wanted_items / n_users
    b = wanted_groups / (sizes * n_items) / (n_ratings / (n_users * n_items))
    for _ in range(_MARGIN_ROUNDS):
        b *= wanted_groups / _table(a, b, sizes).sum(axis=0)
        off = wanted_items / _table(a, b, sizes).sum(axis=1)
        a *= off
        if np.abs(off - 1).max() < _CLOSE:
            break
    expected = _table(a, b, sizes)
    missing = n_ratings - float(expected.sum())
    if missing > 0:
        room = sizes - expected
        expected += room * (missing / float(room.sum()))
    return expected


def _table(a: Float64Array, b: Float64Array, sizes: NDArray[np.int64]) -> Float64Array:
    table: Float64Array = -np.expm1(-np.outer(a, b))
    table *= sizes
    return table


def _rounded(
    expected: Float64Array, sizes: NDArray[np.int64], n_ratings: int, chance: float
) -> NDArray[np.int64]:
    """Whole numbers as near to what is expected as can be, cell by cell and in their running sums.

    Cells of less than one would all be lost, were each rounded by itself.
    """
    sums = np.cumsum(expected)
    sums *= n_ratings / sums[-1]
    counts: NDArray[np.int64] = np.diff(np.floor(sums + chance), prepend=0).astype(np.int64)
    most = np.tile(sizes, len(expected))
    counts = np.minimum(counts, most)
    while short := n_ratings - int(counts.sum()):  # rounding errors of the sums
        fullest = np.argsort(most - counts)[::-1] if short > 0 else np.argsort(counts)[::-1]
        counts[fullest[: abs(short)]] += np.sign(short)
    return counts


# ------------------------------------------------------------------------------------------------
# Random numbers and permutations that are computed from a position, not stored.
#
# They let a stream of a hundred million distinct pairs be drawn block by block: the t-th draw
# depends on the key and on t alone, whatever was drawn before.


UInt64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 8


def mix(numbers: UInt64) -> UInt64:
    """Scramble 64-bit numbers one to one (the finaliser of SplitMix64).

    >>> mix(np.array([0, 1], dtype=np.uint64)).tolist()
    [0, 6238072747940578789]
    """
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def uniforms(key: int, positions: UInt64) -> NDArray[np.float64]:
    """Uniform random numbers inside (0, 1), one for each position.

    >>> bool(0 < uniforms(7, np.arange(3, dtype=np.uint64)).min())
    True
    """
    bits = mix(np.uint64(key) + (positions + np.uint64(1)) * _GOLDEN)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


class Permutation:
    """A random order of 0, 1, …, size - 1, looked up at any position without storing it.

    A Feistel network on a square just large enough to hold ``size``: a number is a (row, column)
    of the square, and row and column in turn are shifted by a keyed hash of the other, which can
    be undone and is therefore one to one. What lands in the few cells beyond ``size`` goes
    through again. ``tweak`` picks another permutation for every position, as if each had a key
    of its own, and ``sizes`` of another size, where they are not all to be of ``size``.

    >>> order = Permutation(10, key=3)
    >>> sorted(order(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self._edge = np.uint64(isqrt(max(size - 1, 0)) + 1)  # edge² ≥ size; edge < 2³² below 2⁶⁴
        self._round_keys = mix(
            np.uint64(key) + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _GOLDEN
        )

    def __call__(
        self,
        positions: NDArray[np.integer],
        tweak: NDArray[np.integer] | None = None,
        sizes: NDArray[np.integer] | None = None,
    ) -> UInt64:
        """Return what stands at the given positions."""
        numbers = np.asarray(positions).astype(np.uint64)
        twist = None if tweak is None else mix(np.asarray(tweak).astype(np.uint64) * _GOLDEN)
        if sizes is None:
            size = np.broadcast_to(np.uint64(self.size), numbers.shape)
            edge = np.broadcast_to(self._edge, numbers.shape)
        else:  # of rows or columns of a table: far below 2⁵², where the root would not be exact
            size = np.asarray(sizes).astype(np.uint64)
            edge = np.sqrt(size - np.uint64(1)).astype(np.uint64) + np.uint64(1)
        numbers = self._once(numbers, twist, edge)
        while (beyond := np.flatnonzero(numbers >= size)).size:
            again = None if twist is None else twist[beyond]
            numbers[beyond] = self._once(numbers[beyond], again, edge[beyond])
        return numbers

    def _once(self, numbers: UInt64, twist: UInt64 | None, edge: UInt64) -> UInt64:
        half = np.uint64(32)
        still, moving = np.divmod(numbers, edge)
        for key in self._round_keys:
            hashed = mix((still + key) if twist is None else (still + key) ^ twist)
            moving += ((hashed >> half) * edge) >> half  # a hash scaled to 0 … edge - 1
            moving -= np.where(moving >= edge, edge, np.uint64(0))
            still, moving = moving, still
        return still * edge + moving


class DistinctPairs:
    """A stream of ``n_ratings`` (user, item) pairs, all different, in random order.

    Without ``popularity`` every pair is equally likely. With it, the items' numbers of ratings
    are laid down first, in proportion to ``1 / rank ** popularity`` of a random ranking (and at
    most one from each user); who rates an item is random. Memory does not grow with the number
    of ratings.

    >>> pairs = DistinctPairs(4, 3, 12, popularity=0.0, key=5)
    >>> users, items = pairs(0, 12)
    >>> len(set(zip(users.tolist(), items.tolist())))
    12
    """

    def __init__(
        self, n_users: int, n_items: int, n_ratings: int, *, popularity: float, key: int
    ) -> None:
        self._n_items = n_items
        if popularity == 0:
            self._order = Permutation(n_users * n_items, key)
            self._ends = None
        else:
            rank = Permutation(n_items, key + 1)(np.arange(n_items)) + np.uint64(1)
            weights = rank.astype(np.float64) ** -popularity
            self._order = Permutation(n_ratings, key)
            self._ends = np.cumsum(shares(weights, n_ratings, most=n_users)).astype(np.uint64)
            self._raters = Permutation(n_users, key + 2)

    def __call__(self, start: int, stop: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return users and items of the pairs at positions ``start`` to ``stop``."""
        drawn = self._order(np.arange(start, stop, dtype=np.uint64))
        if self._ends is None:
            users, items = np.divmod(drawn, np.uint64(self._n_items))
            return users.astype(np.int32), items.astype(np.int32)
        # Slot number `drawn` of all items' slots laid end to end: whose is it, which of its own?
        items = np.searchsorted(self._ends, drawn, side="right")
        begins = np.concatenate(([np.uint64(0)], self._ends))[items]
        users = self._raters(drawn - begins, tweak=items)
        return users.astype(np.int32), items.astype(np.int32)


def shares(weights: NDArray[np.float64], total: int, *, most: int) -> NDArray[np.int64]:
    """Divide ``total`` in whole numbers by weight, none above ``most``.

    >>> shares(np.array([8.0, 1.0, 1.0]), 10, most=4)
    array([4, 3, 3])
    """
    full = np.zeros(len(weights), dtype=bool)
    parts = np.zeros(len(weights))
    while True:
        left = total - most * int(full.sum())
        parts = np.where(full, float(most), weights * left / max(weights[~full].sum(), 1e-300))
        over = ~full & (parts > most)
        if not over.any():
            break
        full |= over  # what they cannot take goes to the others
    whole = np.floor(parts).astype(np.int64)
    nearly = np.argsort(whole - parts, kind="stable")  # the largest fractions first
    whole[nearly[: total - whole.sum()]] += 1
    return whole
