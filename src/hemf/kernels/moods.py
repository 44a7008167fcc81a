"""Moods of raters by Kalman filtering and smoothing, one rater after the other.

docs/model.md#moods and `hemf.model.moods`. Ratings that a rater gave at the same
time are a session; a rater's sessions are in order of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, kernel, separate, separate_step
from hemf.kernels.structures import (
    MEAN,
    SPREAD,
    Float64Array,
    Float64Matrix,
    Int32Array,
    Int64Array,
    Ratings,
    Rows,
    Rules,
    SessionInformation,
    SessionPosterior,
    Sessions,
    Table,
    refer,
)

FIRST, NOW, BEFORE, PRODUCT, EXTRA, DIVERGENCE = range(6)
SUMS = 6
"""Sums over raters: see `hemf.model.moods.MoodSums`."""


@kernel
def gather(
    begin: int, end: int, cuts: Int64Array, ratings: Ratings, session: Int32Array,
    own_mean: Table, other_mean: Table, own_precision: Float64Array, other_weight: Float64Array,
    information: SessionInformation,
) -> None:  # fmt: skip
    """Sum the residuals of the ratings of each session, for raters of these chunks."""
    indptr, others, values = ratings.indptr, ratings.indices, ratings.values
    precision, natural_mean = information.precision, information.natural_mean
    total = own_mean.shape[1]
    for i in range(cuts[begin], cuts[end]):
        m = own_mean[i]
        for k in range(indptr[i], indptr[i + 1]):
            n = other_mean[others[k]]
            product = 0.0
            for t in range(total):
                product += np.float64(m[t]) * np.float64(n[t])
            weight = own_precision[i] * other_weight[others[k]]
            precision[session[k]] += weight
            natural_mean[session[k]] += weight * (np.float64(values[k]) - product)


# docs/model.md#moods
@kernel
def smooth(
    begin: int, end: int, cuts: Int64Array, indptr: Int64Array, information: SessionInformation,
    prior: Float64Array, posterior: SessionPosterior, sums: Float64Matrix,
) -> None:  # fmt: skip
    """Write q(l) and q(o) of the sessions of raters in these chunks, and add to the sums.

    ``prior`` holds φ, τ² and γ², as in `Sessions`.
    """
    persistence, variance, extra = prior[0], prior[1], prior[2]
    precision, natural_mean = information.precision, information.natural_mean
    level, level_spread, product = posterior.level, posterior.level_spread, posterior.product
    mean, spread = posterior.mean, posterior.spread
    innovation = variance * (1.0 - persistence * persistence)
    for chunk in range(begin, end):
        for i in range(cuts[chunk], cuts[chunk + 1]):
            first, last = indptr[i], indptr[i + 1] - 1
            if last < first:
                continue
            divergence = 0.0
            expected, uncertain = 0.0, variance
            for t in range(first, last + 1):
                noise = 1.0 / precision[t]
                total = uncertain + extra + noise
                surprise = natural_mean[t] * noise - expected
                divergence += 0.5 * (np.log(total / noise) + surprise * surprise / total)
                filtered = expected + uncertain / total * surprise
                narrowed = uncertain * (extra + noise) / total
                level[t], level_spread[t] = filtered, narrowed
                expected = persistence * filtered
                uncertain = persistence * persistence * narrowed + innovation
            product[last] = 0.0
            later, later_spread = 0.0, 0.0
            for t in range(last, first - 1, -1):
                here, v = level[t], level_spread[t]
                if t < last:
                    uncertain = persistence * persistence * v + innovation
                    back = persistence * v / uncertain if uncertain > 0.0 else 0.0
                    product[t] = back * later_spread
                    here += back * (later - persistence * here)
                    v += back * back * (later_spread - uncertain)
                    level[t], level_spread[t] = here, v
                    sums[chunk, NOW] += later * later + later_spread
                    sums[chunk, BEFORE] += here * here + v
                    sums[chunk, PRODUCT] += here * later + product[t]
                later, later_spread = here, v
                noise = 1.0 / precision[t]
                left = natural_mean[t] * noise
                share = extra / (extra + noise)
                sums[chunk, EXTRA] += share * share * ((left - here) ** 2 + v) + extra * (
                    1.0 - share
                )
                mean[t] = here + share * (left - here)
                spread[t] = (1.0 - share) * (1.0 - share) * v + share * noise
                # KL = E ln p(r|o) - ln p(r), constants cancel.
                divergence -= 0.5 * precision[t] * ((left - mean[t]) ** 2 + spread[t])
            sums[chunk, FIRST] += later * later + later_spread
            sums[chunk, DIVERGENCE] += divergence


@kernel
def places(
    indptr: Int64Array, times: Int64Array, rows: Int64Array, when: Int64Array, place: Int64Array
) -> None:
    """Write how many of a rater's sessions are earlier than a time, for each of these raters."""
    for k in range(rows.size):
        low, high = indptr[rows[k]], indptr[rows[k] + 1]
        begin = low
        while low < high:
            middle = (low + high) // 2
            if times[middle] < when[k]:
                low = middle + 1
            else:
                high = middle
        place[k] = low - begin


