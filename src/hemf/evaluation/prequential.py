"""Judge a learner on a stream: predict every rating before it is learnt.

Any learner will do that has ``predict``, ``partial_fit`` and ``predict_then_learn``.

>>> from hemf.baselines import SGD
>>> learner = SGD(n_factors=2, rating_range=(1, 5), rng=0)
>>> stream = Prequential(learner, ["ann", "bob", "ann"], ["tea", "tea", "ale"], [4, 5, 3]).run()
>>> stream.ratings, stream.new_users, stream.new_items
(3, 2, 2)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from hemf._typing import Float64Array
from hemf.data.columns import factorise
from hemf.errors import DataError, ParameterError, UnknownIdWarning
from hemf.evaluation.metrics import rmse
from hemf.evaluation.splits import Positions, Seed

ORDERS = ("time", "file", "random")
BLOCK = 2000  # ratings between two looks at a stream that is learnt one by one
RECENT = 10_000  # ratings that "recent" means
TENTHS = 10
PART = 1000  # ratings that a point of the curve stands for, at least; more in a long stream


class Learner(Protocol):
    """What can be judged on a stream; it clips its predictions itself.

    ``predict_then_learn`` takes ratings one by one, and returns what was predicted of each and
    the seconds that each took.
    """

    def predict(self, users: Any, items: Any) -> Any:
        """Return what is expected of pairs."""

    def partial_fit(self, ratings: Any) -> Any:
        """Learn a batch: a tuple of users, items and ratings."""

    def predict_then_learn(self, ratings: Any, *, return_seconds: bool) -> Any:
        """Learn one by one: a tuple of users, items and ratings."""


@dataclass(frozen=True)
class CurvePoint:
    """How a learner stands somewhere in the stream.

    >>> CurvePoint(2000, 0.91, 0.93).test_rmse is None
    True
    """

    ratings: int
    """Ratings streamed so far."""
    rmse: float
    """Of the ratings since the point before."""
    running_rmse: float
    """Of all ratings streamed so far."""
    test_rmse: float | None = None
    """On the test ratings, at every tenth of the stream."""
    communities: tuple[int, int] | None = None
    """Of users and of items, where the learner has any."""


def stream_order(
    n: int, timestamps: ArrayLike | None = None, order: str | None = None, *, rng: Seed = 0
) -> Positions:
    """Return the order in which n ratings come: by ``"time"``, as in the ``"file"``, ``"random"``.

    Unless said, by time where it is known. Ratings of one time keep the order of the file.

    >>> stream_order(3, [30, 10, 20]).tolist(), stream_order(3, [30, 10, 20], "file").tolist()
    ([1, 2, 0], [0, 1, 2])
    """
    if order is not None and order not in ORDERS:
        raise ParameterError(f"order is {order!r}; choose one of {', '.join(ORDERS)}", value=order)
    if order == "time" and timestamps is None:
        raise DataError(
            "the ratings have no timestamps to order them by; choose file or random order, "
            "or name the column of the timestamps"
        )
    if order == "random":
        return np.random.default_rng(rng).permutation(n)
    if timestamps is None or order == "file":
        return np.arange(n)
    return np.argsort(np.asarray(timestamps), kind="stable")


def warm_start_size(n: int, fraction: float) -> int:
    """Return how many of n ratings are learnt in batch before the rest is streamed.

    >>> warm_start_size(1000, 0.1)
    100
    >>> warm_start_size(3, 0.9)
    Traceback (most recent call last):
    hemf.errors.DataError: a warm start of 0.9 leaves nothing of the 3 ratings to stream
    """
    if not 0 <= fraction < 1:
        raise ParameterError(
            f"the warm start is {fraction!r}; it must be at least 0 and below 1", value=fraction
        )
    size = round(fraction * n)
    if size >= n:
        raise DataError(
            f"a warm start of {fraction:g} leaves nothing of the {n} ratings to stream",
            value=fraction,
        )
    return size


class Prequential:
    """Predicts and then learns the ratings from position ``start`` on, in the order given.

    Those before ``start`` are what the learner has learnt already. With ``batch_size`` 1 every
    rating is predicted and learnt before the next one is looked at; larger batches are predicted
    whole, then learnt whole, but for the first of a learner that has learnt nothing: there is
    nothing to predict it from, so it goes in one by one.

    ``timestamps`` say when ratings were given, to a learner that has ``moods``. ``test`` are users,
    items and ratings, and maybe timestamps, that are predicted at every tenth of the stream. Times
    are those of predicting and learning the stream alone. After an interruption, what was
    measured so far is there to be asked for.
    """

    def __init__(
        self,
        learner: Learner,
        users: Any,
        items: Any,
        ratings: ArrayLike,
        *,
        timestamps: ArrayLike | None = None,
        start: int = 0,
        batch_size: int = 1,
        test: tuple[Any, ...] | None = None,
    ) -> None:
        values = np.asarray(ratings)
        if values.dtype != np.float32:
            values = values.astype(np.float64)
        user_codes, item_codes = factorise(users, "user"), factorise(items, "item")
        lengths = {len(user_codes), len(item_codes), len(values)}
        # Others would have to take a keyword that means nothing to them.
        times = None if timestamps is None or not getattr(learner, "moods", False) else timestamps
        self._times = None if times is None else np.asarray(times)
        lengths |= set() if self._times is None else {len(self._times)}
        if len(lengths) > 1:
            raise DataError(f"lengths differ: {sorted(lengths)}; give one value a row")
        if not 0 <= start < len(values):
            raise DataError(
                f"nothing is left to stream after {start} of {len(values)} ratings", value=start
            )
        if batch_size < 1:
            raise ParameterError(
                f"batch_size is {batch_size}; it must be at least 1", value=batch_size
            )
        self.learner = learner
        self.start = start
        self.batch_size = batch_size
        self.ratings = 0
        """Ratings streamed so far."""
        self.seconds = self.cpu_seconds = 0.0
        """Spent on predicting and learning them."""
        self.curve: list[CurvePoint] = []
        self._columns = user_codes.decode(), item_codes.decode(), values
        # Ids are numbered as they come, so the highest number so far tells how many there were.
        self._seen = [np.maximum.accumulate(c.codes) + 1 for c in (user_codes, item_codes)]
        self._squares = np.empty(self.length)  # errors²
        self._latencies: list[Float64Array] = []  # seconds of each rating or each batch
        self._test = test
        self._marks = _marks(self.length)

    @property
    def length(self) -> int:
        """Ratings to stream in all."""
        return len(self._columns[2]) - self.start

    def run(self, watch: Callable[[Self], Any] | None = None) -> Self:
        """Go through what is left of the stream; ``watch`` is called with this now and then."""
        while self.ratings < self.length:
            self._learn(self._end())
            self._mark()
            if watch is not None:
                watch(self)
        return self

    # -- what was measured -----------------------------------------------------------------------

    @property
    def rmse(self) -> float:
        """Of everything streamed so far; NaN of nothing."""
        return self._rmse(0)

    @property
    def recent_rmse(self) -> float:
        """Of the last 10,000 ratings streamed."""
        return self._rmse(max(0, self.ratings - RECENT))

    @property
    def test_rmse(self) -> float | None:
        """On the test ratings, when they were last predicted."""
        found = (p.test_rmse for p in reversed(self.curve) if p.test_rmse is not None)
        return next(found, None)

    @property
    def ratings_per_second(self) -> float:
        """Predicted and learnt."""
        return self.ratings / self.seconds if self.seconds else 0.0

    def latency(self, *quantiles: float, most: int | None = None) -> list[float]:
        """Seconds within which this share of the ratings, or of the batches, was done.

        ``most`` is how many to look at, evenly spread, where an estimate will do.
        """
        if not self._latencies:
            return [float("nan")] * len(quantiles)
        if len(self._latencies) > 1:
            self._latencies = [np.concatenate(self._latencies)]
        (seconds,) = self._latencies
        step = 1 if most is None else -(-len(seconds) // most)
        return [float(value) for value in np.quantile(seconds[::step], quantiles)]

    @property
    def new_users(self) -> int:
        """Users that the stream brought so far and what came before it had not."""
        return self._new(0)

    @property
    def new_items(self) -> int:
        """Items that the stream brought so far and what came before it had not."""
        return self._new(1)

    @property
    def communities(self) -> tuple[int, int] | None:
        """Communities of users and of items that the learner has; None where it has no such."""
        found = (getattr(self.learner, f"n_{side}_communities_", None) for side in ("user", "item"))
        users, items = found
        return None if users is None or items is None else (users, items)

    def _rmse(self, first: int) -> float:
        squares = self._squares[first : self.ratings]
        return float(np.sqrt(squares.mean())) if len(squares) else float("nan")

    def _new(self, side: int) -> int:
        seen, now = self._seen[side], self.start + self.ratings
        return int(seen[now - 1] - (seen[self.start - 1] if self.start else 0)) if now else 0

    # -- one step --------------------------------------------------------------------------------

    def _end(self) -> int:
        """Where the next step ends."""
        if self.batch_size == 1:
            mark = np.searchsorted(self._marks, self.ratings, side="right")
            return min(self.ratings + BLOCK, int(self._marks[mark]))
        return min(self.ratings + self.batch_size, self.length)

    def _learn(self, end: int) -> None:
        part = slice(self.start + self.ratings, self.start + end)
        users, items, ratings = (column[part] for column in self._columns)
        batch: tuple[Any, ...] = users, items, ratings
        when: dict[str, Any] = {}
        if self._times is not None:
            batch, when = (*batch, self._times[part]), {"timestamps": self._times[part]}
        # Properties of a learner that has learnt nothing are not there.
        one_by_one = self.batch_size == 1 or not hasattr(self.learner, "n_users_")
        wall, cpu = time.perf_counter(), time.process_time()
        if one_by_one:
            expected, seconds = self.learner.predict_then_learn(batch, return_seconds=True)
        else:
            expected = self._predict(users, items, when)
            self.learner.partial_fit(batch)
        spent = time.perf_counter() - wall
        self.seconds += spent
        self.cpu_seconds += time.process_time() - cpu
        self._latencies.append(seconds if self.batch_size == 1 else np.array([spent]))
        self._squares[self.ratings : end] = (expected - ratings.astype(np.float64)) ** 2
        self.ratings = end

    def _mark(self) -> None:
        """Add a point to the curve where one is due."""
        last = self.curve[-1].ratings if self.curve else 0
        passed = self._marks[(self._marks > last) & (self._marks <= self.ratings)]
        if not len(passed):
            return
        tenths = self.length * np.arange(1, TENTHS + 1) // TENTHS
        is_tenth = bool(np.isin(passed, tenths).any())
        self.curve.append(
            CurvePoint(
                self.ratings,
                self._rmse(last),
                self.rmse,
                self._tested() if is_tenth else None,
                self.communities,
            )
        )

    def _tested(self) -> float | None:
        if self._test is None:
            return None
        users, items, ratings, *times = self._test
        when = {"timestamps": times[0]} if times and self._times is not None else {}
        return rmse(ratings, self._predict(users, items, when))

    def _predict(self, users: Any, items: Any, when: dict[str, Any]) -> Any:
        """Predict without a word on newcomers, who are usual in a stream."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownIdWarning)
            return self.learner.predict(users, items, **when)


def _marks(n: int) -> Positions:
    """Return after how many of n ratings the curve has a point; every tenth is among them."""
    parts = TENTHS * min(max(n // (TENTHS * PART), 1), 10)
    marks = np.unique(n * np.arange(1, parts + 1) // parts)
    return marks[marks > 0]
