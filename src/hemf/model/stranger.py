"""What is expected of a row that nothing is known of."""

from __future__ import annotations

import numpy as np

from hemf.model.communities import Communities
from hemf.model.layout import Layout
from hemf.model.packing import Float64, lower_triangle


def expected_row(communities: Communities, layout: Layout) -> Float64:
    """Mean of a row that nothing is known of, pinned coordinate included."""
    mean = np.ones(layout.total)
    mean[layout.free] = communities.sticks.weights @ communities.mean
    return mean


def prior_predictive(communities: Communities, layout: Layout) -> tuple[Float64, Float64]:
    """Mean and packed second moment of a row that nothing is known of, pinned one included.

    Mixture over communities of E[a] = m_d and E[a aᵀ] = (1 + 1/κ_d) E[Σ_d] + m_d m_dᵀ.
    """
    weights, order = communities.sticks.weights, communities.order
    # E[Σ] = W/(ι-L-1) exists only for ι > L+1; where it does not, the mode W/(ι+L+1) stands in.
    freedom = communities.dof - order - 1.0
    divisor = np.where(freedom > 0.0, freedom, communities.dof + order + 1.0)
    covariance = communities.scale / divisor[:, None, None]
    means = communities.mean
    shares = (weights * (1.0 + 1.0 / communities.strength))[:, None, None]
    squares = means[:, :, None] * means[:, None, :]
    second = (shares * covariance + weights[:, None, None] * squares).sum(axis=0)
    full_mean = expected_row(communities, layout)
    full = full_mean[:, None] * full_mean
    full[layout.free[:, None], layout.free] = second
    rows, columns = lower_triangle(layout.total)
    return full_mean, full[rows, columns]
