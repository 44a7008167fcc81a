"""Each draw has the moments of the distribution that it is from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hemf.data.ratings import Sparse
from hemf.samplers.bpmf import draw_offsets, draw_rows, draw_shares, draw_topics, draw_vectors
from hemf.samplers.draws import Gaussian, NormalWishart, draw_noise, products

NOISE = 0.4
MANY = 20_000
MEAN = np.array([0.5, -1.0, 0.2])
PRECISION = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.2], [0.0, -0.2, 3.0]])
PRIOR = Gaussian(MEAN, PRECISION)


def posterior(regressors: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of what is regressed on, by the textbook."""
    precision = PRECISION + regressors.T @ regressors / NOISE
    natural_mean = PRECISION @ MEAN + regressors.T @ values / NOISE
    return np.linalg.solve(precision, natural_mean), np.linalg.inv(precision)


def assert_moments(drawn: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """The draws' mean and covariance are these, but for five standard errors."""
    n = len(drawn)
    variance = np.diag(covariance)
    off = np.abs(drawn.mean(axis=0) - mean)
    assert (off < 5 * np.sqrt(variance / n)).all()
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / n)
    assert (np.abs(np.cov(drawn, rowvar=False) - covariance) < 5 * error).all()


# docs/model.md#bpmf
@pytest.mark.parametrize("n_ratings", [0, 1, 4, 7])
def test_factors_are_drawn_from_their_conditional_posterior(n_ratings, rng):
    others = rng.normal(size=(9, 3)).astype(np.float32)
    rated = np.sort(rng.choice(9, n_ratings, replace=False))
    values = rng.normal(size=n_ratings).astype(np.float32)
    table = Sparse(
        np.arange(MANY + 1) * n_ratings,
        np.tile(rated, MANY).astype(np.int32),
        np.tile(values, MANY),
    )
    drawn = draw_rows(table, others, NOISE, PRIOR, rng, threads=1)
    assert_moments(drawn, *posterior(others[rated].astype(float), values))


def test_rows_of_different_lengths_do_not_get_mixed_up(rng):
    counts = rng.integers(0, 60, 200)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([np.sort(rng.choice(60, n, replace=False)) for n in counts])
    others = rng.normal(size=(60, 3)).astype(np.float32)
    values = rng.normal(size=indptr[-1]).astype(np.float32)
    table = Sparse(indptr, indices.astype(np.int32), values)
    drawn = [
        draw_rows(table, others, NOISE, PRIOR, np.random.default_rng(5), threads)
        for threads in (1, 3)
    ]
    assert np.array_equal(*drawn)
    distance = []
    for row in range(200):
        part = slice(indptr[row], indptr[row + 1])
        mean, covariance = posterior(others[indices[part]].astype(float), values[part])
        apart = drawn[0][row] - mean
        distance.append(apart @ np.linalg.solve(covariance, apart))
    assert stats.kstest(distance, stats.chi2(3).cdf).pvalue > 0.001


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows_are_drawn_the_same_without_the_products_of_all(threads, monkeypatch):
    source = np.random.default_rng(5)
    counts = source.integers(0, 30, 150)
    table = Sparse(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([np.sort(source.choice(40, n, replace=False)) for n in counts]).astype(
            np.int32
        ),
        source.normal(size=counts.sum()).astype(np.float32),
    )
    others = source.normal(size=(40, 3)).astype(np.float32)
    given = table, others, NOISE, PRIOR
    whole = draw_rows(*given, np.random.default_rng(1), threads)
    monkeypatch.setattr("hemf.samplers.bpmf.MAX_OUTER_BYTES", 0)
    monkeypatch.setattr("hemf.kernels.gibbs.outer_products", None)
    each = draw_rows(*given, np.random.default_rng(1), threads)
    np.testing.assert_allclose(each, whole, rtol=1e-4, atol=1e-4)


# docs/model.md#normal-wishart
def test_mean_and_precision_of_vectors_are_drawn_from_a_normal_wishart(rng):
    rows = rng.normal(1.0, 0.7, (6, 2)).astype(np.float32)
    prior = NormalWishart(mean_precision=1.5, degrees=9.0, scale=0.3)
    drawn = [prior.draw(rows, rng) for _ in range(4000)]
    means, precisions = (np.array(part) for part in zip(*drawn, strict=True))
    centre = rows.mean(axis=0)
    scatter = (rows - centre).T @ (rows - centre)
    spread = np.eye(2) / 0.3 + scatter + 1.5 * 6 / 7.5 * np.outer(centre, centre)
    degrees = 9 + 6
    expected = degrees * np.linalg.inv(spread)
    assert np.abs(precisions.mean(axis=0) - expected).max() < 0.03 * np.abs(expected).max()
    covariance = spread / (degrees - 2 - 1) / 7.5
    error = 5 * np.sqrt(np.diag(covariance) / 4000)
    assert (np.abs(means.mean(axis=0) - 6 / 7.5 * centre) < error).all()
    assert np.abs(np.cov(means.T) - covariance).max() < 0.1 * np.abs(covariance).max()


