"""Prequential evaluation: predict every rating of a stream before it is learnt.

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
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from hemf._checks import check_choice, check_int, check_lengths, check_value
from hemf._typing import SIDES, AnyArray, Array, Float64Array, IdsLike, Int64Array
from hemf.data.vocabulary import CodedIds, factorise
from hemf.errors import DataError, UnknownIdWarning
from hemf.evaluation.choices import NextChoices
from hemf.evaluation.metrics import CurvePoint, rmse
from hemf.evaluation.splits import Seed

ORDERS = ("time", "file", "random")
BLOCK = 2000  # ratings between two calls of the callback if ratings are learnt one by one
RECENT = 10_000  # ratings of `recent_rmse`
_TENTHS = 10
_POINT_RATINGS = 1000  # per point of the curve, at least


class Learner(Protocol):
    """Model that can be evaluated on a stream; it clips its predictions itself."""

    def predict(self, users: IdsLike, items: IdsLike, **options: AnyArray) -> Array:
        """Return the expected ratings of pairs."""

    def partial_fit(self, ratings: tuple[IdsLike, ...]) -> object:
        """Learn a batch: a tuple of users, items and ratings."""

    def predict_then_learn(
        self, ratings: tuple[IdsLike, ...], *, return_seconds: bool
    ) -> tuple[Array, Float64Array]:
        """Predict and learn ratings one by one; return the predictions and the seconds of each."""


def stream_order(
    n: int, timestamps: ArrayLike | None = None, order: str | None = None, *, rng: Seed = 0
) -> Int64Array:
    """Return the order of n ratings: by ``"time"``, as in the ``"file"`` or ``"random"``.

    The default is by time if timestamps are given, else as in the file. Ratings of equal times
    keep the order of the file.

    >>> stream_order(3, [30, 10, 20]).tolist(), stream_order(3, [30, 10, 20], "file").tolist()
    ([1, 2, 0], [0, 1, 2])
    """
    if order is not None:
        check_choice("order", order, ORDERS)
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
    hemf.errors.DataError: a warm start of 0.9 leaves none of the 3 ratings to stream
    """
    check_value("the warm start", fraction, 0 <= fraction < 1, "at least 0 and below 1")
    size = round(fraction * n)
    if size >= n:
        message = f"a warm start of {fraction:g} leaves none of the {n} ratings to stream"
        raise DataError(message, value=fraction)
    return size


