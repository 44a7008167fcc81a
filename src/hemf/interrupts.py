"""Steps that Ctrl-C must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    came: list[tuple[Any, ...]] = []
    before = signal.getsignal(signal.SIGINT)
    if before is None:  # set by code outside Python, which could not be put back
        yield
        return
    try:  # what answers Ctrl-C is put back even if another exception comes while it is changed
        signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, before)
        except BaseException:
            signal.signal(signal.SIGINT, before)
            raise
    if came and callable(before):
        before(*came[0])
