"""Draws that the samplers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

from hemf._typing import AnyArray, Array, Float32Array, Float64Array, Int32Array, Int64Array
from hemf.engines.threads import share_out
from hemf.evaluation.distribution import level_edges

PARTS = 64  # ranges of ratings or rows, shared out over threads


class Gaussian(NamedTuple):
    """Normal distribution N(μ, Λ⁻¹) of vectors."""

    mean: Float64Array
    precision: Float64Array


# docs/model.md#normal-wishart
@dataclass(frozen=True)
class NormalWishart:
    """Prior of the mean and the precision of vectors.

    Λ ~ Wishart(ν0, s I), whose mean is ν0 s I, and μ ~ N(0, (λ0 Λ)⁻¹).
    """

    mean_precision: float
    """λ0"""
    degrees: float | None = None
    """ν0; None is the size of the vectors."""
    scale: float = 1.0
    """s"""

    def draw(
        self, rows: AnyArray, rng: np.random.Generator, central: AnyArray | None = None
    ) -> Gaussian:
        """Draw μ and Λ given ``rows`` from N(μ, Λ⁻¹) and ``central`` ones from N(0, Λ⁻¹).

        >>> rows = np.random.default_rng(0).normal(2.0, 0.5, (10_000, 1))
        >>> mean, precision = NormalWishart(1.0).draw(rows, np.random.default_rng(1))
        >>> mean.round(1), precision.round(0)
        (array([2.]), array([[4.]]))
        """
        n, size = rows.shape
        mean = rows.mean(axis=0, dtype=np.float64) if n else np.zeros(size)
        apart = rows - mean
        weight = self.mean_precision + n
        scatter = np.eye(size) / self.scale + apart.T @ apart
        scatter += self.mean_precision * n / weight * np.outer(mean, mean)
        degrees = (size if self.degrees is None else self.degrees) + n
        if central is not None:
            scatter, degrees = scatter + central.T @ central, degrees + len(central)
        precision = draw_wishart(degrees, inverse(scatter), rng)
        centre = n / weight * mean
        root = np.linalg.cholesky(weight * precision)
        return Gaussian(centre + np.linalg.solve(root.T, rng.standard_normal(size)), precision)


def draw_wishart(degrees: float, scale: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Draw a matrix whose mean is degrees * scale, by Bartlett's decomposition.

    Three times as fast as SciPy, and without importing its statistics.

    >>> draw_wishart(5.0, np.eye(2), np.random.default_rng(0)).shape
    (2, 2)
    """
    size = len(scale)
    root = np.tril(rng.standard_normal((size, size)), -1)
    root[np.diag_indices(size)] = np.sqrt(rng.chisquare(degrees - np.arange(size)))
    root = np.linalg.cholesky(scale) @ root
    return np.asarray(root @ root.T)


