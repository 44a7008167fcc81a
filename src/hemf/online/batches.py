"""Batches that ``hemf update`` has applied to a model, so that none is applied twice by mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
