"""Sessions of raters online: which ratings belong to one, and their moods."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hemf._typing import Int64Array
from hemf.model.moods import ROUNDS, MoodPrior, MoodSums, learn_mood_prior
from hemf.online.moods import OnlineMoods
from hemf.online.state import OnlineState, keep_moods, pair, rows, rules

CLOSED = 0.1  # of the variance that a prior starts with; of less, moods do not open by themselves


class Seats(NamedTuple):
    """The sessions of a batch's ratings; empty without moods."""

    now: Int64Array
    before: Int64Array
    """Those that their pairs had on record, or -1."""
    touched: Int64Array
    """Raters whose moods are to be smoothed once the ratings are recorded."""


NOT_SEATED = Seats(*(np.zeros(0, np.int64) for _ in range(3)))


def find_sittings(
    state: OnlineState,
    moods: OnlineMoods,
    ratings: tuple[Int64Array, Int64Array, Int64Array, Int64Array],
    times: Int64Array | None,
) -> Seats:
    """Find the sessions of ratings (users, items, codes, previous codes), and add new ones.

    Where not every rating is kept, moods are filtered at once, in the order of time.
    """
    from hemf.kernels import moods as filtering

    users, items, codes, previous = ratings
    store = state.stores["user"]
    keep_moods(state, np.unique(users))
    types = store.mean.dtype, store.history.code.dtype
    now, before = np.full(codes.size, -1), np.full(codes.size, -1)
    when = np.zeros(codes.size, np.int64) if times is None else times
    filtering.recall_seats.compiled(*types)(users, items, rows(state, "user"), before)
    arrays = moods.arrays()
    if state.is_complete:
        filtering.seat_all.compiled(*types)(users, when, codes, 1, arrays, now)
        is_same = (now == before) & (codes == previous)
        return Seats(now, before, np.unique(users[~is_same]))
    order = np.argsort(when, kind="stable")
    seats = np.full(codes.size, -1)
    filtering.filter_all.compiled(*types)(
        users[order], items[order], codes[order], previous[order], when[order],
        *pair(state, "user"), rules(state), arrays, seats,
    )  # fmt: skip
    now[order] = seats
    return Seats(now, before, NOT_SEATED.touched)


def smooth_moods(state: OnlineState, raters: Int64Array, *, learn: bool = False) -> None:
    """Bring the moods of these raters to their optimum; with ``learn``, of all, the prior too.

    Every rating must be on record.
    """
    from hemf.kernels.moods import FILTER_SUMS, smooth_all

    moods, store = state.moods, state.stores["user"]
    assert moods is not None
    keep_moods(state, raters)
    run = smooth_all.compiled(store.mean.dtype, store.history.code.dtype)
    both, settings = pair(state, "user"), rules(state)
    used = moods.prior
    for number in range(ROUNDS if learn else 1):
        sums = np.zeros(FILTER_SUMS)
        moods.prior = used
        run(raters, *both, settings, moods.arrays(), int(number == 0), sums)
        if learn:
            first, now, before, product, extra, *counts = sums.tolist()
            n_raters, n_sittings = map(int, counts)
            used = learn_mood_prior(
                used, MoodSums(first, now, before, product, extra, 0.0, n_raters, n_sittings)
            )


def record_moods(state: OnlineState) -> None:
    """Compute the sums over ratings that smoothing needs; no mood changes."""
    from hemf.kernels.moods import LEVEL, LEVEL_SPREAD

    moods = state.moods
    assert moods is not None
    levels = moods.table[:, [LEVEL, LEVEL_SPREAD]]
    posterior = moods.moods.copy()
    smooth_moods(state, np.arange(state.stores["user"].n_rows))
    moods.table[:, [LEVEL, LEVEL_SPREAD]] = levels
    moods.moods[:] = posterior


def learn_moods(state: OnlineState) -> None:
    """Smooth all moods and, if hyper-parameters are learnt at all, learn their prior."""
    moods = state.moods
    assert moods is not None
    learn = state.options.evb is not None
    smooth_moods(state, np.arange(state.stores["user"].n_rows), learn=learn)
    if learn:
        _open_moods(state, moods)
    state.clocks.ratings["moods"] = state.seen
    state.clocks.done("moods", "user")


def _open_moods(state: OnlineState, moods: OnlineMoods) -> None:
    """Restart a prior of moods that has closed, where that raises the bound.

    With few sessions the factors may explain all of the moods. The variances would not grow again
    from almost zero.
    """
    start, prior = MoodPrior(), moods.prior
    if prior.variance + prior.extra >= CLOSED * (start.variance + start.extra):
        return
    before, kept = _mood_bound(state, moods), (moods.table.copy(), moods.moods.copy())
    total, smoothed = state.total.copy(), moods.smoothed.copy()
    moods.prior = start
    smooth_moods(state, np.arange(state.stores["user"].n_rows), learn=True)
    if not _mood_bound(state, moods) > before:
        moods.prior, moods.smoothed = prior, smoothed
        (moods.table[:], moods.moods[:]), state.total[:] = kept, total


def _mood_bound(state: OnlineState, moods: OnlineMoods) -> float:
    """Return the part of the bound that depends on moods and their prior."""
    history = state.stores["user"].history
    errors = float(state.errors(*history.triples(), history.sittings()).sum())
    return -0.5 * errors / state.noise - moods.divergence(complete=True)
