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
    spread = np.broadcast_to(covariance, (communities.count, order, order))
    means = communities.mean
    second = np.einsum("d,dij->ij", weights * (1.0 + 1.0 / communities.strength), spread)
    second = second + np.einsum("d,di,dj->ij", weights, means, means)
    full_mean = expected_row(communities, layout)
    full = np.outer(full_mean, full_mean)
    full[np.ix_(layout.free, layout.free)] = second
    rows, columns = lower_triangle(layout.total)
    return full_mean, full[rows, columns]
