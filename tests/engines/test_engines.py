"""What every engine of the table holds to: shards add up, any number of workers, the same bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from hemf import HeMF, Ratings
from hemf._options import fit_options
from hemf._typing import OTHER, SIDES
from hemf.batch.fit import BatchState, start_state, update_moods, update_side
from hemf.engines import ENGINES
from hemf.engines.base import RATINGS, HalfSweep, LoadOptions
from hemf.model.regression import Design
from hemf.model.rows import pair_moments
from proofs.problems import any_communities

FORMS = pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "mean-field"])
TIED = pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
SUMS = ("size", "first", "scatter", "entropy")
N_USERS, N_ITEMS, COMMUNITIES = 700, 40, 4


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return resolve_name(ENGINES[request.param])


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Some users and an item have no rating."""
    rng = np.random.default_rng(12)
    there = rng.random((N_USERS, N_ITEMS)) < 0.2
    there[rng.random(N_USERS) < 0.15] = False
    there[:, 3] = False
    users, items = np.nonzero(there)
    values, times = rng.normal(3.0, 1.3, users.size), rng.integers(4, size=users.size)
    everyone = Ratings.from_any((np.arange(N_USERS), np.zeros(N_USERS), np.zeros(N_USERS)))
    table = Ratings.from_any((np.zeros(N_ITEMS), np.arange(N_ITEMS), np.zeros(N_ITEMS)))
    return Ratings.from_any(
        {"user": users, "item": items, "rating": values, "timestamp": times},
        users=everyone.users,
        items=table.items,
        exact=True,
    )


def state_of(
    engine: Any, ratings: Ratings, *, tied: bool = True, features: bool = False, **options: Any
) -> BatchState:
    """A state of these ratings with communities, scales and moments of any kind."""
    rng = np.random.default_rng(5)
    options = {"dtype": np.float64, "n_jobs": 1, **options}
    fit = fit_options(HeMF(n_factors=3, dtype=np.dtype(options["dtype"]).name))
    fit = replace(fit, tied=dict.fromkeys(SIDES, tied), noise_scales=dict.fromkeys(SIDES, True))
    designs = {}
    if features:
        designs = {"user": Design.of({"one": rng.normal(size=(N_USERS, 3))}, options["dtype"])}
    state = start_state(
        engine.load(ratings, LoadOptions(**options)), ratings.scale, fit, rng, designs
    )
    for side in state.sides.values():
        shape = rng.uniform(9.0, 20.0, side.n_rows)
        side.noise_scales = replace(side.noise_scales, shape=shape)
        side.communities = any_communities(rng, COMMUNITIES, side.layout.order, tied=side.tied)
        q = rng.dirichlet(np.ones(COMMUNITIES), size=side.n_rows)
        side.membership = q.astype(options["dtype"])
    return state


def users_of(state: BatchState, **how: Any) -> HalfSweep:
    """A half-sweep over the users, which leaves the state as it is."""
    return state.ratings.half_sweep("user", state.copy(), **how)


def assert_same_bits(one: HalfSweep, other: HalfSweep) -> None:
    for name in SUMS:
        np.testing.assert_array_equal(
            getattr(one.statistics, name), getattr(other.statistics, name), err_msg=name
        )
    for name in ("errors", "information", "membership"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.moments.mean, other.moments.mean)
    np.testing.assert_array_equal(one.moments.second, other.moments.second)


@FORMS
@TIED
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_number_of_workers_gives_the_same_bits(
    engine: Any, ratings: Ratings, coupled: bool, tied: bool, dtype: type
) -> None:
    states = [
        state_of(engine, ratings, tied=tied, dtype=dtype, n_jobs=n_jobs) for n_jobs in (1, 2, 3, 5)
    ]
    first, *others = [users_of(state, coupled=coupled) for state in states]
    for other in others:
        assert_same_bits(first, other)


def test_any_number_of_workers_gives_the_same_bits_with_features(
    engine: Any, ratings: Ratings
) -> None:
    one, three = (
        users_of(state_of(engine, ratings, features=True, n_jobs=n_jobs)) for n_jobs in (1, 3)
    )
    assert one.information.size == N_USERS
    assert_same_bits(one, three)


def test_a_half_sweep_repeated_gives_the_same_bits(engine: Any, ratings: Ratings) -> None:
    state = state_of(engine, ratings)
    assert_same_bits(users_of(state), users_of(state))


