"""The lower bound from scratch: explicit sums over rows, communities and ratings.

It shares no formula with the library: what a row believes is kept community by community
(m_id, S_id of the plain NumPy reference) instead of as summed moments, divergences are computed
as -entropy - E ln p with SciPy's entropies, and each rating's squared error is taken apart into
its pairs of communities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.special import digamma, gammaln, multigammaln

from hemf.batch.fit import BatchState
from hemf.data.ratings import Sparse
from hemf.kernels.reference import rows as reference
from hemf.kernels.structures import OtherRows, Ratings
from hemf.model import regression as ridge
from hemf.model.communities import Communities, Prior, Sticks
from hemf.model.rows import NoiseScales, unpack
from hemf.model.side import Side
from proofs.problems import OTHER, Setting, tables

LOG_2PI = np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Information:
    """How the rows of a side with features follow V, whatever their communities."""

    leverage: np.ndarray
    """c_i, (rows,): what Vᵀx_i is uncertain by in units of Σ."""
    covariance: np.ndarray
    """S_i, (rows, order, order)."""
    moved: np.ndarray
    """What following V adds to it, (rows, order, order)."""
    share: np.ndarray
    """w_i, the information weight of each row, (rows,)."""

    @classmethod
    def of(cls, leverage: np.ndarray, P: np.ndarray, S: np.ndarray) -> Information:
        """Rows that move by S P of what Vᵀx_i is away from Mᵀx_i, which is uncertain by c P⁻¹."""
        gain, sigma, order = S @ P, np.linalg.inv(P), P.shape[0]
        back = gain.swapaxes(-1, -2)
        # What a row is then away from what features say of it, in units of Σ.
        gap = gain - np.eye(order)
        away = np.trace(P @ gap @ sigma @ gap.swapaxes(-1, -2), axis1=1, axis2=2)
        known = np.trace(P @ gain @ sigma @ back, axis1=1, axis2=2)
        share = 1.0 - np.trace(gain, axis1=1, axis2=2) / order
        np.testing.assert_allclose(away - known, order * (2.0 * share - 1.0), atol=1e-9 * order)
        return cls(leverage, S, leverage[:, None, None] * (gain @ sigma @ back), share)


@dataclass(frozen=True)
class Belief:
    """q(a_i, z_i) = q_i(d) N(a_i; m_id, S_id) of all rows of a side."""

    share: np.ndarray
    """q_i(d), (rows, D)."""
    mean: np.ndarray
    """m_id, (rows, D, order)."""
    covariance: np.ndarray
    """S_id, (rows, D, order, order); with features, given V."""
    information: Information | None = None
    """How rows follow V; None without features."""

    def ordered(self, order: np.ndarray) -> Belief:
        """The same with the communities in another order."""
        return replace(
            self,
            share=self.share[:, order],
            mean=self.mean[:, order],
            covariance=self.covariance[:, order],
        )

    def merged(self, left: int, right: int) -> Belief:
        """One Gaussian with the moments of two, in the place of the first."""
        share = self.share[:, left] + self.share[:, right]
        both = self.share[:, [left, right]]
        part = np.divide(
            both, share[:, None], out=np.full_like(both, 0.5), where=share[:, None] > 0.0
        )
        mean = np.einsum("id,idj->ij", part, self.mean[:, [left, right]])
        away = self.mean[:, [left, right]] - mean[:, None]
        covariance = np.einsum(
            "id,idjk->ijk",
            part,
            self.covariance[:, [left, right]] + away[..., :, None] * away[..., None, :],
        )
        together = replace(
            self, share=self.share.copy(), mean=self.mean.copy(), covariance=self.covariance.copy()
        )
        together.share[:, left] = share
        together.mean[:, left] = mean
        together.covariance[:, left] = covariance
        return together.ordered(np.delete(np.arange(self.share.shape[1]), right))


def belief(state: BatchState, name: str, setting: Setting, used: Communities) -> Belief:
    """What a side's rows believe after an update with the communities ``used``."""
    side, rows = state.sides[name], tables(state)[name]
    layout, count = side.layout, used.count
    share = side.membership.astype(np.float64)
    if not setting.coupled and side.regression is None:
        mean = side.factor_means
        second = unpack(side.moments.second)[:, layout.free[:, None], layout.free[None, :]]
        covariance = second - mean[:, :, None] * mean[:, None, :]
        return Belief(
            share,
            np.repeat(mean[:, None], count, axis=1),
            np.repeat(covariance[:, None], count, axis=1),
        )
    other = state.sides[OTHER[name]]
    others = OtherRows.of(other.moments.mean, other.moments.second, other.weights)
    precision = np.array([reference.triangle(P) for P in used.precision])
    means, covariances = [], []
    for i in range(side.n_rows):
        ratings = Ratings.of(rows.indptr, rows.indices, rows.values)
        G, h, _ = reference.data_part(i, ratings, others)
        G, h = reference.free_part(G, h, layout.free, layout.pinned)
        shift = np.zeros(layout.order) if side.regression is None else side.regression.shift[i]
        h = h - G @ shift
        noise = state.noise / side.weights[i]
        m, S = reference.posteriors(G, h, noise, precision, used.natural_mean)
        means.append(m + shift)
        covariances.append(S)
    found = Belief(share, np.array(means), np.array(covariances))
    if side.regression is None:
        return found
    if not setting.coupled:  # one mean for all communities, of one Σ
        found = replace(found, mean=np.repeat(side.factor_means[:, None], count, axis=1))
    information = Information.of(
        side.regression.leverage, used.precision[0], found.covariance[:, 0]
    )
    return replace(found, information=information)


