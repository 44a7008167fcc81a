"""Expectations and divergences are what simulation finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma

from hemf.model import communities as bound
from hemf.model.communities import Communities, Prior, Sticks, expected_log_det, stick_posterior
from hemf.model.rows import NoiseScales, gamma_divergence
from proofs.problems import any_communities, any_prior, spd

DRAWS = 40_000
FEWER = 6_000  # where SciPy takes its time


def assert_mean(draws: np.ndarray, exact: float, *, precision: float) -> None:
    """The draws' mean is ``exact`` within its standard error, which is small enough to tell."""
    error = draws.std() / np.sqrt(draws.size)
    assert error < precision, "too few draws to say anything"
    assert abs(draws.mean() - exact) < 4.0 * error


def covariances(
    scale: np.ndarray, dof: float, rng: np.random.Generator, draws: int = DRAWS
) -> np.ndarray:
    return stats.invwishart(dof, scale).rvs(draws, random_state=rng).reshape(draws, *scale.shape)


# docs/model.md#expected-log-det
@pytest.mark.parametrize(("order", "extra"), [(1, 0.3), (2, 0.5), (3, 4.0), (5, 20.5)])
def test_expected_log_determinant(order: int, extra: float, rng: np.random.Generator) -> None:
    scale, dof = spd(rng, order), order + extra
    exact = expected_log_det(scale[None], np.array([dof]))[0]
    draws = np.linalg.slogdet(covariances(scale, dof, rng))[1]
    assert_mean(draws, exact, precision=0.02)


def test_one_digamma_is_the_case_of_one_factor_only() -> None:
    """The paper has ln|W| - ln 2 - ψ(ι/2) for any number of factors."""
    papers = np.log(3.0) - np.log(2.0) - digamma(2.5)
    assert expected_log_det(np.array([[[3.0]]]), np.array([5.0]))[0] == pytest.approx(papers)
    both = expected_log_det(np.diag([3.0, 3.0])[None], np.array([5.0]))[0]
    assert abs(both - (np.log(9.0) - np.log(2.0) - digamma(2.5))) > 0.1


def test_expected_precision(rng: np.random.Generator) -> None:
    communities = any_communities(rng, 2, 3, tied=False)
    for d in range(2):
        draws = np.linalg.inv(covariances(communities.scale[d], communities.dof[d], rng))
        scale = draws.std(axis=0) / np.sqrt(DRAWS)
        assert (np.abs(draws.mean(axis=0) - communities.precision[d]) < 4.5 * scale).all()


def niw_log_ratio(communities: Communities, prior: Prior, rng: np.random.Generator) -> np.ndarray:
    """ln q/p of draws from q, all communities together; a tied covariance is drawn once."""
    order, total = communities.order, np.zeros(FEWER)
    drawn = [
        covariances(W, dof, rng, FEWER)
        for W, dof in zip(communities.scale, communities.dof, strict=True)
    ]
    for sigma, W, dof in zip(drawn, communities.scale, communities.dof, strict=True):
        stacked = np.moveaxis(sigma, 0, -1)
        total += stats.invwishart(dof, W).logpdf(stacked)
        total -= stats.invwishart(prior.dof, prior.scale).logpdf(stacked)
    for d in range(communities.count):
        sigma = drawn[0 if len(drawn) == 1 else d]
        root = np.linalg.cholesky(sigma)
        noise = np.einsum("nij,nj->ni", root, rng.normal(size=(FEWER, order)))
        mu = communities.mean[d] + noise / np.sqrt(communities.kappa[d])
        total += log_normal(mu - communities.mean[d], sigma / communities.kappa[d])
        total -= log_normal(mu - prior.centre, sigma * prior.mean_scale)
    return total


