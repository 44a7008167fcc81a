"""Every block update raises the lower bound, or leaves it where it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hemf._checks import one_blas_thread
from hemf.batch.fit import BatchState, learn_noise
from hemf.kernels.reference import rows as reference
from hemf.kernels.structures import (
    Features,
    OtherRows,
    Posterior,
    Prior,
    Ratings,
    RowUpdate,
    Statistics,
)
from hemf.model import regression as ridge
from hemf.model import side as sides
from hemf.model.communities import (
    best_centre,
    best_concentration,
    best_dof,
    best_scale,
    best_spread,
)
from hemf.model.rows import learn_scales, pack, scale_posterior
from proofs import slow_bound
from proofs.problems import SETTINGS, Setting, problem, tables
from proofs.watch import Watched

SWEEPS = 2


def order_by_size(watched: Watched, name: str) -> None:
    side = watched.state.sides[name]
    before = side.membership.copy()
    sides.order_by_size(side)
    moved = [int(np.argmin(np.abs(before.T - column).sum(axis=1))) for column in side.membership.T]
    watched.reorder(name, np.array(moved))


def update_scales(watched: Watched, name: str) -> None:
    state, side = watched.state, watched.state.sides[name]
    if side.noise_scales is not None:
        errors, counts = watched.errors[name], np.diff(tables(state)[name].indptr)
        shape = side.noise_scales.prior_shape
        side.noise_scales = scale_posterior(errors / state.noise, counts, shape)
        state.squared_error = float(errors @ side.weights)


def learn_scale_prior(watched: Watched, name: str) -> None:
    state, side = watched.state, watched.state.sides[name]
    if side.noise_scales is not None:
        errors, counts = watched.errors[name], np.diff(tables(state)[name].indptr)
        scales = side.noise_scales
        side.noise_scales, factor = learn_scales(scales, errors / state.noise, counts)
        state.noise /= factor
        state.squared_error = float(errors @ side.weights)


def learn(watched: Watched, name: str, what: str) -> None:
    side = watched.state.sides[name]
    communities, prior = side.communities, side.prior
    learnt = {
        "concentration": lambda: best_concentration(communities.sticks),
        "centre": lambda: best_centre(communities),
        "mean_scale": lambda: best_spread(communities, prior.centre),
        "scale": lambda: best_scale(communities, prior.dof),
        "dof": lambda: best_dof(communities, prior.scale, prior.dof),
    }[what]()
    side.prior = replace(prior, **{what: learnt})


def merge_alike(watched: Watched, name: str) -> None:
    """What `moves.merge_alike` does, followed merge by merge."""
    side = watched.state.sides[name]
    side.refresh()
    while side.n_communities > 1:
        left, right, gain = sides.best_merge(side)
        if gain <= 0.0:
            break
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sides, "order_by_size", lambda side: None)
            sides.merge(side, left, right)
        watched.merge(name, left, right)
        order_by_size(watched, name)


def blocks(watched: Watched) -> Iterator[tuple[str, float]]:
    """One sweep, block by block: what was updated, and what it may have cost."""
    state = watched.state
    for name, side in state.sides.items():
        yield f"{name} rows", watched.update_rows(name)
        update_scales(watched, name)
        yield f"{name} noise scales", 0.0
        learn_scale_prior(watched, name)
        yield f"{name} noise scales and their prior", 0.0
        if side.regression is not None:
            yield f"{name} doubts, precisions and rows", watched.learn_features(name)
            watched.regress(name)
            yield f"{name} regression", 0.0
        side.refresh()
        yield f"{name} communities", 0.0
        order_by_size(watched, name)
        yield f"{name} order", 0.0
    learn_noise(state)
    yield "σ²", 0.0
    for name, side in state.sides.items():
        several = ["concentration", "mean_scale", "dof"] if side.n_communities > 1 else []
        for what in ["centre", "scale", *several]:
            learn(watched, name, what)
            yield f"{name} {what}", 0.0
        side.refresh()
        yield f"{name} communities under the new prior", 0.0
    for name in state.sides:
        merge_alike(watched, name)
        yield f"{name} merges", 0.0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_block_update_lowers_the_bound(setting: Setting, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = problem(rng, setting, communities=(4, 3))
    watched = Watched(state, setting)
    first = watched.value
    for _ in range(SWEEPS):
        for block, cost in blocks(watched):
            watched.assert_no_lower(block, cost)
    assert watched.value > first + 1.0


@pytest.mark.parametrize("seed", [0, 1])
def test_no_step_of_the_conjugate_gradients_lowers_the_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do a covariance that is diagonal, and a solution that is only half found."""
    monkeypatch.setattr(ridge, "DIRECT", 0)
    monkeypatch.setattr(ridge.Iterative, "steps", 2)
    setting = Setting(features=True)
    watched = Watched(problem(np.random.default_rng(seed), setting, communities=(3, 2)), setting)
    first = watched.value
    for _ in range(SWEEPS):
        for block, cost in blocks(watched):
            watched.assert_no_lower(block, cost)
    assert watched.value > first + 1.0


