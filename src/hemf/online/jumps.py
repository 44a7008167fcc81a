"""Jumps of a state that learns online: what they change, and whether they pay.

Opening directions, widening the prior and restarting are jumps: they lower the bound at first. Two
copies of the state are made without some recent ratings, and the jump is made in one of them. Then
the rows of both are updated, and the copies are compared by their predictions of the ratings that
were left out. The bound decides only if there are too few of these: it disagrees with them for
dozens of passes after a direction has opened. The state changes only if the jump is kept.
`hemf.online.learner` runs them. New communities are tried in place: `hemf.online.updates.search`.
"""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np

from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.batch.fit import CHANCE_RATINGS, FACTOR_START, FACTOR_VARIANCE, clear_directions
from hemf.data.ratings import Sparse
from hemf.engines.threads import scaled_residuals
from hemf.model.rows import lower_triangle, pair_moments
from hemf.online.communities import is_clear
from hemf.online.state import MARGIN, OnlineState, backup_rows, widen
from hemf.online.store import row_of_each

CLOSED = 1e-2  # share of the factors' squares below which a direction is closed
MAX_READ = 2_000_000  # ratings; of more, those of some users suffice
CLEAR_MARGIN = 0.0  # directions need only be stronger than chance: the jump is judged
MAX_START = 3.0  # root mean squares that a row may be away from the others when a direction opens


# -- whether they pay ----------------------------------------------------------------------------


def pays(trial: OnlineState, control: OnlineState, held_back: Int64Array) -> bool:
    """Whether a state with a jump explains ratings better than one without.

    Errors of ratings that were held back must be smaller by `MARGIN` standard errors. Without any,
    the bound decides, if it is known.
    """
    if not held_back.size:
        known = trial.knows_total or trial.lists_all
        return known and score(trial, held_back) > score(control, held_back)
    gain = squared_errors(control, held_back) - squared_errors(trial, held_back)
    return bool(gain.mean() > MARGIN * gain.std() / np.sqrt(gain.size))


def score(state: OnlineState, held_back: Int64Array) -> float:
    """Return how well a state explains ratings.

    That is the negative mean squared error of ratings that were held back or, without any, the
    bound.
    """
    if held_back.size:
        return -float(squared_errors(state, held_back).mean())
    if not state.knows_total and not state.lists_all:
        return 0.0
    total = float(state.total[0]) if state.knows_total else None
    return float(sum(state.bound_terms(total).values()))


def squared_errors(state: OnlineState, ratings: Int64Array) -> Float64Array:
    """Squared errors of the predictions of ratings."""
    users, items, codes = np.ascontiguousarray(ratings.T)
    left, right = state.stores["user"].moments, state.stores["item"].moments
    mean, _ = pair_moments(left, right, users, items, variance=False)
    return np.asarray((state.levels()[codes] - mean) ** 2)


def copied(state: OnlineState) -> OnlineState:
    """Return a copy that shares the ratings on record."""
    stores = {name: store.copy() for name, store in state.stores.items()}
    trial = replace(
        state,
        sides={name: replace(side) for name, side in state.sides.items()},
        stores=stores,
        clocks=state.clocks.copy(stores),
        total=state.total.copy(),
        features={
            name: replace(own, later=dict(own.later)) for name, own in state.features.items()
        },
        moods=copy.deepcopy(state.moods),
        rng=copy.deepcopy(state.rng),
        journal=None,  # a copy is dropped, not undone
    )
    for name in SIDES:
        trial.point(name)
    return trial


def take(state: OnlineState, trial: OnlineState) -> None:
    """Replace the content of a state by that of a changed copy."""
    rng = state.rng  # it may be shared with the caller
    rng.bit_generator.state = trial.rng.bit_generator.state
    for field in fields(trial):
        if field.name not in ("rng", "journal"):
            setattr(state, field.name, getattr(trial, field.name))


# -- directions ----------------------------------------------------------------------------------
#
# A direction of the factors closes where few ratings support it: its prior shrinks, and from almost
# nothing it comes back only slowly once there are more. Ratings that are evicted in the meantime
# are summed up without that direction.


def open_closed(state: OnlineState) -> int:
    """Open closed directions of the items as the ratings suggest; return how many."""
    closed = closed_directions(state)
    if not closed.shape[1]:
        return 0
    items = state.stores["item"]
    residuals = scaled_residuals(_residuals(state), items.n_rows, CHANCE_RATINGS)
    found = clear_directions(residuals, closed.shape[1], state.rng, margin=CLEAR_MARGIN)
    opened = closed[:, : found.shape[1]]
    if not opened.shape[1]:
        return 0
    factors, (rows, columns) = items.layout.factors, lower_triangle(items.layout.total)
    backup_rows(state, "item")
    mean, second = items.moments.mean, items.moments.second
    second -= mean[:, rows] * mean[:, columns]
    mean[:, factors] += FACTOR_START * np.clip(found, -MAX_START, MAX_START) @ opened.T
    second += mean[:, rows] * mean[:, columns]
    state.set_total()
    for name in SIDES:
        _widen_directions(state, name, opened)
    return int(opened.shape[1])


def closed_directions(state: OnlineState) -> Float64Array:
    """Return directions of the factors in which rows do not differ, (factors, how many)."""
    n_factors = state.stores["user"].layout.factors.size
    total = np.zeros((n_factors, n_factors))
    for store in state.stores.values():
        factors = store.mean[:, store.layout.factors].astype(np.float64)
        square = factors.T @ (factors * store.count[:, None])
        total += square / max(float(np.trace(square)), np.finfo(float).tiny)
    share, directions = np.linalg.eigh(total)
    return np.asarray(directions[:, share < CLOSED])


def _residuals(state: OnlineState) -> Sparse:
    """Return the residuals of the ratings on record of users, or of enough of them."""
    users, items = state.stores["user"], state.stores["item"]
    indptr, indices, codes = users.history.to_rows()
    values = state.levels()[codes]
    if state.moods is not None:
        values -= state.moods.of(users.history.sessions())[0]
    lengths = np.diff(indptr)
    if indices.size > MAX_READ:
        order = state.rng.permutation(lengths.size)
        is_read = np.zeros(lengths.size, bool)
        is_read[order[np.cumsum(lengths[order]) <= MAX_READ]] = True
        read = np.repeat(is_read, lengths)
        indices, values, lengths = indices[read], values[read], np.where(is_read, lengths, 0)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
    expected, _ = pair_moments(
        users.moments, items.moments, row_of_each(indptr), indices.astype(np.int64), variance=False
    )
    return Sparse(indptr, indices, values - expected)


def _widen_directions(state: OnlineState, name: str, opened: Float64Array) -> None:
    """Let rows of a side differ in these directions, until their posterior shows how much."""
    side = state.sides[name]
    wide = np.zeros((side.layout.order, opened.shape[1]))
    wide[-opened.shape[0] :] = opened  # after the offset, if there is one
    communities = side.communities
    added = communities.dof[:, None, None] * FACTOR_VARIANCE * (wide @ wide.T)
    side.communities = replace(communities, scale=communities.scale + added)


def widen_unclear(state: OnlineState) -> bool:
    """Widen the prior of sides without clear communities; return whether there are any.

    A fit to few ratings closes directions for which there is no evidence yet. With a wide prior
    covariance, passes over the ratings on record bring back those that the ratings support by now.
    """
    unclear = [side for side in state.sides.values() if not is_clear(side)]
    for side in unclear:
        widen(side)
    return bool(unclear)
