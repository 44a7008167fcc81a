"""Undo of what a call has changed of a state that learns online.

Learning changes large arrays in place. Before something is changed, a function that puts it back
is added to the journal: `RowStore.keep`, `History.keep` and others return such functions. To undo
is to call them, the latest first.

Each of them writes values, it adds or subtracts nothing. So to call them all once more, whatever
part of them was called before, has the same result: an undo that was cut short by an exception is
finished by beginning it again. For the same reason something may be kept twice: the earlier value
is written last.

What is added to the journal before a change is made is undone even if the change was never made,
or only a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Undo = Callable[[], None]


class Journal:
    """Functions that put things back, in the order in which the things were changed.

    >>> journal, numbers = Journal(), {"a": 1}
    >>> journal.add(mappings_of([numbers]))
    >>> numbers["b"] = 2
    >>> journal.undo()
    >>> numbers
    {'a': 1}
    """

    def __init__(self) -> None:
        self.is_open = True
        """Whether what changes is to be kept."""
        self._undo: list[Undo] = []
        self._whole: dict[Any, Any] = {}

    def add(self, undo: Undo) -> None:
        """Add a function that puts something back; call this before it is changed."""
        self._undo.append(undo)

    def once(self, key: Any, owner: Any) -> bool:
        """Whether it is the first time since the last `mark` that this is asked of an owner."""
        key = id(owner), key
        if key in self._whole:
            return False
        self._whole[key] = owner  # alive, so that no other object can have its id
        return True

    def has(self, key: Any, owner: Any) -> bool:
        """Whether `once` was asked this since the last `mark`."""
        return (id(owner), key) in self._whole

    def mark(self) -> int:
        """Return a place to go back to; what changes from now on is kept once more."""
        self._whole = {}
        return len(self._undo)

    def close(self) -> None:
        """Let everything stay as it is now."""
        self.is_open = False
        self._undo, self._whole = [], {}

    def undo(self, mark: int = 0) -> None:
        """Put everything back as it was at the beginning, or at a mark."""
        for undo in reversed(self._undo[mark:]):
            undo()
        self._whole = {}
        del self._undo[mark:]


def restore(mapping: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Give a dictionary the content that it had.

    >>> numbers = {"a": 1, "b": 2}
    >>> restore(numbers, {"a": 0})
    >>> numbers
    {'a': 0}
    """
    mapping.update(before)
    if len(mapping) > len(before):
        for key in [*mapping]:
            if key not in before:
                mapping.pop(key, None)


def mappings_of(mappings: list[dict[Any, Any]]) -> Undo:
    """Return a function that gives dictionaries the content that they have now."""
    kept = [mapping.copy() for mapping in mappings]

    def undo() -> None:
        for mapping, before in zip(mappings, kept, strict=True):
            restore(mapping, before)

    return undo


def content_of(*arrays: Any) -> Undo:
    """Return a function that gives arrays the values that they have now."""
    kept = [(array, array.copy()) for array in arrays]

    def undo() -> None:
        for array, before in kept:
            array[...] = before

    return undo


def rows_of(arrays: list[Any], rows: Any = None) -> Undo:
    """Return a function that gives these rows of arrays the values that they have now."""
    if rows is None:
        return content_of(*arrays)
    if rows.size == 1:  # in a third of the time
        rows = int(rows[0])
        kept = [array[rows].copy() if array.ndim > 1 else array[rows] for array in arrays]
    else:
        rows = rows.copy()
        kept = [array.take(rows, axis=0) for array in arrays]

    def undo() -> None:
        for array, before in zip(arrays, kept, strict=True):
            array[rows] = before

    return undo


def generator_state(rng: np.random.Generator) -> Undo:
    """Return a function that lets a generator draw again what it will draw from now on."""
    source = rng.bit_generator
    before = source.state

    def undo() -> None:
        source.state = before

    return undo
