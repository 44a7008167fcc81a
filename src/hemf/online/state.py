"""The state of online learning: posterior, ratings on record, and the arguments of kernels.

Functions that write to rows, histories or moods in place first call one of the ``backup``
functions, which copy the present values to the journal, so that a call can be undone
(`hemf.online.journal`).
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, vstack

from hemf._options import ALL, FitOptions, OnlineOptions
from hemf._typing import (
    OTHER,
    SIDES,
    AnyArray,
    Array,
    BoolArray,
    Float64Array,
    Int32Array,
    Int64Array,
)
from hemf.data.ratings import Ratings, average_duplicates
from hemf.data.vocabulary import RatingBook, Vocabulary
from hemf.model.communities import Prior, ratings_term
from hemf.model.moods import ROUNDS, MoodSums, learn_mood_prior
from hemf.model.regression import RATED, Regression, UnknownFeatures
from hemf.model.rows import Moments, NoiseScales, lower_triangle, pair_moments
from hemf.model.side import OnlineShift, Side, bound_terms, expected_row, newcomer_moments
from hemf.online.clocks import Clocks, ObservedRange, Outlier, Watch
from hemf.online.features import RowFeatures, variance_solver
from hemf.online.journal import Journal, content_of, generator_state, mappings_of, rows_of
from hemf.online.moods import OnlineMoods, no_sessions
from hemf.online.store import (
    ALL_ARRAYS,
    PLACE,
    RECORDED,
    SUMS,
    WHOLE,
    Kernel,
    RowStore,
    distinct,
)

if TYPE_CHECKING:
    from hemf.kernels import compile as compiling
    from hemf.kernels.structures import Rows, Rules, Sessions, Shared


WIDE = 1.0  # variance of factors under the wide prior
BLOCK = 1000  # ratings of a stream between updates of the communities
MAX_ROUNDING = 1e-6  # of the total of all errors
PLENTY = 20.0  # ratings for each unknown, above which they are plenty
RENEWAL = 1.0  # of sums that began with poor factors
CHANGE = 1.0  # refreshes of each row of the other side until one that is rated is refreshed
PENDING_SHARE = {"user": 0.0, "item": 0.05}  # share of new ratings above which a row is refreshed
UNLISTED = 2.0  # times as many without history: a refresh learns from these alone
MARGIN = 0.5  # standard errors by which recent ratings must be predicted better
SCARCE = 3.0  # ratings for each unknown, below which they are scarce
WIDEN_GROWTH = 1.1  # of the ratings since the fit, until a wider prior is tried
REFIT_GROWTH = 0.25  # new ratings, as a share of all, after which a regression is fitted again
GOLDEN_RATIO = 0.5 * (np.sqrt(5.0) - 1.0)  # multiples of it, modulo one, are evenly spread


@dataclass
class OnlineState:
    """Posterior and ratings on record."""

    sides: dict[str, Side]
    stores: dict[str, RowStore]
    book: RatingBook
    options: OnlineOptions
    clocks: Clocks
    noise: float
    """σ², in units of the ratings' variance."""
    centre: float
    unit: float
    """Mean and scale that ratings are standardised with."""
    rng: np.random.Generator
    is_buffering: bool = False
    """Whether every rating is on record for now; later the history is bounded."""
    renewal: float = RENEWAL
    """Additional weight of new ratings in sums of repeatedly rated pairs: `kernels.record`."""
    start_scale: float = 0.0
    """Scale of the random factors of new rows, while nothing is learnt yet."""
    sweeps: int = 0
    changes: int = 0
    """Number of calls that changed the state."""
    fit: FitOptions | None = None
    """How to restart, for a stream that started without a fit."""
    total: Float64Array = field(default_factory=lambda: np.zeros(0))
    """The current `squared_error` where every rating is on record, and the largest number that was
    added to it or subtracted since it was last computed."""
    features: dict[str, RowFeatures] = field(default_factory=dict)
    """Features of the rows of each side that has any."""
    moods: OnlineMoods | None = None
    """Moods of raters; None where times are not used."""
    observed: ObservedRange | None = None
    """Range of the ratings on record, where all are; None until it is needed."""
    outlier: Outlier | None = None
    watch: Watch = field(default_factory=Watch)
    """Errors of forecasts of the ratings learnt so far."""
    recent: Int64Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """User, item and code of the latest ratings, by which jumps are judged."""
    journal: Journal | None = field(default=None, repr=False, compare=False)
    """Copies of what has changed, while a call may have to be undone."""

    @property
    def window(self) -> int:
        """Ratings of each row that are kept now; `ALL` while a stream is buffered."""
        return ALL if self.is_buffering else self.options.window

    @property
    def is_complete(self) -> bool:
        """Whether every rating is on record."""
        return self.window == ALL

    @property
    def lists_all(self) -> bool:
        """Whether every rating is still listed, whatever the history may evict later."""
        store = self.stores["user"]
        return bool((store.count == store.history.length).all())

    @property
    def seen(self) -> int:
        """Ratings learnt, repetitions included."""
        return self.clocks.seen

    @property
    def n_ratings(self) -> int:
        """How many ratings the state explains."""
        return int(self.stores["user"].count.sum())

    @property
    def n_unknown(self) -> int:
        """How many offsets and factors of rows the ratings are to determine."""
        return sum(store.n_rows * store.layout.order for store in self.stores.values())

    @property
    def has_plenty(self) -> bool:
        """Whether there are at least `PLENTY` ratings for each unknown."""
        return self.n_ratings >= PLENTY * self.n_unknown

    @property
    def block(self) -> int:
        """How many ratings of a stream may pass between updates of the communities.

        At most a full block of stale rows is refreshed after them.
        """
        most = max(int(BLOCK / max(self.options.refresh, 1.0)), 1)
        return min(int(np.clip(self.seen // 100, 20, BLOCK)), most)

    def plan_widening(self, growth: float = WIDEN_GROWTH) -> None:
        """Schedule a wider prior for when ratings have grown, if there are few for each unknown."""
        listed = self.window != 0  # sums hold nothing of directions that were closed
        is_scarce = self.seen < SCARCE * self.n_unknown
        can = listed and self.options.evb is not None and is_scarce
        self.clocks.schedule("widening", round(growth * self.seen) + 1 if can else None)

    # -- errors ----------------------------------------------------------------------------------

    @property
    def squared_error(self) -> float:
        """Σ τ_i υ_j E(r_ij - a_i·b_j)²; as of each item's last refresh after evictions."""
        if not self.can_be_exact:
            return float(self.stores["item"].totals[1])
        history = self.stores["user"].history
        return float(self.errors(*history.triples(), history.sessions()).sum())

    @property
    def can_be_exact(self) -> bool:
        """Whether every rating is on record and counts as much as any other."""
        return self.is_complete and min(self.options.forgetting.values()) == 1.0

    @property
    def knows_total(self) -> bool:
        """Whether the squared error of all ratings is kept up to date."""
        return self.total.size > 0

    def set_total(self, squared_error: float | None = None) -> None:
        """Set the total squared error, which is computed unless it is given."""
        total = []
        if self.can_be_exact:
            total = [self.squared_error if squared_error is None else squared_error, 0.0]
        self.total = np.array(total)
        self.clocks.schedule("total", self.seen + max(self.n_ratings, BLOCK))

    def check_total(self) -> None:
        """Compute the total again where rounding errors may have become large.

        Adding and removing a mistyped rating may leave a large rounding error.
        """
        rounding = float(np.finfo(self.stores["user"].mean.dtype).eps) * self.total[1]
        lost = self.total[0] <= 0.0 or rounding > MAX_ROUNDING * self.total[0]
        if lost or self.clocks.due("total"):
            self.set_total()

    def errors(
        self,
        users: Int64Array,
        items: Int64Array,
        codes: Int64Array,
        sessions: AnyArray | None = None,
    ) -> Float64Array:
        """τ υ E(r - o - a·b)² of each rating that is not removed (code -1)."""
        left, right = self.stores["user"], self.stores["item"]
        there = codes >= 0
        users, items = users[there], items[there]
        mean, variance = pair_moments(left.moments, right.moments, users, items, variance=True)
        if self.moods is not None and sessions is not None:
            mood, spread = self.moods.of(sessions[there])
            mean, variance = mean + mood, variance + spread
        weight = left.weight[users] * right.weight[items]
        return np.asarray(weight * ((self.levels()[codes[there]] - mean) ** 2 + variance))

    def levels(self) -> Float64Array:
        """Standardised rating of each code."""
        return (self.book.values.astype(np.float64) - self.centre) / self.unit

    def error_unit(self, name: str) -> float:
        """σ² or, where errors on record are of old factors, their mean."""
        store = self.stores[name]
        if self.window != 0 or not store.totals[1] > 0.0:
            return float(self.noise)
        return float(store.totals[1] / max(float(store.totals[3]), 1.0))

    # -- queries ---------------------------------------------------------------------------------

    @property
    def in_place(self) -> OnlineState:
        """The state itself: learning changes its rows in place."""
        return self

    def current_moments(self, name: str) -> Moments:
        """Moments of a side's rows; those without a rating are predicted from their features."""
        set_newcomers(self, name)
        return self.sides[name].moments

    def with_stranger(self, name: str) -> Moments:
        """Moments of a side's rows, in place, and those of an unknown row at the end."""
        moments = self.stores[name].moments_and(*self.sides[name].stranger)
        self.point(name)  # the rows may have moved to make room
        return moments

    @property
    def counts(self) -> dict[str, Int64Array]:
        """Number of ratings of each row, by side."""
        return {name: store.count for name, store in self.stores.items()}

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[Int32Array, Float64Array]:
        """Rows of the other side that a row has rated, ascending, and the standardised ratings.

        They are those on record, less moods unless they are to be ``as_given``.
        """
        history = self.stores[name].history
        others, codes = history.row(row)
        values = self.levels()[codes]
        if self.moods is not None and not as_given:
            first = int(history.start[row])
            values -= self.moods.of(history.session[first : first + others.size])[0]
        order = np.argsort(others)
        return others[order], values[order]

    def bound_terms(self, squared_error: float | None = None) -> dict[str, float]:
        """Return the lower bound by term; the ``squared_error`` is computed unless given."""
        if squared_error is None:
            squared_error = self.squared_error
        n_ratings = int(self.counts["user"].sum())
        data = ratings_term(squared_error, self.noise, n_ratings, self.unit)
        terms = bound_terms(self.current_sides(), self.counts, data)
        if self.moods is not None:
            terms["mood"] = -self.moods.divergence(complete=self.is_complete)
        return terms

    def current_sides(self) -> dict[str, Side]:
        """Return the sides with the current leverage of their rows; none is changed."""
        sides = dict(self.sides)
        for name in self.features:
            side, store = self.sides[name], self.stores[name]
            # Without information rows do not follow V yet.
            if side.regression is not None and store.information.any():
                sides[name] = copy(side)
                sides[name].regression = side.regression.with_leverage(
                    float(store.information @ store.leverage)
                )
        return sides

    def range_on_record(self) -> ObservedRange | None:
        """Range of all ratings on record."""
        return ObservedRange.of(self.book.values, self.stores["user"].history.to_rows()[2])

    # -- consistency -----------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "journal": None}

    def __setstate__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
        for name in SIDES:  # a copy's sides must be those of its own stores
            self.point(name)

    def point(self, name: str) -> None:
        """Set the arrays of a side to those of its store."""
        side, store, features = self.sides[name], self.stores[name], self.features.get(name)
        side.moments, side.membership = store.moments, store.membership
        if features is not None and features.averages is not None and side.regression is not None:
            solver = variance_solver(side.regression)
            side.online_shift = OnlineShift(store.shift, *features.averages, solver)
        if side.noise_scales is not None:
            side.noise_scales = NoiseScales(side.noise_scales.prior_shape, store.shape, store.rate)

    def even_codes(self) -> None:
        """Store the codes of both sides with the same number of bits."""
        histories = [store.history for store in self.stores.values()]
        if any(history.code.dtype == np.uint32 for history in histories):
            for history in histories:
                history.widen()


# -- undo ----------------------------------------------------------------------------------------


def savepoint(state: OnlineState) -> int:
    """Return a mark for `back_to`, which restores everything to the bit; they may be nested.

    Small things are copied at once. Rows, their histories and moods are copied by the functions
    below before they change.
    """
    journal = state.journal
    if journal is None or not journal.is_open:
        state.journal = journal = Journal()
    mark = journal.mark()
    mappings: list[dict[Any, Any]] = [vars(state), vars(state.book), *mappings_in(state)]
    mappings += [vars(side) for side in state.sides.values()]
    for features in state.features.values():
        mappings += [vars(features), features.later]
    arrays = [state.total]
    for store in state.stores.values():
        arrays += [store.size, store.first, store.scatter, store.totals]
        journal.add(store.mark())
        journal.add(store.history.mark())
    journal.add(mappings_of(mappings))
    journal.add(content_of(*arrays))
    journal.add(generator_state(state.rng))
    if state.moods is not None:
        journal.add(state.moods.mark())
    return mark


def mappings_in(state: OnlineState) -> list[dict[Any, Any]]:
    """Return the dictionaries that a state and its clocks hold."""
    clocks = vars(state.clocks)
    return [
        clocks,
        *(own for held in (vars(state), clocks) for own in held.values() if isinstance(own, dict)),
    ]


def back_to(state: OnlineState, mark: int) -> None:
    """Undo everything since a `savepoint`, which can be used again."""
    assert state.journal is not None
    state.journal.undo(mark)


def release(state: OnlineState, mark: int) -> None:
    """Accept changes since a `savepoint`; going back to an earlier one still undoes them."""
    if mark == 0 and state.journal is not None:
        state.journal.close()


def _open_journal(state: OnlineState) -> Journal | None:
    journal = state.journal
    return journal if journal is not None and journal.is_open else None


def backup_rows(
    state: OnlineState,
    name: str,
    rows: Int64Array | None = None,
    only: Collection[str] = ALL_ARRAYS,
) -> None:
    """Back up some of `ALL_ARRAYS` for these rows of a side, or for all, before they change."""
    journal, store = _open_journal(state), state.stores[name]
    if journal is None or journal.has(ALL_ARRAYS, store):
        return
    only = tuple(only)
    if rows is None:
        if journal.once(only, store):
            arrays = store.in_use()
            journal.add(content_of(*(arrays[name] for name in only if arrays[name].size)))
    elif rows.size:
        store.backup(journal, rows, only)


def backup_evicted(
    state: OnlineState, name: str, rows: Int64Array, n: Int64Array, *, back: bool = False
) -> None:
    """Back up rows of the other side before ratings are evicted: see `History.outside`."""
    journal = _open_journal(state)
    if journal is not None:
        partners = state.stores[name].history.outside(rows, n, state.window, back=back)
        if partners.size:
            state.stores[OTHER[name]].backup(journal, partners, SUMS, lists=WHOLE)


def backup_moods(state: OnlineState, raters: Int64Array | None = None) -> None:
    """Back up the moods of these raters, or of all, before they change."""
    journal, moods = _open_journal(state), state.moods
    if journal is None or moods is None:
        return
    if raters is not None and raters.size == moods.n_raters:
        raters = None
    if raters is None and not journal.once(None, moods):
        return
    of_sessions, of_raters = [moods.table, moods.moods, moods.links], [moods.last, moods.smoothed]
    if raters is None:
        n, every = int(moods.used[0]), moods.n_raters
        journal.add(content_of(*(array[:n] for array in (*of_sessions, moods.time))))
        journal.add(content_of(*(array[:every] for array in of_raters)))
    else:
        journal.add(rows_of(of_sessions, moods.sessions_of(raters)))
        journal.add(rows_of(of_raters, raters))
    journal.add(content_of(moods.used))


def backup_sessions(state: OnlineState) -> None:
    """Back up moods and the sessions of ratings before sessions are renumbered."""
    journal = _open_journal(state)
    if journal is not None:
        backup_moods(state)
        journal.add(content_of(*(store.history.session for store in state.stores.values())))


def backup_batch(state: OnlineState, rows: dict[str, Int64Array]) -> None:
    """Back up these rows of each side before a batch of their ratings is learnt."""
    journal, window = _open_journal(state), state.window
    if journal is None:
        return
    lists = 0 if window == 0 else WHOLE if window > 0 else PLACE
    for name, own in rows.items():
        touched = distinct(own)
        # A single row that is refreshed at once is copied in one step rather than two.
        is_refreshed = touched.size == 1 and pending_share(state, name) == 0.0
        names = ALL_ARRAYS if is_refreshed else RECORDED
        state.stores[name].backup(journal, touched, names, lists=lists)


def backup_changed(state: OnlineState, rows: dict[str, Int64Array], is_changed: BoolArray) -> None:
    """Back up lists of ratings in which a batch replaces or removes entries."""
    journal = _open_journal(state)
    if journal is not None and state.is_complete and is_changed.any():
        for name, own in rows.items():
            state.stores[name].backup(journal, distinct(own[is_changed]), (), lists=WHOLE)


def backup_stream(state: OnlineState, users: Int64Array, items: Int64Array) -> None:
    """Back up the rows of these pairs before their ratings are learnt one after the other."""
    journal, window = _open_journal(state), state.window
    if journal is None:
        return
    for name, own in (("user", users), ("item", items)):
        touched, counts = np.unique(own, return_counts=True)
        state.stores[name].backup(journal, touched, lists=WHOLE if window != 0 else 0)
        if window > 0:
            backup_evicted(state, name, touched, counts, back=True)
    backup_moods(state, distinct(users))


def set_newcomers(state: OnlineState, name: str) -> None:
    """Set rows without a rating to the current prediction from their features."""
    features, store, side = state.features.get(name), state.stores[name], state.sides[name]
    if features is None or not features.waiting.size:
        return
    rows = features.waiting[(store.listed[features.waiting] < 0).all(axis=1)]
    backup_rows(state, name, rows, only=("mean", "second"))
    features.waiting = rows
    store.mean[rows], store.second[rows] = side.stranger
    found = {row: own for row in rows.tolist() if (own := features.of(row)) is not None}
    if found:
        moments = newcomer_moments(side, csr_array(vstack([*found.values()])), store.count)
        store.mean[[*found]], store.second[[*found]] = moments.mean, moments.second


# -- arguments of kernels: `hemf.kernels.structures` ---------------------------------------------


def compiled(state: OnlineState, kernel: compiling.Kernel) -> Kernel:
    """Return a kernel for the storage of a state."""
    store = state.stores["user"]
    return _compiled(kernel, store.mean.dtype, store.history.code.dtype)


@cache
def _compiled(kernel: compiling.Kernel, dtype: np.dtype[Any], codes: np.dtype[Any]) -> Kernel:
    found: Kernel = kernel.compiled(dtype, codes)
    return found


def pair(state: OnlineState, name: str) -> tuple[Rows, Rows]:
    """Return a side's rows and those of the other, as kernels take them."""
    return state.stores[name].rows(), state.stores[OTHER[name]].rows()


def rules(state: OnlineState) -> Rules:
    """Return the settings of both sides."""
    from hemf.kernels.structures import Rules

    options, dtype = state.options, state.stores["user"].mean.dtype
    return Rules(
        levels=state.levels().astype(dtype),
        noise=float(state.noise),
        window=state.window,
        repeats=int(options.counts_repeats),
        renewal=float(state.renewal),
        min_share=options.min_share,
        thorough=int(options.thorough),
        total=state.total,
        moods=sessions(state).moods,
    )


def sessions(state: OnlineState) -> Sessions:
    """Return raters' sessions, in place; empty without moods."""
    if state.moods is None:
        return no_sessions(state.stores["user"].mean.dtype)
    return state.moods.arrays()


def pending_share(state: OnlineState, name: str) -> float:
    """Return the share of new ratings above which a row is refreshed."""
    if state.options.thorough:
        return 0.0
    return PENDING_SHARE[name] * (UNLISTED if state.window == 0 else 1.0)


def community_arguments(side: Side) -> dict[str, Any]:
    """Return a side's communities, by their names in `hemf.kernels.structures.Shared`."""
    communities, scales = side.communities, side.noise_scales
    blocks = None if side.regression is None else side.regression.coefficient_blocks
    logs = None if blocks is None else blocks.logs
    is_one = communities.count == 1  # of which every row is a member
    return {
        "precision": np.ascontiguousarray(communities.precision),
        "natural_mean": np.ascontiguousarray(communities.natural_mean),
        "log_weight": np.zeros(1) if is_one else np.ascontiguousarray(communities.log_weight),
        "free": side.layout.free,
        "pinned": side.layout.pinned,
        "prior_shape": 0.0 if scales is None else float(scales.prior_shape),
        "expected": expected_row(communities, side.layout),
        "count_coefficients": np.zeros((0, side.layout.order))
        if blocks is None or logs is None
        else np.ascontiguousarray(blocks.count_coefficients),
        "logs": np.zeros(0) if logs is None else logs.array,
    }


def shared(state: OnlineState, name: str) -> Shared:
    """Return a side's communities, and their statistics in place."""
    from hemf.kernels.structures import Shared

    side, store = state.sides[name], state.stores[name]
    # Computed again only where the posterior of the communities is another.
    of = store.derived.get("of")
    known = side.communities, side.noise_scales, side.regression
    if of is None or any(one is not other for one, other in zip(of, known, strict=True)):
        store.derived.update(of=known, communities=community_arguments(side))
    return Shared(
        **store.derived["communities"],
        size=store.size,
        first=store.first,
        scatter=store.scatter,
        totals=store.totals,
        error_unit=state.error_unit(name),
        spread=mean_covariance(state, OTHER[name]),
        forgetting=float(state.options.forgetting[name]),
        pending_share=pending_share(state, name),
        change=CHANGE * state.stores[OTHER[name]].n_rows,
    )


def mean_covariance(state: OnlineState, name: str) -> Array:
    """Posterior covariance of a side's rows, the mean over ratings, packed.

    It is needed where no rating is listed, and is zero elsewhere.
    """
    store = state.stores[name]
    if state.window != 0 or not store.n_rows:
        return np.zeros(store.layout.packed, store.mean.dtype)
    known = store.mean_covariance
    if known is None or state.clocks.due("covariance", name):
        rows, columns = lower_triangle(store.layout.total)
        share = (store.count / max(float(store.count.sum()), 1.0)).astype(store.mean.dtype)
        mean = store.mean
        products = (mean * share[:, None]).T @ mean
        known = (share @ store.second - products[rows, columns]).astype(store.mean.dtype)
        store.mean_covariance = known
        state.clocks.done("covariance", name)
    return known


def widen(side: Side, variance: float = WIDE) -> None:
    """Replace the prior of a side by a wide one."""
    wide = Prior.start(side.layout.order, variance=variance, concentration=1.0, mean_scale=1.0)
    side.prior = replace(side.prior, scale=wide.scale, dof=wide.dof)
    side.refresh()


def add_rows(store: RowStore, side: Side, n: int) -> None:
    """Add rows to a store that nothing is known of."""
    mean, second = side.stranger
    shape = 0.0 if side.noise_scales is None else side.noise_scales.prior_shape
    store.add(n, mean=mean, second=second, prior_shape=shape)


def add_new_rows(state: OnlineState, name: str, n: int) -> None:
    """Add unknown rows to a side.

    With a ``start_scale`` they begin at random factors, which break the symmetry.
    """
    if n <= 0:
        return
    side, store = state.sides[name], state.stores[name]
    first = store.n_rows
    add_rows(store, side, n)
    if state.start_scale > 0.0:
        mean, second = side.stranger
        factors, new = side.layout.factors, store.mean[first:]
        noise = state.rng.normal(scale=state.start_scale, size=(n, factors.size))
        new[:, factors] += noise.astype(new.dtype)
        rows, columns = lower_triangle(side.layout.total)
        covariance = second - mean[rows] * mean[columns]
        store.second[first:] = covariance + new[:, rows] * new[:, columns]
    features = state.features.get(name)
    if features is not None:
        assert side.regression is not None
        store.leverage[first:] = side.regression.mean_leverage
        features.waiting = np.concatenate([features.waiting, np.arange(first, store.n_rows)])
    state.point(name)
    if name == "user" and state.moods is not None:
        state.moods.add_raters(n)


def note_refreshed(state: OnlineState, name: str, rows: Int64Array) -> None:
    """Record the refreshes of the other side, which decide when these rows are next due.

    If all rows are refreshed at once, their next refreshes are spread out, from half to one and a
    half times the usual interval: otherwise one later call would refresh all of them again.
    """
    store, other = state.stores[name], state.stores[OTHER[name]]
    store.other_refreshes[rows] = int(other.totals[2])
    if rows.size == store.n_rows:
        phase = (rows * GOLDEN_RATIO) % 1.0 - 0.5
        store.other_refreshes[rows] -= (phase * CHANGE * other.n_rows).astype(np.int64)


def recall(
    state: OnlineState, users: Int64Array, items: Int64Array, values: Array | None = None
) -> Int64Array:
    """Return the code that each pair has in the history, -1 where it has none.

    Where a pair may be listed several times, it is that of a rating of these ``values``. They are
    compared in float32 too, in which ratings may have been given or kept.
    """
    from hemf.kernels.record import recall_all

    codes = np.full(users.size, -1, np.int64)
    store = state.stores["user"]
    compiled(state, recall_all)(users, items, store.rows(), codes)
    if state.options.counts_repeats and values is not None:
        for k in np.flatnonzero(codes >= 0):
            others, listed = store.history.row(int(users[k]))
            there = listed[others == items[k]]
            kept, wanted = state.book.values[there], np.float64(values[k])
            match = there[(kept == wanted) | (kept == np.float32(wanted))]
            codes[k] = match[-1] if match.size else -1
    return codes


# -- features and moods ----------------------------------------------------------------------------


def feature_tables(own: Regression | None, other: Regression | None) -> list[str]:
    """Return which tables of a side's rows the regressions of the two sides need."""
    tables = [] if own is None else ["shift", "base"]
    if own is not None and RATED in own.design.names:
        tables.append("coefficient_sum")
    if other is not None and RATED in other.design.names:
        tables.append("coefficients")
    return tables


def write_effects(state: OnlineState, name: str, regression: Regression) -> None:
    """Write the effects of features on the current rows."""
    store, blocks = state.stores[name], regression.coefficient_blocks
    store.base[:] = state.features[name].together(store.n_rows) @ blocks.given
    coefficient_sum = np.zeros((store.n_rows, 0))
    if blocks.has_rated:
        effects = state.stores[OTHER[name]].coefficients
        effects[:] = 0.0
        effects[: blocks.rated.shape[0]] = blocks.rated
        indptr, indices, _ = store.history.to_rows()
        shape = (store.n_rows, effects.shape[0])
        coefficient_sum = csr_array((np.ones(indices.size), indices, indptr), shape=shape) @ effects
        store.coefficient_sum[:] = coefficient_sum
    store.shift[:] = blocks.shift(store.base, coefficient_sum, store.count)


def average_effects(state: OnlineState, name: str) -> None:
    """Compute the average effect of features, which is expected of new rows."""
    features, store = state.features[name], state.stores[name]
    here = (store.listed >= 0).any(axis=1)
    rows = here if here.any() else slice(None)
    shift = store.shift[rows]
    features.averages = (
        UnknownFeatures.of(shift),
        UnknownFeatures.of(shift - store.base[rows]),
    )
    state.clocks.done("averages", name)
    state.sides[name].forget_stranger()
    state.point(name)


def postpone_regression(state: OnlineState, name: str) -> None:
    """Schedule the next regression of a side."""
    state.clocks.schedule("regression", state.seen + REFIT_GROWTH * max(state.n_ratings, 1), name)


def smooth_moods(state: OnlineState, raters: Int64Array, *, learn: bool = False) -> None:
    """Bring the moods of these raters to their optimum; with ``learn``, of all, the prior too.

    Every rating must be on record.
    """
    from hemf.kernels.moods import FILTER_SUMS, smooth_all

    moods, store = state.moods, state.stores["user"]
    assert moods is not None
    backup_moods(state, raters)
    run = smooth_all.compiled(store.mean.dtype, store.history.code.dtype)
    both, settings = pair(state, "user"), rules(state)
    used = moods.prior
    for number in range(ROUNDS if learn else 1):
        sums = np.zeros(FILTER_SUMS)
        moods.prior = used
        run(raters, *both, settings, moods.arrays(), int(number == 0), sums)
        if learn:
            first, now, before, product, extra, *counts = sums.tolist()
            n_raters, n_sessions = map(int, counts)
            used = learn_mood_prior(
                used, MoodSums(first, now, before, product, extra, 0.0, n_raters, n_sessions)
            )


# -- ids -------------------------------------------------------------------------------------------


@dataclass
class Learner:
    """A state that learns, and the ids of its rows."""

    state: OnlineState
    users: Vocabulary
    items: Vocabulary
    _table: Ratings | None = None
    _table_of: int = -1

    @property
    def ratings(self) -> Ratings:
        """The ratings in the history, which need not be all that were learnt."""
        if self._table is None or self._table_of != self.state.changes:
            state = self.state
            history = state.stores["user"].history
            indptr, items, codes = history.to_rows()
            users = np.repeat(np.arange(indptr.size - 1), np.diff(indptr)).astype(np.int32)
            values: Array = state.book.values[codes]
            times = None if state.moods is None else state.moods.time[history.sessions()]
            exact = state.stores["user"].mean.dtype == np.float64
            if state.options.counts_repeats:
                users, items, values, times = average_duplicates(users, items, values, times)
            self._table = Ratings.from_rows(
                self.users, self.items, (users, items, values), times, exact=exact
            )
            self._table_of = state.changes
        return self._table
