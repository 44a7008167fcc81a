"""How a state that learns online starts, and the jumps that it makes.

Opening directions, widening the prior and restarting are jumps: they lower the bound at first. Two
copies of the state are made without some recent ratings, and the jump is made in one of them. Then
the rows of both are updated, and the copies are compared by their predictions of the ratings that
were left out. The bound decides only if there are too few of these: it disagrees with them for
dozens of passes after a direction has opened. The state changes only if the jump is kept. New
communities are tried in place: `hemf.online.updates.search`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np

from hemf._options import ALL, FitOptions, OnlineOptions
from hemf._typing import OTHER, SIDES, AnyArray, Float64Array, Int64Array
from hemf.batch.sweep import (
    CHANCE_RATINGS,
    FACTOR_START,
    FACTOR_VARIANCE,
    BatchState,
    clear_directions,
    learn_noise,
    start_side,
    start_state,
    update_side,
)
from hemf.data.ratings import Sparse
from hemf.engines.threads import Threads, scaled_residuals
from hemf.model.regression import Design, implicit_blocks
from hemf.model.rows import lower_triangle, pair_moments
from hemf.online import features
from hemf.online.clocks import Clocks, ObservedRange
from hemf.online.communities import is_clear
from hemf.online.eviction import evict_all
from hemf.online.moods import OnlineMoods
from hemf.online.sessions import learn_moods, record_moods
from hemf.online.state import OnlineState, add_rows, feature_tables, keep, keep_moods, widen
from hemf.online.store import History, RatingBook, RowStore, row_of_each
from hemf.online.updates import (
    MARGIN,
    MIN_RECENT,
    apply_batch,
    converge,
    is_buffer_full,
    is_opening_due,
    is_young,
    note_refreshed,
    pass_over,
    record_parts,
)

Tables: TypeAlias = dict[str, tuple[AnyArray, ...]]
"""Each side's indptr, indices and codes, oldest first, and sessions where there are moods."""
Change: TypeAlias = Callable[[OnlineState], bool]
Pass: TypeAlias = Callable[[OnlineState], None]

START_NOISE = 0.5
START_SCALE = 0.1
RESTART_SWEEPS = 10
RESTART_PASSES = 5  # over all rows, before a new state is compared with the current one
RESTART_WIDE = 0.3
MAX_HELD_BACK = 2000  # ratings that jumps are judged by
SURE = 2  # passes of a state without a jump
CLOSED = 1e-2  # share of the factors' squares below which a direction is closed
MAX_READ = 2_000_000  # ratings; of more, those of some users suffice
CLEAR_MARGIN = 0.0  # directions need only be stronger than chance: the jump is judged
OPENING_PASSES = 10  # over all rows, at most, until directions that were opened pay
MAX_START = 3.0  # root mean squares that a row may be away from the others when a direction opens
ENOUGH = 3.0  # ratings for each unknown; with fewer, ratings are scarce
WIDEN_GROWTH = 1.1  # of the ratings since the fit, until a wider prior is tried
AGAIN = 2.0  # of the ratings since it was rejected, until it is tried again
WIDEN_PASSES = 30  # over all rows, in which closed directions come back; it is judged after
MIN_WIDEN_PASSES = 10


def make_due(state: OnlineState, *, learn: bool = True) -> None:
    """End buffering and, with ``learn``, restart, widen the prior or open directions, where due."""
    if is_buffer_full(state):
        end_buffering(state)
    if not learn:
        return
    if is_young(state):
        if state.clocks.due("restart"):
            start_again(state)
    else:
        if state.clocks.due("widening"):
            widen_priors(state)
        if is_opening_due(state):
            open_directions(state)


def end_buffering(state: OnlineState) -> None:
    """Evict from now on what the history does not keep.

    With many ratings for each unknown, rows and priors are brought to their optimum before, as sums
    are corrected only slowly. With few, that would close directions which later ratings need.
    """
    if state.has_plenty:
        converge(state)
    state.is_buffering = False
    for store in state.stores.values():
        store.begin_sums()
    evict_all(state)
    state.set_total()
    for name in SIDES:
        state.point(name)


# -- start ---------------------------------------------------------------------------------------


