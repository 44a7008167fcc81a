"""Biased matrix factorization by stochastic gradient descent, in batch or on a stream."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hemf.baselines.descent import Descent, Schedule, Seen, Side
from hemf.errors import DataError, NotFittedError
from hemf.options import MOST_FACTORS, checked_range, generator
from hemf.parameters import Parametrised, choice, functions, number, switch, whole_number
from hemf.questions import Known, asked, check_inside
from hemf.ratings import Ratings, pairs_from_any
from hemf.training import validation_pairs
from hemf.triples import in_order, rated_ids
from hemf.vocabulary import Vocabulary

Floats = npt.NDArray[np.float64]


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
        epochs = whole_number("epochs", self.epochs if epochs is None else epochs, at_least=1)
        told = functions("callbacks", callbacks)
        if y is not None:
            ratings, columns = (*pairs_from_any(ratings, columns), y), None
        data = Ratings.from_any(ratings, columns=columns, duplicates=self.duplicates)
        if not data.n_ratings:
            raise DataError("there are no ratings to learn from")
        user_rows, item_rows, values = data.triples()
        check_inside(values, self.rating_range)
        if values.dtype != np.float32:
            raise DataError(
                "these ratings differ by less than float32 can hold, which is what this model "
                "learns from; subtract a constant from all of them"
            )
        values = values.astype(np.float32, copy=False)
        judged = None if validation is None else validation_pairs(validation, data)[:3]
        users, user_rows = rated_ids(data.users, user_rows)
        items, item_rows = rated_ids(data.items, item_rows)
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
        return_seconds = switch("return_seconds", return_seconds)
        begin = time.perf_counter()
        expected, seconds = self._stream(ratings, y, columns, forecasts=True, timed=return_seconds)
        if seconds is None:
            return expected
        whole = time.perf_counter() - begin
        return expected, seconds + (whole - seconds.sum()) / len(seconds)

    def _stream(
        self, ratings: Any, y: Any, columns: Any, *, forecasts: bool, timed: bool = False
    ) -> tuple[Floats, Floats | None]:
        """Learn ratings; return what was expected of each, and how long it took if ``timed``."""
        schedule = self.check_parameters()
        with self._turn:
            fitted = hasattr(self, "state_")
            state = (
                self.state_
                if fitted
                else self._begin(Vocabulary(), Vocabulary(), self._expected_scale())[0]
            )
            read = in_order(ratings, y, columns, users=state.users.ids, items=state.items.ids)
            values = np.array(read.ratings, np.float32)  # kernels take no columns that are views
            check_inside(values, self.rating_range)
            seconds = np.empty(len(values)) if timed else None
            expected = state.stream(
                schedule, read.users, read.items, values, forecasts=forecasts, seconds=seconds
            )
            if not fitted:
                self.state_, self.history_ = state, []
        return expected, seconds

    def check_parameters(self) -> Schedule:
        """Check every parameter; an error names it and what it may be."""
        whole_number("n_factors", self.n_factors, at_least=0, at_most=MOST_FACTORS)
        whole_number("epochs", self.epochs, at_least=1)
        number("start_scale", self.start_scale, low=0.0)
        checked_range(self.rating_range)
        choice("duplicates", self.duplicates, ("last", "mean", "error"))
        choice("dtype", self.dtype, ("float32", "float64"))
        return Schedule(
            number("step", self.step, low=0.0),
            number("decay", self.decay, low=1e-9),
            number("power", self.power, low=0.0),
            number("factor_penalty", self.factor_penalty, low=0.0),
            number("offset_penalty", self.offset_penalty, low=0.0),
        )

    def _begin(
        self, users: Vocabulary, items: Vocabulary, scale: float
    ) -> tuple[Descent, np.random.Generator]:
        """Return a state in which nothing is learnt yet, and a generator for what comes."""
        # One seed for each purpose: how many users there are must not change where items start.
        seeds = generator(self.rng).integers(2**63, size=3).tolist()
        user_side, item_side = (
            Side(ids, self.n_factors, self.start_scale, np.dtype(self.dtype), seed=seed)
            for ids, seed in zip((users, items), seeds[:2], strict=True)
        )
        limits = checked_range(self.rating_range)
        if limits is None:
            limits = (-np.inf, np.inf)
        elif isinstance(limits, str):
            limits = (np.inf, -np.inf)  # the ends of no ratings at all
        return Descent(user_side, item_side, scale, Seen(*limits)), np.random.default_rng(seeds[2])

    def _expected_scale(self) -> float:
        limits = checked_range(self.rating_range)
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
        return_known = switch("return_known", return_known)
        state = self._fitted()
        pairs = asked(
            users,
            items,
            Known(state.users.ids, state.users.find),
            Known(state.items.ids, state.items.find),
            unknown,
        )
        expected = state.forecast(pairs.users, pairs.items)
        answer = (expected[0], pairs.known[0]) if pairs.alone else (expected, pairs.known)
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
