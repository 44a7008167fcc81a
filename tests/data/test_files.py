from __future__ import annotations

import bz2
import gzip
import io
import os
from itertools import product

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hemf.data.features import read_feature_file
from hemf.data.files import ScannedStream, Scanner
from hemf.data.sources import read_columns
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError

ROWS = [(7, 31, 2.5, 100), (7, 9, 4.0, 50), (8, 31, 1.0, 75)]


def text(separator, header=None):
    lines = [] if header is None else [separator.join(header)]
    return "\n".join(lines + [separator.join(map(str, row)) for row in ROWS]) + "\n"


def rows_of(path, **options):
    read = read_columns(path, **options)
    columns = [read.users.decode(), read.items.decode(), read.ratings, read.timestamps]
    return list(zip(*(column.tolist() for column in columns if column is not None), strict=True))


NAMES = ("userId", "movieId", "rating", "timestamp")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.csv", text(",", NAMES)),
        ("ratings.CSV", text(",", NAMES)),
        ("plain.csv", text(",")),
        ("european.csv", text(";", NAMES)),
        ("ratings.tsv", text("\t", NAMES)),
        ("plain.tsv", text("\t")),
        ("ratings.dat", text("::")),
        ("named.dat", text("::", NAMES)),
        ("u.data", text("\t")),
        ("u1.base", text("\t")),
        ("spaces.txt", text(" ")),
        ("bars.txt", text("|", NAMES)),
        ("quoted.csv", text(",", ['"userId"', '"movieId"', '"rating"', '"timestamp"'])),
        ("old-mac.csv", text(",", NAMES).replace("\n", "\r")),
        ("old-mac.dat", text("::").replace("\n", "\r")),
        ("blank-old-mac.csv", "\r\r" + text(",").replace("\n", "\r")),
        ("windows.csv", text(",", NAMES).replace("\n", "\r\n")),
        ("no-end.csv", text(",", NAMES).rstrip()),
        ("blank-lines.csv", "\n \n" + text(",", NAMES) + "\n\n"),
        ("mark.csv", "\ufeff" + text(",", NAMES)),
        ("mark-plain.csv", "\ufeff" + text(",")),
        ("spaced.csv", text(", ", NAMES)),
    ],
)
def test_text_files_of_every_shape_hold_the_same_ratings(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert rows_of(path) == ROWS
    assert rows_of(str(path)) == ROWS


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
@pytest.mark.parametrize(("name", "separator"), [("r.csv", ","), ("r.dat", "::")])
def test_compressed_text_is_read_too(tmp_path, suffix, pack, name, separator):
    path = tmp_path / (name + suffix)
    path.write_bytes(pack(text(separator).encode()))
    assert rows_of(path) == ROWS


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.string(), pa.large_string()])
@pytest.mark.parametrize("name", ["r.parquet", "r.pq", "a=1.parquet"])
def test_parquet_keeps_the_type_of_ids(tmp_path, kind, name):
    users = pa.array([row[0] for row in ROWS]).cast(kind)
    items = pa.array([row[1] for row in ROWS]).cast(kind)
    ratings = pa.array([row[2] for row in ROWS], pa.float32())
    table = pa.table({"extra": ratings, "movieId": items, "rating": ratings, "userId": users})
    pq.write_table(table, tmp_path / name, row_group_size=2)
    expected = list(zip(users.to_pylist(), items.to_pylist(), ratings.to_pylist(), strict=True))
    assert rows_of(tmp_path / name) == expected


def test_parquet_with_text_or_coded_ratings_is_read(tmp_path):
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "x"], "rating": ["3", "4"]})
    frame = frame.with_columns(pl.col("user").cast(pl.Categorical))
    frame.write_parquet(tmp_path / "r.parquet")
    assert rows_of(tmp_path / "r.parquet") == [("a", "x", 3), ("b", "x", 4)]


