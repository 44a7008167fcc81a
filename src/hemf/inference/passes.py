"""A pass over all rows, in which what has changed settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hemf.inference import online_moods, shared
from hemf.inference.batch import SIDES
from hemf.inference.empirical import learn_prior

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState


MAX_PASSES = 30
TOLERANCE = 3e-3  # root mean square of the moves of a side's means, standardised


def converge(state: OnlineState) -> None:
    """Pass over all rows, and learn hyper-parameters, until rows hardly move."""
    for _ in range(MAX_PASSES):
        before = {name: store.mean.copy() for name, store in state.stores.items()}
        pass_over(state)
        for side, store in zip(state.sides.values(), state.stores.values(), strict=True):
            side.refresh(store.statistics)
            if state.options.evb is not None:
                side.prior = learn_prior(
                    side.prior,
                    side.communities,
                    evb=state.options.evb,
                    structure=True,
                    scale=True,
                )
                side.refresh()
        moves = [np.sqrt(np.mean((state.stores[name].mean - before[name]) ** 2)) for name in SIDES]
        if max(moves) < TOLERANCE:
            return


def pass_over(state: OnlineState) -> None:
    """Refresh all rows, then their moods and the noise."""
    for name in SIDES:
        state.refresh(name, np.arange(state.stores[name].n_rows), learn=False)
    if state.moods is not None and state.is_complete:
        online_moods.smooth(state, np.arange(state.stores["user"].n_rows))
    if state.options.evb is not None:
        shared.learn_noise(state, "item", None)