class Prequential:
    """Predicts and then learns the ratings from position ``start`` on, in the given order.

    With ``batch_size`` 1 every rating is predicted and learnt before the next one. Larger batches
    are predicted and then learnt as a whole, except for the first batch of a learner that is not
    fitted: nothing could predict it, so its ratings are learnt one by one.

    Times include only predicting and learning. After an interruption, the measurements so far are
    available.

    Parameters
    ----------
    learner
        Model to evaluate.
    users, items, ratings
        The stream.
    timestamps
        Times of the ratings, passed to a learner that has ``moods``.
    start
        Position of the first rating to stream; the learner knows the ratings before it.
    batch_size
        Number of ratings in a batch.
    test
        Users, items, ratings and optionally timestamps that are predicted at every tenth of the
        stream.
    choices
        Ranks the items of some of the ratings before these are learnt, by what the learner knows
        then. Ratings learnt one by one are cut into blocks there, which end with an update of what
        all rows of a learner share.

    """

    def __init__(
        self,
        learner: Learner,
        users: IdsLike,
        items: IdsLike,
        ratings: ArrayLike,
        *,
        timestamps: ArrayLike | None = None,
        start: int = 0,
        batch_size: int = 1,
        test: tuple[IdsLike, ...] | None = None,
        choices: NextChoices | None = None,
    ) -> None:
        values = np.asarray(ratings)
        if values.dtype != np.float32:
            values = values.astype(np.float64)
        coded = factorise(users, "user"), factorise(items, "item")
        columns = {"users": coded[0].codes, "items": coded[1].codes, "ratings": values}
        # Only learners with moods take timestamps.
        self._times = None
        if timestamps is not None and getattr(learner, "moods", False):
            columns["timestamps"] = self._times = np.asarray(timestamps)
        n = check_lengths(**columns)
        if not 0 <= start < n:
            raise DataError(f"no rating is left to stream after {start} of {n}", value=start)
        self.learner = learner
        self.start = start
        self.batch_size = check_int("batch_size", batch_size, low=1)
        self.ratings = 0
        """Ratings streamed so far."""
        self.seconds = self.cpu_seconds = 0.0
        """Spent on predicting and learning them."""
        self.curve: list[CurvePoint] = []
        # Ids that are coded already are passed on as such; learners need not handle codes.
        given = zip((users, items), coded, strict=True)
        self._ids = [own if isinstance(ids, CodedIds) else own.decode() for ids, own in given]
        self._ratings = values
        # Codes are in order of appearance: the largest code counts the ids so far.
        self._seen = [np.maximum.accumulate(side.codes) + 1 for side in coded]
        self._squared_errors = np.empty(self.length)
        self._latencies: list[Float64Array] = []  # seconds of each rating or each batch
        self._test = test
        self.choices = choices
        self._points = _curve_points(self.length)

    @property
    def length(self) -> int:
        """Number of ratings to stream in all."""
        return len(self._ratings) - self.start

    def run(self, watch: Callable[[Self], object] | None = None) -> Self:
        """Stream the rest; ``watch`` is called with this object after every block."""
        while self.ratings < self.length:
            end = self._next_end()
            if self.choices is not None and hasattr(self.learner, "n_users_"):  # it is fitted
                self.choices.rank(self.learner, self.start + self.ratings, self.start + end)
            self._learn(end)
            self._add_point()
            if watch is not None:
                watch(self)
        return self

    # -- measurements ----------------------------------------------------------------------------

    @property
    def rmse(self) -> float:
        """Of everything streamed so far; NaN if nothing is."""
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
        """Quantiles of the seconds per rating, or per batch; estimated from ``most`` of them."""
        if not self._latencies:
            return [float("nan")] * len(quantiles)
        if len(self._latencies) > 1:
            self._latencies = [np.concatenate(self._latencies)]
        (seconds,) = self._latencies
        step = 1 if most is None else -(-len(seconds) // most)
        return [float(value) for value in np.quantile(seconds[::step], quantiles)]

    @property
    def new_users(self) -> int:
        """Users who appeared in the stream for the first time."""
        return self._new(0)

    @property
    def new_items(self) -> int:
        """Items that appeared in the stream for the first time."""
        return self._new(1)

    @property
    def communities(self) -> tuple[int, int] | None:
        """Numbers of user and item communities of the learner; None if it has none."""
        users, items = (getattr(self.learner, f"n_{side}_communities_", None) for side in SIDES)
        return None if users is None or items is None else (users, items)

    def _rmse(self, first: int) -> float:
        squares = self._squared_errors[first : self.ratings]
        return float(np.sqrt(squares.mean())) if len(squares) else float("nan")

    def _new(self, side: int) -> int:
        seen, now = self._seen[side], self.start + self.ratings
        return int(seen[now - 1] - (seen[self.start - 1] if self.start else 0)) if now else 0

    # -- one step --------------------------------------------------------------------------------

    def _next_end(self) -> int:
        if self.batch_size == 1:
            point = np.searchsorted(self._points, self.ratings, side="right")
            end = min(self.ratings + BLOCK, int(self._points[point]))
            if self.choices is None:
                return end
            begin = self.start
            return self.choices.next_after(begin + self.ratings, begin + end) - begin
        return min(self.ratings + self.batch_size, self.length)

    def _learn(self, end: int) -> None:
        part = slice(self.start + self.ratings, self.start + end)
        users, items = (ids[part] for ids in self._ids)
        ratings = self._ratings[part]
        batch: tuple[IdsLike, ...] = users, items, ratings
        times: dict[str, AnyArray] = {}
        if self._times is not None:
            batch, times = (*batch, self._times[part]), {"timestamps": self._times[part]}
        one_by_one = self.batch_size == 1 or not hasattr(self.learner, "n_users_")  # not fitted
        wall, cpu = time.perf_counter(), time.process_time()
        if one_by_one:
            expected, seconds = self.learner.predict_then_learn(batch, return_seconds=True)
        else:
            expected = self._predict(users, items, times)
            self.learner.partial_fit(batch)
        spent = time.perf_counter() - wall
        self.seconds += spent
        self.cpu_seconds += time.process_time() - cpu
        self._latencies.append(seconds if self.batch_size == 1 else np.array([spent]))
        self._squared_errors[self.ratings : end] = (expected - ratings.astype(np.float64)) ** 2
        self.ratings = end

    def _add_point(self) -> None:
        """Add a point to the curve if one is due."""
        last = self.curve[-1].ratings if self.curve else 0
        passed = self._points[(self._points > last) & (self._points <= self.ratings)]
        if not len(passed):
            return
        tenths = self.length * np.arange(1, _TENTHS + 1) // _TENTHS
        test = self._predict_test() if np.isin(passed, tenths).any() else None
        self.curve.append(
            CurvePoint(self.ratings, self._rmse(last), self.rmse, test, self.communities)
        )

    def _predict_test(self) -> float | None:
        if self._test is None:
            return None
        users, items, ratings, *times = self._test
        options = {"timestamps": times[0]} if times and self._times is not None else {}
        return rmse(ratings, self._predict(users, items, options))

    def _predict(self, users: IdsLike, items: IdsLike, times: dict[str, AnyArray]) -> Array:
        """Predict without warnings of unknown ids, which are usual in a stream."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownIdWarning)
            return self.learner.predict(users, items, **times)


def _curve_points(n: int) -> Int64Array:
    """Return after how many of n ratings the curve has a point; every tenth is among them."""
    parts = _TENTHS * min(max(n // (_TENTHS * _POINT_RATINGS), 1), 10)
    points = np.unique(n * np.arange(1, parts + 1) // parts)
    return points[points > 0]
