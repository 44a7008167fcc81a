"""Online learning from a fitted model or from nothing: `partial_fit` and `predict_then_learn`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from hemf._checks import check_range, check_rng, one_blas_thread
from hemf._options import (
    ALL,
    FitOptions,
    OnlineOptions,
    Parameters,
    fit_options,
    online_options,
)
from hemf._typing import SIDES, Array, Float64Array, Int64Array
from hemf.batch.fit import BatchState
from hemf.data.ratings import Ratings, read_in_order, resolve_duplicates
from hemf.data.sources import Columns, read_columns
from hemf.data.vocabulary import CodedIds, Vocabulary
from hemf.errors import DataError, ParameterError, StreamWarning, warn_caller
from hemf.model.state import FittedModel, GivenFeatures
from hemf.online import jumps, start, updates
from hemf.online.clocks import FIRST_RESTART
from hemf.online.journal import Journal, ModelHolder, generator_state, mappings_of, uninterrupted
from hemf.online.record import Fit
from hemf.online.requests import (
    Arrivals,
    More,
    check_distance,
    check_on_record,
    check_possible,
    check_previous,
    check_removed,
    finite,
    given_before,
    measurements,
    read_more,
    read_removed,
    warn_far,
)
from hemf.online.state import (
    Learner,
    OnlineState,
    add_new_rows,
    mean_covariance,
    recall,
    savepoint,
)

RESTART_PASSES = 5  # over all rows, before a new state is compared with the current one
MAX_HELD_BACK = 2000  # ratings that jumps are judged by
SURE = 2  # passes of a state without a jump
OPENING_PASSES = 10  # over all rows, at most, until directions that were opened pay
RETRY_GROWTH = 2.0  # of the ratings since a wider prior was rejected, until it is tried again
WIDEN_PASSES = 30  # over all rows, in which closed directions come back; it is judged after
MIN_WIDEN_PASSES = 10
# A stream that started without a fit restarts as its ratings double, until there are enough.
LAST_RESTART = 100_000
GROWTH = 1.25  # of the ratings between two times that directions are opened
EXPLAINED = 1e-3  # of the ratings' variance; where less is left, there is nothing to open for


def suits(prepared: Learner, wanted: OnlineOptions) -> bool:
    """Whether what was prepared with other options can learn with these."""
    options = prepared.state.options
    return (
        options.window == wanted.window
        and options.counts_repeats == wanted.counts_repeats
        and options.forgetting == wanted.forgetting
    )


# ------------------------------------------------------------------------------------------------
# Ratings that arrive: read and checked as a whole, then handed to `hemf.online.state`.
#
# Nothing of the model is touched before everything about a batch is known to be right.


def _restore_on_undo(learner: Learner, journal: Journal) -> None:
    """Record all changes of a learner in a journal, unless the journal is closed."""
    if not journal.is_open:
        return
    journal.add(mappings_of([vars(learner)]))
    journal.add(learner.users.mark())
    journal.add(learner.items.mark())
    learner.state.journal = journal
    savepoint(learner.state)


def _sizes(learner: Learner) -> dict[str, int]:
    """Return the number of rows of each side."""
    return {side: learner.state.stores[side].n_rows for side in SIDES}


def _ids(learner: Learner, side: str) -> Vocabulary:
    return learner.users if side == "user" else learner.items


class Settings(NamedTuple):
    """The checked parameters of an estimator that learns online."""

    fit: FitOptions
    online: OnlineOptions
    rng: int | np.random.Generator | None

    @classmethod
    def of(cls, model: Parameters) -> Settings:
        """Check the parameters of an estimator."""
        options = fit_options(model)
        return cls(options, online_options(model, options), model.get_params()["rng"])


def begin(fit: Fit | None, settings: Settings, values: Array, journal: Journal) -> Learner:
    """Return a learner that continues from a fit, or starts from nothing.

    A start from nothing takes the scale of ratings from ``values``. Whatever the learner changes
    can be undone with the journal.
    """
    options = settings.online
    if fit is not None and fit.learner is not None:
        _check_change(fit.learner.state.options, options)
        _restore_on_undo(fit.learner, journal)
        return fit.learner
    rng = check_rng(settings.rng)
    journal.add(generator_state(rng))  # it may be the caller's; all else is new
    if fit is not None:
        prepared = fit.prepared
        if fit.model.relevance is not None:
            raise ParameterError(
                "a model with choices does not learn online; fit with choices=False to do so",
                value=True,
            )
        if prepared is None or not suits(prepared, options):
            state = fit.model.state
            assert isinstance(state, BatchState)
            prepared = start.adopted(state, fit.model.ratings, fit.model.mean, options)
        _restore_on_undo(prepared, journal)
        prepared.state.rng = rng
        return prepared
    _check_beginning(settings)
    limits = options.rating_range
    if isinstance(limits, tuple):
        centre, unit = (limits[0] + limits[1]) / 2.0, (limits[1] - limits[0]) / 4.0
    else:
        centre, unit = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    if not unit > 1e-12 * max(1.0, abs(centre)):  # more than float64 rounds
        unit = abs(centre) / 3.0 or 1.0  # a single rating: of stars, about their spread
    state = start.begin(settings.fit, options, centre=centre, unit=unit, rng=rng)
    return Learner(state, Vocabulary(), Vocabulary())


def _check_beginning(settings: Settings) -> None:
    """Raise ParameterError where a start from nothing could never learn from features."""
    implicit = settings.fit.implicit_features
    if implicit and settings.online.window != ALL:
        given = True if len(implicit) == len(SIDES) else implicit[0]
        raise ParameterError(
            f"implicit_features={given!r}: with no fit to begin with, what it means to have rated "
            'something is learnt from all ratings so far; set history="full", or call fit with '
            "some of the ratings first",
            value=given,
        )


def updated(
    fit: Fit | None,
    learner: Learner,
    options: OnlineOptions,
    values: Array,
    features: Mapping[str, GivenFeatures],
) -> Fit:
    """Return the fit after a learner has learnt these ratings."""
    state = learner.state
    before = None if fit is None else fit.model
    model = FittedModel(
        components={"ratings": state},
        record=learner,
        mean=state.centre,
        scale=state.unit,
        rating_range=_rating_range(before, state, options, values),
        features=features,
        held_out=None if before is None else before.held_out,
        version=1 if before is None else before.version + 1,
    )
    if fit is None:
        return Fit(model, history=[], converged=False, learner=learner)
    return replace(fit, model=model, learner=learner, prepared=None)


def _rating_range(
    before: FittedModel | None, state: OnlineState, options: OnlineOptions, values: Array
) -> tuple[float, float] | None:
    """Return the range that predictions are clipped to once these ratings are learnt."""
    if not isinstance(options.rating_range, str):
        return options.rating_range
    if state.observed is not None:
        return state.observed.low, state.observed.high
    known = None if before is None else before.rating_range
    ends = [] if known is None else list(known)
    if values.size:
        ends += [float(values.min()), float(values.max())]
    return (min(ends), max(ends)) if ends else None


def _check_change(old: OnlineOptions, new: OnlineOptions) -> None:
    if old.window != new.window:
        raise ParameterError(
            "history cannot be changed once a model has learnt online: what is not kept cannot "
            "come back; set it before the first partial_fit",
            value=new.window,
        )
    if old.counts_repeats != new.counts_repeats:
        raise ParameterError(
            'duplicates cannot be changed to or from "mean" once a model has learnt online; '
            "set it before the first partial_fit"
        )


def _times(fit: Fit | None, settings: Settings, read: Columns) -> Int64Array | None:
    """Return when ratings were given, where the model needs it."""
    if fit is None:
        has_moods = settings.fit.moods
    elif fit.learner is not None:
        has_moods = fit.learner.state.moods is not None
    else:
        has_moods = fit.model.has_moods
    if not has_moods:
        return None
    if read.timestamps is None:
        raise DataError(
            "moods are learnt from the times of ratings, and these have no timestamps; give them "
            "as a fourth column, or learn with moods=False from the beginning"
        )
    return np.array(read.timestamps, np.int64)  # kernels take no array that is read-only


# -- batches -----------------------------------------------------------------------------------


def partial_fit(
    holder: ModelHolder[Fit],
    settings: Settings,
    ratings: Any,
    y: Any,
    *,
    removed: Any,
    previous: Any,
    columns: Any,
    features: dict[str, Any],
) -> None:
    """See `hemf.HeMF.partial_fit`; ``features`` are those of each side, or None."""
    options, fit = settings.online, holder.content
    users, items = _vocabularies(fit)
    empty = _is_empty(ratings)
    if empty and y is not None and np.size(y):
        raise DataError(f"there are {np.size(y)} ratings in y, and no pairs that they are of")
    if removed is not None and _is_empty(removed):
        removed = None
    read = None if empty else _read(ratings, y, columns, users, items)
    more: More = {}
    if any(table is not None for table in features.values()):
        more = read_more(None if fit is None else fit.model, features)
    if read is None and removed is None and not more:
        if fit is None:
            raise DataError("there are no ratings to learn from")
        return
    if read is None:
        values: Array = np.empty(0, np.float32)
        user_ids: CodedIds | None = None
        item_ids: CodedIds | None = None
        times = None
    else:
        assert read.ratings is not None
        values, user_ids, item_ids = read.ratings, read.users, read.items
        times = _times(fit, settings, read)
    before = given_before(previous, values.size)
    if isinstance(options.rating_range, tuple):
        check_range(options.rating_range, values)
    if previous is not None and user_ids is not None and item_ids is not None:
        check_previous(before, users.rows(user_ids.decode()), items.rows(item_ids.decode()))
    measured = options.duplicates == "mean"  # every rating of a pair counts
    if user_ids is not None and item_ids is not None and values.size > 1 and not measured:
        user_ids, item_ids, values, before, times = resolve_duplicates(
            user_ids, item_ids, values, before, options.duplicates, times
        )
    taken = None
    if removed is not None:
        if fit is None:
            raise DataError("nothing has been learnt yet, so no rating can be removed")
        taken = read_removed(removed, columns, users, items, needs_rating=options.window != ALL)
    known_range = None if fit is None else fit.model.rating_range
    warning: str | None = None

    def learn(journal: Journal) -> Fit:
        nonlocal taken, warning
        learner = begin(fit, settings, values, journal)
        state = learner.state
        check_distance(state, values)
        if taken is not None:
            taken = measurements(state, taken)
            given_rows: set[tuple[int, int]] = set()
            if user_ids is not None and item_ids is not None:
                given_rows = set(
                    zip(
                        learner.users.rows(user_ids.decode()).tolist(),
                        learner.items.rows(item_ids.decode()).tolist(),
                        strict=True,
                    )
                )
            check_removed(state, taken, given_rows)
            check_possible(known_range, "removed", taken.values)
            check_on_record(state, "removed", taken.users, taken.items, taken.values)
        check_possible(known_range, "previous", before)
        if previous is not None and user_ids is not None and item_ids is not None:
            known = learner.users.rows(user_ids.decode()), learner.items.rows(item_ids.decode())
            check_on_record(state, "previous", *known, before)
        warn_far(state, _observed_range(fit, options), values)
        before_this = _sizes(learner)
        codes = state.book.codes(values)
        old = np.full(values.size, -1, np.int64)
        is_given = ~np.isnan(before)
        if is_given.any():
            old[is_given] = state.book.codes(before[is_given])
        updates.change_options(state, options)
        given = take_more({} if fit is None else fit.model.features, learner, more)
        user_rows = _numbered(state, "user", learner.users, user_ids)
        item_rows = _numbered(state, "item", learner.items, item_ids)
        introduce(given, learner, before_this)
        when = times
        errors = _forecast_errors(state, user_rows, item_rows, values)
        if state.options.counts_repeats and state.window != 0 and is_given.any():
            listed = recall(state, user_rows[is_given], item_rows[is_given], before[is_given])
            old[is_given] = np.where(listed >= 0, listed, old[is_given])
        if taken is not None:
            user_rows = np.concatenate([taken.users, user_rows])
            item_rows = np.concatenate([taken.items, item_rows])
            codes = np.concatenate([np.full(taken.users.size, -1, np.int64), codes])
            gone = taken.codes(state.book)
            if state.options.counts_repeats and state.window != 0:
                listed = recall(state, taken.users, taken.items, taken.values)
                gone = np.where(listed >= 0, listed, gone)
            old = np.concatenate([gone, old])
            if times is not None:  # the times of removed ratings are not needed
                when = np.concatenate([np.zeros(taken.users.size, np.int64), times])
        if codes.size:
            with finite(state):
                old = updates.remove_outlier(state, user_rows, item_rows, codes, old)
                updates.apply_batch(state, user_rows, item_rows, codes, old, when)
                make_due(state)
        warning = updates.watch_errors(state, errors)
        return updated(fit, learner, options, values, given)

    with uninterrupted(), one_blas_thread():
        holder.change(learn)
    if warning is not None:
        warn_caller(warning, StreamWarning)


def _read(ratings: Any, y: Any, columns: Any, users: Vocabulary, items: Vocabulary) -> Columns:
    """Read and check ratings, in their order."""
    if y is None and not isinstance(ratings, Ratings):
        return read_columns(ratings, columns, users=users, items=items)
    return read_in_order(ratings, y, columns, users=users, items=items)


def _vocabularies(fit: Fit | None) -> tuple[Vocabulary, Vocabulary]:
    """Ids of users and items; none before anything is learnt."""
    if fit is None:
        return Vocabulary(), Vocabulary()
    return fit.model.record.users, fit.model.record.items


def _forecast_errors(
    state: OnlineState, users: Int64Array, items: Int64Array, values: Array
) -> Float64Array:
    """Squared errors of forecasts of ratings that are yet to be learnt, where rows are known."""
    is_known = updates.is_known(state, users, items)
    if not is_known.any():
        return np.empty(0)
    expected = updates.forecast(state, users[is_known], items[is_known])
    known = values[is_known].astype(np.float64)
    return np.asarray((known - state.centre - state.unit * expected) ** 2)


def predict_then_learn(
    holder: ModelHolder[Fit], settings: Settings, ratings: Any, y: Any, *, columns: Any
) -> tuple[Float64Array, Float64Array]:
    """See `hemf.HeMF.predict_then_learn`; also return the seconds that each rating took."""
    options, first = settings.online, holder.content
    users, items = _vocabularies(first)
    if _is_empty(ratings) and not np.size(y if y is not None else ()) and first is not None:
        return np.empty(0), np.empty(0)
    read = _read(ratings, y, columns, users, items)
    assert read.ratings is not None
    values = np.ascontiguousarray(read.ratings)
    times = _times(first, settings, read)
    if isinstance(options.rating_range, tuple):
        check_range(options.rating_range, values)
    expected, seconds = np.empty(values.size), np.empty(values.size)
    lowest = np.minimum.accumulate(values)
    highest = np.maximum.accumulate(values)
    stream: _Stream | None = None
    block: _Block | None = None
    warning: str | None = None
    at = 0

    def learn(journal: Journal) -> Fit:
        nonlocal stream, block, warning
        fit = holder.content
        if stream is None:
            stream = _Stream.begin(fit, settings, read, values, journal)
        else:
            _restore_on_undo(stream.learner, journal)
        begun = time.perf_counter()
        learner, state = stream.learner, stream.learner.state
        part = slice(at, min(values.size, at + state.block))
        model = None if fit is None else fit.model
        known = _rating_range(model, state, options, values[:0])
        given = {} if model is None else model.features
        before, centre, unit = _sizes(learner), state.centre, state.unit
        codes = state.book.codes(values[part])
        rows = stream.rows(part)
        introduce(given, learner, before)
        with finite(state):
            forecasts, ticks = updates.apply_stream(
                state, rows["user"], rows["item"], codes, None if times is None else times[part]
            )
            make_due(state)
        expected_ = centre + unit * forecasts
        is_known = updates.is_known(state, rows["user"], rows["item"])
        errors = (values[part].astype(np.float64) - expected_)[is_known] ** 2
        warning = updates.watch_errors(state, errors) or warning
        block = _Block(part, known, expected_, ticks, begun)
        return updated(fit, learner, options, values[part], given)

    while at < values.size:
        with holder.lock, uninterrupted(), one_blas_thread():
            fresh = at == 0 and holder.content is None
            holder.change(learn)
        from hemf.kernels.clock import seconds as in_seconds

        assert block is not None
        part, forecasts = block.part, block.forecasts
        seconds[part] = in_seconds(block.ticks, time.perf_counter() - block.begun)
        if fresh and block.known is None and not isinstance(options.rating_range, tuple):
            forecasts[0] = 0.0
        expected[part] = _clipped(options, forecasts, block.known, lowest, highest, part)
        at = part.stop
    if warning is not None:
        warn_caller(warning, StreamWarning)
    return expected, seconds


class _Block(NamedTuple):
    """A part of a stream that was learnt."""

    part: slice
    known: tuple[float, float] | None
    """The range of ratings before it."""
    forecasts: Float64Array
    ticks: Int64Array
    begun: float
    """When, in seconds."""


@dataclass
class _Stream:
    """Ratings that are learnt one after the other."""

    learner: Learner
    arrivals: dict[str, Arrivals]
    draws: dict[str, np.random.Generator]

    @classmethod
    def begin(
        cls, fit: Fit | None, settings: Settings, read: Columns, values: Array, journal: Journal
    ) -> _Stream:
        options = settings.online
        # The first rating alone: later ones are not known yet.
        learner = begin(fit, settings, values[:1], journal)
        state = learner.state
        check_distance(state, values)
        warn_far(state, _observed_range(fit, options), values)
        updates.change_options(state, options)
        arrivals = {
            "user": Arrivals(learner.users, read.users),
            "item": Arrivals(learner.items, read.items),
        }
        draws = dict.fromkeys(SIDES, state.rng)
        if state.start_scale > 0.0:
            seeds = state.rng.integers(2**63, size=len(SIDES))
            draws = {
                name: np.random.default_rng(seed) for name, seed in zip(SIDES, seeds, strict=True)
            }
        return cls(learner, arrivals, draws)

    def rows(self, part: slice) -> dict[str, Int64Array]:
        """Return the rows of a part of a stream; new ids get new rows.

        Forecasts must not depend on how many ids follow. So the mean covariance, if it is due, is
        computed before rows are added, and each side draws random starts from its own generator.
        """
        state = self.learner.state
        rows, rng = {}, state.rng
        try:
            for name in SIDES:
                mean_covariance(state, name)
                state.rng = self.draws[name]
                rows[name] = self.arrivals[name].rows(state, name, part)
        finally:
            state.rng = rng
        return rows


def _clipped(
    options: OnlineOptions,
    forecasts: Float64Array,
    known: tuple[float, float] | None,
    lowest: Array,
    highest: Array,
    part: slice,
) -> Float64Array:
    """Clip forecasts to the range that was known when each of them was made."""
    limits = options.rating_range
    if limits is None:
        return forecasts
    if isinstance(limits, tuple):
        return np.clip(forecasts, *limits)
    low = np.concatenate([[np.inf if part.start == 0 else lowest[part.start - 1]], lowest[part]])
    high = np.concatenate(
        [[-np.inf if part.start == 0 else highest[part.start - 1]], highest[part]]
    )
    if known is not None:
        low, high = np.minimum(low, known[0]), np.maximum(high, known[1])
    low, high = low[:-1], high[:-1]
    is_range = low <= high
    return np.asarray(np.where(is_range, np.clip(forecasts, low, high), forecasts))


def _observed_range(fit: Fit | None, options: OnlineOptions) -> tuple[float, float] | None:
    """Range of the ratings learnt so far; None where it is declared or not wanted."""
    is_observed = fit is not None and isinstance(options.rating_range, str)
    return fit.model.rating_range if fit is not None and is_observed else None


def _numbered(state: OnlineState, name: str, ids: Vocabulary, coded: CodedIds | None) -> Int64Array:
    """Rows of a column's ids; new ids get rows."""
    if coded is None:
        return np.empty(0, np.int64)
    rows = ids.add_coded(coded).astype(np.int64)
    add_new_rows(state, name, len(ids) - state.stores[name].n_rows)
    return rows


