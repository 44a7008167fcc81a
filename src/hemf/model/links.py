"""Links between items: what the choice of one says about that of others (docs/model.md#links)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse import csc_array, csr_array

from hemf._typing import Float32Array, Float64Array, Int32Array, Int64Array

GRAM_BYTES = 1 << 28  # of a sparse part of the Gram matrix, while it is built


# docs/model.md#ease
def item_weights(choices: csr_array, regularization: float) -> tuple[Float32Array, Float64Array]:
    """Return B = I - P / diag(P) of choices, rows of users and columns of items, and diag(P).

    The caller limits BLAS to one thread.

    >>> item_weights(csr_array(np.array([[1.0, 1.0], [1.0, 0.0]])), 1.0)[0]
    array([[0.        , 0.33333334],
           [0.5       , 0.        ]], dtype=float32)
    """
    gram = _gram(choices)
    gram.flat[:: len(gram) + 1] += regularization
    # In place, in Fortran's order: the matrix is symmetric, its transpose is itself.
    factor, _ = dpotrf(gram.T, lower=True, overwrite_a=True)
    inverse, _ = dpotri(factor, lower=True, overwrite_c=True)
    scale = -1.0 / np.diag(inverse)
    weights = np.empty(inverse.shape, np.float32)
    for k in range(len(weights)):
        # dpotri writes the lower triangle alone.
        weights[k, :k] = inverse[k, :k] * scale[:k]
        weights[k, k:] = inverse[k:, k] * scale[k:]
        weights[k, k] = 0.0
    return weights, np.diag(inverse).copy()


def _gram(choices: csr_array) -> Float64Array:
    """Return XᵀX as a dense matrix, built from sparse parts."""
    n = choices.shape[1]
    by_item = csr_array(choices.T)
    gram = np.empty((n, n))
    step = max(1, GRAM_BYTES // (12 * n))
    for start in range(0, n, step):
        gram[start : start + step] = (by_item[start : start + step] @ choices).toarray()
    return gram


def weight_bytes(n_items: int) -> int:
    """Return the memory that `item_weights` needs."""
    return 12 * n_items**2 + 2 * GRAM_BYTES


# docs/model.md#links
def strongest(weights: Float32Array, n: int) -> csr_array:
    """Return the n largest weights of each column, in absolute value, as a sparse table.

    >>> strongest(np.float32([[0.0, 0.1], [0.3, 0.0], [0.2, -0.4]]), 1).toarray()
    array([[ 0. ,  0. ],
           [ 0.3,  0. ],
           [ 0. , -0.4]], dtype=float32)
    """
    n_items = weights.shape[1]
    n = min(n, weights.shape[0])
    rows = np.empty((n_items, n), np.int32)
    for start in range(0, n_items, 256):
        part = np.abs(weights[:, start : start + 256])
        rows[start : start + 256] = np.argpartition(-part, n - 1, axis=0)[:n].T
    rows.sort(axis=1)
    values = weights[rows, np.arange(n_items)[:, None]]
    indptr = np.arange(0, (n_items + 1) * n, n)
    table = csc_array((values.ravel(), rows.ravel(), indptr), shape=weights.shape)
    return csr_array(table)


# docs/model.md#links-left-out
def without_user(
    weights: Float32Array, diagonal: Float64Array, chosen: Int64Array, item: int, linked: Int64Array
) -> float:
    """Return the expected choice of an item of a user by weights found without the user.

    ``chosen`` are the items of the user, and ``linked`` those among the others that count.
    """
    x = np.zeros(diagonal.size)
    x[chosen] = 1.0
    v = diagonal * (x - weights[chosen].sum(axis=0, dtype=np.float64))  # P x
    share = v[item] / (1.0 - v[chosen].sum())
    known = diagonal[item] * weights[linked, item].sum(dtype=np.float64)
    return float((known - share * v[linked].sum()) / (diagonal[item] + share * v[item]))


@dataclass(frozen=True)
class Links:
    """Weights by which the choice of an item is expected from those of others.

    >>> links = Links.of(csr_array(np.float32([[0.0, 0.5], [0.25, 0.0]])), share=0.5)
    >>> links.scores(csr_array(np.array([[1.0, 0.0]]))).tolist()
    [[0.0, 0.5]]
    """

    indptr: Int64Array
    indices: Int32Array
    weights: Float32Array
    """B by rows: the row is of the item that was chosen, the column of the one that is expected."""
    share: float
    """Share of this expectation in that of a choice; the rest is that of the factors."""

    @classmethod
    def of(cls, weights: csr_array, share: float) -> Links:
        """Return the links of a sparse table."""
        indptr, indices = weights.indptr.astype(np.int64), weights.indices.astype(np.int32)
        return cls(indptr, indices, weights.data.astype(np.float32), share)

    @cached_property
    def table(self) -> csr_array:
        """B."""
        n = self.indptr.size - 1
        return csr_array((self.weights, self.indices, self.indptr), shape=(n, n))

    def scores(self, choices: csr_array) -> Float32Array:
        """Return the expected choice of every item, given those of users in rows."""
        found: Float32Array = (csr_array(choices, dtype=np.float32) @ self.table).toarray()
        return found
