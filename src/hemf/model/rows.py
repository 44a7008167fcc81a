"""Rows: coordinates of their vectors, posterior moments, noise scales, and ratings of pairs.

With offsets (docs/model.md#offsets) the model is r = c + o_i + p_j + a_i·b_j, one inner product of

    user i: (1,   o_i, a_i)         coordinate 0 pinned
    item j: (p_j, 1,   b_j)         coordinate 1 pinned

so each side's posterior covers its own offset and its factors. Without offsets (the paper's plain
form) the vectors are the factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammaln, polygamma

from hemf._arrays import top_columns
from hemf._typing import Array, Float64Array, Int64Array


# docs/model.md#offsets
@dataclass(frozen=True)
class Layout:
    """Coordinates of one side's vectors.

    >>> Layout.of("user", n_factors=3, offsets=True).free.tolist()
    [1, 2, 3, 4]
    >>> Layout.of("item", n_factors=3, offsets=False).total
    3
    """

    total: int
    """Length of a row's vector, pinned coordinate included."""
    pinned: int
    """Coordinate held at 1, or -1."""

    @classmethod
    def of(cls, side: str, *, n_factors: int, offsets: bool) -> Layout:
        """Layout of the "user" or the "item" side."""
        if not offsets:
            return cls(total=n_factors, pinned=-1)
        return cls(total=n_factors + 2, pinned=0 if side == "user" else 1)

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        """Coordinates of the posterior: the offset first, then the factors."""
        return np.array([t for t in range(self.total) if t != self.pinned], dtype=np.int64)

    @property
    def factors(self) -> npt.NDArray[np.int64]:
        """Coordinates of the factors, without offsets."""
        return self.free if self.pinned < 0 else self.free[1:]

    @cached_property
    def order(self) -> int:
        """Number of coordinates of the posterior."""
        return self.total - (self.pinned >= 0)

    @cached_property
    def packed(self) -> int:
        """Length of a packed second moment."""
        return self.total * (self.total + 1) // 2


# ------------------------------------------------------------------------------------------------
# Packed lower triangles: entry (i, j), j ≤ i, is at i(i+1)/2 + j.


@cache
def lower_triangle(order: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of the packed entries of a matrix; read-only.

    >>> lower_triangle(2)
    (array([0, 1, 1]), array([0, 0, 1]))
    """
    return np.tril_indices(order)


def pack(matrices: npt.NDArray[np.float64]) -> Float64Array:
    """Lower triangles of (..., L, L), C-contiguous.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = lower_triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns], dtype=np.float64)


def unpack(triangles: Array) -> Float64Array:
    """Symmetric (..., L, L) of packed (..., L(L+1)/2).

    >>> unpack(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    order = order_of(triangles.shape[-1])
    rows, columns = lower_triangle(order)
    full = np.empty((*triangles.shape[:-1], order, order))
    full[..., rows, columns] = triangles
    full[..., columns, rows] = triangles
    return full


def order_of(length: int) -> int:
    """L of a packed length L(L+1)/2.

    >>> order_of(6)
    3
    """
    return int((np.sqrt(8 * length + 1) - 1) // 2)


@dataclass(frozen=True)
class Moments:
    """Posterior moments of the rows of one side, pinned coordinate included."""

    mean: Array
    """E[a], (rows, total)."""
    second: Array
    """E[a aᵀ], (rows, packed)."""

    def copy(self) -> Moments:
        """Return a deep copy."""
        return Moments(self.mean.copy(), self.second.copy())


# ------------------------------------------------------------------------------------------------
# Noise scale of each row's ratings (docs/model.md#noise-scales).
#
#     r_ij ~ N(c + a_i·b_j, σ²/(τ_i υ_j)),   τ_i ~ Gamma(a0, a0),   υ_j likewise
#
# With one σ² for all, noisy rows can only be explained by large factors, and communities then sort
# rows by noise instead of taste.


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
    """Return the limit of `min_noise`, given weights and the largest number of ratings."""
    if min(float(weight.min()) for weight in weights) > MIN_WEIGHT:
        return NOISE_FLOOR
    most = math.prod(float(weight.max()) for weight in weights)
    rounding = ROUNDING * float(np.finfo(dtype).eps) * math.sqrt(max_count)
    return max(NOISE_FLOOR, rounding * most)


# ------------------------------------------------------------------------------------------------
# Mean and variance of a pair's rating, in the standardised scale of the fit.


COLUMNS = 4096  # rows of the other side that are converted to float64 at a time


# docs/model.md#predictive-variance
def pair_moments(
    left: Moments, right: Moments, rows: Int64Array, columns: Int64Array, *, variance: bool
) -> tuple[Float64Array, Float64Array]:
    """Mean and (where asked for) variance of a·b for pairs of rows."""
    mean = np.empty(rows.size)
    spread = np.empty(rows.size if variance else 0)
    _pair_kernel(left.mean.dtype)(
        np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(columns, np.int64),
        left.mean, left.second, right.mean, right.second, variance, mean, spread,
    )  # fmt: skip
    return mean, spread


@cache
def _pair_kernel(dtype: npt.DTypeLike) -> Callable[..., object]:
    from hemf.kernels.products import pair_moments as kernel

    found: Callable[..., object] = kernel.compiled(dtype)
    return found


def score_rows(
    left: Moments, right: Moments, rows: Int64Array, *, variance: bool
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Mean and variance of these rows against every row of the other side, by matrix products."""
    m = left.mean[rows]
    mean = m @ right.mean.T
    if not variance:
        return mean, np.empty((0, 0))
    weighted = left.second[rows].astype(np.float64) * trace_weights(left)
    exact = m.astype(np.float64)
    variance_ = np.empty(mean.shape)
    for start in range(0, mean.shape[1], COLUMNS):  # in double: two large numbers nearly cancel
        part = slice(start, start + COLUMNS)
        product = exact @ right.mean[part].astype(np.float64).T
        square = weighted @ right.second[part].astype(np.float64).T
        np.maximum(square - product * product, 0.0, out=variance_[:, part])
    return mean, variance_


