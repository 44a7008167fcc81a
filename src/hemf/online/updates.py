"""What rows share while ratings arrive: noise, hyper-parameters and the number of communities.

Whatever looks at all rows of a side waits until as many have been refreshed, so that its cost for
each rating does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.batch import merge_split
from hemf.batch.empirical import learn_prior
from hemf.batch.sweep import NOISE_FLOOR, noise_floor
from hemf.model.bound import community_evidence, own_evidence, stick_evidence
from hemf.model.communities import Prior, Statistics, community_posterior, with_floor
from hemf.model.layout import unpack
from hemf.model.noise import balance, learn_scales
from hemf.model.predictive import pair_moments
from hemf.model.side import Side
from hemf.online import features, jumps, moods, updates
from hemf.online.store import RowStore
from hemf.online.sums import carry

if TYPE_CHECKING:
    from hemf.online.state import OnlineState


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


# docs/model.md#online-noise
def learn_noise(
    state: OnlineState, name: str, errors: Float64Array | None, n_learnt: int | None = None
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
    state: OnlineState, users: Int64Array, items: Int64Array, codes: Int64Array, seats: Any = None
) -> Float64Array:
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


def sample(rng: np.random.Generator, *columns: Int64Array) -> tuple[Int64Array, ...]:
    """Return as many entries of a batch's columns, drawn at random, as tell about its noise."""
    if columns[0].size <= NOISE_SAMPLE:
        return columns
    drawn = rng.integers(columns[0].size, size=NOISE_SAMPLE)
    return tuple(column[drawn] for column in columns)


def learn_priors(state: OnlineState) -> None:
    """Hyper-parameters and the number of communities, when they are due."""
    for name in SIDES:
        side, store = state.sides[name], state.stores[name]
        if features.is_due(state, name):
            features.look_back(state, name)
            side.refresh()
        if is_due(state, name):
            features.look_again(state, name)
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
            if tidy(side, store, partial(state.keep, name)):
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
    if recent.size > RECENT:
        recent = recent[np.argsort(store.touched[recent])[-RECENT:]]
    split = find_split(side, store, recent)
    if split is None:
        return

    # The evidence of the rows speaks for the split; errors of recent ratings may speak against it.
    # It is made in place: to copy the rows would take a hundred times as long as to learn a rating.
    before = jumps.left_out_errors(state, state.recent)
    mark = state.savepoint()
    state.keep(name, np.union1d(split.rows, recent), ("listed", "judged"))
    make_split(side, store, split)
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


# ------------------------------------------------------------------------------------------------
# A pass over all rows, in which what has changed settles.


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
        moods.smooth(state, np.arange(state.stores["user"].n_rows))
    if state.options.evb is not None:
        updates.learn_noise(state, "item", None)


# ------------------------------------------------------------------------------------------------
# Communities that open, merge and go while ratings arrive, each change judged by the lower bound.
#
# What a row has given to a community is on record with the row, so that a part of a community's
# rows can be moved to a new one, or two communities be made one, by adding and subtracting alone.


RECENT = 2048  # rows that are looked at for a community among them
FEWEST = 8  # rows that can open a community
LLOYD_STEPS = 5  # of k-means
LEARNING = 2  # rounds in which the prior that moves are judged by is learnt
CLEAR = 0.9  # mean share of rows' likeliest communities above which these are clear
SEVERAL = 0.05  # share of a side's rows that must be in the second largest of them


def tidy(side: Side, store: RowStore, announce: Callable[..., None] = lambda only: None) -> bool:
    """Drop empty communities, merge those that are alike, and put the largest first.

    ``announce`` is called before rows are changed, with the names of those `RowArrays` that are.
    """
    dropped = _drop_empty(side, store, announce)
    before = store.size.size
    if before == 1:
        return dropped
    # One more row for each community, wholly in it, shows at the end where it went. Such rows
    # change no entropy, so no move is judged differently for them.
    marks = np.eye(before, dtype=store.membership.dtype)
    given = store.membership[store.listed[:, 0] >= 0]  # rows without a rating are in none
    trial = replace(side, membership=np.vstack([given, marks]))
    trial.prior = judging_prior(side, store.statistics)
    trial.refresh(store.statistics)
    merge_split.merge_alike(trial)
    merge_split.order_by_size(trial)
    target = trial.membership[-before:].argmax(axis=1)
    if np.array_equal(target, np.arange(before)):
        return dropped
    # What rows give to their communities changes only where two of these become one. There is so
    # much of it that keeping it for nothing would take longer than all else here.
    are_merged = trial.n_communities < before
    announce(only=("listed", "entropy", *(("parts",) if are_merged else ())))
    _settle_entropy(store, target)
    store.regroup(target.astype(np.int64), trial.n_communities)
    store.take_statistics(trial.statistics)
    store.totals[0] = store.entropy.sum()
    return True


