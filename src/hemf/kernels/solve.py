"""Small symmetric solves, one at a time, for single rows.

A system Ax = y of order n is one float64 array of n rows: the upper triangle of A, y in the column
after it, and padding to a multiple of `LANES` columns. A = UᵀD⁻¹U, where U has D on its diagonal:
no roots, and one division for each row. What is below the diagonal is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner
from hemf.kernels.lanes import add_scaled, add_two
from hemf.kernels.structures import LANES

MIN_PIVOT = 1e-30
LOG_EVERY = 4  # pivots: the logarithm of their product is taken


@inner
def factorise(a: Any, reciprocal: Any, rounding: float) -> float:
    """Overwrite A with U and y with DU⁻ᵀy, and write 1/D; return ½ ln|A⁻¹|.

    A pivot is at least ``rounding`` times the diagonal entry. It would be less only by rounding
    errors in A, or if more was subtracted from its sums than was in them.
    """
    order, columns = a.shape
    for k in range(order):
        reciprocal[k] = max(rounding * abs(a[k, k]), MIN_PIVOT)
    log_det, product = 0.0, 1.0
    for k in range(order):
        if k % 2 == 1:  # of two pivots, the first has changed no row yet but that of the second
            begin = k // LANES * LANES
            factor = -a[k - 1, k] * reciprocal[k - 1]
            add_scaled(
                a, k * columns + begin, a, (k - 1) * columns + begin, factor, columns - begin
            )
        pivot = max(a[k, k], reciprocal[k])
        a[k, k] = pivot
        reciprocal[k] = 1.0 / pivot
        product *= pivot
        if k % LOG_EVERY == LOG_EVERY - 1:
            log_det += np.log(product)
            product = 1.0
        for i in range(k + 1, order if k % 2 == 1 else 0):
            begin = i // LANES * LANES
            add_two(
                a, i * columns + begin, a,
                (k - 1) * columns + begin, -a[k - 1, i] * reciprocal[k - 1],
                k * columns + begin, -a[k, i] * reciprocal[k], columns - begin,
            )  # fmt: skip
    return float(-0.5 * (log_det + np.log(product)))


@inner
def square(u: Any, reciprocal: Any) -> float:
    """Return yᵀA⁻¹y."""
    order = u.shape[0]
    total = 0.0
    for k in range(order):
        total += reciprocal[k] * u[k, order] * u[k, order]
    return total


@inner
def solve_backward(u: Any, reciprocal: Any, x: Any) -> None:
    """Write A⁻¹y."""
    order = u.shape[0]
    for k in range(order - 1, -1, -1):
        even, odd = u[k, order], 0.0
        for j in range(k + 1, order - 1, 2):  # two sums at a time: each waits for itself alone
            even -= u[k, j] * x[j]
            odd -= u[k, j + 1] * x[j + 1]
        if (order - k) % 2 == 0:
            even -= u[k, order - 1] * x[order - 1]
        x[k] = (even + odd) * reciprocal[k]


@inner
def invert(u: Any, reciprocal: Any, work: Any, inverse: Any) -> None:
    """Write the lower triangle of A⁻¹ = WᵀD⁻¹W, W = DU⁻ᵀ; ``work`` is as large as U."""
    order, columns = u.shape
    work[:] = 0.0
    inverse[:] = 0.0
    for k in range(order):
        work[k, k] = 1.0
    for j in range(order):  # W, row after row: each is subtracted from those below it
        end = (j // LANES + 1) * LANES
        for i in range(j + 1, order):
            factor = -u[j, i] * reciprocal[j]
            add_scaled(work, i * columns, work, j * columns, factor, end)
    for k in range(order):
        for i in range(k + 1):
            factor = work[k, i] * reciprocal[k]
            end = (i // LANES + 1) * LANES
            add_scaled(inverse, i * columns, work, k * columns, factor, end)
