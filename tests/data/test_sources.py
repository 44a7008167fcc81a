from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from hemf.data.sources import read_columns
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError

USERS, ITEMS, RATINGS, TIMES = ["b", "a", "b"], ["x", "x", "y"], [3.0, 4.5, 1.0], [30, 10, 20]
ROWS = list(zip(USERS, ITEMS, RATINGS, TIMES, strict=True))
TABLE = {"user": USERS, "item": ITEMS, "rating": RATINGS, "timestamp": TIMES}


def rows_of(data, columns=None, **options):
    read = read_columns(data, columns, **options)
    found = [read.users.decode(), read.items.decode(), read.ratings, read.timestamps]
    return list(zip(*(column.tolist() for column in found if column is not None), strict=True))


FORMS = {
    "pandas": pd.DataFrame(TABLE),
    "pandas, shuffled index": pd.DataFrame(TABLE, index=[9, 9, 0]),
    "pandas, nullable": pd.DataFrame(TABLE).convert_dtypes(),
    "pandas, categories": pd.DataFrame(TABLE).astype({"user": "category", "item": "category"}),
    "pandas, objects": pd.DataFrame(TABLE).astype(object),
    "polars": pl.DataFrame(TABLE),
    "polars, lazy": pl.LazyFrame(TABLE),
    "polars, categories": pl.DataFrame(TABLE).cast({"user": pl.Categorical}),
    "arrow": pa.table(TABLE),
    "arrow, batch": pa.RecordBatch.from_pydict(TABLE),
    "mapping": TABLE,
    "tuple of lists": (USERS, ITEMS, RATINGS, TIMES),
    "tuple of arrays": tuple(map(np.array, (USERS, ITEMS, RATINGS, TIMES))),
    "list of arrays": list(map(np.array, (USERS, ITEMS, RATINGS, TIMES))),
    "list of series": [pd.Series(column) for column in (USERS, ITEMS, RATINGS, TIMES)],
    "tuple of mixed columns": (pl.Series(USERS), pa.array(ITEMS), pd.Series(RATINGS), TIMES),
    "list of tuples": ROWS,
    "tuple of tuples": tuple(ROWS),
    "list of lists": [list(row) for row in ROWS],
    "list of records": [dict(zip(TABLE, row, strict=True)) for row in ROWS],
    "iterator": iter(ROWS),
    "tuple with an iterator": (iter(USERS), ITEMS, RATINGS, TIMES),
    "object array": np.array(ROWS, dtype=object),
    "structured array": np.array(
        ROWS, dtype=[("user", "U1"), ("item", "U1"), ("rating", "f4"), ("timestamp", "i8")]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_ratings(form):
    assert rows_of(FORMS[form]) == ROWS


@pytest.mark.parametrize("form", [form for form in FORMS if "iterator" not in form])
def test_every_form_holds_the_same_pairs(form):
    assert rows_of(FORMS[form], rated=False) == [row[:2] for row in ROWS]


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.float32, object])
def test_ids_in_an_array_of_numbers_are_whole(kind):
    array = np.array([[10**6, 2, 3], [10**6 + 1, 2, 5]]).astype(kind)
    assert rows_of(array) == [(10**6, 2, 3.0), (10**6 + 1, 2, 5.0)]
    assert all(type(row[0]) is int for row in rows_of(array))
    assert rows_of(np.asfortranarray(array)[:, ::-1], (2, 1, 0)) == rows_of(array)


def test_an_array_of_text_is_read_with_its_numbers():
    assert rows_of(np.array([["a", "x", "3.5"]])) == [("a", "x", 3.5)]


@pytest.mark.parametrize("make", [sp.coo_array, sp.csr_matrix, sp.csc_array, sp.lil_matrix])
def test_each_stored_entry_of_a_sparse_matrix_is_a_rating(make):
    dense = np.array([[0, 5.0, 0], [0, 0, 0], [1.5, 0, 2]])
    assert sorted(rows_of(make(dense))) == [(0, 1, 5), (2, 0, 1.5), (2, 2, 2)]


def test_a_stored_zero_is_a_rating():
    matrix = sp.csr_array((np.array([0.0, 3.0]), ([0, 1], [4, 5])), shape=(10, 10))
    assert rows_of(matrix) == [(0, 4, 0), (1, 5, 3)]
    with pytest.raises(DataError, match="no rows"):
        rows_of(sp.csr_array((5, 5)))


def test_mixed_ids_in_a_frame_are_kept():
    frame = pd.DataFrame({"user": [1, "1", (2, 3)], "item": [b"x", "x", 2.5], "rating": [1, 2, 3]})
    assert rows_of(frame) == [(1, b"x", 1), ("1", "x", 2), ((2, 3), 2.5, 3)]


def test_arrow_batches_are_read_to_their_end():
    batches = pa.table(TABLE).to_batches(max_chunksize=2)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert rows_of(reader) == ROWS


def test_whatever_stands_for_a_path_is_one(tmp_path):
    class Place:
        def __init__(self, path):
            self.path = path

        def __fspath__(self):
            return self.path

    (tmp_path / "r.csv").write_text("user,item,rating\na,x,1\n")
    assert rows_of(Place(str(tmp_path / "r.csv"))) == [("a", "x", 1)]
    assert rows_of(Place(bytes(tmp_path / "r.csv"))) == [("a", "x", 1)]


