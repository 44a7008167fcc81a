from __future__ import annotations

import numpy as np
import pytest

from hemf.data.datasets import RatingColumns, read_csv, read_double_colon, read_tabs
from hemf.errors import DatasetError

HEADER = "userId,movieId,rating,timestamp\n"
FORMATS = {
    "tabs": (read_tabs, "\t", ""),
    "double-colon": (read_double_colon, "::", ""),
    "csv": (read_csv, ",", HEADER),
}


@pytest.fixture(params=list(FORMATS))
def written(request, tmp_path):
    """Give a function that writes rows in one of the formats and reads them back."""
    reader, separator, header = FORMATS[request.param]

    def write(rows: list[tuple[object, ...]], *, end: str = "\n", last: str = "\n"):
        text = header + end.join(separator.join(map(str, row)) for row in rows) + last
        path = tmp_path / "ratings"
        path.write_bytes(text.encode())
        return lambda: reader(path)

    write.first_line = 1 + header.count("\n")
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
        ((1, 2, 3), "3 fields where 4 are expected"),
        ((1, 2, 3, 4, 5), "5 fields where 4 are expected"),
        (("ann", 2, 3, 4), "the user is not a number"),
        ((1, "Heat", 3, 4), "the item is not a number"),
        ((1, 2, "good", 4), "the rating is not a number"),
        ((1, 2, "nan", 4), "the rating is not finite"),
        ((1, 2, "inf", 4), "the rating is not finite"),
        ((1, 2, "1e39", 4), "the rating is too large"),
        ((1, 2, "-1e400", 4), "the rating is not finite"),
        ((1, 2, "", 4), "the rating is not a number"),
        ((1, "", 3, 4), "the item is not a number"),
        ((1, 2, 3, "yesterday"), "the timestamp is not a number"),
        (("0x10", 2, 3, 4), "the user is not a number"),
        ((1, "0X1f", 3, 4), "the item is not a number"),
        ((1, 2, "0x10", 4), "the rating is not a number"),
        ((1, 2, 3, " 0x10"), "the timestamp is not a number"),
        (("1_0", 2, 3, 4), "the user is not a number"),
        ((1, 2, "1_0", 4), "the rating is not a number"),
        ((1, "١٢", 3, 4), "the item is not a number"),
        ((3_000_000_000, 2, 3, 4), "the user does not fit 32 bits"),
    ],
)
def test_a_malformed_line_is_named(written, bad, why):
    line = written.first_line + 2
    with pytest.raises(DatasetError, match=f"line {line}: {why}") as caught:
        written([*GOOD[:2], bad, GOOD[2]])()
    assert caught.value.row == line


def test_a_malformed_line_deep_in_the_file_is_named(written):
    rows = [(1, 2, 3, 4)] * 50_000
    rows[40_000] = (1, 2, "x", 4)
    with pytest.raises(DatasetError, match=f"line {written.first_line + 40_000}: "):
        written(rows)()


def test_something_between_the_colons_is_malformed(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("1::2::3::4\n1:x:2::3::4\n")
    with pytest.raises(DatasetError, match="line 2: "):
        read_double_colon(path)


def test_columns_of_a_csv_are_found_by_name(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("timestamp,rating,note,movieId,userId\n4,3.5,fine,2,1\n")
    assert [column.tolist() for column in read_csv(path)] == [[1], [2], [3.5], [4]]
    path.write_text("timestamp,rating,note,movieId,userId\n4,3.5,fine,2,\n")
    with pytest.raises(DatasetError, match="line 2: the user is not a number"):
        read_csv(path)


def test_a_missing_column_of_a_csv_is_named(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,timestamp\n1,2,4\n")
    with pytest.raises(DatasetError, match="line 1: no column rating"):
        read_csv(path)


def test_no_rows_are_an_error(written):
    with pytest.raises(DatasetError):
        written([], last="")()


@pytest.mark.parametrize("reader", [read_tabs, read_double_colon, read_csv])
def test_a_folder_or_a_missing_file_is_an_error(reader, tmp_path):
    with pytest.raises(DatasetError, match="is a folder"):
        reader(tmp_path)
    with pytest.raises(DatasetError, match="cannot be read"):
        reader(tmp_path / "nothing")


def test_binary_rubbish_is_an_error(tmp_path):
    path = tmp_path / "u.data"
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(DatasetError):
        read_tabs(path)
