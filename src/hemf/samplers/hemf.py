"""HeMF with one community on each side, by Gibbs sampling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from hemf._checks import check_bool, check_callables, check_rng
from hemf._options import fit_options
from hemf._typing import SIDES, Float32Array, Float64Array, Int32Array
from hemf.batch.init import NOISE_START
from hemf.batch.inputs import regression_bytes
from hemf.batch.sweep import BatchState
from hemf.data.pairs import Pairs
from hemf.data.ratings import Ratings
from hemf.errors import ConvergenceWarning, DataError
from hemf.estimator import HeMF
from hemf.evaluation.distribution import distinct_levels, is_scale
from hemf.model.noise import START_SHAPE
from hemf.samplers.base import Chain, Sampler, SampleReport
from hemf.samplers.draws import (
    DrawnScales,
    Grades,
    NormalWishart,
    draw_noise,
    products,
    with_stranger,
)
from hemf.samplers.sides import DrawnRegression, DrawnSide

START_SWEEPS = 25  # of the variational fit that a chain begins with


class GibbsHeMF(Sampler):
    """HeMF with one community on each side, by Gibbs sampling: slower, and often more accurate.

    Variational Bayes takes the posterior apart; a sampler does not. Where ratings are few and
    features many, that is worth some percent of a rating's error, and takes some ten times as long.
    Ratings are::

        r_ij ~ N(c + o_i + p_j + a_i·b_j, σ²/(τ_i υ_j)),   (o_i, a_i) ~ N(μ + Vᵀx_i, Λ⁻¹)

    and likewise for items. An iteration draws V and all users at once, then their priors, then the
    same for items, then the noise and its scales. It begins with a `HeMF` of the same settings,
    ``start_``, which also answers for strangers: users and items without a rating.

    Parameters
    ----------
    n_factors
        Length of a_i and b_j.
    samples, burn_in
        Iterations that are averaged over, and those before, which are not.
    kept
        At most so many of the samples are kept for `predict`, evenly spread. A sample takes
        4 (n_factors + 4) bytes for each user and item; with fewer, predictions are noisier.
    implicit_features, noise_scales
        As `HeMF` has them.
    outliers
        Whether every rating has a noise scale of its own, too: errors have Student's t
        distribution, whose degrees of freedom are drawn, and what does not fit counts less.
    ordinal
        Whether ratings are levels of a scale, whose ends nobody can go beyond, and not numbers.
    rating_range
        Predictions are clipped to it, after they were averaged: ``"observed"``, a pair of numbers
        (a rating outside is an error then), or ``None``.
    duplicates
        What `fit` does with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``,
        ``"error"``.
    n_jobs
        Threads: None is all cores. The result is the same for any number.
    rng
        Seed, or NumPy generator, of everything random.

    Examples
    --------
    >>> from hemf import GibbsHeMF
    >>> model = GibbsHeMF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_items_
    2
    >>> mean, std = model.predict("bob", ["tea", "milk"], return_std=True)
    >>> mean.shape, bool((std > 0.3).all())
    ((2,), True)

    """

    def __init__(
        self,
        *,
        n_factors: int = 20,
        samples: int = 300,
        burn_in: int = 30,
        kept: int = 300,
        implicit_features: bool | str = True,
        noise_scales: str | None = "both",
        outliers: bool = False,
        ordinal: bool = False,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        n_jobs: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.samples = samples
        self.burn_in = burn_in
        self.kept = kept
        self.implicit_features = implicit_features
        self.noise_scales = noise_scales
        self.outliers = outliers
        self.ordinal = ordinal
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.n_jobs = n_jobs
        self.rng = rng

    def fit(
        self,
        ratings: Any,
        y: Any = None,
        *,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
        validation: Any = None,
        callbacks: Sequence[Callable[[SampleReport], Any]] = (),
    ) -> Self:
        """Learn from ratings and features, anything that `HeMF.fit` reads, from the start.

        ``callbacks`` are called with a `SampleReport` after every iteration; one that returns
        something true stops the fit, and if no draw counts by then, the latest one is kept.
        ``validation`` are ratings to report the error on, which nothing is learnt from. A fit that
        fails leaves the estimator as it was.
        """
        self.check_parameters()
        rng, told = check_rng(self.rng), check_callables("callbacks", callbacks)
        data, begin = self._read(ratings, y, columns), time.perf_counter()
        levels = _levels(data) if self.ordinal else None
        first = self._first(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first.fit(data, user_features=user_features, item_features=item_features)
        state, scale, grades = first.state_, first.rating_scale_, None
        if levels is not None:
            grades = Grades.of((levels - first.global_mean_) / scale)
        assert isinstance(state, BatchState)

        def start(threads: int) -> Chain:
            outliers = self.outliers
            return InformedChain.of(state, scale, rng, threads, outliers=outliers, grades=grades)

        self._sample(data, start, validation, told, of_strangers=first.predict, begin=begin)
        self.start_ = first
        return self

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        super().check_parameters()
        check_bool("outliers", self.outliers)
        check_bool("ordinal", self.ordinal)
        fit_options(self._first(0))

    def _first(self, rng: int | np.random.Generator) -> HeMF:
        """Return the model that a chain begins with."""
        return HeMF(
            n_factors=self.n_factors,
            max_user_communities=1,
            max_item_communities=1,
            implicit_features=self.implicit_features,
            noise_scales=self.noise_scales,
            max_sweeps=START_SWEEPS,
            rating_range=self.rating_range,
            n_jobs=self.n_jobs,
            rng=rng,
        )

    def _answers(self, pairs: Pairs) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of pairs; for strangers ``start_`` answers.

        It does so by their features, if it was given any.
        """
        mean, std = super()._answers(pairs)
        strange = ~pairs.known
        if strange.any():
            theirs = self.start_.predict(pairs.user_ids, pairs.item_ids, return_std=True)
            mean, std = np.where(strange, theirs[0], mean), np.where(strange, theirs[1], std)
        return mean, std


