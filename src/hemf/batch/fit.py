"""Batch variational Bayes (bVB): sweeps over all ratings until the bound converges.

A fit is a loop of sweeps, user side, then item side, with trials of merges and splits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import one_blas_thread
from hemf._options import FitOptions
from hemf._typing import SIDES, Float64Array, Int32Array, Int64Array, Matrix
from hemf.batch.callbacks import Callback, SweepReport
from hemf.engines.base import RATINGS, Engine, EntryTable, HalfSweep
from hemf.errors import ConvergenceWarning, DataError, warn_caller
from hemf.model.communities import (
    Prior,
    Statistics,
    community_posterior,
    learn_prior,
    ratings_term,
)
from hemf.model.moods import ROUNDS, Moods, learn_mood_prior
from hemf.model.regression import Design, Regression
from hemf.model.rows import (
    Moments,
    NoiseScales,
    learn_scales,
    lower_triangle,
    noise_floor,
    scale_posterior,
    unpack,
)
from hemf.model.side import (
    Side,
    bound_terms,
    drop_empty,
    learn_features,
    merge,
    merge_alike,
    merge_gains,
    order_by_size,
    regress,
    with_penalty,
)

MAX_TRIALS = 4  # rounds of merges and splits after convergence


@dataclass
class BatchState:
    """Everything that a sweep changes, and the engine that holds the ratings."""

    sides: dict[str, Side]
    engine: Engine
    noise: float
    """σ², in units of the ratings' variance; a row's own is σ²/τ_i."""
    unit: float
    """Standard deviation of the ratings, for the bound in the rating's own scale."""
    sweeps: int = 0
    seeded_at: int | None = None
    squared_error: float = float("nan")
    """Σ τ_i υ_j E(r_ij - a_i·b_j)² after the last half-sweep."""
    moods: Moods | None = None
    """Moods of raters, subtracted from their ratings; None without timestamps."""
    component: str = RATINGS
    """Which entries of the engine are learnt."""
    counts: dict[str, Int64Array] = field(init=False)
    """Number of ratings of each row, by side."""

    is_complete: ClassVar = True
    in_place: ClassVar = None

    def __post_init__(self) -> None:
        self.counts = {name: self.ratings.counts(name) for name in SIDES}

    @property
    def ratings(self) -> EntryTable:
        """The ratings, or choices, that are learnt."""
        return self.engine.components[self.component]

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return self.ratings.n_ratings

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[Int32Array, Float64Array]:
        """Return the columns that a row has rated, ascending, and the standardised ratings.

        Moods are subtracted, unless the ratings are wanted ``as_given``.
        """
        return self.ratings.row(name, row, None if as_given else self.moods)

    def copy(self) -> BatchState:
        """Return a copy that can be swept without changing this one; it shares the engine."""
        return replace(self, sides={name: side.copy() for name, side in self.sides.items()})

    def total_weight(self) -> float:
        """Sum of all weights: Σ τ_i υ_j over the ratings; their number without noise scales."""
        user, item = self.sides["user"], self.sides["item"]
        if user.noise_scales is None and item.noise_scales is None:
            return self.ratings.total_weight
        return float(user.weights @ self.ratings.row_sums("user", item.weights))

    def bound_terms(self) -> dict[str, float]:
        """Return the lower bound by term, with the ratings term of the last half-sweep."""
        data = ratings_term(self.squared_error, self.noise, self.ratings.total_weight, self.unit)
        terms = bound_terms(self.sides, self.counts, data)
        if self.moods is not None:
            terms["mood"] = -self.moods.divergence
        return terms


@dataclass
class FitResult:
    """Final state of a fit and its history."""

    state: BatchState
    history: list[SweepReport]
    converged: bool


