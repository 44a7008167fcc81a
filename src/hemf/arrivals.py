"""What arrives: ids that are numbered as they come, ratings that are in proportion."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError, OutlierWarning, warn_caller
from hemf.inference.online import OnlineState
from hemf.inference.outliers import is_far
from hemf.reading.identifiers import CodedIds, as_array
from hemf.reading.values import Values
from hemf.vocabulary import Vocabulary

Wholes = npt.NDArray[np.int64]
FARTHEST = 1e9  # standard deviations


class Arrivals:
    """Ids of a stream, which get their rows when it is their turn."""

    def __init__(self, ids: Vocabulary, coded: CodedIds) -> None:
        self._ids = ids
        self._coded = coded
        self._rows = np.empty(0, np.int64)  # of the distinct ids that have come so far

    def rows(self, state: OnlineState, name: str, part: slice) -> Wholes:
        """Return the rows of a part of the stream, the parts being asked for in order."""
        codes = self._coded.codes[part]
        come = max(self._rows.size, int(codes.max()) + 1)
        new = as_array(self._coded.distinct)[self._rows.size : come]
        if len(new):
            self._rows = np.concatenate([self._rows, self._ids.add(new)])
            state.add_rows(name, len(self._ids) - state.stores[name].n_rows)
        return np.asarray(self._rows[codes])


def check_proportion(state: OnlineState, values: Values) -> None:
    """Refuse ratings so far from the others that squares of them would overflow."""
    far = np.abs(values.astype(np.float64) - state.centre) > FARTHEST * state.unit
    if far.any():
        row = int(far.argmax())
        raise DataError(
            f"rating {values[row]:g} at row {row} is out of all proportion to the others, which "
            f"are about {state.centre:g} ± {state.unit:g}",
            value=float(values[row]),
            row=row,
        )


def warn_far(
    state: OnlineState, known: tuple[float, float] | None, values: npt.NDArray[np.float32]
) -> None:
    """Warn of a rating far outside the range of those learnt before.

    ``known`` is that range where it was observed, None where it was declared or not wanted.
    """
    if known is None or not values.size:
        return
    low, high = known
    outside = np.maximum(low - values.astype(np.float64), values - high)
    row = int(outside.argmax())
    value = float(values[row])
    if is_far((low, high), (min(low, value), max(high, value)), state.seen):
        warn_caller(
            f"rating {value:g} at row {row} is far outside the ratings learnt before, which are "
            f"from {low:g} to {high:g}; if it is a mistake, learn the pair again with the right "
            f"rating, and declare rating_range=({low:g}, {high:g}) to have such ratings refused",
            OutlierWarning,
        )
