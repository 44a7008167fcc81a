"""What the models other than HeMF share: reading ratings, and figures of a fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from hemf._checks import Parametrised
from hemf._typing import AnyArray, BoolArray, Float64Array, IdsLike, RatingsLike
from hemf.data.pairs import KnownIds, Pairs, check_ratings_in_range, find_pairs
from hemf.data.ratings import Ratings, pairs_from_any
from hemf.data.sources import ColumnChoice
from hemf.data.vocabulary import Vocabulary
from hemf.errors import NotFittedError

Limits = tuple[float, float] | None
"""Range that predictions are clipped to."""
RatingRange = str | tuple[float, float] | None


class RatedIds(NamedTuple):
    """Ids of one side, and which of them have ratings; the others are unknown."""

    ids: Vocabulary
    rated: BoolArray

    @property
    def n_rows(self) -> int:
        """Number of ids."""
        return self.rated.size

    def find(self, ids: IdsLike) -> AnyArray:
        """Return the row of each id, -1 for unknown ids."""
        rows = self.ids.rows(ids)
        rows[rows >= self.rated.size] = -1  # ids may have been added since
        rows[~self.rated[rows]] = -1
        return rows


@dataclass(frozen=True)
class Trained:
    """Ids, mean and range of the training ratings."""

    users: RatedIds
    items: RatedIds
    mean: float
    limits: Limits

    def clip(self, mean: Float64Array) -> Float64Array:
        """Return ratings given their differences from the mean."""
        mean = self.mean + mean
        return mean if self.limits is None else np.clip(mean, *self.limits)


def rated_ids(data: Ratings) -> tuple[RatedIds, RatedIds]:
    """Return the ids of users and of items."""
    return (
        RatedIds(data.users, np.diff(data.by_user.indptr) > 0),
        RatedIds(data.items, np.diff(data.by_item.indptr) > 0),
    )


class Rows(Protocol):
    """Ids of one side and their rows."""

    @property
    def ids(self) -> Vocabulary:
        """Ids; later ones may have no row."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    def find(self, ids: IdsLike) -> AnyArray:
        """Return the row of each id, -1 for unknown ids."""


class FitState(Protocol):
    """Result of a fit."""

    @property
    def users(self) -> Rows:
        """Users."""

    @property
    def items(self) -> Rows:
        """Items."""

    @property
    def mean(self) -> float:
        """Mean of the ratings."""

    @property
    def limits(self) -> Limits:
        """Range that predictions are clipped to."""


State = TypeVar("State", bound=FitState)
Report = TypeVar("Report")


class Estimator(Parametrised, Generic[State, Report]):
    """Base class; subclasses declare their parameters as fields of a dataclass."""

    rating_range: RatingRange
    duplicates: str
    state_: State
    history_: list[Report]

    def _read(self, ratings: RatingsLike, y: RatingsLike, columns: ColumnChoice) -> Ratings:
        """Read ratings, anything that `Ratings.from_any` reads, or pairs whose ratings are y."""
        if y is not None:
            ratings, columns = (*pairs_from_any(ratings, columns), y), None
        data = Ratings.from_any(ratings, columns=columns, duplicates=self.duplicates)
        check_ratings_in_range(data.by_user.values, self.rating_range)
        return data

    def _find(self, users: IdsLike, items: IdsLike, unknown: str) -> Pairs:
        """Return the rows of pairs of ids."""
        state = self._fitted()
        known = [KnownIds(side.ids, side.find) for side in (state.users, state.items)]
        return find_pairs(users, items, known[0], known[1], unknown)

    @staticmethod
    def _answer(pairs: Pairs, *parts: AnyArray) -> AnyArray | tuple[AnyArray, ...]:
        """Return the answer of `predict`: numbers for a single pair, a tuple of several parts."""
        answer = tuple(part[0] for part in parts) if pairs.is_single else parts
        return answer[0] if len(answer) == 1 else answer

    def _fitted(self) -> State:
        if not hasattr(self, "state_"):
            how = "fit or partial_fit" if hasattr(self, "partial_fit") else "fit"
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call {how} first")
        return self.state_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

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


class Clock:
    """Seconds since the start of a fit, without the time that callbacks take."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._begin

    def call(self, callbacks: Iterable[Callable[[Report], object]], report: Report) -> bool:
        """Call the callbacks; return whether one of them returned something true."""
        called = time.perf_counter()
        answers = [callback(report) for callback in callbacks]
        self._begin += time.perf_counter() - called
        return any(answers)


Callbacks = Sequence[Callable[[Report], object]]
