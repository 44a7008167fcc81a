"""A whole batch fit: sweeps until the bound settles, told to callbacks on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.batch import merge_split
from hemf.batch.callbacks import LEAST_SIZE, Callback, Convergence, SweepReport, notify
from hemf.batch.empirical import learn_prior
from hemf.batch.init import NOISE_START, assign, cluster, leading_directions, start_side
from hemf.batch.sweep import BatchState, Moods, Schedule, sweep, update_side
from hemf.engines.threads import Rows
from hemf.errors import ConvergenceWarning, DataError, warn_caller
from hemf.model.features import Design
from hemf.model.layout import Layout
from hemf.model.side import Side

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
    duplicates: str = "last"
    """What to do with a pair rated twice."""
    rating_range: str | tuple[float, float] | None = "observed"
    """Range that predictions are clipped to."""
    validation_fraction: float = 0.0
    """Share of the ratings to hold out."""
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
    directions: Float64Array | None = None,
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
    times: Int64Array | None = None,
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
    times: Int64Array | None = None,
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
    with one_blas_thread(), _sound(state, options):
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
            if not np.isfinite(report.elbo):
                raise np.linalg.LinAlgError
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


@contextmanager
def _sound(state: BatchState, options: FitOptions) -> Iterator[None]:
    """Say what may be done where rounding leaves no numbers."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        dtype = np.dtype(options.dtype)
        wider = 'use dtype="float64", or ' if dtype == np.float32 else ""
        raise DataError(
            f"the fit broke down in sweep {state.sweeps + 1}: {dtype} has too few digits for these "
            f"ratings; {wider}look for ratings that are far from all others"
        ) from error


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


# ------------------------------------------------------------------------------------------------
# Moves too large to judge on statistics alone: tried on a copy, kept if the bound is higher.
#
# When the sweeps have settled, rows that two communities share no longer let these merge on
# statistics, and nothing splits one that holds two. So the change is made on a copy of the side,
# its rows are allowed to adapt for a few half-sweeps, and the bound decides.


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
    gains = merge_split.merge_gains(side, left, right)
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
            merge_split.drop_empty(side)
            merge_split.order_by_size(side)
            state.sides[name] = side
            state.squared_error, state.noise = trial.squared_error, trial.noise
            return True
        if before - bound > (HALF_SWEEPS - 1 - step) * (bound - last):
            return False  # steps shrink: at this pace it will not get there
    return False


def _merge(side: Side, left: int, right: int) -> bool:
    merge_split.merge(side, left, right)
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
