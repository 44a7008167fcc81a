"""Moods that are learnt online: filtered as ratings come, smoothed by the bound of the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hemf._options import ALL, OnlineOptions, Schedule
from hemf._typing import SIDES
from hemf.batch.fit import (
    BatchState,
    learn_noise,
    sweep,
    update_moods,
    update_side,
)
from hemf.data.vocabulary import RatingBook
from hemf.engines.threads import Sessions, Threads
from hemf.model.moods import MoodPosterior, MoodPrior, Moods
from hemf.online import start, updates
from hemf.online.moods import OnlineMoods
from hemf.online.state import OnlineState
from proofs.learners import (
    CENTRE,
    EXACT,
    SETTINGS,
    absorb,
    as_batch,
    coarse,
    pairs,
    predict_then_learn,
)
from proofs.problems import Setting, fit_with, problem, tables, with_times

AT_ONCE = Schedule(
    warm_up=-1, hold_scale=0, hold_structure=0, hold_noise=0, hold_mood=0, merge_every=1
)
PRIOR = MoodPrior(persistence=0.7, variance=0.3, extra=0.1)


def moody(rng: np.random.Generator, setting: Setting, communities: int = 3) -> BatchState:
    """A small problem whose ratings were given at a few times, and moods that explain some."""
    state = coarse(problem(rng, setting, communities=(communities, communities)))
    times = 10 * rng.integers(0, 4, state.n_ratings)
    state = with_times(state, times)
    state.moods = replace(state.moods, prior=PRIOR)
    for name in SIDES:
        update_side(state, name, learn=False)
    update_moods(state, learn=False)
    return state


def adopted(state: BatchState, *, window: int = ALL, **options: Any) -> OnlineState:
    """A state that goes on from a batch state, as `proofs.learners.adopted` without moods."""
    book, moods, lists = RatingBook(), state.moods, {}
    assert moods is not None
    for name, part in tables(state).items():
        values = np.float32(part.values * state.unit + CENTRE)
        sessions = state.ratings.sessions.of_ratings[name]
        lists[name] = part.indptr, part.indices, book.codes(values), sessions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hemf.online.state.SCARCE", 0.0)
        online = start.take_over(
            state.copy(), lists, book,
            OnlineOptions(window=window, **{**EXACT, **options}),
            centre=CENTRE, rng=np.random.default_rng(0),
            moods=OnlineMoods.adopt(moods, np.float64),
        )  # fmt: skip
        updates.pass_over(online)
        return start.finish(online)


def in_batch(online: OnlineState) -> BatchState:
    """The state as it is now, moods included, as batch inference holds it."""
    state, moods = as_batch(online), online.moods
    assert moods is not None
    order, indptr = moods._chains()
    number = np.full(int(moods.used[0]), -1)
    number[order] = np.arange(order.size)
    level, spread = moods.table[order, 0], moods.table[order, 1]
    of_ratings = {
        name: number[store.history.sessions()].astype(np.int32)
        for name, store in online.stores.items()
    }
    times = moods.time[order]
    state.engine = Threads.of(tables(state), sessions=Sessions(indptr, times, of_ratings), n_jobs=1)
    state.moods = Moods(
        indptr=indptr,
        times=times,
        prior=moods.prior,
        posterior=MoodPosterior(level, spread, np.zeros(order.size), *moods.of(order)),
        divergence=moods.divergence(complete=True),
    )
    return state


def times_of(state: OnlineState) -> np.ndarray:
    """Times of all ratings in the users' histories."""
    assert state.moods is not None
    return np.asarray(state.moods.time[state.stores["user"].history.sessions()])


