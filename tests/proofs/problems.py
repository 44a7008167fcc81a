"""Small problems in float64, with everything about them at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hemf import HeMF
from hemf._options import FitOptions, fit_options
from hemf._typing import SIDES
from hemf.batch.fit import BatchState, assign, start_side
from hemf.data.ratings import Sparse
from hemf.engines.threads import EntriesInMemory, Sessions, Threads
from hemf.model.communities import Communities, Prior, Statistics, Sticks, side_terms
from hemf.model.regression import Design
from hemf.model.rows import Layout, NoiseScales, pack
from hemf.model.side import with_penalty

OTHER = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class Setting:
    """What kind of model a problem is about."""

    coupled: bool = True
    tied_users: bool = True
    tied_items: bool = False
    offsets: bool = False
    noise_scales: bool = False
    features: bool = False
    """Of both sides; more than rows on the item side."""

    def __str__(self) -> str:
        form = "coupled" if self.coupled else "mean-field"
        covariances = "-".join("tied" if t else "own" for t in (self.tied_users, self.tied_items))
        extras = ["-offsets"] * self.offsets + ["-scales"] * self.noise_scales
        extras += ["-features"] * self.features
        return "".join([f"{form}-{covariances}", *extras])


SETTINGS = [
    Setting(),
    Setting(tied_users=False, tied_items=True, offsets=True, noise_scales=True),
    Setting(coupled=False, offsets=True, noise_scales=True),
    Setting(coupled=False, tied_users=False, tied_items=True),
    Setting(features=True, offsets=True, noise_scales=True),
    Setting(features=True, coupled=False),
]
"""Coupled and mean-field; on each side, tied and own covariances; offsets, features or none."""


def fit_with(setting: Setting, *, limit: int = 3, **changes: Any) -> FitOptions:
    """Options of a fit with at most ``limit`` communities on each side."""
    options = replace(
        fit_options(HeMF(evb="closed", dtype="float64", n_jobs=1)),
        offsets=setting.offsets,
        tied={"user": setting.tied_users, "item": setting.tied_items},
        coupled=setting.coupled,
        noise_scales=dict.fromkeys(SIDES, setting.noise_scales),
        max_communities=dict.fromkeys(SIDES, limit),
    )
    return replace(options, **changes)


def spd(rng: np.random.Generator, order: int, count: int | None = None) -> np.ndarray:
    """Well-conditioned symmetric positive definite matrices, no two entries alike."""
    shape = (order, order) if count is None else (count, order, order)
    root = rng.normal(size=shape)
    return root @ np.swapaxes(root, -1, -2) / order + 0.5 * np.eye(order)


def sparse_rows(
    rng: np.random.Generator, n_rows: int, n_columns: int, density: float, dtype: Any = np.float64
) -> Sparse:
    """Ratings at random places; some rows have none."""
    there = rng.random((n_rows, n_columns)) < density
    there[rng.random(n_rows) < 0.15] = False
    return rows_of(rng.normal(size=(n_rows, n_columns)), there, dtype)


def rows_of(table: np.ndarray, there: np.ndarray, dtype: Any = np.float64) -> Sparse:
    """Compressed rows of the entries that are ``there``."""
    row, column = np.nonzero(there)
    indptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int64)
    return Sparse(indptr, column.astype(np.int32), table[row, column].astype(dtype))


def tables(state: BatchState) -> dict[str, Sparse]:
    """The standardised ratings of a state, moods included."""
    assert isinstance(state.ratings, EntriesInMemory)
    return state.ratings.tables


def with_times(state: BatchState, times: np.ndarray) -> BatchState:
    """The state with moods of zero; ``times`` are in the order of the users' table."""
    sessions = Sessions.of(tables(state)["user"], times)
    engine = Threads.of(tables(state), sessions=sessions, n_jobs=1)
    return replace(state, engine=engine, moods=engine.components["ratings"].start_moods())


def side_total(statistics: Statistics, communities: Communities, prior: Prior) -> float:
    """Sum of all terms of the bound of one side."""
    return sum(side_terms(statistics, communities, prior).values())


def any_prior(rng: np.random.Generator, order: int) -> Prior:
    """A prior with nothing at zero or one."""
    return Prior(
        concentration=float(rng.uniform(0.3, 3.0)),
        centre=rng.normal(size=order),
        mean_scale=float(rng.uniform(0.3, 3.0)),
        scale=spd(rng, order),
        dof=order + float(rng.uniform(0.5, 5.0)),
    )


