"""Merges and reorderings of communities, judged by the lower bound on statistics alone.

Coordinate ascent does not rejoin the fragments of a community. A move is kept if the bound is
higher.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf._typing import Float64Array
from hemf.model.bound import own_evidence, scale_matrices, stick_evidence, tied_evidence
from hemf.model.side import Side

EMPTY = 1e-3  # rows; a community with less is dropped


def order_by_size(side: Side) -> None:
    """Sort communities by size, largest first, where that raises the bound.

    It does for α ≤ 1. For larger α a large community at the end is better, as the last stick has
    length 1.
    """
    order = np.argsort(-side.statistics.size, kind="stable")
    now = stick_evidence(side.statistics.size, side.prior.concentration)
    if stick_evidence(side.statistics.size[order], side.prior.concentration) > now:
        side.select(order)


def drop_empty(side: Side) -> None:
    """Drop communities without rows."""
    alive = np.flatnonzero(side.statistics.size >= EMPTY)
    if 0 < alive.size < side.n_communities:
        side.select(alive)


def merge_alike(side: Side) -> int:
    """Merge the best pair as long as that raises the bound; return the number of merges.

    The merged posterior of a row has the moments of both parts, so the ratings term stays. Its
    entropy is at least that of the parts, and is counted as that.
    """
    merged = 0
    while side.n_communities > 1:
        first, second, gain = best_merge(side)
        if gain <= 0.0:
            break
        merge(side, first, second)
        merged += 1
    return merged


def best_merge(side: Side) -> tuple[int, int, float]:
    """Return the pair whose merge raises the bound most, and by how much.

    Memberships lose entropy in every merge. Computing that takes a pass over all rows, so it is
    done only for pairs that can still be the best.
    """
    left, right = np.triu_indices(side.n_communities, k=1)
    at_most = _posterior_gains(side, left, right) + _stick_gains(side, left, right)
    best, gain = 0, -np.inf
    for pair in np.argsort(-at_most, kind="stable"):
        if at_most[pair] <= gain:
            break
        exact = at_most[pair] + _membership_gains(side, left[[pair]], right[[pair]])[0]
        if exact > gain:
            best, gain = pair, exact
    return int(left[best]), int(right[best]), float(gain)


# docs/model.md#merge
def merge_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Lower bound of the gain of merging each pair."""
    return (
        _posterior_gains(side, left, right)
        + _stick_gains(side, left, right)
        + _membership_gains(side, left, right)
    )


def merge(side: Side, left: int, right: int) -> None:
    """Merge community ``right`` into ``left``."""
    entropy = _membership_gains(side, np.array([left]), np.array([right]))[0]
    kept = np.delete(np.arange(side.n_communities), right)
    membership = side.membership.copy()
    membership[:, left] += membership[:, right]
    side.membership = np.ascontiguousarray(membership[:, kept])
    old = side.statistics
    size, moment, scatter = old.size.copy(), old.first.copy(), old.scatter.copy()
    size[left] += size[right]
    moment[left] += moment[right]
    if not old.tied:
        scatter[left] += scatter[right]
        scatter = scatter[kept]
    together = replace(old, size=size[kept], first=moment[kept], scatter=scatter)
    side.refresh(replace(together, entropy=old.entropy + float(entropy)))
    order_by_size(side)


def _posterior_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of factor and NIW terms for each pair."""
    old, prior = side.statistics, side.prior
    size = old.size[left] + old.size[right]
    moment = old.first[left] + old.first[right]
    if not old.tied:
        scatter = old.firm
        apart = own_evidence(old.size, old.first, scatter, prior)
        together = own_evidence(size, moment, scatter[left] + scatter[right], prior)
        return np.asarray(together - apart[left] - apart[right])
    nothing = np.zeros((1, 1))
    kappa, part = scale_matrices(old.size, old.first, nothing, prior)
    merged_kappa, merged_part = scale_matrices(size, moment, nothing, prior)
    scale = prior.scale + old.firm[0] + part.sum(axis=0)  # W under the present prior
    total = float(old.size.sum())
    change = merged_part - part[left] - part[right]
    kappas = np.tile(kappa, (left.size, 1))
    pairs = np.arange(left.size)
    kappas[pairs, left] = merged_kappa
    kappas[pairs, right] = prior.kappa  # contributes ln 1
    log_det = np.linalg.slogdet(scale + change)[1]
    now = tied_evidence(total, kappa, np.linalg.slogdet(scale)[1], prior)
    return tied_evidence(total, kappas, log_det, prior) - now


def _stick_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of membership and stick terms for each pair, the merged sizes in order."""
    size, concentration = side.statistics.size, side.prior.concentration
    pairs = np.arange(left.size)
    merged = np.tile(size, (left.size, 1))
    merged[pairs, left] += size[right]
    merged[pairs, right] = -1.0  # sorted last, and cut off
    merged = -np.sort(-merged, axis=1)[:, :-1]
    return stick_evidence(merged, concentration) - stick_evidence(size, concentration)


def _membership_gains(side: Side, left: np.ndarray, right: np.ndarray) -> Float64Array:
    """Change of the entropy of the memberships for each pair."""
    gains = np.empty(left.size)
    for pair, (d, e) in enumerate(zip(left, right, strict=True)):
        one, other = side.membership[:, [d, e]].astype(np.float64).T
        shared = (one > 0.0) & (other > 0.0)  # elsewhere nothing changes
        one, other = one[shared], other[shared]
        together = one + other
        gains[pair] = np.sum(
            one * np.log(one) + other * np.log(other) - together * np.log(together)
        )
    return gains
