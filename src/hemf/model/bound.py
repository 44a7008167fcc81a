"""The lower bound (ELBO), one function per term, every constant kept."""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, digamma, gammaln

from hemf.model.communities import Communities, Statistics, Sticks
from hemf.model.hyper import Prior
from hemf.model.packing import Float64

LOG_2PI = float(np.log(2.0 * np.pi))


def ratings_term(squared_error: float, noise: float, n_ratings: int, unit: float = 1.0) -> float:
    """E ln p(R | A, B), from Σ E(r-a·b)² in units of ``unit`` of the rating scale."""
    density = -0.5 * n_ratings * (LOG_2PI + np.log(noise)) - 0.5 * squared_error / noise
    return float(density - n_ratings * np.log(unit))


def factors_term(statistics: Statistics, communities: Communities) -> float:
    """E ln p(A | Z, φ)."""
    square = np.einsum("di,di->d", communities.pull, communities.mean)
    expected = (
        communities.order * LOG_2PI
        + communities.log_det
        + communities.order / communities.strength
        + square
    )
    linear = np.sum(communities.pull * statistics.first)
    trace = np.sum(communities.precision * statistics.scatter)
    return float(-0.5 * statistics.size @ expected + linear - 0.5 * trace)


def memberships_term(statistics: Statistics, communities: Communities) -> float:
    """E ln p(Z | π)."""
    return float(statistics.size @ communities.sticks.log_weights)


def sticks_term(sticks: Sticks, concentration: float) -> float:
    """-KL(q(π) ‖ Beta(1, α)) over the D-1 sticks that are not pinned at 1."""
    taken, left = sticks.taken[:-1], sticks.left[:-1]
    return -float(np.sum(beta_divergence(taken, left, 1.0, concentration)))


def beta_divergence(a: Float64, b: Float64, a0: float, b0: float) -> Float64:
    """KL(Beta(a, b) ‖ Beta(a0, b0))."""
    total = digamma(a + b)
    return np.asarray(
        betaln(a0, b0)
        - betaln(a, b)
        + (a - a0) * (digamma(a) - total)
        + (b - b0) * (digamma(b) - total)
    )


def communities_term(communities: Communities, prior: Prior) -> float:
    """-Σ_d KL(NIW_d ‖ NIW_0); a tied Σ is counted once."""
    order, ratio = communities.order, prior.strength / communities.strength
    away = communities.mean - prior.centre
    precision = np.broadcast_to(communities.precision, (communities.count, order, order))
    square = prior.strength * np.einsum("di,dij,dj->d", away, precision, away)
    means = 0.5 * np.sum(order * (ratio - 1.0 - np.log(ratio)) + square)
    covariances = wishart_divergence(communities.scale, communities.dof, prior.scale, prior.dof)
    return -float(means + covariances.sum())


def wishart_divergence(scale: Float64, dof: Float64, scale0: Float64, dof0: float) -> Float64:
    """KL(IW(scale_d, dof_d) ‖ IW(scale0, dof0)) of each d."""
    order = scale.shape[-1]
    log_det, log_det0 = np.linalg.slogdet(scale)[1], np.linalg.slogdet(scale0)[1]
    trace = np.trace(np.linalg.solve(scale, scale0), axis1=-2, axis2=-1)
    digammas = digamma(halves(dof / 2.0, order)).sum(axis=-1)
    return np.asarray(
        0.5 * dof0 * (log_det - log_det0)
        + 0.5 * dof * (trace - order)
        + log_multigamma(dof0 / 2.0, order)
        - log_multigamma(dof / 2.0, order)
        + 0.5 * (dof - dof0) * digammas
    )


def log_multigamma(a: Float64 | float, order: int) -> Float64:
    """Return ln Γ_L(a), element by element.

    >>> round(float(log_multigamma(3.0, 1)), 6)  # ln Γ(3)
    0.693147
    """
    return np.asarray(
        0.25 * order * (order - 1) * np.log(np.pi) + gammaln(halves(a, order)).sum(axis=-1)
    )


def halves(a: Float64 | float, order: int) -> Float64:
    """Return a, a - ½, …, a - (L-1)/2 along a new last axis."""
    return np.asarray(np.asarray(a)[..., None] - 0.5 * np.arange(order))


def entropy_term(statistics: Statistics, order: int) -> float:
    """Σ_i Σ_d q_i(d)( H[N(m_id, S_id)] - ln q_i(d) )."""
    return float(statistics.entropy + 0.5 * order * (1.0 + LOG_2PI) * statistics.size.sum())


def side_terms(statistics: Statistics, communities: Communities, prior: Prior) -> dict[str, float]:
    """All terms of one side, by name."""
    return {
        "factors": factors_term(statistics, communities),
        "memberships": memberships_term(statistics, communities),
        "sticks": sticks_term(communities.sticks, prior.concentration),
        "communities": communities_term(communities, prior),
        "entropy": entropy_term(statistics, communities.order),
    }


def side_total(statistics: Statistics, communities: Communities, prior: Prior) -> float:
    """Sum of `side_terms`."""
    return sum(side_terms(statistics, communities, prior).values())
