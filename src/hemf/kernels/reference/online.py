"""The kernels of `online` in plain NumPy: docs/model.md line by line.

As in `reference`, nothing here is fast, and work is done in float64 whatever the storage. Arguments
are the named tuples of `structures`, whose fields say what they hold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hemf._typing import Float64Array
from hemf.kernels.reference.rows import (
    entropy,
    free_part,
    posteriors,
    row_moments,
    symmetric,
    triangle,
    with_leverage,
)

MAX_WEIGHT = 16.0  # of a row's ratings

# -- the ratings of a row ------------------------------------------------------------------------


def find(own: Any, i: int, j: int) -> int:
    """Return where the newest rating of j by row i is listed, or -1."""
    listed = np.arange(own.start[i], own.start[i] + own.length[i])
    there = listed[own.other[listed] == j]
    return int(there[-1]) if there.size else -1


def oldest(own: Any, i: int, j: int) -> int:
    """Return where the oldest rating of j by row i is listed, or -1."""
    listed = np.arange(own.start[i], own.start[i] + own.length[i])
    there = listed[own.other[listed] == j]
    return int(there[0]) if there.size else -1


def listed_at(own: Any, rules: Any, i: int, j: int, previous: int) -> int:
    """Return where the rating of j that is replaced or taken out is listed, or -1.

    Where repeats count, that is the newest with the ``previous`` code.
    """
    if not rules.repeats:
        return find(own, i, j)
    listed = np.arange(own.start[i], own.start[i] + own.length[i])
    there = listed[(own.other[listed] == j) & (own.code[listed].astype(np.int64) == previous)]
    return int(there[-1]) if there.size else -1


def take_out(own: Any, i: int, position: int) -> None:
    """Drop a listed rating of row i; later ones move down."""
    end = own.start[i] + own.length[i]
    for pool in (own.other, own.code):
        pool[position : end - 1] = pool[position + 1 : end].copy()
    own.length[i] -= 1


def add_to_sums(own: Any, i: int, weight: float, r: float, n: Float64Array) -> None:
    """Add a rating to what is summed up: w nnᵀ, w r n, w r² and w."""
    own.gram[i] += weight * triangle(np.outer(n, n))
    own.moment[i] += weight * r * n
    own.square[i] += weight * r * r
    own.summed_weight[i] += weight


def mean_without(own: Any, other: Any, rules: Any, i: int, j: int, r: float) -> Float64Array:
    """Return n_j as if i had not rated j: n - S m g (r - m·n) / (1 - g mᵀS m), g = τ υ / σ².

    Or n, where S is lost in rounding.
    """
    m, n = own.mean[i].astype(np.float64), other.mean[j].astype(np.float64)
    S = symmetric(other.second[j].astype(np.float64)) - np.outer(n, n)
    g = float(own.weight[i]) * float(other.weight[j]) / rules.noise
    rounding = 1e-6 if own.mean.dtype == np.float32 else 1e-14
    if g * float(np.sum(np.abs(m * n))) ** 2 * rounding > 0.1:
        return np.asarray(n)
    leverage = np.clip(g * m @ S @ m, 0.0, 0.8)
    return np.asarray(n - S @ m * g * (r - m @ n) / (1.0 - leverage))


def sum_up(
    own: Any, other: Any, rules: Any, forgetting: float, i: int, j: int, code: int, n_other: int
) -> None:
    """Fade the sums of row i, then add a rating to them."""
    for sums in (own.gram, own.moment, own.square, own.summed_weight):
        sums[i] *= forgetting
    weight = float(other.weight[j])
    if forgetting == 1.0 and own.summed_weight[i] > n_other and rules.renewal > 0.0:
        weight = renew(own, i, weight, rules.renewal)
    r, n = float(rules.levels[code]), other.mean[j].astype(np.float64)
    if rules.window > 0:
        n = mean_without(own, other, rules, i, j, r)
    add_to_sums(own, i, weight, r, n)


def known_rows(other: Any) -> int:
    """How many rows there are, without those at the end that have no rating yet."""
    rated = np.flatnonzero(other.count)
    return int(rated[-1]) + 1 if rated.size else 0


def renew(own: Any, i: int, weight: float, renewal: float) -> float:
    """Replace a part of a row's sums by a rating; return the weight of the rating."""
    replaced = min(renewal * weight, float(own.summed_weight[i]))
    fade = 1.0 - replaced / own.summed_weight[i]
    for sums in (own.gram, own.moment, own.square, own.summed_weight):
        sums[i] *= fade
    return weight + replaced


