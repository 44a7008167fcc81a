"""One side of the table: posterior of its rows and of its communities."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from hemf._typing import Array, Float64Array
from hemf.model.communities import (
    Communities,
    FeaturePrior,
    Prior,
    Statistics,
    community_posterior,
    prior_predictive,
    with_floor,
)
from hemf.model.layout import Layout
from hemf.model.noise import NoiseScales
from hemf.model.regression import Regression, UnknownFeatures
from hemf.model.ridge import Solver


@dataclass(frozen=True)
class Moments:
    """Posterior moments of the rows of one side, pinned coordinate included."""

    mean: Array
    """E[a], (rows, total)."""
    second: Array
    """E[a aᵀ], (rows, packed)."""

    def copy(self) -> Moments:
        """Return a deep copy."""
        return Moments(self.mean.copy(), self.second.copy())


@dataclass(frozen=True)
class OnlineShift:
    """Shift of rows whose implicit features changed since the regression was fitted."""

    shift: Float64Array
    """f_i of each row, (rows, order)."""
    all_unknown: UnknownFeatures
    """For newcomers without any feature."""
    ratings_unknown: UnknownFeatures
    """For newcomers with all but the implicit features."""
    solver: Solver | None
    """Solver for C; None is that of the regression."""


@dataclass
class Side:
    """Posterior of one side: rows, communities, noise scales, regression on features."""

    layout: Layout
    tied: bool
    """One covariance for all communities."""
    prior: Prior
    moments: Moments
    membership: Array
    """q_i(d), (rows, D)."""
    statistics: Statistics
    communities: Communities
    noise_scales: NoiseScales | None = None
    """Noise scale of each row; None where all have the same noise."""
    regression: Regression | None = None
    """Regression of the rows on their features; None without any."""

    def __post_init__(self) -> None:
        # Derived from the communities as they are: no part of the posterior.
        self._stranger: tuple[Communities, tuple[Float64Array, Float64Array]] | None = None
        self.folding: object = None
        self.online_shift: OnlineShift | None = None  # while learning online

    @property
    def weights(self) -> Float64Array:
        """E[τ_i], weight of each row's ratings, (rows,)."""
        return np.ones(self.n_rows) if self.noise_scales is None else self.noise_scales.mean

    @property
    def n_rows(self) -> int:
        """Number of users, or of items."""
        return int(self.membership.shape[0])

    @property
    def n_communities(self) -> int:
        """Number of communities."""
        return self.communities.count

    @property
    def factor_means(self) -> Float64Array:
        """m_i without the pinned coordinate, (rows, order)."""
        return self.moments.mean[:, self.layout.free].astype(np.float64)

    @property
    def shift(self) -> Float64Array:
        """f_i = Mᵀx_i of each row, (rows, order); zeros without features."""
        if self.online_shift is not None:
            return self.online_shift.shift
        if self.regression is not None:
            return self.regression.shift
        return np.zeros((self.n_rows, self.layout.order))

    @property
    def residual_means(self) -> Float64Array:
        """m_i - f_i, (rows, order)."""
        means = self.factor_means
        return means if self.regression is None else means - self.shift

    def refresh(self, statistics: Statistics | None = None) -> None:
        """Update q(π) and q(φ) for these statistics, or the present ones."""
        if statistics is not None:
            self.statistics = statistics
        self.communities = with_floor(community_posterior(self.statistics, self.prior), self.prior)

    @property
    def stranger(self) -> tuple[Float64Array, Float64Array]:
        """Mean and packed second moment of a row without ratings and features."""
        if self._stranger is None or self._stranger[0] is not self.communities:
            moments = prior_predictive(self.communities, self.layout)
            if self.regression is not None:
                prior = self.feature_prior(csr_array((1, 0)))
                mean, second = prior_predictive(self.communities, self.layout, prior)
                moments = mean[0], second[0]
            self._stranger = self.communities, moments
        return self._stranger[1]

    def forget_stranger(self) -> None:
        """Compute `stranger` again when it is needed next."""
        self._stranger = None

    def newcomers(self, features: csr_array) -> Moments:
        """Moments of rows without ratings, given the first columns of their features."""
        prior = self.feature_prior(features)
        mean, second = prior_predictive(self.communities, self.layout, prior)
        dtype = self.moments.mean.dtype
        return Moments(mean.astype(dtype), second.astype(dtype))

    def feature_prior(self, features: csr_array) -> FeaturePrior:
        """Return the shift of rows with these features and no ratings."""
        assert self.regression is not None
        online = self.online_shift
        if online is None:
            return self.regression.feature_prior(features)
        rest = online.ratings_unknown if features.shape[1] else online.all_unknown
        return self.regression.feature_prior(features, rest, online.solver)

    def select(self, communities: np.ndarray) -> None:
        """Keep these communities, in this order; memberships are normalised again."""
        kept = self.membership[:, communities].astype(np.float64)
        kept /= kept.sum(axis=1, keepdims=True)
        self.membership = np.ascontiguousarray(kept, dtype=self.membership.dtype)
        self.refresh(self.statistics.select(communities))

    def copy(self) -> Side:
        """Return a copy whose rows can be updated without changing these."""
        return replace(self, moments=self.moments.copy(), membership=self.membership.copy())
