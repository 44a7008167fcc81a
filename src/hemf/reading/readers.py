"""Whatever holds ratings, as four columns: codes of users and items, ratings, times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hemf.errors import DataError
from hemf.reading.columns import ColumnChoice, locate
from hemf.reading.files import Source, open_file
from hemf.reading.identifiers import CodedIds, factorise
from hemf.reading.values import ratings_from, timestamps_from

if TYPE_CHECKING:
    from hemf.vocabulary import Vocabulary

_KINDS = (
    "a DataFrame, a path, a SciPy sparse matrix, a tuple of columns, an array of 3 or 4 columns, "
    "or a list of tuples"
)


@dataclass(frozen=True, eq=False)
class Columns:
    """What was read: as many users as items, ratings and times (None where there are none)."""

    users: CodedIds
    items: CodedIds
    ratings: NDArray[np.float32] | None
    timestamps: NDArray[np.int64] | None


def read_columns(
    data: Any,
    columns: ColumnChoice = None,
    *,
    rated: bool = True,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> Columns:
    """Read and check users, items and, where ``rated``, ratings and times.

    Ids of text files have no type; those in ``users`` and ``items`` show what is meant, and
    without them a column of integers is read as integers, any other as text.

    >>> read = read_columns([("ann", "tea", 5.0), ("bob", "tea", 3.0)])
    >>> read.users.decode(), read.ratings
    (array(['ann', 'bob'], dtype=object), array([5., 3.], dtype=float32))
    """
    source = open_source(data, columns, rated=rated)
    positions = locate(source.names, source.width, columns, rated=rated, where=source.where)
    found = dict(zip(positions, source.read(list(positions.values())), strict=True))
    _reject_unequal(found, source.where)
    if len(found["user"]) == 0:
        raise DataError(f"{source.where}: there are no rows")
    ids = {}
    for role, known in (("user", users), ("item", items)):
        ids[role] = factorise(found.pop(role), role)  # as read, it is needed no more
        if source.is_text:
            ids[role] = _settle_text(ids[role], known, role)
    return Columns(
        ids["user"],
        ids["item"],
        ratings_from(found["rating"]) if rated else None,
        timestamps_from(found["timestamp"]) if "timestamp" in found else None,
    )


def open_source(data: Any, columns: ColumnChoice = None, *, rated: bool = True) -> Source:
    """See what kind of thing the data is, and what columns it has.

    >>> open_source({"user": ["ann"], "item": ["tea"]}).names
    ['user', 'item']
    """
    if isinstance(data, (str, Path)):
        return open_file(Path(data), columns, rated=rated)
    if sp.issparse(data):
        entries = data.tocoo()
        return _from_columns([entries.row, entries.col, entries.data], "sparse matrix")
    if isinstance(data, np.ndarray):
        return _from_numpy(data)
    if isinstance(data, Mapping):
        return _from_columns(list(data.values()), "mapping", list(data))
    if isinstance(data, tuple):
        return _from_columns(list(data), "tuple of columns")
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, list):
        return _from_list(data)
    return _from_frame(data)


def _from_columns(values: list[Any], where: str, names: list[Any] | None = None) -> Source:
    def read(positions: Sequence[int]) -> list[Any]:
        return [_sized(values[position], where) for position in positions]

    return Source(names, len(values), read, where)


def _sized(values: Any, where: str) -> Any:
    if hasattr(values, "__len__") and not isinstance(values, (str, bytes, Mapping)):
        return values
    if isinstance(values, Iterator):
        return list(values)
    raise DataError(f"{where}: expected columns, got {values!r}; expected {_KINDS}", value=values)


def _from_numpy(data: NDArray[Any]) -> Source:
    names = data.dtype.names
    if names is not None:
        return _from_columns([data[name] for name in names], "structured array", list(names))
    if data.ndim != 2:
        raise DataError(
            f"array: expected one row for each rating and 3 or 4 columns, got shape {data.shape}",
            value=data.shape,
        )
    return _from_columns(list(data.T), "array")


def _from_list(data: list[Any]) -> Source:
    """Take a list as rows; only a list of arrays or series holds columns."""
    if not data:
        raise DataError("list: there are no rows")
    first = data[0]
    if isinstance(first, Mapping):
        names = list(first)
        rows = [_record(row, names, number) for number, row in enumerate(data)]
        return _from_columns(_transposed(rows), "list of records", names)
    if isinstance(first, (tuple, list)):
        return _from_columns(_transposed(data), "list of rows")
    return _from_columns(data, "list of columns")


def _record(row: Any, names: list[Any], number: int) -> list[Any]:
    if not isinstance(row, Mapping) or any(name not in row for name in names):
        message = f"list: row {number} lacks a field of row 0: {row!r}"
        raise DataError(message, value=row, row=number)
    return [row[name] for name in names]


def _transposed(rows: list[Any]) -> list[Any]:
    width = len(rows[0])
    for number, row in enumerate(rows):
        if not isinstance(row, (tuple, list)) or len(row) != width:
            raise DataError(
                f"list: row {number} is {row!r}, but row 0 has {width} fields",
                value=row,
                row=number,
            )
    return [list(column) for column in zip(*rows, strict=True)]


def _from_frame(data: Any) -> Source:
    import narwhals as nw

    try:
        frame = nw.from_native(data)
    except TypeError:
        kind = type(data).__name__
        message = f"ratings cannot be read from {kind}; expected {_KINDS}"
        raise DataError(message, value=data) from None
    except Exception as error:  # narwhals' own, such as two columns of one name
        raise DataError(f"frame: {error}") from error
    names = list(frame.collect_schema().names())

    def read(positions: Sequence[int]) -> list[Any]:
        chosen = frame.select(nw.nth(*positions))
        eager = chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen
        return [eager[:, place].to_native() for place in range(len(positions))]

    return Source(names, len(names), read, "frame")


def _reject_unequal(found: dict[str, Any], where: str) -> None:
    lengths = {role: len(values) for role, values in found.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} {role}s" for role, length in lengths.items())
        raise DataError(f"{where}: the columns have unequal lengths: {listed}", value=lengths)


def _settle_text(coded: CodedIds, known: Vocabulary | None, role: str) -> CodedIds:
    """Decide which ids of a text file are integers."""
    import pyarrow.compute as pc

    texts = coded.distinct
    trimmed = pc.utf8_trim_whitespace(texts)
    blank = pc.index(trimmed, "").as_py()
    if blank >= 0:
        row = int((coded.codes == blank).argmax())
        raise DataError(f"{role} at row {row} is missing", value="", row=row)
    # 007 and 7 are two ids, so only what an integer would be written as counts.
    whole = pc.match_substring_regex(trimmed, r"^(0|-?[1-9][0-9]{0,17})$").to_numpy(
        zero_copy_only=False
    )
    if known is None or len(known) == 0:
        as_integers = whole if whole.all() else np.zeros_like(whole)
    elif known.ids.dtype == np.int64:
        as_integers = whole
    else:
        only_as_integer = np.zeros_like(whole)
        only_as_integer[whole] = known.rows(trimmed.filter(whole).cast("int64")) >= 0
        as_integers = only_as_integer & (known.rows(texts) < 0)
    if not as_integers.any():
        return coded
    if as_integers.all():
        settled = factorise(trimmed.cast("int64"), role)
    else:
        pairs = zip(texts.to_pylist(), as_integers, strict=True)
        settled = factorise([int(text) if is_int else text for text, is_int in pairs], role)
    return CodedIds(settled.codes[coded.codes], settled.distinct)
