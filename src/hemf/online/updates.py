"""Updates of online variational Bayes: rows as their ratings arrive, then what rows share.

docs/model.md#online-rows. A batch of ratings is recorded on the users' side, the users it touches
are refreshed, then the same for items. Communities are updated from statistics, to which only the
touched rows make a difference. Streams take the same steps for each rating in one compiled loop.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from hemf._options import OnlineOptions
from hemf._typing import OTHER, SIDES, BoolArray, Float64Array, Int64Array
from hemf.model.communities import learn_prior
from hemf.model.moods import MoodPrior
from hemf.model.regression import RATED, Design, Regression, implicit_blocks
from hemf.model.rows import NOISE_FLOOR, balance, learn_scales, noise_floor, pack, pair_moments
from hemf.model.side import learn_features
from hemf.online import state as online
from hemf.online.clocks import Outlier, is_far
from hemf.online.communities import find_split, make_split, tidy
from hemf.online.eviction import make_positive, rotate_packed, rotation
from hemf.online.features import extended, is_exact
from hemf.online.moods import OnlineMoods
from hemf.online.state import MARGIN, OnlineState, backup_rows, pair, recall, rules, smooth_moods
from hemf.online.store import REFRESHED, distinct

if TYPE_CHECKING:
    from hemf.kernels.structures import Rows, Rules

Arguments: TypeAlias = "tuple[Rows, Rows, Rules]"

NOISE_MEMORY = 20_000  # ratings over which σ² is averaged where none is kept
NOISE_SAMPLE = 200  # ratings of a batch that are used for that
LOW_NOISE = 1e-3  # of the ratings' variance, below which rounding may matter
GROWING = 0.001  # share of new ratings above which W0 is not learnt
RECENT_ROWS = 2048  # rows among which a new community is searched
MIN_RECENT = 100  # ratings that judge a new community, or a jump, at least
MAX_LEVERAGE = 0.8  # of a rating on its own prediction
RECENT = 4000  # latest ratings that are remembered
MAX_PASSES = 30
TOLERANCE = 3e-3  # root mean square of the moves of a side's means, standardised
CORRECTION_PASSES = 20
CORRECTION_TOLERANCE = 1e-4  # largest change of a row's mean, standardised, at which passes end
KNOWN = 5  # ratings that a row must have for a forecast of it to count
GROWN = 0.1  # new ratings, of those on record, after which all moods are smoothed
CLOSED = 0.1  # of the variance that a prior starts with; of less, moods do not open by themselves
ONE = np.ones(1, np.int64)


# -- batches and streams -------------------------------------------------------------------------


def apply_batch(
    state: OnlineState,
    users: Int64Array,
    items: Int64Array,
    codes: Int64Array,
    previous: Int64Array,
    times: Int64Array | None = None,
    *,
    learn: bool = True,
) -> int:
    """Learn a batch of ratings, and return how many are of pairs not rated before.

    A code of -1 removes the ``previous`` one. All pairs are different. ``times`` are needed where
    there are moods.
    """
    from hemf.kernels import online as kernels
    from hemf.kernels.structures import Batch

    rows = {"user": users, "item": items}
    begun = {name: store.refreshes for name, store in state.stores.items()}
    online.backup_batch(state, rows)
    added = _reserve(state, rows)
    own = {name: state.stores[name].rows() for name in SIDES}
    if state.window != 0:
        if not state.options.counts_repeats:
            kept = recall(state, users, items)
            previous = kept if state.is_complete else np.where(kept >= 0, kept, previous)
        online.backup_changed(state, rows, previous >= 0)
    sessions = NO_SESSIONS
    if state.moods is not None:
        sessions = find_sessions(state, state.moods, (users, items, codes, previous), times)
    if state.knows_total:
        gone = state.errors(users, items, previous, sessions.before).sum()
        come = state.errors(users, items, codes, sessions.now).sum()
        state.total[:] = state.total[0] + come - gone, max(state.total[1], come, gone)
    is_new = np.zeros(codes.size, np.int64)
    state.clocks.seen += codes.size
    for name in SIDES:
        other = OTHER[name]
        arguments = own[name], own[other], rules(state)
        online.compiled(state, kernels.record_all)(
            Batch(rows[name], rows[other], codes, previous, sessions.now), *arguments,
            state.options.forgetting[name], is_new, state.stores["user"].outer(),
        )  # fmt: skip
        if name == "user" and sessions.touched.size:
            smooth_moods(state, sessions.touched)
        if not state.is_complete and (previous >= 0).any():
            make_positive(state.stores[name], np.unique(rows[name][previous >= 0]))
        refresh(state, name, _due(state, name, rows[name]), learn=learn, arguments=arguments)
    if _observe(state, codes, previous, begun):
        correct_outlier(state, {name: distinct(rows[name]) for name in SIDES})
    if state.window > 0:
        evict(state, added)
    remember(state, users, items, codes)
    if learn:
        errors = None
        if state.window == 0:
            columns = users, items, codes, *([sessions.now] if sessions.now.size else [])
            errors = state.errors(*sample(state.rng, *columns))
        if is_smoothing_due(state):
            learn_moods(state)
        learn_noise(state, "item", errors, int((codes >= 0).sum()))
        learn_priors(state)
        refresh_stale(state, codes.size)
    state.changes += 1
    return int(is_new.sum())


def apply_stream(
    state: OnlineState,
    users: Int64Array,
    items: Int64Array,
    codes: Int64Array,
    times: Int64Array | None = None,
) -> tuple[Float64Array, Int64Array]:
    """Learn ratings one after the other; return the forecast of each, and its ticks."""
    from hemf.kernels import online as kernels
    from hemf.kernels.structures import Stream

    when = np.zeros(0, np.int64) if times is None else times
    forecasts, errors = np.empty(codes.size), np.empty(codes.size)
    ticks = np.zeros(codes.size, np.int64)
    online.backup_stream(state, users, items)
    _reserve(state, {"user": users, "item": items})
    replaced = _replaced(state, users, items, codes)
    begun = {name: store.refreshes for name, store in state.stores.items()}
    rows = {name: state.stores[name].rows() for name in SIDES}
    common = {name: online.shared(state, name) for name in SIDES}
    online.compiled(state, kernels.stream)(
        Stream(users, items, codes, when, forecasts, errors, ticks), rows["user"], rows["item"],
        common["user"], common["item"], rules(state),
        *(state.stores[name].scratch(rows[name], common[name]) for name in SIDES),
        state.stores["user"].outer(), online.sessions(state),
    )  # fmt: skip
    state.clocks.seen += codes.size
    remember(state, users, items, codes)
    for name in SIDES:
        state.sides[name].refresh(state.stores[name].statistics)
        if state.clocks.due("prior", name):
            learn_row_scales(state, name)
    if _observe(state, *replaced, begun):
        correct_outlier(state, {"user": distinct(users), "item": distinct(items)})
    if is_smoothing_due(state):
        learn_moods(state)
    learn_noise(state, "user", errors if state.window == 0 else None)
    learn_priors(state)
    refresh_stale(state, codes.size)
    state.changes += 1
    return forecasts, ticks


def evict(state: OnlineState, added: dict[str, tuple[Int64Array, Int64Array]]) -> None:
    """Evict ratings that are replaced by newer ones, and add them to the sums."""
    from hemf.kernels import online as kernels

    for name in SIDES:
        online.backup_evicted(state, name, *added[name])
        online.compiled(state, kernels.evict_all)(
            *added[name], *pair(state, name), rules(state),
            state.options.forgetting[name], state.options.forgetting[OTHER[name]],
            state.stores["user"].outer(),
        )  # fmt: skip


def change_options(state: OnlineState, options: OnlineOptions) -> None:
    """Learn with other options from now on."""
    forgetting_changed = options.forgetting != state.options.forgetting
    state.options = options
    if forgetting_changed:  # the weights of ratings are on record with the rows
        state.set_total()
        for name in SIDES:
            refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)


def _replaced(
    state: OnlineState, users: Int64Array, items: Int64Array, codes: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Codes that a stream adds to the ratings on record, and those they replace, -1 for none.

    Without a full history they are not needed, and both are empty.
    """
    if not state.is_complete:
        return codes[:0], codes[:0]
    if state.options.counts_repeats:
        return codes, np.full(codes.size, -1)
    before = recall(state, users, items)
    pairs = users * np.int64(state.stores["item"].n_rows) + items
    first = np.unique(pairs, return_index=True)[1]
    last = pairs.size - 1 - np.unique(pairs[::-1], return_index=True)[1]
    return codes[last], before[first]


