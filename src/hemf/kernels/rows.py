"""Half-sweep over chunks of rows (docs/model.md#row-factors, docs/model.md#memberships).

The vectors of both sides have ``total`` coordinates. With offsets, coordinate 0 is the item's
offset and 1 on the user's side, coordinate 1 the user's offset and 1 on the item's side, so that
a·b holds both; the coordinate that a side has pinned at 1 is not part of its posterior. Without
offsets nothing is pinned and ``pinned`` is -1.

Where rows have a ``shift``, all is done for what is left of them, a_i - f_i: its prior is that of
a row without features, so memberships and statistics are of it; only what is written is of a_i.

Arguments shared by the kernels here and their twins in `reference`:

=================  ======================  =========================================================
cuts               (chunks + 1,)           chunk c holds the rows cuts[c] … cuts[c+1]
indptr … values    int64, int32, storage   the rows' ratings, centred and scaled
other_mean         (other rows, total)     E[b], storage type
other_second       (other rows, packed)    E[b bᵀ], packed lower triangle
other_weight       (other rows,)           υ_j, how much more than others a row's ratings count
free               (order,)                which coordinates the posterior covers
noise              (rows,)                 σ²/τ_i of each row
precision          (C, packed order)       P_d = E[Σ_d⁻¹]; C = 1 where covariances are tied
natural_mean               (D, order)              P_d m_d
log_weight         (D,)                    the terms of ln q_i(d) that do not depend on the row
mean, second       as the other side's     written
shift              (rows, order) or none   f_i, where the prior of a row is centred: μ_d + f_i
leverage              (rows,) or none         c_i, what f_i is uncertain by in units of Σ
root               (order, order) or none  U, P = U Uᵀ
membership         (rows, D)               q_i(d); written unless ``hold``
errors             (rows,)                 written: Σ_j υ_j E(r_ij - a·b)²
information               (rows,) or none         written: 1 - tr(P S)/L, where rows have a shift
sizes, firsts, …   (chunks, …), float64    added to: ρ_d, Σ q m, Σ q (S + mmᵀ), of a_i - f_i;
                                           with leverage, S + c (S P S - S) in place of S
entropies          (chunks,)               added to: Σ q (½ ln|S| - ln q)
=================  ======================  =========================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.blocks import (
    add_outer,
    batch_rows,
    data_part,
    half_log_det_inverse,
    leave_shift,
    load_block,
    normalise,
    return_shift,
    write_block,
)
from hemf.kernels.compile import kernel
from hemf.kernels.lanes import WIDTH, factorise, invert, solve_backward, solve_forward
from hemf.kernels.products import SPARE, add_leverage


# docs/model.md#row-factors
@kernel(
    """void(int64, int64, int64[::1], int64[::1], int32[::1], {T}[::1], {T}[:, ::1], {T}[:, ::1],
    {T}[::1], int64[::1], int64, float64[::1], float64[:, ::1], float64[:, ::1],
    float64[::1], boolean, float64[:, ::1], float64[::1], float64[:, ::1],
    {T}[:, ::1], {T}[:, ::1], {T}[:, ::1], float64[::1], float64[::1],
    float64[:, ::1], float64[:, :, ::1], float64[:, :, ::1], float64[::1])""",
    allocates=True,
)
def coupled_rows(
    begin: Any,
    end: Any,
    cuts: Any,
    indptr: Any,
    indices: Any,
    values: Any,
    other_mean: Any,
    other_second: Any,
    other_weight: Any,
    free: Any,
    pinned: Any,
    noise: Any,
    precision: Any,
    natural_mean: Any,
    log_weight: Any,
    hold: Any,
    shift: Any,
    leverage: Any,
    root: Any,
    mean: Any,
    second: Any,
    membership: Any,
    errors: Any,
    information: Any,
    sizes: Any,
    firsts: Any,
    scatters: Any,
    entropies: Any,
) -> None:
    """Update q(a_i, z_i) of the rows of chunks begin … end, factor and membership together."""
    order = free.size
    triangle = order * (order + 1) // 2
    communities = natural_mean.shape[0]
    tied = precision.shape[0] == 1
    batch = min(batch_rows(other_second), max(WIDTH, cuts[end] - cuts[begin]))
    grams = np.empty((batch, other_second.shape[1]), other_second.dtype)
    moments = np.empty((batch, other_mean.shape[1]), other_mean.dtype)
    row_squares = np.empty(batch)
    gram = np.empty((other_second.shape[1], WIDTH))
    moment = np.empty((other_mean.shape[1], WIDTH))
    squares = np.empty(WIDTH)
    data_precision = np.empty((triangle, WIDTH))
    data_natural_mean = np.empty((order, WIDTH))
    factors = np.empty((precision.shape[0], triangle, WIDTH))
    solutions = np.empty((communities, order, WIDTH))
    half_log_det = np.empty((precision.shape[0], WIDTH))
    share = np.empty((communities, WIDTH))
    row_mean = np.empty((order, WIDTH))
    row_second = np.empty((triangle, WIDTH))
    zero = np.zeros((triangle, WIDTH))
    ones = np.zeros(WIDTH)
    shifts = np.empty((order, WIDTH))
    room = np.empty((order * order + SPARE if shift.shape[0] > 0 else 0, WIDTH))
    gathered = batch_start = cuts[begin]
    for chunk in range(begin, end):
        low, high = cuts[chunk], cuts[chunk + 1]
        size, first, scatter = sizes[chunk], firsts[chunk], scatters[chunk]
        for start in range(low, high, WIDTH):
            count = min(WIDTH, high - start)
            batch_start, gathered = load_block(
                start, count, batch_start, gathered, cuts[end], indptr, indices, values,
                other_mean, other_second, other_weight, grams, moments, row_squares,
                gram, moment, squares,
            )  # fmt: skip
            data_part(
                gram, moment, free, pinned, noise, start, count, data_precision, data_natural_mean
            )
            if shift.shape[0] > 0:
                leave_shift(start, count, shift, data_precision, data_natural_mean, shifts)
            for d in range(communities):
                c = 0 if tied else d
                factor, y = factors[c], solutions[d]
                if d == c:
                    for p in range(triangle):
                        for b in range(WIDTH):
                            factor[p, b] = data_precision[p, b] + precision[c, p]
                    factorise(factor, order)
                    half_log_det_inverse(factor, order, half_log_det[c])
                for i in range(order):
                    for b in range(WIDTH):
                        y[i, b] = data_natural_mean[i, b] + natural_mean[d, i]
                solve_forward(factor, y, order)
                for b in range(WIDTH):
                    share[d, b] = log_weight[d] + half_log_det[c, b]
                for i in range(order):
                    for b in range(WIDTH):
                        share[d, b] += 0.5 * y[i, b] * y[i, b]
            if hold:
                for d in range(communities):
                    for b in range(WIDTH):
                        share[d, b] = membership[start + b, d] if b < count else 0.0
            else:
                normalise(share, count)
            row_mean[:] = 0.0
            row_second[:] = 0.0
            for d in range(communities):
                c = 0 if tied else d
                factor, y = factors[c], solutions[d]
                total = 0.0
                for b in range(count):
                    q = share[d, b]
                    total += q
                    if q > 0.0:
                        entropies[chunk] += q * (half_log_det[c, b] - np.log(q))
                    membership[start + b, d] = q
                if total == 0.0:
                    continue
                size[d] += total
                solve_backward(factor, y, order)
                for i in range(order):
                    sum_first = 0.0
                    for b in range(WIDTH):
                        x = share[d, b] * y[i, b]
                        row_mean[i, b] += x
                        sum_first += x
                    first[d, i] += sum_first
                if tied:
                    add_outer(share[d], y, zero, row_second, scatter[0])
                else:
                    invert(factor, order)
                    add_outer(share[d], y, factor, row_second, scatter[d])
            if tied:  # the covariance is the same under every community: once is enough
                invert(factors[0], order)
                for b in range(WIDTH):
                    ones[b] = 1.0 if b < count else 0.0
                solutions[0, :, :] = 0.0
                add_outer(ones, solutions[0], factors[0], row_second, scatter[0])
            if shift.shape[0] > 0:  # covariances are tied
                add_leverage(
                    start,
                    count,
                    leverage,
                    root,
                    factors[0],
                    room,
                    row_second,
                    scatter[0],
                    information,
                )
                return_shift(shifts, row_mean, row_second)
            write_block(
                start, count, free, pinned, row_mean, row_second, gram, moment, squares,
                mean, second, errors,
            )  # fmt: skip


# docs/model.md#mean-field
@kernel(
    """void(int64, int64, int64[::1], int64[::1], int32[::1], {T}[::1], {T}[:, ::1], {T}[:, ::1],
    {T}[::1], int64[::1], int64, float64[::1], float64[:, ::1], float64[:, ::1],
    float64[::1], boolean, float64[:, ::1], float64[::1], float64[:, ::1],
    {T}[:, ::1], {T}[:, ::1], {T}[:, ::1], float64[::1], float64[::1],
    float64[:, ::1], float64[:, :, ::1], float64[:, :, ::1], float64[::1])""",
    allocates=True,
)
def mean_field_rows(
    begin: Any,
    end: Any,
    cuts: Any,
    indptr: Any,
    indices: Any,
    values: Any,
    other_mean: Any,
    other_second: Any,
    other_weight: Any,
    free: Any,
    pinned: Any,
    noise: Any,
    precision: Any,
    natural_mean: Any,
    log_weight: Any,
    hold: Any,
    shift: Any,
    leverage: Any,
    root: Any,
    mean: Any,
    second: Any,
    membership: Any,
    errors: Any,
    information: Any,
    sizes: Any,
    firsts: Any,
    scatters: Any,
    entropies: Any,
) -> None:
    """Update q(a_i), then q(z_i), of the rows of chunks begin … end (the paper's form)."""
    order = free.size
    triangle = order * (order + 1) // 2
    communities = natural_mean.shape[0]
    tied = precision.shape[0] == 1
    batch = min(batch_rows(other_second), max(WIDTH, cuts[end] - cuts[begin]))
    grams = np.empty((batch, other_second.shape[1]), other_second.dtype)
    moments = np.empty((batch, other_mean.shape[1]), other_mean.dtype)
    row_squares = np.empty(batch)
    gram = np.empty((other_second.shape[1], WIDTH))
    moment = np.empty((other_mean.shape[1], WIDTH))
    squares = np.empty(WIDTH)
    factor = np.empty((triangle, WIDTH))
    row_mean = np.empty((order, WIDTH))
    row_second = np.empty((triangle, WIDTH))
    half_log_det = np.empty(WIDTH)
    share = np.empty((communities, WIDTH))
    ones = np.zeros(WIDTH)
    shifts = np.empty((order, WIDTH))
    room = np.empty((order * order + SPARE if shift.shape[0] > 0 else 0, WIDTH))
    unused = np.zeros(triangle)
    gathered = batch_start = cuts[begin]
    for chunk in range(begin, end):
        low, high = cuts[chunk], cuts[chunk + 1]
        size, first, scatter = sizes[chunk], firsts[chunk], scatters[chunk]
        for start in range(low, high, WIDTH):
            count = min(WIDTH, high - start)
            batch_start, gathered = load_block(
                start, count, batch_start, gathered, cuts[end], indptr, indices, values,
                other_mean, other_second, other_weight, grams, moments, row_squares,
                gram, moment, squares,
            )  # fmt: skip
            data_part(gram, moment, free, pinned, noise, start, count, factor, row_mean)
            if shift.shape[0] > 0:
                leave_shift(start, count, shift, factor, row_mean, shifts)
            for d in range(communities):
                c = 0 if tied else d
                for b in range(WIDTH):
                    share[d, b] = membership[start + b, d] if b < count else 1.0 / communities
                for p in range(triangle):
                    for b in range(WIDTH):
                        factor[p, b] += share[d, b] * precision[c, p]
                for i in range(order):
                    for b in range(WIDTH):
                        row_mean[i, b] += share[d, b] * natural_mean[d, i]
            factorise(factor, order)
            half_log_det_inverse(factor, order, half_log_det)
            solve_forward(factor, row_mean, order)
            solve_backward(factor, row_mean, order)
            invert(factor, order)
            for b in range(WIDTH):
                ones[b] = 1.0
            row_second[:] = 0.0
            add_outer(ones, row_mean, factor, row_second, unused)
            if not hold:  # ln q(d) = weight_d + m·P m_d - ½ tr(P E[aaᵀ])
                for d in range(communities):
                    c = 0 if tied else d
                    for b in range(WIDTH):
                        share[d, b] = log_weight[d]
                    p = 0
                    for i in range(order):
                        for b in range(WIDTH):
                            share[d, b] += natural_mean[d, i] * row_mean[i, b]
                        for j in range(i + 1):
                            half = precision[c, p] * (0.5 if i == j else 1.0)
                            for b in range(WIDTH):
                                share[d, b] -= half * row_second[p, b]
                            p += 1
                normalise(share, count)
            for b in range(count):
                entropies[chunk] += half_log_det[b]
            for d in range(communities):
                c = 0 if tied else d
                for b in range(count):
                    q = share[d, b]
                    if q > 0.0:
                        entropies[chunk] -= q * np.log(q)
                    membership[start + b, d] = q
                    size[d] += q
                    for i in range(order):
                        first[d, i] += q * row_mean[i, b]
                    for p in range(triangle):
                        scatter[c, p] += q * row_second[p, b]
            if shift.shape[0] > 0:
                add_leverage(
                    start, count, leverage, root, factor, room, row_second, scatter[0], information
                )
                return_shift(shifts, row_mean, row_second)
            write_block(
                start, count, free, pinned, row_mean, row_second, gram, moment, squares,
                mean, second, errors,
            )  # fmt: skip
