"""Biased matrix factorization by stochastic gradient descent, in batch or on a stream."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hemf._checks import (
    Parametrised,
    check_bool,
    check_callables,
    check_choice,
    check_int,
    check_number,
    check_rating_range,
    check_rng,
)
from hemf._options import MOST_FACTORS
from hemf._typing import Float32Array, Float64Array, Int32Array
from hemf.batch.inputs import validation_pairs
from hemf.data.columns import CodedIds
from hemf.data.pairs import KnownIds, check_ratings_in_range, find_pairs
from hemf.data.ratings import Ratings, drop_unrated_ids, pairs_from_any, read_in_order
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError, NotFittedError, ParameterError


@dataclass(frozen=True)
class EpochReport:
    """How a fit stands after an epoch; what callbacks receive.

    >>> EpochReport(1, 30, 0.93, 0.05, 0.2).epoch
    1
    """

    epoch: int
    """Epochs done so far, from 1."""
    epochs: int
    train_rmse: float
    """Of what was expected of each rating just before it was learnt in this epoch."""
    step: float
    """The step that comes next."""
    seconds: float
    """Since the start of the fit, what callbacks took left out."""
    validation_rmse: float | None = None
    """On the ratings given as ``validation``."""


class SGD(Parametrised):
    """Biased matrix factorization by stochastic gradient descent with decreasing steps.

    The classic of online recommendation, and what the paper compares HeMF with::

        r_ij ≈ c + s (o_i + p_j + a_i·b_j)

    c is the mean of the ratings and s their scale, so that the constants suit any: with `fit` the
    standard deviation; on a stream from nothing a quarter of ``rating_range`` or, without one, 1.
    A rating with error e, in units of s, moves its user and its item down the gradient of
    ½e² + ½λ_o(o_i² + p_j²) + ½λ(a_i·a_i + b_j·b_j), by a step that shrinks with the number t of
    ratings learnt before, repetitions counted: η_t = η0 / (1 + t/decay)^power.

    Parameters
    ----------
    n_factors
        Length of the factors a_i, b_j; with 0 there are the offsets alone.
    epochs
        How often `fit` goes over the ratings, in another order every time. The fewer ratings,
        the sooner more epochs make predictions worse.
    step, decay, power
        η0, and how it shrinks: ``power=0`` keeps it as it is, ``power=1`` is Robbins and Monro's.
    factor_penalty, offset_penalty
        λ and λ_o.
    start_scale
        Standard deviation of the factors that a new user or item starts with; its offset is 0.
    rating_range
        Predictions are clipped to it: ``"observed"`` so far, a pair of numbers (a rating outside
        is an error then), or ``None``.
    duplicates
        What `fit` does with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``,
        ``"error"``. On a stream every rating counts.
    dtype
        ``"float32"`` storage, or ``"float64"``. Sums are taken in float64 either way.
    rng
        Seed, or NumPy generator, of everything random.

    Notes
    -----
    The constants were chosen on held-out parts of the training ratings of MovieLens 1M and 100K,
    as a compromise between 30 epochs and a single pass; one pass is the better for
    larger steps and smaller penalties, a small table for larger penalties or fewer epochs.

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

    def __init__(
        self,
        *,
        n_factors: int = 20,
        epochs: int = 30,
        step: float = 0.06,
        decay: float = 500_000.0,
        power: float = 0.5,
        factor_penalty: float = 0.05,
        offset_penalty: float = 0.01,
        start_scale: float = 0.02,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        dtype: str = "float32",
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.epochs = epochs
        self.step = step
        self.decay = decay
        self.power = power
        self.factor_penalty = factor_penalty
        self.offset_penalty = offset_penalty
        self.start_scale = start_scale
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.dtype = dtype
        self.rng = rng

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self,
        ratings: Any,
        y: Any = None,
        *,
        epochs: int | None = None,
        columns: Any = None,
        validation: Any = None,
        callbacks: Sequence[Callable[[EpochReport], Any]] = (),
    ) -> Self:
        """Learn from ratings, anything `Ratings.from_any` reads, from the start.

        With ``y``, ``ratings`` holds the pairs and ``y`` their ratings. ``epochs`` is for this
        fit alone. ``callbacks`` are called with an `EpochReport` after every epoch; one that
        returns something true stops the fit. ``validation`` are ratings to report the error on,
        which nothing is learnt from. A fit that fails leaves the estimator as it was.
        """
        schedule = self.check_parameters()
        epochs = check_int("epochs", self.epochs if epochs is None else epochs, low=1)
        told = check_callables("callbacks", callbacks)
        if y is not None:
            ratings, columns = (*pairs_from_any(ratings, columns), y), None
        data = Ratings.from_any(ratings, columns=columns, duplicates=self.duplicates)
        if not data.n_ratings:
            raise DataError("there are no ratings to learn from")
        user_rows, item_rows, values = data.triples()
        check_ratings_in_range(values, self.rating_range)
        if values.dtype != np.float32:
            raise DataError(
                "these ratings differ by less than float32 can hold, which is what this model "
                "learns from; subtract a constant from all of them"
            )
        values = values.astype(np.float32, copy=False)
        judged = None if validation is None else validation_pairs(validation, data)[:3]
        users, user_rows = drop_unrated_ids(data.users, user_rows)
        items, item_rows = drop_unrated_ids(data.items, item_rows)
        state, rng = self._begin(users, items, data.scale)
        state.see(values)
        history: list[EpochReport] = []
        begin = time.perf_counter()
        for epoch in range(1, epochs + 1):
            order = rng.permutation(data.n_ratings)
            shuffled = values[order]
            expected = state.sweep(schedule, user_rows[order], item_rows[order], shuffled)
            report = EpochReport(
                epoch,
                epochs,
                float(np.sqrt(np.mean((expected - shuffled) ** 2))),
                float(schedule.steps(state.seen.updates, 1)[0]),
                time.perf_counter() - begin,
                None if judged is None else state.error_on(*judged),
            )
            history.append(report)
            called = time.perf_counter()
            answers = [callback(report) for callback in told]
            begin += time.perf_counter() - called
            if any(answers):
                break
        self.state_, self.history_ = state, history
        return self

    def partial_fit(self, ratings: Any, y: Any = None, *, columns: Any = None) -> Self:
        """Learn each rating once, in the order given, from where the model stands.

        `Ratings`, which have no order of their own, are taken by their timestamps or, without,
        user by user. New users and items are welcome. If anything is wrong with a rating, none of
        them is learnt.
        """
        self._stream(ratings, y, columns, forecasts=False)
        return self

    def predict_then_learn(
        self, ratings: Any, y: Any = None, *, columns: Any = None, return_seconds: bool = False
    ) -> Any:
        """Learn as `partial_fit` does, and return what was predicted of each rating just before.

        The very first one is predicted as the middle of ``rating_range``, or 0 if that is not
        given. With ``return_seconds`` also the seconds that predicting and learning each rating
        took; what the call spends on all of them together is shared out evenly.

        >>> model = SGD(n_factors=2, rating_range=(1, 5), rng=0)
        >>> model.predict_then_learn([("ann", "tea", 4), ("bob", "tea", 4)]).round(1)
        array([3., 4.])
        """
        return_seconds = check_bool("return_seconds", return_seconds)
        begin = time.perf_counter()
        expected, seconds = self._stream(ratings, y, columns, forecasts=True, timed=return_seconds)
        if seconds is None:
            return expected
        whole = time.perf_counter() - begin
        return expected, seconds + (whole - seconds.sum()) / len(seconds)

    def _stream(
        self, ratings: Any, y: Any, columns: Any, *, forecasts: bool, timed: bool = False
    ) -> tuple[Float64Array, Float64Array | None]:
        """Learn ratings; return what was expected of each, and how long it took if ``timed``."""
        schedule = self.check_parameters()
        with self._turn:
            fitted = hasattr(self, "state_")
            state = (
                self.state_
                if fitted
                else self._begin(Vocabulary(), Vocabulary(), self._expected_scale())[0]
            )
            read = read_in_order(ratings, y, columns, users=state.users.ids, items=state.items.ids)
            values = np.array(read.ratings, np.float32)  # kernels take no columns that are views
            check_ratings_in_range(values, self.rating_range)
            seconds = np.empty(len(values)) if timed else None
            expected = state.stream(
                schedule, read.users, read.items, values, forecasts=forecasts, seconds=seconds
            )
            if not fitted:
                self.state_, self.history_ = state, []
        return expected, seconds

    def check_parameters(self) -> Schedule:
        """Check every parameter; an error names it and what it may be."""
        check_int("n_factors", self.n_factors, low=0, high=MOST_FACTORS)
        check_int("epochs", self.epochs, low=1)
        check_number("start_scale", self.start_scale, low=0.0)
        check_rating_range(self.rating_range)
        check_choice("duplicates", self.duplicates, ("last", "mean", "error"))
        check_choice("dtype", self.dtype, ("float32", "float64"))
        return Schedule(
            check_number("step", self.step, low=0.0),
            check_number("decay", self.decay, low=1e-9),
            check_number("power", self.power, low=0.0),
            check_number("factor_penalty", self.factor_penalty, low=0.0),
            check_number("offset_penalty", self.offset_penalty, low=0.0),
        )

    def _begin(
        self, users: Vocabulary, items: Vocabulary, scale: float
    ) -> tuple[Descent, np.random.Generator]:
        """Return a state in which nothing is learnt yet, and a generator for what comes."""
        # One seed for each purpose: how many users there are must not change where items start.
        seeds = check_rng(self.rng).integers(2**63, size=3).tolist()
        user_side, item_side = (
            Side(ids, self.n_factors, self.start_scale, np.dtype(self.dtype), seed=seed)
            for ids, seed in zip((users, items), seeds[:2], strict=True)
        )
        limits = check_rating_range(self.rating_range)
        if limits is None:
            limits = (-np.inf, np.inf)
        elif isinstance(limits, str):
            limits = (np.inf, -np.inf)  # the ends of no ratings at all
        return Descent(user_side, item_side, scale, Seen(*limits)), np.random.default_rng(seeds[2])

    def _expected_scale(self) -> float:
        limits = check_rating_range(self.rating_range)
        return (limits[1] - limits[0]) / 4.0 if isinstance(limits, tuple) else 1.0

    # -- what is known -------------------------------------------------------------------------

    @property
    def n_users_(self) -> int:
        """How many users have been learnt of."""
        return self._fitted().users.count

    @property
    def n_items_(self) -> int:
        """How many items have been learnt of."""
        return self._fitted().items.count

    @property
    def n_sweeps_(self) -> int:
        """Epochs done by the last `fit`."""
        self._fitted()
        return len(self.history_)

    @property
    def n_updates_(self) -> int:
        """How often a rating has been learnt, which is what the step depends on."""
        return self._fitted().seen.updates

    @property
    def global_mean_(self) -> float:
        """Mean of the ratings seen."""
        return self._fitted().seen.mean

    @property
    def rating_scale_(self) -> float:
        """Scale s of the ratings, which offsets and products of factors are multiplied by."""
        return self._fitted().scale

    @property
    def rating_range_(self) -> tuple[float, float] | None:
        """What predictions are clipped to."""
        seen = self._fitted().seen
        return (seen.lowest, seen.highest) if np.isfinite(seen.lowest) else None

    @property
    def user_offsets_(self) -> npt.NDArray[Any]:
        """Offset o_i of each user in units of ``rating_scale_``, in the order they came; a copy."""
        users = self._fitted().users
        return users.rows[: users.count, 0].copy()

    @property
    def item_offsets_(self) -> npt.NDArray[Any]:
        """Offset p_j of each item."""
        items = self._fitted().items
        return items.rows[: items.count, 0].copy()

    @property
    def user_factors_(self) -> npt.NDArray[Any]:
        """Factors a_i of each user."""
        users = self._fitted().users
        return users.rows[: users.count, 1:].copy()

    @property
    def item_factors_(self) -> npt.NDArray[Any]:
        """Factors b_j of each item."""
        items = self._fitted().items
        return items.rows[: items.count, 1:].copy()

    # -- prediction ----------------------------------------------------------------------------

    def predict(
        self,
        users: Any,
        items: Any = None,
        *,
        return_known: bool = False,
        unknown: str = "prior",
    ) -> Any:
        """Return the expected rating of each pair, on the rating scale.

        Ids are given as `HeMF.predict` takes them. With ``return_known`` also whether both are
        known: strangers get the mean and the other's offset (``unknown="error"``: an error).
        """
        return_known = check_bool("return_known", return_known)
        state = self._fitted()
        pairs = find_pairs(
            users,
            items,
            KnownIds(state.users.ids, state.users.find),
            KnownIds(state.items.ids, state.items.find),
            unknown,
        )
        expected = state.forecast(pairs.users, pairs.items)
        answer = (expected[0], pairs.known[0]) if pairs.is_single else (expected, pairs.known)
        return answer if return_known else answer[0]

    # -- inner workings ------------------------------------------------------------------------

    def _fitted(self) -> Descent:
        try:
            return self.state_
        except AttributeError:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet; "
                "call fit or partial_fit first"
            ) from None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

    @property
    def _turn(self) -> threading.RLock:
        """Lock guarding concurrent updates and copies."""
        lock: threading.RLock = self.__dict__.setdefault("_lock", threading.RLock())
        return lock

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with self._turn:
            kept = {name: value for name, value in vars(self).items() if name != "_lock"}
            vars(twin).update(copy.deepcopy(kept, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # A copy, made under the lock: what is pickled later must not change in the meantime.
        return vars(copy.deepcopy(self))


# ------------------------------------------------------------------------------------------------
# What gradient descent has learnt: rows that grow with the ids, and all that it has seen.


LEAST_ROOM = 16  # rows


@dataclass(frozen=True)
class Schedule:
    """How far each rating moves its user and its item."""

    step: float
    decay: float
    power: float
    factor_penalty: float
    offset_penalty: float

    def steps(self, first: int, n: int) -> Float64Array:
        """Return η_t = η0 / (1 + t/decay)^power of n ratings, t counted from ``first``.

        >>> Schedule(0.1, 2.0, 1.0, 0.0, 0.0).steps(2, 3).round(3).tolist()
        [0.05, 0.04, 0.033]
        """
        shrunk = (1.0 + np.arange(first, first + n) / self.decay) ** self.power
        return np.asarray(self.step / shrunk)


class Side:
    """Ids of one side, and a row of offset and factors for each; its storage doubles as it grows.

    Row k starts with the k-th draw of the seed, whenever its turn comes.

    >>> side = Side(Vocabulary(["ann"]), 2, 0.1, np.float32, seed=0)
    >>> side.find(["ann", "bob"]).tolist(), side.rows.shape
    ([0, -1], (16, 3))
    """

    def __init__(
        self, ids: Vocabulary, n_factors: int, start_scale: float, dtype: Any, *, seed: int
    ) -> None:
        self.ids = ids
        self.rows: npt.NDArray[Any] = np.empty((0, 1 + n_factors), dtype)
        self.count = len(ids)
        self._scale = start_scale
        self._rng = np.random.default_rng(seed)
        self.make_room(self.count)

    def find(self, ids: Any) -> Int32Array:
        """Row of each id, -1 for those that nothing was learnt of."""
        rows = self.ids.rows(ids)
        rows[rows >= self.count] = -1
        return rows.astype(np.int32)

    def number(self, coded: CodedIds) -> Int32Array:
        """Row of each distinct id, with room for those that are new, which are not added yet."""
        rows = self.ids.rows(coded.distinct)
        new = rows < 0
        rows[new] = np.arange(len(self.ids), len(self.ids) + new.sum())
        self.make_room(int(rows.max()) + 1)
        return rows.astype(np.int32)

    def make_room(self, n: int) -> None:
        """Have at least n rows, those in use as they are."""
        held, width = self.rows.shape
        if n <= held:
            return
        grown = np.empty((max(n, 2 * held, LEAST_ROOM), width), self.rows.dtype)
        grown[:held] = self.rows
        grown[held:, 0] = 0.0
        grown[held:, 1:] = self._scale * self._rng.standard_normal((len(grown) - held, width - 1))
        self.rows = grown


class Seen(NamedTuple):
    """Figures of the ratings learnt so far."""

    lowest: float
    """With ``highest``, what predictions are clipped to; above it before the first rating."""
    highest: float
    total: float = 0.0
    """Sum of the ratings."""
    ratings: int = 0
    updates: int = 0
    """Ratings learnt, each time that one was."""

    @property
    def mean(self) -> float:
        """Mean of the ratings; before there are any, the middle of their range."""
        if self.ratings:
            return self.total / self.ratings
        middle = (self.lowest + self.highest) / 2.0
        return middle if np.isfinite(middle) else 0.0


@dataclass
class Descent:
    """The state of a descent: both sides, and what was seen."""

    users: Side
    items: Side
    scale: float
    """What a rating is measured in."""
    seen: Seen

    def error_on(self, users: Any, items: Any, ratings: Float64Array) -> float:
        """Return the RMSE on ratings of these users and items, strangers among them or not."""
        expected = self.forecast(self.users.find(users), self.items.find(items))
        return float(np.sqrt(np.mean((expected - ratings) ** 2)))

    def forecast(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return what is expected of pairs; -1 is a row that nothing is known of."""
        from hemf.kernels.descent import forecast

        expected = np.empty(len(user_rows))
        forecast.compiled(self.users.rows.dtype)(
            user_rows,
            item_rows,
            self.seen.mean,
            self.scale,
            self.users.rows,
            self.items.rows,
            expected,
        )
        return _clipped(expected, self.seen.lowest, self.seen.highest)

    def see(self, ratings: Float32Array) -> None:
        """Take note of ratings, the first ones, that will be swept over."""
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
        """Learn ratings that have been seen before, and return what was expected of each."""
        n = len(ratings)
        means = np.full(n + 1, self.seen.mean)
        expected = np.empty(n)
        self._descend(schedule, user_rows, item_rows, ratings, means, expected)
        self._check(slice(None), slice(None))
        self.seen = self.seen._replace(updates=self.seen.updates + n)
        return _clipped(expected, self.seen.lowest, self.seen.highest)

    def stream(
        self,
        schedule: Schedule,
        users: CodedIds,
        items: CodedIds,
        ratings: Float32Array,
        *,
        forecasts: bool,
        seconds: Float64Array | None = None,
    ) -> Float64Array:
        """Learn new ratings, and return what was expected of each where ``forecasts`` are wanted.

        All of them are learnt or, after an error or an interruption, none. What each took is
        written into ``seconds``.
        """
        n, before = len(ratings), self.seen
        touched = self.users.number(users), self.items.number(items)
        totals = np.cumsum(np.append(before.total, ratings.astype(np.float64)))
        means = totals / np.maximum(np.arange(before.ratings, before.ratings + n + 1), 1)
        means[0] = before.mean
        lowest = np.minimum.accumulate(np.append(before.lowest, ratings))
        highest = np.maximum.accumulate(np.append(before.highest, ratings))
        expected = np.empty(n if forecasts else 0)
        sides = (self.users, self.items)
        old = [side.rows[rows] for side, rows in zip(sides, touched, strict=True)]
        counts = [side.count for side in sides]
        try:
            self._descend(
                schedule,
                touched[0][users.codes],
                touched[1][items.codes],
                ratings,
                means,
                expected,
                seconds,
            )
            self._check(*touched)
            for side, coded, rows in zip(sides, (users, items), touched, strict=True):
                if rows.max() >= side.count:
                    side.ids.add_coded(coded)
                    side.count = len(side.ids)
            self.seen = Seen(
                float(lowest[-1]),
                float(highest[-1]),
                float(totals[-1]),
                before.ratings + n,
                before.updates + n,
            )
        except BaseException:
            # Ids that were added stay, but below their count nothing is known of them.
            for side, rows, values, count in zip(sides, touched, old, counts, strict=True):
                side.rows[rows], side.count = values, count
            self.seen = before
            raise
        return _clipped(expected, lowest[:-1], highest[:-1]) if forecasts else expected

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
        from hemf.kernels.descent import descend, descend_timed

        given = (
            user_rows,
            item_rows,
            ratings,
            means,
            self.scale,
            schedule.steps(self.seen.updates, len(ratings)),
            schedule.offset_penalty,
            schedule.factor_penalty,
            self.users.rows,
            self.items.rows,
            self.users.count,
            self.items.count,
            expected,
        )
        if seconds is None:
            descend.compiled(self.users.rows.dtype)(*given)
            return
        timed, spent = (
            descend_timed.compiled(self.users.rows.dtype),
            np.empty(len(ratings), np.int64),
        )
        begin = time.perf_counter()
        timed(*given, spent)
        seconds[:] = clock.seconds(spent, time.perf_counter() - begin)

    def _check(self, user_rows: Any, item_rows: Any) -> None:
        """Raise an error if the descent has diverged in these rows."""
        # What has once become infinite stays so: looking at the end is enough.
        touched = self.users.rows[user_rows], self.items.rows[item_rows]
        if not all(np.isfinite(rows).all() for rows in touched):
            raise ParameterError(
                "the descent has diverged: its steps are too large for these ratings; "
                "choose a smaller step or, for ratings far from 1 to 5 that a stream begins with, "
                "give their rating_range"
            )


def _clipped(expected: Float64Array, lowest: Any, highest: Any) -> Float64Array:
    """Clip to a range, but where its ends are the wrong way round, for want of ratings."""
    is_range = np.less_equal(lowest, highest)
    return np.asarray(np.where(is_range, np.clip(expected, lowest, highest), expected))
