"""Moods of raters while ratings arrive: the sittings on record, and what is believed of them.

`hemf.kernels.moods` has the arithmetic. What is believed of sittings, q(l, g), is always a
distribution, wherever rows and prior have moved since, so that the bound can be told at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hemf._typing import Array, Float64Array, Int32Array, Int64Array
from hemf.batch.sweep import ROUNDS
from hemf.model.moods import MoodPosterior, MoodPrior, Moods, MoodSums, learn_mood_prior, mood_at
from hemf.online import binding
from hemf.online.history import History
from hemf.online.journal import Undo, content_of, restore, rows_of

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


LEAST_ROOM = 16  # sittings or raters
CLOSED = 0.1  # of the variance that a prior starts with; of less, moods do not open by themselves
GROWN = 0.1  # new ratings, of those on record, after which all moods are smoothed


@dataclass
class OnlineMoods:
    """Sittings, raters' latest ones, and the prior; see `hemf.kernels.structures.Sittings`."""

    table: Array
    moods: Array
    time: Int64Array
    links: Int32Array
    last: Int64Array
    smoothed: Int64Array
    used: Int64Array
    prior: MoodPrior
    n_raters: int
    learnt_at: int = 0
    """Ratings learnt when all moods were last smoothed."""
    refreshed: float = 0.0
    """Refreshes of users by then."""

    @classmethod
    def none(cls, dtype: Any, prior: MoodPrior | None = None) -> OnlineMoods:
        """Return moods of nobody."""
        width = _columns().WIDTH
        return cls(
            table=np.zeros((LEAST_ROOM, width), dtype),
            moods=np.zeros((LEAST_ROOM, 2), dtype),
            time=np.zeros(LEAST_ROOM, np.int64),
            links=np.full((LEAST_ROOM, 3), -1, np.int32),
            last=np.full(LEAST_ROOM, -1, np.int64),
            smoothed=np.zeros(LEAST_ROOM, np.int64),
            used=np.zeros(1, np.int64),
            prior=prior or MoodPrior(),
            n_raters=0,
        )

    @classmethod
    def adopt(cls, moods: Moods, dtype: Any) -> OnlineMoods:
        """Take over the moods of a batch fit, whose sittings keep their numbers."""
        new = cls.none(dtype, moods.prior)
        at, n = _columns(), moods.times.size
        lengths = np.diff(moods.indptr)
        new.add_raters(lengths.size)
        new._grow(n)
        posterior = moods.posterior
        new.used[0] = n
        new.time[:n] = moods.times
        new.table[:n, at.LEVEL] = posterior.level
        new.table[:n, at.LEVEL_SPREAD] = posterior.level_spread
        new.moods[:n, at.MEAN] = posterior.mean
        new.moods[:n, at.SPREAD] = posterior.spread
        links = new.links[:n]
        links[:, at.RATER] = rater = np.repeat(np.arange(lengths.size), lengths)
        here = np.arange(n)
        links[:, at.EARLIER] = np.where(here > moods.indptr[rater], here - 1, -1)
        links[:, at.LATER] = np.where(here < moods.indptr[rater + 1] - 1, here + 1, -1)
        rated = np.flatnonzero(lengths)
        new.last[rated] = moods.indptr[rated + 1] - 1
        return new

    def arrays(self) -> Any:
        """Return it all as kernels take it, in place but for the prior."""
        from hemf.kernels.structures import Sittings

        prior = self.prior
        return Sittings(
            table=self.table,
            moods=self.moods,
            time=self.time,
            links=self.links,
            last=self.last[: self.n_raters],
            smoothed=self.smoothed[: self.n_raters],
            used=self.used,
            prior=np.array([prior.persistence, prior.variance, prior.extra]),
        )

    # -- room ------------------------------------------------------------------------------------

    def add_raters(self, n: int) -> None:
        """Add raters of whom there is no sitting."""
        count = self.n_raters + n
        if count > self.last.size:
            room = max(count, 2 * self.last.size)
            self.last = np.concatenate([self.last, np.full(room - self.last.size, -1)])
            self.smoothed = np.concatenate(
                [self.smoothed, np.zeros(room - self.smoothed.size, np.int64)]
            )
        self.n_raters = count

    def has_room(self, n: int) -> bool:
        """Whether there is room for n more sittings."""
        return bool(self.used[0] + n <= self.time.size)

    def keep(self, raters: Int64Array | None = None) -> Undo:
        """Return a function that puts sittings of these raters, or all, back as they are now."""
        n, every = int(self.used[0]), self.n_raters
        believed, of_raters = [self.table, self.moods, self.links], [self.last, self.smoothed]
        if raters is None:
            whole = *(array[:n] for array in (*believed, self.time)), self.used
            return content_of(*whole, *(array[:every] for array in of_raters))
        at = _columns()
        chain = latest = self.last[raters]
        while (latest := latest[latest >= 0]).size:
            latest = self.links[latest, at.EARLIER]
            chain = np.concatenate([chain, latest])
        rows, used = rows_of(believed, chain[chain >= 0].astype(np.int64)), content_of(self.used)
        own = rows_of(of_raters, raters)

        def undo() -> None:
            rows()
            own()
            used()

        return undo

    def mark(self) -> Undo:
        """Return a function that puts back all but the content of the sittings there are.

        Raters that will be added are taken away.
        """
        own, n, used = vars(self).copy(), self.n_raters, content_of(self.used)
        last, smoothed = self.last, self.smoothed

        def undo() -> None:
            if self.n_raters > n:
                last[n : self.n_raters] = -1
                smoothed[n : self.n_raters] = 0
            used()
            restore(vars(self), own)

        return undo

    def reserve(self, n: int, histories: list[History]) -> None:
        """Make room for n more sittings; those that nobody refers to make room first."""
        if self.has_room(n):
            return
        self.compact(histories)
        if 2 * (int(self.used[0]) + n) > self.time.size:
            self._grow(2 * (int(self.used[0]) + n))

    def compact(self, histories: list[History]) -> None:
        """Forget sittings that are nobody's latest, of no rating on record and in no chain."""
        n, at = int(self.used[0]), _columns()
        kept = self.links[:n, at.RATER] >= 0
        for history in histories:
            listed = history.sittings()
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
            history.sitting[:] = number[np.clip(history.sitting, -1, n - 1)]

    def leave_latest(self) -> None:
        """Keep of each rater's sittings the latest as theirs: others will not be listed."""
        at, n = _columns(), int(self.used[0])
        last = self.last[: self.n_raters]
        last = last[last >= 0]
        raters = self.links[last, at.RATER]
        self.links[:n] = -1
        self.links[last, at.RATER] = raters

    def check(self) -> None:
        """Raise a `ValueError` where links, which compiled code believes, lead astray."""
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
            raise ValueError("moods: a sitting is linked to one that is not there")
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
            raise ValueError("moods: the sittings of a rater are not one after the other")

    def _grow(self, room: int) -> None:
        if room <= self.time.size:
            return
        n = self.time.size
        for name in ("table", "moods", "time", "links"):
            old = getattr(self, name)
            grown = np.zeros((room, *old.shape[1:]), old.dtype)
            grown[:n] = old
            setattr(self, name, grown)

    # -- what is believed ------------------------------------------------------------------------

    def reset(self) -> None:
        """Believe of every mood what the prior says."""
        at, n, prior = _columns(), int(self.used[0]), self.prior
        self.table[:n] = 0.0
        self.table[:n, [at.LEVEL_SPREAD, at.UNCERTAIN]] = prior.variance
        self.moods[:n] = 0.0
        self.moods[:n, at.SPREAD] = prior.variance + prior.extra

    def of(self, seats: Any) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of the moods of these sittings."""
        mean, spread = self.moods[seats].astype(np.float64).T
        return mean, spread

    def at(self, users: Int64Array, when: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of these users' moods at these times; -1 is a stranger.

        See `hemf.model.moods.mood_at`. Where not every rating is listed, of each rater only the
        latest sitting is known.
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
        """Return sittings by rater and time, and where each rater's begin and the last end."""
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
        """KL(q(l, g) ‖ p(l, g)) of the sittings that are somebody's.

        Unless all of them are on record, they are the latest, and p(l) what was expected then.
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
        rest = values[there, at.PULL] / np.maximum(values[there, at.PRECISION], 1e-300)
        squares = share**2 * ((rest - level[there]) ** 2 + spread[there])
        total += 0.5 * float(np.sum(squares / prior.extra - share - np.log1p(-share)))
        return total


def _gaussian(apart: Float64Array, variance: Float64Array, prior: Float64Array | float) -> float:
    """KL between normal distributions, summed up; ``apart`` are their means."""
    ratio = variance / prior
    return 0.5 * float(np.sum(ratio + apart**2 / prior - 1.0 - np.log(ratio)))


def _columns() -> Any:
    from hemf.kernels import moods as filtering

    return filtering


# -- learning ------------------------------------------------------------------------------------


class Seated(NamedTuple):
    """The sittings of a batch's ratings; of no size without moods."""

    now: Int64Array
    before: Int64Array
    """Those that their pairs had on record, or -1."""
    touched: Int64Array
    """Raters whose moods have something new to learn from, once it is on record."""


