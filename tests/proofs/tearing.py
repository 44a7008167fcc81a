"""Models of every kind, things that they can learn, and exceptions that strike while they do."""

from __future__ import annotations

import copy
import ctypes
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import hemf
from hemf import HeMF

PACKAGE = str(Path(hemf.__file__).parent)
N_USERS, N_ITEMS, FEATURES = 30, 18, 3
Operation = Callable[[HeMF], Any]


class Struck(BaseException):
    """The exception that strikes."""


# -- models and what they learn ------------------------------------------------------------------

BASE: dict[str, Any] = {
    "n_factors": 3, "max_user_communities": 3, "max_item_communities": 3, "max_sweeps": 4, "rng": 0,
    "n_jobs": 1,
}  # fmt: skip
HISTORIES = ("full", 3, "none")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fresh": {"begin": "nothing"},
    "moods": {"moods": True, "max_sweeps": 30},
    "fresh moods": {"moods": True, "begin": "nothing"},
    "features": {"features": True, "implicit_features": True},
    "fresh implicit": {"implicit_features": True, "begin": "nothing"},
    "forgetting": {"forgetting": (0.97, 0.99), "refresh": 0.5, "user_covariances": "tied"},
    "equal noise": {"noise_scales": None, "dtype": "float64", "evb": "gradient"},
}


def cases() -> list[tuple[str, Any]]:
    """Name and history of all kinds of models."""
    return [
        (name, history)
        for name in VARIANTS
        for history in HISTORIES
        if not (name == "fresh implicit" and history != "full")
    ]


@dataclass
class Trial:
    """A model, and the ratings that it has learnt so far."""

    name: str
    history: Any
    seed: int
    rng: np.random.Generator = field(init=False)
    known: dict[tuple[str, str], float] = field(default_factory=dict)
    clock: int = 1000

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 7])

    @property
    def variant(self) -> dict[str, Any]:
        return VARIANTS[self.name]

    def model(self) -> HeMF:
        """A model that has learnt some ratings."""
        model, self.known = copy.deepcopy(_begun(self.name, self.history, self.seed % 2))
        self.clock = 2000
        return model

    def drawn(self, n: int, *, new: float = 0.1, unrated: bool = False) -> list[tuple]:
        """Draw ratings of different pairs, and take note of them."""
        rows: dict[tuple[str, str], tuple] = {}
        while len(rows) < n:
            pair = self._id("u", N_USERS, new), self._id("i", N_ITEMS, new)
            if not (unrated and pair in self.known):
                rows[pair] = self._rating(*pair)
        self.known |= {pair: row[2] for pair, row in rows.items()}
        return list(rows.values())

    def _id(self, letter: str, n: int, new: float) -> str:
        more = self.rng.random() < new
        return f"{letter}{n + self.rng.integers(20) if more else self.rng.integers(n)}"

    def _rating(self, user: str, item: str) -> tuple:
        alike = (int(user[1:]) + int(item[1:])) % 2
        value = float(np.clip(np.round(3 + (2 * alike - 1) + self.rng.normal(), 1), 1, 5))
        self.clock += int(self.rng.integers(3))
        when = self.clock - int(self.rng.integers(30)) * int(self.rng.random() < 0.2)
        return (user, item, value, when) if "moods" in self.variant else (user, item, value)

    def operation(self) -> Operation:
        """Draw something to do; done to equal models it has equal results."""
        kinds = ["one", "one", "some", "many", "removed", "stream", "both", "forgetting"]
        kinds += ["features"] * 2 * ("features" in self.variant)
        kind = str(self.rng.choice(kinds))
        if kind == "features":
            ids = [self._id("i", N_ITEMS, 0.3) for _ in range(4)]
            given = {name: self.rng.normal(size=FEATURES) for name in ids}
            return lambda model: model.partial_fit(item_features=given)
        if kind == "stream":
            rows = self.drawn(20)
            return lambda model: model.predict_then_learn(rows)
        gone = self._removed(2) if kind in ("removed", "both") else None
        size = {"one": 1, "some": 6, "many": 45, "both": 4, "forgetting": 3}.get(kind, 0)
        before = dict(self.known)
        rows = self.drawn(size)
        if gone:
            rows = [row for row in rows if row[:2] not in {pair[:2] for pair in gone}]
        previous = [before.get(row[:2], np.nan) for row in rows]
        forgetting = float(self.rng.choice([1.0, 0.98]))

        def learn(model: HeMF) -> None:
            if kind == "forgetting":
                model.forgetting = forgetting
            model.partial_fit(rows or None, removed=gone, previous=previous if rows else None)

        return learn

    def _removed(self, n: int) -> list[tuple]:
        pairs = sorted(self.known)
        chosen = [pairs[k] for k in self.rng.choice(len(pairs), size=n, replace=False)]
        extra = (0,) if "moods" in self.variant else ()
        return [(*pair, self.known.pop(pair), *extra) for pair in chosen]


