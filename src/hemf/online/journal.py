"""Undo of the changes that a call makes to an online state.

Learning changes large arrays in place. Before a change, a function that restores the old values is
added to the journal, for example by `RowStore.backup`. To undo is to call them, the latest first.

The functions write values, and neither add nor subtract. So calling them again has the same result:
an undo that an exception interrupts can be started again. The same thing may be copied twice, as
the earlier value is written last. A change that was not made, or only in part, can be undone too.

Rows and lists are copied to a `Buffer`. Buffers are reused by later calls, as new memory is far
slower to write to.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, GeneratorType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from hemf.errors import BusyError

Undo = Callable[[], None]

MIN_BUFFER = 2**13  # numbers of 64 bits
MAX_SPARE = 2**22  # the same, of a buffer that is kept for later calls
N_SPARE = 2  # buffers that are kept
MAX_WAIT = 2.0  # seconds that a fork waits for calls of other threads


Buffer = npt.NDArray[np.int64]
"""Memory for copies; the first number says how many are in use: `hemf.kernels.undo`."""

_spare: list[Buffer] = []
_stamps = itertools.count(1)


class Journal:
    """Undo functions, in the order of the changes.

    >>> journal, numbers = Journal(), {"a": 1}
    >>> journal.add(mappings_of([numbers]))
    >>> numbers["b"] = 2
    >>> journal.undo()
    >>> numbers
    {'a': 1}
    """

    def __init__(self) -> None:
        self.is_open = True
        """Whether changes are recorded."""
        self._undo: list[Undo] = []
        self._whole: dict[Any, Any] = {}
        self.stamp = next(_stamps)
        """Unique number that marks rows which were copied: `hemf.kernels.undo`."""
        self._buffer: Buffer | None = None
        self._was_undone = False

    def room(self, size: int) -> tuple[Buffer, int]:
        """Return a buffer with room for a copy of this size, and the position of an empty copy.

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
        """Continue in another buffer; undo functions keep a reference to the old one."""
        buffer = None
        with suppress(IndexError):
            buffer = _spare.pop()
        if buffer is None or buffer.size < max(size + 1, least):
            buffer = np.empty(max(size + 1, least, MIN_BUFFER), np.int64)
        buffer[0] = 1
        self._buffer = buffer
        return buffer

    def add(self, undo: Undo) -> None:
        """Add a function that undoes a change; call this before the change."""
        self._undo.append(undo)

    def once(self, key: Any, owner: Any) -> bool:
        """Whether this is the first call with this key and owner since the last `mark`."""
        key = id(owner), key
        if key in self._whole:
            return False
        self._whole[key] = owner  # alive, so that no other object can have its id
        return True

    def has(self, key: Any, owner: Any) -> bool:
        """Whether `once` was called with this key and owner since the last `mark`."""
        return (id(owner), key) in self._whole

    def mark(self) -> int:
        """Return a place to go back to; later changes are recorded again."""
        self._forget_copies()
        return len(self._undo)

    def _forget_copies(self) -> None:
        self._whole, self.stamp = {}, next(_stamps)

    def close(self) -> None:
        """Accept all changes; nothing can be undone after this."""
        self.is_open = False
        self._undo, self._whole = [], {}
        buffer = vars(self).pop("_buffer", None)  # in one step: it must not be given back twice
        # An undo that was interrupted by another one, in a signal handler, may still be reading.
        is_free = buffer is not None and not self._was_undone
        if is_free and buffer.size <= MAX_SPARE and len(_spare) < N_SPARE:
            _spare.append(buffer)

    def undo(self, mark: int = 0) -> None:
        """Restore everything as it was at the beginning, or at a mark."""
        self._was_undone = True
        for undo in reversed(self._undo[mark:]):
            undo()
        self._forget_copies()
        del self._undo[mark:]


