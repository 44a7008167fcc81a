from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hemf.data.sources import parse_ratings, parse_timestamps
from hemf.errors import DataError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "column",
    [
        [1, 2.5, 0],
        [1, "2.5", Decimal(0)],
        ["1", "2.5", "0"],
        np.array([1, 2.5, 0]),
        np.array([1, 2.5, 0], dtype=">f4"),
        np.array(["1", "2.5", "0"]),
        np.array([1, 2.5, 0], dtype=object),
        pd.Series([1, 2.5, 0]),
        pd.Series([1, 2.5, 0], dtype="Float64"),
        pl.Series([1.0, 2.5, 0.0]),
        pa.chunked_array([[1, 2.5], [0.0]]),
        pa.array([1, 2.5, 0]).dictionary_encode(),
        pa.array([Decimal("1.0"), Decimal("2.5"), Decimal("0.0")]),
    ],
    ids=lambda column: f"{type(column).__module__}.{type(column).__name__}",
)
def test_numbers_of_any_origin_become_float32(column):
    ratings = parse_ratings(column)
    assert ratings.dtype == np.float32
    assert ratings.tolist() == [1, 2.5, 0]


def test_whole_numbers_and_truth_values_are_ratings():
    assert parse_ratings(np.array([1, -7], dtype=np.int8)).tolist() == [1, -7]
    assert parse_ratings([True, False]).tolist() == [1, 0]
    assert parse_ratings(pa.array([True, False])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (NAN, "nan at row 2 is not finite"),
        (INF, "inf at row 2 is not finite"),
        (-INF, "-inf at row 2 is not finite"),
        (None, "at row 2 is missing"),
        ("good", "'good' at row 2 is not a number"),
        ("1_0", "'1_0' at row 2 is not a number"),
        ("0x10", "'0x10' at row 2 is not a number"),
        ("١٢", "'١٢' at row 2 is not a number"),
        ("１２", "'１２' at row 2 is not a number"),
        (b"1_0", "b'1_0' at row 2 is not a number"),
        ("\ud800", "at row 2 is not a number"),
        ("", "'' at row 2 is not a number"),
        (1e39, "1e\\+39 at row 2 is too large"),
        (10**400, "at row 2 is too large"),
        (1j, "1j at row 2 is not a number"),
        (pd.NA, "at row 2 is missing"),
        (pd.NaT, "at row 2 is missing"),
    ],
)
@pytest.mark.parametrize("before", [2, 200])
def test_a_rating_that_is_no_finite_number_is_an_error_that_names_its_row(bad, reason, before):
    with pytest.raises(DataError, match=reason.replace("row 2", f"row {before}")) as caught:
        parse_ratings([3] * before + [bad, 4, bad])
    assert caught.value.row == before


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, NAN]),
        np.array([1, -INF], dtype=np.float32),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        pd.Series([1, None]),
        pd.Series([1, None], dtype="Int64"),
        pd.Series(["1", "x"]),
        pl.Series([1, None]),
        pl.Series([1.0, NAN]),
        pa.array(["1", "x"]),
        pa.array([None, None, 3])[1:],
    ],
    ids=str,
)
def test_bad_ratings_are_found_in_every_kind_of_column(column):
    with pytest.raises(DataError, match=r"rating .*at row [01] is ") as caught:
        parse_ratings(column)
    assert caught.value.row == (0 if isinstance(column, pa.Int64Array) else 1)


def test_dates_are_no_ratings():
    for column in (pd.Series(pd.to_datetime(["2020-01-01"])), [datetime.date(2020, 1, 1)]):
        with pytest.raises(DataError, match="is not a number"):
            parse_ratings(column)


DAY = datetime.datetime(1970, 1, 2)


@pytest.mark.parametrize(
    "column",
    [
        [86400],
        [86400.75],
        ["86400"],
        [DAY],
        [DAY.date()],
        [DAY.replace(tzinfo=datetime.UTC)],
        ["1970-01-02"],
        ["1970-01-02T00:00:00.25"],
        ["1970-01-02 00:00:00Z"],
        np.array([86400], dtype=np.int32),
        np.array(["1970-01-02"], dtype="datetime64[ns]"),
        pd.Series([DAY]),
        pd.Series([pd.Timestamp("1970-01-02 00:00:00.123456789")]),
        pl.Series([DAY.date()]),
        pa.array([DAY]).dictionary_encode(),
    ],
    ids=str,
)
def test_times_become_whole_seconds(column):
    times = parse_timestamps(column)
    assert times.dtype == np.int64
    assert times.tolist() == [86400]


def test_large_whole_numbers_keep_every_digit():
    assert parse_timestamps([2**62 + 1]).tolist() == [2**62 + 1]
    assert parse_timestamps(np.array([2**62 + 1] * 100)).tolist() == [2**62 + 1] * 100


@pytest.mark.parametrize(
    "column",
    [
        [1, None],
        [1, NAN],
        [1, INF],
        [1, 2**63],
        [1, "yesterday"],
        ["2020-01-01", "yesterday"],
        [DAY, None],
        pl.Series([DAY, None]),
        pa.array([1, 2**63], pa.uint64()),
        pa.array(["1", None]),
        pa.array(["2020-01-01", None]),
    ],
    ids=str,
)
def test_what_is_no_time_is_an_error(column):
    with pytest.raises(DataError, match="timestamp"):
        parse_timestamps(column)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["1000", "soon"], "timestamp 'soon' at row 1 is not a number"),
        (["2020-01-01", "soon"], "timestamp 'soon' at row 1 is not a time"),
        (["soon", "1000"], "timestamp 'soon' at row 0 is not a time"),
    ],
)
def test_the_time_that_is_wrong_is_named(column, message):
    with pytest.raises(DataError, match=message):
        parse_timestamps(pa.array(column))
