"""The features of one side's rows, as the regression sees them: numbers in blocks of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack

from hemf.model.packing import Array, Float64


@dataclass(frozen=True)
class Design:
    """X, compressed by rows; columns that share a precision λ_b stand in a block together.

    >>> design = Design.of({"age": np.eye(2), "genre": np.ones((2, 3))})
    >>> design.names, design.widths.tolist(), design.matrix.shape
    (('age', 'genre'), [2, 3], (2, 5))
    """

    names: tuple[str, ...]
    """Of the blocks."""
    widths: npt.NDArray[np.int64]
    """Columns of each block, (B,)."""
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: Array

    @classmethod
    def of(cls, blocks: Mapping[str, Any], dtype: type[np.floating] = np.float64) -> Design:
        """Put blocks side by side; each is a matrix with the same rows, dense or SciPy's."""
        parts = [csr_array(block) for block in blocks.values()]
        together = csr_array(hstack(parts, format="csr"))
        together.sum_duplicates()
        return cls(
            names=tuple(blocks),
            widths=np.array([part.shape[1] for part in parts], np.int64),
            indptr=together.indptr.astype(np.int64),
            indices=together.indices.astype(np.int32),
            values=together.data.astype(dtype),
        )

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.indptr.size - 1

    @property
    def n_columns(self) -> int:
        """How many features there are."""
        return int(self.widths.sum())

    @cached_property
    def matrix(self) -> csr_array:
        """X, (rows, columns)."""
        shape = (self.n_rows, self.n_columns)
        return csr_array((self.values, self.indices, self.indptr), shape=shape)

    @cached_property
    def transposed(self) -> csr_array:
        """Xᵀ, compressed by columns of X."""
        return csr_array(self.matrix.T)

    @cached_property
    def squares(self) -> Float64:
        """Σ_i x_if² of each column, (F,): the diagonal of XᵀX."""
        values = self.values.astype(np.float64)
        return np.bincount(self.indices, values * values, self.n_columns).astype(np.float64)

    def weighted(self, weights: Float64) -> Design:
        """Return W^½ X."""
        roots = np.repeat(np.sqrt(weights), np.diff(self.indptr)).astype(self.values.dtype)
        return replace(self, values=self.values * roots)

    def by_column(self, of_blocks: Float64) -> Float64:
        """Repeat a number of each block for its columns, (F,)."""
        return np.repeat(of_blocks, self.widths)

    def by_block(self, of_columns: Float64) -> Float64:
        """Sum what there is of each column over the columns of a block, (B,)."""
        ends = np.concatenate([[0.0], np.cumsum(of_columns)])[np.cumsum(self.widths)]
        return np.diff(ends, prepend=0.0)

    def block(self, which: int) -> slice:
        """Columns of a block."""
        end = int(self.widths[: which + 1].sum())
        return slice(end - int(self.widths[which]), end)