def compile_moods(dtype: Any) -> None:
    """Compile what moods take in a batch fit, unless it is in the cache."""
    gather.compiled(dtype)
    smooth.compiled(np.float64)
    places.compiled(np.float64)


# ------------------------------------------------------------------------------------------------
# Moods of raters online: filtered with each rating, smoothed periodically.
#
# `hemf.model.moods` has the model. The posterior of a session is a row of a table. The sessions of
# a rater are linked in the order of time. Where not every rating is listed, only the latest session
# is linked to its rater, and the posterior of earlier ones no longer changes.


LEVEL, LEVEL_SPREAD, PRECISION, NATURAL_MEAN, EXPECTED, UNCERTAIN = range(6)
"""Columns of the table: E l and Var l; Σ τυ/σ² of the ratings of the session and the same of
r - E[a·b], as of the last update; E l and Var l before these ratings."""
COLUMNS = 6
EARLIER, LATER, RATER = range(3)
"""Columns of links."""
RATERS, SESSIONS = 5, 6
FILTER_SUMS = 7
"""Length of the sums online: numbers of raters and sessions in place of the divergence."""
GROWTH = 2.0  # of a rater's ratings, after which all their moods are brought to their optimum


@separate
def covariance(prior: Any, one: float, other: float) -> float:
    """Cov(l(t), l(t+1)) closest to the prior, given both variances.

    If these are the variances of the exact posterior, it is the covariance of the exact posterior.
    """
    phi = prior[0]
    if phi <= 0.0:
        return 0.0
    half = 0.5 * prior[1] * (1.0 - phi * phi) / phi
    product = one * other
    return float(product / (half + np.sqrt(half * half + product)))


@separate
def predict_level(sessions: Sessions, earlier: int, later: int) -> tuple[float, float]:
    """E l and Var l at a time between two sessions; -1 is none."""
    table, prior = sessions.table, sessions.prior
    phi = prior[0]
    innovation = prior[1] * (1.0 - phi * phi)
    if earlier >= 0 and later >= 0:
        share = phi / (1.0 + phi * phi)
        one = np.float64(table[earlier, LEVEL_SPREAD])
        other = np.float64(table[later, LEVEL_SPREAD])
        both = one + other + 2.0 * covariance(prior, one, other)
        level = share * (np.float64(table[earlier, LEVEL]) + np.float64(table[later, LEVEL]))
        return level, share * share * both + innovation / (1.0 + phi * phi)
    if earlier < 0 and later < 0:
        return 0.0, np.float64(prior[1])
    at = max(earlier, later)
    return (
        phi * np.float64(table[at, LEVEL]),
        phi * phi * np.float64(table[at, LEVEL_SPREAD]) + innovation,
    )


@inner
def link(sessions: Sessions, i: int, earlier: int, later: int, next: int, previous: int) -> None:
    """Link ``next`` after the earlier session of a rater, and ``previous`` before the later one."""
    if earlier >= 0:
        sessions.links[earlier, LATER] = next
    if later >= 0:
        sessions.links[later, EARLIER] = previous
    else:
        sessions.last[i] = previous


