"""A state that can go back to what it was; `hemf.online.journal` says how."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf._typing import OTHER, SIDES, Array, Float64Array, Int64Array
from hemf.batch.options import FitOptions
from hemf.batch.sweep import bound_terms
from hemf.model.noise import NoiseScales
from hemf.model.side import Moments, Side
from hemf.online import adoption, binding, directions, eviction, guards, jumps, updates
from hemf.online import features as online_features
from hemf.online import moods as online_moods
from hemf.online.binding import patience
from hemf.online.guards import Watch
from hemf.online.history import RatingBook, distinct
from hemf.online.journal import Journal, content_of, generator_state, mappings_of
from hemf.online.moods import OnlineMoods
from hemf.online.options import ALL, OnlineOptions
from hemf.online.store import (
    ALL_ARRAYS,
    FIRST_RESTART,
    PLACE,
    RECORDED,
    REFRESHED,
    SUMS,
    WHOLE,
    RowStore,
    add_rows,
    is_young,
)
from hemf.online.sums import make_possible

if TYPE_CHECKING:
    from hemf.model.side import Side
    from hemf.online.features import RowFeatures
    from hemf.online.history import RatingBook


@cache
def _mappings(cls: Any) -> list[str]:
    """Names of the fields of a state that are dictionaries."""
    return [field.name for field in fields(cls) if str(field.type).startswith("dict[")]


class Undoable:
    """What a state that learns online has to announce before it changes, so as to be undone.

    Every function that writes to rows, histories or moods in place announces it by one of the
    ``keep`` methods. Anything else is copied when a savepoint is made.
    """

    sides: dict[str, Side]
    stores: dict[str, RowStore]
    book: RatingBook
    options: OnlineOptions
    is_buffering: bool
    rng: np.random.Generator
    total: Float64Array
    features: dict[str, RowFeatures]
    moods: OnlineMoods | None
    journal: Journal | None

    @property
    def window(self) -> int:
        """Ratings of each row that are kept as of now; `ALL` while a stream is buffered."""
        return ALL if self.is_buffering else self.options.window

    @property
    def is_complete(self) -> bool:
        """Whether every rating is in the history."""
        return self.window == ALL

    def savepoint(self) -> int:
        """Return a place for `back_to`: everything can be put back, to the bit, as it is now.

        Small things are copied at once. Rows, their histories and moods are kept when `keep` and
        the like announce that they will change, which every function that changes them has to do.
        Savepoints may be nested.
        """
        journal = self.journal
        if journal is None or not journal.is_open:
            self.journal = journal = Journal()
        mark = journal.mark()
        own = vars(self)
        mappings: list[dict[Any, Any]] = [own, vars(self.book)]
        mappings += [vars(side) for side in self.sides.values()]
        cls: Any = type(self)
        mappings += [own[name] for name in _mappings(cls)]
        for features in self.features.values():
            mappings += [vars(features), features.later]
        arrays = [self.total]
        add = journal.add
        for store in self.stores.values():
            arrays += [store.size, store.first, store.scatter, store.totals]
            add(store.mark())
            add(store.history.mark())
        add(mappings_of(mappings))
        add(content_of(*arrays))
        add(generator_state(self.rng))
        if self.moods is not None:
            journal.add(self.moods.mark())
        return mark

    def back_to(self, savepoint: int) -> None:
        """Undo everything since a `savepoint`; it can be made once more."""
        journal = self.journal
        assert journal is not None
        journal.undo(savepoint)

    def release(self, savepoint: int) -> None:
        """Let what was done since a `savepoint` stay, unless an earlier one is gone back to."""
        if savepoint == 0 and self.journal is not None:
            self.journal.close()

    @property
    def _open_journal(self) -> Journal | None:
        """The journal, where anything is to be kept in it."""
        return self.journal if self.journal is not None and self.journal.is_open else None

    def keep(
        self, name: str, rows: Int64Array | None = None, only: Collection[str] | None = None
    ) -> None:
        """Announce that rows of a side, or all, will change; ``only`` some of the `RowArrays`."""
        journal, store = self._open_journal, self.stores[name]
        if journal is None or journal.has(None, store):
            return
        if rows is None:
            if journal.once(None if only is None else tuple(only), store):
                store.keep_all(journal, ALL_ARRAYS if only is None else only)
        elif rows.size:
            store.keep(journal, rows, ALL_ARRAYS if only is None else tuple(only))

    def keep_outside(self, name: str, rows: Int64Array, n: Any, *, back: bool = False) -> None:
        """Announce that ratings outside the newest of these rows will be summed up.

        That changes the rows and those of the other side; see `History.outside`.
        """
        journal = self._open_journal
        if journal is not None:
            partners = self.stores[name].history.outside(rows, n, self.window, back=back)
            if partners.size:
                self.stores[OTHER[name]].keep(journal, partners, SUMS, lists=WHOLE)

    def keep_moods(self, raters: Int64Array | None = None) -> None:
        """Announce that the moods of these raters, or of all, will change."""
        journal = self._open_journal
        if journal is not None and self.moods is not None:
            if raters is not None and raters.size == self.moods.n_raters:
                raters = None
            if raters is not None or journal.once(None, self.moods):
                journal.add(self.moods.keep(raters))

    def keep_sittings(self) -> None:
        """Announce that sittings will get other numbers."""
        journal = self._open_journal
        if journal is not None:
            self.keep_moods()
            pools = [store.history.sitting for store in self.stores.values()]
            journal.add(content_of(*pools))

    def keep_batch(self, rows: dict[str, Int64Array]) -> None:
        """Announce that ratings of these rows of each side will be learnt at once."""
        journal, window = self._open_journal, self.window
        if journal is None:
            return
        lists = 0 if window == 0 else WHOLE if window > 0 else PLACE
        for name, own in rows.items():
            touched = distinct(own)
            # One row that is refreshed at once is kept in one step rather than two.
            is_refreshed = touched.size == 1 and patience(self.options, window, name) == 0.0
            names = ALL_ARRAYS if is_refreshed else RECORDED
            self.stores[name].keep(journal, touched, names, lists=lists)

    def keep_changed(self, rows: dict[str, Int64Array], is_changed: npt.NDArray[np.bool_]) -> None:
        """Announce which ratings of a batch change or take back one that is listed."""
        journal = self._open_journal
        if journal is not None and self.is_complete and is_changed.any():
            for name, own in rows.items():
                self.stores[name].keep(journal, distinct(own[is_changed]), (), lists=WHOLE)

    def keep_stream(self, users: Int64Array, items: Int64Array) -> None:
        """Announce that these pairs will be rated one after the other."""
        journal, window = self._open_journal, self.window
        if journal is None:
            return
        for name, own in (("user", users), ("item", items)):
            touched, counts = np.unique(own, return_counts=True)
            self.stores[name].keep(journal, touched, lists=WHOLE if window != 0 else 0)
            if window > 0:
                self.keep_outside(name, touched, counts, back=True)
        self.keep_moods(distinct(users))


# ------------------------------------------------------------------------------------------------
# Online variational Bayes (oVB): rows change as their ratings arrive, and nothing else is read.
#
# docs/model.md#online-rows. A batch of ratings is recorded on the users' side, the users it touches
# are
# refreshed, then the same for items; communities follow from statistics that have changed by the
# touched rows alone. Ratings one at a time take the same steps inside one compiled loop.


ONE = np.ones(1, np.int64)
BLOCK = 1000  # ratings of a stream between updates of the communities
FOLLOW = 0.05  # refreshes of each row of a side after which its communities follow
MOST_ROUNDING = 1e-6  # of the total of all errors
PLENTY = 20.0  # ratings for each unknown
RENEWAL = 1.0  # of sums that began with poor factors


@dataclass
class OnlineState(Undoable):
    """Everything that a rating may change."""

    sides: dict[str, Side]
    stores: dict[str, RowStore]
    book: RatingBook
    options: OnlineOptions
    noise: float
    """σ², in units of the ratings' variance."""
    centre: float
    unit: float
    """Mean and scale that ratings are standardised with."""
    rng: np.random.Generator
    is_buffering: bool = False
    """Whether every rating is still kept although the history asked for keeps fewer."""
    renewal: float = RENEWAL
    """How much more new ratings of pairs rated again and again weigh in sums: `kernels.record`."""
    start_scale: float = 0.0
    """Of the factors that a new row starts with, where there is nothing yet to learn from."""
    sweeps: int = 0
    seen: int = 0
    """Ratings learnt, repetitions included."""
    refreshed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when its hyper-parameters were last learnt."""
    searched: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when it was last searched for a new community."""
    followed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when its communities last followed from its rows."""
    known: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    """Ratings there were when hyper-parameters were last learnt."""
    changes: int = 0
    """Counts up with everything that is learnt."""
    fit: FitOptions | None = None
    """How to begin anew, where the stream began from nothing."""
    restart_at: int = FIRST_RESTART
    opened_at: int = 0
    """Ratings on record when directions were last opened: `online.directions`."""
    open_from: float = 0.0
    """Ratings learnt before which there cannot be enough to open others."""
    means: dict[str, Float64Array] = field(default_factory=dict)
    """Factors as of when the other side's sums were last carried along: `online.sums`."""
    carried_at: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when that was."""
    spreads: dict[str, Array] = field(default_factory=dict)
    """Mean posterior covariance of each side, see there too."""
    spread_at: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when that was computed."""
    total: Float64Array = field(default_factory=lambda: np.zeros(0))
    """Where every rating is on record, the `squared_error`, kept up to date, and the largest that
    was added to it or taken off since it was last added up."""
    count_at: int = 0
    """Ratings learnt when it is next added up anew: rounding would gather in it."""
    features: dict[str, online_features.RowFeatures] = field(default_factory=dict)
    """What is known of the rows of sides with features."""
    moods: OnlineMoods | None = None
    """Moods of raters, or None where there are none, and times are not looked at."""
    observed: guards.ObservedRange | None = None
    """Of the ratings on record, where all are; None until it is asked for."""
    outlier: guards.Outlier | None = None
    """The earliest rating on record that is far outside all others, if there is one."""
    journal: Journal | None = field(default=None, repr=False, compare=False)
    """Where to keep what is about to change, while a call may have to be undone."""
    watch: Watch = field(default_factory=Watch)
    """Errors of forecasts of the ratings learnt so far."""
    recent: Int64Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """User, item and code of the latest ratings, which jumps are judged by: `online.jumps`."""
    widen_at: int = 0
    """Ratings learnt when a wider prior is tried, see `online.directions`; 0 is never."""

    # -- what is believed ------------------------------------------------------------------------

    @property
    def n_ratings(self) -> int:
        """How many ratings the state explains."""
        return int(self.stores["user"].count.sum())

    @property
    def n_unknown(self) -> int:
        """How many numbers the ratings are to determine: offsets and factors of all rows."""
        return sum(store.n_rows * store.layout.order for store in self.stores.values())

    @property
    def has_plenty(self) -> bool:
        """Whether there are so many ratings for each unknown that no direction can be missed."""
        return self.n_ratings >= PLENTY * self.n_unknown

    @property
    def squared_error(self) -> float:
        """Σ τ_i υ_j E(r_ij - a_i·b_j)²; as of each item's last refresh where ratings are gone."""
        if not self.can_be_exact:
            return float(self.stores["item"].totals[1])
        history = self.stores["user"].history
        indptr, items, codes = history.to_rows()
        users = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        wholes = items.astype(np.int64), codes.astype(np.int64)
        return float(self._errors(users, *wholes, history.sittings()).sum())

    @property
    def can_be_exact(self) -> bool:
        """Whether every rating is on record and counts as much as any other."""
        return self.is_complete and min(self.options.forgetting.values()) == 1.0

    @property
    def knows_total(self) -> bool:
        """Whether the squared error of all ratings is kept up to date."""
        return self.total.size > 0

    def add_up(self) -> None:
        """Add up the squared error of all ratings, where it can be known exactly."""
        self.total = np.array([self.squared_error, 0.0] if self.can_be_exact else [])
        self.count_at = self.seen + max(self.n_ratings, BLOCK)

    def take_total(self) -> None:
        """Take the squared error of all ratings from users whose errors are all of today."""
        total = float(self.stores["user"].totals[1])
        self.total = np.array([total, 0.0] if self.can_be_exact else [])
        self.count_at = self.seen + max(self.n_ratings, BLOCK)

    def check_total(self) -> None:
        """Add it up anew where rounding has, or may have, gathered in it.

        What a mistyped rating adds and takes back again may be so large that little else is left.
        """
        rounding = float(np.finfo(self.stores["user"].mean.dtype).eps) * self.total[1]
        lost = self.total[0] <= 0.0 or rounding > MOST_ROUNDING * self.total[0]
        if self.seen >= self.count_at or lost:
            self.add_up()

    def follow(self, options: OnlineOptions) -> None:
        """Learn in another way from now on."""
        forgets_otherwise = options.forgetting != self.options.forgetting
        self.options = options
        if forgets_otherwise:  # what ratings are worth is on record with the rows
            self.add_up()
            for name in SIDES:
                self.refresh(name, np.arange(self.stores[name].n_rows), learn=False)

    @property
    def is_online(self) -> bool:
        """Whether learning changes the arrays in place."""
        return True

    def current_moments(self, name: str) -> Moments:
        """Moments of a side's rows; those without a rating are what their features say."""
        online_features.welcome(self, name)
        return self.sides[name].moments

    def with_stranger(self, name: str) -> Moments:
        """Moments of a side's rows, in place, and at the end of one that nothing is known of."""
        moments = self.stores[name].moments_and(*self.sides[name].stranger)
        self.point(name)  # the rows may have moved to make room
        return moments

    def counts(self, name: str, rows: Int64Array | None = None) -> Int64Array:
        """How many ratings each row of a side has, or each of these."""
        counts: Int64Array = self.stores[name].count
        return counts if rows is None else np.asarray(counts[rows])

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[npt.NDArray[np.int32], Float64Array]:
        """Rows of the other side that a row has rated, ascending, and the standardised ratings.

        They are those in the history, less moods unless they are to be ``as_given``.
        """
        history = self.stores[name].history
        others, codes = history.row(row)
        values = self.levels()[codes]
        if self.moods is not None and not as_given:
            first = int(history.start[row])
            values -= self.moods.of(history.sitting[first : first + others.size])[0]
        order = np.argsort(others)
        return others[order], values[order]

    def bound_terms(self, squared_error: float | None = None) -> dict[str, float]:
        """Return the lower bound by term, of the ratings on record.

        Their ``squared_error`` is added up where it is not given.
        """
        if squared_error is None:
            squared_error = self.squared_error
        counts = {name: self.counts(name) for name in SIDES}
        terms = bound_terms(self.current_sides(), counts, squared_error, self.noise, self.unit)
        if self.moods is not None:
            terms["mood"] = -self.moods.divergence(complete=self.is_complete)
        return terms

    def current_sides(self) -> dict[str, Side]:
        """Return the sides with the leverage of their rows as they are now; none is changed."""
        sides = dict(self.sides)
        for name in self.features:
            side, store = self.sides[name], self.stores[name]
            if (
                side.regression is not None and store.information.any()
            ):  # or rows do not follow V yet
                sides[name] = copy(side)
                sides[name].regression = side.regression.with_leverage(
                    float(store.information @ store.leverage)
                )
        return sides

    # -- learning --------------------------------------------------------------------------------

    def add_rows(self, name: str, n: int) -> None:
        """Add rows that nothing is known of; they wait for their first rating."""
        if n > 0:
            add_rows(self.stores[name], self.sides[name], n, self.start_scale, self.rng)
            online_features.expect(self, name, self.stores[name].n_rows - n)
            self.point(name)
            if name == "user" and self.moods is not None:
                self.moods.add_raters(n)

    def absorb(
        self, users: Int64Array, items: Int64Array, codes: Int64Array, previous: Int64Array,
        times: Int64Array | None = None, *, learn: bool = True,
    ) -> int:  # fmt: skip
        """Learn a batch of ratings at once, and return how many are of pairs not rated before.

        A code of -1 takes the ``previous`` one out. Rows and codes are all known; no pair is there
        twice. ``times`` are looked at where there are moods, and must be there then.
        """
        rows, begun = {"user": users, "item": items}, guards.refreshes(self)
        self.keep_batch(rows)
        added = self._reserve(rows)
        bound = {name: binding.rows(self, name) for name in SIDES}
        if self.window != 0:
            if not self.options.counts_repeats:
                kept = self.recall(users, items)
                previous = kept if self.is_complete else np.where(kept >= 0, kept, previous)
            self.keep_changed(rows, previous >= 0)
        seated = online_moods.seat(self, users, items, codes, previous, times)
        if self.knows_total:
            gone = self._errors(users, items, previous, seated.before).sum()
            come = self._errors(users, items, codes, seated.now).sum()
            self.total[:] = self.total[0] + come - gone, max(self.total[1], come, gone)
        is_new = np.zeros(codes.size, np.int64)
        self.seen += codes.size
        for name in SIDES:
            other = OTHER[name]
            at_hand = bound[name], bound[other], binding.rules(self)
            binding.kernel(self, "record_all")(
                rows[name], rows[other], codes, previous, *at_hand,
                self.options.forgetting[name], is_new, binding.outer(self), seated.now,
            )  # fmt: skip
            if name == "user" and seated.touched.size:
                online_moods.smooth(self, seated.touched)
            if not self.is_complete and (previous >= 0).any():
                make_possible(self.stores[name], np.unique(rows[name][previous >= 0]))
            self.refresh(name, self._due(name, rows[name]), learn=learn, bound=at_hand)
        if guards.observe(self, codes[codes >= 0], previous[previous >= 0], begun):
            guards.settle(self, {name: distinct(rows[name]) for name in SIDES})
        if self.window > 0:
            eviction.retire(self, added)
        jumps.remember(self, users, items, codes)
        if learn:
            errors = None
            if self.window == 0:
                columns = users, items, codes, *([seated.now] if seated.now.size else [])
                errors = self._errors(*updates.sample(self.rng, *columns))
            online_moods.learn_when_due(self)
            updates.learn_noise(self, "item", errors, int((codes >= 0).sum()))
            updates.learn_priors(self)
            updates.refresh_stale(self, codes.size)
        self._end(learn=learn)
        return int(is_new.sum())

    @property
    def lists_all(self) -> bool:
        """Whether every rating is still listed, whatever the history may evict later."""
        store = self.stores["user"]
        return bool((store.count == store.history.length).all())

    @property
    def block(self) -> int:
        """How many ratings of a stream may pass between updates of the communities."""
        return int(np.clip(self.seen // 100, 20, BLOCK))

    def recall(self, users: Int64Array, items: Int64Array, values: Any = None) -> Int64Array:
        """Return the code that each pair has in the history, -1 where it has none.

        Where a pair may be listed several times, it is that of a rating of these ``values``; they
        are compared in float32 too, which ratings may have been given or kept in.
        """
        codes = np.full(users.size, -1, np.int64)
        binding.kernel(self, "recall_all")(users, items, binding.rows(self, "user"), codes)
        if self.options.counts_repeats and values is not None:
            for k in np.flatnonzero(codes >= 0):
                others, listed = self.stores["user"].history.row(int(users[k]))
                there = listed[others == items[k]]
                kept, wanted = self.book.values[there], np.float64(values[k])
                match = there[(kept == wanted) | (kept == np.float32(wanted))]
                codes[k] = match[-1] if match.size else -1
        return codes

    def _replaced(
        self, users: Int64Array, items: Int64Array, codes: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Codes that a part of a stream adds to the ratings on record, and those it replaces.

        Without a full history nobody asks for them, and both are empty.
        """
        if not self.is_complete:
            return codes[:0], codes[:0]
        if self.options.counts_repeats:
            return codes, codes[:0]
        before = self.recall(users, items)
        pairs = users * np.int64(self.stores["item"].n_rows) + items
        first = np.unique(pairs, return_index=True)[1]
        last = pairs.size - 1 - np.unique(pairs[::-1], return_index=True)[1]
        before = before[first]
        return codes[last], before[before >= 0]

    def predict_then_learn(
        self,
        users: Int64Array,
        items: Int64Array,
        codes: Int64Array,
        times: Int64Array | None = None,
    ) -> tuple[Float64Array, Int64Array]:
        """Learn ratings one after the other; return what was expected of each, and its ticks.

        ``times`` are looked at where there are moods, and must be there then.
        """
        when = np.zeros(0, np.int64) if times is None else times
        forecasts, errors = np.empty(codes.size), np.empty(codes.size)
        spent = np.zeros(codes.size, np.int64)
        # Stale rows take turns, at most a block of them at a time.
        step = max(int(BLOCK / max(self.options.refresh, 1.0)), 1)
        for begin in range(0, codes.size, step):
            part = slice(begin, begin + step)
            self.keep_stream(users[part], items[part])
            self._reserve({"user": users[part], "item": items[part]})
            replaced = self._replaced(users[part], items[part], codes[part])
            begun = guards.refreshes(self)
            rows = {name: binding.rows(self, name) for name in SIDES}
            common = {name: binding.shared(self, name) for name in SIDES}
            binding.kernel(self, "stream")(
                users[part], items[part], codes[part], rows["user"], rows["item"],
                common["user"], common["item"], binding.rules(self),
                forecasts[part], errors[part], spent[part],
                *(binding.scratch(rows[name], common[name]) for name in SIDES),
                binding.outer(self), when[part], binding.sittings(self),
            )  # fmt: skip
            self.seen += errors[part].size
            jumps.remember(self, users[part], items[part], codes[part])
            for name in SIDES:
                self.sides[name].refresh(self.stores[name].statistics)
                if updates.is_due(self, name):
                    updates.learn_row_scales(self, name)
            if guards.observe(self, *replaced, begun):
                guards.settle(self, {"user": distinct(users[part]), "item": distinct(items[part])})
            online_moods.learn_when_due(self)
            updates.learn_noise(self, "user", errors[part] if self.window == 0 else None)
            updates.learn_priors(self)
            updates.refresh_stale(self, errors[part].size)
            self._end()
        return forecasts, spent

    def _end(self, *, learn: bool = True) -> None:
        """Take note that something was learnt; begin anew or open directions where that is due."""
        self.changes += 1
        if self.is_buffering and self.n_ratings > self.options.buffer:
            eviction.end_buffering(self)
        if not learn:
            return
        if is_young(self):
            if self.seen >= self.restart_at:
                adoption.start_again(self)
        else:
            if directions.is_widening_due(self):
                directions.widen_priors(self)
            if directions.is_opening_due(self):
                directions.open_directions(self)

    def refresh(
        self, name: str, rows: Int64Array, *, learn: bool = True, bound: Any = None
    ) -> None:
        """Bring these rows, then the communities of their side, to their optimum.

        ``bound`` are both sides' rows and the rules as kernels take them, where they are at hand.
        """
        side, store = self.sides[name], self.stores[name]
        is_all = rows.size == store.n_rows
        self._refresh_rows(name, rows, learn, bound)
        if is_all:
            if learn and online_features.learn(self, name):
                self._refresh_rows(name, rows, learn, None)
            online_features.regress(self, name)
        if store.totals[2] - self.followed[name] >= FOLLOW * store.n_rows:
            self.followed[name] = float(store.totals[2])
            side.refresh()

    def _refresh_rows(self, name: str, rows: Int64Array, learn: bool, bound: Any) -> None:
        self.keep(name, rows, REFRESHED)
        own, other, rules = bound or (*self._pair(name), binding.rules(self))
        common = binding.shared(self, name)
        memory = binding.scratch(own, common)
        binding.kernel(self, "refresh_all")(rows, own, other, common, rules, memory)
        side, store = self.sides[name], self.stores[name]
        store.met[rows] = int(self.stores[OTHER[name]].totals[2])
        if learn and updates.is_due(self, name):
            updates.learn_row_scales(self, name, all_fresh=rows.size == store.n_rows)
        side.statistics = store.statistics

    def _due(self, name: str, rows: Int64Array) -> Int64Array:
        """Return which rows, of those that ratings were recorded for, are to be refreshed now."""
        touched, store, other = distinct(rows), self.stores[name], OTHER[name]
        wait = binding.patience(self.options, self.window, name)
        if wait == 0.0:
            return touched
        changed = self.stores[other].totals[2] - store.met[touched]
        is_due = changed > binding.CHANGE * self.stores[other].n_rows
        due: Int64Array = touched[is_due | (store.pending[touched] > wait * store.count[touched])]
        return due

    # -- shared parameters -----------------------------------------------------------------------

    def _errors(
        self, users: Int64Array, items: Int64Array, codes: Int64Array, seats: Any = None
    ) -> Float64Array:
        """τ υ E(r - o - a·b)² of each rating that was not taken out; ``seats`` are its sittings."""
        return updates.errors(self, users, items, codes, seats)

    # -- for the kernels -------------------------------------------------------------------------

    def _reserve(self, rows: dict[str, Int64Array]) -> dict[str, tuple[Int64Array, Int64Array]]:
        """Make room for ratings; return each side's rows, and how many are recorded for each."""
        added: dict[str, tuple[Int64Array, Int64Array]] = {}
        if self.moods is not None:
            histories = [store.history for store in self.stores.values()]
            if not self.moods.has_room(rows["user"].size):
                self.keep_sittings()
            self.moods.reserve(rows["user"].size, histories)
        if self.window == 0:
            return added
        self.even_codes()
        for name, own in rows.items():
            added[name] = (own, ONE) if own.size == 1 else np.unique(own, return_counts=True)
            self.stores[name].history.reserve(*added[name], len(self.book))
        self.even_codes()
        return added

    def levels(self) -> Float64Array:
        """Standardised rating of each code."""
        return (self.book.values.astype(np.float64) - self.centre) / self.unit

    def _pair(self, name: str) -> tuple[Any, Any]:
        return binding.pair(self, name)

    def error_unit(self, name: str) -> float:
        """σ² or, where errors on record are of factors long gone, their mean."""
        store = self.stores[name]
        if self.window != 0 or not store.totals[1] > 0.0:
            return float(self.noise)
        return float(store.totals[1] / max(float(store.totals[3]), 1.0))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "journal": None}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        for name in SIDES:  # a copy's sides must be those of its own stores
            self.point(name)

    def even_codes(self) -> None:
        """Hold the codes of both sides in as many bits."""
        histories = [store.history for store in self.stores.values()]
        if any(history.code.dtype == np.uint32 for history in histories):
            for history in histories:
                history.widen()

    def point(self, name: str) -> None:
        """Let a side's arrays be those of its store."""
        side, store = self.sides[name], self.stores[name]
        side.moments, side.membership = store.moments, store.membership
        online_features.point(self, name)
        if side.noise_scales is not None:
            side.noise_scales = NoiseScales(side.noise_scales.prior_shape, store.shape, store.rate)
