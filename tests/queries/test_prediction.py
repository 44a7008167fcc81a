"""Predictions: of one pair or many, with their uncertainty, also for strangers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hemf import DataError, HeMF, ParameterError, Ratings, UnknownIdError
from hemf.data.datasets import draw
from hemf.data.vocabulary import Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

DATA = draw(70, 50, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=1)
USERS = [f"user {u}" for u in DATA.users]
ITEMS = [f"item {i}" for i in DATA.items]


def fitted(**parameters) -> HeMF:
    known = {"n_factors": 3, "max_user_communities": 3, "max_item_communities": 3, "max_sweeps": 20}
    return HeMF(**{**known, "rng": 0, **parameters}).fit((USERS, ITEMS, DATA.ratings))


@pytest.fixture(scope="module")
def model() -> HeMF:
    return fitted()


@pytest.fixture(scope="module")
def numbered() -> HeMF:
    """A model whose ids are numbers."""
    return HeMF(n_factors=3, max_sweeps=10, rng=0).fit((DATA.users, DATA.items, DATA.ratings))


# -- how pairs are given ------------------------------------------------------------------------


def test_one_pair_has_one_number(model):
    mean = model.predict(USERS[0], ITEMS[0])
    assert np.ndim(mean) == 0
    assert isinstance(float(mean), float)
    mean, std, known = model.predict(USERS[0], ITEMS[0], return_std=True, return_known=True)
    assert (np.ndim(mean), np.ndim(std), np.ndim(known)) == (0, 0, 0)
    assert known


def test_many_pairs_are_predicted_as_one_by_one(model):
    together = model.predict(USERS[:30], ITEMS[:30], return_std=True, return_known=True)
    for k in range(30):
        alone = model.predict(USERS[k], ITEMS[k], return_std=True, return_known=True)
        assert alone == tuple(values[k] for values in together)
    assert [values.dtype.kind for values in together] == ["f", "f", "b"]


def test_one_user_goes_with_many_items_and_the_other_way_round(model):
    of_user = model.predict(USERS[0], ITEMS[:9])
    np.testing.assert_array_equal(of_user, model.predict([USERS[0]] * 9, ITEMS[:9]))
    of_item = model.predict(USERS[:9], ITEMS[0])
    np.testing.assert_array_equal(of_item, model.predict(USERS[:9], [ITEMS[0]] * 9))


COLUMNS = {
    "lists": list,
    "arrays": np.array,
    "arrays of objects": lambda ids: np.array(ids, dtype=object),
    "pandas": lambda ids: pd.Series(ids, index=range(100, 100 + len(ids))),
    "pandas categories": lambda ids: pd.Series(ids, dtype="category"),
    "polars": pl.Series,
    "arrow": pa.array,
    "an iterator": iter,
    "a map": lambda ids: map(str, ids),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_ids_come_in_any_kind_of_column(model, column):
    expected = model.predict(USERS[:9], ITEMS[:9])
    np.testing.assert_array_equal(model.predict(column(USERS[:9]), column(ITEMS[:9])), expected)
    with pytest.raises(UnknownIdError, match="user 'nobody' at row 1") as caught:
        model.predict(column([USERS[0], "nobody"]), column(ITEMS[:2]), unknown="error")
    assert (caught.value.value, caught.value.row) == ("nobody", 1)


def test_a_single_id_may_be_numpys_own(model, numbered):
    expected = model.predict(USERS[0], ITEMS[0])
    for kind in (np.str_, np.array):
        assert model.predict(kind(USERS[0]), kind(ITEMS[0])) == expected
    user, item = int(DATA.users[0]), int(DATA.items[0])
    expected = numbered.predict(user, item)
    for kind in (np.int32, np.uint64, float, np.array):
        assert numbered.predict(kind(user), kind(item)) == expected


def test_ids_may_be_tuples_of_any_length():
    ratings = [(("a", 1), "x", 5.0), (("b",), "y", 3.0), ("c", "x", 1.0), (("a", 1), "y", 4.0)]
    model = HeMF(n_factors=1, max_sweeps=3, rng=0).fit(ratings)
    users = [("a", 1), ("b",), "c", ("unknown", 2, 3)]
    _, known = model.predict(users, "x", return_known=True)
    assert known.tolist() == [True, True, True, False]
    assert model.predict(("a", 1), "x") == model.predict(users, "x")[0]
    assert model.recommend([("a", 1), ("b",)], n=1)[0].shape == (2, 1)


def test_a_tuple_is_one_id_where_ids_are_tuples():
    ratings = [((1, 2), ("x", 1), 5.0), ((3, 4), ("y", 2), 3.0), ((1, 2), ("y", 2), 1.0)]
    model = HeMF(n_factors=1, max_sweeps=3, rng=0).fit(ratings)
    mean, known = model.predict((9, 9), ("x", 1), return_known=True)
    assert (np.ndim(mean), bool(known)) == (0, False)
    assert model.predict([(1, 2), (9, 9)], ("x", 1)).tolist() == [
        model.predict((1, 2), ("x", 1)), mean,
    ]  # fmt: skip
    assert model.recommend((9, 9), 2)[0].shape == (2,)
    assert model.recommend((9, 9), items=("y", 2))[0].tolist() == [("y", 2)]
    assert not model.explain((9, 9), ("x", 1)).known_user


def test_a_tuple_holds_several_ids_where_ids_are_not_tuples(model, numbered):
    users, items = USERS[:2], ITEMS[:2]
    expected = model.predict(users, items)
    np.testing.assert_array_equal(model.predict(tuple(users), tuple(items)), expected)
    expected = model.recommend(list(users), 2)
    for found, wanted in zip(model.recommend(tuple(users), 2), expected, strict=True):
        assert found.tolist() == wanted.tolist()
    best = model.recommend(USERS[0], items=tuple(items), exclude_seen=False)[0]
    assert set(best) == set(items)
    pair = int(DATA.users[0]), int(DATA.users[1])
    np.testing.assert_array_equal(numbered.predict(pair, 0), numbered.predict(list(pair), 0))


@pytest.mark.parametrize("name", ["return_std", "include_noise", "return_known"])
def test_a_switch_is_true_or_false(model, name):
    for wrong in ("no", 1, None):
        with pytest.raises(ParameterError, match=f"{name} must be True or False, got {wrong!r}"):
            model.predict(USERS[0], ITEMS[0], **{name: wrong})
    model.predict(USERS[0], ITEMS[0], **{name: np.True_})


def test_ids_that_came_after_the_fit_are_strangers():
    users = Vocabulary(["ann", "bob"])
    data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)], users=users)
    model = HeMF(n_factors=1, max_sweeps=2, rng=0).fit(data)
    users.add(["eve"])
    assert model.predict("eve", "tea", return_known=True) == (model.predict("zoe", "tea"), False)


def pair_tables(tmp_path):
    names = {"user": USERS[:9], "item": ITEMS[:9]}
    frame = pd.DataFrame(names)
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    frame.to_parquet(tmp_path / "pairs.parquet")
    with_more = frame.assign(rating=1.0, why="?")[["why", "rating", "item", "user"]]
    return {
        "pandas": frame,
        "pandas with more columns": with_more,
        "polars": pl.DataFrame(names),
        "arrow": pa.table(names),
        "mapping": names,
        "array": np.column_stack([USERS[:9], ITEMS[:9]]),
        "list of pairs": list(zip(USERS[:9], ITEMS[:9], strict=True)),
        "tuple of columns": (USERS[:9], ITEMS[:9]),
        "csv": tmp_path / "pairs.csv",
        "parquet": str(tmp_path / "pairs.parquet"),
    }


def test_pairs_come_in_any_kind_of_table(model, tmp_path):
    expected = model.predict(USERS[:9], ITEMS[:9])
    for kind, table in pair_tables(tmp_path).items():
        np.testing.assert_array_equal(model.predict(table), expected, err_msg=kind)


def test_ratings_are_predicted_in_their_own_order(model):
    ratings = Ratings.from_any((USERS, ITEMS, DATA.ratings))
    users, items, _ = ratings.triples()
    expected = model.predict(ratings.users.ids[users], ratings.items.ids[items])
    np.testing.assert_array_equal(model.predict(ratings), expected)


def test_numbers_in_a_text_file_are_the_numbered_ids(numbered, tmp_path):
    path = tmp_path / "pairs.csv"
    pd.DataFrame({"user": DATA.users[:9], "item": DATA.items[:9]}).to_csv(path, index=False)
    mean, known = numbered.predict(path, return_known=True)
    assert known.all()
    np.testing.assert_array_equal(mean, numbered.predict(DATA.users[:9], DATA.items[:9]))


def test_no_ids_have_no_predictions(model):
    for users, items in (([], []), (np.array([]), []), (USERS[0], []), ([], ITEMS[0])):
        mean, std, known = model.predict(users, items, return_std=True, return_known=True)
        assert (mean.shape, std.shape, known.shape) == ((0,), (0,), (0,))


@pytest.mark.parametrize(
    "empty", [[], np.empty((0, 2)), pd.DataFrame({"user": [], "item": []})], ids=type
)
def test_a_table_without_pairs_is_an_error(model, empty):
    with pytest.raises(DataError, match="there are no rows"):
        model.predict(empty)


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        (["a"], ["x", "y"], "1 users and 2 items do not pair up"),
        (["a", "b", "c"], ["x"], "3 users and 1 items do not pair up"),
        (None, "x", "missing"),
        ([float("nan")], ["x"], "missing"),
        ([["a"]], ["x"], "not hashable"),
        ({"a"}, "x", "not hashable"),
        ({"a": 1}, "x", "not hashable"),
    ],
    ids=["too few users", "too few items", "None", "NaN", "a list", "a set", "a mapping"],
)
def test_what_is_no_id_is_refused(model, users, items, message):
    with pytest.raises(DataError, match=message):
        model.predict(users, items)


def test_one_pair_needs_both_its_ids(model):
    with pytest.raises(DataError, match="expected columns, got 'user 1'"):
        model.predict(("user 1", "item 1"))


# -- what is predicted --------------------------------------------------------------------------


def test_predictions_are_ratings(model):
    error = model.predict(USERS, ITEMS) - DATA.ratings
    assert np.sqrt(np.mean(error**2)) < 0.5 * DATA.ratings.std()
    assert abs(np.mean(error)) < 0.05


def test_a_rating_is_less_certain_than_the_taste_behind_it(model):
    rating, taste = (
        model.predict(USERS, ITEMS, return_std=True, include_noise=noise)[1]
        for noise in (True, False)
    )
    assert (taste > 0).all()
    assert (rating > taste).all()
    noise = rating**2 - taste**2
    assert 0.5 * model.noise_variance_ < noise.mean() < 2.0 * model.noise_variance_


def test_without_noise_scales_every_pair_has_the_same_noise():
    model = fitted(noise_scales=None)
    rating, taste = (
        model.predict(USERS, ITEMS, return_std=True, include_noise=noise)[1]
        for noise in (True, False)
    )
    np.testing.assert_allclose(rating**2 - taste**2, model.noise_variance_, rtol=1e-9)


def test_the_mean_does_not_depend_on_what_else_is_asked(model):
    plain = model.predict(USERS, ITEMS)
    for options in ({"return_std": True}, {"return_known": True}):
        np.testing.assert_array_equal(model.predict(USERS, ITEMS, **options)[0], plain)
    taste = model.predict(USERS, ITEMS, return_std=True, include_noise=False)
    np.testing.assert_array_equal(taste[0], plain)


def test_strangers_are_flagged(model):
    users = [USERS[0], "nobody", USERS[0], "nobody"]
    items = [ITEMS[0], ITEMS[0], "nothing", "nothing"]
    mean, known = model.predict(users, items, return_known=True)
    assert known.tolist() == [True, False, False, False]
    assert np.isfinite(mean).all()
    assert not model.predict("nobody", ITEMS[0], return_known=True)[1]


def test_strangers_are_predicted_with_less_certainty(model):
    users, items = sorted(set(USERS)), sorted(set(ITEMS))

    def taste(users, items):
        return model.predict(users, items, return_std=True, include_noise=False)[1]

    for item in items[:10]:
        assert taste("nobody", item) > taste(users, item).max()
    for user in users[:10]:
        assert taste(user, "nothing") > taste(user, items).max()
    assert taste("nobody", "nothing") > taste("nobody", items).mean()
    rating = model.predict("nobody", "nothing", return_std=True)[1]
    assert rating == pytest.approx(DATA.ratings.std(), rel=0.5)


def test_of_two_strangers_the_mean_rating_is_expected(model):
    expected = model.predict("nobody", "nothing")
    assert expected == pytest.approx(model.global_mean_, abs=0.5 * model.rating_scale_)
    assert model.predict(["nobody", 3, ("a",)], "nothing").tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("users", "items", "who", "row"),
    [
        ("nobody", ITEMS[0], "user 'nobody'", 0),
        (USERS[:2], [ITEMS[0], "nothing"], "item 'nothing'", 1),
        ([*USERS[:2], 7, "x"], ITEMS[0], "user 7", 2),
    ],
)
def test_strangers_can_be_an_error(model, users, items, who, row):
    with pytest.raises(UnknownIdError, match=f"{who} at row {row} is not known") as caught:
        model.predict(users, items, unknown="error")
    assert isinstance(caught.value, KeyError)
    assert caught.value.row == row
    assert str(caught.value).startswith(who)


def test_an_unknown_way_with_strangers_is_refused(model):
    with pytest.raises(ParameterError, match="unknown must be one of 'prior', 'error', got 'nan'"):
        model.predict("nobody", "nothing", unknown="nan")


# -- the range of ratings -----------------------------------------------------------------------


def test_predictions_stay_within_the_range():
    free = fitted(rating_range=None)
    observed = fitted(rating_range="observed")
    narrow = fitted(rating_range=(3, 4))
    unbounded = free.predict(USERS, ITEMS)
    assert free.rating_range_ is None
    low, high = float(DATA.ratings.min()), float(DATA.ratings.max())
    assert observed.rating_range_ == (low, high)
    assert narrow.rating_range_ == (3.0, 4.0)
    assert unbounded.min() < 3 < 4 < unbounded.max()
    for model, ends in ((observed, (low, high)), (narrow, (3, 4))):
        clipped = model.predict(USERS, ITEMS)
        np.testing.assert_allclose(clipped, np.clip(unbounded, *ends), rtol=1e-12)
        assert ((clipped >= ends[0]) & (clipped <= ends[1])).all()


def test_the_range_does_not_change_what_is_learnt():
    free, narrow = fitted(rating_range=None), fitted(rating_range=(3, 4))
    assert free.elbo_ == narrow.elbo_
    std = (model.predict(USERS, ITEMS, return_std=True)[1] for model in (free, narrow))
    np.testing.assert_array_equal(*std)
