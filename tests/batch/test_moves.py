"""Merges, reordering and dropping do to the bound what they say they do."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.batch.fit import assign
from hemf.model.communities import stick_evidence
from hemf.model.side import (
    Side,
    best_merge,
    drop_empty,
    merge,
    merge_alike,
    merge_gains,
    order_by_size,
)
from proofs import slow_bound
from proofs.problems import SETTINGS, Setting, any_prior, problem, side_total
from proofs.watch import Watched

COUPLED = [setting for setting in SETTINGS if setting.coupled]
MEAN_FIELD = [setting for setting in SETTINGS if not setting.coupled]
both_settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def with_hard_memberships(setting: Setting, *, concentration: float = 0.7) -> Watched:
    rng = np.random.default_rng(4)
    state = problem(rng, setting, users=20, communities=(4, 2))
    side = state.sides["user"]
    assign(side, np.arange(20) % 4, 4)
    watched = Watched(state, setting)
    side.prior = replace(side.prior, concentration=concentration)
    side.refresh()
    order_by_size(side)
    return watched


def with_soft_memberships(setting: Setting) -> Watched:
    state = problem(np.random.default_rng(6), setting, users=20, communities=(4, 2))
    watched = Watched(state, setting)
    watched.update_rows("user")
    side = state.sides["user"]
    side.refresh()
    assert ((side.membership > 0.05) & (side.membership < 0.95)).sum() > 10
    return watched


def total(side: Side) -> float:
    return side_total(side.statistics, side.communities, side.prior)


def long_way(watched: Watched, side: Side, rows: slow_bound.Belief) -> float:
    """The same from scratch, with what moves with Σ of the features' part."""
    terms = slow_bound.side_terms(rows, side.communities, side.prior)
    moving = 0.0
    if side.regression is not None:
        moving = slow_bound.uncertain_shifts(side, watched.among["user"], rows)[0]
    return sum(terms.values()) + moving


def gain(side: Side, left: int, right: int) -> float:
    return float(merge_gains(side, np.array([left]), np.array([right]))[0])


def copy_of(side: Side) -> Side:
    fresh = side.copy()
    fresh.refresh()
    return fresh


@both_settings
def test_the_gain_of_a_merge_is_what_it_does_to_hard_memberships(setting: Setting) -> None:
    watched = with_hard_memberships(setting)
    side = watched.state.sides["user"]
    before = long_way(watched, side, watched.beliefs["user"])
    for left, right in combinations(range(4), 2):
        merged = copy_of(side)
        merge(merged, left, right)
        change = total(merged) - total(side)
        assert gain(side, left, right) == pytest.approx(change, rel=1e-9, abs=1e-9)
        # The bound the long way agrees, once its rows have followed.
        together = watched.beliefs["user"].merged(left, right)
        order = np.argsort(-together.share.sum(axis=0), kind="stable")
        after = long_way(watched, merged, together.ordered(order))
        assert after - before == pytest.approx(change, abs=1e-8)