def _reserve(
    state: OnlineState, rows: dict[str, Int64Array]
) -> dict[str, tuple[Int64Array, Int64Array]]:
    """Make room for ratings; return each side's rows, and how many ratings each gets."""
    added: dict[str, tuple[Int64Array, Int64Array]] = {}
    if state.moods is not None:
        if not state.moods.has_room(rows["user"].size):
            online.backup_sessions(state)
        histories = [store.history for store in state.stores.values()]
        state.moods.reserve(rows["user"].size, histories)
    if state.window == 0:
        return added
    state.even_codes()
    for name, own in rows.items():
        added[name] = (own, ONE) if own.size == 1 else np.unique(own, return_counts=True)
        state.stores[name].history.reserve(*added[name], len(state.book))
    state.even_codes()
    return added


def _due(state: OnlineState, name: str, rows: Int64Array) -> Int64Array:
    """Return which rows, of those with new ratings, are to be refreshed now."""
    touched, store, other = distinct(rows), state.stores[name], state.stores[OTHER[name]]
    wait = online.pending_share(state, name)
    if wait == 0.0:
        return touched
    is_due = other.totals[2] - store.other_refreshes[touched] > online.CHANGE * other.n_rows
    due: Int64Array = touched[is_due | (store.pending[touched] > wait * store.count[touched])]
    return due


