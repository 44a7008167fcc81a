"""Moves too large to judge on statistics alone: tried on a copy, kept if the bound is higher.

When the sweeps have settled, rows that two communities share no longer let these merge on
statistics, and nothing splits one that holds two. So the change is made on a copy of the side,
its rows are allowed to adapt for a few half-sweeps, and the bound decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from hemf.inference import moves
from hemf.inference.batch import BatchState, update_side
from hemf.inference.empirical import learn_prior
from hemf.inference.start import assign, cluster
from hemf.model.side import Side

HALF_SWEEPS = 4  # that a change may take to show its worth
CANDIDATES = 3  # pairs, and communities, that are tried before a side is left as it is
SMALLEST_SPLIT = 4.0  # rows; a community with fewer is not split


def improve(
    state: BatchState,
    *,
    max_communities: dict[str, int],
    coupled: bool,
    evb: str | None,
    splits: bool,
    rng: np.random.Generator,
    n_jobs: int | None = None,
) -> bool:
    """Try merges, then ``splits`` too, on both sides; return whether any was kept."""
    changed = False
    for name in state.sides:
        if max_communities[name] == 1:
            continue

        def attempt(change: Callable[[Side], bool], name: str = name) -> bool:
            return _try(state, name, change, coupled=coupled, evb=evb, n_jobs=n_jobs)

        while state.sides[name].n_communities > 1 and any(
            attempt(partial(_merge, left=left, right=right))
            for left, right in likely_pairs(state.sides[name])
        ):
            changed = True
        for community in np.argsort(-state.sides[name].statistics.size)[:CANDIDATES]:
            if not splits or state.sides[name].n_communities >= max_communities[name]:
                break
            if attempt(partial(_split, community=int(community), rng=rng)):
                changed = True
                break
    return changed


def likely_pairs(side: Side) -> list[tuple[int, int]]:
    """Return the pairs most worth a trial, best first."""
    left, right = np.triu_indices(side.n_communities, k=1)
    gains = moves.merge_gains(side, left, right)
    best = np.argsort(-gains)[:CANDIDATES]
    return [(int(left[k]), int(right[k])) for k in best]


def _try(
    state: BatchState,
    name: str,
    change: Callable[[Side], bool],
    *,
    coupled: bool,
    evb: str | None,
    n_jobs: int | None,
) -> bool:
    """Change a copy of one side, let it adapt, and adopt it if the bound is higher."""
    state.sides[name].refresh()  # the prior may have moved since
    before = sum(state.bound_terms().values())
    trial = replace(state, sides={**state.sides, name: state.sides[name].copy()})
    side = trial.sides[name]
    if not change(side):
        return False
    bound = -np.inf
    for step in range(HALF_SWEEPS):
        learn = evb is not None
        update_side(trial, name, coupled=coupled, hold=step == 0, learn=learn, n_jobs=n_jobs)
        if evb is not None:
            side.prior = learn_prior(
                side.prior, side.communities, evb=evb, structure=True, scale=True
            )
            side.refresh()
        last, bound = bound, sum(trial.bound_terms().values())
        if step > 0 and bound > before:
            moves.drop_empty(side)
            moves.order_by_size(side)
            state.sides[name] = side
            state.squared_error, state.noise = trial.squared_error, trial.noise
            return True
        if before - bound > (HALF_SWEEPS - 1 - step) * (bound - last):
            return False  # steps shrink: at this pace it will not get there
    return False


def _merge(side: Side, left: int, right: int) -> bool:
    moves.merge(side, left, right)
    return True


def _split(side: Side, community: int, rng: np.random.Generator) -> bool:
    """Cut a community in two along a clustering of its members' whitened means."""
    if side.statistics.size[community] < SMALLEST_SPLIT:
        return False
    labels = side.membership.argmax(axis=1)
    members = np.flatnonzero(labels == community)
    covariance = min(community, side.communities.precision.shape[0] - 1)
    whitened = side.residual_means[members] @ np.linalg.cholesky(
        side.communities.precision[covariance]
    )
    if members.size < SMALLEST_SPLIT:
        return False
    halves = cluster(whitened, 2, rng)
    if halves.min() == halves.max():
        return False
    labels[members[halves == 1]] = side.n_communities
    assign(side, labels, side.n_communities + 1)
    return True
