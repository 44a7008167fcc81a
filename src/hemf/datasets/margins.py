"""Distinct pairs of which some users and some items have far more than others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hemf.datasets.sampling import Permutation, uniforms

Floats = NDArray[np.float64]

_EQUAL_GROUPS = 24  # of the users but for the busiest …
_BUSIEST = 0.04  # … who are halved again and again, for their numbers differ most
_ROUNDS = 100
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
        self, user_weights: Floats, item_weights: Floats, n_ratings: int, *, key: int
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
    item_weights: Floats, group_weights: Floats, sizes: NDArray[np.int64], n_ratings: int
) -> Floats:
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
    for _ in range(_ROUNDS):
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


def _table(a: Floats, b: Floats, sizes: NDArray[np.int64]) -> Floats:
    table: Floats = -np.expm1(-np.outer(a, b))
    table *= sizes
    return table


def _rounded(
    expected: Floats, sizes: NDArray[np.int64], n_ratings: int, chance: float
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