def is_smoothing_due(state: OnlineState) -> bool:
    """Whether to smooth all moods and learn their prior."""
    clocks = state.clocks
    if state.moods is None or not state.is_complete or not clocks.due("moods", "user"):
        return False
    return (
        state.seen - clocks.ratings.get("moods", 0)
        >= GROWN * state.stores["user"].history.n_ratings
    )


def remember(state: OnlineState, users: Int64Array, items: Int64Array, codes: Int64Array) -> None:
    """Keep the latest ratings, by which jumps are judged."""
    there = codes >= 0
    new = np.column_stack([users, items, codes])
    new = new if there.all() else new[there]
    state.recent = np.concatenate([state.recent, new])[-RECENT:]


# -- sessions and their moods --------------------------------------------------------------------


class BatchSessions(NamedTuple):
    """The sessions of a batch's ratings; empty without moods."""

    now: Int64Array
    before: Int64Array
    """Earlier session of each pair on record, or -1."""
    touched: Int64Array
    """Raters whose moods are to be smoothed once the ratings are recorded."""


NO_SESSIONS = BatchSessions(*(np.zeros(0, np.int64) for _ in range(3)))


def find_sessions(
    state: OnlineState,
    moods: OnlineMoods,
    ratings: tuple[Int64Array, Int64Array, Int64Array, Int64Array],
    times: Int64Array | None,
) -> BatchSessions:
    """Find the sessions of ratings (users, items, codes, previous codes), and add new ones.

    Where not every rating is kept, moods are filtered at once, in the order of time.
    """
    from hemf.kernels import moods as filtering

    users, items, codes, previous = ratings
    store = state.stores["user"]
    online.backup_moods(state, np.unique(users))
    types = store.mean.dtype, store.history.code.dtype
    now, before = np.full(codes.size, -1), np.full(codes.size, -1)
    when = np.zeros(codes.size, np.int64) if times is None else times
    filtering.recall_sessions.compiled(*types)(users, items, store.rows(), before)
    arrays = moods.arrays()
    if state.is_complete:
        filtering.assign_sessions.compiled(*types)(users, when, codes, 1, arrays, now)
        is_same = (now == before) & (codes == previous)
        return BatchSessions(now, before, np.unique(users[~is_same]))
    order = np.argsort(when, kind="stable")
    sorted_now = np.full(codes.size, -1)
    filtering.filter_all.compiled(*types)(
        users[order], items[order], codes[order], previous[order], when[order],
        *pair(state, "user"), rules(state), arrays, sorted_now,
    )  # fmt: skip
    now[order] = sorted_now
    return BatchSessions(now, before, NO_SESSIONS.touched)


