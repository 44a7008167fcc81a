"""Online learning as Python calls it (docs/model.md#online-rows).

`record_all` and `refresh_all` are the two halves of a batch, `stream` does the same for one rating
after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.clock import ticks
from hemf.kernels.compile import inner, kernel
from hemf.kernels.lanes import copy_entries
from hemf.kernels.moods import (
    GROWTH,
    filter_listed,
    filter_one,
    find_session,
    gather_chain,
    shift_session,
    smooth_chain,
)
from hemf.kernels.products import expected_error
from hemf.kernels.record import (
    add_coefficients,
    evict,
    listed_at,
    recall_all,
    record,
    session_at,
    sum_up,
    withdraw,
)
from hemf.kernels.refresh import (
    add_rating,
    contribute,
    count_error,
    gather_row,
    publish,
    refresh,
    weigh_row,
)
from hemf.kernels.structures import (
    MEAN,
    SPREAD,
    Batch,
    Int64Array,
    Outer,
    Rating,
    Rows,
    Rules,
    Scratch,
    Sessions,
    Shared,
    Stream,
    refer,
)

STREAK = 64
"""Ratings that a user may give in a row before their history is read again."""


@inner
def pair_error(
    mean: Any, own: Rows, other: Rows, rules: Rules, i: int, j: int, code: int, session: int
) -> float:
    """τ υ E(r - o - a_i·b_j)² with this mean of a_i; nothing for a code of -1."""
    if code < 0:
        return 0.0
    value, spread = np.float64(rules.levels[code]), 0.0
    if session >= 0:
        value -= np.float64(rules.moods[session, MEAN])
        spread = np.float64(rules.moods[session, SPREAD])
    error = expected_error(
        mean, own.second[i], value * value + spread, value, other.mean[j], other.second[j]
    )
    return float(np.float64(own.weight[i]) * other.weight[j] * error)


@kernel
def record_all(
    batch: Batch, own: Rows, other: Rows, rules: Rules, forgetting: float, is_new: Int64Array,
    memory: Outer,
) -> None:  # fmt: skip
    """Put ratings into the history of one side; a code of -1 removes the previous one."""
    own, other, rules, memory = refer(own), refer(other), refer(rules), refer(memory)
    n_other = other.count.size
    for k in range(batch.rows.size):
        i, j, code, previous = batch.rows[k], batch.others[k], batch.codes[k], batch.previous[k]
        session = batch.sessions[k] if batch.sessions.size > 0 else np.int64(-1)
        if code < 0:
            withdraw(own, other, rules, forgetting, i, j, previous, memory)
            is_new[k] = 0
        elif rules.window == 0 and previous < 0:  # as `record` does, without a call
            own.pending[i] += 1
            own.count[i] += 1
            add_coefficients(own, other, i, j, 1.0)
            sum_up(own, other, rules, forgetting, i, j, code, session, n_other, memory)
            is_new[k] = 1
        else:
            rating = Rating(i, j, code, previous, session)
            is_new[k] = record(own, other, rules, forgetting, rating, n_other, memory)


@kernel
def sum_up_all(
    batch: Batch, own: Rows, other: Rows, rules: Rules, forgetting: float, memory: Outer
) -> None:
    """Add ratings, oldest first, to the sums of their rows, without listing them."""
    own, other, rules, memory = refer(own), refer(other), refer(rules), refer(memory)
    n_other = other.count.size
    for k in range(batch.rows.size):
        i, j, code = batch.rows[k], batch.others[k], batch.codes[k]
        session = batch.sessions[k] if batch.sessions.size > 0 else np.int64(-1)
        sum_up(own, other, rules, forgetting, i, j, code, session, n_other, memory)


@kernel
def evict_all(
    rows: Int64Array, added: Int64Array, own: Rows, other: Rows, rules: Rules, forgetting: float,
    other_forgetting: float, memory: Outer,
) -> None:  # fmt: skip
    """Evict ratings of rows; ``added`` are the numbers of ratings that each has received."""
    own, other, rules, memory = refer(own), refer(other), refer(rules), refer(memory)
    for k in range(rows.size):
        evict(
            own, other, rules, forgetting, other_forgetting, rows[k], added[k], own.count.size,
            other.count.size, memory,
        )  # fmt: skip


@kernel
def refresh_all(
    rows: Int64Array, own: Rows, other: Rows, shared: Shared, rules: Rules, memory: Scratch
) -> None:
    """Refresh rows one after the other."""
    own, other, shared = refer(own), refer(other), refer(shared)
    rules, memory = refer(rules), refer(memory)
    for k in range(rows.size):
        refresh(own, other, shared, rules, rows[k], memory)


@kernel
def contribute_all(own: Rows, other: Rows, shared: Shared, rules: Rules, memory: Scratch) -> None:
    """Store the contributions of all rows to their communities, without changing the rows."""
    own, other, shared = refer(own), refer(other), refer(shared)
    rules, memory = refer(rules), refer(memory)
    for i in range(own.count.size):
        contribute(own, other, shared, rules, i, memory)


@kernel
def stream(
    given: Stream, users: Rows, items: Rows, user_shared: Shared, item_shared: Shared,
    rules: Rules, user_memory: Scratch, item_memory: Scratch, products: Outer, sessions: Sessions,
) -> None:  # fmt: skip
    """Predict each rating, then learn it: its user's mood, their row, then its item's.

    A user's posterior is published before it is read by another row, and at the end.
    """
    users, items, rules, sessions = refer(users), refer(items), refer(rules), refer(sessions)
    user_shared, item_shared, products = refer(user_shared), refer(item_shared), refer(products)
    user_memory, item_memory = refer(user_memory), refer(item_memory)
    past_mean, past_second = user_memory.past_mean, user_memory.past_second
    past_weight, past_value, past_spread, squares = items.weight[0], rules.levels[0], 0.0, 0.0
    past_user, past_item, streak = np.int64(-1), np.int64(-1), 0
    complete = rules.window < 0 and user_shared.forgetting == 1.0
    waiting, kept, published = np.int64(-1), 0, user_memory.before
    moods, moody = sessions.moods, sessions.moods.shape[0] > 0
    n_users, n_items = known_rows(users), known_rows(items)
    codes, forecasts = given.codes, given.forecasts
    for k in range(codes.size):
        begin = ticks()
        i, j, code = given.users[k], given.items[k], codes[k]
        n_users, n_items = max(n_users, i + 1), max(n_items, j + 1)
        product = forecast(users, items, user_shared, item_shared, i, j)
        forecasts[k] = product
        session, mood, spread = np.int64(-1), 0.0, 0.0
        if moody:
            session = find_session(sessions, i, given.times[k], rules.window < 0)
            mood, spread = np.float64(moods[session, MEAN]), np.float64(moods[session, SPREAD])
            forecasts[k] += mood
        if waiting >= 0 and waiting != i:
            publish(users, user_shared, rules, waiting, kept, squares, user_memory)
        if waiting != i:
            copy_entries(users.mean[i], 0, published, 0, published.size)
        previous, before = np.int64(-1), np.int64(-1)
        position = listed_at(users, rules, i, j, previous)
        if position >= 0:
            previous, before = np.int64(users.code[position]), session_at(users, position)
        alike = True  # only the mood of the latest session has changed
        if moody and rules.window < 0:
            grown = users.count[i] + 1 >= GROWTH * sessions.smoothed[i]
            alike = bool(previous < 0 and session == sessions.last[i] and not grown)
            if waiting == i and not alike:
                publish(users, user_shared, rules, i, kept, squares, user_memory)
                copy_entries(users.mean[i], 0, published, 0, published.size)
                waiting = np.int64(-1)
        if rules.total.size > 0:
            error = pair_error(published, users, items, rules, i, j, code, session)
            count_error(rules.total, error)
            error = pair_error(published, users, items, rules, i, j, previous, before)
            count_error(rules.total, -error)
        if moody and rules.window >= 0 and previous < 0:
            filter_one(users, items, sessions, rules, i, j, code, session, product)
        rating = Rating(i, j, code, previous, session)
        record(users, items, rules, user_shared.forgetting, rating, n_items, products)
        value = rules.levels[code]
        if moody and rules.window < 0:
            if alike:
                filter_listed(users, items, sessions, rules, i, session, published)
            else:
                gather_chain(users, items, sessions, rules, i)
                smooth_chain(sessions, rules, i, user_memory.moods)
            value -= moods[session, MEAN]
        if i == past_user and previous < 0 and streak < STREAK and alike and rules.repeats == 0:
            # Since this user's last rating nothing has changed but the item that it was of.
            gram, moment = user_memory.gram, user_memory.moment
            squares += add_rating(gram, moment, -past_weight, past_value, past_mean, past_second)
            squares += add_rating(
                gram, moment, items.weight[past_item], past_value,
                items.mean[past_item], items.second[past_item],
            )  # fmt: skip
            if moody:
                squares += (items.weight[past_item] - past_weight) * past_spread
                squares += shift_session(users, items, rules, i, session, mood, spread, moment)
                squares += items.weight[j] * np.float64(moods[session, SPREAD])
            squares += add_rating(
                gram, moment, items.weight[j], value, items.mean[j], items.second[j]
            )
            streak += 1
        else:
            squares = gather_row(users, items, user_shared, rules, i, user_memory)
            streak = 0
        kept = weigh_row(users, user_shared, rules, i, user_memory)
        waiting = i
        if not complete:
            publish(users, user_shared, rules, i, kept, squares, user_memory)
            waiting = np.int64(-1)
        past_user = i if complete else np.int64(-1)
        past_item, past_value, past_weight = j, value, items.weight[j]
        if moody:
            past_spread = np.float64(moods[session, SPREAD])
        copy_entries(items.mean[j], 0, past_mean, 0, past_mean.size)
        copy_entries(items.second[j], 0, past_second, 0, past_second.size)
        rating = Rating(j, i, code, previous, session)
        record(items, users, rules, item_shared.forgetting, rating, n_users, products)
        if due(items, item_shared, user_shared, j):
            if waiting >= 0:
                publish(users, user_shared, rules, i, kept, squares, user_memory)
                waiting = np.int64(-1)
            refresh(items, users, item_shared, rules, j, item_memory)
            items.other_refreshes[j] = np.int64(user_shared.totals[2])
        if rules.window > 0:
            evict(
                users, items, rules, user_shared.forgetting, item_shared.forgetting, i, 1, n_users,
                n_items, products,
            )  # fmt: skip
            evict(
                items, users, rules, item_shared.forgetting, user_shared.forgetting, j, 1, n_items,
                n_users, products,
            )  # fmt: skip
        if rules.window == 0:
            given.errors[k] = pair_error(users.mean[i], users, items, rules, i, j, code, session)
        given.spent[k] = ticks() - begin
    if waiting >= 0:
        publish(users, user_shared, rules, waiting, kept, squares, user_memory)


@inner
def known_rows(own: Rows) -> int:
    """How many rows a side has, without those at the end that have no rating yet."""
    n = own.count.size
    while n > 0 and own.count[n - 1] == 0:
        n -= 1
    return n


@inner
def forecast(
    users: Rows, items: Rows, user_shared: Shared, item_shared: Shared, i: int, j: int
) -> float:
    """E[a_i·b_j]; a row without ratings or features counts as a stranger."""
    product = 0.0
    is_known_user = users.count[i] > 0 or users.shift.shape[1] > 0
    is_known_item = items.count[j] > 0 or items.shift.shape[1] > 0
    for t in range(users.mean.shape[1]):
        a = np.float64(users.mean[i, t]) if is_known_user else user_shared.expected[t]
        b = np.float64(items.mean[j, t]) if is_known_item else item_shared.expected[t]
        product += a * b
    return product


@inner
def due(own: Rows, shared: Shared, other_shared: Shared, i: int) -> bool:
    """Whether a row has many new ratings for its size, or the other side has changed much."""
    changed = other_shared.totals[2] - own.other_refreshes[i] > shared.change
    return changed or own.pending[i] > shared.pending_share * own.count[i]


BATCH = recall_all, record_all, refresh_all, contribute_all
"""Kernels that adopt a fit and learn a batch."""


def compile_batch() -> None:
    """Compile the kernels of a `BATCH` that are not in the cache yet."""
    for each in BATCH:
        each.compiled(np.float32)
