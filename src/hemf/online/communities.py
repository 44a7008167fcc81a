"""Splits, merges and removals of communities online, each judged by the bound.

Contributions of rows to communities are stored with the rows. So rows can be moved to a new
community, or two communities be merged, by adding and subtracting statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hemf._typing import BoolArray, Float64Array, Int64Array
from hemf.model.communities import (
    Prior,
    Statistics,
    community_evidence,
    community_posterior,
    learn_prior,
    own_evidence,
    stick_evidence,
    with_floor,
)
from hemf.model.rows import unpack
from hemf.model.side import EMPTY, Side, merge_alike, order_by_size
from hemf.online.store import RowStore

MIN_SPLIT_ROWS = 8  # rows that can open a community
LLOYD_STEPS = 5  # of k-means
LEARNING = 2  # rounds in which the prior that moves are judged by is learnt
CLEAR = 0.9  # mean share of rows' likeliest communities above which these are clear
SEVERAL = 0.05  # share of a side's rows that must be in the second largest of them


def tidy(side: Side, store: RowStore, announce: Callable[..., None] = lambda only: None) -> bool:
    """Drop empty communities, merge similar ones, and sort them by size.

    ``announce`` is called with the names of the `RowArrays` that will change.
    """
    dropped = _drop_empty(side, store, announce)
    before = store.size.size
    if before == 1:
        return dropped
    # One more row for each community, a full member of it, shows at the end where it went. Such
    # rows change no entropy, so moves are judged as without them.
    marks = np.eye(before, dtype=store.membership.dtype)
    given = store.membership[store.listed[:, 0] >= 0]  # rows without a rating are in none
    trial = replace(side, membership=np.vstack([given, marks]))
    trial.prior = judging_prior(side, store.statistics)
    trial.refresh(store.statistics)
    merge_alike(trial)
    order_by_size(trial)
    target = trial.membership[-before:].argmax(axis=1)
    if np.array_equal(target, np.arange(before)):
        return dropped
    # Parts change only where communities are merged. They are so large that copying them takes
    # longer than all else here.
    are_merged = trial.n_communities < before
    announce(only=("listed", "entropy", *(("parts",) if are_merged else ())))
    _merge_entropy(store, target)
    store.regroup(target.astype(np.int64), trial.n_communities)
    store.take_statistics(trial.statistics)
    store.totals[0] = store.entropy.sum()
    return True


def _drop_empty(side: Side, store: RowStore, announce: Callable[..., None]) -> bool:
    """Drop communities without rows, and the negligible contributions to them."""
    alive = np.flatnonzero(store.size >= EMPTY)
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
    """Return the prior that fits the current communities.

    With few ratings the prior of a side is held wider, which would underestimate the gain of
    communities.
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


def _merge_entropy(store: RowStore, target: Int64Array) -> None:
    """Update the entropy of rows whose communities are merged."""
    from scipy.special import xlogy

    for to in np.flatnonzero(np.bincount(target[target >= 0]) > 1):
        alike = store.membership[:, target == to].astype(np.float64)
        whole = alike.sum(axis=1)
        store.entropy[:] += xlogy(alike, alike).sum(axis=1) - xlogy(whole, whole)


def cuts(points: Float64Array) -> list[BoolArray]:
    """Ways to cut points in two: along their widest direction, and around the farthest point.

    >>> [cut.tolist() for cut in cuts(np.array([[0.0], [0.1], [5.0]]))]
    [[False, False, True], [False, False, True]]
    """
    away = points - points.mean(axis=0)
    _, directions = np.linalg.eigh(away.T @ away)
    farthest = points[np.argmax(np.sum(away * away, axis=1))]
    widest = away @ directions[:, -1]
    widest *= np.sign(widest[np.argmax(np.abs(widest))])
    near = np.sum((points - farthest) ** 2, axis=1) < np.sum(away * away, axis=1)
    return [_two_means(points, widest > 0.0), _two_means(points, near)]


def _two_means(points: Float64Array, first: BoolArray) -> BoolArray:
    """Move points to the half whose mean is nearer, a few times (2-means)."""
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
    """Rows of a community that would move to a new one."""

    community: int
    rows: Int64Array


def find_split(side: Side, store: RowStore, rows: Int64Array) -> Split | None:
    """Find the split of a community, with some of these rows, that raises the bound most.

    The rows of each community are cut in two by a clustering of their means. None if no cut raises
    the bound.
    """
    statistics = store.statistics
    prior = judging_prior(side, statistics)
    found: list[Split] = []
    given: list[Float64Array] = []
    main = store.listed[rows, 0]  # its likeliest community
    for d in np.unique(main[main >= 0]).tolist():
        members = rows[main == d]
        if members.size < MIN_SPLIT_ROWS:
            continue
        covariance = min(d, side.communities.precision.shape[0] - 1)
        metric = np.linalg.cholesky(side.communities.precision[covariance])
        means = store.mean[members][:, side.layout.free].astype(np.float64)
        if side.regression is not None:
            means -= store.shift[members]  # communities are of a_i - f_i
        means = means @ metric
        choices = [half for first in cuts(means) for half in (first, ~first)]
        choices = [half for half in choices if np.count_nonzero(half) >= MIN_SPLIT_ROWS]
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
    """Return the gain of the bound by each split: a community, and the statistics that leave it."""
    after = [_split(statistics, d, given, tied=tied) for d, given in splits]
    now = community_evidence(statistics, prior)
    if tied:
        return np.array([community_evidence(split, prior) - now for split in after])
    # All but two communities stay: to evaluate all of them takes far longer.
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
    store.write_membership(count + 1)


def _given(store: RowStore, rows: Int64Array, d: int) -> Float64Array:
    """Return the contributions of these rows, which all list community d, to d."""
    at, slots = np.nonzero(store.listed[rows] == d)
    return np.asarray(store.parts[rows[at], slots], np.float64)


def _split(statistics: Statistics, d: int, given: Float64Array, *, tied: bool) -> Statistics:
    """Statistics after some sums of d have moved to a new community."""
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