# docs/model.md#statistics
@FORMS
@TIED
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_give_what_one_gives(
    engine: Any, ratings: Ratings, coupled: bool, tied: bool, shards: int
) -> None:
    state = state_of(engine, ratings, tied=tied)
    whole = users_of(state, coupled=coupled)
    cuts = np.linspace(0, N_USERS, shards + 1).astype(int)
    parts = [users_of(shard(engine, ratings, state, *ends), coupled=coupled)
             for ends in pairwise(cuts)]  # fmt: skip
    for name in SUMS:
        added = sum(getattr(part.statistics, name) for part in parts)
        np.testing.assert_allclose(added, getattr(whole.statistics, name), rtol=1e-11, atol=1e-9)
    close = {"rtol": 1e-12, "atol": 1e-13}
    for name in ("errors", "membership"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_allclose(joined, getattr(whole, name), **close)
    for name in ("mean", "second"):
        joined = np.concatenate([getattr(part.moments, name) for part in parts])
        np.testing.assert_allclose(joined, getattr(whole.moments, name), **close)


def shard(engine: Any, ratings: Ratings, state: BatchState, low: int, high: int) -> BatchState:
    """The users low ≤ i < high of a state, with their ratings on an engine of their own."""
    users, items, values = ratings.triples()
    there = (users >= low) & (users < high)
    named = Ratings.from_any((np.arange(high - low), np.zeros(high - low), np.zeros(high - low)))
    part = Ratings.from_any(
        (users[there] - low, items[there], values[there]),
        users=named.users,
        items=ratings.items,
        exact=True,
    )
    vars(part).update(mean=ratings.mean, scale=ratings.scale)
    side = state.sides["user"].copy()
    scales = side.noise_scales
    side.noise_scales = replace(scales, shape=scales.shape[low:high], rate=scales.rate[low:high])
    side.moments = replace(
        side.moments, mean=side.moments.mean[low:high], second=side.moments.second[low:high]
    )
    side.membership = side.membership[low:high]
    own = engine.load(part, LoadOptions(np.float64, n_jobs=1))
    return replace(state, engine=own, sides={**state.sides, "user": side})


def test_counts_sums_and_rows_are_those_of_the_ratings(engine: Any, ratings: Ratings) -> None:
    held = engine.load(ratings, LoadOptions(np.float64)).components[RATINGS]
    assert held.n_ratings == ratings.n_ratings
    assert held.dtype == np.float64
    users, items, values = ratings.triples()
    own = {"user": users, "item": items}
    n_rows = {"user": N_USERS, "item": N_ITEMS}
    for name in SIDES:
        counts = np.bincount(own[name], minlength=n_rows[name])
        np.testing.assert_array_equal(held.counts(name), counts)
        weights = np.arange(1.0, 1.0 + n_rows[OTHER[name]])
        sums = np.bincount(own[name], weights[own[OTHER[name]]], n_rows[name])
        np.testing.assert_allclose(held.row_sums(name, weights), sums, atol=1e-9)
        row = int(counts.argmax())
        columns, found = held.row(name, row)
        given = values[own[name] == row]
        np.testing.assert_array_equal(columns, own[OTHER[name]][own[name] == row])
        np.testing.assert_allclose(found, (given - ratings.mean) / ratings.scale)


def test_residuals_multiply_on_both_sides(engine: Any, ratings: Ratings) -> None:
    residuals = engine.load(ratings, LoadOptions(np.float64)).components[RATINGS].residuals(5.0)
    assert residuals.shape == (N_USERS, N_ITEMS)
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(N_USERS, 2)), rng.normal(size=(N_ITEMS, 3))
    np.testing.assert_allclose(left.T @ (residuals @ right), (residuals.T @ left).T @ right)
    assert np.abs(residuals @ np.ones((N_ITEMS, 1))).max() < 1.0  # offsets are subtracted


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_moods_are_subtracted_and_their_variance_added(
    engine: Any, ratings: Ratings, n_jobs: int
) -> None:
    state = state_of(engine, ratings, sessions=True, n_jobs=n_jobs)
    for name in SIDES:
        update_side(state, name, learn=False, scales=False)
    update_moods(state, learn=True)
    assert state.moods is not None
    update_side(state, "user", learn=False, scales=False)
    users, items, values = ratings.triples()
    left, right = state.sides["user"], state.sides["item"]
    mean, variance = pair_moments(
        left.moments, right.moments, users.astype(np.int64), items.astype(np.int64), variance=True
    )
    mood = state.moods.at(users.astype(np.int64), ratings.timestamps)
    away = (values - ratings.mean) / ratings.scale - mean - mood[0]
    weights = left.weights[users] * right.weights[items]
    exact = weights @ (away**2 + variance + mood[1])
    assert state.squared_error == pytest.approx(exact, rel=1e-9)


def test_ratings_without_times_have_no_moods(engine: Any, ratings: Ratings) -> None:
    assert engine.load(ratings, LoadOptions(np.float64)).components[RATINGS].start_moods() is None
