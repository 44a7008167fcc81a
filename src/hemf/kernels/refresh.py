"""Update of a single row (docs/model.md#row-factors, docs/model.md#memberships).

The data part is gathered from the row's history; with the current communities it gives the
posterior. Statistics of the communities change by the row's new contribution minus its old one.
Contributions are stored with the rows, so statistics do not drift.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels import solve
from hemf.kernels.blocks import gather
from hemf.kernels.compile import inner, step
from hemf.kernels.lanes import copy_entries, packed
from hemf.kernels.leverage import add_row_leverage, leave_shift, return_shift
from hemf.kernels.moods import subtract_moods
from hemf.kernels.products import expected_error
from hemf.kernels.structures import (
    MEAN,
    ROUNDING_OF_DOUBLE,
    ROUNDING_OF_SINGLE,
    SPREAD,
    Rows,
    Rules,
    Scratch,
    Shared,
)

MIN_FADE = 1e-12  # weight by age below which older ratings are ignored
MIN_MEMBERSHIP = 1e-300  # so that its logarithm is finite
ALL_COMMUNITIES_EVERY = 8  # refreshes of a side
MAX_WEIGHT = 16.0  # of a row's ratings, as in hemf.model.rows


# docs/model.md#new-rating
@inner
def add_rating(
    gram: Any, moment: Any, weight: float, value: float, mean: Any, second: Any
) -> float:
    """Add one rating's w E[b bᵀ] and w r E[b]; return w r²."""
    for p in range(gram.size):
        gram[p] += weight * second[p]
    for t in range(moment.size):
        moment[t] += weight * value * mean[t]
    return weight * value * value


@step
def gather_row(
    own: Rows, other: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch
) -> float:
    """Write G and h of a row's ratings, less moods, with the current moments.

    Return Σ w r², with w Var o of the moods.
    """
    gram, moment, forgetting = memory.gram, memory.moment, shared.forgetting
    begin, n = own.start[i], own.length[i]
    squares = 0.0
    if own.gram.shape[1] > 0:
        fade = forgetting**n if forgetting < 1.0 else 1.0
        uncertain = own.summed_weight[i]
        for p in range(gram.size):
            gram[p] = fade * (own.gram[i, p] + uncertain * shared.spread[p])
        for t in range(moment.size):
            moment[t] = fade * own.moment[i, t]
        squares = fade * own.square[i]
    else:
        gram[:] = 0.0
        moment[:] = 0.0
    if forgetting < 1.0:
        fade = 1.0
        for k in range(begin + n - 1, begin - 1, -1):  # the newest first: it counts in full
            j = own.other[k]
            value = rules.levels[own.code[k]]
            if own.session.size > 0:
                value -= rules.moods[own.session[k], MEAN]
                squares += other.weight[j] * fade * rules.moods[own.session[k], SPREAD]
            squares += add_rating(
                gram, moment, other.weight[j] * fade, value, other.mean[j], other.second[j]
            )
            fade *= forgetting
            if fade < MIN_FADE:
                break
        return squares
    for low in range(begin, begin + n, memory.values.size):
        high = min(begin + n, low + memory.values.size)
        for k in range(low, high):
            memory.values[k - low] = rules.levels[own.code[k]]
        if own.session.size > 0:
            squares += subtract_moods(own, other, rules, low, high, memory.values)
        squares += gather(
            0, high - low, own.other[low:high], memory.values, memory.values[:0], other,
            other.weight, gram, moment,
        )  # fmt: skip
    return squares


@inner
def list_candidates(own: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch) -> int:
    """List the communities that are considered for a row, and return their number.

    These are all communities if its ratings have grown by half since all were last considered, and
    periodically; otherwise those that it belongs to.
    """
    communities = shared.natural_mean.shape[0]
    grown = 2 * own.count[i] >= 3 * own.considered_count[i]
    is_periodic = np.int64(shared.totals[2]) % ALL_COMMUNITIES_EVERY == 0
    if communities > 1 and rules.thorough == 0 and not grown and not is_periodic:
        n = 0
        for slot in range(own.listed.shape[1]):
            if own.listed[i, slot] >= 0:
                memory.candidates[n] = own.listed[i, slot]
                n += 1
        if n > 0:
            return n
    for d in range(communities):
        memory.candidates[d] = d
    return communities


