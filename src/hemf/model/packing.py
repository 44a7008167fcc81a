"""Packed lower triangles: how symmetric moments are stored.

Entry (i, j), j ≤ i, is at i(i+1)/2 + j; an L × L matrix takes L(L+1)/2 numbers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]


@cache
def lower_triangle(order: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of the packed entries of a matrix; not to be written to.

    >>> lower_triangle(2)
    (array([0, 1, 1]), array([0, 0, 1]))
    """
    return np.tril_indices(order)


def pack(matrices: npt.NDArray[np.float64]) -> Float64:
    """Lower triangles of (..., L, L), C-contiguous.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = lower_triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns], dtype=np.float64)


def unpack(triangles: Array) -> Float64:
    """Symmetric (..., L, L) of packed (..., L(L+1)/2).

    >>> unpack(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    order = order_of(triangles.shape[-1])
    rows, columns = lower_triangle(order)
    full = np.empty((*triangles.shape[:-1], order, order))
    full[..., rows, columns] = triangles
    full[..., columns, rows] = triangles
    return full


def order_of(length: int) -> int:
    """L of a packed length L(L+1)/2.

    >>> order_of(6)
    3
    """
    return int((np.sqrt(8 * length + 1) - 1) // 2)
