"""Noise scale of each row's ratings (docs/model.md#noise-scales).

    r_ij ~ N(c + a_i·b_j, σ²/(τ_i υ_j)),   τ_i ~ Gamma(a0, a0),   υ_j likewise

With one σ² for all, noisy rows can only be explained by large factors, and communities then sort
rows by noise instead of taste.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from hemf._typing import Float64Array, Int64Array

START_SHAPE = 10.0  # a0 at the start: scales within about ±30 % of one
ROUNDS = 3  # of q(τ) and its prior in turn; they cost little
# Rows may differ in their noise by about ±35 %: below a shape of 8, rows with few or equal ratings
# are given almost no noise, which fits them perfectly, which lowers the shape.
SHAPE_RANGE = (8.0, 1e6)
# Largest E[τ], and the inverse of the smallest. Beyond it rounding would matter: a pair that is
# measured again and again with the same result gives its row almost no noise.
MAX_WEIGHT = 16.0


@dataclass(frozen=True)
class NoiseScales:
    """q(τ) of one side's rows, Gamma(shape, rate), and the prior Gamma(a0, a0)."""

    prior_shape: float
    shape: Float64Array
    rate: Float64Array

    @classmethod
    def start(cls, n_rows: int) -> NoiseScales:
        """Return scales of one."""
        known = np.full(n_rows, START_SHAPE)
        return cls(START_SHAPE, known, known.copy())

    @property
    def mean(self) -> Float64Array:
        """E[τ_i], weight of each row's ratings."""
        return np.asarray(self.shape / self.rate)

    @property
    def log(self) -> Float64Array:
        """E[ln τ_i]."""
        return np.asarray(digamma(self.shape) - np.log(self.rate))

    @property
    def inverse(self) -> Float64Array:
        """E[1/τ_i], factor of the noise variance of each row; last, of a stranger."""
        known = self.rate / (self.shape - 1.0)
        return np.append(known, self.prior_shape / (self.prior_shape - 1.0))

    @property
    def inverse_spread(self) -> Float64Array:
        """E[1/τ_i²]/E[1/τ_i]² of each row; last, of a stranger."""
        shape = np.append(self.shape, self.prior_shape)
        return np.asarray((shape - 1.0) / (shape - 2.0))


# docs/model.md#noise-scales
def scale_posterior(errors: Float64Array, counts: Int64Array, prior_shape: float) -> NoiseScales:
    """q(τ_i) = Gamma(a0 + n_i/2, a0 + e_i/2) of each row, with E[τ_i] within its limits.

    ``errors`` are e_i = Σ_j υ_j E(r_ij-c-a_i·b_j)²/σ².
    """
    shape = np.asarray(prior_shape + 0.5 * counts, np.float64)
    rate = prior_shape + 0.5 * np.maximum(errors, 0.0)
    return NoiseScales(prior_shape, shape, np.clip(rate, shape / MAX_WEIGHT, shape * MAX_WEIGHT))


def best_shape(mean: float, mean_log: float) -> float:
    """a0 with ln a0 - ψ(a0) = ln mean(E τ) - mean(E ln τ), the maximum of the bound."""
    target = np.log(mean) - mean_log
    low, high = SHAPE_RANGE
    # ln a - ψ(a) falls from ∞ to 0, between 1/(2a) and 1/a.
    shape = np.clip(0.5 / max(target, 1e-12), low, high)
    for _ in range(50):
        gap = np.log(shape) - digamma(shape) - target
        step = shape - gap / (1.0 / shape - polygamma(1, shape))
        step = np.clip(step, max(low, 0.5 * shape), min(high, 2.0 * shape))
        last, shape = shape, step
        if abs(shape - last) <= 1e-7 * shape:  # Newton's next error is about the square of that
            break
    return float(shape)


def balance(scales: NoiseScales, mean_digamma: float | None = None) -> tuple[NoiseScales, float]:
    """Scale the τ_i to a mean of one and optimise a0; also return the divisor of σ².

    Only τ_i/σ² matters to the ratings, so σ² takes the factor and nothing else changes.
    ``mean_digamma`` is the mean of ψ(shape), if known.
    """
    mean = float(np.mean(scales.mean))
    if mean_digamma is None:
        mean_digamma = float(np.mean(digamma(scales.shape)))
    shape = best_shape(mean, mean_digamma - float(np.mean(np.log(scales.rate))))
    return NoiseScales(shape, scales.shape, scales.rate * mean), mean


def learn_scales(
    scales: NoiseScales, errors: Float64Array, counts: Int64Array
) -> tuple[NoiseScales, float]:
    """Optimise q(τ) and its prior together; also return the divisor of σ²."""
    factor = 1.0
    rows_with = np.bincount(counts)  # rows with as many ratings have the same shape
    some = np.flatnonzero(rows_with)
    rows_with = rows_with[some]
    for _ in range(ROUNDS):
        scales = scale_posterior(errors * factor, counts, scales.prior_shape)
        digammas = rows_with @ digamma(scales.prior_shape + 0.5 * some) / counts.size
        scales, mean = balance(scales, float(digammas))
        factor *= mean
    return scales, factor


def noise_term(scales: NoiseScales, counts: Int64Array) -> float:
    """½ Σ n_i E ln τ_i - KL(q(τ) ‖ Gamma(a0, a0)), the scales' term of the bound."""
    return float(0.5 * counts @ scales.log - np.sum(gamma_divergence(scales)))


def gamma_divergence(scales: NoiseScales) -> Float64Array:
    """KL(Gamma(shape, rate) ‖ Gamma(a0, a0)) of each row."""
    a, b, a0 = scales.shape, scales.rate, scales.prior_shape
    return np.asarray(
        (a - a0) * digamma(a)
        - gammaln(a)
        + gammaln(a0)
        + a0 * (np.log(b) - np.log(a0))
        + a * (a0 - b) / b
    )


MIN_WEIGHT = 0.01  # of a row, τ, below which other rows are explained exactly
NOISE_FLOOR = 1e-6  # of the ratings' variance: ratings explained exactly would give NaN
ROUNDING = 8.0  # error of sums over n ratings, in units in the last place times √n


def noise_floor(weights: list[Float64Array], max_count: int, dtype: np.dtype[np.floating]) -> float:
    """Return the limit of `least_noise`, given weights and the largest number of ratings."""
    if min(float(weight.min()) for weight in weights) > MIN_WEIGHT:
        return NOISE_FLOOR
    most = math.prod(float(weight.max()) for weight in weights)
    rounding = ROUNDING * float(np.finfo(dtype).eps) * math.sqrt(max_count)
    return max(NOISE_FLOOR, rounding * most)