@inner
def normalise_shares(own: Rows, shared: Shared, rules: Rules, n: int, memory: Scratch) -> int:
    """Turn log weights into shares of the likeliest communities; return how many are kept."""
    share, kept = memory.share, memory.kept
    top = share[0]
    for c in range(1, n):
        top = max(top, share[c])
    total = 0.0
    for c in range(n):
        share[c] = np.exp(share[c] - top)
        total += share[c]
    count, part = 0, 0.0
    while count < min(n, own.listed.shape[1]):
        best = -1
        for c in range(n):
            taken = False
            for s in range(count):
                taken = taken or kept[s] == c
            if not taken and (best < 0 or share[c] > share[best]):
                best = c
        if count > 0 and share[best] < rules.min_share * total:
            break
        kept[count] = best
        part += share[best]
        count += 1
    for s in range(count):
        share[kept[s]] /= part
    return count


@inner
def subtract_row(own: Rows, shared: Shared, i: int) -> None:
    """Subtract the contributions of a row from the statistics of its communities."""
    order = shared.free.size
    for slot in range(own.listed.shape[1]):
        d = own.listed[i, slot]
        if d < 0:
            continue
        part = own.parts[i, slot]
        c = 0 if shared.scatter.shape[0] == 1 else d
        shared.size[d] -= part[0]
        for t in range(order):
            shared.first[d, t] -= part[1 + t]
        for p in range(shared.scatter.shape[1]):
            shared.scatter[c, p] -= part[1 + order + p]
        own.membership[i, d] = 0.0
        own.listed[i, slot] = -1
    shared.totals[0] -= own.entropy[i]
    shared.totals[1] -= own.weight[i] * own.error[i]


@inner
def add_share(own: Rows, shared: Shared, i: int, slot: int, d: int, q: float, y: Any) -> None:
    """List community d with a row's share of it, and add q and q m to the community."""
    part = own.parts[i, slot]
    own.listed[i, slot] = d
    own.membership[i, d] = q
    part[0] = q
    shared.size[d] += part[0]
    for t in range(y.size):
        part[1 + t] = q * y[t]
        shared.first[d, t] += part[1 + t]


@inner
def add_row(
    own: Rows, shared: Shared, i: int, slot: int, d: int, q: float, y: Any, memory: Scratch
) -> None:
    """Add a row's contribution to community d, and to the row's second moment.

    The stored values are added, so that exactly these can be subtracted later.
    """
    order = y.size
    part, inverse = own.parts[i, slot], memory.inverse
    c = 0 if shared.scatter.shape[0] == 1 else d
    add_share(own, shared, i, slot, d, q, y)
    p = 0
    for t in range(order):
        for u in range(t + 1):
            x = q * (inverse[t, u] + y[t] * y[u])
            part[1 + order + p] = x
            memory.second[p] += x
            p += 1
    for p in range(shared.scatter.shape[1]):
        shared.scatter[c, p] += part[1 + order + p]


@step
def refresh(own: Rows, other: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch) -> float:
    """Bring a row to its optimum given everything else; return Σ w r² of its ratings."""
    squares = gather_row(own, other, shared, rules, i, memory)
    copy_entries(own.mean[i], 0, memory.before, 0, memory.before.size)
    n = weigh_row(own, shared, rules, i, memory)
    publish(own, shared, rules, i, n, squares, memory)
    return squares


@inner
def load_data(own: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch) -> None:
    """Write G/σ² and h/σ² of a row, on the coordinates that its posterior covers."""
    free, pinned = shared.free, shared.pinned
    order = free.size
    gram, moment, data = memory.gram, memory.moment, memory.data
    scale = own.weight[i] / rules.noise
    for u in range(order):
        h = np.float64(moment[free[u]])
        if pinned >= 0:
            h -= np.float64(gram[packed(free[u], pinned)])
        data[u, order] = scale * h
        row = packed(free[u], 0)
        for t in range(u + 1):
            data[t, u] = scale * gram[row + free[t]]
    if own.shift.shape[1] > 0:
        leave_shift(own, shared, i, memory)


@inner
def factorise_for(shared: Shared, c: int, d: int, memory: Scratch) -> None:
    """Factorise a row's system under community d, in place c of the working memory."""
    order, data = shared.free.size, memory.data
    rounding = ROUNDING_OF_SINGLE if memory.moment.itemsize == 4 else ROUNDING_OF_DOUBLE
    precision = shared.precision[min(d, shared.precision.shape[0] - 1)]
    u = memory.factors[c]
    for s in range(order):
        for t in range(order):
            u[s, t] = data[s, t] + precision[s, t]
        u[s, order] = data[s, order] + shared.natural_mean[d, s]
    memory.half_log_det[c] = solve.factorise(u, memory.reciprocals[c], rounding)


