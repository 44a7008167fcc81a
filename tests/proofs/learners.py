"""Small states that learn online, in float64, and the same seen as a batch sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hemf._options import ALL, OnlineOptions
from hemf._typing import SIDES
from hemf.batch.fit import BatchState, assign, start_side
from hemf.data.ratings import Sparse
from hemf.data.vocabulary import RatingBook
from hemf.engines.threads import Threads
from hemf.kernels import online as kernels
from hemf.kernels.record import recall_all
from hemf.kernels.structures import Batch
from hemf.model.communities import Statistics
from hemf.model.rows import Layout, pack, unpack
from hemf.online import learner as learners
from hemf.online import start, updates
from hemf.online import state as states
from hemf.online.state import OnlineState
from proofs import slow_bound
from proofs.problems import OTHER, Setting, fit_with, problem, rows_of, tables, update_rows

EXACT: dict[str, Any] = {"thorough": True, "min_share": 1e-6, "max_parts": 16}
"""No shortcuts: what is left out is what batch kernels leave out."""
SETTINGS = [
    Setting(),
    Setting(tied_users=False, offsets=True),
    Setting(tied_users=False, tied_items=True, noise_scales=True),
    Setting(tied_items=True, offsets=True, noise_scales=True),
]
"""Tied and own covariances on each side, with and without offsets and noise scales."""
CENTRE = 0.25


def coarse(state: BatchState) -> BatchState:
    """The same state of ratings that are quarters, and so the same in any storage."""
    rows = {}
    for name, part in tables(state).items():
        ratings = np.round(4.0 * (state.unit * part.values + CENTRE)) / 4.0
        rows[name] = Sparse(part.indptr, part.indices, (ratings - CENTRE) / state.unit)
    return replace(state, engine=Threads.of(rows, n_jobs=1))


def adopted(state: BatchState, *, window: int = ALL, seed: int = 0, **options: Any) -> OnlineState:
    """A state that goes on from a batch state, which stays as it is, after one pass."""
    book = RatingBook()
    lists = {}
    for name, part in tables(state).items():
        values = np.float32(part.values * state.unit + CENTRE)
        lists[name] = part.indptr, part.indices, book.codes(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SCARCE", 0.0)  # as it is, however few ratings there are
        online = start.take_over(
            state.copy(),
            lists,
            book,
            OnlineOptions(window=window, **{**EXACT, **options}),
            centre=CENTRE,
            rng=np.random.default_rng(seed),
        )
        updates.pass_over(online)
        return start.finish(online)


def absorb(state: OnlineState, *ratings: Any, learn: bool = True) -> int:
    """Learn a batch of ratings, and make the jumps that are due."""
    n_new = updates.apply_batch(state, *ratings, learn=learn)
    learners.make_due(state, learn=learn)
    return n_new


def predict_then_learn(state: OnlineState, *ratings: Any) -> tuple[Any, Any]:
    """Learn ratings one after the other, and make the jumps that are due."""
    learnt = updates.apply_stream(state, *ratings)
    learners.make_due(state)
    return learnt


def learner(
    rng: np.random.Generator,
    setting: Setting,
    *,
    window: int = ALL,
    options: dict[str, Any] | None = None,
    **shape: Any,
) -> OnlineState:
    """A state that has seen a small problem, and may be anywhere."""
    return adopted(coarse(problem(rng, setting, **shape)), window=window, **(options or {}))


def as_batch(state: OnlineState) -> BatchState:
    """The state as it is now, with its history as batch inference holds ratings."""
    rows, sides = {}, {}
    for name, store in state.stores.items():
        indptr, indices, codes = store.history.to_rows()
        rows[name] = Sparse(indptr, indices, state.levels()[codes])
        sides[name] = side = state.sides[name].copy()
        if side.noise_scales is not None:  # those of a store change in place
            side.noise_scales = replace(
                side.noise_scales, shape=store.shape.copy(), rate=store.rate.copy()
            )
    return BatchState(
        sides=sides,
        engine=Threads.of(rows, n_jobs=1),
        noise=state.noise,
        unit=state.unit,
        squared_error=state.squared_error,
    )


def belief(state: OnlineState, name: str) -> slow_bound.Belief:
    """What a side's rows believe, from what each is on record for having given."""
    store = state.stores[name]
    order, count = store.layout.order, state.sides[name].n_communities
    share = np.zeros((store.n_rows, count))
    mean = np.zeros((store.n_rows, count, order))
    covariance = np.tile(np.eye(order), (store.n_rows, count, 1, 1))
    for i, slot in zip(*np.nonzero(store.listed >= 0), strict=True):
        d, part = store.listed[i, slot], store.parts[i, slot].astype(np.float64)
        if part[0] > 0.0:
            m = part[1 : 1 + order] / part[0]
            share[i, d], mean[i, d] = part[0], m
            covariance[i, d] = unpack(part[1 + order :]) / part[0] - np.outer(m, m)
    return slow_bound.Belief(share, mean, covariance)


