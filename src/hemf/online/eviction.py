"""Ratings that leave a bounded history: those among the newest of neither user nor item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hemf._typing import OTHER, SIDES, Int64Array
from hemf.online import binding
from hemf.online.history import History, by_pair
from hemf.online.updates import converge

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


def sum_up(state: OnlineState) -> None:
    """Keep what is among the newest ratings of either of its rows, and sums of the others.

    Where there are plenty of ratings, the factors that they are summed up with are good, and later
    ratings of the same pairs need not replace them.
    """
    renewal, state.renewal = state.renewal, 0.0  # none of these replaces another
    _sum_up(state)
    state.renewal = 0.0 if state.has_plenty else renewal


def _sum_up(state: OnlineState) -> None:
    listed = {name: store.history.to_rows() for name, store in state.stores.items()}
    rows, is_old, order = {}, {}, {}
    for name, (indptr, indices, _) in listed.items():
        lengths = np.diff(indptr)
        rows[name], order[name] = by_pair(name, indptr, indices)
        newer = np.repeat(indptr[1:], lengths) - np.arange(indices.size)
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
        binding.kernel(state, "settle_all")(
            rows[name][gone].astype(np.int64), indices[gone].astype(np.int64),
            codes[gone].astype(np.int64), *binding.pair(state, name), binding.rules(state),
            state.options.forgetting[name], binding.outer(state),
            np.zeros(0, np.int64) if seats is None else seats[gone].astype(np.int64),
        )  # fmt: skip
    if state.moods is not None:
        state.moods.leave_latest()
        state.moods.compact([store.history for store in state.stores.values()])


def end_buffering(state: OnlineState) -> None:
    """Keep from now on what the history asks for, and sum up the other ratings.

    Where ratings are plenty, rows and priors are brought to their optimum before: what sums hold is
    corrected only slowly. Where they are few, that would close directions which later ratings need.
    """
    if state.has_plenty:
        converge(state)
    state.is_buffering = False
    for store in state.stores.values():
        store.begin_sums()
    sum_up(state)
    state.add_up()
    for name in SIDES:
        state.point(name)


def retire(state: OnlineState, added: dict[str, tuple[Int64Array, Int64Array]]) -> None:
    """Sum up ratings that newer ones have taken the place of."""
    for name in SIDES:
        state.keep_outside(name, *added[name])
        binding.kernel(state, "retire_all")(
            *added[name], *binding.pair(state, name), binding.rules(state),
            state.options.forgetting[name], state.options.forgetting[OTHER[name]],
            binding.outer(state),
        )  # fmt: skip
