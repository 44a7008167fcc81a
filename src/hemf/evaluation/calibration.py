"""How honest predictions are: intervals, densities, and where ratings fall in what was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemf.errors import DataError
from hemf.evaluation.distribution import Predictive, level_edges, level_values
from hemf.evaluation.metrics import CalibrationCurve, calibration_curve

Vector = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage is told
BINS = 10
STEPS = np.linspace(0.0, 1.0, BINS + 1)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What `judge` found; see there."""

    n_ratings: int
    coverage: dict[float, float]
    """Share of the ratings inside the intervals of each level."""
    nlpd: float
    """Negative log predictive density, averaged: lower is better."""
    crps: float
    """Continuous ranked probability score, averaged, in units of the rating: lower is better."""
    pit: Vector
    """Share of the ratings in each tenth of what was predicted; honest is a tenth in each."""
    log_score: float | None
    """Negative log probability of the levels, averaged: lower is better. None without levels."""
    curve: CalibrationCurve
    """Coverage at every twentieth."""

    @property
    def pit_distance(self) -> float:
        """Share of the ratings that would have to be in another tenth; 0 is honest, 0.9 the worst.

        Chance alone makes it about 1.2/√n, n the number of ratings.
        """
        return float(0.5 * np.abs(self.pit - 1.0 / self.pit.size).sum())

    def to_dict(self) -> dict[str, Any]:
        """Return the figures in JSON's types."""
        held = {f"coverage{100 * level:.0f}": share for level, share in self.coverage.items()}
        return {
            **held,
            "nlpd": self.nlpd,
            "crps": self.crps,
            "log_score": self.log_score,
            "pit_distance": self.pit_distance,
            "pit": self.pit.tolist(),
        }


def judge(
    actual: ArrayLike, predicted: Predictive, *, levels: ArrayLike | None = None
) -> Calibration:
    """Compare ratings with the distributions that were predicted of them.

    With the ``levels`` of a scale, ratings are taken for the level that they are nearest to: the
    log score is of these, and a rating counts in all tenths that its level's probability lies in
    (the non-randomised PIT of counts; Czado, Gneiting and Held, 2009), as ratings of five stars
    can be in no other way uniform.

    >>> found = judge([3.0, 5.0], Predictive(np.array([3.0, 3.0]), np.array([1.0, 1.0])))
    >>> found.coverage[0.9], round(found.nlpd, 4), found.pit.round(1).tolist()
    (0.5, 1.9189, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5])
    """
    try:
        true = np.asarray(actual, np.float64)
    except (TypeError, ValueError):
        raise DataError("the ratings to judge by must be numbers") from None
    if true.ndim != 1 or true.size != predicted.mean.size or not true.size:
        raise DataError(
            f"there are {true.size} ratings and {predicted.mean.size} predictions; give one or "
            "more, and as many of either",
            value=true.size,
        )
    curve = calibration_curve(true, predicted.mean, predicted.std, freedom=predicted.freedom)
    held = calibration_curve(
        true, predicted.mean, predicted.std, levels=LEVELS, freedom=predicted.freedom
    )
    if levels is None:
        places = np.minimum((predicted.below(true) * BINS).astype(np.int64), BINS - 1)
        pit, log_score = np.bincount(places, minlength=BINS) / true.size, None
    else:
        pit, log_score = _judged_levels(true, predicted, level_values(levels))
    return Calibration(
        n_ratings=true.size,
        coverage=dict(zip(LEVELS, held.observed.tolist(), strict=True)),
        nlpd=-float(np.mean(predicted.log_density(true))),
        crps=float(np.mean(predicted.crps(true))),
        pit=pit,
        log_score=log_score,
        curve=curve,
    )


def _judged_levels(true: Vector, predicted: Predictive, levels: Vector) -> tuple[Vector, float]:
    """Histogram of the PIT and mean log score of the levels that ratings are nearest to."""
    edges = level_edges(levels)
    place = np.searchsorted(edges[1:-1], true)  # the level nearest; of two as near, the lower
    odds = predicted.between(edges[place], edges[place + 1])
    score = -float(np.mean(np.log(np.maximum(odds, np.finfo(np.float64).tiny))))
    begin = predicted.below(edges[place])
    width = np.maximum(odds, 1e-9)  # that of a point, for a rating next to impossible
    begin = np.minimum(begin, 1.0 - width)
    below = [np.mean(np.clip((step - begin) / width, 0.0, 1.0)) for step in STEPS]
    return np.diff(below), score
