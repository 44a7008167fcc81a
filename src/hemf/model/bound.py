"""The lower bound (ELBO), one function per term, every constant kept."""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, digamma, gammaln

from hemf._typing import Float64Array
from hemf.model.communities import (
    Communities,
    Prior,
    Statistics,
    Sticks,
    community_posterior,
    stick_posterior,
)

LOG_2PI = float(np.log(2.0 * np.pi))


# docs/model.md#bound
def ratings_term(squared_error: float, noise: float, n_ratings: int, unit: float = 1.0) -> float:
    """E ln p(R | A, B), from Σ E(r-a·b)² in units of ``unit`` of the rating scale."""
    density = -0.5 * n_ratings * (LOG_2PI + np.log(noise)) - 0.5 * squared_error / noise
    return float(density - n_ratings * np.log(unit))


def factors_term(statistics: Statistics, communities: Communities) -> float:
    """E ln p(A | Z, φ)."""
    square = np.einsum("di,di->d", communities.natural_mean, communities.mean)
    expected = (
        communities.order * LOG_2PI
        + communities.log_det
        + communities.order / communities.kappa
        + square
    )
    linear = np.sum(communities.natural_mean * statistics.first)
    trace = np.sum(communities.precision * statistics.scatter)
    return float(-0.5 * statistics.size @ expected + linear - 0.5 * trace)


def memberships_term(statistics: Statistics, communities: Communities) -> float:
    """E ln p(Z | π)."""
    return float(statistics.size @ communities.sticks.log_weights)


def sticks_term(sticks: Sticks, concentration: float) -> float:
    """-KL(q(π) ‖ Beta(1, α)) over the D-1 sticks that are not pinned at 1."""
    taken, left = sticks.taken[:-1], sticks.left[:-1]
    return -float(np.sum(beta_divergence(taken, left, 1.0, concentration)))


def beta_divergence(a: Float64Array, b: Float64Array, a0: float, b0: float) -> Float64Array:
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
    order, ratio = communities.order, prior.kappa / communities.kappa
    away = communities.mean - prior.centre
    precision = np.broadcast_to(communities.precision, (communities.count, order, order))
    square = prior.kappa * np.einsum("di,dij,dj->d", away, precision, away)
    means = 0.5 * np.sum(order * (ratio - 1.0 - np.log(ratio)) + square)
    covariances = wishart_divergence(communities.scale, communities.dof, prior.scale, prior.dof)
    return -float(means + covariances.sum())


def wishart_divergence(
    scale: Float64Array, dof: Float64Array, scale0: Float64Array, dof0: float
) -> Float64Array:
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


def log_multigamma(a: Float64Array | float, order: int) -> Float64Array:
    """Return ln Γ_L(a), element by element.

    >>> round(float(log_multigamma(3.0, 1)), 6)  # ln Γ(3)
    0.693147
    """
    return np.asarray(
        0.25 * order * (order - 1) * np.log(np.pi) + gammaln(halves(a, order)).sum(axis=-1)
    )


def halves(a: Float64Array | float, order: int) -> Float64Array:
    """Return a, a - ½, …, a - (L-1)/2 along a new last axis."""
    return np.asarray(np.asarray(a)[..., None] - 0.5 * np.arange(order))


def entropy_term(statistics: Statistics, order: int) -> float:
    """Σ_i Σ_d q_i(d)( H[N(m_id, S_id)] - ln q_i(d) )."""
    return float(statistics.entropy + 0.5 * order * (1.0 + LOG_2PI) * statistics.size.sum())


# docs/model.md#bound
def side_terms(statistics: Statistics, communities: Communities, prior: Prior) -> dict[str, float]:
    """All terms of one side, by name."""
    return {
        "factors": factors_term(statistics, communities),
        "memberships": memberships_term(statistics, communities),
        "sticks": sticks_term(communities.sticks, prior.concentration),
        "communities": communities_term(communities, prior),
        "entropy": entropy_term(statistics, communities.order),
    }


# ------------------------------------------------------------------------------------------------
# The bound at the optimum of q(π) and q(φ): ratios of normalising constants that depend on the
# rows through additive statistics alone, so that changes of communities are cheap to judge.


LOG_PI = float(np.log(np.pi))


def stick_evidence(sizes: Float64Array, concentration: float) -> Float64Array:
    """E ln p(Z|π) - KL(q(π)‖p(π)) = Σ_{d<D} ln B(η1,η2)/B(1,α), communities in this order.

    Over any leading axes, one set of communities each.
    """
    sticks = stick_posterior(sizes, concentration)
    taken, left = sticks.taken[..., :-1], sticks.left[..., :-1]
    return np.asarray(np.sum(betaln(taken, left) - betaln(1.0, concentration), axis=-1))


def scale_matrices(
    size: Float64Array, first: Float64Array, scatter: Float64Array, prior: Prior
) -> tuple[Float64Array, Float64Array]:
    """κ_d and W_d - W0 of communities with these statistics, over any leading axes."""
    kappa = prior.kappa + size
    mean = (prior.kappa * prior.centre + first) / kappa[..., None]
    outer0 = prior.kappa * np.outer(prior.centre, prior.centre)
    outer = kappa[..., None, None] * mean[..., :, None] * mean[..., None, :]
    return kappa, scatter + outer0 - outer


def covariance_evidence(
    size: Float64Array | float, log_det: Float64Array, prior: Prior
) -> Float64Array:
    """Evidence of rows that share a covariance, given their number and ln|W|."""
    order, dof = prior.centre.size, prior.dof + size
    log_det0 = np.linalg.slogdet(prior.scale)[1]
    return np.asarray(
        -0.5 * order * LOG_PI * size
        + 0.5 * (prior.dof * log_det0 - dof * log_det)
        + log_multigamma(dof / 2.0, order)
        - log_multigamma(prior.dof / 2.0, order)
    )


def mean_evidence(kappa: Float64Array, prior: Prior) -> Float64Array:
    """Evidence of the mean of each community, given its κ_d."""
    return np.asarray(0.5 * prior.centre.size * np.log(prior.kappa / kappa))


def own_evidence(
    size: Float64Array, first: Float64Array, scatter: Float64Array, prior: Prior
) -> Float64Array:
    """Σ of factor and NIW terms of each community with a covariance of its own."""
    kappa, extra = scale_matrices(size, first, scatter, prior)
    log_det = np.linalg.slogdet(prior.scale + extra)[1]
    return covariance_evidence(size, log_det, prior) + mean_evidence(kappa, prior)


def tied_evidence(
    total: float, kappas: Float64Array, log_det: Float64Array, prior: Prior
) -> Float64Array:
    """Σ of factor and NIW terms when one covariance serves all, given ln|W| and the κ_d."""
    means = mean_evidence(kappas, prior).sum(axis=-1)
    return np.asarray(covariance_evidence(total, log_det, prior) + means)


# docs/model.md#evidence
def community_evidence(statistics: Statistics, prior: Prior) -> float:
    """Σ of factor, membership, stick and NIW terms of the bound at their optimum."""
    sticks = float(stick_evidence(statistics.size, prior.concentration))
    if statistics.tied:
        best = community_posterior(statistics, prior)
        log_det = np.linalg.slogdet(best.scale[0])[1]
        return sticks + float(
            tied_evidence(float(statistics.size.sum()), best.kappa, log_det, prior)
        )
    own = own_evidence(statistics.size, statistics.first, statistics.firm, prior)
    return sticks + float(own.sum())
