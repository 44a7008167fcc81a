"""Jumps: changes that are no steps up the bound, kept only where they pay.

Opening directions, widening the prior and starting again all lower the bound at first. Each is made
on a copy of the state. The rows of the copy settle, as do those of a second copy without the jump.
Both have forgotten some recent ratings before, and the one that predicts these better is better.
Only where there are too few of them, the bound decides: of a direction that has just opened it says
the opposite of what held-out ratings say for dozens of passes. The state itself does not change
unless the jump pays, so that there is nothing to undo. (A community that opens is judged in place:
`shared.search`.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.model.predictive import pair_moments

if TYPE_CHECKING:
    from hemf.online.state import OnlineState

Change = Callable[["OnlineState"], bool]
Settle = Callable[["OnlineState"], None]

RECENT = 4000  # ratings that some are held back of
HELD_BACK = 2000  # ratings that jumps are judged by, at most
FEWEST = 100  # at least
SURE = 2  # passes in which a state without a jump settles
MOST_LEVERAGE = 0.8  # of a rating on its own prediction
MARGIN = 0.5  # standard errors by which ratings held back must be predicted better

_COUNTERS = (
    "refreshed", "searched", "followed", "known", "means", "carried_at", "spreads", "spread_at",
)  # fmt: skip


# docs/model.md#jumps
def try_jump(
    state: OnlineState,
    jump: Change,
    settle: Settle,
    *,
    passes: int = 1,
    at_least: int = SURE,
) -> bool:
    """Make a jump if it pays, and return whether it did.

    ``jump`` changes a state and returns whether there was anything to change; ``settle`` lets the
    rows follow, ``at_least`` so many times before the jump is judged, and up to ``passes`` times
    until it pays. Neither may change the ratings on record.
    """
    control, held_back = without_some(state)
    trial = copied(control)
    if not jump(trial):
        return False
    now = -np.inf
    for number in range(passes):
        settle(trial)
        if number < SURE:
            settle(control)
        if number < min(at_least, passes) - 1:
            continue
        if pays(trial, control, held_back):
            if held_back.size:  # once more, with the ratings that were held back
                trial = copied(state)
                jump(trial)
                for _ in range(number + 1):
                    settle(trial)
            take(state, trial)
            return True
        last, now = now, worth(trial, held_back)
        missing = worth(control, held_back) - now
        if number > at_least and missing > (passes - 1 - number) * max(now - last, 0.0):
            return False  # at this pace it will not get there
    return False


def without_some(state: OnlineState) -> tuple[OnlineState, Int64Array]:
    """Return a copy that has forgotten some recent ratings, and these: user, item and code.

    Where they would be too few to judge by, none.
    """
    pairs = state.recent[:, 0] * state.stores["item"].n_rows + state.recent[:, 1]
    last = np.unique(pairs[::-1], return_index=True)[1]
    held_back = state.recent[::-1][last]
    most = min(HELD_BACK, state.n_ratings // 10)
    if most < FEWEST or held_back.shape[0] < FEWEST:
        return copied(state), np.zeros((0, 3), np.int64)
    trial = copied(state)
    for store in trial.stores.values():
        store.history = store.history.copy()
    if held_back.shape[0] > most:
        held_back = held_back[np.sort(trial.rng.choice(held_back.shape[0], most, replace=False))]
    users, items, codes = np.ascontiguousarray(held_back.T)
    trial.absorb(users, items, np.full(codes.size, -1), codes, learn=False)
    return trial, held_back


def pays(trial: OnlineState, control: OnlineState, held_back: Int64Array) -> bool:
    """Whether a state with a jump explains ratings better than one without.

    Errors of ratings that were held back must be smaller by `MARGIN` standard errors. Without any,
    the bound decides, if it is known.
    """
    if not held_back.size:
        known = trial.knows_total or trial.lists_all
        return known and worth(trial, held_back) > worth(control, held_back)
    gain = squared_errors(control, held_back) - squared_errors(trial, held_back)
    return bool(gain.mean() > MARGIN * gain.std() / np.sqrt(gain.size))


def worth(state: OnlineState, held_back: Int64Array) -> float:
    """Return how well a state explains ratings: the larger, the better.

    That is less the mean squared error of ratings that were held back or, without any, the bound.
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


def left_out_errors(state: OnlineState, ratings: Int64Array) -> Float64Array:
    """Squared errors that ratings would have, about, had the model not learnt them.

    A residual divided by 1 - h, where h is the leverage of the rating on its own prediction.
    """
    users, items, codes = np.ascontiguousarray(ratings.T)
    left, right = state.stores["user"], state.stores["item"]
    mean, variance = pair_moments(left.moments, right.moments, users, items, variance=True)
    leverage = left.weight[users] * right.weight[items] * variance / state.noise
    residual = (state.levels()[codes] - mean) / (1.0 - np.clip(leverage, 0.0, MOST_LEVERAGE))
    return np.asarray(residual**2)


def remember(state: OnlineState, users: Int64Array, items: Int64Array, codes: Int64Array) -> None:
    """Keep the most recent ratings, which jumps are judged by."""
    there = codes >= 0
    new = np.column_stack([users, items, codes])
    new = new if there.all() else new[there]
    state.recent = np.concatenate([state.recent, new])[-RECENT:]


def copied(state: OnlineState) -> OnlineState:
    """Return a state that can change without this one; the ratings on record are this one's."""
    counters: dict[str, Any] = {name: dict(getattr(state, name)) for name in _COUNTERS}
    trial = replace(
        state,
        sides={name: replace(side) for name, side in state.sides.items()},
        stores={name: store.copy() for name, store in state.stores.items()},
        total=state.total.copy(),
        features={
            name: replace(features, later=dict(features.later))
            for name, features in state.features.items()
        },
        moods=copy.deepcopy(state.moods),
        rng=copy.deepcopy(state.rng),
        journal=None,  # a copy is dropped, not undone
        **counters,
    )
    for name in SIDES:
        trial.point(name)
    return trial


def take(state: OnlineState, trial: OnlineState) -> None:
    """Let a state be what a copy of it has become."""
    rng = state.rng  # it may be shared with the caller
    rng.bit_generator.state = trial.rng.bit_generator.state
    vars(state).update(vars(trial) | {"rng": rng, "journal": state.journal})
