"""Steps that Ctrl-C must not cut in two."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let what is begun end: Ctrl-C is answered after the block, not within it.

    Only the main thread is ever interrupted, so anywhere else there is nothing to do.

    >>> with uninterrupted():
    ...     done = True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, _Held) and not before.is_within(sys._getframe()):
        before = before.before
    if before is None:  # set by code outside Python, which could not be put back
        yield
        return
    held = _Held(before, sys._getframe(2))
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

    def __init__(self, before: Any, frame: FrameType) -> None:
        self.before = before
        self.came: list[tuple[Any, ...]] = []
        self._frame = frame

    def is_within(self, frame: FrameType | None) -> bool:
        """Whether the function with the block is among those that have called this one."""
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
