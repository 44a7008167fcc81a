"""Tables that leave little to learn: clipped, constant, duplicated, of rank one, one-hot.

Whatever is fitted or learnt online, every answer is finite and nothing warns of arithmetic.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hemf import (
    ConvergenceWarning,
    DataError,
    DataWarning,
    DuplicateWarning,
    HeMF,
    HistoryWarning,
)
from hemf.evaluation.distribution import is_scale

Rng = np.random.Generator
Table = np.ndarray


def factors(rng: Rng, shape: tuple[int, int], rank: int) -> Table:
    return rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))


def clipped(rng: Rng, shape: tuple[int, int]) -> Table:
    table = 6.0 + 0.6 * factors(rng, shape, 6) + 0.3 * rng.normal(size=shape)
    return np.maximum(table, np.quantile(table, rng.choice([0.5, 0.9, 0.99])))


def constant(rng: Rng, shape: tuple[int, int]) -> Table:
    return np.full(shape, rng.choice([0.0, 1.0, -3.5, 1e6, 1e-6]))


def nearly_constant(rng: Rng, shape: tuple[int, int]) -> Table:
    table = constant(rng, shape)
    table[rng.integers(shape[0]), rng.integers(shape[1])] += rng.choice([1.0, 1e-3, 1e3])
    return table


def duplicated(rng: Rng, shape: tuple[int, int]) -> Table:
    """Rows, or columns, of which there are two kinds."""
    table = np.round(3.0 + factors(rng, shape, 2))
    chosen = np.arange(shape[0]) % 2 if rng.random() < 0.5 else np.zeros(shape[0], int)
    return table[chosen]


def rank_one(rng: Rng, shape: tuple[int, int]) -> Table:
    return rng.choice([1.0, 1e-4, 1e4]) * factors(rng, shape, 1)


def whole_numbers(rng: Rng, shape: tuple[int, int]) -> Table:
    return rng.integers(0, rng.choice([2, 6, 1000]), shape).astype(float)


def one_hot(rng: Rng, shape: tuple[int, int]) -> Table:
    return np.eye(*shape)[:, rng.permutation(shape[1])]


def of_one_user(rng: Rng, shape: tuple[int, int]) -> Table:
    """Users who give all items the same; one of them does not."""
    table = np.repeat(rng.integers(1, 6, (shape[0], 1)), shape[1], axis=1).astype(float)
    table[0] = rng.normal(size=shape[1])
    return table


KINDS: list[Callable[[Rng, tuple[int, int]], Table]] = [
    clipped, constant, nearly_constant, duplicated, rank_one, whole_numbers, one_hot, of_one_user,
]  # fmt: skip

cases = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "shape": st.tuples(st.integers(1, 30), st.integers(1, 40)),
        "density": st.sampled_from([0.1, 0.5, 0.9, 1.0]),
        "seed": st.integers(0, 10_000),
        "fitted": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "batch": st.sampled_from([1, 7, 50, 1000]),
        "again": st.booleans(),
        "parameters": st.fixed_dictionaries(
            {
                "n_factors": st.integers(1, 6),
                "max_user_communities": st.sampled_from([1, 4]),
                "max_item_communities": st.sampled_from([1, 4]),
                "noise_scales": st.sampled_from([None, "user", "item", "both"]),
                "offsets": st.booleans(),
                "user_covariances": st.sampled_from(["own", "tied"]),
                "item_covariances": st.sampled_from(["own", "tied"]),
                "membership": st.sampled_from(["coupled", "mean-field"]),
                "history": st.sampled_from(["full", 4, "none"]),
                "forgetting": st.sampled_from([1.0, 1.0, 0.9]),
                "dtype": st.sampled_from(["float32", "float64"]),
            }
        ),
    }
)


def columns(table: Table, density: float, rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings of a table in random order, at least one."""
    there = rng.random(table.shape) < density
    there.flat[rng.integers(there.size)] = True
    users, items = np.nonzero(there)
    order = rng.permutation(users.size)
    return users[order], items[order], table[there][order]


def learn(case: dict[str, Any]) -> HeMF:
    """Fit a part of the ratings, if any, and learn the others online."""
    rng = np.random.default_rng(case["seed"])
    data = columns(case["kind"](rng, case["shape"]), case["density"], rng)
    parameters = {"max_sweeps": 40, "rng": 0, "n_jobs": 1, **case["parameters"]}
    model, begin = HeMF(**parameters), round(case["fitted"] * data[0].size)
    if begin > 0:
        model.fit(tuple(column[:begin] for column in data))
        assert_answers(model)
    starts = [*range(begin, data[0].size, case["batch"])][:60]
    if case["again"]:  # the same ratings, learnt a second time
        starts += [*range(0, data[0].size, case["batch"])][:20]
    for start in starts:
        try:
            model.partial_fit(tuple(column[start : start + case["batch"]] for column in data))
        except DataError as error:  # it has learnt nothing of these
            if "too far from the others" not in str(error):
                raise
    return model