@separate
def find_session(sessions: Sessions, i: int, when: int, complete: bool) -> int:
    """Return the session of a rater at a time; a new one is added if there is none.

    No posterior changes.
    """
    time, links, table, moods = sessions.time, sessions.links, sessions.table, sessions.moods
    earlier, later = sessions.last[i], np.int64(-1)
    while earlier >= 0 and time[earlier] > when:
        later = earlier
        earlier = np.int64(links[earlier, EARLIER])
    if earlier >= 0 and time[earlier] == when:
        return earlier
    s = sessions.used[0]
    sessions.used[0] += 1
    expected, uncertain = predict_level(sessions, earlier, later)
    time[s] = when
    table[s, LEVEL] = table[s, EXPECTED] = moods[s, MEAN] = expected
    table[s, LEVEL_SPREAD] = table[s, UNCERTAIN] = uncertain
    moods[s, SPREAD] = uncertain + sessions.prior[2]
    table[s, PRECISION] = table[s, NATURAL_MEAN] = 0.0
    links[s, EARLIER] = links[s, LATER] = -1
    links[s, RATER] = i
    if complete:
        links[s, EARLIER], links[s, LATER] = earlier, later
        link(sessions, i, earlier, later, s, s)
    elif later >= 0:
        links[s, RATER] = -1  # earlier than the latest: it cannot be found again
    else:
        if earlier >= 0:
            links[earlier, RATER] = -1
        sessions.last[i] = s
    return s


@separate
def write_posterior(sessions: Sessions, s: int) -> None:
    """Write the posterior of a session, given its prediction and the sums of its ratings."""
    table, moods, extra = sessions.table, sessions.moods, sessions.prior[2]
    level, spread = np.float64(table[s, EXPECTED]), np.float64(table[s, UNCERTAIN])
    mean, whole = level, spread + extra
    if table[s, PRECISION] > 0.0:
        noise = 1.0 / np.float64(table[s, PRECISION])
        left, total = np.float64(table[s, NATURAL_MEAN]) * noise, spread + extra + noise
        level += spread / total * (left - level)
        spread *= (extra + noise) / total
        share = extra / (extra + noise)
        mean = level + share * (left - level)
        whole = (1.0 - share) * (1.0 - share) * spread + share * noise
    table[s, LEVEL], table[s, LEVEL_SPREAD] = level, spread
    moods[s, MEAN], moods[s, SPREAD] = mean, whole


@separate
def dot(mean: Any, other: Any) -> float:
    """E[a·b]."""
    product = 0.0
    for t in range(mean.size):
        product += np.float64(mean[t]) * np.float64(other[t])
    return product


@separate
def subtract_moods(own: Rows, other: Rows, rules: Rules, low: int, high: int, values: Any) -> float:
    """Subtract moods from these ratings of a list; return Σ w Var o."""
    spread = 0.0
    for k in range(low, high):
        s = own.session[k]
        values[k - low] -= rules.moods[s, MEAN]
        spread += np.float64(other.weight[own.other[k]]) * rules.moods[s, SPREAD]
    return spread


@separate
def filter_listed(
    users: Rows, items: Rows, sessions: Sessions, rules: Rules, i: int, s: int, published: Any
) -> None:
    """Bring the mood of a rater's latest session to its optimum, given the earlier sessions.

    All of its ratings are listed. The total of errors, computed with the ``published`` mean of the
    rater, is updated.
    """
    table, moods = sessions.table, sessions.moods
    mean, spread = np.float64(moods[s, MEAN]), np.float64(moods[s, SPREAD])
    precision, natural_mean, seen = 0.0, 0.0, 0.0
    own = np.float64(users.weight[i]) / rules.noise
    for k in range(users.start[i], users.start[i] + users.length[i]):
        if users.session[k] == s:
            j = users.other[k]
            weight = own * items.weight[j]
            value = np.float64(rules.levels[users.code[k]])
            precision += weight
            natural_mean += weight * (value - dot(users.mean[i], items.mean[j]))
            if rules.total.size > 0:
                seen += weight * (value - dot(published, items.mean[j]))
    table[s, PRECISION], table[s, NATURAL_MEAN] = precision, natural_mean
    write_posterior(sessions, s)
    if rules.total.size > 0:
        new, wide = np.float64(moods[s, MEAN]), np.float64(moods[s, SPREAD])
        change = precision * (new * new - mean * mean + wide - spread) - 2.0 * seen * (new - mean)
        rules.total[0] += rules.noise * change