def learn_moods(state: OnlineState) -> None:
    """Smooth all moods and, if hyper-parameters are learnt at all, learn their prior."""
    moods = state.moods
    assert moods is not None
    learn = state.options.evb is not None
    smooth_moods(state, np.arange(state.stores["user"].n_rows), learn=learn)
    if learn:
        _open_moods(state, moods)
    state.clocks.ratings["moods"] = state.seen
    state.clocks.done("moods", "user")


def _open_moods(state: OnlineState, moods: OnlineMoods) -> None:
    """Restart a prior of moods that has closed, where that raises the bound.

    With few sessions the factors may explain all of the moods. The variances would not grow again
    from almost zero.
    """
    start, prior = MoodPrior(), moods.prior
    if prior.variance + prior.extra >= CLOSED * (start.variance + start.extra):
        return
    before, kept = _mood_bound(state, moods), (moods.table.copy(), moods.moods.copy())
    total, smoothed = state.total.copy(), moods.smoothed.copy()
    moods.prior = start
    smooth_moods(state, np.arange(state.stores["user"].n_rows), learn=True)
    if not _mood_bound(state, moods) > before:
        moods.prior, moods.smoothed = prior, smoothed
        (moods.table[:], moods.moods[:]), state.total[:] = kept, total


def _mood_bound(state: OnlineState, moods: OnlineMoods) -> float:
    """Return the part of the bound that depends on moods and their prior."""
    history = state.stores["user"].history
    errors = float(state.errors(*history.triples(), history.sessions()).sum())
    return -0.5 * errors / state.noise - moods.divergence(complete=True)


# -- rows ----------------------------------------------------------------------------------------


def refresh(
    state: OnlineState,
    name: str,
    rows: Int64Array,
    *,
    learn: bool = True,
    arguments: Arguments | None = None,
) -> None:
    """Bring these rows, then the communities of their side, to their optimum.

    ``arguments`` are both sides' rows and the rules as kernels take them, if the caller has them.
    """
    is_all = rows.size == state.stores[name].n_rows
    refresh_rows(state, name, rows, learn, arguments)
    if is_all and name in state.features:
        if learn and learn_coefficients(state, name):
            refresh_rows(state, name, rows, learn, None)
        regress(state, name)
    if state.clocks.due("communities", name):
        state.clocks.done("communities", name)
        state.sides[name].refresh()


def refresh_rows(
    state: OnlineState, name: str, rows: Int64Array, learn: bool, arguments: Arguments | None
) -> None:
    """Bring these rows to their optimum, and learn the noise scales if they are due."""
    from hemf.kernels import online as kernels

    backup_rows(state, name, rows, REFRESHED)
    own, other, settings = arguments or (*pair(state, name), rules(state))
    common = online.shared(state, name)
    memory = state.stores[name].scratch(own, common)
    online.compiled(state, kernels.refresh_all)(rows, own, other, common, settings, memory)
    store = state.stores[name]
    online.note_refreshed(state, name, rows)
    if learn and state.clocks.due("prior", name):
        learn_row_scales(state, name, all_fresh=rows.size == store.n_rows)
    state.sides[name].statistics = store.statistics


def refresh_stale(state: OnlineState, n_learnt: int) -> None:
    """Refresh the rows with the oldest information, ``refresh`` for each rating learnt."""
    wanted = round(state.options.refresh * n_learnt)
    for name in SIDES if wanted > 0 else ():
        store = state.stores[name]
        n = min(wanted, store.n_rows)
        oldest = np.argpartition(store.last_refresh, n - 1)[:n]
        refresh(state, name, np.sort(oldest), learn=False)
        # The prior waits for as many ratings as without this.
        state.clocks.last["prior", name] = state.clocks.last_done("prior", name) + n


