"""What rows share while ratings arrive: noise, hyper-parameters and the number of communities.

Whatever looks at all rows of a side waits until as many have been refreshed, so that its cost for
each rating does not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf.inference import jumps, online_features, regroup
from hemf.inference.batch import NOISE_FLOOR, SIDES, noise_floor
from hemf.inference.empirical import learn_prior
from hemf.inference.settled import carry
from hemf.model.noise import balance, learn_scales
from hemf.model.packing import Float64
from hemf.model.predictive import pair_moments

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

Wholes = npt.NDArray[np.int64]

NOISE_MEMORY = 20_000  # ratings over which σ² is averaged where none is kept
NOISE_SAMPLE = 200  # ratings of a batch that are looked at for that
SEARCH_EVERY = 500  # refreshes of a side, at least, between searches for a new community
LOW_NOISE = 1e-3  # of the ratings' variance, below which rounding may matter
GROWING = 0.001  # share of new ratings above which W0 is not learnt


def is_due(state: OnlineState, name: str) -> bool:
    """Whether a side has seen as many refreshes as it has rows since it was last learnt of."""
    store = state.stores[name]
    return bool(store.totals[2] - state.refreshed[name] >= store.n_rows > 0)


def learn_row_scales(state: OnlineState, name: str, *, all_fresh: bool = False) -> None:
    """Bring the noise scales of a side and their prior to their optimum.

    The errors on record are those of each row's last refresh. Unless all rows are fresh from one,
    others have moved since, and where the bound can be told it is better to trust the scales: each
    was at its optimum then, and their prior follows from them alone.
    """
    side, store = state.sides[name], state.stores[name]
    if side.noise_scales is None or state.options.evb is None:
        return
    if state.knows_total and not all_fresh:
        scales, factor = balance(side.noise_scales)
    else:
        counts = np.rint(store.worth).astype(np.int64)
        errors = store.error / state.error_unit(name)
        scales, factor = learn_scales(side.noise_scales, errors, counts)
    if state.window != 0 and state.noise / factor < NOISE_FLOOR:
        return  # σ² would have to be raised again, which lowers the bound
    state.keep(name, only=("shape", "rate", "weight"))
    store.shape[:], store.rate[:] = scales.shape, scales.rate
    store.weight[:] = scales.mean
    side.noise_scales = replace(scales, shape=store.shape, rate=store.rate)
    store.totals[1] = store.error @ scales.mean
    if state.knows_total:
        state.total[0] = store.totals[1] if all_fresh else state.total[0] / factor
    if state.window != 0:
        state.noise /= factor


def learn_noise(
    state: OnlineState, name: str, errors: Float64 | None, n_learnt: int | None = None
) -> None:
    """σ²: of all ratings on record, or a running mean where ``errors`` of the latest are given.

    ``n_learnt`` is how many there were, where the errors are those of some of them.
    """
    if state.options.evb is None:
        return
    if errors is None:
        # Users are refreshed with each of their ratings, so that theirs are all counted.
        store = state.stores["user" if state.knows_total else name]
        if store.totals[3] < 0.5:
            return  # there is no rating that could tell
        if state.knows_total:
            state.check_total()
        total = state.total[0] if state.knows_total else store.totals[1]
        noise = total / max(float(store.totals[3]), 1.0)
    elif errors.size:
        n_learnt = n_learnt or errors.size
        part = n_learnt / (n_learnt + min(NOISE_MEMORY, max(state.seen, 1)))
        noise = (1.0 - part) * state.noise + part * float(errors.mean())
    else:
        return
    floor = NOISE_FLOOR
    if noise < LOW_NOISE:  # looking at all rows takes time
        stores = list(state.stores.values())
        n_most = int(max(store.count.max() for store in stores))
        floor = noise_floor([store.weight for store in stores], n_most, stores[0].mean.dtype)
    state.noise = max(float(noise), floor)


def errors(
    state: OnlineState, users: Wholes, items: Wholes, codes: Wholes, seats: Any = None
) -> Float64:
    """τ υ E(r - o - a·b)² of each rating that was not taken out; ``seats`` are its sittings."""
    left, right = state.stores["user"], state.stores["item"]
    there = codes >= 0
    users, items = users[there], items[there]
    mean, variance = pair_moments(left.moments, right.moments, users, items, variance=True)
    if state.moods is not None and seats is not None:
        mood, spread = state.moods.of(seats[there])
        mean, variance = mean + mood, variance + spread
    weight = left.weight[users] * right.weight[items]
    return np.asarray(weight * ((state.levels()[codes[there]] - mean) ** 2 + variance))


def sample(rng: np.random.Generator, *columns: Wholes) -> tuple[Wholes, ...]:
    """Return as many entries of a batch's columns, drawn at random, as tell about its noise."""
    if columns[0].size <= NOISE_SAMPLE:
        return columns
    drawn = rng.integers(columns[0].size, size=NOISE_SAMPLE)
    return tuple(column[drawn] for column in columns)


