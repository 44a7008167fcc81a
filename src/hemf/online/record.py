"""Results of learning: the whole fit, and the batches applied."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import NamedTuple

from hemf.batch.callbacks import SweepReport
from hemf.model.state import FittedModel
from hemf.online.state import Learner

KEPT = 1000
"""How many batches a model remembers; the oldest are forgotten, and would be applied again."""


class Batch(NamedTuple):
    """A batch that was applied."""

    id: str
    digest: str
    """Of the batch's content, which is its id unless another was given."""
    ratings: int
    """How many it held."""


def find(batches: Sequence[Batch], id: str) -> Batch | None:
    """Return the last batch with this id, if it is remembered.

    >>> find([Batch("monday", "ab12", 3)], "monday").ratings
    3
    >>> find([], "monday") is None
    True
    """
    return next((batch for batch in reversed(batches) if batch.id == id), None)


def remember(batches: Sequence[Batch], new: Batch) -> tuple[Batch, ...]:
    """Return the batches with one more, the oldest left out where there are too many."""
    return (*batches, new)[-KEPT:]


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything that an estimator has after learning."""

    model: FittedModel
    history: list[SweepReport]
    """Reports of the sweeps of the last batch fit."""
    converged: bool
    """Whether that fit has converged."""
    batches: tuple[Batch, ...] = ()
    """The last batches that ``hemf update`` has applied, oldest first."""
    learner: Learner | None = None
    """Online learner; None after a batch fit."""
    prepared: Learner | None = None
    """Learner for the first `partial_fit`, if the fit has prepared one."""

    def __deepcopy__(self, memo: dict[int, object]) -> Fit:
        kept = {own.name: getattr(self, own.name) for own in fields(self)} | {"prepared": None}
        return Fit(**{name: deepcopy(value, memo) for name, value in kept.items()})
