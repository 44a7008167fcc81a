"""Which ratings to learn from and which to withhold: positions of train and test rows.

Every split returns ``(train, test)``, two arrays of positions that together are all rows.
``rng`` is a seed or a generator; the same seed gives the same split everywhere.

The project's benchmarks are stated in these terms:

* *MovieLens 100K, seed s*: ``random_split(100_000, 0.1, rng=s)`` on the rows in file order.
* *weak generalisation, seed s*: ``weak_generalisation(users, items, rng=s)``; the ids as the
  file has them, the order of its rows does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemf.errors import DataError, ParameterError

Positions = NDArray[np.intp]
Split = tuple[Positions, Positions]
Seed = int | np.random.Generator | None


def random_split(n: int, fraction: float = 0.1, *, rng: Seed = 0) -> Split:
    """Withhold a random share of ``n`` rows; both parts are in row order and not empty.

    The test rows are the first ``round(fraction * n)`` of ``default_rng(rng).permutation(n)``.

    >>> train, test = random_split(10, 0.2, rng=0)
    >>> test
    array([4, 6])
    """
    if n < 2:
        raise DataError(f"{n} rows cannot be split; two are the least", value=n)
    order = np.random.default_rng(rng).permutation(n)
    return _by_mask(n, order[: _test_size(n, fraction)])


def weak_generalisation(
    users: ArrayLike, items: ArrayLike | None = None, *, rng: Seed = 0
) -> Split:
    """Withhold one random rating of every user; a user's only rating stays in train.

    Every row gets a random number, a user's row with the smallest one is withheld. With
    ``items``, the numbers go to the rows in order of (user, item), so that the split does not
    depend on the order of the rows; without, in the order they are given.

    >>> train, test = weak_generalisation(["ann", "bob", "ann", "cid", "cid"], rng=0)
    >>> test
    array([2, 3])
    """
    people = _codes("users", users)
    n = len(people)
    if items is None:
        order = np.arange(n)
    else:
        things = _codes("items", items)
        if len(things) != n:
            raise DataError(f"lengths differ: users {n}, items {len(things)}", value=len(things))
        order = np.lexsort((things, people))
    draws = np.empty(n)
    draws[order] = np.random.default_rng(rng).random(n)
    by_user = np.lexsort((draws, people))
    counts = np.bincount(people)
    first = by_user[np.cumsum(counts) - counts]
    return _by_mask(n, first[counts > 1])


def time_ordered(timestamps: ArrayLike, fraction: float = 0.1) -> Split:
    """Withhold the latest share of the rows; both parts are in order of time.

    Rows of the same time keep their order. ``np.concatenate`` of the two is the whole stream.

    >>> time_ordered([30, 10, 20, 40], 0.5)
    (array([1, 2]), array([0, 3]))
    """
    times = np.asarray(timestamps)
    if times.ndim != 1 or len(times) < 2:
        raise DataError("timestamps must be a list of two or more", value=times.shape)
    unknown = np.isnat(times) if times.dtype.kind in "mM" else times != times  # NaN ≠ NaN
    if (missing := np.flatnonzero(unknown)).size:
        raise DataError(f"the timestamp at position {missing[0]} is missing", row=int(missing[0]))
    order = np.argsort(times, kind="stable")
    train = len(times) - _test_size(len(times), fraction)
    return order[:train], order[train:]


def k_fold(n: int, k: int = 5, *, rng: Seed = 0) -> Iterator[Split]:
    """Yield ``k`` splits of ``n`` rows; every row is withheld in exactly one of them.

    >>> [test.tolist() for train, test in k_fold(6, 3, rng=0)]
    [[2, 3], [4, 5], [0, 1]]
    """
    if not 2 <= k <= n:
        raise ParameterError(f"k is {k}; it must be between 2 and the {n} rows", value=k)
    order = np.random.default_rng(rng).permutation(n)
    return (_by_mask(n, part) for part in np.array_split(order, k))


def _by_mask(n: int, withheld: Positions) -> Split:
    mask = np.zeros(n, dtype=bool)
    mask[withheld] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _test_size(n: int, fraction: float) -> int:
    if not 0 < fraction < 1:
        raise ParameterError(
            f"fraction is {fraction!r}; it must be between 0 and 1", value=fraction
        )
    return min(max(round(fraction * n), 1), n - 1)


def _codes(name: str, values: ArrayLike) -> NDArray[np.intp]:
    """Give ids numbers from 0 in their sorted order."""
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name} must be a list of one or more ids", value=array.shape)
    codes: NDArray[np.intp] = np.unique(array, return_inverse=True)[1]
    return codes