def evict(
    own: Any, other: Any, rules: Any, forgetting: float, other_forgetting: float, i: int,
    added: int, n_own: int, n_other: int,
) -> None:  # fmt: skip
    """Add ratings to sums that ``added`` new ones made old for i, if they are old for j too."""
    old = own.length[i] - rules.window
    at = own.start[i] + max(old - added, 0)
    for _ in range(min(old, added)):
        j, code = int(own.other[at]), int(own.code[at])
        there = oldest(other, j, i)
        if there >= other.start[j] + other.length[j] - rules.window:
            at += 1
            continue
        sum_up(own, other, rules, forgetting, i, j, code, n_other)
        take_out(own, i, at)
        if there >= 0:
            sum_up(other, own, rules, other_forgetting, j, i, code, n_own)
            take_out(other, j, there)


def evict_all(
    rows: Any, added: Any, own: Any, other: Any, rules: Any, forgetting: float,
    other_forgetting: float, _memory: Any,
) -> None:  # fmt: skip
    """Evict ratings of rows; ``added`` are the numbers of ratings that each has received."""
    for i, n in zip(rows, added, strict=True):
        evict(
            own, other, rules, forgetting, other_forgetting, i, n, own.count.size, other.count.size
        )


# docs/model.md#forgetting
def weight_in_sums(own: Any, other: Any, forgetting: float, i: int, j: int) -> float:
    """Weight of a rating in a row's sums; the mean weight with forgetting."""
    if forgetting == 1.0:
        return float(other.weight[j])
    return float(own.summed_weight[i] / max(own.count[i] - own.length[i], 1))


# docs/model.md#changed-rating
def record(own: Any, other: Any, rules: Any, forgetting: float, rating: Any, n_other: int) -> int:
    """Learn that row i rates j; return 1 if it is new, 0 if it replaces ``previous``."""
    i, j, code, previous, _ = rating
    own.pending[i] += 1
    position, has_sums = listed_at(own, rules, i, j, previous), own.gram.shape[1] > 0
    if position >= 0:
        own.code[position] = code
        return 0
    if previous >= 0 and has_sums:  # h += (r_new - r_old) n_j; G stays
        G, in_sums = own.gram[i].copy(), own.summed_weight[i]
        weight = weight_in_sums(own, other, forgetting, i, j)
        n = other.mean[j].astype(np.float64)
        add_to_sums(own, i, -weight, float(rules.levels[previous]), n)
        add_to_sums(own, i, weight, float(rules.levels[code]), n)
        own.gram[i], own.summed_weight[i] = G, in_sums
        return 0
    own.count[i] += 1
    add_coefficients(own, other, i, j, 1.0)
    if rules.window == 0:
        sum_up(own, other, rules, forgetting, i, j, code, n_other)
        return 1
    end = own.start[i] + own.length[i]
    own.other[end], own.code[end] = j, code
    own.length[i] += 1
    return 1


def add_coefficients(own: Any, other: Any, i: int, j: int, sign: float) -> None:
    """Add M_j to the sum of row i, or with a sign of -1 subtract it."""
    if own.coefficient_sum.shape[1]:
        own.coefficient_sum[i] += sign * other.coefficients[j]


def withdraw(
    own: Any, other: Any, rules: Any, forgetting: float, i: int, j: int, code: int
) -> None:
    """Remove the rating of j by row i: the exact reverse of adding, without forgetting."""
    own.pending[i] += 1
    position = listed_at(own, rules, i, j, code)
    if position >= 0:
        take_out(own, i, position)
    elif own.gram.shape[1] > 0:
        weight, r = weight_in_sums(own, other, forgetting, i, j), float(rules.levels[code])
        add_to_sums(own, i, -weight, r, other.mean[j].astype(np.float64))
    own.count[i] = max(own.count[i] - 1, 0)
    add_coefficients(own, other, i, j, -1.0)
    if own.count[i] == own.length[i] and own.gram.shape[1] > 0:
        for sums in (own.gram, own.moment, own.square, own.summed_weight):
            sums[i] = 0