def log_normal(away: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    square = np.einsum("ni,ni->n", away, np.linalg.solve(covariance, away[..., None])[..., 0])
    order = away.shape[1]
    return -0.5 * (order * np.log(2.0 * np.pi) + np.linalg.slogdet(covariance)[1] + square)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
@pytest.mark.parametrize("order", [1, 3])
def test_community_divergence(tied: bool, order: int, rng: np.random.Generator) -> None:
    communities, prior = any_communities(rng, 3, order, tied=tied), any_prior(rng, order)
    exact = -bound.communities_term(communities, prior)
    draws = niw_log_ratio(communities, prior, rng)
    assert_mean(draws, exact, precision=0.015 * exact)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
def test_communities_at_their_prior_cost_nothing(tied: bool, rng: np.random.Generator) -> None:
    prior, count = any_prior(rng, 3), 2
    covariances_ = 1 if tied else count
    same = Communities(
        sticks=stick_posterior(np.zeros(count), prior.concentration),
        mean=np.tile(prior.centre, (count, 1)),
        kappa=np.full(count, prior.kappa),
        scale=np.tile(prior.scale, (covariances_, 1, 1)),
        dof=np.full(covariances_, prior.dof),
    )
    assert bound.communities_term(same, prior) == pytest.approx(0.0, abs=1e-11)
    assert bound.sticks_term(same.sticks, prior.concentration) == pytest.approx(0.0, abs=1e-11)


@pytest.mark.parametrize(("a", "b", "b0"), [(1.0, 1.0, 3.0), (7.5, 2.2, 0.4), (300.0, 41.0, 2.0)])
def test_beta_divergence(a: float, b: float, b0: float, rng: np.random.Generator) -> None:
    exact = float(bound.beta_divergence(np.array(a), np.array(b), 1.0, b0))
    x = stats.beta(a, b).rvs(DRAWS, random_state=rng)
    draws = stats.beta(a, b).logpdf(x) - stats.beta(1.0, b0).logpdf(x)
    assert_mean(draws, exact, precision=0.02 * max(exact, 1.0))


def test_gamma_divergence(rng: np.random.Generator) -> None:
    scales = NoiseScales(9.0, np.array([9.0, 30.0, 9.5]), np.array([9.0, 60.0, 3.0]))
    exact = gamma_divergence(scales)
    assert exact[0] == pytest.approx(0.0, abs=1e-12)
    for i in (1, 2):
        own = stats.gamma(scales.shape[i], scale=1.0 / scales.rate[i])
        tau = own.rvs(DRAWS, random_state=rng)
        draws = own.logpdf(tau) - stats.gamma(9.0, scale=1.0 / 9.0).logpdf(tau)
        assert_mean(draws, exact[i], precision=0.02 * exact[i])
        assert_mean(tau, scales.mean[i], precision=0.01 * scales.mean[i])
        assert_mean(np.log(tau), scales.log[i], precision=0.01)
        assert_mean(1.0 / tau, scales.inverse[i], precision=0.01 * scales.inverse[i])


def test_a_stranger_has_the_noise_that_the_prior_expects(rng: np.random.Generator) -> None:
    scales = NoiseScales(9.0, np.array([30.0]), np.array([60.0]))
    tau = stats.gamma(9.0, scale=1.0 / 9.0).rvs(DRAWS, random_state=rng)
    assert_mean(1.0 / tau, scales.inverse[-1], precision=0.01)


def test_stick_weights(rng: np.random.Generator) -> None:
    sticks = Sticks(np.array([6.0, 3.0, 2.5]), np.array([4.0, 1.5, 7.0]))
    share = np.column_stack(
        [rng.beta(sticks.taken[d], sticks.left[d], DRAWS) for d in range(2)] + [np.ones(DRAWS)]
    )
    passed = np.cumprod(np.column_stack([np.ones(DRAWS), 1.0 - share[:, :2]]), axis=1)
    weights = share * passed
    for d in range(3):
        assert_mean(weights[:, d], sticks.weights[d], precision=0.01)
        assert_mean(np.log(weights[:, d]), sticks.log_weights[d], precision=0.01)
    assert sticks.weights.sum() == pytest.approx(1.0)
