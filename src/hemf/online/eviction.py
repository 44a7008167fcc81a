"""Sums that are kept of ratings which have left a bounded history.

A rating is evicted when it is among the newest of neither its user nor its item.
"""

from __future__ import annotations

import numpy as np

from hemf._typing import Array, Float64Array, Int64Array
from hemf.model.rows import lower_triangle, pack, unpack
from hemf.online.store import RowStore

ROUNDING = 100  # units in the last place that may be off after many sums
MAX_STRETCH = 2.0  # of a direction, each time that sums are rotated
LONG = 500.0  # refreshes of each row after which sums are no longer rotated
REPEATED_LONG = 250.0  # the same, where pairs are rated repeatedly
ROTATION_RIDGE = 1e-4  # of the mean square of factors; without evidence, they stay


def rotation(store: RowStore, sums: RowStore) -> Float64Array | None:
    """Return M, by which ``sums`` of the other side follow the factors of a side; None is 1.

    An evicted rating was summed with the factors of its time. While directions open and rotate,
    the current factors of all rows are approximately a linear map of those: n ≈ M n'. M is found
    by regression, weighted by the number of ratings; then G → M G Mᵀ, h → M h.

    If sums follow every move, long streams of repeatedly rated pairs diverge. A likely reason: if
    items move by M, users move by M⁻ᵀ, predictions stay, and items' sums that follow the users move
    the items by M again, so that nothing holds factors in place. A small constant friction only
    delays that. So sums follow a part 1 - f of a move, and f grows to 1 with the number of
    refreshes. Short streams learn faster without friction.
    """
    mean = store.mean.astype(np.float64)
    before, store.rotated_means = store.rotated_means, mean
    if before is None or not before.shape[0]:
        return None
    n = before.shape[0]
    weight = store.count[:n, None]
    square = before.T @ (weight * before)
    if not np.trace(square) > 0.0:
        return None  # nothing was there that could have moved
    ridge = ROTATION_RIDGE * np.trace(square) / square.shape[0] * np.eye(square.shape[0])
    product = mean[:n].T @ (weight * before)
    move = limit_stretch((product + ridge) @ np.linalg.inv(square + ridge))
    is_repeated = float(sums.summed_weight.mean()) > store.n_rows
    refreshes = store.refreshes / store.n_rows
    friction = min(refreshes / (REPEATED_LONG if is_repeated else LONG), 1.0) ** 2
    return np.asarray(move + friction * (np.eye(move.shape[0]) - move))


def limit_stretch(move: Float64Array) -> Float64Array:
    """Return a map that stretches no direction by more than `MAX_STRETCH`.

    A direction that opens grows from almost zero. Sums hold the uncertainty of factors besides
    their squares, and the uncertainty grows less: stretched with the squares it would dominate.
    """
    left, stretch, right = np.linalg.svd(move)
    return np.asarray((left * np.minimum(stretch, MAX_STRETCH)) @ right)


def rotate_packed(triangles: Array, move: Array) -> None:
    """Replace every packed G by M G Mᵀ."""
    order = move.shape[0]
    rows, columns = lower_triangle(order)
    place = np.empty((order, order), np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    for begin in range(0, len(triangles), 1024):  # what is unpacked stays in the cache
        part = triangles[begin : begin + 1024]
        moved = part.take(place.ravel(), axis=1).reshape(-1, order) @ move.T
        # M(GMᵀ) = ((GMᵀ)ᵀMᵀ)ᵀ, as G is symmetric: two large products rather than many small ones.
        across = moved.reshape(-1, order, order).transpose(0, 2, 1).reshape(-1, order) @ move.T
        part[:] = across.reshape(len(part), -1).take(columns * order + rows, axis=1)


def make_positive(store: RowStore, rows: Int64Array) -> None:
    """Replace sums that ratings were removed from by the nearest positive semidefinite ones.

    A rating was added with the factors of its time and is removed with those of today, so that what
    is left of Σ υ (n, r)(n, r)ᵀ may be no sum of squares.
    """
    total = store.layout.total
    sums = np.empty((rows.size, total + 1, total + 1))
    sums[:, :total, :total] = unpack(store.gram[rows].astype(np.float64))
    sums[:, total, :total] = sums[:, :total, total] = store.moment[rows]
    sums[:, total, total] = store.square[rows]
    roots, directions = np.linalg.eigh(sums)
    # What rounding alone has left below 0 stays: sums that were right are not changed.
    wrong = roots[:, 0] < -ROUNDING * np.finfo(store.gram.dtype).eps * np.abs(roots[:, -1])
    rows, roots, directions = rows[wrong], np.maximum(roots[wrong], 0.0), directions[wrong]
    sums = (directions * roots[:, None, :]) @ directions.transpose(0, 2, 1)
    store.gram[rows] = pack(sums[:, :total, :total])
    store.moment[rows], store.square[rows] = sums[:, total, :total], sums[:, total, total]
    store.summed_weight[rows] = np.maximum(store.summed_weight[rows], 0.0)
