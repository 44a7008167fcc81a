"""Biased matrix factorization by stochastic gradient descent, in batch or on a stream."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hemf._checks import (
    MAX_FACTORS,
    check_bool,
    check_callables,
    check_choice,
    check_int,
    check_number,
    check_range,
    check_rating_range,
    check_rng,
    resolve_rating_range,
)
from hemf._typing import Array, Float32Array, Float64Array, IdsLike, Int32Array, RatingsLike
from hemf.baselines.base import (
    Baseline,
    Callbacks,
    EpochReport,
    KnownRows,
    Limits,
    Progress,
    RatingRange,
    drop_unrated,
    parameter,
)
from hemf.data.pairs import Pairs
from hemf.data.ratings import read_in_order, validation_pairs
from hemf.data.sources import ColumnChoice
from hemf.data.vocabulary import CodedIds, Vocabulary
from hemf.errors import DataError, ParameterError

MIN_ROWS = 16  # rows of storage
EMPTY_RANGE = (np.inf, -np.inf)


@dataclass(kw_only=True, repr=False, eq=False)
class SGD(Baseline["Descent"]):
    """Biased matrix factorization by stochastic gradient descent with decreasing steps.

    The usual method of online recommendation, and the one that the paper compares HeMF with::

        r_ij ≈ c + s (o_i + p_j + a_i·b_j)

    c is the mean of the ratings and s their scale, so that the constants suit any ratings: in `fit`
    their standard deviation; on a stream without a fit a quarter of ``rating_range``, or 1.
    A rating with error e, in units of s, moves its user and its item down the gradient of
    ½e² + ½λ_o(o_i² + p_j²) + ½λ(a_i·a_i + b_j·b_j), by a step that shrinks with the number t of
    earlier updates: η_t = η0 / (1 + t/decay)^power.

    Parameters
    ----------
    n_factors
        Length of the factors a_i, b_j; with 0 there are only offsets.
    epochs
        Number of passes of `fit` over the ratings, each in a new order. With few ratings, many
        epochs overfit.
    step, decay, power
        η0, and how it shrinks: ``power=0`` keeps it constant, ``power=1`` is Robbins and Monro's.
    factor_penalty, offset_penalty
        λ and λ_o.
    start_scale
        Standard deviation of the initial factors of a new user or item; its offset is 0.
    rating_range
        Range that predictions are clipped to: ``"observed"``, a pair of numbers (a rating outside
        is an error), or ``None``.
    duplicates
        What `fit` does with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``,
        ``"error"``. On a stream every rating counts.
    dtype
        Storage: ``"float32"`` or ``"float64"``. Sums are float64 in both cases.
    rng
        Seed or NumPy generator.

    Notes
    -----
    The defaults were chosen on held-out parts of the training ratings of MovieLens 1M and 100K, as
    a compromise between 30 epochs and a single pass. A single pass is better with larger steps and
    smaller penalties, a small table with larger penalties or fewer epochs.

    Examples
    --------
    >>> from hemf.baselines import SGD
    >>> model = SGD(n_factors=2, rng=0)
    >>> model.partial_fit([("ann", "tea", 5), ("ann", "milk", 1)]).n_items_
    2
    >>> model.predict_then_learn([("bob", "tea", 4), ("bob", "milk", 2)]).round(1)
    array([3. , 3.3])
    >>> model.predict(["bob", "eve"], "milk", return_known=True)[1]
    array([ True, False])

    """

    n_factors: int = parameter(20, check_int, low=0, high=MAX_FACTORS)
    epochs: int = parameter(30, check_int, low=1)
    step: float = parameter(0.06, check_number, low=0.0)
    decay: float = parameter(500_000.0, check_number, low=1e-9)
    power: float = parameter(0.5, check_number, low=0.0)
    factor_penalty: float = parameter(0.05, check_number, low=0.0)
    offset_penalty: float = parameter(0.01, check_number, low=0.0)
    start_scale: float = parameter(0.02, check_number, low=0.0)
    rating_range: RatingRange = "observed"
    duplicates: str = "last"
    dtype: str = parameter("float32", check_choice, options=("float32", "float64"))
    rng: int | np.random.Generator | None = None

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        epochs: int | None = None,
        columns: ColumnChoice = None,
        validation: RatingsLike = None,
        callbacks: Callbacks[EpochReport] = (),
    ) -> Self:
        """Fit to ratings, anything that `Ratings.from_any` reads.

        With ``y``, ``ratings`` holds pairs and ``y`` their ratings. ``epochs`` overrides the
        parameter for this fit. ``callbacks`` receive an `EpochReport` after every epoch; a true
        return value stops the fit. ``validation`` are ratings to report the error on. If a fit
        fails, the estimator keeps its state.
        """
        self.check_parameters()
        epochs = check_int("epochs", self.epochs if epochs is None else epochs, low=1)
        callbacks = check_callables("callbacks", callbacks)
        data = drop_unrated(self._read(ratings, y, columns))
        user_rows, item_rows, values = data.triples()
        if values.dtype != np.float32:
            raise DataError(
                "these ratings differ by less than float32 can represent, and this model uses "
                "float32; subtract a constant from all of them"
            )
        values = values.astype(np.float32, copy=False)
        held_out = None if validation is None else validation_pairs(validation, data)[:3]
        state, rng = self._new_state(data.users, data.items, data.scale)
        state.start(values)
        schedule, progress = self._schedule(), Progress(callbacks)
        for epoch in range(1, epochs + 1):
            order = rng.permutation(data.n_ratings)
            shuffled = values[order]
            expected = state.sweep(schedule, user_rows[order], item_rows[order], shuffled)
            report = EpochReport(
                epoch,
                epochs,
                float(np.sqrt(np.mean((expected - shuffled) ** 2))),
                float(schedule.steps(state.seen.updates, 1)[0]),
                progress.seconds,
                None if held_out is None else state.rmse(*held_out),
            )
            if progress.add(report):
                break
        self.state_, self.history_ = state, progress.history
        return self

    def partial_fit(
        self, ratings: RatingsLike, y: RatingsLike = None, *, columns: ColumnChoice = None
    ) -> Self:
        """Learn each rating once, in the order given, from the present state.

        `Ratings` have no order: they are sorted by time or, without times, by user. Users and items
        may be new. If any rating is invalid, none is learnt.
        """
        self._stream(ratings, y, columns, predict=False)
        return self

    def predict_then_learn(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        columns: ColumnChoice = None,
        return_seconds: bool = False,
    ) -> Float64Array | tuple[Float64Array, Float64Array]:
        """Learn as `partial_fit` does; return the prediction of each rating made just before.

        The first prediction is the middle of ``rating_range``, or 0. With ``return_seconds`` also
        the seconds for each rating; what the call spends on all of them is shared evenly.

        >>> model = SGD(n_factors=2, rating_range=(1, 5), rng=0)
        >>> model.predict_then_learn([("ann", "tea", 4), ("bob", "tea", 4)]).round(1)
        array([3., 4.])
        """
        return_seconds = check_bool("return_seconds", return_seconds)
        begin = time.perf_counter()
        expected, seconds = self._stream(ratings, y, columns, predict=True, timed=return_seconds)
        if seconds is None:
            return expected
        total = time.perf_counter() - begin
        return expected, seconds + (total - seconds.sum()) / len(seconds)

    def _stream(
        self,
        ratings: RatingsLike,
        y: RatingsLike,
        columns: ColumnChoice,
        *,
        predict: bool,
        timed: bool = False,
    ) -> tuple[Float64Array, Float64Array | None]:
        """Learn ratings; return the prediction and, if ``timed``, the seconds of each."""
        self.check_parameters()
        with self._mutex:
            fitted = hasattr(self, "state_")
            if fitted:
                state = self.state_
            else:
                state, _ = self._new_state(Vocabulary(), Vocabulary())
            read = read_in_order(ratings, y, columns, users=state.users.ids, items=state.items.ids)
            values = np.array(read.ratings, np.float32)  # kernels take no views
            check_range(check_rating_range(self.rating_range), values)
            seconds = np.empty(len(values)) if timed else None
            expected = state.stream(
                self._schedule(), read.users, read.items, values, predict=predict, seconds=seconds
            )
            if not fitted:
                self.state_, self.history_ = state, []
        return expected, seconds

    def _schedule(self) -> Schedule:
        return Schedule(*(float(getattr(self, name)) for name in Schedule._fields))

    def _new_state(
        self, users: Vocabulary, items: Vocabulary, scale: float | None = None
    ) -> tuple[Descent, np.random.Generator]:
        """Return an initial state, and a generator for the order of ratings."""
        # Separate seeds: the number of users must not change the initial factors of items.
        seeds = check_rng(self.rng).integers(2**63, size=3).tolist()
        user_side, item_side = (
            Side(ids, self.n_factors, self.start_scale, np.dtype(self.dtype), seed=seed)
            for ids, seed in zip((users, items), seeds[:2], strict=True)
        )
        low, high = resolve_rating_range(self.rating_range, EMPTY_RANGE) or (-np.inf, np.inf)
        if scale is None:
            scale = (high - low) / 4.0 if np.isfinite(low) else 1.0
        seen = Seen(low, high)
        return Descent(user_side, item_side, scale, seen), np.random.default_rng(seeds[2])

    # -- fitted attributes ---------------------------------------------------------------------

    @property
    def n_updates_(self) -> int:
        """Number of updates so far, on which the step size depends."""
        return self._fitted().seen.updates

    @property
    def rating_scale_(self) -> float:
        """Scale s of the ratings, which offsets and products of factors are multiplied by."""
        return self._fitted().scale

    @property
    def user_offsets_(self) -> Array:
        """Offset o_i of each user, in units of ``rating_scale_``."""
        return self._fitted().users.used[:, 0].copy()

    @property
    def item_offsets_(self) -> Array:
        """Offset p_j of each item."""
        return self._fitted().items.used[:, 0].copy()

    @property
    def user_factors_(self) -> Array:
        """Factors a_i of each user."""
        return self._fitted().users.used[:, 1:].copy()

    @property
    def item_factors_(self) -> Array:
        """Factors b_j of each item."""
        return self._fitted().items.used[:, 1:].copy()

    def _expected(self, pairs: Pairs) -> Float64Array:
        return self._fitted().predict(pairs.users, pairs.items)

    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        return self._fitted().table(user_rows, item_rows)

    # -- copies --------------------------------------------------------------------------------

    @property
    def _mutex(self) -> threading.RLock:
        """Lock guarding concurrent updates and copies."""
        lock: threading.RLock = self.__dict__.setdefault("_lock", threading.RLock())
        return lock

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with self._mutex:
            kept = {name: value for name, value in vars(self).items() if name != "_lock"}
            vars(twin).update(copy.deepcopy(kept, memo))
        return twin

    def __getstate__(self) -> dict[str, object]:
        # A copy, made under the lock: what is pickled later must not change in the meantime.
        return vars(copy.deepcopy(self))


# ------------------------------------------------------------------------------------------------
# State of the descent: rows of offsets and factors, and figures of the ratings so far.


class Schedule(NamedTuple):
    """Step sizes and penalties."""

    step: float
    decay: float
    power: float
    factor_penalty: float
    offset_penalty: float

    def steps(self, first: int, n: int) -> Float64Array:
        """Return η_t = η0 / (1 + t/decay)^power of n updates, t counted from ``first``.

        >>> Schedule(0.1, 2.0, 1.0, 0.0, 0.0).steps(2, 3).round(3).tolist()
        [0.05, 0.04, 0.033]
        """
        shrunk = (1.0 + np.arange(first, first + n) / self.decay) ** self.power
        return np.asarray(self.step / shrunk)


class Side(KnownRows):
    """Ids of one side, and a row of offset and factors for each, in storage that doubles.

    Row k starts with the k-th draw of the seed, whenever it is added.

    >>> side = Side(Vocabulary(["ann"]), 2, 0.1, np.float32, seed=0)
    >>> side.find(["ann", "bob"]).tolist(), side.rows.shape
    ([0, -1], (16, 3))
    """

    def __init__(
        self,
        ids: Vocabulary,
        n_factors: int,
        start_scale: float,
        dtype: npt.DTypeLike,
        *,
        seed: int,
    ) -> None:
        super().__init__(ids, len(ids))
        self.rows: Array = np.empty((0, 1 + n_factors), dtype)
        self._scale = start_scale
        self._rng = np.random.default_rng(seed)
        self.reserve(self.n_rows)

    @property
    def used(self) -> Array:
        """Rows of the ids."""
        return self.rows[: self.n_rows]

    def number(self, coded: CodedIds) -> Int32Array:
        """Return the row of each distinct id; reserve rows for new ids without adding them."""
        rows = self.ids.rows(coded.distinct)
        new = rows < 0
        rows[new] = np.arange(len(self.ids), len(self.ids) + new.sum())
        self.reserve(int(rows.max()) + 1)
        return rows.astype(np.int32)

    def reserve(self, n: int) -> None:
        """Allocate at least n rows."""
        held, width = self.rows.shape
        if n <= held:
            return
        grown = np.empty((max(n, 2 * held, MIN_ROWS), width), self.rows.dtype)
        grown[:held] = self.rows
        grown[held:, 0] = 0.0
        grown[held:, 1:] = self._scale * self._rng.standard_normal((len(grown) - held, width - 1))
        self.rows = grown


class Seen(NamedTuple):
    """Figures of the ratings learnt so far."""

    lowest: float
    """With ``highest``, the range of predictions; above ``highest`` before the first rating."""
    highest: float
    total: float = 0.0
    """Sum of the ratings."""
    ratings: int = 0
    updates: int = 0

    @property
    def mean(self) -> float:
        """Mean of the ratings; before the first one, the middle of the range, or 0."""
        if self.ratings:
            return self.total / self.ratings
        middle = (self.lowest + self.highest) / 2.0
        return middle if np.isfinite(middle) else 0.0


@dataclass
class Descent:
    """State of a descent."""

    users: Side
    items: Side
    scale: float
    """Unit of the errors."""
    seen: Seen

    @property
    def mean(self) -> float:
        """Mean of the ratings."""
        return self.seen.mean

    @property
    def limits(self) -> Limits:
        """Range that predictions are clipped to."""
        return (self.seen.lowest, self.seen.highest) if np.isfinite(self.seen.lowest) else None

    def rmse(self, users: IdsLike, items: IdsLike, ratings: Float64Array) -> float:
        """Return the RMSE on ratings of known or unknown users and items."""
        expected = self.predict(self.users.find(users), self.items.find(items))
        return float(np.sqrt(np.mean((expected - ratings) ** 2)))

    def predict(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return the expected rating of pairs of rows; -1 is an unknown row."""
        from hemf.kernels.descent import forecast

        expected = np.empty(len(user_rows))
        users, items = self.users.rows, self.items.rows
        forecast.compiled(users.dtype)(
            user_rows, item_rows, self.seen.mean, self.scale, users, items, expected
        )
        return _clip(expected, self.seen.lowest, self.seen.highest)

    def table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return c + s(o_i + p_j + a_i·b_j) of rows of users and of items; -1 is unknown."""
        users, items = self.users.rows[user_rows], self.items.rows[item_rows]
        users[user_rows < 0] = 0.0
        items[item_rows < 0] = 0.0
        along = users[:, 1:] @ items[:, 1:].T + users[:, :1] + items[:, 0]
        return np.asarray(self.seen.mean + self.scale * along.astype(np.float64))

    def start(self, ratings: Float32Array) -> None:
        """Record statistics of the ratings of a fit."""
        self.seen = Seen(
            min(self.seen.lowest, float(ratings.min())),
            max(self.seen.highest, float(ratings.max())),
            float(ratings.sum(dtype=np.float64)),
            len(ratings),
        )

    def sweep(
        self,
        schedule: Schedule,
        user_rows: Int32Array,
        item_rows: Int32Array,
        ratings: Float32Array,
    ) -> Float64Array:
        """Learn the ratings of a fit; return the prediction of each made just before."""
        n = len(ratings)
        means, expected = np.full(n + 1, self.seen.mean), np.empty(n)
        self._descend(schedule, user_rows, item_rows, ratings, means, expected)
        self._check_finite(slice(None), slice(None))
        self.seen = self.seen._replace(updates=self.seen.updates + n)
        return _clip(expected, self.seen.lowest, self.seen.highest)

    def stream(
        self,
        schedule: Schedule,
        users: CodedIds,
        items: CodedIds,
        ratings: Float32Array,
        *,
        predict: bool,
        seconds: Float64Array | None = None,
    ) -> Float64Array:
        """Learn new ratings; return the predictions if ``predict``.

        After an error or an interruption none of them is learnt. The time of each is written into
        ``seconds``.
        """
        n, before = len(ratings), self.seen
        sides = (self.users, self.items)
        touched = self.users.number(users), self.items.number(items)
        totals = np.cumsum(np.append(before.total, ratings.astype(np.float64)))
        means = totals / np.maximum(np.arange(before.ratings, before.ratings + n + 1), 1)
        means[0] = before.mean
        lowest = np.minimum.accumulate(np.append(before.lowest, ratings))
        highest = np.maximum.accumulate(np.append(before.highest, ratings))
        expected = np.empty(n if predict else 0)
        old = [side.rows[rows] for side, rows in zip(sides, touched, strict=True)]
        counts = self.users.n_rows, self.items.n_rows
        try:
            user_rows, item_rows = touched[0][users.codes], touched[1][items.codes]
            self._descend(schedule, user_rows, item_rows, ratings, means, expected, seconds)
            self._check_finite(*touched)
            for side, coded, rows in zip(sides, (users, items), touched, strict=True):
                if rows.max() >= side.n_rows:
                    side.ids.add_coded(coded)
                    side.n_rows = len(side.ids)
            self.seen = Seen(
                float(lowest[-1]),
                float(highest[-1]),
                float(totals[-1]),
                before.ratings + n,
                before.updates + n,
            )
        except BaseException:
            # New ids stay in the vocabulary, but rows from the old count on are unknown.
            for side, rows, values, count in zip(sides, touched, old, counts, strict=True):
                side.rows[rows], side.n_rows = values, count
            self.seen = before
            raise
        return _clip(expected, lowest[:-1], highest[:-1]) if predict else expected

    def _descend(
        self,
        schedule: Schedule,
        user_rows: Int32Array,
        item_rows: Int32Array,
        ratings: Float32Array,
        means: Float64Array,
        expected: Float64Array,
        seconds: Float64Array | None = None,
    ) -> None:
        from hemf.kernels import clock
        from hemf.kernels.descent import descend
        from hemf.kernels.structures import Descent

        users, items = self.users, self.items
        steps = schedule.steps(self.seen.updates, len(ratings))
        given = Descent(
            user_rows, item_rows, ratings, means, steps, self.scale, schedule.offset_penalty,
            schedule.factor_penalty, users.n_rows, items.n_rows,
        )  # fmt: skip
        ticks = np.empty(0 if seconds is None else len(ratings), np.int64)
        kernel, begin = descend.compiled(users.rows.dtype), time.perf_counter()
        kernel(given, users.rows, items.rows, expected, ticks)
        if seconds is not None:
            seconds[:] = clock.seconds(ticks, time.perf_counter() - begin)

    def _check_finite(self, user_rows: Int32Array | slice, item_rows: Int32Array | slice) -> None:
        """Raise an error if the descent has diverged in these rows."""
        # What has become infinite stays so: looking at the end is enough.
        touched = self.users.rows[user_rows], self.items.rows[item_rows]
        if not all(np.isfinite(rows).all() for rows in touched):
            raise ParameterError(
                "the descent has diverged: its steps are too large for these ratings; choose a "
                "smaller step or, for a stream of ratings far from 1 to 5, give their rating_range"
            )


def _clip(expected: Float64Array, lowest: float | Array, highest: float | Array) -> Float64Array:
    """Clip to a range; where the range is empty, before the first rating, do nothing."""
    is_range = np.less_equal(lowest, highest)
    return np.asarray(np.where(is_range, np.clip(expected, lowest, highest), expected))
