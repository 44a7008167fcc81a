"""Moods inside a fit: they raise the bound, and are distinguished from tastes."""

from __future__ import annotations

import numpy as np
import pytest

from hemf._typing import SIDES
from hemf.batch.fit import BatchState, learn_noise, update_moods, update_side
from hemf.model.rows import pair_moments
from proofs.problems import SETTINGS, Setting, problem, tables, with_times


def timed(rng: np.random.Generator, setting: Setting) -> BatchState:
    state = problem(rng, setting, communities=(2, 2))
    return with_times(state, rng.integers(4, size=state.n_ratings))


def slow_squared_error(state: BatchState) -> float:
    """Σ τ_i υ_j E(r - a·b - o)², rating by rating."""
    moods, rows = state.moods, tables(state)["user"]
    assert moods is not None
    users = np.repeat(np.arange(rows.indptr.size - 1), np.diff(rows.indptr))
    left, right = state.sides["user"], state.sides["item"]
    mean, variance = pair_moments(
        left.moments, right.moments, users, rows.indices.astype(np.int64), variance=True
    )
    session = state.ratings.sessions.of_ratings["user"]
    away = rows.values - mean - moods.posterior.mean[session]
    weight = left.weights[users] * right.weights[rows.indices]
    return float(weight @ (away**2 + variance + moods.posterior.spread[session]))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_update_of_moods_lowers_the_bound(setting: Setting, rng) -> None:
    state = timed(rng, setting)
    for name in SIDES:
        update_side(state, name, coupled=setting.coupled, learn=False)
    update_moods(state, learn=False)  # before it there was another model, without any
    for sweep in range(4):
        before = sum(state.bound_terms().values())
        update_moods(state, learn=sweep > 1)
        after = sum(state.bound_terms().values())
        assert after >= before - 1e-9 * abs(before)
        assert state.squared_error == pytest.approx(slow_squared_error(state), rel=1e-9)
        learn_noise(state)
        for name in SIDES:
            update_side(state, name, coupled=setting.coupled, learn=False, scales=False)
            assert state.squared_error == pytest.approx(slow_squared_error(state), rel=1e-9)


def test_ratings_of_both_sides_are_without_the_same_moods(rng) -> None:
    state = timed(rng, Setting(offsets=True))
    for name in SIDES:
        update_side(state, name, learn=False)
    update_moods(state, learn=True)
    found = {}
    for name in SIDES:
        found[name] = {}
        for row in range(state.sides[name].n_rows):
            for column, value in zip(*state.row_ratings(name, row), strict=True):
                found[name][(row, column) if name == "user" else (column, row)] = value
    assert found["user"] == found["item"]


def test_ratings_at_one_time_are_one_session() -> None:
    from hemf import Ratings
    from hemf.engines.threads import Sessions

    ratings = Ratings.from_any([("al", "a", 1, 5), ("al", "b", 2, 3), ("al", "c", 3, 5),
                                ("bo", "a", 4, 3)])  # fmt: skip
    assert ratings.timestamps is not None
    sessions = Sessions.of(ratings.by_user, ratings.timestamps)
    assert sessions.indptr.tolist() == [0, 2, 3]
    assert sessions.times.tolist() == [3, 5, 3]
    assert sessions.of_ratings["user"].tolist() == [1, 0, 1, 2]
    assert sessions.of_ratings["item"].tolist() == [1, 2, 0, 1]