def _levels(data: Ratings) -> Float64Array:
    """Return the levels of the scale of ratings, or say that there is none."""
    levels = distinct_levels(data.by_user.values)
    if not is_scale(levels):
        raise DataError(
            f"ordinal=True is for levels of a scale, and there are {levels.size:,} different "
            "ratings; round them, or choose ordinal=False"
        )
    return levels


# ------------------------------------------------------------------------------------------------
# The Gibbs sampler of HeMF with one community on each side: what it draws, in which order.


class InformedChain:
    """Vectors, features' coefficients, priors, noise and its scales. One `step` draws all once."""

    def __init__(
        self,
        sides: dict[str, DrawnSide],
        noise: float,
        unit: float,
        rng: np.random.Generator,
        threads: int,
        outliers: DrawnScales | None = None,
        grades: Grades | None = None,
    ) -> None:
        self.sides, self.variance, self.unit = sides, noise, unit
        self.rng, self.threads, self.outliers, self.grades = rng, threads, outliers, grades
        rows = sides["user"].rows
        self.ratings = rows.values
        """As they were given; where these are levels, rows hold what is behind them."""
        self._which = None if grades is None else grades.which(rows.values)
        users = np.repeat(np.arange(sides["user"].n_rows, dtype=np.int32), np.diff(rows.indptr))
        self._pairs: tuple[Int32Array, Int32Array] = users, rows.indices
        self._by_item = np.argsort(rows.indices, kind="stable")
        self.counts = {name: np.diff(side.rows.indptr) for name, side in sides.items()}
        self.errors = self._errors()

    @classmethod
    def of(
        cls,
        state: BatchState,
        unit: float,
        rng: np.random.Generator,
        threads: int,
        *,
        outliers: bool = False,
        grades: Grades | None = None,
    ) -> InformedChain:
        """Return a chain that begins where a variational fit has ended.

        With ``outliers`` every rating has a noise scale of its own: errors have Student's t. With
        ``grades`` ratings are levels of a scale.
        """
        sides = {}
        for name, side in state.sides.items():
            found, scales = side.regression, side.noise_scales
            order = side.layout.order
            sides[name] = DrawnSide(
                layout=side.layout,
                rows=state.rows[name],
                vectors=side.moments.mean.astype(np.float32),
                mean=side.communities.mean[0].copy(),
                precision=side.communities.precision[0].copy(),
                prior=NormalWishart(mean_precision=1.0, degrees=order + 1.0),
                regression=None
                if found is None
                else DrawnRegression(found.design, found.coefficients.copy(), found.precision),
                scales=None if scales is None else DrawnScales(scales.mean, scales.prior_shape),
            )
        each = DrawnScales(np.ones(state.n_ratings), START_SHAPE) if outliers else None
        return cls(sides, state.noise, unit, rng, threads, each, grades)

    @property
    def noise(self) -> float:
        """σ², in squared units of a rating."""
        return self.variance * self.unit**2

    @property
    def train_rmse(self) -> float:
        """Root of the mean squared error under the draws of the last step."""
        errors = self.errors
        if self.grades is not None:
            std = np.sqrt(self.variance / self.weights)
            errors = self.grades.moments(self._behind() - errors, std)[0] - self.ratings
        return float(np.sqrt(np.mean(errors**2))) * self.unit

    @property
    def step_bytes(self) -> int:
        """Memory for S_i of the larger side's rows, and for factorised features beside HeMF's."""
        sides = self.sides.values()
        told = [side.regression.design for side in sides if side.regression is not None]
        n_factors = self.sides["user"].layout.order - 1
        return max(4 * side.n_rows * side.layout.order**2 for side in sides) + sum(
            regression_bytes(design, n_factors) for design in told
        )

    @property
    def weights(self) -> Float64Array:
        """τ_i υ_j of every rating, and its own scale, user by user."""
        users, items = self._pairs
        weights = self.sides["user"].weights[users] * self.sides["item"].weights[items]
        return weights if self.outliers is None else weights * self.outliers.weights

    def step(self) -> None:
        """Draw everything once, each given the rest."""
        user, item = self.sides["user"], self.sides["item"]
        self._draw_behind()
        weights = (self.weights / self.variance).astype(np.float32)
        user.draw(item.vectors, weights, self.rng, self.threads)
        item.draw(user.vectors, weights[self._by_item], self.rng, self.threads)
        self.errors = self._errors()
        self._draw_noise()

    def _behind(self) -> Float64Array:
        """Return what is explained: ratings, or what is behind them."""
        return np.asarray(self.sides["user"].rows.values, np.float64)

    def _draw_behind(self) -> None:
        """Draw what is behind levels of a scale."""
        if self.grades is None or self._which is None:
            return
        user, item = self.sides["user"], self.sides["item"]
        mean, std = self._behind() - self.errors, np.sqrt(self.variance / self.weights)
        drawn = self.grades.draw(self._which, mean, std, self.rng).astype(np.float32)
        user.rows = replace(user.rows, values=drawn)
        item.rows = replace(item.rows, values=drawn[self._by_item])

    def _draw_noise(self) -> None:
        """Draw the scales of ratings, of rows, and σ², each given the rest."""
        if self.outliers is not None:
            errors = self._weighted_squares() / self.outliers.weights
            self.outliers.draw(errors, np.ones(errors.size, np.int64), self.rng)
        for name, rows in zip(SIDES, self._pairs, strict=True):
            side = self.sides[name]
            if side.scales is not None:
                errors = np.bincount(rows, self._weighted_squares(), side.n_rows) / side.weights
                side.scales.draw(errors, self.counts[name], self.rng)
        self.variance = draw_noise(np.sqrt(self.weights) * self.errors, NOISE_START, self.rng)

    def _weighted_squares(self) -> Float64Array:
        return np.asarray(self.weights * self.errors**2 / self.variance)

    def _errors(self) -> Float64Array:
        user, item = self.sides["user"], self.sides["item"]
        expected = products(*self._pairs, user.vectors, item.vectors, self.threads)
        return self._behind() - expected

    def sample(self) -> FactorSample:
        """Return the draws of the last step."""
        user, item = self.sides["user"], self.sides["item"]
        return FactorSample(
            users=with_stranger(user.vectors, 0.0),
            items=with_stranger(item.vectors, 0.0),
            user_weights=None if user.scales is None else user.scales.with_stranger,
            item_weights=None if item.scales is None else item.scales.with_stranger,
            unit=self.unit,
            noise=self.noise,
            outlying=1.0 if self.outliers is None else self.outliers.mean_inverse,
            grades=self.grades,
        )


