"""One side of the table: posterior of its rows and of its communities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array

from hemf._typing import Array, Float64Array, Int64Array
from hemf.model.communities import (
    Communities,
    Prior,
    Statistics,
    community_posterior,
    factors_term,
    own_evidence,
    scale_matrices,
    side_terms,
    stick_evidence,
    tied_evidence,
    with_floor,
)
from hemf.model.regression import FeaturePrior, Regression, Solver, UnknownFeatures, regression_term
from hemf.model.rows import Layout, Moments, NoiseScales, lower_triangle, noise_term, pack


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
    # Derived from the communities as they are: no part of the posterior.
    online_shift: OnlineShift | None = field(default=None, init=False, repr=False, compare=False)
    """Shift of rows while learning online."""
    folding: object = field(default=None, init=False, repr=False, compare=False)
    _stranger: tuple[Communities, tuple[Float64Array, Float64Array]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

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


# ------------------------------------------------------------------------------------------------
# Rows without ratings.


def expected_row(communities: Communities, layout: Layout) -> Float64Array:
    """Mean of a row without ratings, pinned coordinate included."""
    mean = np.ones(layout.total)
    mean[layout.free] = communities.sticks.weights @ communities.mean
    return mean


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
    return full_mean, pack(full)


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


def with_stranger(
    side: Side, newcomers: csr_array | None = None, counts: Int64Array | None = None
) -> Moments:
    """Moments of a side's rows, then of newcomers with these features, and last of a stranger.

    With ``counts``, the number of ratings of each row, newcomers have the mean of `typical`.
    """
    mean, second = side.stranger
    dtype = side.moments.mean.dtype
    means, seconds = [side.moments.mean], [side.moments.second]
    if newcomers is not None:
        new = newcomer_moments(side, newcomers, counts)
        means.append(new.mean)
        seconds.append(new.second)
    return Moments(
        np.vstack([*means, mean.astype(dtype)]),
        np.vstack([*seconds, second.astype(dtype)]),
    )


def newcomer_moments(side: Side, features: csr_array, counts: Int64Array | None = None) -> Moments:
    """Moments of rows with features and no ratings; see `with_stranger`."""
    moments = side.newcomers(features)
    return moments if counts is None else _with_mean(moments, typical(side, features, counts))


# docs/model.md#newcomers
def typical(side: Side, newcomers: csr_array, counts: Int64Array) -> Float64Array:
    """Mean of newcomers with these features, residuals of rows weighted by their ratings.

        E[a | x] = Mᵀx + Σ_i n_i (m_i - Mᵀx_i) / Σ_i n_i,  x and x_i the features given

    Rows with many ratings differ from the rest: on MovieLens 1M the mean of all ratings is 0.3
    above that of the films' means. A rating to be predicted is drawn from ratings, not from rows.
    """
    assert side.regression is not None
    design, layout, known = side.regression.design, side.layout, newcomers.shape[1]
    coefficients = side.regression.coefficients[:known]
    left = side.factor_means[: design.n_rows] - design.matrix[:, :known] @ coefficients
    share = counts[: design.n_rows] / max(1, counts[: design.n_rows].sum())
    mean = np.ones((newcomers.shape[0], layout.total))
    mean[:, layout.free] = newcomers @ coefficients + share @ left
    return mean


def _with_mean(moments: Moments, mean: Float64Array) -> Moments:
    """Return rows with another mean and the same covariance."""
    before, dtype = moments.mean.astype(np.float64), moments.mean.dtype
    rows, columns = lower_triangle(mean.shape[1])
    change = mean[:, rows] * mean[:, columns] - before[:, rows] * before[:, columns]
    return Moments(mean.astype(dtype), (moments.second + change).astype(dtype))


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Add MᵀΛM to the scatter of the rows' residuals a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Update M and the statistics of the residuals."""
    if side.regression is not None:
        side.regression, side.statistics = _changed(side, side.regression.fitted(_targets(side)))


