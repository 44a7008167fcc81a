"""Half-sweep over chunks of rows (docs/model.md#row-factors, docs/model.md#memberships).

The vectors of both sides have ``total`` coordinates. With offsets, coordinate 0 is the item's
offset and 1 on the user's side, coordinate 1 the user's offset and 1 on the item's side, so that
a·b holds both; the coordinate that a side has pinned at 1 is not part of its posterior. Without
offsets nothing is pinned and ``pinned`` is -1.

Where rows have a ``shift``, all is done for what is left of them, a_i - f_i: its prior is that of
a row without features, so memberships and statistics are of it; only what is written is of a_i.

Arguments are the named tuples of `hemf.kernels.structures`; chunk c holds the rows cuts[c] …
cuts[c+1].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.blocks import (
    add_outer,
    data_part,
    half_log_det_inverse,
    leave_shift,
    load_block,
    normalise,
    return_shift,
    write_block,
)
from hemf.kernels.compile import inner, kernel
from hemf.kernels.lanes import (
    factorise,
    full,
    invert,
    load,
    solve_backward,
    solve_forward,
    store,
    total,
)
from hemf.kernels.leverage import add_leverage
from hemf.kernels.structures import WIDTH, RowUpdate, Statistics, SweepMemory, refer


@inner
def opened(begin: int, update: RowUpdate, memory: SweepMemory) -> Any:
    """Begin with a chunk; return P, P m, the numbers of coordinates and in P, and whether tied."""
    memory.batch[:] = update.cuts[begin]
    precision = update.prior.precision
    order, triangle, tied = update.prior.free.size, precision.shape[1], precision.shape[0] == 1
    return precision, update.prior.natural_mean, order, triangle, tied


@inner
def next_block(
    start: int, chunk: int, end: int, update: RowUpdate, memory: SweepMemory, data_precision: Any,
    data_natural_mean: Any,
) -> int:  # fmt: skip
    """Put rows side by side, and write what their ratings say of them; return how many."""
    cuts, prior, features = update.cuts, update.prior, update.features
    count = load_block(start, cuts[chunk + 1], cuts[end], update.ratings, update.other, memory)
    data_part(
        start, count, prior.free, prior.pinned, update.posterior.noise, memory, data_precision,
        data_natural_mean,
    )  # fmt: skip
    if features.leverage.size > 0:
        leave_shift(start, count, features, data_precision, data_natural_mean, memory)
    return int(count)


@inner
def part(statistics: Statistics, chunk: int) -> Any:
    """Return a chunk's sizes, first moments and scatter."""
    return statistics.size[chunk], statistics.first[chunk], statistics.scatter[chunk]


# docs/model.md#row-factors
@kernel
def coupled_rows(begin: int, end: int, update: RowUpdate, memory: SweepMemory) -> None:
    """Update q(a_i, z_i) of the rows of chunks begin … end, factor and membership together."""
    update, memory = refer(update), refer(memory)
    precision, natural_mean, order, triangle, tied = opened(begin, update, memory)
    factors, solutions, share = memory.factors, memory.solutions, memory.share
    half_log_det, row_mean, row_second = memory.half_log_det, memory.mean, memory.second
    data_precision, data_natural_mean = memory.data_precision, memory.data_natural_mean
    membership, ones = update.posterior.membership, memory.ones
    for chunk in range(begin, end):
        for start in range(update.cuts[chunk], update.cuts[chunk + 1], WIDTH):
            count = next_block(start, chunk, end, update, memory, data_precision, data_natural_mean)
            for d in range(natural_mean.shape[0]):
                c = 0 if tied else d
                factor, y = factors[c], solutions[d]
                if d == c:
                    for p in range(triangle):
                        store(factor, p, load(data_precision, p) + precision[c, p])
                    factorise(factor, order)
                    half_log_det_inverse(factor, order, half_log_det[c])
                for i in range(order):
                    store(y, i, load(data_natural_mean, i) + natural_mean[d, i])
                solve_forward(factor, y, order)
                # docs/model.md#memberships
                log_share = update.prior.log_weight[d] + load(half_log_det, c)
                for i in range(order):
                    x = load(y, i)
                    log_share = log_share + 0.5 * x * x
                store(share, d, log_share)
            if update.posterior.hold:
                for d in range(natural_mean.shape[0]):
                    for b in range(WIDTH):
                        share[d, b] = membership[start + b, d] if b < count else 0.0
            else:
                normalise(share, count)
            row_mean[:] = 0.0
            row_second[:] = 0.0
            size, first, scatter = part(update.statistics, chunk)
            for d in range(natural_mean.shape[0]):
                c = 0 if tied else d
                factor, y = factors[c], solutions[d]
                members = 0.0
                for b in range(count):
                    q = share[d, b]
                    members += q
                    if q > 0.0:
                        update.statistics.entropy[chunk] += q * (half_log_det[c, b] - np.log(q))
                    membership[start + b, d] = q
                if members == 0.0:
                    continue
                size[d] += members
                solve_backward(factor, y, order)
                for i in range(order):
                    x = load(share, d) * load(y, i)
                    store(row_mean, i, load(row_mean, i) + x)
                    first[d, i] += total(x)
                if tied:
                    add_outer(share[d], y, memory.zero, row_second, scatter[0])
                else:
                    invert(factor, order)
                    add_outer(share[d], y, factor, row_second, scatter[d])
            if tied:  # the covariance is the same under every community: once is enough
                invert(factors[0], order)
                for b in range(WIDTH):
                    ones[b] = 1.0 if b < count else 0.0
                solutions[0, :, :] = 0.0
                add_outer(ones, solutions[0], factors[0], row_second, scatter[0])
            if update.features.leverage.size > 0:  # covariances are tied
                add_leverage(start, count, update.features, factors[0], memory, scatter[0])
                return_shift(memory)
            write_block(start, count, update.prior, update.posterior, memory)


