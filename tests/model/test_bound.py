"""The bound's terms are the sums they stand for, whatever the state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hemf.model import communities as bound
from hemf.model.communities import (
    community_evidence,
    community_posterior,
    own_evidence,
    stick_evidence,
    stick_posterior,
)
from proofs.problems import (
    SETTINGS,
    Setting,
    any_communities,
    any_prior,
    any_statistics,
    problem,
    side_total,
)
from proofs.watch import Watched


# docs/model.md#bound
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_terms_equal_their_explicit_sums_far_from_any_optimum(
    setting: Setting, rng: np.random.Generator
) -> None:
    """Communities and priors at random: no term is right only where others are at their best."""
    state = problem(rng, setting)
    watched = Watched(state, setting)
    for side in state.sides.values():
        count, order = side.n_communities, side.layout.order
        side.communities = any_communities(rng, count, order, tied=side.statistics.tied)
        side.prior = any_prior(rng, order)
    watched.assert_bound_is_right("random communities")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_unit_of_ratings_shifts_the_bound_by_its_logarithm(
    setting: Setting, rng: np.random.Generator
) -> None:
    state = problem(rng, setting)
    before = sum(state.bound_terms().values())
    after = sum(replace(state, unit=state.unit * 3.0).bound_terms().values())
    assert after == pytest.approx(before - state.n_ratings * np.log(3.0), rel=1e-12)


# -- the evidence: what is left of the terms at their optimum ------------------------------------


# docs/model.md#evidence
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_evidence_is_the_sum_of_terms_at_the_optimum(
    tied: bool, count: int, rng: np.random.Generator
) -> None:
    for order in (1, 3):
        statistics, prior = any_statistics(rng, count, order, tied=tied), any_prior(rng, order)
        best = community_posterior(statistics, prior)
        evidence = community_evidence(statistics, prior) + bound.entropy_term(statistics, order)
        assert evidence == pytest.approx(side_total(statistics, best, prior), rel=1e-11)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
def test_no_other_communities_reach_the_evidence(tied: bool, rng: np.random.Generator) -> None:
    statistics, prior = any_statistics(rng, 3, 2, tied=tied), any_prior(rng, 2)
    most = community_evidence(statistics, prior) + bound.entropy_term(statistics, 2)
    for _ in range(50):
        other = any_communities(rng, 3, 2, tied=tied)
        assert side_total(statistics, other, prior) < most


def test_stick_evidence_is_membership_and_stick_terms(rng: np.random.Generator) -> None:
    statistics = any_statistics(rng, 4, 2, tied=True)
    for concentration in (0.2, 1.0, 4.0):
        sticks = stick_posterior(statistics.size, concentration)
        terms = statistics.size @ sticks.log_weights + bound.sticks_term(sticks, concentration)
        assert stick_evidence(statistics.size, concentration) == pytest.approx(terms, rel=1e-12)


def test_own_and_tied_are_the_same_for_one_community(rng: np.random.Generator) -> None:
    """Tied covariances are one Σ for the side; with one community that is its own."""
    statistics, prior = any_statistics(rng, 1, 3, tied=True), any_prior(rng, 3)
    own = own_evidence(statistics.size, statistics.first, statistics.scatter, prior)
    assert community_evidence(statistics, prior) == pytest.approx(float(own[0]), rel=1e-12)
