"""Batches that ``hemf update`` has applied to a model, so that none is applied twice by mistake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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


def restore(forms: Iterable[Iterable[Any]]) -> tuple[Batch, ...]:
    """Make batches again of what a model file says; ValueError if it cannot be."""
    batches = tuple(Batch(*form) for form in forms)
    for batch in batches:
        if not (type(batch.id) is type(batch.digest) is str and type(batch.ratings) is int):
            raise ValueError("the batches that were applied are damaged")
    return batches[-KEPT:]
