"""Ratings far outside all others, typing errors above all, and their correction.

While such a rating is on record it moves the rows it belongs to, the noise scales and, through
these, every row that is refreshed in the meantime. A row and its noise scale are estimated in
turn, so one refresh after the correction does not bring them back: the row is still solved with
the noise scale of the outlier. So the corrected rows, and all rows refreshed since the outlier
came, are refreshed until they no longer move.

This needs every rating on record. Without a full history the sums keep what the outlier added to
them while it was there: see docs/online.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.batch.empirical import learn_prior
from hemf.online import updates

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


MIN_RATINGS = 100  # learnt before one can be far outside of them
FAR = 2.0  # times the range of the others
MAX_PASSES = 20
TOLERANCE = 1e-4  # largest change of a row's mean, standardised, at which passes end


@dataclass(frozen=True)
class ObservedRange:
    """Smallest and largest rating on record, and how many ratings are equal to each."""

    low: float
    n_low: int
    high: float
    n_high: int

    @classmethod
    def of(
        cls, values: npt.NDArray[np.floating[Any]], codes: npt.NDArray[Any]
    ) -> ObservedRange | None:
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
        """Range after ratings were added and removed; None if all have to be looked at.

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
    """When the earliest rating came that lies far outside all others on record."""

    others: tuple[float, float]
    """Range of the others."""
    refreshes: dict[str, float]
    """Refreshes that each side had had by then."""


def is_far(others: tuple[float, float], ends: tuple[float, float], n_seen: int) -> bool:
    """Whether a range is so much wider than that of the others that its ends are outliers.

    >>> is_far((1, 5), (1, 1000), 500), is_far((1, 5), (0, 6), 500), is_far((1, 5), (1, 1000), 2)
    (True, False, False)
    """
    width = others[1] - others[0]
    return n_seen >= MIN_RATINGS and ends[1] - ends[0] > FAR * width > 0.0


def on_record(state: OnlineState) -> ObservedRange | None:
    """Range of all ratings in the history."""
    return ObservedRange.of(state.book.values, state.stores["user"].history.to_rows()[2])


def refreshes(state: OnlineState) -> dict[str, float]:
    """Return the number of refreshes that each side has had so far."""
    return {name: float(state.stores[name].totals[2]) for name in SIDES}


def observe(
    state: OnlineState, added: Int64Array, removed: Int64Array, begun: dict[str, float]
) -> bool:
    """Keep the observed range up to date; return whether an outlier was taken back.

    ``added`` and ``removed`` are codes of ratings, ``begun`` the refreshes that each side had had
    before. Without a full history nothing is done.
    """
    if not state.is_complete:
        return False
    values, before = state.book.values, state.observed
    after = None
    if before is not None:
        after = before.changed(values[added].astype(np.float64), values[removed].astype(np.float64))
    state.observed = after or on_record(state)
    after = state.observed
    if before is None or after is None:
        return False
    if state.outlier is None and is_far(before.ends, after.ends, state.seen):
        state.outlier = Outlier(before.ends, begun)
    return is_far(after.ends, before.ends, state.seen)


def settle(state: OnlineState, rows: dict[str, Int64Array]) -> None:
    """Refresh these rows, and all refreshed since the outlier came, until they do not move."""
    outlier, observed = state.outlier, state.observed
    if outlier is not None:
        for name in SIDES:
            store = state.stores[name]
            since = np.flatnonzero(store.touched > outlier.refreshes[name])
            rows = {**rows, name: np.union1d(rows[name], since)}
    for _ in range(MAX_PASSES):
        moved = 0.0
        for name in SIDES:
            side, store = state.sides[name], state.stores[name]
            before = store.mean[rows[name]]
            state.refresh(name, rows[name], learn=False)
            moved = max(moved, float(np.abs(store.mean[rows[name]] - before).max(initial=0.0)))
            learnt = outlier is not None and state.refreshed[name] > outlier.refreshes[name]
            if learnt and state.options.evb is not None:
                side.refresh(store.statistics)
                side.prior = learn_prior(
                    side.prior, side.communities, evb=state.options.evb, structure=True, scale=True
                )
            side.refresh(store.statistics)
        updates.learn_noise(state, "item", None)
        if moved < TOLERANCE:
            break
    if outlier and observed and not is_far(outlier.others, observed.ends, state.seen):
        state.outlier = None


# ------------------------------------------------------------------------------------------------
# A watch on the forecasts of a stream: whether they have become far worse than they were.


SHORTEST = 1000  # forecasts that the recent error is an average of, at least
FOR_EACH_ROW = 4  # or so many for each row, if these are more
KNOWN = 5  # ratings that a row must have for a forecast of it to count
MOST_ERROR = 25.0  # times the average that one squared error counts for: it may be a typing error
WORSE = 2.0  # times the lowest average that squared errors had


@dataclass(frozen=True)
class Watch:
    """Squared errors of forecasts.

    >>> watch = Watch()
    >>> for error in [1.0] * 20 + [4.0] * 20:
    ...     watch = watch.after(np.full(100, error), 10)
    >>> watch.is_worse, round(watch.best, 2), watch.recent > 2.0
    (True, 1.0, True)
    """

    total: float = 0.0
    """Of the recent errors, the older the less they count."""
    weight: float = 0.0
    """How many they are worth."""
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
        """Return the watch after these squared errors, of a model with so many rows."""
        if not errors.size:
            return self
        window = max(SHORTEST, FOR_EACH_ROW * n_rows)
        is_settled = self.seen >= window
        if is_settled:
            errors = np.minimum(errors, MOST_ERROR * self.recent)
        fade = window / (window + errors.size)
        total = fade * self.total + float(errors.sum())
        weight = fade * self.weight + errors.size
        best = min(self.best, total / weight) if is_settled else self.best
        return Watch(total, weight, self.seen + errors.size, best, self.has_warned)


def forecast(state: OnlineState, users: Int64Array, items: Int64Array) -> Float64Array:
    """Return what is expected of ratings that are yet to be learnt, standardised."""
    left, right = (state.stores[name].mean for name in SIDES)
    return np.asarray(np.einsum("ij,ij->i", left[users], right[items]), np.float64)


def is_known(state: OnlineState, users: Int64Array, items: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether both rows of each pair have ratings enough for a forecast to count."""
    counts = (state.counts("user", users), state.counts("item", items))
    return np.asarray(np.minimum(*counts) >= KNOWN)


def take_note(state: OnlineState, errors: Float64Array) -> str | None:
    """Let a state's watch see squared errors of forecasts; return a warning if one is due.

    A warning is due once, when errors have become far larger than they were.
    """
    n_rows = sum(store.n_rows for store in state.stores.values())
    watch = state.watch = state.watch.after(errors, n_rows)
    if watch.has_warned or not watch.is_worse:
        return None
    state.watch = replace(watch, has_warned=True)
    return (
        f"forecasts of new ratings have become worse: their root mean squared error is "
        f"{watch.recent**0.5:.3g} of late and was {watch.best**0.5:.3g} at best; if the ratings or "
        "ids now mean something else (another scale, say), learn them with a new model; if tastes "
        "have changed, set forgetting below 1; otherwise fit a new model to ratings on file"
    )
