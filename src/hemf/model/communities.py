"""The Dirichlet-process mixture of NIW communities of one side.

MODEL.md, batch steps 3 and 4. With tied covariances the communities of a side share one Σ and
differ in their means; the arrays that hold covariances then have one entry instead of D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import digamma

from hemf.model.hyper import Prior
from hemf.model.packing import Float64

FLOOR = 0.1  # of W_0 that W_d keeps, see `with_floor`


@dataclass(frozen=True)
class Statistics:
    """What the communities need of the rows; additive over any partition of them."""

    size: Float64
    """ρ_d = Σ_i q_i(d), (D,)."""
    first: Float64
    """Σ_i q_i(d) m_id, (D, order)."""
    scatter: Float64
    """Σ_i q_i(d)(S_id + m_id m_idᵀ), (C, order, order); C = 1 when tied, else D.

    With features, of what these leave of the rows, and MᵀΛM beside it; see `hemf.model.regression`.
    """
    entropy: float
    """Σ_i Σ_d q_i(d)(½ ln|S_id| - ln q_i(d))."""
    rounding: float = 0.0
    """Part of the scatter's entries that may be rounding: what rows have given is stored."""

    @property
    def tied(self) -> bool:
        """Whether one covariance serves all communities (always so when there is one)."""
        return bool(self.scatter.shape[0] == 1)

    def select(self, communities: np.ndarray) -> Statistics:
        """Keep these communities, in this order."""
        return replace(
            self,
            size=self.size[communities],
            first=self.first[communities],
            scatter=self.scatter if self.tied else self.scatter[communities],
        )

    @property
    def firm(self) -> Float64:
        """The scatter and what rounding may have taken off it, (C, order, order).

        Rows that differ by less than they are stored with would else be left with a covariance
        that is none.
        """
        if self.rounding == 0.0:
            return self.scatter
        firm, diagonal = self.scatter.copy(), np.arange(self.scatter.shape[1])
        firm[:, diagonal, diagonal] *= 1.0 + self.rounding
        return firm


@dataclass(frozen=True)
class Sticks:
    """q(π_d) = Beta(taken_d, left_d) for d < D; the last stick takes all that is left."""

    taken: Float64
    left: Float64

    @cached_property
    def log_weights(self) -> Float64:
        """E ln of each community's weight: E ln π_d + Σ_{t<d} E ln(1-π_t), (D,)."""
        total = digamma(self.taken + self.left)
        log_taken = digamma(self.taken) - total
        log_left = digamma(self.left) - total
        log_taken[-1] = 0.0  # the last stick is 1
        return np.asarray(log_taken + np.concatenate([[0.0], np.cumsum(log_left)[:-1]]))

    @cached_property
    def weights(self) -> Float64:
        """Expected weight of each community, (D,); sums to one."""
        share = self.taken / (self.taken + self.left)
        share[-1] = 1.0
        return np.asarray(share * np.concatenate([[1.0], np.cumprod(1.0 - share)[:-1]]))


def stick_posterior(sizes: Float64, concentration: float) -> Sticks:
    """Posterior of the stick lengths: η1_d = 1 + ρ_d,  η2_d = α + Σ_{t>d} ρ_t.

    >>> stick_posterior(np.array([5.0, 2.0]), 1.0).left.tolist()
    [3.0, 1.0]
    """
    smaller = np.cumsum(sizes[..., ::-1], axis=-1)[..., ::-1] - sizes  # Σ_{t>d} ρ_t
    return Sticks(taken=1.0 + sizes, left=concentration + np.maximum(smaller, 0.0))


