"""A process that forks while another thread learns: the child has a model that works."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from hemf import HeMF
from hemf.online import journal
from hemf.online.journal import ModelHolder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
LIMIT = 20  # seconds that a child may take


def ended(child: int) -> int:
    """Return the exit code of a child; -9 where it hangs."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work) -> int:
    """Run work in a forked process, and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return ended(child)


@pytest.mark.parametrize("history", ["full", "none", 5])
def test_a_child_learns_although_a_thread_of_its_parent_was_learning(history):
    rng = np.random.default_rng(0)
    ratings = rng.integers(40, size=600), rng.integers(30, size=600), rng.normal(size=600)
    model = HeMF(n_factors=3, history=history, rng=0, duplicates="mean").fit(ratings)
    model.partial_fit([(1, 1, 0.5)])
    stop = threading.Event()

    def learn() -> None:
        while not stop.is_set():
            rows = rng.integers(30, size=(2, 50))
            model.partial_fit((rows[0], rows[1], rng.normal(size=50)))

    def use() -> None:
        assert np.isfinite(model.predict([1, 2], [3, 4])).all()
        model.partial_fit([(100, 3, 0.5), (2, 4, 1.0)])
        assert np.isfinite(model.predict([100, 2], [3, 4])).all()

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        assert [in_child(use) for _ in range(12)] == [0] * 12
    finally:
        stop.set()
        thread.join()


def test_a_call_that_takes_long_is_undone_in_the_child_only(monkeypatch):
    monkeypatch.setattr(journal, "MAX_WAIT", 0.01)
    holder, numbers = ModelHolder("old"), {"a": 1}
    has_begun, may_end = threading.Event(), threading.Event()

    def work(undo) -> str:
        undo.add(lambda: numbers.update(a=1))
        numbers["a"] = 2
        has_begun.set()
        may_end.wait()
        return "new"

    def change() -> None:
        with holder.lock:
            holder.change(work)

    def use() -> None:
        with holder.lock:
            assert (holder.content, numbers) == ("old", {"a": 1})
            holder.change(lambda _: "newer")
            assert holder.content == "newer"

    thread = threading.Thread(target=change)
    thread.start()
    has_begun.wait()
    code = in_child(use)
    may_end.set()
    thread.join()
    assert (code, holder.content, numbers) == (0, "new", {"a": 2})


def test_a_call_that_forks_goes_on_in_the_child():
    holder = ModelHolder("old")

    def check() -> None:
        assert holder.content == "old"  # not undone: it is still running

    def work(_) -> str:
        assert in_child(check) == 0
        return "new"

    with holder.lock:
        holder.change(work)
    assert holder.content == "new"
