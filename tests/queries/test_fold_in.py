"""A visitor: known by a few ratings, gone without a trace."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import suppress

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from test_partial_fit import (
    HISTORIES,
    MORE,
    SEVERAL,
    STARTS,
    TABLE,
    content,
    fitted,
    new,
    planted,
    quietly_fitted,
    started,
    stream,
)

from hemf import DataError, NotFittedError, ParameterError, Ratings

LIKES = {"i1": 5.0, "i2": 1.0, "i6": 4.0}
ALL = [f"i{i}" for i in range(8)]


@SEVERAL
@pytest.mark.parametrize("start", ["fitted", "from nothing", "gone on"])
def test_a_visitor_leaves_no_trace(history, start, tmp_path):
    model = fitted(history).partial_fit(MORE) if start == "gone on" else started(start, history)
    before = content(model, tmp_path)
    visitor = model.fold_in(LIKES)
    visitor.predict([*ALL, "never seen"], return_std=True)
    visitor.recommend(3)
    assert content(model, tmp_path) == before
    twin = fitted(history).partial_fit(MORE) if start == "gone on" else started(start, history)
    learnt = model.partial_fit([("u2", "i6", 3.0)])
    assert content(learnt, tmp_path) == content(twin.partial_fit([("u2", "i6", 3.0)]), tmp_path)


@pytest.mark.parametrize("settings", [{}, {"noise_scales": None}, {"dtype": "float64"}], ids=str)
def test_a_visitor_is_expected_to_do_what_a_new_user_does(settings):
    rows = planted(0, 3000, 60, 40)
    model = fitted(data=rows, **settings).partial_fit([("u0", "i0", 4.5)])
    ratings = {"i0": 4.5, "i1": 1.5, "i2": 4.0, "i3": 1.0, "i10": 5.0}
    items = [f"i{i}" for i in range(40)]
    expected, spread = model.fold_in(ratings).predict(items, return_std=True)
    model.partial_fit([("eve", item, rating) for item, rating in ratings.items()])
    mean, std = model.predict("eve", items, return_std=True)
    np.testing.assert_allclose(expected, mean, atol=0.02)
    np.testing.assert_allclose(spread, std, rtol=0.05)
    assert expected[4] - expected[5] > 1.5  # what u0 likes and what u1 does


@SEVERAL
@STARTS
def test_ratings_of_a_visitor_count(history, start):
    model = started(start, history)
    liking, disliking = (
        model.fold_in(dict.fromkeys(ALL, 5.0)),
        model.fold_in(dict.fromkeys(ALL, 1.0)),
    )
    assert (liking.predict(ALL) > disliking.predict(ALL)).all()
    little = model.fold_in({"i1": 5.0}).predict("i2", return_std=True, include_noise=False)[1]
    much = liking.predict("i2", return_std=True, include_noise=False)[1]
    assert much < little
    assert liking.probabilities.sum() == pytest.approx(1.0)


# -- forms of input -----------------------------------------------------------------------------

NAMES, VALUES = list(LIKES), list(LIKES.values())
PAIRS = list(LIKES.items())
COLUMNS = {"user": ["me"] * 3, "item": NAMES, "rating": VALUES}
FORMS = {
    "mapping": LIKES,
    "pairs": PAIRS,
    "lists": [list(pair) for pair in PAIRS],
    "pairs in a tuple": tuple(PAIRS),
    "triples": [("me", *pair) for pair in PAIRS],
    "columns": tuple(COLUMNS.values()),
    "mapping of columns": COLUMNS,
    "pandas": pd.DataFrame(COLUMNS),
    "polars": pl.DataFrame(COLUMNS),
    "Arrow": pa.table(COLUMNS),
    "Ratings": Ratings.from_any(pd.DataFrame(COLUMNS)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_ratings_of_a_visitor_may_have_any_form(form):
    model = fitted()
    np.testing.assert_array_equal(model.fold_in(form).predict(ALL), expected_of_likes())


def expected_of_likes() -> np.ndarray:
    return fitted().fold_in([("somebody", *pair) for pair in PAIRS]).predict(ALL)


APART = {
    "lists": NAMES,
    "array": np.array(NAMES),
    "series": pd.Series(NAMES),
    "tuple": tuple(NAMES),
    "iterator": None,
    "Arrow column": pa.chunked_array([NAMES]),
    "frame": pd.DataFrame({"user": ["me"] * 3, "item": NAMES}),
    "frame of items": pd.DataFrame({"what": NAMES}),
    "polars frame of items": pl.DataFrame({"item": NAMES}),
    "lazy frame": pl.DataFrame({"user": ["me"] * 3, "item": NAMES}).lazy(),
    "lazy frame of items": pl.DataFrame({"item": NAMES}).lazy(),
    "Arrow table of items": pa.table({"item": NAMES}),
    "array of items": np.array(NAMES)[:, None],
    "array of pairs": np.array([("me", name) for name in NAMES]),
    "mapping of items": {"item": NAMES},
    "mapping of pairs": {"user": ["me"] * 3, "item": NAMES},
    "pairs": [("me", name) for name in NAMES],
    "pairs in lists": [["me", name] for name in NAMES],
    "columns": (["me"] * 3, NAMES),
}


@pytest.mark.parametrize("items", APART.values(), ids=APART)
def test_items_and_their_ratings_may_come_apart(items):
    for y in (VALUES, tuple(VALUES), np.array(VALUES), pd.Series(VALUES), iter(VALUES)):
        visitor = fitted().fold_in(iter(NAMES) if items is None else items, y)
        np.testing.assert_array_equal(visitor.predict(ALL), expected_of_likes())


def test_columns_of_pairs_may_be_named():
    frame = pd.DataFrame({"what": NAMES, "who": ["me"] * 3})
    visitor = fitted().fold_in(frame, VALUES, columns=("who", "what"))
    np.testing.assert_array_equal(visitor.predict(ALL), expected_of_likes())


def test_columns_of_a_visitor_may_be_named():
    frame = pd.DataFrame({"stars": VALUES, "what": NAMES, "who": ["me"] * 3})
    visitor = fitted().fold_in(frame, columns=("who", "what", "stars"))
    np.testing.assert_array_equal(visitor.predict(ALL), expected_of_likes())


def test_items_may_be_tuples():
    rows = [
        (user, ("i", item), float(1 + (user * item) % 5)) for user in range(6) for item in (1, 2, 3)
    ]
    model = fitted(data=rows)
    by_pairs = model.fold_in([(("i", 1), 5.0), (("i", 2), 1.0)])
    by_mapping = model.fold_in({("i", 1): 5.0, ("i", 2): 1.0})
    apart = model.fold_in([("i", 1), ("i", 2)], [5.0, 1.0])
    assert by_pairs.predict(("i", 3)) == by_mapping.predict(("i", 3)) == apart.predict(("i", 3))
    assert by_pairs.recommend(5)[0].tolist() == [("i", 3)]


UNUSUAL = {
    "NumPy's numbers": [(name, np.float64(value)) for name, value in PAIRS],
    "NumPy's text": [(np.str_(name), value) for name, value in PAIRS],
    "whole numbers": [(name, int(value)) for name, value in PAIRS],
    "numbers in text": [(name, str(value)) for name, value in PAIRS],
}


@pytest.mark.parametrize("pairs", UNUSUAL.values(), ids=UNUSUAL)
def test_a_few_plain_pairs_are_read_as_any_others_are(pairs):
    plain, unusual = fitted().fold_in(PAIRS), fitted().fold_in(pairs)
    assert plain.items.tolist() == unusual.items.tolist()
    assert plain.items.dtype == unusual.items.dtype
    np.testing.assert_array_equal(plain.ratings, unusual.ratings, strict=True)
    np.testing.assert_array_equal(unusual.predict(ALL), expected_of_likes())


def test_items_may_be_numbers():
    model = fitted(data=[(user, int(item[1:]), rating) for user, item, rating in TABLE])
    pairs = [(1, 5.0), (2, 1.0), (2**70, 3.0), (-5, 2.0)]
    visitors = [
        model.fold_in(pairs[:2]),
        model.fold_in([(np.int64(item), value) for item, value in pairs[:2]]),
        model.fold_in([(float(item), value) for item, value in pairs[:2]]),
    ]
    for visitor in visitors:
        assert visitor.items.dtype == np.int64
        np.testing.assert_array_equal(visitor.predict([3, 4]), visitors[0].predict([3, 4]))
    assert np.isfinite(model.fold_in(pairs).predict([3, 4])).all()


@pytest.mark.slow  # the kernels of so many ratings are compiled for this alone
def test_a_visitor_may_bring_more_ratings_than_16_bits_can_count():
    many = [(f"i{number}", 1.0 + number % 5) for number in range(65_537)]
    almost, all_of_them = fitted().fold_in(many[:-1]), fitted().fold_in(many)
    np.testing.assert_allclose(all_of_them.predict(ALL), almost.predict(ALL), atol=0.01)


def test_items_nobody_has_rated_say_something_about_the_visitor():
    model = fitted()
    pleased = model.fold_in({"never seen": 5.0, "nor this": 5.0})
    grumpy = model.fold_in({"never seen": 1.0, "nor this": 1.0})
    assert pleased.predict("i2") > grumpy.predict("i2")
    assert np.isfinite(pleased.predict(["i2", "never seen", "unheard of"], return_std=True)).all()


def test_a_user_of_the_model_may_visit_too():
    model = fitted()
    again = model.fold_in([row for row in TABLE if row[0] == "u3"])
    assert again.predict("i5") == pytest.approx(model.predict("u3", "i5"), abs=0.5)


# -- bad input ----------------------------------------------------------------------------------

BAD = {
    "empty": ([], "no rows|no ratings"),
    "empty mapping": ({}, "no rows|no ratings"),
    "nothing": (None, "cannot be read"),
    "NaN": ({"i1": np.nan}, "not finite"),
    "infinite": ({"i1": np.inf}, "not finite"),
    "text": ({"i1": "good"}, "not a number"),
    "missing item": ({None: 3.0}, "missing"),
    "twice": ([("i1", 3.0), ("i2", 3.0), ("i1", 4.0)], "'i1' is rated twice"),
    "two users": ([("ann", "i1", 3.0), ("bob", "i2", 4.0)], "2 users"),
    "number twice": ([(1, 3.0), (2, 3.0), (1, 4.0)], "1 is rated twice"),
    "twice in two types": ([(1, 3.0), (1.0, 4.0)], "1 is rated twice"),
    "not hashable": ([(["i1"], 3.0)], "not hashable"),
    "truly large": ({"i1": 10**400}, "too large"),
    "too large": ({"i1": 3.0, "i2": 1e39}, "1e\\+39 at row 1 is too large"),
    "missing item before a wrong rating": ([(None, "good")], "item None"),
    "out of range": ({"i1": 3.0, "i2": 5.5}, r"5\.5 at row 1 is outside"),
    "short row": ([("i1", 3.0), ("i2",)], "row 1"),
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("history", HISTORIES[:2])
def test_bad_ratings_of_a_visitor_are_refused(bad, message, history, tmp_path):
    model = fitted(history, rating_range=(1, 5))
    before = content(model, tmp_path)
    with pytest.raises(DataError, match=message):
        model.fold_in(bad)
    assert content(model, tmp_path) == before


@pytest.mark.parametrize(
    ("items", "y"),
    [
        (["i1", "i2"], [5.0]),
        (pd.DataFrame({"item": ["i1", "i2"]}), [5.0]),
        (["i1"], 5.0),
        ("i1", 5.0),
        ("i1", [5.0, 4.0]),
        ([], []),
        (pd.DataFrame({"user": ["ann", "bob"], "item": ["i1", "i2"]}), [5.0, 4.0]),
        (["i1", "i1"], [5.0, 4.0]),
    ],
)
def test_as_many_items_as_ratings_are_needed(items, y):
    with pytest.raises(DataError):
        fitted().fold_in(items, y)


def test_nobody_visits_a_model_that_knows_nothing():
    with pytest.raises(NotFittedError):
        new().fold_in(LIKES)


@pytest.mark.parametrize("rating", [1e12, 3e38, -1e30])
def test_a_visitor_out_of_all_proportion_is_no_nan(rating):
    try:
        visitor = fitted().fold_in({"i1": rating})
    except DataError:
        return
    assert np.isfinite(visitor.predict(ALL, return_std=True)).all()


def test_a_rating_beyond_single_precision_is_named():
    with pytest.raises(DataError, match=r"the rating 1e\+30 is too far"):
        fitted(rating_range=None).fold_in({"i1": 1e30})


# -- visitors -----------------------------------------------------------------------------------


def test_one_item_or_many():
    visitor = fitted().fold_in(LIKES)
    assert visitor.predict("i0") == visitor.predict(["i0"])[0]
    mean, std = visitor.predict("i0", return_std=True)
    taste = visitor.predict("i0", return_std=True, include_noise=False)[1]
    assert np.ndim(mean) == 0
    assert 0 < taste < std
    assert ((visitor.predict(ALL) >= 1) & (visitor.predict(ALL) <= 5)).all()


@SEVERAL
def test_the_best_items_that_were_not_rated_are_recommended(history):
    visitor = fitted(history).fold_in(LIKES)
    ids, scores = visitor.recommend(20)
    assert set(ids) == set(ALL) - set(LIKES)
    assert (np.diff(scores) <= 0).all()
    np.testing.assert_allclose(scores, visitor.predict(list(ids)), rtol=1e-5)
    assert set(visitor.recommend(20, exclude_seen=False)[0]) == set(ALL)
    assert len(visitor.recommend(2)[0]) == 2
    for wrong in (0, -1, 2.5, "x"):
        with pytest.raises(ParameterError):
            visitor.recommend(wrong)


@SEVERAL
def test_a_visitor_stays_while_the_model_grows(history):
    model = fitted(history)
    visitor = model.fold_in(LIKES)
    for number in range(40):
        model.partial_fit([(f"new{number}", f"thing{number}", 5.0)])
    assert np.isfinite(visitor.predict(["i3", "thing20"])).all()
    ids, scores = visitor.recommend(100)
    assert len(ids) == 8 - 3 + 40
    assert np.isfinite(scores).all()
    assert not set(ids) & set(LIKES)


@pytest.mark.parametrize("settings", [{}, {"noise_scales": None}, {"dtype": "float64"}], ids=str)
def test_visitors_do_not_know_of_each_other(settings):
    model = fitted(data=planted(0, 3000, 60, 40), **settings)
    assert model.n_user_communities_ > 1
    apart = [copy.deepcopy(model).fold_in(form) for form in (LIKES, {"i1": 2.0}, {"new": 4.0})]
    with suppress(DataError):  # in double precision it is a number still
        model.fold_in({"i3": 1e30})
    together = [model.fold_in(form) for form in (LIKES, {"i1": 2.0}, {"new": 4.0})]
    for one, other in zip(apart, together, strict=True):
        assert_same(one, other, ALL)


def assert_same(visitor, twin, items) -> None:
    """Both are expected to do the same, and are recommended the same."""
    np.testing.assert_array_equal(
        visitor.predict(items, return_std=True), twin.predict(items, return_std=True)
    )
    np.testing.assert_array_equal(visitor.probabilities, twin.probabilities)
    for own, other in zip(visitor.recommend(50), twin.recommend(50), strict=True):
        assert own.tolist() == other.tolist()


@SEVERAL
@STARTS
def test_a_visitor_is_seen_by_the_model_as_it_is(history, start):
    """Up to 200 ratings and beyond, where a stream without a fit restarts."""
    model = started(start, history)
    visitor = model.fold_in({**LIKES, "thing3": 2.0})
    for number in range(30):
        model.partial_fit([(f"new{number}", f"thing{number}", 5.0), (f"new{number}", "i2", 2.0)])
        model.predict_then_learn(stream(number, 5))
    assert_same(visitor, model.fold_in({**LIKES, "thing3": 2.0}), [*ALL, "thing3", "thing20"])
    assert "thing3" not in visitor.recommend(50)[0]  # it was not known when it was rated


def test_a_visitor_of_a_model_that_was_fitted_anew_is_answered():
    model = fitted()
    visitor = model.fold_in(LIKES)
    model.fit([("ann", "tea", 4.0), ("bob", "milk", 2.0)])
    assert set(visitor.recommend(5)[0]) == {"tea", "milk"}
    assert_same(visitor, model.fold_in(LIKES), ["tea", "milk", "i1"])
    quietly_fitted(model, [(user, item, 10.0 * rating) for user, item, rating in TABLE[::-1]])
    assert_same(visitor, model.fold_in(LIKES), ALL)
    model.fit([(1, 2, 4.0), (2, 7, 2.0), (1, 7, 3.0)])  # not even ids are text
    assert_same(visitor, model.fold_in(LIKES), [2, 7])


def test_a_fit_that_fails_leaves_the_visitor():
    model = fitted()
    visitor = model.fold_in(LIKES)
    expected = visitor.predict(ALL)
    with pytest.raises(DataError):
        model.fit([("ann", "tea", np.nan)])
    np.testing.assert_array_equal(visitor.predict(ALL), expected)


def test_a_visitor_can_be_copied_and_pickled():
    visitor = fitted().partial_fit(MORE).fold_in(LIKES)
    expected = visitor.predict(ALL)
    for twin in (copy.deepcopy(visitor), pickle.loads(pickle.dumps(visitor))):
        np.testing.assert_array_equal(twin.predict(ALL), expected)


def test_copies_of_a_model_fold_in_at_once():
    """They share the model's sides, and a lock each of their own."""
    model = fitted("full")
    twin = copy.copy(model)
    visits = (model, [("i1", 5.0), ("i2", 1.0)]), (twin, [("i1", 1.0), ("i2", 5.0), ("i3", 3.0)])
    items = ["i1", "i2", "i3"]
    expected = [one.fold_in(pairs).predict(items) for one, pairs in visits]
    wrong = []

    def visit(which):
        one, pairs = visits[which]
        for _ in range(400):
            if not np.array_equal(one.fold_in(pairs).predict(items), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=visit, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