@pytest.mark.parametrize("ids", [[[1], [2]], [{"a": 1}, {"a": 2}]])
def test_nested_columns_of_parquet_are_no_ids(tmp_path, ids):
    table = pa.table({"user": ids, "item": ["a", "b"], "rating": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(DataError, match=r"user .* at row 0 is not hashable"):
        read_columns(tmp_path / "r.parquet")


def test_parquet_columns_of_one_name_are_told_apart_by_position(tmp_path):
    columns = [pa.array(["a", "b"]), pa.array([1.0, 2.0]), pa.array(["x", "y"])]
    table = pa.Table.from_arrays(columns, names=["id", "rating", "id"])
    pq.write_table(table, tmp_path / "r.parquet")
    assert rows_of(tmp_path / "r.parquet", columns=(0, 2, 1)) == [("a", "x", 1), ("b", "y", 2)]
    assert rows_of(tmp_path / "r.parquet", columns=(2, 0, 1)) == [("x", "a", 1), ("y", "b", 2)]
    with pytest.raises(DataError, match="2 columns are called 'id'"):
        read_columns(tmp_path / "r.parquet", columns=("id", "id", "rating"))


def test_ids_that_only_look_like_numbers_stay_text(tmp_path):
    path = tmp_path / "r.csv"
    ids = ["007", "7", "1e5", "2020-01-01", "true", "+3", "12345678901234567890", "-0", "NaN"]
    path.write_text("user,item,rating\n" + "".join(f"{id},{id},1\n" for id in ids))
    assert [row[0] for row in rows_of(path)] == ids


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1", "-2", "0", "999999999999999999"], [1, -2, 0, 999999999999999999]),
        (["1234567890123456789", "7"], [1234567890123456789, 7]),
        ([str(2**63 - 1), str(-(2**63))], [2**63 - 1, -(2**63)]),
        ([str(2**63), "7"], [str(2**63), "7"]),
        ([str(-(2**63) - 1), "7"], [str(-(2**63) - 1), "7"]),
        (["1", "2", "x"], ["1", "2", "x"]),
        (["日本", "a b", "naïve"], ["日本", "a b", "naïve"]),
    ],
)
def test_a_text_column_of_integers_is_integers_any_other_is_text(tmp_path, ids, expected):
    path = tmp_path / "r.tsv"
    path.write_text("".join(f"{id}\tx\t1\n" for id in ids), encoding="utf-8")
    assert [row[0] for row in rows_of(path)] == expected


def test_blanks_after_a_separator_are_no_part_of_an_id(tmp_path):
    (tmp_path / "r.csv").write_text("user, item, rating\na, x, 1\nb,x, 2\n c, a b, 3\n")
    assert rows_of(tmp_path / "r.csv") == [("a", "x", 1), ("b", "x", 2), ("c", "a b", 3)]


