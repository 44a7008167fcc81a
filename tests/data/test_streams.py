from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from hemf.data.datasets import drifting, emerging
from hemf.errors import ParameterError


def pairs(stream) -> set[tuple[int, int]]:
    return set(zip(stream.users.tolist(), stream.items.tolist(), strict=True))


# -- a community that appears -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_new_community_comes_half_way_and_not_before(seed):
    stream = emerging(rng=seed)
    is_new = stream.user_community[stream.users] == stream.newest
    assert stream.newest == 3
    assert not is_new[: stream.begins].any()
    assert is_new[stream.begins]
    assert 0.47 < stream.begins / len(stream.ratings) < 0.51


def test_from_then_on_its_share_of_the_ratings_is_as_asked():
    stream = emerging(3000, rng=0, share=0.4, appears=0.25)
    is_new = stream.user_community[stream.users] == stream.newest
    assert stream.begins / len(stream.ratings) == pytest.approx(0.25, abs=0.02)
    assert is_new[stream.begins :].mean() == pytest.approx(0.4, abs=0.03)
    assert is_new[-1000:].mean() > 0.2, "it keeps coming to the end"


def test_without_a_new_community_nothing_ever_begins():
    stream = emerging(appears=None, rng=0)
    assert stream.newest is None
    assert stream.begins == len(stream.ratings)
    assert np.bincount(stream.user_community).tolist() == [400, 400, 400]


def test_communities_from_the_beginning_keep_their_number_and_weights():
    stream = emerging(1000, rng=0, user_communities=2, user_weights=[3, 1], share=0.4)
    assert stream.newest == 2
    assert np.bincount(stream.user_community).tolist() == [600, 200, 200]


def test_old_and_new_communities_are_equally_far_apart():
    stream = emerging(rng=0, separation=5.0)
    people = stream.population
    within = people.user_factors - people.user_means[people.user_community]
    distances = pdist(people.user_means) / np.sqrt(np.mean(within**2))
    assert len(distances) == 6
    np.testing.assert_allclose(distances, 5.0, rtol=0.05)


def test_users_come_one_after_the_other_and_leave_again():
    stream = emerging(rng=0)
    counts = np.bincount(stream.users)
    assert (counts.min(), counts.max()) == (20, 50)
    positions = np.arange(len(stream.users))
    first, last = np.full(1200, len(positions)), np.zeros(1200)
    np.minimum.at(first, stream.users, positions)
    np.maximum.at(last, stream.users, positions)
    assert np.max(last - first) < 0.04 * len(positions)
    assert not np.array_equal(stream.users, np.sort(stream.users)), "several at once"


def test_nobody_rates_an_item_twice():
    for stream in (emerging(rng=0), drifting(60, 120, ratings_each=100, rng=0)):
        assert len(pairs(stream)) == len(stream.ratings)


def test_ratings_are_what_is_expected_and_noise():
    for stream in (emerging(rng=0, noise=0.4), drifting(60, 400, noise=0.4, rng=0)):
        noise = stream.ratings - stream.expected
        assert noise.mean() == pytest.approx(0, abs=0.01)
        assert noise.std() == pytest.approx(0.4, rel=0.02)
    stream = emerging(rng=0)
    of_all = stream.population.expected(stream.users, stream.items)
    np.testing.assert_array_equal(stream.expected, of_all)


def test_levels_and_popularity_are_those_of_planted_populations():
    stars = (1.0, 2.0, 3.0, 4.0, 5.0)
    stream = emerging(rng=0, levels=stars, popularity=1.0)
    assert set(np.unique(stream.ratings)) == set(stars)
    counts = np.sort(np.bincount(stream.items, minlength=300))
    assert counts[-30:].mean() > 5 * counts[:30].mean()
    even = np.sort(np.bincount(emerging(rng=0).items, minlength=300))
    assert even[-30:].mean() < 1.5 * even[:30].mean()


