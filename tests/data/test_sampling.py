from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hemf.data.sampling import Permutation, distinct_pairs, divide_by_weight, mix, uniforms


@given(size=st.integers(1, 5000), key=st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_a_permutation_holds_every_number_once(size, key):
    order = Permutation(size, key)(np.arange(size))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_a_permutation_stays_inside_sizes_beyond_32_bits():
    size = 480_189 * 17_770
    drawn = Permutation(size, 1)(np.arange(100_000))
    assert drawn.max() < size
    assert len(np.unique(drawn)) == 100_000
    assert stats.kstest(drawn / size, "uniform").pvalue > 1e-3


def test_every_number_is_equally_likely_at_every_position():
    size, times = 12, 6000
    positions, tweaks = np.tile(np.arange(size), times), np.repeat(np.arange(times), size)
    numbers = Permutation(size, 1)(positions, tweaks).astype(int)
    table = np.bincount(positions * size + numbers, minlength=size**2)
    expected = times / size
    # Rows and columns have fixed sums, and cells of a permutation vary by (size - 1) / size.
    statistic = ((table - expected) ** 2 / expected).sum() * (size - 1) / size
    assert 1e-3 < stats.chi2.sf(statistic, df=(size - 1) ** 2) < 1 - 1e-3


def test_neighbours_are_unrelated():
    order = Permutation(1_000_000, 5)(np.arange(200_000)).astype(float)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.01


def test_each_tweak_is_a_permutation_of_its_own():
    order = Permutation(500, 9)
    first, second = (order(np.arange(500), np.full(500, tweak)) for tweak in (1, 2))
    np.testing.assert_array_equal(np.sort(first), np.sort(second))
    assert np.mean(first == second) < 0.05


def test_each_size_has_a_permutation_of_its_own():
    sizes = np.array([1, 2, 5, 9, 100, 10_000])
    numbers = Permutation(10_000, 9)(
        np.concatenate([np.arange(size) for size in sizes]), sizes=np.repeat(sizes, sizes)
    )
    for size, part in zip(sizes, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(np.sort(part), np.arange(size))
    whole = Permutation(10_000, 9)(np.arange(10_000))
    np.testing.assert_array_equal(numbers[-10_000:], whole)


def test_mixing_is_one_to_one():
    assert len(np.unique(mix(np.arange(100_000, dtype=np.uint64)))) == 100_000


def test_uniforms_are_uniform_and_never_at_the_ends():
    drawn = uniforms(3, np.arange(100_000, dtype=np.uint64))
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


@given(
    users=st.integers(1, 60),
    items=st.integers(1, 60),
    part=st.floats(0.01, 1.0),
    popularity=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    key=st.integers(0, 2**62),
)
@settings(max_examples=60, deadline=None)
def test_pairs_are_distinct_and_inside(users, items, part, popularity, key):
    n = max(1, int(part * users * items))
    drawn = distinct_pairs(users, items, n, popularity=popularity, key=key)
    u, i = drawn(0, n)
    assert len(u) == len(i) == n
    assert u.min() >= 0
    assert u.max() < users
    assert i.min() >= 0
    assert i.max() < items
    assert len(set(zip(u.tolist(), i.tolist(), strict=True))) == n


def test_every_pair_is_equally_likely():
    counts = np.zeros((8, 6))
    for key in np.random.default_rng(1).integers(2**62, size=2000):
        counts[distinct_pairs(8, 6, 12, popularity=0.0, key=int(key))(0, 12)] += 1
    assert counts.mean() == 500
    # Without replacement the counts vary a little less than independent ones would.
    assert stats.chi2.sf(((counts - 500) ** 2 / 375).sum(), df=47) > 1e-3


@pytest.mark.parametrize("popularity", [0.0, 0.7])
def test_any_part_of_the_stream_can_be_asked_for(popularity):
    drawn = distinct_pairs(300, 200, 9000, popularity=popularity, key=4)
    whole = drawn(0, 9000)
    pieces = [drawn(start, start + 1500) for start in range(0, 9000, 1500)]
    for column in (0, 1):
        np.testing.assert_array_equal(np.concatenate([p[column] for p in pieces]), whole[column])


def test_popular_items_have_their_share():
    users, items = distinct_pairs(5000, 100, 20_000, popularity=1.0, key=2)(0, 20_000)
    counts = np.sort(np.bincount(items, minlength=100))[::-1]
    zipf = 1 / np.arange(1, 101)
    np.testing.assert_allclose(counts, 20_000 * zipf / zipf.sum(), atol=1)
    assert stats.chisquare(np.bincount(users % 50, minlength=50)).pvalue > 1e-3


def test_the_first_part_of_a_popular_stream_is_like_the_whole():
    drawn = distinct_pairs(5000, 100, 20_000, popularity=1.0, key=2)
    whole = np.bincount(drawn(0, 20_000)[1], minlength=100)
    start = np.bincount(drawn(0, 4000)[1], minlength=100)
    assert stats.chisquare(start, whole / 5).pvalue > 1e-3


@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30),
    most=st.integers(1, 50),
    part=st.floats(0.0, 1.0),
)
@settings(deadline=None)
def test_shares_are_whole_and_add_up(weights, most, part):
    total = int(part * most * len(weights))
    parts = divide_by_weight(np.array(weights), total, most=most)
    assert parts.sum() == total
    assert parts.min() >= 0
    assert parts.max() <= most