def fit_batch(
    engine: Engine,
    unit: float,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    designs: Mapping[str, Design] = MappingProxyType({}),
    validate: Callable[[BatchState], float] | None = None,
    watch: Callable[[BatchState], float] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> FitResult:
    """Fit both sides to the standardised ratings of an engine; ``unit`` is their scale.

    ``designs`` are the features of the sides that have any. ``validate`` returns the error on
    held-out ratings: the state with the smallest is the result. ``watch`` returns an error that is
    reported, and that nothing depends on.
    """
    with one_blas_thread():
        state = start_state(engine, unit, options, rng, designs)
    earliest = options.earliest
    size = max(MIN_SIZE, float(state.n_ratings))
    convergence = Convergence(options.tolerance, options.patience, earliest, size)
    nearly = Convergence(10.0 * options.tolerance, options.patience, earliest, size)
    history: list[SweepReport] = []
    best: BatchState | None = None
    begin = time.perf_counter()
    done = stopped = nearly_done = False
    trials = MAX_TRIALS
    with one_blas_thread(), _explain_overflow(state, options):
        while not (done or stopped) and state.sweeps < options.max_sweeps:
            sweep(state, options, rng)
            held_out = None if validate is None else validate(state)
            seen = held_out if watch is None else watch(state)
            report = _report(state, options, seen, time.perf_counter() - begin)
            if not np.isfinite(report.elbo):
                raise np.linalg.LinAlgError
            if held_out is None:
                done = convergence.bound(state.sweeps, report.elbo)
                nearly_done = nearly.bound(state.sweeps, report.elbo)
            else:
                improved, done = convergence.validation(state.sweeps, held_out)
                if improved:
                    best = state.copy()
            due = options.seeds and trials > 0 and (done or (nearly_done and trials == MAX_TRIALS))
            history.append(replace(report, trials_next=due))
            stopped = notify(callbacks, history[-1])
            if due and not stopped:
                trials -= 1
                if improve(state, options, rng, splits=done):
                    done = convergence.reset()
    if not (done or stopped) and options.max_sweeps > 1:
        watched, instead = "the bound was still rising", "raise tol"
        if validate is not None:
            watched, instead = "the error on held-out ratings had not converged", "lower patience"
        warn_caller(
            f"{watched} after {options.max_sweeps} sweeps; "
            f"raise max_sweeps, or {instead} if this is accurate enough",
            ConvergenceWarning,
        )
    final = best or state
    if final.sweeps <= options.schedule.hold_mood:
        final.moods = None  # not learnt yet
    for side in final.sides.values():
        if (np.diff(side.statistics.size) > 0.0).any():  # largest first, for reading
            side.select(np.argsort(-side.statistics.size, kind="stable"))
        if side.regression is not None:
            side.regression = replace(side.regression)  # without the matrices of its solver
    return FitResult(final, history, done)


@contextmanager
def _explain_overflow(state: BatchState, options: FitOptions) -> Iterator[None]:
    """Turn failures of linear algebra into an error with a remedy."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        dtype = np.dtype(options.dtype)
        wider = 'use dtype="float64", or ' if dtype == np.float32 else ""
        raise DataError(
            f"the fit broke down in sweep {state.sweeps + 1}: {dtype} has too few digits for these "
            f"ratings; {wider}look for ratings that are far from all others"
        ) from error


def _report(
    state: BatchState, options: FitOptions, held_out: float | None, seconds: float
) -> SweepReport:
    terms = state.bound_terms()
    return SweepReport(
        sweep=state.sweeps,
        max_sweeps=options.max_sweeps,
        elbo=sum(terms.values()),
        elbo_terms=terms,
        train_rmse=float(np.sqrt(state.squared_error / state.total_weight())) * state.unit,
        validation_rmse=held_out,
        user_communities=state.sides["user"].n_communities,
        item_communities=state.sides["item"].n_communities,
        noise_variance=state.noise * state.unit**2,
        seconds=seconds,
    )


# ------------------------------------------------------------------------------------------------
# Sweeps.


def update_side(
    state: BatchState,
    name: str,
    *,
    coupled: bool = True,
    hold: bool = False,
    learn: bool = True,
    scales: bool = True,
    features: bool = False,
) -> None:
    """One half-sweep: rows, noise scales, regression on features, communities, of one side.

    ``coupled`` and ``hold`` are those of `EntryTable.half_sweep`. ``learn`` also learns
    hyper-parameters, ``scales`` noise scales, and ``features`` the uncertainty and the precisions
    of features, after which the rows are updated again.
    """
    side = state.sides[name]

    def update_rows() -> Float64Array:
        found = state.ratings.half_sweep(name, state, coupled=coupled, hold=hold)
        return _take(state, name, found, learn=learn, scales=scales)

    information = update_rows()
    if features and learn_features(side, information, move=learn):
        state.noise = max(state.noise, min_noise(state))  # scales may have lowered it
        information = update_rows()
    if side.regression is not None:
        side.regression = side.regression.with_leverage(
            float(information @ side.regression.leverage)
        )
    regress(side)
    side.refresh()


def _take(
    state: BatchState, name: str, found: HalfSweep, *, learn: bool, scales: bool
) -> Float64Array:
    """Take over the rows of a half-sweep, update noise scales; return information weights."""
    side = state.sides[name]
    side.moments, side.membership = found.moments, found.membership
    errors = np.maximum(found.errors, 0.0)  # where ratings are explained exactly, rounding is left
    if side.noise_scales is not None and scales:
        counts = state.counts[name]
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
    state.noise = max(state.squared_error / state.ratings.total_weight, min_noise(state))


def min_noise(state: BatchState) -> float:
    """Return a lower limit of σ²: `NOISE_FLOOR`, and more where weights of rows differ much.

    Rows of equal ratings are explained exactly: σ²/(τ_i υ_j) falls until the rounding error of
    Σ υ E[bbᵀ]/σ² exceeds the prior and factors are NaN. The error of n ratings grows as √n.
    """
    weights = [side.weights for side in state.sides.values()]
    max_count = max(int(counts.max()) for counts in state.counts.values())
    return noise_floor(weights, max_count, state.ratings.dtype)


def sweep(state: BatchState, options: FitOptions, rng: np.random.Generator) -> None:
    """One sweep of both sides, with hyper-parameters and merges when they are due."""
    schedule, max_communities, evb = options.schedule, options.max_communities, options.evb
    seeding = state.sweeps == schedule.warm_up and options.seeds
    if seeding:
        state.seeded_at = state.sweeps
        for name, side in state.sides.items():
            if max_communities[name] > 1:
                seed_communities(side, max_communities[name], rng)
    for name in SIDES:
        update_side(
            state,
            name,
            coupled=options.coupled,
            hold=seeding,
            learn=evb is not None,
            scales=state.sweeps >= schedule.hold_noise,
            features=schedule.features_due(state.sweeps),
        )
        drop_empty(state.sides[name])
        order_by_size(state.sides[name])
    if state.moods is not None and state.sweeps >= schedule.hold_mood:
        update_moods(state, learn=evb is not None)
    since = 0 if state.seeded_at is None else state.sweeps - state.seeded_at
    structure = state.seeded_at is None or since >= schedule.hold_structure
    if evb is not None:
        learn_noise(state)
        for side in state.sides.values():
            side.prior = learn_prior(
                side.prior,
                side.communities,
                evb=evb,
                structure=structure,
                scale=structure and state.sweeps >= schedule.hold_scale,
            )
    if state.seeded_at is not None and structure and since % schedule.merge_every == 0:
        for side in state.sides.values():
            merge_alike(side)
    state.sweeps += 1


# ------------------------------------------------------------------------------------------------
# Moods of raters: engines subtract them from the ratings of both sides.


# docs/model.md#moods
def update_moods(state: BatchState, *, learn: bool) -> None:
    """Update q(l, g) and, with ``learn``, its prior."""
    moods, ratings = state.moods, state.ratings
    assert moods is not None
    precision, natural_mean = ratings.mood_information(state)
    prior = used = moods.prior
    for _ in range(ROUNDS if learn else 1):
        used = prior
        posterior, sums = ratings.smooth_moods(used, precision, natural_mean)
        prior = learn_mood_prior(used, sums) if learn else used
    old = moods.posterior
    squares = posterior.mean**2 - old.mean**2 + posterior.spread - old.spread
    change = precision @ squares - 2.0 * natural_mean @ (posterior.mean - old.mean)
    state.squared_error = max(state.squared_error + state.noise * float(change), 0.0)
    state.moods = replace(moods, prior=used, posterior=posterior, divergence=sums.divergence)


# ------------------------------------------------------------------------------------------------
# Start of a fit: one community on each side, then seeds from a clustering of the factors.
#
# Communities that start from random memberships collapse into one. So the factors are first learnt
# with a single community, then clustered in the metric of their prior.


def start_state(
    engine: Engine,
    unit: float,
    options: FitOptions,
    rng: np.random.Generator,
    designs: Mapping[str, Design] = MappingProxyType({}),
    component: str = RATINGS,
) -> BatchState:
    """Return both sides before the first sweep.

    Users are updated first, against the leading directions of the items.
    """
    ratings = engine.components[component]
    directions = leading_directions(ratings.residuals(PSEUDO_RATINGS), options.n_factors, rng)
    sides = {
        name: start_side(
            name,
            ratings.counts(name).size,
            options,
            rng,
            design=designs.get(name),
            directions=directions if name == "item" else None,
        )
        for name in SIDES
    }
    # Choices are not standardised: their mean square is the share of the weights that is theirs.
    noise = NOISE_START * min(1.0, ratings.n_ratings / ratings.total_weight)
    moods = ratings.start_moods()
    return BatchState(sides, engine, noise, unit, moods=moods, component=component)


FACTOR_VARIANCE = 0.1  # of a factor at the start, with ratings scaled to unit variance
FACTOR_START = 0.3  # root mean square of the factors' means
NOISE_START = 0.3  # σ² before the first sweep; at 1 small data looks like noise and factors vanish


def start_side(
    name: str,
    n_rows: int,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    design: Design | None = None,
    directions: Float64Array | None = None,
) -> Side:
    """Return a side with one community and offsets of zero.

    A side with a ``design`` has tied covariances. The first factors are ``directions``, (rows, at
    most n_factors), the others are random.
    """
    layout, dtype = options.layout(name), options.dtype
    order = layout.order
    mean = np.zeros((n_rows, layout.total), dtype)
    factors = layout.factors
    mean[:, factors] = rng.normal(scale=FACTOR_START, size=(n_rows, factors.size))
    if directions is not None:
        mean[:, factors[: directions.shape[1]]] = FACTOR_START * directions
    if layout.pinned >= 0:
        mean[:, layout.pinned] = 1.0
    rows, columns = lower_triangle(layout.total)
    second = np.empty((n_rows, rows.size), dtype)
    np.multiply(mean[:, rows], mean[:, columns], out=second)
    prior = Prior.start(
        order,
        variance=FACTOR_VARIANCE,
        concentration=options.concentration,
        mean_scale=options.spread,
    )
    nothing = Statistics(np.zeros(1), np.zeros((1, order)), np.zeros((1, order, order)), 0.0)
    return Side(
        layout=layout,
        tied=options.tied[name] or design is not None,
        prior=prior,
        moments=Moments(mean, second),
        membership=np.ones((n_rows, 1), dtype),
        statistics=nothing,
        communities=community_posterior(nothing, prior),
        noise_scales=NoiseScales.start(n_rows) if options.noise_scales[name] else None,
        regression=None if design is None else Regression.start(design, order),
    )


def seed_communities(side: Side, count: int, rng: np.random.Generator) -> None:
    """Assign every row to one of ``count`` clusters of the whitened factor means.

    The next half-sweep has to hold memberships.
    """
    whitened = side.residual_means @ np.linalg.cholesky(side.communities.precision[0])
    labels = cluster(whitened, count, rng)
    occupied = np.unique(labels)
    labels = np.searchsorted(occupied, labels)
    assign(side, labels, occupied.size)


def cluster(points: Float64Array, count: int, rng: np.random.Generator) -> np.ndarray:
    """k-means labels with k-means++ starts; fewer clusters where there are fewer points."""
    from scipy.cluster.vq import kmeans2

    count = min(count, np.unique(points, axis=0).shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters
        _, labels = kmeans2(points, count, iter=30, minit="++", rng=rng)
    return np.asarray(labels)


def assign(side: Side, labels: np.ndarray, count: int) -> None:
    """Set hard memberships, and communities from the rows' moments."""
    membership = np.zeros((side.n_rows, count), side.membership.dtype)
    membership[np.arange(side.n_rows), labels] = 1.0
    side.membership = membership
    side.refresh(hard_statistics(side, labels, count))


def hard_statistics(side: Side, labels: np.ndarray, count: int) -> Statistics:
    """Statistics of hard memberships from row moments (exact where a row has one community)."""
    n_rows = side.n_rows
    onehot = csr_array(
        (np.ones(n_rows), labels, np.arange(n_rows + 1)), shape=(n_rows, count)
    ).T.tocsr()
    if side.regression is not None:  # one Σ for all, for any memberships
        scatter = side.statistics.scatter
    else:
        free = side.layout.free
        full = unpack(onehot @ side.moments.second.astype(np.float64))
        scatter = full[:, free[:, None], free]
        if side.tied or count == 1:
            scatter = scatter.sum(axis=0, keepdims=True)
    return Statistics(
        size=np.bincount(labels, minlength=count).astype(np.float64),
        first=onehot @ side.residual_means,
        scatter=scatter,
        entropy=side.statistics.entropy,
    )


# ------------------------------------------------------------------------------------------------
# Guesses of one side's factors: the leading directions of ratings less their offsets.
#
# Factors that start at random agree with the ratings by chance only. On small data that is often
# too little: in the first sweeps all directions look like noise, their prior shrinks, and none of
# them comes back. The leading directions are those that the data determines best.
#
# The strength of a direction by chance is measured with a random sign for every rating: the number
# and the sizes of ratings stay, everything that they have in common is lost.


ITERATIONS = 3  # of the block power method; sweeps do the rest
PSEUDO_RATINGS = 5.0  # that shrink the offset of a row, and keep rare rows from leading
MIN_STRENGTH = 1e-6  # of the largest singular value; directions below hold rounding errors
CHANCE_RATINGS = 20.0  # pseudo-ratings where strengths are judged: a rare row alone is no direction
CHANCES = 4  # times that signs are drawn
CLEAR = 3.0  # standard deviations from chance at which there is something


def leading_directions(residuals: Matrix, count: int, rng: np.random.Generator) -> Float64Array:
    """Return up to ``count`` directions of the columns, (columns, ≤ count), of unit mean square.

    >>> two = csr_array([[1.0, -1.0], [-1.0, 1.0]])  # ann and bob disagree on tea and milk
    >>> np.abs(leading_directions(two, 1, np.random.default_rng(0))).round(6).tolist()
    [[1.0], [1.0]]
    """
    strength, found = _leading(residuals, count, rng)
    return found[:, strength > MIN_STRENGTH * max(strength.max(initial=0.0), MIN_STRENGTH)]


def clear_directions(
    residuals: csr_array, count: int, rng: np.random.Generator, *, margin: float = CLEAR
) -> Float64Array:
    """Return the leading directions that are stronger than those of random signs.

    The strongest is compared with the strongest, the second with the second, and so on; there are
    none unless all together are stronger by ``margin`` standard deviations.

    >>> rng = np.random.default_rng(0)
    >>> taste = np.outer(rng.normal(size=100), rng.normal(size=20))
    >>> clear_directions(csr_array(taste + rng.normal(size=(100, 20))), 3, rng).shape
    (20, 1)
    """
    strength, found = _leading(residuals, count, rng)
    by_chance = np.empty((CHANCES, strength.size))
    for drawn in by_chance:
        signs = rng.integers(0, 2, residuals.data.size, np.int8) * 2.0 - 1.0
        flipped = residuals.copy()
        flipped.data *= signs
        drawn[:] = _leading(flipped, count, rng)[0]
    sums = by_chance.sum(axis=1)
    if not strength.sum() > sums.mean() + margin * sums.std(ddof=1):
        return found[:, :0]
    return found[:, strength > by_chance.mean(axis=0)]


def _leading(
    table: Matrix, count: int, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    """Return the largest singular values, and their right vectors, of unit mean square."""
    n_columns = table.shape[1]
    block = rng.normal(size=(n_columns, min(count, *table.shape)))
    for _ in range(ITERATIONS):
        block = np.linalg.qr(table.T @ (table @ block))[0]
    _, strength, rotation = np.linalg.svd(table @ block, full_matrices=False)
    return strength, np.asarray((block @ rotation.T) * np.sqrt(n_columns))


# ------------------------------------------------------------------------------------------------
# Trials of merges and splits on a copy of a side.
#
# After convergence, statistics alone no longer show that two communities which share rows should
# merge, or that one should split. So the change is made on a copy, its rows adapt for a few
# half-sweeps, and it is kept if the bound is higher.


HALF_SWEEPS = 4  # in which a change has to raise the bound
CANDIDATES = 3  # pairs, and communities, that are tried
MIN_SPLIT = 4.0  # rows; a smaller community is not split


def improve(
    state: BatchState, options: FitOptions, rng: np.random.Generator, *, splits: bool
) -> bool:
    """Try merges and, with ``splits``, splits on both sides; return whether any was kept."""
    changed = False
    for name in state.sides:
        if options.max_communities[name] == 1:
            continue
        while state.sides[name].n_communities > 1 and any(
            _try(state, name, partial(merge, left=left, right=right), options)
            for left, right in likely_pairs(state.sides[name])
        ):
            changed = True
        for community in np.argsort(-state.sides[name].statistics.size)[:CANDIDATES]:
            if not splits or state.sides[name].n_communities >= options.max_communities[name]:
                break
            if _try(state, name, partial(_split, community=int(community), rng=rng), options):
                changed = True
                break
    return changed


def likely_pairs(side: Side) -> list[tuple[int, int]]:
    """Return the pairs with the largest gain of a merge, best first."""
    left, right = np.triu_indices(side.n_communities, k=1)
    gains = merge_gains(side, left, right)
    best = np.argsort(-gains)[:CANDIDATES]
    return [(int(left[k]), int(right[k])) for k in best]


def _try(
    state: BatchState, name: str, change: Callable[[Side], bool | None], options: FitOptions
) -> bool:
    """Change a copy of one side, let it adapt, and keep it if the bound is higher.

    A ``change`` that is not possible returns False.
    """
    state.sides[name].refresh()  # the prior may have changed
    before = sum(state.bound_terms().values())
    trial = replace(state, sides={**state.sides, name: state.sides[name].copy()})
    side = trial.sides[name]
    if change(side) is False:
        return False
    bound = -np.inf
    for step in range(HALF_SWEEPS):
        learn = options.evb is not None
        update_side(trial, name, coupled=options.coupled, hold=step == 0, learn=learn)
        if options.evb is not None:
            side.prior = learn_prior(
                side.prior, side.communities, evb=options.evb, structure=True, scale=True
            )
            side.refresh()
        last, bound = bound, sum(trial.bound_terms().values())
        if step > 0 and bound > before:
            drop_empty(side)
            order_by_size(side)
            state.sides[name] = side
            state.squared_error, state.noise = trial.squared_error, trial.noise
            return True
        if before - bound > (HALF_SWEEPS - 1 - step) * (bound - last):
            return False  # steps shrink: it will not get there
    return False


def _split(side: Side, community: int, rng: np.random.Generator) -> bool:
    """Split a community by a clustering of its members' whitened means."""
    if side.statistics.size[community] < MIN_SPLIT:
        return False
    labels = side.membership.argmax(axis=1)
    members = np.flatnonzero(labels == community)
    covariance = min(community, side.communities.precision.shape[0] - 1)
    whitened = side.residual_means[members] @ np.linalg.cholesky(
        side.communities.precision[covariance]
    )
    if members.size < MIN_SPLIT:
        return False
    halves = cluster(whitened, 2, rng)
    if halves.min() == halves.max():
        return False
    labels[members[halves == 1]] = side.n_communities
    assign(side, labels, side.n_communities + 1)
    return True


# ------------------------------------------------------------------------------------------------
# Convergence.


MIN_SIZE = 10_000.0  # nats; of a smaller bound the fifth digit is not worth a sweep


@dataclass
class Convergence:
    """Convergence of the bound, or of the error on held-out ratings.

    >>> converged = Convergence(tolerance=1e-3, patience=1, earliest=0)
    >>> [converged.bound(sweep, elbo) for sweep, elbo in enumerate([-200.0, -100.0, -99.99])]
    [False, False, True]
    """

    tolerance: float
    patience: int
    earliest: int
    """First sweep that can converge: before it, parts of the model are held."""
    size: float = MIN_SIZE
    """Changes are relative to the bound or to this, whichever is larger."""
    _last: float | None = field(default=None, init=False)
    _quiet: int = field(default=0, init=False)
    _best: float = field(default=float("inf"), init=False)
    _worse: int = field(default=0, init=False)

    def bound(self, sweep: int, elbo: float) -> bool:
        """Whether the relative change of the bound was below tolerance ``patience`` times."""
        last, self._last = self._last, elbo
        if last is None or sweep < self.earliest:
            return False
        small = abs(elbo - last) <= self.tolerance * max(abs(last), self.size)
        self._quiet = self._quiet + 1 if small else 0
        return self._quiet >= self.patience

    def reset(self) -> bool:
        """Start again after a change from outside; return False for "not converged"."""
        self._last, self._quiet, self._worse = None, 0, 0
        return False

    def validation(self, sweep: int, rmse: float) -> tuple[bool, bool]:
        """Whether this error is the smallest so far, and whether it is time to stop."""
        if sweep < self.earliest:
            return False, False
        if rmse < self._best:
            self._best, self._worse = rmse, 0
            return True, False
        self._worse += 1
        return False, self._worse >= self.patience


def notify(callbacks: tuple[Callback, ...], report: SweepReport) -> bool:
    """Call every callback; return whether any asked to stop."""
    answers = [callback(report) for callback in callbacks]
    return any(answers)
