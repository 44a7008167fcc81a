from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hemf.data.ratings import Ratings, pairs_from_any
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError, DuplicateWarning, ParameterError

ids = st.one_of(
    st.integers(), st.text(max_size=5), st.booleans(), st.tuples(st.integers(0, 3)),
    st.integers(10**9, 10**10), st.floats(allow_nan=False),
)  # fmt: skip
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Few different ids, so that rows have several ratings and pairs repeat.
tables = st.lists(
    st.tuples(st.sampled_from(range(4)), st.sampled_from(range(4)), numbers), min_size=1
)


def held_by(ratings: Ratings) -> dict[tuple[object, object], float]:
    users, items, values = ratings.triples()
    pairs = zip(ratings.users.ids[users].tolist(), ratings.items.ids[items].tolist(), strict=True)
    return dict(zip(pairs, values.tolist(), strict=True))


def transposed_pairs(ratings: Ratings) -> dict[tuple[object, object], float]:
    users, items = ratings.users.ids.tolist(), ratings.items.ids.tolist()
    return {
        (users[user], items[item]): float(value)
        for item in range(ratings.n_items)
        for user, value in zip(*ratings.by_item.row(item), strict=True)
    }


def quietly(data, **options) -> Ratings:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateWarning)
        return Ratings.from_any(data, **options)


def check_form(ratings: Ratings) -> None:
    """What every ``Ratings`` promises about its arrays."""
    for side, n_rows, n_columns in (
        (ratings.by_user, ratings.n_users, ratings.n_items),
        (ratings.by_item, ratings.n_items, ratings.n_users),
    ):
        assert (side.indptr.dtype, side.indices.dtype) == (np.int64, np.int32)
        assert side.values.dtype == np.float32
        assert side.n_rows == n_rows
        assert side.nnz == ratings.n_ratings == side.indptr[-1]
        for row in range(n_rows):
            others = side.row(row)[0]
            assert (np.diff(others) > 0).all()
            assert ((others >= 0) & (others < n_columns)).all()
        for array in (side.indptr, side.indices, side.values):
            assert array.flags.c_contiguous


@given(tables, st.lists(ids, min_size=4, max_size=4, unique=True), st.randoms())
@settings(deadline=None)
def test_triples_in_are_triples_out_for_any_ids(rows, names, random):
    data = [(names[user], names[item], value) for user, item, value in rows]
    ratings = quietly(data)
    check_form(ratings)
    assert held_by(ratings) == {(user, item): value for user, item, value in data}
    assert transposed_pairs(ratings) == held_by(ratings)


@given(tables, st.randoms())
@settings(deadline=None)
def test_the_order_of_rows_does_not_matter(rows, random):
    rows = list({(user, item): (user, item, value) for user, item, value in rows}.values())
    shuffled = random.sample(rows, len(rows))
    first, second = Ratings.from_any(rows), Ratings.from_any(shuffled)
    assert held_by(first) == held_by(second)
    assert transposed_pairs(first) == transposed_pairs(second)
    assert first.scale == pytest.approx(second.scale)


@given(tables, st.data())
@settings(deadline=None)
def test_a_subset_and_the_rest_are_the_whole(rows, data):
    times = np.arange(len(rows))
    ratings = quietly([(*row, time) for row, time in zip(rows, times, strict=True)])
    size = ratings.n_ratings
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=bool)
    part, rest = ratings.subset(mask), ratings.subset(~mask)
    for piece in (part, rest):
        check_form(piece)
        assert piece.users is ratings.users
        assert (piece.n_users, piece.n_items) == (ratings.n_users, ratings.n_items)
        assert transposed_pairs(piece) == held_by(piece)
    assert held_by(part) | held_by(rest) == held_by(ratings)
    assert part.n_ratings + rest.n_ratings == size
    assert part.timestamps.tolist() == ratings.timestamps[mask].tolist()
    assert held_by(ratings.select(np.flatnonzero(mask)[::-1])) == held_by(part)


@given(tables)
@settings(deadline=None)
def test_statistics_are_those_of_the_ratings(rows):
    ratings = quietly(rows)
    values = np.array(list(held_by(ratings).values()))
    assert ratings.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-30)
    assert (ratings.minimum, ratings.maximum) == (values.min(), values.max())
    assume(np.ptp(values) > 1e-6 * np.abs(values).max())
    assert ratings.scale == pytest.approx(values.std(), rel=1e-6)


