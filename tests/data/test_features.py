"""Features of any form become the same numbers, and what cannot be meant is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from hemf.data.features import FeatureEncoder
from hemf.errors import DataError

PEOPLE = {
    "user": ["ann", "bob", "eve", "zoe"],
    "age": [20.0, 30.0, 40.0, None],
    "city": ["Rome", "Oslo", None, "Rome"],
    "likes": ["jazz|pop", "pop", "", "folk | jazz"],
}
NUMBERS = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]])


def encode(features, side="user"):
    ids, rows = FeatureEncoder.learn(features, side).encode(features)
    return ids, rows.toarray()


@pytest.mark.parametrize(
    "form",
    [
        pd.DataFrame(PEOPLE),
        pd.DataFrame(PEOPLE).set_index("user"),
        pd.DataFrame(PEOPLE).rename(columns={"user": "userId"}),
        pl.DataFrame(PEOPLE),
        pl.LazyFrame(PEOPLE),
        pa.table(PEOPLE),
        {
            name: {"age": PEOPLE["age"][k], "city": PEOPLE["city"][k], "likes": PEOPLE["likes"][k]}
            for k, name in enumerate(PEOPLE["user"])
        },
    ],
    ids=["pandas", "index", "alias", "polars", "lazy", "arrow", "dict"],
)
def test_frames_and_dicts_mean_the_same(form):
    ids, rows = encode(form)
    unit, half = np.sqrt(1.5), np.sqrt(0.5)
    assert ids == PEOPLE["user"]
    np.testing.assert_allclose(
        rows,
        [
            [-unit, 1, 0, half, half, 0],
            [0, 0, 1, 0, 1, 0],
            [unit, 0, 0, 0, 0, 0],
            [0, 1, 0, half, 0, half],
        ],
        atol=1e-12,
    )


@pytest.mark.parametrize(
    "form",
    [
        NUMBERS,
        (range(3), NUMBERS),
        {k: row.tolist() for k, row in enumerate(NUMBERS)},
        pd.DataFrame(NUMBERS, index=pd.Index([0, 1, 2], dtype="int64").rename("id")).reset_index(),
    ],
    ids=["array", "pair", "dict", "frame"],
)
def test_matrices_are_standardised(form):
    ids, rows = encode(form, "item")
    assert list(ids) == [0, 1, 2]
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows.std(axis=0), 1.0)


def test_sparse_matrices_stay_as_they_are():
    matrix = sp.csc_matrix(np.array([[0.0, 2.0], [1.0, 0.0]]))
    ids, rows = encode(matrix)
    assert list(ids) == [0, 1]
    np.testing.assert_array_equal(rows, matrix.toarray())


def test_several_tables_are_blocks_of_one_encoding():
    parts = [{"ann": [1.0], "bob": [3.0]}, {"bob": "tall", "eve": "short"}]
    encoder = FeatureEncoder.learn(parts, "user")
    assert encoder.blocks == {"(numbers) 1": 1, "value 2": 2}
    ids, rows = encoder.encode(parts)
    assert ids == ["ann", "bob", "eve"]
    assert rows.toarray().tolist() == [[-1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_categories_booleans_lists_and_dates_are_understood():
    frame = pd.DataFrame(
        {
            "item": [1, 2, 3],
            "kind": pd.Categorical(["a", "b", "a"]),
            "new": [True, False, False],
            "tags": [["x", "y"], ["y"], []],
            "seen": pd.to_datetime(["2020-01-01", "2020-01-03", "2020-01-02"]),
        }
    )
    encoder = FeatureEncoder.learn(frame, "item")
    assert encoder.blocks == {"(numbers)": 2, "kind": 2, "tags": 2}
    assert encoder.of_numbers[0].columns == ("new", "seen")
    rows = encoder.encode(frame)[1].toarray()
    np.testing.assert_allclose(rows[:, 1], np.array([-1, 1, 0]) * np.sqrt(1.5))


def test_labels_of_other_kinds_go_by_their_names():
    encoder = FeatureEncoder.learn({1: PurePosixPath("a/b"), 2: PurePosixPath("c")}, "user")
    assert encoder.of_labels[0].levels == ("a/b", "c")


DAYS = [datetime.date(2020, 1, day) for day in (1, 3, 2)]
UTC = datetime.UTC
TEMPORAL = {
    "dict of dates": {k: {"seen": day} for k, day in enumerate(DAYS)},
    "dict of NumPy dates": {k: {"seen": np.datetime64(day)} for k, day in enumerate(DAYS)},
    "objects": pd.DataFrame({"user": range(3), "seen": DAYS}),
    "dates": pl.DataFrame({"user": range(3), "seen": DAYS}),
    "milliseconds": pl.DataFrame({"user": range(3), "seen": DAYS}).cast(
        {"seen": pl.Datetime("ms")}
    ),
    "time zone": pd.DataFrame({"user": range(3), "seen": pd.to_datetime(DAYS).tz_localize(UTC)}),
    "durations": pl.DataFrame({"user": range(3), "seen": [day - DAYS[0] for day in DAYS]}),
    "pandas durations": pd.DataFrame(
        {"user": range(3), "seen": pd.to_timedelta([0, 2, 1], unit="D")}
    ),
    "times of the day": pa.table(
        {"user": [0, 1, 2], "seen": [datetime.time(hour) for hour in (1, 3, 2)]}
    ),
}


@pytest.mark.parametrize("form", TEMPORAL)
def test_dates_times_and_durations_are_numbers_in_every_form(form):
    encoder = FeatureEncoder.learn(TEMPORAL[form], "user")
    assert encoder.blocks == {"(numbers)": 1}
    rows = encoder.encode(TEMPORAL[form])[1].toarray()
    np.testing.assert_allclose(rows[:, 0], np.array([-1, 1, 0]) * np.sqrt(1.5))


def test_dates_of_a_frame_and_of_a_dict_are_on_one_scale():
    encoder = FeatureEncoder.learn(TEMPORAL["time zone"], "user")
    later = {7: {"seen": datetime.datetime(2020, 1, 3, tzinfo=UTC)}, 8: {"seen": None}}
    np.testing.assert_allclose(encoder.encode(later)[1].toarray(), [[np.sqrt(1.5)], [0.0]])


def test_decimals_are_numbers():
    values = [Decimal(1), Decimal("nan"), Decimal(3)]
    _, rows = encode(pd.DataFrame({"user": [1, 2, 3], "price": values}))
    assert rows.ravel().tolist() == [-1.0, 0.0, 1.0]


def test_categories_are_labels_whatever_stands_for_them():
    frame = pd.DataFrame({"user": [1, 2, 3, 4], "job": pd.Categorical([20, 3, None, 20])})
    encoder = FeatureEncoder.learn(frame, "user")
    assert encoder.blocks == {"job": 2}
    assert encoder.of_labels[0].levels == ("20", "3")
    assert encoder.encode(frame)[1].toarray().tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]


def test_a_label_that_some_lack_tells_them_apart():
    assert encode({"ann": {"club": "gold"}, "bob": {"club": None}})[1].tolist() == [[1], [0]]


def test_labels_in_lists_are_the_same_whatever_holds_them():
    encoder = FeatureEncoder.learn({1: {"tags": [1, 2]}, 2: {"tags": [2, None, np.nan]}}, "user")
    assert encoder.blocks == {"tags": 2}
    rows = encoder.encode({3: {"tags": np.array([2])}})[1]
    assert rows.toarray().tolist() == [[0, 1]]


def test_columns_of_a_sparse_matrix_that_do_not_vary_become_zero():
    matrix = sp.csr_array(np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 0.0]]))
    _, rows = FeatureEncoder.learn(matrix, "user").encode(matrix)
    assert rows.toarray().tolist() == [[0, 0, 2], [0, 0, 0]]
    assert rows.nnz == 1


def test_numbers_of_any_size_are_standardised():
    _, rows = encode(np.array([[1e-300, 1e37], [-1e-300, -1e37]]))
    np.testing.assert_allclose(rows, [[1, 1], [-1, -1]])


def test_new_rows_are_encoded_as_the_old_ones_were():
    encoder = FeatureEncoder.learn(pd.DataFrame(PEOPLE), "user")
    new = pl.DataFrame({"user": ["kim"], "likes": ["techno|pop"], "city": ["Bonn"], "age": [30]})
    ids, rows = encoder.encode(new)
    assert ids == ["kim"]
    assert rows.toarray().tolist() == [[0, 0, 0, 0, 1, 0]]  # what was never seen says nothing


def test_missing_numbers_are_the_mean():
    _, rows = encode(np.array([[1.0], [np.nan], [3.0]]))
    assert rows.ravel().tolist() == [-1.0, 0.0, 1.0]


def test_columns_that_do_not_vary_become_zero():
    _, rows = encode(np.array([[7.0, 1.0, 0.0, 1e9], [7.0, 2.0, 0.0, 1e9]]))
    assert rows.tolist() == [[0, -1, 0, 0], [0, 1, 0, 0]]


REFUSED = {
    "every column is constant": np.ones((3, 2)),
    "every column is constant or empty": pd.DataFrame({"user": [1, 2], "city": ["Rome", "Rome"]}),
    "user 'ann' at row 2 has features already": pd.DataFrame(
        {"user": ["ann", "bob", "ann"], "age": [1, 2, 3]}
    ),
    "user 1 at row 1 holds an infinite number": np.array([[1.0], [np.inf]]),
    "user 1 at row 1 holds NaN": sp.csr_array(np.array([[1.0], [np.nan]])),
    "no column holds the ids of the users": pl.DataFrame({"age": [1, 2]}),
    "there are no rows": pd.DataFrame({"user": [], "age": []}),
    "rows have 1 to 2 values": {"ann": [1.0], "bob": [1.0, 2.0]},
    "a matrix must hold numbers": np.array([["a"], ["b"]]),
    "2 ids for 3 rows": (["ann", "bob"], NUMBERS),
    "found 3 dimensions": np.zeros((2, 2, 2)),
    "got int": 5,
    "user 1 at row 1 holds a number beyond": sp.csr_array(np.array([[1.0], [1e39]])),
    "constant or empty; leave the features out": sp.csr_array((3, 2)),
    "rows must all be sequences": {"ann": [1.0, 2.0], "bob": None},
    "give sparse rows as one matrix": {1: sp.csr_array([[1.0]]), 2: sp.csr_array([[2.0]])},
    "unique column names": pd.DataFrame(NUMBERS, columns=["a", "a"], index=["x", "y", "z"]),
    "cannot be called '\\(numbers\\)'": {1: {"(numbers)": "a"}, 2: {"(numbers)": "b"}},
    "some rows have names": {"ann": {"age": 3}, "bob": [4.0]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_meant_is_refused(message):
    with pytest.raises(DataError, match=message) as caught:
        FeatureEncoder.learn(REFUSED[message], "user")
    assert str(caught.value).startswith("user_features: ")


def test_features_of_another_shape_cannot_be_encoded():
    encoder = FeatureEncoder.learn(NUMBERS, "user")
    with pytest.raises(DataError, match="3 columns instead of the 2 of the fit"):
        encoder.encode(np.zeros((4, 3)))
    named = FeatureEncoder.learn(pd.DataFrame(PEOPLE), "user")
    with pytest.raises(DataError, match="no column 'age' of numbers"):
        named.encode(pd.DataFrame({"user": ["kim"], "city": ["Rome"], "likes": ["pop"]}))
    with pytest.raises(DataError, match="no column 'city' of labels"):
        named.encode(pd.DataFrame({"user": ["kim"], "age": [3], "likes": ["pop"]}))
    with pytest.raises(DataError, match="1 tables instead of 2"):
        FeatureEncoder.learn([NUMBERS, NUMBERS], "user").encode(NUMBERS)
