"""Effect of features on the moments of rows: their shift, and the coefficients' uncertainty.

`hemf.model.regression` has the formulas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import step
from hemf.kernels.lanes import add_scaled, fma, full, load, packed, store
from hemf.kernels.structures import LANES, Features, Rows, Scratch, Shared, SweepMemory

# ------------------------------------------------------------------------------------------------
# Effect of the coefficients' uncertainty on rows: `hemf.model.regression`.
#
# If S is the covariance of a row for known coefficients, and Vᵀx has the covariance c Σ, the second
# moment of the row grows by c S P S and its contribution to the communities' statistics by
# c (S P S - S). The information weight of the row is 1 - tr(P S)/L.


@step
def add_leverage(
    start: int, count: int, features: Features, covariance: Any, memory: SweepMemory, statistic: Any
) -> None:
    """Add the coefficients' uncertainty to second moments of rows in lanes and to the statistic.

    ``memory.product`` becomes S U. Writes 1 - tr(P S)/L of each row.
    """
    root, leverage, information = features.root, features.leverage, features.information
    room, second = memory.product, memory.second
    order = root.shape[0]
    trace = full(0.0)
    for i in range(order):
        for j in range(order):
            y = full(0.0)
            k = j
            while k + 4 <= order:
                one = load(covariance, packed(i, k + 1)) * root[k + 1, j]
                two = load(covariance, packed(i, k + 3)) * root[k + 3, j]
                one = fma(load(covariance, packed(i, k)), full(root[k, j]), one)
                two = fma(load(covariance, packed(i, k + 2)), full(root[k + 2, j]), two)
                y = y + (one + two)
                k += 4
            while k < order:
                y = fma(load(covariance, packed(i, k)), full(root[k, j]), y)
                k += 1
            store(room, i * order + j, y)
            if j <= i:
                trace = fma(y, full(root[i, j]), trace)
    store(room, order * order, trace)
    p = 0
    for i in range(order):
        for j in range(i + 1):
            x = full(0.0)
            k = 0
            while k + 4 <= order:
                u, v = i * order + k, j * order + k
                one = load(room, u + 1) * load(room, v + 1)
                two = load(room, u + 3) * load(room, v + 3)
                one = fma(load(room, u), load(room, v), one)
                x = x + (one + fma(load(room, u + 2), load(room, v + 2), two))
                k += 4
            while k < order:
                x = fma(load(room, i * order + k), load(room, j * order + k), x)
                k += 1
            store(room, order * order + 1, x)
            total = 0.0
            for b in range(count):
                c, product = leverage[start + b], room[order * order + 1, b]
                second[p, b] += c * product
                total += c * (product - covariance[p, b])
            statistic[p] += total
            p += 1
    for b in range(count):
        information[start + b] = 1.0 - room[order * order, b] / order


@step
def add_row_leverage(own: Rows, shared: Shared, i: int, room: Any, memory: Scratch) -> None:
    """Replace S of one row, in ``memory.inverse``, by its contribution S + c (S P S - S).

    The rest of the second moment, c S, goes to ``memory.extra``, packed. ``room`` is working memory
    of the size of S.
    """
    inverse, work, precision = memory.inverse, memory.work, shared.precision[0]
    order, columns = inverse.shape
    for s in range(order):
        for t in range(s + 1, columns):  # S in full
            inverse[s, t] = inverse[t, s] if t < order else 0.0
    work[:] = 0.0
    room[:] = 0.0
    trace = 0.0
    for s in range(order):  # P S
        for t in range(order):
            add_scaled(work, s * columns, inverse, t * columns, precision[s, t], columns)
        trace += work[s, s]
    c = own.leverage[i]
    for s in range(order):  # S P S, up to its diagonal
        for t in range(order):
            end = (s // LANES + 1) * LANES
            add_scaled(room, s * columns, work, t * columns, inverse[s, t], end)
    p = 0
    for s in range(order):
        for t in range(s + 1):
            memory.extra[p] = c * inverse[s, t]
            p += 1
    for s in range(order):
        for t in range(s + 1):
            inverse[s, t] += c * (room[s, t] - inverse[s, t])
    own.information[i] = 1.0 - trace / order


# ------------------------------------------------------------------------------------------------
# Shift of a row by its features, subtracted before the row is solved and added after: see `rows`.
#
# It depends on the row's ratings: f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2, where z_i
# is ln n_i, standardised, as in `hemf.model.regression`.


@step
def leave_shift(own: Rows, shared: Shared, i: int, memory: Scratch) -> None:
    """Find f_i, and replace h/σ² of a_i by that of a_i - f_i: h/σ² - G f/σ²."""
    shift, data = memory.shift, memory.data
    order, n = shift.size, own.count[i]
    for t in range(order):
        shift[t] = own.base[i, t]
    if own.coefficient_sum.shape[1] > 0 and n > 0:
        root = 1.0 / np.sqrt(np.float64(n))
        log = min(max(np.log(np.float64(n)), shared.logs[2]), shared.logs[3])
        away = (log - shared.logs[0]) / shared.logs[1] if shared.logs[1] > 0.0 else 0.0
        square = away * away - 1.0
        of_count = shared.count_coefficients
        for t in range(order):
            shift[t] += root * own.coefficient_sum[i, t]
            shift[t] += away * of_count[0, t] + square * of_count[1, t]
    for u in range(order):  # above the diagonal is all that is there of G
        for t in range(u):
            data[t, order] -= data[t, u] * shift[u]
            data[u, order] -= data[t, u] * shift[t]
        data[u, order] -= data[u, u] * shift[u]


@step
def return_shift(own: Rows, i: int, memory: Scratch) -> None:
    """Turn the moments of a_i - f_i into those of a_i, and keep f_i with the row."""
    shift, mean, second = memory.shift, memory.mean, memory.second
    p = 0
    for t in range(shift.size):
        for u in range(t + 1):
            second[p] += mean[t] * shift[u] + shift[t] * mean[u] + shift[t] * shift[u]
            p += 1
    for t in range(shift.size):
        mean[t] += shift[t]
        own.shift[i, t] = shift[t]