def assert_same(ours: OnlineState, theirs: BatchState) -> None:
    """Moments, noise, moods and bound are the same."""
    assert ours.moods is not None
    assert theirs.moods is not None
    assert ours.noise == pytest.approx(theirs.noise, rel=1e-8)
    for name in SIDES:
        for one, other in zip(
            vars(ours.sides[name].moments).values(),
            vars(theirs.sides[name].moments).values(),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    found = in_batch(ours).moods
    assert found is not None
    for field in ("level", "level_spread", "mean", "spread"):
        np.testing.assert_allclose(
            getattr(found.posterior, field), getattr(theirs.moods.posterior, field),
            rtol=1e-7, atol=1e-8,
        )  # fmt: skip
    assert vars(ours.moods.prior) == pytest.approx(vars(theirs.moods.prior), rel=1e-6)
    quick, slow = ours.bound_terms(), theirs.bound_terms()
    assert quick == pytest.approx(slow, abs=1e-7 * abs(sum(slow.values())))
    assert ours.total[0] == pytest.approx(ours.squared_error, rel=1e-9)


class Climb:
    """A state whose bound does not fall."""

    def __init__(self, state: OnlineState) -> None:
        self.state, self.value = state, sum(state.bound_terms().values())

    def assert_no_lower(self, block: str) -> None:
        value = sum(self.state.bound_terms().values())
        assert value >= self.value - 1e-9 * abs(self.value), (block, value - self.value)
        self.value = value
        assert self.state.total[0] == pytest.approx(self.state.squared_error, rel=1e-9)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_fit_with_moods_is_taken_over_by_one_sweep(setting: Setting) -> None:
    state = moody(np.random.default_rng(0), setting)
    online = adopted(state)
    for name in SIDES:
        update_side(state, name, learn=False)
    update_moods(state, learn=False)
    learn_noise(state)
    assert_same(online, state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_batch_of_everything_is_one_sweep_with_moods(setting: Setting) -> None:
    rng = np.random.default_rng(1)
    online = adopted(moody(rng, setting, communities=1))  # no moves: they are proven elsewhere
    for name in SIDES:
        updates.learn_row_scales(online, name)
    state = replace(in_batch(online), seeded_at=0, sweeps=1)
    users, items, codes = pairs(online)
    absorb(online, users, items, codes, np.full(codes.size, -1), times_of(online))
    sweep(state, fit_with(setting, schedule=AT_ONCE), rng)
    for side in state.sides.values():
        side.refresh()
    assert_same(online, state)
    assert online.moods is not None
    assert online.moods.prior != PRIOR


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_update_lowers_the_bound(setting: Setting, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = adopted(moody(rng, setting), min_share=1e-14, thorough=False)
    for name in SIDES:
        updates.learn_row_scales(state, name)
    climb = Climb(state)
    n_users = state.stores["user"].n_rows
    first = climb.value
    for _ in range(6):
        updates.refresh(state, "user", rng.choice(n_users, 3, replace=False), learn=False)
        climb.assert_no_lower("users")
        updates.smooth_moods(state, rng.choice(n_users, 3, replace=False))
        climb.assert_no_lower("some moods")
        again = rng.choice(state.n_ratings, 5, replace=False)
        users, items, codes = (part[again] for part in pairs(state))
        times = times_of(state)[again]
        predict_then_learn(state, users, items, codes, times)
        climb.assert_no_lower("stream")
        absorb(state, users, items, codes, codes, times)
        climb.assert_no_lower("batch")
        updates.learn_moods(state)
        climb.assert_no_lower("all moods and their prior")
    assert climb.value > first


def test_the_divergence_is_that_of_the_posterior() -> None:
    """KL of one rater's dense posterior, sessions that were never smoothed included."""
    state = adopted(moody(np.random.default_rng(3), SETTINGS[1]))
    moods = state.moods
    assert moods is not None
    order, indptr = moods._chains()
    total = 0.0
    for i in range(indptr.size - 1):
        at = order[indptr[i] : indptr[i + 1]]
        n = at.size
        steps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        prior = np.zeros((2 * n, 2 * n))  # of l, then g
        prior[:n, :n] = moods.prior.variance * moods.prior.persistence**steps
        prior[n:, n:] = moods.prior.extra * np.eye(n)
        both = np.hstack([np.eye(n), np.eye(n)])
        precision, pull = moods.table[at, 2], moods.table[at, 3]
        covariance = np.linalg.inv(np.linalg.inv(prior) + both.T @ np.diag(precision) @ both)
        mean = covariance @ both.T @ pull
        np.testing.assert_allclose(both @ mean, moods.moods[at, 0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(
            np.diag(both @ covariance @ both.T), moods.moods[at, 1], rtol=1e-8
        )
        inverse = np.linalg.inv(prior)
        total += 0.5 * (
            np.trace(inverse @ covariance) + mean @ inverse @ mean - 2 * n
            + np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
        )  # fmt: skip
    assert moods.divergence(complete=True) == pytest.approx(total, rel=1e-8)


def coming(rng: np.random.Generator, state: OnlineState, n: int, begin: int) -> Any:
    """New ratings of pairs nobody has rated, in the order of time, some at the same time."""
    users, items, _ = pairs(state)
    known = set(zip(users.tolist(), items.tolist(), strict=True))
    shape = [state.stores[name].n_rows for name in SIDES]
    free = [p for p in np.ndindex(*shape) if p not in known]
    chosen = np.array([free[k] for k in rng.choice(len(free), n, replace=False)])
    codes = rng.integers(0, len(state.book), n)
    times = begin + np.sort(rng.integers(0, n // 3, n))
    return chosen[:, 0].copy(), chosen[:, 1].copy(), codes, times


@pytest.mark.parametrize("window", [0, 2])
def test_moods_are_filtered_as_ratings_come(window: int) -> None:
    """The forecast holds the dense posterior of the mood, given what was left of each rating."""
    rng = np.random.default_rng(5)
    state = adopted(moody(rng, SETTINGS[1]), window=window, evb=None)
    moods = state.moods
    assert moods is not None
    users, items, codes, times = coming(rng, adopted(moody(np.random.default_rng(5), SETTINGS[1])),
                                        30, 1000)  # fmt: skip
    seen: dict[int, list[tuple[int, float, float]]] = {}
    start = {
        i: moods.table[moods.last[i], :2].copy() if moods.last[i] >= 0 else None
        for i in range(moods.n_raters)
    }
    for i, j, code, time in zip(users, items, codes, times, strict=True):
        left, right = (state.stores[name] for name in SIDES)
        product = float(left.mean[i] @ right.mean[j])
        weight = float(left.weight[i] * right.weight[j] / state.noise)
        before = seen.setdefault(i, [])
        sessions = sorted({t for t, _, _ in before} | {time})
        forecast, _ = predict_then_learn(
            state, np.array([i]), np.array([j]), np.array([code]), np.array([time])
        )
        expected = _dense(moods.prior, start[i], sessions, before)
        assert forecast[0] - product == pytest.approx(expected, rel=1e-6, abs=1e-9)
        before.append((time, weight, float(state.levels()[code]) - product))


def _dense(prior: MoodPrior, start: Any, sessions: list[int], seen: list[Any]) -> float:
    """E o of the last of these sessions; ``start`` is what was known before the first of them."""
    n, phi = len(sessions), prior.persistence
    mean, spread = (0.0, prior.variance) if start is None else (
        phi * start[0], phi**2 * start[1] + prior.innovation)  # fmt: skip
    means, cov = [mean], np.zeros((n, n))
    cov[0, 0] = spread
    for t in range(1, n):
        means.append(phi * means[-1])
        cov[t, :t] = cov[:t, t] = phi * cov[t - 1, :t]
        cov[t, t] = phi**2 * cov[t - 1, t - 1] + prior.innovation
    whole = cov + prior.extra * np.eye(n)
    if not seen:
        return means[-1]
    at = [sessions.index(t) for t, _, _ in seen]
    noise = np.diag([1.0 / w for _, w, _ in seen])
    left = np.array([e for _, _, e in seen]) - np.array(means)[at]
    return float(means[-1] + whole[-1, at] @ np.linalg.solve(whole[np.ix_(at, at)] + noise, left))


@pytest.mark.parametrize("seed", range(3))
def test_new_changed_and_late_ratings_leave_all_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = adopted(moody(rng, SETTINGS[3]), thorough=False)
    moods = state.moods
    assert moods is not None
    users, items, codes, times = coming(rng, state, 24, 100)
    times[::4] = rng.integers(0, 40, 6)  # late ones
    half = slice(0, 12), slice(12, 24)
    predict_then_learn(state, *(c[half[0]] for c in (users, items, codes, times)))
    assert state.total[0] == pytest.approx(state.squared_error, rel=1e-9)
    absorb(state, *(c[half[1]] for c in (users, items, codes)), np.full(12, -1), times[half[1]])
    assert state.total[0] == pytest.approx(state.squared_error, rel=1e-9)
    # Some are given again at another time, by stream and by batch, and some taken back.
    other = codes[::-1].copy()
    predict_then_learn(state, users[:4], items[:4], other[:4], times[:4] + 500)
    absorb(state, users[4:8], items[4:8], other[4:8], codes[4:8], times[4:8] + 500)
    absorb(state, users[8:12], items[8:12], np.full(4, -1), codes[8:12])
    assert state.total[0] == pytest.approx(state.squared_error, rel=1e-9)
    moods.check()
    order, _ = moods._chains()
    sessions = {int(s) for s in state.stores["user"].history.sessions()}
    assert sessions <= set(order.tolist())
    at = {
        (int(u), int(i)): int(t) for u, i, t in zip(*pairs(state)[:2], times_of(state), strict=True)
    }
    for u, i, t in zip(users[:8], items[:8], times[:8], strict=True):
        assert at[int(u), int(i)] == t + 500
    # All of a rater's sessions have ratings once they have been smoothed.
    updates.learn_moods(state)
    order, _ = moods._chains()
    assert {int(s) for s in state.stores["user"].history.sessions()} == set(order.tolist())


def test_a_rating_added_and_removed_leaves_the_sittings_as_they_were() -> None:
    state = adopted(moody(np.random.default_rng(2), SETTINGS[0]), evb=None)
    moods = state.moods
    assert moods is not None
    users, items, codes, _ = coming(np.random.default_rng(0), state, 6, 0)
    order, indptr = moods._chains()
    before, mean = moods.time[order].tolist(), moods.of(order)[0]
    absorb(state, users, items, codes, np.full(6, -1), np.full(6, 77))
    absorb(state, users, items, np.full(6, -1), codes)
    order, again = moods._chains()
    assert moods.time[order].tolist() == before
    assert again.tolist() == indptr.tolist()
    np.testing.assert_allclose(moods.of(order)[0], mean, atol=0.2)


@pytest.mark.parametrize("window", [0, 2])
def test_sittings_that_nobody_refers_to_make_room(window: int) -> None:
    """Forecasts are the same; memory does not grow with sessions."""
    forecasts = []
    for compacts in (True, False):
        rng = np.random.default_rng(0)
        state = adopted(moody(rng, SETTINGS[1]), window=window)
        moods = state.moods
        assert moods is not None
        if not compacts:
            moods.compact = lambda histories: None  # type: ignore[method-assign]
        n = [state.stores[name].n_rows for name in SIDES]
        found = []
        for turn in range(40):
            users, items = rng.integers(0, n[0], 20), rng.integers(0, n[1], 20)
            codes = rng.integers(0, len(state.book), 20)
            found.append(predict_then_learn(state, users, items, codes, 1000 + turn + 0 * codes)[0])
        forecasts.append(np.concatenate(found))
        listed = state.stores["user"].history.n_ratings
        bounded = 4 * (listed + n[0] + 20)
        assert (moods.time.size <= bounded) == compacts or moods.time.size < 200
    np.testing.assert_array_equal(*forecasts)


def test_a_late_rating_without_history_is_a_step_from_the_last() -> None:
    state = adopted(moody(np.random.default_rng(4), SETTINGS[0]), window=0, evb=None)
    moods = state.moods
    assert moods is not None
    last = moods.last[3]
    level, spread = moods.table[last, :2]
    phi = moods.prior.persistence
    mean, variance = moods.at(np.array([3, 3]), np.array([-5, 10**6]))
    np.testing.assert_allclose(mean, phi * level, rtol=1e-12)
    wide = phi**2 * spread + moods.prior.innovation + moods.prior.extra
    np.testing.assert_allclose(variance, wide, rtol=1e-12)
    before = moods.table[last].copy()
    product = state.stores["user"].mean[3] @ state.stores["item"].mean[0]
    forecast, _ = predict_then_learn(state, *(np.array([k]) for k in (3, 0, 1, -5)))
    assert forecast[0] == pytest.approx(product + phi * level, rel=1e-9)
    np.testing.assert_array_equal(moods.table[moods.last[3]], before)  # it tells nothing of today


@pytest.mark.parametrize("moves", [True, False])
def test_a_prior_that_has_closed_opens_again_where_the_bound_says_so(moves: bool) -> None:
    """Some sessions are more generous than others, or none is: the bound is no lower."""
    rng = np.random.default_rng(6)
    state = adopted(moody(rng, SETTINGS[0]))
    moods = state.moods
    assert moods is not None
    closed = MoodPrior(persistence=0.5, variance=1e-5, extra=1e-5)
    moods.prior = closed
    updates.smooth_moods(state, np.arange(moods.n_raters))
    if moves:
        users, items, _ = pairs(state)
        session = state.stores["user"].history.sessions()
        mood = rng.choice([-2.0, 2.0], int(moods.used[0]))[session]
        codes = state.book.codes(np.float32(np.round(4.0 * mood) / 4.0 + CENTRE))
        absorb(state, users, items, codes, np.full(codes.size, -1), times_of(state), learn=False)
        moods.prior = closed
    climb = Climb(state)
    updates.learn_moods(state)
    climb.assert_no_lower("opened")
    opened = moods.prior.variance + moods.prior.extra
    assert (opened > 0.03) == moves
    assert moves or opened < 1e-3
    updates.learn_moods(state)
    climb.assert_no_lower("again")
    later = moods.prior.variance + moods.prior.extra
    assert later > opened if moves else later < 1e-3
