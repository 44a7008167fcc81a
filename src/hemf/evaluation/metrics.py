"""Metrics of predictions, of their uncertainties and of communities, and comparison of methods.

>>> ours, theirs = [0.831, 0.829, 0.834], [0.848, 0.843, 0.850]
>>> print(summarise(ours))
0.8313 ± 0.0015
>>> print(paired_difference(ours, theirs))
-0.0157 ± 0.0009 (p = 0.0032, 3 splits)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hemf._checks import check_floats, check_lengths, check_number, check_rows, check_value
from hemf._typing import Float64Array, Int64Array
from hemf.errors import DataError
from hemf.evaluation.distribution import Predictive, below, level_edges, level_values, log_density

NORMAL = float("inf")
"""Degrees of freedom of a normal prediction; those of `hemf.HeMF` may have fewer."""
_REPORTED_LEVELS = (0.5, 0.8, 0.9, 0.95)
_BINS = 10
_BIN_EDGES = np.linspace(0.0, 1.0, _BINS + 1)


def rmse(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error.

    >>> rmse([1, 2, 5], [1, 2, 3])
    1.1547005383792515
    """
    true, guess = _columns(actual=actual, predicted=predicted)
    return float(np.sqrt(np.mean((true - guess) ** 2)))


def mae(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute error.

    >>> mae([1, 2, 6], [1, 2, 3])
    1.0
    """
    true, guess = _columns(actual=actual, predicted=predicted)
    return float(np.mean(np.abs(true - guess)))


# -- calibration ---------------------------------------------------------------------------------


def coverage(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    level: float = 0.9,
    freedom: ArrayLike = NORMAL,
) -> float:
    """Share of the ratings inside the central interval of probability ``level``.

    Parameters
    ----------
    actual
        Ratings.
    mean, std
        Predicted means and standard deviations.
    level
        Probability of the interval. Calibrated intervals have a coverage equal to it.
    freedom
        Degrees of freedom of the Student-t, as in `Predictive`.

    Returns
    -------
    float

    Examples
    --------
    >>> coverage([3.0, 5.0], mean=[3.5, 3.5], std=[0.5, 0.5])
    0.5

    """
    return float(calibration_curve(actual, mean, std, levels=[level], freedom=freedom).observed[0])


def nlpd(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> float:
    """Mean negative log predictive density: lower is better.

    Parameters are those of :func:`coverage`.

    >>> round(nlpd([0.0], mean=[0.0], std=[1.0]), 4)
    0.9189
    """
    z = _standardised(actual, mean, std)
    scale = np.broadcast_to(np.asarray(std, dtype=np.float64), z.shape)
    check_rows("std", scale, scale == 0, "has no density; give standard deviations above 0")
    return float(np.mean(np.log(scale) - log_density(z, freedom)))


def pit(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> Float64Array:
    """Probability integral transform: the predicted probability of a rating at most the actual.

    Uniform on (0, 1) if predictions are calibrated, humped if the standard deviations are too
    large, U-shaped if they are too small. Parameters are those of :func:`coverage`.

    >>> pit([3.0], mean=[3.0], std=[1.0])
    array([0.5])
    """
    return below(_standardised(actual, mean, std), freedom)


class CalibrationCurve(NamedTuple):
    """Observed coverage of the central intervals of every nominal level."""

    nominal: Float64Array
    observed: Float64Array


def calibration_curve(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    levels: ArrayLike | None = None,
    freedom: ArrayLike = NORMAL,
) -> CalibrationCurve:
    """Coverage at many levels: calibrated predictions lie on the diagonal.

    ``levels`` are 0.05, 0.10, …, 0.95 by default. Other parameters are those of :func:`coverage`.

    >>> curve = calibration_curve([0.0, 1.0], mean=[0.0, 0.0], std=[1.0, 1.0], levels=[0.5, 0.9])
    >>> curve.observed
    array([0.5, 1. ])
    """
    nominal = np.arange(1, 20) / 20 if levels is None else np.asarray(levels, dtype=np.float64)
    valid = nominal.ndim == 1 and bool(np.all((nominal > 0) & (nominal < 1)))
    check_value("levels", levels, valid, "between 0 and 1")
    # The level of the smallest central interval that holds each rating.
    smallest = np.sort(np.abs(2.0 * below(_standardised(actual, mean, std), freedom) - 1.0))
    inside = np.searchsorted(smallest, nominal, side="right")
    return CalibrationCurve(nominal, inside / len(smallest))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Result of `judge`."""

    n_ratings: int
    coverage: dict[float, float]
    """Share of the ratings inside the interval of each level."""
    nlpd: float
    """Mean negative log predictive density: lower is better."""
    crps: float
    """Mean continuous ranked probability score, in units of the rating: lower is better."""
    pit: Float64Array
    """Share of the ratings in each tenth of the predicted distribution; ideally 0.1 each."""
    log_score: float | None
    """Mean negative log probability of the levels: lower is better. None without levels."""
    curve: CalibrationCurve
    """Coverage at every twentieth."""

    @property
    def pit_distance(self) -> float:
        """Share of the ratings that would have to be in another tenth: 0 is best, 0.9 worst.

        Chance alone makes it about 1.2/√n for n ratings.
        """
        return float(0.5 * np.abs(self.pit - 1.0 / self.pit.size).sum())

    def to_dict(self) -> dict[str, object]:
        """Return the figures in JSON's types."""
        return {
            **{f"coverage{100 * level:.0f}": share for level, share in self.coverage.items()},
            "nlpd": self.nlpd,
            "crps": self.crps,
            "log_score": self.log_score,
            "pit_distance": self.pit_distance,
            "pit": self.pit.tolist(),
        }


def judge(
    actual: ArrayLike, predicted: Predictive, *, levels: ArrayLike | None = None
) -> Calibration:
    """Compare ratings with their predicted distributions.

    Parameters
    ----------
    actual
        Ratings.
    predicted
        One distribution for each rating.
    levels
        Levels of the rating scale. Each rating is rounded to the nearest one. The log score is
        that of the levels, and the PIT is the non-randomised one for counts (Czado, Gneiting and
        Held, 2009), because ratings of five stars cannot be uniform otherwise.

    Returns
    -------
    Calibration

    Examples
    --------
    >>> found = judge([3.0, 5.0], Predictive(np.array([3.0, 3.0]), np.array([1.0, 1.0])))
    >>> found.coverage[0.9], round(found.nlpd, 4), found.pit.round(1).tolist()
    (0.5, 1.9189, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5])

    """
    true = check_floats("ratings", actual)
    check_lengths(ratings=true, predictions=predicted.mean)
    mean, std, freedom = predicted.mean, predicted.std, predicted.freedom
    reported = calibration_curve(true, mean, std, levels=_REPORTED_LEVELS, freedom=freedom)
    if levels is None:
        bins = np.minimum((predicted.below(true) * _BINS).astype(np.int64), _BINS - 1)
        histogram, log_score = np.bincount(bins, minlength=_BINS) / true.size, None
    else:
        histogram, log_score = _judge_levels(true, predicted, level_values(levels))
    return Calibration(
        n_ratings=true.size,
        coverage=dict(zip(_REPORTED_LEVELS, reported.observed.tolist(), strict=True)),
        nlpd=-float(np.mean(predicted.log_density(true))),
        crps=float(np.mean(predicted.crps(true))),
        pit=histogram,
        log_score=log_score,
        curve=calibration_curve(true, mean, std, freedom=freedom),
    )


def _judge_levels(
    true: Float64Array, predicted: Predictive, levels: Float64Array
) -> tuple[Float64Array, float]:
    """Return the PIT histogram and the mean log score of the nearest levels."""
    edges = level_edges(levels)
    place = np.searchsorted(edges[1:-1], true)  # the lower level in a tie
    probability = predicted.between(edges[place], edges[place + 1])
    score = -float(np.mean(np.log(np.maximum(probability, np.finfo(np.float64).tiny))))
    begin = predicted.below(edges[place])
    width = np.maximum(probability, 1e-9)  # of a rating next to impossible
    begin = np.minimum(begin, 1.0 - width)
    cumulative = [np.mean(np.clip((edge - begin) / width, 0.0, 1.0)) for edge in _BIN_EDGES]
    return np.diff(cumulative), score


def _standardised(actual: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Float64Array:
    """Distance from the mean in standard deviations; 0 or ±∞ where the deviation is 0."""
    true, centre, scale = _columns(actual=actual, mean=mean, std=std)
    check_rows("std", scale, scale < 0, "is negative")
    residual = true - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        z: Float64Array = np.where(residual == 0, 0.0, residual / scale)
    return z


def _columns(**named: ArrayLike) -> list[Float64Array]:
    """Check and convert; a single number is repeated for every row."""
    arrays = {name: check_floats(name, values, scalar=True) for name, values in named.items()}
    columns = {name: array for name, array in arrays.items() if array.ndim == 1}
    if not columns:
        raise DataError("expected columns, got single numbers; give one value for each row")
    size = check_lengths(**columns)
    return [np.broadcast_to(array, size) for array in arrays.values()]


# -- communities ---------------------------------------------------------------------------------


def adjusted_rand_index(actual: ArrayLike, found: ArrayLike) -> float:
    """Agreement of two partitions of the same rows: 1 if equal, about 0 if unrelated.

    Names of the groups do not matter (Hubert and Arabie, 1985).

    >>> adjusted_rand_index([0, 0, 1, 1], ["b", "b", "a", "a"])
    1.0
    """
    table = _contingency(actual, found)
    together = _pairs(table.counts).sum()
    in_actual, in_found = _pairs(table.actual_sizes).sum(), _pairs(table.found_sizes).sum()
    largest = (in_actual + in_found) / 2
    expected = in_actual * in_found / max(_pairs(table.counts.sum()), 1)
    if largest == expected:  # both have one group, or both have one group for each row
        return 1.0
    return float((together - expected) / (largest - expected))


def purity(actual: ArrayLike, found: ArrayLike) -> float:
    """Share of the rows that belong to the most frequent actual group of their found group.

    1 if no found group mixes actual ones. Parts of a group are pure too, so use it together with
    :func:`adjusted_rand_index`.

    >>> purity([0, 0, 1, 1], [5, 5, 5, 7])
    0.75
    """
    table = _contingency(actual, found)
    largest = np.zeros(len(table.found_sizes))
    np.maximum.at(largest, table.found_of_cell, table.counts)
    return float(largest.sum() / table.counts.sum())


class _Contingency(NamedTuple):
    counts: Float64Array  # rows of every combination that occurs
    found_of_cell: Int64Array
    actual_sizes: Float64Array
    found_sizes: Float64Array


def _contingency(actual: ArrayLike, found: ArrayLike) -> _Contingency:
    first, second = _labels("actual", actual), _labels("found", found)
    check_lengths(actual=first, found=second)
    width = int(second.max()) + 1
    cells, counts = np.unique(first * width + second, return_counts=True)
    # Floats, because products of numbers of pairs do not fit 64-bit integers.
    sizes = (np.bincount(codes).astype(np.float64) for codes in (first, second))
    return _Contingency(counts.astype(np.float64), cells % width, *sizes)


def _labels(name: str, values: ArrayLike) -> Int64Array:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} must have one dimension, got {array.ndim}", value=array.shape)
    codes: Int64Array = np.unique(array, return_inverse=True)[1]
    return codes


def _pairs(counts: Float64Array) -> Float64Array:
    """Return the number of pairs within groups of these sizes."""
    return counts * (counts - 1) / 2


# -- comparison of methods -----------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Mean of a score over splits."""

    mean: float
    standard_error: float
    """NaN for a single split."""
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f}"


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference of two scores, first minus second, over the same splits."""

    mean: float
    standard_error: float
    t: float
    p_value: float
    """Two-sided."""
    interval: tuple[float, float]
    """95 % confidence interval."""
    n: int

    def __str__(self) -> str:
        return (
            f"{self.mean:.4f} ± {self.standard_error:.4f} (p = {self.p_value:.2g}, {self.n} splits)"
        )

    @property
    def first_is_lower(self) -> bool:
        """Whether the first score is significantly lower, at the 5 % level."""
        return self.mean < 0 and self.p_value < 0.05


def summarise(scores: ArrayLike) -> Summary:
    """Return the mean of a score over splits, and its standard error.

    >>> summarise([1.0, 3.0])
    Summary(mean=2.0, standard_error=1.0, n=2)
    """
    values = check_floats("scores", scores)
    n = check_lengths(scores=values)
    error = values.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
    return Summary(float(values.mean()), float(error), n)


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, test_per_train: float = 0.0
) -> PairedDifference:
    """Compare two methods by their scores on the same splits, with a paired t test.

    Parameters
    ----------
    first, second
        Scores, one for each split.
    test_per_train
        Number of test rows for each training row, 1/9 for random 90/10 splits. Random splits
        share most of their training rows, so the plain test is too optimistic; this increases the
        standard error accordingly (Nadeau and Bengio, 2003).

    Returns
    -------
    PairedDifference

    Examples
    --------
    >>> paired_difference([3, 4, 5], [2, 2, 2]).mean
    2.0
    >>> plain = paired_difference([3, 4, 5], [2, 2, 2]).standard_error
    >>> paired_difference([3, 4, 5], [2, 2, 2], test_per_train=1 / 9).standard_error > plain
    True

    """
    one, other = check_floats("first", first), check_floats("second", second)
    n = check_lengths(first=one, second=other)
    if n < 2:
        raise DataError("a test needs at least two splits, got 1", value=1)
    check_number("test_per_train", test_per_train, low=0.0)

    from scipy.stats import t as student

    differences = one - other
    mean = float(differences.mean())
    error = float(differences.std(ddof=1) * np.sqrt(1 / n + test_per_train))
    with np.errstate(divide="ignore"):  # infinite for the same difference in every split
        statistic = float(np.divide(mean, error)) if mean else 0.0
    reach = float(student.ppf(0.975, n - 1)) * error
    p_value = float(2 * student.sf(abs(statistic), n - 1))
    return PairedDifference(mean, error, statistic, p_value, (mean - reach, mean + reach), n)