def bound_terms(state: OnlineState) -> dict[str, float]:
    """The lower bound of the ratings in the history, from scratch."""
    return slow_bound.terms(as_batch(state), {name: belief(state, name) for name in SIDES})


def given(state: OnlineState, name: str) -> Statistics:
    """What the rows of a side are on record for having given, added up."""
    store, side = state.stores[name], state.sides[name]
    rows = belief(state, name)
    second = rows.covariance + rows.mean[..., :, None] * rows.mean[..., None, :]
    scatter = np.einsum("id,idjk->djk", rows.share, second)
    if side.statistics.tied:
        scatter = scatter.sum(axis=0, keepdims=True)
    return Statistics(
        size=rows.share.sum(axis=0),
        first=np.einsum("id,idj->dj", rows.share, rows.mean),
        scatter=scatter,
        entropy=float(store.entropy.sum()),
    )


def assert_same_statistics(ours: Statistics, theirs: Statistics, tolerance: float = 1e-9) -> None:
    """Two statistics agree, relative to the largest number of each kind."""
    for name in ("size", "first", "scatter", "entropy"):
        left, right = np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))
        assert left.shape == right.shape, name
        largest = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(left, right, rtol=0.0, atol=tolerance * largest, err_msg=name)


def assert_nothing_drifted(state: OnlineState, tolerance: float = 1e-9) -> None:
    """Statistics and totals are the sum of what the rows are on record for."""
    for name in SIDES:
        store, side = state.stores[name], state.sides[name]
        assert_same_statistics(store.statistics, given(state, name), tolerance)
        assert_same_statistics(side.statistics, store.statistics, tolerance)
        share = belief(state, name).share
        np.testing.assert_allclose(side.membership, share, rtol=0.0, atol=tolerance)
        error = float(store.weight.astype(np.float64) @ store.error)
        assert store.totals[1] == pytest.approx(error, rel=tolerance)
        assert store.totals[3] == pytest.approx(store.effective_count.sum(), rel=tolerance)
    if state.knows_total:
        digits = tolerance if state.stores["user"].mean.dtype == np.float64 else 1e-4
        assert state.total[0] == pytest.approx(state.squared_error, rel=digits)


def pairs(state: OnlineState) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, items and codes of all ratings in the users' histories."""
    indptr, items, codes = state.stores["user"].history.to_rows()
    users = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return users, items.astype(np.int64), codes.astype(np.int64)


