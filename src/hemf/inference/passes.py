"""A pass over all rows, in which what has changed settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hemf.inference import online_moods, shared
from hemf.inference.batch import SIDES

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState


def pass_over(state: OnlineState) -> None:
    """Refresh all rows, then their moods and the noise."""
    for name in SIDES:
        state.refresh(name, np.arange(state.stores[name].n_rows), learn=False)
    if state.moods is not None and state.is_complete:
        online_moods.smooth(state, np.arange(state.stores["user"].n_rows))
    if state.options.evb is not None:
        shared.learn_noise(state, "item", None)
