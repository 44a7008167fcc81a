"""Moods inside a fit: they raise the bound, and are told apart from tastes."""

from __future__ import annotations

import numpy as np
import pytest

from hemf._typing import SIDES
from hemf.batch.sweep import BatchState, Moods, learn_noise, update_moods, update_side
from hemf.model.predictive import pair_moments
from proofs.problems import SETTINGS, Setting, problem


def timed(rng: np.random.Generator, setting: Setting) -> BatchState:
    state = problem(rng, setting, communities=(2, 2))
    state.moods = Moods.start(state.rows, rng.integers(4, size=state.n_ratings))
    return state


def slow_squared_error(state: BatchState) -> float:
    """Σ τ_i υ_j E(r - a·b - o)², rating by rating."""
    moods, rows = state.moods, state.rows["user"]
    assert moods is not None
    users = np.repeat(np.arange(rows.indptr.size - 1), np.diff(rows.indptr))
    left, right = state.sides["user"], state.sides["item"]
    mean, variance = pair_moments(
        left.moments, right.moments, users, rows.indices.astype(np.int64), variance=True
    )
    sitting = moods.sitting["user"]
    away = moods.ratings["user"] - mean - moods.posterior.mean[sitting]
    weight = left.weights[users] * right.weights[rows.indices]
    return float(weight @ (away**2 + variance + moods.posterior.spread[sitting]))


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
    tables = {}
    for name in SIDES:
        rows = state.rows[name]
        own = np.repeat(np.arange(rows.indptr.size - 1), np.diff(rows.indptr))
        pairs = zip(own, rows.indices, strict=True)
        keys = ((u, i) if name == "user" else (i, u) for u, i in pairs)
        tables[name] = dict(zip(keys, rows.values, strict=True))
    assert tables["user"] == tables["item"]


def test_ratings_at_one_time_are_one_sitting() -> None:
    from hemf import Ratings
    from hemf.engines.threads import Rows

    ratings = Ratings.from_any([("al", "a", 1, 5), ("al", "b", 2, 3), ("al", "c", 3, 5),
                                ("bo", "a", 4, 3)])  # fmt: skip
    rows = {
        "user": Rows(ratings.by_user.indptr, ratings.by_user.indices, ratings.by_user.values),
        "item": Rows(ratings.by_item.indptr, ratings.by_item.indices, ratings.by_item.values),
    }
    assert ratings.timestamps is not None
    moods = Moods.start(rows, ratings.timestamps)
    assert moods.indptr.tolist() == [0, 2, 3]
    assert moods.times.tolist() == [3, 5, 3]
    assert moods.sitting["user"].tolist() == [1, 0, 1, 2]
    assert moods.sitting["item"].tolist() == [1, 2, 0, 1]
