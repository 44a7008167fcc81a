"""Batch fit: sweeps until the bound converges, with trials of merges and splits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from hemf._options import FitOptions
from hemf.batch.callbacks import Callback, SweepReport
from hemf.batch.sweep import (
    BatchState,
    assign,
    cluster,
    start_state,
    sweep,
    update_side,
)
from hemf.engines.base import Engine
from hemf.engines.threads import one_blas_thread
from hemf.errors import ConvergenceWarning, DataError, warn_caller
from hemf.model.communities import learn_prior
from hemf.model.regression import Design
from hemf.model.side import Side, drop_empty, merge, merge_gains, order_by_size

MAX_TRIALS = 4  # rounds of merges and splits after convergence


@dataclass
class FitResult:
    """Final state of a fit and its history."""

    state: BatchState
    history: list[SweepReport]
    converged: bool


def fit_batch(
    engine: Engine,
    unit: float,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    designs: Mapping[str, Design] = MappingProxyType({}),
    validate: Callable[[BatchState], float] | None = None,
    watch: Callable[[BatchState], float] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> FitResult:
    """Fit both sides to the standardised ratings of an engine; ``unit`` is their scale.

    ``designs`` are the features of the sides that have any. ``validate`` returns the error on
    held-out ratings: the state with the smallest is the result. ``watch`` returns an error that is
    reported, and that nothing depends on.
    """
    with one_blas_thread():
        state = start_state(engine, unit, options, rng, designs)
    earliest = options.earliest
    size = max(MIN_SIZE, float(state.n_ratings))
    convergence = Convergence(options.tolerance, options.patience, earliest, size)
    nearly = Convergence(10.0 * options.tolerance, options.patience, earliest, size)
    history: list[SweepReport] = []
    best: BatchState | None = None
    begin = time.perf_counter()
    done = stopped = nearly_done = False
    trials = MAX_TRIALS
    with one_blas_thread(), _explain_overflow(state, options):
        while not (done or stopped) and state.sweeps < options.max_sweeps:
            sweep(state, options, rng)
            held_out = None if validate is None else validate(state)
            seen = held_out if watch is None else watch(state)
            report = _report(state, options, seen, time.perf_counter() - begin)
            if not np.isfinite(report.elbo):
                raise np.linalg.LinAlgError
            if held_out is None:
                done = convergence.bound(state.sweeps, report.elbo)
                nearly_done = nearly.bound(state.sweeps, report.elbo)
            else:
                improved, done = convergence.validation(state.sweeps, held_out)
                if improved:
                    best = state.copy()
            due = options.seeds and trials > 0 and (done or (nearly_done and trials == MAX_TRIALS))
            history.append(replace(report, trials_next=due))
            stopped = notify(callbacks, history[-1])
            if due and not stopped:
                trials -= 1
                if improve(state, options, rng, splits=done):
                    done = convergence.reset()
    if not (done or stopped) and options.max_sweeps > 1:
        watched, instead = "the bound was still rising", "raise tol"
        if validate is not None:
            watched, instead = "the error on held-out ratings had not converged", "lower patience"
        warn_caller(
            f"{watched} after {options.max_sweeps} sweeps; "
            f"raise max_sweeps, or {instead} if this is accurate enough",
            ConvergenceWarning,
        )
    final = best or state
    if final.sweeps <= options.schedule.hold_mood:
        final.moods = None  # not learnt yet
    for side in final.sides.values():
        if (np.diff(side.statistics.size) > 0.0).any():  # largest first, for reading
            side.select(np.argsort(-side.statistics.size, kind="stable"))
        if side.regression is not None:
            side.regression = replace(side.regression)  # without the matrices of its solver
    return FitResult(final, history, done)


@contextmanager
def _explain_overflow(state: BatchState, options: FitOptions) -> Iterator[None]:
    """Turn failures of linear algebra into an error with a remedy."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        dtype = np.dtype(options.dtype)
        wider = 'use dtype="float64", or ' if dtype == np.float32 else ""
        raise DataError(
            f"the fit broke down in sweep {state.sweeps + 1}: {dtype} has too few digits for these "
            f"ratings; {wider}look for ratings that are far from all others"
        ) from error


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
# Trials of merges and splits on a copy of a side.
#
# After convergence, statistics alone no longer show that two communities which share rows should
# merge, or that one should split. So the change is made on a copy, its rows adapt for a few
# half-sweeps, and it is kept if the bound is higher.


HALF_SWEEPS = 4  # in which a change has to raise the bound
CANDIDATES = 3  # pairs, and communities, that are tried
MIN_SPLIT = 4.0  # rows; a smaller community is not split


