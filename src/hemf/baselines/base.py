"""What the models other than HeMF share: parameters, reading, predictions, reports of a fit."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from hemf._checks import (
    Parametrised,
    check_bool,
    check_callables,
    check_choice,
    check_range,
    check_rating_range,
)
from hemf._typing import AnyArray, BoolArray, Float64Array, IdsLike, Int32Array, RatingsLike
from hemf.data.pairs import KnownIds, Pairs, find_pairs
from hemf.data.ratings import Ratings, drop_unrated_ids, pairs_from_any
from hemf.data.sources import ColumnChoice
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError, NotFittedError

Limits = tuple[float, float] | None
"""Range that predictions are clipped to."""
RatingRange = str | tuple[float, float] | None


@dataclass(eq=False)
class KnownRows:
    """Ids of one side; those from number ``n_rows`` on have been added since, and are unknown."""

    ids: Vocabulary
    n_rows: int

    def find(self, ids: IdsLike) -> Int32Array:
        """Return the row of each id, -1 for unknown ids."""
        rows = self.ids.rows(ids)
        rows[rows >= self.n_rows] = -1
        return rows.astype(np.int32)


@dataclass(eq=False)
class RatedIds(KnownRows):
    """Ids of one side, and which of them have ratings; the others are unknown."""

    rated: BoolArray

    def find(self, ids: IdsLike) -> Int32Array:
        """Return the row of each id, -1 for unknown ids."""
        rows = super().find(ids)
        rows[~self.rated[rows]] = -1
        return rows


@dataclass(frozen=True)
class Trained:
    """Ids, mean and range of the training ratings."""

    users: RatedIds
    items: RatedIds
    mean: float
    limits: Limits

    def clip(self, ratings: Float64Array) -> Float64Array:
        """Clip predicted ratings to the range."""
        return ratings if self.limits is None else np.clip(ratings, *self.limits)


def rated_ids(data: Ratings) -> tuple[RatedIds, RatedIds]:
    """Return the ids of users and of items."""
    return (
        RatedIds(data.users, data.n_users, np.diff(data.by_user.indptr) > 0),
        RatedIds(data.items, data.n_items, np.diff(data.by_item.indptr) > 0),
    )


class FitState(Protocol):
    """Result of a fit."""

    @property
    def users(self) -> KnownRows:
        """Users."""

    @property
    def items(self) -> KnownRows:
        """Items."""

    @property
    def mean(self) -> float:
        """Mean of the ratings."""

    @property
    def limits(self) -> Limits:
        """Range that predictions are clipped to."""


T = TypeVar("T")
State = TypeVar("State", bound=FitState)
Report = TypeVar("Report")
Callbacks = Sequence[Callable[[Report], object]]


@dataclass(frozen=True)
class EpochReport:
    """Progress of a fit after an epoch, passed to callbacks.

    >>> EpochReport(1, 30, 0.93, 0.05, 0.2).epoch
    1
    """

    epoch: int
    """Number of epochs done, from 1."""
    epochs: int
    train_rmse: float
    """RMSE of the predictions made just before each rating was learnt in this epoch."""
    step: float
    """Size of the next step."""
    seconds: float
    """Seconds since the start of the fit, without callbacks."""
    validation_rmse: float | None = None
    """RMSE on the ``validation`` ratings."""


class Progress(Generic[Report]):
    """Reports of a fit, and its time without that of the callbacks that receive them."""

    def __init__(self, callbacks: Callbacks[Report]) -> None:
        self.history: list[Report] = []
        self._callbacks = callbacks
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the fit."""
        return time.perf_counter() - self._begin

    def add(self, report: Report) -> bool:
        """Add a report and call the callbacks; return whether one of them stops the fit."""
        self.history.append(report)
        called = time.perf_counter()
        answers = [callback(report) for callback in self._callbacks]
        self._begin += time.perf_counter() - called
        return any(answers)


def parameter(default: T, check: Callable[..., object], **limits: object) -> T:
    """Return a field of an estimator, which ``check(name, value, **limits)`` checks."""
    found: T = field(default=default, metadata={"check": partial(check, **limits)})
    return found


