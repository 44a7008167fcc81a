"""What gradient descent has learnt: rows that grow with the ids, and all that it has seen."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hemf.errors import ParameterError
from hemf.reading.identifiers import CodedIds
from hemf.vocabulary import Vocabulary

Floats = npt.NDArray[np.float64]
Ratings32 = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int32]

LEAST_ROOM = 16  # rows


@dataclass(frozen=True)
class Schedule:
    """How far each rating moves its user and its item."""

    step: float
    decay: float
    power: float
    factor_penalty: float
    offset_penalty: float

    def steps(self, first: int, n: int) -> Floats:
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

    def find(self, ids: Any) -> RowNumbers:
        """Row of each id, -1 for those that nothing was learnt of."""
        rows = self.ids.rows(ids)
        rows[rows >= self.count] = -1
        return rows.astype(np.int32)

    def number(self, coded: CodedIds) -> RowNumbers:
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

    def error_on(self, users: Any, items: Any, ratings: Floats) -> float:
        """Return the RMSE on ratings of these users and items, strangers among them or not."""
        expected = self.forecast(self.users.find(users), self.items.find(items))
        return float(np.sqrt(np.mean((expected - ratings) ** 2)))

    def forecast(self, user_rows: RowNumbers, item_rows: RowNumbers) -> Floats:
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

    def see(self, ratings: Ratings32) -> None:
        """Take note of ratings, the first ones, that will be swept over."""
        self.seen = Seen(
            min(self.seen.lowest, float(ratings.min())),
            max(self.seen.highest, float(ratings.max())),
            float(ratings.sum(dtype=np.float64)),
            len(ratings),
        )

    def sweep(
        self, schedule: Schedule, user_rows: RowNumbers, item_rows: RowNumbers, ratings: Ratings32
    ) -> Floats:
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
        ratings: Ratings32,
        *,
        forecasts: bool,
        seconds: Floats | None = None,
    ) -> Floats:
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
        user_rows: RowNumbers,
        item_rows: RowNumbers,
        ratings: Ratings32,
        means: Floats,
        expected: Floats,
        seconds: Floats | None = None,
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


def _clipped(expected: Floats, lowest: Any, highest: Any) -> Floats:
    """Clip to a range, but where its ends are the wrong way round, for want of ratings."""
    is_range = np.less_equal(lowest, highest)
    return np.asarray(np.where(is_range, np.clip(expected, lowest, highest), expected))
