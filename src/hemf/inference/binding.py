"""A state that learns online, as its kernels take it: `hemf.kernels.structures`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hemf.inference.settled import OTHER, spread
from hemf.model.predictive import prior_predictive

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

ITEM_PATIENCE = 10  # ratings that may wait before a busy item is refreshed


def kernel(state: OnlineState, called: str) -> Any:
    """Return a kernel for the storage that the state has."""
    from hemf.kernels import online

    store = state.stores["user"]
    return getattr(online, called).compiled(store.mean.dtype, store.history.code.dtype)


def rows(state: OnlineState, name: str) -> Any:
    """Return what is kept of a side's rows, in place."""
    from hemf.kernels.structures import Rows

    store = state.stores[name]
    history = store.history
    values = {
        key: getattr(history, key) if hasattr(history, key) else getattr(store, key)
        for key in Rows._fields
    }
    return Rows(**values)


def rules(state: OnlineState) -> Any:
    """Return what holds for both sides."""
    from hemf.kernels.structures import Rules

    options, dtype = state.options, state.stores["user"].mean.dtype
    return Rules(
        levels=state.levels().astype(dtype),
        noise=float(state.noise),
        window=options.window,
        least_share=options.least_share,
        thorough=int(options.thorough),
    )


def shared(state: OnlineState, name: str) -> Any:
    """Return a side's communities, and their statistics in place."""
    from hemf.kernels.structures import Shared

    side, store = state.sides[name], state.stores[name]
    communities, scales = side.communities, side.noise_scales
    return Shared(
        precision=np.ascontiguousarray(communities.precision),
        pull=np.ascontiguousarray(communities.pull),
        log_weight=np.ascontiguousarray(communities.log_weight),
        size=store.size,
        first=store.first,
        scatter=store.scatter,
        totals=store.totals,
        free=side.layout.free,
        pinned=side.layout.pinned,
        prior_shape=0.0 if scales is None else float(scales.prior_shape),
        error_unit=state.error_unit(name),
        expected=prior_predictive(communities, side.layout)[0],
        spread=spread(state, OTHER[name]),
        keep=float(state.options.forgetting[name]),
        patience=1 if name == "user" else ITEM_PATIENCE,
    )
