"""Metrics of predictions and of communities, and comparison of methods.

>>> ours, theirs = [0.831, 0.829, 0.834], [0.848, 0.843, 0.850]
>>> print(summarise(ours))
0.8313 ± 0.0015
>>> print(paired_difference(ours, theirs))
-0.0157 ± 0.0009 (p = 0.0032, 3 splits)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from hemf._checks import check_floats, check_lengths, check_number
from hemf._typing import Float64Array, Int64Array
from hemf.errors import DataError


def rmse(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error.

    >>> rmse([1, 2, 5], [1, 2, 3])
    1.1547005383792515
    """
    true, guess = float_columns(actual=actual, predicted=predicted)
    return float(np.sqrt(np.mean((true - guess) ** 2)))


def mae(actual: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute error.

    >>> mae([1, 2, 6], [1, 2, 3])
    1.0
    """
    true, guess = float_columns(actual=actual, predicted=predicted)
    return float(np.mean(np.abs(true - guess)))


def float_columns(**named: ArrayLike) -> list[Float64Array]:
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
    together = _pairs(table.data)
    in_actual, in_found = _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    largest = (in_actual + in_found) / 2
    expected = in_actual * in_found / max(_pairs(table.sum()), 1)
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
    return float(table.max(axis=0).sum() / table.sum())


def _contingency(actual: ArrayLike, found: ArrayLike) -> csr_array:
    """Return the number of rows of every actual group, by row, in every found group."""
    labels = _labels("actual", actual), _labels("found", found)
    n = check_lengths(actual=labels[0], found=labels[1])
    # Floats, because products of numbers of pairs do not fit 64-bit integers.
    return csr_array((np.ones(n), labels))


def _labels(name: str, values: ArrayLike) -> Int64Array:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} must have one dimension, got {array.ndim}", value=array.shape)
    codes: Int64Array = np.unique(array, return_inverse=True)[1]
    return codes


def _pairs(counts: Float64Array | float) -> float:
    """Return the number of pairs within groups of these sizes."""
    return float(np.sum(counts * (counts - 1) / 2))


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


@dataclass(frozen=True)
class CurvePoint:
    """Errors of a learner at one position of the stream."""

    ratings: int
    """Ratings streamed so far."""
    rmse: float
    """Of the ratings since the previous point."""
    running_rmse: float
    """Of all ratings streamed so far."""
    test_rmse: float | None = None
    """On the test ratings, at every tenth of the stream."""
    communities: tuple[int, int] | None = None
    """Of users and of items, if the learner has any."""
