"""Mean and variance of a·b for many pairs of rows.

Var[a·b] = tr(E[aaᵀ] E[bbᵀ]) - (m·n)², which on both sides' full vectors, pinned coordinate
included, holds offsets and factors together: nᵀSn + mᵀTm + tr(ST).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, kernel, summing


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
    return float(max(squares - 2.0 * value * product + square, 0.0))


@kernel(
    "void(int64[::1], int64[::1], {T}[:, ::1], {T}[:, ::1], {T}[:, ::1], {T}[:, ::1], "
    "boolean, float64[::1], float64[::1])"
)
def pair_moments(
    left: Any,
    right: Any,
    left_mean: Any,
    left_second: Any,
    right_mean: Any,
    right_second: Any,
    with_variance: Any,
    mean: Any,
    variance: Any,
) -> None:
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