def record(
    state: OnlineState, name: str, users: Any, items: Any, codes: Any, previous: Any = -1
) -> None:
    """Put ratings into the history of one side, and refresh nothing."""
    rows = {
        "user": np.ascontiguousarray(users, np.int64).reshape(-1),
        "item": np.ascontiguousarray(items, np.int64).reshape(-1),
    }
    codes = np.ascontiguousarray(codes, np.int64).reshape(-1)
    before = np.broadcast_to(np.asarray(previous, np.int64), codes.shape).copy()
    if name == "user" and state.knows_total:
        state.total[0] += state.errors(rows["user"], rows["item"], codes).sum()
        state.total[0] -= state.errors(rows["user"], rows["item"], before).sum()
    updates._reserve(state, rows)
    states.compiled(state, kernels.record_all)(
        Batch(rows[name], rows[OTHER[name]], codes, before, np.zeros(0, np.int64)),
        *states.pair(state, name), states.rules(state), state.options.forgetting[name],
        np.zeros(codes.size, np.int64), state.stores["user"].outer(),
    )  # fmt: skip


def solve(state: OnlineState, name: str, rows: Any) -> None:
    """Refresh rows against communities that stay as they are."""
    own, other = states.pair(state, name)
    common = states.shared(state, name)
    states.compiled(state, kernels.refresh_all)(
        np.atleast_1d(np.asarray(rows, np.int64)), own, other, common, states.rules(state),
        state.stores[name].scratch(own, common),
    )  # fmt: skip


def planted(
    rng: np.random.Generator,
    setting: Setting,
    *,
    users: tuple[int, ...] = (14, 10, 8),
    items: tuple[int, ...] = (10, 9, 8),
    found: dict[str, int] | None = None,
    spread: float = 0.1,
) -> BatchState:
    """Ratings by communities that are far apart, and a state that has found them.

    ``found`` may give a smaller number, the last ones then being one; ``spread`` is how much rows
    of one kind differ.
    """
    factors, labels, places = 2, {}, {}
    for name, sizes in (("user", users), ("item", items)):
        labels[name] = np.repeat(np.arange(len(sizes)), sizes)
        angle = 2.0 * np.pi * (np.arange(len(sizes)) / len(sizes) + 0.1)
        centres = 2.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        places[name] = centres[labels[name]] + spread * rng.normal(size=(sum(sizes), factors))
    table = places["user"] @ places["item"].T
    scale = table.std()
    table = (table + 0.3 * rng.normal(size=table.shape)) / scale
    there = rng.random(table.shape) < 0.8
    sides = {}
    for name in SIDES:
        layout = Layout.of(name, n_factors=factors, offsets=setting.offsets)
        options = fit_with(setting, n_factors=factors, concentration=0.7, spread=1.0)
        sides[name] = side = start_side(name, labels[name].size, options, rng)
        mean = side.moments.mean
        mean[:, layout.free[-factors:]] = places[name] / np.sqrt(scale)
        side.moments.second[:] = pack(mean[:, :, None] * mean[:, None, :])
        label = np.minimum(labels[name], (found or {}).get(name, labels[name].size) - 1)
        assign(side, label, int(label.max()) + 1)
    rows = {"user": rows_of(table, there), "item": rows_of(table.T.copy(), there.T)}
    state = coarse(BatchState(sides, Threads.of(rows, n_jobs=1), noise=0.2, unit=1.3))
    for name in SIDES:
        update_rows(state, name, setting, hold=True)
        sides[name].refresh()
    return state


def batch_of(
    rng: np.random.Generator, state: OnlineState, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct pairs that are rated, again or for the first time, and some rows nobody knew."""
    for name in SIDES:
        states.add_new_rows(state, name, int(rng.integers(0, 2)))
    shape = [state.stores[name].n_rows for name in SIDES]
    users, items = np.divmod(rng.choice(shape[0] * shape[1], n, replace=False), shape[1])
    codes = rng.integers(0, len(state.book), n)
    before = np.full(n, -1)
    states.compiled(state, recall_all)(users, items, state.stores["user"].rows(), before)
    codes[(before >= 0) & (rng.random(n) < 0.3)] = -1
    return users, items, codes, before


def some(rng: np.random.Generator, state: OnlineState, name: str, most: int = 5) -> np.ndarray:
    """Some rows of a side, each once."""
    n = state.stores[name].n_rows
    return np.sort(rng.choice(n, rng.integers(1, most), replace=False))
