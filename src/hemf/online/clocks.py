"""Observations of a stream: when steps are due, outliers, and the error of forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hemf._typing import Array, Float64Array

EVERY = {
    "communities": 0.05,
    "prior": 1.0,
    "search": 1.0,
    "rotation": 4.0,
    "covariance": 1.0,
    "moods": 1.0,
    "averages": 1.0,
}
"""Refreshes for each row of a side between two runs of a step.

Steps over all rows of a side are due after about as many refreshes, so that their cost for each
rating does not depend on the number of rows.
"""
MIN_REFRESHES = {"search": 500}
FIRST_RESTART = 200
"""Ratings after which a stream that started without a fit restarts for the first time."""
MIN_RATINGS = 100  # learnt before one can be an outlier
FAR = 2.0  # times the range of the others
MIN_WINDOW = 1000  # forecasts that the recent error is an average of, at least
FOR_EACH_ROW = 4  # or so many for each row, if these are more
MAX_ERROR = 25.0  # times the average that one squared error counts for: it may be a typing error
WORSE = 2.0  # times the lowest average that squared errors had


class Refreshed(Protocol):
    """Rows that count how often one of them was refreshed."""

    n_rows: int

    @property
    def refreshes(self) -> float:
        """How many rows have been refreshed so far."""


@dataclass
class Clocks:
    """Time, and when each step was last done or is next due.

    The time of a side is the number of its refreshes. Steps that are not in `EVERY` are scheduled
    by the number of ratings learnt; those never scheduled are never due.

    >>> from types import SimpleNamespace
    >>> users = SimpleNamespace(n_rows=100, refreshes=150.0)
    >>> clocks = Clocks({"user": users}, seen=7, due_at={("widen", ""): 8})
    >>> clocks.due("prior", "user"), clocks.due("search", "user"), clocks.due("widen")
    (True, False, False)
    >>> clocks.done("prior", "user")
    >>> clocks.due("prior", "user")
    False
    """

    stores: Mapping[str, Refreshed]
    seen: int = 0
    """Ratings learnt, repetitions included."""
    last: dict[tuple[str, str], float] = field(default_factory=dict)
    """Refreshes of the side when a step was last done, by step and side."""
    due_at: dict[tuple[str, str], float] = field(
        default_factory=lambda: {("restart", ""): FIRST_RESTART}
    )
    """Ratings learnt when a step is next due, by step and side."""
    ratings: dict[str, int] = field(default_factory=dict)
    """Ratings when a side's prior and moods were last learnt, and directions last opened."""

    def due(self, event: str, side: str = "") -> bool:
        """Whether it is time for a step."""
        if event not in EVERY:
            return self.seen >= self.due_at.get((event, side), float("inf"))
        rows = self.stores[side]
        needed = max(EVERY[event] * rows.n_rows, MIN_REFRESHES.get(event, 0))
        return rows.refreshes - self.last_done(event, side) >= needed and rows.n_rows > 0

    def last_done(self, event: str, side: str) -> float:
        """Return the refreshes of a side when a step was last done."""
        return self.last.get((event, side), 0.0)

    def done(self, event: str, side: str) -> None:
        """Record that a step of a side was done now."""
        self.last[event, side] = self.stores[side].refreshes

    def schedule(self, event: str, at: float | None, side: str = "") -> None:
        """Schedule a step at a number of ratings learnt; None means never."""
        if at is None:
            self.due_at.pop((event, side), None)
        else:
            self.due_at[event, side] = at

    def copy(self, stores: Mapping[str, Refreshed]) -> Clocks:
        """Return a copy that reads the time of other rows."""
        counters = {name: getattr(self, name).copy() for name in ("last", "due_at", "ratings")}
        return replace(self, stores=stores, **counters)


# -- outliers and forecasts ------------------------------------------------------------------------


