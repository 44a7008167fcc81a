"""What features say of a row, taken off before it is solved for and put back: see `rows`.

It follows the row's ratings: f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2, where z_i is
ln n_i, standardised. `hemf.model.implicit` says the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, step


@inner
def choose_one(own: Any, other: Any, i: int, j: int, sign: float) -> None:
    """Take note that row i has a rating of row j, or with a sign of -1 that it has none."""
    for t in range(own.chosen.shape[1]):
        own.chosen[i, t] += sign * other.voice[j, t]


@step
def leave_shift(own: Any, shared: Any, i: int, memory: Any) -> None:
    """Find f_i, and turn the data's pull on a_i into that on a_i - f_i: h/σ² - G f/σ²."""
    shift, data = memory.shift, memory.data
    order, n = shift.size, own.count[i]
    for t in range(order):
        shift[t] = own.base[i, t]
    if own.chosen.shape[1] > 0 and n > 0:
        root = 1.0 / np.sqrt(np.float64(n))
        log = min(max(np.log(np.float64(n)), shared.logs[2]), shared.logs[3])
        away = (log - shared.logs[0]) / shared.logs[1] if shared.logs[1] > 0.0 else 0.0
        square = away * away - 1.0
        for t in range(order):
            shift[t] += root * own.chosen[i, t]
            shift[t] += away * shared.how_many[0, t] + square * shared.how_many[1, t]
    for u in range(order):  # above the diagonal is all that is there of G
        for t in range(u):
            data[t, order] -= data[t, u] * shift[u]
            data[u, order] -= data[t, u] * shift[t]
        data[u, order] -= data[u, u] * shift[u]


@step
def return_shift(own: Any, i: int, memory: Any) -> None:
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
