"""The kernels in plain NumPy: the same signatures, one row at a time, docs/model.md line by line.

Tests compare `rows`, `products`, `descent` and `gibbs` with these functions. They are not fast, and
compute in float64 whatever the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf._typing import Float64Array

Found = tuple[Float64Array, Float64Array, Float64Array]
NEGLIGIBLE = 1e-6  # a community with a smaller share of a row is left out of the row's moments


def symmetric(packed: npt.NDArray[np.floating]) -> Float64Array:
    """Return the matrix of a packed lower triangle.

    >>> symmetric(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    order = round((np.sqrt(8 * packed.size + 1) - 1) / 2)
    lower = np.zeros((order, order))
    lower[np.tril_indices(order)] = packed
    return np.asarray(lower + np.tril(lower, -1).T)


def triangle(matrix: Float64Array) -> Float64Array:
    """Return the packed lower triangle of a matrix.

    >>> triangle(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    return np.asarray(matrix[np.tril_indices(matrix.shape[0])])


def data_part(row: int, ratings: Any, other: Any) -> tuple[Float64Array, Float64Array, float]:
    """Return G_i, h_i = Σ_j u_ij υ_j r_ij n_j and Σ_j u_ij υ_j r_ij².

    G_i = w₀ Σ_j E[b_j b_jᵀ] + Σ_{j∈Ω_i} (u_ij υ_j - w₀) E[b_j b_jᵀ]

    >>> from types import SimpleNamespace
    >>> ratings = SimpleNamespace(
    ...     indptr=[0, 2], indices=[0, 1], values=np.array([1.0, -1.0]), weights=np.ones(0))
    >>> other = SimpleNamespace(
    ...     mean=np.array([[2.0], [3.0]]), second=np.array([[5.0], [9.5]]), weight=np.ones(2),
    ...     excess=np.ones(2), base=np.zeros(1))
    >>> gram, natural_mean, squares = data_part(0, ratings, other)
    >>> gram.tolist(), natural_mean.tolist(), squares
    ([[14.5]], [-1.0], 2.0)
    """
    G, h, squares = symmetric(other.base.astype(np.float64)), np.zeros(other.mean.shape[1]), 0.0
    for k in range(ratings.indptr[row], ratings.indptr[row + 1]):
        j, r = ratings.indices[k], float(ratings.values[k]) if len(ratings.values) else 1.0
        weight, excess = float(other.weight[j]), float(other.excess[j])
        if len(ratings.weights):
            u = float(ratings.weights[k])
            weight, excess = u * weight, excess + (u - 1.0) * weight
        G += excess * symmetric(other.second[j].astype(np.float64))
        h += weight * r * other.mean[j].astype(np.float64)
        squares += weight * r * r
    return G, h, squares


def free_part(
    G: Float64Array, h: Float64Array, free: Any, pinned: int
) -> tuple[Float64Array, Float64Array]:
    """Return G and h of the coordinates that the posterior covers.

    They explain r less what the coordinate held at 1 contributes: r - b_pinned in place of r,
    and Σ_j E[b_j,pinned b_j] is a column of G.

    >>> G, h = np.array([[4.0, 1.0], [1.0, 2.0]]), np.array([3.0, 5.0])
    >>> [part.tolist() for part in free_part(G, h, np.array([1]), pinned=0)]
    [[[2.0]], [4.0]]
    """
    explained = G[free, pinned] if pinned >= 0 else 0.0
    return G[np.ix_(free, free)], h[free] - explained


# docs/model.md#row-factors
def posteriors(
    G: Float64Array, h: Float64Array, noise: float, precision: Any, natural_mean: Any
) -> tuple[Float64Array, Float64Array]:
    """Return a row's m_id (D, order) and S_id (D, order, order) under each community.

    S_id⁻¹ = G_i/σ² + P_d,  m_id = S_id (h_i/σ² + P_d m_d)

    >>> one = np.ones((1, 1))
    >>> [part.tolist() for part in posteriors(3.0 * one, np.array([6.0]), 1.0, one, one * 2.0)]
    [[[2.0]], [[[0.25]]]]
    """
    means, covariances = [], []
    for d in range(natural_mean.shape[0]):
        P = symmetric(precision[0 if precision.shape[0] == 1 else d])
        S = np.linalg.inv(G / noise + P)
        means.append(S @ (h / noise + natural_mean[d]))
        covariances.append(S)
    return np.array(means), np.array(covariances)


# docs/model.md#memberships
def memberships(log_weight: Any, means: Float64Array, covariances: Float64Array) -> Float64Array:
    """Return q_i(d) ∝ exp(weight_d + ½ ln|S_id| + ½ m_idᵀ S_id⁻¹ m_id).

    >>> memberships(np.zeros(2), np.zeros((2, 1)), np.array([[[1.0]], [[4.0]]])).round(3).tolist()
    [0.333, 0.667]
    """
    log_q = np.array(log_weight, dtype=np.float64)
    for d, (m, S) in enumerate(zip(means, covariances, strict=True)):
        log_q[d] += 0.5 * np.linalg.slogdet(S)[1] + 0.5 * m @ np.linalg.solve(S, m)
    return shares(log_q)


def shares(log_q: Float64Array) -> Float64Array:
    """Return normalised probabilities without the negligible ones.

    >>> shares(np.array([0.0, 0.0, -20.0])).tolist()
    [0.5, 0.5, 0.0]
    """
    q = np.exp(log_q - log_q.max())
    q /= q.sum()
    q[q < NEGLIGIBLE] = 0.0
    return np.asarray(q / q.sum())


def entropy(q: Float64Array, covariances: Float64Array) -> float:
    """Return Σ_d q(d)(½ ln|S_d| - ln q(d)): a row's entropy up to constants.

    >>> round(entropy(np.array([0.5, 0.5]), np.ones((2, 1, 1))), 4)
    0.6931
    """
    return float(
        sum(
            share * (0.5 * np.linalg.slogdet(S)[1] - np.log(share))
            for share, S in zip(q, covariances, strict=True)
            if share > 0.0
        )
    )


def with_pinned(
    m: Float64Array, second: Float64Array, free: Any, pinned: int
) -> tuple[Float64Array, Float64Array]:
    """Return E[a] and E[a aᵀ] with the pinned coordinate in its place.

    >>> [part.tolist() for part in with_pinned(np.array([3.0]), np.array([[10.0]]), [1], 0)]
    [[1.0, 3.0], [[1.0, 3.0], [3.0, 10.0]]]
    """
    mean = np.ones(len(free) + (pinned >= 0))
    mean[free] = m
    full = np.outer(mean, mean)
    full[np.ix_(free, free)] = second
    return mean, full


def rows_of(begin: int, end: int, cuts: Any) -> Iterator[tuple[int, int]]:
    """Yield the rows of some chunks, each with its chunk.

    >>> list(rows_of(1, 3, [0, 4, 6, 7]))
    [(1, 4), (1, 5), (2, 6)]
    """
    for chunk in range(begin, end):
        for row in range(cuts[chunk], cuts[chunk + 1]):
            yield chunk, row


def coupled_rows(begin: int, end: int, update: Any, _memory: Any) -> None:
    """Update q(a_i, z_i) = q_i(d) N(a_i; m_id, S_id) of the rows of chunks begin … end."""

    def found(G: Float64Array, h: Float64Array, noise: float, q: Any) -> Found:
        means, covariances = posteriors(
            G, h, noise, update.prior.precision, update.prior.natural_mean
        )
        return memberships(update.prior.log_weight, means, covariances), means, covariances

    for chunk, i in rows_of(begin, end, update.cuts):
        update_row(found, chunk, i, update)


# docs/model.md#mean-field
def mean_field_rows(begin: int, end: int, update: Any, _memory: Any) -> None:
    """Update q(a_i), then q(z_i), of the rows of chunks begin … end (the paper's form)."""

    def found(G: Float64Array, h: Float64Array, noise: float, q: Any) -> Found:
        P = np.array([symmetric(part) for part in update.prior.precision])
        P = np.broadcast_to(P, (q.size, *P.shape[1:]))
        S = np.linalg.inv(G / noise + np.einsum("d,dij->ij", q, P))  # G/σ² + Σ_d q(d) P_d
        m = S @ (h / noise + q @ update.prior.natural_mean)
        # ln q(d) = weight_d + mᵀP_d m_d - ½ tr(P_d E[aaᵀ])
        log_q = update.prior.log_weight + update.prior.natural_mean @ m
        log_q -= 0.5 * np.einsum("dij,ij->d", P, S + np.outer(m, m))
        return shares(log_q), np.tile(m, (q.size, 1)), np.tile(S, (q.size, 1, 1))

    for chunk, i in rows_of(begin, end, update.cuts):
        update_row(found, chunk, i, update)


def update_row(found: Callable[..., Found], chunk: int, i: int, update: Any) -> None:
    """Update a row; q_i(d), m_id and S_id are as ``found``."""
    prior, posterior, features = update.prior, update.posterior, update.features
    data, statistics = data_part(i, update.ratings, update.other), update.statistics
    free, pinned = prior.free, prior.pinned
    G, h = free_part(data[0], data[1], free, pinned)
    has_features = len(features.leverage) > 0
    f = features.shift[i] if has_features else np.zeros(len(free))
    h = h - G @ f  # what is left of the row is a - f
    before = posterior.membership[i].astype(np.float64)
    q, means, covariances = found(G, h, posterior.noise[i], before)
    if posterior.hold:
        q = before
    posterior.membership[i] = q
    statistics.entropy[chunk] += entropy(q, covariances)
    held = given = covariances
    if has_features:
        P = features.root @ features.root.T
        held, given, features.information[i] = with_leverage(
            covariances[0], P, features.leverage[i], len(means)
        )
    moments = row_moments(q, means + f, held, data, free, pinned)
    posterior.mean[i], posterior.second[i], posterior.errors[i] = moments
    size, first, scatter = statistics.size, statistics.first, statistics.scatter
    add_statistics(q, means, given, size[chunk], first[chunk], scatter[chunk])


# docs/model.md#information
def with_leverage(
    S: Float64Array, P: Float64Array, c: float, communities: int
) -> tuple[Float64Array, Float64Array, float]:
    """Return S corrected for Var f = c Σ, for moments and for communities.

    S + c S P S,  S + c (S P S - S),  and 1 - tr(P S)/L.

    >>> held, given, information = with_leverage(np.eye(1) / 2.0, np.eye(1), 0.5, 1)
    >>> held.tolist(), given.tolist(), information
    ([[[0.625]]], [[[0.375]]], 0.5)
    """
    more = c * S @ P @ S
    held, given = (np.tile(part, (communities, 1, 1)) for part in (S + more, S + more - c * S))
    return held, given, float(1.0 - np.trace(P @ S) / S.shape[0])


# docs/model.md#row-moments
def row_moments(
    q: Float64Array,
    means: Float64Array,
    covariances: Float64Array,
    data: tuple[Float64Array, Float64Array, float],
    free: Any,
    pinned: int,
) -> tuple[Float64Array, Float64Array, float]:
    """Return E[a], packed E[a aᵀ] and Σ_j υ_j E(r_ij - a·b_j)² of a row's mixture.

    m_i = Σ_d q(d) m_id,  E[aaᵀ] = Σ_d q(d)(S_id + m_id m_idᵀ),
    Σ_j υ_j E(r - a·b)² = Σ υ r² - 2 m·h + tr(E[aaᵀ] G)

    >>> data = (np.array([[2.0]]), np.array([3.0]), 5.0)
    >>> parts = row_moments(np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1)), data, [0], -1)
    >>> parts[0].tolist(), parts[1].tolist(), parts[2]
    ([1.0], [2.0], 3.0)
    """
    G, h, squares = data
    second = np.einsum("d,dij->ij", q, covariances)
    second += np.einsum("d,di,dj->ij", q, means, means)
    mean, full = with_pinned(q @ means, second, free, pinned)
    return mean, triangle(full), float(squares - 2.0 * mean @ h + np.trace(full @ G))


# docs/model.md#statistics
def add_statistics(
    q: Float64Array,
    means: Float64Array,
    covariances: Float64Array,
    size: Any,
    first: Any,
    scatter: Any,
) -> None:
    """Add a row to ρ_d, Σ q m and Σ q (S + mmᵀ); one scatter serves all where Σ is tied.

    >>> size, first, scatter = np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1))
    >>> add_statistics(np.ones(1), np.full((1, 1), 2.0), np.ones((1, 1, 1)), size, first, scatter)
    >>> size.tolist(), first.tolist(), scatter.tolist()
    ([1.0], [[2.0]], [[5.0]])
    """
    for d, (share, m, S) in enumerate(zip(q, means, covariances, strict=True)):
        size[d] += share
        first[d] += share * m
        scatter[0 if scatter.shape[0] == 1 else d] += share * triangle(S + np.outer(m, m))


# docs/model.md#predictive-variance
def pair_moments(
    left: Any, right: Any, left_mean: Any, left_second: Any, right_mean: Any,
    right_second: Any, with_variance: bool, mean: Any, variance: Any,
) -> None:  # fmt: skip
    """Write mean and variance of a·b for pairs: m·n, and nᵀSn + mᵀTm + tr(ST).

    >>> mean, variance = np.empty(1), np.empty(1)
    >>> zero, two, five = np.zeros(1, int), np.array([[2.0]]), np.array([[5.0]])
    >>> pair_moments(zero, zero, two, five, two, five, True, mean, variance)
    >>> mean.tolist(), variance.tolist()
    ([4.0], [9.0])
    """
    for k, (i, j) in enumerate(zip(left, right, strict=True)):
        m, n = left_mean[i].astype(np.float64), right_mean[j].astype(np.float64)
        mean[k] = m @ n
        if with_variance:
            S = symmetric(left_second[i]) - np.outer(m, m)
            T = symmetric(right_second[j]) - np.outer(n, n)
            variance[k] = n @ S @ n + m @ T @ m + np.trace(S @ T)


def descend(given: Any, user_rows: Any, item_rows: Any, forecasts: Any) -> None:
    """Step down the gradient of ½e² + ½λ_o(o² + p²) + ½λ(a·a + b·b), e = (r-c)/s - o - p - a·b.

    >>> user, item, before = np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), np.empty(1)
    >>> from hemf.kernels.structures import Descent
    >>> given = Descent([0], [0], [5.0], [2.0, 2.0], [0.1], 1.0, 0.0, 0.0, 1, 1)
    >>> descend(given, user, item, before)
    >>> user.tolist(), item.tolist(), before.tolist()
    ([[0.1, 1.2]], [[0.1, 2.1]], [4.0])
    """
    users, items, ratings, means, steps, scale, *penalties, known_users, known_items = given
    offset_penalty, factor_penalty = penalties
    for k, (i, j) in enumerate(zip(users, items, strict=True)):
        (o, *a), (p, *b) = user_rows[i].astype(np.float64), item_rows[j].astype(np.float64)
        a, b = np.array(a), np.array(b)
        if forecasts.size:
            is_known = i < known_users and j < known_items
            forecasts[k] = means[k] + scale * (o + p + (a @ b if is_known else 0.0))
            known_users, known_items = max(known_users, i + 1), max(known_items, j + 1)
        error = (float(ratings[k]) - means[k + 1]) / scale - (o + p + a @ b)
        user_rows[i, 0] = o + steps[k] * (error - offset_penalty * o)
        item_rows[j, 0] = p + steps[k] * (error - offset_penalty * p)
        user_rows[i, 1:] = a + steps[k] * (error * b - factor_penalty * a)
        item_rows[j, 1:] = b + steps[k] * (error * a - factor_penalty * b)


def conditional_rows(
    begin: int, end: int, cuts: Any, ratings: Any, weights: Any, other: Any, precision: Any,
    covariance: Any, natural_mean: Any,
) -> None:  # fmt: skip
    """Write S and h of the rows of chunks begin … end: S⁻¹ = Λ + Σ w b bᵀ, h = Σ w r b.

    >>> covariance, natural_mean = np.empty((1, 1, 1)), np.empty((1, 1))
    >>> ratings = np.array([0, 2]), np.array([0, 1]), np.array([1.0, -1.0])
    >>> weights, others = np.array([2.0, 1.0]), np.array([[2.0], [3.0]])
    >>> conditional_rows(
    ...     0, 1, [0, 1], ratings, weights, others, np.array([3.0]), covariance, natural_mean)
    >>> covariance.tolist(), natural_mean.tolist()
    ([[[0.05]]], [[1.0]])
    """
    indptr, indices, values = ratings[:3]
    for _, i in rows_of(begin, end, cuts):
        part = slice(indptr[i], indptr[i + 1])
        b, w = other[indices[part]].astype(np.float64), weights[part].astype(np.float64)
        covariance[i] = np.linalg.inv(symmetric(precision) + (w[:, None] * b).T @ b)
        natural_mean[i] = (w * values[part]) @ b


def multiply_rows(begin: int, end: int, matrices: Any, vectors: Any, out: Any) -> None:
    """Write the product of each row's matrix with its vector.

    >>> out = np.empty((1, 2))
    >>> multiply_rows(0, 1, np.array([[[1.0, 2.0], [2.0, 5.0]]]), np.array([[3.0, 1.0]]), out)
    >>> out.tolist()
    [[5.0, 11.0]]
    """
    for n in range(begin, end):
        out[n] = matrices[n].astype(np.float64) @ vectors[n]