def test_blanks_are_kept_where_the_known_id_has_them(tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating\na, x,1\na, y,2\n")
    read = read_columns(tmp_path / "r.csv", items=Vocabulary([" x", "y"]))
    assert read.items.decode().tolist() == [" x", "y"]


def test_a_long_file_with_bare_carriage_returns_is_read_whole(tmp_path):
    lines = [f"user-{number % 999},{number},3.5" for number in range(100_000)]
    (tmp_path / "r.csv").write_bytes("\r".join(["user,item,rating", *lines]).encode())
    assert (tmp_path / "r.csv").stat().st_size > 2**20  # more than Arrow reads at once
    assert len(read_columns(tmp_path / "r.csv").items.distinct) == 100_000


def test_quotes_protect_separators_but_not_in_movielens_files(tmp_path):
    (tmp_path / "r.csv").write_text('user,item,rating\n"Doe, Jane","say ""hi""",3\n')
    assert rows_of(tmp_path / "r.csv") == [("Doe, Jane", 'say "hi"', 3)]
    (tmp_path / "r.dat").write_text('ann::"Alien" (1979)::3\nbob::C: the movie, 2::4\n')
    assert rows_of(tmp_path / "r.dat") == [
        ("ann", '"Alien" (1979)', 3),
        ("bob", "C: the movie, 2", 4),
    ]


def test_columns_of_a_file_can_be_chosen(tmp_path):
    (tmp_path / "r.csv").write_text("latency,client,service\n0.5,ann,mail\n")
    chosen = ("client", "service", "latency")
    assert rows_of(tmp_path / "r.csv", columns=chosen) == [("ann", "mail", 0.5)]
    assert rows_of(tmp_path / "r.csv", columns=(1, 2, 0)) == [("ann", "mail", 0.5)]
    (tmp_path / "plain.csv").write_text("0.5,ann,mail,x,y,z\n")
    assert rows_of(tmp_path / "plain.csv", columns=(1, 2, 0)) == [("ann", "mail", 0.5)]


def test_pairs_need_no_rating(tmp_path):
    (tmp_path / "named.csv").write_text("item,user\nx,ann\n")
    assert rows_of(tmp_path / "named.csv", rated=False) == [("ann", "x")]
    (tmp_path / "numbers.csv").write_text("1,2\n3,4\n")
    assert rows_of(tmp_path / "numbers.csv", rated=False) == [(1, 2), (3, 4)]
    (tmp_path / "plain.csv").write_text("ann,x\nbob,y\n")
    assert rows_of(tmp_path / "plain.csv", columns=(0, 1), rated=False) == [
        ("ann", "x"),
        ("bob", "y"),
    ]


@pytest.mark.parametrize(
    ("content", "message", "row"),
    [
        ("user,item,rating\n1,2,3\n1,3,x\n", "rating 'x' at row 1 is not a number", 1),
        ("user,item,rating\n1,2,3\n1,3,\n", "rating at row 1 is missing", 1),
        ("user,item,rating\n1,2,3\n1,3,inf\n", "rating inf at row 1 is not finite", 1),
        ("user,item,rating\n1,2,3\n1,3,1e99\n", "rating 1e\\+99 at row 1 is too large", 1),
        ("user,item,rating\n1,2,3\n,3,3\n", "user at row 1 is missing", 1),
        ("user,item,rating\n1,2,3\n1, ,3\n", "item at row 1 is missing", 1),
        ("user,item,rating\n1,2,3\n1,2\n", "row 1 has 2 fields instead of 3: '1,2'", 1),
        ("1,2,3\n\n1,2,3,4\n", "row 1 has 4 fields instead of 3", 1),
        ("\n\nuser,item,rating\n1,2,3\n1,2\n", "row 1 has 2 fields instead of 3: '1,2'", 1),
        ("user,item,rating\n", "there are no rows", None),
        ("user,item,rating", "there are no rows", None),
        ("", "is empty", None),
        ("\n\n", "is empty", None),
        ("who,what,much\n1,2,3\n", "no column for user, item, rating; found the columns who", None),
        ("justonecolumn\n1\n", "found the columns justonecolumn", None),
    ],
)
def test_bad_text_is_an_error_that_says_where(tmp_path, content, message, row):
    path = tmp_path / "r.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_columns(path)
    assert caught.value.row == row


NO_NUMBERS = ["0x10", "0X1f", " 0x10", "1_0", "١٢", "１２", "0b11", "0o17"]


@pytest.mark.parametrize(
    ("number", "row"),
    [*product(NO_NUMBERS, [0, 2]), ("0x10", 200_000), ("1_0", 200_000), ("１２", 200_000)],
)
@pytest.mark.parametrize("role", ["rating", "timestamp"])
def test_only_decimal_numbers_are_numbers(tmp_path, number, role, row):
    path = tmp_path / "r.csv"
    rows = [[f"u{k % 7}", f"i{k}", "3", "12"] for k in range(max(3, row + 1))]
    rows[row][["user", "item", "rating", "timestamp"].index(role)] = number
    path.write_text("user,item,rating,timestamp\n" + "\n".join(map(",".join, rows)) + "\n")
    with pytest.raises(DataError, match=f"{role} '{number}' at row {row} is not a ") as caught:
        read_columns(path)
    assert caught.value.row == row


@pytest.mark.parametrize("separator", ["::", "\t", ";"])
@pytest.mark.parametrize("columns", [None, (0, 1, 2)])
def test_a_hexadecimal_number_in_the_first_line_is_not_taken_for_a_name(
    tmp_path, separator, columns
):
    path = tmp_path / ("r.dat" if separator == "::" else "r.txt")
    rows = (("a", "b", "0x10"), ("b", "c", "3"), ("c", "d", "4"))
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="rating '0x10' at row 0 is not a number"):
        read_columns(path, columns=columns)


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
def test_a_hexadecimal_number_is_seen_wherever_blocks_end(block):
    stream = io.BytesIO(b"u,i,3\nv,i,0X10\n")
    scanner = Scanner(",", 3)
    watched = ScannedStream(stream, ",", scanner)
    while watched.read(block):
        pass
    assert scanner.hexadecimal


def test_ids_that_look_hexadecimal_leave_the_numbers_beside_them_alone(tmp_path):
    path = tmp_path / "wallets.csv"
    path.write_text("user,item,rating,timestamp\n0x10,0xFF,1e3,9007199254740993\n16,7,4,-5\n")
    assert rows_of(path) == [("0x10", "0xFF", 1e3, 9007199254740993), ("16", "7", 4.0, -5)]


