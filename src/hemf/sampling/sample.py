"""What one draw says of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemf.sampling.draws import Floats, RowNumbers, Singles, products
from hemf.sampling.grades import Grades


@dataclass(frozen=True)
class FactorSample:
    """One draw of all that a rating depends on: r - c ~ N(s a_i·b_j, σ²/(τ_i υ_j ω_ij)).

    Where ratings are levels of a scale, that is of what is behind them.

    The last row of every table is for strangers, whom a draw tells nothing of.
    """

    users: Singles
    """a_i with the pinned coordinate, (rows + 1, total)."""
    items: Singles
    user_weights: Floats | None
    """τ_i; None where all are 1."""
    item_weights: Floats | None
    unit: float
    """s, the ratings' standard deviation."""
    noise: float
    """σ², in squared units of a rating."""
    outlying: float = 1.0
    """E[1/ω_ij] of a rating that is still to come."""
    grades: Grades | None = None
    """Levels of the scale, standardised; None where ratings are numbers."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tables = self.users, self.items, self.user_weights, self.item_weights
        return sum(table.nbytes for table in tables if table is not None)

    def moments(self, user_rows: RowNumbers, item_rows: RowNumbers) -> tuple[Floats, Floats]:
        """Mean and variance of r - c."""
        mean = products(user_rows, item_rows, self.users, self.items, threads=1).astype(np.float64)
        variance: Floats = np.full(len(user_rows), self.noise * self.outlying / self.unit**2)
        if self.user_weights is not None:
            variance /= self.user_weights[user_rows]
        if self.item_weights is not None:
            variance /= self.item_weights[item_rows]
        if self.grades is not None:
            mean, variance = self.grades.moments(mean, np.sqrt(variance))
        return self.unit * mean, self.unit**2 * variance