def test_vectors_without_any_data_have_the_prior_moments(rng):
    prior = NormalWishart(mean_precision=2.0, scale=0.5)
    precisions = [prior.draw(np.empty((0, 3), np.float32), rng)[1] for _ in range(4000)]
    assert np.abs(np.mean(precisions, axis=0) - 3 * 0.5 * np.eye(3)).max() < 0.1


# docs/model.md#m3f
def test_topics_are_drawn_from_their_joint_posterior(rng):
    user_shares, item_shares = np.float32([[0.2, 0.3, 0.5]]), np.float32([[0.6, 0.4]])
    user_vectors = rng.normal(size=(1, 2, 2)).astype(np.float32)  # one for each item topic
    item_vectors = rng.normal(size=(1, 3, 2)).astype(np.float32)
    residual = 0.7
    zeros = np.zeros(MANY, np.int32)
    user_topics, item_topics = draw_topics(
        (zeros, zeros), np.full(MANY, residual, np.float32), NOISE, [user_shares, item_shares],
        [user_vectors, item_vectors], rng, threads=2,
    )  # fmt: skip
    expected = np.zeros((3, 2))
    for i in range(3):
        for k in range(2):
            along = float(user_vectors[0, k] @ item_vectors[0, i])
            likely = stats.norm(along, np.sqrt(NOISE)).pdf(residual)
            expected[i, k] = user_shares[0, i] * item_shares[0, k] * likely
    expected /= expected.sum()
    counts = np.bincount(user_topics * 2 + item_topics, minlength=6).reshape(3, 2)
    assert stats.chisquare(counts.ravel(), MANY * expected.ravel()).pvalue > 0.001


def test_a_topic_is_found_however_unlikely_a_rating_is_under_all(rng):
    ones = np.ones((1, 1, 1), np.float32)
    shares, zeros = np.float32([[0.5, 0.5]]), np.zeros(1, np.int32)
    vectors = np.float32([[[0.0], [1.0]]])
    topics = draw_topics(
        (zeros, zeros), np.float32([1e4]), 1e-3, [shares, ones[0]], [ones, vectors], rng, threads=1
    )
    assert [part.tolist() for part in topics] == [[1], [0]]


def test_shares_of_topics_are_drawn_from_a_dirichlet(rng):
    rows = np.repeat(np.arange(MANY, dtype=np.int32), 3)
    topics = np.tile(np.uint8([0, 2, 2]), MANY)
    drawn = draw_shares(rows, topics, (MANY, 3), 1.5, rng)
    assert np.allclose(drawn.sum(axis=1), 1.0)
    exact = stats.dirichlet([1.5, 0.5, 2.5])
    assert np.abs(drawn.mean(axis=0) - exact.mean()).max() < 0.01
    assert np.abs(drawn.var(axis=0) - exact.var()).max() < 0.005
    assert np.isfinite(draw_shares(rows[:0], topics[:0], (MANY, 3), 1e-9, rng)).all()


def test_offsets_are_drawn_from_their_conditional_posterior(rng):
    values = np.float32([0.3, 1.2])
    groups = np.repeat(np.arange(MANY), 2)
    drawn = draw_offsets(groups, MANY + 1, np.tile(values, MANY), NOISE, 0.1, rng)[:MANY]
    precision = 1 / 0.1 + 2 / NOISE
    assert drawn.mean() == pytest.approx(values.sum() / NOISE / precision, abs=0.01)
    assert drawn.var() == pytest.approx(1 / precision, rel=0.05)


def test_vectors_of_topics_are_drawn_from_their_conditional_posterior(rng):
    others = rng.normal(size=(5, 3)).astype(np.float32)
    values = rng.normal(size=4).astype(np.float32)
    rated = np.int32([0, 2, 2, 4])  # a pair of topics occurs as often as it likes
    drawn = draw_vectors(
        np.tile(values, MANY), (np.repeat(np.arange(MANY, dtype=np.int32), 4), MANY),
        (np.tile(rated, MANY), others), NOISE, PRIOR, rng,
    )  # fmt: skip
    assert_moments(drawn, *posterior(others[rated].astype(float), values))


def test_the_noise_is_drawn_from_its_conditional_posterior(rng):
    errors = rng.normal(0, 0.8, 30).astype(np.float32)
    drawn = [draw_noise(errors, 0.5, rng) for _ in range(5000)]
    exact = stats.invgamma(1 + 15, scale=0.5 + float(errors @ errors) / 2)
    assert stats.kstest(drawn, exact.cdf).pvalue > 0.001


@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_those_of_the_rows(threads, rng):
    left, right = (rng.normal(size=(n, 7)).astype(np.float32) for n in (5, 6))
    users, items = (rng.integers(0, n, 1000).astype(np.int32) for n in (5, 6))
    found = products(users, items, left, right, threads)
    assert np.allclose(found, (left[users] * right[items]).sum(axis=1), atol=1e-5)