def restore(mapping: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Restore the content of a dictionary.

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
    """Return a function that restores the present content of dictionaries."""
    return partial(_restore_all, [(mapping, mapping.copy()) for mapping in mappings])


def _restore_all(kept: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for mapping, before in kept:
        restore(mapping, before)


def content_of(*arrays: Any) -> Undo:
    """Return a function that restores the present values of arrays."""
    return partial(_write_all, [(array, array.copy()) for array in arrays])


def _write_all(kept: list[tuple[Any, Any]]) -> None:
    for array, before in kept:
        array[...] = before


def rows_of(arrays: list[Any], rows: Any = None) -> Undo:
    """Return a function that restores the present values of these rows of arrays."""
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
    """Return a function that restores the present state of a generator."""
    source = rng.bit_generator
    return partial(setattr, source, "state", source.state)


# ------------------------------------------------------------------------------------------------
# Calls that change a model wholly or not at all, whatever exception is raised, and wherever.
#
# An exception may come from another thread or from a signal handler, between any two steps of the
# interpreter: in ``finally`` blocks, in functions that leave a context, in the code that undoes a
# call. So nothing here depends on one step following another.
#
# - A call first makes itself the pending one of the holder. From then on it is either still running
#   or was interrupted.
# - It records what it is about to change in a `Journal`, and does not touch the holder. Its last
#   step, one assignment, replaces the content and clears the pending call: before it the content is
#   the old one, with changes that will be undone, after it the new one.
# - An interrupted call is undone by the next reader of the content: as a rule by the call itself,
#   on its way out. An undo that is interrupted stays pending, and is started again by the next.
# - Whether a call is running must not be a flag, which an exception could leave at the wrong value.
#   The interpreter knows it of generators, so a call is one: it runs from its only ``next`` until
#   it returns or raises. Therefore a signal handler that reads the model in the middle of a call,
#   in the same thread, does not undo it.
#
# Other threads wait for the holder's lock, which is taken by ``with`` and is part of the
# interpreter: between taking it and entering the block, and between leaving the block and releasing
# it, there is no step where CPython looks for signals or exceptions of other threads. So it cannot
# stay locked.
#
# A forked process has only the thread that forked. A call of another thread would be interrupted
# there, with whatever locks it holds, those of NumPy and BLAS among them. So a fork waits for such
# calls. A fit may take longer than `MAX_WAIT`: then the new process gets a new lock, and undoes the
# call.

Content = TypeVar("Content")
Work = Callable[[Journal], Content]
"""Changes arrays, recording them in the journal before, and returns the new content."""


class ModelHolder(Generic[Content]):
    """Holds what an estimator has learnt; a call replaces it wholly or not at all."""

    def __init__(self, content: Content | None = None) -> None:
        self.lock = threading.RLock()
        """Lock guarding concurrent predict and partial_fit."""
        self.state: tuple[Content | None, Call[Content] | None] = (content, None)
        """The content, and the call that is changing it, if any."""
        _holders.add(self)

    @property
    def content(self) -> Content | None:
        """The content, None before a fit; an interrupted call is undone first."""
        if self.state[1] is not None:
            self.undo_interrupted()
        return self.state[0]

    def replace(self, content: Content) -> None:
        """Replace the content, made elsewhere; the lock must be held."""
        self.undo_interrupted()
        self.state = content, None

    def change(self, work: Work[Content]) -> None:
        """Replace the content by what work returns; if it raises, everything is undone."""
        call = Call(self, work)
        try:
            call.run()
        finally:
            self.undo_interrupted()
            if self.state[1] is not call:
                call.journal.close()

    def undo_interrupted(self) -> None:
        """Undo an interrupted call, if there is one; wait for one that runs in another thread."""
        if self.state[1] is None:
            return
        with self.lock:
            pending = self.state[1]
            if pending is not None and not pending.is_running:
                pending.journal.undo()
                self.state = self.state[0], None
                pending.journal.close()

    def begin(self, call: Call[Content]) -> None:
        """Make a call the pending one."""
        self.state = self.state[0], call

    def commit(self, content: Content) -> None:
        """Replace the content and clear the pending call, in one step."""
        self.state = content, None

    def idle_content(self) -> Content | None:
        """Return the content; BusyError inside a call that changes it. The lock must be held.

        Only a signal handler can be there: it runs in the thread that holds the lock.
        """
        content = self.content
        if self.state[1] is not None:
            raise BusyError(
                "the model is learning, and a signal handler asks for a copy or a file of it in "
                "the middle of that; let the handler set a flag, and save when partial_fit has "
                "returned"
            )
        return content

    def __deepcopy__(self, memo: dict[int, object]) -> ModelHolder[Content]:
        with self.lock:
            twin = type(self)(copy.deepcopy(self.idle_content(), memo))
        memo[id(self)] = twin
        return twin

    def __getstate__(self) -> dict[str, Content | None]:
        # A copy, made under the lock: what is pickled later must not change in the meantime.
        return {"content": copy.deepcopy(self).content}

    def __setstate__(self, state: dict[str, Content | None]) -> None:
        self.lock = threading.RLock()
        self.state = state["content"], None
        _holders.add(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked process, unless the call that runs is its own."""
        pending = self.state[1]
        if pending is None or not pending.after_fork():
            self.lock = threading.RLock()


_holders: WeakSet[ModelHolder[Any]] = WeakSet()
_waited = threading.local()
"""Locks that the thread which forks has taken for that time."""


def _before_fork() -> None:
    end = time.monotonic() + MAX_WAIT
    _waited.locks = []
    for lock in [holder.lock for holder in _holders]:
        if lock.acquire(timeout=max(end - time.monotonic(), 0.0)):
            _waited.locks.append(lock)


def _after_fork_in_parent() -> None:
    while _waited.locks:
        _waited.locks.pop().release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    for holder in [*_holders]:
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


class Call(Generic[Content]):
    """A call that changes a model, and how to undo it."""

    def __init__(self, holder: ModelHolder[Content], work: Work[Content]) -> None:
        self.journal = Journal()
        steps = self._run(holder, work)
        assert isinstance(steps, GeneratorType)
        self._steps = steps
        self._thread = threading.get_ident()
        self._is_lost = False

    def _run(
        self, holder: ModelHolder[Content], work: Work[Content]
    ) -> Generator[None, None, None]:
        holder.begin(self)
        holder.commit(work(self.journal))
        if False:
            yield  # a generator: the interpreter knows whether it is running

    @property
    def is_running(self) -> bool:
        """Whether it has begun, and neither ended nor raised an exception."""
        return bool(self._steps.gi_running) and not self._is_lost

    def after_fork(self) -> bool:
        """Return whether the call continues in a forked process, which has only this thread."""
        self._is_lost = self._thread != threading.get_ident()
        return self.is_running

    def run(self) -> None:
        """Run it to its end.

        A generator that has ended refers to nothing. One that waited at a ``yield`` would refer to
        this object, which refers to it: only garbage collection would free them, and with them the
        ratings of the call. A collection of all objects of the process takes longer than dozens of
        calls.
        """
        next(self._steps, None)


# ------------------------------------------------------------------------------------------------
# Steps that Ctrl-C must not cut in two.


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    Ctrl-C interrupts only the main thread, so in other threads there is nothing to do.

    >>> with uninterrupted():
    ...     done = True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, _Held) and not before.is_within(inspect.currentframe()):
        before = before.before
    if before is None:  # set by code outside Python, which could not be put back
        yield
        return
    frame = inspect.currentframe()
    manager = None if frame is None else frame.f_back  # the context manager, in its caller
    held = _Held(before, None if manager is None else manager.f_back)
    del frame, manager  # a frame that holds itself would wait for garbage collection
    try:  # what answers Ctrl-C is put back even if another exception comes while it is changed
        signal.signal(signal.SIGINT, held)
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, before)
        except BaseException:
            signal.signal(signal.SIGINT, before)
            raise
    if held.came and callable(before):
        before(*held.came[0])


class _Held:
    """Takes note of Ctrl-C while a block runs.

    Where another exception has kept the block from putting back what answers Ctrl-C, this does so
    the first time that it is called after the function with the block has ended.
    """

    def __init__(self, before: Any, frame: FrameType | None) -> None:
        self.before = before
        self.came: list[tuple[Any, ...]] = []
        self._frame = frame

    def is_within(self, frame: FrameType | None) -> bool:
        """Whether a frame is inside the function that contains the block."""
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_within(frame):
            self.came.append((number, frame))
            return
        signal.signal(signal.SIGINT, self.before)
        if callable(self.before):
            self.before(number, frame)