def pass_over(state: OnlineState) -> None:
    """Refresh all rows, then their moods and the noise."""
    for name in SIDES:
        refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)
    if state.moods is not None and state.is_complete:
        smooth_moods(state, np.arange(state.stores["user"].n_rows))
    if state.options.evb is not None:
        learn_noise(state, "item", None)


def converge(state: OnlineState) -> None:
    """Refresh all rows and learn hyper-parameters until the rows converge."""
    for _ in range(MAX_PASSES):
        before = {name: store.mean.copy() for name, store in state.stores.items()}
        pass_over(state)
        for name in SIDES:
            state.sides[name].refresh(state.stores[name].statistics)
            if _learn_prior(state, name):
                state.sides[name].refresh()
        moves = [np.sqrt(np.mean((state.stores[name].mean - before[name]) ** 2)) for name in SIDES]
        if max(moves) < TOLERANCE:
            return


# -- noise ---------------------------------------------------------------------------------------


def learn_row_scales(state: OnlineState, name: str, *, all_fresh: bool = False) -> None:
    """Bring the noise scales of a side and their prior to their optimum.

    The errors on record are those of each row's last refresh. Unless all rows were just refreshed,
    others have changed since. Then, where the total error is known, the scales are kept, since each
    was at its optimum, and only their prior is learnt.
    """
    side, store = state.sides[name], state.stores[name]
    if side.noise_scales is None or state.options.evb is None:
        return
    if state.knows_total and not all_fresh:
        scales, factor = balance(side.noise_scales)
    else:
        counts = np.rint(store.effective_count).astype(np.int64)
        errors = store.error / state.error_unit(name)
        scales, factor = learn_scales(side.noise_scales, errors, counts)
    if state.window != 0 and state.noise / factor < NOISE_FLOOR:
        return  # σ² would have to be raised again, which lowers the bound
    backup_rows(state, name, only=("shape", "rate", "weight"))
    store.shape[:], store.rate[:] = scales.shape, scales.rate
    store.weight[:] = scales.mean
    side.noise_scales = replace(scales, shape=store.shape, rate=store.rate)
    store.totals[1] = store.error @ scales.mean
    if state.knows_total:
        state.total[0] = store.totals[1] if all_fresh else state.total[0] / factor
    if state.window != 0:
        state.noise /= factor


# docs/model.md#online-noise
def learn_noise(
    state: OnlineState, name: str, errors: Float64Array | None, n_learnt: int | None = None
) -> None:
    """σ²: of all ratings on record, or a running mean where ``errors`` of the latest are given.

    ``n_learnt`` is the number of latest ratings where ``errors`` are those of a sample.
    """
    if state.options.evb is None:
        return
    if errors is None:
        # Users are refreshed with each of their ratings, so that all of theirs are counted.
        store = state.stores["user" if state.knows_total else name]
        if store.totals[3] < 0.5:
            return  # there is no rating
        if state.knows_total:
            state.check_total()
        total = state.total[0] if state.knows_total else store.totals[1]
        noise = total / max(float(store.totals[3]), 1.0)
    elif errors.size:
        n_learnt = n_learnt or errors.size
        part = n_learnt / (n_learnt + min(NOISE_MEMORY, max(state.seen, 1)))
        noise = (1.0 - part) * state.noise + part * float(errors.mean())
    else:
        return
    floor = NOISE_FLOOR
    if noise < LOW_NOISE:  # looking at all rows takes time
        stores = list(state.stores.values())
        n_most = int(max(store.count.max() for store in stores))
        floor = noise_floor([store.weight for store in stores], n_most, stores[0].mean.dtype)
    state.noise = max(float(noise), floor)


def sample(rng: np.random.Generator, *columns: Int64Array) -> tuple[Int64Array, ...]:
    """Draw entries of a batch's columns, enough to estimate its noise."""
    if columns[0].size <= NOISE_SAMPLE:
        return columns
    drawn = rng.integers(columns[0].size, size=NOISE_SAMPLE)
    return tuple(column[drawn] for column in columns)


# -- hyper-parameters and the number of communities ----------------------------------------------


