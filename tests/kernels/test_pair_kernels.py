"""Mean and variance of a·b: kernel, reference and simulation agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf.kernels import products as pairs
from hemf.kernels.reference import rows
from hemf.model.rows import pack
from proofs.problems import spd


def arguments(rng: np.random.Generator, dtype: Any, n: int = 200, total: int = 4) -> list[Any]:
    moments = []
    for count in (7, 5):
        mean = rng.normal(size=(count, total))
        second = spd(rng, total, count) + mean[:, :, None] * mean[:, None, :]
        moments += [mean.astype(dtype), pack(second).astype(dtype)]
    return [rng.integers(0, 7, n), rng.integers(0, 5, n), *moments]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-4)])
def test_pair_moments_equal_the_reference(
    dtype: Any, tolerance: float, rng: np.random.Generator
) -> None:
    given_arguments = arguments(rng, dtype)
    ours, theirs = (np.full((2, 200), np.nan) for _ in range(2))
    pairs.pair_moments.compiled(dtype)(*given_arguments, True, *ours)
    rows.pair_moments(*given_arguments, True, *theirs)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_variance_is_computed_only_where_asked_for(rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, np.float64)
    mean, nothing = np.empty(200), np.empty(0)
    pairs.pair_moments.compiled(np.float64)(*given_arguments, False, mean, nothing)
    expected = np.empty(200)
    rows.pair_moments(*given_arguments, False, expected, nothing)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)


def test_the_reference_is_what_simulation_finds(rng: np.random.Generator) -> None:
    m, n, S, T = rng.normal(size=3), rng.normal(size=3), spd(rng, 3), spd(rng, 3)
    mean, variance = np.empty(1), np.empty(1)
    moments = [x for v, C in ((m, S), (n, T)) for x in (v[None], pack(C + np.outer(v, v))[None])]
    rows.pair_moments([0], [0], *moments, True, mean, variance)
    draws = 200_000
    products = np.sum(
        rng.multivariate_normal(m, S, draws) * rng.multivariate_normal(n, T, draws), axis=1
    )
    assert abs(products.mean() - mean[0]) < 4.0 * products.std() / np.sqrt(draws)
    assert products.var() == pytest.approx(variance[0], rel=0.03)


def test_a_strided_array_is_a_type_error(rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, np.float64)
    given_arguments[3] = np.asfortranarray(given_arguments[3])
    with pytest.raises(TypeError):
        pairs.pair_moments.compiled(np.float64)(
            *given_arguments, True, np.empty(200), np.empty(200)
        )
