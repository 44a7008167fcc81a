"""A whole batch fit: sweeps until the bound settles, told to callbacks on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import Rows
from hemf.errors import ConvergenceWarning, warn_caller
from hemf.inference.batch import SIDES, BatchState, Schedule, sweep
from hemf.inference.callbacks import LEAST_SIZE, Callback, Convergence, SweepReport, notify
from hemf.inference.moods import Moods
from hemf.inference.spectral import leading_directions
from hemf.inference.start import NOISE_START, start_side
from hemf.inference.trials import improve
from hemf.model.design import Design
from hemf.model.layout import Layout
from hemf.model.packing import Float64
from hemf.model.side import Side

Wholes = npt.NDArray[np.int64]

MOST_TRIALS = 4  # how often a settled fit is shaken for a better number of communities


@dataclass(frozen=True)
class FitOptions:
    """How to fit; `hemf.HeMF` documents each."""

    n_factors: int
    offsets: bool
    max_communities: dict[str, int]
    tied: dict[str, bool]
    coupled: bool
    noise_scales: dict[str, bool]
    evb: str | None
    concentration: float
    spread: float
    max_sweeps: int
    tolerance: float
    patience: int
    n_jobs: int | None
    dtype: type[np.floating]
    moods: bool = False
    implicit_features: tuple[str, ...] = ()
    """The sides that have any."""
    """Whether a stream that began from nothing makes features of its ratings."""
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def seeds(self) -> bool:
        """Whether any side may have several communities."""
        return max(self.max_communities.values()) > 1

    @property
    def earliest(self) -> int:
        """Sweeps before which parts of the model are still held, so that nothing is settled."""
        scales = any(self.noise_scales.values())
        return self.schedule.settling(seeds=self.seeds, scales=scales, moods=self.moods)


@dataclass
class FitResult:
    """The state a fit ended in, and how it got there."""

    state: BatchState
    history: list[SweepReport]
    converged: bool


def first_side(
    name: str,
    n_rows: int,
    options: FitOptions,
    rng: np.random.Generator,
    design: Design | None = None,
    directions: Float64 | None = None,
) -> Side:
    """Return a side before the first sweep, as options say."""
    return start_side(
        n_rows,
        Layout.of(name, n_factors=options.n_factors, offsets=options.offsets),
        tied=options.tied[name],
        concentration=options.concentration,
        spread=options.spread,
        rng=rng,
        dtype=options.dtype,
        noise_scales=options.noise_scales[name],
        design=design,
        directions=directions,
    )


def start_state(
    rows: dict[str, Rows],
    unit: float,
    options: FitOptions,
    rng: np.random.Generator,
    designs: dict[str, Design] | None = None,
    times: Wholes | None = None,
) -> BatchState:
    """Both sides before the first sweep; users, who are updated first, see the items' guess.

    ``times`` are those of the ratings in the users' table, where raters have moods.
    """
    n_items = rows["item"].indptr.size - 1
    directions = {"item": leading_directions(rows["user"], n_items, options.n_factors, rng)}
    designs = designs or {}
    sides = {
        name: first_side(
            name,
            rows[name].indptr.size - 1,
            options,
            rng,
            design=designs.get(name),
            directions=directions.get(name),
        )
        for name in SIDES
    }
    moods = None if times is None else Moods.start(rows, times)
    return BatchState(sides=sides, rows=rows, noise=NOISE_START, unit=unit, moods=moods)


def fit_batch(
    rows: dict[str, Rows],
    unit: float,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    designs: dict[str, Design] | None = None,
    times: Wholes | None = None,
    validate: Callable[[BatchState], float] | None = None,
    watch: Callable[[BatchState], float] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> FitResult:
    """Fit both sides to standardised ratings; ``unit`` is the rating scale of one.

    ``designs`` are the features of a side's rows, where there are any, ``times`` those of the
    ratings in the users' table, where raters have moods.
    ``validate`` returns the error on held-out ratings; the state with the smallest is the result.
    ``watch`` returns an error that is reported, and that nothing depends on.
    """
    with one_blas_thread():
        state = start_state(rows, unit, options, rng, designs, times)
    seeds, schedule, earliest = options.seeds, options.schedule, options.earliest
    size = max(LEAST_SIZE, float(state.n_ratings))
    settled = Convergence(options.tolerance, options.patience, earliest, size)
    nearly = Convergence(10.0 * options.tolerance, options.patience, earliest, size)
    history: list[SweepReport] = []
    best: BatchState | None = None
    begin = time.perf_counter()
    done = stopped = calm = False
    trials = MOST_TRIALS
    with one_blas_thread():
        while not (done or stopped) and state.sweeps < options.max_sweeps:
            sweep(
                state,
                schedule,
                max_communities=options.max_communities,
                coupled=options.coupled,
                evb=options.evb,
                rng=rng,
                n_jobs=options.n_jobs,
            )
            held_out = None if validate is None else validate(state)
            seen = held_out if watch is None else watch(state)
            report = _report(state, options, seen, time.perf_counter() - begin)
            if held_out is None:
                done = settled.bound(state.sweeps, report.elbo)
                calm = nearly.bound(state.sweeps, report.elbo)
            else:
                improved, done = settled.validation(state.sweeps, held_out)
                if improved:
                    best = state.copy()
            due = seeds and trials > 0 and (done or (calm and trials == MOST_TRIALS))
            history.append(replace(report, trials_next=due))
            stopped = notify(callbacks, history[-1])
            if due and not stopped:
                trials -= 1
                if improve(
                    state,
                    max_communities=options.max_communities,
                    coupled=options.coupled,
                    evb=options.evb,
                    splits=done,
                    rng=rng,
                    n_jobs=options.n_jobs,
                ):
                    done = settled.reset()
    if not (done or stopped) and options.max_sweeps > 1:
        watched, instead = "the bound was still rising", "raise tol"
        if validate is not None:
            watched, instead = "the error on held-out ratings had not settled", "lower patience"
        warn_caller(
            f"{watched} after {options.max_sweeps} sweeps; "
            f"raise max_sweeps, or {instead} if this is accurate enough",
            ConvergenceWarning,
        )
    final = best or state
    if final.sweeps <= schedule.hold_mood:
        final.moods = None  # they were not learnt yet
    for side in final.sides.values():
        if (np.diff(side.statistics.size) > 0.0).any():  # largest first, for people
            side.select(np.argsort(-side.statistics.size, kind="stable"))
        if side.regression is not None:
            side.regression = side.regression.at_rest()
    return FitResult(final, history, done)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looking for the libraries takes milliseconds


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep BLAS from starting threads of its own beside ours."""
    limits: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limits


def _report(
    state: BatchState, options: FitOptions, held_out: float | None, seconds: float
) -> SweepReport:
    terms = state.bound_terms()
    return SweepReport(
        sweep=state.sweeps,
        max_sweeps=options.max_sweeps,
        elbo=sum(terms.values()),
        elbo_terms=terms,
        train_rmse=float(np.sqrt(state.squared_error / state.total_weight())) * state.unit,
        validation_rmse=held_out,
        user_communities=state.sides["user"].n_communities,
        item_communities=state.sides["item"].n_communities,
        noise_variance=state.noise * state.unit**2,
        seconds=seconds,
    )
