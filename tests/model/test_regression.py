"""The regression on features is the ridge regression of the page, by whichever way it is solved."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from hemf.model import ridge
from hemf.model.bound import factors_term
from hemf.model.communities import Statistics, community_posterior
from hemf.model.design import Design
from hemf.model.layout import Layout
from hemf.model.packing import unpack
from hemf.model.regression import Regression, regression_term
from hemf.model.stranger import expected_covariance, prior_predictive
from proofs.problems import any_communities, any_design, any_prior

ORDER = 3
SHAPES = {"more rows": (30, (4, 2)), "more features": (8, (30, 50)), "as many": (9, (9,))}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def exact(design: Design, precision: np.ndarray) -> np.ndarray:
    """C the long way."""
    X = design.matrix.toarray()
    return np.linalg.inv(X.T @ X + np.diag(design.by_column(precision)))


@pytest.mark.parametrize("shape", SHAPES)
def test_either_factorisation_gives_the_same_posterior(shape, rng):
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    precision, targets = rng.uniform(0.3, 3.0, len(widths)), rng.normal(size=(n_rows, ORDER))
    C, X = exact(design, precision), design.matrix.toarray()
    way = ridge.Direct(design)
    start = np.zeros((design.n_columns, ORDER))
    np.testing.assert_allclose(
        way.coefficients(targets, precision, start), C @ X.T @ targets, atol=1e-10
    )
    spread = way.spread(precision)
    np.testing.assert_allclose(spread.trace, design.by_block(np.diag(C)), rtol=1e-9)
    assert spread.log_det == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-10)
    assert spread.leverage == pytest.approx(np.trace(X @ C @ X.T), rel=1e-9)
    others = sp.random_array((5, design.n_columns), density=0.5, rng=rng, format="csr")
    wanted = np.diag(others.toarray() @ C @ others.toarray().T)
    np.testing.assert_allclose(way.variance(sp.csr_array(others), precision), wanted, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_side_is_solved_for_by_what_is_known_of_the_covariance(shape, rng):
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    precision, right = rng.uniform(0.3, 3.0, len(widths)), rng.normal(size=(sum(widths), ORDER))
    C = exact(design, precision)
    np.testing.assert_allclose(ridge.Direct(design).solve(right, precision), C @ right, atol=1e-10)
    diagonal = 1.0 / np.diag(np.linalg.inv(C))
    found = ridge.Iterative(design).solve(right, precision)
    np.testing.assert_allclose(found, diagonal[:, None] * right, rtol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_conjugate_gradients_arrive_there_sweep_after_sweep(shape, rng, monkeypatch):
    monkeypatch.setattr(ridge, "ACCURACY", 1e-10)
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    precision, targets = rng.uniform(0.3, 3.0, len(widths)), rng.normal(size=(n_rows, ORDER))
    way = ridge.Iterative(design)
    found = np.zeros((design.n_columns, ORDER))
    for _ in range(30):
        found = way.coefficients(targets, precision, found)
    wanted = exact(design, precision) @ design.matrix.T @ targets
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())


def test_the_diagonal_covariance_is_the_best_diagonal_one(rng):
    design = any_design(rng, 12, (4, 3))
    regression = Regression.start(design, ORDER)
    way = ridge.Iterative(design)
    best = regression_term(replace(regression, spread=way.spread(regression.precision)))
    diagonal = 1.0 / (design.squares + design.by_column(regression.precision))
    for _ in range(50):
        other = diagonal * np.exp(0.2 * rng.normal(size=diagonal.size))
        spread = ridge.Spread(
            design.by_block(other), float(np.log(other).sum()), float(design.squares @ other)
        )
        assert regression_term(replace(regression, spread=spread)) <= best


def test_the_way_is_chosen_by_size(monkeypatch, rng):
    design = any_design(rng, 30, (20,))
    assert isinstance(ridge.solver(design), ridge.Direct)
    monkeypatch.setattr(ridge, "DIRECT", 19)
    assert isinstance(ridge.solver(design), ridge.Iterative)


def test_many_features_take_memory_by_their_non_zeros(monkeypatch, rng):
    monkeypatch.setattr(ridge, "DIRECT", 100)
    matrix = sp.random_array((2_000, 100_000), density=1e-4, rng=rng, format="csr")
    design = Design.of({"many": matrix})
    regression, targets = Regression.start(design, 4), rng.normal(size=(2_000, 4))
    tracemalloc.start()
    regression.fitted(targets).learnt(np.eye(4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 8 * (design.values.size + 4 * design.n_columns)  # of 1.6 GB for X in full


def test_features_that_are_copies_are_factorised_in_double_precision(rng):
    column = 1e4 * rng.normal(size=(40, 1))
    design = Design.of({"same": np.tile(column, 30)}, np.float32)
    way = ridge.Direct(design)
    way._dtype = np.dtype(np.float32)
    found = way.coefficients(column, np.array([1e-2]), np.zeros((30, 1)))
    np.testing.assert_allclose(design.matrix @ found, column, rtol=1e-3, atol=1.0)


def test_no_other_precision_raises_the_bound(rng):
    design = any_design(rng, 40, (5, 3))
    prior, communities = any_prior(rng, ORDER), any_communities(rng, 1, ORDER, tied=True)
    fitted = Regression.start(design, ORDER).fitted(rng.normal(size=(40, ORDER)))
    precision = communities.precision[0]

    def bound(regression: Regression) -> float:
        scatter = 40.0 * np.eye(ORDER)[None] + regression.penalty
        statistics = Statistics(np.array([40.0]), np.zeros((1, ORDER)), scatter, 0.0)
        return factors_term(statistics, communities) + regression_term(regression)

    best = fitted.learnt(precision)
    assert bound(best) > bound(fitted)
    for _ in range(50):
        other = best.precision * np.exp(0.3 * rng.normal(size=2))
        assert bound(replace(best, precision=other)) <= bound(best)
    assert prior.dof > 0  # the prior has no say in it


def test_small_changes_of_precision_are_not_worth_a_factorisation(rng):
    design = any_design(rng, 40, (5, 3))
    regression = Regression.start(design, ORDER).fitted(rng.normal(size=(40, ORDER)))
    for _ in range(300):
        regression = regression.learnt(np.eye(ORDER)).fitted(rng.normal(size=(40, ORDER)) * 0.0)
    assert regression.learnt(np.eye(ORDER), at_least=10.0) is regression


def test_what_features_say_of_newcomers_is_what_draws_from_the_posterior_say(rng):
    design = any_design(rng, 60, (3, 2))
    layout = Layout.of("user", n_factors=2, offsets=True)
    targets = rng.normal(size=(60, ORDER))
    regression = Regression.start(design, ORDER).fitted(targets)
    statistics = Statistics(
        np.array([60.0]), np.ones((1, ORDER)), 60.0 * np.eye(ORDER)[None] + regression.penalty, 0.0
    )
    communities = community_posterior(statistics, any_prior(rng, ORDER))
    x = sp.csr_array(rng.normal(size=(1, 5)))
    mean, second = prior_predictive(communities, layout, regression.hint(x))
    C, sigma = exact(design, regression.precision), expected_covariance(communities)[0]
    n, half = 200_000, np.linalg.cholesky(sigma)
    share = float(x.toarray()[0] @ C @ x.toarray()[0])
    scale = np.sqrt(1.0 + 1.0 / communities.strength[0] + share)
    draws = communities.mean[0] + (x @ regression.coefficients)[0]
    draws = draws + scale * rng.normal(size=(n, ORDER)) @ half.T
    free = layout.free
    np.testing.assert_allclose(mean[0, free], draws.mean(axis=0), atol=0.02)
    ours = unpack(second)[0][np.ix_(free, free)]
    np.testing.assert_allclose(ours, draws.T @ draws / n, atol=0.05)
    assert mean[0, layout.pinned] == 1.0


def test_features_that_are_not_known_are_expected_to_be_average(rng):
    design = any_design(rng, 60, (3, 2))
    regression = Regression.start(design, ORDER).fitted(rng.normal(size=(60, ORDER)))
    nothing = regression.hint(sp.csr_array((1, 0)))
    np.testing.assert_allclose(nothing.shift[0], regression.shift.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(nothing.spread, np.cov(regression.shift.T, bias=True), atol=1e-12)
    everything = regression.hint(design.matrix[:4])
    np.testing.assert_allclose(everything.shift, regression.shift[:4], atol=1e-12)
    np.testing.assert_allclose(everything.spread, 0.0, atol=1e-20)


def test_blocks_stand_side_by_side(rng):
    design = Design.of({"a": np.eye(3), "b": sp.csr_array(np.ones((3, 2)))})
    assert (design.n_rows, design.n_columns) == (3, 5)
    assert design.by_block(np.arange(5.0)).tolist() == [3.0, 7.0]
    assert design.by_column(np.array([1.0, 2.0])).tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert design.squares.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert (design.block(0), design.block(1)) == (slice(0, 3), slice(3, 5))


def test_precisions_of_what_was_chosen_to_rate_take_no_leaps(rng):
    targets = 0.1 * rng.normal(size=(8, ORDER))
    wide = sp.csr_array(rng.normal(size=(8, 900)))
    leaps = {}
    for name in ("(rated)", "genres"):
        regression = Regression.start(Design.of({name: wide}), ORDER).fitted(targets)
        leaps[name] = regression.leap(np.eye(ORDER), stalled=0.5)
    assert leaps["(rated)"] is None
    assert leaps["genres"] is not None
