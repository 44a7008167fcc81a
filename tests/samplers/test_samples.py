"""What a sample says of a pair is what the model it is of would say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hemf.samplers.base import RunningMoments, averaged
from hemf.samplers.bpmf import BLOCK, Sample, SideSample


def a_side(rng: np.random.Generator, topics: int, other_topics: int) -> SideSample:
    def covariance(size: int) -> np.ndarray:
        root = rng.normal(size=(size, size))
        return root @ root.T

    return SideSample(
        factors=rng.normal(size=(4, 3)).astype(np.float32),
        shares=rng.dirichlet(np.ones(topics), size=4).astype(np.float32),
        vectors=rng.normal(size=(4, other_topics, 2)).astype(np.float32),
        biases=rng.normal(size=4).astype(np.float32),
        factor_covariance=covariance(3),
        vector_covariance=covariance(2),
        bias_variance=0.3,
    )


@pytest.fixture
def sample(rng) -> Sample:
    return Sample(a_side(rng, 2, 3), a_side(rng, 3, 2), noise=0.5)


def drawn_part(side: SideSample, row: int, topic: int, n: int, rng: np.random.Generator):
    """Factors, vector and bias of a row, n times; those of a stranger, the last, are random."""
    factors, vector = np.tile(side.factors[row], (n, 1)), np.tile(side.vectors[row, topic], (n, 1))
    bias = np.full(n, side.biases[row])
    if row == 3:
        factors = factors + rng.multivariate_normal(np.zeros(3), side.factor_covariance, n)
        vector = vector + rng.multivariate_normal(np.zeros(2), side.vector_covariance, n)
        bias = bias + rng.normal(0, np.sqrt(side.bias_variance), n)
    return factors, vector, bias


@pytest.mark.parametrize(("user", "item"), [(0, 1), (3, 1), (0, 3), (3, 3)])
def test_moments_are_those_of_ratings_drawn_with_all_topics_and_strangers(user, item, sample, rng):
    n, ratings = 200_000, []
    weight = np.outer(sample.users.shares[user], sample.items.shares[item])
    for (i, k), share in np.ndenumerate(weight):
        many = round(n * share)
        a, c, bias = drawn_part(sample.users, user, k, many, rng)
        b, d, other_bias = drawn_part(sample.items, item, i, many, rng)
        ratings.append((a * b).sum(1) + (c * d).sum(1) + bias + other_bias)
    ratings = np.concatenate(ratings)
    mean, variance = sample.moments(np.int32([user]), np.int32([item]))
    assert mean[0] == pytest.approx(ratings.mean(), abs=5 * ratings.std() / np.sqrt(n) + 1e-3)
    assert variance[0] == pytest.approx(ratings.var() + sample.noise, rel=0.05)


def test_an_average_has_the_noise_and_what_samples_differ_by(rng):
    samples = [Sample(a_side(rng, 1, 1), a_side(rng, 1, 1), noise) for noise in (0.5, 1.5)]
    users, items = np.int32([0, 3]), np.int32([1, 2])
    means, variances = zip(*(sample.moments(users, items) for sample in samples), strict=True)
    mean, variance = averaged(samples, users, items)
    assert np.allclose(mean, np.mean(means, axis=0))
    assert np.allclose(variance, np.mean(variances, axis=0) + np.var(means, axis=0))
    assert (variance > 1.0).all()


def test_many_pairs_are_answered_like_few(sample, rng):
    n = BLOCK // 18 + 10  # 2 × 3 topics, and vectors of 2 for each of 3 and 2: one block and more
    users, items = (rng.integers(0, 4, n).astype(np.int32) for _ in "ui")
    mean, variance = averaged([sample], users, items)
    for part in (slice(0, 3), slice(n - 12, n - 8), slice(n - 2, n)):
        few = averaged([sample], users[part], items[part])
        assert np.allclose(mean[part], few[0])
        assert np.allclose(variance[part], few[1])


def test_many_topics_take_no_more_memory_than_few(rng):
    sample = Sample(a_side(rng, 60, 50), a_side(rng, 50, 60), noise=0.5)
    rows = np.zeros(20_000, np.int32)
    tracemalloc.start()
    mean, _ = sample.moments(rows, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.ptp(mean) == 0
    assert peak < 100e6  # all at once, they would be 60 × 50 × 20,000 × 4 bytes, and that twice


# docs/model.md#sample-average
def test_running_moments_are_those_of_all_at_once(rng):
    means, variances = rng.normal(size=(20, 3)), rng.random((20, 3))
    running = RunningMoments(3)
    for mean, variance in zip(means, variances, strict=True):
        running.add(mean, variance)
    assert np.allclose(running.mean, means.mean(axis=0))
    assert np.allclose(running.variance, variances.mean(axis=0) + means.var(axis=0))


def test_a_table_holds_the_means_of_its_pairs(sample):
    users, items = np.int32([3, 0, 2]), np.int32([1, 3])
    table = sample.table(users, items)
    pairs = np.repeat(users, 2), np.tile(items, 3)
    assert table.ravel() == pytest.approx(sample.moments(*pairs)[0], rel=1e-5, abs=1e-6)