# docs/model.md#memberships
@step
def weigh_row(own: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch) -> int:
    """Find a row's communities and its mean, given G and h; return how many communities.

    Only forecasts use the result before `publish`.
    """
    load_data(own, shared, rules, i, memory)
    free, pinned = shared.free, shared.pinned
    order = free.size
    has_features = own.shift.shape[1] > 0
    n = list_candidates(own, shared, rules, i, memory)
    memory.considered[0] = n
    for c in range(n):
        d = memory.candidates[c]
        factorise_for(shared, c, d, memory)
        square = solve.square(memory.factors[c], memory.reciprocals[c])
        memory.share[c] = shared.log_weight[d] + memory.half_log_det[c] + 0.5 * square
    kept = normalise_shares(own, shared, rules, n, memory)
    memory.mean[:] = 0.0
    for slot in range(kept):
        c = memory.kept[slot]
        solve.solve_backward(memory.factors[c], memory.reciprocals[c], memory.solutions[c])
        for t in range(order):
            memory.mean[t] += memory.share[c] * memory.solutions[c, t]
    if pinned >= 0:
        own.mean[i, pinned] = 1.0
    for t in range(order):
        own.mean[i, free[t]] = memory.mean[t] + (memory.shift[t] if has_features else 0.0)
    return kept


# docs/model.md#squared-error
@inner
def count_error(total: Any, change: float) -> None:
    """Add a change to the total of all errors, and update the largest change."""
    total[0] += change
    total[1] = max(total[1], abs(change))


# docs/model.md#online-rows
@step
def publish(
    own: Rows, shared: Shared, rules: Rules, i: int, kept: int, squares: float, memory: Scratch
) -> None:
    """Write the result of `weigh_row`: moments, contributions to communities, and q(τ_i).

    ``memory.before`` is the mean that was published last.
    """
    subtract_row(own, shared, i)
    if rules.total.size > 0:
        error = expected_error(
            memory.before, own.second[i], squares, 1.0, memory.moment, memory.gram
        )
        count_error(rules.total, -own.weight[i] * error)
    if memory.considered[0] == shared.natural_mean.shape[0]:
        own.considered_count[i] = own.count[i]
    memory.second[:] = 0.0
    has_features = own.shift.shape[1] > 0
    entropy = 0.0
    for slot in range(kept):
        c = memory.kept[slot]
        q = memory.share[c]
        entropy += q * (memory.half_log_det[c] - np.log(q))
        solve.invert(memory.factors[c], memory.reciprocals[c], memory.work, memory.inverse)
        if has_features:  # the factor has been made use of
            add_row_leverage(own, shared, i, memory.factors[c], memory)
        add_row(own, shared, i, slot, memory.candidates[c], q, memory.solutions[c], memory)
        for p in range(memory.extra.size if has_features else 0):
            memory.second[p] += q * memory.extra[p]
    own.entropy[i] = entropy
    if has_features:
        return_shift(own, i, memory)
    own.error[i] = max(store(own, shared, i, squares, memory), 0.0)
    ratings = effective(own.count[i], shared.forgetting)
    shared.totals[3] += ratings - own.effective_count[i]
    own.effective_count[i] = ratings
    if shared.prior_shape > 0.0:
        own.shape[i] = shared.prior_shape + 0.5 * ratings
        rate = shared.prior_shape + 0.5 * own.error[i] / shared.error_unit
        own.rate[i] = min(max(rate, own.shape[i] / MAX_WEIGHT), own.shape[i] * MAX_WEIGHT)
        own.weight[i] = own.shape[i] / own.rate[i]
    shared.totals[0] += own.entropy[i]
    shared.totals[1] += own.weight[i] * own.error[i]
    if rules.total.size > 0:
        count_error(rules.total, own.weight[i] * own.error[i])
    shared.totals[2] += 1.0
    own.pending[i] = 0
    own.last_refresh[i] = np.int64(shared.totals[2])


@inner
def effective(count: int, forgetting: float) -> float:
    """How many ratings there are, each weighed by how old it is."""
    return (
        np.float64(count) if forgetting == 1.0 else (1.0 - forgetting**count) / (1.0 - forgetting)
    )


