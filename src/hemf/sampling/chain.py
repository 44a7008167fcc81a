"""The Gibbs sampler of HeMF with one community on each side: what it draws, in which order."""

from __future__ import annotations

import numpy as np

from hemf.baselines.chains import with_stranger
from hemf.baselines.draws import Floats, NormalWishart, RowNumbers, draw_noise, products
from hemf.inference.batch import SIDES, BatchState
from hemf.inference.start import NOISE_START
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
    ) -> None:
        self.sides, self.variance, self.unit = sides, noise, unit
        self.rng, self.threads = rng, threads
        rows = sides["user"].rows
        users = np.repeat(np.arange(sides["user"].n_rows, dtype=np.int32), np.diff(rows.indptr))
        self._pairs: tuple[RowNumbers, RowNumbers] = users, rows.indices
        self.counts = {name: np.diff(side.rows.indptr) for name, side in sides.items()}
        self.errors = self._errors()

    @classmethod
    def of(
        cls, state: BatchState, unit: float, rng: np.random.Generator, threads: int
    ) -> InformedChain:
        """Return a chain that begins where a variational fit has ended."""
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
        return cls(sides, state.noise, unit, rng, threads)

    @property
    def noise(self) -> float:
        """σ², in squared units of a rating."""
        return self.variance * self.unit**2

    @property
    def train_rmse(self) -> float:
        """Root of the mean squared error under the draws of the last step."""
        return float(np.sqrt(np.mean(self.errors**2))) * self.unit

    def step(self) -> None:
        """Draw everything once, each given the rest."""
        for name in SIDES:
            other = self.sides["item" if name == "user" else "user"]
            self.sides[name].draw(other, self.variance, self.rng, self.threads)
        self.errors = self._errors()
        self._draw_noise()

    def _draw_noise(self) -> None:
        sides, rows = self.sides, dict(zip(SIDES, self._pairs, strict=True))
        squares = self.errors**2
        for name, other in (("user", "item"), ("item", "user")):
            scales = sides[name].scales
            if scales is not None:
                weighted = squares * sides[other].weights[rows[other]] / self.variance
                errors = np.bincount(rows[name], weighted, sides[name].n_rows).astype(np.float64)
                scales.draw(errors, self.counts[name], self.rng)
        weights = np.ones(1)
        for name, side in sides.items():
            if side.scales is not None:
                weights = weights * side.weights[rows[name]]
        self.variance = draw_noise(np.sqrt(weights) * self.errors, NOISE_START, self.rng)

    def _errors(self) -> Floats:
        user, item = self.sides["user"], self.sides["item"]
        expected = products(*self._pairs, user.vectors, item.vectors, self.threads)
        return np.asarray(user.rows.values - expected, np.float64)

    def sample(self) -> FactorSample:
        """Return the draws of the last step."""
        user, item = self.sides["user"], self.sides["item"]
        return FactorSample(
            users=with_stranger(user.vectors, user.stranger),
            items=with_stranger(item.vectors, item.stranger),
            user_weights=None if user.scales is None else np.append(user.weights, 1.0),
            item_weights=None if item.scales is None else np.append(item.weights, 1.0),
            unit=self.unit,
            noise=self.noise,
        )
