"""Mean and variance of a pair's rating, in the standardised scale of the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hemf._arrays import top_columns
from hemf._typing import Float64Array, Int64Array
from hemf.model.layout import Moments, lower_triangle

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
    covariance = np.zeros((rows.size, mean.shape[1], mean.shape[1]))
    covariance[:, i, j] = side.second[rows] - mean[:, i] * mean[:, j]
    covariance[:, j, i] = covariance[:, i, j]
    values, vectors = np.linalg.eigh(covariance)
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
class Ranking:
    """Best columns of each row, best first; -1 where there are fewer than n."""

    columns: Int64Array
    scores: Float64Array


def best_columns(scores: npt.NDArray[np.floating], n: int) -> Ranking:
    """Top n of every row of a score matrix; -inf entries are never chosen."""
    columns = top_columns(scores, n)
    best = np.take_along_axis(scores, np.maximum(columns, 0), axis=1).astype(np.float64)
    return Ranking(columns, np.where(columns < 0, -np.inf, best))
