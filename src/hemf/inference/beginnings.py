"""How online learning begins: with rows that nothing is known of, and with few ratings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf.engines.threads import Rows
from hemf.inference import online_moods
from hemf.inference.batch import SIDES, learn_noise, update_side
from hemf.inference.fit import start_state
from hemf.inference.regress import learn_precisions
from hemf.inference.rowstore import RowStore
from hemf.model.design import Design
from hemf.model.hyper import Prior
from hemf.model.implicit import implicit_blocks
from hemf.model.packing import lower_triangle
from hemf.model.side import Side

if TYPE_CHECKING:
    from hemf.inference.online import OnlineState

# A fit to few ratings closes directions for which there is no evidence yet, and no later rating
# opens them again. So while ratings are scarce the prior covariance is held wide.
WIDE = 1.0  # variance of factors under the wide prior
REOPENING = 30  # sweeps over few ratings, in which closed directions come back
# A stream that began from nothing begins anew as its ratings double, until there are enough.
FIRST_RESTART = 200
LAST_RESTART = 100_000
RESTART_SWEEPS = 10
RESTART_WIDE = 0.3


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
    """Whether a stream began from nothing, and is one that begins anew until it has grown."""
    return state.fit is not None and state.is_complete and state.seen < LAST_RESTART


def restart(state: OnlineState) -> OnlineState:
    """Begin anew from all ratings on record, as a batch fit does: by their leading directions.

    What little is known when the first ratings arrive points nowhere, and the directions that
    a stream falls into by chance are poor ones.
    """
    indptr, indices, codes = state.stores["user"].history.to_rows()
    values = state.book.values[codes].astype(np.float64)
    if not values.size or not values.std() > 0.0:
        state.restart_at = 2 * state.seen
        return state  # nothing that could be learnt from
    centre, unit = float(values.mean()), float(values.std())
    tables: dict[str, tuple[Any, ...]] = {}
    rows = {}
    for name, store in state.stores.items():
        indptr, indices, codes = store.history.to_rows()
        tables[name] = indptr, indices, codes
        if state.moods is not None:
            tables[name] = *tables[name], store.history.sittings()
        levels = ((state.book.values[codes] - centre) / unit).astype(store.mean.dtype)
        rows[name] = Rows(indptr, indices, levels)
    assert state.fit is not None
    designs = {}
    if state.fit.implicit_features:
        for (name, own), other in zip(tables.items(), reversed(tables.values()), strict=True):
            blocks = implicit_blocks(own[0], own[1], other[0].size - 1)
            designs[name] = Design.of(blocks, state.fit.dtype)
    batch = start_state(rows, unit, state.fit, state.rng, designs)
    for side in batch.sides.values():
        widen(side, RESTART_WIDE)
    for number in range(RESTART_SWEEPS):
        for name in SIDES:
            update_side(batch, name, n_jobs=1)
        learn_noise(batch)
        if state.options.evb is not None and state.fit.schedule.features_due(number):
            for side in batch.sides.values():
                learn_precisions(side)
    moods = state.moods
    if moods is not None:
        moods.reset()
    fresh = type(state).adopt(
        batch, tables, state.book, state.options, centre=centre, rng=state.rng, passes=1,
        moods=moods,
    )  # fmt: skip
    if moods is not None:
        online_moods.learn(fresh)
    fresh.fit, fresh.changes = state.fit, state.changes
    fresh.seen, fresh.restart_at = state.seen, 2 * state.seen
    return fresh
