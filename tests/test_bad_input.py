"""Bad and extreme input: a clear error or a sensible model, never a crash, a hang or a NaN.

What the readers of files and columns refuse, and what happens when the disk is full, is tested
beside them; here everything goes through ``fit``.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pytest

from hemf import (
    DataError,
    DuplicateWarning,
    HeMF,
    ModelFileError,
    ParameterError,
    Ratings,
    UnknownIdError,
)
from proofs.sensible import assert_sensible, fit

SMALL = {"n_factors": 3, "max_user_communities": 4, "max_item_communities": 4}


def table(n_users: int, n_items: int, rating) -> list[tuple[int, int, float]]:
    """All ratings of a table, each as a function of its place."""
    return [(u, i, float(rating(u, i))) for u, i in product(range(n_users), range(n_items))]


# -- hardly any data ----------------------------------------------------------------------------

NOTHING = {
    "list": [],
    "columns": ([], [], []),
    "array": np.empty((0, 3)),
    "pandas": pd.DataFrame({"user": [], "item": [], "rating": []}),
    "polars": pl.DataFrame({"user": [], "item": [], "rating": []}),
    "Ratings": Ratings.from_any([("ann", "tea", 5.0)]).subset(np.array([False])),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING.keys())
def test_no_ratings_are_an_error(nothing):
    with pytest.raises(DataError, match=r"there are no (rows|ratings)"):
        fit(nothing)


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "ratings.csv"
    for content in ("", "user,item,rating\n"):
        path.write_text(content)
        with pytest.raises(DataError, match=r"ratings\.csv"):
            fit(path)


def test_one_rating_is_what_everybody_is_expected_to_give():
    model = fit([("ann", "tea", 4.0)])
    assert_sensible(model)
    assert model.predict(["ann", "bob"], ["tea", "milk"]).tolist() == [4.0, 4.0]
    assert len(model.recommend("ann")[0]) == 0
    assert model.recommend("bob")[0].tolist() == ["tea"]


def test_two_ratings_of_two_users_and_items():
    model = fit([("ann", "tea", 4.0), ("bob", "milk", 2.0)])
    assert_sensible(model)
    assert model.predict("ann", "tea") > model.predict("bob", "milk")


def test_two_ratings_of_one_user():
    model = fit([("ann", "tea", 4.0), ("ann", "milk", 2.0)])
    assert_sensible(model)
    assert model.predict("ann", "tea") > model.predict("ann", "milk")


def test_one_user_has_a_mean_and_a_spread():
    ratings = np.random.default_rng(0).normal(10.0, 2.0, size=40)
    model = fit((["ann"] * 40, list(range(40)), ratings))
    assert_sensible(model)
    assert model.n_user_communities_ == 1
    mean, std = model.predict("ann", "never seen", return_std=True)
    assert mean == pytest.approx(ratings.mean(), abs=0.5)
    assert std == pytest.approx(ratings.std(), rel=0.5)


def test_one_item_has_a_mean_and_a_spread():
    ratings = np.random.default_rng(0).normal(10.0, 2.0, size=40)
    model = fit((list(range(40)), ["tea"] * 40, ratings))
    assert_sensible(model)
    assert model.n_item_communities_ == 1
    mean, std = model.predict("never seen", "tea", return_std=True)
    assert mean == pytest.approx(ratings.mean(), abs=0.5)
    assert std == pytest.approx(ratings.std(), rel=0.5)


@pytest.mark.parametrize("n_items", [300, 7, 1])
def test_one_rating_a_row(n_items):
    model = fit([(user, user % n_items, float(user % 5)) for user in range(300)], **SMALL)
    assert_sensible(model)
    mean = model.predict(list(range(300)), [user % n_items for user in range(300)])
    assert abs(mean.mean() - 2.0) < 0.1


@pytest.mark.parametrize("membership", ["coupled", "mean-field"])
def test_a_user_without_ratings_is_a_stranger(membership):
    ratings = Ratings.from_any(table(12, 9, lambda u, i: (u * i) % 5))
    rest = ratings.subset(ratings.triples()[0] != 3)
    model = fit(rest, membership=membership, **SMALL)
    assert_sensible(model)
    mean, std, known = model.predict([3, "new", 2], 4, return_std=True, return_known=True)
    assert known.tolist() == [False, False, True]
    assert (mean[0], std[0]) == (mean[1], std[1])
    items, _, known = model.recommend(3, return_known=True)
    assert items.tolist() == model.recommend("new")[0].tolist()
    assert (len(items), known) == (9, False)
    with pytest.raises(UnknownIdError, match="user 3 at row 0"):
        model.predict(3, 4, unknown="error")


def test_an_item_without_ratings_is_a_stranger_too():
    ratings = Ratings.from_any(table(12, 9, lambda u, i: (u * i) % 5))
    model = fit(ratings.subset(ratings.by_user.indices != 3), **SMALL)
    assert_sensible(model)
    assert not model.predict(1, 3, return_known=True)[1]
    assert model.predict(1, 3) == model.predict(1, "new")
    ids, scores = model.recommend(1, exclude_seen=False, items=[3, 4])
    assert scores == pytest.approx(model.predict(1, ids), rel=1e-5)
    assert set(ids) == {3, 4}  # it may be recommended all the same


@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.9])
def test_users_whose_every_rating_is_held_out_are_no_trouble(fraction):
    data = [(user, user % 4, float(user % 5)) for user in range(30)]
    model = fit(data, validation_fraction=fraction, **SMALL)
    assert_sensible(model)
    assert model.n_users_ == 30
    assert model.ratings_.n_ratings == 30 - round(30 * fraction)


def test_one_rating_cannot_be_held_out_and_learnt_from():
    with pytest.raises(DataError, match="validation_fraction=0"):
        fit([("ann", "tea", 4.0)], validation_fraction=0.5)
    assert_sensible(fit([("ann", "tea", 4), ("bob", "tea", 3)], validation_fraction=0.9, **SMALL))


# -- ratings without news -----------------------------------------------------------------------


@pytest.mark.parametrize("rating", [4.0, 0.0, -0.1, 1e30, 1e-30])
@pytest.mark.parametrize("rating_range", ["observed", None])
def test_equal_ratings_are_expected_everywhere(rating, rating_range):
    model = fit(table(6, 5, lambda u, i: rating), rating_range=rating_range, **SMALL)
    assert_sensible(model)
    mean, std = model.predict([0, "new"], [0, "new"], return_std=True)
    np.testing.assert_allclose(mean, rating, rtol=1e-5, atol=1e-2)
    assert (std < 1.0).all()
    if rating_range == "observed":
        assert mean.tolist() == [rating] * 2


def test_a_user_who_always_says_the_same():
    noise = np.random.default_rng(0)
    stars = table(10, 30, lambda u, i: 3 if u == 0 else noise.integers(1, 6))
    model = fit(stars, **SMALL)
    assert_sensible(model)
    assert model.predict(0, list(range(30))) == pytest.approx(3.0, abs=1.0)


EXACT = {
    "rank one": lambda u, i: (u + 1) * (i + 1),
    "waves": lambda u, i: np.sin(u + 1) * np.cos(i),
    "a sum": lambda u, i: u + i,
    "blocks": lambda u, i: (u < 6) == (i < 4),
}


@pytest.mark.parametrize("exact", EXACT.values(), ids=EXACT.keys())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("noise_scales", ["both", None])
def test_a_full_table_without_noise_is_learnt_by_heart(exact, dtype, noise_scales):
    data = table(14, 11, exact)
    model = fit(data, dtype=dtype, noise_scales=noise_scales, max_sweeps=60, **SMALL)
    assert_sensible(model)
    users, items, ratings = map(list, zip(*data, strict=True))
    error = model.predict(users, items) - ratings
    assert np.sqrt(np.mean(error**2)) < 0.05 * np.std(ratings)


# -- ratings out of proportion ------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e37, 1e-37])
def test_the_size_of_ratings_does_not_matter(size):
    def rating(u, i):
        return (u * i) % 5 - 2.0

    plain = fit(table(9, 8, rating), max_sweeps=20, dtype="float64", **SMALL)
    scaled = fit(
        table(9, 8, lambda u, i: size * rating(u, i)), max_sweeps=20, dtype="float64", **SMALL
    )
    assert_sensible(scaled)
    for ours, theirs in zip(
        plain.predict([0, 3, 5], [1, 4, 7], return_std=True),
        scaled.predict([0, 3, 5], [1, 4, 7], return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(theirs / size, ours, rtol=1e-3, atol=1e-3)


def test_the_largest_ratings_there_are_do_not_overflow():
    most = float(np.finfo(np.float32).max)
    assert_sensible(fit(table(5, 5, lambda u, i: most if u == i == 0 else -most), **SMALL))


def test_the_smallest_differences_there_are_do_not_vanish():
    least = float(np.finfo(np.float32).smallest_subnormal)
    model = fit(table(5, 5, lambda u, i: least * (u + i)), max_sweeps=30, **SMALL)
    assert_sensible(model)
    assert model.predict(4, 4) > model.predict(0, 0)


@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_small_differences_of_large_ratings_are_learnt(offset):
    data = table(15, 12, lambda u, i: offset + (u % 3) + (i % 4))
    model = fit(data, **SMALL)
    assert_sensible(model)
    users, items, ratings = map(list, zip(*data, strict=True))
    error = model.predict(users, items) - ratings
    assert np.sqrt(np.mean(error**2)) < 0.2
    assert abs(error.mean()) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [1e9, -1e11])
def test_ratings_that_float32_cannot_tell_apart_are_learnt(tmp_path, dtype, offset):
    data = table(15, 12, lambda u, i: offset + (u % 3) + (i % 4) + 0.25)
    users, items, ratings = map(list, zip(*data, strict=True))
    settings = {"dtype": dtype, "rng": 0, **SMALL}
    in_batch = fit(data, **settings)
    by_and_by = HeMF(**settings)
    for start in range(0, len(data), 30):
        by_and_by.partial_fit(data[start : start + 30])
    for model in (in_batch, by_and_by):
        assert_sensible(model)
        assert model.rating_range_ == (min(ratings), max(ratings))
        mean, std = model.predict(users, items, return_std=True)
        assert np.sqrt(np.mean((mean - ratings) ** 2)) < 0.3
        assert 0.001 < std.mean() < 1.0
        model.partial_fit([(0, 0, offset + 0.5)])
        assert offset + 0.5 in model.ratings_.by_user.row(0)[1]
        model.save(tmp_path / "m.hemf")
        loaded = HeMF.load(tmp_path / "m.hemf")
        assert loaded.predict(users, items).tolist() == model.predict(users, items).tolist()
        assert loaded.ratings_.triples()[2].tolist() == model.ratings_.triples()[2].tolist()


def test_dtype_float64_keeps_ratings_to_the_bit(tmp_path):
    data = [(user, item, 0.1 * (user + item)) for user in range(6) for item in range(5)]
    model = fit(data, dtype="float64", **SMALL)
    given = [rating for *_, rating in data]
    assert model.ratings_.by_user.values.tolist() == given
    model.partial_fit([(6, 0, 0.7)])
    assert model.ratings_.by_user.values.tolist() == [*given, 0.7]
    model.save(tmp_path / "m.hemf")
    assert HeMF.load(tmp_path / "m.hemf").ratings_.by_user.values.tolist() == [*given, 0.7]
    assert Ratings.from_any(data).by_user.values.dtype == np.float32  # to a millionth, and smaller
    assert fit(data, **SMALL).ratings_.by_user.values.dtype == np.float32


def test_whole_numbers_that_floats_cannot_tell_apart_are_an_error():
    with pytest.raises(DataError, match="at row 1 differs from another by less than float64"):
        fit([(0, 0, 2**60), (0, 1, 2**60 + 1), (1, 0, 5)])


@pytest.mark.parametrize("kind", [np.float32, float])
def test_a_rating_is_taken_back_in_whatever_precision_it_is_named(kind):
    data = (list(range(6)), [0, 1] * 3, np.array([0.1, 0.7, 1.3, 2.9, 3.3, 4.1], kind))
    for history in ("full", 2):
        model = HeMF(history=history, rng=0, **SMALL).fit(data)
        model.partial_fit(([4], [0], [2.2]), previous=[3.3])
        model.partial_fit(removed=([0], [0], [0.1]))
        assert model.n_ratings_ == 5


def test_one_rating_far_from_all_others():
    model = fit(table(20, 15, lambda u, i: 1e6 if u == i == 0 else 1.0), **SMALL)
    assert_sensible(model)
    assert model.predict(5, 7) < 1e4


def test_ratings_of_two_kinds_are_enough():
    model = fit(table(20, 15, lambda u, i: (u * 7 + i * 3) % 2), **SMALL)
    assert_sensible(model)


@pytest.mark.parametrize("unit", [1e-150, 1e-200, 1e-300, 5e-324])
def test_predictions_follow_ratings_whose_squares_underflow(unit):
    rows = table(20, 15, lambda u, i: (u * 7 + i * 3) % 5)
    as_given, tiny = fit(rows, **SMALL), fit([(u, i, r * unit) for u, i, r in rows], **SMALL)
    pairs = [u for u, _, _ in rows], [i for _, i, _ in rows]
    expected, found = as_given.predict(*pairs), tiny.predict(*pairs)
    np.testing.assert_allclose(found / unit, expected, atol=0.01 if unit > 5e-324 else 0.51)


# -- ratings that are none ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (float("nan"), "is not finite"),
        (float("inf"), "is not finite"),
        (-float("inf"), "is not finite"),
        (1e39, "is too large"),
        (None, "is missing"),
        ("good", "is not a number"),
        ("", "is not a number"),
        ([5], "is not a number"),
    ],
    ids=str,
)
def test_a_rating_that_is_no_finite_number_is_named_with_its_row(bad, reason):
    with pytest.raises(DataError, match=reason) as caught:
        fit([("ann", "tea", 5.0), ("bob", "tea", bad), ("bob", "milk", 3.0)])
    assert caught.value.row == 1
    assert "row 1" in str(caught.value)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_gap_in_a_frame_is_named_with_its_row(frame):
    for column in ("user", "item", "rating"):
        columns = {"user": ["a", "b", "c"], "item": ["x", "y", "z"], "rating": [1.0, 2.0, 3.0]}
        columns[column][2] = None
        with pytest.raises(DataError, match=f"{column} .*row 2"):
            fit(frame(columns))


def test_numbers_written_as_text_are_ratings():
    model = fit([("ann", "tea", "4.5"), ("bob", "tea", " 3 ")], max_sweeps=2)
    assert model.global_mean_ == 3.75


# -- ids ----------------------------------------------------------------------------------------


def test_a_pair_rated_twice_is_said_and_the_last_counts():
    data = [("ann", "tea", 1.0), ("bob", "milk", 3.0), ("ann", "tea", 5.0)]
    with pytest.warns(DuplicateWarning, match="user 'ann' and item 'tea' at rows 0 and 2"):
        model = fit(data)
    assert_sensible(model)
    assert (model.global_mean_, model.ratings_.n_ratings) == (4.0, 2)
    with pytest.raises(DataError, match="user 'ann' and item 'tea' at rows 0 and 2"):
        fit(data, duplicates="error")


def test_columns_of_unequal_length_are_an_error():
    for data in ((["a", "b"], ["x"], [1.0, 2.0]), (["a", "b"], ["x", "y"], [1.0])):
        with pytest.raises(DataError, match=r"unequal lengths: 2 users, \d items, \d ratings"):
            fit(data)
    with pytest.raises(DataError, match="unequal lengths"):
        HeMF().fit(np.array([[1, 2], [3, 4]]), [1.0])


def test_columns_that_are_not_there_are_an_error():
    frame = pd.DataFrame({"who": ["a"], "what": ["x"], "stars": [5.0]})
    with pytest.raises(DataError, match="found the columns who, what, stars"):
        fit(frame)
    with pytest.raises(DataError, match="no column 'score'"):
        HeMF().fit(frame, columns=("who", "what", "score"))
    assert HeMF(max_sweeps=1).fit(frame, columns=("who", "what", "stars")).n_users_ == 1


def test_numbers_around_a_billion_and_beyond_are_ids_like_any_other():
    ids = [10**9, 10**9 + 1, 2**40, 2**62, -(10**9), 0]
    data = [(ids[u], ids[i], float((u * i) % 5)) for u in range(6) for i in range(6)]
    model = fit(data, **SMALL)
    assert_sensible(model)
    assert (model.n_users_, model.n_items_) == (6, 6)
    assert set(model.recommend(2**62, exclude_seen=False)[0].tolist()) == set(ids)
    assert model.predict(10**9 + 2, 2**40, return_known=True)[1] == np.False_


def test_ids_of_several_types_stay_what_they_are():
    users = ["1", 1, (1, 2), 2.5, b"1", None.__class__, frozenset({1})]
    data = [
        (user, item, float(k + j)) for k, user in enumerate(users) for j, item in enumerate("xyz")
    ]
    model = fit(data, **SMALL)
    assert_sensible(model)
    assert model.n_users_ == len(users)
    assert model.predict(users, "x", return_known=True)[1].all()
    assert model.predict("1", "x") != model.predict(1, "x")
    assert model.communities("user").labels.keys() == set(users)


def test_ids_in_any_script_come_back_as_they_were(tmp_path):
    users, items = ["Ægir", "Ωμέγα", "李", "🦊", "e\u0301", "é", " ", 'a,b\n"c"'], ["чай", "ミルク"]
    data = [(user, item, float(k)) for k, (user, item) in enumerate(product(users, items))]
    model = fit(data, **SMALL)
    assert_sensible(model)
    assert model.n_users_ == len(users)
    model.save(tmp_path / "модель.hemf")
    loaded = HeMF.load(tmp_path / "модель.hemf")
    assert loaded.ratings_.users.ids.tolist() == users
    assert loaded.predict("🦊", "чай") == model.predict("🦊", "чай")


# -- parameters out of proportion ---------------------------------------------------------------


@pytest.mark.parametrize("n_factors", [-1, 0, 0.5, True, 10**9])
def test_factors_that_cannot_be_are_an_error(n_factors):
    with pytest.raises(ParameterError, match="n_factors must be a whole number"):
        fit([("ann", "tea", 4.0), ("bob", "tea", 2.0)], n_factors=n_factors)


def test_more_factors_than_ratings_are_no_trouble():
    data = [("ann", "tea", 4.0), ("bob", "tea", 2.0), ("bob", "milk", 1.0)]
    model = fit(data, n_factors=60, max_sweeps=30)
    assert_sensible(model)
    assert model.predict("ann", "tea") > model.predict("bob", "milk")


# -- files --------------------------------------------------------------------------------------


def test_a_directory_is_no_file_to_learn_from_save_to_or_load(tmp_path):
    with pytest.raises(DataError, match="is a directory"):
        fit(tmp_path)
    model = fit([("ann", "tea", 4.0)], max_sweeps=1)
    with pytest.raises(ModelFileError, match="is a directory"):
        model.save(tmp_path)
    with pytest.raises(ModelFileError, match="is a directory"):
        HeMF.load(tmp_path)
    assert not list(tmp_path.iterdir())
