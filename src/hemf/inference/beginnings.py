"""How online learning begins: with rows that nothing is known of, and with few ratings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hemf.inference.rowstore import RowStore
from hemf.model.hyper import Prior
from hemf.model.packing import lower_triangle
from hemf.model.side import Side

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

WIDE = 1.0  # variance of factors under the wide prior
# A stream that began from nothing restarts as its ratings double, until there are enough.
FIRST_RESTART = 200
LAST_RESTART = 100_000


def widen(side: Side, variance: float = WIDE) -> None:
    """Put the wide prior in the place of a side's own."""
    wide = Prior.start(side.layout.order, variance=variance, concentration=1.0, spread=1.0)
    side.prior = replace(side.prior, scale=wide.scale, dof=wide.dof)
    side.refresh()


def add_rows(
    store: RowStore,
    side: Side,
    n: int,
    start_scale: float = 0.0,
    rng: np.random.Generator | None = None,
) -> None:
    """Add rows to a store; with a ``start_scale``, at random factors that break the symmetry."""
    mean, second = side.stranger
    shape = 0.0 if side.noise_scales is None else side.noise_scales.prior_shape
    first = store.n_rows
    store.add(n, mean=mean, second=second, prior_shape=shape)
    if rng is not None and start_scale > 0.0:
        factors = side.layout.factors
        new = store.mean[first:]
        noise = rng.normal(scale=start_scale, size=(n, factors.size))
        new[:, factors] += noise.astype(new.dtype)
        rows, columns = lower_triangle(side.layout.total)
        covariance = second - mean[rows] * mean[columns]
        store.second[first:] = covariance + new[:, rows] * new[:, columns]


def is_young(state: OnlineState) -> bool:
    """Whether a stream began from nothing, has not grown yet, and lists all its ratings.

    Until then it restarts each time its ratings have doubled.
    """
    few = state.seen < LAST_RESTART and not state.has_plenty
    return state.fit is not None and state.is_complete and few