@pytest.mark.parametrize("draw", [emerging, drifting])
def test_a_seed_decides_everything(draw):
    first, again, other = (draw(50, 400, rng=seed) for seed in (1, 1, 2))
    for column, same in zip(first.columns, again.columns, strict=True):
        np.testing.assert_array_equal(column, same)
    assert not np.array_equal(first.ratings[:500], other.ratings[:500])
    assert not np.array_equal(first.items[:500], other.items[:500])


# -- tastes that change -------------------------------------------------------------------------


def test_all_users_move_to_another_community_unless_said():
    stream = drifting(rng=0)
    assert stream.changed.all()
    assert stream.begins == stream.ends == len(stream.ratings) // 2
    shift = stream.after.user_factors - stream.before.user_factors
    means = stream.before.user_means
    moved = means[stream.after.user_community] - means[stream.before.user_community]
    np.testing.assert_allclose(shift, moved)


def test_the_others_and_all_items_stay_as_they_were():
    stream = drifting(100, 400, share=0.3, rng=0)
    assert stream.changed.sum() == 30
    same = ~stream.changed
    np.testing.assert_array_equal(stream.before.user_factors[same], stream.after.user_factors[same])
    np.testing.assert_array_equal(stream.before.item_factors, stream.after.item_factors)


def test_ratings_follow_the_old_taste_and_then_the_new():
    stream = drifting(100, 400, changes=0.3, rng=0)
    assert stream.begins == 12_000
    old = stream.before.expected(stream.users, stream.items)
    new = stream.after.expected(stream.users, stream.items)
    np.testing.assert_array_equal(stream.expected[:12_000], old[:12_000])
    np.testing.assert_array_equal(stream.expected[12_000:], new[12_000:])
    assert np.sqrt(np.mean((new - old) ** 2)) > 1.0, "the old taste would be far off"


def test_tastes_may_change_little_by_little():
    stream = drifting(100, 400, changes=0.25, over=0.5, rng=0)
    assert (stream.begins, stream.ends) == (10_000, 30_000)
    old = stream.before.expected(stream.users, stream.items)
    new = stream.after.expected(stream.users, stream.items)
    middle = slice(19_900, 20_100)
    np.testing.assert_allclose(stream.expected[middle], (old + new)[middle] / 2, atol=0.05)
    np.testing.assert_array_equal(stream.expected[:10_000], old[:10_000])
    np.testing.assert_allclose(stream.expected[30_000:], new[30_000:])
    assert not np.array_equal(stream.expected[10_000:11_000], old[10_000:11_000])


def test_users_rate_all_the_time():
    stream = drifting(100, 400, ratings_each=(100, 200), rng=0)
    half = len(stream.users) // 2
    early, late = (np.bincount(part) for part in (stream.users[:half], stream.users[half:]))
    counts = early + late
    assert counts.min() >= 100
    assert counts.max() <= 200
    assert early.min() > 30
    assert late.min() > 30


# -- what makes no sense ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "wrong", "message"),
    [
        (emerging, {"appears": 0.0}, "appears must be .* got 0"),
        (emerging, {"appears": 1.0}, "appears must be .* got 1"),
        (emerging, {"share": 0.0}, "share must be .* got 0"),
        (emerging, {"visit": -1.0}, "visit must be .* got -1"),
        (emerging, {"ratings_each": 0}, "ratings_each must be .* got 0"),
        (emerging, {"ratings_each": (30, 20)}, "ratings_each must be .* got"),
        (emerging, {"ratings_each": 301}, "ratings_each must be .* items, 300, .* got 301"),
        (emerging, {"user_weights": [1, 2]}, "user_weights"),
        (emerging, {"noise": -1.0}, "noise must be .* got -1"),
        (drifting, {"changes": 1.5}, "changes must be .* got 1.5"),
        (drifting, {"changes": 0.5, "over": 0.6}, "over must be .* got 0.6"),
        (drifting, {"share": 2.0}, "share must be .* got 2"),
        (drifting, {"user_communities": 1}, "user_communities must be .* got 1"),
    ],
)
def test_what_cannot_happen_is_refused(draw, wrong, message):
    with pytest.raises(ParameterError, match=message):
        draw(**({"n_users": 100, "n_items": 300, "ratings_each": 20, "rng": 0} | wrong))