@pytest.mark.parametrize("direct", [True, False])
def test_precisions_of_features_many_more_than_rows_do_not_lower_the_bound(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(ridge, "DIRECT", 0)
    setting = Setting(features=True)
    rng = np.random.default_rng(0)
    state = problem(rng, setting, users=8, items=5, communities=(1, 1), wide=24)
    with one_blas_thread():
        watched = Watched(state, setting)
        before = state.sides["item"].regression.precision
        for _ in range(4):
            for block, cost in blocks(watched):
                watched.assert_no_lower(block, cost)
    assert np.abs(np.log(state.sides["item"].regression.precision / before)).max() > 0.5


# docs/model.md#merge
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_merges_happen_where_they_raise_the_bound(setting: Setting) -> None:
    # Rows of one kind, dealt at random to four communities: these are alike.
    state = problem(np.random.default_rng(5), setting, users=30, communities=(4, 1))
    watched = Watched(state, setting)
    state.sides["user"].refresh()
    watched.value = watched.total()
    merge_alike(watched, "user")
    assert state.sides["user"].n_communities < 4
    watched.assert_no_lower("merges")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_leaving_out_negligible_communities_costs_what_was_computed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tolerance of the row updates above is no guess: it is the most that can be lost."""
    lost = []
    for seed in range(4):
        state = problem(np.random.default_rng(seed), setting, communities=(4, 2))
        watched = Watched(state, setting)
        side = state.sides["user"]
        # Communities apart, so that some are out of the question for some rows.
        apart = side.communities.mean + 2.0 * np.arange(side.n_communities)[:, None]
        side.communities = replace(side.communities, mean=apart)
        start = state.copy()
        cost = watched.update_rows("user")
        with monkeypatch.context() as patch:
            patch.setattr(reference, "NEGLIGIBLE", 0.0)
            whole = start.copy()
            exact_rows(whole, setting)
        beliefs = dict(watched.beliefs)
        beliefs["user"] = slow_bound.belief(whole, "user", setting, side.communities)
        difference = slow_bound.total(whole, beliefs, watched.among) - watched.total()
        assert -1e-9 * abs(watched.total()) <= difference <= cost * (1.0 + 1e-6) + 1e-9
        lost.append(difference)
    assert max(lost) > 0.0


def exact_rows(state: BatchState, setting: Setting) -> None:
    """Update the user rows by the reference."""
    side, other, rows = state.sides["user"], state.sides["item"], tables(state)["user"]
    communities, layout = side.communities, side.layout
    update = reference.coupled_rows if setting.coupled else reference.mean_field_rows
    order, precision = layout.order, pack(communities.precision)
    features, regression = Features(*(np.zeros(0),) * 4), side.regression
    if regression is not None:
        root, information = np.linalg.cholesky(communities.precision[0]), np.empty(side.n_rows)
        features = Features(regression.shift, regression.leverage, root, information)
    everything = RowUpdate(
        np.array([0, side.n_rows]),
        Ratings.of(rows.indptr, rows.indices, rows.values),
        OtherRows.of(other.moments.mean, other.moments.second, other.weights),
        Prior(
            layout.free, layout.pinned, precision, communities.natural_mean, communities.log_weight
        ),
        Posterior(
            state.noise / side.weights, side.moments.mean, side.moments.second, side.membership,
            np.empty(side.n_rows), hold=False,
        ),
        features,
        Statistics(
            np.zeros((1, communities.count)), np.zeros((1, communities.count, order)),
            np.zeros((1, *precision.shape)), np.zeros(1),
        ),
    )  # fmt: skip
    update(0, 1, everything, None)