def record_all(
    batch: Any, own: Any, other: Any, rules: Any, forgetting: float, is_new: Any, _memory: Any
) -> None:
    """Put ratings into the history of one side; a code of -1 removes the previous one."""
    for k, (i, j, code, previous) in enumerate(zip(*batch[:4], strict=True)):
        if code < 0:
            withdraw(own, other, rules, forgetting, i, j, previous)
            is_new[k] = 0
        else:
            rating = i, j, code, previous, -1
            is_new[k] = record(own, other, rules, forgetting, rating, other.count.size)


def data_part(
    own: Any, other: Any, shared: Any, rules: Any, i: int
) -> tuple[Float64Array, Float64Array, float]:
    """Return G_i, h_i and Σ υ r²: the newest rating counts once, each before it γ times as much.

    Listed ratings use the current moments. Ratings in sums are older than all of them, and use the
    mean covariance of the other rows.
    """
    total = own.mean.shape[1]
    G, h, squares, age = np.zeros((total, total)), np.zeros(total), 0.0, 1.0
    for k in reversed(range(own.start[i], own.start[i] + own.length[i])):
        j, r = own.other[k], float(rules.levels[own.code[k]])
        weight = age * float(other.weight[j])
        G += weight * symmetric(other.second[j].astype(np.float64))
        h += weight * r * other.mean[j].astype(np.float64)
        squares += weight * r * r
        age *= shared.forgetting
    if own.gram.shape[1] > 0:
        uncertain = own.summed_weight[i] * shared.spread.astype(np.float64)
        G += age * symmetric(own.gram[i].astype(np.float64) + uncertain)
        h += age * own.moment[i].astype(np.float64)
        squares += age * own.square[i]
    return G, h, squares


def effective(count: int, forgetting: float) -> float:
    """Return Σ_{k < count} γᵏ: how many ratings there are, each weighed by how old it is.

    >>> effective(3, 1.0), effective(3, 0.5)
    (3.0, 1.75)
    """
    return float(np.sum(forgetting ** np.arange(count)))


# -- the posterior of a row ----------------------------------------------------------------------


def candidates(own: Any, shared: Any, rules: Any, i: int) -> Any:
    """Return the communities considered for a row: its own, or all once it has grown by half.

    In every eighth refresh of the side, whatever the row, all of them.
    """
    its_own = own.listed[i][own.listed[i] >= 0]
    young = own.count[i] >= 1.5 * own.considered_count[i] or int(shared.totals[2]) % 8 == 0
    if shared.log_weight.size > 1 and its_own.size and not (rules.thorough or young):
        return its_own.astype(np.int64)
    return np.arange(shared.log_weight.size)


def likeliest(log_q: Float64Array, most: int, min_share: float) -> tuple[Any, Float64Array]:
    """Return the likeliest communities, at most so many, best first, and their shares.

    The best is there however small its share is.

    >>> which, share = likeliest(np.log([0.2, 0.5, 0.25, 0.05]), 3, 0.1)
    >>> which.tolist(), (share * 0.95).round(9).tolist()
    ([1, 2, 0], [0.5, 0.25, 0.2])
    """
    q = np.exp(log_q - log_q.max())
    q /= q.sum()
    which = np.argsort(-q, kind="stable")[:most]
    enough = q[which] >= min_share
    enough[0] = True
    which = which[enough]
    return which, np.asarray(q[which] / q[which].sum())


def add_contributions(own: Any, shared: Any, i: int, sign: float) -> None:
    """Add the contribution of row i to the communities, or with a sign of -1 subtract it."""
    order = shared.free.size
    for d, part in zip(own.listed[i], own.parts[i].astype(np.float64), strict=True):
        if d >= 0:
            shared.size[d] += sign * part[0]
            shared.first[d] += sign * part[1 : 1 + order]
            shared.scatter[d if shared.scatter.shape[0] > 1 else 0] += sign * part[1 + order :]
    shared.totals[0] += sign * own.entropy[i]
    shared.totals[1] += sign * float(own.weight[i]) * own.error[i]