# docs/model.md#mean-field
@kernel
def mean_field_rows(begin: int, end: int, update: RowUpdate, memory: SweepMemory) -> None:
    """Update q(a_i), then q(z_i), of the rows of chunks begin … end (the paper's form)."""
    update, memory = refer(update), refer(memory)
    precision, natural_mean, order, triangle, tied = opened(begin, update, memory)
    factor, half_log_det, share = memory.factors[0], memory.half_log_det[0], memory.share
    row_mean, row_second = memory.mean, memory.second
    membership, ones, entropies = (
        update.posterior.membership,
        memory.ones,
        update.statistics.entropy,
    )
    for chunk in range(begin, end):
        for start in range(update.cuts[chunk], update.cuts[chunk + 1], WIDTH):
            count = next_block(start, chunk, end, update, memory, factor, row_mean)
            for d in range(natural_mean.shape[0]):
                c = 0 if tied else d
                for b in range(WIDTH):
                    share[d, b] = (
                        membership[start + b, d] if b < count else 1.0 / natural_mean.shape[0]
                    )
                q = load(share, d)
                for p in range(triangle):
                    store(factor, p, load(factor, p) + q * precision[c, p])
                for i in range(order):
                    store(row_mean, i, load(row_mean, i) + q * natural_mean[d, i])
            factorise(factor, order)
            half_log_det_inverse(factor, order, half_log_det)
            solve_forward(factor, row_mean, order)
            solve_backward(factor, row_mean, order)
            invert(factor, order)
            store(ones, 0, full(1.0))
            row_second[:] = 0.0
            add_outer(ones, row_mean, factor, row_second, memory.unused)
            if not update.posterior.hold:  # ln q(d) = weight_d + m·P m_d - ½ tr(P E[aaᵀ])
                for d in range(natural_mean.shape[0]):
                    c = 0 if tied else d
                    log_share = full(update.prior.log_weight[d])
                    p = 0
                    for i in range(order):
                        log_share = log_share + natural_mean[d, i] * load(row_mean, i)
                        for j in range(i + 1):
                            half = precision[c, p] * (0.5 if i == j else 1.0)
                            log_share = log_share - half * load(row_second, p)
                            p += 1
                    store(share, d, log_share)
                normalise(share, count)
            size, first, scatter = part(update.statistics, chunk)
            for b in range(count):
                entropies[chunk] += half_log_det[b]
            for d in range(natural_mean.shape[0]):
                c = 0 if tied else d
                for b in range(count):
                    member = share[d, b]
                    if member > 0.0:
                        entropies[chunk] -= member * np.log(member)
                    membership[start + b, d] = member
                    size[d] += member
                    for i in range(order):
                        first[d, i] += member * row_mean[i, b]
                    for p in range(triangle):
                        scatter[c, p] += member * row_second[p, b]
            if update.features.leverage.size > 0:
                add_leverage(start, count, update.features, factor, memory, scatter[0])
                return_shift(memory)
            write_block(start, count, update.prior, update.posterior, memory)
