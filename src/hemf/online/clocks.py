"""When the periodic steps of online learning are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

EVERY = {
    "communities": 0.05,
    "prior": 1.0,
    "search": 1.0,
    "rotation": 4.0,
    "covariance": 1.0,
    "moods": 1.0,
}
"""Refreshes for each row of a side between two runs of a step.

What looks at all rows of a side waits for about as many refreshes, so that its cost for each rating
does not depend on the number of rows.
"""
MIN_REFRESHES = {"search": 500}
FIRST_RESTART = 200
"""Ratings after which a stream that started without a fit restarts for the first time."""


class Refreshed(Protocol):
    """Rows that count how often one of them was refreshed."""

    n_rows: int

    @property
    def refreshes(self) -> float:
        """How many rows have been refreshed so far."""


@dataclass
class Clocks:
    """Time, and when each step was last done or is next due.

    The time of a side is the number of its refreshes. Steps that are not in `EVERY` are scheduled
    by the number of ratings learnt; those never scheduled are never due.

    >>> from types import SimpleNamespace
    >>> users = SimpleNamespace(n_rows=100, refreshes=150.0)
    >>> clocks = Clocks({"user": users}, seen=7, due_at={("widen", ""): 8})
    >>> clocks.due("prior", "user"), clocks.due("search", "user"), clocks.due("widen")
    (True, False, False)
    >>> clocks.done("prior", "user")
    >>> clocks.due("prior", "user")
    False
    """

    stores: Mapping[str, Refreshed]
    seen: int = 0
    """Ratings learnt, repetitions included."""
    last: dict[tuple[str, str], float] = field(default_factory=dict)
    """Refreshes of the side when a step was last done, by step and side."""
    due_at: dict[tuple[str, str], float] = field(
        default_factory=lambda: {("restart", ""): FIRST_RESTART}
    )
    """Ratings learnt when a step is next due, by step and side."""
    ratings: dict[str, int] = field(default_factory=dict)
    """Ratings on record when a side's prior was last learnt, and directions last opened."""

    def due(self, event: str, side: str = "") -> bool:
        """Whether it is time for a step."""
        if event not in EVERY:
            return self.seen >= self.due_at.get((event, side), float("inf"))
        rows = self.stores[side]
        needed = max(EVERY[event] * rows.n_rows, MIN_REFRESHES.get(event, 0))
        return rows.refreshes - self.last_done(event, side) >= needed and rows.n_rows > 0

    def last_done(self, event: str, side: str) -> float:
        """Return the refreshes of a side when a step was last done."""
        return self.last.get((event, side), 0.0)

    def done(self, event: str, side: str) -> None:
        """Note that a step of a side was done now."""
        self.last[event, side] = self.stores[side].refreshes

    def schedule(self, event: str, at: float | None, side: str = "") -> None:
        """Let a step be due after so many ratings; None is never."""
        if at is None:
            self.due_at.pop((event, side), None)
        else:
            self.due_at[event, side] = at

    def copy(self, stores: Mapping[str, Refreshed]) -> Clocks:
        """Return a copy that reads the time of other rows."""
        counters = {name: getattr(self, name).copy() for name in ("last", "due_at", "ratings")}
        return replace(self, stores=stores, **counters)
