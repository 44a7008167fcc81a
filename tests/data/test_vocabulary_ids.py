from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hemf.data.vocabulary import CodedIds, factorise
from hemf.errors import DataError

LONG = 100  # long enough to go through Arrow rather than a dict


def listed(coded: CodedIds) -> list[object]:
    return coded.decode().tolist()


@pytest.mark.parametrize(
    "column",
    [
        ["b", "a", "b"],
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], dtype=object),
        pd.Series(["b", "a", "b"]),
        pd.Series(["b", "a", "b"], dtype=object),
        pd.Series(["b", "a", "b"], dtype="category"),
        pd.Index(["b", "a", "b"]),
        pl.Series(["b", "a", "b"]),
        pl.Series(["b", "a", "b"], dtype=pl.Categorical),
        pa.array(["b", "a", "b"]),
        pa.array(["b", "a", "b"], pa.large_string()),
        pa.array(["b", "a", "b"]).cast(pa.string_view()),
        pa.chunked_array([["b"], [], ["a", "b"]]),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        iter(["b", "a", "b"]),
    ],
    ids=lambda column: f"{type(column).__module__}.{type(column).__name__}",
)
def test_text_of_any_origin_has_its_ids_in_order_of_first_appearance(column):
    coded = factorise(column)
    assert coded.codes.dtype == np.int32
    assert coded.codes.tolist() == [0, 1, 0]
    assert coded.decode().dtype == object
    assert listed(coded) == ["b", "a", "b"]


def test_a_long_list_of_text_stays_arrow_text():
    coded = factorise(["b", "a", "b"] * LONG)
    assert coded.distinct.type == pa.large_string()
    assert listed(coded) == ["b", "a", "b"] * LONG


@pytest.mark.parametrize("kind", ["i1", "u2", "i4", "i8", "u8", ">i4", "f2", "f4", "f8"])
@pytest.mark.parametrize("length", [3, LONG])
def test_whole_numbers_of_any_width_become_int64(kind, length):
    coded = factorise(np.resize([7, 3, 7], length).astype(kind))
    assert coded.distinct.dtype == np.int64
    assert coded.distinct.tolist() == [7, 3]


@pytest.mark.parametrize("repeats", [1, LONG])
def test_broken_numbers_stay_floats_and_negative_zero_is_zero(repeats):
    assert listed(factorise([1.5, 2.0] * repeats)) == [1.5, 2.0] * repeats
    assert factorise(np.array([0.0, -0.0] * repeats)).distinct.tolist() == [0]


@pytest.mark.parametrize(
    "ids",
    [
        [1, "1", (2, 3), b"1", frozenset([4]), 2.5],
        [2**70, 2**63, -(2**63), 5],
        ["naïve", "日本", "🙂", "", " ", "\ud800"],
        [True, False],
        [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 12)],
        list(np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[ns]")),
        [10**9 + 7, 10**18, -5],
    ],
)
@pytest.mark.parametrize("times", [1, LONG])
def test_any_hashable_is_an_id(ids, times):
    coded = factorise(ids * times)
    assert listed(coded) == ids * times
    assert len(coded.distinct) == len(ids)


@pytest.mark.parametrize("times", [1, LONG])
def test_equal_ids_of_different_types_are_one(times):
    ids = [5, np.int32(5), 5.0, np.float32(5), "a", np.str_("a")]
    assert factorise(ids * times).codes.tolist() == [0, 0, 0, 0, 1, 1] * times


def test_a_dictionary_may_hold_unused_repeated_and_unordered_entries():
    indices = pa.array([3, 1, 0, 3], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "unused", "a"]))
    coded = factorise(column)
    assert listed(coded) == ["a", "b", "a", "a"]
    assert coded.distinct.to_pylist() == ["a", "b"]


def test_dictionaries_that_differ_between_chunks_are_one():
    chunks = [pa.array(["b", "a"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    assert listed(factorise(pa.chunked_array(chunks))) == ["b", "a", "c", "a"]


def test_arrow_dates_bytes_and_truth_values_are_ids():
    for ids in (
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
        [b"b", b"a"],
        [True, False],
    ):
        assert listed(factorise(pa.array(ids * LONG))) == ids * LONG


def test_no_ids_are_fine():
    for nothing in ([], np.array([]), pa.array([]), pa.array([], pa.string()), pl.Series([])):
        assert len(factorise(nothing)) == 0


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b", None, "c", None],
        [1, 2, None, 3, None],
        [1, "a", float("nan"), 2, None],
        np.array([1.0, 2.0, np.nan, np.nan]),
        np.array(["2020-01-01", "2020-01-02", "NaT"], dtype="datetime64[D]"),
        pd.Series(["a", "b", None]),
        pd.Series([1, 2, None]),
        pd.Series([1, "a", pd.NA], dtype=object),
        pd.Series(["a", "b", None], dtype="category"),
        pl.Series(["a", "b", None]),
        pa.array([1, 2, None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([1, 1, 0], pa.array([None, "a"])),
        pa.DictionaryArray.from_arrays([1, 1, 0], pa.array([float("nan"), 2.0])),
        np.ma.array([1, 2, 3], mask=[0, 0, 1]),
    ],
    ids=str,
)
def test_a_missing_id_is_an_error_that_names_its_row(column):
    with pytest.raises(DataError, match=r"user .* at row 2 is missing") as caught:
        factorise(column, "user")
    assert caught.value.row == 2
    if isinstance(column, list):
        with pytest.raises(DataError, match=f"at row {LONG + 2} is missing"):
            factorise([column[0]] * LONG + column)


def test_an_id_that_cannot_be_hashed_is_an_error_that_names_its_row():
    with pytest.raises(DataError, match=r"\[1\] at row 1 is not hashable") as caught:
        factorise(["a", [1]])
    assert caught.value.value == [1]


@pytest.mark.parametrize("single", ["ann", b"ann", 5, None])
def test_a_single_value_is_not_a_column(single):
    with pytest.raises(DataError, match="expected an array or a list"):
        factorise(single)


def test_a_table_is_not_a_column():
    with pytest.raises(DataError, match=r"expected one dimension, got shape \(2, 2\)"):
        factorise(np.zeros((2, 2)))


@pytest.mark.parametrize("far", [1, 10_000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_whole_numbers_are_coded_in_order_of_appearance_close_together_or_not(far, dtype):
    ids = np.random.default_rng(0).integers(100, size=1000).astype(dtype) * dtype(far)
    index = {}
    codes = [index.setdefault(number, len(index)) for number in ids.tolist()]
    coded = factorise(ids)
    assert coded.codes.tolist() == codes
    assert coded.codes.dtype == np.int32
    assert coded.distinct.tolist() == list(index)
    assert coded.distinct.dtype == np.int64


def test_what_is_masked_is_missing_however_many_ids_there_are():
    for n in (5, 100, 1000):
        masked = np.ma.array(np.arange(n) % 7, mask=np.arange(n) == 3)
        with pytest.raises(DataError, match="at row 3 is missing"):
            factorise(masked, "user")


def test_times_that_differ_by_nanoseconds_are_not_taken_for_one_id():
    with pytest.raises(DataError, match="at row 1 has nanoseconds"):
        factorise(pa.array([1000, 2001], pa.time64("ns")))
    assert len(factorise(pa.array([1000, 2000], pa.time64("ns"))).distinct) == 2
