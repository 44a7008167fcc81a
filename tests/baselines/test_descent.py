"""Rows grow with the ids, and what goes wrong leaves no trace."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from hemf import ParameterError
from hemf.baselines.sgd import MIN_ROWS, Descent, Schedule, Seen, Side
from hemf.data.vocabulary import Vocabulary, factorise

SCHEDULE = Schedule(step=0.1, decay=100.0, power=1.0, factor_penalty=0.1, offset_penalty=0.1)


def side(ids: Any = (), seed: int = 0) -> Side:
    return Side(Vocabulary(ids), 2, 0.5, np.float32, seed=seed)


def empty() -> Descent:
    return Descent(side(), side(seed=1), 1.0, Seen(np.inf, -np.inf))


def learn(state: Descent, users: Any, items: Any, ratings: Any, **options: Any) -> Any:
    values = np.array(ratings, np.float32)
    schedule = options.get("schedule", SCHEDULE)
    return state.stream(schedule, factorise(users), factorise(items), values, predict=True)


def test_the_step_shrinks_with_the_ratings_learnt():
    steps = SCHEDULE.steps(0, 301)
    assert steps[[0, 100, 300]] == pytest.approx([0.1, 0.05, 0.025])
    assert np.array_equal(SCHEDULE.steps(100, 201), steps[100:])
    assert set(Schedule(0.1, 100.0, 0.0, 0.0, 0.0).steps(5, 50)) == {0.1}


def test_storage_doubles_and_rows_in_use_stay():
    growing, sizes = side(), set()
    growing.reserve(1)
    growing.rows[0] = 7.0
    for n in range(1, 1000):
        growing.reserve(n)
        sizes.add(len(growing.rows))
    assert sorted(sizes) == [MIN_ROWS * 2**k for k in range(7)]
    assert growing.rows[0].tolist() == [7.0, 7.0, 7.0]


def test_a_row_starts_the_same_however_storage_grew():
    at_once, step_by_step = side(range(100)), side()
    for n in (1, 17, 40, 100):
        step_by_step.reserve(n)
    assert np.array_equal(at_once.rows[:100], step_by_step.rows[:100])
    assert not at_once.rows[:, 0].any()
    assert at_once.rows[:, 1:].std() == pytest.approx(0.5, rel=0.2)


def test_new_ids_have_rows_in_the_order_they_came():
    state = empty()
    learn(state, ["bob", "ann", "bob"], [7, 7, 9], [3, 4, 5])
    learn(state, ["eve", "ann"], [5, 9], [1, 2])
    assert state.users.find(["ann", "bob", "eve", "zoe"]).tolist() == [1, 0, 2, -1]
    assert state.items.find([5, 7, 9]).tolist() == [2, 0, 1]
    assert state.seen == Seen(1.0, 5.0, 15.0, 5, 5)


def test_before_there_are_ratings_the_middle_of_their_range_is_expected():
    assert Seen(1.0, 5.0).mean == 3.0
    assert Seen(np.inf, -np.inf).mean == Seen(-np.inf, np.inf).mean == 0.0


def diverging(state: Descent, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = Schedule(1e30, 1.0, 0.0, 0.0, 0.0)
    learn(state, ["ann", "eve", "ann"], ["tea", "ale", "tea"], [1, 2, 3], schedule=wild)


def interrupted(state: Descent, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_coded(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(state.items.ids, "add_coded", add_coded)
    learn(state, ["ann", "eve"], ["tea", "ale"], [1, 2])


@pytest.mark.parametrize(
    ("fail", "error"), [(diverging, ParameterError), (interrupted, KeyboardInterrupt)]
)
def test_a_batch_that_fails_half_way_is_undone(fail, error, monkeypatch):
    state = empty()
    learn(state, ["ann", "bob"], ["tea", "milk"], [5, 1])
    before = deepcopy(state)
    with monkeypatch.context() as patch, pytest.raises(error):
        fail(state, patch)
    assert state.seen == before.seen
    assert state.users.find(["ann", "bob", "eve"]).tolist() == [0, 1, -1]
    assert state.items.find(["tea", "milk", "ale"]).tolist() == [0, 1, -1]
    assert np.array_equal(state.users.rows, before.users.rows)
    again = [learn(s, ["ann", "eve"], ["tea", "ale"], [1, 2]) for s in (state, before)]
    assert np.array_equal(*again)
    assert np.array_equal(state.items.rows, before.items.rows)
