"""The Dirichlet-process mixture of NIW communities of one side.

See docs/model.md#sticks and docs/model.md#communities. With tied covariances the communities of a
side share one Σ and differ in their means; arrays of covariances then have one entry instead of D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import betaln, digamma, gammaln, zeta

from hemf._typing import Float64Array

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
    own = expected_log_det(scale, np.asarray(dof))
    slope = 0.5 * (communities.dof.size * own - communities.log_det.sum())
    return float(max(dof + GRADIENT_STEP * slope, communities.order - 1.0 + 1e-3))


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


# ------------------------------------------------------------------------------------------------
# The lower bound (ELBO), one function per term, every constant kept.


LOG_2PI = float(np.log(2.0 * np.pi))


# docs/model.md#bound
def ratings_term(squared_error: float, noise: float, n_ratings: float, unit: float = 1.0) -> float:
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
