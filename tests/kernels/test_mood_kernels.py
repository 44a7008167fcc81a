"""Moods against dense Gaussians: the same posterior, divergence and sums."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from hemf.kernels import moods as kernels
from hemf.kernels.structures import Ratings, SessionInformation, SessionPosterior
from hemf.model.moods import MoodPosterior, MoodPrior, MoodSums, learn_mood_prior, mood_at

PRIOR = MoodPrior(persistence=0.8, variance=0.5, extra=0.2)


@dataclass
class Exact:
    """One rater's moods by matrices."""

    level: np.ndarray
    level_cov: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    extra: float
    divergence: float


def level_prior(prior: MoodPrior, n: int) -> np.ndarray:
    steps = np.arange(n)
    return prior.variance * prior.persistence ** np.abs(steps[:, None] - steps)


def exact(prior: MoodPrior, precision: np.ndarray, pull: np.ndarray) -> Exact:
    """Condition (l, g) on what is left of the ratings of each session."""
    n = precision.size
    both = np.zeros((2 * n, 2 * n))
    both[:n, :n], both[n:, n:] = level_prior(prior, n), prior.extra * np.eye(n)
    add = np.hstack([np.eye(n), np.eye(n)])  # o = l + g
    cov = np.linalg.inv(np.linalg.inv(both) + add.T @ np.diag(precision) @ add)
    mean = cov @ add.T @ pull
    divergence = 0.5 * (
        np.trace(np.linalg.solve(both, cov)) - 2 * n + mean @ np.linalg.solve(both, mean)
        + np.linalg.slogdet(both)[1] - np.linalg.slogdet(cov)[1]
    )  # fmt: skip
    extra = float((mean[n:] ** 2 + np.diag(cov)[n:]).sum())
    return Exact(mean[:n], cov[:n, :n], add @ mean, add @ cov @ add.T, extra, float(divergence))


def smoothed(
    prior: MoodPrior, indptr: np.ndarray, precision: np.ndarray, pull: np.ndarray
) -> tuple[MoodPosterior, MoodSums]:
    cuts = np.arange(indptr.size)  # a rater in each chunk
    posterior = MoodPosterior.none(precision.size)
    sums = np.zeros((cuts.size - 1, kernels.SUMS))
    kernels.smooth.compiled(np.float64)(
        0, cuts.size - 1, cuts, indptr, SessionInformation(precision, pull),
        np.array([prior.persistence, prior.variance, prior.extra]),
        SessionPosterior(**vars(posterior)), sums,
    )  # fmt: skip
    n_raters = int((np.diff(indptr) > 0).sum())
    return posterior, MoodSums(*sums.sum(axis=0).tolist(), n_raters, precision.size)


@pytest.fixture
def sessions(rng):
    indptr = np.array([0, 5, 5, 6, 9])  # one rater has none, one has one
    return indptr, rng.uniform(0.5, 8.0, 9), rng.normal(size=9)


# docs/model.md#moods
@pytest.mark.parametrize("prior", [PRIOR, MoodPrior(0.0, 0.3, 0.1), MoodPrior(0.99, 0.02, 1e-9)])
def test_the_posterior_is_that_of_a_dense_gaussian(prior, sessions):
    indptr, precision, pull = sessions
    posterior, sums = smoothed(prior, indptr, precision, pull)
    totals = np.zeros(6)
    for begin, end in pairwise(indptr):
        if begin == end:
            continue
        part = slice(begin, end)
        true = exact(prior, precision[part], pull[part])
        second = true.level_cov + np.outer(true.level, true.level)
        np.testing.assert_allclose(posterior.level[part], true.level, atol=1e-10)
        np.testing.assert_allclose(posterior.level_spread[part], np.diag(true.level_cov), rtol=1e-9)
        between = np.append(np.diag(true.level_cov, 1), 0.0)
        np.testing.assert_allclose(posterior.product[part], between, atol=1e-11)
        np.testing.assert_allclose(posterior.mean[part], true.mean, atol=1e-10)
        np.testing.assert_allclose(posterior.spread[part], np.diag(true.cov), rtol=1e-7)
        squares = np.diag(second)
        totals += [squares[0], squares[1:].sum(), squares[:-1].sum(), np.diag(second, 1).sum(),
                   true.extra, true.divergence]  # fmt: skip
    found = [sums.first, sums.now, sums.before, sums.product, sums.extra, sums.divergence]
    np.testing.assert_allclose(found, totals, rtol=1e-6, atol=1e-9)


def expected_log_prior(prior: MoodPrior, sums: MoodSums) -> float:
    """E ln p(l, g), but for what no parameter changes."""
    steps = sums.n_sessions - sums.n_raters
    phi, innovation = prior.persistence, prior.innovation
    moved = sums.now - 2 * phi * sums.product + phi**2 * sums.before
    return -0.5 * (
        sums.n_raters * np.log(prior.variance) + sums.first / prior.variance
        + steps * np.log(innovation) + moved / innovation
        + sums.n_sessions * np.log(prior.extra) + sums.extra / prior.extra
    )  # fmt: skip


