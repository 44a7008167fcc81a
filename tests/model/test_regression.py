"""The regression on features is the ridge regression of the page, by whichever way it is solved."""

from __future__ import annotations

import copy
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from hemf import ConvergenceWarning, HeMF
from hemf.kernels.reference import rows as reference
from hemf.model import regression as ridge
from hemf.model.communities import FLOOR, Statistics, community_posterior, factors_term
from hemf.model.regression import MIN_INFORMATION, Design, Regression, regression_term
from hemf.model.rows import Layout, unpack
from hemf.model.side import expected_covariance, prior_predictive
from proofs.problems import any_communities, any_design, any_prior

ORDER = 3
SHAPES = {"more rows": (30, (4, 2)), "more features": (8, (30, 50)), "as many": (9, (9,))}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def exact(
    design: Design, precision: np.ndarray, information: np.ndarray | None = None
) -> np.ndarray:
    """C the long way."""
    X = design.matrix.toarray()
    information = np.ones(len(X)) if information is None else information
    return np.linalg.inv(X.T @ (information[:, None] * X) + np.diag(design.by_column(precision)))


def knowing(regression: Regression, information: np.ndarray) -> Regression:
    """With the best C for these information weights."""
    return regression.with_precision(
        regression.precision, information, regression.known(information)
    )