@dataclass(frozen=True)
class Communities:
    """Posterior of one side's communities, NIW(m_d, κ_d, W_d, ι_d), and of their sticks."""

    sticks: Sticks
    mean: Float64
    """m_d, (D, order)."""
    strength: Float64
    """κ_d, (D,)."""
    scale: Float64
    """W_d, (C, order, order)."""
    dof: Float64
    """ι_d, (C,)."""

    @property
    def count(self) -> int:
        """D."""
        return int(self.mean.shape[0])

    @property
    def order(self) -> int:
        """Number of coordinates of a row's posterior."""
        return int(self.mean.shape[1])

    @cached_property
    def precision(self) -> Float64:
        """P_d = E[Σ_d⁻¹] = ι_d W_d⁻¹, (C, order, order)."""
        inverse = np.linalg.inv(self.scale)
        return np.asarray(self.dof[:, None, None] * 0.5 * (inverse + inverse.transpose(0, 2, 1)))

    @cached_property
    def log_det(self) -> Float64:
        """E ln|Σ_d| = ln|W_d| - L ln 2 - Σ_l ψ((ι_d+1-l)/2), (C,)."""
        return expected_log_det(self.scale, self.dof)

    @cached_property
    def pull(self) -> Float64:
        """P_d m_d, (D, order)."""
        # P is symmetric; one for all takes one product of two matrices.
        by_community = self.mean[:, None, :] @ self.precision
        return np.asarray(by_community[:, 0, :])

    @cached_property
    def log_weight(self) -> Float64:
        """The part of ln q_i(d) that is the same for every row, (D,)."""
        square = np.einsum("di,di->d", self.pull, self.mean)  # m_dᵀ P_d m_d
        penalty = self.log_det + self.order / self.strength + square
        return np.asarray(self.sticks.log_weights - 0.5 * penalty)


def with_floor(communities: Communities, prior: Prior) -> Communities:
    """Return communities whose W_d are at least `FLOOR` times the prior's W_0.

    Σ_i E[y_i y_iᵀ] of any rows leaves W_d ≥ W_0. Two things can take more than W_0 off it, so that
    W_d would be no covariance. Online, what rows have given is stored, and taken back when they
    change: of tables with hardly any noise, W_0 is less than the rounding. Where features'
    coefficients are uncertain, rows give S + c (S P S - S) in place of S, which is right for all
    directions together; where ratings tell of some directions only and features are as many as
    rows, it can be below zero in these.

    >>> prior = Prior.start(2, variance=1.0, concentration=1.0, spread=1.0)
    >>> nothing = Statistics(np.ones(1), np.zeros((1, 2)), np.zeros((1, 2, 2)), 0.0)
    >>> less = replace(nothing, scatter=-10.0 * prior.scale[None])
    >>> wrong, right = (community_posterior(one, prior) for one in (less, nothing))
    >>> bool(np.linalg.eigvalsh(wrong.scale).min() > 0.0)
    False
    >>> bool(np.linalg.eigvalsh(with_floor(wrong, prior).scale).min() > 0.0)
    True
    >>> with_floor(right, prior) is right
    True
    """
    try:
        np.linalg.cholesky(communities.scale - FLOOR * prior.scale)
        return communities
    except np.linalg.LinAlgError:
        root = _root(prior.scale)
        inverse = np.linalg.inv(root)
        values, vectors = np.linalg.eigh(inverse @ communities.scale @ inverse.T)
        sides = root @ vectors  # W = L V diag(w) Vᵀ Lᵀ, W_0 = L Lᵀ
        scale = (sides * np.maximum(values, FLOOR)[:, None, :]) @ sides.transpose(0, 2, 1)
        return replace(communities, scale=0.5 * (scale + scale.transpose(0, 2, 1)))


def _root(scale: Float64) -> Float64:
    """Return L with L Lᵀ = W_0, or about that where rounding has left W_0 indefinite."""
    try:
        return np.asarray(np.linalg.cholesky(scale))
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(np.diagonal(scale)))


def expected_log_det(scale: Float64, dof: Float64) -> Float64:
    """E ln|Σ| under IW(scale, dof), for a stack of them."""
    order = scale.shape[-1]
    steps = np.arange(1, order + 1)
    digammas = digamma((dof[..., None] + 1.0 - steps) / 2.0).sum(axis=-1)
    return np.asarray(np.linalg.slogdet(scale)[1] - order * np.log(2.0) - digammas)


def community_posterior(statistics: Statistics, prior: Prior) -> Communities:
    """Posterior of sticks, means and covariances given the rows' statistics."""
    size, strength0 = statistics.size, prior.strength
    strength = strength0 + size  # κ_d
    mean = (strength0 * prior.centre + statistics.first) / strength[:, None]  # m_d
    outer0 = strength0 * (prior.centre[:, None] * prior.centre)
    correction = outer0 - strength[:, None, None] * mean[:, :, None] * mean[:, None, :]
    if statistics.tied:
        scale = prior.scale + statistics.firm + correction.sum(axis=0)
        dof = np.array([prior.dof + size.sum()])
    else:
        scale = prior.scale + statistics.firm + correction
        dof = prior.dof + size
    return Communities(
        sticks=stick_posterior(size, prior.concentration),
        mean=mean,
        strength=strength,
        scale=0.5 * (scale + scale.transpose(0, 2, 1)),
        dof=dof,
    )
