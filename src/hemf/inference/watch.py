"""A watch on the forecasts of a stream: whether they have become far worse than they were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hemf.inference.batch import SIDES
from hemf.model.packing import Float64

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

Wholes = npt.NDArray[np.int64]

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

    def after(self, errors: Float64, n_rows: int) -> Watch:
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


def forecast(state: OnlineState, users: Wholes, items: Wholes) -> Float64:
    """Return what is expected of ratings that are yet to be learnt, standardised."""
    left, right = (state.stores[name].mean for name in SIDES)
    return np.asarray(np.einsum("ij,ij->i", left[users], right[items]), np.float64)


def is_known(state: OnlineState, users: Wholes, items: Wholes) -> npt.NDArray[np.bool_]:
    """Whether both rows of each pair have ratings enough for a forecast to count."""
    counts = (state.counts("user", users), state.counts("item", items))
    return np.asarray(np.minimum(*counts) >= KNOWN)


def take_note(state: OnlineState, errors: Float64) -> str | None:
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
