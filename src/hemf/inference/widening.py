"""A wider prior, tried once there are more ratings than a fit of few has seen.

A fit to few ratings closes directions for which there is no evidence yet, and no later rating
opens them again. With a wide prior covariance, passes over the ratings on record bring back those
that the ratings by now speak for. That is a jump: see `hemf.inference.jumps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hemf.inference import jumps, regroup
from hemf.inference.beginnings import widen
from hemf.inference.passes import pass_over

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

ENOUGH = 3.0  # ratings for each unknown; with fewer, ratings are scarce
GROWTH = 1.1  # of the ratings since the fit, until a wider prior is tried
AGAIN = 2.0  # of the ratings since it was refused, until it is tried again
PASSES = 30  # over all rows, in which closed directions come back; it is judged after
LEAST_PASSES = 10


def is_scarce(state: OnlineState) -> bool:
    """Whether there are few ratings for the numbers they are to determine."""
    return state.seen < ENOUGH * state.n_unknown


def plan(state: OnlineState, growth: float = GROWTH) -> None:
    """Plan to try a wider prior when ratings have grown, if they are scarce."""
    listed = state.window != 0  # sums know nothing of directions that were closed
    can = listed and state.options.evb is not None and is_scarce(state)
    state.widen_at = round(growth * state.seen) + 1 if can else 0


def is_due(state: OnlineState) -> bool:
    """Whether it is time to try a wider prior."""
    return 0 < state.widen_at <= state.seen


def widen_priors(state: OnlineState) -> bool:
    """Try a wider prior on both sides, and keep it if it pays."""
    if jumps.try_jump(state, _widen, pass_over, passes=PASSES, at_least=LEAST_PASSES):
        state.widen_at = 0
        return True
    plan(state, AGAIN)
    return False


def _widen(state: OnlineState) -> bool:
    unclear = [name for name, side in state.sides.items() if not regroup.is_clear(side)]
    for name in unclear:
        widen(state.sides[name])
    return bool(unclear)
