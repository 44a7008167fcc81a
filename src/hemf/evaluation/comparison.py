"""Means over splits with their standard errors, and methods compared split by split.

>>> ours, theirs = [0.831, 0.829, 0.834], [0.848, 0.843, 0.850]
>>> print(summarise(ours))
0.8313 ± 0.0015
>>> print(paired_difference(ours, theirs))
-0.0157 ± 0.0009 (p = 0.0032, 3 splits)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemf.errors import DataError, ParameterError


@dataclass(frozen=True)
class Summary:
    """Mean of a score over splits."""

    mean: float
    standard_error: float  # NaN of one split
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f}"


@dataclass(frozen=True)
class PairedDifference:
    """Mean of the first method's score less the second's, on the same splits."""

    mean: float
    standard_error: float
    t: float
    p_value: float  # that methods alike differ by so much either way
    interval: tuple[float, float]  # of 95 %
    n: int

    def __str__(self) -> str:
        return (
            f"{self.mean:.4f} ± {self.standard_error:.4f} (p = {self.p_value:.2g}, {self.n} splits)"
        )

    @property
    def first_is_lower(self) -> bool:
        """Whether the first method's score is the lower one beyond chance (95 %).

        >>> paired_difference([1, 2, 3], [2, 3, 4.1]).first_is_lower
        True
        """
        return self.mean < 0 and self.p_value < 0.05


def summarise(scores: ArrayLike) -> Summary:
    """Return the mean of a score over splits, and its standard error.

    >>> summarise([1.0, 3.0])
    Summary(mean=2.0, standard_error=1.0, n=2)
    """
    values = _checked("scores", scores)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return Summary(float(values.mean()), float(error), len(values))


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, test_per_train: float = 0.0
) -> PairedDifference:
    """Compare two methods by their scores on the same splits, with a paired t test.

    Random splits of one data set share most of their train rows, so that the plain test takes
    differences for surer than they are. ``test_per_train``, the number of test rows to one train
    row (1/9 for random 90/10), widens the standard error for that (Nadeau and Bengio, 2003).

    >>> paired_difference([3, 4, 5], [2, 2, 2]).mean
    2.0
    >>> plain = paired_difference([3, 4, 5], [2, 2, 2]).standard_error
    >>> paired_difference([3, 4, 5], [2, 2, 2], test_per_train=1 / 9).standard_error > plain
    True
    """
    one, other = _checked("first", first), _checked("second", second)
    if len(one) != len(other):
        raise DataError(
            f"lengths differ: first {len(one)}, second {len(other)}; give one score for each split",
            value=len(other),
        )
    if len(one) < 2:
        raise DataError("one split tells nothing about chance; two are the least", value=1)
    if not 0 <= test_per_train < np.inf:
        raise ParameterError(
            f"test_per_train is {test_per_train!r}; it must be a finite number, not negative",
            value=test_per_train,
        )
    from scipy.stats import t as student

    differences = one - other
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1) * np.sqrt(1 / n + test_per_train))
    never = float(np.copysign(np.inf, mean)) if mean else 0.0  # of the same difference everywhere
    statistic = mean / error if error > 0 else never
    reach = float(student.ppf(0.975, n - 1)) * error
    p_value = float(2 * student.sf(abs(statistic), n - 1))
    return PairedDifference(mean, error, statistic, p_value, (mean - reach, mean + reach), n)


def _checked(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} must be numbers, got {scores!r}", value=scores) from None
    if values.ndim != 1 or not len(values):
        raise DataError(f"{name} must be a list of one or more numbers", value=values.shape)
    if (missing := np.flatnonzero(~np.isfinite(values))).size:
        row = int(missing[0])
        raise DataError(
            f"{name}: the score of split {row} is {values[row]}", value=values[row], row=row
        )
    return values
