"""Batch variational Bayes (bVB): sweeps over all ratings, user side, then item side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hemf._typing import SIDES, Float64Array, Int32Array, Int64Array
from hemf.batch import merge_split
from hemf.batch.empirical import learn_prior
from hemf.batch.init import seed_communities
from hemf.batch.options import FitOptions
from hemf.engines.base import RATINGS, Engine, EntryTable, HalfSweep
from hemf.model import bound
from hemf.model.bound import factors_term
from hemf.model.communities import Statistics
from hemf.model.moods import Moods, learn_mood_prior
from hemf.model.noise import learn_scales, noise_term, scale_posterior
from hemf.model.predictive import with_stranger
from hemf.model.regression import Regression, regression_term
from hemf.model.side import Moments, Side

MIN_WEIGHT = 0.01  # of a row, τ, below which other rows are explained exactly
NOISE_FLOOR = 1e-6  # of the ratings' variance: ratings explained exactly would give NaN
ROUNDING = 8.0  # error of sums over n ratings, in units in the last place times √n


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

    @property
    def ratings(self) -> EntryTable:
        """The component of ratings."""
        return self.engine.components[RATINGS]

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return self.ratings.n_ratings

    def counts(self, name: str, rows: Int64Array | None = None) -> Int64Array:
        """Return the number of ratings of each row of a side, or of these rows."""
        counts = self.ratings.counts(name)
        return counts if rows is None else counts.take(rows)

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[Int32Array, Float64Array]:
        """Return the columns that a row has rated, ascending, and the standardised ratings.

        Moods are subtracted, unless the ratings are wanted ``as_given``.
        """
        return self.ratings.row(name, row, None if as_given else self.moods)

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
        """Return a copy that can be swept without changing this one; it shares the engine."""
        return replace(self, sides={name: side.copy() for name, side in self.sides.items()})

    def total_weight(self) -> float:
        """Σ τ_i υ_j over the ratings; their number without noise scales."""
        user, item = self.sides["user"], self.sides["item"]
        if user.noise_scales is None and item.noise_scales is None:
            return float(self.n_ratings)
        return float(user.weights @ self.ratings.row_sums("user", item.weights))

    def bound_terms(self) -> dict[str, float]:
        """Return the lower bound by term, with the ratings term of the last half-sweep."""
        counts = {name: self.counts(name) for name in SIDES}
        terms = bound_terms(self.sides, counts, self.squared_error, self.noise, self.unit)
        if self.moods is not None:
            terms["mood"] = -self.moods.divergence
        return terms


def bound_terms(
    sides: dict[str, Side],
    counts: dict[str, Int64Array],
    squared_error: float,
    noise: float,
    unit: float,
) -> dict[str, float]:
    """Return the lower bound by term, given the number of ratings of each row."""
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
) -> None:
    """One half-sweep: rows, noise scales, regression on features, communities, of one side.

    Parameters
    ----------
    state
        Changed in place.
    name
        "user" or "item".
    coupled
        Whether q(a, z) is joint; otherwise the paper's q(a) q(z).
    hold
        Keep the memberships.
    learn
        Learn hyper-parameters.
    scales
        Learn noise scales.
    features
        Learn the features' uncertainty and precisions, and update the rows again.

    """
    side = state.sides[name]

    def update_rows() -> Float64Array:
        found = state.ratings.half_sweep(name, state, coupled=coupled, hold=hold)
        return _take(state, name, found, learn=learn, scales=scales)

    information = update_rows()
    if features and learn_features(side, information, move=learn):
        state.noise = max(state.noise, least_noise(state))  # scales may have lowered it
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
        counts = state.counts(name)
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
    """Return a lower limit of σ²: `NOISE_FLOOR`, and more where weights of rows differ much.

    Rows of equal ratings are explained exactly: σ²/(τ_i υ_j) falls until the rounding error of
    Σ υ E[bbᵀ]/σ² exceeds the prior and factors are NaN. The error of n ratings grows as √n.
    """
    weights = [side.weights for side in state.sides.values()]
    max_count = max(int(state.counts(name).max()) for name in SIDES)
    return noise_floor(weights, max_count, state.ratings.dtype)


def noise_floor(weights: list[Float64Array], max_count: int, dtype: np.dtype[np.floating]) -> float:
    """Return the limit of `least_noise`, given weights and the largest number of ratings."""
    if min(float(weight.min()) for weight in weights) > MIN_WEIGHT:
        return NOISE_FLOOR
    most = math.prod(float(weight.max()) for weight in weights)
    rounding = ROUNDING * float(np.finfo(dtype).eps) * math.sqrt(max_count)
    return max(NOISE_FLOOR, rounding * most)


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
        merge_split.drop_empty(state.sides[name])
        merge_split.order_by_size(state.sides[name])
    if state.moods is not None and state.sweeps >= schedule.hold_mood:
        update_moods(state, learn=evb is not None)
    if evb is not None:
        learn_noise(state)
        since = 0 if state.seeded_at is None else state.sweeps - state.seeded_at
        structure = state.seeded_at is None or since >= schedule.hold_structure
        for side in state.sides.values():
            side.prior = learn_prior(
                side.prior,
                side.communities,
                evb=evb,
                structure=structure,
                scale=structure and state.sweeps >= schedule.hold_scale,
            )
    if state.seeded_at is not None:
        since = state.sweeps - state.seeded_at
        if since >= schedule.hold_structure and since % schedule.merge_every == 0:
            for side in state.sides.values():
                merge_split.merge_alike(side)
    state.sweeps += 1


# ------------------------------------------------------------------------------------------------
# Regression of a side's rows on their features.


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Add MᵀΛM to the scatter of the rows' residuals a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Update M and the statistics of the residuals."""
    if side.regression is not None:
        side.regression, side.statistics = _changed(side, side.regression.fitted(_targets(side)))


def learn_features(side: Side, information: Float64Array, *, move: bool) -> bool:
    """Update C given the rows' information weights and, with ``move``, the λ_b.

    New λ_b are tried with their q(V), and kept if the bound is higher. Return whether C changed, so
    that rows have to be updated.
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
        trial = before.with_precision(proposed, information, known).fitted(_targets(side))
        side.regression, side.statistics = _changed(side, trial)
        if _evidence(side, trial, side.statistics) >= _evidence(side, now, statistics):
            return True
    side.regression = before.with_precision(before.precision, information, known)
    side.statistics = statistics
    return True


def _targets(side: Side) -> Float64Array:
    """E[a_i] - Σ_d q_i(d) m_d of each row."""
    return np.asarray(side.factor_means - side.membership.astype(float) @ side.communities.mean)


def _changed(side: Side, after: Regression) -> tuple[Regression, Statistics]:
    """Return another regression of a side with the statistics of its residuals."""
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


def _evidence(side: Side, regression: Regression, statistics: Statistics) -> float:
    """Terms of the bound that depend on V."""
    return factors_term(statistics, side.communities) + regression_term(regression)


# ------------------------------------------------------------------------------------------------
# Moods of raters: engines subtract them from the ratings of both sides.


ROUNDS = 3  # of q(l, g) and its prior in turn, which is little work beside the ratings


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
