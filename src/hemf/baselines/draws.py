"""Draws from the conditional posteriors that the Gibbs samplers here are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import Rows, chunk_bounds, share_out
from hemf.model.packing import pack

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int32]

PARTS = 64  # ranges of ratings that threads share
MOST_OUTER_BYTES = 1 << 31  # for the products of all rows with themselves


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


def draw_rows(
    table: Rows,
    other: Singles,
    noise: float,
    mean: Floats,
    precision: Floats,
    rng: np.random.Generator,
    threads: int,
) -> Singles:
    """Draw one side's factors given the other's; see `hemf.kernels.gibbs.draw_rows`."""
    from hemf.kernels import gibbs as kernels

    n_rows, order = table.indptr.size - 1, other.shape[1]
    rows = rng.standard_normal((n_rows, order), np.float32)
    cuts = chunk_bounds(table.indptr, order)
    shape = len(other), order * (order + 1) // 2
    if shape[0] * shape[1] * rows.itemsize > MOST_OUTER_BYTES:
        _draw_long_rows(table, other, noise, mean, precision, rows, cuts, threads)
        return rows
    second = np.empty(shape, np.float32)
    kernels.outer_products.compiled(np.float32)(other, second)
    given = (
        cuts, table.indptr, table.indices, table.values, other, second,
        np.ones(len(other), np.float32), np.full(n_rows, noise), pack(precision), precision @ mean,
        rows,
    )  # fmt: skip
    run = kernels.draw_rows.compiled(np.float32)
    share_out(lambda begin, end: run(begin, end, *given), cuts.size - 1, threads)
    return rows


def _draw_long_rows(
    table: Rows, other: Singles, noise: float, mean: Floats, precision: Floats, rows: Singles,
    cuts: npt.NDArray[np.int64], threads: int,
) -> None:  # fmt: skip
    """Draw rows as the kernel does, but one after the other, each with the products it needs.

    Of long rows the products of all others with themselves would not fit into memory: with 200
    factors, those of Netflix's users take 39 GB. So long ones are drawn sooner like this, too.
    """
    from scipy.linalg import cholesky, solve_triangular

    pull, options = precision @ mean, {"lower": True, "check_finite": False}

    def draw(begin: int, end: int) -> None:
        for n in range(cuts[begin], cuts[end]):
            part = slice(table.indptr[n], table.indptr[n + 1])
            near = other[table.indices[part]]
            root = cholesky(precision + (near.T @ near) / noise, **options)
            half = solve_triangular(root, pull + near.T @ table.values[part] / noise, **options)
            rows[n] = solve_triangular(root, half + rows[n], trans=1, **options)

    share_out(draw, cuts.size - 1, threads)


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
    _over_ratings(
        lambda begin, end: run(begin, end, left, right, left_rows, right_rows, out), len(out),
        threads,
    )  # fmt: skip
    return out


def draw_topics(
    users: RowNumbers,
    items: RowNumbers,
    residuals: Singles,
    noise: float,
    shares: tuple[Singles, Singles],
    vectors: tuple[Singles, Singles],
    rng: np.random.Generator,
    threads: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Draw user topic and item topic of every rating; see `hemf.kernels.gibbs.draw_topics`."""
    from hemf.kernels import gibbs as kernels

    uniforms = rng.random(len(users), np.float32)
    drawn = np.empty(len(users), np.uint8), np.empty(len(users), np.uint8)
    run = kernels.draw_topics.compiled(np.float32)
    given = users, items, residuals, noise, *shares, *vectors, uniforms, *drawn
    _over_ratings(lambda begin, end: run(begin, end, *given), len(users), threads)
    return drawn


def _over_ratings(work: Callable[[int, int], None], n: int, threads: int) -> None:
    """Call ``work`` on ranges that together are all n ratings."""
    cuts = np.linspace(0, n, PARTS + 1).astype(np.int64).tolist()
    share_out(lambda begin, end: work(cuts[begin], cuts[end]), PARTS, threads)


def draw_shares(
    rows: RowNumbers,
    topics: npt.NDArray[np.uint8],
    shape: tuple[int, int],
    concentration: float,
    rng: np.random.Generator,
) -> Singles:
    """Draw θ ~ Dirichlet(α/K + how often each topic occurred) of every row; shape is (rows, K)."""
    n_rows, count = shape
    groups = rows.astype(np.intp) * count + topics
    occurred = np.bincount(groups, minlength=n_rows * count).reshape(shape)
    drawn = rng.standard_gamma(concentration / count + occurred)
    drawn = np.maximum(drawn, np.finfo(np.float32).tiny)  # of a tiny shape every draw may be 0
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), np.float32)


def draw_offsets(
    groups: npt.NDArray[np.integer],
    n_groups: int,
    residuals: Singles,
    noise: float,
    variance: float,
    rng: np.random.Generator,
) -> Singles:
    """Draw what all ratings of a group have in common, a priori N(0, variance)."""
    count = np.bincount(groups, minlength=n_groups)
    total = np.bincount(groups, residuals, n_groups)
    precision = 1.0 / variance + count / noise
    drawn = total / noise / precision + rng.standard_normal(n_groups) / np.sqrt(precision)
    return np.asarray(drawn, np.float32)


def draw_vectors(
    groups: RowNumbers,
    n_groups: int,
    others: RowNumbers,
    other_vectors: Singles,
    residuals: Singles,
    noise: float,
    mean: Floats,
    precision: Floats,
    rng: np.random.Generator,
) -> Singles:
    """Draw a vector c of each group, a priori N(μ, Λ⁻¹), from residuals ~ N(c·d, σ²)."""
    from hemf.kernels import gibbs as kernels

    size = len(mean)
    grams, moments = np.zeros((n_groups, size, size)), np.zeros((n_groups, size))
    kernels.gather_groups.compiled(np.float32)(
        groups, others, residuals, other_vectors, grams, moments
    )
    root = np.linalg.cholesky(precision + grams / noise)
    pull = (precision @ mean + moments / noise)[..., None]
    half = np.linalg.solve(root, pull) + rng.standard_normal((n_groups, size, 1))
    drawn = np.linalg.solve(root.swapaxes(1, 2), half)
    return np.asarray(drawn[..., 0], np.float32)


def draw_noise(errors: Singles | Floats, guess: float, rng: np.random.Generator) -> float:
    """Draw σ² given errors; a priori 1/σ² ~ Gamma(1, guess), whose mean is 1/guess."""
    wrong = float(np.dot(errors.astype(np.float64), errors))
    return float((guess + wrong / 2.0) / rng.standard_gamma(1.0 + len(errors) / 2.0))
