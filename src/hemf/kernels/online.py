"""Rows that are updated as their ratings arrive: MODEL.md, "Online VB".

A row's data part is gathered anew from its history (`gather_row`), its posterior is solved for
against today's communities, and the communities' statistics change by what the row gives now less
what it gave before (`refresh`). What it gave is kept with the row, to the bit, so that nothing
drifts however long the stream. `record` and `withdraw` change the history itself.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from hemf.kernels import solve
from hemf.kernels.blocks import gather, packed
from hemf.kernels.clock import ticks
from hemf.kernels.compile import inner, kernel
from hemf.kernels.lists import append, drop, find

Whole = Annotated[Any, "int64"]
Number = Annotated[Any, "float64"]
Wholes = Annotated[Any, "int64[::1]"]
Numbers = Annotated[Any, "float64[::1]"]
Vector = Annotated[Any, "{T}[::1]"]
Table = Annotated[Any, "{T}[:, ::1]"]


class Rows(NamedTuple):
    """What is kept of the rows of one side."""

    mean: Table
    """E[a], (rows, total)."""
    second: Table
    """E[a aᵀ], (rows, packed)."""
    membership: Table
    """q_i(d), (rows, D)."""
    listed: Annotated[Any, "int32[:, ::1]"]
    """The communities that a row gives something to, (rows, parts); -1 is none."""
    parts: Annotated[Any, "{T}[:, :, ::1]"]
    """What it gives: q, q m, q (S + mmᵀ) packed; (rows, parts, 1 + order + triangle)."""
    weight: Vector
    """E[τ], how much the row's ratings count."""
    shape: Numbers
    rate: Numbers
    """q(τ) = Gamma(shape, rate)."""
    error: Numbers
    """Σ_j υ_j E(r_ij - a·b)²."""
    entropy: Numbers
    """Σ_d q(½ ln|S| - ln q)."""
    count: Wholes
    """Ratings learnt."""
    judged: Wholes
    """Ratings there were when all communities were last considered."""
    pending: Wholes
    """Ratings recorded since the last refresh."""
    touched: Wholes
    """When the row was last refreshed, in refreshes of the side."""
    start: Wholes
    length: Wholes
    other: Annotated[Any, "int32[::1]"]
    code: Annotated[Any, "{C}[::1]"]
    """The history's lists; see `hemf.kernels.lists`."""
    gram: Table
    moment: Table
    square: Numbers
    """G, h and Σ υ r² of ratings that are no longer listed; no columns where all of them are."""


class Shared(NamedTuple):
    """The communities of one side and what they are estimated from."""

    precision: Annotated[Any, "float64[:, :, ::1]"]
    """P_d, (C, order, order)."""
    pull: Annotated[Any, "float64[:, ::1]"]
    """P_d m_d, (D, order)."""
    log_weight: Numbers
    """The terms of ln q_i(d) that do not depend on the row, (D,)."""
    size: Numbers
    first: Annotated[Any, "float64[:, ::1]"]
    scatter: Annotated[Any, "float64[:, ::1]"]
    """ρ_d, Σ q m and Σ q (S + mmᵀ), the last packed, (C, triangle)."""
    totals: Numbers
    """Σ entropy, Σ τ error, refreshes so far."""
    free: Wholes
    """Which coordinates the posterior covers."""
    pinned: Whole
    prior_shape: Number
    """a0 of the noise scales, or 0 where there are none."""
    error_unit: Number
    """What errors are measured in where noise scales are learnt; σ² or their mean."""
    expected: Numbers
    """E[a] of a row that nothing is known of, (total,)."""
    keep: Number
    """Forgetting factor γ."""
    patience: Whole
    """A row with many ratings is refreshed when this many are pending."""


class Rules(NamedTuple):
    """What holds for both sides."""

    levels: Vector
    """Standardised rating of each code."""
    noise: Number
    """σ²."""
    window: Whole
    """Ratings listed of each row; -1 is all of them."""
    least_share: Number
    """Communities with less of a row are left out."""
    thorough: Whole
    """Consider all communities at every refresh."""


