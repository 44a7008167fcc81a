"""Ratings that enter, change or leave a row's history, or the sums of unlisted ratings.

Arguments: ``own`` and ``other`` are the `Rows` of the side and of the other, i and j their rows,
``rules`` the settings of both, ``forgetting`` the forgetting factor of the side, ``session`` the
session of the rating, -1 without moods, ``n_own`` and ``n_other`` the number of rows of each side,
without those that later ratings of a stream add. Ratings are summed less the mood of their session.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, kernel, step
from hemf.kernels.lanes import copy_entries, put_products
from hemf.kernels.structures import (
    MEAN,
    ROUNDING_OF_DOUBLE,
    ROUNDING_OF_SINGLE,
    SPREAD,
    Int32Array,
    Int64Array,
    Outer,
    Rating,
    Rows,
    Rules,
    UInt16Array,
)

MAX_LEVERAGE = 0.8
"""Of one rating on its own row; a larger value would be due to approximations."""
MAX_ROUNDING = 0.1
"""Of a leverage."""


@inner
def session_at(own: Rows, position: int) -> int:
    """Return the session of an entry of the lists, or -1."""
    if own.session.size > 0:
        return own.session[position]
    return -1


@inner
def add_coefficients(own: Rows, other: Rows, i: int, j: int, sign: float) -> None:
    """Add M_j to the sum of row i, or with a sign of -1 subtract it."""
    for t in range(own.coefficient_sum.shape[1]):
        own.coefficient_sum[i, t] += sign * other.coefficients[j, t]


@inner
def listed_at(own: Rows, rules: Rules, i: int, j: int, previous: int) -> int:
    """Return where row i lists the rating of j to replace or remove, or -1.

    Where repeats count, that is one with the ``previous`` code, and without one a rating is new.
    """
    if rules.repeats == 0:
        return find(own.start, own.length, own.other, i, j)
    if previous < 0:
        return -1
    return find_code(own, i, j, previous)


@inner
def drop_entry(own: Rows, i: int, position: int) -> None:
    """Remove an entry from a row's list."""
    if own.session.size > 0:
        for k in range(position, own.start[i] + own.length[i] - 1):
            own.session[k] = own.session[k + 1]
    drop(own.start, own.length, own.other, own.code, i, position)


# docs/model.md#history
@inner
def sum_up(
    own: Rows, other: Rows, rules: Rules, forgetting: float, i: int, j: int, code: int,
    session: int, n_other: int, memory: Outer,
) -> None:  # fmt: skip
    """Add a rating to a row's sums of unlisted ratings."""
    if forgetting < 1.0:
        fade(own, i, forgetting)
    weight = np.float64(other.weight[j])
    if forgetting == 1.0 and own.summed_weight[i] > n_other and rules.renewal > 0.0:
        weight = renew(own, i, weight, rules.renewal)
    value = rules.levels[code]
    if session >= 0:
        value -= rules.moods[session, MEAN]
        own.square[i] += weight * rules.moods[session, SPREAD]
    if rules.window > 0:
        put_mean_without(own, other, rules, i, j, value, memory)
    else:
        copy_entries(other.mean[j], 0, memory.vector, 0, other.mean.shape[1])
    add_to_sums(own, i, weight, value, memory)


# docs/model.md#renewed-sums
@inner
def renew(own: Rows, i: int, weight: float, renewal: float) -> float:
    """Replace a part of a row's sums by a rating; return the weight of the rating.

    A row with more ratings in its sums than the other side has rows has rated some pairs again.
    The new ratings are summed with better factors, so they count more and the older ones less. The
    total weight of the sums stays the number of ratings.
    """
    replaced = min(renewal * weight, own.summed_weight[i])
    fade(own, i, 1.0 - replaced / own.summed_weight[i])
    return weight + replaced


@inner
def fade(own: Rows, i: int, factor: float) -> None:
    """Multiply a row's sums by a factor."""
    for p in range(own.gram.shape[1]):
        own.gram[i, p] *= factor
    for t in range(own.moment.shape[1]):
        own.moment[i, t] *= factor
    own.square[i] *= factor
    own.summed_weight[i] *= factor


