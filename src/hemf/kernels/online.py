"""Online learning as Python calls it: MODEL.md, "Online VB".

`record_all` and `refresh_all` are the two halves of a batch, `stream` does the same for one rating
after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.clock import ticks
from hemf.kernels.compile import inner, kernel
from hemf.kernels.lists import copy_entries
from hemf.kernels.pairs import expected_error
from hemf.kernels.record import recall, record, retire, settle, withdraw
from hemf.kernels.refresh import (
    add_rating,
    count_error,
    gather_row,
    publish,
    refresh,
    weigh_row,
)
from hemf.kernels.shifts import choose_one
from hemf.kernels.structures import Outer, Rows, Rules, Scratch, Shared

STREAK = 64
"""Ratings that a user may give in a row before their history is read again."""


@inner
def pair_error(mean: Any, own: Any, other: Any, rules: Any, i: int, j: int, code: int) -> float:
    """τ υ E(r - a_i·b_j)² with this mean of a_i; nothing for a code of -1."""
    if code < 0:
        return 0.0
    value = np.float64(rules.levels[code])
    error = expected_error(
        mean, own.second[i], value * value, value, other.mean[j], other.second[j]
    )
    return float(np.float64(own.weight[i]) * other.weight[j] * error)


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
    Outer,
)
def record_all(
    rows: Any, others: Any, codes: Any, previous: Any, own: Any, other: Any, rules: Any,
    keep: Any, is_new: Any, memory: Any,
) -> None:  # fmt: skip
    """Put ratings into the history of one side; a code of -1 takes the ``previous`` one out."""
    for k in range(rows.size):
        i, j = rows[k], others[k]
        if codes[k] < 0:
            withdraw(own, other, rules, keep, i, j, previous[k], memory)
            is_new[k] = 0
        elif rules.window == 0 and previous[k] < 0:  # as `record` does, without a call
            own.pending[i] += 1
            own.count[i] += 1
            choose_one(own, other, i, j, 1.0)
            settle(own, other, rules, keep, i, j, codes[k], memory)
            is_new[k] = 1
        else:
            is_new[k] = record(own, other, rules, keep, i, j, codes[k], previous[k], memory)


@kernel("int64[::1]", "int64[::1]", Rows, "int64[::1]")
def recall_all(user_rows: Any, item_rows: Any, users: Any, previous: Any) -> None:
    """Write the code that each pair has in the history, where it has one."""
    for k in range(user_rows.size):
        code = recall(users, user_rows[k], item_rows[k])
        if code >= 0:
            previous[k] = code


@kernel("int64[::1]", "int64[::1]", "int64[::1]", Rows, Rows, Rules, "float64", Outer)
def settle_all(
    rows: Any, others: Any, codes: Any, own: Any, other: Any, rules: Any, keep: Any, memory: Any
) -> None:
    """Add ratings, oldest first, to the sums of those that are not listed."""
    for k in range(rows.size):
        settle(own, other, rules, keep, rows[k], others[k], codes[k], memory)


@kernel("int64[::1]", "int64[::1]", Rows, Rows, Rules, "float64", "float64", Outer)
def retire_all(
    rows: Any, added: Any, own: Any, other: Any, rules: Any, keep: Any, other_keep: Any,
    memory: Any,
) -> None:  # fmt: skip
    """Sum up ratings of rows to which so many have been added."""
    for k in range(rows.size):
        retire(own, other, rules, keep, other_keep, rows[k], added[k], memory)


@kernel("int64[::1]", Rows, Rows, Shared, Rules, Scratch)
def refresh_all(rows: Any, own: Any, other: Any, shared: Any, rules: Any, memory: Any) -> None:
    """Refresh rows one after the other."""
    for k in range(rows.size):
        refresh(own, other, shared, rules, rows[k], memory)


@kernel(
    "int64[::1]", "int64[::1]", "int64[::1]", Rows, Rows, Shared, Shared, Rules,
    "float64[::1]", "float64[::1]", "int64[::1]", Scratch, Scratch, Outer,
)  # fmt: skip
def stream(
    user_rows: Any, item_rows: Any, codes: Any, users: Any, items: Any, user_shared: Any,
    item_shared: Any, rules: Any, forecasts: Any, errors: Any, spent: Any, user_memory: Any,
    item_memory: Any, products: Any,
) -> None:  # fmt: skip
    """Predict each rating, then learn it: its user's row, then its item's.

    Writes what was expected of it, the ticks it took and, where there is no history,
    E(r - a·b)² τ υ after it was learnt. A user's posterior is published as soon as anybody reads
    it: another row, or the communities in the end.
    """
    past_mean, past_second = user_memory.past_mean, user_memory.past_second
    past_weight, past_value, squares = items.weight[0], rules.levels[0], 0.0
    past_user, past_item, streak = np.int64(-1), np.int64(-1), 0
    complete = rules.window < 0 and user_shared.keep == 1.0
    waiting, kept, published = np.int64(-1), 0, user_memory.before
    for k in range(codes.size):
        begin = ticks()
        i, j, code = user_rows[k], item_rows[k], codes[k]
        forecasts[k] = forecast(users, items, user_shared, item_shared, i, j)
        if waiting >= 0 and waiting != i:
            publish(users, user_shared, rules, waiting, kept, squares, user_memory)
        if waiting != i:
            copy_entries(users.mean[i], 0, published, 0, published.size)
        previous = recall(users, i, j)
        if rules.total.size > 0:
            for of, sign in ((code, 1.0), (previous, -1.0)):
                error = pair_error(published, users, items, rules, i, j, of)
                count_error(rules.total, sign * error)
        record(users, items, rules, user_shared.keep, i, j, code, previous, products)
        value = rules.levels[code]
        if i == past_user and previous < 0 and streak < STREAK:
            # Since this user's last rating nothing has changed but the item that it was of.
            gram, moment = user_memory.gram, user_memory.moment
            squares += add_rating(gram, moment, -past_weight, past_value, past_mean, past_second)
            squares += add_rating(
                gram, moment, items.weight[past_item], past_value,
                items.mean[past_item], items.second[past_item],
            )  # fmt: skip
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
        copy_entries(items.mean[j], 0, past_mean, 0, past_mean.size)
        copy_entries(items.second[j], 0, past_second, 0, past_second.size)
        record(items, users, rules, item_shared.keep, j, i, code, previous, products)
        if due(items, item_shared, user_shared, j):
            if waiting >= 0:
                publish(users, user_shared, rules, i, kept, squares, user_memory)
                waiting = np.int64(-1)
            refresh(items, users, item_shared, rules, j, item_memory)
            items.met[j] = np.int64(user_shared.totals[2])
        if rules.window > 0:
            retire(users, items, rules, user_shared.keep, item_shared.keep, i, 1, products)
            retire(items, users, rules, item_shared.keep, user_shared.keep, j, 1, products)
        if rules.window == 0:
            errors[k] = pair_error(users.mean[i], users, items, rules, i, j, code)
        spent[k] = ticks() - begin
    if waiting >= 0:
        publish(users, user_shared, rules, waiting, kept, squares, user_memory)


@inner
def forecast(users: Any, items: Any, user_shared: Any, item_shared: Any, i: int, j: int) -> float:
    """E[a_i·b_j]; without features, a row without ratings may hold a start that means nothing."""
    product = 0.0
    user_told = users.count[i] > 0 or users.shift.shape[1] > 0
    item_told = items.count[j] > 0 or items.shift.shape[1] > 0
    for t in range(users.mean.shape[1]):
        a = np.float64(users.mean[i, t]) if user_told else user_shared.expected[t]
        b = np.float64(items.mean[j, t]) if item_told else item_shared.expected[t]
        product += a * b
    return product


@inner
def due(own: Any, shared: Any, other_shared: Any, i: int) -> bool:
    """Whether a row has many new ratings for its size, or the other side has changed much."""
    changed = other_shared.totals[2] - own.met[i] > shared.change
    return bool(changed or own.pending[i] > shared.patience * own.count[i])
