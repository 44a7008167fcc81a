from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import norm

from hemf.data.datasets import plant
from hemf.errors import ParameterError


def within(people) -> np.ndarray:
    return people.user_factors - people.user_means[people.user_community]


def spread(people) -> float:
    """Standard deviation within a community, along any direction."""
    return float(np.sqrt(np.mean(within(people) ** 2)))


def test_rows_are_normal_around_their_community():
    people = plant(20_000, 50, n_factors=3, user_communities=4, rng=0)
    rest = within(people) / spread(people)
    for community in range(4):
        members = rest[people.user_community == community]
        np.testing.assert_allclose(members.mean(axis=0), 0, atol=0.06)
        np.testing.assert_allclose(np.cov(members.T), np.eye(3), atol=0.07)


@pytest.mark.parametrize("separation", [2.0, 3.0, 6.0])
@pytest.mark.parametrize("communities", [2, 3, 4])
def test_means_are_as_far_apart_as_asked(communities, separation):
    people = plant(30_000, 50, user_communities=communities, separation=separation, rng=1)
    distances = pdist(people.user_means) / spread(people)
    np.testing.assert_allclose(distances, separation, rtol=0.02)


def test_more_communities_than_corners_are_at_least_that_far_apart():
    people = plant(30_000, 50, n_factors=2, user_communities=9, separation=4.0, rng=2)
    distances = pdist(people.user_means) / spread(people)
    assert distances.min() == pytest.approx(4.0, rel=0.02)
    assert distances.max() < 40


def test_clear_communities_can_be_told_by_the_nearest_mean():
    people = plant(20_000, 50, user_communities=2, separation=3.0, rng=3)
    distance = np.linalg.norm(people.user_factors[:, None] - people.user_means, axis=2)
    wrong = np.mean(distance.argmin(axis=1) != people.user_community)
    assert wrong == pytest.approx(norm.cdf(-1.5), abs=0.006)


def test_shares_are_equal_unless_said():
    people = plant(1000, 90, user_communities=4, item_communities=3, rng=0)
    assert np.bincount(people.user_community).tolist() == [250] * 4
    assert np.bincount(people.item_community).tolist() == [30] * 3


def test_shares_follow_the_weights():
    people = plant(1000, 90, user_communities=3, user_weights=[6, 3, 1], rng=0)
    assert np.bincount(people.user_community).tolist() == [600, 300, 100]


@pytest.mark.parametrize("seed", range(20))
def test_drawn_shares_differ_but_none_is_trivial(seed):
    people = plant(1000, 500, user_communities=5, concentration=1.0, rng=seed)
    counts = np.bincount(people.user_community, minlength=5)
    assert counts.min() >= 99
    assert counts.max() > 250


@pytest.mark.parametrize("rows", range(7, 30))
def test_few_rows_are_shared_out_to_all_communities(rows):
    people = plant(rows, 50, user_communities=7, rng=0)
    counts = np.bincount(people.user_community, minlength=7)
    assert counts.max() - counts.min() <= 1


def test_members_of_a_community_are_scattered_over_the_rows():
    people = plant(1000, 50, user_communities=2, rng=0)
    assert 400 < np.flatnonzero(people.user_community == 0).mean() < 600


def test_own_covariances_differ_and_average_to_the_common_one():
    people = plant(
        60_000, 50, n_factors=3, user_communities=3, covariance_freedom=8.0, separation=5.0, rng=0
    )
    rest = within(people)
    covariances = [np.cov(rest[people.user_community == d].T) for d in range(3)]
    assert np.linalg.norm(covariances[0] - covariances[1]) > 0.3 * np.linalg.norm(covariances[0])
    nearest = min(
        gap @ np.linalg.solve((covariances[d] + covariances[e]) / 2, gap)
        for d in range(3)
        for e in range(d)
        for gap in [people.user_means[d] - people.user_means[e]]
    )
    assert np.sqrt(nearest) == pytest.approx(5.0, rel=0.05)


def test_signal_mean_and_offsets_have_the_size_asked_for():
    people = plant(2000, 1000, signal=0.7, mean=3.0, rng=0)
    users, items = np.divmod(np.arange(2_000_000), 1000)
    tastes = people.expected(users, items) - 3.0
    assert np.sqrt(np.mean(tastes**2)) == pytest.approx(0.7, rel=1e-6)
    assert not people.user_offsets.any()
    offset = plant(20_000, 10_000, offset=0.4, rng=0)
    assert offset.user_offsets.std() == pytest.approx(0.4, rel=0.03)
    assert offset.item_offsets.std() == pytest.approx(0.4, rel=0.03)


def test_one_community_a_side_is_plain_matrix_factorization():
    people = plant(5000, 50, user_communities=1, item_communities=1, rng=0)
    np.testing.assert_array_equal(people.user_means, np.zeros((1, 5)))
    assert not people.user_community.any()


def test_the_smallest_population_works():
    people = plant(1, 1, n_factors=1, user_communities=1, item_communities=1, rng=0)
    ((users, items, ratings),) = people.blocks(1)
    assert (users.tolist(), items.tolist()) == ([0], [0])
    assert np.isfinite(ratings).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_users": 0}, "n_users must be .* got 0"),
        ({"n_items": -3}, "n_items must be .* got -3"),
        ({"n_factors": 0}, "n_factors must be .* got 0"),
        ({"user_communities": 0}, "user_communities must be .* got 0"),
        ({"item_communities": 31}, "item_communities must be .* got 31"),
        ({"separation": -1.0}, "separation must be .* got -1"),
        ({"noise": -0.1}, "noise must be .* got -0.1"),
        ({"noise": float("nan")}, "noise must be .* got nan"),
        ({"signal": 0.0}, "signal must be .* got 0"),
        ({"popularity": -1.0}, "popularity must be .* got -1"),
        ({"concentration": 0.0}, "concentration must be .* got 0"),
        ({"user_weights": [1.0, 2.0]}, "user_weights"),
        ({"user_weights": [1.0, 2.0, 0.0]}, "user_weights"),
        ({"user_weights": [1.0, 1.0, 1e-6]}, "community 2 .* more weight"),
        ({"covariance_freedom": 6.0}, "covariance_freedom must be .* got 6"),
        ({"levels": (1.0,)}, "levels"),
        ({"levels": (2.0, 1.0)}, "levels"),
    ],
)
def test_what_cannot_be_planted_is_refused(wrong, message):
    with pytest.raises(ParameterError, match=message):
        plant(**({"n_users": 40, "n_items": 30, "rng": 0} | wrong))
