"""Moods of raters online: their sessions, and q(l, g) of each.

`hemf.kernels.moods` has the arithmetic. q(l, g) is always a distribution, wherever rows and prior
have moved since, so that the bound can be computed at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hemf._typing import AnyArray, Array, Float64Array, Int32Array, Int64Array
from hemf.data.vocabulary import with_room
from hemf.model.moods import MoodPosterior, MoodPrior, Moods, mood_at

if TYPE_CHECKING:
    from hemf.kernels.structures import Sessions


MIN_ROOM = 16  # sessions or raters


class Listed(Protocol):
    """Ratings of one side, each with the number of its session."""

    session: Int32Array
    """In place, with room for more ratings."""

    def sessions(self) -> Int32Array:
        """Return the session of each rating."""


@dataclass
class OnlineMoods:
    """Sessions, the latest of each rater, and the prior; see `hemf.kernels.structures.Sessions`."""

    table: Array
    moods: Array
    time: Int64Array
    links: Int32Array
    last: Int64Array
    smoothed: Int64Array
    used: Int64Array
    prior: MoodPrior
    n_raters: int

    @classmethod
    def none(cls, dtype: npt.DTypeLike, prior: MoodPrior | None = None) -> OnlineMoods:
        """Return moods of no raters."""
        width = _columns().COLUMNS
        return cls(
            table=np.zeros((MIN_ROOM, width), dtype),
            moods=np.zeros((MIN_ROOM, 2), dtype),
            time=np.zeros(MIN_ROOM, np.int64),
            links=np.full((MIN_ROOM, 3), -1, np.int32),
            last=np.full(MIN_ROOM, -1, np.int64),
            smoothed=np.zeros(MIN_ROOM, np.int64),
            used=np.zeros(1, np.int64),
            prior=prior or MoodPrior(),
            n_raters=0,
        )

    @classmethod
    def adopt(cls, moods: Moods, dtype: npt.DTypeLike) -> OnlineMoods:
        """Take over the moods of a batch fit, whose sessions keep their numbers."""
        new, indptr, times = cls.none(dtype, moods.prior), moods.indptr, moods.times
        posterior = moods.posterior
        at, n = _columns(), times.size
        lengths = np.diff(indptr)
        new.add_raters(lengths.size)
        new.make_room(n)
        new.used[0] = n
        new.time[:n] = times
        new.table[:n, at.LEVEL] = posterior.level
        new.table[:n, at.LEVEL_SPREAD] = posterior.level_spread
        new.moods[:n, at.MEAN] = posterior.mean
        new.moods[:n, at.SPREAD] = posterior.spread
        links = new.links[:n]
        links[:, at.RATER] = rater = np.repeat(np.arange(lengths.size), lengths)
        here = np.arange(n)
        links[:, at.EARLIER] = np.where(here > indptr[rater], here - 1, -1)
        links[:, at.LATER] = np.where(here < indptr[rater + 1] - 1, here + 1, -1)
        rated = np.flatnonzero(lengths)
        new.last[rated] = indptr[rated + 1] - 1
        return new

    def arrays(self) -> Sessions:
        """Return the kernels' argument, in place but for the prior."""
        from hemf.kernels.structures import Sessions

        prior = self.prior
        known = np.array([prior.persistence, prior.variance, prior.extra])
        last, smoothed = self.last[: self.n_raters], self.smoothed[: self.n_raters]
        own = self.table, self.moods, self.time, self.links
        return Sessions(*own, last, smoothed, self.used, known)

    # -- room ------------------------------------------------------------------------------------

    def add_raters(self, n: int) -> None:
        """Add raters without sessions."""
        count, known = self.n_raters + n, self.last.size
        if count > known:
            self.last = with_room(self.last, known, count)
            self.last[known:] = -1
            self.smoothed = with_room(self.smoothed, known, count)
        self.n_raters = count

    def has_room(self, n: int) -> bool:
        """Whether there is room for n more sessions."""
        return bool(self.used[0] + n <= self.time.size)

    def sessions_of(self, raters: Int64Array) -> Int64Array:
        """Return the sessions of these raters, in any order."""
        at = _columns()
        chain = latest = self.last[raters]
        while (latest := latest[latest >= 0]).size:
            latest = self.links[latest, at.EARLIER]
            chain = np.concatenate([chain, latest])
        return chain[chain >= 0].astype(np.int64)

    def mark(self) -> Callable[[], None]:
        """Return a function that restores all but the content of sessions.

        Raters added in the meantime are removed.
        """
        before, n_used = vars(self).copy(), int(self.used[0])

        def undo() -> None:
            n = before["n_raters"]
            if self.n_raters > n:
                before["last"][n : self.n_raters] = -1
                before["smoothed"][n : self.n_raters] = 0
            before["used"][0] = n_used
            vars(self).update(before)

        return undo

    def reserve(self, n: int, histories: Sequence[Listed]) -> None:
        """Make room for n more sessions; unused ones are removed first."""
        if self.has_room(n):
            return
        self.compact(histories)
        if 2 * (int(self.used[0]) + n) > self.time.size:
            self.make_room(2 * (int(self.used[0]) + n))

    def compact(self, histories: Sequence[Listed]) -> None:
        """Remove sessions that belong to no rater and to no rating on record."""
        n, at = int(self.used[0]), _columns()
        kept = self.links[:n, at.RATER] >= 0
        for history in histories:
            listed = history.sessions()
            kept[listed[listed >= 0]] = True
        if kept.all():
            return
        number = np.cumsum(kept) - 1
        number[~kept] = -1
        number = np.append(number, -1)  # where -1 looks
        count = int(kept.sum())
        for array in (self.table, self.moods, self.time):
            array[:count] = array[:n][kept]
        links = self.links[:n][kept]
        for column in (at.EARLIER, at.LATER):
            links[:, column] = number[links[:, column]]
        self.links[:count] = links
        self.last[: self.n_raters] = number[self.last[: self.n_raters]]
        self.used[0] = count
        for history in histories:
            history.session[:] = number[np.clip(history.session, -1, n - 1)]

    def leave_latest(self) -> None:
        """Unlink all but the latest session of each rater."""
        at, n = _columns(), int(self.used[0])
        last = self.last[: self.n_raters]
        last = last[last >= 0]
        raters = self.links[last, at.RATER]
        self.links[:n] = -1
        self.links[last, at.RATER] = raters

    def check(self) -> None:
        """Raise a `ValueError` for wrong links, which compiled code does not check."""
        at, n, raters = _columns(), int(self.used[0]), self.n_raters
        links, last = self.links[:n], self.last[:raters]
        chained = np.flatnonzero(links[:, at.RATER] >= 0)
        earlier, later = links[chained, at.EARLIER], links[chained, at.LATER]
        inside = (
            (not n or (int(links.min()) >= -1 and int(links[:, : at.RATER].max()) < n))
            and (not n or int(links[:, at.RATER].max()) < raters)
            and (not raters or (int(last.min()) >= -1 and int(last.max()) < n))
        )
        if not inside:
            raise ValueError("moods: a session is linked to one that is not there")
        # Each is linked by the one before it, in order of time; the last of each rater is known.
        before, ends = chained[earlier >= 0], chained[later < 0]
        at_ends = np.full(raters, -1)
        at_ends[links[ends, at.RATER]] = ends
        there = links[before, at.EARLIER]
        right = (
            bool((links[there, at.LATER] == before).all())
            and bool((links[there, at.RATER] == links[before, at.RATER]).all())
            and bool((self.time[there] < self.time[before]).all())
            and np.array_equal(at_ends, last)
            and np.unique(links[ends, at.RATER]).size == ends.size
        )
        if not right or bool((self.moods[:n, at.SPREAD] < 0.0).any()):
            raise ValueError("moods: the sessions of a rater are not one after the other")

    def make_room(self, room: int) -> None:
        """Make room for as many sessions altogether."""
        n = self.time.size
        if room > n:
            self.table, self.moods = with_room(self.table, n, room), with_room(self.moods, n, room)
            self.time, self.links = with_room(self.time, n, room), with_room(self.links, n, room)

    # -- posterior -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Set every mood to its prior."""
        at, n, prior = _columns(), int(self.used[0]), self.prior
        self.table[:n] = 0.0
        self.table[:n, [at.LEVEL_SPREAD, at.UNCERTAIN]] = prior.variance
        self.moods[:n] = 0.0
        self.moods[:n, at.SPREAD] = prior.variance + prior.extra

    def of(self, sessions: AnyArray) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of the moods of these sessions."""
        mean, spread = self.moods[sessions].astype(np.float64).T
        return mean, spread

    def at(self, users: Int64Array, when: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of these users' moods at these times; -1 is a stranger.

        See `hemf.model.moods.mood_at`. Where not every rating is listed, only the latest session
        of each rater is known.
        """
        from hemf.kernels.moods import places

        order, indptr = self._chains()
        columns = _columns()
        values = self.table[order].astype(np.float64)
        level, spread = values[:, columns.LEVEL], values[:, columns.LEVEL_SPREAD]
        product = np.zeros(order.size)
        product[:-1] = self._covariance(spread[:-1], spread[1:])
        posterior = MoodPosterior(level, spread, product, *self.of(order))
        times = self.time[order]
        known = np.flatnonzero(users >= 0)
        place, found = np.zeros(users.size, np.int64), np.zeros(known.size, np.int64)
        places.compiled(np.float64)(indptr, times, users[known], when[known], found)
        place[known] = found
        return mood_at(self.prior, posterior, indptr, times, users, when, place)

    def _chains(self) -> tuple[Int64Array, Int64Array]:
        """Return sessions by rater and time, and where each rater's begin and the last end."""
        rater = self.links[: int(self.used[0]), _columns().RATER]
        there = np.flatnonzero(rater >= 0)
        order = there[np.lexsort((self.time[there], rater[there]))]
        counts = np.bincount(rater[there], minlength=self.n_raters)
        return order, np.concatenate([[0], np.cumsum(counts)])

    def _covariance(self, one: Float64Array, other: Float64Array) -> Float64Array:
        """Cov(l(t), l(t+1)) of neighbours with these variances: `hemf.kernels.moods`."""
        phi = self.prior.persistence
        if phi <= 0.0:
            return np.zeros(one.size)
        half = 0.5 * self.prior.innovation / phi
        return np.asarray(one * other / (half + np.sqrt(half**2 + one * other)))

    def divergence(self, *, complete: bool) -> float:
        """KL(q(l, g) ‖ p(l, g)) of the sessions that belong to a rater.

        Unless they are ``complete`` they are the latest, with p(l) as it was predicted for them.
        """
        at, prior, n = _columns(), self.prior, int(self.used[0])
        there = self.links[:n, at.RATER] >= 0
        if not there.any():
            return 0.0
        values = self.table[:n].astype(np.float64)
        level, spread = values[:, at.LEVEL], values[:, at.LEVEL_SPREAD]
        earlier = self.links[:n, at.EARLIER].astype(np.int64)
        pair = np.flatnonzero(there & (earlier >= 0))
        before = earlier[pair]
        alone = np.flatnonzero(there & (earlier < 0))
        expected = 0.0 if complete else values[alone, at.EXPECTED]
        uncertain = prior.variance if complete else values[alone, at.UNCERTAIN]
        total = _gaussian(level[alone] - expected, spread[alone], uncertain)
        product, phi = self._covariance(spread[before], spread[pair]), prior.persistence
        # V - c²/V', of which rounding leaves nothing where c is large
        left = product / spread[before] * prior.innovation / phi if phi > 0.0 else spread[pair]
        moved = spread[pair] - 2.0 * phi * product + phi**2 * spread[before]
        moved += (level[pair] - phi * level[before]) ** 2
        step = prior.innovation
        total += 0.5 * float(np.sum(moved / step - 1.0 - np.log(left / step)))
        # g | l: its share of what is left.
        share = prior.extra * values[there, at.PRECISION]
        share /= 1.0 + share
        rest = values[there, at.NATURAL_MEAN] / np.maximum(values[there, at.PRECISION], 1e-300)
        squares = share**2 * ((rest - level[there]) ** 2 + spread[there])
        total += 0.5 * float(np.sum(squares / prior.extra - share - np.log1p(-share)))
        return total


@cache
def no_sessions(dtype: np.dtype[Any]) -> Sessions:
    """Return the argument of kernels without moods."""
    from hemf.kernels.structures import Sessions

    none = OnlineMoods.none(dtype)
    arrays = {name: getattr(none, name)[:0] for name in Sessions._fields if name != "prior"}
    return Sessions(**arrays, prior=np.zeros(0))


def _gaussian(apart: Float64Array, variance: Float64Array, prior: Float64Array | float) -> float:
    """KL between normal distributions, summed up; ``apart`` are their means."""
    ratio = variance / prior
    return 0.5 * float(np.sum(ratio + apart**2 / prior - 1.0 - np.log(ratio)))


def _columns() -> ModuleType:
    from hemf.kernels import moods as filtering

    return filtering
