"""A rating far outside all others is named when a model is fitted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from hemf import HeMF, OutlierWarning


def ratings(rng: np.random.Generator, last: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = rng.integers(1, 6, 60).astype(float)
    values[-1] = last
    return np.arange(60) % 12, np.arange(60) // 12, values


@pytest.mark.parametrize("last", [1e30, -4000.0])
def test_an_outlier_is_named(last: float, rng: np.random.Generator) -> None:
    with pytest.warns(OutlierWarning, match=r"one rating is .*all others are from 1 to 5"):
        HeMF(n_factors=1, max_sweeps=1, rng=0).fit(ratings(rng, last))


@pytest.mark.parametrize("last", [0.0, 7.0, 30.0])
def test_a_wide_scale_is_no_outlier(last: float, rng: np.random.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutlierWarning)
        HeMF(n_factors=1, max_sweeps=1, rng=0).fit(ratings(rng, last))


def test_a_declared_range_needs_no_warning(rng: np.random.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutlierWarning)
        HeMF(n_factors=1, max_sweeps=1, rng=0, rating_range=None).fit(ratings(rng, 1e6))
