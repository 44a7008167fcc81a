"""The Dirichlet-process mixture of NIW communities of one side.

See docs/model.md#sticks and docs/model.md#communities. With tied covariances the communities of a
side share one Σ and differ in their means; arrays of covariances then have one entry instead of D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import digamma, zeta

from hemf._typing import Float64Array
from hemf.model.layout import Layout, lower_triangle

FLOOR = 0.1  # of W_0 that W_d keeps, see `with_floor`


# docs/model.md#statistics
@dataclass(frozen=True)
class Statistics:
    """Statistics of the rows that communities need; additive over any partition of the rows."""

    size: Float64Array
    """ρ_d = Σ_i q_i(d), (D,)."""
    first: Float64Array
    """Σ_i q_i(d) m_id, (D, order)."""
    scatter: Float64Array
    """Σ_i q_i(d)(S_id + m_id m_idᵀ), (C, order, order); C = 1 when tied, else D.

    With features, of the residuals a_i - f_i, plus MᵀΛM; see `hemf.model.regression`.
    """
    entropy: float
    """Σ_i Σ_d q_i(d)(½ ln|S_id| - ln q_i(d))."""
    rounding: float = 0.0
    """Relative rounding error of the scatter, where contributions of rows are stored."""

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
    def firm(self) -> Float64Array:
        """The scatter plus its rounding error on the diagonal, (C, order, order).

        Rows that differ by less than the rounding would have a covariance that is not positive.
        """
        if self.rounding == 0.0:
            return self.scatter
        firm, diagonal = self.scatter.copy(), np.arange(self.scatter.shape[1])
        firm[:, diagonal, diagonal] *= 1.0 + self.rounding
        return firm


@dataclass(frozen=True)
class Sticks:
    """q(π_d) = Beta(taken_d, left_d) for d < D; the last stick has length 1."""

    taken: Float64Array
    left: Float64Array

    @cached_property
    def log_weights(self) -> Float64Array:
        """E ln of each community's weight: E ln π_d + Σ_{t<d} E ln(1-π_t), (D,)."""
        total = digamma(self.taken + self.left)
        log_taken = digamma(self.taken) - total
        log_left = digamma(self.left) - total
        log_taken[-1] = 0.0  # the last stick is 1
        return np.asarray(log_taken + np.concatenate([[0.0], np.cumsum(log_left)[:-1]]))

    @cached_property
    def weights(self) -> Float64Array:
        """Expected weight of each community, (D,); sums to one."""
        share = self.taken / (self.taken + self.left)
        share[-1] = 1.0
        return np.asarray(share * np.concatenate([[1.0], np.cumprod(1.0 - share)[:-1]]))


# docs/model.md#sticks
def stick_posterior(sizes: Float64Array, concentration: float) -> Sticks:
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
    mean: Float64Array
    """m_d, (D, order)."""
    kappa: Float64Array
    """κ_d, (D,)."""
    scale: Float64Array
    """W_d, (C, order, order)."""
    dof: Float64Array
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
    def precision(self) -> Float64Array:
        """P_d = E[Σ_d⁻¹] = ι_d W_d⁻¹, (C, order, order)."""
        inverse = np.linalg.inv(self.scale)
        return np.asarray(self.dof[:, None, None] * 0.5 * (inverse + inverse.transpose(0, 2, 1)))

    @cached_property
    def log_det(self) -> Float64Array:
        """E ln|Σ_d| = ln|W_d| - L ln 2 - Σ_l ψ((ι_d+1-l)/2), (C,)."""
        return expected_log_det(self.scale, self.dof)

    # docs/model.md#row-factors
    @cached_property
    def natural_mean(self) -> Float64Array:
        """P_d m_d, (D, order)."""
        # P is symmetric; one for all takes one product of two matrices.
        by_community = self.mean[:, None, :] @ self.precision
        return np.asarray(by_community[:, 0, :])

    # docs/model.md#memberships
    @cached_property
    def log_weight(self) -> Float64Array:
        """Part of ln q_i(d) that is the same for every row, (D,)."""
        square = np.einsum("di,di->d", self.natural_mean, self.mean)  # m_dᵀ P_d m_d
        penalty = self.log_det + self.order / self.kappa + square
        return np.asarray(self.sticks.log_weights - 0.5 * penalty)


def with_floor(communities: Communities, prior: Prior) -> Communities:
    """Return communities whose W_d are at least `FLOOR` times the prior's W_0.

    Σ_i E[y_i y_iᵀ] of any rows leaves W_d ≥ W_0. Two things can make W_d smaller, even indefinite.
    Online, stored contributions of rows are subtracted when they change, and with hardly any noise
    W_0 is less than the rounding. With uncertain coefficients of features, rows contribute
    S + c (S P S - S) instead of S, which can be negative in directions without ratings.

    >>> prior = Prior.start(2, variance=1.0, concentration=1.0, mean_scale=1.0)
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


def _root(scale: Float64Array) -> Float64Array:
    """Return L with L Lᵀ = W_0; its diagonal's root where rounding has left W_0 indefinite."""
    try:
        return np.asarray(np.linalg.cholesky(scale))
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(np.diagonal(scale)))


# docs/model.md#expected-log-det
def expected_log_det(scale: Float64Array, dof: Float64Array) -> Float64Array:
    """E ln|Σ| under IW(scale, dof), for a stack of them."""
    order = scale.shape[-1]
    steps = np.arange(1, order + 1)
    digammas = digamma((dof[..., None] + 1.0 - steps) / 2.0).sum(axis=-1)
    return np.asarray(np.linalg.slogdet(scale)[1] - order * np.log(2.0) - digammas)


