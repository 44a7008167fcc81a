"""How online learning starts: from a batch fit, from nothing, or again from all ratings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from hemf._checks import available_bytes, one_blas_thread
from hemf._options import ALL, MAX_PARTS, FitOptions, OnlineOptions
from hemf._typing import OTHER, SIDES, AnyArray, Int32Array, Int64Array
from hemf.batch.fit import BatchState, learn_noise, start_side, start_state, update_side
from hemf.data.ratings import Ratings, Sparse
from hemf.data.vocabulary import RatingBook, Vocabulary
from hemf.engines.threads import Sessions, Threads
from hemf.model.regression import Design, given_part, implicit_blocks
from hemf.model.rows import pack, pair_moments
from hemf.online.clocks import Clocks, ObservedRange
from hemf.online.features import RowFeatures
from hemf.online.moods import OnlineMoods
from hemf.online.state import (
    Learner,
    OnlineState,
    add_rows,
    average_effects,
    backup_moods,
    compiled,
    feature_tables,
    note_refreshed,
    pair,
    postpone_regression,
    rules,
    shared,
    smooth_moods,
    widen,
    write_effects,
)
from hemf.online.store import History, RowStore, copy_rows_kernel, row_of_each

if TYPE_CHECKING:
    from hemf.kernels.compile import Kernel

Tables: TypeAlias = dict[str, tuple[AnyArray, ...]]
"""Each side's indptr, indices and codes, oldest first, and sessions where there are moods."""

MAX_PREPARED = 2**29  # bytes that a fit may take to make the first partial_fit a fast one
MARGIN = 4  # times that must be available
BYTES_OF_RATING = 12  # on record on both sides, see `hemf.online.store`
START_NOISE = 0.5
START_SCALE = 0.1
RESTART_SWEEPS = 10
RESTART_WIDE = 0.3


# -- from a batch fit ----------------------------------------------------------------------------


def prepare(
    fitted: BatchState, data: Ratings, centre: float, options: OnlineOptions
) -> Learner | None:
    """Return the state that the first `partial_fit` starts from, made at the end of a fit.

    Sorting the ratings and storing the contributions of rows takes time that grows with the
    ratings. It is left to the first call of `partial_fit`, and None is returned, if it would take
    more than `MAX_PREPARED` bytes or much of the available memory, or if its kernels would have to
    be compiled.
    """
    size, there = _online_bytes(fitted), available_bytes()
    if size > MAX_PREPARED or (there is not None and MARGIN * size > there):
        return None
    if not is_ready(options, fitted.sides["user"].moments.mean.dtype):
        return None
    try:
        ready = adopted(fitted, data, centre, options)
    except MemoryError:
        return None
    make_ready(ready.state)
    return ready


def batch_kernels(options: OnlineOptions) -> list[Kernel]:
    """Return the kernels that adopt a fit and learn a batch."""
    from hemf.kernels import online as kernels
    from hemf.kernels.record import recall_all

    found = [kernels.contribute_all, kernels.record_all, kernels.refresh_all]
    if options.window == 0:
        return [*found, kernels.sum_up_all]
    found.append(recall_all)
    return [*found, kernels.sum_up_all, kernels.evict_all] if options.window > 0 else found


def is_ready(options: OnlineOptions, dtype: npt.DTypeLike) -> bool:
    """Whether the kernels that learn a batch have been compiled on this machine before."""
    return all(kernel.is_ready(dtype) for kernel in batch_kernels(options))


def make_ready(state: OnlineState) -> None:
    """Load the kernels that learn a batch, which takes longer than to learn one."""
    for kernel in batch_kernels(state.options):
        compiled(state, kernel)
    nothing = np.empty(0, np.int64)
    left, right = (state.stores[name].moments for name in OTHER)
    pair_moments(left, right, nothing, nothing, variance=True)
    for store in state.stores.values():
        store.history.reserve(nothing, nothing)
    copy_rows_kernel()


def _online_bytes(fitted: BatchState) -> int:
    """Estimate the memory of a learner: the ratings on both sides, and the rows."""
    size = BYTES_OF_RATING * fitted.n_ratings
    for side in fitted.sides.values():
        parts = min(MAX_PARTS, side.n_communities)
        row = side.moments.mean.shape[1] + (1 + parts) * side.moments.second.shape[1]
        size += side.n_rows * row * side.moments.mean.itemsize
    return int(size)


def adopted(fitted: BatchState, data: Ratings, centre: float, options: OnlineOptions) -> Learner:
    """Return a state that continues from a fit, and the ids of its rows; the fit is unchanged.

    The caller replaces its random generator.
    """
    book, moods = RatingBook(), None
    if fitted.moods is not None:
        moods = OnlineMoods.adopt(fitted.moods, fitted.sides["user"].moments.mean.dtype)
    with one_blas_thread():
        ratings, rng = _by_age(data, book, fitted), np.random.default_rng(0)
        state = finish(
            take_over(fitted, ratings, book, options, centre=centre, rng=rng, moods=moods)
        )
    # Copies, and without ids that were added since the fit.
    users, items = (
        Vocabulary(data.users.ids[: data.n_users]),
        Vocabulary(data.items.ids[: data.n_items]),
    )
    return Learner(state, users, items)