@inner
def put_mean_without(
    own: Rows, other: Rows, rules: Rules, i: int, j: int, value: float, memory: Outer
) -> None:
    """Write what row j's mean would be if row i had not rated it.

    Row j's mean already depends on the rating. For listed ratings its covariance corrects for that,
    but sums do not contain the covariance. Where it is no larger than the rounding error, because
    ratings are explained exactly, the mean is used unchanged.
    """
    mine, mean, second, vector = own.mean[i], other.mean[j], other.second[j], memory.vector
    n = mean.size
    product, size = 0.0, 0.0
    for t in range(n):
        part = np.float64(mine[t]) * mean[t]
        product += part
        size += abs(part)
        vector[t] = 0.0
    precision = np.float64(own.weight[i]) * other.weight[j] / rules.noise
    rounding = ROUNDING_OF_SINGLE if mean.itemsize == 4 else ROUNDING_OF_DOUBLE
    if precision * size * size * rounding > MAX_ROUNDING:
        copy_entries(mean, 0, vector, 0, n)
        return
    p = 0
    for t in range(n):  # the vector becomes S m
        for u in range(t):
            covariance = second[p] - mean[t] * mean[u]
            vector[t] += covariance * mine[u]
            vector[u] += covariance * mine[t]
            p += 1
        vector[t] += (second[p] - mean[t] * mean[t]) * mine[t]
        p += 1
    variance = 0.0
    for t in range(n):
        variance += np.float64(mine[t]) * vector[t]
    leverage = min(max(precision * variance, 0.0), MAX_LEVERAGE)
    step = precision * (value - product) / (1.0 - leverage)
    for t in range(n):
        vector[t] = mean[t] - step * vector[t]


@inner
def add_to_sums(own: Rows, i: int, weight: float, value: float, memory: Outer) -> None:
    """Add a rating of a row with the mean in ``memory`` to a row's sums; a weight < 0 subtracts."""
    gram, moment = own.gram[i], own.moment[i]
    for t in range(moment.size):
        moment[t] += weight * value * memory.vector[t]
    put_products(memory.products, memory.vector, moment.size, weight)
    for p in range(gram.size):
        gram[p] += memory.products[p]
    own.square[i] += weight * value * value
    own.summed_weight[i] += weight


@inner
def weight_in_sums(own: Rows, other: Rows, forgetting: float, i: int, j: int) -> float:
    """Weight of a rating in a row's sums; the mean weight with forgetting: its age is unknown."""
    if forgetting == 1.0:
        return np.float64(other.weight[j])
    return own.summed_weight[i] / max(own.count[i] - own.length[i], 1)


# docs/model.md#new-rating
@step
def record(
    own: Rows, other: Rows, rules: Rules, forgetting: float, rating: Rating, n_other: int,
    memory: Outer,
) -> int:  # fmt: skip
    """Put a rating into the history of its row: 1 where it is new, 0 where it replaces another.

    A rating that is not listed is new, unless its previous code (or else -1) is given.
    """
    i, j, code, previous, session = rating
    own.pending[i] += 1
    position = listed_at(own, rules, i, j, previous)
    if position >= 0:
        own.code[position] = code
        if own.session.size > 0:
            own.session[position] = session
        return 0
    if previous >= 0 and own.gram.shape[1] > 0:  # docs/model.md#changed-rating: G stays
        weight = weight_in_sums(own, other, forgetting, i, j)
        now, before = np.float64(rules.levels[code]), np.float64(rules.levels[previous])
        if session >= 0:  # the old session is not on record: assume the same
            now -= rules.moods[session, MEAN]
            before -= rules.moods[session, MEAN]
        for t in range(own.moment.shape[1]):
            own.moment[i, t] += weight * (now - before) * other.mean[j, t]
        own.square[i] += weight * (now * now - before * before)
        return 0
    own.count[i] += 1
    add_coefficients(own, other, i, j, 1.0)
    if rules.window == 0:
        sum_up(own, other, rules, forgetting, i, j, code, session, n_other, memory)
        return 1
    append(own.start, own.length, own.other, own.code, i, j, code)
    if own.session.size > 0:
        own.session[own.start[i] + own.length[i] - 1] = session
    return 1