def terms(
    state: BatchState, beliefs: dict[str, Belief], among: dict[str, np.ndarray] | None = None
) -> dict[str, float]:
    """The lower bound by term, under the names of `BatchState.bound_terms`.

    ``among`` holds the C of sides with features. -½ tr(P MᵀΛM) goes with the factors.
    """
    result = {"ratings": ratings(state, beliefs)}
    for name, side in state.sides.items():
        for term, value in side_terms(beliefs[name], side.communities, side.prior).items():
            result[f"{name} {term}"] = value
        if side.noise_scales is not None:
            result[f"{name} noise"] = scales(side.noise_scales, tables(state)[name])
        if side.regression is not None:
            assert among is not None
            rows = without_features(beliefs[name], side)
            cost = coefficients_divergence(side, among[name])
            fixed = coefficients_divergence(side, among[name], at_zero=True)
            uncertain, known = uncertain_shifts(side, among[name], rows)
            result[f"{name} factors"] = factors(rows, side.communities) - (cost - fixed) + uncertain
            result[f"{name} features"] = known - fixed
    return result


def total(
    state: BatchState, beliefs: dict[str, Belief], among: dict[str, np.ndarray] | None = None
) -> float:
    """The lower bound."""
    return sum(terms(state, beliefs, among).values())


def covariance_among(side: Side) -> np.ndarray:
    """C under the present λ_b, for the information weights of the rows."""
    assert side.regression is not None
    design = side.regression.design
    X = design.matrix.toarray()
    precision = X.T @ (side.regression.information[:, None] * X)
    if ridge.DIRECT == 0:
        precision = np.diag(np.diag(precision))
    return np.linalg.inv(precision + np.diag(design.by_column(side.regression.precision)))


def without_features(rows: Belief, side: Side) -> Belief:
    """What rows believe of a_i - Mᵀx_i."""
    assert side.regression is not None
    shift = side.regression.design.matrix.toarray() @ side.regression.coefficients
    return replace(rows, mean=rows.mean - shift[:, None])


def uncertain_shifts(side: Side, among: np.ndarray, rows: Belief) -> tuple[float, float]:
    """What -½ E (a - Vᵀx)ᵀΣ⁻¹(a - Vᵀx) has of V's uncertainty: what moves with Σ, and the rest.

    a - Vᵀx moves by (S P - I)(V - M)ᵀx, whose covariance is (S P - I) c Σ (P S - I). With P as it
    was then, Σ = P⁻¹ and Q today's, it is linear in Q as far as both roots of Σ⁻¹ go along:
    c tr(Q S P S) - c tr(Q S) - c tr(P S) + c L, which for Q = P is just that.
    """
    information, Q, order = rows.information, side.communities.precision[0], side.layout.order
    assert information is not None
    assert side.regression is not None
    X = side.regression.design.matrix.toarray()
    np.testing.assert_allclose(information.leverage, np.diag(X @ among @ X.T), rtol=1e-6, atol=1e-9)
    moving = np.sum(
        Q * (information.moved - information.leverage[:, None, None] * information.covariance)
    )
    return -0.5 * float(moving), -0.5 * order * float(information.leverage @ information.share)


