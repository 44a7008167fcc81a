"""Undo of what a call has changed of a state that learns online.

Learning changes large arrays in place. Before something is changed, a function that puts it back
is added to the journal: `RowStore.keep` and others do so. To undo is to call these functions, the
latest first.

Each of them writes values, it adds or subtracts nothing. So to call them all once more, whatever
part of them was called before, has the same result: an undo that was cut short by an exception is
finished by beginning it again. For the same reason something may be kept twice: the earlier value
is written last.

What is added to the journal before a change is made is undone even if the change was never made,
or only a part of it.

Rows and lists are copied to a `Buffer`. One that a call no longer needs is used again by a later
call, as new memory is far slower to write to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Undo = Callable[[], None]

LEAST_BUFFER = 2**13  # numbers of 64 bits
MOST_SPARE = 2**22  # the same, of a buffer that is kept for later calls
N_SPARE = 2  # buffers that are kept


Buffer = npt.NDArray[np.int64]
"""Memory for copies; the first number says how many are in use: `hemf.kernels.undo`."""

_spare: list[Buffer] = []
_stamps = itertools.count(1)


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
        self.stamp = next(_stamps)
        """Number of its own that rows get which are kept: `hemf.kernels.undo`."""
        self._buffer: Buffer | None = None
        self._was_undone = False

    def room(self, size: int) -> tuple[Buffer, int]:
        """Return a buffer with room for a copy of this size, and where that is: begun, and empty.

        >>> buffer, at = Journal().room(3)
        >>> at, int(buffer[at])
        (1, 0)
        """
        buffer = self._buffer
        if buffer is None:
            buffer = self._new_buffer(size, 0)
        at: int = buffer.item(0)
        if at + size > buffer.size:
            buffer, at = self._new_buffer(size, 2 * buffer.size), 1
        buffer[at] = 0
        return buffer, at

    def _new_buffer(self, size: int, least: int) -> Buffer:
        """Go on in another buffer; whoever puts things back holds the one before."""
        buffer = None
        with suppress(IndexError):
            buffer = _spare.pop()
        if buffer is None or buffer.size < max(size + 1, least):
            buffer = np.empty(max(size + 1, least, LEAST_BUFFER), np.int64)
        buffer[0] = 1
        self._buffer = buffer
        return buffer

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
        self._forget_kept()
        return len(self._undo)

    def _forget_kept(self) -> None:
        self._whole, self.stamp = {}, next(_stamps)

    def close(self) -> None:
        """Let everything stay as it is now."""
        self.is_open = False
        self._undo, self._whole = [], {}
        buffer = vars(self).pop("_buffer", None)  # in one step: it must not be given back twice
        # An undo that was interrupted by another one, in a signal handler, may still be reading.
        is_free = buffer is not None and not self._was_undone
        if is_free and buffer.size <= MOST_SPARE and len(_spare) < N_SPARE:
            _spare.append(buffer)

    def undo(self, mark: int = 0) -> None:
        """Put everything back as it was at the beginning, or at a mark."""
        self._was_undone = True
        for undo in reversed(self._undo[mark:]):
            undo()
        self._forget_kept()
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
    return partial(_restore_all, [(mapping, mapping.copy()) for mapping in mappings])


def _restore_all(kept: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for mapping, before in kept:
        restore(mapping, before)


def content_of(*arrays: Any) -> Undo:
    """Return a function that gives arrays the values that they have now."""
    return partial(_write_all, [(array, array.copy()) for array in arrays])


def _write_all(kept: list[tuple[Any, Any]]) -> None:
    for array, before in kept:
        array[...] = before


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
    return partial(setattr, source, "state", source.state)
