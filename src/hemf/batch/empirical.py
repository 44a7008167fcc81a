"""Empirical variational Bayes (eVB): hyper-parameters that raise the lower bound.

In closed form where there is one; the paper's gradient steps for α and ι0 are an alternative. With
a single community λ0, ι0 and α stay: they describe how communities differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import digamma, zeta

from hemf._typing import Float64Array
from hemf.model.communities import Communities, Prior, Sticks

GRADIENT_STEP = 1e-3  # the paper's learning rate


# docs/model.md#alpha
def best_concentration(sticks: Sticks) -> float:
    """α = (D-1) / -Σ_{d<D} (ψ(η2_d) - ψ(η1_d+η2_d))."""
    taken, left = sticks.taken[:-1], sticks.left[:-1]
    return float(taken.size / -np.sum(digamma(left) - digamma(taken + left)))


# docs/model.md#mu0
def best_centre(communities: Communities) -> Float64Array:
    """μ0 = (Σ_d P_d)⁻¹ Σ_d P_d m_d."""
    order = communities.order
    total = np.broadcast_to(communities.precision, (communities.count, order, order)).sum(axis=0)
    return np.linalg.solve(total, communities.natural_mean.sum(axis=0))


# docs/model.md#lambda0
def best_spread(communities: Communities, centre: Float64Array) -> float:
    """λ0 = (1/(L D)) Σ_d ( L/κ_d + (m_d-μ0)ᵀ P_d (m_d-μ0) )."""
    order, away = communities.order, communities.mean - centre
    precision = np.broadcast_to(communities.precision, (communities.count, order, order))
    squares = np.einsum("di,dij,dj->d", away, precision, away)
    return float(np.mean(order / communities.kappa + squares) / order)


# docs/model.md#w0
def best_scale(communities: Communities, dof: float) -> Float64Array:
    """W0 = C ι0 (Σ_c P_c)⁻¹, C the number of covariances."""
    mean_precision = communities.precision.mean(axis=0)
    scale = dof * np.linalg.inv(mean_precision)
    return np.asarray(0.5 * (scale + scale.T))


# docs/model.md#iota0
def best_dof(communities: Communities, scale: Float64Array, start: float) -> float:
    """ι0 solving C(ln|W0| - L ln2 - Σ_l ψ((ι0+1-l)/2)) = Σ_c E ln|Σ_c| by safeguarded Newton."""
    order = communities.order
    steps = np.arange(1, order + 1)
    target = float(np.linalg.slogdet(scale)[1] - order * np.log(2.0) - communities.log_det.mean())
    low, high = order - 1.0, np.inf  # Σψ rises in ι0: the root is where it meets the target
    dof = start
    for _ in range(100):
        arguments = (dof + 1.0 - steps) / 2.0
        gap = float(digamma(arguments).sum()) - target
        if gap > 0.0:
            high = dof
        else:
            low = dof
        step = dof - gap / (0.5 * float(zeta(2.0, arguments).sum()))  # ψ'(x) = ζ(2, x)
        if not low < step < high:
            step = 0.5 * (low + high) if np.isfinite(high) else 2.0 * dof
        if abs(step - dof) <= 1e-12 * (dof - order + 1.0):  # relative to ι0 - (L-1)
            return step
        dof = step
    return dof


# docs/model.md#gradient
def gradient_concentration(sticks: Sticks, concentration: float) -> float:
    """One step along dL/dα = (D-1)/α + Σ_{d<D} (ψ(η2) - ψ(η1+η2)), as the paper does."""
    taken, left = sticks.taken[:-1], sticks.left[:-1]
    slope = taken.size / concentration + np.sum(digamma(left) - digamma(taken + left))
    return float(max(concentration + GRADIENT_STEP * slope, 1e-6))


def gradient_dof(communities: Communities, scale: Float64Array, dof: float) -> float:
    """One step along dL/dι0, as the paper does; stays above L-1."""
    order, count = communities.order, communities.dof.size
    steps = np.arange(1, order + 1)
    own = np.linalg.slogdet(scale)[1] - order * np.log(2.0)
    own -= digamma((dof + 1.0 - steps) / 2.0).sum()
    slope = 0.5 * (count * own - communities.log_det.sum())
    return float(max(dof + GRADIENT_STEP * slope, order - 1.0 + 1e-3))


def learn_prior(
    prior: Prior, communities: Communities, *, evb: str, structure: bool, scale: bool
) -> Prior:
    """Return the prior that maximises the bound, or raises it where ``evb`` is "gradient".

    ``structure`` also learns λ0 and ι0, ``scale`` also W0.
    """
    sticks, several = communities.sticks, communities.count > 1
    prior = replace(prior, centre=best_centre(communities))
    if several and evb == "gradient":
        prior = replace(prior, concentration=gradient_concentration(sticks, prior.concentration))
    elif several:
        prior = replace(prior, concentration=best_concentration(sticks))
    if structure and several:
        prior = replace(prior, mean_scale=best_spread(communities, prior.centre))
    if scale:
        prior = replace(prior, scale=best_scale(communities, prior.dof))
    if scale and structure and communities.dof.size > 1:
        learn_dof = gradient_dof if evb == "gradient" else best_dof
        prior = replace(prior, dof=learn_dof(communities, prior.scale, prior.dof))
    return prior
