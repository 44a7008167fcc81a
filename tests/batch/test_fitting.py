"""Whole fits: sweeps climb, stop when they should, and say how they stand."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf._options import FitOptions, Schedule, fit_options
from hemf.batch import fit as trials
from hemf.batch.callbacks import SweepReport
from hemf.batch.fit import (
    BatchState,
    Convergence,
    FitResult,
    assign,
    cluster,
    fit_batch,
    notify,
    seed_communities,
    start_state,
    sweep,
    update_side,
)
from hemf.data import datasets
from hemf.data.ratings import Sparse
from hemf.engines.threads import Threads
from hemf.errors import ConvergenceWarning
from hemf.model.rows import pair_moments
from hemf.model.side import merge
from proofs.problems import SETTINGS, Setting, problem

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
FORMS = pytest.mark.parametrize("membership", ["coupled", "mean-field"])


def planted(seed: int = 0, **options: Any) -> datasets.SyntheticRatings:
    known = {"user_communities": 3, "item_communities": 3, "n_factors": 2, "separation": 8.0}
    return datasets.draw(150, 120, density=0.25, rng=seed, noise=0.3, **{**known, **options})


def compressed(data: datasets.SyntheticRatings) -> tuple[Threads, float]:
    """Both forms of the ratings, standardised, in float64, and their unit."""
    ratings = data.ratings.astype(np.float64)
    unit = float(ratings.std())
    values = (ratings - ratings.mean()) / unit
    sizes = (data.population.n_users, data.population.n_items)
    rows = {}
    for name, row, column, count in (
        ("user", data.users, data.items, sizes[0]),
        ("item", data.items, data.users, sizes[1]),
    ):
        order = np.argsort(row, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
        rows[name] = Sparse(indptr.astype(np.int64), column[order].astype(np.int32), values[order])
    return Threads.of(rows, n_jobs=1), unit


def options(**parameters: Any) -> FitOptions:
    small = {"n_factors": 2, "max_user_communities": 6, "max_item_communities": 6, "n_jobs": 1}
    return fit_options(HeMF(dtype="float64", **{**small, **parameters}))


def fit(
    data: datasets.SyntheticRatings, *callbacks: Any, validate: Any = None, **parameters: Any
) -> FitResult:
    engine, unit = compressed(data)
    return fit_batch(
        engine,
        unit,
        options(**parameters),
        np.random.default_rng(0),
        validate=validate,
        callbacks=callbacks,
    )


def rises(values: np.ndarray) -> bool:
    return bool((np.diff(values) >= -1e-9 * np.abs(values[:-1])).all())


# -- the bound over sweeps ----------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("evb", ["closed", "gradient", None])
def test_with_one_community_no_sweep_lowers_the_bound(membership: str, evb: str | None) -> None:
    result = fit(
        planted(), max_user_communities=1, max_item_communities=1, evb=evb, membership=membership,
        max_sweeps=25, tol=0.0,
    )  # fmt: skip
    elbo = np.array([report.elbo for report in result.history])
    assert elbo.size == 25
    assert rises(elbo)
    assert elbo[-1] > elbo[0] + 100.0


@FORMS
@pytest.mark.parametrize("evb", ["closed", "gradient"])
def test_with_communities_no_sweep_after_seeding_lowers_the_bound(
    membership: str, evb: str
) -> None:
    result = fit(planted(), evb=evb, membership=membership, max_sweeps=35, tol=0.0)
    elbo = np.array([report.elbo for report in result.history])
    seeded = Schedule().warm_up + 1  # seeds replace what was fitted; from there it is uphill
    assert rises(elbo[seeded:])
    assert result.state.sides["user"].n_communities > 1


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_half_sweep_is_rows_scales_and_communities(
    setting: Setting, rng: np.random.Generator
) -> None:
    state = problem(rng, setting)
    before = sum(state.bound_terms().values())
    update_side(state, "item", coupled=setting.coupled, hold=True)
    held = sum(state.bound_terms().values())
    assert held >= before - 1e-9 * abs(before)
    update_side(state, "item", coupled=setting.coupled)
    assert sum(state.bound_terms().values()) >= held - 1e-9 * abs(held) - 1e-3


def test_without_learning_hyper_parameters_stay() -> None:
    data = planted()
    engine, unit = compressed(data)
    chosen = options(evb=None)
    start = start_state(engine, unit, chosen, np.random.default_rng(0))
    result = fit(data, evb=None, max_sweeps=12)
    assert result.state.noise == start.noise
    for name, side in result.state.sides.items():
        before = start.sides[name].prior
        assert side.prior.dof == before.dof
        assert side.prior.concentration == before.concentration
        np.testing.assert_array_equal(side.prior.scale, before.scale)
        assert side.noise_scales is not None
        assert side.noise_scales.prior_shape == start.sides[name].noise_scales.prior_shape


# -- stopping -----------------------------------------------------------------------------------


def test_a_settled_fit_stops_and_one_cut_short_says_so() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fit(planted(), tol=1e-4, max_sweeps=200)
    assert result.converged
    assert len(result.history) < 200
    with pytest.warns(ConvergenceWarning, match="after 12 sweeps"):
        cut = fit(planted(), tol=0.0, max_sweeps=12)
    assert not cut.converged
    assert cut.state.sweeps == len(cut.history) == 12


def test_trials_are_announced_where_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SweepReport] = []
    tried: list[int] = []
    unchanged = trials.improve

    def improve(state: BatchState, *options: Any, splits: bool) -> bool:
        tried.append(state.sweeps)
        return unchanged(state, *options, splits=splits)

    monkeypatch.setattr("hemf.batch.fit.improve", improve)
    result = fit(planted(), seen.append, tol=1e-3, max_sweeps=100)
    assert result.converged
    assert tried
    assert [report.sweep for report in seen if report.trials_next] == tried
    assert result.history == seen
    alone = fit(planted(), tol=1e-3, max_user_communities=1, max_item_communities=1)
    assert not any(report.trials_next for report in alone.history)


def test_a_callback_stops_the_fit_without_a_warning() -> None:
    seen: list[SweepReport] = []

    def watch(report: SweepReport) -> bool:
        seen.append(report)
        return report.sweep == 5

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fit(planted(), watch, tol=0.0, max_sweeps=50)
    assert [report.sweep for report in seen] == [1, 2, 3, 4, 5]
    assert result.history == seen
    assert not result.converged


def test_every_callback_is_told_even_when_the_first_stops() -> None:
    reported = []
    report: Any = object()
    assert notify((lambda r: True, lambda r: reported.append(r)), report)
    assert reported == [report]
    assert not notify((lambda r: None, lambda r: False), report)
    assert not notify((), report)


@pytest.mark.parametrize("answer", [True, np.True_, np.bool_(2 > 1), 1])
def test_anything_true_stops_a_fit(answer: Any) -> None:
    assert notify((lambda report: None, lambda report: answer), answer)


@pytest.mark.parametrize("answer", [False, np.False_, None, 0])
def test_nothing_else_stops_a_fit(answer: Any) -> None:
    assert not notify((lambda report: answer,), answer)


def test_the_state_with_the_smallest_held_out_error_is_kept() -> None:
    errors = [9.0, 5.0, 1.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    states: list[BatchState] = []

    def validate(state: BatchState) -> float:
        states.append(state.copy())
        return errors[len(states) - 1]

    result = fit(
        planted(), validate=validate, max_user_communities=1, max_item_communities=1, patience=3,
        noise_scales=None,
    )  # fmt: skip
    assert result.state.sweeps == 3
    assert result.converged
    assert len(result.history) == 6
    assert [report.validation_rmse for report in result.history] == errors[:6]
    np.testing.assert_array_equal(
        result.state.sides["user"].moments.mean, states[2].sides["user"].moments.mean
    )


def test_convergence_waits_for_patience_in_a_row_and_for_the_earliest_sweep() -> None:
    converged = Convergence(tolerance=1e-3, patience=2, earliest=3)
    values = [-1e4, -1e4, -1e4, -9e3, -8e3, -8e3, -7e3, -7e3, -7e3]
    stops = [converged.bound(sweep, value) for sweep, value in enumerate(values, start=1)]
    assert stops == [False] * 8 + [True]
    assert not converged.reset()
    assert not converged.bound(10, -7e3)
    assert not converged.bound(11, -7e3)
    assert converged.bound(12, -7e3)


def test_validation_counts_sweeps_without_a_better_error() -> None:
    converged = Convergence(tolerance=0.0, patience=2, earliest=4)
    errors = [1, 4, 4, 3, 3, 2, 2, 2]  # what was before the earliest sweep does not count
    answers = [converged.validation(sweep, e) for sweep, e in enumerate(errors, 1)]
    assert answers == [
        (False, False), (False, False), (False, False), (True, False), (False, False),
        (True, False), (False, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("max_sweeps", [1, 5, 13])
def test_a_validated_fit_too_short_to_settle_ends_in_its_last_state(max_sweeps: int) -> None:
    errors = iter(range(1, 100))  # the first is the smallest
    result = fit(planted(), validate=lambda state: float(next(errors)), max_sweeps=max_sweeps)
    assert result.state.sweeps == len(result.history) == max_sweeps
    assert not result.converged


def test_no_state_from_before_communities_and_noise_scales_began_is_kept() -> None:
    errors = iter(range(1, 100))
    result = fit(planted(), validate=lambda state: float(next(errors)), patience=2)
    assert result.state.sweeps == fit_options(HeMF()).earliest


# -- reports ------------------------------------------------------------------------------------


def test_a_report_says_how_the_state_stands() -> None:
    result = fit(planted(), tol=0.0, max_sweeps=20, max_user_communities=1)
    last, state = result.history[-1], result.state
    assert last.elbo == pytest.approx(sum(last.elbo_terms.values()), rel=1e-12)
    assert {n: v for n, v in last.elbo_terms.items() if n[:4] == "user"} == {
        n: v for n, v in state.bound_terms().items() if n[:4] == "user"
    }
    # Putting the largest community first at the end refreshes the communities, for the better.
    assert sum(state.bound_terms().values()) >= last.elbo - 1.0
    assert last.noise_variance == pytest.approx(state.noise * state.unit**2)
    assert last.user_communities == state.sides["user"].n_communities
    assert last.item_communities == state.sides["item"].n_communities
    assert last.max_sweeps == 20
    assert all(a.seconds < b.seconds for a, b in pairwise(result.history))


@pytest.mark.parametrize("noise_scales", [None, "both"])
def test_train_rmse_is_the_root_of_the_expected_squared_error_as_ratings_count(
    noise_scales: str | None,
) -> None:
    data = planted()
    result = fit(data, tol=0.0, max_sweeps=10, noise_scales=noise_scales)
    state = result.state
    mean, variance = pair_moments(
        state.sides["user"].moments,
        state.sides["item"].moments,
        data.users.astype(np.int64),
        data.items.astype(np.int64),
        variance=True,
    )
    ratings = data.ratings.astype(np.float64)
    standardised = (ratings - ratings.mean()) / state.unit
    weights = state.sides["user"].weights[data.users] * state.sides["item"].weights[data.items]
    squares = np.average((standardised - mean) ** 2 + variance, weights=weights)
    expected = np.sqrt(squares) * state.unit
    assert result.history[-1].train_rmse == pytest.approx(expected, rel=1e-9)


# -- seeding ------------------------------------------------------------------------------------


def test_communities_are_seeded_after_the_warm_up_and_no_more_than_allowed() -> None:
    result = fit(planted(), max_user_communities=5, max_item_communities=1, tol=0.0, max_sweeps=20)
    users = [report.user_communities for report in result.history]
    warm_up = Schedule().warm_up
    assert users[:warm_up] == [1] * warm_up
    assert users[warm_up] > 1
    assert max(users) <= 5
    assert {report.item_communities for report in result.history} == {1}


def test_seeds_are_hard_memberships_of_separate_clusters() -> None:
    result = fit(planted(), max_user_communities=1, max_item_communities=1, max_sweeps=8, tol=0.0)
    side = result.state.sides["user"]
    seed_communities(side, 4, np.random.default_rng(0))
    assert side.n_communities == 4
    assert set(np.unique(side.membership)) == {0.0, 1.0}
    np.testing.assert_array_equal(side.membership.sum(axis=1), 1.0)
    np.testing.assert_allclose(side.statistics.size, side.membership.sum(axis=0))
    np.testing.assert_allclose(side.statistics.first, side.membership.T @ side.factor_means)


def test_there_are_never_more_clusters_than_distinct_points(rng: np.random.Generator) -> None:
    points = np.repeat(rng.normal(size=(3, 2)), 5, axis=0)
    labels = cluster(points, 10, rng)
    assert np.unique(labels).size <= 3
    assert labels.shape == (15,)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_assigned_communities_explain_the_rows_they_were_given(
    setting: Setting, rng: np.random.Generator
) -> None:
    """After an assignment a held half-sweep finds the statistics that were set, or close."""
    state = problem(rng, setting, users=20)
    side = state.sides["user"]
    assign(side, np.arange(20) % 3, 3)
    assert side.statistics.tied == setting.tied_users
    np.testing.assert_array_equal(side.statistics.size, [7.0, 7.0, 6.0])
    update_side(state, "user", coupled=setting.coupled, hold=True)
    np.testing.assert_allclose(side.statistics.size, [7.0, 7.0, 6.0])


# -- trials of larger moves ---------------------------------------------------------------------


def settled_state(**parameters: Any) -> BatchState:
    return fit(planted(), tol=1e-6, max_sweeps=60, **parameters).state


def improve(
    state: BatchState, *, limit: int = 6, coupled: bool = True, splits: bool = True
) -> bool:
    chosen = replace(
        options(), max_communities={"user": limit, "item": limit}, coupled=coupled, evb="closed"
    )
    return trials.improve(state, chosen, np.random.default_rng(0), splits=splits)


@FORMS
def test_a_trial_that_is_kept_has_raised_the_bound(membership: str) -> None:
    state = fit(planted(), tol=0.0, max_sweeps=14, membership=membership).state
    for _ in range(4):
        before = sum(state.bound_terms().values())
        kept = improve(state, coupled=membership == "coupled")
        after = sum(state.bound_terms().values())
        assert after > before if kept else after == before


def test_trials_rejoin_a_community_that_was_torn_apart() -> None:
    state = settled_state()
    side = state.sides["user"]
    assert side.n_communities == 3
    labels = side.membership.argmax(axis=1)
    members = np.flatnonzero(labels == 0)
    labels[members[::2]] = 3
    assign(side, labels, 4)
    update_side(state, "user", hold=True)
    while improve(state):
        pass
    assert state.sides["user"].n_communities == 3


def test_trials_split_communities_that_were_put_together() -> None:
    state = settled_state()
    side = state.sides["user"]
    merge(side, 0, 1)
    for name in ("user", "item", "user"):
        update_side(state, name)
    assert side.n_communities == 2
    improve(state, splits=False)
    assert state.sides["user"].n_communities <= 2
    while improve(state):
        pass
    assert state.sides["user"].n_communities == 3


def test_trials_keep_to_the_limits() -> None:
    state = settled_state()
    assert not improve(state, limit=1)
    merge(state.sides["user"], 0, 1)
    update_side(state, "user")
    improve(state, limit=2)
    assert state.sides["user"].n_communities <= 2


def test_a_sweep_merges_when_it_is_due() -> None:
    """Twice the same community is one, at the first sweep that tries merges."""
    engine, unit = compressed(planted(user_communities=1, item_communities=1))
    state = start_state(engine, unit, options(), np.random.default_rng(0))
    schedule = Schedule(warm_up=4, hold_structure=2, merge_every=2)
    chosen = replace(options(), schedule=schedule, max_communities={"user": 4, "item": 1})
    counts = []
    for _ in range(10):
        sweep(state, chosen, np.random.default_rng(1))
        counts.append(state.sides["user"].n_communities)
    assert counts[:4] == [1, 1, 1, 1]
    assert counts[4] > 1
    assert counts[-1] == 1