def _is_empty(ratings: Any) -> bool:
    """Whether ratings in any form are empty."""
    if ratings is None:
        return True
    if isinstance(ratings, Ratings):
        return ratings.n_ratings == 0
    if isinstance(ratings, dict):
        ratings = tuple(ratings.values())
    if isinstance(ratings, tuple) and ratings and all(hasattr(part, "__len__") for part in ratings):
        return all(len(part) == 0 for part in ratings)
    try:
        return not isinstance(ratings, str) and len(ratings) == 0
    except TypeError:  # sparse matrices and what else has no length
        return False


# -- jumps ---------------------------------------------------------------------------------------


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


def is_buffer_full(state: OnlineState) -> bool:
    """Whether a bounded history has kept enough ratings to evict some."""
    return state.is_buffering and state.n_ratings > state.options.buffer


def is_young(state: OnlineState) -> bool:
    """Whether a stream started without a fit, is still short, and lists all its ratings.

    Until then it restarts each time its ratings have doubled.
    """
    if state.fit is None or not state.is_complete or state.seen >= LAST_RESTART:
        return False
    return not state.has_plenty


def is_opening_due(state: OnlineState) -> bool:
    """Whether there are enough new ratings to search for closed directions."""
    clocks = state.clocks
    if state.window == 0 or state.options.evb is None or is_young(state):
        return False
    if state.seen < clocks.due_at.get(("directions", ""), 0.0):
        return False
    if state.has_plenty:  # repeated ratings of the same pairs are no test either
        return False
    opened_at = max(clocks.ratings.get("directions", 0), FIRST_RESTART)
    missing = GROWTH * opened_at - state.n_ratings
    if missing > 0:
        clocks.schedule("directions", state.seen + missing)  # no need to count all of them before
    return missing <= 0 and state.noise >= EXPLAINED


