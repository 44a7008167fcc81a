"""Draws from the conditional posteriors of what the samplers here have, rows and topics."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import Rows, chunk_bounds, share_out
from hemf.model.packing import pack
from hemf.sampling.draws import Floats, RowNumbers, Singles, over_parts

MOST_OUTER_BYTES = 1 << 31  # for the products of all rows with themselves


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
    over_parts(lambda begin, end: run(begin, end, *given), len(users), threads)
    return drawn


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
