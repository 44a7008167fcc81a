"""Coordinates of a row's vector (docs/model.md#offsets), and packed symmetric matrices.

With offsets the model is r = c + o_i + p_j + a_i·b_j, one inner product of


    user i: (1,   o_i, a_i)         coordinate 0 pinned
    item j: (p_j, 1,   b_j)         coordinate 1 pinned

so each side's posterior covers its own offset and its factors. Without offsets (the paper's plain
form) the vectors are the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from hemf._typing import Array, Float64Array


# docs/model.md#offsets
@dataclass(frozen=True)
class Layout:
    """Coordinates of one side's vectors.

    >>> Layout.of("user", n_factors=3, offsets=True).free.tolist()
    [1, 2, 3, 4]
    >>> Layout.of("item", n_factors=3, offsets=False).total
    3
    """

    total: int
    """Length of a row's vector, pinned coordinate included."""
    pinned: int
    """Coordinate held at 1, or -1."""

    @classmethod
    def of(cls, side: str, *, n_factors: int, offsets: bool) -> Layout:
        """Layout of the "user" or the "item" side."""
        if not offsets:
            return cls(total=n_factors, pinned=-1)
        return cls(total=n_factors + 2, pinned=0 if side == "user" else 1)

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        """Coordinates of the posterior: the offset first, then the factors."""
        return np.array([t for t in range(self.total) if t != self.pinned], dtype=np.int64)

    @property
    def factors(self) -> npt.NDArray[np.int64]:
        """Coordinates of the factors, without offsets."""
        return self.free if self.pinned < 0 else self.free[1:]

    @cached_property
    def order(self) -> int:
        """Number of coordinates of the posterior."""
        return self.total - (self.pinned >= 0)

    @cached_property
    def packed(self) -> int:
        """Length of a packed second moment."""
        return self.total * (self.total + 1) // 2


# ------------------------------------------------------------------------------------------------
# Packed lower triangles: entry (i, j), j ≤ i, is at i(i+1)/2 + j.


@cache
def lower_triangle(order: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of the packed entries of a matrix; read-only.

    >>> lower_triangle(2)
    (array([0, 1, 1]), array([0, 0, 1]))
    """
    return np.tril_indices(order)


def pack(matrices: npt.NDArray[np.float64]) -> Float64Array:
    """Lower triangles of (..., L, L), C-contiguous.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = lower_triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns], dtype=np.float64)


def unpack(triangles: Array) -> Float64Array:
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


@dataclass(frozen=True)
class Moments:
    """Posterior moments of the rows of one side, pinned coordinate included."""

    mean: Array
    """E[a], (rows, total)."""
    second: Array
    """E[a aᵀ], (rows, packed)."""

    def copy(self) -> Moments:
        """Return a deep copy."""
        return Moments(self.mean.copy(), self.second.copy())
