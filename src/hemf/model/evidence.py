"""What the bound says of a side's communities once q(π) and q(φ) are at their optimum.

There the terms that involve them collapse to ratios of normalising constants, which depend on the
rows through additive statistics alone. That makes "would the bound be higher if …" cheap to ask.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

from hemf.model.bound import log_multigamma
from hemf.model.communities import Statistics, community_posterior, stick_posterior
from hemf.model.hyper import Prior
from hemf.model.packing import Float64

LOG_PI = float(np.log(np.pi))


def stick_evidence(sizes: Float64, concentration: float) -> Float64:
    """E ln p(Z|π) - KL(q(π)‖p(π)) = Σ_{d<D} ln B(η1,η2)/B(1,α), communities in this order.

    Over any leading axes, one set of communities each.
    """
    sticks = stick_posterior(sizes, concentration)
    taken, left = sticks.taken[..., :-1], sticks.left[..., :-1]
    return np.asarray(np.sum(betaln(taken, left) - betaln(1.0, concentration), axis=-1))


def scale_matrices(
    size: Float64, first: Float64, scatter: Float64, prior: Prior
) -> tuple[Float64, Float64]:
    """κ_d and W_d - W0 of communities with these statistics, over any leading axes."""
    strength = prior.strength + size
    mean = (prior.strength * prior.centre + first) / strength[..., None]
    outer0 = prior.strength * np.outer(prior.centre, prior.centre)
    outer = strength[..., None, None] * mean[..., :, None] * mean[..., None, :]
    return strength, scatter + outer0 - outer


def covariance_evidence(size: Float64 | float, log_det: Float64, prior: Prior) -> Float64:
    """Return what rows that share a covariance contribute, given how many and their ln|W|."""
    order, dof = prior.centre.size, prior.dof + size
    log_det0 = np.linalg.slogdet(prior.scale)[1]
    return np.asarray(
        -0.5 * order * LOG_PI * size
        + 0.5 * (prior.dof * log_det0 - dof * log_det)
        + log_multigamma(dof / 2.0, order)
        - log_multigamma(prior.dof / 2.0, order)
    )


def mean_evidence(strength: Float64, prior: Prior) -> Float64:
    """Return what the mean of each community costs, given its κ_d."""
    return np.asarray(0.5 * prior.centre.size * np.log(prior.strength / strength))


def own_evidence(size: Float64, first: Float64, scatter: Float64, prior: Prior) -> Float64:
    """Σ of factor and NIW terms of each community with a covariance of its own."""
    strength, extra = scale_matrices(size, first, scatter, prior)
    log_det = np.linalg.slogdet(prior.scale + extra)[1]
    return covariance_evidence(size, log_det, prior) + mean_evidence(strength, prior)


def tied_evidence(total: float, strengths: Float64, log_det: Float64, prior: Prior) -> Float64:
    """Σ of factor and NIW terms when one covariance serves all, given ln|W| and the κ_d."""
    means = mean_evidence(strengths, prior).sum(axis=-1)
    return np.asarray(covariance_evidence(total, log_det, prior) + means)


def community_evidence(statistics: Statistics, prior: Prior) -> float:
    """Σ of factor, membership, stick and NIW terms of the bound at their optimum."""
    sticks = float(stick_evidence(statistics.size, prior.concentration))
    if statistics.tied:
        best = community_posterior(statistics, prior)
        log_det = np.linalg.slogdet(best.scale[0])[1]
        return sticks + float(
            tied_evidence(float(statistics.size.sum()), best.strength, log_det, prior)
        )
    own = own_evidence(statistics.size, statistics.first, statistics.firm, prior)
    return sticks + float(own.sum())