def _by_age(data: Ratings, book: RatingBook, fitted: BatchState) -> Tables:
    """Each side's ratings as compressed rows of codes, oldest first where times are known.

    With moods, the session of each rating is added.
    """
    users, items, values = data.triples()
    codes = book.codes(values)
    times = np.zeros(values.size, np.int64) if data.timestamps is None else data.timestamps
    sessions = None
    if fitted.moods is not None:
        sessions = Sessions.of(data.by_user, times).of_ratings["user"]
    tables: Tables = {}
    for name, own, other, n in (
        ("user", users, items, data.n_users),
        ("item", items, users, data.n_items),
    ):
        order = np.lexsort((times, own))
        indptr = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(own, minlength=n), out=indptr[1:])
        tables[name] = indptr, other[order], codes[order]
        if sessions is not None:
            tables[name] = *tables[name], sessions[order]
    return tables


def take_over(
    batch: BatchState,
    ratings: Tables,
    book: RatingBook,
    options: OnlineOptions,
    *,
    centre: float,
    rng: np.random.Generator,
    moods: OnlineMoods | None = None,
) -> OnlineState:
    """Return a state with the posterior and the ratings of a batch fit, all of them listed."""
    buffered = options.window != ALL and batch.n_ratings < options.buffer
    stores = {}
    for name, side in batch.sides.items():
        store = RowStore(
            side.layout,
            side.moments.mean.dtype,
            sums=options.window != ALL and not buffered,
            communities=side.n_communities,
            most=options.max_parts,
            tables=feature_tables(side.regression, batch.sides[OTHER[name]].regression),
        )
        store.scatter = np.zeros((side.statistics.scatter.shape[0], store.scatter.shape[1]))
        store.reserve(2 * side.n_rows)  # memory is taken as rows come, and nothing is copied then
        add_rows(store, side, side.n_rows)
        store.adopt(side.moments, side.membership, side.noise_scales)
        store.history = History.from_rows(*ratings[name])
        store.count[:] = store.history.length
        stores[name] = store
    state = OnlineState(
        sides={name: replace(side) for name, side in batch.sides.items()},
        stores=stores,
        book=book,
        options=options,
        clocks=Clocks(stores, seen=batch.n_ratings),
        noise=batch.noise,
        centre=centre,
        unit=batch.unit,
        rng=rng,
        sweeps=batch.sweeps,
        moods=moods,
        is_buffering=buffered,
    )
    state.clocks.ratings["directions"] = state.seen
    if state.is_complete:
        state.observed = ObservedRange.of(book.values, ratings["user"][2])
    for name, side in state.sides.items():
        if side.regression is not None:
            state.features[name] = RowFeatures(given_part(side.regression.design))
            write_effects(state, name, side.regression)
            stores[name].leverage[:] = side.regression.leverage
            stores[name].scatter += pack(side.regression.penalty[None])
            postpone_regression(state, name)
            average_effects(state, name)
    for name in SIDES:
        state.point(name)
    state.even_codes()
    if moods is not None:
        record_moods(state)
    for name in SIDES:
        record_parts(state, name)
    state.set_total(float(stores["user"].totals[1]))  # the errors of users are all current
    return state


def finish(state: OnlineState) -> OnlineState:
    """Start the clocks of a state that was taken over, and evict what its history does not keep."""
    clocks, stores = state.clocks, state.stores
    for name in SIDES:
        clocks.done("prior", name)
        clocks.done("search", name)
        for event, share in (("search", 0.5), ("covariance", 0.25)):  # not when the prior is due
            clocks.last[event, name] = clocks.last_done(event, name) + share * stores[name].n_rows
        clocks.ratings[name] = state.seen
        note_refreshed(state, name, np.arange(stores[name].n_rows))
    if state.moods is not None:
        clocks.ratings["moods"] = state.seen
        clocks.done("moods", "user")
    state.plan_widening()
    if not state.is_complete:
        evict_all(state)
    for store in stores.values():
        store.history.make_room()
    return state


def record_parts(state: OnlineState, name: str) -> None:
    """Compute the contributions of a side's rows to their communities; no row changes."""
    from hemf.kernels.online import contribute_all

    store, common = state.stores[name], shared(state, name)
    own, other = pair(state, name)
    memory = store.scratch(own, common)
    compiled(state, contribute_all)(own, other, common, rules(state), memory)
    state.sides[name].statistics = store.statistics


def record_moods(state: OnlineState) -> None:
    """Compute the sums over ratings that smoothing needs; no mood changes."""
    from hemf.kernels.moods import LEVEL, LEVEL_SPREAD

    moods = state.moods
    assert moods is not None
    levels = moods.table[:, [LEVEL, LEVEL_SPREAD]]
    posterior = moods.moods.copy()
    smooth_moods(state, np.arange(state.stores["user"].n_rows))
    moods.table[:, [LEVEL, LEVEL_SPREAD]] = levels
    moods.moods[:] = posterior


# -- eviction ------------------------------------------------------------------------------------