# docs/model.md#mood-prior
def test_the_prior_learnt_is_the_best_there_is(sessions):
    _, sums = smoothed(PRIOR, *sessions)
    best = learn_mood_prior(PRIOR, sums)
    highest = expected_log_prior(best, sums)
    assert highest > expected_log_prior(PRIOR, sums)
    for name in ("persistence", "variance", "extra"):
        for factor in (0.98, 1.02):
            other = MoodPrior(**{**vars(best), name: factor * getattr(best, name)})
            assert expected_log_prior(other, sums) < highest + 1e-12, name


def test_moods_drawn_from_a_prior_give_it_back(rng):
    true = MoodPrior(persistence=0.9, variance=0.4, extra=0.1)
    n, raters = 60, 300
    root = np.linalg.cholesky(level_prior(true, n))
    moods = (root @ rng.normal(size=(n, raters))).T + rng.normal(scale=true.extra**0.5,
                                                                size=(raters, n))  # fmt: skip
    precision = np.full(n * raters, 20.0)
    pull = precision * (moods.ravel() + rng.normal(scale=20.0**-0.5, size=n * raters))
    prior = MoodPrior(persistence=0.5, variance=1.0, extra=0.5)
    for _ in range(60):
        prior = learn_mood_prior(prior, smoothed(prior, np.arange(0, n * raters + 1, n), precision,
                                            pull)[1])  # fmt: skip
    assert prior.persistence == pytest.approx(0.9, abs=0.02)
    assert prior.variance == pytest.approx(0.4, rel=0.1)
    assert prior.extra == pytest.approx(0.1, rel=0.1)


def test_what_is_gathered_is_weighted_sums_of_what_is_left(rng):
    indptr, others = np.array([0, 3, 4]), np.int32([0, 1, 2, 1])
    session, values = np.int32([0, 1, 0, 2]), rng.normal(size=4)
    own, other = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    own_precision, other_weight = rng.uniform(1, 2, 2), rng.uniform(1, 2, 3)
    precision, pull = np.zeros(3), np.zeros(3)
    kernels.gather.compiled(np.float64)(
        0, 1, np.array([0, 2]), Ratings.of(indptr, others, values), session, own, other,
        own_precision, other_weight, SessionInformation(precision, pull),
    )  # fmt: skip
    users = np.array([0, 0, 0, 1])
    weight = own_precision[users] * other_weight[others]
    left = values - (own[users] * other[others]).sum(axis=1)
    np.testing.assert_allclose(precision, np.bincount(session, weight), rtol=1e-12)
    np.testing.assert_allclose(pull, np.bincount(session, weight * left), rtol=1e-12)


# docs/model.md#mood-at
def test_moods_at_other_times(sessions):
    indptr, precision, pull = sessions
    times = np.array([10, 20, 30, 40, 50, 7, 1, 2, 3])
    posterior, _ = smoothed(PRIOR, indptr, precision, pull)
    rows = np.array([0, 0, 0, 0, 1, 2, -1])
    when = np.array([5, 30, 25, 99, 5, 7, 5])
    place = np.zeros(rows.size, np.int64)
    known = rows >= 0
    found = np.zeros(int(known.sum()), np.int64)
    kernels.places.compiled(np.float64)(indptr, times, rows[known], when[known], found)
    assert found.tolist() == [0, 2, 2, 5, 0, 0]
    place[known] = found
    mean, variance = mood_at(PRIOR, posterior, indptr, times, rows, when, place)
    # Before the first and after the last: one more session that has no ratings.
    none = np.array([0.0])
    for at, ends in ((0, (none, ())), (3, ((), none))):
        padded = [np.concatenate([ends[0], part[:5], ends[1]]) for part in (precision, pull)]
        true = exact(PRIOR, *padded)
        place_of = 0 if at == 0 else 5
        assert mean[at] == pytest.approx(true.mean[place_of], abs=1e-10)
        assert variance[at] == pytest.approx(true.cov[place_of, place_of], rel=1e-9)
    assert (mean[1], variance[1]) == (posterior.mean[2], posterior.spread[2])  # that session's
    phi = PRIOR.persistence
    near = phi / (1 + phi**2) * (posterior.level[1] + posterior.level[2])
    assert mean[2] == pytest.approx(near)
    assert (mean[5], variance[5]) == (posterior.mean[5], posterior.spread[5])
    for stranger in (4, 6):
        assert mean[stranger] == 0.0
        assert variance[stranger] == pytest.approx(PRIOR.variance + PRIOR.extra)
