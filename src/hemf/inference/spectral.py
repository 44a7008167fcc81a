"""Guesses of one side's factors: the leading directions of ratings less their offsets.

Factors that start at random agree with the ratings by chance only. On small data that is often too
little: in the first sweeps all directions look like noise, their prior shrinks, and none of them
comes back. The leading directions are the ones that the data has most to say about.

How strong a direction looks by chance is seen where every rating's sign is drawn anew: that leaves
how many and how large they are, and takes away all that they have in common.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from hemf.engines.threads import Rows
from hemf.model.packing import Float64

ITERATIONS = 3  # of the block power method; sweeps do the rest
PSEUDO_RATINGS = 5.0  # that pull the offset of a row towards zero, and keep rare rows from leading
LEAST = 1e-6  # of the largest singular value; directions below hold rounding errors
CHANCE_RATINGS = 20.0  # pseudo-ratings where strengths are judged: a rare row alone is no direction
CHANCES = 4  # times that signs are drawn
CLEAR = 3.0  # standard deviations from chance at which there is something


def leading_directions(rows: Rows, n_other: int, count: int, rng: np.random.Generator) -> Float64:
    """Return up to ``count`` directions of the other side, (n_other, ≤ count), of unit mean square.

    >>> two = np.array([1.0, -1.0, -1.0, 1.0])  # ann and bob disagree on tea and milk
    >>> rows = Rows(np.array([0, 2, 4]), np.array([0, 1, 0, 1], np.int32), two)
    >>> np.abs(leading_directions(rows, 2, 1, np.random.default_rng(0))).round(6).tolist()
    [[1.0], [1.0]]
    """
    strength, found = _leading(_scaled_residuals(rows, n_other, PSEUDO_RATINGS), count, rng)
    return found[:, strength > LEAST * max(strength.max(initial=0.0), LEAST)]


def clear_directions(
    rows: Rows, n_other: int, count: int, rng: np.random.Generator, *, margin: float = CLEAR
) -> Float64:
    """Return the leading directions that are stronger than chance makes their like.

    The strongest is compared with the strongest, the second with the second, and so on; there are
    none unless all together are stronger by ``margin`` standard deviations.

    >>> rng = np.random.default_rng(0)
    >>> taste = np.outer(rng.normal(size=100), rng.normal(size=20))
    >>> values = (taste + rng.normal(size=(100, 20))).ravel()
    >>> rows = Rows(np.arange(0, 2001, 20), np.tile(np.arange(20, dtype=np.int32), 100), values)
    >>> clear_directions(rows, 20, 3, rng).shape
    (20, 1)
    """
    table = _scaled_residuals(rows, n_other, CHANCE_RATINGS)
    strength, found = _leading(table, count, rng)
    by_chance = np.empty((CHANCES, strength.size))
    for drawn in by_chance:
        signs = rng.integers(0, 2, table.data.size, np.int8) * 2.0 - 1.0
        flipped = csr_array((table.data * signs, table.indices, table.indptr), shape=table.shape)
        drawn[:] = _leading(flipped, count, rng)[0]
    sums = by_chance.sum(axis=1)
    if not strength.sum() > sums.mean() + margin * sums.std(ddof=1):
        return found[:, :0]
    return found[:, strength > by_chance.mean(axis=0)]


def _leading(table: csr_array, count: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Return the largest singular values, and their right vectors, of unit mean square."""
    n_other = table.shape[1]
    block = rng.normal(size=(n_other, min(count, *table.shape)))
    for _ in range(ITERATIONS):
        block = np.linalg.qr(table.T @ (table @ block))[0]
    _, strength, turn = np.linalg.svd(table @ block, full_matrices=False)
    return strength, np.asarray((block @ turn.T) * np.sqrt(n_other))


def _scaled_residuals(rows: Rows, n_other: int, pull: float) -> csr_array:
    """Ratings less both sides' offsets; busy rows and columns count by the root of their number.

    ``pull`` is how many ratings of zero every row and column has beside its own.
    """
    counts = np.diff(rows.indptr)
    other_counts = np.bincount(rows.indices, minlength=n_other)
    left = rows.values.astype(np.float64)
    other_offset = np.bincount(rows.indices, left, n_other) / (other_counts + pull)
    left -= other_offset[rows.indices]
    of_row = np.repeat(np.arange(counts.size), counts)
    left -= (np.bincount(of_row, left, counts.size) / (counts + pull))[of_row]
    left /= np.sqrt(counts + pull)[of_row]
    left /= np.sqrt(other_counts + pull)[rows.indices]
    return csr_array((left, rows.indices, rows.indptr), shape=(counts.size, n_other))
