"""Steps on a few numbers at a time do what NumPy does number by number."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from hemf.kernels.lanes import LANES, WIDE, add_scaled, put_products

SIZES = range(1, 41)
STORAGE = [np.float32, np.float64]
UNTOUCHED = -77.0


@numba.njit
def add(x: Any, at: int, y: Any, by: int, factor: float, n: int) -> None:
    add_scaled(x, at, y, by, factor, n)


@numba.njit
def put(x: Any, y: Any, n: int, factor: float) -> None:
    put_products(x, y, n, factor)


# -- x += factor * y -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(0, 41, LANES))
def test_a_multiple_is_added_wherever_it_begins(n: int, rng: np.random.Generator) -> None:
    for at in range(LANES + 1):
        for by in range(LANES + 1):
            x, y = rng.normal(size=50), rng.normal(size=50)
            expected, source = x.copy(), y.copy()
            expected[at : at + n] += 1.7 * y[by : by + n]
            before = x.copy()
            add(x, at, y, by, 1.7, n)
            np.testing.assert_allclose(x, expected, rtol=1e-15, atol=1e-15)
            np.testing.assert_array_equal(y, source)
            np.testing.assert_array_equal(x[:at], before[:at])
            np.testing.assert_array_equal(x[at + n :], before[at + n :])


@pytest.mark.parametrize("n", SIZES)
def test_only_whole_lanes_are_added(n: int) -> None:
    x = np.zeros(50)
    add(x, 3, np.ones(50), 0, 2.0, n)
    whole = n // LANES * LANES
    np.testing.assert_array_equal(np.flatnonzero(x), np.arange(3, 3 + whole))


@pytest.mark.parametrize("columns", range(LANES, 41, LANES))
def test_rows_of_one_table_are_added_to_each_other(columns: int, rng: np.random.Generator) -> None:
    """Positions are counted as if a table had one dimension."""
    table = rng.normal(size=(4, columns))
    expected = table.copy()
    expected[3] += -0.3 * table[1]
    add(table, 3 * columns, table, columns, -0.3, columns)
    np.testing.assert_allclose(table, expected, rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(table[:3], expected[:3])


def test_what_is_not_among_the_lanes_is_not_read() -> None:
    x, y = np.full(24, np.nan), np.full(24, np.nan)
    x[5:17], y[2:14] = 1.0, 2.0
    add(x, 5, y, 2, 0.5, 12)
    np.testing.assert_array_equal(x[5:17], 2.0)
    assert np.isnan(x[:5]).all()
    assert np.isnan(x[17:]).all()


# -- the packed products of a vector with itself -------------------------------------------------


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("n", SIZES)
def test_products_are_those_of_numpy(n: int, dtype: Any, rng: np.random.Generator) -> None:
    packed = n * (n + 1) // 2
    y = np.full(n + WIDE, np.nan, dtype)
    y[:n] = rng.normal(size=n)
    x = np.full(packed + WIDE, UNTOUCHED, dtype)
    put(x, y, n, 0.6)
    vector, digits = y[:n].astype(np.float64), 4 * np.finfo(dtype).eps
    exact = 0.6 * np.outer(vector, vector)[np.tril_indices(n)]
    np.testing.assert_allclose(x[:packed], exact, rtol=digits)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("n", SIZES)
def test_less_than_the_room_behind_products_is_written_over(
    n: int, dtype: Any, rng: np.random.Generator
) -> None:
    """The last row ends at a multiple of `WIDE`, and nothing is written beyond that."""
    before, packed = 16, n * (n + 1) // 2
    x = np.full(before + packed + 5 * WIDE, UNTOUCHED, dtype)
    y = np.full(n + 5 * WIDE, np.nan, dtype)
    y[:n] = rng.normal(size=n)
    source = y.copy()
    put(x[before:], y, n, -1.3)
    np.testing.assert_array_equal(x[:before], UNTOUCHED)
    assert np.isfinite(x[before : before + packed]).all()
    overhang = -n % WIDE
    assert np.isnan(x[before + packed : before + packed + overhang]).all()
    np.testing.assert_array_equal(x[before + packed + overhang :], UNTOUCHED)
    np.testing.assert_array_equal(y, source)


def test_no_numbers_have_no_products() -> None:
    x = np.full(WIDE, UNTOUCHED)
    put(x, np.ones(WIDE), 0, 1.0)
    np.testing.assert_array_equal(x, UNTOUCHED)
