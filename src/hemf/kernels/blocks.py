"""Steps of a half-sweep on one block of rows, `WIDTH` of them side by side in lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, plain, step
from hemf.kernels.lanes import fma, fnma, load, packed, store, total
from hemf.kernels.structures import (
    WIDTH,
    Features,
    OtherRows,
    Posterior,
    Prior,
    Ratings,
    SweepMemory,
)

CACHE_BYTES = 1 << 23  # moments of the other side below this are not worth tiling
TILE_BYTES = 1 << 22
NEGLIGIBLE = 1e-6  # a community with a smaller share of a row is left out of the row's moments


@inner
def gather(
    k: int,
    end: int,
    indices: Any,
    values: Any,
    weights: Any,
    other: OtherRows,
    excess: Any,
    gram: Any,
    moment: Any,
) -> float:
    """Add g E[b bᵀ] to ``gram`` and w r E[b] to ``moment``; return Σ w r².

    The sums are over the ratings k … end of a row. The weight w of a rating is that of the other
    side's row times its own, and g is w less the weight of pairs that were not observed; for
    ratings that count once, that is ``excess``. Empty ``values`` or ``weights`` are ones.
    """
    other_mean, other_second, other_weight = other.mean, other.second, other.weight
    squares = 0.0
    one = gram.dtype.type(1)
    while k + 4 <= end:
        j0, j1, j2, j3 = indices[k], indices[k + 1], indices[k + 2], indices[k + 3]
        w0, w1, w2, w3 = other_weight[j0], other_weight[j1], other_weight[j2], other_weight[j3]
        g0, g1, g2, g3 = excess[j0], excess[j1], excess[j2], excess[j3]
        if weights.size > 0:
            u0, u1, u2, u3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
            g0, g1 = g0 + (u0 - one) * w0, g1 + (u1 - one) * w1
            g2, g3 = g2 + (u2 - one) * w2, g3 + (u3 - one) * w3
            w0, w1, w2, w3 = u0 * w0, u1 * w1, u2 * w2, u3 * w3
        s0, s1, s2, s3 = other_second[j0], other_second[j1], other_second[j2], other_second[j3]
        for p in range(gram.size):
            gram[p] += (g0 * s0[p] + g1 * s1[p]) + (g2 * s2[p] + g3 * s3[p])
        r0, r1, r2, r3 = one, one, one, one
        if values.size > 0:
            r0, r1, r2, r3 = values[k], values[k + 1], values[k + 2], values[k + 3]
        x0, x1, x2, x3 = w0 * r0, w1 * r1, w2 * r2, w3 * r3
        m0, m1, m2, m3 = other_mean[j0], other_mean[j1], other_mean[j2], other_mean[j3]
        for t in range(moment.size):
            moment[t] += (x0 * m0[t] + x1 * m1[t]) + (x2 * m2[t] + x3 * m3[t])
        squares += np.float64(x0) * r0 + np.float64(x1) * r1
        squares += np.float64(x2) * r2 + np.float64(x3) * r3
        k += 4
    while k < end:
        w0, g0 = other_weight[indices[k]], excess[indices[k]]
        if weights.size > 0:
            g0 += (weights[k] - one) * w0
            w0 *= weights[k]
        r0 = values[k] if values.size > 0 else one
        s0, m0, x0 = other_second[indices[k]], other_mean[indices[k]], w0 * r0
        for p in range(gram.size):
            gram[p] += g0 * s0[p]
        for t in range(moment.size):
            moment[t] += x0 * m0[t]
        squares += np.float64(x0) * r0
        k += 1
    return squares


@step
def gather_batch(
    start: int, count: int, ratings: Ratings, other: OtherRows, memory: SweepMemory
) -> None:
    """Gather ``count`` rows, one tile of the other side after the other.

    The other side's moments may be far larger than any cache. A tile of them is not, and serves
    all rows of the batch before the next one is fetched; indices rise within a row.
    """
    indptr, indices, other_second = ratings.indptr, ratings.indices, other.second
    values, weights, excess, base = ratings.values, ratings.weights, other.excess, other.base
    grams, moments, squares, cursor = (
        memory.grams, memory.moments, memory.row_squares, memory.cursor
    )  # fmt: skip
    n_other = other_second.shape[0]
    row_bytes = other_second.shape[1] * other_second.itemsize
    tile = n_other
    if n_other * row_bytes > CACHE_BYTES:
        tile = max(1, TILE_BYTES // row_bytes)
    for b in range(count):
        cursor[b] = indptr[start + b]
        for p in range(base.size):
            grams[b, p] = base[p]
        moments[b, :] = 0
        squares[b] = 0.0
    for edge in range(tile, n_other + tile, tile):
        for b in range(count):
            k, last = cursor[b], indptr[start + b + 1]
            end = last
            if edge < n_other:
                end = k
                while end < last and indices[end] < edge:
                    end += 1
            cursor[b] = end
            squares[b] += gather(
                k, end, indices, values, weights, other, excess, grams[b], moments[b]
            )


@inner
def load_lanes(first: int, count: int, memory: SweepMemory) -> None:
    """Put rows of a batch side by side; lanes beyond ``count`` hold a row without ratings."""
    grams, moments, gram, moment = memory.grams, memory.moments, memory.gram, memory.moment
    gram[:] = 0.0
    moment[:] = 0.0
    memory.squares[:] = 0.0
    for p in range(gram.shape[0]):
        for b in range(count):
            gram[p, b] = grams[first + b, p]
    for t in range(moment.shape[0]):
        for b in range(count):
            moment[t, b] = moments[first + b, t]
    for b in range(count):
        memory.squares[b] = memory.row_squares[first + b]


@step
def load_block(
    start: int, end: int, last: int, ratings: Ratings, other: OtherRows, memory: SweepMemory
) -> int:
    """Put rows up to ``end`` side by side, as many as fit; return how many.

    If they are not in this batch, the next one is gathered, up to ``last``.
    """
    batch, count = memory.batch, min(WIDTH, end - start)
    if start + count > batch[1]:
        batch[0], batch[1] = start, min(start + memory.grams.shape[0], last)
        gather_batch(start, batch[1] - start, ratings, other, memory)
    load_lanes(start - batch[0], count, memory)
    return count


@plain
def data_part(
    start: int,
    count: int,
    free: Any,
    pinned: int,
    noise: Any,
    memory: SweepMemory,
    data_precision: Any,
    data_natural_mean: Any,
) -> None:
    """Divide G and h by the row's σ², on the free coordinates; h without the pinned one's part."""
    gram, moment, scale = memory.gram, memory.moment, memory.scale
    scale[:] = 1.0
    for b in range(count):
        scale[b] = 1.0 / noise[start + b]
    s = load(scale, 0)
    p = 0
    for i in range(free.size):
        store(data_natural_mean, i, load(moment, free[i]) * s)
        if pinned >= 0:
            u = load(gram, packed(free[i], pinned))
            store(data_natural_mean, i, fnma(u, s, load(data_natural_mean, i)))
        for j in range(i + 1):
            store(data_precision, p, load(gram, packed(free[i], free[j])) * s)
            p += 1


@plain
def leave_shift(
    start: int,
    count: int,
    features: Features,
    data_precision: Any,
    data_natural_mean: Any,
    memory: SweepMemory,
) -> None:
    """Load the rows' shifts f into lanes, and replace h/σ² of a by h/σ² - G f/σ² of a - f.

    Lanes beyond ``count`` have no shift.
    """
    shifts = memory.shift
    order = shifts.shape[0]
    for i in range(order):
        for b in range(WIDTH):
            shifts[i, b] = features.shift[start + b, i] if b < count else 0.0
    p = 0
    for i in range(order):
        for j in range(i + 1):
            x = load(data_precision, p)
            store(data_natural_mean, i, fnma(x, load(shifts, j), load(data_natural_mean, i)))
            if j < i:
                store(data_natural_mean, j, fnma(x, load(shifts, i), load(data_natural_mean, j)))
            p += 1


@plain
def return_shift(memory: SweepMemory) -> None:
    """Turn the moments of a - f into those of a: m + f, and E + m fᵀ + f mᵀ + f fᵀ."""
    shifts, row_mean, row_second = memory.shift, memory.mean, memory.second
    p = 0
    for i in range(shifts.shape[0]):
        m, f = load(row_mean, i), load(shifts, i)
        for j in range(i + 1):
            n, g = load(row_mean, j), load(shifts, j)
            store(row_second, p, load(row_second, p) + fma(f, g, fma(m, g, f * n)))
            p += 1
    for i in range(shifts.shape[0]):
        store(row_mean, i, load(row_mean, i) + load(shifts, i))


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


@plain
def write_block(
    start: int, count: int, prior: Prior, posterior: Posterior, memory: SweepMemory
) -> None:
    """Store a block's moments with the pinned coordinate in place, and each row's error.

    The squares in ``memory`` are used up. Lanes are innermost: the lines of memory that one
    coordinate of all rows is written to are those of the next coordinate too.
    """
    free, pinned = prior.free, prior.pinned
    row_mean, row_second, gram, moment = memory.mean, memory.second, memory.gram, memory.moment
    mean, second = posterior.mean, posterior.second
    squares = load(memory.squares, 0)
    if pinned >= 0:
        at = packed(pinned, pinned)
        for b in range(count):
            mean[start + b, pinned] = 1.0
            second[start + b, at] = 1.0
        squares = squares + (load(gram, at) - 2.0 * load(moment, pinned))
    p = 0
    for i in range(free.size):
        for b in range(count):
            mean[start + b, free[i]] = row_mean[i, b]
        m = load(row_mean, i)
        squares = fnma(2.0 * m, load(moment, free[i]), squares)
        if pinned >= 0:
            at = packed(free[i], pinned)
            for b in range(count):
                second[start + b, at] = row_mean[i, b]
            squares = fma(2.0 * m, load(gram, at), squares)
        for j in range(i + 1):
            at = packed(free[i], free[j])
            times = 1.0 if i == j else 2.0
            for b in range(count):
                second[start + b, at] = row_second[p, b]
            squares = fma(times * load(row_second, p), load(gram, at), squares)
            p += 1
    store(memory.squares, 0, squares)
    for b in range(count):
        posterior.errors[start + b] = memory.squares[b]


@plain
def add_outer(share: Any, mean: Any, covariance: Any, second: Any, statistic: Any) -> None:
    """Add q (S + mmᵀ) of every lane to the rows' moments and, summed, to a statistic."""
    q = load(share, 0)
    p = 0
    for i in range(mean.shape[0]):
        u = load(mean, i)
        for j in range(i + 1):
            x = q * fma(u, load(mean, j), load(covariance, p))
            store(second, p, load(second, p) + x)
            statistic[p] += total(x)
            p += 1
