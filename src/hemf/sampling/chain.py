"""The Gibbs sampler of HeMF with one community on each side: what it draws, in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf.inference.batch import SIDES, BatchState
from hemf.inference.start import NOISE_START
from hemf.memory import regression_bytes
from hemf.model.noise import START_SHAPE
from hemf.sampling.draws import (
    Floats,
    NormalWishart,
    RowNumbers,
    draw_noise,
    products,
    with_stranger,
)
from hemf.sampling.grades import Grades
from hemf.sampling.regression import DrawnRegression
from hemf.sampling.sample import FactorSample
from hemf.sampling.scales import DrawnScales
from hemf.sampling.sides import DrawnSide


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
        self._pairs: tuple[RowNumbers, RowNumbers] = users, rows.indices
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
    def weights(self) -> Floats:
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

    def _behind(self) -> Floats:
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

    def _weighted_squares(self) -> Floats:
        return np.asarray(self.weights * self.errors**2 / self.variance)

    def _errors(self) -> Floats:
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
