"""Steps of a half-sweep on one block of rows, `WIDTH` of them side by side in lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner
from hemf.kernels.lanes import WIDTH

NEGLIGIBLE = 1e-6  # a community with a smaller share of a row is left out of the row's moments


@inner
def packed(i: int, j: int) -> int:
    """Position of entry (i, j) in a packed lower triangle."""
    return i * (i + 1) // 2 + j if i >= j else j * (j + 1) // 2 + i


@inner
def gather(
    row: int,
    indptr: Any,
    indices: Any,
    values: Any,
    other_mean: Any,
    other_second: Any,
    other_weight: Any,
    gram: Any,
    moment: Any,
) -> float:
    """Sum w E[b bᵀ] into ``gram`` and w r E[b] into ``moment``; return Σ w r².

    The sums are over a row's ratings, w the weight of the other side's row.
    """
    gram[:] = 0
    moment[:] = 0
    squares = 0.0
    k, end = indptr[row], indptr[row + 1]
    while k + 4 <= end:
        j0, j1, j2, j3 = indices[k], indices[k + 1], indices[k + 2], indices[k + 3]
        w0, w1, w2, w3 = other_weight[j0], other_weight[j1], other_weight[j2], other_weight[j3]
        s0, s1, s2, s3 = other_second[j0], other_second[j1], other_second[j2], other_second[j3]
        for p in range(gram.size):
            gram[p] += (w0 * s0[p] + w1 * s1[p]) + (w2 * s2[p] + w3 * s3[p])
        r0, r1, r2, r3 = values[k], values[k + 1], values[k + 2], values[k + 3]
        x0, x1, x2, x3 = w0 * r0, w1 * r1, w2 * r2, w3 * r3
        m0, m1, m2, m3 = other_mean[j0], other_mean[j1], other_mean[j2], other_mean[j3]
        for t in range(moment.size):
            moment[t] += (x0 * m0[t] + x1 * m1[t]) + (x2 * m2[t] + x3 * m3[t])
        squares += np.float64(x0) * r0 + np.float64(x1) * r1
        squares += np.float64(x2) * r2 + np.float64(x3) * r3
        k += 4
    while k < end:
        w0, r0 = other_weight[indices[k]], values[k]
        s0, m0, x0 = other_second[indices[k]], other_mean[indices[k]], w0 * r0
        for p in range(gram.size):
            gram[p] += w0 * s0[p]
        for t in range(moment.size):
            moment[t] += x0 * m0[t]
        squares += np.float64(x0) * r0
        k += 1
    return squares


@inner
def gather_block(
    start: int,
    count: int,
    indptr: Any,
    indices: Any,
    values: Any,
    other_mean: Any,
    other_second: Any,
    other_weight: Any,
    gram_row: Any,
    moment_row: Any,
    gram: Any,
    moment: Any,
    squares: Any,
) -> None:
    """Gather up to WIDTH rows into lanes; lanes beyond ``count`` hold a row without ratings."""
    for b in range(WIDTH):
        if b < count:
            squares[b] = gather(
                start + b, indptr, indices, values, other_mean, other_second, other_weight,
                gram_row, moment_row,
            )  # fmt: skip
        else:
            gram_row[:] = 0
            moment_row[:] = 0
            squares[b] = 0.0
        for p in range(gram_row.size):
            gram[p, b] = gram_row[p]
        for t in range(moment_row.size):
            moment[t, b] = moment_row[t]


@inner
def data_part(
    gram: Any,
    moment: Any,
    free: Any,
    pinned: int,
    noise: Any,
    start: int,
    count: int,
    data_precision: Any,
    data_pull: Any,
) -> None:
    """Divide G and h by the row's σ², on the free coordinates; the pinned one's part leaves h."""
    scale = np.ones(WIDTH)
    for b in range(count):
        scale[b] = 1.0 / noise[start + b]
    p = 0
    for i in range(free.size):
        for b in range(WIDTH):
            data_pull[i, b] = moment[free[i], b] * scale[b]
        if pinned >= 0:
            u = gram[packed(free[i], pinned)]
            for b in range(WIDTH):
                data_pull[i, b] -= u[b] * scale[b]
        for j in range(i + 1):
            v = gram[packed(free[i], free[j])]
            for b in range(WIDTH):
                data_precision[p, b] = v[b] * scale[b]
            p += 1


@inner
def half_log_det_inverse(factor: Any, order: int, out: Any) -> None:
    """½ ln|S| of each lane, S⁻¹ = C Cᵀ."""
    out[:] = 0.0
    for i in range(order):
        pivot = factor[i * (i + 1) // 2 + i]
        for b in range(WIDTH):
            out[b] -= np.log(pivot[b])


@inner
def normalise(log_membership: Any, count: int) -> None:
    """Softmax over communities in every lane; lanes beyond ``count`` weigh nothing."""
    communities = log_membership.shape[0]
    for b in range(WIDTH):
        if b >= count:
            for d in range(communities):
                log_membership[d, b] = 0.0
            continue
        top = log_membership[0, b]
        for d in range(1, communities):
            top = max(top, log_membership[d, b])
        total = 0.0
        for d in range(communities):
            log_membership[d, b] = np.exp(log_membership[d, b] - top)
            total += log_membership[d, b]
        kept = 0.0
        for d in range(communities):
            log_membership[d, b] /= total
            if log_membership[d, b] < NEGLIGIBLE:
                log_membership[d, b] = 0.0
            kept += log_membership[d, b]
        for d in range(communities):
            log_membership[d, b] /= kept


@inner
def write_block(
    start: int,
    count: int,
    free: Any,
    pinned: int,
    row_mean: Any,
    row_second: Any,
    gram: Any,
    moment: Any,
    squares: Any,
    mean: Any,
    second: Any,
    errors: Any,
) -> None:
    """Store a block's moments with the pinned coordinate in place, and each row's error."""
    order = free.size
    for b in range(count):
        row_error = squares[b]
        mean_out, second_out = mean[start + b], second[start + b]
        if pinned >= 0:
            mean_out[pinned] = 1.0
            second_out[packed(pinned, pinned)] = 1.0
            row_error += gram[packed(pinned, pinned), b] - 2.0 * moment[pinned, b]
        p = 0
        for i in range(order):
            mean_out[free[i]] = row_mean[i, b]
            row_error -= 2.0 * row_mean[i, b] * moment[free[i], b]
            if pinned >= 0:
                at = packed(free[i], pinned)
                second_out[at] = row_mean[i, b]
                row_error += 2.0 * row_mean[i, b] * gram[at, b]
            for j in range(i + 1):
                at = packed(free[i], free[j])
                second_out[at] = row_second[p, b]
                row_error += (1.0 if i == j else 2.0) * row_second[p, b] * gram[at, b]
                p += 1
        errors[start + b] = row_error


@inner
def add_outer(share: Any, mean: Any, covariance: Any, second: Any, statistic: Any) -> None:
    """Add q (S + mmᵀ) of every lane to the rows' moments and, summed, to a statistic."""
    p = 0
    for i in range(mean.shape[0]):
        u = mean[i]
        for j in range(i + 1):
            v, s, out = mean[j], covariance[p], second[p]
            total = 0.0
            for b in range(WIDTH):
                x = share[b] * (s[b] + u[b] * v[b])
                out[b] += x
                total += x
            statistic[p] += total
            p += 1
