from __future__ import annotations

import numpy as np
import pytest

from hemf.data.datasets import RatingColumns, read_movielens
from hemf.errors import DatasetError

HEADER = "userId,movieId,rating,timestamp\n"
FORMATS = {"u.data": ("\t", ""), "ratings.dat": ("::", ""), "ratings.csv": (",", HEADER)}


@pytest.fixture(params=list(FORMATS))
def written(request, tmp_path):
    """Give a function that writes rows in one of the formats and reads them back."""
    separator, header = FORMATS[request.param]

    def write(rows: list[tuple[object, ...]], *, end: str = "\n", last: str = "\n"):
        text = header + end.join(separator.join(map(str, row)) for row in rows) + last
        path = tmp_path / request.param
        path.write_bytes(text.encode())
        return lambda: read_movielens(path)

    return write


GOOD = [(1, 1193, 5, 978300760), (2, 2_000_000_000, 0.5, 1), (1, 7, 3.5, 4_102_444_800)]


def test_rows_come_back_in_order_and_compact_types(written):
    columns = written(GOOD)()
    assert isinstance(columns, RatingColumns)
    assert [column.dtype for column in columns] == [np.int32, np.int32, np.float32, np.int64]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == GOOD


@pytest.mark.parametrize(("end", "last"), [("\r\n", "\r\n"), ("\n", ""), ("\n\n", "\n\n")])
def test_line_ends_do_not_matter(written, end, last):
    np.testing.assert_array_equal(written(GOOD, end=end, last=last)().users, [1, 2, 1])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((1, 2, 3), "row 2 has 3 fields instead of 4"),
        ((1, 2, 3, 4, 5), "row 2 has 5 fields instead of 4"),
        (("ann", 2, 3, 4), "user 'ann' at row 2 is not an integer"),
        ((1, "Heat", 3, 4), "item 'Heat' at row 2 is not an integer"),
        ((1, 2, "good", 4), "rating 'good' at row 2 is not a number"),
        ((1, 2, "nan", 4), "rating nan at row 2 is not finite|rating at row 2 is missing"),
        ((1, 2, "inf", 4), "rating inf at row 2 is not finite"),
        ((1, 2, "1e39", 4), r"rating 1e\+39 at row 2 is too large"),
        ((1, 2, "-1e400", 4), "rating -inf at row 2 is not finite"),
        ((1, 2, "", 4), "rating at row 2 is missing"),
        ((1, "", 3, 4), "item at row 2 is missing"),
        ((1, 2, 3, "yesterday"), "timestamp 'yesterday' at row 2 is not"),
        (("0x10", 2, 3, 4), "user '0x10' at row 2 is not an integer"),
        ((1, "0X1f", 3, 4), "item '0X1f' at row 2 is not an integer"),
        ((1, 2, "0x10", 4), "rating '0x10' at row 2 is not a number"),
        ((1, 2, 3, " 0x10"), "timestamp ' 0x10' at row 2 is not"),
        (("1_0", 2, 3, 4), "user '1_0' at row 2 is not an integer"),
        ((1, 2, "1_0", 4), "rating '1_0' at row 2 is not a number"),
        ((1, "١٢", 3, 4), "item '١٢' at row 2 is not an integer"),
        ((3_000_000_000, 2, 3, 4), "user 3000000000 at row 2 is not an integer of 32 bits"),
    ],
)
def test_a_malformed_row_is_named(written, bad, why):
    with pytest.raises(DatasetError, match=why) as caught:
        written([*GOOD[:2], bad, GOOD[2]])()
    assert caught.value.row == 2


def test_a_malformed_row_deep_in_the_file_is_named(written):
    rows = [(1, 2, 3, 4)] * 50_000
    rows[40_000] = (1, 2, "x", 4)
    with pytest.raises(DatasetError, match="rating 'x' at row 40000 "):
        written(rows)()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ratings.dat", "1::2::3::4\n1:x:2::3::4\n", "row 1 "),
        ("ratings.csv", "userId,movieId,timestamp\n1,2,4\n", "no column for rating"),
    ],
    ids=["something between the colons", "a missing column of a csv"],
)
def test_what_is_malformed_is_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DatasetError, match=message):
        read_movielens(path)


def test_columns_of_a_csv_are_found_by_name(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("timestamp,rating,note,movieId,userId\n4,3.5,fine,2,1\n")
    assert [column.tolist() for column in read_movielens(path)] == [[1], [2], [3.5], [4]]
    path.write_text("timestamp,rating,note,movieId,userId\n4,3.5,fine,2,\n")
    with pytest.raises(DatasetError, match="user at row 0 is missing"):
        read_movielens(path)


def test_no_rows_are_an_error(written):
    with pytest.raises(DatasetError):
        written([], last="")()


def test_a_folder_or_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match="is a directory"):
        read_movielens(tmp_path)
    with pytest.raises(DatasetError, match="no such file"):
        read_movielens(tmp_path / "nothing")


def test_binary_rubbish_is_an_error(tmp_path):
    path = tmp_path / "u.data"
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(DatasetError):
        read_movielens(path)
