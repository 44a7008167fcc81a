"""Batch variational Bayes (bVB): sweeps over all ratings, user side, then item side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hemf._typing import SIDES, Array, Float64Array, Int64Array
from hemf.batch import merge_split
from hemf.batch.empirical import learn_prior
from hemf.batch.init import seed_communities
from hemf.engines.threads import Rows, Shared, chunk_bounds, half_sweep, share_out, thread_count
from hemf.model import bound
from hemf.model.bound import factors_term
from hemf.model.communities import Statistics
from hemf.model.moods import MoodPosterior, MoodPrior, MoodSums, learn_mood_prior, mood_at
from hemf.model.noise import learn_scales, noise_term, scale_posterior
from hemf.model.predictive import with_stranger
from hemf.model.regression import Regression, regression_term
from hemf.model.side import Moments, Side

FEW = 0.01  # what a row's ratings count, τ, where other rows are explained exactly
NOISE_FLOOR = 1e-6  # of the ratings' variance: ratings that are all explained leave no NaN behind
ROUNDING = 8.0  # units in the last place, times √n, that sums over n ratings may be off by


@dataclass(frozen=True)
class Schedule:
    """When the parts of a fit take turns, in sweeps."""

    warm_up: int = 8
    """Sweeps with one community on each side before any is seeded."""
    hold_scale: int = 3
    """Sweeps before the prior covariances are learnt: directions that die early stay dead."""
    hold_structure: int = 4
    """Sweeps after seeding before λ0, ι0 and W0 are learnt: sooner, communities collapse."""
    hold_noise: int = 10
    """Sweeps before noise scales are learnt: sooner, what is not learnt yet passes for noise."""
    hold_mood: int = 10
    """Sweeps before moods are learnt: sooner, what is not learnt yet passes for mood."""
    merge_every: int = 3
    """Sweeps between attempts to merge communities."""

    def features_due(self, sweep: int) -> bool:
        """Whether features' precisions are learnt: more and more seldom, for the sake of time.

        >>> [sweep for sweep in range(60) if Schedule().features_due(sweep)]
        [3, 5, 8, 13, 21, 34, 54]
        """
        due = self.hold_scale
        while due < sweep:
            due += max(1, round(0.6 * due))
        return due == sweep

    def settling(self, *, seeds: bool, scales: bool, moods: bool = False) -> int:
        """Sweeps before which nothing can be called settled: parts of the model are still held."""
        held = [self.hold_scale]
        if seeds:
            held.append(self.warm_up + self.hold_structure + 2)
        if scales:
            held.append(self.hold_noise + 2)
        if moods:
            held.append(self.hold_mood + 2)
        return max(held)


@dataclass
class BatchState:
    """Everything that a sweep changes."""

    sides: dict[str, Side]
    rows: dict[str, Rows]
    noise: float
    """σ², in units of the ratings' variance; a row's own is σ²/τ_i."""
    unit: float
    """Standard deviation of the ratings, for the bound in the rating's own scale."""
    sweeps: int = 0
    seeded_at: int | None = None
    squared_error: float = float("nan")
    """Σ τ_i υ_j E(r_ij - a_i·b_j)² after the last half-sweep."""
    moods: Moods | None = None
    """What raters' moods explain, which ``rows`` are without; None where times are not known."""

    @property
    def n_ratings(self) -> int:
        """How many ratings the state explains."""
        return int(self.rows["user"].values.size)

    def counts(self, name: str, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """How many ratings each row of a side has, or each of these."""
        indptr = self.rows[name].indptr
        return np.diff(indptr) if rows is None else indptr[1:].take(rows) - indptr[:-1].take(rows)

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[npt.NDArray[np.int32], Float64Array]:
        """Rows of the other side that a row has rated, ascending, and the standardised ratings.

        They are less moods, where there are any, unless they are to be ``as_given``.
        """
        rows = self.rows[name]
        span = slice(rows.indptr[row], rows.indptr[row + 1])
        values = rows.values
        if as_given and self.moods is not None:
            values = self.moods.ratings[name]
        return rows.indices[span], values[span].astype(np.float64)

    @property
    def is_complete(self) -> bool:
        """Whether all ratings are kept, which is always so."""
        return True

    @property
    def is_online(self) -> bool:
        """Whether learning changes the arrays in place."""
        return False

    def current_moments(self, name: str) -> Moments:
        """Moments of a side's rows."""
        return self.sides[name].moments

    def with_stranger(self, name: str) -> Moments:
        """Moments of a side's rows, and at the end those of an unknown row."""
        return with_stranger(self.sides[name], None, self.counts(name))

    def copy(self) -> BatchState:
        """Return a state that can be swept without touching this one; the ratings are shared."""
        return replace(self, sides={name: side.copy() for name, side in self.sides.items()})

    def total_weight(self) -> float:
        """Σ τ_i υ_j over the ratings; how many there are, where all count the same."""
        user, item = self.sides["user"], self.sides["item"]
        if user.noise_scales is None and item.noise_scales is None:
            return float(self.n_ratings)
        rows = self.rows["user"]
        return float(user.weights @ rows.sums(item.weights[rows.indices]))

    def bound_terms(self) -> dict[str, float]:
        """Return the lower bound by term; the ratings term is that of the last half-sweep."""
        counts = {name: self.counts(name) for name in SIDES}
        terms = bound_terms(self.sides, counts, self.squared_error, self.noise, self.unit)
        if self.moods is not None:
            terms["mood"] = -self.moods.divergence
        return terms


def bound_terms(
    sides: dict[str, Side],
    counts: dict[str, npt.NDArray[np.int64]],
    squared_error: float,
    noise: float,
    unit: float,
) -> dict[str, float]:
    """Return the lower bound by term, given how many ratings each row has."""
    n_ratings = int(counts["user"].sum())
    terms = {"ratings": bound.ratings_term(squared_error, noise, n_ratings, unit)}
    for name, side in sides.items():
        for term, value in bound.side_terms(side.statistics, side.communities, side.prior).items():
            terms[f"{name} {term}"] = value
        if side.noise_scales is not None:
            terms[f"{name} noise"] = noise_term(side.noise_scales, counts[name])
        if side.regression is not None:
            terms[f"{name} features"] = regression_term(side.regression)
    return terms


def update_side(
    state: BatchState,
    name: str,
    *,
    coupled: bool = True,
    hold: bool = False,
    learn: bool = True,
    scales: bool = True,
    features: bool = False,
    n_jobs: int | None = None,
) -> None:
    """One half-sweep: rows, noise scales, regression on features, communities, of one side.

    ``hold`` leaves memberships as they are; without ``learn`` hyper-parameters stay too,
    without ``scales`` the noise scales. With ``features``, what these are uncertain by and their
    precisions are learnt, and the rows follow.
    """
    side = state.sides[name]
    information = _update_rows(state, name, coupled, hold, learn, scales, n_jobs)
    if features and learn_features(side, information, move=learn):
        state.noise = max(state.noise, least_noise(state))  # which scales may have taken it below
        information = _update_rows(state, name, coupled, hold, learn, scales, n_jobs)
    if side.regression is not None:
        side.regression = side.regression.with_leverage(
            float(information @ side.regression.leverage)
        )
    regress(side)
    side.refresh()


def _update_rows(
    state: BatchState,
    name: str,
    coupled: bool,
    hold: bool,
    learn: bool,
    scales: bool,
    n_jobs: int | None,
) -> Float64Array:
    """Rows, their statistics and noise scales; return what ratings tell of each row."""
    side = state.sides[name]
    other = state.sides["item" if name == "user" else "user"]
    shared = Shared(
        side.layout,
        side.communities,
        noise=state.noise / side.weights,
        other_weight=other.weights,
        coupled=coupled,
        hold=hold,
        shift=None if side.regression is None else side.regression.shift,
        leverage=None if side.regression is None else side.regression.leverage,
    )
    found = half_sweep(
        state.rows[name], other.moments, shared, side.moments, side.membership, n_jobs=n_jobs
    )
    errors = found.errors
    if state.moods is not None:
        errors += state.moods.spread_sums(name, state.rows[name], other.weights)
    np.maximum(errors, 0.0, out=errors)  # of ratings explained to the last digit, rounding is left
    if side.noise_scales is not None and scales:
        counts = np.diff(state.rows[name].indptr)
        errors_in_units = errors / state.noise
        if learn:
            side.noise_scales, factor = learn_scales(side.noise_scales, errors_in_units, counts)
            state.noise /= factor
        else:
            shape = side.noise_scales.prior_shape
            side.noise_scales = scale_posterior(errors_in_units, counts, shape)
    state.squared_error = float(errors @ side.weights)
    side.statistics = with_penalty(side, found.statistics)
    return found.information


# docs/model.md#noise-variance
def learn_noise(state: BatchState) -> None:
    """σ² = mean of τ_i υ_j E(r - a·b)²."""
    state.noise = max(state.squared_error / state.n_ratings, least_noise(state))


def least_noise(state: BatchState) -> float:
    """Return a floor for σ²: `NOISE_FLOOR`, and more where some rows hardly count beside others.

    Rows of equal ratings are explained exactly, and σ² is theirs: σ²/(τ_i υ_j) falls until rounding
    of Σ υ E[bbᵀ]/σ² outweighs the prior, and factors are NaN. That of n ratings grows as √n.
    """
    weights = [side.weights for side in state.sides.values()]
    n_most = max(int(state.counts(name).max()) for name in SIDES)
    return noise_floor(weights, n_most, state.rows["user"].values.dtype)


def noise_floor(weights: list[Float64Array], n_most: int, dtype: np.dtype[np.floating]) -> float:
    """Return the floor of `least_noise` for rows of these weights and at most so many ratings."""
    if min(float(weight.min()) for weight in weights) > FEW:
        return NOISE_FLOOR
    most = math.prod(float(weight.max()) for weight in weights)
    rounding = ROUNDING * float(np.finfo(dtype).eps) * math.sqrt(n_most)
    return max(NOISE_FLOOR, rounding * most)


def sweep(
    state: BatchState,
    schedule: Schedule,
    *,
    max_communities: dict[str, int],
    coupled: bool,
    evb: str | None,
    rng: np.random.Generator,
    n_jobs: int | None = None,
) -> None:
    """One sweep of both sides with hyper-parameters, and moves when they are due."""
    seeding = state.sweeps == schedule.warm_up and max(max_communities.values()) > 1
    if seeding:
        state.seeded_at = state.sweeps
        for name, side in state.sides.items():
            if max_communities[name] > 1:
                seed_communities(side, max_communities[name], rng)
    for name in SIDES:
        update_side(
            state,
            name,
            coupled=coupled,
            hold=seeding,
            learn=evb is not None,
            scales=state.sweeps >= schedule.hold_noise,
            features=schedule.features_due(state.sweeps),
            n_jobs=n_jobs,
        )
        merge_split.drop_empty(state.sides[name])
        merge_split.order_by_size(state.sides[name])
    if state.moods is not None and state.sweeps >= schedule.hold_mood:
        update_moods(state, learn=evb is not None, n_jobs=n_jobs)
    if evb is not None:
        learn_noise(state)
        since = 0 if state.seeded_at is None else state.sweeps - state.seeded_at
        settled = state.seeded_at is None or since >= schedule.hold_structure
        for side in state.sides.values():
            side.prior = learn_prior(
                side.prior,
                side.communities,
                evb=evb,
                structure=settled,
                scale=settled and state.sweeps >= schedule.hold_scale,
            )
    if state.seeded_at is not None:
        since = state.sweeps - state.seeded_at
        if since >= schedule.hold_structure and since % schedule.merge_every == 0:
            for side in state.sides.values():
                merge_split.merge_alike(side)
    state.sweeps += 1


# ------------------------------------------------------------------------------------------------
# The regression of a side's rows on their features, as one block of a sweep.


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Count MᵀΛM beside the rows' own statistics, which are those of a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Bring M to its optimum for the rows as they are; the statistics follow."""
    if side.regression is not None:
        side.regression, side.statistics = _followed(side, side.regression.fitted(_targets(side)))


def learn_features(side: Side, information: Float64Array, *, move: bool) -> bool:
    """Bring C to its optimum given the rows' information and, to ``move``, learn the λ_b.

    These are tried with the q(V) that goes with them, and kept if the bound is higher. What rows
    believe of V's uncertainty has to follow; return whether there is anything to.
    """
    before = side.regression
    if before is None:
        return False
    proposed = (
        before.proposed_precision(side.communities.precision[0]) if move else before.precision
    )
    if not before.is_stale(proposed, information):
        return False
    known, statistics = before.known(information), side.statistics
    if move:
        now = before.with_leverage(float(information @ before.leverage))
        bold = before.with_precision(proposed, information, known).fitted(_targets(side))
        side.regression, side.statistics = _followed(side, bold)
        if _told(side, bold, side.statistics) >= _told(side, now, statistics):
            return True
    side.regression, side.statistics = (
        before.with_precision(before.precision, information, known),
        statistics,
    )
    return True


def _targets(side: Side) -> Float64Array:
    """E[a_i] - Σ_d q_i(d) m_d of each row."""
    return np.asarray(side.factor_means - side.membership.astype(float) @ side.communities.mean)


def _followed(side: Side, after: Regression) -> tuple[Regression, Statistics]:
    """Return another regression of a side with the statistics that its rows then have."""
    before, statistics = side.regression, side.statistics
    assert before is not None
    left, change = side.factor_means - before.shift, after.shift - before.shift
    cross = left.T @ change
    moved = change.T @ change - cross - cross.T + (after.penalty - before.penalty)
    return after, replace(
        statistics,
        first=statistics.first - side.membership.astype(float).T @ change,
        scatter=statistics.scatter + moved,
    )


def _told(side: Side, regression: Regression, statistics: Statistics) -> float:
    """Return what there is in the bound of V and of what it leaves of the rows.

    As rows were found for it, what they believe of V's uncertainty is worth nothing by itself.
    """
    return factors_term(statistics, side.communities) + regression_term(regression)


# ------------------------------------------------------------------------------------------------
# Moods of raters inside a batch fit: what they explain is taken off the ratings of both sides.


ROUNDS = 3  # of q(l, g) and its prior in turns, which is little work beside the ratings


@dataclass(frozen=True)
class Moods:
    """The moods of all raters, and the ratings that they are taken off."""

    ratings: dict[str, Array]
    """Standardised, moods included, as in the table of each side."""
    sitting: dict[str, npt.NDArray[np.int32]]
    """Of each rating, as in the table of each side."""
    indptr: Int64Array
    """Where each rater's sittings begin, and the last ends."""
    times: Int64Array
    """Of each sitting."""
    prior: MoodPrior
    posterior: MoodPosterior
    divergence: float = 0.0

    @classmethod
    def start(cls, rows: dict[str, Rows], times: Int64Array) -> Moods:
        """Return moods of which nothing is known: none is taken off yet.

        ``times`` are those of the ratings in the users' table.
        """
        users, items = rows["user"], rows["item"]
        n_users = users.indptr.size - 1
        of_user = np.repeat(np.arange(n_users), np.diff(users.indptr))
        order = np.lexsort((times, of_user))
        user, time = of_user[order], times[order]
        begins = np.ones(order.size, bool)
        begins[1:] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
        sitting = np.empty(order.size, np.int32)
        sitting[order] = np.cumsum(begins) - 1
        indptr = np.zeros(n_users + 1, np.int64)
        np.cumsum(np.bincount(user[begins], minlength=n_users), out=indptr[1:])
        by_item = np.argsort(users.indices, kind="stable")
        return cls(
            ratings={"user": users.values, "item": items.values},
            sitting={"user": sitting, "item": sitting[by_item]},
            indptr=indptr,
            times=time[begins],
            prior=MoodPrior(),
            posterior=MoodPosterior.none(int(begins.sum())),
        )

    def spread_sums(self, name: str, rows: Rows, other_weight: Float64Array) -> Float64Array:
        """Σ_j υ_j Var[o_ij] of each row of a side."""
        return rows.sums(self.posterior.spread[self.sitting[name]] * other_weight[rows.indices])

    def rows_without(self, rows: dict[str, Rows]) -> dict[str, Rows]:
        """Return the tables of both sides, the moods taken off their ratings."""
        moods = self.posterior.mean.astype(self.ratings["user"].dtype)
        return {
            name: Rows(own.indptr, own.indices, self.ratings[name] - moods[self.sitting[name]])
            for name, own in rows.items()
        }

    def at(self, users: Int64Array, when: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of these users' moods at these times; -1 is a stranger."""
        from hemf.kernels.moods import places

        known = np.flatnonzero(users >= 0)
        place, found = np.zeros(users.size, np.int64), np.zeros(known.size, np.int64)
        places.compiled(np.float64)(self.indptr, self.times, users[known], when[known], found)
        place[known] = found
        return mood_at(self.prior, self.posterior, self.indptr, self.times, users, when, place)


def update_moods(state: BatchState, *, learn: bool, n_jobs: int | None = None) -> None:
    """Bring q(l, g), and with ``learn`` its prior too, to their optimum given all else."""
    moods, threads = state.moods, thread_count(n_jobs)
    assert moods is not None
    precision, pull = _gathered(state, moods, threads)
    prior = used = moods.prior
    for _ in range(ROUNDS if learn else 1):
        used = prior
        posterior, sums = _smoothed(moods, used, precision, pull, threads)
        prior = learn_mood_prior(used, sums) if learn else used
    old = moods.posterior
    squares = posterior.mean**2 - old.mean**2 + posterior.spread - old.spread
    change = precision @ squares - 2.0 * pull @ (posterior.mean - old.mean)
    state.squared_error = max(state.squared_error + state.noise * float(change), 0.0)
    state.moods = replace(moods, prior=used, posterior=posterior, divergence=sums.divergence)
    state.rows = state.moods.rows_without(state.rows)


def _gathered(state: BatchState, moods: Moods, threads: int) -> tuple[Float64Array, Float64Array]:
    """Return Σ τ_i υ_j/σ² of each sitting, and the same of r - E[a·b]."""
    from hemf.kernels.moods import gather

    users, items, rows = state.sides["user"], state.sides["item"], state.rows["user"]
    cuts = chunk_bounds(rows.indptr, users.layout.order)
    precision, pull = np.zeros(moods.times.size), np.zeros(moods.times.size)
    own, other = users.weights / state.noise, np.ascontiguousarray(items.weights)
    run = gather.compiled(users.moments.mean.dtype)

    def work(begin: int, end: int) -> None:
        run(
            begin, end, cuts, rows.indptr, rows.indices, moods.sitting["user"],
            moods.ratings["user"], users.moments.mean, items.moments.mean, own, other,
            precision, pull,
        )  # fmt: skip

    share_out(work, cuts.size - 1, threads)
    return precision, pull


def _smoothed(
    moods: Moods, prior: MoodPrior, precision: Float64Array, pull: Float64Array, threads: int
) -> tuple[MoodPosterior, MoodSums]:
    from hemf.kernels.moods import SUMS, smooth

    cuts = chunk_bounds(moods.indptr, 1)
    new = MoodPosterior.none(moods.times.size)
    sums = np.zeros((cuts.size - 1, SUMS))
    run = smooth.compiled(np.float64)

    def work(begin: int, end: int) -> None:
        run(
            begin, end, cuts, moods.indptr, precision, pull, prior.persistence, prior.variance,
            prior.extra, new.level, new.level_spread, new.product, new.mean, new.spread, sums,
        )  # fmt: skip

    share_out(work, cuts.size - 1, threads)
    first, now, before, product, extra, divergence = sums.sum(axis=0).tolist()
    n_raters = int((np.diff(moods.indptr) > 0).sum())
    return new, MoodSums(first, now, before, product, extra, divergence, n_raters, moods.times.size)
