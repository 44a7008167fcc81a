"""A row's posterior depends on what it has rated, not on the way there or on how much is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf._options import ALL
from hemf._typing import SIDES
from hemf.kernels.record import recall_all
from hemf.kernels.reference import online
from hemf.model.rows import pack
from hemf.online import state as states
from hemf.online import updates
from hemf.online.state import OnlineState
from hemf.online.store import RowStore
from proofs.learners import (
    SETTINGS,
    absorb,
    adopted,
    assert_same_statistics,
    batch_of,
    learner,
    pairs,
    planted,
    record,
    solve,
)
from proofs.problems import OTHER, Setting

WINDOWS = [ALL, 0, 3]

# -- with the other side as it is, nothing depends on the way ------------------------------------


def row(store: RowStore, i: int | slice) -> dict[str, Any]:
    """The posterior of a row, or of several."""
    fields = ("mean", "second", "membership", "entropy", "error", "weight", "count")
    return {field: np.copy(getattr(store, field)[i]) for field in fields}


def assert_same_row(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> None:
    for field, value in theirs.items():
        np.testing.assert_allclose(
            ours[field], value, rtol=tolerance, atol=tolerance, err_msg=field
        )


def refreshed_row(state: OnlineState, name: str, i: int) -> dict[str, Any]:
    """Refresh a row until q(a, z), q(τ) and what errors are measured in agree."""
    for _ in range(1 if state.sides[name].noise_scales is None else 60):
        solve(state, name, i)
    return row(state.stores[name], i)


# docs/model.md#changed-rating
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", SIDES)
def test_a_change_taken_back_leaves_the_posterior_as_it_was(
    setting: Setting, window: int, name: str
) -> None:
    rng = np.random.default_rng(7)
    state = learner(rng, setting, window=window, density=0.6)
    users, items, codes = pairs(learner(np.random.default_rng(7), setting, density=0.6))
    for k in rng.choice(codes.size, 5, replace=False):
        pair, i = (users[k], items[k]), int((users if name == "user" else items)[k])
        before, other = refreshed_row(state, name, i), (codes[k] + 5) % len(state.book)
        given = state.stores[name].statistics
        record(state, name, *pair, other, codes[k])
        moved = refreshed_row(state, name, i)
        assert np.abs(moved["mean"] - before["mean"]).max() > 1e-3
        record(state, name, *pair, codes[k], other)
        assert_same_row(refreshed_row(state, name, i), before, 1e-8)
        assert_same_statistics(state.stores[name].statistics, given, 1e-8)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", SIDES)
def test_an_added_rating_taken_out_leaves_the_posterior_as_it_was(
    setting: Setting, window: int, name: str
) -> None:
    """In a bounded history: where there was room for it, and no other had to leave.

    A rating that leaves does so for good. In the list it counted with its other row's posterior;
    in the sums it counts with that posterior as if the other row had not known of it, or it would
    be counted twice once that row moves. So the row is not quite where it was, though nothing of
    the added rating is left: added once more it takes the room that it had, and leaves no trace.
    """
    rng = np.random.default_rng(8)
    state = learner(rng, setting, window=window, density=0.5)
    users, items, _ = pairs(learner(np.random.default_rng(8), setting, density=0.5))
    there = np.zeros([state.stores[side].n_rows for side in SIDES], bool)
    there[users, items] = True
    free = np.argwhere(~there)

    def add(pair: np.ndarray, code: int) -> None:
        for side in SIDES:
            record(state, side, *pair, code)
        if window > 0:
            updates.evict(state, {side: (pair[[k]], np.array([1])) for k, side in enumerate(SIDES)})

    def take_out(pair: np.ndarray, code: int) -> None:
        for side in SIDES:
            record(state, side, *pair, -1, code)

    for k in rng.choice(len(free), 5, replace=False):
        pair, i = free[k], int(free[k][SIDES.index(name)])
        code = int(rng.integers(len(state.book)))
        if window > 0:  # make room
            add(pair, code)
            take_out(pair, code)
        before, given = refreshed_row(state, name, i), state.stores[name].statistics
        add(pair, code)
        moved = refreshed_row(state, name, i)
        assert moved["count"] == before["count"] + 1
        assert np.abs(moved["second"] - before["second"]).max() > 1e-3
        take_out(pair, code)
        assert_same_row(refreshed_row(state, name, i), before, 1e-8)
        assert_same_statistics(state.stores[name].statistics, given, 1e-8)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", SIDES)
def test_how_many_ratings_are_kept_makes_no_difference(setting: Setting, name: str) -> None:
    """Where the other side does not move, and all its rows are as uncertain, sums lose nothing."""
    results = []
    for window in (ALL, 0, 1, 4):
        state = learner(np.random.default_rng(9), setting, density=0.0, window=window)
        rng = np.random.default_rng(10)
        grid = [part.ravel() for part in np.indices([state.stores[n].n_rows for n in SIDES])]
        state.book.codes(np.float32([1, 2, 3.5, -4]))
        state.noise = 0.7
        state.stores[OTHER[name]].count[:] = 1  # they have been rated, though by nobody here
        for store in state.stores.values():
            store.mean_covariance = None
        order = rng.permutation(grid[0].size)[:120]
        users, items = (part[order] for part in grid)
        codes = rng.integers(0, 4, order.size)
        record(state, name, users, items, codes)
        changed = rng.choice(order.size, 30, replace=False)
        record(
            state, name, users[changed], items[changed], (codes[changed] + 1) % 4, codes[changed]
        )
        gone = rng.choice(order.size, 20, replace=False)
        now = codes.copy()
        now[changed] = (codes[changed] + 1) % 4
        record(state, name, users[gone], items[gone], np.full(20, -1), now[gone])
        store = state.stores[name]
        solve(state, name, np.arange(store.n_rows))
        results.append((row(store, slice(None)), store.statistics))
    for posterior, statistics in results[1:]:
        assert_same_row(posterior, results[0][0], 1e-9)
        assert_same_statistics(statistics, results[0][1])


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", SIDES)
def test_rows_in_any_order_give_the_same_communities(setting: Setting, name: str) -> None:
    start = planted(np.random.default_rng(11), setting)
    results = []
    for seed in range(3):
        state = adopted(start)
        rng = np.random.default_rng(seed)
        rows = rng.permutation(state.stores[name].n_rows)
        for part in np.array_split(rows, 1 + 3 * seed):
            solve(state, name, part)
        state.sides[name].refresh(state.stores[name].statistics)
        results.append(state.sides[name])
    for side in results[1:]:
        assert_same_statistics(side.statistics, results[0].statistics)
        np.testing.assert_allclose(
            side.communities.mean, results[0].communities.mean, rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            side.communities.scale, results[0].communities.scale, rtol=1e-9, atol=1e-9
        )


# -- histories -----------------------------------------------------------------------------------


def nbytes(store: RowStore) -> int:
    return sum(array.nbytes for array in store._arrays.values()) + store.history.nbytes


@pytest.mark.parametrize("window", [0, 3])
def test_memory_does_not_grow_with_ratings(window: int) -> None:
    rng = np.random.default_rng(14)
    state = adopted(planted(rng, SETTINGS[1]), window=window)
    shape = [state.stores[name].n_rows for name in SIDES]
    sizes = []
    for shift in range(80):  # every user rates one item, and every item has one or two ratings
        users = np.arange(shape[0])
        items = (users + shift) % shape[1]
        codes = rng.integers(0, len(state.book), users.size)
        absorb(state, users, items, codes, np.full(users.size, -1), learn=False)
        sizes.append(sum(nbytes(state.stores[name]) for name in SIDES))
    assert state.n_ratings > 2500
    assert sizes[-1] == sizes[len(sizes) // 2]
    for name in SIDES:  # a row may list more, where others have few
        assert state.stores[name].history.length.sum() <= window * sum(shape)


def test_a_full_history_takes_twelve_bytes_a_rating_and_a_third_more_of_room() -> None:
    state = adopted(planted(np.random.default_rng(15), SETTINGS[1]))
    kept = sum(s.history.other.nbytes + s.history.code.nbytes for s in state.stores.values())
    assert 12 * state.n_ratings < kept <= 16 * state.n_ratings


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_a_bounded_history_is_a_full_one_for_rows_with_no_more_ratings(setting: Setting) -> None:
    states = [
        learner(np.random.default_rng(16), setting, window=window, density=0.3)
        for window in (ALL, 30)
    ]
    for _ in range(5):
        for state in states:
            batch = batch_of(np.random.default_rng(state.seen), state, 10)
            absorb(state, *batch, learn=False)
    full, bounded = states
    assert max(full.stores[name].count.max() for name in SIDES) <= 30
    for name in SIDES:
        for field in ("mean", "second", "membership", "error", "count", "length"):
            left, right = (
                getattr(s.stores[name].history if field == "length" else s.stores[name], field)
                for s in states
            )
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12, err_msg=field)
        assert (bounded.stores[name].gram == 0.0).all()


def test_ratings_that_are_no_longer_new_to_either_row_are_summed_up() -> None:
    state = adopted(planted(np.random.default_rng(17), SETTINGS[0]), window=3)
    rng = np.random.default_rng(18)
    store, other = state.stores["user"], state.stores["item"]
    states.add_new_rows(state, "user", 4)
    i = store.n_rows - 1
    order, codes = rng.permutation(other.n_rows)[:8], rng.integers(0, len(state.book), 8)
    for j, code in zip(order, codes, strict=True):
        absorb(state, np.array([i]), np.array([j]), np.array([code]), np.array([-1]), learn=False)
    assert store.history.row(i)[0].tolist() == order.tolist()  # each is new to its item
    assert (store.gram[i] == 0.0).all()
    pushed = order[:4]  # three others rate these
    users, items = np.repeat(np.arange(i - 3, i), 4), np.tile(pushed, 3)
    absorb(state, users, items, np.zeros(12, np.int64), np.full(12, -1), learn=False)
    listed, listed_codes = store.history.row(i)
    assert listed.tolist() == order[4:].tolist()
    assert listed_codes.tolist() == codes[4:].tolist()
    assert store.count[i] == 8
    rows, rules = states.pair(state, "user"), states.rules(state)
    gram, moment, square = np.zeros(store.gram.shape[1]), np.zeros(store.moment.shape[1]), 0.0
    for j, r in zip(pushed, state.levels()[codes[:4]], strict=True):
        n = online.mean_without(*rows, rules, i, j, r)
        gram += other.weight[j] * pack(np.outer(n, n))
        moment += other.weight[j] * r * n
        square += other.weight[j] * r * r
        assert i not in other.history.row(j)[0]
    np.testing.assert_allclose(store.gram[i], gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(store.moment[i], moment, rtol=1e-9, atol=1e-9)
    assert store.square[i] == pytest.approx(square)
    assert store.summed_weight[i] == pytest.approx(4.0)  # ratings, each of weight one


def test_a_changed_rating_that_is_new_to_its_item_alone_is_counted_once() -> None:
    """A later change leaves sums and lists as if the rating had been the new one at once."""
    # User 0 rates item 0 and then all else; item 0 is rated by one more.
    order = np.array([(0, 0), *((0, j) for j in range(1, 12)), (3, 0)])
    later = np.random.default_rng(19).integers(0, 3, len(order) - 1)
    results = []
    for first in (1, 0):
        state = learner(np.random.default_rng(19), SETTINGS[0], density=0.0, window=2)
        state.book.codes(np.float32([1, 2, 3]))
        for name in SIDES:
            record(state, name, order[:, 0], order[:, 1], [first, *later])
        updates.evict(
            state,
            {name: np.unique(order[:, k], return_counts=True) for k, name in enumerate(SIDES)},
        )
        assert 0 in state.stores["user"].history.row(0)[0][:-2]
        assert 0 in state.stores["item"].history.row(0)[0]
        before = np.array([-1])
        nought = np.array([0])
        states.compiled(state, recall_all)(nought, nought, state.stores["user"].rows(), before)
        assert before.tolist() == [first]
        if first == 0:
            for name in SIDES:
                record(state, name, 0, 0, 1, before)
        results.append(state)
    once, twice = results
    for name in SIDES:
        left, right = once.stores[name], twice.stores[name]
        np.testing.assert_array_equal(left.count, right.count)
        for field in ("gram", "moment", "square", "summed_weight"):
            np.testing.assert_allclose(
                getattr(left, field), getattr(right, field), rtol=1e-12, atol=1e-12
            )
        for i in range(left.n_rows):
            assert [part.tolist() for part in left.history.row(i)] == [
                part.tolist() for part in right.history.row(i)
            ]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_batch_says_how_many_pairs_were_not_rated_before(window: int) -> None:
    state = adopted(planted(np.random.default_rng(20), SETTINGS[0]), window=window)
    states.add_new_rows(state, "user", 1)
    new, count = state.stores["user"].n_rows - 1, state.n_ratings
    users, items = np.full(5, new), np.arange(5)
    assert absorb(state, users, items, np.zeros(5, np.int64), np.full(5, -1)) == 5
    assert state.n_ratings == count + 5
    # Both list it as long as it is new to the item; without lists, the caller says so.
    before = np.array([-1 if window else 0])
    assert absorb(state, np.array([new]), np.array([0]), np.array([1]), before) == 0
    assert state.n_ratings == count + 5
    for name in SIDES:
        assert state.stores[name].count.sum() == count + 5
    absorb(state, users, items, np.full(5, -1), np.array([1, 0, 0, 0, 0]))
    assert state.n_ratings == count
    assert state.stores["user"].count[new] == 0


@pytest.mark.parametrize("window", WINDOWS)
def test_a_row_that_lost_all_its_ratings_is_at_its_prior(window: int) -> None:
    state = adopted(planted(np.random.default_rng(21), SETTINGS[0]), window=window)
    states.add_new_rows(state, "user", 2)
    new, empty = state.stores["user"].n_rows - 2, state.stores["user"].n_rows - 1
    users, items = np.full(6, new), np.arange(6)
    codes = np.arange(6) % len(state.book)
    absorb(state, users, items, codes, np.full(6, -1), learn=False)
    absorb(state, users, items, np.full(6, -1), codes, learn=False)
    solve(state, "user", [new, empty])
    ours, theirs = row(state.stores["user"], new), row(state.stores["user"], empty)
    assert_same_row(ours, theirs, 1e-8)


def test_rows_of_a_fit_are_refreshed_one_after_another():
    """All items were brought up to date at once; no later call has to refresh them all again."""
    rng = np.random.default_rng(3)
    users, items = np.divmod(rng.permutation(300 * 60), 60)
    ratings = rng.normal(size=users.size)
    model = HeMF(n_factors=2, max_user_communities=1, max_item_communities=1, max_sweeps=3, rng=0)
    with pytest.warns(match="sweeps"):
        model.fit((users[:16_000], items[:16_000], ratings[:16_000]))
    counts, before = [], None
    for begin in range(16_000, 17_200, 10):
        new = slice(begin, begin + 10)
        model.partial_fit((users[new], items[new], ratings[new]))
        refreshed = model._fit.learner.state.stores["item"].last_refresh.copy()
        if before is not None:
            counts.append(np.count_nonzero(refreshed != before))
        before = refreshed
    assert sum(counts) >= 60
    assert max(counts) <= 6
