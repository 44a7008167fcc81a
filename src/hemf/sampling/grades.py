"""Ratings as the levels of a scale, with a number behind each that nobody sees.

Who loves a film can say no more than 5. As numbers such ratings pull everything that they are
explained by towards the end of the scale; as levels they say that the number behind is 4.5 or
more. Levels begin and end half-way to the next; the first and the last have no other end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from hemf.evaluation.distribution import level_edges
from hemf.sampling.draws import Floats

Which = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Grades:
    """The levels of a scale, ascending, in units of the ratings' deviation from their mean."""

    levels: Floats
    """(K,)"""
    edges: Floats
    """Where each begins and ends, with infinities, (K + 1,)."""

    @classmethod
    def of(cls, levels: Floats) -> Grades:
        """Return a scale of these levels.

        >>> Grades.of(np.array([1.0, 2.0, 4.0])).edges
        array([-inf,  1.5,  3. ,  inf])
        """
        return cls(levels, level_edges(levels))

    def which(self, ratings: npt.NDArray[np.floating]) -> Which:
        """Return the number of the level that each rating is."""
        return np.searchsorted(self.edges[1:-1], ratings)

    def draw(self, which: Which, mean: Floats, std: Floats, rng: np.random.Generator) -> Floats:
        """Draw what is behind ratings of these levels, a priori normal: a piece of it is left."""
        low, high = (self.edges[which + end] - mean for end in (0, 1))
        low, high = low / std, high / std
        flip = low > 0.0  # far out on the left, ndtr is exact where on the right it is 1
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        begin, end = ndtr(low), ndtr(high)
        drawn = ndtri(begin + (end - begin) * rng.random(low.size))
        # Where no number holds how unlikely a level is, the nearer edge is what is left of it.
        drawn = np.where(begin + end > 0.0, np.clip(drawn, low, high), high)
        return np.asarray(mean + std * np.where(flip, -drawn, drawn))

    def moments(self, mean: Floats, std: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of a rating whose number behind has these."""
        expected = np.full(mean.shape, self.levels[0])
        squares = expected**2
        for level, higher, edge in zip(
            self.levels[:-1], self.levels[1:], self.edges[1:-1], strict=True
        ):
            above = ndtr((mean - edge) / std)
            expected += (higher - level) * above
            squares += (higher**2 - level**2) * above
        return expected, np.maximum(squares - expected**2, 0.0)