def draw_scores(
    left: Moments, right: Moments, rows: Int64Array, rng: np.random.Generator
) -> npt.NDArray[np.floating]:
    """One draw of every score of these rows from the posterior (Thompson sampling).

    A row's vector is drawn once, then each score given it: a·b | a ~ N(a·n, aᵀTa), exactly.
    """
    draws = draw_vectors(left, rows, rng).astype(right.mean.dtype)
    mean = draws @ right.mean.T
    i, j = lower_triangle(draws.shape[1])
    outer = draws[:, i] * draws[:, j] * trace_weights(right)
    spread = np.maximum(outer @ right.second.T - mean * mean, 0.0)
    return np.asarray(mean + np.sqrt(spread) * rng.standard_normal(mean.shape))


def draw_vectors(side: Moments, rows: Int64Array, rng: np.random.Generator) -> Float64Array:
    """One draw of each row's vector from a Gaussian with the row's posterior moments."""
    mean = side.mean[rows].astype(np.float64)
    i, j = lower_triangle(mean.shape[1])
    values, vectors = np.linalg.eigh(unpack(side.second[rows] - mean[:, i] * mean[:, j]))
    noise = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(mean.shape)
    return np.asarray(mean + np.einsum("rij,rj->ri", vectors, noise))


def trace_weights(side: Moments) -> npt.NDArray[np.floating]:
    """Weights with which the inner product of packed symmetric matrices is tr(AB)."""
    i, j = lower_triangle(side.mean.shape[1])
    return np.where(i == j, 1.0, 2.0).astype(side.mean.dtype)


# docs/model.md#student-t
def matched_freedom(share: Float64Array, spread: Float64Array) -> Float64Array:
    """Degrees of freedom of a Student-t for a rating whose variance is uncertain itself.

    With uncertain scales a rating is a mixture of Gaussians of variance w = v + σ²/(τυ), where v
    is the variance of a·b. ``share`` is the part of E[w] that is not v, ``spread`` is E[x²]/E[x]²
    of x = 1/(τυ). Equal fourth moments: 3 Var(w)/E[w]² = 6/(ν-4). With the scale of one side and
    v = 0 this is exact: ν = 2a.
    """
    relative = np.square(share) * (spread - 1.0)  # Var(w)/E[w]²
    with np.errstate(divide="ignore"):
        return np.asarray(4.0 + 2.0 / relative)


@dataclass(frozen=True)
class BestColumns:
    """Best columns of each row, best first; -1 where there are fewer than n."""

    columns: Int64Array
    scores: Float64Array


def best_columns(scores: npt.NDArray[np.floating], n: int) -> BestColumns:
    """Top n of every row of a score matrix; -inf entries are never chosen."""
    columns = top_columns(scores, n)
    best = np.take_along_axis(scores, np.maximum(columns, 0), axis=1).astype(np.float64)
    return BestColumns(columns, np.where(columns < 0, -np.inf, best))