class Scratch(NamedTuple):
    """Working memory of one refresh."""

    values: Any
    gram: Any
    moment: Any
    data: Any
    pull: Any
    factors: Any
    solutions: Any
    half_log_det: Any
    share: Any
    candidates: Any
    kept: Any
    inverse: Any
    work: Any
    mean: Any
    second: Any


@inner
def scratch(own: Any, shared: Any) -> Any:
    """Return working memory for the rows of a side; histories may grow beyond it."""
    order, communities = shared.free.size, shared.pull.shape[0]
    dtype = own.mean.dtype
    return Scratch(
        np.empty(1024, dtype),
        np.empty(own.second.shape[1], dtype),
        np.empty(own.mean.shape[1], dtype),
        np.empty((order, order)),
        np.empty(order),
        np.empty((communities, order, order)),
        np.empty((communities, order)),
        np.empty(communities),
        np.empty(communities),
        np.empty(communities, np.int64),
        np.empty(communities, np.int64),
        np.empty((order, order)),
        np.empty((order, order)),
        np.empty(order),
        np.empty(order * (order + 1) // 2),
    )


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


@inner
def settle(own: Any, other: Any, rules: Any, keep: float, i: int, j: int, code: int) -> None:
    """Add a rating to the sums of those that are not listed."""
    if keep < 1.0:
        own.gram[i] *= keep
        own.moment[i] *= keep
        own.square[i] *= keep
    own.square[i] += add_rating(
        own.gram[i], own.moment[i], other.weight[j], rules.levels[code],
        other.mean[j], other.second[j],
    )  # fmt: skip


@inner
def record(
    own: Any, other: Any, rules: Any, keep: float, i: int, j: int, code: int, previous: int
) -> int:
    """Put a rating of row i into its history: 1 where it is new, 0 where it replaces another.

    A rating that is not listed is new, unless its ``previous`` code (or else -1) is given.
    """
    own.pending[i] += 1
    position = find(own.start, own.length, own.other, i, j)
    if position >= 0:
        own.code[position] = code
        return 0
    if previous >= 0 and own.gram.shape[1] > 0:  # the pair is still observed once: G stays
        weight = other.weight[j]
        now, before = np.float64(rules.levels[code]), np.float64(rules.levels[previous])
        for t in range(own.moment.shape[1]):
            own.moment[i, t] += weight * (now - before) * other.mean[j, t]
        own.square[i] += weight * (now * now - before * before)
        return 0
    own.count[i] += 1
    if rules.window == 0:
        settle(own, other, rules, keep, i, j, code)
        return 1
    append(own.start, own.length, own.other, own.code, i, j, code)
    if 0 < rules.window < own.length[i]:
        oldest = own.start[i]
        settle(own, other, rules, keep, i, own.other[oldest], own.code[oldest])
        drop(own.start, own.length, own.other, own.code, i, oldest)
    return 1


@inner
def recall(users: Any, items: Any, i: int, j: int) -> int:
    """Return the code that a pair has in the history of either side, or -1."""
    position = find(users.start, users.length, users.other, i, j)
    if position >= 0:
        return np.int64(users.code[position])  # type: ignore[return-value]
    if users.gram.shape[1] > 0:  # otherwise both sides list the same ratings
        position = find(items.start, items.length, items.other, j, i)
        if position >= 0:
            return np.int64(items.code[position])  # type: ignore[return-value]
    return np.int64(-1)  # type: ignore[return-value]


@inner
def withdraw(own: Any, other: Any, rules: Any, i: int, j: int, code: int) -> None:
    """Take a rating of row i out of its history, or of the sums where it is not listed."""
    own.pending[i] += 1
    own.count[i] -= 1
    position = find(own.start, own.length, own.other, i, j)
    if position >= 0:
        drop(own.start, own.length, own.other, own.code, i, position)
    elif own.gram.shape[1] > 0:
        own.square[i] += add_rating(
            own.gram[i], own.moment[i], -other.weight[j], rules.levels[code],
            other.mean[j], other.second[j],
        )  # fmt: skip
    if own.count[i] <= 0 and own.gram.shape[1] > 0:
        own.count[i] = 0
        own.gram[i] = 0.0
        own.moment[i] = 0.0
        own.square[i] = 0.0


@inner
def gather_row(own: Any, other: Any, rules: Any, keep: float, i: int, memory: Any) -> float:
    """Write G and h of a row's ratings against today's moments; return Σ w r²."""
    gram, moment = memory.gram, memory.moment
    begin, n = own.start[i], own.length[i]
    squares = 0.0
    if own.gram.shape[1] > 0:
        fade = keep**n if keep < 1.0 else 1.0
        for p in range(gram.size):
            gram[p] = fade * own.gram[i, p]
        for t in range(moment.size):
            moment[t] = fade * own.moment[i, t]
        squares = fade * own.square[i]
    else:
        gram[:] = 0.0
        moment[:] = 0.0
    if keep < 1.0:
        fade = keep**n
        for k in range(begin, begin + n):
            fade /= keep
            j = own.other[k]
            squares += add_rating(
                gram, moment, other.weight[j] * fade, rules.levels[own.code[k]],
                other.mean[j], other.second[j],
            )  # fmt: skip
        return squares
    for low in range(begin, begin + n, memory.values.size):
        high = min(begin + n, low + memory.values.size)
        for k in range(low, high):
            memory.values[k - low] = rules.levels[own.code[k]]
        squares += gather(
            0, high - low, own.other[low:high], memory.values, other.mean, other.second,
            other.weight, gram, moment,
        )  # fmt: skip
    return squares


@inner
def choose(own: Any, shared: Any, rules: Any, i: int, memory: Any) -> int:
    """List the communities that a row is weighed between, and return how many there are.

    All of them while the row is young and whenever its ratings have grown by half since they last
    were; in between, those that it belongs to.
    """
    communities = shared.pull.shape[0]
    if communities > 1 and rules.thorough == 0 and 2 * own.count[i] < 3 * own.judged[i]:
        n = 0
        for slot in range(own.listed.shape[1]):
            if own.listed[i, slot] >= 0:
                memory.candidates[n] = own.listed[i, slot]
                n += 1
        if n > 0:
            return n
    own.judged[i] = own.count[i]
    for d in range(communities):
        memory.candidates[d] = d
    return int(communities)


@inner
def weigh(own: Any, shared: Any, rules: Any, n: int, memory: Any) -> int:
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
        if count > 0 and share[best] < rules.least_share * total:
            break
        kept[count] = best
        part += share[best]
        count += 1
    for s in range(count):
        share[kept[s]] /= part
    return count


@inner
def leave(own: Any, shared: Any, i: int) -> None:
    """Take what a row has given to its communities back from them."""
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
def join(own: Any, shared: Any, i: int, slot: int, d: int, q: float, y: Any, memory: Any) -> None:
    """Give a row's part to community d, and add it to the row's moments.

    The communities are given what is stored, so that exactly this can be taken back.
    """
    order = y.size
    part, inverse = own.parts[i, slot], memory.inverse
    c = 0 if shared.scatter.shape[0] == 1 else d
    own.listed[i, slot] = d
    own.membership[i, d] = q
    part[0] = q
    shared.size[d] += part[0]
    for t in range(order):
        part[1 + t] = q * y[t]
        memory.mean[t] += q * y[t]
        shared.first[d, t] += part[1 + t]
    p = 0
    for t in range(order):
        for u in range(t + 1):
            x = q * (inverse[t, u] + y[t] * y[u])
            part[1 + order + p] = x
            memory.second[p] += x
            p += 1
    for p in range(shared.scatter.shape[1]):
        shared.scatter[c, p] += part[1 + order + p]


@inner
def refresh(own: Any, other: Any, shared: Any, rules: Any, i: int, memory: Any) -> None:
    """Bring q(a_i, z_i), and q(τ_i), to their optimum given everything else."""
    free, pinned = shared.free, shared.pinned
    order = free.size
    gram, moment, data = memory.gram, memory.moment, memory.data
    squares = gather_row(own, other, rules, shared.keep, i, memory)
    scale = own.weight[i] / rules.noise
    for t in range(order):
        h = np.float64(moment[free[t]])
        if pinned >= 0:
            h -= np.float64(gram[packed(free[t], pinned)])
        memory.pull[t] = scale * h
        for u in range(t, order):
            data[t, u] = scale * gram[packed(free[u], free[t])]
    n = choose(own, shared, rules, i, memory)
    for c in range(n):
        d = memory.candidates[c]
        precision = shared.precision[min(d, shared.precision.shape[0] - 1)]
        u, y = memory.factors[c], memory.solutions[c]
        for s in range(order):
            y[s] = memory.pull[s] + shared.pull[d, s]
            for t in range(s, order):
                u[s, t] = data[s, t] + precision[s, t]
        memory.half_log_det[c] = solve.factorise(u)
        square = solve.solve_forward(u, y)
        memory.share[c] = shared.log_weight[d] + memory.half_log_det[c] + 0.5 * square
    leave(own, shared, i)
    kept = weigh(own, shared, rules, n, memory)
    memory.mean[:] = 0.0
    memory.second[:] = 0.0
    entropy = 0.0
    for slot in range(kept):
        c = memory.kept[slot]
        q = memory.share[c]
        entropy += q * (memory.half_log_det[c] - np.log(q))
        solve.solve_backward(memory.factors[c], memory.solutions[c])
        solve.invert(memory.factors[c], memory.work, memory.inverse)
        join(own, shared, i, slot, memory.candidates[c], q, memory.solutions[c], memory)
    own.entropy[i] = entropy
    own.error[i] = max(store(own, shared, i, squares, memory), 0.0)
    if shared.prior_shape > 0.0:
        ratings = effective(own.count[i], shared.keep)
        own.shape[i] = shared.prior_shape + 0.5 * ratings
        own.rate[i] = shared.prior_shape + 0.5 * own.error[i] / shared.error_unit
        own.weight[i] = own.shape[i] / own.rate[i]
    shared.totals[0] += entropy
    shared.totals[1] += own.weight[i] * own.error[i]
    shared.totals[2] += 1.0
    own.pending[i] = 0
    own.touched[i] = np.int64(shared.totals[2])


@inner
def effective(count: int, keep: float) -> float:
    """How many ratings there are, each weighed by how old it is."""
    return np.float64(count) if keep == 1.0 else (1.0 - keep**count) / (1.0 - keep)


@inner
def store(own: Any, shared: Any, i: int, squares: float, memory: Any) -> float:
    """Write a row's moments with the pinned coordinate in place; return its expected error."""
    free, pinned, gram, moment = shared.free, shared.pinned, memory.gram, memory.moment
    mean, second = own.mean[i], own.second[i]
    error = squares
    if pinned >= 0:
        at = packed(pinned, pinned)
        mean[pinned] = 1.0
        second[at] = 1.0
        error += gram[at] - 2.0 * moment[pinned]
    p = 0
    for t in range(free.size):
        m = memory.mean[t]
        mean[free[t]] = m
        error -= 2.0 * m * moment[free[t]]
        if pinned >= 0:
            at = packed(free[t], pinned)
            second[at] = m
            error += 2.0 * m * gram[at]
        for u in range(t + 1):
            at = packed(free[t], free[u])
            second[at] = memory.second[p]
            error += (1.0 if t == u else 2.0) * memory.second[p] * gram[at]
            p += 1
    return error


@inner
def expected_error(own: Any, other: Any, i: int, j: int, value: float) -> float:
    """E(r - a_i·b_j)²."""
    product, square, p = 0.0, 0.0, 0
    for t in range(own.mean.shape[1]):
        product += np.float64(own.mean[i, t]) * other.mean[j, t]
        for u in range(t + 1):
            twice = 1.0 if t == u else 2.0
            square += twice * own.second[i, p] * other.second[j, p]
            p += 1
    return max(value * value - 2.0 * value * product + square, 0.0)


@kernel(
    "int64[::1]",
    "int64[::1]",
    "int64[::1]",
    "int64[::1]",
    Rows,
    Rows,
    Rules,
    "float64",
    "int64[::1]",
)
def record_all(
    rows: Any, others: Any, codes: Any, previous: Any, own: Any, other: Any, rules: Any,
    keep: Any, is_new: Any,
) -> None:  # fmt: skip
    """Put ratings into the history of one side; a code of -1 takes the ``previous`` one out."""
    for k in range(rows.size):
        if codes[k] < 0:
            withdraw(own, other, rules, rows[k], others[k], previous[k])
            is_new[k] = 0
        else:
            is_new[k] = record(own, other, rules, keep, rows[k], others[k], codes[k], previous[k])


@kernel("int64[::1]", "int64[::1]", Rows, Rows, "int64[::1]")
def recall_all(user_rows: Any, item_rows: Any, users: Any, items: Any, previous: Any) -> None:
    """Write the code that each pair has in the history, where it has one."""
    for k in range(user_rows.size):
        code = recall(users, items, user_rows[k], item_rows[k])
        if code >= 0:
            previous[k] = code


@kernel("int64[::1]", "int64[::1]", "int64[::1]", Rows, Rows, Rules, "float64")
def settle_all(
    rows: Any, others: Any, codes: Any, own: Any, other: Any, rules: Any, keep: Any
) -> None:
    """Add ratings, oldest first, to the sums of those that are not listed."""
    for k in range(rows.size):
        settle(own, other, rules, keep, rows[k], others[k], codes[k])


@kernel("int64[::1]", Rows, Rows, Shared, Rules)
def refresh_all(rows: Any, own: Any, other: Any, shared: Any, rules: Any) -> None:
    """Refresh rows one after the other."""
    memory = scratch(own, shared)
    for k in range(rows.size):
        refresh(own, other, shared, rules, rows[k], memory)


@kernel(
    "int64[::1]", "int64[::1]", "int64[::1]", Rows, Rows, Shared, Shared, Rules,
    "float64[::1]", "float64[::1]", "int64[::1]",
)  # fmt: skip
def stream(
    user_rows: Any, item_rows: Any, codes: Any, users: Any, items: Any, user_shared: Any,
    item_shared: Any, rules: Any, forecasts: Any, errors: Any, spent: Any,
) -> None:  # fmt: skip
    """Predict each rating, then learn it: its user's row, then its item's.

    Writes what was expected of it, E(r - a·b)² τ υ after it was learnt, and the ticks it took.
    """
    user_memory, item_memory = scratch(users, user_shared), scratch(items, item_shared)
    for k in range(codes.size):
        begin = ticks()
        i, j, code = user_rows[k], item_rows[k], codes[k]
        forecasts[k] = forecast(users, items, user_shared, item_shared, i, j)
        previous = recall(users, items, i, j)
        record(users, items, rules, user_shared.keep, i, j, code, previous)
        if due(users, user_shared, i):
            refresh(users, items, user_shared, rules, i, user_memory)
        record(items, users, rules, item_shared.keep, j, i, code, previous)
        if due(items, item_shared, j):
            refresh(items, users, item_shared, rules, j, item_memory)
        weight = np.float64(users.weight[i]) * items.weight[j]
        errors[k] = weight * expected_error(users, items, i, j, rules.levels[code])
        spent[k] = ticks() - begin


@inner
def forecast(users: Any, items: Any, user_shared: Any, item_shared: Any, i: int, j: int) -> float:
    """E[a_i·b_j]; a row without ratings may hold a start that means nothing."""
    product = 0.0
    for t in range(users.mean.shape[1]):
        a = np.float64(users.mean[i, t]) if users.count[i] > 0 else user_shared.expected[t]
        b = np.float64(items.mean[j, t]) if items.count[j] > 0 else item_shared.expected[t]
        product += a * b
    return product


@inner
def due(own: Any, shared: Any, i: int) -> bool:
    """Whether a row has so many new ratings for its size that it should be refreshed."""
    return bool(own.pending[i] >= min(shared.patience, 1 + own.count[i] // 20))
