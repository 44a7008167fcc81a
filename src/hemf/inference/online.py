"""Online variational Bayes (oVB): rows change as their ratings arrive, and nothing else is read.

MODEL.md, "Online VB". A batch of ratings is recorded on the users' side, the users it touches are
refreshed, then the same for items; communities follow from statistics that have changed by the
touched rows alone. Ratings one at a time take the same steps inside one compiled loop.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.inference import (
    binding,
    jumps,
    online_features,
    online_moods,
    opening,
    origins,
    outliers,
    retiring,
    shared,
    widening,
)
from hemf.inference.batch import SIDES, bound_terms
from hemf.inference.beginnings import (
    FIRST_RESTART,
    add_rows,
    is_young,
)
from hemf.inference.fit import FitOptions
from hemf.inference.history import RatingBook, distinct
from hemf.inference.journal import Journal
from hemf.inference.online_moods import OnlineMoods
from hemf.inference.online_options import OnlineOptions
from hemf.inference.rowstore import REFRESHED, RowStore
from hemf.inference.savepoints import Undoable
from hemf.inference.settled import OTHER, make_possible
from hemf.inference.watch import Watch
from hemf.model.noise import NoiseScales
from hemf.model.packing import Array, Float64
from hemf.model.side import Moments, Side

Wholes = npt.NDArray[np.int64]

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
    """Ratings on record when directions were last opened: `inference.opening`."""
    open_from: float = 0.0
    """Ratings learnt before which there cannot be enough to open others."""
    means: dict[str, Float64] = field(default_factory=dict)
    """Factors as of when the other side's sums were last carried along: `inference.settled`."""
    carried_at: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when that was."""
    spreads: dict[str, Array] = field(default_factory=dict)
    """Mean posterior covariance of each side, see there too."""
    spread_at: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """Refreshes of each side when that was computed."""
    total: Float64 = field(default_factory=lambda: np.zeros(0))
    """Where every rating is on record, the `squared_error`, kept up to date, and the largest that
    was added to it or taken off since it was last added up."""
    count_at: int = 0
    """Ratings learnt when it is next added up anew: rounding would gather in it."""
    features: dict[str, online_features.RowFeatures] = field(default_factory=dict)
    """What is known of the rows of sides with features."""
    moods: OnlineMoods | None = None
    """Moods of raters, or None where there are none, and times are not looked at."""
    observed: outliers.ObservedRange | None = None
    """Of the ratings on record, where all are; None until it is asked for."""
    outlier: outliers.Outlier | None = None
    """The earliest rating on record that is far outside all others, if there is one."""
    journal: Journal | None = field(default=None, repr=False, compare=False)
    """Where to keep what is about to change, while a call may have to be undone."""
    watch: Watch = field(default_factory=Watch)
    """Errors of forecasts of the ratings learnt so far."""
    recent: Wholes = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """User, item and code of the latest ratings, which jumps are judged by: `inference.jumps`."""
    widen_at: int = 0
    """Ratings learnt when a wider prior is tried, see `inference.widening`; 0 is never."""

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

    def with_stranger(self, name: str) -> Moments:
        """Moments of a side's rows, in place, and at the end of one that nothing is known of."""
        moments = self.stores[name].moments_and(*self.sides[name].stranger)
        self.point(name)  # the rows may have moved to make room
        return moments

    def counts(self, name: str, rows: Wholes | None = None) -> Wholes:
        """How many ratings each row of a side has, or each of these."""
        counts: Wholes = self.stores[name].count
        return counts if rows is None else np.asarray(counts[rows])

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[npt.NDArray[np.int32], Float64]:
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
            if side.regression is not None and store.told.any():  # or rows do not follow V yet
                sides[name] = copy(side)
                sides[name].regression = side.regression.heard(float(store.told @ store.doubt))
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
        self, users: Wholes, items: Wholes, codes: Wholes, previous: Wholes,
        times: Wholes | None = None, *, learn: bool = True,
    ) -> int:  # fmt: skip
        """Learn a batch of ratings at once, and return how many are of pairs not rated before.

        A code of -1 takes the ``previous`` one out. Rows and codes are all known; no pair is there
        twice. ``times`` are looked at where there are moods, and must be there then.
        """
        rows, begun = {"user": users, "item": items}, outliers.refreshes(self)
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
        if outliers.observe(self, codes[codes >= 0], previous[previous >= 0], begun):
            outliers.settle(self, {name: distinct(rows[name]) for name in SIDES})
        if self.window > 0:
            retiring.retire(self, added)
        jumps.remember(self, users, items, codes)
        if learn:
            errors = None
            if self.window == 0:
                columns = users, items, codes, *([seated.now] if seated.now.size else [])
                errors = self._errors(*shared.sample(self.rng, *columns))
            online_moods.learn_when_due(self)
            shared.learn_noise(self, "item", errors, int((codes >= 0).sum()))
            shared.learn_priors(self)
            shared.refresh_stale(self, codes.size)
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

    def recall(self, users: Wholes, items: Wholes, values: Any = None) -> Wholes:
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

    def _replaced(self, users: Wholes, items: Wholes, codes: Wholes) -> tuple[Wholes, Wholes]:
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
        self, users: Wholes, items: Wholes, codes: Wholes, times: Wholes | None = None
    ) -> tuple[Float64, Wholes]:
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
            begun = outliers.refreshes(self)
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
                if shared.is_due(self, name):
                    shared.learn_row_scales(self, name)
            if outliers.observe(self, *replaced, begun):
                outliers.settle(
                    self, {"user": distinct(users[part]), "item": distinct(items[part])}
                )
            online_moods.learn_when_due(self)
            shared.learn_noise(self, "user", errors[part] if self.window == 0 else None)
            shared.learn_priors(self)
            shared.refresh_stale(self, errors[part].size)
            self._end()
        return forecasts, spent

    def _end(self, *, learn: bool = True) -> None:
        """Take note that something was learnt; begin anew or open directions where that is due."""
        self.changes += 1
        if self.is_buffering and self.n_ratings > self.options.buffer:
            retiring.end_buffering(self)
        if not learn:
            return
        if is_young(self):
            if self.seen >= self.restart_at:
                origins.start_again(self)
        else:
            if widening.is_due(self):
                widening.widen_priors(self)
            if opening.is_due(self):
                opening.open_directions(self)

    def refresh(self, name: str, rows: Wholes, *, learn: bool = True, bound: Any = None) -> None:
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

    def _refresh_rows(self, name: str, rows: Wholes, learn: bool, bound: Any) -> None:
        self.keep(name, rows, REFRESHED)
        own, other, rules = bound or (*self._pair(name), binding.rules(self))
        common = binding.shared(self, name)
        memory = binding.scratch(own, common)
        binding.kernel(self, "refresh_all")(rows, own, other, common, rules, memory)
        side, store = self.sides[name], self.stores[name]
        store.met[rows] = int(self.stores[OTHER[name]].totals[2])
        if learn and shared.is_due(self, name):
            shared.learn_row_scales(self, name, all_fresh=rows.size == store.n_rows)
        side.statistics = store.statistics

    def _due(self, name: str, rows: Wholes) -> Wholes:
        """Return which rows, of those that ratings were recorded for, are to be refreshed now."""
        touched, store, other = distinct(rows), self.stores[name], OTHER[name]
        wait = binding.patience(self.options, self.window, name)
        if wait == 0.0:
            return touched
        changed = self.stores[other].totals[2] - store.met[touched]
        is_due = changed > binding.CHANGE * self.stores[other].n_rows
        due: Wholes = touched[is_due | (store.pending[touched] > wait * store.count[touched])]
        return due

    # -- shared parameters -----------------------------------------------------------------------

    def _errors(self, users: Wholes, items: Wholes, codes: Wholes, seats: Any = None) -> Float64:
        """τ υ E(r - o - a·b)² of each rating that was not taken out; ``seats`` are its sittings."""
        return shared.errors(self, users, items, codes, seats)

    # -- for the kernels -------------------------------------------------------------------------

    def _reserve(self, rows: dict[str, Wholes]) -> dict[str, tuple[Wholes, Wholes]]:
        """Make room for ratings; return each side's rows, and how many are recorded for each."""
        added: dict[str, tuple[Wholes, Wholes]] = {}
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

    def levels(self) -> Float64:
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