@inner
def store(own: Rows, shared: Shared, i: int, squares: float, memory: Scratch) -> float:
    """Write a row's second moment, pinned coordinate in place; return its expected error."""
    free, pinned, gram, moment = shared.free, shared.pinned, memory.gram, memory.moment
    second = own.second[i]
    error = squares
    if pinned >= 0:
        at = packed(pinned, pinned)
        second[at] = 1.0
        error += gram[at] - 2.0 * moment[pinned]
    p = 0
    for t in range(free.size):
        m = memory.mean[t]
        error -= 2.0 * m * moment[free[t]]
        if pinned >= 0:
            at = packed(free[t], pinned)
            second[at] = m
            error += 2.0 * m * gram[at]
        row = packed(free[t], 0)
        even, odd = 0.0, 0.0
        for u in range(0, t - 1, 2):  # two sums at a time: each waits for itself alone
            one, two = row + free[u], row + free[u + 1]
            second[one], second[two] = memory.second[p + u], memory.second[p + u + 1]
            even += memory.second[p + u] * gram[one]
            odd += memory.second[p + u + 1] * gram[two]
        if t % 2 == 1:
            at = row + free[t - 1]
            second[at] = memory.second[p + t - 1]
            even += memory.second[p + t - 1] * gram[at]
        at = row + free[t]
        second[at] = memory.second[p + t]
        error += 2.0 * (even + odd) + memory.second[p + t] * gram[at]
        p += t + 1
    return error


@step
def contribute(
    own: Rows, other: Rows, shared: Shared, rules: Rules, i: int, memory: Scratch
) -> None:
    """Store the contribution of a row to its communities, without changing the row.

    Its moments and memberships are given. What it has under each of its communities is found as
    in a refresh, then shifted equally under all of them, so that its moments do not change.
    Of a row with one community that is its mean and second moment themselves.
    """
    free = shared.free
    order = free.size
    has_features = own.shift.shape[1] > 0
    squares = gather_row(own, other, shared, rules, i, memory)
    load_data(own, shared, rules, i, memory)
    communities = shared.natural_mean.shape[0]
    for d in range(communities):
        memory.candidates[d] = d
        memory.share[d] = np.log(max(np.float64(own.membership[i, d]), MIN_MEMBERSHIP))
        own.membership[i, d] = 0.0
    kept = normalise_shares(own, shared, rules, communities, memory)
    away, rest = memory.mean, memory.second
    for t in range(order):
        away[t] = np.float64(own.mean[i, free[t]])
        if has_features:
            own.shift[i, t] = memory.shift[t]
            away[t] -= memory.shift[t]
    for slot in range(kept):
        c = memory.kept[slot]
        factorise_for(shared, c, c, memory)
        solve.solve_backward(memory.factors[c], memory.reciprocals[c], memory.solutions[c])
    for t in range(order):
        for slot in range(kept):
            c = memory.kept[slot]
            away[t] -= memory.share[c] * memory.solutions[c, t]
    for slot in range(kept):
        for t in range(order):
            memory.solutions[memory.kept[slot], t] += away[t]
    p = 0
    for t in range(order):  # E[(a - f)(a - f)ᵀ]
        row = packed(free[t], 0)
        for u in range(t + 1):
            rest[p] = np.float64(own.second[i, row + free[u]])
            if has_features:
                m, n = np.float64(own.mean[i, free[t]]), np.float64(own.mean[i, free[u]])
                f, g = memory.shift[t], memory.shift[u]
                rest[p] += f * g - m * g - f * n
            p += 1
    entropy = 0.0
    for slot in range(kept):
        c = memory.kept[slot]
        q, y = memory.share[c], memory.solutions[c]
        entropy += q * (memory.half_log_det[c] - np.log(q))
        solve.invert(memory.factors[c], memory.reciprocals[c], memory.work, memory.inverse)
        if has_features:
            add_row_leverage(own, shared, i, memory.factors[c], memory)
        part = own.parts[i, slot]
        p = 0
        for t in range(order):
            for u in range(t + 1):
                x = memory.inverse[t, u] + y[t] * y[u]
                rest[p] -= q * x
                if has_features:
                    rest[p] -= q * memory.extra[p]
                part[1 + order + p] = x
                p += 1
    for slot in range(kept):
        c = memory.kept[slot]
        q, part = memory.share[c], own.parts[i, slot]
        at = 0 if shared.scatter.shape[0] == 1 else c
        add_share(own, shared, i, slot, c, q, memory.solutions[c])
        for p in range(rest.size):
            part[1 + order + p] = q * (part[1 + order + p] + rest[p])
            shared.scatter[at, p] += part[1 + order + p]
    own.entropy[i] = entropy
    own.error[i] = expected_error(
        own.mean[i], own.second[i], squares, 1.0, memory.moment, memory.gram
    )
    own.effective_count[i] = effective(own.count[i], shared.forgetting)
    own.considered_count[i] = own.count[i]
    shared.totals[0] += entropy
    shared.totals[1] += own.weight[i] * own.error[i]
    shared.totals[3] += own.effective_count[i]
