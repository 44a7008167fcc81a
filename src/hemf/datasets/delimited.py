"""Read text of one line a rating, its fields divided by a separator, and find what is wrong in it.

Arrow reads; it does not tell where it stumbled. So when it does, the file is gone through once
more, line by line, for the first line that is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf.errors import DatasetError


class RatingColumns(NamedTuple):
    """Ratings as arrays of equal length, in the order of the file.

    >>> RatingColumns(*([np.array([1])] * 4)).users
    array([1])
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    ratings: NDArray[np.float32]
    timestamps: NDArray[np.int64] | None = None  # seconds since 1970; None: not known

    @property
    def known(self) -> tuple[NDArray[Any], ...]:
        """The columns that there are, as :meth:`hemf.Ratings.from_any` takes them.

        >>> len(RatingColumns(*([np.array([1])] * 3)).known)
        3
        """
        return tuple(column for column in self if column is not None)


Rule = Callable[[dict[str, Any]], str | None]
"""Says what is wrong with the values of a line, by the names of its fields; None if nothing is."""


def read_delimited(
    path: Path,
    separator: str,
    columns: list[str],
    kinds: Mapping[str, str],
    *,
    header_lines: int = 0,
) -> dict[str, NDArray[Any]]:
    r"""Read those of the columns that ``kinds`` gives a type: int32, int64 or float32.

    >>> path = getfixture("tmp_path") / "votes"
    >>> _ = path.write_text("7\tfine\t0.5\n")
    >>> kinds = {"person": "int32", "score": "float32"}
    >>> read_delimited(path, "\t", ["person", "note", "score"], kinds)["score"]
    array([0.5], dtype=float32)
    """
    import pyarrow as pa
    from pyarrow import csv

    types = {name: getattr(pa, kind)() for name, kind in kinds.items()}
    names = columns
    if separator == "::":
        # The reader knows one-character separators: read the gap in "::" as an empty column,
        # whose type "null" refuses anything that is written there.
        gaps = [f"gap {position}" for position in range(len(columns) - 1)]
        names = [name for pair in zip(columns, [*gaps, ""], strict=True) for name in pair][:-1]
        types |= dict.fromkeys(gaps, pa.null())
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, skip_rows=header_lines),
            parse_options=csv.ParseOptions(delimiter=separator[0], quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""]
            ),
        )
    except OSError as error:
        raise unreadable(path, error) from error
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise DatasetError(f"{path} holds no ratings", value=str(path)) from error
        raise first_bad_line(
            path, separator, columns, kinds, header_lines=header_lines, otherwise=str(error)
        ) from error
    arrays = {name: table.column(name).to_numpy() for name in kinds}
    gap_free = all(table.column(name).null_count == 0 for name in kinds)
    if not gap_free or not all(np.isfinite(array).all() for array in arrays.values()):
        raise first_bad_line(path, separator, columns, kinds, header_lines=header_lines)
    if table.num_rows == 0:
        raise DatasetError(f"{path} holds no ratings", value=str(path))
    return arrays


def unreadable(path: Path, error: OSError) -> DatasetError:
    """Return what to raise for a file that does not open.

    >>> str(unreadable(Path("."), OSError("no"))).split(":")[0]
    '. is a folder, not a file'
    """
    what = "is a folder, not a file" if path.is_dir() else "cannot be read"
    return DatasetError(f"{path} {what}: {error}", value=str(path))


def first_bad_line(
    path: Path,
    separator: str,
    columns: list[str],
    kinds: Mapping[str, str],
    *,
    header_lines: int = 0,
    rule: Rule | None = None,
    otherwise: str = "a value is missing",
) -> DatasetError:
    r"""Return what to raise for a file, of which it is known that something in it is wrong.

    >>> path = getfixture("tmp_path") / "votes"
    >>> _ = path.write_text("7\t0.5\nann\t0.5\n")
    >>> error = first_bad_line(path, "\t", ["person", "score"], {"person": "int32"})
    >>> str(error).partition("votes, ")[2]
    "line 2: the person is not a number: 'ann\\t0.5'"
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\r\n")
            if number <= header_lines or not text:
                continue
            if why := _fault(text.split(separator), columns, kinds, rule):
                return DatasetError(
                    f"{path}, line {number}: {why}: {text[:80]!r}", value=text, row=number
                )
    return DatasetError(f"{path} cannot be read as ratings: {otherwise}", value=str(path))


def _fault(
    fields: list[str], columns: list[str], kinds: Mapping[str, str], rule: Rule | None
) -> str | None:
    if len(fields) != len(columns):
        return f"{len(fields)} fields where {len(columns)} are expected"
    values = {}
    for name, field in zip(columns, fields, strict=True):
        if name not in kinds:
            continue
        try:
            values[name] = float(field) if kinds[name] == "float32" else int(field)
        except ValueError:
            return f"the {name} is not a number"
        if kinds[name] == "float32":
            if not math.isfinite(values[name]):
                return f"the {name} is not finite"
            continue
        bits = int(kinds[name].removeprefix("int"))
        if not -(2 ** (bits - 1)) <= values[name] < 2 ** (bits - 1):
            return f"the {name} does not fit {bits} bits"
    return rule(values) if rule is not None else None
