"""A fitted model begins to learn online where the fit left it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf.online.journal import Journal
from hemf.online.learner import begin, updated
from proofs.learners import assert_same_statistics, given

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

N_USERS, N_ITEMS, N_RATINGS = 60, 40, 900
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}
HISTORIES = ["full", 6, "none"]
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "plain": {
        "offsets": False,
        "noise_scales": None,
        "max_user_communities": 1,
        "max_item_communities": 1,
    },
    "tied": {"user_covariances": "tied", "item_covariances": "tied"},
    "mean-field": {"membership": "mean-field"},
    "scales of users": {"noise_scales": "user"},
    "features": {"user_covariances": "tied", "item_covariances": "tied", "implicit_features": True},
    "moods": {"moods": True},
    "forgetting": {"forgetting": 0.99},
    "seeded just now": {"max_sweeps": 9},
    "one sweep": {"max_sweeps": 1},
}

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def ratings(seed: int = 0) -> Table:
    """Ratings of two kinds of users and two kinds of items, every pair once."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(N_USERS * N_ITEMS)[:N_RATINGS]
    users, items = pairs // N_ITEMS, pairs % N_ITEMS
    like = np.where((users % 2) == (items % 2), 1.2, -1.2)
    values = 3.0 + like + 0.3 * rng.normal(size=N_RATINGS) + 0.4 * rng.normal(size=N_USERS)[users]
    return users, items, values.astype(np.float32), np.sort(rng.integers(0, 50, N_RATINGS)) * 1000


@cache
def fit_of(dtype: str, settings: tuple[tuple[str, Any], ...]) -> HeMF:
    table = ratings()
    model = HeMF(n_factors=3, dtype=dtype, rng=0, **{"max_sweeps": 40, **dict(settings)})
    return model.fit(table if model.moods else table[:3])


def fitted(history: str | int, dtype: str = "float64", **settings: Any) -> HeMF:
    """Return a model; what it is to remember online is nothing to the fit."""
    model = deepcopy(fit_of(dtype, tuple(settings.items())))
    return model.set_params(history=history)


def adopt(model: HeMF) -> HeMF:
    """Let a model go on online, without a rating to learn."""
    settings, fit = model._settings(), model._fit
    nothing = np.empty(0, np.float32)
    learner = begin(fit, settings, nothing, Journal())
    model._holder.replace(updated(fit, learner, settings.online, nothing, fit.model.features))
    return model


def answers(model: HeMF) -> np.ndarray:
    """Mean and standard deviation of every pair, a stranger's and an unknown item's included."""
    users, items = np.divmod(np.arange((N_USERS + 1) * (N_ITEMS + 1)), N_ITEMS + 1)
    times = np.full(users.size, 10**6) if model.moods else None
    return np.concatenate(model.predict(users, items, timestamps=times, return_std=True))


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("setting", SETTINGS)
def test_adoption_changes_no_prediction(setting: str, dtype: str, history: str | int) -> None:
    model = fitted(history, dtype, **SETTINGS[setting])
    before, noise = answers(model), model.noise_variance_
    adopt(model)
    scale = np.ptp(ratings()[2])
    np.testing.assert_allclose(answers(model), before, rtol=0, atol=TOLERANCE[dtype] * scale)
    assert model.noise_variance_ == noise


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "features"])
def test_what_rows_give_is_on_record(setting: str, history: str | int) -> None:
    model = fitted(history, **SETTINGS[setting])
    batch = {name: side.statistics for name, side in model.state_.sides.items()}
    state = adopt(model).state_
    for name, store in state.stores.items():
        assert_same_statistics(store.statistics, given(state, name))
        assert store.size.sum() == pytest.approx(batch[name].size.sum())
        if batch[name].size.size == 1:  # one community: exactly what the fit has
            np.testing.assert_allclose(store.first, batch[name].first, rtol=1e-6, atol=1e-6)


def test_the_bound_is_that_of_the_fit() -> None:
    model = fitted("full", max_sweeps=200, tol=1e-7)
    before = model.elbo_
    assert adopt(model).elbo_ == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("setting", ["defaults", "plain", "features", "moods"])
def test_a_known_rating_moves_next_to_nothing_elsewhere(setting: str, history: str | int) -> None:
    model = fitted(history, max_sweeps=300, tol=1e-7, **SETTINGS[setting])
    before = answers(model)[: (N_USERS + 1) * (N_ITEMS + 1)].reshape(N_USERS + 1, -1)
    users, items, values, times = (column[:1] for column in ratings())
    more = {"previous": values} if history != "full" else {}
    model.partial_fit((users, items, values, *([times] if model.moods else [])), **more)
    after = answers(model)[: before.size].reshape(before.shape)
    apart = np.abs(after - before)
    elsewhere = np.delete(np.delete(apart, users, axis=0), items, axis=1)
    assert elsewhere.max() < 1e-3 * np.ptp(ratings()[2])