def test_tuples_in_a_tuple_are_rows_and_lists_in_it_columns():
    rows = ((1, 10, 5), (2, 10, 3), (3, 20, 1))
    assert rows_of(rows) == list(rows)
    assert rows_of(tuple(map(list, zip(*rows, strict=True)))) == list(rows)
    with pytest.raises(DataError, match=r"give lists or arrays .* found 9"):
        rows_of(((1,) * 9, (2,) * 9, (3,) * 9))


def test_pairs_that_cannot_be_read_are_said_to_have_two_columns():
    with pytest.raises(DataError, match=r"pairs cannot be read from NoneType.* of 2 columns"):
        read_columns(None, rated=False)
    with pytest.raises(DataError, match="one row for each pair and 2 columns"):
        read_columns(np.ones(3), rated=False)
    with pytest.raises(DataError, match=r"the columns user, item in .* columns=\(0, 1\)"):
        read_columns(np.ones((3, 7)), rated=False)


def test_a_frame_with_numbered_columns_is_chosen_by_number():
    frame = pd.DataFrame(ROWS)
    assert rows_of(frame, (0, 1, 2)) == [row[:3] for row in ROWS]
    with pytest.raises(DataError, match="found the columns 0, 1, 2, 3"):
        rows_of(frame)


@pytest.mark.parametrize("rows", [3, 200])
def test_columns_of_unequal_length_are_an_error(rows):
    with pytest.raises(DataError, match=f"unequal lengths: {rows} users, {rows} items, 2 ratings"):
        rows_of((["a"] * rows, ["x"] * rows, [1, 2]))


@pytest.mark.parametrize(
    "nothing",
    [[], (), {}, np.empty((0, 3)), pd.DataFrame(), pl.DataFrame(), ([], [], []), iter([]),
     pd.DataFrame({"user": [], "item": [], "rating": []}),
     pa.table({"user": pa.array([], pa.string()), "item": [], "rating": []})],
    ids=lambda data: type(data).__name__,
)  # fmt: skip
def test_no_data_is_an_error(nothing):
    with pytest.raises(DataError, match=r"no rows|no columns|no column for|found 0 columns"):
        rows_of(nothing)


@pytest.mark.parametrize(
    "thing",
    [None, 5, 3.5, object(), {1, 2}, len, [1, 2, 3], ["a", "b", "c"], np.float64(3), b"r.csv",
     (1, 2, 3), ("a", "b", "c")],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_what_holds_no_ratings_is_an_error(thing):
    with pytest.raises(DataError, match=r"expected .*columns"):
        rows_of(thing)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 5), (2, 2, 3)])
def test_an_array_of_another_shape_is_an_error(shape):
    with pytest.raises(DataError, match="array: "):
        rows_of(np.ones(shape))


def test_ragged_rows_are_an_error_that_names_the_first():
    with pytest.raises(DataError, match=r"row 1 is .* but row 0 has 3 fields") as caught:
        rows_of([("a", "x", 1), ("b", "y")])
    assert caught.value.row == 1
    with pytest.raises(DataError, match="row 1 is 5"):
        rows_of([("a", "x", 1), 5])
    with pytest.raises(DataError, match="row 1 lacks a field of row 0") as caught:
        rows_of([{"user": "a", "item": "x", "rating": 1}, {"user": "a"}])
    assert caught.value.row == 1


def test_two_columns_of_one_name_are_an_error():
    frame = pd.DataFrame([["a", "b", "x", 1.0]], columns=["user", "user", "item", "rating"])
    with pytest.raises(DataError, match="user"):
        rows_of(frame)


@pytest.mark.parametrize(
    "form",
    ["pandas", "polars", "arrow", "mapping", "list of tuples", "object array"],
)
@pytest.mark.parametrize("role", ["user", "item", "rating", "timestamp"])
def test_what_is_missing_is_an_error_that_names_column_and_row(form, role):
    table = {**TABLE, role: [TABLE[role][0], None, TABLE[role][2]]}
    rows = list(zip(*table.values(), strict=True))
    data = {
        "pandas": lambda: pd.DataFrame(table),
        "polars": lambda: pl.DataFrame(table),
        "arrow": lambda: pa.table(table),
        "mapping": lambda: table,
        "list of tuples": lambda: rows,
        "object array": lambda: np.array(rows, dtype=object),
    }[form]()
    with pytest.raises(DataError, match=f"{role}.* at row 1 is ") as caught:
        rows_of(data)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], ["7", "8", "x"]),
        ([7, 9], [7, 8, "x"]),
        (["7", "9"], ["7", "8", "x"]),
        ([7, "8"], [7, "8", "x"]),
        ([7, "7"], ["7", "8", "x"]),
        ([("a", "b")], ["7", "8", "x"]),
    ],
)
def test_known_ids_decide_what_a_number_in_a_text_file_means(tmp_path, known, expected):
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\n7,1,1\n8,1,1\nx,1,1\n")
    assert read_columns(path, users=Vocabulary(known)).users.decode().tolist() == expected
    path.write_text("user,item,rating\n1,7,1\n1,8,1\n1,x,1\n")
    assert read_columns(path, items=Vocabulary(known)).items.decode().tolist() == expected


def test_an_error_about_a_value_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text.csv"
    path.write_text("user,item,rating\nann,tea,five\n")
    with pytest.raises(DataError, match=r"text\.csv: rating 'five' at row 0 is not a number"):
        read_columns(path)