def learn_priors(state: OnlineState) -> None:
    """Learn hyper-parameters and the number of communities, when they are due."""
    clocks = state.clocks
    for name in SIDES:
        side, store = state.sides[name], state.stores[name]
        if is_regression_due(state, name):
            regress_again(state, name)
            side.refresh()
        if clocks.due("prior", name):
            if name in state.features and clocks.due("averages", name):
                online.average_effects(state, name)
            if state.window == 0 and clocks.due("rotation", name):
                rotate_sums(state, name)
            clocks.done("prior", name)
            grown = state.n_ratings > (1.0 + GROWING) * clocks.ratings.get(name, 0)
            if _learn_prior(state, name, scale=not grown or state.has_plenty):
                clocks.ratings[name] = state.n_ratings
                side.refresh()
            if tidy(side, store, partial(backup_rows, state, name)):
                state.point(name)
                side.refresh(store.statistics)
        search(state, name)


def _learn_prior(state: OnlineState, name: str, *, scale: bool = True) -> bool:
    """Learn the prior of a side's communities; return whether it is learnt at all."""
    side = state.sides[name]
    if state.options.evb is None:
        return False
    side.prior = learn_prior(
        side.prior, side.communities, evb=state.options.evb, structure=True, scale=scale
    )
    return True


def rotate_sums(state: OnlineState, name: str) -> None:
    """Rotate the other side's sums as the factors of this side move."""
    sums = state.stores[OTHER[name]]
    state.clocks.done("rotation", name)
    move = rotation(state.stores[name], sums)
    if move is not None:
        backup_rows(state, OTHER[name], only=("gram", "moment"))
        sums.moment[:] = sums.moment @ move.T
        rotate_packed(sums.gram, move.astype(sums.gram.dtype))


def search(state: OnlineState, name: str) -> None:
    """Search for a new community among the rows refreshed recently."""
    side, store = state.sides[name], state.stores[name]
    if not state.clocks.due("search", name):
        return
    recent = np.flatnonzero(store.last_refresh > state.clocks.last_done("search", name))
    state.clocks.done("search", name)
    most = state.options.max_communities[name]
    if most is not None and side.n_communities >= most:
        return
    if recent.size > RECENT_ROWS:
        recent = recent[np.argsort(store.last_refresh[recent])[-RECENT_ROWS:]]
    split = find_split(side, store, recent)
    if split is None:
        return

    # The evidence of the rows is for the split; errors of recent ratings may veto it. It is made in
    # place: to copy the rows would take a hundred times as long as to learn a rating.
    before = left_out_errors(state, state.recent)
    mark = online.savepoint(state)
    backup_rows(state, name, np.union1d(split.rows, recent), ("listed", "considered_count"))
    make_split(side, store, split)
    state.point(name)
    side.refresh(store.statistics)
    store.considered_count[recent] = 0  # consider all communities the next time
    refresh(state, name, split.rows, learn=False)
    gain = before - left_out_errors(state, state.recent)
    if gain.size >= MIN_RECENT and gain.mean() < -MARGIN * gain.std() / np.sqrt(gain.size):
        online.back_to(state, mark)
    online.release(state, mark)


def left_out_errors(state: OnlineState, ratings: Int64Array) -> Float64Array:
    """Approximate squared errors of ratings if the model had not learnt them.

    A residual divided by 1 - h, where h is the leverage of the rating on its own prediction.
    """
    users, items, codes = np.ascontiguousarray(ratings.T)
    left, right = state.stores["user"], state.stores["item"]
    mean, variance = pair_moments(left.moments, right.moments, users, items, variance=True)
    leverage = left.weight[users] * right.weight[items] * variance / state.noise
    residual = (state.levels()[codes] - mean) / (1.0 - np.clip(leverage, 0.0, MAX_LEVERAGE))
    return np.asarray(residual**2)


# -- features ------------------------------------------------------------------------------------


def is_regression_due(state: OnlineState, name: str) -> bool:
    """Whether a side's regression is to be fitted again."""
    return name in state.features and state.is_complete and state.clocks.due("regression", name)


