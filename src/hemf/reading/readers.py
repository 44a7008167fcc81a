"""Whatever holds ratings, as four columns: codes of users and items, ratings, times."""

from __future__ import annotations

import os
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
from hemf.reading.identifiers import CodedIds, factorise, numbers_of
from hemf.reading.values import Values, ratings_from, timestamps_from

if TYPE_CHECKING:
    from hemf.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Columns:
    """What was read: as many users as items, ratings and times (None where there are none)."""

    users: CodedIds
    items: CodedIds
    ratings: Values | None
    timestamps: NDArray[np.int64] | None


def read_columns(
    data: Any,
    columns: ColumnChoice = None,
    *,
    rated: bool = True,
    timed: bool = False,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> Columns:
    """Read and check users, items and, where ``rated``, ratings and times.

    Where they are not rated but ``timed``, the times alone, if there are any.

    Ids of text files have no type; those in ``users`` and ``items`` show what is meant, and
    without them a column of integers is read as integers, any other as text.

    >>> read = read_columns([("ann", "tea", 5.0), ("bob", "tea", 3.0)])
    >>> read.users.decode(), read.ratings
    (array(['ann', 'bob'], dtype=object), array([5., 3.], dtype=float32))
    """
    source = open_source(data, columns, rated=rated)
    try:
        return _read(source, columns, rated, {"user": users, "item": items}, timed=timed)
    except DataError as error:
        if not isinstance(data, (str, os.PathLike)) or str(error).startswith(source.where):
            raise
        where = f"{source.where}: {error}"
        raise DataError(where, value=error.value, row=error.row) from None


def _read(
    source: Source,
    columns: ColumnChoice,
    rated: bool,
    known: dict[str, Vocabulary | None],
    *,
    timed: bool,
) -> Columns:
    positions = locate(
        source.names, source.width, columns, rated=rated, where=source.where, timed=timed
    )
    found = dict(zip(positions, source.read(list(positions.values())), strict=True))
    _reject_unequal(found, source.where)
    if len(found["user"]) == 0:
        raise DataError(f"{source.where}: there are no rows")
    ids = {}
    for role in known:
        ids[role] = factorise(found.pop(role), role)  # as read, it is needed no more
        if source.is_text:
            ids[role] = settle_text(ids[role], known[role], role)
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
    if isinstance(data, (str, os.PathLike)):
        return open_file(Path(os.fsdecode(data)), columns, rated=rated)
    if sp.issparse(data):
        entries = data.tocoo()
        return _from_columns([entries.row, entries.col, entries.data], "sparse matrix")
    if isinstance(data, np.ndarray):
        return _from_numpy(data, rated=rated)
    if isinstance(data, Mapping):
        return _from_columns(list(data.values()), "mapping", list(data))
    if isinstance(data, tuple):
        if data and all(isinstance(row, tuple) for row in data):
            rows = "tuple of rows (give lists or arrays where these are columns)"
            return _from_columns(_transposed(list(data)), rows)
        return _from_columns(list(data), "tuple of columns")
    data = _as_table(data)
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, list):
        return _from_list(data)
    return _from_frame(data, rated=rated)


def _from_columns(values: list[Any], where: str, names: list[Any] | None = None) -> Source:
    def read(positions: Sequence[int]) -> list[Any]:
        return [_sized(values[position], where) for position in positions]

    return Source(names, len(values), read, where)


def _sized(values: Any, where: str) -> Any:
    if hasattr(values, "__len__") and not isinstance(values, (str, bytes, Mapping)):
        return values
    if isinstance(values, Iterator):
        return list(values)
    raise DataError(
        f"{where}: expected columns, got {values!r}; give a tuple of lists or arrays, "
        "or a list of tuples",
        value=values,
    )


