"""Ratings that leave a bounded history, and the sums that are kept of them.

A rating is evicted when it is among the newest of neither its user nor its item.
"""

from __future__ import annotations

import numpy as np

from hemf._typing import OTHER, SIDES, Array, Float64Array, Int32Array, Int64Array
from hemf.model.rows import lower_triangle, pack, unpack
from hemf.online.state import OnlineState, keep, keep_evicted, kernel, outer, pair, rules
from hemf.online.store import History, RowStore, row_of_each

ROUNDING = 100  # units in the last place that may be off after many sums
MAX_STRETCH = 2.0  # of a direction, each time that sums are rotated
LONG = 500.0  # refreshes of each row after which sums are no longer rotated
REPEATED_LONG = 250.0  # the same, where pairs are rated repeatedly
ROTATION_RIDGE = 1e-4  # of the mean square of factors; without evidence, they stay


def evict(state: OnlineState, added: dict[str, tuple[Int64Array, Int64Array]]) -> None:
    """Evict ratings that are replaced by newer ones, and add them to the sums."""
    for name in SIDES:
        keep_evicted(state, name, *added[name])
        kernel(state, "evict_all")(
            *added[name], *pair(state, name), rules(state),
            state.options.forgetting[name], state.options.forgetting[OTHER[name]],
            outer(state),
        )  # fmt: skip


def evict_all(state: OnlineState) -> None:
    """Evict all ratings that a bounded history does not keep.

    Where there are plenty of ratings, the factors that they are summed up with are good, and later
    ratings of the same pairs need not replace them.
    """
    renewal, state.renewal = state.renewal, 0.0  # none of these replaces another
    _evict_all(state)
    state.renewal = 0.0 if state.has_plenty else renewal


def _evict_all(state: OnlineState) -> None:
    from hemf.kernels.structures import Batch

    none = np.zeros(0, np.int64)
    listed = {name: store.history.to_rows() for name, store in state.stores.items()}
    rows, is_old, order = {}, {}, {}
    for name, (indptr, indices, _) in listed.items():
        rows[name], order[name] = by_pair(name, indptr, indices)
        newer = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(indices.size)
        is_old[name] = newer > state.window
    is_gone = is_old["user"][order["user"]] & is_old["item"][order["item"]]
    sittings = {name: store.history.sittings() for name, store in state.stores.items()}
    for name, (_, indices, codes) in listed.items():
        gone = np.empty_like(is_gone)
        gone[order[name]] = is_gone
        store = state.stores[name]
        kept = np.bincount(rows[name][~gone], minlength=store.n_rows)
        seats = sittings[name] if store.history.has_sittings else None
        store.history = History.from_rows(
            np.concatenate([[0], np.cumsum(kept)]),
            indices[~gone],
            codes[~gone],
            None if seats is None else seats[~gone],
        )
        state.even_codes()
        kernel(state, "settle_all")(
            Batch(
                rows[name][gone].astype(np.int64), indices[gone].astype(np.int64),
                codes[gone].astype(np.int64), none,
                none if seats is None else seats[gone].astype(np.int64),
            ), *pair(state, name), rules(state), state.options.forgetting[name], outer(state),
        )  # fmt: skip
    if state.moods is not None:
        state.moods.leave_latest()
        state.moods.compact([store.history for store in state.stores.values()])


def by_pair(name: str, indptr: Int64Array, others: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Return the row of each entry of a side's lists, and the order of entries by user and item.

    >>> rows, order = by_pair("item", np.array([0, 2, 3]), np.array([1, 0, 0]))
    >>> rows.tolist(), order.tolist()
    ([0, 0, 1], [1, 2, 0])
    """
    rows = row_of_each(indptr)
    return rows, np.lexsort((others, rows) if name == "user" else (rows, others))


def rotate_sums(state: OnlineState, name: str) -> None:
    """Rotate the other side's sums as the factors of this side move, if that is due.

    An evicted rating was summed with the factors of its time. While directions open and rotate,
    the current factors of all rows are approximately a linear map of those: n ≈ M n'. M is found
    by regression, weighted by the number of ratings; then G → M G Mᵀ, h → M h.

    If sums follow every move, long streams of repeatedly rated pairs diverge. A likely reason: if
    items move by M, users move by M⁻ᵀ, predictions stay, and items' sums that follow the users move
    the items by M again, so that nothing holds factors in place. A small constant friction only
    delays that. So sums follow a part 1 - f of a move, and f grows to 1 with the number of
    refreshes. Short streams learn faster without friction.
    """
    store = state.stores[name]
    if not state.clocks.due("rotation", name):
        return
    state.clocks.done("rotation", name)
    mean = store.mean.astype(np.float64)
    before, store.rotated_means = store.rotated_means, mean
    if before is None or not before.shape[0]:
        return
    n = before.shape[0]
    weight = store.count[:n, None]
    square = before.T @ (weight * before)
    if not np.trace(square) > 0.0:
        return  # nothing was there that could have moved
    ridge = ROTATION_RIDGE * np.trace(square) / square.shape[0] * np.eye(square.shape[0])
    product = mean[:n].T @ (weight * before)
    move = limit_stretch((product + ridge) @ np.linalg.inv(square + ridge))
    sums = state.stores[OTHER[name]]
    is_repeated = float(sums.settled.mean()) > store.n_rows
    refreshes = store.refreshes / store.n_rows
    friction = min(refreshes / (REPEATED_LONG if is_repeated else LONG), 1.0) ** 2
    move += friction * (np.eye(move.shape[0]) - move)
    keep(state, OTHER[name], only=("gram", "moment"))
    sums.moment[:] = sums.moment @ move.T
    rotate_packed(sums.gram, move.astype(sums.gram.dtype))


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
    store.settled[rows] = np.maximum(store.settled[rows], 0.0)
