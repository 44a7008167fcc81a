"""How good predictions, their uncertainties, and communities are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemf.errors import DataError, ParameterError
from hemf.evaluation.distribution import Predictive, below, level_edges, level_values, log_density

Vector = NDArray[np.float64]
NORMAL = float("inf")
"""Degrees of freedom of predictions that are normal; those of `hemf.HeMF` may have fewer."""


def rmse(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error.

    >>> rmse([1, 2, 5], [1, 2, 3])
    1.1547005383792515
    """
    true, guess = _vectors(actual=actual, predicted=predicted)
    return float(np.sqrt(np.mean((true - guess) ** 2)))


def mae(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute error.

    >>> mae([1, 2, 6], [1, 2, 3])
    1.0
    """
    true, guess = _vectors(actual=actual, predicted=predicted)
    return float(np.mean(np.abs(true - guess)))


def coverage(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    level: float = 0.9,
    freedom: ArrayLike = NORMAL,
) -> float:
    """Share of the ratings inside the central interval that should hold ``level`` of them.

    Honest intervals have a coverage equal to their level.

    >>> coverage([3.0, 5.0], mean=[3.5, 3.5], std=[0.5, 0.5])
    0.5
    """
    return float(calibration_curve(actual, mean, std, levels=[level], freedom=freedom).observed[0])


def nlpd(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> float:
    """Negative log predictive density of the predictions, averaged: lower is better.

    >>> round(nlpd([0.0], mean=[0.0], std=[1.0]), 4)
    0.9189
    """
    z = _standardised(actual, mean, std)
    scale = np.broadcast_to(np.asarray(std, dtype=np.float64), z.shape)
    if (zero := np.flatnonzero(scale == 0)).size:
        raise DataError(
            f"std is 0 at position {zero[0]}: a sure prediction has no density; "
            "give standard deviations above 0",
            value=0.0,
            row=int(zero[0]),
        )
    return float(np.mean(np.log(scale) - log_density(z, freedom)))


def pit(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> Vector:
    """Probability integral transform: the predicted probability of a rating at most the actual.

    Uniform on (0, 1) where predictions are honest; humped where they are too cautious,
    U-shaped where they are too sure.

    >>> pit([3.0], mean=[3.0], std=[1.0])
    array([0.5])
    """
    return below(_standardised(actual, mean, std), freedom)


class CalibrationCurve(NamedTuple):
    """Observed coverage of the central intervals of every nominal level.

    >>> CalibrationCurve(np.array([0.5]), np.array([0.6])).observed
    array([0.6])
    """

    nominal: Vector
    observed: Vector


def calibration_curve(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    levels: ArrayLike | None = None,
    freedom: ArrayLike = NORMAL,
) -> CalibrationCurve:
    """Coverage at many levels at once: honest predictions lie on the diagonal.

    ``levels`` are 0.05, 0.10, …, 0.95 unless given.

    >>> curve = calibration_curve([0.0, 1.0], mean=[0.0, 0.0], std=[1.0, 1.0], levels=[0.5, 0.9])
    >>> curve.observed
    array([0.5, 1. ])
    """
    nominal = np.arange(1, 20) / 20 if levels is None else np.asarray(levels, dtype=np.float64)
    if nominal.ndim != 1 or not np.all((nominal > 0) & (nominal < 1)):
        raise ParameterError(f"levels are {levels!r}; each must be between 0 and 1", value=levels)
    # A rating is inside the central interval of every level above that which it is at the edge of.
    edge = np.sort(np.abs(2.0 * below(_standardised(actual, mean, std), freedom) - 1.0))
    inside = np.searchsorted(edge, nominal, side="right")
    return CalibrationCurve(nominal, inside / len(edge))


def adjusted_rand_index(actual: ArrayLike, found: ArrayLike) -> float:
    """Agreement of two ways to group the same rows: 1 when equal, about 0 when unrelated.

    Names of the groups do not matter (Hubert and Arabie, 1985).

    >>> adjusted_rand_index([0, 0, 1, 1], ["b", "b", "a", "a"])
    1.0
    """
    table, n = _contingency(actual, found)
    together = _pairs(table.counts).sum()
    in_actual = _pairs(table.actual_sizes).sum()
    in_found = _pairs(table.found_sizes).sum()
    most = (in_actual + in_found) / 2
    expected = in_actual * in_found / max(n * (n - 1) / 2, 1)
    if most == expected:  # both put all rows together, or both keep all apart
        return 1.0
    return float((together - expected) / (most - expected))


def purity(actual: ArrayLike, found: ArrayLike) -> float:
    """Share of the rows that belong to the most frequent actual group of their found group.

    1 when no found group mixes actual ones; fragments of a group are pure too, so read it
    beside :func:`adjusted_rand_index`.

    >>> purity([0, 0, 1, 1], [5, 5, 5, 7])
    0.75
    """
    table, n = _contingency(actual, found)
    largest = np.zeros(len(table.found_sizes))
    np.maximum.at(largest, table.found_of_cell, table.counts)
    return float(largest.sum() / n)


class _Contingency(NamedTuple):
    counts: Vector  # of every (actual, found) combination that occurs
    found_of_cell: NDArray[np.intp]
    actual_sizes: Vector
    found_sizes: Vector


def _contingency(actual: ArrayLike, found: ArrayLike) -> tuple[_Contingency, int]:
    first, second = _labels("actual", actual), _labels("found", found)
    _check_lengths({"actual": first, "found": second})
    width = int(second.max()) + 1
    cells, counts = np.unique(first * width + second, return_counts=True)
    # Floats, as the product of two counts of pairs soon leaves 64-bit integers.
    sizes = (np.bincount(codes).astype(np.float64) for codes in (first, second))
    return _Contingency(counts.astype(np.float64), cells % width, *sizes), len(first)


def _labels(name: str, values: ArrayLike) -> NDArray[np.intp]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} has {array.ndim} dimensions; give one label a row", value=name)
    codes: NDArray[np.intp] = np.unique(array, return_inverse=True)[1]
    return codes


def _pairs(counts: Vector) -> Vector:
    """Count the pairs within groups of these sizes."""
    return counts * (counts - 1) / 2


def _standardised(actual: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Vector:
    """Distance from the mean in standard deviations; a sure prediction is off by 0 or ∞."""
    true, centre, scale = _vectors(actual=actual, mean=mean, std=std)
    if (negative := np.flatnonzero(scale < 0)).size:
        row = int(negative[0])
        raise DataError(
            f"std is {scale[row]:g} at position {row}; standard deviations cannot be negative",
            value=float(scale[row]),
            row=row,
        )
    off = true - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        z: Vector = np.where(off == 0, 0.0, off / scale)
    return z


def _vectors(**named: ArrayLike) -> list[Vector]:
    """Check and convert; a single number stands for one of every row."""
    arrays = {name: _vector(name, values) for name, values in named.items()}
    long = {name: array for name, array in arrays.items() if array.ndim == 1}
    if not long:
        raise DataError("nothing to compare: give one value a row, not single numbers")
    _check_lengths(long)
    size = len(next(iter(long.values())))
    return [np.broadcast_to(array, size) for array in arrays.values()]


def _vector(name: str, values: ArrayLike) -> Vector:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not numeric: {error}", value=values) from error
    if array.ndim > 1:
        raise DataError(f"{name} has {array.ndim} dimensions; give one value a row", value=name)
    if (bad := np.flatnonzero(~np.isfinite(array))).size:
        row = int(bad[0])
        value = float(np.atleast_1d(array)[row])
        raise DataError(f"{name} is {value} at position {row}", value=value, row=row)
    return array


def _check_lengths(arrays: dict[str, NDArray[Any]]) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"lengths differ: {told}; give one value a row", value=lengths)
    if 0 in lengths.values():
        raise DataError("nothing to compare: no rows were given")


# ------------------------------------------------------------------------------------------------
# How honest predictions are: intervals, densities, and where ratings fall in what was said.


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
