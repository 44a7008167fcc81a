"""A first guess of one side's factors: the leading directions of ratings less their offsets.

Factors that start at random agree with the ratings by chance only. On small data that is often too
little: in the first sweeps all directions look like noise, their prior shrinks, and none of them
comes back. The leading directions are the ones that the data has most to say about.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from hemf.engines.threads import Rows
from hemf.model.packing import Float64

ITERATIONS = 3  # of the block power method; sweeps do the rest
PSEUDO_RATINGS = 5.0  # that pull the offset of a row towards zero, and keep rare rows from leading
LEAST = 1e-6  # of the largest singular value; directions below hold rounding errors


def leading_directions(rows: Rows, n_other: int, count: int, rng: np.random.Generator) -> Float64:
    """Return up to ``count`` directions of the other side, (n_other, ≤ count), of unit mean square.

    >>> two = np.array([1.0, -1.0, -1.0, 1.0])  # ann and bob disagree on tea and milk
    >>> rows = Rows(np.array([0, 2, 4]), np.array([0, 1, 0, 1], np.int32), two)
    >>> np.abs(leading_directions(rows, 2, 1, np.random.default_rng(0))).round(6).tolist()
    [[1.0], [1.0]]
    """
    table = _scaled_residuals(rows, n_other)
    block = rng.normal(size=(n_other, min(count, *table.shape)))
    for _ in range(ITERATIONS):
        block = np.linalg.qr(table.T @ (table @ block))[0]
    _, strength, turn = np.linalg.svd(table @ block, full_matrices=False)
    found = (block @ turn.T)[:, strength > LEAST * max(strength.max(initial=0.0), LEAST)]
    return np.asarray(found * np.sqrt(n_other))


def _scaled_residuals(rows: Rows, n_other: int) -> csr_array:
    """Ratings less both sides' offsets; busy rows and columns count by the root of their number."""
    counts = np.diff(rows.indptr)
    other_counts = np.bincount(rows.indices, minlength=n_other)
    left = rows.values.astype(np.float64)
    other_offset = np.bincount(rows.indices, left, n_other) / (other_counts + PSEUDO_RATINGS)
    left -= other_offset[rows.indices]
    of_row = np.repeat(np.arange(counts.size), counts)
    left -= (np.bincount(of_row, left, counts.size) / (counts + PSEUDO_RATINGS))[of_row]
    left /= np.sqrt(counts + PSEUDO_RATINGS)[of_row]
    left /= np.sqrt(other_counts + PSEUDO_RATINGS)[rows.indices]
    return csr_array((left, rows.indices, rows.indptr), shape=(counts.size, n_other))