def any_communities(rng: np.random.Generator, count: int, order: int, *, tied: bool) -> Communities:
    """Community posteriors that no data led to."""
    covariances = 1 if tied else count
    return Communities(
        sticks=Sticks(rng.uniform(1.0, 9.0, count), rng.uniform(0.5, 9.0, count)),
        mean=rng.normal(size=(count, order)),
        kappa=rng.uniform(0.5, 9.0, count),
        scale=spd(rng, order, covariances),
        dof=order + rng.uniform(0.5, 9.0, covariances),
    )


def any_statistics(
    rng: np.random.Generator, count: int, order: int, *, tied: bool, rows: int = 40
) -> Statistics:
    """Statistics that some rows could have given."""
    q = rng.dirichlet(np.full(count, 0.3), size=rows)
    means = rng.normal(size=(rows, count, order))
    seconds = spd(rng, order, rows * count).reshape(rows, count, order, order)
    seconds = seconds + means[..., :, None] * means[..., None, :]
    scatter = np.einsum("id,idjk->djk", q, seconds)
    return Statistics(
        size=q.sum(axis=0),
        first=np.einsum("id,idj->dj", q, means),
        scatter=scatter.sum(axis=0, keepdims=True) if tied else scatter,
        entropy=float(rng.normal()),
    )


def any_design(rng: np.random.Generator, n_rows: int, widths: tuple[int, ...]) -> Design:
    """Blocks of features, some of them zero."""
    blocks = {
        f"block {b}": rng.normal(size=(n_rows, width)) * (rng.random((n_rows, width)) < 0.7)
        for b, width in enumerate(widths)
    }
    return Design.of(blocks)


def problem(
    rng: np.random.Generator,
    setting: Setting,
    *,
    users: int = 16,
    items: int = 12,
    factors: int = 2,
    communities: tuple[int, int] = (3, 3),
    density: float = 0.5,
    wide: int = 1,
) -> BatchState:
    """Ratings with some structure, and a state that is a few steps away from anywhere special."""
    left = rng.normal(size=(users, factors)) + rng.choice([-1.0, 1.0], size=(users, 1))
    right = rng.normal(size=(items, factors)) + rng.choice([-1.0, 1.0], size=(items, 1))
    table = left @ right.T + 0.5 * rng.normal(size=(users, items))
    table = (table - table.mean()) / table.std()
    there = rng.random((users, items)) < density
    rows = {"user": rows_of(table, there), "item": rows_of(table.T.copy(), there.T)}
    sides = {}
    for name, n_rows in (("user", users), ("item", items)):
        layout = Layout.of(name, n_factors=factors, offsets=setting.offsets)
        sides[name] = start_side(
            name,
            n_rows,
            fit_with(setting, n_factors=factors, concentration=1.7, spread=0.8),
            rng,
            design=any_design(rng, n_rows, (3, wide * n_rows if name == "item" else 2))
            if setting.features
            else None,
        )
        if setting.noise_scales:
            shape = rng.uniform(9.0, 20.0, n_rows)
            sides[name].noise_scales = NoiseScales(
                10.0, shape, shape * rng.uniform(0.5, 2.0, n_rows)
            )
        moments = sides[name].moments
        moments.mean[:, layout.free] *= 5.0
        moments.second[:] = pack(moments.mean[:, :, None] * moments.mean[:, None, :])
        sides[name].prior = replace(any_prior(rng, layout.order), concentration=1.7)
    state = BatchState(sides=sides, engine=Threads.of(rows, n_jobs=1), noise=0.4, unit=1.3)
    for name, count in zip(("user", "item"), communities, strict=True):
        side = sides[name]
        update_rows(state, name, setting, hold=True)
        assign(side, rng.permutation(np.arange(side.n_rows) % count), count)
        side.prior = replace(side.prior, concentration=float(rng.uniform(0.3, 0.9)))
        side.refresh()
        update_rows(state, name, setting, hold=True)
        side.refresh()
    return state


def update_rows(
    state: BatchState, name: str, setting: Setting, *, hold: bool = False
) -> tuple[Communities, np.ndarray]:
    """Update a side's rows and nothing else; return what they were updated with, and errors."""
    side = state.sides[name]
    found = state.ratings.half_sweep(name, state, coupled=setting.coupled, hold=hold)
    if side.regression is not None:
        side.regression = side.regression.with_leverage(
            float(found.information @ side.regression.leverage)
        )
    side.statistics = with_penalty(side, found.statistics)
    state.squared_error = float(found.errors @ side.weights)
    return side.communities, found.errors, found.information
