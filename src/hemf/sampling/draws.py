"""Draws that Gibbs samplers are made of, whatever they sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import share_out

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int32]

PARTS = 64  # ranges of ratings, or rows, that threads share


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
    ) -> tuple[Floats, Floats]:
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


def draw_wishart(degrees: float, scale: Floats, rng: np.random.Generator) -> Floats:
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


def inverse(matrix: Floats) -> Floats:
    """Return the inverse of a symmetric matrix, as symmetric.

    >>> inverse(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    found = np.linalg.inv(matrix)
    return np.asarray((found + found.T) / 2.0)  # which rounding has left a little lopsided


def products(
    left: RowNumbers, right: RowNumbers, left_rows: Singles, right_rows: Singles, threads: int
) -> Singles:
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


def draw_noise(errors: Singles | Floats, guess: float, rng: np.random.Generator) -> float:
    """Draw σ² given errors; a priori 1/σ² ~ Gamma(1, guess), whose mean is 1/guess."""
    wrong = float(np.dot(errors.astype(np.float64), errors))
    return float((guess + wrong / 2.0) / rng.standard_gamma(1.0 + len(errors) / 2.0))


def with_stranger(rows: Singles, stranger: object) -> Singles:
    """Return the rows and one more for a stranger.

    >>> with_stranger(np.float32([[1, 2]]), 0.5).tolist()
    [[1.0, 2.0], [0.5, 0.5]]
    """
    last = np.broadcast_to(np.asarray(stranger, np.float32), rows[:1].shape)
    return np.concatenate([rows, last])
