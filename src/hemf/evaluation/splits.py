"""Splits of ratings into positions of training and test rows.

Every split returns ``(train, test)``, two arrays of positions that together are all rows.
``rng`` is a seed or a generator; the same seed gives the same split on every machine.

The project's benchmarks are stated in these terms:

* *MovieLens 100K, seed s*: ``random_split(100_000, 0.1, rng=s)`` on the rows in file order.
* *weak generalisation, seed s*: ``weak_generalisation(users, items, rng=s)``; the ids as the
  file has them, the order of its rows does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hemf._checks import check_lengths, check_value
from hemf._typing import Int64Array
from hemf.errors import DataError

Split: TypeAlias = tuple[Int64Array, Int64Array]
Seed: TypeAlias = int | np.random.Generator | None


def random_split(n: int, fraction: float = 0.1, *, rng: Seed = 0) -> Split:
    """Withhold a random fraction of ``n`` rows; both parts are in row order and not empty.

    Parameters
    ----------
    n
        Number of rows.
    fraction
        Share of the rows to withhold: the first ``round(fraction * n)`` of
        ``default_rng(rng).permutation(n)``.
    rng
        Seed or generator.

    Returns
    -------
    train, test
        Positions.

    Examples
    --------
    >>> train, test = random_split(10, 0.2, rng=0)
    >>> test
    array([4, 6])

    """
    if n < 2:
        raise DataError(f"{n} rows cannot be split; at least two are needed", value=n)
    order = np.random.default_rng(rng).permutation(n)
    return _by_mask(n, order[: _test_size(n, fraction)])


def weak_generalisation(
    users: ArrayLike, items: ArrayLike | None = None, *, rng: Seed = 0
) -> Split:
    """Withhold one random rating of every user; the only rating of a user is kept in training.

    Every row gets a random number, and the row of a user with the smallest one is withheld.

    Parameters
    ----------
    users
        User of each row.
    items
        Item of each row. With items, the random numbers are drawn in the order of (user, item), so
        that the split does not depend on the order of the rows.
    rng
        As for `random_split`.

    Returns
    -------
    train, test
        Positions in ascending order.

    Examples
    --------
    >>> train, test = weak_generalisation(["ann", "bob", "ann", "cid", "cid"], rng=0)
    >>> test
    array([2, 3])

    """
    user_codes = _codes("users", users)
    n = len(user_codes)
    order = np.arange(n)
    if items is not None:
        item_codes = _codes("items", items)
        check_lengths(users=user_codes, items=item_codes)
        order = np.lexsort((item_codes, user_codes))
    draws = np.empty(n)
    draws[order] = np.random.default_rng(rng).random(n)
    by_user = np.lexsort((draws, user_codes))
    counts = np.bincount(user_codes)
    first = by_user[np.cumsum(counts) - counts]
    return _by_mask(n, first[counts > 1])


def time_ordered(timestamps: ArrayLike, fraction: float = 0.1) -> Split:
    """Withhold the latest fraction of the rows; both parts are in order of time.

    Rows of the same time keep their order.

    >>> time_ordered([30, 10, 20, 40], 0.5)
    (array([1, 2]), array([0, 3]))
    """
    times = np.asarray(timestamps)
    if times.ndim != 1 or len(times) < 2:
        raise DataError("timestamps must be a list of two or more", value=times.shape)
    unknown = times != times  # NaN and NaT differ from themselves
    if unknown.any():
        row = int(unknown.argmax())
        raise DataError(f"timestamp at row {row} is missing", row=row)
    order = np.argsort(times, kind="stable")
    train = len(times) - _test_size(len(times), fraction)
    return order[:train], order[train:]


def k_fold(n: int, k: int = 5, *, rng: Seed = 0) -> Iterator[Split]:
    """Yield ``k`` splits of ``n`` rows; every row is withheld in exactly one of them.

    >>> [test.tolist() for train, test in k_fold(6, 3, rng=0)]
    [[2, 3], [4, 5], [0, 1]]
    """
    check_value("k", k, 2 <= k <= n, f"between 2 and the number of rows, {n}")
    order = np.random.default_rng(rng).permutation(n)
    return (_by_mask(n, part) for part in np.array_split(order, k))


def _by_mask(n: int, withheld: Int64Array) -> Split:
    mask = np.zeros(n, dtype=bool)
    mask[withheld] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _test_size(n: int, fraction: float) -> int:
    check_value("fraction", fraction, 0 < fraction < 1, "between 0 and 1")
    return min(max(round(fraction * n), 1), n - 1)


def _codes(name: str, values: ArrayLike) -> Int64Array:
    """Return the position of each id among the sorted distinct ids."""
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name} must be a list of one or more ids", value=array.shape)
    codes: Int64Array = np.unique(array, return_inverse=True)[1]
    return codes
