"""Read the three ways in which MovieLens ratings are written.

===============  ===================================  ==========================
format           a line                               found in
===============  ===================================  ==========================
``tabs``         ``196<TAB>242<TAB>3<TAB>881250949``  ml-100k, ``u.data``
``double-colon`` ``1::1193::5::978300760``            ml-1m, ml-10m, ``ratings.dat``
``csv``          ``1,31,2.5,1260759144``              ml-20m and later, ``ratings.csv``
===============  ===================================  ==========================
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf.errors import DatasetError


class RatingColumns(NamedTuple):
    """Ratings as four arrays of equal length, in the order of the file.

    >>> RatingColumns(*([np.array([1])] * 4)).users
    array([1])
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    ratings: NDArray[np.float32]
    timestamps: NDArray[np.int64]  # seconds since 1970


_FIELDS = ("user", "item", "rating", "timestamp")
_HEADER = ("userId", "movieId", "rating", "timestamp")


def read_tabs(path: str | Path) -> RatingColumns:
    r"""Read ``u.data``: user, item, rating, timestamp, divided by tabs.

    >>> path = getfixture("tmp_path") / "u.data"
    >>> _ = path.write_text("196\t242\t3\t881250949\n")
    >>> read_tabs(path).ratings
    array([3.], dtype=float32)
    """
    return _read(Path(path), "\t", list(_FIELDS))


def read_double_colon(path: str | Path) -> RatingColumns:
    r"""Read ``ratings.dat``: user, item, rating, timestamp, divided by ``::``.

    >>> path = getfixture("tmp_path") / "ratings.dat"
    >>> _ = path.write_text("1::1193::5::978300760\n")
    >>> read_double_colon(path).items
    array([1193], dtype=int32)
    """
    return _read(Path(path), "::", list(_FIELDS))


def read_csv(path: str | Path) -> RatingColumns:
    r"""Read ``ratings.csv``: a header, then userId, movieId, rating, timestamp.

    >>> path = getfixture("tmp_path") / "ratings.csv"
    >>> _ = path.write_text("userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n")
    >>> read_csv(path).ratings
    array([2.5], dtype=float32)
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            header = [field.strip().strip('"') for field in file.readline().split(",")]
    except OSError as error:
        raise _unreadable(path, error) from error
    if missing := [field for field in _HEADER if field not in header]:
        raise DatasetError(
            f"{path}, line 1: no column {', '.join(missing)}; "
            f"expected the header {','.join(_HEADER)}",
            value=header,
            row=1,
        )
    ours = dict(zip(_HEADER, _FIELDS, strict=True))
    return _read(path, ",", [ours.get(field, field) for field in header], header_lines=1)


def _read(
    path: Path, separator: str, columns: list[str], *, header_lines: int = 0
) -> RatingColumns:
    import pyarrow as pa
    from pyarrow import csv

    kinds = {
        "user": pa.int32(),
        "item": pa.int32(),
        "rating": pa.float32(),
        "timestamp": pa.int64(),
    }
    names = columns
    if separator == "::":
        # The reader knows one-character separators: read the gap in "::" as an empty column,
        # whose type "null" refuses anything that is written there.
        gaps = [f"gap {position}" for position in range(len(columns) - 1)]
        names = [name for pair in zip(columns, [*gaps, ""], strict=True) for name in pair][:-1]
        kinds |= dict.fromkeys(gaps, pa.null())
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, skip_rows=header_lines),
            parse_options=csv.ParseOptions(delimiter=separator[0], quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types=kinds, include_columns=list(kinds), null_values=[""]
            ),
        )
    except OSError as error:
        raise _unreadable(path, error) from error
    except pa.ArrowInvalid as error:
        raise _first_bad_line(path, separator, columns, header_lines, str(error)) from error
    arrays = [table.column(field).to_numpy() for field in _FIELDS]
    gap_free = all(table.column(field).null_count == 0 for field in _FIELDS)
    if not gap_free or not np.isfinite(arrays[2]).all():
        raise _first_bad_line(path, separator, columns, header_lines, "a value is missing")
    if table.num_rows == 0:
        raise DatasetError(f"{path} holds no ratings")
    return RatingColumns(*arrays)


def _unreadable(path: Path, error: OSError) -> DatasetError:
    what = "is a folder, not a file" if path.is_dir() else "cannot be read"
    return DatasetError(f"{path} {what}: {error}", value=str(path))


def _first_bad_line(
    path: Path, separator: str, columns: list[str], header_lines: int, otherwise: str
) -> DatasetError:
    """Look line by line for what the fast reader stumbled over; it does not tell where."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\r\n")
            if number > header_lines and text and (why := _fault(text.split(separator), columns)):
                return DatasetError(
                    f"{path}, line {number}: {why}: {text[:80]!r}", value=text, row=number
                )
    return DatasetError(f"{path} cannot be read as ratings: {otherwise}", value=str(path))


def _fault(fields: list[str], columns: list[str]) -> str | None:
    if len(fields) != len(columns):
        return f"{len(fields)} fields where {len(columns)} are expected"
    parsers: dict[str, Any] = {"user": int, "item": int, "rating": float, "timestamp": int}
    for name, field in zip(columns, fields, strict=True):
        if name not in parsers:
            continue
        try:
            value = parsers[name](field)
        except ValueError:
            return f"the {name} is not a number"
        if not math.isfinite(value):
            return f"the {name} is not finite"
        if name in ("user", "item") and not -(2**31) <= value < 2**31:
            return f"the {name} does not fit 32 bits"
    return None
