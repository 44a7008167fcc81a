"""Stochastic gradient descent on r ≈ c + s(o_i + p_j + a_i·b_j), one rating after the other.

A row of a side holds its offset and then its factors: (o_i, a_i) or (p_j, b_j). The scale s of the
ratings is given. Sums are taken in float64 whatever the storage.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.clock import ticks
from hemf.kernels.compile import inner, kernel
from hemf.kernels.structures import (
    Descent,
    Float64Array,
    Int32Array,
    Int64Array,
    Table,
)


@inner
def product(a: Any, b: Any) -> float:
    """Return a·b of two rows, offsets aside."""
    total = 0.0
    for t in range(1, a.size):
        total += np.float64(a[t]) * np.float64(b[t])
    return total


# docs/model.md#sgd
@kernel
def descend(
    given: Descent, user_rows: Table, item_rows: Table, forecasts: Float64Array, spent: Int64Array
) -> None:
    """Learn every rating once, in this order.

    ``forecasts`` receives the expectation of each rating before it is learnt, ``spent`` the clock
    ticks that it took; either may be empty. New rows come in the order of their first rating.
    """
    known_users, known_items = given.known_users, given.known_items
    means, steps, scale = given.means, given.steps, given.scale
    before = ticks()
    for k in range(given.users.size):
        i, j = given.users[k], given.items[k]
        a, b = user_rows[i], item_rows[j]
        offsets = np.float64(a[0]) + np.float64(b[0])
        common = product(a, b)
        if forecasts.size:
            # The factors that a new row starts with mean nothing yet.
            is_known = i < known_users and j < known_items
            forecasts[k] = means[k] + scale * (offsets + (common if is_known else 0.0))
            known_users, known_items = max(known_users, i + 1), max(known_items, j + 1)
        wanted = (np.float64(given.ratings[k]) - means[k + 1]) / scale
        pull = steps[k] * (wanted - (offsets + common))
        decay = 1.0 - steps[k] * given.offset_penalty
        a[0] = decay * a[0] + pull
        b[0] = decay * b[0] + pull
        decay = 1.0 - steps[k] * given.factor_penalty
        for t in range(1, a.size):
            x, y = np.float64(a[t]), np.float64(b[t])
            a[t] = decay * x + pull * y
            b[t] = decay * y + pull * x
        if spent.size:
            now = ticks()
            spent[k] = now - before
            before = now


@kernel
def forecast(
    users: Int32Array, items: Int32Array, mean: float, scale: float, user_rows: Table,
    item_rows: Table, forecasts: Float64Array,
) -> None:  # fmt: skip
    """Write c + s(o_i + p_j + a_i·b_j) of every pair, without the terms of rows of -1."""
    for k in range(users.size):
        i, j = users[k], items[k]
        expected = 0.0
        if i >= 0:
            expected += np.float64(user_rows[i, 0])
        if j >= 0:
            expected += np.float64(item_rows[j, 0])
        if i >= 0 and j >= 0:
            expected += product(user_rows[i], item_rows[j])
        forecasts[k] = mean + scale * expected
