"""Calls that change a model wholly or not at all, whatever exception strikes, and wherever.

An exception may come from another thread or from a signal handler, between any two steps of the
interpreter: within ``finally`` blocks, in functions that leave a context, in the code that undoes
what was done. So nothing here depends on a step that has to follow another one.

- A call first hangs itself on the model (``_pending``). From then on, to whoever asks the model,
  the call is either still running or was cut short.
- It keeps what it is about to change in a `Journal`, before it is changed, and changes no
  attribute of the model. Its last step, one update of a dictionary within the interpreter, gives
  the model its new attributes and takes the call off it: before that the model is the old one,
  with changes that will be undone, after it the new one.
- A call that was cut short is undone by whoever asks for the model's state next (`Fitted.state_`,
  which every method does before anything else): as a rule by the call itself, on its way out.
  An undo that is cut short in turn stays on the model, and is begun again by the next.
- Whether a call is running must not be a flag, which an exception could leave at the wrong value.
  The interpreter knows it of generators, so a call is one: it runs from its only ``next`` until it
  returns or raises. Therefore a signal handler that asks the model in the middle of a call, in the
  same thread, does not undo it.

Other threads wait for the model's lock, which is taken by ``with`` and is part of the interpreter:
between taking it and entering the block, as between leaving the block and releasing it, there is
no step where CPython looks for signals or exceptions of other threads. So it cannot stay locked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from hemf.errors import BusyError
from hemf.inference.journal import Journal

if TYPE_CHECKING:
    from hemf.fitted import Fitted

Work = Callable[[Journal], dict[str, Any]]
"""Changes things, which it keeps before, and returns the attributes that a model gets thereby."""


class Call:
    """A call that changes a model, and how to undo it."""

    def __init__(self, model: Fitted, work: Work) -> None:
        self.journal = Journal()
        steps = self._run(model, work)
        assert isinstance(steps, GeneratorType)
        self._steps = steps

    def _run(self, model: Fitted, work: Work) -> Generator[None, None, None]:
        vars(model)["_pending"] = self
        attributes = {**work(self.journal), "_pending": None}
        vars(model).update(attributes)
        if False:
            yield  # a generator: the interpreter knows whether it is running

    @property
    def is_running(self) -> bool:
        """Whether it has begun, and neither ended nor raised an exception."""
        return bool(self._steps.gi_running)

    def run(self) -> None:
        """Run it to its end.

        A generator that has ended refers to nothing. One that waited at a ``yield`` would refer to
        this object, which refers to it: only garbage collection would free them, and with them the
        ratings of the call. A collection of all objects of the process takes longer than dozens of
        calls, and each such call would bring the next one nearer.
        """
        next(self._steps, None)


def change(model: Fitted, work: Work) -> None:
    """Let work change a model: to its end, or not at all."""
    call = Call(model, work)
    try:
        call.run()
    finally:
        settle(model)
        if vars(model).get("_pending") is not call:
            call.journal.close()


def settle(model: Fitted) -> None:
    """Undo a call that was cut short, if there is one; wait for one that is running elsewhere."""
    if vars(model).get("_pending") is None:
        return
    with lock_of(model):
        pending: Call | None = vars(model).get("_pending")
        if pending is not None and not pending.is_running:
            pending.journal.undo()
            vars(model)["_pending"] = None
            pending.journal.close()


def check_idle(model: Fitted) -> None:
    """Raise BusyError inside a call that changes the model; its lock must be held.

    Only a signal handler can be there: it runs in the thread that holds the lock.
    """
    settle(model)
    if vars(model).get("_pending") is not None:
        raise BusyError(
            "the model is learning, and a signal handler asks for a copy or a file of it in the "
            "middle of that; let the handler set a flag, and save when partial_fit has returned"
        )


def lock_of(model: Fitted) -> threading.RLock:
    """Return what threads that ask a model, or let it learn, wait for."""
    lock: threading.RLock = vars(model).setdefault("_lock", threading.RLock())
    return lock
