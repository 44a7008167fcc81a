"""Kernels that are compiled on another core while this one is busy with something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE = 180.0  # seconds until they are no longer waited for


@contextmanager
def compiling() -> Iterator[Callable[[], object]]:
    """Have the kernels of online learning compiled; yield a function that waits until they are.

    Should that fail they are compiled where they are needed, which takes longer and no more.
    """
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-P", "-m", "hemf.kernels.prepare"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        yield lambda: None
        return

    def wait() -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)

    try:
        yield wait
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
