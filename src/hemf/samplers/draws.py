"""Draws that Gibbs samplers are made of, whatever they sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ndtr, ndtri

from hemf._typing import Float32Array, Float64Array, Int32Array
from hemf.engines.threads import share_out
from hemf.evaluation.distribution import level_edges

PARTS = 64  # ranges of ratings, or rows, that threads share


# docs/model.md#normal-wishart
@dataclass(frozen=True)
class NormalWishart:
    """What means and precisions of vectors are drawn from.

    Λ ~ Wishart(ν0, s I), whose mean is ν0 s I, and μ ~ N(0, (λ0 Λ)⁻¹).
    """

    mean_precision: float
    """λ0"""
    degrees: float | None = None
    """ν0; None is the size of the vectors."""
    scale: float = 1.0
    """s"""

    def draw(
        self,
        rows: npt.NDArray[Any],
        rng: np.random.Generator,
        central: npt.NDArray[Any] | None = None,
    ) -> tuple[Float64Array, Float64Array]:
        """Draw μ and Λ given vectors that were drawn from N(μ, Λ⁻¹), and others from N(0, Λ⁻¹).

        >>> rows = np.random.default_rng(0).normal(2.0, 0.5, (10_000, 1))
        >>> mean, precision = NormalWishart(1.0).draw(rows, np.random.default_rng(1))
        >>> mean.round(1), precision.round(0)
        (array([2.]), array([[4.]]))
        """
        n, size = rows.shape
        mean = rows.mean(axis=0, dtype=np.float64) if n else np.zeros(size)
        apart = rows - mean
        weight = self.mean_precision + n
        spread = np.eye(size) / self.scale + apart.T @ apart
        spread += self.mean_precision * n / weight * np.outer(mean, mean)
        degrees = (size if self.degrees is None else self.degrees) + n
        if central is not None:
            spread, degrees = spread + central.T @ central, degrees + len(central)
        precision = draw_wishart(degrees, inverse(spread), rng)
        centre = n / weight * mean
        root = np.linalg.cholesky(weight * precision)
        return centre + np.linalg.solve(root.T, rng.standard_normal(size)), precision


def draw_wishart(degrees: float, scale: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Draw a matrix whose mean is degrees * scale, by Bartlett's decomposition.

    SciPy can draw these too, in three times the time and after loading its statistics.

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
    return np.asarray((found + found.T) / 2.0)  # which rounding has left a little lopsided


def products(
    left: Int32Array,
    right: Int32Array,
    left_rows: Float32Array,
    right_rows: Float32Array,
    threads: int,
) -> Float32Array:
    """Return the product of the two rows of every pair.

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
    """Call ``work`` on ranges that together are all of n."""
    cuts = np.linspace(0, n, PARTS + 1).astype(np.int64).tolist()
    share_out(lambda begin, end: work(cuts[begin], cuts[end]), PARTS, threads)


# docs/model.md#bpmf
def draw_noise(
    errors: Float32Array | Float64Array, guess: float, rng: np.random.Generator
) -> float:
    """Draw σ² given errors; a priori 1/σ² ~ Gamma(1, guess), whose mean is 1/guess."""
    wrong = float(np.dot(errors.astype(np.float64), errors))
    return float((guess + wrong / 2.0) / rng.standard_gamma(1.0 + len(errors) / 2.0))


def with_stranger(rows: Float32Array, stranger: object) -> Float32Array:
    """Return the rows and one more for a stranger.

    >>> with_stranger(np.float32([[1, 2]]), 0.5).tolist()
    [[1.0, 2.0], [0.5, 0.5]]
    """
    last = np.broadcast_to(np.asarray(stranger, np.float32), rows[:1].shape)
    return np.concatenate([rows, last])


# ------------------------------------------------------------------------------------------------
# Draws of how noisy each row's ratings, or each rating, is: `hemf.model.noise` has the model.


