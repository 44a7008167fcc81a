"""Changes that are no steps up the bound are kept only where they pay."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf._options import ALL
from hemf._typing import SIDES
from hemf.online import jumps, learner, start, updates
from hemf.online.state import OnlineState
from hemf.online.updates import pass_over
from proofs.learners import SETTINGS, adopted, assert_nothing_drifted, planted

WINDOWS = [ALL, 3, 0]


def state_of(window: int, **options: Any) -> OnlineState:
    """A small converged state, with ratings to judge jumps by."""
    state = adopted(planted(np.random.default_rng(0), SETTINGS[3]), window=window, **options)
    for _ in range(5):
        pass_over(state)
    history = adopted(planted(np.random.default_rng(0), SETTINGS[3])).stores["user"].history
    indptr, items, codes = history.to_rows()
    users = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    updates.remember(state, users, items.astype(np.int64), codes.astype(np.int64))
    return state


def contents(state: OnlineState) -> dict[str, Any]:
    """All numbers that a state holds, by name."""
    found: dict[str, Any] = {"noise": state.noise, "total": state.total, "recent": state.recent}
    found["rng"] = state.rng.bit_generator.state
    for name in (field.name for field in fields(state)):
        if isinstance(getattr(state, name), int | float):
            found[name] = getattr(state, name)
    found |= {
        f"clocks {key}": value for key, value in vars(state.clocks).items() if key != "stores"
    }
    for name in SIDES:
        store, side = state.stores[name], state.sides[name]
        found |= {f"{name} {key}": array for key, array in store.in_use().items()}
        found |= {f"{name} {key}": getattr(store, key) for key in ("size", "first", "scatter")}
        found |= {f"{name} totals": store.totals, f"{name} lists": store.history.to_rows()}
        found[f"{name} communities"] = side.communities.scale, side.communities.mean
        found[f"{name} prior"] = side.prior.scale, side.prior.centre, side.prior.dof
    return copy.deepcopy(found)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, value in theirs.items():
        parts = zip(ours[name], value, strict=True) if isinstance(value, tuple) else [
            (ours[name], value)
        ]  # fmt: skip
        for left, right in parts:
            if isinstance(right, np.ndarray):
                np.testing.assert_array_equal(left, right, err_msg=name)
            else:
                assert left == right, name


def ruin(state: OnlineState) -> bool:
    """Take all differences between items away, and draw a number."""
    store = state.stores["item"]
    store.mean[:, store.layout.factors] = state.rng.normal(size=store.layout.factors.size)
    state.noise *= 9.0
    state.set_total()
    return True


def mend(state: OnlineState) -> bool:
    for _ in range(3):
        pass_over(state)
    return True


@pytest.fixture
def no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "pass_over", lambda state: None)


# docs/model.md#jumps
@pytest.mark.usefixtures("no_pass")
@pytest.mark.parametrize("window", WINDOWS)
def test_a_jump_that_does_not_pay_leaves_all_as_it_was(window: int) -> None:
    state = state_of(window)
    before = contents(state)
    assert not learner.try_jump(state, ruin, passes=1)
    assert_same(contents(state), before)
    pass_over(state)
    assert_nothing_drifted(state)


@pytest.mark.usefixtures("no_pass")
@pytest.mark.parametrize("window", WINDOWS)
def test_a_jump_that_fails_leaves_all_as_it_was(window: int) -> None:
    def fail(state: OnlineState) -> bool:
        ruin(state)
        raise MemoryError

    state = state_of(window)
    before = contents(state)
    with pytest.raises(MemoryError):
        learner.try_jump(state, fail, passes=1)
    assert_same(contents(state), before)


@pytest.mark.usefixtures("no_pass")
@pytest.mark.parametrize("window", [ALL, 3])
def test_a_jump_that_pays_is_kept(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumps, "pays", lambda *arguments: True)
    state, rng = state_of(window), np.random.default_rng(0)
    ruin(state)
    pass_over(state)
    before = state.stores["user"].mean.copy()
    state.rng = rng
    assert learner.try_jump(state, mend, passes=1)
    assert (state.stores["user"].mean != before).any()
    assert state.rng is rng  # the caller's own
    for name in SIDES:  # sides look at the rows of the copy that was taken
        assert np.shares_memory(state.sides[name].moments.mean, state.stores[name].mean)
    assert_nothing_drifted(state)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_split_that_does_not_pay_is_not_made(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = planted(np.random.default_rng(8), SETTINGS[0], users=(30, 26), found={"user": 1})
    state = adopted(start, window=window)
    some = np.zeros(updates.MIN_RECENT, np.int64)
    updates.remember(state, some, some, some)
    state.clocks.last["search", "user"] = -1e9
    before, errors = contents(state), iter([np.zeros(some.size), np.ones(some.size)])
    monkeypatch.setattr(updates, "left_out_errors", lambda *_: next(errors))
    updates.search(state, "user")
    assert not list(errors)  # a split was made, and judged
    after = contents(state)
    before["clocks last"]["search", "user"] = after["clocks last"]["search", "user"]
    assert_same(after, before)
    pass_over(state)
    assert_nothing_drifted(state)


def test_a_stream_does_not_start_again_where_that_does_not_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 30, 150), rng.integers(0, 20, 150), rng.normal(size=150)
    model = HeMF(n_factors=2, duplicates="mean", rng=0).partial_fit(ratings)
    before = contents(model.state_)
    monkeypatch.setattr(jumps, "pays", lambda *arguments: False)
    learner.start_again(model.state_)
    before["clocks due_at"]["restart", ""] = 2 * model.state_.seen
    assert_same(contents(model.state_), before)


@pytest.mark.parametrize("history", ["full", 3, "none"])
def test_the_first_rating_after_a_fit_costs_no_more_than_others(
    history: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "is_ready", lambda options, dtype: True)
    rng = np.random.default_rng(0)
    pairs = rng.permutation(40 * 30)[:600]
    ratings = pairs // 30, pairs % 30, rng.normal(size=600)
    model = HeMF(n_factors=2, history=history, rng=0).fit(tuple(part[:599] for part in ratings))
    refreshed = []
    before = updates.refresh_rows

    def count(state: OnlineState, name: str, rows: np.ndarray, *rest: Any) -> None:
        refreshed.append(rows.size)
        before(state, name, rows, *rest)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("all ratings are looked at")

    monkeypatch.setattr(updates, "refresh_rows", count)
    monkeypatch.setattr(start, "take_over", refuse)
    model.partial_fit(tuple(part[599:] for part in ratings))
    assert sum(refreshed) <= 2