def learn_coefficients(state: OnlineState, name: str) -> bool:
    """Bring C and the λ_b to their optimum, or nearer to it, after a refresh of all rows.

    Return whether rows have to be updated. If that takes a large factorisation, C and the
    λ_b stay those of the last fit.
    """
    side, store = state.sides[name], state.stores[name]
    if side.regression is None or not state.is_complete or not is_exact(side.regression.design):
        return False
    here = _renewed(state, name)
    information = np.where(here, store.information, 0.0)
    if not learn_features(side, information, move=state.options.evb is not None):
        return False
    backup_rows(state, name)
    store.leverage[:] = side.regression.leverage
    _take(state, name, side.regression)
    return True


def regress(state: OnlineState, name: str) -> None:
    """Bring M to its optimum for the current rows, or nearer to it; update what depends on it."""
    side = state.sides[name]
    if side.regression is None or not state.is_complete:
        return
    here = _renewed(state, name)
    targets = side.factor_means - side.membership.astype(np.float64) @ side.communities.mean
    targets[~here] = 0.0
    exact = is_exact(side.regression.design)
    _take(state, name, (side.regression.fitted if exact else side.regression.moved)(targets))
    online.postpone_regression(state, name)
    online.average_effects(state, name)


def _renewed(state: OnlineState, name: str) -> BoolArray:
    """Update a side's regression to the current features; return which rows have any."""
    side, store = state.sides[name], state.stores[name]
    assert side.regression is not None
    here: BoolArray = (store.listed >= 0).any(axis=1)
    design = current_design(state, name, side.regression.design, here)
    side.regression = extended(side.regression, design, store.leverage)
    return here


def current_design(state: OnlineState, name: str, before: Design, here: BoolArray) -> Design:
    """Return the current features of a side's rows; those not ``here`` have none."""
    blocks = state.features[name].blocks(before, here)
    if RATED in before.names:
        indptr, indices, _ = state.stores[name].history.to_rows()
        blocks |= implicit_blocks(indptr, indices, state.stores[OTHER[name]].n_rows)
    return Design.of(blocks, before.values.dtype.type)


def _take(state: OnlineState, name: str, regression: Regression) -> None:
    """Update rows and communities for another regression."""
    side, store = state.sides[name], state.stores[name]
    backup_rows(state, name)
    backup_rows(state, OTHER[name], only=["coefficients"])
    side.regression, shift = regression, store.shift.copy()
    online.write_effects(state, name, regression)
    store.shift_parts(store.shift - shift)
    store.scatter += pack(regression.penalty[None])
    side.statistics = store.statistics


def regress_again(state: OnlineState, name: str) -> None:
    """Fit a side's regression again; where C is learnt too, after all rows are refreshed."""
    store, regression = state.stores[name], state.sides[name].regression
    if regression is not None and is_exact(regression.design):
        refresh(state, name, np.arange(store.n_rows))
    else:
        regress(state, name)


def give_features(state: OnlineState, name: str, rows: Int64Array, encoded: csr_array) -> None:
    """Replace the features of rows; those with ratings are refreshed."""
    own, store, side = state.features[name], state.stores[name], state.sides[name]
    assert side.regression is not None
    backup_rows(state, name, rows)
    store.base[rows] = encoded @ side.regression.coefficient_blocks.given
    encoded = csr_array(encoded, dtype=own.given.dtype)
    for k, row in enumerate(rows.tolist()):
        own.later[row] = encoded[k : k + 1]
    here = (store.listed[rows] >= 0).any(axis=1)
    if here.any():
        refresh(state, name, np.sort(rows[here]), learn=False)
    online.set_newcomers(state, name)


# -- outliers ------------------------------------------------------------------------------------
#
# While an outlier, such as a typing error, is on record it moves its rows, the noise scales and,
# through these, every row that is refreshed in the meantime. A row and its noise scale are
# estimated in turn, so one refresh after the correction does not bring them back.


