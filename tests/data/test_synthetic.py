from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from hemf.data.datasets import demo_ratings, draw, draw_blocks, plant
from hemf.errors import ParameterError


def stream(blocks) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(column) for column in zip(*blocks, strict=True))


def test_density_and_number_say_the_same():
    by_density = draw(200, 100, density=0.05, rng=0)
    by_number = draw(200, 100, n_ratings=1000, rng=0)
    assert len(by_density.ratings) == 1000
    np.testing.assert_array_equal(by_density.ratings, by_number.ratings)


def test_noise_is_normal_with_the_deviation_asked_for():
    data = draw(1000, 800, density=0.2, noise=0.4, offset=0.3, rng=0)
    rest = data.ratings - data.population.expected(data.users, data.items)
    assert rest.mean() == pytest.approx(0, abs=0.005)
    assert rest.std() == pytest.approx(0.4, rel=0.01)
    assert stats.kstest(rest[:50_000] / 0.4, "norm").pvalue > 1e-3
    assert data.noise == 0.4


def test_noise_does_not_depend_on_who_rates_what():
    data = draw(100, 80, density=1.0, rng=0)
    rest = data.ratings - data.population.expected(data.users, data.items)
    table = np.zeros((100, 80))
    table[data.users, data.items] = rest
    assert table.mean(axis=1).std() == pytest.approx(0.3 / np.sqrt(80), rel=0.25)
    assert table.mean(axis=0).std() == pytest.approx(0.3 / np.sqrt(100), rel=0.25)


def test_all_pairs_are_there_at_full_density():
    data = draw(37, 23, density=1.0, rng=0)
    assert len(set(zip(data.users.tolist(), data.items.tolist(), strict=True))) == 37 * 23


def test_numbers_of_ratings_a_user_vary_as_chance_has_it():
    data = draw(2000, 1000, density=0.05, rng=1)
    counts = np.bincount(data.users, minlength=2000)
    assert counts.mean() == 50
    assert counts.var() == pytest.approx(50 * 0.95, rel=0.12)


def test_the_same_seed_gives_the_same_ratings_and_another_does_not():
    first, again, other = (draw(100, 80, density=0.3, rng=seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.ratings, again.ratings)
    np.testing.assert_array_equal(first.users, again.users)
    assert not np.array_equal(first.users, other.users)
    assert not np.array_equal(first.user_factors, other.user_factors)
    assert not np.array_equal(first.item_factors, other.item_factors)


@pytest.mark.parametrize("popularity", [0.0, 0.6])
def test_the_stream_does_not_depend_on_the_size_of_its_blocks(popularity):
    streams = [
        stream(draw_blocks(700, 300, n_ratings=50_000, block=block, popularity=popularity, rng=3))
        for block in (50_000, 17_001, 999)
    ]
    for other in streams[1:]:
        for left, right in zip(streams[0], other, strict=True):
            np.testing.assert_array_equal(left, right)


def test_the_stream_is_what_draw_gives():
    users, items, ratings = stream(draw_blocks(70, 30, n_ratings=1000, block=300, rng=3))
    data = draw(70, 30, n_ratings=1000, rng=3)
    np.testing.assert_array_equal(users, data.users)
    np.testing.assert_array_equal(items, data.items)
    np.testing.assert_array_equal(ratings, data.ratings)


def test_blocks_are_compact_and_no_pair_comes_twice():
    blocks = list(draw_blocks(20_000, 5_000, n_ratings=400_000, block=150_000, rng=0))
    assert [len(ratings) for _, _, ratings in blocks] == [150_000, 150_000, 100_000]
    assert [column.dtype for column in blocks[0]] == [np.int32, np.int32, np.float32]
    users, items, _ = stream(blocks)
    assert len(np.unique(users.astype(np.int64) * 5_000 + items)) == 400_000


@pytest.mark.parametrize("popularity", [0.0, 0.6])
def test_memory_does_not_grow_with_the_stream(popularity):
    def peak(n_ratings: int) -> int:
        people = plant(5000, 2000, popularity=popularity, rng=0)
        tracemalloc.start()
        for _ in people.blocks(n_ratings, block=50_000):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(1_000_000) < 1.1 * peak(200_000)
    assert peak(1_000_000) < 12 * 2**20


def test_a_stream_of_a_hundred_million_starts_at_once():
    blocks = draw_blocks(480_000, 17_770, n_factors=2, block=1000, rng=0)
    users, items, ratings = next(blocks)
    assert len(ratings) == 1000
    assert users.max() > 400_000
    assert items.max() > 15_000


def test_levels_round_to_the_nearest():
    halves = np.arange(1, 11) / 2
    data = draw(300, 200, density=0.3, levels=halves, rng=0)
    exact = draw(300, 200, density=0.3, rng=0)
    assert set(np.unique(data.ratings)) <= set(halves)
    inside = (exact.ratings > 0.5) & (exact.ratings < 5)
    assert np.abs(data.ratings - exact.ratings)[inside].max() <= 0.25 + 1e-6
    assert data.ratings[exact.ratings > 5.2].min() == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either density or n_ratings"),
        ({"density": 0.1, "n_ratings": 10}, "either density or n_ratings"),
        ({"density": 0.0}, "density must be .* got 0"),
        ({"density": 1.5}, "density must be .* got 1.5"),
        ({"n_ratings": 0}, "n_ratings must be .* got 0"),
        ({"n_ratings": 601}, "n_ratings must be .* at most 600, got 601"),
    ],
)
def test_impossible_numbers_of_ratings_are_refused(arguments, message):
    with pytest.raises(ParameterError, match=message):
        draw(30, 20, rng=0, **arguments)


def test_wrong_blocks_are_refused_before_the_first_is_asked_for():
    with pytest.raises(ParameterError, match=r"block must be .* got 0"):
        draw_blocks(30, 20, n_ratings=10, block=0, rng=0)
    with pytest.raises(ParameterError, match=r"n_ratings must be .* got 100000000"):
        draw_blocks(30, 20, rng=0)


def test_a_frame_has_names_for_rows():
    data = draw(12, 8, n_ratings=20, rng=0)
    frame = data.frame().to_pandas()
    assert frame.columns.tolist() == ["user", "item", "rating"]
    assert frame["user"].tolist() == [f"user-{user:04d}" for user in data.users]
    assert frame["item"].tolist() == [f"item-{item:04d}" for item in data.items]
    np.testing.assert_array_equal(frame["rating"], data.ratings)


def test_the_demo_is_a_small_film_club():
    data = demo_ratings(0)
    frame = data.frame()
    assert frame.num_rows == 30_000
    assert frame["user"][0].as_py().startswith("user-0")
    assert frame["item"][0].as_py().startswith("film-0")
    assert set(np.unique(data.ratings)) == {1, 2, 3, 4, 5}
    assert len(np.unique(data.users)) == 600
    assert len(np.unique(data.items)) == 300
    assert np.bincount(data.users).min() >= 20
    assert np.bincount(data.user_community).tolist() == [200, 200, 200]
    assert np.bincount(data.item_community).tolist() == [100, 100, 100]
    assert (np.diff(data.timestamps) >= 0).all()
    rest = data.ratings - data.population.expected(data.users, data.items)
    assert rest.std() < 0.6, "stars keep most of what was meant"
    np.testing.assert_array_equal(data.ratings, demo_ratings(0).ratings)
