"""Mean and variance of a pair's rating, in the standardised scale of the fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf._arrays import top_columns
from hemf._typing import Float64Array, Int64Array
from hemf.model.layout import lower_triangle
from hemf.model.side import Moments, Side

COLUMNS = 4096  # rows of the other side that are converted to float64 at a time


def with_stranger(
    side: Side, newcomers: csr_array | None = None, counts: Int64Array | None = None
) -> Moments:
    """Moments of a side's rows, then of newcomers, and last of a stranger.

    Parameters
    ----------
    side
        The side.
    newcomers
        Features of rows without ratings.
    counts
        Number of ratings of each row: newcomers then have the mean of `typical`.

    """
    mean, second = side.stranger
    dtype = side.moments.mean.dtype
    means, seconds = [side.moments.mean], [side.moments.second]
    if newcomers is not None:
        new = newcomer_moments(side, newcomers, counts)
        means.append(new.mean)
        seconds.append(new.second)
    return Moments(
        np.vstack([*means, mean.astype(dtype)]),
        np.vstack([*seconds, second.astype(dtype)]),
    )


def newcomer_moments(side: Side, features: csr_array, counts: Int64Array | None = None) -> Moments:
    """Moments of rows with features and no ratings; see `with_stranger`."""
    moments = side.newcomers(features)
    return moments if counts is None else _with_mean(moments, typical(side, features, counts))


# docs/model.md#newcomers
def typical(side: Side, newcomers: csr_array, counts: Int64Array) -> Float64Array:
    """Mean of newcomers with these features, residuals of rows weighted by their ratings.

        E[a | x] = Mᵀx + Σ_i n_i (m_i - Mᵀx_i) / Σ_i n_i,  x and x_i the features given

    Rows with many ratings differ from the rest: on MovieLens 1M the mean of all ratings is 0.3
    above that of the films' means. A rating to be predicted is drawn from ratings, not from rows.
    """
    assert side.regression is not None
    design, layout, known = side.regression.design, side.layout, newcomers.shape[1]
    coefficients = side.regression.coefficients[:known]
    left = side.factor_means[: design.n_rows] - design.matrix[:, :known] @ coefficients
    share = counts[: design.n_rows] / max(1, counts[: design.n_rows].sum())
    mean = np.ones((newcomers.shape[0], layout.total))
    mean[:, layout.free] = newcomers @ coefficients + share @ left
    return mean


def _with_mean(moments: Moments, mean: Float64Array) -> Moments:
    """Return rows with another mean and the same covariance."""
    before, dtype = moments.mean.astype(np.float64), moments.mean.dtype
    rows, columns = lower_triangle(mean.shape[1])
    change = mean[:, rows] * mean[:, columns] - before[:, rows] * before[:, columns]
    return Moments(mean.astype(dtype), (moments.second + change).astype(dtype))


# docs/model.md#predictive-variance
def pair_moments(
    left: Moments, right: Moments, rows: Int64Array, columns: Int64Array, *, variance: bool
) -> tuple[Float64Array, Float64Array]:
    """Mean and (where asked for) variance of a·b for pairs of rows."""
    from hemf.kernels.products import pair_moments as kernel

    mean = np.empty(rows.size)
    spread = np.empty(rows.size if variance else 0)
    kernel.compiled(left.mean.dtype)(
        np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(columns, np.int64),
        left.mean, left.second, right.mean, right.second, variance, mean, spread,
    )  # fmt: skip
    return mean, spread


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