def end_buffering(state: OnlineState) -> None:
    """Evict from now on what the history does not keep.

    With many ratings for each unknown, rows and priors are brought to their optimum before, as sums
    are corrected only slowly. With few, that would close directions which later ratings need.
    """
    if state.has_plenty:
        updates.converge(state)
    state.is_buffering = False
    for store in state.stores.values():
        store.begin_sums()
    start.evict_all(state)
    state.set_total()
    for name in SIDES:
        state.point(name)


def start_again(state: OnlineState) -> None:
    """Restart from all ratings on record, and keep the result if it is better."""

    def jump(trial: OnlineState) -> bool:
        fresh = start.restart(trial)
        if fresh is None:
            return False
        if fresh.moods is not None:
            updates.learn_moods(fresh)
        fresh.clocks.seen = trial.seen
        jumps.take(trial, fresh)
        return True

    try_jump(state, jump, passes=RESTART_PASSES)
    state.clocks.schedule("restart", 2 * state.seen)


# docs/model.md#jumps
def try_jump(
    state: OnlineState, jump: Callable[[OnlineState], bool], *, passes: int, at_least: int = SURE
) -> bool:
    """Try a jump on a copy, and return whether it is kept.

    ``jump`` changes a state, but not the ratings on record, and returns whether there was anything
    to change. All rows are updated ``at_least`` so many times before the jump is judged, and up to
    ``passes`` times until it is better.
    """
    control, held_back = without_some(state)
    trial = jumps.copied(control)
    if not jump(trial):
        return False
    now = -np.inf
    for number in range(passes):
        updates.pass_over(trial)
        if number < SURE:
            updates.pass_over(control)
        if number < min(at_least, passes) - 1:
            continue
        if jumps.pays(trial, control, held_back):
            if held_back.size:  # once more, with the ratings that were held back
                trial = jumps.copied(state)
                jump(trial)
                for _ in range(number + 1):
                    updates.pass_over(trial)
            jumps.take(state, trial)
            return True
        last, now = now, jumps.score(trial, held_back)
        missing = jumps.score(control, held_back) - now
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
    trial = jumps.copied(state)
    if most < updates.MIN_RECENT or held_back.shape[0] < updates.MIN_RECENT:
        return trial, np.zeros((0, 3), np.int64)
    for store in trial.stores.values():
        store.history = copy.deepcopy(store.history)
    if held_back.shape[0] > most:
        held_back = held_back[np.sort(trial.rng.choice(held_back.shape[0], most, replace=False))]
    users, items, codes = np.ascontiguousarray(held_back.T)
    updates.apply_batch(trial, users, items, np.full(codes.size, -1), codes, learn=False)
    return trial, held_back


