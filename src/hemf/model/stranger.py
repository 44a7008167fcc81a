"""What is expected of a row that nothing is known of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemf.model.communities import Communities
from hemf.model.layout import Layout
from hemf.model.packing import Float64, lower_triangle


def expected_row(communities: Communities, layout: Layout) -> Float64:
    """Mean of a row that nothing is known of, pinned coordinate included."""
    mean = np.ones(layout.total)
    mean[layout.free] = communities.sticks.weights @ communities.mean
    return mean


@dataclass(frozen=True)
class Hint:
    """What features say of rows that have no ratings; see `hemf.model.regression`."""

    shift: Float64
    """E[Vᵀx], (rows, order)."""
    leverage: Float64
    """xᵀCx, (rows,): what V is uncertain by, in units of Σ."""
    spread: Float64
    """Covariance of what those features would say that are not known, (order, order)."""


def prior_predictive(
    communities: Communities, layout: Layout, hint: Hint | None = None
) -> tuple[Float64, Float64]:
    """Mean and packed second moment of a row that has no ratings, pinned coordinate included.

    Mixture over communities of E[a] = m_d and E[a aᵀ] = (1 + 1/κ_d) E[Σ_d] + m_d m_dᵀ. With a
    ``hint`` there is a row of each for every row of it, m_d + E[Vᵀx] in place of m_d.
    """
    if hint is not None:
        return _hinted(communities, layout, hint)
    weights = communities.sticks.weights
    covariance = expected_covariance(communities)
    means = communities.mean
    shares = (weights * (1.0 + 1.0 / communities.strength))[:, None, None]
    squares = means[:, :, None] * means[:, None, :]
    second = (shares * covariance + weights[:, None, None] * squares).sum(axis=0)
    full_mean = expected_row(communities, layout)
    full = full_mean[:, None] * full_mean
    full[layout.free[:, None], layout.free] = second
    rows, columns = lower_triangle(layout.total)
    return full_mean, full[rows, columns]


def expected_covariance(communities: Communities) -> Float64:
    """E[Σ_d], (C, order, order).

    It is W/(ι-L-1) and exists only for ι > L+1; where it does not, the mode W/(ι+L+1) stands in.
    """
    freedom = communities.dof - communities.order - 1.0
    divisor = np.where(freedom > 0.0, freedom, communities.dof + communities.order + 1.0)
    return np.asarray(communities.scale / divisor[:, None, None])


def _hinted(communities: Communities, layout: Layout, hint: Hint) -> tuple[Float64, Float64]:
    """Moments of rows with features; these have one Σ for all communities."""
    weights, means = communities.sticks.weights, communities.mean
    covariance = expected_covariance(communities)[0]
    centre = weights @ means
    away = means - centre
    between = (weights[:, None] * away).T @ away  # of the communities' means
    own = weights @ (1.0 + 1.0 / communities.strength) + hint.leverage
    rows, columns = lower_triangle(layout.total)
    within = np.zeros((layout.total, layout.total))
    scaled = within.copy()
    within[layout.free[:, None], layout.free] = between + hint.spread
    scaled[layout.free[:, None], layout.free] = covariance
    mean = np.ones((hint.shift.shape[0], layout.total))
    mean[:, layout.free] = centre + hint.shift
    second = mean[:, rows] * mean[:, columns] + within[rows, columns]
    return mean, second + own[:, None] * scaled[rows, columns]
