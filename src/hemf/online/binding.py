"""A state that learns online, as its kernels take it: `hemf.kernels.structures`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf._typing import OTHER
from hemf.model.communities import expected_row
from hemf.model.side import Side
from hemf.online.journal import Journal
from hemf.online.sums import spread

if TYPE_CHECKING:
    from hemf.online.options import OnlineOptions
    from hemf.online.state import OnlineState

CHANGE = 1.0  # refreshes of each row of the other side until one that is rated is refreshed
PATIENCE = {"user": 0.0, "item": 0.05}  # part of a row's ratings that wait until it is refreshed
UNLISTED = 2.0  # times as many, where none is kept: a refresh finds nothing but these to learn from


def kernel(state: OnlineState, called: str) -> Any:
    """Return a kernel for the storage that the state has."""
    from hemf.kernels import online

    store = state.stores["user"]
    return getattr(online, called).compiled(store.mean.dtype, store.history.code.dtype)


def is_ready(options: OnlineOptions, dtype: Any) -> bool:
    """Whether the kernels that learn a batch have been compiled on this machine before."""
    from hemf.kernels import online

    return all(getattr(online, called).is_ready(dtype) for called in of_batches(options))


def make_ready(state: OnlineState) -> None:
    """Load the kernels that learn a batch: that takes longer than to learn one."""
    from hemf.model.predictive import pair_moments

    for called in of_batches(state.options):
        kernel(state, called)
    nothing = np.empty(0, np.int64)
    left, right = (state.stores[name].moments for name in OTHER)
    pair_moments(left, right, nothing, nothing, variance=True)
    journal = Journal()
    for store in state.stores.values():
        store.history.reserve(nothing, nothing)
        store.keep(journal, nothing)
    journal.close()


def of_batches(options: OnlineOptions) -> list[str]:
    """Return the names of the kernels that adopt a fit and learn a batch."""
    always = ["keep_all", "record_all", "refresh_all"]
    if options.window == 0:
        return [*always, "settle_all"]
    return [*always, "recall_all", *(["settle_all", "retire_all"] if options.window > 0 else [])]


def rows(state: OnlineState, name: str) -> Any:
    """Return what is kept of a side's rows, in place."""
    from hemf.kernels.structures import Rows

    store = state.stores[name]
    history = store.history
    lists = {key: getattr(history, key) for key in ("start", "length", "other", "code", "sitting")}
    return Rows(**store.in_use(), **lists)


def pair(state: OnlineState, name: str) -> tuple[Any, Any]:
    """Return a side's rows and those of the other."""
    return rows(state, name), rows(state, OTHER[name])


def rules(state: OnlineState) -> Any:
    """Return what holds for both sides."""
    from hemf.kernels.structures import Rules

    options, dtype = state.options, state.stores["user"].mean.dtype
    return Rules(
        levels=state.levels().astype(dtype),
        noise=float(state.noise),
        window=state.window,
        repeats=int(options.counts_repeats),
        renewal=float(state.renewal),
        least_share=options.least_share,
        thorough=int(options.thorough),
        total=state.total,
        moods=sittings(state).moods,
    )


def sittings(state: OnlineState) -> Any:
    """Return what is believed of raters' moods, in place; without moods, nothing."""
    if state.moods is None:
        return no_sittings(state.stores["user"].mean.dtype)
    return state.moods.arrays()


@cache
def no_sittings(dtype: Any) -> Any:
    """Return what kernels take where raters have no moods."""
    from hemf.kernels.moods import WIDTH
    from hemf.kernels.structures import Sittings

    whole = np.zeros(0, np.int64)
    return Sittings(
        table=np.zeros((0, WIDTH), dtype),
        moods=np.zeros((0, 2), dtype),
        time=whole,
        links=np.zeros((0, 3), np.int32),
        last=whole,
        smoothed=whole,
        used=whole,
        prior=np.zeros(0),
    )


def believed(side: Side) -> dict[str, Any]:
    """Return a side's communities, by their names in `hemf.kernels.structures.Shared`."""
    communities, scales = side.communities, side.noise_scales
    # Of one community every row is a member, whatever speaks for it.
    is_one = communities.count == 1
    return {
        "precision": np.ascontiguousarray(communities.precision),
        "natural_mean": np.ascontiguousarray(communities.natural_mean),
        "log_weight": np.zeros(1) if is_one else np.ascontiguousarray(communities.log_weight),
        "free": side.layout.free,
        "pinned": side.layout.pinned,
        "prior_shape": 0.0 if scales is None else float(scales.prior_shape),
        "expected": expected_row(communities, side.layout),
        **spoken(side),
    }


def spoken(side: Side) -> dict[str, Any]:
    """Return what a side's regression says of how many ratings rows have, by its names there."""
    words = None if side.regression is None else side.regression.coefficient_blocks
    if words is None or words.logs is None:
        return {"how_many": np.zeros((0, side.layout.order)), "logs": np.zeros(0)}
    return {"how_many": np.ascontiguousarray(words.how_many), "logs": words.logs.array}


def patience(options: OnlineOptions, window: int, name: str) -> float:
    """Return what part of a row's ratings may wait until it is refreshed."""
    if options.thorough:
        return 0.0
    return PATIENCE[name] * (UNLISTED if window == 0 else 1.0)


def shared(state: OnlineState, name: str) -> Any:
    """Return a side's communities, and their statistics in place."""
    from hemf.kernels.structures import Shared

    store = state.stores[name]
    return Shared(
        **believed(state.sides[name]),
        size=store.size,
        first=store.first,
        scatter=store.scatter,
        totals=store.totals,
        error_unit=state.error_unit(name),
        spread=spread(state, OTHER[name]),
        keep=float(state.options.forgetting[name]),
        patience=patience(state.options, state.window, name),
        change=CHANGE * state.stores[OTHER[name]].n_rows,
    )


def scratch(own: Any, common: Any) -> Any:
    """Return working memory for refreshes of a side's rows."""
    from hemf.kernels import structures

    return structures.scratch(own, common)


def outer(state: OnlineState) -> Any:
    """Return working memory for sums."""
    from hemf.kernels import structures

    store = state.stores["user"]
    return structures.outer(store.mean, store.second)
