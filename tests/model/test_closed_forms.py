"""Each closed form is the best there is: nothing near it is better, and a search ends there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import minimize

from hemf.batch.fit import BatchState, learn_noise
from hemf.data.ratings import Sparse
from hemf.model.communities import (
    Communities,
    Sticks,
    best_centre,
    best_concentration,
    best_dof,
    best_scale,
    best_spread,
)
from hemf.model.rows import SHAPE_RANGE, NoiseScales, best_shape, learn_scales, scale_posterior
from proofs import slow_bound
from proofs.problems import Setting, problem, tables
from proofs.slow_bound import Belief, with_communities, with_prior, with_side
from proofs.watch import Watched

TINY = [
    Setting(tied_users=True),
    Setting(tied_users=False, noise_scales=True),
    Setting(tied_users=False, offsets=True),
]

Vector = np.ndarray


@dataclass
class Tiny:
    """A tiny problem whose user side is looked at."""

    state: BatchState
    beliefs: dict[str, Belief]
    watched: Watched

    def bound(self, state: BatchState, users: Belief | None = None) -> float:
        beliefs = self.beliefs if users is None else {**self.beliefs, "user": users}
        return slow_bound.total(state, beliefs)

    def side_bound(self, state: BatchState) -> float:
        """The terms of the user side: all that its communities and its prior are in."""
        side = state.sides["user"]
        terms = slow_bound.side_terms(self.beliefs["user"], side.communities, side.prior)
        return sum(terms.values())


@pytest.fixture(params=TINY, ids=str)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    setting = request.param
    factors = 1 if setting.offsets else 2
    state = problem(
        np.random.default_rng(11),
        setting,
        users=6,
        items=4,
        factors=factors,
        communities=(2, 2),
        density=0.8,
    )
    watched = Watched(state, setting)
    watched.update_rows("item")
    watched.update_rows("user")
    state.sides["user"].refresh()
    return Tiny(state, watched.beliefs, watched)


def assert_best(
    bound: Callable[[Vector], float],
    best: Vector,
    rng: np.random.Generator,
    *,
    close: float = 2e-3,
) -> None:
    """``bound`` is largest at ``best``, an unconstrained vector, and a search ends there."""
    top = bound(best)
    tolerance = 1e-9 * abs(top)
    for scale in (1e-4, 1e-2, 0.3, 1.5):
        for _ in range(8):
            assert bound(best + scale * rng.normal(size=best.size)) <= top + tolerance
    found = minimize(
        lambda theta: -bound(theta), best + 0.3 * rng.normal(size=best.size), method="BFGS"
    )
    assert -found.fun <= top + tolerance
    assert -found.fun >= top - 1e-5
    np.testing.assert_allclose(found.x, best, rtol=close, atol=close)


# -- unconstrained forms of what has constraints ------------------------------------------------


def matrix_to_vector(matrices: Vector) -> Vector:
    """Cholesky factors with the logarithm of their diagonal."""
    factors = np.linalg.cholesky(matrices)
    order = matrices.shape[-1]
    diagonal = np.arange(order)
    factors[..., diagonal, diagonal] = np.log(factors[..., diagonal, diagonal])
    rows, columns = np.tril_indices(order)
    return factors[..., rows, columns].ravel()


def vector_to_matrix(vector: Vector, shape: tuple[int, ...]) -> Vector:
    order = shape[-1]
    rows, columns = np.tril_indices(order)
    factors = np.zeros(shape)
    factors[..., rows, columns] = vector.reshape(*shape[:-2], rows.size)
    diagonal = np.arange(order)
    factors[..., diagonal, diagonal] = np.exp(factors[..., diagonal, diagonal])
    return factors @ np.swapaxes(factors, -1, -2)


def split(vector: Vector, *sizes: int) -> list[Vector]:
    assert sum(sizes) == vector.size
    return np.split(vector, np.cumsum(sizes)[:-1])


# -- communities --------------------------------------------------------------------------------


# docs/model.md#sticks
def test_sticks(tiny: Tiny, rng: np.random.Generator) -> None:
    sticks = tiny.state.sides["user"].communities.sticks
    count = sticks.taken.size - 1  # the last stick is not free

    def bound(theta: Vector) -> float:
        taken, left = (np.append(np.exp(part), 1.0) for part in split(theta, count, count))
        return tiny.side_bound(with_communities(tiny.state, "user", sticks=Sticks(taken, left)))

    assert_best(bound, np.log(np.concatenate([sticks.taken[:-1], sticks.left[:-1]])), rng)


def community_vector(communities: Communities) -> Vector:
    free = communities.dof - (communities.order - 1.0)
    parts = [
        communities.mean.ravel(),
        np.log(communities.kappa),
        matrix_to_vector(communities.scale),
        np.log(free),
    ]
    return np.concatenate(parts)


# docs/model.md#communities
def test_community_means_strengths_scales_and_freedoms(
    tiny: Tiny, rng: np.random.Generator
) -> None:
    best = tiny.state.sides["user"].communities

    def bound(theta: Vector) -> float:
        triangle = best.order * (best.order + 1) // 2
        mean, kappa, scale, free = split(
            theta, best.mean.size, best.count, best.dof.size * triangle, best.dof.size
        )
        changed = with_communities(
            tiny.state,
            "user",
            mean=mean.reshape(best.mean.shape),
            kappa=np.exp(kappa),
            scale=vector_to_matrix(scale, best.scale.shape),
            dof=np.exp(free) + best.order - 1.0,
        )
        return tiny.side_bound(changed)

    assert_best(bound, community_vector(best), rng)


# -- rows ---------------------------------------------------------------------------------------


# docs/model.md#memberships
def test_row_posterior_and_memberships_together(tiny: Tiny, rng: np.random.Generator) -> None:
    """Coupled: q_i(d), m_id and S_id of a row are the best, all at once."""
    state, users = tiny.state, tiny.watched
    users.update_rows("user")  # with the communities as they are now
    belief = users.beliefs["user"]
    side = state.sides["user"]
    i = int(np.argmax(belief.share.min(axis=1)))  # a row that is torn between all communities
    assert belief.share[i].min() > 1e-4
    count, order = belief.mean.shape[1:]

    def changed(theta: Vector) -> Belief:
        logits, mean, covariance = split(
            theta, count - 1, count * order, count * order * (order + 1) // 2
        )
        weights = np.exp(np.append(logits, 0.0))
        other = Belief(belief.share.copy(), belief.mean.copy(), belief.covariance.copy())
        other.share[i] = weights / weights.sum()
        other.mean[i] = mean.reshape(count, order)
        other.covariance[i] = vector_to_matrix(covariance, (count, order, order))
        return other

    def bound(theta: Vector) -> float:
        other = changed(theta)
        beliefs = {**tiny.beliefs, "user": other}
        terms = slow_bound.side_terms(other, side.communities, side.prior)
        return slow_bound.ratings(state, beliefs) + sum(terms.values())

    logits = np.log(belief.share[i, :-1] / belief.share[i, -1])
    parts = [logits, belief.mean[i].ravel(), matrix_to_vector(belief.covariance[i])]
    assert_best(bound, np.concatenate(parts), rng, close=1e-2)


@pytest.fixture(params=[True, False], ids=["tied", "own"])
def mean_field(request: pytest.FixtureRequest) -> Tiny:
    setting = Setting(coupled=False, tied_users=request.param)
    rng = np.random.default_rng(3)
    state = problem(rng, setting, users=7, items=5, communities=(3, 2), density=0.7)
    watched = Watched(state, setting)
    watched.update_rows("user")
    return Tiny(state, watched.beliefs, watched)


# docs/model.md#mean-field
def test_mean_field_row_posterior_given_memberships(
    mean_field: Tiny, rng: np.random.Generator
) -> None:
    state = mean_field.state
    mean_field.watched.update_rows("user", hold=True)
    belief = mean_field.beliefs["user"]
    i = int(np.argmax(belief.share.min(axis=1)))
    order = belief.mean.shape[2]

    def bound(theta: Vector) -> float:
        mean, covariance = split(theta, order, order * (order + 1) // 2)
        other = Belief(belief.share, belief.mean.copy(), belief.covariance.copy())
        other.mean[i] = mean
        other.covariance[i] = vector_to_matrix(covariance, (order, order))
        return mean_field.bound(state, other)

    best = np.concatenate([belief.mean[i, 0], matrix_to_vector(belief.covariance[i, 0])])
    assert_best(bound, best, rng)


def test_mean_field_memberships_given_the_row_posterior(
    mean_field: Tiny, rng: np.random.Generator
) -> None:
    belief = mean_field.beliefs["user"]
    i = int(np.argmax(belief.share.min(axis=1)))
    assert belief.share[i].min() > 1e-4

    def bound(theta: Vector) -> float:
        weights = np.exp(np.append(theta, 0.0))
        other = replace(belief, share=belief.share.copy())
        other.share[i] = weights / weights.sum()
        return mean_field.bound(mean_field.state, other)

    assert_best(bound, np.log(belief.share[i, :-1] / belief.share[i, -1]), rng)


# -- noise --------------------------------------------------------------------------------------


# docs/model.md#noise-variance
def test_noise_variance(tiny: Tiny, rng: np.random.Generator) -> None:
    learn_noise(tiny.state)

    def bound(theta: Vector) -> float:
        return tiny.bound(replace(tiny.state, noise=float(np.exp(theta[0]))))

    assert_best(bound, np.log([tiny.state.noise]), rng)


# docs/model.md#noise-scales
def test_noise_scales_of_rows(rng: np.random.Generator) -> None:
    setting = Setting(noise_scales=True)
    state = problem(
        np.random.default_rng(8), setting, users=3, items=5, communities=(2, 2), density=0.8
    )
    watched = Watched(state, setting)
    watched.update_rows("user")
    scales = state.sides["user"].noise_scales
    assert scales is not None
    counts = np.diff(tables(state)["user"].indptr)
    best = scale_posterior(watched.errors["user"] / state.noise, counts, scales.prior_shape)

    def bound(theta: Vector) -> float:
        shape, rate = np.exp(theta).reshape(2, -1)
        other = NoiseScales(scales.prior_shape, shape, rate)
        changed = with_side(state, "user", noise_scales=other)
        return slow_bound.total(changed, watched.beliefs)

    assert_best(bound, np.log(np.concatenate([best.shape, best.rate])), rng)


def test_noise_scales_their_prior_and_noise_variance_together(rng: np.random.Generator) -> None:
    """Scales, a0 and σ² end where they are the best together, not only one after the other."""
    counts, errors = np.array([400, 300, 500, 200]), np.array([300.0, 390.0, 475.0, 250.0])
    rows = Sparse(np.concatenate([[0], np.cumsum(counts)]), np.empty(0), np.empty(0))
    best, noise = NoiseScales.start(4), 2.0
    for _ in range(100):
        best, factor = learn_scales(best, errors / noise, counts)
        noise /= factor

    def bound(theta: Vector) -> float:
        a0, variance = np.exp(theta[:2])
        shape, rate = np.exp(theta[2:]).reshape(2, -1)
        density = -0.5 * counts.sum() * np.log(variance) - 0.5 * errors @ (shape / rate) / variance
        return float(density + slow_bound.scales(NoiseScales(a0, shape, rate), rows))

    assert 10.0 < best.prior_shape < 100.0
    parts = [[best.prior_shape, noise], best.shape, best.rate]
    assert_best(bound, np.log(np.concatenate(parts)), rng, close=1e-2)


@pytest.mark.parametrize(("differ", "end"), [(9.0, 0), (0.0, 1)])
def test_the_prior_of_noise_scales_keeps_to_its_range(differ: float, end: int) -> None:
    sure = np.full(6, 1e9)
    scales = NoiseScales(20.0, sure, sure * np.exp(differ * np.linspace(-0.5, 0.5, 6)))
    mean, mean_log = float(scales.mean.mean()), float(scales.log.mean())
    assert best_shape(mean, mean_log) == SHAPE_RANGE[end]


# -- hyper-parameters ---------------------------------------------------------------------------


# docs/model.md#alpha
def test_concentration(tiny: Tiny, rng: np.random.Generator) -> None:
    best = best_concentration(tiny.state.sides["user"].communities.sticks)

    def bound(theta: Vector) -> float:
        return tiny.side_bound(
            with_prior(tiny.state, "user", concentration=float(np.exp(theta[0])))
        )

    assert_best(bound, np.log([best]), rng)


# docs/model.md#mu0
def test_centre(tiny: Tiny, rng: np.random.Generator) -> None:
    best = best_centre(tiny.state.sides["user"].communities)
    assert_best(
        lambda theta: tiny.side_bound(with_prior(tiny.state, "user", centre=theta)), best, rng
    )


# docs/model.md#lambda0
def test_spread(tiny: Tiny, rng: np.random.Generator) -> None:
    side = tiny.state.sides["user"]
    best = best_spread(side.communities, side.prior.centre)

    def bound(theta: Vector) -> float:
        return tiny.side_bound(with_prior(tiny.state, "user", mean_scale=float(np.exp(theta[0]))))

    assert_best(bound, np.log([best]), rng)


# docs/model.md#w0
def test_scale(tiny: Tiny, rng: np.random.Generator) -> None:
    side = tiny.state.sides["user"]
    best = best_scale(side.communities, side.prior.dof)

    def bound(theta: Vector) -> float:
        return tiny.side_bound(
            with_prior(tiny.state, "user", scale=vector_to_matrix(theta, best.shape))
        )

    assert_best(bound, matrix_to_vector(best), rng)


# docs/model.md#iota0
def test_degrees_of_freedom(tiny: Tiny, rng: np.random.Generator) -> None:
    side = tiny.state.sides["user"]
    least = side.communities.order - 1.0
    best = best_dof(side.communities, side.prior.scale, side.prior.dof)

    def bound(theta: Vector) -> float:
        dof = float(np.exp(theta[0])) + least
        return tiny.side_bound(with_prior(tiny.state, "user", dof=dof))

    assert_best(bound, np.log([best - least]), rng)
