"""What the sampler of HeMF's posterior gathers from ratings is what plain NumPy gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf.kernels import gibbs
from hemf.kernels.reference import rows as reference
from hemf.kernels.structures import Ratings
from hemf.model.rows import pack
from proofs.problems import sparse_rows, spd

PRECISIONS = [(np.float64, 1e-10), (np.float32, 2e-4)]


def arguments(
    rng: np.random.Generator, dtype: Any, order: int, n_rows: int = 41, others: int = 30
) -> list[Any]:
    """What comes after ``begin`` and ``end``; some rows have no rating, and one chunk no row."""
    rows = sparse_rows(rng, n_rows, others, 0.4, dtype)
    return [
        np.array([0, 3, 3, 20, n_rows]), Ratings.of(rows.indptr, rows.indices, rows.values),
        rng.uniform(0.2, 3.0, rows.values.size).astype(dtype),
        rng.normal(size=(others, order)).astype(dtype), pack(spd(rng, order)),
    ]  # fmt: skip


def rubbish(n_rows: int, order: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Outputs to be overwritten."""
    return np.full((n_rows, order, order), np.nan, dtype), np.full((n_rows, order), np.nan)


@pytest.mark.parametrize("order", [1, 2, 7, 21])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_conditionals_of_rows_equal_the_reference(dtype, tolerance, order, rng):
    given = arguments(rng, dtype, order)
    assert (np.diff(given[1].indptr) == 0).any()
    ours, theirs = rubbish(41, order, dtype), rubbish(41, order, np.float64)
    gibbs.conditional_rows.compiled(dtype)(0, 4, *given, *ours)
    reference.conditional_rows(0, 4, *given, *theirs)
    for found, wanted in zip(ours, theirs, strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)
    assert np.array_equal(ours[0], ours[0].swapaxes(1, 2))


def test_conditionals_are_of_the_rows_of_the_chunks_and_do_not_depend_on_them(rng):
    given = arguments(rng, np.float32, 4)
    run = gibbs.conditional_rows.compiled(np.float32)
    whole, part = rubbish(41, 4, np.float32), rubbish(41, 4, np.float32)
    run(0, 4, *given, *whole)
    run(1, 3, *given, *part)
    for all_rows, some in zip(whole, part, strict=True):
        assert np.array_equal(some[3:20], all_rows[3:20])
        assert np.isnan(some[:3]).all()
        assert np.isnan(some[20:]).all()


@pytest.mark.parametrize("order", [1, 2, 7, 21])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-12)])
def test_products_of_rows_equal_the_reference(dtype, tolerance, order, rng):
    """Sums are in float64 whatever the storage of the matrices."""
    matrices = rng.normal(size=(9, order, order)).astype(dtype)  # not symmetric, to tell the axes
    vectors = rng.normal(size=(9, order))
    ours, theirs = (np.full((9, order), np.nan) for _ in range(2))
    gibbs.multiply_rows.compiled(dtype)(2, 8, matrices, vectors, ours)
    reference.multiply_rows(2, 8, matrices, vectors, theirs)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert np.isnan(ours[[0, 1, 8]]).all()
    assert not np.isnan(ours[2:8]).any()