# ------------------------------------------------------------------------------------------------
# What one draw says of pairs.


@dataclass(frozen=True)
class FactorSample:
    """One draw of all that a rating depends on: r - c ~ N(s a_i·b_j, σ²/(τ_i υ_j ω_ij)).

    Where ratings are levels of a scale, that is of what is behind them.

    The last row of every table is for strangers, whom a draw tells nothing of.
    """

    users: Float32Array
    """a_i with the pinned coordinate, (rows + 1, total)."""
    items: Float32Array
    user_weights: Float64Array | None
    """τ_i; None where all are 1."""
    item_weights: Float64Array | None
    unit: float
    """s, the ratings' standard deviation."""
    noise: float
    """σ², in squared units of a rating."""
    outlying: float = 1.0
    """E[1/ω_ij] of a rating that is still to come."""
    grades: Grades | None = None
    """Levels of the scale, standardised; None where ratings are numbers."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tables = self.users, self.items, self.user_weights, self.item_weights
        return sum(table.nbytes for table in tables if table is not None)

    def moments(
        self, user_rows: Int32Array, item_rows: Int32Array
    ) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of r - c."""
        mean = products(user_rows, item_rows, self.users, self.items, threads=1).astype(np.float64)
        variance: Float64Array = np.full(len(user_rows), self.noise * self.outlying / self.unit**2)
        if self.user_weights is not None:
            variance /= self.user_weights[user_rows]
        if self.item_weights is not None:
            variance /= self.item_weights[item_rows]
        if self.grades is not None:
            mean, variance = self.grades.moments(mean, np.sqrt(variance))
        return self.unit * mean, self.unit**2 * variance
