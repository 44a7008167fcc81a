"""Communities that open, merge and go while ratings arrive, each change judged by the lower bound.

What a row has given to a community is on record with the row, so that a part of a community's
rows can be moved to a new one, or two communities be made one, by adding and subtracting alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hemf.inference import moves
from hemf.inference.rowstore import RowStore
from hemf.inference.start import cluster
from hemf.model import bound
from hemf.model.communities import Statistics, community_posterior
from hemf.model.packing import unpack
from hemf.model.side import Side

Wholes = npt.NDArray[np.int64]

RECENT = 4096  # rows that are looked at for a community among them
FEWEST = 8  # rows that can open a community
ATTEMPTS = 3  # clusterings that are tried


def tidy(side: Side, store: RowStore) -> bool:
    """Drop empty communities, merge those that are alike, and put the largest first."""
    before = store.size.size
    if before == 1:
        return False
    # One more row for each community, wholly in it, shows at the end where it went. Such rows
    # change no entropy, so no move is judged differently for them.
    trial = replace(
        side, membership=np.vstack([side.membership, np.eye(before, dtype=side.membership.dtype)])
    )
    trial.refresh(store.statistics)
    with np.errstate(invalid="ignore"):  # what was wholly in a community that is gone
        moves.drop_empty(trial)
        moves.merge_alike(trial)
        moves.order_by_size(trial)
    marks = trial.membership[-before:]
    target = np.where(np.isnan(marks).any(axis=1), -1, np.nan_to_num(marks).argmax(axis=1))
    if np.array_equal(target, np.arange(before)):
        return False
    _settle_entropy(store, target)
    store.regroup(target.astype(np.int64), trial.n_communities)
    store.take_statistics(trial.statistics)
    store.totals[0] = store.entropy.sum()
    return True


def _settle_entropy(store: RowStore, target: Wholes) -> None:
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


def open_one(side: Side, store: RowStore, rows: Wholes, rng: np.random.Generator) -> Wholes | None:
    """Open a community for some of these rows if the bound is higher with it; return them.

    The rows of each community are cut in two along a clustering of their means; the cut that
    raises the bound most is made.
    """
    statistics = store.statistics
    now = bound.side_total(statistics, community_posterior(statistics, side.prior), side.prior)
    best_gain, best_community = 0.0, -1
    best_rows: Wholes | None = None
    main = store.listed[rows, 0]  # its likeliest community
    for d in np.unique(main[main >= 0]).tolist():
        members = rows[main == d]
        if members.size < FEWEST:
            continue
        covariance = min(d, side.communities.precision.shape[0] - 1)
        metric = np.linalg.cholesky(side.communities.precision[covariance])
        means = store.mean[members][:, side.layout.free].astype(np.float64) @ metric
        for _ in range(ATTEMPTS):
            labels = cluster(means, 2, rng)
            for half in (0, 1):
                chosen = members[labels == half]
                if chosen.size < FEWEST:
                    continue
                split = _split(store, statistics, d, chosen, tied=side.tied)
                posterior = community_posterior(split, side.prior)
                gain = bound.side_total(split, posterior, side.prior) - now
                if gain > best_gain:
                    best_gain, best_community, best_rows = gain, d, chosen
    if best_rows is None:
        return None
    split = _split(store, statistics, best_community, best_rows, tied=side.tied)
    count = store.size.size
    store.regroup(np.arange(count), count + 1)
    listed = store.listed
    rows_of, slots = np.nonzero(listed[best_rows] == best_community)
    listed[best_rows[rows_of], slots] = count
    store.take_statistics(split)
    store.spell_out(count + 1)
    return best_rows


def _split(
    store: RowStore, statistics: Statistics, d: int, rows: Wholes, *, tied: bool
) -> Statistics:
    """Statistics after what these rows have given to d has gone to a new community."""
    order = statistics.first.shape[1]
    at, slots = np.nonzero(store.listed[rows] == d)
    given = store.parts[rows[at], slots].astype(np.float64).sum(axis=0)
    moment = given[1 : 1 + order]
    size, first = np.append(statistics.size, given[0]), np.vstack([statistics.first, moment])
    size[d] -= given[0]
    first[d] -= moment
    scatter = statistics.scatter
    moved = unpack(given[1 + order :])
    if not tied:
        scatter = np.concatenate([scatter, moved[None]])
        scatter[d] -= moved
    return Statistics(size, first, scatter, statistics.entropy)
