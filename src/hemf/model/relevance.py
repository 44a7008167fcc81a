"""Relevance: what a user would choose and would like.

    relevance = E[choice]^α × P(rating ≥ level | chosen)^γ

α is 0 or 1, and γ ≥ 0: which of both counts, and how much, is chosen by the rank of choices that
are left out (`hemf.batch.choices`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hemf._typing import Array, Float64Array

MIN_PROBABILITY = 1e-12  # far outside of what a rule has to tell apart


# docs/model.md#relevance
@dataclass(frozen=True)
class Relevance:
    """How choices and ratings are combined to rank items."""

    level: float
    """Smallest rating that is good, on the rating scale."""
    choice_exponent: float = 1.0
    """α."""
    rating_exponent: float = 0.5
    """γ."""

    def of(self, choice: Array, probability: Array) -> Array:
        """Return the relevance of items, given their expected choice and P(rating ≥ level).

        A choice that is expected to be negative keeps its place behind all others.

        >>> rule = Relevance(level=4.0)
        >>> rule.of(np.array([0.5, 0.5, -0.1]), np.array([0.25, 1.0, 1.0])).tolist()
        [0.25, 0.5, -0.1]
        """
        liked = np.maximum(probability, MIN_PROBABILITY) ** self.rating_exponent
        if self.choice_exponent == 0.0:
            return np.asarray(liked)
        return np.asarray(np.where(choice > 0.0, choice * liked, choice))

    def probability(self, mean: Array, std: Array) -> Float64Array:
        """Return P(rating ≥ level) of ratings with this mean and standard deviation.

        >>> Relevance(level=4.0).probability(np.array([4.0]), np.array([1.0])).tolist()
        [0.5]
        """
        return np.asarray(ndtr((mean - self.level) / std))
