from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.data.datasets import netflix_like, netflix_like_blocks
from hemf.data.sampling import uneven_pairs
from hemf.data.synthetic import _MOVIE_QUANTILES, _USER_QUANTILES, _counts
from hemf.errors import ParameterError


@pytest.fixture(scope="module")
def small():
    return netflix_like(0.01, rng=0)


def counts(data):
    return (
        np.bincount(data.users, minlength=data.population.n_users),
        np.bincount(data.items, minlength=data.population.n_items),
    )


def test_the_shape_is_that_of_netflix(small):
    assert (small.population.n_users, small.population.n_items) == (48_019, 1_777)
    assert len(small.ratings) == 1_004_805
    share = len(small.ratings) / (48_019 * 1_777)
    assert share == pytest.approx(100_480_507 / (480_189 * 17_770), rel=0.001)


def test_ratings_are_one_to_five_stars_about_a_mean_of_three_point_six(small):
    assert set(small.ratings.tolist()) == {1, 2, 3, 4, 5}
    assert small.ratings.mean() == pytest.approx(3.60, abs=0.03)
    assert small.ratings.std() == pytest.approx(1.085, abs=0.06)


def test_some_users_and_some_movies_have_far_more_than_others(small):
    users, movies = counts(small)
    # A tenth of the quartiles that are asked for: 39, 96, 259 and 192, 561, 2668
    np.testing.assert_allclose(np.percentile(users, [25, 50, 75]), [3.9, 9.6, 25.9], atol=1)
    np.testing.assert_allclose(np.percentile(movies, [25, 50, 75]), [19, 56, 267], rtol=0.06)
    assert users.max() > 50 * users.mean()
    assert movies.max() > 25 * movies.mean()


def test_the_numbers_of_ratings_asked_for_make_up_the_total():
    for known, n in ((_USER_QUANTILES, 480_189), (_MOVIE_QUANTILES, 17_770)):
        assert _counts(known, n).sum() == pytest.approx(100_480_507, rel=0.005)


def test_no_pair_comes_twice(small):
    assert len(np.unique(small.users.astype(np.int64) * 1_777 + small.items)) == 1_004_805


def test_the_stream_is_the_same_in_blocks_and_for_the_same_seed():
    whole = netflix_like(0.001, rng=3)
    blocks = list(netflix_like_blocks(0.001, block=30_000, rng=3))
    assert len(blocks) == 4
    for name, parts in zip(("users", "items", "ratings"), zip(*blocks, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), getattr(whole, name))
    assert not np.array_equal(netflix_like(0.001, rng=4).users, whole.users)


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_outside_is_an_error(scale):
    with pytest.raises(ParameterError, match="scale"):
        netflix_like(scale)


@given(
    users=st.lists(st.floats(0.01, 100), min_size=1, max_size=60),
    items=st.lists(st.floats(0.01, 100), min_size=1, max_size=40),
    part=st.floats(0.01, 1.0),
    key=st.integers(0, 2**62),
)
@settings(max_examples=60, deadline=None)
def test_uneven_pairs_are_distinct_and_inside(users, items, part, key):
    n = max(1, int(part * len(users) * len(items)))
    u, i = uneven_pairs(np.array(users), np.array(items), n, key=key)(0, n)
    assert 0 <= u.min() <= u.max() < len(users)
    assert 0 <= i.min() <= i.max() < len(items)
    assert len(set(zip(u.tolist(), i.tolist(), strict=True))) == n


def test_both_sides_have_their_shares():
    weights = np.exp(np.linspace(0, 3, 2000))
    u, i = uneven_pairs(weights, weights[::10], 20_000, key=1)(0, 20_000)
    movies = np.bincount(i, minlength=200)
    np.testing.assert_allclose(movies, 20_000 * weights[::10] / weights[::10].sum(), atol=1.01)
    tenths = np.bincount(u, minlength=2000).reshape(10, 200).sum(axis=1)
    expected = 20_000 * weights.reshape(10, 200).sum(axis=1) / weights.sum()
    np.testing.assert_allclose(tenths, expected, rtol=0.08)