def _drop_empty(side: Side, store: RowStore, announce: Callable[..., None]) -> bool:
    """Forget communities that no row belongs to; what little rows have given them goes too."""
    alive = np.flatnonzero(store.size >= merge_split.EMPTY)
    if not 0 < alive.size < store.size.size:
        return False
    statistics = store.statistics
    target = np.full(store.size.size, -1)
    target[alive] = np.arange(alive.size)
    kept = statistics.select(alive)
    if side.tied:
        rows, slots = np.nonzero((store.listed >= 0) & (target[store.listed] < 0))
        lost = store.parts[rows, slots, 1 + side.layout.order :].astype(np.float64).sum(axis=0)
        kept = replace(kept, scatter=kept.scatter - unpack(lost))
    announce(only=("listed",))
    store.regroup(target, alive.size)
    store.take_statistics(kept)
    return True


def judging_prior(side: Side, statistics: Statistics) -> Prior:
    """Return the prior that suits the communities as they are.

    While ratings are scarce a side's own is held wider than that, and under it communities would
    seem to be worth less than they are.
    """
    prior = side.prior
    for _ in range(LEARNING):
        communities = with_floor(community_posterior(statistics, prior), prior)
        prior = learn_prior(prior, communities, evb="closed", structure=True, scale=True)
    return prior


def is_clear(side: Side) -> bool:
    """Whether the rows of a side clearly fall into several communities."""
    if side.n_communities == 1 or float(side.membership.max(axis=1).mean()) < CLEAR:
        return False
    return bool(np.sort(side.membership.sum(axis=0))[-2] >= SEVERAL * side.n_rows)


def _settle_entropy(store: RowStore, target: Int64Array) -> None:
    """Give rows whose communities become one the entropy that they lose no more."""
    from scipy.special import xlogy

    membership = store.membership.astype(np.float64)
    merged = np.zeros((membership.shape[0], int(target.max()) + 1))
    for d, to in enumerate(target):
        if to >= 0:
            merged[:, to] += membership[:, d]
    store.entropy[:] += xlogy(membership, membership).sum(axis=1) - xlogy(merged, merged).sum(
        axis=1
    )


def cuts(points: Float64Array) -> list[npt.NDArray[np.bool_]]:
    """Ways to cut points in two: along their widest direction, and around the one farthest out.

    >>> [cut.tolist() for cut in cuts(np.array([[0.0], [0.1], [5.0]]))]
    [[False, False, True], [False, False, True]]
    """
    away = points - points.mean(axis=0)
    _, directions = np.linalg.eigh(away.T @ away)
    farthest = points[np.argmax(np.sum(away * away, axis=1))]
    widest = away @ directions[:, -1]
    widest *= np.sign(widest[np.argmax(np.abs(widest))])
    near = np.sum((points - farthest) ** 2, axis=1) < np.sum(away * away, axis=1)
    return [_settled(points, widest > 0.0), _settled(points, near)]