@both_settings
def test_gains_hold_under_a_prior_that_has_just_been_learnt(setting: Setting) -> None:
    """Hyper-parameters may have moved since the communities were last brought to their best."""
    side = with_hard_memberships(setting).state.sides["user"]
    side.prior = replace(any_prior(np.random.default_rng(2), side.layout.order), concentration=0.6)
    refreshed = copy_of(side)
    for left, right in combinations(range(4), 2):
        merged = copy_of(side)
        merge(merged, left, right)
        change = total(merged) - total(refreshed)
        assert gain(side, left, right) == pytest.approx(change, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("setting", COUPLED, ids=str)
def test_the_gain_of_a_merge_is_never_more_than_the_truth(setting: Setting) -> None:
    watched = with_soft_memberships(setting)
    side = watched.state.sides["user"]
    start = watched.total()
    understated = []
    for left, right in combinations(range(4), 2):
        merged = copy_of(side)
        merge(merged, left, right)
        credited = total(merged) - total(side)
        truth = true_total(watched, merged, left, right) - start
        assert gain(side, left, right) <= credited + 1e-9
        assert credited <= truth + 1e-9
        understated.append(truth - credited)
    assert max(understated) > 0.1  # rows that are in both have more entropy than credited


@pytest.mark.parametrize("setting", MEAN_FIELD, ids=str)
def test_the_gain_of_a_merge_is_the_truth_where_rows_have_one_gaussian(setting: Setting) -> None:
    watched = with_soft_memberships(setting)
    side = watched.state.sides["user"]
    start = watched.total()
    for left, right in combinations(range(4), 2):
        merged = copy_of(side)
        merge(merged, left, right)
        truth = true_total(watched, merged, left, right) - start
        assert total(merged) - total(side) == pytest.approx(truth, abs=1e-8)
        assert gain(side, left, right) <= truth + 1e-9


def true_total(watched: Watched, merged: Side, left: int, right: int) -> float:
    """The bound the long way after a merge, rows with one Gaussian of the moments of two."""
    together = watched.beliefs["user"].merged(left, right)
    columns = [
        int(np.argmin(np.abs(together.share.T - column).sum(axis=1)))
        for column in merged.membership.T
    ]
    state = replace(watched.state, sides={**watched.state.sides, "user": merged})
    beliefs = {**watched.beliefs, "user": together.ordered(columns)}
    return slow_bound.total(state, beliefs, watched.among)


@both_settings
def test_a_merge_leaves_the_rows_where_they_are(setting: Setting) -> None:
    watched = with_soft_memberships(setting)
    side = watched.state.sides["user"]
    merged = copy_of(side)
    merge(merged, 1, 3)
    np.testing.assert_array_equal(merged.moments.mean, side.moments.mean)
    np.testing.assert_array_equal(merged.moments.second, side.moments.second)
    np.testing.assert_allclose(merged.membership.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(merged.statistics.size, merged.membership.sum(axis=0), rtol=1e-12)
    assert merged.n_communities == 3
    assert merged.statistics.tied == setting.tied_users


@both_settings
def test_the_best_merge_is_the_best_of_all_pairs(setting: Setting) -> None:
    side = with_hard_memberships(setting).state.sides["user"]
    gains = {pair: gain(side, *pair) for pair in combinations(range(4), 2)}
    left, right, best = best_merge(side)
    assert best == max(gains.values()) == gains[left, right]


@both_settings
def test_two_merge_into_one(setting: Setting) -> None:
    watched = with_hard_memberships(setting)
    side = watched.state.sides["user"]
    while side.n_communities > 1:
        before, expected = total(side), gain(side, 0, 1)
        merge(side, 0, 1)
        assert total(side) - before == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert side.statistics.scatter.shape[0] == 1
    np.testing.assert_array_equal(side.membership, 1.0)


@both_settings
def test_merging_alike_communities_stops_when_none_is_worth_it(setting: Setting) -> None:
    side = with_hard_memberships(setting).state.sides["user"]
    before, count = total(side), side.n_communities
    merged = merge_alike(side)
    assert side.n_communities == count - merged
    assert total(side) >= before
    assert side.n_communities == 1 or best_merge(side)[2] <= 0.0
    assert merge_alike(side) == 0


# -- order --------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.floats(0.01, 1e4), min_size=2, max_size=5),
    concentration=st.floats(0.01, 1.0),
)
def test_largest_first_is_the_best_order_where_alpha_is_at_most_one(
    sizes: list[float], concentration: float
) -> None:
    largest_first = stick_evidence(np.sort(sizes)[::-1], concentration)
    best = max(stick_evidence(np.array(p), concentration) for p in permutations(sizes))
    assert largest_first == pytest.approx(best, rel=1e-9, abs=1e-9)


@both_settings
@pytest.mark.parametrize("concentration", [0.4, 1.0, 3.0])
def test_reordering_does_not_lower_the_bound(setting: Setting, concentration: float) -> None:
    for seed in range(5):
        side = problem(np.random.default_rng(seed), setting, communities=(5, 2)).sides["user"]
        side.prior = replace(side.prior, concentration=concentration)
        side.refresh()
        before, sizes = total(side), side.statistics.size.copy()
        order_by_size(side)
        assert total(side) >= before - 1e-9 * abs(before)
        np.testing.assert_allclose(np.sort(side.statistics.size), np.sort(sizes), rtol=1e-12)
        np.testing.assert_allclose(side.statistics.size, side.membership.sum(axis=0), rtol=1e-9)
        if concentration < 1.0:
            assert (np.diff(side.statistics.size) <= 0.0).all()


# -- empty communities --------------------------------------------------------------------------


@both_settings
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_dropping_an_empty_community_raises_the_bound(setting: Setting, empty: int) -> None:
    state = problem(np.random.default_rng(1), setting, communities=(2, 2))
    side = state.sides["user"]
    labels = np.delete(np.arange(3), empty)[np.arange(side.n_rows) % 2]
    assign(side, labels, 3)
    before = total(side)
    drop_empty(side)
    assert side.n_communities == 2
    assert total(side) > before
    np.testing.assert_array_equal(side.membership.sum(axis=1), 1.0)


@both_settings
def test_communities_with_rows_are_not_dropped(setting: Setting) -> None:
    side = with_hard_memberships(setting).state.sides["user"]
    drop_empty(side)
    assert side.n_communities == 4