@step
def evict(
    own: Rows, other: Rows, rules: Rules, forgetting: float, other_forgetting: float, i: int,
    n: int, n_own: int, n_other: int, memory: Outer,
) -> None:  # fmt: skip
    """Add ratings that are no longer among row i's newest to its sums, after ``n`` were added.

    A rating stays listed on both sides as long as it is among the newest of either.
    """
    old = own.length[i] - rules.window
    at = own.start[i] + max(old - n, 0)
    for _ in range(min(old, n)):
        j, code = np.int64(own.other[at]), np.int64(own.code[at])
        there = find_oldest(other, j, i)
        if there >= other.start[j] + other.length[j] - rules.window:
            at += 1
            continue
        session = session_at(own, at)
        sum_up(own, other, rules, forgetting, i, j, code, session, n_other, memory)
        drop_entry(own, i, at)
        if there >= 0:
            sum_up(other, own, rules, other_forgetting, j, i, code, session, n_own, memory)
            drop_entry(other, j, there)


# docs/model.md#removed-rating
@step
def withdraw(
    own: Rows,
    other: Rows,
    rules: Rules,
    forgetting: float,
    i: int,
    j: int,
    code: int,
    memory: Outer,
) -> None:
    """Remove a rating of row i from its history, or from the sums if it is not listed.

    The session of a rating in the sums is not on record, so no mood is subtracted.
    """
    own.pending[i] += 1
    position = listed_at(own, rules, i, j, code)
    if position >= 0:
        drop_entry(own, i, position)
    elif own.gram.shape[1] > 0:
        weight = weight_in_sums(own, other, forgetting, i, j)
        copy_entries(other.mean[j], 0, memory.vector, 0, other.mean.shape[1])
        add_to_sums(own, i, -weight, rules.levels[code], memory)
    own.count[i] = max(own.count[i] - 1, 0)
    add_coefficients(own, other, i, j, -1.0)
    if own.count[i] == own.length[i] and own.gram.shape[1] > 0:
        own.gram[i] = 0.0
        own.moment[i] = 0.0
        own.square[i] = 0.0
        own.summed_weight[i] = 0.0


# ------------------------------------------------------------------------------------------------
# Lists of ratings, one for each row of a side, in one pool.
#
# The list of row i is at ``start[i]`` to ``start[i] + length[i]`` of the pools ``other`` (the row
# of the other side) and ``code`` (which rating), newest last. It may grow to ``room[i]`` entries
# where it is; `hemf.online.store` sees to that before kernels append. Where raters have moods, a
# third pool, ``session``, holds the session of each rating.
#
# Codes have 16 or 32 bits. The kernels that move whole lists take either as 16-bit halves, of which
# a code has ``width``. Sessions are moved where their pool has any room.


BLOCK = 64
"""Entries that `find` compares at once."""


@inner
def find(start: Any, length: Any, other: Any, row: Any, wanted: Any) -> int:
    """Return where in the pool the newest entry of a row for ``wanted`` is, or -1."""
    entries = other[start[row] : start[row] + length[row]]
    key = np.int32(wanted)
    last = entries.size
    # A loop that may leave at every entry cannot be vectorised, one over a whole block can.
    while last >= BLOCK:
        block = entries[last - BLOCK : last]
        hits = np.int32(0)
        for k in range(BLOCK):
            hits |= np.int32(block[k] == key)
        if hits:
            break
        last -= BLOCK
    for k in range(last - 1, -1, -1):
        if entries[k] == key:
            return start[row] + k
    return -1


@inner
def find_oldest(own: Rows, i: int, j: int) -> int:
    """Return where in the pool the oldest entry of row i for j is, or -1."""
    key = np.int32(j)
    for k in range(own.start[i], own.start[i] + own.length[i]):
        if own.other[k] == key:
            return k
    return -1


