"""Limits of the noise scales."""

import numpy as np

from hemf.kernels import refresh
from hemf.kernels.reference import online as reference
from hemf.model import rows as noise


def test_the_limits_of_weights_are_those_of_the_kernels():
    assert noise.MAX_WEIGHT == refresh.MAX_WEIGHT == reference.MAX_WEIGHT
    scales = noise.scale_posterior(np.array([0.0, 1e9]), np.array([10_000, 10]), 8.0)
    np.testing.assert_allclose(scales.mean, [noise.MAX_WEIGHT, 1.0 / noise.MAX_WEIGHT])
