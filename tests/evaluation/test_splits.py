from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.errors import DataError, ParameterError
from hemf.evaluation import k_fold, random_split, time_ordered, weak_generalisation


def assert_splits(train: np.ndarray, test: np.ndarray, n: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(n))


@given(n=st.integers(2, 300), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
@settings(deadline=None)
def test_a_random_split_shares_out_every_row(n, fraction, seed):
    train, test = random_split(n, fraction, rng=seed)
    assert_splits(train, test, n)
    assert min(len(train), len(test)) >= 1
    assert abs(len(test) - fraction * n) <= 1
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_hundred_thousand_protocol(seed):
    p = np.random.default_rng(seed).permutation(100_000)
    train, test = random_split(100_000, 0.1, rng=seed)
    assert set(test.tolist()) == set(p[:10_000].tolist())
    assert len(train) == 90_000


def test_the_same_seed_gives_the_same_split_and_another_does_not():
    first, again, other = (random_split(1000, rng=seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@given(users=st.lists(st.integers(0, 12), min_size=1, max_size=80), seed=st.integers(0, 99))
@settings(deadline=None)
def test_every_user_with_two_ratings_gives_one(users, seed):
    train, test = weak_generalisation(users, rng=seed)
    assert_splits(train, test, len(users))
    ids = np.array(users)
    counts = {user: users.count(user) for user in users}
    assert sorted(ids[test].tolist()) == sorted(u for u, count in counts.items() if count > 1)
    assert set(ids[train].tolist()) == set(users), "nobody is unknown in train"


def test_every_rating_of_a_user_is_withheld_equally_often(rng):
    times = np.zeros(4)
    for _ in range(2000):
        times[weak_generalisation(["ann"] * 4, rng=rng)[1]] += 1
    np.testing.assert_allclose(times, 500, atol=80)


def test_the_weak_protocol_on_movielens(shared_data):
    import pyarrow.parquet as pq

    table = pq.read_table(shared_data / "ml-1m.parquet", columns=["user", "item"])
    users, items = table["user"].to_numpy(), table["item"].to_numpy()
    order = np.lexsort((items, users))
    k = np.random.default_rng(0).random(1_000_209)
    smallest = np.minimum.reduceat(k, np.unique(users[order], return_index=True)[1])
    expected = order[np.isin(k, smallest)]
    train, test = weak_generalisation(users, items, rng=0)
    np.testing.assert_array_equal(test, np.sort(expected))
    assert len(test) == 6040
    assert_splits(train, test, 1_000_209)


def test_with_items_the_order_of_the_rows_does_not_matter(rng):
    users, items = np.divmod(rng.permutation(600), 20)
    shuffle = rng.permutation(600)
    _, test = weak_generalisation(users, items, rng=5)
    _, shuffled = weak_generalisation(users[shuffle], items[shuffle], rng=5)
    assert set(test.tolist()) == set(shuffle[shuffled].tolist())


def test_ids_may_be_text():
    users = np.array(["bob", "ann", "bob", "Ünal", "ann"])
    numbers = np.array([2, 1, 2, 3, 1])
    np.testing.assert_array_equal(
        weak_generalisation(users, rng=3)[1], weak_generalisation(numbers, rng=3)[1]
    )


def test_time_order_puts_the_past_before_the_future(rng):
    times = rng.integers(0, 50, 500)
    train, test = time_ordered(times, 0.2)
    assert_splits(train, test, 500)
    assert len(test) == 100
    stream = times[np.concatenate([train, test])]
    assert (np.diff(stream) >= 0).all()


def test_rows_of_the_same_time_keep_their_order():
    train, test = time_ordered([5, 5, 5, 5], 0.5)
    assert (train.tolist(), test.tolist()) == ([0, 1], [2, 3])


def test_time_may_be_a_date():
    dates = np.array(["2024-02-29", "2023-01-01", "2025-12-31"], dtype="datetime64[s]")
    assert time_ordered(dates, 0.4)[1].tolist() == [2]


@given(n=st.integers(2, 200), k=st.integers(2, 10), seed=st.integers(0, 99))
@settings(deadline=None)
def test_folds_withhold_every_row_once(n, k, seed):
    k = min(k, n)
    folds = list(k_fold(n, k, rng=seed))
    assert len(folds) == k
    for train, test in folds:
        assert_splits(train, test, n)
    sizes = [len(test) for _, test in folds]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert len(set(np.concatenate([test for _, test in folds]).tolist())) == n


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 10])
def test_a_fraction_is_a_share(fraction):
    with pytest.raises(ParameterError, match="fraction must be between 0 and 1"):
        random_split(10, fraction)
    with pytest.raises(ParameterError, match="fraction must be between 0 and 1"):
        time_ordered([1, 2, 3], fraction)


def test_what_cannot_be_split_is_refused():
    with pytest.raises(DataError, match="1 rows cannot be split"):
        random_split(1)
    with pytest.raises(DataError, match="users must be"):
        weak_generalisation([])
    with pytest.raises(DataError, match="lengths differ: users 2, items 1"):
        weak_generalisation([1, 2], [1])
    with pytest.raises(DataError, match="two or more"):
        time_ordered([1])
    with pytest.raises(DataError, match="row 1 is missing"):
        time_ordered([1.0, np.nan, 2.0])
    with pytest.raises(DataError, match="row 0 is missing"):
        time_ordered(np.array(["NaT", "2024-01-01"], dtype="datetime64[D]"))
    for k in (1, 6):
        with pytest.raises(
            ParameterError, match=f"k must be between 2 and the number of rows, 5, got {k}"
        ):
            k_fold(5, k)
