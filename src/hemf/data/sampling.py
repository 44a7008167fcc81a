"""Streams of distinct random pairs, of which some users and items have far more than others."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TypeAlias

import numpy as np

from hemf._typing import AnyArray, Float64Array, Int32Array, Int64Array, UInt64Array

Pairs: TypeAlias = Callable[[int, int], tuple[Int32Array, Int32Array]]
"""Returns users and items of the pairs between two positions of a stream."""

_EQUAL_GROUPS = 24  # of the users, except for the most active …
_MOST_ACTIVE = 0.04  # … which are halved again and again, because their numbers differ most
_MARGIN_ROUNDS = 100
_TOLERANCE = 1e-4  # rounding to integers changes more


class GroupedPairs:
    """A stream of distinct (user, item) pairs in random order, in constant memory.

    ``counts[j, g]`` is how many users of group g rate item j. Groups are consecutive ``users``, of
    the given ``sizes``; which user of a group rates an item is random.
    """

    def __init__(
        self, counts: Int64Array, users: Int32Array, sizes: Int64Array, *, key: int
    ) -> None:
        self._users, self._sizes, self._firsts = users, sizes, np.cumsum(sizes) - sizes
        self._ends = np.cumsum(counts)
        self._order = Permutation(int(self._ends[-1]), key)
        self._raters = Permutation(len(users), key + 2)

    def __call__(self, start: int, stop: int) -> tuple[Int32Array, Int32Array]:
        """Return users and items of the pairs at positions ``start`` to ``stop``."""
        drawn = self._order(np.arange(start, stop)).astype(np.int64)
        cells = np.searchsorted(self._ends, drawn, side="right")  # of an item and a group
        within = drawn - np.where(cells > 0, self._ends[cells - 1], 0)
        items, groups = np.divmod(cells, len(self._sizes))
        places = self._raters(within, tweak=cells, sizes=self._sizes[groups]).astype(np.int64)
        return self._users[places + self._firsts[groups]], items.astype(np.int32)


def distinct_pairs(
    n_users: int, n_items: int, n_ratings: int, *, popularity: float, key: int
) -> Pairs:
    """Return a stream of ``n_ratings`` (user, item) pairs, all different, in random order.

    With a ``popularity`` of 0 every pair is equally likely. Otherwise numbers of ratings of items
    are proportional to ``1 / rank ** popularity`` of a random ranking, with at most one rating of
    each user, and the users are random.

    >>> pairs = distinct_pairs(4, 3, 12, popularity=0.0, key=5)
    >>> users, items = pairs(0, 12)
    >>> len(set(zip(users.tolist(), items.tolist())))
    12
    """
    if popularity:
        rank = Permutation(n_items, key + 1)(np.arange(n_items)) + np.uint64(1)
        counts = divide_by_weight(rank.astype(np.float64) ** -popularity, n_ratings, most=n_users)
        return GroupedPairs(
            counts, np.arange(n_users, dtype=np.int32), np.array([n_users]), key=key
        )
    order = Permutation(n_users * n_items, key)

    def equally_likely(start: int, stop: int) -> tuple[Int32Array, Int32Array]:
        users, items = np.divmod(order(np.arange(start, stop)), np.uint64(n_items))
        return users.astype(np.int32), items.astype(np.int32)

    return equally_likely


def uneven_pairs(
    user_weights: Float64Array, item_weights: Float64Array, n_ratings: int, *, key: int
) -> Pairs:
    """Return a stream of ``n_ratings`` distinct pairs, of users and items of unequal weight.

    Numbers of ratings of items are proportional to ``item_weights``, up to rounding. Users are in
    groups of similar weight, and have on average the number of their group. An active user rates a
    popular item only once, so a part of their ratings goes to others.

    >>> pairs = uneven_pairs(np.array([1.0, 1, 4]), np.array([1.0, 3, 1, 1]), 6, key=5)
    >>> users, items = pairs(0, 6)
    >>> len(set(zip(users.tolist(), items.tolist()))), int(np.sum(items == 1))
    (6, 3)
    """
    by_weight = np.argsort(user_weights, kind="stable").astype(np.int32)
    bounds = _group_bounds(len(user_weights))
    sizes = np.diff(bounds)
    group_weights = np.add.reduceat(user_weights[by_weight], bounds[:-1])
    expected = _expected(item_weights, group_weights, sizes, n_ratings)
    chance = float(uniforms(key, np.zeros(1, np.uint64))[0])
    counts = _rounded(expected, sizes, n_ratings, chance)
    return GroupedPairs(counts, by_weight, sizes, key=key)


def _group_bounds(n_users: int) -> Int64Array:
    """Return where groups of users begin, by ascending weight, and where the last one ends."""
    most = np.linspace(0, 1 - _MOST_ACTIVE, _EQUAL_GROUPS)
    halvings = 1 - _MOST_ACTIVE * 0.5 ** np.arange(1, max(2, int(np.log2(n_users))))
    shares = np.concatenate((most, halvings, [1.0]))
    return np.unique(np.round(shares * n_users).astype(np.int64))


def _expected(
    item_weights: Float64Array, group_weights: Float64Array, sizes: Int64Array, n_ratings: int
) -> Float64Array:
    """Return the expected ratings of every item by every group, with the wanted sums.

    A user rates an item with probability 1 - exp(-a b), a of the item and b of the group: nearly
    proportional to both while it is small, and never above 1.
    """
    wanted_items = n_ratings * item_weights / item_weights.sum()
    wanted_groups = n_ratings * group_weights / group_weights.sum()
    n_users, n_items = sizes.sum(), len(item_weights)
    # What a row cannot have is given to the others at the end.
    wanted_items = np.minimum(wanted_items, 0.999 * n_users)
    wanted_groups = np.minimum(wanted_groups, 0.999 * n_items * sizes)
    a = wanted_items / n_users
    b = wanted_groups / (sizes * n_items) / (n_ratings / (n_users * n_items))
    for _ in range(_MARGIN_ROUNDS):
        b *= wanted_groups / _table(a, b, sizes).sum(axis=0)
        off = wanted_items / _table(a, b, sizes).sum(axis=1)
        a *= off
        if np.abs(off - 1).max() < _TOLERANCE:
            break
    expected = _table(a, b, sizes)
    missing = n_ratings - float(expected.sum())
    if missing > 0:
        room = sizes - expected
        expected += room * (missing / float(room.sum()))
    return expected


def _table(a: Float64Array, b: Float64Array, sizes: Int64Array) -> Float64Array:
    table: Float64Array = -np.expm1(-np.outer(a, b))
    table *= sizes
    return table


def _rounded(
    expected: Float64Array, sizes: Int64Array, n_ratings: int, chance: float
) -> Int64Array:
    """Round to integers such that running sums are exact up to rounding.

    Rounded one by one, cells of less than one would all be lost.
    """
    sums = np.cumsum(expected)
    sums *= n_ratings / sums[-1]
    counts: Int64Array = np.diff(np.floor(sums + chance), prepend=0).astype(np.int64)
    most = np.tile(sizes, len(expected))
    counts = np.minimum(counts, most)
    while short := n_ratings - int(counts.sum()):  # rounding errors of the sums
        fullest = np.argsort(most - counts)[::-1] if short > 0 else np.argsort(counts)[::-1]
        counts[fullest[: abs(short)]] += np.sign(short)
    return counts


# -- random numbers and permutations computed from a position ------------------------------------
#
# The t-th draw depends only on the key and on t, so that a stream of a hundred million distinct
# pairs can be drawn block by block.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 8


def mix(numbers: UInt64Array) -> UInt64Array:
    """Scramble 64-bit numbers one to one (the finaliser of SplitMix64)."""
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def uniforms(key: int, positions: UInt64Array) -> Float64Array:
    """Return a uniform random number inside (0, 1) for each position."""
    bits = mix(np.uint64(key) + (positions + np.uint64(1)) * _GOLDEN)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


class Permutation:
    """A random permutation of 0, 1, …, size - 1 that is computed rather than stored.

    A Feistel network on the smallest square that holds ``size`` numbers: a number is a (row,
    column), and row and column in turn are shifted by a keyed hash of the other, which is one to
    one. Numbers of ``size`` or more are permuted again. ``tweak`` selects another permutation and
    ``sizes`` another size for each position.

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
        self, positions: AnyArray, tweak: AnyArray | None = None, sizes: AnyArray | None = None
    ) -> UInt64Array:
        """Return the numbers at the given positions."""
        numbers = np.asarray(positions).astype(np.uint64)
        twist = None if tweak is None else mix(np.asarray(tweak).astype(np.uint64) * _GOLDEN)
        if sizes is None:
            size = np.broadcast_to(np.uint64(self.size), numbers.shape)
            edge = np.broadcast_to(self._edge, numbers.shape)
        else:  # far below 2⁵², so the root is exact
            size = np.asarray(sizes).astype(np.uint64)
            edge = np.sqrt(size - np.uint64(1)).astype(np.uint64) + np.uint64(1)
        numbers = self._once(numbers, twist, edge)
        while (beyond := np.flatnonzero(numbers >= size)).size:
            again = None if twist is None else twist[beyond]
            numbers[beyond] = self._once(numbers[beyond], again, edge[beyond])
        return numbers

    def _once(
        self, numbers: UInt64Array, twist: UInt64Array | None, edge: UInt64Array
    ) -> UInt64Array:
        half = np.uint64(32)
        still, moving = np.divmod(numbers, edge)
        for key in self._round_keys:
            hashed = mix((still + key) if twist is None else (still + key) ^ twist)
            moving += ((hashed >> half) * edge) >> half  # a hash scaled to 0 … edge - 1
            moving -= np.where(moving >= edge, edge, np.uint64(0))
            still, moving = moving, still
        return still * edge + moving


def divide_by_weight(weights: Float64Array, total: int, *, most: int) -> Int64Array:
    """Divide ``total`` into integers by weight, none above ``most``.

    >>> divide_by_weight(np.array([8.0, 1.0, 1.0]), 10, most=4)
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
        full |= over  # the rest goes to the others
    whole = np.floor(parts).astype(np.int64)
    nearly = np.argsort(whole - parts, kind="stable")  # the largest fractions first
    whole[nearly[: total - whole.sum()]] += 1
    return whole
