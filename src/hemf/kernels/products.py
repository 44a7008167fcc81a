"""Products of a sparse table of features with itself, through dense matrices."""

from __future__ import annotations

from typing import Any

from hemf.kernels.compile import kernel


@kernel(
    """void(int64, int64, int64[::1], int32[::1], {T}[::1],
    int64[::1], int32[::1], {T}[::1], {T}[:, ::1])"""
)
def cross_products(
    begin: Any,
    end: Any,
    indptr: Any,
    rows: Any,
    values: Any,
    row_indptr: Any,
    columns: Any,
    row_values: Any,
    out: Any,
) -> None:
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


@kernel("void(int64, int64, int64[::1], int32[::1], {T}[::1], {T}[:, ::1], float64[::1])")
def row_forms(
    begin: Any, end: Any, indptr: Any, columns: Any, values: Any, matrix: Any, out: Any
) -> None:
    """Write xᵀCx of the rows begin … end of X; of C the lower triangle is looked at.

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
