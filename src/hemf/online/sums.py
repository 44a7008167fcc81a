"""Ratings that are no longer listed: sums that are kept up with what has been learnt since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hemf._typing import OTHER, Array, Float64Array
from hemf.model.layout import lower_triangle, pack, unpack
from hemf.online.store import RowStore

if TYPE_CHECKING:
    from hemf.online.state import OnlineState

CARRY_EVERY = 4  # refreshes of each row of a side between two times that sums are carried along
ROUNDING = 100  # units in the last place that may be off after many sums
MOST_STRETCH = 2.0  # of a direction, each time that sums are carried along
LONG = 500.0  # refreshes of each row after which sums stay where they are
REPEATED_LONG = 250.0  # the same, where pairs are rated again and again
CARRY_RIDGE = 1e-4  # of the mean square of factors; without evidence, they are where they were


def spread(state: OnlineState, name: str) -> Array:
    """Posterior covariance of a side's rows, the mean over ratings, packed.

    Where there are lists, a rating that leaves them is summed up as if its other row had not known
    of it, and nothing has to be made good: zero.
    Looking at all rows takes time; it is done when as many have been refreshed.
    """
    store = state.stores[name]
    if state.window != 0 or not store.n_rows:
        return np.zeros(store.layout.packed, store.mean.dtype)
    known = state.spreads.get(name)
    if known is None or store.totals[2] - state.spread_at[name] >= store.n_rows:
        rows, columns = lower_triangle(store.layout.total)
        share = (store.count / max(float(store.count.sum()), 1.0)).astype(store.mean.dtype)
        mean = store.mean
        products = (mean * share[:, None]).T @ mean
        known = (share @ store.second - products[rows, columns]).astype(store.mean.dtype)
        state.spreads[name], state.spread_at[name] = known, float(store.totals[2])
    return known


def carry(state: OnlineState, name: str) -> None:
    """Carry the other side's sums along as the factors of this side move.

    A rating that is no longer listed was summed up with the factors of its time. While
    directions still open and turn, those of today are, for all rows alike, about a linear map
    of those: n ≈ M n'. It is found by regression over the ratings, and G → M G Mᵀ, h → M h.

    Where sums follow every move, long streams of pairs rated again and again break down; where
    they follow none, they do not. A likely reason: if items move by M, users answer with M⁻ᵀ,
    predictions stay, and items' sums that follow the users move the items by M once more, so that
    nothing holds factors in place. A small constant friction only puts that off. So sums follow a
    part 1 - f of a move, and f grows to 1 with the number of refreshes. Short streams learn faster
    without friction.
    """
    store = state.stores[name]
    if store.totals[2] - state.carried_at[name] < CARRY_EVERY * store.n_rows:
        return
    state.carried_at[name] = float(store.totals[2])
    mean = store.mean.astype(np.float64)
    before = state.means.get(name)
    state.means[name] = mean
    if before is None or not before.shape[0]:
        return
    n = before.shape[0]
    weight = store.count[:n, None]
    square = before.T @ (weight * before)
    if not np.trace(square) > 0.0:
        return  # nothing was there that could have moved
    ridge = CARRY_RIDGE * np.trace(square) / square.shape[0] * np.eye(square.shape[0])
    product = mean[:n].T @ (weight * before)
    move = _tamed((product + ridge) @ np.linalg.inv(square + ridge))
    sums = state.stores[OTHER[name]]
    is_repeated = float(sums.settled.mean()) > store.n_rows
    turns = float(store.totals[2]) / store.n_rows
    friction = min(turns / (REPEATED_LONG if is_repeated else LONG), 1.0) ** 2
    move += friction * (np.eye(move.shape[0]) - move)
    state.keep(OTHER[name], only=("gram", "moment"))
    sums.moment[:] = sums.moment @ move.T
    _move_all(sums.gram, move.astype(sums.gram.dtype))


def _tamed(move: Float64Array) -> Float64Array:
    """Return a map that stretches no direction by more than `MOST_STRETCH`.

    A direction that opens goes from next to nothing to something. Sums hold the uncertainty of
    factors beside their squares, and that has not grown alike: stretched with them it would drown
    them, and the other side's answer to that be carried back.
    """
    left, stretch, right = np.linalg.svd(move)
    return np.asarray((left * np.minimum(stretch, MOST_STRETCH)) @ right)


def _move_all(triangles: Array, move: Array) -> None:
    """Put M G Mᵀ in the place of every packed G."""
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


def make_possible(store: RowStore, rows: npt.NDArray[np.int64]) -> None:
    """Bring sums that ratings were taken out of to the nearest that ratings can add up to.

    A rating was added with the factors of its time and is taken out with those of today, so that
    what is left of Σ υ (n, r)(n, r)ᵀ may be no sum of squares: a row whose sums say that it has
    less than no evidence would be believed to be anywhere.
    """
    total = store.layout.total
    sums = np.empty((rows.size, total + 1, total + 1))
    sums[:, :total, :total] = unpack(store.gram[rows].astype(np.float64))
    sums[:, total, :total] = sums[:, :total, total] = store.moment[rows]
    sums[:, total, total] = store.square[rows]
    roots, directions = np.linalg.eigh(sums)
    # What rounding alone has left below 0 stays: sums that were right are not touched.
    wrong = roots[:, 0] < -ROUNDING * np.finfo(store.gram.dtype).eps * np.abs(roots[:, -1])
    rows, roots, directions = rows[wrong], np.maximum(roots[wrong], 0.0), directions[wrong]
    sums = (directions * roots[:, None, :]) @ directions.transpose(0, 2, 1)
    store.gram[rows] = pack(sums[:, :total, :total])
    store.moment[rows], store.square[rows] = sums[:, total, :total], sums[:, total, total]
    store.settled[rows] = np.maximum(store.settled[rows], 0.0)
