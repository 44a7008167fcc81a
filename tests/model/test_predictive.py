"""What is expected of pairs, how surely, and of strangers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

from hemf.kernels.reference import rows as reference
from hemf.model import rows as predictive
from hemf.model.communities import Communities, Sticks
from hemf.model.rows import Layout, Moments, pack, unpack
from hemf.model.side import prior_predictive, with_stranger
from proofs.problems import SETTINGS, Setting, any_communities, problem, spd


def any_moments(rng: np.random.Generator, rows: int, total: int) -> Moments:
    mean = rng.normal(size=(rows, total))
    return Moments(mean, pack(spd(rng, total, rows) + mean[:, :, None] * mean[:, None, :]))


@pytest.fixture
def sides(rng: np.random.Generator) -> tuple[Moments, Moments]:
    return any_moments(rng, 6, 4), any_moments(rng, 9, 4)


def all_pairs(left: Moments, right: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every pair, by the reference."""
    rows, columns = (part.ravel() for part in np.indices((len(left.mean), len(right.mean))))
    mean, variance = np.empty(rows.size), np.empty(rows.size)
    reference.pair_moments(
        rows, columns, left.mean, left.second, right.mean, right.second, True, mean, variance
    )
    shape = (len(left.mean), len(right.mean))
    return mean.reshape(shape), variance.reshape(shape)


