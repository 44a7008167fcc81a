"""Where a state that learns online comes from: a batch fit, nothing, or the ratings on record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf._typing import OTHER, SIDES
from hemf.batch.fit import start_state
from hemf.batch.init import start_side
from hemf.batch.options import FitOptions
from hemf.batch.sweep import BatchState, learn_noise, update_side
from hemf.data.ratings import Sparse
from hemf.engines.threads import Threads
from hemf.model.features import Design, implicit_blocks
from hemf.online import binding, directions, eviction, features, guards, jumps
from hemf.online import moods as online_moods
from hemf.online.history import History, RatingBook
from hemf.online.moods import OnlineMoods
from hemf.online.options import ALL, OnlineOptions
from hemf.online.store import RowStore, add_rows, widen
from hemf.online.updates import pass_over

if TYPE_CHECKING:
    from hemf.online.state import OnlineState

NOISE_FROM_NOTHING = 0.5
START_SCALE = 0.1
# A stream that began from nothing restarts as its ratings double, until there are enough.
RESTART_SWEEPS = 10
RESTART_PASSES = 5  # over all rows, before a fresh state is compared with the one there is
RESTART_WIDE = 0.3


def adopt(
    kind: type[OnlineState],
    state: BatchState,
    ratings: dict[str, tuple[Any, ...]],
    book: RatingBook,
    options: OnlineOptions,
    *,
    centre: float,
    rng: np.random.Generator,
    passes: int = 0,
    moods: OnlineMoods | None = None,
) -> OnlineState:
    """Go on from a batch fit; ``ratings`` are each side's indptr, indices and codes, by age.

    With ``moods``, also the sittings of the ratings. No row moves: what each gives to its
    communities is put on record as it is, and every prediction stays what it was. After that,
    all rows are refreshed ``passes`` times. While there are few ratings, none is summed up.
    """
    buffered = options.window != ALL and state.n_ratings < options.buffer
    stores = {}
    for name, side in state.sides.items():
        store = RowStore(
            side.layout,
            side.moments.mean.dtype,
            sums=options.window != ALL and not buffered,
            communities=side.n_communities,
            most=options.most_parts,
            told=features.told(state.sides, name),
        )
        store.scatter = np.zeros((side.statistics.scatter.shape[0], store.scatter.shape[1]))
        store.reserve(2 * side.n_rows)  # memory is taken as rows come, and nothing is copied then
        add_rows(store, side, side.n_rows)
        store.adopt(side.moments, side.membership, side.noise_scales)
        store.history = History.from_rows(*ratings[name])  # and sittings, where there are moods
        store.count[:] = store.history.length
        stores[name] = store
    sides = {name: replace(side) for name, side in state.sides.items()}
    online = kind(
        sides=sides,
        stores=stores,
        book=book,
        options=options,
        noise=state.noise,
        centre=centre,
        unit=state.unit,
        rng=rng,
        sweeps=state.sweeps,
        seen=state.n_ratings,
        opened_at=state.n_ratings,
        moods=moods,
        is_buffering=buffered,
    )
    if online.is_complete:
        online.observed = guards.ObservedRange.of(book.values, ratings["user"][2])
    features.adopt(online)
    for name in SIDES:
        online.point(name)
    online.even_codes()
    if moods is not None:
        online_moods.put_on_record(online)
    for name in SIDES:
        _put_on_record(online, name)
    online.take_total()
    for _ in range(passes):
        pass_over(online)
    for name in SIDES:
        online.refreshed[name] = online.searched[name] = float(stores[name].totals[2])
        online.known[name] = online.seen
    if moods is not None:
        moods.learnt_at, moods.refreshed = online.seen, online.refreshed["user"]
    directions.plan(online)
    if not online.is_complete:
        eviction.sum_up(online)
    for store in stores.values():
        store.history.make_room()
    return online


def _put_on_record(state: OnlineState, name: str) -> None:
    """Put on record what the rows of a side give to their communities."""
    store, common = state.stores[name], binding.shared(state, name)
    own, other = binding.pair(state, name)
    memory = binding.scratch(own, common)
    rows = np.arange(store.n_rows)
    binding.kernel(state, "keep_all")(rows, own, other, common, binding.rules(state), memory)
    state.sides[name].statistics = store.statistics


def begin(
    kind: type[OnlineState],
    fit: FitOptions,
    options: OnlineOptions,
    *,
    centre: float,
    unit: float,
    rng: np.random.Generator,
) -> OnlineState:
    """Start from nothing: one community on each side, no rows."""
    sides, stores = {}, {}
    for name in SIDES:
        side = start_side(name, 0, fit, rng)
        widen(side)
        sides[name] = side
        stores[name] = RowStore(
            side.layout,
            fit.dtype,
            sums=options.window != ALL and options.buffer == 0,
            most=options.most_parts,
        )
        stores[name].history = History(has_sittings=fit.moods)
    state = kind(
        sides, stores, RatingBook(), options, NOISE_FROM_NOTHING, centre, unit, rng,
        start_scale=START_SCALE, fit=fit, is_buffering=options.window != ALL and options.buffer > 0,
        moods=OnlineMoods.none(fit.dtype) if fit.moods else None,
    )  # fmt: skip
    for name in SIDES:
        state.point(name)
    state.add_up()
    return state


def start_again(state: OnlineState) -> None:
    """Restart from all ratings on record, if that pays."""

    def jump(trial: OnlineState) -> bool:
        fresh = restart(trial)
        if fresh is not None:
            jumps.take(trial, fresh)
        return fresh is not None

    jumps.try_jump(state, jump, pass_over, passes=RESTART_PASSES)
    state.restart_at = 2 * state.seen


def restart(state: OnlineState) -> OnlineState | None:
    """Return a state restarted from all ratings on record, by their leading directions.

    None where there is nothing to learn from.

    What little is known when the first ratings arrive points nowhere, and the directions that
    a stream falls into by chance are poor ones.
    """
    indptr, indices, codes = state.stores["user"].history.to_rows()
    values = state.book.values[codes].astype(np.float64)
    if not values.size or not values.std() > 0.0:
        return None
    centre, unit = float(values.mean()), float(values.std())
    tables: dict[str, tuple[Any, ...]] = {}
    rows = {}
    for name, store in state.stores.items():
        indptr, indices, codes = store.history.to_rows()
        tables[name] = indptr, indices, codes
        if state.moods is not None:
            tables[name] = *tables[name], store.history.sittings()
        levels = ((state.book.values[codes] - centre) / unit).astype(store.mean.dtype)
        rows[name] = Sparse(indptr, indices, levels)
    assert state.fit is not None
    designs = {}
    for name in state.fit.implicit_features:
        indptr, indices = tables[name][0], tables[name][1]
        blocks = implicit_blocks(indptr, indices, tables[OTHER[name]][0].size - 1)
        designs[name] = Design.of(blocks, state.fit.dtype)
    batch = start_state(Threads.of(rows, n_jobs=1), unit, state.fit, state.rng, designs)
    for side in batch.sides.values():
        widen(side, RESTART_WIDE)
    for number in range(RESTART_SWEEPS):
        due = state.options.evb is not None and state.fit.schedule.features_due(number)
        for name in SIDES:
            update_side(batch, name, features=due)
        learn_noise(batch)
    moods = state.moods
    if moods is not None:
        state.keep_moods()
        moods.reset()
    fresh = adopt(
        type(state), batch, tables, state.book, state.options, centre=centre, rng=state.rng,
        moods=moods,
    )  # fmt: skip
    if moods is not None:
        online_moods.learn(fresh)
    fresh.fit, fresh.changes = state.fit, state.changes
    if state.outlier is not None:  # all rows have been refreshed since it came
        fresh.outlier = replace(state.outlier, refreshes=dict.fromkeys(SIDES, -1.0))
    fresh.recent, fresh.watch = state.recent, state.watch
    fresh.seen, fresh.widen_at = state.seen, 0
    return fresh
