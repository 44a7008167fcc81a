"""Solves of one small system agree with LAPACK's."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from hemf.kernels import solve
from hemf.kernels.structures import LANES
from proofs.problems import spd

ORDERS = [1, 2, 3, 4, 7, 8, 20, 21, 33]
ROUNDING = 1e-14


@numba.njit
def everything(a: Any, reciprocal: Any, x: Any, work: Any, inverse: Any) -> Any:
    """½ ln|A⁻¹| and yᵀA⁻¹y; the system is factorised, x becomes A⁻¹y, the inverse is written."""
    half_log_det = solve.factorise(a, reciprocal, ROUNDING)
    square = solve.square(a, reciprocal)
    solve.solve_backward(a, reciprocal, x)
    solve.invert(a, reciprocal, work, inverse)
    return half_log_det, square


@numba.njit
def factorise(a: Any, reciprocal: Any, rounding: float) -> Any:
    return solve.factorise(a, reciprocal, rounding)


def system(matrix: np.ndarray, y: np.ndarray, elsewhere: float = np.nan) -> np.ndarray:
    """A system in memory; what is below the diagonal, and the padding, may be anything."""
    order = y.size
    made = np.full((order, (order // LANES + 1) * LANES), elsewhere)
    upper = np.triu_indices(order)
    made[upper] = matrix[upper]
    made[:, order] = y
    return made


def like(a: np.ndarray) -> list[np.ndarray]:
    """Room for reciprocals, a solution, work and an inverse, nothing of which is set."""
    order = a.shape[0]
    return [np.full(shape, np.nan) for shape in (order, order, a.shape, a.shape)]


def problem(rng: np.random.Generator, order: int, ill: bool) -> tuple[np.ndarray, np.ndarray]:
    A, y = spd(rng, order), rng.normal(size=order)
    if ill:  # a row with a hundred thousand ratings in some directions, and none in others
        scale = 10.0 ** rng.uniform(0.0, 2.5, order)
        A *= np.outer(scale, scale)
    return A, y


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ill", [False, True])
def test_solves_agree_with_numpy(order: int, ill: bool, rng: np.random.Generator) -> None:
    A, y = problem(rng, order, ill)
    a = system(A, y)
    reciprocal, x, work, inverse = like(a)
    half_log_det, square = everything(a, reciprocal, x, work, inverse)
    tolerance = 1e-12 * np.linalg.cond(A)
    R = np.linalg.cholesky(A).T
    U, upper = np.diag(R)[:, None] * R, np.triu_indices(order)  # A = RᵀR = UᵀD⁻¹U
    np.testing.assert_allclose(a[upper], U[upper], rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(reciprocal, 1.0 / np.diag(U), rtol=tolerance)
    np.testing.assert_allclose(x, np.linalg.solve(A, y), rtol=tolerance, atol=tolerance)
    assert half_log_det == pytest.approx(-0.5 * np.linalg.slogdet(A)[1], rel=1e-12, abs=1e-12)
    assert square == pytest.approx(y @ np.linalg.solve(A, y), rel=tolerance)
    exact = np.linalg.inv(A)
    lower = np.tril_indices(order)
    np.testing.assert_allclose(
        inverse[lower], exact[lower], rtol=tolerance, atol=tolerance * np.abs(exact).max()
    )


@pytest.mark.parametrize("order", ORDERS)
def test_half_a_solve_has_the_length_of_the_whole(order: int, rng: np.random.Generator) -> None:
    A, y = spd(rng, order), rng.normal(size=order)
    a = system(A, y)
    reciprocal, *room = like(a)
    _, square = everything(a, reciprocal, *room)
    U, half = np.triu(a[:, :order]), a[:, order]
    np.testing.assert_allclose(U.T @ (reciprocal * half), y, rtol=1e-10, atol=1e-12)
    assert square == pytest.approx(half @ (reciprocal * half), rel=1e-13)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_below_the_diagonal_changes_nothing(order: int, rng: np.random.Generator) -> None:
    A, y = spd(rng, order), rng.normal(size=order)
    found = []
    for elsewhere in (0.0, np.nan, np.inf, -1e300):
        a = system(A, y, elsewhere)
        room = like(a)
        numbers = everything(a, *room)
        reciprocal, x, _, inverse = room
        upper, lower = a[np.triu_indices(order)], inverse[np.tril_indices(order)]
        found.append(np.concatenate([numbers, upper, a[:, order], reciprocal, x, lower]))
    assert np.isfinite(found[0]).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("order", ORDERS)
def test_solving_and_inverting_leave_the_factors_alone(
    order: int, rng: np.random.Generator
) -> None:
    A, y = spd(rng, order), rng.normal(size=order)
    a, factors = system(A, y), system(A, y)
    reciprocal, *room = like(a)
    expected = np.empty(order)
    factorise(factors, expected, ROUNDING)
    everything(a, reciprocal, *room)
    np.testing.assert_array_equal(a, factors)
    np.testing.assert_array_equal(reciprocal, expected)


# -- matrices that have lost their digits --------------------------------------------------------


@pytest.mark.parametrize("rounding", [1e-6, 1e-14])
def test_a_matrix_without_full_rank_is_factorised_all_the_same(
    rounding: float, rng: np.random.Generator
) -> None:
    """No pivot is less than a part of the diagonal entry that it is what is left of."""
    root = rng.normal(size=(9, 4)) * 10.0 ** rng.uniform(-3, 3, (9, 1))
    A, y = root @ root.T, rng.normal(size=9)
    a, reciprocal = system(A, y), np.empty(9)
    half_log_det = factorise(a, reciprocal, rounding)
    pivots, least = np.diag(a), rounding * np.diag(A)
    assert (pivots >= least).all()
    np.testing.assert_allclose(pivots[4:] / np.diag(A)[4:], rounding, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(reciprocal, 1.0 / pivots, rtol=1e-15)
    assert half_log_det == pytest.approx(-0.5 * np.log(pivots).sum(), rel=1e-12)


def test_where_more_was_taken_than_there_was_nothing_is_negative(rng: np.random.Generator) -> None:
    A = spd(rng, 6)
    A[2, 2], A[4, 4] = -3.0, 0.0
    a = system(A, rng.normal(size=6))
    room = like(a)
    half_log_det, square = everything(a, *room)
    reciprocal, x, _, inverse = room
    assert (np.diag(a) > 0.0).all()
    assert (reciprocal > 0.0).all()
    assert (np.diag(inverse) > 0.0).all()
    assert square > 0.0
    assert np.isfinite([half_log_det, *x]).all()


def test_the_least_pivot_is_not_felt_where_there_are_digits(rng: np.random.Generator) -> None:
    A, y = problem(rng, 20, ill=True)
    found = []
    for rounding in (0.0, 1e-14, 1e-6):
        a, reciprocal = system(A, y), np.empty(20)
        factorise(a, reciprocal, rounding)
        found.append(a[np.triu_indices(20)])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