# docs/model.md#coefficients
@pytest.mark.parametrize("shape", SHAPES)
def test_either_factorisation_gives_the_same_posterior(shape, rng):
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    precision, information = rng.uniform(0.3, 3.0, len(widths)), rng.uniform(0.1, 1.0, n_rows)
    C, X = exact(design, precision, information), design.matrix.toarray()
    way = ridge.Direct(design.weighted(information))
    summary = way.covariance(precision)
    np.testing.assert_allclose(summary.trace, design.by_block(np.diag(C)), rtol=1e-9)
    assert summary.log_det == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-10)
    assert summary.weighted_leverage == pytest.approx(information @ np.diag(X @ C @ X.T), rel=1e-9)
    leverage = way.leverages(precision) / information
    np.testing.assert_allclose(leverage, np.diag(X @ C @ X.T), rtol=1e-8)
    others = sp.random_array((5, design.n_columns), density=0.5, rng=rng, format="csr")
    wanted = np.diag(others.toarray() @ C @ others.toarray().T)
    np.testing.assert_allclose(way.variance(sp.csr_array(others), precision), wanted, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_where_rows_are_known_one_step_finds_the_coefficients(shape, rng):
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    targets = rng.normal(size=(n_rows, ORDER))
    fitted = Regression.start(design, ORDER).fitted(targets)
    wanted = exact(design, fitted.precision) @ design.matrix.T @ targets
    np.testing.assert_allclose(fitted.coefficients, wanted, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_where_they_are_not_the_next_steps_do(shape, rng):
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    targets, information = rng.normal(size=(n_rows, ORDER)), rng.uniform(0.3, 1.0, n_rows)
    regression = knowing(Regression.start(design, ORDER), information)
    wanted = exact(design, regression.precision) @ design.matrix.T @ targets
    gaps = []
    for _ in range(40):
        regression = regression.fitted(targets)
        gaps.append(np.abs(regression.coefficients - wanted).max())
    assert gaps[0] > 1e-4
    assert gaps[-1] < 1e-7


@pytest.mark.parametrize(("rows", "columns"), [(50, 30), (7, 300)])
def test_products_are_the_same_by_what_is_not_zero(rows, columns, rng, monkeypatch):
    matrix = sp.csr_array(sp.random_array((rows, columns), density=0.05, rng=rng))
    dense = matrix.toarray()
    for share in (0.0, np.inf):
        monkeypatch.setattr(ridge, "DENSE", share)  # always, and never
        np.testing.assert_allclose(
            ridge.gram(matrix, np.dtype(np.float64)), dense.T @ dense, atol=1e-13
        )
    lower = np.tril(dense.T @ dense)
    np.testing.assert_allclose(
        ridge.forms(matrix, lower), np.diag(dense @ dense.T @ dense @ dense.T), atol=1e-12
    )


# -- rows that follow V --------------------------------------------------------------------------


# docs/model.md#side-information
def test_with_one_coordinate_the_posterior_is_the_exact_one(rng):
    """Of V and all rows together, given ratings of known items: a Gaussian, by one inverse."""
    n_rows, widths, P = 12, (3, 20), 2.5
    design = any_design(rng, n_rows, widths)
    G, h = rng.uniform(0.0, 9.0, n_rows), rng.normal(size=n_rows)  # of the ratings, over σ²
    G[3] = 0.0  # has none
    S = 1.0 / (G + P)
    regression = knowing(Regression.start(design, 1), 1.0 - P * S)
    X, F = design.matrix.toarray(), design.n_columns
    prior = np.diag(design.by_column(regression.precision))
    joint = np.block([[P * (X.T @ X + prior), -P * X.T], [-P * X, np.diag(G + P)]])
    covariance = np.linalg.inv(joint)
    mean = covariance @ np.concatenate([np.zeros(F), h])
    information = np.maximum(1.0 - P * S, MIN_INFORMATION)
    np.testing.assert_allclose(
        covariance[:F, :F], exact(design, regression.precision, information) / P,
                               atol=1e-3)  # fmt: skip
    some = G > 0.0
    ours = S + regression.leverage * S * P * S
    np.testing.assert_allclose(ours[some], np.diag(covariance)[F:][some], rtol=2e-3)
    m = np.zeros(n_rows)
    for _ in range(3000):  # rows and M in turn
        regression = regression.fitted(m[:, None])
        m = S * (h + P * regression.shift[:, 0])
    np.testing.assert_allclose(m, mean[F:], atol=1e-6)
    np.testing.assert_allclose(regression.coefficients[:, 0], mean[:F], atol=1e-6)


# docs/model.md#information
def test_what_v_is_uncertain_by_reaches_rows_as_draws_say(rng):
    """E[aaᵀ], and E (a-Vᵀx)ᵀΣ⁻¹(a-Vᵀx), which scatter and leverage share between them."""
    root = rng.normal(size=(ORDER, ORDER))
    P = root @ root.T + np.eye(ORDER)
    half = rng.normal(size=(ORDER, ORDER + 2))
    S = np.linalg.inv(P + half @ half.T)
    c, n = 0.7, 400_000
    held, given, information = reference.with_leverage(S, P, c, 1)
    shift = np.sqrt(c) * rng.normal(size=(n, ORDER)) @ np.linalg.cholesky(np.linalg.inv(P)).T
    a = shift @ (S @ P).T + rng.normal(size=(n, ORDER)) @ np.linalg.cholesky(S).T
    np.testing.assert_allclose(held[0], a.T @ a / n, atol=0.01 * np.abs(held).max())
    left = a - shift
    drawn = float(np.einsum("ni,ij,nj->", left, P, left) / n)
    assert np.trace(P @ given[0]) + ORDER * information * c == pytest.approx(drawn, rel=0.01)


# docs/model.md#regression-bound
def test_no_other_covariance_raises_the_bound(rng):
    design = any_design(rng, 12, (4, 3))
    information = rng.uniform(0.1, 1.0, 12)
    regression = knowing(Regression.start(design, ORDER), information)
    best = regression_term(regression)
    C, X = exact(design, regression.precision, information), design.matrix.toarray()
    assert regression.covariance.weighted_leverage == pytest.approx(
        information @ regression.leverage
    )
    for _ in range(50):
        stretch = np.eye(7) + 0.1 * rng.normal(size=(7, 7))
        other = stretch @ C @ stretch.T
        summary = ridge.CovarianceSummary(
            design.by_block(np.diag(other)),
            float(np.linalg.slogdet(other)[1]),
            float(information @ np.diag(X @ other @ X.T)),
        )
        assert regression_term(replace(regression, covariance=summary)) < best


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
    n_rows, widths = SHAPES[shape]
    design = any_design(rng, n_rows, widths)
    targets = rng.normal(size=(n_rows, ORDER))
    monkeypatch.setattr(ridge, "DIRECT", 0)
    regression = Regression.start(design, ORDER)
    assert isinstance(regression.solver, ridge.Iterative)
    for _ in range(30):
        regression = regression.fitted(targets)
    wanted = exact(design, regression.precision) @ design.matrix.T @ targets
    np.testing.assert_allclose(regression.coefficients, wanted, atol=1e-6 * np.abs(wanted).max())


def test_the_diagonal_covariance_is_the_best_diagonal_one(rng):
    design = any_design(rng, 12, (4, 3))
    regression = Regression.start(design, ORDER)
    information = rng.uniform(0.1, 1.0, 12)
    heard = design.weighted(information)
    way = ridge.Iterative(heard)
    best = regression_term(replace(regression, covariance=way.covariance(regression.precision)))
    diagonal = 1.0 / (heard.squares + design.by_column(regression.precision))
    for _ in range(50):
        other = diagonal * np.exp(0.2 * rng.normal(size=diagonal.size))
        summary = ridge.CovarianceSummary(
            design.by_block(other), float(np.log(other).sum()), float(heard.squares @ other)
        )
        assert regression_term(replace(regression, covariance=summary)) <= best


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
    knowing(regression.fitted(targets), np.full(2_000, 0.5)).proposed_precision(np.eye(4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 8 * (design.values.size + 4 * design.n_columns)  # of 1.6 GB for X in full


def test_features_that_are_copies_are_factorised_in_double_precision(rng):
    column = 1e4 * rng.normal(size=(40, 1))
    design = Design.of({"same": np.tile(column, 30)}, np.float32)
    way = ridge.Direct(design)
    way._dtype = np.dtype(np.float32)
    start, shift = np.zeros((30, 1)), np.zeros((40, 1))
    found = ridge.solved(design, column, np.array([1e-2]), start, shift, way)
    np.testing.assert_allclose(design.matrix @ found, column, rtol=1e-3, atol=1.0)


# docs/model.md#feature-precision
@pytest.mark.parametrize("widths", [(5, 3), (5, 200)])
def test_no_other_precision_raises_the_bound(widths, rng, monkeypatch):
    """Each with the M and C that are best under it; rows stay."""
    monkeypatch.setattr("hemf.model.regression.OVERSTEP", 0.5)
    design = any_design(rng, 40, widths)
    communities = any_communities(rng, 1, ORDER, tied=True)
    communities = replace(communities, mean=np.zeros((1, ORDER)))
    shift = design.matrix @ (rng.normal(size=(sum(widths), ORDER)) / np.sqrt(sum(widths)))
    targets, information = shift + rng.normal(size=(40, ORDER)), rng.uniform(0.2, 1.0, 40)

    def under(precision: np.ndarray) -> Regression:
        found = start.with_precision(precision, information, start.known(information))
        for _ in range(60):
            found = found.fitted(targets)
        return found

    def bound(regression: Regression) -> float:
        left = targets - regression.shift
        scatter = (left.T @ left + 40.0 * np.eye(ORDER))[None] + regression.penalty
        statistics = Statistics(np.array([40.0]), left.sum(axis=0)[None], scatter, 0.0)
        return factors_term(statistics, communities) + regression_term(regression)

    start = Regression.start(design, ORDER)
    regression = under(start.precision)
    first = bound(regression)
    for _ in range(80):
        regression = under(regression.proposed_precision(communities.precision[0]))
    best = bound(regression)
    assert best > first + 0.1
    for _ in range(30):
        other = regression.precision * np.exp(0.4 * rng.normal(size=2))
        assert bound(under(other)) <= best + 1e-3


def test_small_changes_are_not_worth_a_factorisation(rng):
    design = any_design(rng, 40, (5, 3))
    information = np.full(40, 0.7)
    regression = knowing(Regression.start(design, ORDER), information)
    assert not regression.is_stale(1.01 * regression.precision, information + 1e-3)
    assert regression.is_stale(1.1 * regression.precision, information)
    assert regression.is_stale(regression.precision, information - 0.2)


# docs/model.md#newcomers
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
    mean, second = prior_predictive(communities, layout, regression.feature_prior(x))
    C, sigma = exact(design, regression.precision), expected_covariance(communities)[0]
    n, half = 200_000, np.linalg.cholesky(sigma)
    share = float(x.toarray()[0] @ C @ x.toarray()[0])
    scale = np.sqrt(1.0 + 1.0 / communities.kappa[0] + share)
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
    nothing = regression.feature_prior(sp.csr_array((1, 0)))
    np.testing.assert_allclose(nothing.shift[0], regression.shift.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(
        nothing.covariance, np.cov(regression.shift.T, bias=True), atol=1e-12
    )
    everything = regression.feature_prior(design.matrix[:4])
    np.testing.assert_allclose(everything.shift, regression.shift[:4], atol=1e-12)
    np.testing.assert_allclose(everything.covariance, 0.0, atol=1e-20)


def test_blocks_stand_side_by_side(rng):
    design = Design.of({"a": np.eye(3), "b": sp.csr_array(np.ones((3, 2)))})
    assert (design.n_rows, design.n_columns) == (3, 5)
    assert design.by_block(np.arange(5.0)).tolist() == [3.0, 7.0]
    assert design.by_column(np.array([1.0, 2.0])).tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert design.squares.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert (design.block(0), design.block(1)) == (slice(0, 3), slice(3, 5))


def test_a_factorisation_that_is_cut_short_is_not_taken_for_the_one_before(rng, monkeypatch):
    design = any_design(rng, 12, (3, 4))
    one, other = np.array([1.0, 2.0]), np.array([30.0, 0.1])
    right, known = rng.normal(size=(7, 2)), ridge.Direct(design)
    expected = known.solve(right, one)

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ridge, "CovarianceSummary", fails)
        with pytest.raises(MemoryError):
            known.solve(right, other)
    np.testing.assert_array_equal(known.solve(right, one), expected)


def test_covariances_stay_covariances_where_features_leave_less_than_nothing(rng):
    """Rows give S + c (S P S - S), which need not be positive in every direction."""
    users, items = rng.integers(12, size=60), rng.integers(9, size=60)
    pairs = set(zip(users.tolist(), items.tolist(), strict=True))
    rows = [(*pair, float(rng.integers(1, 6))) for pair in sorted(pairs)]
    with pytest.warns(ConvergenceWarning):
        model = HeMF(n_factors=2, implicit_features="user", max_sweeps=3, rng=0).fit(rows)
    side = copy.deepcopy(model.state_.sides["user"])
    before = side.communities
    side.refresh()
    least = np.linalg.eigvalsh(np.linalg.solve(side.prior.scale, side.communities.scale[0])).min()
    assert least > FLOOR  # so that nothing is done where nothing is wrong
    direction = np.zeros(side.layout.order)
    direction[0] = 1.0
    less = 50.0 * before.scale[0, 0, 0] * direction[:, None] * direction
    side.refresh(replace(side.statistics, scatter=side.statistics.scatter - less))
    np.linalg.cholesky(side.communities.scale)
    np.linalg.cholesky(side.communities.precision)
    assert np.isfinite(side.communities.log_det).all()
