"""Ratings that enter, change or leave a row's history, or the sums of what it no longer lists.

Arguments: ``own`` and ``other`` are the `Rows` of the side and of the one opposite, i and j their
rows, ``rules`` what holds for both, ``keep`` the forgetting factor of the side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, step
from hemf.kernels.lists import append, drop, find
from hemf.kernels.vectors import put_products


@inner
def settle(
    own: Any, other: Any, rules: Any, keep: float, i: int, j: int, code: int, memory: Any
) -> None:
    """Add a rating to the sums of those that are not listed."""
    if keep < 1.0:
        for p in range(own.gram.shape[1]):
            own.gram[i, p] *= keep
        for t in range(own.moment.shape[1]):
            own.moment[i, t] *= keep
        own.square[i] *= keep
        own.settled[i] *= keep
    add_settled(own, other, i, j, other.weight[j], rules.levels[code], memory)


@inner
def add_settled(
    own: Any, other: Any, i: int, j: int, weight: float, value: float, memory: Any
) -> None:
    """Add one rating to a row's sums; with a negative weight, take it out."""
    gram, moment, mean = own.gram[i], own.moment[i], other.mean[j]
    for t in range(mean.size):
        memory.vector[t] = mean[t]
        moment[t] += weight * value * mean[t]
    put_products(memory.products, memory.vector, mean.size, weight)
    for p in range(gram.size):
        gram[p] += memory.products[p]
    own.square[i] += weight * value * value
    own.settled[i] += weight


@inner
def settled_weight(own: Any, other: Any, keep: float, i: int, j: int) -> float:
    """Weight that a rating has in a row's sums: nobody knows how old it is, so that of the mean."""
    if keep == 1.0:
        return float(other.weight[j])
    return float(own.settled[i] / max(own.count[i] - own.length[i], 1))


@step
def record(
    own: Any, other: Any, rules: Any, keep: float, i: int, j: int, code: int, previous: int,
    memory: Any,
) -> int:  # fmt: skip
    """Put a rating of row i into its history: 1 where it is new, 0 where it replaces another.

    A rating that is not listed is new, unless its ``previous`` code (or else -1) is given.
    """
    own.pending[i] += 1
    position = find(own.start, own.length, own.other, i, j)
    if position >= 0:
        own.code[position] = code
        return 0
    if previous >= 0 and own.gram.shape[1] > 0:  # the pair is still observed once: G stays
        weight = settled_weight(own, other, keep, i, j)
        now, before = np.float64(rules.levels[code]), np.float64(rules.levels[previous])
        for t in range(own.moment.shape[1]):
            own.moment[i, t] += weight * (now - before) * other.mean[j, t]
        own.square[i] += weight * (now * now - before * before)
        return 0
    own.count[i] += 1
    if rules.window == 0:
        settle(own, other, rules, keep, i, j, code, memory)
        return 1
    append(own.start, own.length, own.other, own.code, i, j, code)
    if 0 < rules.window < own.length[i]:
        oldest = own.start[i]
        settle(own, other, rules, keep, i, own.other[oldest], own.code[oldest], memory)
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


@step
def withdraw(
    own: Any, other: Any, rules: Any, keep: float, i: int, j: int, code: int, memory: Any
) -> None:
    """Take a rating of row i out of its history, or of the sums where it is not listed."""
    own.pending[i] += 1
    position = find(own.start, own.length, own.other, i, j)
    if position >= 0:
        drop(own.start, own.length, own.other, own.code, i, position)
    elif own.gram.shape[1] > 0:
        weight = settled_weight(own, other, keep, i, j)
        add_settled(own, other, i, j, -weight, rules.levels[code], memory)
    own.count[i] = max(own.count[i] - 1, 0)
    if own.count[i] == own.length[i] and own.gram.shape[1] > 0:
        own.gram[i] = 0.0
        own.moment[i] = 0.0
        own.square[i] = 0.0
        own.settled[i] = 0.0