def seat(
    state: OnlineState,
    users: Int64Array,
    items: Int64Array,
    codes: Int64Array,
    previous: Int64Array,
    times: Int64Array | None,
) -> Seated:
    """Find the sittings of ratings, of which those that are not there begin.

    Where not every rating will be listed, each tells of its mood at once, in the order of time.
    """
    from hemf.kernels import moods as filtering

    nothing = np.zeros(0, np.int64)
    if state.moods is None:
        return Seated(nothing, nothing, nothing)
    store = state.stores["user"]
    state.keep_moods(np.unique(users))
    types = store.mean.dtype, store.history.code.dtype
    now, before = np.full(codes.size, -1), np.full(codes.size, -1)
    when = np.zeros(codes.size, np.int64) if times is None else times
    filtering.recall_seats.compiled(*types)(users, items, binding.rows(state, "user"), before)
    arrays = state.moods.arrays()
    if state.is_complete:
        filtering.seat_all.compiled(*types)(users, when, codes, 1, arrays, now)
        is_same = (now == before) & (codes == previous)
        return Seated(now, before, np.unique(users[~is_same]))
    order = np.argsort(when, kind="stable")
    seats = np.full(codes.size, -1)
    filtering.filter_all.compiled(*types)(
        users[order], items[order], codes[order], previous[order], when[order],
        *binding.pair(state, "user"), binding.rules(state), arrays, seats,
    )  # fmt: skip
    now[order] = seats
    return Seated(now, before, nothing)