def adopt(
    batch: BatchState,
    ratings: Tables,
    book: RatingBook,
    options: OnlineOptions,
    *,
    centre: float,
    rng: np.random.Generator,
    passes: int = 0,
    moods: OnlineMoods | None = None,
) -> OnlineState:
    """Continue from a batch fit.

    No prediction changes. After that, all rows are refreshed ``passes`` times.
    While there are few ratings, none is evicted.
    """
    buffered = options.window != ALL and batch.n_ratings < options.buffer
    stores = {}
    for name, side in batch.sides.items():
        store = RowStore(
            side.layout,
            side.moments.mean.dtype,
            sums=options.window != ALL and not buffered,
            communities=side.n_communities,
            most=options.most_parts,
            tables=feature_tables(batch.sides, name),
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
    clocks = state.clocks
    clocks.ratings["directions"] = state.seen
    if state.is_complete:
        state.observed = ObservedRange.of(book.values, ratings["user"][2])
    features.adopt(state)
    for name in SIDES:
        state.point(name)
    state.even_codes()
    if moods is not None:
        record_moods(state)
    for name in SIDES:
        record_parts(state, name)
    state.set_total(float(stores["user"].totals[1]))  # the errors of users are all current
    for _ in range(passes):
        pass_over(state)
    for name in SIDES:
        clocks.done("prior", name)
        clocks.done("search", name)
        for event, share in (("search", 0.5), ("covariance", 0.25)):  # not when the prior is due
            clocks.last[event, name] = clocks.last_done(event, name) + share * stores[name].n_rows
        clocks.ratings[name] = state.seen
        note_refreshed(state, name, np.arange(stores[name].n_rows))
    if moods is not None:
        clocks.ratings["moods"] = state.seen
        clocks.done("moods", "user")
    plan_widening(state)
    if not state.is_complete:
        evict_all(state)
    for store in stores.values():
        store.history.make_room()
    return state


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
        stores[name] = RowStore(side.layout, fit.dtype, sums=sums, most=options.most_parts)
        stores[name].history = History(has_sittings=fit.moods)
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


def start_again(state: OnlineState) -> None:
    """Restart from all ratings on record, and keep the result if it is better."""

    def jump(trial: OnlineState) -> bool:
        fresh = restart(trial)
        if fresh is not None:
            take(trial, fresh)
        return fresh is not None

    try_jump(state, jump, pass_over, passes=RESTART_PASSES)
    state.clocks.schedule("restart", 2 * state.seen)


def restart(state: OnlineState) -> OnlineState | None:
    """Return a state restarted from the leading directions of all ratings on record.

    Directions learnt from the first ratings of a stream are poor. None if all ratings are equal.
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
            tables[name] = *tables[name], store.history.sittings()
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
        keep_moods(state)
        moods.reset()
    fresh = adopt(
        batch, tables, state.book, state.options, centre=centre, rng=state.rng, moods=moods
    )
    if moods is not None:
        learn_moods(fresh)
    fresh.fit, fresh.changes = state.fit, state.changes
    if state.outlier is not None:  # all rows have been refreshed since it came
        fresh.outlier = replace(state.outlier, refreshes=dict.fromkeys(SIDES, -1.0))
    fresh.recent, fresh.watch = state.recent, state.watch
    fresh.clocks.seen = state.seen
    fresh.clocks.schedule("widening", None)
    return fresh


# -- jumps ---------------------------------------------------------------------------------------


# docs/model.md#jumps
def try_jump(
    state: OnlineState, jump: Change, settle: Pass, *, passes: int = 1, at_least: int = SURE
) -> bool:
    """Try a jump on a copy, and return whether it is kept.

    ``jump`` changes a state and returns whether there was anything to change. ``settle`` updates
    the rows: ``at_least`` so many times before the jump is judged, and up to ``passes`` times until
    it is better. Neither may change the ratings on record.
    """
    control, held_back = without_some(state)
    trial = copied(control)
    if not jump(trial):
        return False
    now = -np.inf
    for number in range(passes):
        settle(trial)
        if number < SURE:
            settle(control)
        if number < min(at_least, passes) - 1:
            continue
        if pays(trial, control, held_back):
            if held_back.size:  # once more, with the ratings that were held back
                trial = copied(state)
                jump(trial)
                for _ in range(number + 1):
                    settle(trial)
            take(state, trial)
            return True
        last, now = now, worth(trial, held_back)
        missing = worth(control, held_back) - now
        if number > at_least and missing > (passes - 1 - number) * max(now - last, 0.0):
            return False  # at this pace it will not get there
    return False


def without_some(state: OnlineState) -> tuple[OnlineState, Int64Array]:
    """Return a copy without some recent ratings, and these ratings: user, item and code.

    No rating is left out where they would be too few to compare predictions.
    """
    pairs = state.recent[:, 0] * state.stores["item"].n_rows + state.recent[:, 1]
    last = np.unique(pairs[::-1], return_index=True)[1]
    held_back = state.recent[::-1][last]
    most = min(MAX_HELD_BACK, state.n_ratings // 10)
    trial = copied(state)
    if most < MIN_RECENT or held_back.shape[0] < MIN_RECENT:
        return trial, np.zeros((0, 3), np.int64)
    for store in trial.stores.values():
        store.history = copy.deepcopy(store.history)
    if held_back.shape[0] > most:
        held_back = held_back[np.sort(trial.rng.choice(held_back.shape[0], most, replace=False))]
    users, items, codes = np.ascontiguousarray(held_back.T)
    apply_batch(trial, users, items, np.full(codes.size, -1), codes, learn=False)
    return trial, held_back


def pays(trial: OnlineState, control: OnlineState, held_back: Int64Array) -> bool:
    """Whether a state with a jump explains ratings better than one without.

    Errors of ratings that were held back must be smaller by `MARGIN` standard errors. Without any,
    the bound decides, if it is known.
    """
    if not held_back.size:
        known = trial.knows_total or trial.lists_all
        return known and worth(trial, held_back) > worth(control, held_back)
    gain = squared_errors(control, held_back) - squared_errors(trial, held_back)
    return bool(gain.mean() > MARGIN * gain.std() / np.sqrt(gain.size))


def worth(state: OnlineState, held_back: Int64Array) -> float:
    """Return how well a state explains ratings.

    That is the negative mean squared error of ratings that were held back or, without any, the
    bound.
    """
    if held_back.size:
        return -float(squared_errors(state, held_back).mean())
    if not state.knows_total and not state.lists_all:
        return 0.0
    total = float(state.total[0]) if state.knows_total else None
    return float(sum(state.bound_terms(total).values()))


def squared_errors(state: OnlineState, ratings: Int64Array) -> Float64Array:
    """Squared errors of the predictions of ratings."""
    users, items, codes = np.ascontiguousarray(ratings.T)
    left, right = state.stores["user"].moments, state.stores["item"].moments
    mean, _ = pair_moments(left, right, users, items, variance=False)
    return np.asarray((state.levels()[codes] - mean) ** 2)


def copied(state: OnlineState) -> OnlineState:
    """Return a copy that shares the ratings on record."""
    stores = {name: store.copy() for name, store in state.stores.items()}
    trial = replace(
        state,
        sides={name: replace(side) for name, side in state.sides.items()},
        stores=stores,
        clocks=state.clocks.copy(stores),
        total=state.total.copy(),
        features={
            name: replace(own, later=dict(own.later)) for name, own in state.features.items()
        },
        moods=copy.deepcopy(state.moods),
        rng=copy.deepcopy(state.rng),
        journal=None,  # a copy is dropped, not undone
    )
    for name in SIDES:
        trial.point(name)
    return trial


def take(state: OnlineState, trial: OnlineState) -> None:
    """Replace the content of a state by that of a changed copy."""
    rng = state.rng  # it may be shared with the caller
    rng.bit_generator.state = trial.rng.bit_generator.state
    for field in fields(trial):
        if field.name not in ("rng", "journal"):
            setattr(state, field.name, getattr(trial, field.name))


# -- directions ----------------------------------------------------------------------------------
#
# A direction of the factors closes where few ratings support it: its prior shrinks, and from almost
# nothing it comes back only slowly once there are more. Ratings that are evicted in the meantime
# are summed up without that direction.


def open_directions(state: OnlineState) -> int:
    """Try to open the directions that the ratings on record support; return how many are kept."""
    state.clocks.ratings["directions"] = state.n_ratings
    if not _closed_directions(state).shape[1]:
        return 0
    opened = 0

    def jump(trial: OnlineState) -> bool:
        nonlocal opened
        opened = _open(trial)
        return opened > 0

    return opened if try_jump(state, jump, pass_over, passes=OPENING_PASSES) else 0


def _open(state: OnlineState) -> int:
    """Let items differ in closed directions as the ratings suggest; return in how many."""
    closed = _closed_directions(state)
    if not closed.shape[1]:
        return 0
    items = state.stores["item"]
    residuals = scaled_residuals(_residuals(state), items.n_rows, CHANCE_RATINGS)
    found = clear_directions(residuals, closed.shape[1], state.rng, margin=CLEAR_MARGIN)
    opened = closed[:, : found.shape[1]]
    if not opened.shape[1]:
        return 0
    factors, (rows, columns) = items.layout.factors, lower_triangle(items.layout.total)
    keep(state, "item")
    mean, second = items.moments.mean, items.moments.second
    second -= mean[:, rows] * mean[:, columns]
    mean[:, factors] += FACTOR_START * np.clip(found, -MAX_START, MAX_START) @ opened.T
    second += mean[:, rows] * mean[:, columns]
    state.set_total()
    for name in SIDES:
        _widen_directions(state, name, opened)
    return int(opened.shape[1])


def _closed_directions(state: OnlineState) -> Float64Array:
    """Return directions of the factors in which rows do not differ, (factors, how many)."""
    n_factors = state.stores["user"].layout.factors.size
    total = np.zeros((n_factors, n_factors))
    for store in state.stores.values():
        factors = store.mean[:, store.layout.factors].astype(np.float64)
        square = factors.T @ (factors * store.count[:, None])
        total += square / max(float(np.trace(square)), np.finfo(float).tiny)
    share, directions = np.linalg.eigh(total)
    return np.asarray(directions[:, share < CLOSED])


def _residuals(state: OnlineState) -> Sparse:
    """Return the residuals of the ratings on record of users, or of enough of them."""
    users, items = state.stores["user"], state.stores["item"]
    indptr, indices, codes = users.history.to_rows()
    values = state.levels()[codes]
    if state.moods is not None:
        values -= state.moods.of(users.history.sittings())[0]
    lengths = np.diff(indptr)
    if indices.size > MAX_READ:
        order = state.rng.permutation(lengths.size)
        is_read = np.zeros(lengths.size, bool)
        is_read[order[np.cumsum(lengths[order]) <= MAX_READ]] = True
        read = np.repeat(is_read, lengths)
        indices, values, lengths = indices[read], values[read], np.where(is_read, lengths, 0)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
    expected, _ = pair_moments(
        users.moments, items.moments, row_of_each(indptr), indices.astype(np.int64), variance=False
    )
    return Sparse(indptr, indices, values - expected)


def _widen_directions(state: OnlineState, name: str, opened: Float64Array) -> None:
    """Let rows of a side differ in these directions, until their posterior shows how much."""
    side = state.sides[name]
    wide = np.zeros((side.layout.order, opened.shape[1]))
    wide[-opened.shape[0] :] = opened  # after the offset, if there is one
    communities = side.communities
    added = communities.dof[:, None, None] * FACTOR_VARIANCE * (wide @ wide.T)
    side.communities = replace(communities, scale=communities.scale + added)


# -- a wider prior -------------------------------------------------------------------------------
#
# A fit to few ratings closes directions for which there is no evidence yet. With a wide prior
# covariance, passes over the ratings on record bring back those that the ratings support by now.


def is_scarce(state: OnlineState) -> bool:
    """Whether there are few ratings for the numbers they are to determine."""
    return state.seen < ENOUGH * state.n_unknown


def plan_widening(state: OnlineState, growth: float = WIDEN_GROWTH) -> None:
    """Schedule a wider prior for when ratings have grown, if they are scarce."""
    listed = state.window != 0  # sums hold nothing of directions that were closed
    can = listed and state.options.evb is not None and is_scarce(state)
    state.clocks.schedule("widening", round(growth * state.seen) + 1 if can else None)


def widen_priors(state: OnlineState) -> bool:
    """Try a wider prior on both sides, and keep it if it is better."""
    if try_jump(state, _widen_unclear, pass_over, passes=WIDEN_PASSES, at_least=MIN_WIDEN_PASSES):
        state.clocks.schedule("widening", None)
        return True
    plan_widening(state, AGAIN)
    return False


def _widen_unclear(state: OnlineState) -> bool:
    unclear = [side for side in state.sides.values() if not is_clear(side)]
    for side in unclear:
        widen(side)
    return bool(unclear)