def row_shift(own: Any, shared: Any, i: int) -> Float64Array:
    """Return f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2."""
    f = own.base[i].copy() if own.base.shape[1] else np.zeros(shared.free.size)
    n = int(own.count[i])
    if own.coefficient_sum.shape[1] and n > 0:
        mean, scale, low, high = shared.logs
        z = (np.clip(np.log(n), low, high) - mean) / scale if scale > 0.0 else 0.0
        f += own.coefficient_sum[i] / np.sqrt(n)
        f += np.array([z, z * z - 1.0]) @ shared.count_coefficients
    return np.asarray(f)


class Posterior(NamedTuple):
    """Posterior of a row: its communities, likeliest first, and its moments."""

    communities: Any
    share: Float64Array
    means: Float64Array
    given: Float64Array
    second: Float64Array
    error: float
    considered: int
    shift: Float64Array
    entropy: float
    information: float


def weigh_row(own: Any, other: Any, shared: Any, rules: Any, i: int) -> Posterior:
    """Find the optimum of q(a_i, z_i); write its mean, which forecasts use."""
    which = candidates(own, shared, rules, i)
    data = data_part(own, other, shared, rules, i)
    G, h = free_part(data[0], data[1], shared.free, shared.pinned)
    f = row_shift(own, shared, i)
    h = h - G @ f  # what is left of the row is a - f
    own_covariance = which if shared.precision.shape[0] > 1 else [0]
    precision = np.array([triangle(P) for P in shared.precision[own_covariance]])
    noise = rules.noise / float(own.weight[i])
    means, covariances = posteriors(G, h, noise, precision, shared.natural_mean[which])
    log_q = shared.log_weight[which].copy()
    for c, (m, S) in enumerate(zip(means, covariances, strict=True)):
        log_q[c] += 0.5 * np.linalg.slogdet(S)[1] + 0.5 * m @ np.linalg.solve(S, m)
    kept, q = likeliest(log_q, own.listed.shape[1], rules.min_share)
    means, covariances = means[kept], covariances[kept]
    held, given, information = covariances, covariances, 0.0
    if own.shift.shape[1]:
        held, given, information = with_leverage(
            covariances[0], shared.precision[0], own.leverage[i], len(means)
        )
    own.mean[i], second, error = row_moments(q, means + f, held, data, shared.free, shared.pinned)
    half = entropy(q, covariances)
    return Posterior(which[kept], q, means, given, second, error, which.size, f, half, information)


def publish(own: Any, shared: Any, i: int, found: Posterior) -> None:
    """Write the posterior of a row, then q(τ_i); communities change by new minus old."""
    add_contributions(own, shared, i, -1.0)
    if found.considered == shared.log_weight.size:
        own.considered_count[i] = own.count[i]
    own.membership[i], own.listed[i] = 0.0, -1
    for slot, (d, share, m, S) in enumerate(zip(*found[:4], strict=True)):
        own.listed[i, slot] = d
        own.membership[i, d] = share
        own.parts[i, slot] = share * np.concatenate([[1.0], m, triangle(S + np.outer(m, m))])
    own.second[i], own.error[i] = found.second, max(found.error, 0.0)
    own.shift[i] = found.shift[: own.shift.shape[1]]
    own.entropy[i], own.information[i] = found.entropy, found.information
    count = effective(own.count[i], shared.forgetting)
    shared.totals[3] += count - own.effective_count[i]
    own.effective_count[i] = count
    if shared.prior_shape > 0.0:
        shape = shared.prior_shape + 0.5 * count
        rate = shared.prior_shape + 0.5 * own.error[i] / shared.error_unit
        rate = np.clip(rate, shape / MAX_WEIGHT, shape * MAX_WEIGHT)
        own.shape[i], own.rate[i], own.weight[i] = shape, rate, shape / rate
    add_contributions(own, shared, i, 1.0)
    shared.totals[2] += 1.0
    own.pending[i], own.last_refresh[i] = 0, shared.totals[2]


def refresh(own: Any, other: Any, shared: Any, rules: Any, i: int) -> None:
    """Bring q(a_i, z_i), then q(τ_i), to their optimum."""
    publish(own, shared, i, weigh_row(own, other, shared, rules, i))


