"""Roots are found from any start, and the paper's steps go uphill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import digamma

from hemf.model.communities import (
    Communities,
    Sticks,
    best_centre,
    best_concentration,
    best_dof,
    expected_log_det,
    gradient_concentration,
    gradient_dof,
    learn_prior,
)
from proofs.problems import any_communities, any_prior, any_statistics, side_total, spd


def dof_root(communities: Communities, scale: np.ndarray) -> float:
    """ι0 by bisection on its logarithm above L-1."""
    least = communities.order - 1.0
    wanted = communities.log_det.mean()

    def gap(log_free: float) -> float:
        dof = np.exp(log_free) + least
        return float(expected_log_det(scale[None], np.array([dof]))[0] - wanted)

    return float(np.exp(brentq(gap, -25.0, 30.0, xtol=1e-13)) + least)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 20),
    count=st.integers(1, 6),
    size=st.floats(-6.0, 6.0),
    start=st.floats(-8.0, 8.0),
)
def test_degrees_of_freedom_are_found_from_any_start(
    seed: int, order: int, count: int, size: float, start: float
) -> None:
    rng = np.random.default_rng(seed)
    communities = any_communities(rng, count, order, tied=False)
    scale = spd(rng, order) * 10.0**size
    root = dof_root(communities, scale)
    found = best_dof(communities, scale, order - 1.0 + 10.0**start)
    free, expected = found - (order - 1.0), root - (order - 1.0)
    assert free > 0.0
    # The sum of digammas is what is solved; near L-1 its first argument has few digits left.
    assert free == pytest.approx(expected, rel=1e-6, abs=1e-11 * order)


@pytest.mark.parametrize("start", [1e-12, 1e-3, 1.0, 1e4, 1e9, 1e15])
def test_degrees_of_freedom_when_the_communities_agree_to_the_last_digit(start: float) -> None:
    """Community covariances known almost exactly, and equal: ι0 is as large as their ι."""
    scale = np.diag([1.0, 2.0, 3.0])
    dof = np.full(4, 1e6)
    same = Communities(
        sticks=Sticks(np.ones(4), np.ones(4)),
        mean=np.zeros((4, 3)),
        kappa=np.ones(4),
        scale=np.tile(scale, (4, 1, 1)),
        dof=dof,
    )
    assert best_dof(same, scale, 2.0 + start) == pytest.approx(1e6, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 8), size=st.floats(-2.0, 5.0))
def test_concentration_solves_its_equation(seed: int, count: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    sticks = Sticks(1.0 + rng.exponential(10.0**size, count), rng.exponential(10.0**size, count))
    alpha = best_concentration(sticks)
    taken, left = sticks.taken[:-1], sticks.left[:-1]
    slope = (count - 1) / alpha + np.sum(digamma(left) - digamma(taken + left))
    assert alpha > 0.0
    assert slope == pytest.approx(0.0, abs=1e-9 * (count - 1) / alpha)


# docs/model.md#gradient
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
def test_gradient_steps_are_the_slope_of_the_bound_times_the_papers_rate(
    tied: bool, rng: np.random.Generator
) -> None:
    statistics = any_statistics(rng, 3, 2, tied=tied)
    communities, prior = any_communities(rng, 3, 2, tied=tied), any_prior(rng, 2)

    def slope(name: str, at: float) -> float:
        step = 1e-5
        high, low = (
            side_total(statistics, communities, replace(prior, **{name: at + sign * step}))
            for sign in (1, -1)
        )
        return (high - low) / (2.0 * step)

    moved = gradient_concentration(communities.sticks, prior.concentration)
    expected = prior.concentration + 1e-3 * slope("concentration", prior.concentration)
    assert moved == pytest.approx(expected, rel=1e-8)
    moved = gradient_dof(communities, prior.scale, prior.dof)
    assert moved == pytest.approx(prior.dof + 1e-3 * slope("dof", prior.dof), rel=1e-8)


def test_gradient_steps_stay_where_they_are_allowed() -> None:
    sticks = Sticks(np.array([1e9, 1.0]), np.array([1e-6, 1.0]))
    assert gradient_concentration(sticks, 1e-3) >= 1e-6
    rng = np.random.default_rng(0)
    communities = any_communities(rng, 3, 2, tied=False)
    assert gradient_dof(communities, 1e-300 * np.eye(2), 1.001) > 1.0


@pytest.mark.parametrize("evb", ["closed", "gradient"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
@pytest.mark.parametrize("count", [1, 4])
def test_learning_the_prior_does_not_lower_the_bound(
    evb: str, tied: bool, count: int, rng: np.random.Generator
) -> None:
    statistics = any_statistics(rng, count, 3, tied=tied)
    communities, prior = any_communities(rng, count, 3, tied=tied), any_prior(rng, 3)
    value = side_total(statistics, communities, prior)
    for structure, scale in ((False, False), (True, False), (True, True)):
        prior = learn_prior(prior, communities, evb=evb, structure=structure, scale=scale)
        after = side_total(statistics, communities, prior)
        assert after >= value - 1e-12 * abs(value)
        value = after


def test_a_single_community_teaches_nothing_about_how_communities_differ(
    rng: np.random.Generator,
) -> None:
    communities, prior = any_communities(rng, 1, 3, tied=False), any_prior(rng, 3)
    learnt = learn_prior(prior, communities, evb="closed", structure=True, scale=True)
    assert learnt.concentration == prior.concentration
    assert learnt.mean_scale == prior.mean_scale
    assert learnt.dof == prior.dof
    assert not np.array_equal(learnt.scale, prior.scale)
    assert not np.array_equal(learnt.centre, prior.centre)


def test_the_centre_weighs_communities_by_their_precision(rng: np.random.Generator) -> None:
    """The paper's plain mean is right only for equal covariances."""
    own = any_communities(rng, 3, 2, tied=False)
    assert not np.allclose(best_centre(own), own.mean.mean(axis=0), rtol=1e-3)
    tied = any_communities(rng, 3, 2, tied=True)
    np.testing.assert_allclose(best_centre(tied), tied.mean.mean(axis=0), rtol=1e-9)
