"""Features of rows online: their effect is updated with the ratings, and learnt again.

The effect f_i of the features of a row changes with each of its ratings (`hemf.model.regression`).
With a full history the regression is fitted again after so many ratings that its cost for each
rating is constant, and whenever all rows of a side are refreshed at once, as in a sweep. The
contributions of rows to their communities are updated exactly. With a shorter history the
regression stays that of the fit, and is applied to new ratings and rows.

The leverage c_i of a row is as of the last update of C; that of a new row is the mean.

A row counts with the features that it had when it was last refreshed, or its side regressed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array, csr_array, vstack

from hemf._typing import BoolArray, Float64Array, Int64Array
from hemf.model import regression as ridge
from hemf.model.regression import CovarianceSummary, Design, Regression, UnknownFeatures

CHEAP = 1000  # rows or columns up to which C, and with it λ_b, are found again each time


@dataclass
class RowFeatures:
    """Given features of one side's rows, and their average effect for new rows."""

    given: csr_array
    """Of the first rows, (rows, G); those after them have none."""
    averages: tuple[UnknownFeatures, UnknownFeatures] | None = None
    """Average effect of all features, and of those that ratings make; see the clock "averages"."""
    waiting: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that have not been refreshed yet."""
    later: dict[int, csr_array] = field(default_factory=dict)
    """Features that were given for rows since; see `together`."""

    def joined(self, n_rows: int) -> csr_array:
        """Return the features of all rows as one table."""
        if not self.later and self.given.shape[0] >= n_rows:
            return self.given
        old, shape = coo_array(self.given), (n_rows, self.given.shape[1])
        rows = np.array(sorted(self.later), np.int64)
        kept = ~np.isin(old.row, rows)
        own, columns, values = [old.row[kept]], [old.col[kept]], [old.data[kept]]
        if rows.size:
            new = coo_array(vstack([self.later[row] for row in rows.tolist()]))
            own, columns = [*own, rows[new.row]], [*columns, new.col]
            values = [*values, new.data.astype(old.dtype)]
        place = np.concatenate(own), np.concatenate(columns)
        return csr_array(coo_array((np.concatenate(values), place), shape=shape))

    def together(self, n_rows: int) -> csr_array:
        """Hold the features of all rows as one table, and return it."""
        self.given, self.later = self.joined(n_rows), {}
        return self.given

    def blocks(self, design: Design, here: BoolArray) -> dict[str, csr_array]:
        """Return the given features by block of a design; rows not ``here`` have none."""
        given = self.together(here.size)
        if not here.all():
            entries = coo_array(given)
            kept = here[entries.row]
            place = entries.row[kept], entries.col[kept]
            given = csr_array(coo_array((entries.data[kept], place), shape=given.shape))
        blocks = {called: design.block(b) for b, called in enumerate(design.names)}
        return {
            called: given[:, columns]
            for called, columns in blocks.items()
            if columns.stop <= given.shape[1]
        }

    def of(self, row: int) -> csr_array | None:
        """Return the features of one row, if it has any."""
        known = self.given.shape[0]
        own = self.later.get(row)
        if own is None and row < known and self.given.indptr[row] < self.given.indptr[row + 1]:
            own = self.given[row : row + 1]
        return own if own is not None and own.nnz else None


def is_exact(design: Design) -> bool:
    """Whether C is found again with each regression, as in a batch fit."""
    smaller = min(design.n_rows, design.n_columns)
    return smaller <= CHEAP or smaller > ridge.DIRECT


def variance_solver(regression: Regression) -> ridge.Solver | None:
    """Return an inexpensive solver for C; None is the regression's own solver."""
    if is_exact(regression.design):
        return None
    return ridge.Iterative(regression.design.weighted(regression.information))


def extended(before: Regression, design: Design, leverage: Float64Array) -> Regression:
    """Return the posterior for a design with more columns at the end of blocks, and other rows.

    New columns are at their prior, and new rows hold no information about V. ``leverage`` is that
    of all rows.
    """
    more = design.widths - before.design.widths
    coefficients = np.zeros((design.n_columns, before.coefficients.shape[1]))
    for b, width in enumerate(before.design.widths.tolist()):
        begin = design.block(b).start
        coefficients[begin : begin + width] = before.coefficients[before.design.block(b)]
    covariance = CovarianceSummary(
        trace=before.covariance.trace + more / before.precision,
        log_det=before.covariance.log_det - float(more @ np.log(before.precision)),
        weighted_leverage=before.covariance.weighted_leverage,
    )
    information = np.zeros(design.n_rows)
    information[: before.information.size] = before.information
    return Regression(
        design, coefficients, before.precision, covariance, information, leverage.copy()
    )