def refresh_all(rows: Any, own: Any, other: Any, shared: Any, rules: Any, _memory: Any) -> None:
    """Refresh rows one after the other."""
    for i in rows:
        refresh(own, other, shared, rules, i)
    add_up(own, other, rules)


def add_up(own: Any, other: Any, rules: Any) -> None:
    """Compute Σ τ υ E(r - a·b)² over all lists of a side, if rules have a total."""
    for i in range(own.count.size if rules.total.size else 0):
        rules.total[0] *= i > 0
        for k in range(own.start[i], own.start[i] + own.length[i]):
            j, r = own.other[k], float(rules.levels[own.code[k]])
            weight = float(own.weight[i]) * float(other.weight[j])
            rules.total[0] += weight * expected_error(own, other, i, j, r)


# -- one rating after the other ------------------------------------------------------------------


def recall(users: Any, i: int, j: int) -> int:
    """Return the code that a pair has in the history, or -1."""
    position = find(users, i, j)
    return int(users.code[position]) if position >= 0 else -1


def expected_error(own: Any, other: Any, i: int, j: int, r: float) -> float:
    """E(r - a·b)² = r² - 2 r m·n + tr(E[aaᵀ] E[bbᵀ])."""
    A, B = (symmetric(side.second[row].astype(np.float64)) for side, row in ((own, i), (other, j)))
    m, n = own.mean[i].astype(np.float64), other.mean[j].astype(np.float64)
    return float(max(r * r - 2.0 * r * m @ n + np.trace(A @ B), 0.0))


def due(own: Any, shared: Any, other_shared: Any, i: int) -> bool:
    """Whether a row is refreshed: too many of its ratings pending, or too much has changed."""
    waited = own.pending[i] > shared.pending_share * own.count[i]
    return bool(waited or other_shared.totals[2] - own.other_refreshes[i] > shared.change)


def stream(
    given: Any, users: Any, items: Any, user_shared: Any, item_shared: Any, rules: Any,
    *_memory: Any,
) -> None:  # fmt: skip
    """Predict each rating, then learn it; ``spent`` is left alone.

    With a full history the posterior of a user is published only when another user's rating
    arrives: until then no other row reads it.
    """
    complete = rules.window < 0 and user_shared.forgetting == 1.0
    waiting: tuple[int, Posterior] | None = None
    n_users, n_items = known_rows(users), known_rows(items)
    for k, (i, j, code) in enumerate(zip(*given[:3], strict=True)):
        n_users, n_items = max(n_users, i + 1), max(n_items, j + 1)
        known = [(users, user_shared, i), (items, item_shared, j)]
        left, right = (
            s.mean[row] if s.count[row] or s.shift.shape[1] else c.expected for s, c, row in known
        )
        given.forecasts[k] = left.astype(np.float64) @ right.astype(np.float64)
        if waiting is not None and waiting[0] != i:
            publish(users, user_shared, *waiting)
        previous = -1 if rules.repeats else recall(users, i, j)
        forgetting, rating = user_shared.forgetting, (i, j, code, previous, -1)
        record(users, items, rules, forgetting, rating, n_items)
        waiting = i, weigh_row(users, items, user_shared, rules, i)
        if not complete:
            publish(users, user_shared, *waiting)
            waiting = None
        other_forgetting, rating = item_shared.forgetting, (j, i, code, previous, -1)
        record(items, users, rules, other_forgetting, rating, n_users)
        if due(items, item_shared, user_shared, j):
            if waiting is not None:
                publish(users, user_shared, *waiting)
                waiting = None
            refresh(items, users, item_shared, rules, j)
            items.other_refreshes[j] = user_shared.totals[2]
        if rules.window > 0:
            evict(users, items, rules, forgetting, other_forgetting, i, 1, n_users, n_items)
            evict(items, users, rules, other_forgetting, forgetting, j, 1, n_items, n_users)
        if rules.window == 0:
            weight = float(users.weight[i]) * float(items.weight[j])
            given.errors[k] = weight * expected_error(users, items, i, j, float(rules.levels[code]))
    if waiting is not None:
        publish(users, user_shared, *waiting)
    add_up(users, items, rules)