SHAPES = np.geomspace(1.5, 1000.0, 80)  # that a0 is one of, each as likely as the others
LEAST = 1e-6  # of a scale, which is divided by


class DrawnScales:
    """τ_i of one side's rows, or of ratings, and a0, as drawn last."""

    def __init__(self, weights: Float64Array, shape: float) -> None:
        self.weights, self.shape = weights, shape

    @property
    def mean_inverse(self) -> float:
        """E[1/τ_i] of a row, or a rating, that nothing is known of."""
        return self.shape / (self.shape - 1.0)

    @property
    def with_stranger(self) -> Float64Array:
        """τ_i, and at the end what stands for a stranger's: the variance is σ² E[1/τ]."""
        return np.append(self.weights, 1.0 / self.mean_inverse)

    def draw(
        self, errors: Float64Array, counts: npt.NDArray[np.int64], rng: np.random.Generator
    ) -> None:
        """Draw all; ``errors`` are the rows' weighted squared ones, in units of σ², without τ_i."""
        drawn = rng.standard_gamma(self.shape + 0.5 * counts) / (self.shape + 0.5 * errors)
        self.weights = np.maximum(drawn, LEAST)
        likely = self.weights.size * (SHAPES * np.log(SHAPES) - gammaln(SHAPES))
        likely += SHAPES * float(np.sum(np.log(self.weights) - self.weights))
        share = np.exp(likely - likely.max())
        self.shape = float(rng.choice(SHAPES, p=share / share.sum()))


# ------------------------------------------------------------------------------------------------
# Ratings as the levels of a scale, with a number behind each that nobody sees.
#
# Who loves a film can say no more than 5. As numbers such ratings pull everything that they are
# explained by towards the end of the scale; as levels they say that the number behind is 4.5 or
# more. Levels begin and end half-way to the next; the first and the last have no other end.


Which = npt.NDArray[np.intp]


# docs/model.md#ordinal
@dataclass(frozen=True)
class Grades:
    """The levels of a scale, ascending, in units of the ratings' deviation from their mean."""

    levels: Float64Array
    """(K,)"""
    edges: Float64Array
    """Where each begins and ends, with infinities, (K + 1,)."""

    @classmethod
    def of(cls, levels: Float64Array) -> Grades:
        """Return a scale of these levels.

        >>> Grades.of(np.array([1.0, 2.0, 4.0])).edges
        array([-inf,  1.5,  3. ,  inf])
        """
        return cls(levels, level_edges(levels))

    def which(self, ratings: npt.NDArray[np.floating]) -> Which:
        """Return the number of the level that each rating is."""
        return np.searchsorted(self.edges[1:-1], ratings)

    def draw(
        self, which: Which, mean: Float64Array, std: Float64Array, rng: np.random.Generator
    ) -> Float64Array:
        """Draw what is behind ratings of these levels, a priori normal: a piece of it is left."""
        low, high = (self.edges[which + end] - mean for end in (0, 1))
        low, high = low / std, high / std
        flip = low > 0.0  # far out on the left, ndtr is exact where on the right it is 1
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        begin, end = ndtr(low), ndtr(high)
        drawn = ndtri(begin + (end - begin) * rng.random(low.size))
        # Where no number holds how unlikely a level is, the nearer edge is what is left of it.
        drawn = np.where(begin + end > 0.0, np.clip(drawn, low, high), high)
        return np.asarray(mean + std * np.where(flip, -drawn, drawn))

    def moments(self, mean: Float64Array, std: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of a rating whose number behind has these."""
        expected = np.full(mean.shape, self.levels[0])
        squares = expected**2
        for level, higher, edge in zip(
            self.levels[:-1], self.levels[1:], self.edges[1:-1], strict=True
        ):
            above = ndtr((mean - edge) / std)
            expected += (higher - level) * above
            squares += (higher**2 - level**2) * above
        return expected, np.maximum(squares - expected**2, 0.0)