@separate
def shift_session(
    users: Rows, items: Rows, rules: Rules, i: int, s: int, mean: float, spread: float, moment: Any
) -> float:
    """Correct h for a change of mood from the given mean; return the change of Σ w r².

    The newest rating is left out: it is not in h yet.
    """
    change = 0.0
    new, wide = np.float64(rules.moods[s, MEAN]), np.float64(rules.moods[s, SPREAD])
    for k in range(users.start[i], users.start[i] + users.length[i] - 1):
        if users.session[k] == s:
            j = users.other[k]
            weight = np.float64(items.weight[j])
            value = np.float64(rules.levels[users.code[k]])
            for t in range(moment.size):
                moment[t] += weight * (mean - new) * items.mean[j, t]
            change += weight * ((value - new) ** 2 - (value - mean) ** 2 + wide - spread)
    return change


@separate
def filter_one(
    users: Rows, items: Rows, sessions: Sessions, rules: Rules, i: int, j: int, code: int, s: int,
    expected: float,
) -> None:  # fmt: skip
    """Update the mood of a session with a rating; ``expected`` is E[a·b], without the mood."""
    if sessions.last[i] == s:
        table = sessions.table
        weight = np.float64(users.weight[i]) * items.weight[j] / rules.noise
        table[s, PRECISION] += weight
        table[s, NATURAL_MEAN] += weight * (np.float64(rules.levels[code]) - expected)
        write_posterior(sessions, s)


@separate_step
def gather_chain(users: Rows, items: Rows, sessions: Sessions, rules: Rules, i: int) -> None:
    """Sum the residuals of each session of a rater; unlink sessions without ratings."""
    table, links = sessions.table, sessions.links
    s = sessions.last[i]
    while s >= 0:
        table[s, PRECISION] = table[s, NATURAL_MEAN] = 0.0
        s = np.int64(links[s, EARLIER])
    own = np.float64(users.weight[i]) / rules.noise
    for k in range(users.start[i], users.start[i] + users.length[i]):
        j = users.other[k]
        weight = own * items.weight[j]
        left = np.float64(rules.levels[users.code[k]]) - dot(users.mean[i], items.mean[j])
        table[users.session[k], PRECISION] += weight
        table[users.session[k], NATURAL_MEAN] += weight * left
    s = sessions.last[i]
    while s >= 0:
        earlier, later = np.int64(links[s, EARLIER]), np.int64(links[s, LATER])
        if table[s, PRECISION] == 0.0:
            links[s, RATER] = -1
            link(sessions, i, earlier, later, later, earlier)
        s = earlier
    sessions.smoothed[i] = users.count[i]