# docs/model.md#communities
def community_posterior(statistics: Statistics, prior: Prior) -> Communities:
    """Posterior of sticks, means and covariances given the rows' statistics."""
    size, kappa0 = statistics.size, prior.kappa
    kappa = kappa0 + size  # κ_d
    mean = (kappa0 * prior.centre + statistics.first) / kappa[:, None]  # m_d
    outer0 = kappa0 * (prior.centre[:, None] * prior.centre)
    correction = outer0 - kappa[:, None, None] * mean[:, :, None] * mean[:, None, :]
    if statistics.tied:
        scale = prior.scale + statistics.firm + correction.sum(axis=0)
        dof = np.array([prior.dof + size.sum()])
    else:
        scale = prior.scale + statistics.firm + correction
        dof = prior.dof + size
    return Communities(
        sticks=stick_posterior(size, prior.concentration),
        mean=mean,
        kappa=kappa,
        scale=0.5 * (scale + scale.transpose(0, 2, 1)),
        dof=dof,
    )


# ------------------------------------------------------------------------------------------------
# Hyper-parameters Ξ and their starting values.


# docs/model.md#generative-model
@dataclass(frozen=True)
class Prior:
    """Hyper-parameters of one side: the Dirichlet process and its NIW base measure."""

    concentration: float
    """α (β on the item side) of the sticks Beta(1, α)."""
    centre: Float64Array
    """μ0, (order,)."""
    mean_scale: float
    """λ0: μ_d | Σ_d ~ N(μ0, λ0 Σ_d)."""
    scale: Float64Array
    """W0, (order, order)."""
    dof: float
    """ι0, degrees of freedom of Σ_d ~ IW(W0, ι0); > order - 1."""

    @property
    def kappa(self) -> float:
        """κ0 = 1/λ0, weight of the prior mean in rows."""
        return 1.0 / self.mean_scale

    @classmethod
    def start(
        cls, order: int, *, variance: float, concentration: float, mean_scale: float
    ) -> Prior:
        """Prior that expects rows of this variance around zero."""
        dof = order + 2.0
        return cls(
            concentration=concentration,
            centre=np.zeros(order),
            mean_scale=mean_scale,
            scale=np.eye(order) * (dof * variance),
            dof=dof,
        )


# ------------------------------------------------------------------------------------------------
# Predictive distribution of a row without ratings.


def expected_row(communities: Communities, layout: Layout) -> Float64Array:
    """Mean of a row without ratings, pinned coordinate included."""
    mean = np.ones(layout.total)
    mean[layout.free] = communities.sticks.weights @ communities.mean
    return mean


@dataclass(frozen=True)
class FeaturePrior:
    """Shift of rows without ratings by their features; see `hemf.model.regression`."""

    shift: Float64Array
    """E[Vᵀx], (rows, order)."""
    leverage: Float64Array
    """xᵀCx, (rows,): uncertainty of V in units of Σ."""
    covariance: Float64Array
    """Covariance of the shift by unknown features, (order, order)."""


# docs/model.md#strangers
def prior_predictive(
    communities: Communities, layout: Layout, features: FeaturePrior | None = None
) -> tuple[Float64Array, Float64Array]:
    """Mean and packed second moment of a row without ratings, pinned coordinate included.

    Mixture over communities of E[a] = m_d and E[a aᵀ] = (1 + 1/κ_d) E[Σ_d] + m_d m_dᵀ. With
    ``features`` there is one row for each of theirs, m_d + E[Vᵀx] in place of m_d.
    """
    if features is not None:
        return _with_features(communities, layout, features)
    weights = communities.sticks.weights
    covariance = expected_covariance(communities)
    means = communities.mean
    shares = (weights * (1.0 + 1.0 / communities.kappa))[:, None, None]
    squares = means[:, :, None] * means[:, None, :]
    second = (shares * covariance + weights[:, None, None] * squares).sum(axis=0)
    full_mean = expected_row(communities, layout)
    full = full_mean[:, None] * full_mean
    full[layout.free[:, None], layout.free] = second
    rows, columns = lower_triangle(layout.total)
    return full_mean, full[rows, columns]


def expected_covariance(communities: Communities) -> Float64Array:
    """E[Σ_d], (C, order, order).

    It is W/(ι-L-1) and exists only for ι > L+1; where it does not, the mode W/(ι+L+1) stands in.
    """
    freedom = communities.dof - communities.order - 1.0
    divisor = np.where(freedom > 0.0, freedom, communities.dof + communities.order + 1.0)
    return np.asarray(communities.scale / divisor[:, None, None])


def _with_features(
    communities: Communities, layout: Layout, features: FeaturePrior
) -> tuple[Float64Array, Float64Array]:
    """Moments of rows with features; all communities have the same Σ."""
    weights, means = communities.sticks.weights, communities.mean
    covariance = expected_covariance(communities)[0]
    centre = weights @ means
    away = means - centre
    between = (weights[:, None] * away).T @ away  # of the communities' means
    own = weights @ (1.0 + 1.0 / communities.kappa) + features.leverage
    rows, columns = lower_triangle(layout.total)
    within = np.zeros((layout.total, layout.total))
    scaled = within.copy()
    within[layout.free[:, None], layout.free] = between + features.covariance
    scaled[layout.free[:, None], layout.free] = covariance
    mean = np.ones((features.shift.shape[0], layout.total))
    mean[:, layout.free] = centre + features.shift
    second = mean[:, rows] * mean[:, columns] + within[rows, columns]
    return mean, second + own[:, None] * scaled[rows, columns]


# ------------------------------------------------------------------------------------------------
# Empirical variational Bayes (eVB): hyper-parameters that raise the lower bound.
#
# In closed form where there is one; the paper's gradient steps for α and ι0 are an alternative.
# With a single community λ0, ι0 and α stay: they describe how communities differ.


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
