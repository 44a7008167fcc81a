"""Kernels compiled in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hemf.cli import demo


@pytest.fixture
def processes(monkeypatch):
    """All processes that are started, each of them one that sleeps instead."""
    started = []
    begin = subprocess.Popen

    def sleeping(command, **options):
        assert command == [sys.executable, "-P", "-c", demo.COMPILE]
        started.append(begin([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    monkeypatch.setattr(demo.subprocess, "Popen", sleeping)
    return started


def test_whoever_does_not_wait_leaves_no_process_behind(processes):
    with demo.compiling():
        assert processes[0].poll() is None
    assert processes[0].poll() is not None


def test_an_error_leaves_no_process_behind_either(processes):
    with pytest.raises(KeyboardInterrupt), demo.compiling():
        raise KeyboardInterrupt
    assert processes[0].poll() is not None


def test_without_a_process_nothing_is_waited_for(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(demo.subprocess, "Popen", refuse)
    with demo.compiling() as wait:
        assert wait() is None


def test_what_is_prepared_is_what_a_batch_takes():
    from hemf.kernels import online

    exec(demo.COMPILE)  # from the cache, where there is one
    for kernel in online.BATCH:
        assert kernel.is_ready(np.float32), kernel.__name__
