"""The features of one side's rows, as the regression sees them: numbers in blocks of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack

from hemf._typing import Array, Float64Array


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
        """Sum what there is of each column over the columns of a block, (B,)."""
        ends = np.concatenate([[0.0], np.cumsum(of_columns)])[np.cumsum(self.widths)]
        return np.diff(ends, prepend=0.0)

    def block(self, which: int) -> slice:
        """Columns of a block."""
        end = int(self.widths[: which + 1].sum())
        return slice(end - int(self.widths[which]), end)


# ------------------------------------------------------------------------------------------------
# What rows chose to rate, as features: which of the other side, and how many.
#
# x_ij = 1/√n_i for the n_i that row i has a rating of, whatever it is; and the logarithm of n_i
# with
# its square, standardised. Of the ratings that are learnt from and of no others. So what features
# say of a row follows its ratings one by one, by sums of coefficients:
#
#     f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2,   z_i = ln n_i, standardised
#
# where g_i is of the features that were given.


RATED = "(rated)"
HOW_MANY = "(how many)"


@dataclass(frozen=True)
class Logs:
    """How ln n is standardised: over the rows that have a rating, and no farther than they go."""

    mean: float
    scale: float
    """Standard deviation; 0 where all have as many."""
    low: float
    high: float
    """Of rows with fewer or more than any of these had, nothing is known: they count as those."""

    @classmethod
    def of(cls, counts: npt.NDArray[Any]) -> Logs:
        """Return the scale of rows with so many ratings."""
        logs = np.log(counts[counts > 0].astype(np.float64))
        if not logs.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(logs.mean()), float(logs.std()), float(logs.min()), float(logs.max()))

    def columns(self, counts: npt.NDArray[Any]) -> Float64Array:
        """Return z and z² - 1 of rows with so many ratings; zeros of those without any."""
        logs = np.clip(np.log(np.maximum(counts, 1.0)), self.low, self.high)
        away = (logs - self.mean) / self.scale if self.scale > 0.0 else np.zeros(counts.size)
        columns = np.column_stack([away, away * away - 1.0])
        return np.where((counts > 0)[:, None], columns, 0.0)

    @property
    def array(self) -> Float64Array:
        """The four numbers, as kernels take them."""
        return np.array([self.mean, self.scale, self.low, self.high])


def how_many(counts: npt.NDArray[Any]) -> Float64Array:
    """Return ln n and its square, both standardised over rows that have a rating; else zero.

    >>> how_many(np.array([1, 1, 7, 0])).round(2).tolist()
    [[-0.71, -0.5], [-0.71, -0.5], [1.41, 1.0], [0.0, 0.0]]
    """
    return Logs.of(counts).columns(counts)


# docs/model.md#implicit-features
def implicit_blocks(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], n_other: int
) -> dict[str, Any]:
    """Return the blocks of features that rows' lists of ratings make.

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
    """The coefficients of a regression by what they are of, so that f_i can follow ratings."""

    given: Float64Array
    """Of the features that were given, (G, order)."""
    rated: Float64Array
    """M_j, (rows of the other side, order); without implicit features, of none."""
    how_many: Float64Array
    """M_1 and M_2, (2, order), or nothing."""
    logs: Logs | None
    """How z is standardised; None without implicit features."""

    @classmethod
    def of(cls, design: Design, coefficients: Float64Array) -> CoefficientBlocks:
        """Take the coefficients of a design apart; what is implicit comes last in it."""
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
        """Whether which rows of the other side were rated says something."""
        return self.logs is not None

    def shift(
        self, base: Float64Array, chosen: Float64Array, counts: npt.NDArray[Any]
    ) -> Float64Array:
        """Return f_i of rows, given g_i, Σ_j M_j and n_i."""
        if self.logs is None:
            return base.copy()
        root = 1.0 / np.sqrt(np.maximum(counts, 1.0))
        return np.asarray(base + root[:, None] * chosen + self.logs.columns(counts) @ self.how_many)


def rated_counts(design: Design) -> npt.NDArray[np.int64]:
    """Return how many ratings each row of a design with implicit features has."""
    block = design.block(design.names.index(RATED))
    inside = (design.indices >= block.start) & (design.indices < block.stop)
    ends = np.concatenate([[0], np.cumsum(inside)])[design.indptr]
    return np.diff(ends).astype(np.int64)


def given_part(design: Design) -> csr_array:
    """Return the features of a design that were given, (rows, G)."""
    n = design.block(design.names.index(RATED)).start if RATED in design.names else None
    return csr_array(design.matrix[:, :n])