def smooth(state: OnlineState, raters: Int64Array, *, learn: bool = False) -> None:
    """Bring the moods of these raters to their optimum; with ``learn``, of all, the prior too.

    Every rating must be on record.
    """
    from hemf.kernels.moods import FILTER_SUMS, smooth_all

    moods, dtype = state.moods, state.stores["user"].mean.dtype
    assert moods is not None
    state.keep_moods(raters)
    run = smooth_all.compiled(dtype, state.stores["user"].history.code.dtype)
    both, rules = binding.pair(state, "user"), binding.rules(state)
    used = moods.prior
    for turn in range(ROUNDS if learn else 1):
        sums = np.zeros(FILTER_SUMS)
        moods.prior = used
        run(raters, *both, rules, moods.arrays(), int(turn == 0), sums)
        if learn:
            first, now, before, product, extra, *counts = sums.tolist()
            n_raters, n_sittings = map(int, counts)
            used = learn_mood_prior(
                used, MoodSums(first, now, before, product, extra, 0.0, n_raters, n_sittings)
            )


def put_on_record(state: OnlineState) -> None:
    """Write what smoothing needs of the ratings on record; no mood changes."""
    moods, at = state.moods, _columns()
    assert moods is not None
    levels = moods.table[:, [at.LEVEL, at.LEVEL_SPREAD]]
    believed = moods.moods.copy()
    smooth(state, np.arange(state.stores["user"].n_rows))
    moods.table[:, [at.LEVEL, at.LEVEL_SPREAD]] = levels
    moods.moods[:] = believed


def learn_when_due(state: OnlineState) -> None:
    """Smooth all moods and learn their prior, where enough has happened since."""
    moods, store = state.moods, state.stores["user"]
    if moods is None or not state.is_complete or not store.n_rows:
        return
    turned = store.totals[2] - moods.refreshed >= store.n_rows
    if turned and state.seen - moods.learnt_at >= GROWN * store.history.n_ratings:
        learn(state)


def learn(state: OnlineState) -> None:
    """Smooth all moods and, if hyper-parameters are learnt at all, learn their prior."""
    moods, store = state.moods, state.stores["user"]
    assert moods is not None
    smooth(state, np.arange(store.n_rows), learn=state.options.evb is not None)
    if state.options.evb is not None:
        _open(state, moods)
    moods.learnt_at, moods.refreshed = state.seen, float(store.totals[2])


def _open(state: OnlineState, moods: OnlineMoods) -> None:
    """Begin anew with a prior that has closed, where that raises the bound.

    What factors have explained of a few sittings leaves nothing for moods, and from next to
    nothing their variances grow by a part of themselves: not in any number of turns.
    """
    start, prior = MoodPrior(), moods.prior
    if prior.variance + prior.extra >= CLOSED * (start.variance + start.extra):
        return
    before, kept = _worth(state, moods), (moods.table.copy(), moods.moods.copy())
    total, smoothed = state.total.copy(), moods.smoothed.copy()
    moods.prior = start
    smooth(state, np.arange(state.stores["user"].n_rows), learn=True)
    if not _worth(state, moods) > before:
        moods.prior, moods.smoothed = prior, smoothed
        (moods.table[:], moods.moods[:]), state.total[:] = kept, total


def _worth(state: OnlineState, moods: OnlineMoods) -> float:
    """Return the part of the bound that depends on moods and their prior."""
    history = state.stores["user"].history
    indptr, items, codes = history.to_rows()
    users = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    wholes = items.astype(np.int64), codes.astype(np.int64)
    errors = float(state._errors(users, *wholes, history.sittings()).sum())
    return -0.5 * errors / state.noise - moods.divergence(complete=True)
