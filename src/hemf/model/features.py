"""Features of the rows of one side, as a matrix in blocks of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array, hstack

from hemf._typing import Array, Float64Array, Int32Array, Int64Array

Block: TypeAlias = Float64Array | csr_array
"""Columns of features that share a precision."""


@dataclass(frozen=True)
class Design:
    """X, compressed by rows; columns that share a precision λ_b stand in a block together.

    >>> design = Design.of({"age": np.eye(2), "genre": np.ones((2, 3))})
    >>> design.names, design.widths.tolist(), design.matrix.shape
    (('age', 'genre'), [2, 3], (2, 5))
    """

    names: tuple[str, ...]
    """Of the blocks."""
    widths: Int64Array
    """Columns of each block, (B,)."""
    indptr: Int64Array
    indices: Int32Array
    values: Array

    @classmethod
    def of(cls, blocks: Mapping[str, Block], dtype: type[np.floating] = np.float64) -> Design:
        """Concatenate blocks by columns; each is a dense or sparse matrix of all rows."""
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
        """Number of rows."""
        return self.indptr.size - 1

    @property
    def n_columns(self) -> int:
        """Number of features."""
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
    def squares(self) -> Float64Array:
        """Σ_i x_if² of each column, (F,): the diagonal of XᵀX."""
        values = self.values.astype(np.float64)
        return np.bincount(self.indices, values * values, self.n_columns).astype(np.float64)

    def weighted(self, weights: Float64Array) -> Design:
        """Return W^½ X."""
        roots = np.repeat(np.sqrt(weights), np.diff(self.indptr)).astype(self.values.dtype)
        return replace(self, values=self.values * roots)

    def by_column(self, of_blocks: Float64Array) -> Float64Array:
        """Repeat a number of each block for its columns, (F,)."""
        return np.repeat(of_blocks, self.widths)

    def by_block(self, of_columns: Float64Array) -> Float64Array:
        """Sum a number of each column over the columns of a block, (B,)."""
        ends = np.concatenate([[0.0], np.cumsum(of_columns)])[np.cumsum(self.widths)]
        return np.diff(ends, prepend=0.0)

    def block(self, which: int) -> slice:
        """Columns of a block."""
        end = int(self.widths[: which + 1].sum())
        return slice(end - int(self.widths[which]), end)


# ------------------------------------------------------------------------------------------------
# Implicit features: which rows of the other side a row has rated, and how many.
#
# x_ij = 1/√n_i for each of the n_i ratings of row i; and ln n_i with its square, standardised. So
# the shift of a row follows its ratings one by one, by sums of coefficients:
#
#     f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2,   z_i = ln n_i, standardised
#
# where g_i is the shift by given features.


RATED = "(rated)"
HOW_MANY = "(how many)"


@dataclass(frozen=True)
class Logs:
    """Standardisation of ln n over the rows with ratings, clipped to their range."""

    mean: float
    scale: float
    """Standard deviation; 0 where all are equal."""
    low: float
    high: float

    @classmethod
    def of(cls, counts: Int64Array | Float64Array) -> Logs:
        """Return mean, scale and range of ln n."""
        logs = np.log(counts[counts > 0].astype(np.float64))
        if not logs.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(logs.mean()), float(logs.std()), float(logs.min()), float(logs.max()))

    def columns(self, counts: Int64Array | Float64Array) -> Float64Array:
        """Return z and z² - 1 of rows with these numbers of ratings; zeros without any."""
        logs = np.clip(np.log(np.maximum(counts, 1.0)), self.low, self.high)
        away = (logs - self.mean) / self.scale if self.scale > 0.0 else np.zeros(counts.size)
        columns = np.column_stack([away, away * away - 1.0])
        return np.where((counts > 0)[:, None], columns, 0.0)

    @property
    def array(self) -> Float64Array:
        """The four numbers in one array, for kernels."""
        return np.array([self.mean, self.scale, self.low, self.high])


def how_many(counts: Int64Array | Float64Array) -> Float64Array:
    """Return z and z² - 1 of z = ln n, standardised over rows with ratings; zeros without.

    >>> how_many(np.array([1, 1, 7, 0])).round(2).tolist()
    [[-0.71, -0.5], [-0.71, -0.5], [1.41, 1.0], [0.0, 0.0]]
    """
    return Logs.of(counts).columns(counts)


# docs/model.md#implicit-features
def implicit_blocks(indptr: Int64Array, indices: Int32Array, n_other: int) -> dict[str, Block]:
    """Return the blocks of implicit features.

    >>> blocks = implicit_blocks(np.array([0, 2, 3]), np.array([0, 1, 0]), 2)
    >>> blocks["(rated)"].toarray().round(2).tolist()
    [[0.71, 0.71], [1.0, 0.0]]
    """
    counts = np.diff(indptr)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    rated = csr_array((values, indices, indptr), shape=(counts.size, n_other))
    return {RATED: rated, HOW_MANY: how_many(counts)}


@dataclass(frozen=True)
class CoefficientBlocks:
    """Coefficients of a regression by kind of feature, so that f_i can follow ratings."""

    given: Float64Array
    """Of given features, (G, order)."""
    rated: Float64Array
    """M_j, (rows of the other side, order); empty without implicit features."""
    how_many: Float64Array
    """M_1 and M_2, (2, order), or empty."""
    logs: Logs | None
    """Standardisation of z; None without implicit features."""

    @classmethod
    def of(cls, design: Design, coefficients: Float64Array) -> CoefficientBlocks:
        """Split the coefficients of a design; implicit features come last in it."""
        order = coefficients.shape[1]
        if RATED not in design.names:
            nothing = np.zeros((0, order))
            return cls(coefficients, nothing, nothing, None)
        rated = design.block(design.names.index(RATED))
        numbers = design.block(design.names.index(HOW_MANY))
        return cls(
            given=coefficients[: rated.start],
            rated=coefficients[rated],
            how_many=coefficients[numbers],
            logs=Logs.of(rated_counts(design)),
        )

    @property
    def has_rated(self) -> bool:
        """Whether there are implicit features."""
        return self.logs is not None

    def shift(
        self, base: Float64Array, chosen: Float64Array, counts: Int64Array | Float64Array
    ) -> Float64Array:
        """Return f_i of rows, given g_i, Σ_j M_j and n_i."""
        if self.logs is None:
            return base.copy()
        root = 1.0 / np.sqrt(np.maximum(counts, 1.0))
        return np.asarray(base + root[:, None] * chosen + self.logs.columns(counts) @ self.how_many)


def rated_counts(design: Design) -> Int64Array:
    """Return the number of ratings of each row of a design with implicit features."""
    block = design.block(design.names.index(RATED))
    inside = (design.indices >= block.start) & (design.indices < block.stop)
    ends = np.concatenate([[0], np.cumsum(inside)])[design.indptr]
    return np.diff(ends).astype(np.int64)


def given_part(design: Design) -> csr_array:
    """Return the given features of a design, (rows, G)."""
    n = design.block(design.names.index(RATED)).start if RATED in design.names else None
    return csr_array(design.matrix[:, :n])