class Estimator(Parametrised, Generic[State, Report], ABC):
    """Base class of all; subclasses are dataclasses, and their fields are the parameters."""

    rating_range: RatingRange
    duplicates: str
    state_: State
    history_: list[Report]

    def _read(self, ratings: RatingsLike, y: RatingsLike, columns: ColumnChoice) -> Ratings:
        """Read ratings, anything that `Ratings.from_any` reads, or pairs whose ratings are y."""
        if y is not None:
            ratings, columns = (*pairs_from_any(ratings, columns), y), None
        data = Ratings.from_any(ratings, columns=columns, duplicates=self.duplicates)
        if not data.n_ratings:
            raise DataError("there are no ratings to learn from")
        check_range(check_rating_range(self.rating_range), data.by_user.values)
        return data

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        for one in fields(self):  # type: ignore[arg-type]
            if "check" in one.metadata:
                one.metadata["check"](one.name, getattr(self, one.name))
        check_rating_range(self.rating_range)
        check_choice("duplicates", self.duplicates, ("last", "mean", "error"))

    def _find(self, users: IdsLike, items: IdsLike, unknown: str) -> Pairs:
        """Return the rows of pairs of ids."""
        state = self._fitted()
        known = [KnownIds(side.ids, side.find) for side in (state.users, state.items)]
        return find_pairs(users, items, known[0], known[1], unknown)

    @staticmethod
    def _answer(
        pairs: Pairs, return_known: bool, *parts: AnyArray
    ) -> AnyArray | tuple[AnyArray, ...]:
        """Return the answer of `predict`: numbers for a single pair, a tuple of several parts."""
        parts = (*parts, pairs.known) if return_known else parts
        answer = tuple(part[0] for part in parts) if pairs.is_single else parts
        return answer[0] if len(answer) == 1 else answer

    def _fitted(self) -> State:
        if not hasattr(self, "state_"):
            how = "fit or partial_fit" if hasattr(self, "partial_fit") else "fit"
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call {how} first")
        return self.state_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

    def scores(self, users: IdsLike, items: IdsLike) -> Float64Array:
        """Return the score of each of ``items`` for each of ``users``, which rankings go by.

        The table has a row for each user and a column for each item. If it does not fit in memory,
        pass fewer users at a time. Expected ratings are not clipped: they would be equal at the
        ends of the range.
        """
        state = self._fitted()
        return self._table(state.users.find(users), state.items.find(items))

    @abstractmethod
    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return the scores of rows of items for rows of users; row -1 is an unknown id."""

    @property
    def n_users_(self) -> int:
        """Number of users."""
        return self._fitted().users.n_rows

    @property
    def n_items_(self) -> int:
        """Number of items."""
        return self._fitted().items.n_rows

    @property
    def n_sweeps_(self) -> int:
        """Number of passes over the ratings in the last `fit`."""
        self._fitted()
        return len(self.history_)

    @property
    def global_mean_(self) -> float:
        """Mean of the ratings."""
        return self._fitted().mean

    @property
    def rating_range_(self) -> Limits:
        """Range that predictions are clipped to."""
        return self._fitted().limits


class Baseline(Estimator[State, EpochReport]):
    """Base class of models that learn in epochs, and predict numbers without an uncertainty."""

    def predict(
        self,
        users: IdsLike,
        items: IdsLike = None,
        *,
        return_known: bool = False,
        unknown: str = "prior",
    ) -> AnyArray | tuple[AnyArray, ...]:
        """Return the expected rating of each pair; ids as in `HeMF.predict`.

        With ``return_known`` also whether both ids are known. Unknown ids have no offset and no
        factors, or are an error with ``unknown="error"``.
        """
        return_known = check_bool("return_known", return_known)
        pairs = self._find(users, items, unknown)
        return self._answer(pairs, return_known, self._expected(pairs))

    @abstractmethod
    def _expected(self, pairs: Pairs) -> Float64Array:
        """Return the expected rating of each pair of rows."""


class Direct(Estimator[State, EpochReport]):
    """Base class of models that learn from ratings alone."""

    def fit(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        columns: ColumnChoice = None,
        callbacks: Callbacks[EpochReport] = (),
    ) -> Self:
        """Fit to ratings, anything that `Ratings.from_any` reads; see `SGD.fit`."""
        self.check_parameters()
        callbacks = check_callables("callbacks", callbacks)
        self._learn(self._read(ratings, y, columns), callbacks)
        return self

    @abstractmethod
    def _learn(self, data: Ratings, callbacks: Callbacks[EpochReport]) -> None:
        """Set ``state_`` and ``history_``."""


def drop_unrated(data: Ratings) -> Ratings:
    """Drop users and items without ratings."""
    user_rows, item_rows, values = data.triples()
    users, user_rows = drop_unrated_ids(data.users, user_rows)
    items, item_rows = drop_unrated_ids(data.items, item_rows)
    return Ratings.from_rows(users, items, (user_rows, item_rows, values))
