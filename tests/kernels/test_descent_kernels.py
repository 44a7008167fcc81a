"""Gradient descent: kernel and reference agree, and both go down the gradient of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf.kernels import descent
from hemf.kernels.reference import rows as reference
from hemf.kernels.structures import Descent

N_USERS, N_ITEMS, N_FACTORS = 7, 5, 3
OFFSET_PENALTY, FACTOR_PENALTY = 0.03, 0.07


def problem(
    rng: np.random.Generator, dtype: Any, n: int, known: tuple[int, int] = (N_USERS, N_ITEMS)
) -> tuple[Descent, list[Any]]:
    """What a kernel reads, and the rows it changes."""
    given = Descent(
        users=rng.integers(0, N_USERS, n, dtype=np.int32),
        items=rng.integers(0, N_ITEMS, n, dtype=np.int32),
        ratings=rng.uniform(1, 5, n).astype(np.float32),
        means=rng.uniform(2, 4, n + 1),
        steps=rng.uniform(0.01, 0.1, n),
        scale=1.5,
        offset_penalty=OFFSET_PENALTY,
        factor_penalty=FACTOR_PENALTY,
        known_users=known[0],
        known_items=known[1],
    )
    rows = [rng.normal(size=(n_rows, 1 + N_FACTORS)) for n_rows in (N_USERS, N_ITEMS)]
    return given, [values.astype(dtype) for values in rows]


def descend(given: Descent, rows: list[Any], forecasts: Any) -> None:
    kernel = descent.descend.compiled(rows[0].dtype)
    kernel(given, *rows, forecasts, np.empty(0, np.int64))


@pytest.mark.parametrize("n", [1, 60], ids=["one step", "many steps"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_descent_equals_the_reference(
    dtype: Any, tolerance: float, n: int, rng: np.random.Generator
) -> None:
    given, rows = problem(rng, dtype, n)
    ours, theirs = ([values.copy() for values in rows] for _ in range(2))
    before, expected = np.full(n, np.nan), np.full(n, np.nan)
    descend(given, ours, before)
    reference.descend(given, *theirs, expected)
    for found, wanted in zip([*ours, before], [*theirs, expected], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    assert not np.array_equal(ours[0], rows[0])


def test_without_forecasts_the_same_is_learnt(rng: np.random.Generator) -> None:
    given, rows = problem(rng, np.float64, 60, known=(0, 0))
    first, second = ([values.copy() for values in rows] for _ in range(2))
    descend(given, first, np.empty(60))
    descend(given, second, np.empty(0))
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def loss(a: Any, b: Any, wanted: float) -> float:
    """½e² + ½λ_o(o² + p²) + ½λ(a·a + b·b) of one rating."""
    error = wanted - (a[0] + b[0] + a[1:] @ b[1:])
    offsets, factors = a[0] ** 2 + b[0] ** 2, a[1:] @ a[1:] + b[1:] @ b[1:]
    return float(0.5 * (error**2 + OFFSET_PENALTY * offsets + FACTOR_PENALTY * factors))


# docs/model.md#sgd
def test_a_step_goes_down_the_gradient_of_the_loss(rng: np.random.Generator) -> None:
    given, (users, items) = problem(rng, np.float64, 1)
    i, j, step = given.users[0], given.items[0], given.steps[0]
    wanted = (given.ratings[0] - given.means[1]) / given.scale
    a, b = users[i].copy(), items[j].copy()
    gradient = []
    for row in (a, b):
        for t in range(row.size):
            change = np.zeros_like(row)
            change[t] = 1e-6
            up = loss(a + change * (row is a), b + change * (row is b), wanted)
            down = loss(a - change * (row is a), b - change * (row is b), wanted)
            gradient.append((up - down) / 2e-6)
    descend(given, [users, items], np.empty(0))
    moved = np.append(users[i] - a, items[j] - b)
    np.testing.assert_allclose(moved, -step * np.array(gradient), rtol=1e-7, atol=1e-9)


def test_rows_of_a_rating_alone_are_changed(rng: np.random.Generator) -> None:
    given, (users, items) = problem(rng, np.float64, 1)
    before = users.copy(), items.copy()
    descend(given, [users, items], np.empty(0))
    assert np.flatnonzero((users != before[0]).any(axis=1)).tolist() == given.users.tolist()
    assert np.flatnonzero((items != before[1]).any(axis=1)).tolist() == given.items.tolist()


def test_factors_of_a_new_row_count_from_its_second_rating_on(rng: np.random.Generator) -> None:
    given, rows = problem(rng, np.float64, 3, known=(1, 1))
    given.users[:], given.items[:], given.steps[:] = [0, 1, 1], [0, 0, 0], 0.0
    before = np.empty(3)
    descend(given, rows, before)
    products = rows[0][[0, 1, 1], 1:] @ rows[1][0, 1:] * np.array([1.0, 0.0, 1.0])
    offsets = rows[0][[0, 1, 1], 0] + rows[1][0, 0]
    np.testing.assert_allclose(before, given.means[:3] + 1.5 * (offsets + products))


def test_a_forecast_leaves_out_what_is_not_known(rng: np.random.Generator) -> None:
    _, (users, items) = problem(rng, np.float64, 1)
    i, j = np.array([2, 2, -1, -1], np.int32), np.array([3, -1, 3, -1], np.int32)
    found = np.empty(4)
    descent.forecast.compiled(np.float64)(i, j, 3.0, 2.0, users, items, found)
    o, p = users[2, 0], items[3, 0]
    parts = [o + p + users[2, 1:] @ items[3, 1:], o, p, 0.0]
    np.testing.assert_allclose(found, 3.0 + 2.0 * np.array(parts))