def learn_features(side: Side, information: Float64Array, *, move: bool) -> bool:
    """Update C given the rows' information weights and, with ``move``, the λ_b.

    New λ_b are tried with their q(V), and kept if the bound is higher. Return whether C changed, so
    that rows have to be updated.
    """
    before = side.regression
    if before is None:
        return False
    proposed = (
        before.proposed_precision(side.communities.precision[0]) if move else before.precision
    )
    if not before.is_stale(proposed, information):
        return False
    known, statistics = before.known(information), side.statistics
    if move:
        now = before.with_leverage(float(information @ before.leverage))
        trial = before.with_precision(proposed, information, known).fitted(_targets(side))
        side.regression, side.statistics = _changed(side, trial)
        if _evidence(side, trial, side.statistics) >= _evidence(side, now, statistics):
            return True
    side.regression = before.with_precision(before.precision, information, known)
    side.statistics = statistics
    return True


def _targets(side: Side) -> Float64Array:
    """E[a_i] - Σ_d q_i(d) m_d of each row."""
    return np.asarray(side.factor_means - side.membership.astype(float) @ side.communities.mean)


def _changed(side: Side, after: Regression) -> tuple[Regression, Statistics]:
    """Return another regression of a side with the statistics of its residuals."""
    before, statistics = side.regression, side.statistics
    assert before is not None
    left, change = side.factor_means - before.shift, after.shift - before.shift
    cross = left.T @ change
    moved = change.T @ change - cross - cross.T + (after.penalty - before.penalty)
    return after, replace(
        statistics,
        first=statistics.first - side.membership.astype(float).T @ change,
        scatter=statistics.scatter + moved,
    )


def _evidence(side: Side, regression: Regression, statistics: Statistics) -> float:
    """Terms of the bound that depend on V."""
    return factors_term(statistics, side.communities) + regression_term(regression)


def bound_terms(
    sides: dict[str, Side],
    counts: dict[str, Int64Array],
    data_term: float,
) -> dict[str, float]:
    """Return the lower bound by term, given that of the ratings and each row's number of them."""
    terms = {"ratings": data_term}
    for name, side in sides.items():
        for term, value in side_terms(side.statistics, side.communities, side.prior).items():
            terms[f"{name} {term}"] = value
        if side.noise_scales is not None:
            terms[f"{name} noise"] = noise_term(side.noise_scales, counts[name])
        if side.regression is not None:
            terms[f"{name} features"] = regression_term(side.regression)
    return terms


# ------------------------------------------------------------------------------------------------
# Merges and reorderings of communities, judged by the lower bound on statistics alone.
#
# Coordinate ascent does not rejoin the fragments of a community. A move is kept if the bound is
# higher.


EMPTY = 1e-3  # rows; a community with less is dropped


def order_by_size(side: Side) -> None:
    """Sort communities by size, largest first, where that raises the bound.

    It does for α ≤ 1. For larger α a large community at the end is better, as the last stick has
    length 1.
    """
    order = np.argsort(-side.statistics.size, kind="stable")
    now = stick_evidence(side.statistics.size, side.prior.concentration)
    if stick_evidence(side.statistics.size[order], side.prior.concentration) > now:
        side.select(order)


def drop_empty(side: Side) -> None:
    """Drop communities without rows."""
    alive = np.flatnonzero(side.statistics.size >= EMPTY)
    if 0 < alive.size < side.n_communities:
        side.select(alive)


def merge_alike(side: Side) -> int:
    """Merge the best pair as long as that raises the bound; return the number of merges.

    The merged posterior of a row has the moments of both parts, so the ratings term stays. Its
    entropy is at least that of the parts, and is counted as that.
    """
    merged = 0
    while side.n_communities > 1:
        first, second, gain = best_merge(side)
        if gain <= 0.0:
            break
        merge(side, first, second)
        merged += 1
    return merged


