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
from hemf.kernels.structures import (
    WIDTH,
    Features,
    Int64Array,
    OtherRows,
    Posterior,
    Prior,
    Ratings,
    Statistics,
    SweepMemory,
    refer,
)


@inner
def sizes(prior: Prior) -> Any:
    """Return the numbers of coordinates, of communities and in P, and whether all share one P."""
    tied = prior.precision.shape[0] == 1
    return prior.free.size, prior.natural_mean.shape[0], prior.precision.shape[1], tied


@inner
def part(statistics: Statistics, chunk: int) -> Any:
    """Return a chunk's sizes, first moments and scatter."""
    return statistics.size[chunk], statistics.first[chunk], statistics.scatter[chunk]


# docs/model.md#row-factors
@kernel
def coupled_rows(
    begin: int, end: int, cuts: Int64Array, ratings: Ratings, other: OtherRows, prior: Prior,
    posterior: Posterior, features: Features, statistics: Statistics, memory: SweepMemory,
) -> None:  # fmt: skip
    """Update q(a_i, z_i) of the rows of chunks begin … end, factor and membership together."""
    ratings, other, prior, memory = refer(ratings), refer(other), refer(prior), refer(memory)
    posterior, statistics = refer(posterior), refer(statistics)
    precision, natural_mean = prior.precision, prior.natural_mean
    order, communities, triangle, tied = sizes(prior)
    factors, solutions, share = memory.factors, memory.solutions, memory.share
    half_log_det, row_mean, row_second = memory.half_log_det, memory.mean, memory.second
    data_precision, data_natural_mean = memory.data_precision, memory.data_natural_mean
    membership, ones = posterior.membership, memory.ones
    has_features = features.leverage.size > 0
    memory.batch[:] = cuts[begin]
    for chunk in range(begin, end):
        size, first, scatter = part(statistics, chunk)
        for start in range(cuts[chunk], cuts[chunk + 1], WIDTH):
            count = load_block(start, cuts[chunk + 1], cuts[end], ratings, other, memory)
            data_part(
                start, count, prior.free, prior.pinned, posterior.noise, memory, data_precision,
                data_natural_mean,
            )  # fmt: skip
            if has_features:
                leave_shift(start, count, features, data_precision, data_natural_mean, memory)
            for d in range(communities):
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
                log_share = prior.log_weight[d] + load(half_log_det, c)
                for i in range(order):
                    x = load(y, i)
                    log_share = log_share + 0.5 * x * x
                store(share, d, log_share)
            if posterior.hold:
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
                members = 0.0
                for b in range(count):
                    q = share[d, b]
                    members += q
                    if q > 0.0:
                        statistics.entropy[chunk] += q * (half_log_det[c, b] - np.log(q))
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
            if has_features:  # covariances are tied
                add_leverage(start, count, features, factors[0], memory, scatter[0])
                return_shift(memory)
            write_block(start, count, prior, posterior, memory)


# docs/model.md#mean-field
@kernel
def mean_field_rows(
    begin: int, end: int, cuts: Int64Array, ratings: Ratings, other: OtherRows, prior: Prior,
    posterior: Posterior, features: Features, statistics: Statistics, memory: SweepMemory,
) -> None:  # fmt: skip
    """Update q(a_i), then q(z_i), of the rows of chunks begin … end (the paper's form)."""
    ratings, other, prior, memory = refer(ratings), refer(other), refer(prior), refer(memory)
    posterior, statistics = refer(posterior), refer(statistics)
    precision, natural_mean = prior.precision, prior.natural_mean
    order, communities, triangle, tied = sizes(prior)
    factor, half_log_det, share = memory.factors[0], memory.half_log_det[0], memory.share
    row_mean, row_second = memory.mean, memory.second
    membership, ones, entropies = posterior.membership, memory.ones, statistics.entropy
    has_features = features.leverage.size > 0
    memory.batch[:] = cuts[begin]
    for chunk in range(begin, end):
        size, first, scatter = part(statistics, chunk)
        for start in range(cuts[chunk], cuts[chunk + 1], WIDTH):
            count = load_block(start, cuts[chunk + 1], cuts[end], ratings, other, memory)
            data_part(
                start, count, prior.free, prior.pinned, posterior.noise, memory, factor, row_mean
            )
            if has_features:
                leave_shift(start, count, features, factor, row_mean, memory)
            for d in range(communities):
                c = 0 if tied else d
                for b in range(WIDTH):
                    share[d, b] = membership[start + b, d] if b < count else 1.0 / communities
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
            if not posterior.hold:  # ln q(d) = weight_d + m·P m_d - ½ tr(P E[aaᵀ])
                for d in range(communities):
                    c = 0 if tied else d
                    log_share = full(prior.log_weight[d])
                    p = 0
                    for i in range(order):
                        log_share = log_share + natural_mean[d, i] * load(row_mean, i)
                        for j in range(i + 1):
                            half = precision[c, p] * (0.5 if i == j else 1.0)
                            log_share = log_share - half * load(row_second, p)
                            p += 1
                    store(share, d, log_share)
                normalise(share, count)
            for b in range(count):
                entropies[chunk] += half_log_det[b]
            for d in range(communities):
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
            if has_features:
                add_leverage(start, count, features, factor, memory, scatter[0])
                return_shift(memory)
            write_block(start, count, prior, posterior, memory)