# docs/model.md#predictive-variance
def test_pairs_and_whole_rows_agree(sides: tuple[Moments, Moments]) -> None:
    left, right = sides
    mean, variance = all_pairs(left, right)
    rows = np.array([4, 0, 4])
    scores, spread = predictive.score_rows(left, right, rows, variance=True)
    np.testing.assert_allclose(scores, mean[rows], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(spread, variance[rows], rtol=1e-10, atol=1e-12)
    pairs, alone = predictive.pair_moments(
        left, right, np.array([5, 1]), np.array([2, 8]), variance=True
    )
    np.testing.assert_allclose(pairs, mean[[5, 1], [2, 8]], rtol=1e-10)
    np.testing.assert_allclose(alone, variance[[5, 1], [2, 8]], rtol=1e-10)


def test_row_minus_one_is_the_last(sides: tuple[Moments, Moments]) -> None:
    left, right = sides
    first, _ = predictive.pair_moments(left, right, np.array([-1]), np.array([3]), variance=False)
    last, _ = predictive.pair_moments(left, right, np.array([5]), np.array([3]), variance=False)
    assert first[0] == last[0]


def test_drawn_scores_have_the_mean_and_variance_of_the_posterior(
    sides: tuple[Moments, Moments], rng: np.random.Generator
) -> None:
    left, right = sides
    mean, variance = all_pairs(left, right)
    rows = np.full(40_000, 2)
    draws = predictive.draw_scores(left, right, rows, rng)
    error = draws.std(axis=0) / np.sqrt(rows.size)
    assert (np.abs(draws.mean(axis=0) - mean[2]) < 4.5 * error).all()
    np.testing.assert_allclose(draws.var(axis=0), variance[2], rtol=0.06)


def test_drawn_vectors_leave_a_pinned_coordinate_alone(rng: np.random.Generator) -> None:
    state = problem(rng, Setting(offsets=True))
    side = state.sides["user"]
    draws = predictive.draw_vectors(side.moments, np.arange(side.n_rows), rng)
    np.testing.assert_allclose(draws[:, side.layout.pinned], 1.0, atol=1e-6)
    free = side.layout.free
    assert (draws[:, free].std(axis=0) > 0.01).all()


# docs/model.md#strangers
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
@pytest.mark.parametrize("offsets", [True, False], ids=["offsets", "plain"])
def test_a_stranger_is_drawn_from_the_communities(
    tied: bool, offsets: bool, rng: np.random.Generator
) -> None:
    layout = Layout.of("user", n_factors=2, offsets=offsets)
    order, draws = layout.order, 60_000
    communities = any_communities(rng, 3, order, tied=tied)
    communities = Communities(
        communities.sticks, communities.mean, communities.kappa + 1.0, communities.scale,
        communities.dof + 12.0,
    )  # fmt: skip
    mean, second = prior_predictive(communities, layout)
    which = rng.choice(3, size=draws, p=communities.sticks.weights)
    rows = np.ones((draws, layout.total))
    for d in range(3):
        chosen = np.flatnonzero(which == d)
        c = 0 if tied else d
        sigma = stats.invwishart(communities.dof[c], communities.scale[c]).rvs(
            chosen.size, random_state=rng
        )
        root = np.linalg.cholesky(sigma.reshape(-1, order, order))
        mu = communities.mean[d] + np.einsum(
            "nij,nj->ni", root, rng.normal(size=(chosen.size, order))
        ) / np.sqrt(communities.kappa[d])
        rows[chosen[:, None], layout.free] = mu + np.einsum(
            "nij,nj->ni", root, rng.normal(size=(chosen.size, order))
        )
    outer = rows[:, :, None] * rows[:, None, :]
    for found, expected in ((rows, mean), (outer, unpack(second))):
        error = found.std(axis=0) / np.sqrt(draws)
        assert (np.abs(found.mean(axis=0) - expected) <= 4.5 * error + 1e-12).all()


def test_a_stranger_has_a_finite_variance_where_the_prior_has_none(
    rng: np.random.Generator,
) -> None:
    layout = Layout.of("item", n_factors=3, offsets=False)
    vague = Communities(
        sticks=Sticks(np.ones(2), np.ones(2)),
        mean=np.zeros((2, 3)),
        kappa=np.ones(2),
        scale=spd(rng, 3, 2),
        dof=np.array([2.5, 4.0]),  # E[Σ] exists above L + 1 = 4
    )
    _, second = prior_predictive(vague, layout)
    assert np.isfinite(second).all()
    assert (np.linalg.eigvalsh(unpack(second)) > 0.0).all()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_stranger_comes_after_the_rows(setting: Setting, rng: np.random.Generator) -> None:
    side = problem(rng, setting).sides["item"]
    extended = with_stranger(side)
    np.testing.assert_array_equal(extended.mean[:-1], side.moments.mean)
    np.testing.assert_array_equal(extended.second[:-1], side.moments.second)
    mean, second = side.stranger
    if side.regression is None:
        mean, second = prior_predictive(side.communities, side.layout)
    np.testing.assert_allclose(extended.mean[-1], mean)
    np.testing.assert_allclose(extended.second[-1], second)
    if side.layout.pinned >= 0:
        assert extended.mean[-1, side.layout.pinned] == 1.0


def test_best_columns_are_those_a_full_sort_finds(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(7, 30))
    best = predictive.best_columns(scores, 5)
    np.testing.assert_array_equal(best.columns, np.argsort(-scores, axis=1)[:, :5])
    np.testing.assert_array_equal(best.scores, -np.sort(-scores, axis=1)[:, :5])


def test_forbidden_columns_are_not_chosen_even_when_few_are_left() -> None:
    scores = np.array([[1.0, -np.inf, 3.0], [-np.inf, -np.inf, -np.inf]])
    best = predictive.best_columns(scores, 9)
    assert best.columns.tolist() == [[2, 0, -1], [-1, -1, -1]]


def test_equal_scores_are_listed_by_column() -> None:
    best = predictive.best_columns(np.array([[2.0, 5.0, 5.0, 2.0]]), 4)
    assert best.columns.tolist() == [[1, 2, 0, 3]]


def test_newcomers_like_a_typical_rating_differ_in_their_mean_alone(
    rng: np.random.Generator,
) -> None:
    side = problem(rng, Setting(offsets=True, features=True)).sides["user"]
    layout = side.layout
    assert side.regression is not None
    regression = side.regression.fitted(rng.normal(size=(side.n_rows, layout.order)))
    side.regression = regression
    features = csr_array(rng.normal(size=(3, 2)))  # of all that the rows have, two are known
    counts = rng.integers(0, 9, side.n_rows)
    rows = with_stranger(side, features)
    ratings = with_stranger(side, features, counts)
    here = slice(side.n_rows, side.n_rows + 3)
    known = regression.coefficients[:2]
    left = side.factor_means - regression.design.matrix.toarray()[:, :2] @ known
    expected = features.toarray() @ known + np.average(left, axis=0, weights=counts)
    np.testing.assert_allclose(ratings.mean[here][:, layout.free], expected, rtol=1e-10)
    assert not np.allclose(rows.mean[here], ratings.mean[here])
    for found in (rows, ratings):  # the others are what they are
        np.testing.assert_array_equal(found.mean[: side.n_rows], side.moments.mean)
        np.testing.assert_array_equal(found.mean[-1], side.stranger[0])
    covariances = [
        unpack(found.second[here]) - found.mean[here][:, :, None] * found.mean[here][:, None, :]
        for found in (rows, ratings)
    ]
    np.testing.assert_allclose(covariances[1], covariances[0], atol=1e-10)
