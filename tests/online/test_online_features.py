"""What features say of a row follows its ratings, and all that depends on it follows exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from hemf._options import Schedule
from hemf._typing import SIDES
from hemf.batch.fit import BatchState, learn_noise, sweep, update_side
from hemf.model import regression as ridge
from hemf.model.regression import Logs, log_counts
from hemf.online import features, updates
from hemf.online import state as states
from hemf.online.state import OnlineState
from proofs.information import (
    PLAIN,
    TIED,
    Climb,
    assert_consistent,
    beliefs,
    learner,
    now,
    planted_features,
)
from proofs.learners import (
    absorb,
    adopted,
    batch_of,
    pairs,
    predict_then_learn,
    record,
    solve,
    some,
)
from proofs.problems import fit_with

AT_ONCE = Schedule(warm_up=-1, hold_scale=0, hold_structure=0, hold_noise=0, merge_every=1)
SETTINGS = [PLAIN, TIED]


def assert_same(ours: OnlineState, theirs: BatchState, tolerance: float = 1e-8) -> None:
    assert ours.noise == pytest.approx(theirs.noise, rel=tolerance)
    for name in SIDES:
        left, right = ours.sides[name], theirs.sides[name]
        assert left.regression is not None
        assert right.regression is not None
        for one, other in (
            (left.moments.mean, right.moments.mean),
            (left.moments.second, right.moments.second),
            (left.membership, right.membership),
            (left.weights, right.weights),
            (left.prior.scale, right.prior.scale),
            (left.communities.scale, right.communities.scale),
            (left.communities.mean, right.communities.mean),
            (left.statistics.scatter, right.statistics.scatter),
            (left.regression.coefficients, right.regression.coefficients),
            (left.regression.precision, right.regression.precision),
            (left.regression.covariance.trace, right.regression.covariance.trace),
            (left.shift, right.shift),
        ):
            scale = max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)
    quick, slow = ours.bound_terms(), theirs.bound_terms()
    assert quick == pytest.approx(slow, abs=tolerance * abs(sum(slow.values())))


# -- one batch that holds everything is one sweep ------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("implicit", [True, False])
def test_a_batch_fit_is_taken_over_by_one_sweep(setting: Any, implicit: bool) -> None:
    state = planted_features(np.random.default_rng(0), setting, implicit=implicit)
    online = adopted(state)
    for name in SIDES:
        update_side(state, name, learn=False)
    learn_noise(state)
    assert_same(online, state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("direct", [ridge.DIRECT, 0])
def test_a_batch_of_everything_is_one_sweep(
    setting: Any, direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge, "DIRECT", direct)
    if not direct:
        monkeypatch.setattr(features, "CHEAP", 0)
    rng = np.random.default_rng(1)
    converged = replace(planted_features(rng, setting), seeded_at=0, sweeps=1)
    options = fit_with(setting, schedule=AT_ONCE)
    for _ in range(3):
        sweep(converged, options, rng)
    online = adopted(converged)
    state = replace(now(online), seeded_at=0, sweeps=1)
    absorb(online, *pairs(online), np.full(online.n_ratings, -1))
    sweep(state, options, rng)
    for side in state.sides.values():
        side.refresh()  # online, communities have followed the new prior already
    assert_same(online, state)


# -- every block raises the bound ----------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("way", ["exact", "M alone", "diagonal"])
def test_every_block_raises_the_bound(
    setting: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "diagonal":
        monkeypatch.setattr(ridge, "DIRECT", 0)
    if way != "exact":
        monkeypatch.setattr(features, "CHEAP", 0)
    rng = np.random.default_rng(2)
    state = learner(rng, setting, min_share=1e-14)
    climb = Climb(state)
    first = climb.value
    for _ in range(2):
        for name in SIDES:
            updates.refresh(state, name, some(rng, state, name), learn=False)
            climb.assert_no_lower(f"{name} rows")
            before = state.sides[name].regression
            updates.regress(state, name)
            assert state.sides[name].regression is not before
            climb.assert_no_lower(f"{name} regression")
            state.sides[name].refresh()
            climb.assert_no_lower(f"{name} communities")
            everyone = np.arange(state.stores[name].n_rows)
            updates.refresh_rows(state, name, everyone, False, None)
            climb.assert_no_lower(f"{name} all rows")
            learnt = updates.learn_coefficients(state, name)
            assert not (learnt and way == "M alone")
            climb.note(name)
            updates.refresh_rows(state, name, everyone, False, None)
            climb.assert_no_lower(f"{name} C, λ and rows")
            state.sides[name].refresh()
            climb.assert_no_lower(f"{name} communities again")
        updates.learn_noise(state, "item", None)
        climb.assert_no_lower("σ²")
        assert_consistent(state)
    assert climb.value > first
    quick, slow = state.bound_terms(), climb.terms()
    assert quick == pytest.approx(slow, abs=1e-8 * abs(climb.value))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_small_batches_and_streams_climb(setting: Any) -> None:
    rng = np.random.default_rng(3)
    state = learner(rng, setting, min_share=1e-14, thorough=False)
    for name in SIDES:
        updates.learn_row_scales(state, name)
    absorb(state, *(part[:1] for part in pairs(state)), pairs(state)[2][:1])
    bounds = [sum(state.bound_terms().values())]
    for step in range(60):
        again = rng.choice(state.n_ratings, 4, replace=False)
        users, items, codes = (part[again] for part in pairs(state))
        if step % 2:
            absorb(state, users, items, codes, codes)
        else:
            predict_then_learn(state, users, items, codes)
        bounds.append(sum(state.bound_terms().values()))
        assert_consistent(state)
    assert np.diff(bounds).min() >= -1e-9 * abs(bounds[0])
    assert bounds[-1] > bounds[0]


def test_a_regression_is_fitted_again_as_ratings_are_learnt() -> None:
    rng = np.random.default_rng(4)
    state = learner(rng, PLAIN)
    fitted = state.sides["user"].regression
    for _ in range(30):
        again = rng.choice(state.n_ratings, 10, replace=False)
        users, items, codes = (part[again] for part in pairs(state))
        absorb(state, users, items, codes, codes)
    assert state.sides["user"].regression is not fitted
    learnt = 300 / (states.REFIT_GROWTH * state.n_ratings)
    due_at = state.clocks.due_at["regression", "user"]
    assert state.seen < due_at <= state.seen + 300 / learnt


# -- what features say follows ratings -----------------------------------------------------------


@pytest.mark.parametrize("window", [-1, 0, 3])
def test_what_features_say_follows_new_and_removed_ratings_and_rows(window: int) -> None:
    rng = np.random.default_rng(5)
    state = learner(rng, TIED, window=window, thorough=False, refresh=0.5)
    for step in range(8):
        absorb(state, *batch_of(rng, state, 12))
        n_rows = [state.stores[name].n_rows for name in SIDES]
        codes = rng.integers(0, len(state.book), 20)
        users, items = (rng.integers(0, n, 20) for n in n_rows)
        predict_then_learn(state, users, items, codes)
        assert_consistent(state)
        for name in SIDES:
            store = state.stores[name]
            here = (store.listed >= 0).any(axis=1)
            updates.refresh(state, name, np.flatnonzero(here), learn=False)
            words = state.sides[name].regression.coefficient_blocks
            shift = words.shift(store.base, store.coefficient_sum, store.count)
            np.testing.assert_allclose(store.shift[here], shift[here], atol=1e-9)
        if window == -1 and step % 2:
            for name in SIDES:
                store = state.stores[name]
                updates.regress(state, name)
                assert_consistent(state)
                design = state.sides[name].regression.design
                np.testing.assert_allclose(
                    store.shift, design.matrix @ state.sides[name].regression.coefficients,
                    atol=1e-9,
                )  # fmt: skip
                state.sides[name].refresh()


# docs/model.md#implicit-features
def test_the_sum_of_coefficients_is_over_what_was_rated_whatever_happened() -> None:
    rng = np.random.default_rng(6)
    state = learner(rng, PLAIN)
    for _ in range(6):
        absorb(state, *batch_of(rng, state, 15))
        for name, other in (("user", "item"), ("item", "user")):
            indptr, indices, _ = state.stores[name].history.to_rows()
            coefficients = state.stores[other].coefficients
            wanted = csr_array(
                (np.ones(indices.size), indices, indptr),
                shape=(indptr.size - 1, len(coefficients)),
            )
            np.testing.assert_allclose(
                state.stores[name].coefficient_sum, wanted @ coefficients, atol=1e-12
            )


@pytest.mark.parametrize("window", [-1, 0])
@pytest.mark.parametrize("name", SIDES)
def test_a_rating_added_and_removed_leaves_the_row_as_it_was(name: str, window: int) -> None:
    """With the other side and M held."""
    rng = np.random.default_rng(7)
    state = learner(rng, PLAIN, window=window)
    rated = set(zip(*(part.tolist() for part in pairs(state)[:2]), strict=True))
    if window == 0:
        rated = set()
    free = [
        (i, j)
        for i in range(state.stores["user"].n_rows)
        for j in range(state.stores["item"].n_rows)
        if (i, j) not in rated
    ]
    for k in rng.choice(len(free), 5, replace=False):
        pair = free[k]
        row = pair[SIDES.index(name)]
        solve(state, name, row)
        store = state.stores[name]
        kept = {
            what: getattr(store, what)[row].copy()
            for what in ("mean", "second", "shift", "coefficient_sum", "base")
        }
        code = int(rng.integers(len(state.book)))
        record(state, name, *pair, code)
        solve(state, name, row)
        assert np.abs(store.shift[row] - kept["shift"]).max() > 1e-6
        record(state, name, *pair, -1, code)
        solve(state, name, row)
        for what, before in kept.items():
            np.testing.assert_allclose(getattr(store, what)[row], before, atol=1e-8)


def test_new_columns_say_nothing_until_the_regression_is_fitted_again() -> None:
    rng = np.random.default_rng(8)
    state = learner(rng, PLAIN)
    known = state.stores["item"].n_rows
    states.add_new_rows(state, "item", 2)
    before = state.stores["user"].coefficient_sum.copy()
    users = np.arange(8)
    codes = rng.integers(0, len(state.book), 8)
    absorb(state, users, np.full(8, known), codes, np.full(8, -1), learn=False)
    np.testing.assert_array_equal(state.stores["user"].coefficient_sum, before)
    updates.regress(state, "user")
    coefficients = state.stores["item"].coefficients
    assert np.abs(coefficients[known]).max() > 0.0
    assert np.abs(coefficients[known + 1]).max() == 0.0  # nobody has rated it
    assert_consistent(state)


def test_features_of_a_row_can_be_given_anew() -> None:
    rng = np.random.default_rng(9)
    state = learner(rng, PLAIN)
    encoded = csr_array(rng.normal(size=(2, 2)))
    updates.give_features(state, "user", np.array([5, 3]), encoded)
    given = state.features["user"].together(state.stores["user"].n_rows).toarray()
    np.testing.assert_allclose(given[[5, 3]], encoded.toarray())
    words = state.sides["user"].regression.coefficient_blocks
    np.testing.assert_allclose(state.stores["user"].base[[5, 3]], encoded @ words.given)
    assert_consistent(state)
    updates.regress(state, "user")
    assert_consistent(state)
    np.testing.assert_allclose(
        state.sides["user"].regression.design.matrix.toarray()[[5, 3], :2], encoded.toarray()
    )


def test_beliefs_of_a_row_do_not_move_when_what_is_said_of_it_does() -> None:
    rng = np.random.default_rng(10)
    state = learner(rng, TIED)
    before = beliefs(state)["user"]
    updates.regress(state, "user")
    after = beliefs(state)["user"]
    there = before.share > 1e-6
    np.testing.assert_allclose(after.mean[there], before.mean[there], atol=1e-9)
    np.testing.assert_allclose(after.covariance[there], before.covariance[there], atol=1e-9)


def test_newcomers_are_as_uncertain_where_c_is_not_factorised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Information weights count there as well: the best diagonal C for them."""
    state = learner(np.random.default_rng(11), PLAIN)
    monkeypatch.setattr(features, "CHEAP", 0)
    state.point("user")
    side = state.sides["user"]
    design, information = side.regression.design, side.regression.information
    assert information.mean() < 0.95
    X = design.matrix.toarray()
    inverse = (information[:, None] * X**2).sum(axis=0) + design.by_column(
        side.regression.precision
    )
    x = csr_array(X[:1, :2])
    found = side.online_shift.solver.variance(csr_array(X[:1]), side.regression.precision)
    assert found[0] == pytest.approx(X[0] ** 2 @ (1.0 / inverse), rel=1e-9)
    assert side.feature_prior(x).leverage[0] == pytest.approx(
        X[0, :2] ** 2 @ (1.0 / inverse[:2]), rel=1e-9
    )


def test_counts_beyond_those_seen_count_as_the_last_of_these() -> None:
    counts = np.array([3, 5, 20, 0])
    logs = Logs.of(counts)
    np.testing.assert_array_equal(logs.columns(counts), log_counts(counts))
    np.testing.assert_array_equal(logs.columns(np.array([1, 900])), log_counts(counts)[[0, 2]])
    assert not logs.columns(np.zeros(1)).any()
