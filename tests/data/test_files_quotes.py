"""No row of a text file is lost in silence, however quotes stand and however large the file is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest

from hemf.data.features import read_feature_file
from hemf.data.files import Scanner
from hemf.data.sources import read_columns
from hemf.errors import DataError, DataWarning

HEADER = "user,item,rating\n"
FEW = "".join(f"w{k},i{k % 40},{k % 5 + 1}\n" for k in range(10))
MANY = "".join(f"w{k},i{k % 40},{k % 5 + 1}\n" for k in range(100_000))  # more than Arrow's block
both_sizes = pytest.mark.parametrize("rest", [FEW, MANY], ids=["small", "large"])


def n_rows(path) -> int:
    return len(read_columns(path).users)


@both_sizes
@pytest.mark.parametrize(
    ("row", "line"),
    [
        ('v,"i,3\n', 3),
        ('v,i,"3\n', 3),
        ('"v,i,3\n', 3),
        ('v,i,3,"a note\n', 3),
        ('v,i,3\nv,"i\n', 4),
    ],
)
def test_a_quote_that_is_never_closed_is_named_with_its_line(tmp_path, rest, row, line):
    width = row.split("\n")[0].count(",")
    names = HEADER.strip() + ",note" * (width - 2) + "\n"
    path = tmp_path / "r.csv"
    path.write_text(names + "u,i,3" + "," * (width - 2) + "\n" + row + rest)
    with pytest.raises(DataError, match=rf"r\.csv: line {line} has a quote that is not closed"):
        read_columns(path)


@both_sizes
def test_a_quote_that_is_closed_rows_later_within_a_value_is_an_error(tmp_path, rest):
    path = tmp_path / "r.csv"
    path.write_text(f'{HEADER}u,i,3\nv,"i,3\n{rest}x,"j,3\n{rest}')
    last = 4 + rest.count("\n")
    with pytest.raises(DataError, match=f"line 3 has a quote that is closed .* in line {last}"):
        read_columns(path)


@both_sizes
def test_two_stray_quotes_that_make_one_valid_row_are_a_warning(tmp_path, rest):
    (path := tmp_path / "r.csv").write_text(f'{HEADER}u,i,3\nv,"i,3\nw,j,4\nx,k",3\n{rest}')
    with pytest.warns(DataWarning, match="lines 3 to 5 are read as one row"):
        assert n_rows(path) == 2 + rest.count("\n")


@both_sizes
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_breaks_in_quotes_are_part_of_a_value(tmp_path, rest, end):
    path = tmp_path / "r.csv"
    text = f'{HEADER}{rest}ann,"green\n""tea""",3\n{rest}"bob\n",milk,4\n{rest}'
    path.write_bytes(text.replace("\n", end).encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_columns(path)
    assert len(read.users) == 3 * rest.count("\n") + 2
    assert f'green{end}"tea"' in read.items.distinct.to_pylist()


def test_a_value_longer_than_a_block_is_read_and_one_of_many_megabytes_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(f'{HEADER}{FEW}u,"{"x" * 70}\n{"y" * 3_000_000}",3\nv,{"z" * 3_000_000},3\n')
    assert n_rows(path) == 12
    path.write_text(f'{HEADER}{FEW}u,"{"x" * 70}\n{"y" * 17_000_000}",3\n')
    with pytest.raises(DataError, match="line 12 has a quote that is not closed within 16 MB"):
        n_rows(path)
    path.write_text(f"{HEADER}{FEW}u,{'y' * 17_000_000},3\n{FEW}")
    with pytest.raises(DataError, match="line 12 is longer than 16 MB"):
        n_rows(path)


@both_sizes
def test_quotes_inside_of_values_are_characters_like_others(tmp_path, rest):
    path = tmp_path / "r.csv"
    path.write_text(f'{HEADER}{rest}u,5" disk,3\nv,3.5" disk,3\nw,"Tom" Hanks,4\n{rest}')
    read = read_columns(path)
    assert len(read.users) == 2 * rest.count("\n") + 3
    assert {'5" disk', '3.5" disk', "Tom Hanks"} <= set(read.items.distinct.to_pylist())


@both_sizes
def test_feature_files_lose_no_row_either(tmp_path, rest):
    path = tmp_path / "items.csv"
    path.write_text('item,year,title\na,1990,x\nb,1991,"y\n' + rest.replace(",i", ",1"))
    with pytest.raises(DataError, match="line 3 has a quote that is not closed"):
        read_feature_file(path, "item")


def test_a_header_may_be_long_and_have_line_breaks(tmp_path):
    path = tmp_path / "r.csv"
    names = "".join(f",column {k}" for k in range(20_000))
    path.write_text(f"user,item,rating{names}\nann,tea,3{',' * 20_000}\n")
    assert n_rows(path) == 1
    path.write_text(f'user,item,rating,"{"a" * 300_000}\nb"\nann,tea,3,\n')
    assert n_rows(path) == 1
    path.write_text('"user,item,rating\n' + FEW)
    with pytest.raises(DataError, match="line 1 has a quote that is not closed"):
        n_rows(path)


def test_blocks_of_any_size_give_the_same_result():
    text = (
        b'a,"b\r\nc",1\r\n\r\nd,5" e,2\n"f ""g""\r",h,3\r\ri,"j" k,4\n'
        b'l,"m,5\nn,o",6\nlast,"one ""here""",7'
    )
    results = set()
    for size in range(1, len(text) + 1):
        scanner = Scanner(",", 3)
        for start in range(0, len(text), size):
            scanner.feed(text[start : start + size])
        scanner.finish()
        assert scanner.fault is None
        results.add((scanner.rows, scanner.spans_lines, scanner.ambiguous))
    assert results == {(6, True, (9, 10))}


def test_a_control_character_does_not_divide_movielens_fields(tmp_path):
    path = tmp_path / "r.dat"
    path.write_text("1::2::3\n4\x1f5::6\n")
    with pytest.raises(DataError, match=r"line 2 holds the control character U\+001F"):
        read_columns(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["pipe.csv", "pipe"])
def test_a_pipe_is_read_like_a_file(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(HEADER + MANY,), daemon=True)
    writer.start()
    assert n_rows(path) == 100_000
    writer.join()


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="standard input has no name")
def test_the_standard_input_is_read_like_a_file():
    code = (
        "from hemf.data.sources import read_columns; print(len(read_columns('/dev/stdin').users))"
    )
    lines = "".join(f'{{"user": {k}, "item": 1, "rating": 2}}\n' for k in range(7))
    texts = ((HEADER + FEW, "10\n"), (lines, "7\n"), (HEADER + 'u,"i,3\n' + MANY, ""))
    for text, printed in texts:
        run = subprocess.run(
            [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=False
        )
        assert run.stdout == printed
    assert "/dev/stdin: line 2 has a quote that is not closed" in run.stderr


def test_a_dash_is_a_name_like_any_other_to_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="-: no such file"):
        read_columns("-")
