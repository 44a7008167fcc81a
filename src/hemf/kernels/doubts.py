"""What features' coefficients are uncertain by, as it reaches the rows: `hemf.model.regression`.

Of a row with covariance S under known coefficients, Vᵀx uncertain by c Σ moves a by S P of it: its
second moment grows by c S P S, and what communities are given of it by c (S P S - S). Ratings tell
1 - tr(P S)/L of what there is to know of a row.
"""

from __future__ import annotations

from typing import Any

from hemf.kernels.blocks import packed
from hemf.kernels.compile import step
from hemf.kernels.lanes import WIDTH
from hemf.kernels.vectors import LANES, add_scaled

SPARE = 2  # lines that `add_doubt` needs beside the room for a matrix


@step
def add_doubt(
    start: int,
    count: int,
    doubt: Any,
    root: Any,
    covariance: Any,
    room: Any,
    second: Any,
    statistic: Any,
    told: Any,
) -> None:
    """Add it to the second moments and, summed, to the statistic of rows side by side in lanes.

    ``root`` is U, P = U Uᵀ, and ``room`` holds S U. Writes 1 - tr(P S)/L of each row to ``told``.
    """
    order = root.shape[0]
    trace, product = room[order * order], room[order * order + 1]
    trace[:] = 0.0
    for i in range(order):
        for j in range(order):
            y = room[i * order + j]
            y[:] = 0.0
            k = j
            while k + 4 <= order:
                s0, s1 = covariance[packed(i, k)], covariance[packed(i, k + 1)]
                s2, s3 = covariance[packed(i, k + 2)], covariance[packed(i, k + 3)]
                u0, u1, u2, u3 = root[k, j], root[k + 1, j], root[k + 2, j], root[k + 3, j]
                for b in range(WIDTH):
                    y[b] += (s0[b] * u0 + s1[b] * u1) + (s2[b] * u2 + s3[b] * u3)
                k += 4
            while k < order:
                s0, u0 = covariance[packed(i, k)], root[k, j]
                for b in range(WIDTH):
                    y[b] += s0[b] * u0
                k += 1
            if j <= i:
                u0 = root[i, j]
                for b in range(WIDTH):
                    trace[b] += y[b] * u0
    p = 0
    for i in range(order):
        for j in range(i + 1):
            product[:] = 0.0
            k = 0
            while k + 4 <= order:
                x0, x1 = room[i * order + k], room[i * order + k + 1]
                x2, x3 = room[i * order + k + 2], room[i * order + k + 3]
                y0, y1 = room[j * order + k], room[j * order + k + 1]
                y2, y3 = room[j * order + k + 2], room[j * order + k + 3]
                for b in range(WIDTH):
                    product[b] += (x0[b] * y0[b] + x1[b] * y1[b]) + (x2[b] * y2[b] + x3[b] * y3[b])
                k += 4
            while k < order:
                x0, y0 = room[i * order + k], room[j * order + k]
                for b in range(WIDTH):
                    product[b] += x0[b] * y0[b]
                k += 1
            total = 0.0
            for b in range(count):
                c = doubt[start + b]
                second[p, b] += c * product[b]
                total += c * (product[b] - covariance[p, b])
            statistic[p] += total
            p += 1
    for b in range(count):
        told[start + b] = 1.0 - trace[b] / order


@step
def take_doubt(own: Any, shared: Any, i: int, room: Any, memory: Any) -> None:
    """Turn S of one row, in ``memory.inverse``, into what communities are given: S + c (S P S - S).

    What is left of the second moment, c S, goes to ``memory.extra``, packed; ``room`` is as large
    as S, and written over.
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
    c = own.doubt[i]
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
    own.told[i] = 1.0 - trace / order