def assert_answers(model: HeMF) -> None:
    users = [*model.ratings_.users.ids[:6], "stranger"] if kept(model) else [0, 1, "stranger"]
    items = [*model.ratings_.items.ids[:6], "new"] if kept(model) else [0, 1, "new"]
    low, high = model.rating_range_ or (-np.inf, np.inf)
    for user in users:
        mean, std = model.predict(user, items, return_std=True)
        _, taste = model.predict(user, items, return_std=True, include_noise=False)
        assert np.isfinite(mean).all()
        assert ((mean >= low) & (mean <= high)).all()
        assert (np.isfinite(std) & (std > 0.0)).all()
        assert ((taste >= 0.0) & (taste <= std * (1.0 + 1e-6))).all()
    distribution = model.predict_distribution([users[0]] * len(items), items)
    ends = distribution.interval(0.9)
    assert np.isfinite(ends).all()
    assert (ends[0] < ends[1]).all()
    assert np.isfinite(distribution.log_density(distribution.mean)).all()
    if is_scale(model.levels_):
        odds = model.predict_proba([users[0]] * len(items), items)
        np.testing.assert_allclose(odds.sum(axis=1), 1.0, rtol=1e-6)
    for strategy in ("mean", "ucb", "thompson"):
        _, scores = model.recommend(users[0], strategy=strategy, exclude_seen=False, rng=0)
        assert np.isfinite(scores).all()
    for side in ("user", "item"):
        view = model.communities(side)
        assert np.isfinite(view.sizes).all()
        assert all(np.isfinite(one.rating) for every in view.typical for one in every)
    assert model.biclusters()
    for user, item in ((users[0], items[0]), (users[-1], items[0]), (users[0], items[-1])):
        assert "nan" not in str(model.explain(user, item)).lower()
    assert np.isfinite(model.noise_variance_)
    assert model.noise_variance_ > 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.hemf"
        model.save(path)
        again = HeMF.load(path)
    for user in users:
        np.testing.assert_array_equal(again.predict(user, items), model.predict(user, items))


def kept(model: HeMF) -> bool:
    return model.history == "full"


def check(case: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allowed = (ConvergenceWarning, DataWarning, DuplicateWarning, HistoryWarning)
        for each in allowed:
            warnings.simplefilter("ignore", each)
        assert_answers(learn(case))


@given(case=cases)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_answers_are_finite(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.slow
@given(case=cases)
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_finite_for_many(case: dict[str, Any]) -> None:
    check(case)


def cut_off(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table of which nine tenths of the entries are equal."""
    rng = np.random.default_rng(seed)
    table = 6.0 + 0.6 * factors(rng, (68, 442), 6) + 0.3 * rng.normal(size=(68, 442))
    return columns(np.maximum(table, np.quantile(table, 0.9)), 0.9, rng)


@pytest.mark.filterwarnings("ignore::hemf.ConvergenceWarning")
def test_no_rating_has_less_noise_than_single_precision_can_tell() -> None:
    """Rows of equal ratings have scales that multiply: to 5e-9 of the variance, and then NaN."""
    state = HeMF(max_sweeps=40, rng=0).fit(cut_off(0)).state_
    weights = [state.sides[name].weights.max() for name in ("user", "item")]
    assert state.noise / np.prod(weights) > 1e-6


@pytest.mark.parametrize("history", ["full", 64])
@pytest.mark.filterwarnings("ignore::hemf.ConvergenceWarning")
def test_a_table_that_is_cut_off_is_learnt_online(history: str | int) -> None:
    """It was NaN after 900 ratings, on top of a fit of nine tenths."""
    rng = np.random.default_rng(7)
    table = 6.0 + 0.6 * factors(rng, (200, 200), 6) + 0.3 * rng.normal(size=(200, 200))
    data = columns(np.maximum(table, np.quantile(table, 0.97)), 0.9, rng)
    begin = int(0.9 * data[0].size)
    model = HeMF(rng=1, history=history, max_sweeps=100).fit(tuple(c[:begin] for c in data))
    for start in range(begin, begin + 1000, 100):
        model.partial_fit(tuple(column[start : start + 100] for column in data))
    assert np.isfinite(model.predict(data[0][:50], data[1][:50])).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::hemf.ConvergenceWarning")
def test_a_table_that_is_cut_off_is_fitted(seed: int) -> None:
    assert_answers(HeMF(rng=0).fit(cut_off(seed)))
