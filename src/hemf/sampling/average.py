"""What many draws say of pairs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hemf.sampling.draws import Floats, RowNumbers


class Draw(Protocol):
    """One draw of all that a rating depends on."""

    @property
    def noise(self) -> float:
        """σ², in squared units of a rating."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""

    def moments(self, user_rows: RowNumbers, item_rows: RowNumbers) -> tuple[Floats, Floats]:
        """Mean and variance of r - c, the ratings of pairs less their mean."""


def averaged(
    samples: Sequence[Draw], user_rows: RowNumbers, item_rows: RowNumbers
) -> tuple[Floats, Floats]:
    """Mean and variance of the ratings of pairs, less their mean, over all samples."""
    average = RunningMoments(len(user_rows))
    for sample in samples:
        average.add(*sample.moments(user_rows, item_rows))
    return average.mean, average.variance


class RunningMoments:
    """Mean and variance over samples that each come with a mean and a variance.

    >>> average = RunningMoments(1)
    >>> average.add(np.array([1.0]), np.array([0.5]))
    >>> average.add(np.array([3.0]), np.array([0.5]))
    >>> average.mean, average.variance
    (array([2.]), array([1.5]))
    """

    def __init__(self, n: int) -> None:
        self.count = 0
        self.mean = np.zeros(n)
        self._within = np.zeros(n)
        self._between = np.zeros(n)

    def add(self, mean: Floats, variance: Floats) -> None:
        """Take in one more sample."""
        self.count += 1
        away = mean - self.mean
        self.mean += away / self.count
        self._between += away * (mean - self.mean)
        self._within += variance

    @property
    def variance(self) -> Floats:
        """The mean of the variances plus the variance of the means."""
        return (self._within + self._between) / self.count