@inner
def find_code(own: Rows, i: int, j: int, code: int) -> int:
    """Return where in the pool the newest entry of row i for j with this code is, or -1."""
    key = np.int32(j)
    for k in range(own.start[i] + own.length[i] - 1, own.start[i] - 1, -1):
        if own.other[k] == key and np.int64(own.code[k]) == code:
            return k
    return -1


@inner
def append(
    start: Any, length: Any, other: Any, code: Any, row: Any, other_row: Any, new_code: Any
) -> None:
    """Add an entry to a row that has room for it."""
    position = start[row] + length[row]
    other[position] = other_row
    code[position] = new_code
    length[row] += 1


@inner
def drop(start: Any, length: Any, other: Any, code: Any, row: Any, position: Any) -> None:
    """Remove the entry at a position in the pool; later ones of its row move down."""
    end = start[row] + length[row]
    others, codes = other[position:end], code[position:end]
    for k in range(others.size - 1):
        others[k] = others[k + 1]
    for k in range(codes.size - 1):
        codes[k] = codes[k + 1]
    length[row] -= 1


@inner
def enough(n: Any) -> int:
    """Return the least power of two that is at least n."""
    room = 1
    while room < n:
        room *= 2
    return room


@kernel
def extend(
    rows: Int64Array, extra: Int64Array, start: Int64Array, length: Int64Array, room: Int64Array,
    used: Int64Array, other: Int32Array, halves: UInt16Array, width: int, session: Int32Array,
) -> bool:  # fmt: skip
    """Move lists that lack room for ``extra`` more entries behind what is ``used[0]`` of the pools.

    Return whether the pools are large enough for that; where they are not, nothing has changed.
    """
    needed = 0
    for k in range(rows.size):
        wanted = length[rows[k]] + extra[k]
        if wanted > room[rows[k]]:
            needed += enough(wanted)
    end = used[0]
    if end + needed > other.size:
        return False
    if needed:
        for k in range(rows.size):
            i = rows[k]
            wanted = length[i] + extra[k]
            if wanted > room[i]:
                copy_entries(other, start[i], other, end, length[i])
                copy_entries(halves, width * start[i], halves, width * end, width * length[i])
                if session.size > 0:
                    copy_entries(session, start[i], session, end, length[i])
                start[i] = end
                room[i] = enough(wanted)
                end += room[i]
        used[0] = end
    return True


@kernel
def lay_out(
    rows: Int64Array, extra: Int64Array, length: Int64Array, room: Int64Array,
    new_start: Int64Array, new_room: Int64Array,
) -> int:  # fmt: skip
    """Write where lists go in pools without gaps, with room for ``extra`` more entries in ``rows``.

    Return the entries that are needed.
    """
    # Room that was promised is kept, in use or not.
    for i in range(room.size):
        new_room[i] = room[i]
    for k in range(rows.size):
        wanted = length[rows[k]] + extra[k]
        if wanted > new_room[rows[k]]:
            new_room[rows[k]] = enough(wanted)
    end = 0
    for i in range(length.size):
        new_start[i] = end
        end += new_room[i]
    return end


@kernel
def gather(
    start: Int64Array, length: Int64Array, other: Int32Array, halves: UInt16Array, width: int,
    session: Int32Array, new_start: Int64Array, new_other: Int32Array, new_halves: UInt16Array,
    new_session: Int32Array,
) -> None:  # fmt: skip
    """Copy every list to its new start in other pools."""
    for i in range(length.size):
        copy_entries(other, start[i], new_other, new_start[i], length[i])
        copy_entries(halves, width * start[i], new_halves, width * new_start[i], width * length[i])
        if session.size > 0:
            copy_entries(session, start[i], new_session, new_start[i], length[i])


@kernel
def recall_all(
    user_rows: Int64Array, item_rows: Int64Array, users: Rows, previous: Int64Array
) -> None:
    """Write the code that each pair has in the history, where it has one."""
    for k in range(user_rows.size):
        position = find(users.start, users.length, users.other, user_rows[k], item_rows[k])
        if position >= 0:
            previous[k] = users.code[position]