def test_equal_ratings_have_scale_one():
    assert Ratings.from_any([(user, 0, 0.1) for user in range(7)]).scale == 1.0
    single = Ratings.from_any([("ann", "tea", 4)])
    assert (single.mean, single.scale, single.n_ratings) == (4.0, 1.0, 1)


def test_rows_are_in_order_of_first_appearance():
    ratings = Ratings.from_any((["b", "a", "b"], ["y", "x", "x"], [1, 2, 3]))
    assert ratings.users.ids.tolist() == ["b", "a"]
    assert ratings.items.ids.tolist() == ["y", "x"]


def test_timestamps_follow_their_ratings():
    ratings = Ratings.from_any([("b", "y", 1, 10), ("a", "y", 2, 20), ("b", "x", 3, 30)])
    assert ratings.timestamps.tolist() == [10, 30, 20]
    assert ratings.by_user.values.tolist() == [1, 3, 2]
    assert Ratings.from_any([("b", "y", 1)]).timestamps is None


REPEATED = [("a", "x", 1.0, 10), ("b", "x", 2.0, 20), ("a", "x", 4.0, 5), ("a", "x", 2.5, 7)]


def test_of_repeated_pairs_the_last_wins_and_a_warning_says_so():
    expected = "2 ratings .* user 'a' and item 'x' at rows 0 and 2"
    with pytest.warns(DuplicateWarning, match=expected) as caught:
        ratings = Ratings.from_any(REPEATED)
    assert caught[0].filename == __file__
    assert held_by(ratings) == {("a", "x"): 2.5, ("b", "x"): 2.0}
    assert ratings.timestamps.tolist() == [7, 20]


def test_repeated_pairs_can_be_an_error():
    with pytest.raises(DataError, match="user 'a' and item 'x' at rows 0 and 2") as caught:
        Ratings.from_any(REPEATED, duplicates="error")
    assert (caught.value.value, caught.value.row) == (("a", "x"), 2)
    assert Ratings.from_any(REPEATED[:2], duplicates="error").n_ratings == 2
    with pytest.raises(DataError, match="user 7 and item 8 at rows 0 and 1"):
        Ratings.from_any(np.array([[7, 8, 1], [7, 8, 2]]), duplicates="error")


def test_repeated_pairs_can_be_averaged():
    ratings = Ratings.from_any(REPEATED, duplicates="mean")
    assert held_by(ratings) == {("a", "x"): 2.5, ("b", "x"): 2.0}
    assert ratings.timestamps.tolist() == [7, 20]
    with pytest.raises(ParameterError, match="duplicates must be one of 'last', 'error', 'mean'"):
        Ratings.from_any(REPEATED, duplicates="first")


def test_no_pair_repeats_across_the_border_of_two_rows():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ratings = Ratings.from_any([("a", "x", 1), ("b", "x", 2), ("c", "x", 3)])
    assert ratings.n_ratings == 3


def test_known_vocabularies_keep_their_rows_and_are_not_changed():
    users, items = Vocabulary(["z", "a"]), Vocabulary(["x"])
    ratings = Ratings.from_any([("new", "x", 1), ("a", "x", 2)], users=users, items=items)
    assert ratings.users.ids.tolist() == ["z", "a", "new"]
    assert ratings.items is items
    assert users.ids.tolist() == ["z", "a"]
    assert ratings.by_user.indptr.tolist() == [0, 0, 1, 2]
    assert ratings.by_item.row(0)[0].tolist() == [1, 2]


def test_bad_data_leaves_known_vocabularies_alone():
    users = Vocabulary(["a"])
    with pytest.raises(DataError):
        Ratings.from_any([("new", "x", float("nan"))], users=users)
    assert len(users) == 1


def test_ratings_are_taken_as_they_are_or_renumbered():
    ratings = Ratings.from_any([("a", "x", 1, 5), ("b", "y", 2, 6)])
    assert Ratings.from_any(ratings) is ratings
    again = Ratings.from_any(ratings, users=Vocabulary(["b"]), items=Vocabulary(["q"]))
    assert again.users.ids.tolist() == ["b", "a"]
    assert held_by(again) == held_by(ratings)
    assert again.timestamps.tolist() == [6, 5]