def _observe(
    state: OnlineState, codes: Int64Array, previous: Int64Array, begun: dict[str, float]
) -> bool:
    """Keep the observed range up to date; return whether an outlier was removed.

    ``codes`` are those of the ratings that were learnt and ``previous`` those that they replaced,
    -1 for none. ``begun`` are the refreshes of each side before. Without a full history nothing is
    done.
    """
    if not state.is_complete:
        return False
    values, before = state.book.values, state.observed
    added, removed = values[codes[codes >= 0]], values[previous[previous >= 0]]
    after = None if before is None else before.changed(added, removed)
    state.observed = after = after or state.range_on_record()
    if before is None or after is None:
        return False
    if state.outlier is None and is_far(before.ends, after.ends, state.seen):
        low, high = before.ends
        is_outside = (codes >= 0) & ((values[codes] < low) | (values[codes] > high))
        state.outlier = Outlier(before.ends, begun, bool((previous[is_outside] < 0).all()))
    return is_far(after.ends, before.ends, state.seen)


def remove_outlier(
    state: OnlineState,
    users: Int64Array,
    items: Int64Array,
    codes: Int64Array,
    previous: Int64Array,
) -> Int64Array:
    """Remove an outlier that these ratings replace, if it was the first rating of its pair.

    Return the codes of the ratings that they still replace. They are then learnt as new ratings
    are, as they would have been without the error. Replacing the outlier would bring its rows
    nearer to their optimum than new ratings do.
    """
    outlier = state.outlier
    if outlier is None or not outlier.is_first or not state.is_complete:
        return previous
    low, high = outlier.others
    kept = previous if state.options.counts_repeats else recall(state, users, items)
    values = state.book.values
    is_inside = (codes >= 0) & (values[codes] >= low) & (values[codes] <= high)
    wrong = is_inside & (kept >= 0) & ((values[kept] < low) | (values[kept] > high))
    if wrong.any():
        none = np.full(int(wrong.sum()), -1)
        apply_batch(state, users[wrong], items[wrong], none, kept[wrong], learn=False)
    return np.where(wrong, -1, previous)


def correct_outlier(state: OnlineState, rows: dict[str, Int64Array]) -> None:
    """Refresh these rows, and all refreshed since the outlier was learnt, until they converge."""
    outlier, observed = state.outlier, state.observed
    if outlier is not None:
        for name in SIDES:
            since = np.flatnonzero(state.stores[name].last_refresh > outlier.refreshes[name])
            rows = {**rows, name: np.union1d(rows[name], since)}
    for _ in range(CORRECTION_PASSES):
        moved = 0.0
        for name in SIDES:
            side, store = state.sides[name], state.stores[name]
            before = store.mean[rows[name]]
            refresh(state, name, rows[name], learn=False)
            moved = max(moved, float(np.abs(store.mean[rows[name]] - before).max(initial=0.0)))
            side.refresh(store.statistics)
            learnt = state.clocks.last_done("prior", name)
            if outlier is not None and learnt > outlier.refreshes[name]:
                _learn_prior(state, name)
                side.refresh(store.statistics)
        learn_noise(state, "item", None)
        if moved < CORRECTION_TOLERANCE:
            break
    if outlier and observed and not is_far(outlier.others, observed.ends, state.seen):
        state.outlier = None


# -- forecasts -----------------------------------------------------------------------------------


def forecast(state: OnlineState, users: Int64Array, items: Int64Array) -> Float64Array:
    """Return the expected standardised ratings of these pairs."""
    left, right = (state.stores[name].mean for name in SIDES)
    return np.asarray(np.einsum("ij,ij->i", left[users], right[items]), np.float64)


def is_known(state: OnlineState, users: Int64Array, items: Int64Array) -> BoolArray:
    """Whether both rows of each pair have enough ratings for a forecast to count."""
    counts = (state.stores["user"].count[users], state.stores["item"].count[items])
    return np.asarray(np.minimum(*counts) >= KNOWN)


def watch_errors(state: OnlineState, errors: Float64Array) -> str | None:
    """Update the running error of forecasts; return a warning once, when they become worse."""
    n_rows = sum(store.n_rows for store in state.stores.values())
    watch = state.watch = state.watch.after(errors, n_rows)
    if watch.has_warned or not watch.is_worse or watch.recent < NOISE_FLOOR * state.unit**2:
        return None  # errors below the floor are rounding
    state.watch = replace(watch, has_warned=True)
    return watch.warning