def coefficients_divergence(side: Side, among: np.ndarray, *, at_zero: bool = False) -> float:
    """KL(N(vec M, C ⊗ Σ) ‖ N(0, Λ⁻¹ ⊗ Σ)) under Σ = P⁻¹; E over Σ needs no more than P."""
    assert side.regression is not None
    P, design = side.communities.precision[0], side.regression.design
    Sigma, mean = np.linalg.inv(P), side.regression.coefficients.ravel()
    prior = np.kron(np.diag(design.by_column(side.regression.precision)), P)
    posterior = np.kron(among, Sigma)
    square = 0.0 if at_zero else float(mean @ prior @ mean)
    log_det = np.linalg.slogdet(prior @ posterior)[1]
    return float(0.5 * (square + np.trace(prior @ posterior) - mean.size - log_det))


def side_terms(rows: Belief, communities: Communities, prior: Prior) -> dict[str, float]:
    """The terms of one side."""
    return {
        "factors": factors(rows, communities),
        "memberships": memberships(rows, communities.sticks),
        "sticks": -stick_divergence(communities.sticks, prior.concentration),
        "communities": -community_divergence(communities, prior),
        "entropy": entropy(rows),
    }


def with_pinned(side: Side, rows: Belief) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances with the coordinate that is held at 1, whose variance is none."""
    free, total = side.layout.free, side.layout.total
    mean = np.ones((*rows.share.shape, total))
    mean[..., free] = rows.mean
    covariance = np.zeros((*rows.share.shape, total, total))
    covariance[..., free[:, None], free[None, :]] = rows.covariance
    return mean, covariance


def ratings(state: BatchState, beliefs: dict[str, Belief]) -> float:
    """E ln p(R|A,B), rating by rating, in the rating's own scale, but for E ln of the scales."""
    users, items, rows = state.sides["user"], state.sides["item"], tables(state)["user"]
    m, S = with_pinned(users, with_moved(beliefs["user"]))
    n, T = with_pinned(items, with_moved(beliefs["item"]))
    user_weights, item_weights, value = users.weights, items.weights, 0.0
    # Of matrices laid out in a row, the trace of a product of two is a dot product.
    S, T = (each.reshape(*each.shape[:2], -1) for each in (S, T))
    mm, nn = (
        (each[..., :, None] * each[..., None, :]).reshape(*each.shape[:2], -1) for each in (m, n)
    )
    for i in range(users.n_rows):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            j = rows.indices[k]
            error = (rows.values[k] - m[i] @ n[j].T) ** 2  # for each pair of communities
            error += S[i] @ nn[j].T + mm[i] @ T[j].T + S[i] @ T[j].T
            expected = beliefs["user"].share[i] @ error @ beliefs["item"].share[j]
            value -= 0.5 * (LOG_2PI + np.log(state.noise * state.unit**2))
            value -= 0.5 * expected * user_weights[i] * item_weights[j] / state.noise
    return float(value)


def with_moved(rows: Belief) -> Belief:
    """What rows believe of a_i whatever V is."""
    if rows.information is None:
        return rows
    return replace(rows, covariance=rows.covariance + rows.information.moved[:, None])


def scales(noise: NoiseScales, rows: Sparse) -> float:
    """½ E ln τ_i for each rating, less KL(q(τ_i) ‖ Gamma(a0, a0)) for each row."""
    value = float(np.sum(stats.gamma.entropy(noise.shape, scale=1.0 / noise.rate)))
    a0 = noise.prior_shape
    for i, (a, b) in enumerate(zip(noise.shape, noise.rate, strict=True)):
        log_tau = float(digamma(a) - np.log(b))
        log_prior = a0 * np.log(a0) - gammaln(a0) + (a0 - 1.0) * log_tau - a0 * a / b
        value += 0.5 * (rows.indptr[i + 1] - rows.indptr[i]) * log_tau
        value += log_prior
    return float(value)


