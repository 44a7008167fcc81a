"""Draws of how noisy each row's ratings, or each rating, is: `hemf.model.noise` has the model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from hemf.sampling.draws import Floats

SHAPES = np.geomspace(1.5, 1000.0, 80)  # that a0 is one of, each as likely as the others
LEAST = 1e-6  # of a scale, which is divided by


class DrawnScales:
    """τ_i of one side's rows, or of ratings, and a0, as drawn last."""

    def __init__(self, weights: Floats, shape: float) -> None:
        self.weights, self.shape = weights, shape

    @property
    def mean_inverse(self) -> float:
        """E[1/τ_i] of a row, or a rating, that nothing is known of."""
        return self.shape / (self.shape - 1.0)

    @property
    def with_stranger(self) -> Floats:
        """τ_i, and at the end what stands for a stranger's: the variance is σ² E[1/τ]."""
        return np.append(self.weights, 1.0 / self.mean_inverse)

    def draw(self, errors: Floats, counts: npt.NDArray[np.int64], rng: np.random.Generator) -> None:
        """Draw all; ``errors`` are the rows' weighted squared ones, in units of σ², without τ_i."""
        drawn = rng.standard_gamma(self.shape + 0.5 * counts) / (self.shape + 0.5 * errors)
        self.weights = np.maximum(drawn, LEAST)
        likely = self.weights.size * (SHAPES * np.log(SHAPES) - gammaln(SHAPES))
        likely += SHAPES * float(np.sum(np.log(self.weights) - self.weights))
        share = np.exp(likely - likely.max())
        self.shape = float(rng.choice(SHAPES, p=share / share.sum()))
