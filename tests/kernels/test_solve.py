"""Solves of one small matrix agree with LAPACK's."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from hemf.kernels import solve
from proofs.problems import spd

ORDERS = [1, 2, 3, 7, 20, 21, 33]


@numba.njit
def everything(a: Any, y: Any, work: Any, inverse: Any) -> Any:
    """½ ln|A⁻¹| and yᵀA⁻¹y; A becomes U, y becomes A⁻¹y, and the inverse is written."""
    half_log_det = solve.factorise(a)
    square = solve.solve_forward(a, y)
    solve.solve_backward(a, y)
    solve.invert(a, work, inverse)
    return half_log_det, square


@numba.njit
def forward(a: Any, y: Any) -> Any:
    """y becomes U⁻ᵀy."""
    solve.factorise(a)
    return solve.solve_forward(a, y)


def upper(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle, and NaN below, which nobody may look at."""
    return np.where(np.tri(len(matrix), k=-1, dtype=bool), np.nan, matrix)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ill", [False, True])
def test_solves_agree_with_numpy(order: int, ill: bool, rng: np.random.Generator) -> None:
    A, y = spd(rng, order), rng.normal(size=order)
    if ill:  # a row with a hundred thousand ratings in some directions, and none in others
        scale = 10.0 ** rng.uniform(0.0, 2.5, order)
        A *= np.outer(scale, scale)
    factor, x = upper(A), y.copy()
    work, inverse = np.full((order, order), np.nan), np.full((order, order), np.nan)
    half_log_det, square = everything(factor, x, work, inverse)
    tolerance = 1e-12 * np.linalg.cond(A)
    U = np.linalg.cholesky(A).T
    np.testing.assert_allclose(np.triu(np.nan_to_num(factor)), U, rtol=tolerance, atol=1e-12)
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
    half = y.copy()
    square = forward(upper(A), half)
    np.testing.assert_allclose(np.linalg.cholesky(A) @ half, y, rtol=1e-10, atol=1e-12)
    assert square == pytest.approx(half @ half, rel=1e-13)


def test_what_is_below_the_diagonal_is_left_alone(rng: np.random.Generator) -> None:
    A = upper(spd(rng, 6))
    everything(A, rng.normal(size=6), np.empty((6, 6)), np.empty((6, 6)))
    assert np.isnan(A[np.tril_indices(6, -1)]).all()
    assert np.isfinite(A[np.triu_indices(6)]).all()