def test_a_vocabulary_that_grows_later_does_not_change_the_ratings():
    ratings = Ratings.from_any([("a", "x", 1), ("b", "x", 2)])
    ratings.users.add(["c"])
    assert ratings.n_users == 2
    assert ratings.subset([True, False]).n_users == 2
    assert held_by(Ratings.from_any(ratings, items=Vocabulary())) == held_by(ratings)


def test_an_empty_selection_has_harmless_statistics():
    nothing = Ratings.from_any([("a", "x", 3)]).select([])
    assert (nothing.n_ratings, nothing.n_users) == (0, 1)
    assert (nothing.mean, nothing.scale, nothing.minimum, nothing.maximum) == (0, 1, 0, 0)


@pytest.mark.parametrize("mask", [[True], [1, 0], [[True, False]]])
def test_a_mask_has_one_truth_value_for_each_rating(mask):
    with pytest.raises(DataError, match="expected a mask of 2 truth values"):
        Ratings.from_any([("a", "x", 1), ("b", "x", 2)]).subset(mask)


def test_truth_values_select_as_a_mask():
    ratings = Ratings.from_any([("a", "x", 1), ("b", "x", 2)])
    assert ratings.select(np.array([True, False])).by_user.values.tolist() == [1]
    assert ratings.select([False, False]).n_ratings == 0
    with pytest.raises(DataError, match="expected a mask of 2 truth values"):
        ratings.select([True])


def test_columns_cannot_be_chosen_of_ratings():
    ratings = Ratings.from_any([("a", "x", 1), ("b", "x", 2)])
    for read in (Ratings.from_any, pairs_from_any):
        with pytest.raises(ParameterError, match="Ratings have their columns already"):
            read(ratings, columns=("a", "b", "c"))


def test_huge_ids_take_no_more_room_than_small_ones():
    huge = [(10**9 * user, 10**18 + item, 1.0) for user in range(30) for item in range(30)]
    ratings = Ratings.from_any(huge)
    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (30, 30, 900)
    assert ratings.users.ids.dtype == np.int64


def test_large_data_agree_with_a_sort_by_pandas(rng):
    frame = pd.DataFrame(
        {
            "user": rng.integers(0, 300, 20_000),
            "item": rng.integers(0, 200, 20_000).astype(str),
            "rating": rng.normal(size=20_000).astype(np.float32),
        }
    )
    ratings = quietly(pl.from_pandas(frame))
    expected = frame.drop_duplicates(["user", "item"], keep="last")
    expected = expected.set_index(["user", "item"])["rating"]
    assert held_by(ratings) == expected.to_dict() == transposed_pairs(ratings)
    check_form(ratings)


def test_pairs_are_read_without_ratings(tmp_path):
    users, items = pairs_from_any(pl.DataFrame({"item": ["x", "y"], "user": [1, 2]}))
    assert users.dtype == np.int64
    assert (users.tolist(), items.tolist()) == ([1, 2], ["x", "y"])
    users, items = pairs_from_any((np.array([1, 2]), ["x", "y"]))
    assert (users.tolist(), items.tolist()) == ([1, 2], ["x", "y"])
    users, items = pairs_from_any(Ratings.from_any([("a", "x", 1), ("a", "y", 1)]))
    assert (users.tolist(), items.tolist()) == (["a", "a"], ["x", "y"])


def test_pairs_in_text_mean_the_ids_that_are_known(tmp_path):
    (tmp_path / "pairs.csv").write_text("user,item\n1,1\n2,2\n")
    users, items = pairs_from_any(tmp_path / "pairs.csv", users=Vocabulary(["1"]))
    assert (users.tolist(), items.tolist()) == (["1", "2"], [1, 2])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv"])
def test_a_file_gives_what_the_frame_gives(tmp_path, suffix):
    frame = pl.DataFrame({"user": ["a", "ü", "a"], "item": [1, 1, 2], "rating": [1.0, 2.5, 3.0]})
    path = tmp_path / f"r.{suffix}"
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if suffix == "csv" else "\t")
    from_file, from_frame = Ratings.from_any(path), Ratings.from_any(frame)
    assert held_by(from_file) == held_by(from_frame)
    assert from_file.users == from_frame.users


def test_movielens_100k_is_read_whole(shared_data):
    ratings = Ratings.from_any(shared_data / "ml-100k.parquet", duplicates="error")
    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (943, 1682, 100_000)
    assert (ratings.minimum, ratings.maximum) == (1.0, 5.0)
    assert ratings.timestamps is not None
