"""Batch variational Bayes (bVB): sweeps over all ratings, user side, then item side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import Rows, Shared, half_sweep
from hemf.inference import moves
from hemf.inference.empirical import learn_prior
from hemf.inference.moods import Moods, update_moods
from hemf.inference.regress import learn_features, regress, with_penalty
from hemf.inference.start import seed_communities
from hemf.model import bound
from hemf.model.noise import learn_scales, noise_term, scale_posterior
from hemf.model.packing import Float64
from hemf.model.regression import regression_term
from hemf.model.side import Side

SIDES = ("user", "item")
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
    ) -> tuple[npt.NDArray[np.int32], Float64]:
        """Rows of the other side that a row has rated, ascending, and the standardised ratings.

        They are less moods, where there are any, unless they are to be ``as_given``.
        """
        rows = self.rows[name]
        span = slice(rows.indptr[row], rows.indptr[row + 1])
        values = rows.values
        if as_given and self.moods is not None:
            values = self.moods.ratings[name]
        return rows.indices[span], values[span].astype(np.float64)

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
    told = _update_rows(state, name, coupled, hold, learn, scales, n_jobs)
    if features and learn_features(side, told, move=learn):
        state.noise = max(state.noise, least_noise(state))  # which scales may have taken it below
        told = _update_rows(state, name, coupled, hold, learn, scales, n_jobs)
    if side.regression is not None:
        side.regression = side.regression.heard(float(told @ side.regression.doubt))
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
) -> Float64:
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
        doubt=None if side.regression is None else side.regression.doubt,
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
    return found.told


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


def noise_floor(weights: list[Float64], n_most: int, dtype: np.dtype[np.floating]) -> float:
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
        moves.drop_empty(state.sides[name])
        moves.order_by_size(state.sides[name])
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
                moves.merge_alike(side)
    state.sweeps += 1
