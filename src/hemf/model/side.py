"""One side of the table: its rows' posterior and its communities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
    """Posterior moments of one side's rows, pinned coordinate included, in storage type."""

    mean: Array
    """E[a], (rows, total)."""
    second: Array
    """E[a aᵀ], (rows, packed)."""

    def copy(self) -> Moments:
        """Return moments that can be written to without touching these."""
        return Moments(self.mean.copy(), self.second.copy())


@dataclass(frozen=True)
class OnlineShift:
    """What features say of rows that change as ratings arrive, of which the regression knows not.

    The design of the regression is that of the last time it was fitted.
    """

    shift: Float64Array
    """f_i of each row, in place, (rows, order)."""
    all_unknown: UnknownFeatures
    """What features say on average,"""
    ratings_unknown: UnknownFeatures
    """and what those do that ratings make."""
    solver: Solver | None
    """What knows C; None is the regression's own."""


@dataclass
class Side:
    """All that is believed about one side."""

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
    """How noisy each row's ratings are; None where all are equally so."""
    regression: Regression | None = None
    """What features say of the rows; None without any."""

    def __post_init__(self) -> None:
        # Made for the communities as they are, and kept with these; no part of what is believed.
        self._stranger: tuple[Communities, tuple[Float64Array, Float64Array]] | None = None
        self._folding: Any = None
        self.online_shift: OnlineShift | None = None  # where rows learn online

    @property
    def weights(self) -> Float64Array:
        """E[τ_i], how much a row's ratings count, (rows,)."""
        return np.ones(self.n_rows) if self.noise_scales is None else self.noise_scales.mean

    @property
    def n_rows(self) -> int:
        """How many users, or items."""
        return int(self.membership.shape[0])

    @property
    def n_communities(self) -> int:
        """How many communities are alive."""
        return self.communities.count

    @property
    def factor_means(self) -> Float64Array:
        """m_i on the coordinates that the posterior covers, (rows, order)."""
        return self.moments.mean[:, self.layout.free].astype(np.float64)

    @property
    def shift(self) -> Float64Array:
        """f_i, what features say of each row, (rows, order); without any, nothing."""
        if self.online_shift is not None:
            return self.online_shift.shift
        if self.regression is not None:
            return self.regression.shift
        return np.zeros((self.n_rows, self.layout.order))

    @property
    def residual_means(self) -> Float64Array:
        """m_i less what features say of the row: what communities are of, (rows, order)."""
        means = self.factor_means
        return means if self.regression is None else means - self.shift

    def refresh(self, statistics: Statistics | None = None) -> None:
        """Bring q(π) and q(φ) to their optimum for these statistics and the present prior."""
        if statistics is not None:
            self.statistics = statistics
        self.communities = with_floor(community_posterior(self.statistics, self.prior), self.prior)

    @property
    def stranger(self) -> tuple[Float64Array, Float64Array]:
        """Mean and packed second moment of a row that nothing is known of."""
        if self._stranger is None or self._stranger[0] is not self.communities:
            moments = prior_predictive(self.communities, self.layout)
            if self.regression is not None:
                hint = self._hint(csr_array((1, 0)))
                mean, second = prior_predictive(self.communities, self.layout, hint)
                moments = mean[0], second[0]
            self._stranger = self.communities, moments
        return self._stranger[1]

    def newcomers(self, features: csr_array) -> Moments:
        """Moments of rows that have no ratings, but these features.

        They are of the first columns of the regression's design; what the others would be is not
        known.
        """
        hint = self._hint(features)
        mean, second = prior_predictive(self.communities, self.layout, hint)
        dtype = self.moments.mean.dtype
        return Moments(mean.astype(dtype), second.astype(dtype))

    def _hint(self, features: csr_array) -> FeaturePrior:
        assert self.regression is not None
        if self.online_shift is None:
            return self.regression.feature_prior(features)
        live = self.online_shift
        rest = live.ratings_unknown if features.shape[1] else live.all_unknown
        return self.regression.feature_prior(features, rest, live.solver)

    def select(self, communities: np.ndarray) -> None:
        """Keep these communities, in this order; what others held of a row goes to these."""
        kept = self.membership[:, communities].astype(np.float64)
        kept /= kept.sum(axis=1, keepdims=True)
        self.membership = np.ascontiguousarray(kept, dtype=self.membership.dtype)
        self.refresh(self.statistics.select(communities))

    def copy(self) -> Side:
        """Return a side that can be swept without touching this one."""
        return replace(self, moments=self.moments.copy(), membership=self.membership.copy())