def _settled(points: Float64Array, first: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Move points to the half whose mean is nearer, a few times over."""
    total = points.sum(axis=0)
    for _ in range(LLOYD_STEPS):
        n = np.count_nonzero(first)
        if not 0 < n < first.size:
            break
        part = first.astype(np.float64) @ points
        left, right = part / n, (total - part) / (first.size - n)
        across = left - right
        before, first = first, points @ across > 0.5 * ((left + right) @ across)
        if np.array_equal(before, first):
            break
    return first


class Split(NamedTuple):
    """Rows of a community that would go to a new one."""

    community: int
    rows: Int64Array


def find_split(side: Side, store: RowStore, rows: Int64Array) -> Split | None:
    """Find a community that is better split, for some of these rows to go to a new one.

    The rows of each community are cut in two along a clustering of their means. Of the cuts that
    raise the bound, the one that raises it most is returned.
    """
    statistics = store.statistics
    prior = judging_prior(side, statistics)
    found: list[Split] = []
    given: list[Float64Array] = []
    main = store.listed[rows, 0]  # its likeliest community
    for d in np.unique(main[main >= 0]).tolist():
        members = rows[main == d]
        if members.size < FEWEST:
            continue
        covariance = min(d, side.communities.precision.shape[0] - 1)
        metric = np.linalg.cholesky(side.communities.precision[covariance])
        means = store.mean[members][:, side.layout.free].astype(np.float64)
        if side.regression is not None:
            means -= store.shift[members]  # communities are of what features leave
        means = means @ metric
        choices = [half for first in cuts(means) for half in (first, ~first)]
        choices = [half for half in choices if np.count_nonzero(half) >= FEWEST]
        if not choices:
            continue
        given += list(np.array(choices, np.float64) @ _given(store, members, d))
        found += [Split(d, members[half]) for half in choices]
    if not found:
        return None
    splits = [(split.community, part) for split, part in zip(found, given, strict=True)]
    gains = split_gains(statistics, prior, splits, tied=side.tied)
    best = int(np.argmax(gains))
    return found[best] if gains[best] > 0.0 else None


def split_gains(
    statistics: Statistics, prior: Prior, splits: list[tuple[int, Float64Array]], *, tied: bool
) -> Float64Array:
    """By how much the bound rises with each split: a community, and what would leave it."""
    after = [_split(statistics, d, given, tied=tied) for d, given in splits]
    now = community_evidence(statistics, prior)
    if tied:
        return np.array([community_evidence(split, prior) - now for split in after])
    # All but two communities are as they were: to look at all of them takes far longer.
    before = own_evidence(statistics.size, statistics.first, statistics.firm, prior)
    pairs = [split.select(np.array([d, -1])) for split, (d, _) in zip(after, splits, strict=True)]
    changed = own_evidence(
        np.array([pair.size for pair in pairs]),
        np.array([pair.first for pair in pairs]),
        np.array([pair.firm for pair in pairs]),
        prior,
    )
    gains = np.empty(len(splits))
    for k, (d, _) in enumerate(splits):
        own = np.append(before, changed[k, 1])
        own[d] = changed[k, 0]
        sticks = float(stick_evidence(after[k].size, prior.concentration))
        gains[k] = sticks + float(own.sum()) - now
    return gains


def make_split(side: Side, store: RowStore, split: Split) -> None:
    """Open a community for the rows of a split."""
    given = _given(store, split.rows, split.community).sum(axis=0)
    statistics = _split(store.statistics, split.community, given, tied=side.tied)
    count = store.size.size
    store.regroup(np.arange(count), count + 1)
    listed = store.listed
    rows_of, slots = np.nonzero(listed[split.rows] == split.community)
    listed[split.rows[rows_of], slots] = count
    store.take_statistics(statistics)
    store.spell_out(count + 1)


def _given(store: RowStore, rows: Int64Array, d: int) -> Float64Array:
    """Return what each of these rows, all in d, has given to it; as in `RowStore.parts`."""
    at, slots = np.nonzero(store.listed[rows] == d)
    return np.asarray(store.parts[rows[at], slots], np.float64)


def _split(statistics: Statistics, d: int, given: Float64Array, *, tied: bool) -> Statistics:
    """Statistics after a part of what d was given has gone to a new community."""
    order = statistics.first.shape[1]
    moment = given[1 : 1 + order]
    size, first = np.append(statistics.size, given[0]), np.vstack([statistics.first, moment])
    size[d] -= given[0]
    first[d] -= moment
    scatter = statistics.scatter
    moved = unpack(given[1 + order :])
    if not tied:
        scatter = np.concatenate([scatter, moved[None]])
        scatter[d] -= moved
    return replace(statistics, size=size, first=first, scatter=scatter)