@dataclass(frozen=True)
class ObservedRange:
    """Smallest and largest rating on record, and how many ratings are equal to each."""

    low: float
    n_low: int
    high: float
    n_high: int

    @classmethod
    def of(cls, values: Array, codes: npt.NDArray[np.integer[Any]]) -> ObservedRange | None:
        """Range of ratings given by their codes; None if there are none.

        >>> ObservedRange.of(np.array([5.0, 1.0, 9.0]), np.array([1, 0, 1]))
        ObservedRange(low=1.0, n_low=2, high=5.0, n_high=1)
        """
        counts = np.bincount(codes, minlength=values.size)
        used = np.flatnonzero(counts)
        if not used.size:
            return None
        low, high = used[values[used].argmin()], used[values[used].argmax()]
        return cls(float(values[low]), int(counts[low]), float(values[high]), int(counts[high]))

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest rating."""
        return self.low, self.high

    def changed(self, added: Float64Array, removed: Float64Array) -> ObservedRange | None:
        """Range after ratings were added and removed; None if it has to be found again.

        >>> stars = ObservedRange(low=1.0, n_low=2, high=5.0, n_high=1)
        >>> stars.changed(np.array([9.0]), np.array([1.0]))
        ObservedRange(low=1.0, n_low=1, high=9.0, n_high=1)
        >>> stars.changed(np.array([3.0]), np.array([5.0])) is None
        True
        """
        low, high = self.low, self.high
        if added.size:
            low, high = min(low, float(added.min())), max(high, float(added.max()))
        counts = []
        for end, known, n_known in ((low, self.low, self.n_low), (high, self.high, self.n_high)):
            n = int((added == end).sum()) + (n_known if end == known else 0)
            n -= int((removed == end).sum())
            if n <= 0:
                return None
            counts.append(n)
        return ObservedRange(low, counts[0], high, counts[1])


@dataclass(frozen=True)
class Outlier:
    """The earliest rating on record that is far outside all others."""

    others: tuple[float, float]
    """Range of the others."""
    refreshes: dict[str, float]
    """Refreshes of each side when it came."""
    is_first: bool
    """Whether its pair had not been rated before."""


def is_far(others: tuple[float, float], ends: tuple[float, float], n_seen: int) -> bool:
    """Whether a range is so much wider than that of the others that an end is an outlier.

    >>> is_far((1, 5), (1, 1000), 500), is_far((1, 5), (0, 6), 500), is_far((1, 5), (1, 1000), 2)
    (True, False, False)
    """
    width = others[1] - others[0]
    return n_seen >= MIN_RATINGS and ends[1] - ends[0] > FAR * width > 0.0


@dataclass(frozen=True)
class Watch:
    """Running mean of the squared errors of forecasts.

    >>> watch = Watch()
    >>> for error in [1.0] * 20 + [4.0] * 20:
    ...     watch = watch.after(np.full(100, error), 10)
    >>> watch.is_worse, round(watch.best, 2), watch.recent > 2.0
    (True, 1.0, True)
    """

    total: float = 0.0
    """Weighted sum of the errors; older ones count less."""
    weight: float = 0.0
    """Sum of the weights."""
    seen: int = 0
    best: float = np.inf
    """Lowest recent error so far."""
    has_warned: bool = False

    @property
    def recent(self) -> float:
        """Mean of the recent errors."""
        return self.total / self.weight if self.weight > 0.0 else np.nan

    @property
    def is_worse(self) -> bool:
        """Whether the recent error is far above the lowest so far."""
        return self.recent > WORSE * self.best

    def after(self, errors: Float64Array, n_rows: int) -> Watch:
        """Return the watch after these squared errors; a model with more rows averages longer."""
        if not errors.size:
            return self
        window = max(MIN_WINDOW, FOR_EACH_ROW * n_rows)
        has_window = self.seen >= window
        if has_window:
            errors = np.minimum(errors, MAX_ERROR * self.recent)
        fade = window / (window + errors.size)
        total = fade * self.total + float(errors.sum())
        weight = fade * self.weight + errors.size
        best = min(self.best, total / weight) if has_window else self.best
        return Watch(total, weight, self.seen + errors.size, best, self.has_warned)

    @property
    def warning(self) -> str:
        """Text of the warning that forecasts have become worse."""
        return (
            f"forecasts of new ratings have become worse: their root mean squared error is "
            f"{self.recent**0.5:.3g} now and was {self.best**0.5:.3g} at best; if the ratings "
            "or ids now mean something else (another scale, say), learn them with a new model; if "
            "tastes have changed, set forgetting below 1; otherwise fit a new model to ratings on "
            "file"
        )
