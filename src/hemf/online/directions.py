"""Directions that ratings have come to speak for are opened, as ratings grow in number.

A direction of the factors closes where few ratings support it: its prior shrinks, and from next to
nothing it comes back only slowly once there are more. Ratings that leave a bounded history in the
meantime are lost to it: they are summed up without that direction.

To open one is a jump, not a step that raises the bound at once: see `hemf.online.jumps`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hemf._typing import SIDES, Float64Array
from hemf.batch.init import CHANCE_RATINGS, FACTOR_START, FACTOR_VARIANCE, clear_directions
from hemf.data.ratings import Sparse
from hemf.engines.threads import scaled_residuals
from hemf.model.layout import lower_triangle
from hemf.model.predictive import pair_moments
from hemf.online import jumps, updates
from hemf.online.store import FIRST_RESTART, is_young, widen
from hemf.online.updates import pass_over

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


GROWTH = 1.25  # of the ratings between two times that directions are opened
CLOSED = 1e-2  # share of the factors' squares below which a direction is closed
MOST_READ = 2_000_000  # ratings; of more, those of some users tell as much
# No more is asked of directions than to be stronger than chance: the jump is judged.
MARGIN = 0.0
PASSES = 10  # over all rows, at most, until directions that were opened pay
EXPLAINED = 1e-3  # of the ratings' variance; where less is left, there is nothing to open for
MOST = 3.0  # root mean squares that a row may be away from the others when a direction opens


def is_opening_due(state: OnlineState) -> bool:
    """Whether there are so many more ratings on record that closed directions may show."""
    if state.window == 0 or state.options.evb is None or is_young(state):
        return False
    if state.seen < state.open_from:
        return False
    if state.has_plenty:  # ratings of pairs that are rated again and again are no test either
        return False
    missing = GROWTH * max(state.opened_at, FIRST_RESTART) - state.n_ratings
    if missing > 0:
        state.open_from = state.seen + missing  # no need to count all of them before
    return missing <= 0 and state.noise >= EXPLAINED


def open_directions(state: OnlineState) -> int:
    """Open the directions that the ratings on record speak for, if it pays; return how many."""
    state.opened_at = state.n_ratings
    if not _closed_directions(state).shape[1]:
        return 0
    opened = 0

    def jump(trial: OnlineState) -> bool:
        nonlocal opened
        opened = _open(trial)
        return opened > 0

    return opened if jumps.try_jump(state, jump, pass_over, passes=PASSES) else 0


def _open(state: OnlineState) -> int:
    """Let items differ in closed directions as the ratings say; return in how many."""
    closed = _closed_directions(state)
    if not closed.shape[1]:
        return 0
    items = state.stores["item"]
    residuals = scaled_residuals(_errors(state), items.n_rows, CHANCE_RATINGS)
    found = clear_directions(residuals, closed.shape[1], state.rng, margin=MARGIN)
    opened = closed[:, : found.shape[1]]
    if not opened.shape[1]:
        return 0
    factors, (rows, columns) = items.layout.factors, lower_triangle(items.layout.total)
    state.keep("item")
    mean, second = items.moments.mean, items.moments.second
    second -= mean[:, rows] * mean[:, columns]
    mean[:, factors] += FACTOR_START * np.clip(found, -MOST, MOST) @ opened.T
    second += mean[:, rows] * mean[:, columns]
    state.add_up()
    for name in SIDES:
        _widen(state, name, opened)
    return int(opened.shape[1])


def _closed_directions(state: OnlineState) -> Float64Array:
    """Return directions of the factors in which rows do not differ, (factors, how many)."""
    n_factors = state.stores["user"].layout.factors.size
    total = np.zeros((n_factors, n_factors))
    for store in state.stores.values():
        factors = store.mean[:, store.layout.factors].astype(np.float64)
        square = factors.T @ (factors * store.count[:, None])
        total += square / max(float(np.trace(square)), np.finfo(float).tiny)
    share, directions = np.linalg.eigh(total)
    return np.asarray(directions[:, share < CLOSED])


def _errors(state: OnlineState) -> Sparse:
    """Return what is left of the ratings in the history of users, or of enough of them."""
    users, items = state.stores["user"], state.stores["item"]
    indptr, indices, codes = users.history.to_rows()
    values = state.levels()[codes]
    if state.moods is not None:
        values -= state.moods.of(users.history.sittings())[0]
    lengths = np.diff(indptr)
    if indices.size > MOST_READ:
        order = state.rng.permutation(lengths.size)
        is_read = np.zeros(lengths.size, bool)
        is_read[order[np.cumsum(lengths[order]) <= MOST_READ]] = True
        read = np.repeat(is_read, lengths)
        indices, values, lengths = indices[read], values[read], np.where(is_read, lengths, 0)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
    of_user = np.repeat(np.arange(lengths.size), lengths)
    expected, _ = pair_moments(
        users.moments, items.moments, of_user, indices.astype(np.int64), variance=False
    )
    return Sparse(indptr, indices, values - expected)


def _widen(state: OnlineState, name: str, opened: Float64Array) -> None:
    """Let rows of a side differ in these directions, until they have shown how much they do."""
    side = state.sides[name]
    wide = np.zeros((side.layout.order, opened.shape[1]))
    wide[-opened.shape[0] :] = opened  # after the offset, if there is one
    communities = side.communities
    added = communities.dof[:, None, None] * FACTOR_VARIANCE * (wide @ wide.T)
    side.communities = replace(communities, scale=communities.scale + added)


# ------------------------------------------------------------------------------------------------
# A wider prior, tried once there are more ratings than a fit of few has seen.
#
# A fit to few ratings closes directions for which there is no evidence yet, and no later rating
# opens them again. With a wide prior covariance, passes over the ratings on record bring back
# those
# that the ratings by now speak for. That is a jump: see `hemf.online.jumps`.


ENOUGH = 3.0  # ratings for each unknown; with fewer, ratings are scarce
WIDEN_GROWTH = 1.1  # of the ratings since the fit, until a wider prior is tried
AGAIN = 2.0  # of the ratings since it was refused, until it is tried again
WIDEN_PASSES = 30  # over all rows, in which closed directions come back; it is judged after
LEAST_PASSES = 10


def is_scarce(state: OnlineState) -> bool:
    """Whether there are few ratings for the numbers they are to determine."""
    return state.seen < ENOUGH * state.n_unknown


def plan(state: OnlineState, growth: float = WIDEN_GROWTH) -> None:
    """Plan to try a wider prior when ratings have grown, if they are scarce."""
    listed = state.window != 0  # sums know nothing of directions that were closed
    can = listed and state.options.evb is not None and is_scarce(state)
    state.widen_at = round(growth * state.seen) + 1 if can else 0


def is_widening_due(state: OnlineState) -> bool:
    """Whether it is time to try a wider prior."""
    return 0 < state.widen_at <= state.seen


def widen_priors(state: OnlineState) -> bool:
    """Try a wider prior on both sides, and keep it if it pays."""
    if jumps.try_jump(state, _try_wider, pass_over, passes=WIDEN_PASSES, at_least=LEAST_PASSES):
        state.widen_at = 0
        return True
    plan(state, AGAIN)
    return False


def _try_wider(state: OnlineState) -> bool:
    unclear = [name for name, side in state.sides.items() if not updates.is_clear(side)]
    for name in unclear:
        widen(state.sides[name])
    return bool(unclear)
