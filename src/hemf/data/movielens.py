"""Readers of the three formats of MovieLens, and of similar files.

===============  ===================================  ==========================
reader           a line                               found in
===============  ===================================  ==========================
``tabs``         ``196<TAB>242<TAB>3<TAB>881250949``  ml-100k, ``u.data``
``double_colon`` ``1::1193::5::978300760``            ml-1m, ml-10m, ``ratings.dat``
``csv``          ``1,31,2.5,1260759144``              ml-20m and later, ``ratings.csv``
===============  ===================================  ==========================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from hemf._typing import AnyArray, Float32Array, Int32Array, Int64Array
from hemf.data.files import has_hexadecimal
from hemf.data.sources import is_plain
from hemf.errors import DatasetError

_TYPES = {"user": "int32", "item": "int32", "rating": "float32", "timestamp": "int64"}
_HEADER = ("userId", "movieId", "rating", "timestamp")

Rule: TypeAlias = Callable[[dict[str, float]], str | None]
"""Returns what is wrong with the values of a line, or None."""


class RatingColumns(NamedTuple):
    """Ratings as arrays of equal length, in the order of the file."""

    users: Int32Array
    items: Int32Array
    ratings: Float32Array
    timestamps: Int64Array | None = None  # seconds since 1970, if known

    @property
    def known(self) -> tuple[AnyArray, ...]:
        """The columns that are known, as :meth:`hemf.Ratings.from_any` takes them."""
        return tuple(column for column in self if column is not None)


def read_tabs(path: str | Path) -> RatingColumns:
    """Read ``u.data``: user, item, rating and timestamp, separated by tabs."""
    return RatingColumns(*Lines(Path(path), "\t", list(_TYPES), _TYPES).read().values())


def read_double_colon(path: str | Path) -> RatingColumns:
    """Read ``ratings.dat``: user, item, rating and timestamp, separated by ``::``."""
    return RatingColumns(*Lines(Path(path), "::", list(_TYPES), _TYPES).read().values())


def read_csv(path: str | Path) -> RatingColumns:
    """Read ``ratings.csv``: a header, then userId, movieId, rating and timestamp."""
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
    names = dict(zip(_HEADER, _TYPES, strict=True))
    columns = [names.get(field, field) for field in header]
    return RatingColumns(*Lines(path, ",", columns, _TYPES, header_lines=1).read().values())


class Lines(NamedTuple):
    r"""A file with one rating per line.

    >>> path = getfixture("tmp_path") / "votes"
    >>> _ = path.write_text("7\tfine\t0.5\n")
    >>> types = {"person": "int32", "score": "float32"}
    >>> Lines(path, "\t", ["person", "note", "score"], types).read()["score"]
    array([0.5], dtype=float32)
    """

    path: Path
    separator: str
    columns: list[str]
    types: Mapping[str, str]
    """int32, int64 or float32 for each column that is read."""
    header_lines: int = 0

    def read(self) -> dict[str, AnyArray]:
        """Read the columns that have a type."""
        import pyarrow as pa
        from pyarrow import csv

        types = {name: getattr(pa, kind)() for name, kind in self.types.items()}
        names = self.columns
        if self.separator == "::":
            # Arrow splits at one character: the gap in "::" is a column of type null, which
            # accepts nothing but empty fields.
            gaps = [f"gap {position}" for position in range(len(names) - 1)]
            names = [name for pair in zip(names, [*gaps, ""], strict=True) for name in pair][:-1]
            types |= dict.fromkeys(gaps, pa.null())
        try:
            table = csv.read_csv(
                self.path,
                read_options=csv.ReadOptions(column_names=names, skip_rows=self.header_lines),
                parse_options=csv.ParseOptions(delimiter=self.separator[0], quote_char=False),
                convert_options=csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[""]
                ),
            )
        except OSError as error:
            raise unreadable(self.path, error) from error
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                raise DatasetError(f"{self.path} holds no ratings", value=str(self.path)) from error
            raise self.error(otherwise=str(error)) from error
        if self._has_hexadecimal() and (fault := self._first_fault(None)) is not None:
            raise fault
        arrays = {name: table.column(name).to_numpy() for name in self.types}
        has_nulls = any(table.column(name).null_count for name in self.types)
        if has_nulls or not all(np.isfinite(array).all() for array in arrays.values()):
            raise self.error()
        if table.num_rows == 0:
            raise DatasetError(f"{self.path} holds no ratings", value=str(self.path))
        return arrays

    def error(
        self, rule: Rule | None = None, *, otherwise: str = "a value is missing"
    ) -> DatasetError:
        """Return the error for the first bad line: Arrow does not tell which one it is."""
        message = f"{self.path} cannot be read as ratings: {otherwise}"
        return self._first_fault(rule) or DatasetError(message, value=str(self.path))

    def _has_hexadecimal(self) -> bool:
        """Whether there may be a hexadecimal integer, which Arrow accepts."""
        before = b""
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                if has_hexadecimal(before + block):
                    return True
                before = block[-1:]
        return False

    def _first_fault(self, rule: Rule | None) -> DatasetError | None:
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                text = line.rstrip("\r\n")
                if number <= self.header_lines or not text:
                    continue
                if why := self._fault(text.split(self.separator), rule):
                    message = f"{self.path}, line {number}: {why}: {text[:80]!r}"
                    return DatasetError(message, value=text, row=number)
        return None

    def _fault(self, fields: list[str], rule: Rule | None) -> str | None:
        if len(fields) != len(self.columns):
            return f"{len(fields)} fields where {len(self.columns)} are expected"
        values: dict[str, float] = {}
        for name, field in zip(self.columns, fields, strict=True):
            kind = self.types.get(name)
            if kind is None:
                continue
            try:
                value = float(field) if kind == "float32" else int(field)
            except ValueError:
                return f"the {name} is not a number"
            if not is_plain(field):
                return f"the {name} is not a number"
            values[name] = value
            if kind == "float32":
                if not math.isfinite(value):
                    return f"the {name} is not finite"
                if abs(value) > float(np.finfo(np.float32).max):
                    return f"the {name} is too large"
                continue
            bits = int(kind.removeprefix("int"))
            if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
                return f"the {name} does not fit {bits} bits"
        return rule(values) if rule is not None else None


def unreadable(path: Path, error: OSError) -> DatasetError:
    """Return the error for a file that cannot be opened."""
    what = "is a folder, not a file" if path.is_dir() else "cannot be read"
    return DatasetError(f"{path} {what}: {error}", value=str(path))
