"""A state that learns online, made of a fitted one: at the end of the fit where it can be."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from hemf.inference import binding, origins
from hemf.inference.batch import BatchState
from hemf.inference.fit import one_blas_thread
from hemf.inference.history import RatingBook
from hemf.inference.online import OnlineState
from hemf.inference.online_moods import OnlineMoods
from hemf.inference.online_options import OnlineOptions
from hemf.inference.rowstore import MOST_PARTS
from hemf.memory import available_bytes
from hemf.ratings import Ratings
from hemf.vocabulary import Vocabulary

MOST_PREPARED = 2**29  # bytes that a fit may take to make the first partial_fit a fast one
MARGIN = 4  # times that must be available
BYTES_OF_RATING = 12  # on record on both sides, see `hemf.inference.history`


class Adopted(NamedTuple):
    """A state that learns online, and the ids of its rows."""

    state: OnlineState
    users: Vocabulary
    items: Vocabulary


def prepare(
    fitted: BatchState,
    data: Ratings,
    centre: float,
    options: OnlineOptions,
) -> Adopted | None:
    """Return what the first `partial_fit` goes on from, made at the end of a fit.

    Sorting the ratings and putting on record what rows give takes time that grows with the
    ratings. The first call of `partial_fit` does it instead where it would take more than
    `MOST_PREPARED` bytes, or much of the memory that is available, or where nothing has learnt
    online on this machine yet, so that its code would have to be compiled.
    """
    size, there = _online_bytes(fitted), available_bytes()
    if size > MOST_PREPARED or (there is not None and MARGIN * size > there):
        return None
    if not binding.is_ready(options, fitted.sides["user"].moments.mean.dtype):
        return None
    try:
        ready = adopted(fitted, data, centre, options)
    except MemoryError:
        return None
    binding.make_ready(ready.state)
    import_module("hemf.streaming")  # which imports this module
    return ready


def _online_bytes(fitted: BatchState) -> int:
    """Estimate the memory of a learner: the ratings on both sides, and the rows."""
    size = BYTES_OF_RATING * fitted.n_ratings
    for side in fitted.sides.values():
        parts = min(MOST_PARTS, side.n_communities)
        row = side.moments.mean.shape[1] + (1 + parts) * side.moments.second.shape[1]
        size += side.n_rows * row * side.moments.mean.itemsize
    return int(size)


def adopted(fitted: BatchState, data: Ratings, centre: float, options: OnlineOptions) -> Adopted:
    """Return a state that goes on from a fit, and the ids of its rows; the fit stays as it is.

    What it draws at random, it draws from a generator that is given to it later.
    """
    book, moods = RatingBook(), None
    if fitted.moods is not None:
        moods = OnlineMoods.adopt(fitted.moods, fitted.sides["user"].moments.mean.dtype)
    with one_blas_thread():
        state = origins.adopt(
            OnlineState,
            fitted,
            _by_age(data, book, fitted),
            book,
            options,
            centre=centre,
            rng=np.random.default_rng(0),
            moods=moods,
        )
    # Copies, and without ids that were added since the fit.
    users, items = (
        Vocabulary(data.users.ids[: data.n_users]),
        Vocabulary(data.items.ids[: data.n_items]),
    )
    return Adopted(state, users, items)


def suits(prepared: Adopted, wanted: OnlineOptions) -> bool:
    """Whether what was prepared with other options can learn with these."""
    options = prepared.state.options
    return (
        options.window == wanted.window
        and options.counts_repeats == wanted.counts_repeats
        and options.forgetting == wanted.forgetting
    )


def _by_age(data: Ratings, book: RatingBook, fitted: BatchState) -> dict[str, tuple[Any, ...]]:
    """Each side's ratings as compressed rows of codes, oldest first where times are known.

    Where raters have moods, with the sitting of each.
    """
    users, items, values = data.triples()
    codes = book.codes(values)
    times = np.zeros(values.size, np.int64) if data.timestamps is None else data.timestamps
    tables: dict[str, tuple[Any, ...]] = {}
    for name, own, other, n in (
        ("user", users, items, data.n_users),
        ("item", items, users, data.n_items),
    ):
        order = np.lexsort((times, own))
        indptr = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(own, minlength=n), out=indptr[1:])
        tables[name] = indptr, other[order], codes[order]
        if fitted.moods is not None:
            tables[name] = *tables[name], fitted.moods.sitting["user"][order]
    return tables