def evict_all(state: OnlineState) -> None:
    """Evict all ratings that a bounded history does not keep.

    Where there are plenty of ratings, the factors that they are summed up with are good, and later
    ratings of the same pairs need not replace them.
    """
    renewal, state.renewal = state.renewal, 0.0  # none of these replaces another
    _evict_all(state)
    state.renewal = 0.0 if state.has_plenty else renewal


def _evict_all(state: OnlineState) -> None:
    from hemf.kernels.online import sum_up_all
    from hemf.kernels.structures import Batch

    none = np.zeros(0, np.int64)
    listed = {name: store.history.to_rows() for name, store in state.stores.items()}
    rows, is_old, order = {}, {}, {}
    for name, (indptr, indices, _) in listed.items():
        rows[name], order[name] = by_pair(name, indptr, indices)
        newer = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(indices.size)
        is_old[name] = newer > state.window
    is_gone = is_old["user"][order["user"]] & is_old["item"][order["item"]]
    sessions = {name: store.history.sessions() for name, store in state.stores.items()}
    for name, (_, indices, codes) in listed.items():
        gone = np.empty_like(is_gone)
        gone[order[name]] = is_gone
        store = state.stores[name]
        kept = np.bincount(rows[name][~gone], minlength=store.n_rows)
        own = sessions[name] if store.history.has_sessions else None
        store.history = History.from_rows(
            np.concatenate([[0], np.cumsum(kept)]),
            indices[~gone],
            codes[~gone],
            None if own is None else own[~gone],
        )
        state.even_codes()
        compiled(state, sum_up_all)(
            Batch(
                rows[name][gone].astype(np.int64), indices[gone].astype(np.int64),
                codes[gone].astype(np.int64), none,
                none if own is None else own[gone].astype(np.int64),
            ), *pair(state, name), rules(state), state.options.forgetting[name],
            state.stores["user"].outer(),
        )  # fmt: skip
    if state.moods is not None:
        state.moods.leave_latest()
        state.moods.compact([store.history for store in state.stores.values()])


def by_pair(name: str, indptr: Int64Array, others: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Return the row of each entry of a side's lists, and the order of entries by user and item.

    >>> rows, order = by_pair("item", np.array([0, 2, 3]), np.array([1, 0, 0]))
    >>> rows.tolist(), order.tolist()
    ([0, 0, 1], [1, 2, 0])
    """
    rows = row_of_each(indptr)
    return rows, np.lexsort((others, rows) if name == "user" else (rows, others))


# -- from nothing, and again ---------------------------------------------------------------------


def begin(
    fit: FitOptions,
    options: OnlineOptions,
    *,
    centre: float,
    unit: float,
    rng: np.random.Generator,
) -> OnlineState:
    """Start from nothing: one community on each side, no rows."""
    sides, stores = {}, {}
    is_bounded = options.window != ALL
    for name in SIDES:
        sides[name] = side = start_side(name, 0, fit, rng)
        widen(side)
        sums = is_bounded and options.buffer == 0
        stores[name] = RowStore(side.layout, fit.dtype, sums=sums, most=options.max_parts)
        stores[name].history = History(has_sessions=fit.moods)
    state = OnlineState(
        sides,
        stores,
        RatingBook(),
        options,
        Clocks(stores),
        START_NOISE,
        centre,
        unit,
        rng,
        start_scale=START_SCALE,
        fit=fit,
        is_buffering=is_bounded and options.buffer > 0,
        moods=OnlineMoods.none(fit.dtype) if fit.moods else None,
    )
    for name in SIDES:
        state.point(name)
    state.set_total()
    return state


def restart(state: OnlineState) -> OnlineState | None:
    """Return a state restarted from the leading directions of all ratings on record.

    Directions learnt from the first ratings of a stream are poor. None if all ratings are equal.
    The caller sets the number of ratings seen.
    """
    values = state.book.values[state.stores["user"].history.to_rows()[2]]
    if not values.size or not values.std() > 0.0:
        return None
    assert state.fit is not None
    centre, unit = float(values.mean()), float(values.std())
    tables: Tables = {}
    rows = {}
    for name, store in state.stores.items():
        tables[name] = indptr, indices, codes = store.history.to_rows()
        if state.moods is not None:
            tables[name] = *tables[name], store.history.sessions()
        levels = ((state.book.values[codes] - centre) / unit).astype(store.mean.dtype)
        rows[name] = Sparse(indptr, indices, levels)
    designs = {}
    for name in state.fit.implicit_features:
        indptr, indices = tables[name][:2]
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
        backup_moods(state)
        moods.reset()
    fresh = finish(
        take_over(
            batch, tables, state.book, state.options, centre=centre, rng=state.rng, moods=moods
        )
    )
    fresh.fit, fresh.changes = state.fit, state.changes
    if state.outlier is not None:  # all rows have been refreshed since it came
        fresh.outlier = replace(state.outlier, refreshes=dict.fromkeys(SIDES, -1.0))
    fresh.recent, fresh.watch = state.recent, state.watch
    fresh.clocks.schedule("widening", None)
    return fresh
