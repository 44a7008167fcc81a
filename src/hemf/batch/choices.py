"""Batch fit of choices: which pairs were observed, whatever their ratings are.

y is 1 for a pair that was observed and 0 for all others, with factors of its own:

    y_ij ~ N(c_i·d_j, σ²/w_ij),   w_ij = 1 where observed, w₀ elsewhere

Sweeps are those of ratings. The pairs that were not observed enter through one Gram matrix,
w₀ Σ_j E[d_j d_jᵀ], so a sweep costs what one of ratings does (docs/model.md#choices).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf._checks import one_blas_thread
from hemf._options import FitOptions, Schedule
from hemf._typing import SIDES, Float64Array
from hemf.batch.fit import BatchState, Convergence, start_state, sweep
from hemf.engines.base import CHOICES, Engine

MAX_SWEEPS = 6
TOLERANCE = 1e-3  # of the bound; the ranking changes little after the first sweeps


def choice_options(options: FitOptions) -> FitOptions:
    """Return the options of the fit of choices that belong to those of a fit of ratings."""
    return replace(
        options,
        n_factors=options.n_choice_factors,
        offsets=False,
        tied=dict.fromkeys(SIDES, True),
        max_communities=dict.fromkeys(SIDES, 1),
        noise_scales=dict.fromkeys(SIDES, False),
        moods=False,
        implicit_features=(),
        coupled=True,
        max_sweeps=MAX_SWEEPS,
        schedule=Schedule(hold_scale=2),
    )


def fit_choices(engine: Engine, options: FitOptions, rng: np.random.Generator) -> BatchState:
    """Fit both sides to the choices of an engine."""
    own = choice_options(options)
    convergence = Convergence(TOLERANCE, 1, own.earliest)
    with one_blas_thread():
        state = start_state(engine, 1.0, own, rng, component=CHOICES)
        done = False
        while not done and state.sweeps < own.max_sweeps:
            sweep(state, own, rng)
            done = convergence.bound(state.sweeps, sum(state.bound_terms().values()))
    return state


def choice_features(state: BatchState, side: str) -> Float64Array:
    """Return the features of a side's rows for the fit of ratings, (rows, factors)."""
    return state.sides[side].factor_means