def improve(
    state: BatchState, options: FitOptions, rng: np.random.Generator, *, splits: bool
) -> bool:
    """Try merges and, with ``splits``, splits on both sides; return whether any was kept."""
    changed = False
    for name in state.sides:
        if options.max_communities[name] == 1:
            continue
        while state.sides[name].n_communities > 1 and any(
            _try(state, name, partial(merge, left=left, right=right), options)
            for left, right in likely_pairs(state.sides[name])
        ):
            changed = True
        for community in np.argsort(-state.sides[name].statistics.size)[:CANDIDATES]:
            if not splits or state.sides[name].n_communities >= options.max_communities[name]:
                break
            if _try(state, name, partial(_split, community=int(community), rng=rng), options):
                changed = True
                break
    return changed


def likely_pairs(side: Side) -> list[tuple[int, int]]:
    """Return the pairs with the largest gain of a merge, best first."""
    left, right = np.triu_indices(side.n_communities, k=1)
    gains = merge_gains(side, left, right)
    best = np.argsort(-gains)[:CANDIDATES]
    return [(int(left[k]), int(right[k])) for k in best]


def _try(
    state: BatchState, name: str, change: Callable[[Side], bool | None], options: FitOptions
) -> bool:
    """Change a copy of one side, let it adapt, and keep it if the bound is higher.

    A ``change`` that is not possible returns False.
    """
    state.sides[name].refresh()  # the prior may have changed
    before = sum(state.bound_terms().values())
    trial = replace(state, sides={**state.sides, name: state.sides[name].copy()})
    side = trial.sides[name]
    if change(side) is False:
        return False
    bound = -np.inf
    for step in range(HALF_SWEEPS):
        learn = options.evb is not None
        update_side(trial, name, coupled=options.coupled, hold=step == 0, learn=learn)
        if options.evb is not None:
            side.prior = learn_prior(
                side.prior, side.communities, evb=options.evb, structure=True, scale=True
            )
            side.refresh()
        last, bound = bound, sum(trial.bound_terms().values())
        if step > 0 and bound > before:
            drop_empty(side)
            order_by_size(side)
            state.sides[name] = side
            state.squared_error, state.noise = trial.squared_error, trial.noise
            return True
        if before - bound > (HALF_SWEEPS - 1 - step) * (bound - last):
            return False  # steps shrink: it will not get there
    return False


def _split(side: Side, community: int, rng: np.random.Generator) -> bool:
    """Split a community by a clustering of its members' whitened means."""
    if side.statistics.size[community] < MIN_SPLIT:
        return False
    labels = side.membership.argmax(axis=1)
    members = np.flatnonzero(labels == community)
    covariance = min(community, side.communities.precision.shape[0] - 1)
    whitened = side.residual_means[members] @ np.linalg.cholesky(
        side.communities.precision[covariance]
    )
    if members.size < MIN_SPLIT:
        return False
    halves = cluster(whitened, 2, rng)
    if halves.min() == halves.max():
        return False
    labels[members[halves == 1]] = side.n_communities
    assign(side, labels, side.n_communities + 1)
    return True


# ------------------------------------------------------------------------------------------------
# Convergence.


MIN_SIZE = 10_000.0  # nats; of a smaller bound the fifth digit is not worth a sweep


@dataclass
class Convergence:
    """Convergence of the bound, or of the error on held-out ratings.

    >>> converged = Convergence(tolerance=1e-3, patience=1, earliest=0)
    >>> [converged.bound(sweep, elbo) for sweep, elbo in enumerate([-200.0, -100.0, -99.99])]
    [False, False, True]
    """

    tolerance: float
    patience: int
    earliest: int
    """First sweep that can converge: before it, parts of the model are held."""
    size: float = MIN_SIZE
    """Changes are relative to the bound or to this, whichever is larger."""
    _last: float | None = field(default=None, init=False)
    _quiet: int = field(default=0, init=False)
    _best: float = field(default=float("inf"), init=False)
    _worse: int = field(default=0, init=False)

    def bound(self, sweep: int, elbo: float) -> bool:
        """Whether the relative change of the bound was below tolerance ``patience`` times."""
        last, self._last = self._last, elbo
        if last is None or sweep < self.earliest:
            return False
        small = abs(elbo - last) <= self.tolerance * max(abs(last), self.size)
        self._quiet = self._quiet + 1 if small else 0
        return self._quiet >= self.patience

    def reset(self) -> bool:
        """Start again after a change from outside; return False for "not converged"."""
        self._last, self._quiet, self._worse = None, 0, 0
        return False

    def validation(self, sweep: int, rmse: float) -> tuple[bool, bool]:
        """Whether this error is the smallest so far, and whether it is time to stop."""
        if sweep < self.earliest:
            return False, False
        if rmse < self._best:
            self._best, self._worse = rmse, 0
            return True, False
        self._worse += 1
        return False, self._worse >= self.patience


def notify(callbacks: tuple[Callback, ...], report: SweepReport) -> bool:
    """Call every callback; return whether any asked to stop."""
    answers = [callback(report) for callback in callbacks]
    return any(answers)