@cache
def _begun(name: str, history: Any, seed: int) -> tuple[HeMF, dict]:
    trial, variant = Trial(name, history, seed), dict(VARIANTS[name])
    begin, features = variant.pop("begin", "fit"), variant.pop("features", False)
    model = HeMF(**BASE | variant, history=history)
    rows = trial.drawn(180, new=0.0, unrated=True)
    given = {}
    if features:
        rng = np.random.default_rng(3)
        given["item_features"] = {f"i{k}": rng.normal(size=FEATURES) for k in range(N_ITEMS + 3)}
        given["user_features"] = {f"u{k}": rng.normal(size=2) for k in range(N_USERS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if begin == "fit":
            model.fit(rows, **given)
            if seed:
                model.partial_fit(trial.drawn(3))
        else:
            model.partial_fit(rows[:150])
            model.predict_then_learn(rows[150:])
    return model, dict(trial.known)


# -- exceptions ----------------------------------------------------------------------------------


@contextmanager
def traced(on_line: Callable[[Any], None]) -> Any:
    """Call a function at every line of hemf that is run."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            on_line(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines(run: Callable[[], Any]) -> int:
    """Count the lines of hemf that are run."""
    count = 0

    def on_line(_: Any) -> None:
        nonlocal count
        count += 1

    with traced(on_line):
        run()
    return count


def strike_at_line(run: Callable[[], Any], at: int) -> None:
    """Raise an exception at the so many-th line of hemf."""
    count = 0

    def on_line(_: Any) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Struck

    with suppress(Struck), traced(on_line):
        run()


def strike_between(run: Callable[[], Any], *at: int) -> None:
    """Let exceptions come as if from other threads, while these lines are run.

    They are raised where the interpreter looks for such exceptions: not where a block of ``with``
    is left, which is a line to those who trace.
    """
    count, before, lightning = 0, sys.gettrace(), _lightning(threading.get_ident())

    def on_line(_: Any) -> None:
        nonlocal count
        count += 1
        if count in at:
            _ = lightning.strikes

    with suppress(Struck):
        try:
            with traced(on_line):
                run()
        finally:
            for _ in range(50):  # one that has not been delivered comes now
                pass
    sys.settrace(before)  # had it been delivered while tracing was to end


def _lightning(thread: int) -> Any:
    """Return an object with an attribute: to look it up raises an exception at the next step.

    After a call the interpreter looks for exceptions, so a function that traces would get them
    itself; tracing would end, and no second one come. After a look at an attribute it does not.
    """
    raising = partial(
        ctypes.pythonapi.PyThreadState_SetAsyncExc,
        ctypes.c_ulong(thread),
        ctypes.py_object(Struck),
    )
    # The object itself is passed too, as a third argument, which the function does not have.
    return type("Lightning", (), {"_as_parameter_": 0, "strikes": property(raising)})()


def strike(thread: int) -> None:
    """Raise an exception in a thread, at its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Struck))


def strike_by_alarm(run: Callable[[], Any], seconds: float) -> None:
    """Raise an exception in a handler of SIGALRM; of the main thread alone."""
    is_armed = True

    def handler(*_: Any) -> None:
        if is_armed:
            raise Struck

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with suppress(Struck):
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            run()
            is_armed = False
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def strike_from_thread(run: Callable[[], Any], *seconds: float) -> None:
    """Raise exceptions in a thread that runs it, from another one, after so many seconds each."""
    begun = threading.Event()

    def work() -> None:
        with suppress(Struck):
            begun.set()
            run()

    thread = threading.Thread(target=work)
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        thread.start()
        begun.wait()
        for wait in seconds:
            until = time.perf_counter() + wait
            while time.perf_counter() < until:
                time.sleep(1e-5)
            if thread.is_alive():
                strike(thread.ident or 0)
        thread.join()
    finally:
        threading.excepthook = hook


ALLOCATING = ("empty", "zeros", "full", "concatenate", "array", "arange", "ascontiguousarray",
              "asarray", "unique", "repeat", "where", "flatnonzero")  # fmt: skip


def without_memory(run: Callable[[], Any], at: int) -> int:
    """Raise MemoryError at the so many-th allocation; return how many there were."""
    count = 0

    def failing(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise MemoryError
            return function(*arguments, **options)

        return call

    patches = [mock.patch.object(np, name, failing(getattr(np, name))) for name in ALLOCATING]
    for patch in patches:
        patch.start()
    try:
        with suppress(MemoryError):
            run()
    finally:
        for patch in patches:
            patch.stop()
    return count


def is_free(model: HeMF) -> bool:
    """Whether another thread can have the model's lock."""
    answers = []

    def ask() -> None:
        lock = vars(model).get("_lock")
        got = lock is None or lock.acquire(timeout=5)
        if got and lock is not None:
            lock.release()
        answers.append(got)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers == [True]


def make_rare_steps_frequent(patch: Any) -> None:
    """Let small models do what otherwise takes thousands of ratings; ``patch`` sets attributes."""
    from hemf.online import clocks, communities, jumps, learner

    patch(clocks, "EVERY", {**clocks.EVERY, "rotation": 0.3})
    patch(clocks, "MIN_REFRESHES", {"search": 10})
    patch(learner, "GROWTH", 1.05)
    patch(jumps, "CLOSED", 0.6)
    patch(learner, "EXPLAINED", 0.0)
    patch(learner, "FIRST_RESTART", 20)
    patch(communities, "MIN_SPLIT_ROWS", 2)
    gains = communities.split_gains

    def moody(statistics: Any, prior: Any, splits: Any, *, tied: bool) -> Any:
        """Prefer more communities, and now and then fewer."""
        sign = 1.0 if round(1e6 * float(statistics.entropy)) % 3 else -1.0
        more = 40.0 if statistics.size.size < 4 else 0.0
        return gains(statistics, prior, splits, tied=tied) + sign * more

    patch(communities, "split_gains", moody)


def answers_ctrl_c() -> bool:
    """Whether Ctrl-C raises a KeyboardInterrupt."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return True
    return False