def best_merge(side: Side) -> tuple[int, int, float]:
    """Return the pair whose merge raises the bound most, and by how much.

    Memberships lose entropy in every merge. Computing that takes a pass over all rows, so it is
    done only for pairs that can still be the best.
    """
    left, right = np.triu_indices(side.n_communities, k=1)
    at_most = _posterior_gains(side, left, right) + _stick_gains(side, left, right)
    best, gain = 0, -np.inf
    for pair in np.argsort(-at_most, kind="stable"):
        if at_most[pair] <= gain:
            break
        exact = at_most[pair] + _membership_gains(side, left[[pair]], right[[pair]])[0]
        if exact > gain:
            best, gain = pair, exact
    return int(left[best]), int(right[best]), float(gain)


# docs/model.md#merge
def merge_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Lower bound of the gain of merging each pair."""
    return (
        _posterior_gains(side, left, right)
        + _stick_gains(side, left, right)
        + _membership_gains(side, left, right)
    )


def merge(side: Side, left: int, right: int) -> None:
    """Merge community ``right`` into ``left``."""
    entropy = _membership_gains(side, np.array([left]), np.array([right]))[0]
    kept = np.delete(np.arange(side.n_communities), right)
    membership = side.membership.copy()
    membership[:, left] += membership[:, right]
    side.membership = np.ascontiguousarray(membership[:, kept])
    old = side.statistics
    size, moment, scatter = old.size.copy(), old.first.copy(), old.scatter.copy()
    size[left] += size[right]
    moment[left] += moment[right]
    if not old.tied:
        scatter[left] += scatter[right]
        scatter = scatter[kept]
    together = replace(old, size=size[kept], first=moment[kept], scatter=scatter)
    side.refresh(replace(together, entropy=old.entropy + float(entropy)))
    order_by_size(side)


def _posterior_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of factor and NIW terms for each pair."""
    old, prior = side.statistics, side.prior
    size = old.size[left] + old.size[right]
    moment = old.first[left] + old.first[right]
    if not old.tied:
        scatter = old.firm
        apart = own_evidence(old.size, old.first, scatter, prior)
        together = own_evidence(size, moment, scatter[left] + scatter[right], prior)
        return np.asarray(together - apart[left] - apart[right])
    nothing = np.zeros((1, 1))
    kappa, part = scale_matrices(old.size, old.first, nothing, prior)
    merged_kappa, merged_part = scale_matrices(size, moment, nothing, prior)
    scale = prior.scale + old.firm[0] + part.sum(axis=0)  # W under the present prior
    total = float(old.size.sum())
    change = merged_part - part[left] - part[right]
    kappas = np.tile(kappa, (left.size, 1))
    pairs = np.arange(left.size)
    kappas[pairs, left] = merged_kappa
    kappas[pairs, right] = prior.kappa  # contributes ln 1
    log_det = np.linalg.slogdet(scale + change)[1]
    now = tied_evidence(total, kappa, np.linalg.slogdet(scale)[1], prior)
    return tied_evidence(total, kappas, log_det, prior) - now


def _stick_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of membership and stick terms for each pair, the merged sizes in order."""
    size, concentration = side.statistics.size, side.prior.concentration
    pairs = np.arange(left.size)
    merged = np.tile(size, (left.size, 1))
    merged[pairs, left] += size[right]
    merged[pairs, right] = -1.0  # sorted last, and cut off
    merged = -np.sort(-merged, axis=1)[:, :-1]
    return stick_evidence(merged, concentration) - stick_evidence(size, concentration)


def _membership_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of the entropy of the memberships for each pair."""
    gains = np.empty(left.size)
    for pair, (d, e) in enumerate(zip(left, right, strict=True)):
        one, other = side.membership[:, [d, e]].astype(np.float64).T
        shared = (one > 0.0) & (other > 0.0)  # elsewhere nothing changes
        one, other = one[shared], other[shared]
        together = one + other
        gains[pair] = np.sum(
            one * np.log(one) + other * np.log(other) - together * np.log(together)
        )
    return gains
