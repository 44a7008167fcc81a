"""Small solves in lanes are what LAPACK says they are."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from hemf.kernels import lanes
from hemf.model.rows import pack, unpack
from proofs.problems import spd

factorise, solve_forward, solve_backward, invert = (
    numba.njit(each.py_func)
    for each in (lanes.factorise, lanes.solve_forward, lanes.solve_backward, lanes.invert)
)
ORDERS = [1, 2, 3, 4, 5, 6, 8, 9, 13, 21]


def in_lanes(matrices: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pack(matrices).T)


def lower(packed: np.ndarray) -> np.ndarray:
    return np.tril(unpack(packed.T))


@pytest.fixture(params=ORDERS)
def matrices(request: pytest.FixtureRequest, rng: np.random.Generator) -> np.ndarray:
    return spd(rng, request.param, lanes.WIDTH)


def test_factorisation_is_the_cholesky_factor(matrices: np.ndarray) -> None:
    a = in_lanes(matrices)
    factorise(a, matrices.shape[1])
    np.testing.assert_allclose(lower(a), np.linalg.cholesky(matrices), rtol=1e-10, atol=1e-12)


def test_two_solves_are_one_solve_of_the_matrix(
    matrices: np.ndarray, rng: np.random.Generator
) -> None:
    order = matrices.shape[1]
    a, y = in_lanes(matrices), rng.normal(size=(order, lanes.WIDTH))
    right = y.T.copy()
    factorise(a, order)
    solve_forward(a, y, order)
    half = np.linalg.solve(np.linalg.cholesky(matrices), right[:, :, None])[:, :, 0]
    np.testing.assert_allclose(y.T, half, rtol=1e-9, atol=1e-11)
    solve_backward(a, y, order)
    whole = np.linalg.solve(matrices, right[:, :, None])[:, :, 0]
    np.testing.assert_allclose(y.T, whole, rtol=1e-9, atol=1e-11)


def test_inverse_of_a_factor_is_the_inverse_of_its_matrix(matrices: np.ndarray) -> None:
    a = in_lanes(matrices)
    factorise(a, matrices.shape[1])
    invert(a, matrices.shape[1])
    np.testing.assert_allclose(unpack(a.T), np.linalg.inv(matrices), rtol=1e-9, atol=1e-11)


def test_an_ill_conditioned_matrix_is_solved_as_well_as_lapack_does(
    rng: np.random.Generator,
) -> None:
    order = 12
    turn = np.linalg.qr(rng.normal(size=(lanes.WIDTH, order, order)))[0]
    matrices = turn @ (np.logspace(-6, 4, order)[:, None] * turn.transpose(0, 2, 1))
    matrices = 0.5 * (matrices + matrices.transpose(0, 2, 1))
    a = in_lanes(matrices)
    factorise(a, order)
    invert(a, order)
    ours = np.abs(unpack(a.T) @ matrices - np.eye(order)).max()
    theirs = np.abs(np.linalg.inv(matrices) @ matrices - np.eye(order)).max()
    assert ours < 20.0 * theirs


def test_lanes_do_not_touch_each_other(rng: np.random.Generator) -> None:
    matrices = spd(rng, 5, lanes.WIDTH)
    broken = matrices.copy()
    broken[7] = np.nan
    a, b = in_lanes(matrices), in_lanes(broken)
    for lane_array in (a, b):
        factorise(lane_array, 5)
        invert(lane_array, 5)
    others = np.delete(np.arange(lanes.WIDTH), 7)
    np.testing.assert_array_equal(a[:, others], b[:, others])
    assert np.isnan(b[:, 7]).all()
