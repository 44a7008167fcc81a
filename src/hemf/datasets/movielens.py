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

from pathlib import Path

from hemf.datasets.delimited import RatingColumns, read_delimited, unreadable
from hemf.errors import DatasetError

_KINDS = {"user": "int32", "item": "int32", "rating": "float32", "timestamp": "int64"}
_HEADER = ("userId", "movieId", "rating", "timestamp")


def read_tabs(path: str | Path) -> RatingColumns:
    r"""Read ``u.data``: user, item, rating, timestamp, divided by tabs.

    >>> path = getfixture("tmp_path") / "u.data"
    >>> _ = path.write_text("196\t242\t3\t881250949\n")
    >>> read_tabs(path).ratings
    array([3.], dtype=float32)
    """
    return _read(Path(path), "\t", list(_KINDS))


def read_double_colon(path: str | Path) -> RatingColumns:
    r"""Read ``ratings.dat``: user, item, rating, timestamp, divided by ``::``.

    >>> path = getfixture("tmp_path") / "ratings.dat"
    >>> _ = path.write_text("1::1193::5::978300760\n")
    >>> read_double_colon(path).items
    array([1193], dtype=int32)
    """
    return _read(Path(path), "::", list(_KINDS))


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
        raise unreadable(path, error) from error
    if missing := [field for field in _HEADER if field not in header]:
        raise DatasetError(
            f"{path}, line 1: no column {', '.join(missing)}; "
            f"expected the header {','.join(_HEADER)}",
            value=header,
            row=1,
        )
    ours = dict(zip(_HEADER, _KINDS, strict=True))
    return _read(path, ",", [ours.get(field, field) for field in header], header_lines=1)


def _read(
    path: Path, separator: str, columns: list[str], *, header_lines: int = 0
) -> RatingColumns:
    read = read_delimited(path, separator, columns, _KINDS, header_lines=header_lines)
    return RatingColumns(*read.values())