def _from_numpy(data: NDArray[Any], *, rated: bool) -> Source:
    names = data.dtype.names
    if names is not None:
        return _from_columns([data[name] for name in names], "structured array", list(names))
    if data.ndim != 2:
        row, width = ("rating", "3 or 4") if rated else ("pair", "2")
        raise DataError(
            f"array: expected one row for each {row} and {width} columns, got shape {data.shape}",
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
                f"row {number} is {row!r}, but row 0 has {width} fields",
                value=row,
                row=number,
            )
    return [list(column) for column in zip(*rows, strict=True)]


def _as_table(data: Any) -> Any:
    """Arrow's batches as a table; anything else as it is, and without waking Arrow."""
    if type(data).__module__.partition(".")[0] != "pyarrow":
        return data
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    return data.read_all() if isinstance(data, pa.RecordBatchReader) else data


def _from_frame(data: Any, *, rated: bool) -> Source:
    import narwhals as nw

    try:
        frame = nw.from_native(data)
    except TypeError:
        what, width = ("ratings", "3 or 4") if rated else ("pairs", "2")
        raise DataError(
            f"{what} cannot be read from {type(data).__name__}; expected a DataFrame, a path, a "
            f"SciPy sparse matrix, a tuple of columns, an array of {width} columns, or a list of "
            "tuples",
            value=data,
        ) from None
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


def settle_text(coded: CodedIds, known: Vocabulary | None, role: str) -> CodedIds:
    """Decide which ids of a text file are integers, and drop blanks that follow a separator.

    >>> import pyarrow as pa
    >>> settle_text(factorise(pa.array(["7", "12"])), None, "user").decode().tolist()
    [7, 12]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = _without_leading_blanks(coded, known)
    texts = coded.distinct
    trimmed = pc.utf8_trim_whitespace(texts)
    blank = pc.index(trimmed, "").as_py()
    if blank >= 0:
        row = int((coded.codes == blank).argmax())
        raise DataError(f"{role} at row {row} is missing", value="", row=row)
    whole = _are_integers(trimmed)
    if known is None or len(known) == 0:
        as_integers = whole if whole.all() else np.zeros_like(whole)
    elif known.ids.dtype == np.int64:
        as_integers = whole
    else:
        only_as_integer = np.zeros_like(whole)
        only_as_integer[whole] = known.rows(trimmed.filter(pa.array(whole)).cast("int64")) >= 0
        as_integers = only_as_integer & (known.rows(texts) < 0)
    if not as_integers.any():
        return coded
    if as_integers.all():
        settled = factorise(trimmed.cast("int64"), role)
    else:
        pairs = zip(texts.to_pylist(), as_integers, strict=True)
        settled = factorise([int(text) if is_int else text for text, is_int in pairs], role)
    return CodedIds(settled.codes[coded.codes], settled.distinct)


def _without_leading_blanks(coded: CodedIds, known: Vocabulary | None) -> CodedIds:
    """Read ``a, x`` like ``a,x``, unless the id with the blank is a known one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = coded.distinct
    bare = pc.utf8_ltrim_whitespace(texts)
    if bare.equals(texts):
        return coded
    if known is not None and len(known):
        bare = pc.if_else(pa.array(known.rows(texts) >= 0), texts, bare)
    inner = factorise(bare)
    return CodedIds(inner.codes[coded.codes], inner.distinct)


def _are_integers(texts: Any) -> NDArray[np.bool_]:
    """Which texts are what an int64 would be written as: 007 and 7 are two ids."""
    import pyarrow.compute as pc

    found = pc.match_substring_regex(texts, r"^(0|-?[1-9][0-9]{0,18})$")
    written = np.array(found.to_numpy(zero_copy_only=False))
    candidates = texts.filter(found)
    if len(candidates):
        # 19 digits always fit 64 bits without a sign, but not always with one.
        sizes = numbers_of(pc.utf8_ltrim(candidates, "-").cast("uint64"))
        negative = pc.starts_with(candidates, "-").to_numpy(zero_copy_only=False)
        written[written] = sizes <= np.where(negative, np.uint64(2**63), np.uint64(2**63 - 1))
    return written