def test_a_hexadecimal_number_makes_a_column_of_features_one_of_labels(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("user,flags,age\na,16,31\nb,0x10,32\nc,7,33\n")
    table = read_feature_file(path, "user")
    assert table.names == ("age",)
    assert table.labels == {"flags": ["16", "0x10", "7"]}


def test_what_cannot_be_read_is_an_error_with_its_name(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "r.xlsx").write_bytes(b"x")
    (tmp_path / "r.parquet.gz").write_bytes(b"x")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"1,2,3\n" * 9999)[:20])
    (tmp_path / "latin.csv").write_bytes("user,item,rating\nJos\u00e9,x,3\n".encode("latin-1"))
    (tmp_path / "wide.csv").write_bytes("user,item,rating\na,x,3\n".encode("utf-16"))
    (tmp_path / "none").write_text("1,2,3\n")
    for name, message in {
        "folder.csv": "is a directory",
        ".": "is a directory",
        "missing.csv": "no such file",
        "r.xlsx": "cannot tell what kind of file this is",
        "r.parquet.gz": "cannot tell what kind of file this is",
        "none": "cannot tell what kind of file this is",
        "torn.parquet": "cannot be read",
        "empty.parquet": "cannot be read",
        "torn.csv.gz": "cannot be read",
        "latin.csv": "is not UTF-8 text .* save it as UTF-8",
        "wide.csv": "is not UTF-8 text .* save it as UTF-8",
    }.items():
        with pytest.raises(DataError, match=f"(?s){message}") as caught:
            read_columns(tmp_path / name)
        assert name in str(caught.value) or name == "."


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error(tmp_path):
    for name in ("r.csv", "r.parquet"):
        path = tmp_path / name
        path.write_text("1,2,3\n")
        path.chmod(0)
        with pytest.raises(DataError, match="cannot be read"):
            read_columns(path)


def test_parquet_without_rows_or_columns_is_an_error(tmp_path):
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"user": pa.array([], pa.string()), "item": [], "rating": []}), path)
    with pytest.raises(DataError, match="there are no rows"):
        read_columns(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DataError, match=r"found the columns a$"):
        read_columns(path)


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "r.csv").write_text(text(","))
    assert rows_of("~/r.csv") == ROWS


def damaged_text():
    """Text of two values, the second of which is not UTF-8."""
    ends, letters = np.array([0, 1, 3], np.int32), b"a\xff\xfe"
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(letters)]
    )


@pytest.mark.parametrize("column", ["user", "item", "rating", "timestamp"])
def test_text_of_parquet_that_is_not_utf8_is_an_error(tmp_path, column):
    table = {"user": ["a", "b"], "item": ["x", "y"], "rating": [1.0, 2.0], "timestamp": [1, 2]}
    table = pa.table({**table, column: damaged_text()})
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(DataError, match=f"column '{column}' is not UTF-8 text"):
        read_columns(tmp_path / "r.parquet")
    with pytest.raises(DataError, match=f"{column}: the text is damaged or not UTF-8"):
        read_columns(table)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.date32(), pa.duration("s")])
@pytest.mark.parametrize("column", ["user", "rating", "timestamp"])
def test_dates_that_python_does_not_have_are_an_error_or_times(tmp_path, kind, column):
    is_date = pa.types.is_date32(kind)
    far = pa.array([2**31 - 1 if is_date else 2**61, 5], pa.int32() if is_date else pa.int64())
    table = {"user": ["a", "b"], "item": ["x", "y"], "rating": [1.0, 2.0], "timestamp": [1, 2]}
    pq.write_table(pa.table({**table, column: far.cast(kind)}), tmp_path / "r.parquet")
    if column == "timestamp" and not pa.types.is_duration(kind):
        assert len(read_columns(tmp_path / "r.parquet").timestamps) == 2
        return
    with pytest.raises(DataError, match=f"{column} .* at row 0"):
        read_columns(tmp_path / "r.parquet")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_errors_do_not_quote_megabytes(tmp_path, place):
    row = ["ann", "tea", "3"]
    row[place] += ",x" if place < 2 else "x" * 3_000_000
    row[0] += "y" * 3_000_000
    (tmp_path / "r.csv").write_text("user,item,rating\n" + ",".join(row) + "\n")
    with pytest.raises(DataError, match="row 0") as caught:
        read_columns(tmp_path / "r.csv")
    assert len(str(caught.value)) <= 1000


def test_a_name_that_is_too_long_is_a_data_error():
    with pytest.raises(DataError, match="File name too long"):
        read_columns("x" * 300 + ".csv")


@pytest.mark.parametrize(("name", "row"), [("r.csv", ","), ("r.csv", '"",'), ("r.dat", "1::")])
def test_a_first_row_of_very_many_fields_is_refused_at_once(tmp_path, name, row):
    (tmp_path / name).write_text(row * 1_000_000)
    with pytest.raises(DataError, match=r"the first row has more than 100,000 fields"):
        read_columns(tmp_path / name)


def test_a_table_may_have_100_000_columns(tmp_path):
    names = ["user", "item", "rating", *map(str, range(99_997))]
    (tmp_path / "r.csv").write_text(f"{','.join(names)}\n{'3,' * 99_999}3\n")
    assert read_columns(tmp_path / "r.csv").ratings == [3]