@separate_step
def smooth_chain(sessions: Sessions, rules: Rules, i: int, sums: Any) -> None:
    """Bring all moods of a rater to their optimum, given the sums of their ratings.

    The total of errors is updated, and ``sums`` are added to.
    """
    table, links, prior, moods = sessions.table, sessions.links, sessions.prior, sessions.moods
    phi, extra = prior[0], prior[2]
    innovation = prior[1] * (1.0 - phi * phi)
    first = sessions.last[i]
    if first < 0:
        return
    while links[first, EARLIER] >= 0:
        first = np.int64(links[first, EARLIER])
    level, spread = 0.0, np.float64(prior[1])
    s, last = first, first
    while s >= 0:
        table[s, EXPECTED], table[s, UNCERTAIN] = level, spread
        noise = 1.0 / np.float64(table[s, PRECISION])
        total = spread + extra + noise
        level += spread / total * (np.float64(table[s, NATURAL_MEAN]) * noise - level)
        spread *= (extra + noise) / total
        table[s, LEVEL], table[s, LEVEL_SPREAD] = level, spread
        level, spread = phi * level, phi * phi * spread + innovation
        last = s
        s = np.int64(links[s, LATER])
    s, later, later_spread, change = last, 0.0, 0.0, 0.0
    while s >= 0:
        here, v = np.float64(table[s, LEVEL]), np.float64(table[s, LEVEL_SPREAD])
        if s != last:
            uncertain = phi * phi * v + innovation
            back = phi * v / uncertain
            product = back * later_spread
            here += back * (later - phi * here)
            v += back * back * (later_spread - uncertain)
            table[s, LEVEL], table[s, LEVEL_SPREAD] = here, v
            sums[NOW] += later * later + later_spread
            sums[BEFORE] += here * here + v
            sums[PRODUCT] += here * later + product
        later, later_spread = here, v
        precision, h = np.float64(table[s, PRECISION]), np.float64(table[s, NATURAL_MEAN])
        noise = 1.0 / precision
        left, share = h * noise, extra / (extra + noise)
        sums[EXTRA] += share * share * ((left - here) ** 2 + v) + extra * (1.0 - share)
        old, narrow = np.float64(moods[s, MEAN]), np.float64(moods[s, SPREAD])
        moods[s, MEAN] = here + share * (left - here)
        moods[s, SPREAD] = (1.0 - share) * (1.0 - share) * v + share * noise
        mean, wide = np.float64(moods[s, MEAN]), np.float64(moods[s, SPREAD])
        change += precision * (mean * mean - old * old + wide - narrow) - 2.0 * h * (mean - old)
        sums[SESSIONS] += 1.0
        s = np.int64(links[s, EARLIER])
    sums[FIRST] += later * later + later_spread
    sums[RATERS] += 1.0
    if rules.total.size > 0:
        rules.total[0] += rules.noise * change


@kernel
def assign_sessions(
    rows: Int64Array, times: Int64Array, codes: Int64Array, complete: int, sessions: Sessions,
    found: Int64Array,
) -> None:  # fmt: skip
    """Write the session of each rating that is not removed."""
    sessions = refer(sessions)
    for k in range(rows.size):
        if codes[k] >= 0:
            found[k] = find_session(sessions, rows[k], times[k], complete != 0)


@kernel
def filter_all(
    rows: Int64Array, others: Int64Array, codes: Int64Array, previous: Int64Array,
    times: Int64Array, users: Rows, items: Rows, rules: Rules, sessions: Sessions,
    found: Int64Array,
) -> None:  # fmt: skip
    """Find sessions where not all ratings are listed, and update their moods with new ratings."""
    users, items, rules, sessions = refer(users), refer(items), refer(rules), refer(sessions)
    for k in range(rows.size):
        i, j = rows[k], others[k]
        if codes[k] >= 0:
            found[k] = find_session(sessions, i, times[k], False)
            if previous[k] < 0:
                expected = dot(users.mean[i], items.mean[j])
                filter_one(users, items, sessions, rules, i, j, codes[k], found[k], expected)


@kernel
def smooth_all(
    rows: Int64Array, users: Rows, items: Rows, rules: Rules,
    sessions: Sessions, gathers: int, sums: Float64Array,
) -> None:  # fmt: skip
    """Bring all moods of these raters to their optimum; ``gathers`` sums up their ratings first."""
    users, items, rules, sessions = refer(users), refer(items), refer(rules), refer(sessions)
    for k in range(rows.size):
        if gathers != 0:
            gather_chain(users, items, sessions, rules, rows[k])
        smooth_chain(sessions, rules, rows[k], sums)


@kernel
def recall_sessions(
    user_rows: Int64Array, item_rows: Int64Array, users: Rows, found: Int64Array
) -> None:
    """Write the session of each pair that is listed, or -1."""
    for k in range(user_rows.size):
        i, found[k] = user_rows[k], -1
        for at in range(users.start[i] + users.length[i] - 1, users.start[i] - 1, -1):
            if users.other[at] == item_rows[k]:
                found[k] = users.session[at]
                break