def inverse(matrix: Float64Array) -> Float64Array:
    """Return the inverse of a symmetric matrix, as symmetric.

    >>> inverse(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    found = np.linalg.inv(matrix)
    return np.asarray((found + found.T) / 2.0)  # symmetric in spite of rounding


def products(
    left: Int32Array,
    right: Int32Array,
    left_rows: Float32Array,
    right_rows: Float32Array,
    threads: int,
) -> Float32Array:
    """Return the dot product of the two rows of every pair.

    >>> rows = np.float32([[1, 2], [3, 4]])
    >>> products(np.int32([0, 1]), np.int32([1, 1]), rows, rows, threads=1).tolist()
    [11.0, 25.0]
    """
    from hemf.kernels import gibbs as kernels

    out = np.empty(len(left), np.float32)
    run = kernels.products.compiled(np.float32)
    over_parts(
        lambda begin, end: run(begin, end, left, right, left_rows, right_rows, out), len(out),
        threads,
    )  # fmt: skip
    return out


def over_parts(work: Callable[[int, int], None], n: int, threads: int) -> None:
    """Call ``work`` on ranges that cover range(n)."""
    cuts = np.linspace(0, n, PARTS + 1).astype(np.int64).tolist()
    share_out(lambda begin, end: work(cuts[begin], cuts[end]), PARTS, threads)


# docs/model.md#bpmf
def draw_noise(
    errors: Float32Array | Float64Array, guess: float, rng: np.random.Generator
) -> float:
    """Draw σ² given errors; the prior is 1/σ² ~ Gamma(1, guess), with mean 1/guess."""
    squares = float(np.dot(errors.astype(np.float64), errors))
    return float((guess + squares / 2.0) / rng.standard_gamma(1.0 + len(errors) / 2.0))


def with_unknown(rows: Float32Array, unknown: object) -> Float32Array:
    """Append a row for unknown ids.

    >>> with_unknown(np.float32([[1, 2]]), 0.5).tolist()
    [[1.0, 2.0], [0.5, 0.5]]
    """
    last = np.broadcast_to(np.asarray(unknown, np.float32), rows[:1].shape)
    return np.concatenate([rows, last])


# ------------------------------------------------------------------------------------------------
# Noise scales of rows or of ratings; see `hemf.model.rows`.

SHAPES = np.geomspace(1.5, 1000.0, 80)  # values of a0, a priori equally likely
MIN_SCALE = 1e-6


class DrawnScales:
    """Latest draw of τ_i, of one side's rows or of ratings, and of a0."""

    def __init__(self, weights: Float64Array, shape: float) -> None:
        self.weights, self.shape = weights, shape

    @property
    def mean_inverse(self) -> float:
        """E[1/τ_i] of an unknown row or a new rating."""
        return self.shape / (self.shape - 1.0)

    @property
    def with_unknown(self) -> Float64Array:
        """τ_i, and at the end 1/E[1/τ] for unknown rows."""
        return np.append(self.weights, 1.0 / self.mean_inverse)

    def draw(self, errors: Float64Array, counts: Int64Array, rng: np.random.Generator) -> None:
        """Draw all; ``errors`` are the sums of the rows' squared errors, in units of σ²/τ_i."""
        drawn = rng.standard_gamma(self.shape + 0.5 * counts) / (self.shape + 0.5 * errors)
        self.weights = np.maximum(drawn, MIN_SCALE)
        likely = self.weights.size * (SHAPES * np.log(SHAPES) - gammaln(SHAPES))
        likely += SHAPES * float(np.sum(np.log(self.weights) - self.weights))
        share = np.exp(likely - likely.max())
        self.shape = float(rng.choice(SHAPES, p=share / share.sum()))


# ------------------------------------------------------------------------------------------------
# Ordinal ratings: levels of a scale, each an interval of a latent number. The edges are half-way
# between levels; the first and the last interval are unbounded.


# docs/model.md#ordinal
@dataclass(frozen=True)
class OrdinalScale:
    """Levels of a scale, ascending and standardised as the ratings are."""

    levels: Float64Array

    @cached_property
    def edges(self) -> Float64Array:
        """Edges of the intervals, with infinities.

        >>> OrdinalScale(np.array([1.0, 2.0, 4.0])).edges
        array([-inf,  1.5,  3. ,  inf])
        """
        return level_edges(self.levels)

    def indices(self, ratings: Array) -> AnyArray:
        """Return the index of the level of each rating."""
        return np.searchsorted(self.edges[1:-1], ratings)

    def draw(
        self, indices: AnyArray, mean: Float64Array, std: Float64Array, rng: np.random.Generator
    ) -> Float64Array:
        """Draw the latent numbers of ratings at these levels: truncated normal distributions."""
        low, high = (self.edges[indices + end] - mean for end in (0, 1))
        low, high = low / std, high / std
        flip = low > 0.0  # ndtr is exact in the left tail, and 1 in the right one
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        begin, end = ndtr(low), ndtr(high)
        drawn = ndtri(begin + (end - begin) * rng.random(low.size))
        # Where the probability of a level underflows, the nearer edge is left of the interval.
        drawn = np.where(begin + end > 0.0, np.clip(drawn, low, high), high)
        return np.asarray(mean + std * np.where(flip, -drawn, drawn))

    def moments(self, mean: Float64Array, std: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return mean and variance of ratings whose latent numbers have these."""
        expected = np.full(mean.shape, self.levels[0])
        squares = expected**2
        for level, higher, edge in zip(
            self.levels[:-1], self.levels[1:], self.edges[1:-1], strict=True
        ):
            above = ndtr((mean - edge) / std)
            expected += (higher - level) * above
            squares += (higher**2 - level**2) * above
        return expected, np.maximum(squares - expected**2, 0.0)