def open_directions(state: OnlineState) -> int:
    """Try to open the directions that the ratings on record support; return how many are kept."""
    state.clocks.ratings["directions"] = state.n_ratings
    if not jumps.closed_directions(state).shape[1]:
        return 0
    opened = 0

    def jump(trial: OnlineState) -> bool:
        nonlocal opened
        opened = jumps.open_closed(trial)
        return opened > 0

    return opened if try_jump(state, jump, passes=OPENING_PASSES) else 0


def widen_priors(state: OnlineState) -> bool:
    """Try a wider prior on both sides, and keep it if it is better."""
    jump = jumps.widen_unclear
    if try_jump(state, jump, passes=WIDEN_PASSES, at_least=MIN_WIDEN_PASSES):
        state.clocks.schedule("widening", None)
        return True
    state.plan_widening(RETRY_GROWTH)
    return False


# -- features ------------------------------------------------------------------------------------


def take_more(
    given: Mapping[str, GivenFeatures], learner: Learner, more: More
) -> dict[str, GivenFeatures]:
    """Give known rows their features; return ``given`` with the other ids among newcomers."""
    kept = dict(given)
    for side, (ids, encoded) in more.items():
        rows = _ids(learner, side).rows(ids)
        here = rows >= 0
        if here.any():
            updates.give_features(learner.state, side, rows[here], csr_array(encoded[here]))
        new = [id for id, row in zip(ids, rows, strict=True) if row < 0]
        kept[side] = _joined(kept[side], _ids(learner, side), new, csr_array(encoded[~here]))
    return kept


def introduce(
    all_given: Mapping[str, GivenFeatures], learner: Learner, before: dict[str, int]
) -> None:
    """Give rows beyond the first ``before`` of their side the features of their ids."""
    for side, given in all_given.items():
        ids = _ids(learner, side)
        if len(ids) > before[side] and len(given.newcomers):
            places = given.newcomers.rows(ids.ids[before[side] :])
            here = places >= 0
            if here.any():
                rows = before[side] + np.flatnonzero(here)
                encoded = csr_array(given.features[places[here]])
                updates.give_features(learner.state, side, rows, encoded)


def _joined(
    given: GivenFeatures, rows: Vocabulary, new: list[Any], encoded: csr_array
) -> GivenFeatures:
    """Add newcomers; those that have become rows since are left out."""
    ids = given.newcomers.ids.tolist()
    again = set(new)
    stay = np.array([id not in again and id not in rows for id in ids], bool)
    features = csr_array(vstack([given.features[stay], encoded]))
    kept = [id for id, stays in zip(ids, stay, strict=True) if stays]
    return GivenFeatures(given.encoder, Vocabulary([*kept, *new]), features)