def factors(rows: Belief, communities: Communities) -> float:
    """E ln p(A|Z,φ), row by row and community by community."""
    value, order = 0.0, communities.order
    for d in range(communities.count):
        c = 0 if communities.scale.shape[0] == 1 else d
        W, dof, kappa = communities.scale[c], communities.dof[c], communities.kappa[d]
        expected_log_det = np.linalg.slogdet(W)[1] - order * np.log(2.0)
        expected_log_det -= sum(digamma((dof + 1 - step) / 2) for step in range(1, order + 1))
        P = dof * np.linalg.inv(W)
        away = rows.mean[:, d] - communities.mean[d]
        quadratic = np.sum(P * rows.covariance[:, d], axis=(1, 2)) + np.sum(away @ P * away, axis=1)
        each = order * LOG_2PI + expected_log_det + quadratic + order / kappa
        value -= 0.5 * float(rows.share[:, d] @ each)
    return float(value)


def memberships(rows: Belief, sticks: Sticks) -> float:
    """E ln p(Z|π): the row takes stick d and has passed those before; the last is not passed."""
    value, last = 0.0, rows.share.shape[1] - 1
    for d in range(last + 1):
        taken = 0.0 if d == last else log_beta_mean(sticks.taken[d], sticks.left[d])
        passed = sum(log_beta_mean(sticks.left[t], sticks.taken[t]) for t in range(d))
        value += rows.share[:, d].sum() * (taken + passed)
    return float(value)


def log_beta_mean(a: float, b: float) -> float:
    """E ln x under Beta(a, b)."""
    return float(digamma(a) - digamma(a + b))


def stick_divergence(sticks: Sticks, concentration: float) -> float:
    """KL(q(π) ‖ Beta(1, α)) over all sticks but the last, which is 1."""
    value = 0.0
    for a, b in zip(sticks.taken[:-1], sticks.left[:-1], strict=True):
        prior = np.log(concentration) + (concentration - 1.0) * log_beta_mean(b, a)
        value += -stats.beta.entropy(a, b) - prior
    return float(value)


def community_divergence(communities: Communities, prior: Prior) -> float:
    """KL of means given covariances, plus KL of covariances; a tied covariance comes once."""
    order, value = communities.order, 0.0
    for d in range(communities.count):
        c = 0 if communities.scale.shape[0] == 1 else d
        P = communities.dof[c] * np.linalg.inv(communities.scale[c])
        ratio = prior.kappa / communities.kappa[d]
        away = communities.mean[d] - prior.centre
        value += 0.5 * (order * (ratio - 1.0 - np.log(ratio)) + prior.kappa * away @ P @ away)
    for W, dof in zip(communities.scale, communities.dof, strict=True):
        # Of Σ⁻¹ rather than Σ, a Wishart matrix: the divergence is the same.
        V = np.linalg.inv(W)
        log_det = order * np.log(2.0) + np.linalg.slogdet(V)[1]
        log_det += sum(digamma((dof + 1 - step) / 2) for step in range(1, order + 1))
        log_prior = 0.5 * (prior.dof - order - 1.0) * log_det
        log_prior -= 0.5 * dof * np.trace(prior.scale @ V)
        log_prior += 0.5 * prior.dof * (np.linalg.slogdet(prior.scale)[1] - order * np.log(2.0))
        log_prior -= multigammaln(prior.dof / 2, order)
        value += -float(stats.wishart.entropy(dof, V)) - log_prior
    return float(value)


def entropy(rows: Belief) -> float:
    """Σ_i Σ_d q_i(d)(H[N(m_id, S_id)] - ln q_i(d))."""
    taken = rows.share > 0.0
    share, log_dets = rows.share[taken], np.linalg.slogdet(rows.covariance[taken])[1]
    each = 0.5 * (rows.mean.shape[-1] * (LOG_2PI + 1.0) + log_dets) - np.log(share)
    return float(share @ each)


def with_communities(state: BatchState, name: str, **changes: object) -> BatchState:
    """The state with parts of one side's q(φ), q(π) exchanged."""
    side = state.sides[name]
    communities = replace(side.communities, **changes)  # type: ignore[arg-type]
    return with_side(state, name, communities=communities)


def with_prior(state: BatchState, name: str, **changes: object) -> BatchState:
    """The state with some of one side's hyper-parameters exchanged."""
    prior = replace(state.sides[name].prior, **changes)  # type: ignore[arg-type]
    return with_side(state, name, prior=prior)


def with_side(state: BatchState, name: str, **changes: object) -> BatchState:
    """The state with parts of one side exchanged."""
    side = replace(state.sides[name], **changes)  # type: ignore[arg-type]
    return replace(state, sides={**state.sides, name: side})
