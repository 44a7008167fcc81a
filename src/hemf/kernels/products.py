"""Mean and variance of a·b for many pairs of rows.

Var[a·b] = tr(E[aaᵀ] E[bbᵀ]) - (m·n)², which on both sides' full vectors, pinned coordinate
included, holds offsets and factors together: nᵀSn + mᵀTm + tr(ST).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, kernel, summing
from hemf.kernels.structures import (
    Float64Array,
    Int32Array,
    Int64Array,
    Table,
    Vector,
)


@summing
def trace_product(s: Any, u: Any, order: int) -> float:
    """tr(S U) of two packed symmetric matrices."""
    twice, diagonal = 0.0, 0.0
    for p in range(s.size):
        twice += np.float64(s[p]) * np.float64(u[p])
    for i in range(order):
        p = i * (i + 1) // 2 + i
        diagonal += np.float64(s[p]) * np.float64(u[p])
    return 2.0 * twice - diagonal


@inner
def expected_error(
    mean: Any, second: Any, squares: float, value: float, moment: Any, gram: Any
) -> float:
    """E Σ w(r - a·b)² of a row with these moments.

    ``squares`` are Σ w r², ``moment`` times ``value`` Σ w r n, and ``gram`` is Σ w E[bbᵀ].
    """
    product = 0.0
    for t in range(mean.size):
        product += np.float64(mean[t]) * np.float64(moment[t])
    square = trace_product(second, gram, mean.size)
    return max(squares - 2.0 * value * product + square, 0.0)


# docs/model.md#predictive-variance
@kernel
def pair_moments(
    left: Int64Array, right: Int64Array, left_mean: Table, left_second: Table, right_mean: Table,
    right_second: Table, with_variance: bool, mean: Float64Array, variance: Float64Array,
) -> None:  # fmt: skip
    """Write mean (and variance) of a·b for the pairs (left[k], right[k])."""
    total = left_mean.shape[1]
    for k in range(left.size):
        m, n = left_mean[left[k]], right_mean[right[k]]
        product = 0.0
        for t in range(total):
            product += np.float64(m[t]) * np.float64(n[t])
        mean[k] = product
        if with_variance:
            square = trace_product(left_second[left[k]], right_second[right[k]], total)
            variance[k] = max(square - product * product, 0.0)


# ------------------------------------------------------------------------------------------------
# Products of a sparse table of features with itself, through dense matrices.


@kernel
def cross_products(
    begin: int, end: int, indptr: Int64Array, rows: Int32Array, values: Vector,
    row_indptr: Int64Array, columns: Int32Array, row_values: Vector, out: Table,
) -> None:  # fmt: skip
    """Write the lower triangle of XᵀX, its rows begin … end, given X by columns and by rows.

    One row of the product at a time is in the cache, whatever the size of all. Columns rise within
    a row of X.
    """
    for f in range(begin, end):
        line = out[f]
        line[: f + 1] = 0.0
        for k in range(indptr[f], indptr[f + 1]):
            x, i = values[k], rows[k]
            for n in range(row_indptr[i], row_indptr[i + 1]):
                g = columns[n]
                if g > f:
                    break
                line[g] += x * row_values[n]


@kernel
def row_forms(
    begin: int, end: int, indptr: Int64Array, columns: Int32Array, values: Vector, matrix: Table,
    out: Float64Array,
) -> None:  # fmt: skip
    """Write xᵀCx of the rows begin … end of X; only the lower triangle of C is read.

    Columns rise within a row.
    """
    for i in range(begin, end):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            line, x = matrix[columns[k]], 0.0
            for n in range(indptr[i], k):
                x += line[columns[n]] * values[n]
            total += values[k] * (2.0 * x + line[columns[k]] * values[k])
        out[i] = total
