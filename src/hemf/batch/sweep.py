"""Batch variational Bayes (bVB): sweeps over all ratings, user side, then item side."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from hemf._options import FitOptions
from hemf._typing import SIDES, Float64Array, Int32Array, Int64Array, Matrix
from hemf.engines.base import RATINGS, Engine, EntryTable, HalfSweep
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
    merge_alike,
    order_by_size,
    regress,
    with_penalty,
)


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
