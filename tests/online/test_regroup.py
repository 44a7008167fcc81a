"""Communities that open, merge and go online: rows, statistics and the bound agree throughout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hemf._options import ALL
from hemf._typing import SIDES
from hemf.model.side import EMPTY, drop_empty, merge_alike, order_by_size
from hemf.online import clocks, communities, updates
from hemf.online.state import OnlineState
from proofs.learners import (
    SETTINGS,
    adopted,
    assert_nothing_drifted,
    belief,
    bound_terms,
    learner,
    planted,
    solve,
)
from proofs.problems import Setting

WINDOWS = [ALL, 0, 3]


def total(state: OnlineState) -> float:
    return sum(bound_terms(state).values())


def tidied(state: OnlineState, name: str) -> bool:
    """Tidy a side up as a state does; return whether anything changed."""
    side, store = state.sides[name], state.stores[name]
    changed = communities.tidy(side, store)
    if changed:
        state.point(name)
        side.refresh(store.statistics)
    return changed


def opened(state: OnlineState, name: str, rows: np.ndarray | None = None) -> np.ndarray | None:
    """Search rows, all or those refreshed of late, for a community; return who is in it."""
    store, before = state.stores[name], state.sides[name].n_communities
    state.clocks.last["search", name] = 0.0
    store.totals[2] = max(store.totals[2], clocks.MIN_REFRESHES["search"])
    store.last_refresh[:] = 1
    if rows is not None:
        store.last_refresh[:] = 0
        store.last_refresh[rows] = 1
    updates.search(state, name)
    if state.sides[name].n_communities == before:
        return None
    return np.flatnonzero(state.sides[name].membership[:, -1] > 0.5)


def away(state: OnlineState, name: str, which: int, *, spare: float = 0.0) -> None:
    """Move a community away from all rows, which then leave it but for ``spare`` of one row."""
    side, store = state.sides[name], state.stores[name]
    communities = side.communities
    mean = communities.mean.copy()
    mean[which] += 8.0
    side.communities = replace(communities, mean=mean)
    solve(state, name, np.arange(store.n_rows))
    if spare:
        slot = int(np.flatnonzero(store.listed[0] < 0)[0])
        store.listed[0, slot] = which
        store.parts[0, slot] = spare * store.parts[0, 0]
        store.membership[0, which] = spare
        part, order = store.parts[0, slot], store.layout.order
        store.size[which] += part[0]
        store.first[which] += part[1 : 1 + order]
        store.scatter[which if store.scatter.shape[0] > 1 else 0] += part[1 + order :]
    side.refresh(store.statistics)


# -- merging and ordering ------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_tidying_up_raises_the_bound(setting: Setting, seed: int) -> None:
    # Rows of one kind, dealt at random to four communities: these are alike.
    state = learner(
        np.random.default_rng(seed), setting, users=30, communities=(4, 3),
        options={"min_share": 1e-14},
    )  # fmt: skip
    fewer = 0
    for name in SIDES:
        before, count = total(state), state.sides[name].n_communities
        changed = tidied(state, name)
        after = total(state)
        assert changed or state.sides[name].n_communities == count
        assert after >= before - 1e-9 * abs(before)
        assert_nothing_drifted(state)
        fewer += count - state.sides[name].n_communities
    assert fewer > 0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_tidying_up_is_what_batch_moves_do(setting: Setting) -> None:
    state = learner(np.random.default_rng(2), setting, users=30, communities=(4, 3))
    for name in SIDES:
        side = state.sides[name].copy()
        drop_empty(side)
        merge_alike(side)
        order_by_size(side)
        tidied(state, name)
        ours = state.sides[name]
        np.testing.assert_allclose(ours.statistics.size, side.statistics.size, rtol=1e-9)
        np.testing.assert_allclose(ours.statistics.first, side.statistics.first, atol=1e-9)
        np.testing.assert_allclose(ours.statistics.scatter, side.statistics.scatter, atol=1e-9)
        assert ours.statistics.entropy == pytest.approx(side.statistics.entropy, rel=1e-9)
        np.testing.assert_allclose(ours.membership, side.membership, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_merged_rows_keep_their_moments(setting: Setting) -> None:
    state = learner(np.random.default_rng(3), setting, users=30, communities=(4, 3))
    before = belief(state, "user")
    mean = np.einsum("id,idj->ij", before.share, before.mean)
    assert tidied(state, "user")
    after = belief(state, "user")
    np.testing.assert_allclose(after.share.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        np.einsum("id,idj->ij", after.share, after.mean), mean, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(mean, state.sides["user"].factor_means, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_largest_community_comes_first(setting: Setting) -> None:
    state = adopted(planted(np.random.default_rng(4), setting, users=(8, 14, 10)))
    before = belief(state, "user")
    value = total(state)
    assert tidied(state, "user")
    np.testing.assert_allclose(state.stores["user"].size, [14, 10, 8], atol=0.1)
    after = belief(state, "user")
    for part in ("share", "mean", "covariance"):
        np.testing.assert_array_equal(
            getattr(after, part)[:, [2, 0, 1]], getattr(before, part), err_msg=part
        )
    assert total(state) > value
    assert_nothing_drifted(state)


def test_communities_that_differ_are_left_alone() -> None:
    state = adopted(planted(np.random.default_rng(5), SETTINGS[0]))
    before = state.stores["user"].statistics
    assert not tidied(state, "user")
    assert not tidied(state, "item")
    np.testing.assert_array_equal(state.stores["user"].size, before.size)


# -- dropping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_an_empty_community_goes_and_the_others_stay(setting: Setting) -> None:
    state = adopted(planted(np.random.default_rng(6), setting), min_share=1e-14)
    away(state, "user", 2)
    assert state.stores["user"].size[2] < EMPTY
    before = total(state)
    sizes = state.stores["user"].size[:2].copy()
    assert tidied(state, "user")
    np.testing.assert_allclose(np.sort(state.stores["user"].size), np.sort(sizes), rtol=1e-6)
    assert total(state) >= before - 1e-9 * abs(before)
    assert_nothing_drifted(state)


def test_what_a_dropped_community_held_is_gone_from_statistics() -> None:
    state = adopted(planted(np.random.default_rng(7), SETTINGS[0]))
    away(state, "user", 2, spare=0.5 * EMPTY)
    assert 0.0 < state.stores["user"].size[2] < EMPTY
    assert_nothing_drifted(state)
    assert tidied(state, "user")
    assert_nothing_drifted(state)


# -- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("found", [1, 2])
def test_a_community_opens_for_rows_that_are_of_another_kind(
    setting: Setting, window: int, found: int
) -> None:
    start = planted(np.random.default_rng(8), setting, users=(30, 26, 24), found={"user": found})
    state = adopted(start, window=window)
    for _ in range(5):
        for name in SIDES:
            updates.refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)
    before = sum(state.bound_terms().values())
    slow = total(state) if window == ALL else 0.0
    moved = opened(state, "user")
    assert moved is not None
    count = state.sides["user"].n_communities
    assert count == found + 1
    assert sum(state.bound_terms().values()) > before
    if window == ALL:
        assert total(state) > slow
    assert_nothing_drifted(state)
    kind = np.repeat(np.arange(3), (30, 26, 24))
    inside = np.isin(np.arange(kind.size), moved)
    parts = [inside[kind == k].mean() for k in range(3)]
    assert all(part in (0.0, 1.0) for part in parts)  # whole kinds move


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_community_opens_where_there_is_none(setting: Setting) -> None:
    for seed in range(4):
        state = adopted(planted(np.random.default_rng(seed), setting, users=(30,)))
        for _ in range(5):
            for name in SIDES:
                updates.refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)
        count = state.sides["user"].n_communities
        assert opened(state, "user") is None
        assert state.sides["user"].n_communities == count == state.stores["user"].size.size


def test_few_rows_open_no_community() -> None:
    state = adopted(
        planted(np.random.default_rng(9), SETTINGS[0], users=(14, 12), found={"user": 1})
    )
    before = state.stores["user"].statistics
    assert opened(state, "user", np.arange(10, 10 + communities.MIN_SPLIT_ROWS - 1)) is None
    np.testing.assert_array_equal(state.stores["user"].size, before.size)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_a_community_that_opened_can_be_merged_again(setting: Setting) -> None:
    state = adopted(planted(np.random.default_rng(10), setting, users=(30, 26), found={"user": 1}))
    assert opened(state, "user") is not None
    side, store = state.sides["user"], state.stores["user"]
    store.regroup(np.zeros(2, np.int64), 1)
    assert store.membership.shape == (56, 1)
    np.testing.assert_allclose(store.membership, 1.0, rtol=1e-12)
    np.testing.assert_array_equal((store.listed >= 0).sum(axis=1), 1)
    assert side.n_communities == 2  # the side follows once it is pointed to its store


def test_a_side_keeps_to_its_limit() -> None:
    start = planted(np.random.default_rng(11), SETTINGS[0], users=(14, 12), found={"user": 1})
    for most, found in ((1, None), (None, 12)):
        state = adopted(start, max_communities={"user": most, "item": 1})
        moved = opened(state, "user")
        assert found == (None if moved is None else min(moved.size, 26 - moved.size))
        assert_nothing_drifted(state)