def learn_priors(state: OnlineState) -> None:
    """Hyper-parameters and the number of communities, when they are due."""
    for name in SIDES:
        side, store = state.sides[name], state.stores[name]
        if online_features.is_due(state, name):
            online_features.look_back(state, name)
            side.refresh()
        if is_due(state, name):
            online_features.look_again(state, name)
            if state.window == 0:
                carry(state, name)
            state.refreshed[name] = float(store.totals[2])
            if state.options.evb is not None:
                grown = state.n_ratings > (1.0 + GROWING) * state.known[name]
                settled = not grown or state.has_plenty
                side.prior = learn_prior(
                    side.prior,
                    side.communities,
                    evb=state.options.evb,
                    structure=True,
                    scale=settled,
                )
                state.known[name] = state.n_ratings
                side.refresh()
            if regroup.tidy(side, store, partial(state.keep, name)):
                state.point(name)
                side.refresh(store.statistics)
        search(state, name)


def search(state: OnlineState, name: str) -> None:
    """Look for a community among the rows refreshed of late."""
    side, store = state.sides[name], state.stores[name]
    if store.totals[2] - state.searched[name] < max(SEARCH_EVERY, store.n_rows):
        return
    recent = np.flatnonzero(store.touched > state.searched[name])
    state.searched[name] = float(store.totals[2])
    most = state.options.max_communities[name]
    if most is not None and side.n_communities >= most:
        return
    if recent.size > regroup.RECENT:
        recent = recent[np.argsort(store.touched[recent])[-regroup.RECENT :]]
    split = regroup.find_split(side, store, recent)
    if split is None:
        return

    # The evidence of the rows speaks for the split; errors of recent ratings may speak against it.
    # It is made in place: to copy the rows would take a hundred times as long as to learn a rating.
    before = jumps.left_out_errors(state, state.recent)
    mark = state.savepoint()
    state.keep(name, np.union1d(split.rows, recent), ("listed", "judged"))
    regroup.make_split(side, store, split)
    state.point(name)
    side.refresh(store.statistics)
    store.judged[recent] = 0  # weigh all communities the next time
    state.refresh(name, split.rows, learn=False)
    gain = before - jumps.left_out_errors(state, state.recent)
    if gain.size >= jumps.FEWEST and gain.mean() < -jumps.MARGIN * gain.std() / np.sqrt(gain.size):
        state.back_to(mark)
    state.release(mark)


def refresh_stale(state: OnlineState, n_learnt: int) -> None:
    """Refresh rows whose information is oldest."""
    wanted = round(state.options.refresh * n_learnt)
    for name in SIDES if wanted > 0 else ():
        store = state.stores[name]
        n = min(wanted, store.n_rows)
        oldest = np.argpartition(store.touched, n - 1)[:n]
        state.refresh(name, np.sort(oldest), learn=False)
        state.refreshed[name] += n  # what is learnt of a side waits for as many ratings as ever
