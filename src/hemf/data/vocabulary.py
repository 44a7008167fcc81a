"""Ids and rating values with numbers: coded columns of ids, and the maps to row numbers and codes.

Columns of ids become codes: the distinct ids, and the position of each row's id among them. Text
stays Arrow text, because a million Python strings cost far more memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hemf._typing import (
    AnyArray,
    Array,
    ArrowArray,
    DistinctIds,
    Float64Array,
    IdsLike,
    Int32Array,
    Int64Array,
)
from hemf.errors import DataError, row_error

A = TypeVar("A", bound=npt.NDArray[Any])

_SMALL = 64  # a dict is faster than Arrow below this length
_MAX_TABLE_ROWS = 65_536  # integers in a small range are coded by a table up to this length …
_TABLE_SPARSITY = 16  # … if the range has at most this many values per row
MAX_EXACT_FLOAT = 2**53  # float64 holds every integer up to this one
_INDEX_AFTER = 2  # build an index once this many times the number of ids have been looked up
_BULK = 8  # hash all ids in Arrow to look up more than 1/8 of their number
_PLACES_PER_ID = 8  # in a table of integers, at most …
_FREE_PLACES = 4096  # … and these in addition
_MAX_TABLE_ID = 2**62
_MAX_SEARCHES = 100  # for similar ids
_MAX_SIMILAR = 1000
_MIN_ROOM = 16  # rows
RECENT_VALUES = 1024  # of ratings, which are indexed apart


# -- coded ids -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CodedIds:
    """A column of ids as ``distinct[codes]``, distinct ids in order of first appearance.

    >>> coded = factorise(["ann", "bob", "ann"])
    >>> coded.codes.tolist(), list(coded.distinct)
    ([0, 1, 0], ['ann', 'bob'])
    """

    codes: Int32Array
    distinct: DistinctIds

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, part: slice | Int64Array) -> CodedIds:
        """Return some rows of the column; ids that do not occur there are left out.

        >>> coded = factorise(["ann", "bob", "eve", "bob"])[1:]
        >>> coded.codes.tolist(), list(coded.distinct)
        ([0, 1, 0], ['bob', 'eve'])
        """
        codes, used = _number(self.codes[part], len(self.distinct))
        return CodedIds(codes, self.distinct.take(used))

    def decode(self) -> AnyArray:
        """Return the column as an int64 or object array."""
        decoded: AnyArray = as_array(self.distinct)[self.codes]
        return decoded


def factorise(ids: IdsLike, what: str = "id") -> CodedIds:
    """Find the distinct ids of a column and the code of each row.

    Accepts lists, NumPy arrays, Arrow arrays (dictionaries too), pandas or polars series, and
    columns that are coded already. Floats become integers if all of them are whole. ``what`` names
    the column in errors.

    >>> factorise(np.array([3.0, 1.0, 3.0])).distinct
    array([3, 1])
    >>> factorise(["ann", None], what="user")
    Traceback (most recent call last):
    hemf.errors.DataError: user None at row 1 is missing; drop or fill such rows first
    """
    if isinstance(ids, CodedIds):
        return ids
    # Not for subclasses: a masked array may lack ids.
    if type(ids) is np.ndarray and ids.dtype.kind in "iu" and ids.ndim == 1:
        coded = _factorise_by_table(ids)
        if coded is not None:
            return coded
    return _factorise(as_column(ids, what), what)


def as_array(distinct: DistinctIds) -> AnyArray:
    """Return distinct ids as an int64 array or an object array of Python values."""
    if isinstance(distinct, np.ndarray):
        return distinct
    return np.asarray(distinct.to_numpy(zero_copy_only=False), dtype=object)


def _factorise(column: AnyArray | ArrowArray, what: str) -> CodedIds:
    if isinstance(column, np.ndarray):
        return _factorise_objects(column, what)

    import pyarrow as pa

    if len(column) == 0:
        return CodedIds(np.empty(0, np.int32), np.empty(0, np.int64))
    if column.null_count:
        raise _missing_id(what, None, first_null(column))
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _factorise_dictionary(column, what)
    if pa.types.is_floating(kind):
        numbers = to_numpy(column).astype(np.float64) + 0.0  # -0.0 and 0.0 are one id
        missing = np.isnan(numbers)
        if missing.any():
            raise _missing_id(what, float("nan"), int(missing.argmax()))
        codes, distinct = _encode(_chunked(pa.array(numbers)))
        values = to_numpy(distinct)
        whole = (np.floor(values) == values) & (np.abs(values) <= MAX_EXACT_FLOAT)
        return CodedIds(codes, values.astype(np.int64 if whole.all() else object))
    if pa.types.is_integer(kind):
        codes, distinct = _encode(column)
        if pa.types.is_uint64(kind):
            return CodedIds(codes, _integers_or_objects(distinct.to_pylist()))
        return CodedIds(codes, to_numpy(distinct.cast(pa.int64())))
    if is_text(kind):
        codes, distinct = _encode(column)
        return CodedIds(codes, distinct.cast(pa.large_string()))
    ids = _to_python_ids(column, what)
    return _factorise_objects(np.fromiter(ids, object, count=len(ids)), what)


def _factorise_by_table(ids: AnyArray) -> CodedIds | None:
    """Factorise integers in a small range with a lookup table; None if they do not qualify."""
    n = len(ids)
    if not _SMALL < n <= _MAX_TABLE_ROWS:
        return None
    low, high = int(ids.min()), int(ids.max())
    if high - low >= _TABLE_SPARSITY * n or high >= 2**63:
        return None
    codes, places = _number(ids.astype(np.int64) - low, high - low + 1)
    return CodedIds(codes, places + low)


def _number(places: Int64Array | Int32Array, size: int) -> tuple[Int32Array, Int64Array]:
    """Return codes of integers below ``size``, and the distinct ones in order of appearance."""
    order = np.arange(len(places), dtype=np.int32)
    table = np.empty(size, np.int32)
    table[places[::-1]] = order[::-1]  # the first of equal integers is written last
    first = table[places]
    is_first = first == order
    number: Int32Array = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return number[first], places[is_first].astype(np.int64, copy=False)


def _factorise_dictionary(column: ArrowArray, what: str) -> CodedIds:
    """Factorise a dictionary column; its entries may be unused, unordered, null or repeated."""
    import pyarrow as pa

    chunks = [chunk for chunk in column.unify_dictionaries().chunks if len(chunk)]
    codes, used = _encode(pa.chunked_array([chunk.indices for chunk in chunks]))
    values = chunks[-1].dictionary.take(used)
    with suppress(DataError):
        inner = _factorise(_chunked(values), what)
        is_same = len(inner.distinct) == len(values)
        return CodedIds(codes if is_same else inner.codes[codes], inner.distinct)
    # Of the decoded column, the error names the row.
    return _factorise(_chunked(values.take(pa.array(codes))), what)


def _factorise_objects(values: AnyArray, what: str) -> CodedIds:
    index: dict[object, int] = {}
    codes = np.empty(len(values), np.int32)
    for position, value in enumerate(values):
        try:
            code = index.get(value)
        except TypeError:
            reason = "is not hashable; use a number, a string or a tuple"
            raise row_error(what, value, position, reason) from None
        if code is None:
            if is_missing(value):
                raise _missing_id(what, value, position)
            code = len(index)
            # NumPy scalars become Python values, but dates would lose their unit.
            is_date = isinstance(value, (np.datetime64, np.timedelta64))
            index[value.item() if isinstance(value, np.generic) and not is_date else value] = code
        codes[position] = code
    return CodedIds(codes, _integers_or_objects(list(index)))


def _encode(column: ArrowArray) -> tuple[Int32Array, ArrowArray]:
    """Return the codes and the dictionary of an Arrow column."""
    import pyarrow as pa

    chunks = column.dictionary_encode().chunks  # all of them share one dictionary
    codes = pa.chunked_array([chunk.indices for chunk in chunks])
    return to_numpy(codes), chunks[-1].dictionary


def _to_python_ids(column: ArrowArray, what: str) -> list[object]:
    """Return an Arrow column as Python values; Arrow has times and dates that Python lacks."""
    import pyarrow as pa

    if column.type == pa.time64("ns"):
        fine = to_numpy(column.cast(pa.int64())) % 1000 != 0
        if fine.any():  # Python would drop the nanoseconds and merge different ids
            row = int(fine.argmax())
            reason = "has nanoseconds, which Python's times have not; convert the column to text"
            raise row_error(what, to_python(column[row]), row, reason)
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError):
        for row, value in enumerate(column):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                reason = f"cannot be an id ({error}); convert the column of {column.type} to text"
                raise row_error(what, to_python(value), row, reason) from None
        raise
    return values


def _integers_or_objects(values: list[object]) -> AnyArray:
    """Return an int64 array if every value is a whole number that fits, else an object array."""

    def is_whole(value: object) -> bool:
        if type(value) is int:
            return -(2**63) <= value < 2**63
        return type(value) is float and value.is_integer() and abs(value) <= MAX_EXACT_FLOAT

    if all(map(is_whole, values)):
        return np.array(values, np.int64)
    return np.fromiter(values, object, count=len(values))


def _missing_id(what: str, value: object, row: int) -> DataError:
    return row_error(what, value, row, "is missing; drop or fill such rows first")


# -- Arrow columns -------------------------------------------------------------------------------


def as_column(values: IdsLike, what: str = "column") -> AnyArray | ArrowArray:
    """Return one-dimensional data as an Arrow chunked array or an object array.

    Short lists and objects without a common Arrow type (mixed types, tuples, huge integers) become
    an object array.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DataError(
            f"{what}: expected an array or a list, got the single value {values!r}; "
            f"write [{values!r}]",
            value=values,
        )
    if not isinstance(values, (np.ndarray, list, tuple)):
        values = _from_library(values)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"{what}: expected one dimension, got shape {values.shape}")
        if values.dtype.kind in "iufU" and len(values) > _SMALL:
            import pyarrow as pa

            return _chunked(pa.array(values.astype(values.dtype.newbyteorder("="), copy=False)))
        # tolist() turns NumPy's dates into integers, so they stay scalars.
        values = list(values) if values.dtype.kind in "mM" else values.tolist()
    return _from_objects(values) if isinstance(values, (list, tuple)) else _validated(values, what)


def _from_library(values: IdsLike) -> IdsLike:
    """Return an Arrow array for Arrow data and series; anything else as NumPy array or list."""
    import pyarrow as pa

    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _chunked(values)

    import narwhals as nw

    series = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        try:
            return _chunked(series.to_arrow())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return series.to_list()  # mixed types in an object column
    return np.asarray(values) if hasattr(values, "__array__") else list(values)


def _from_objects(values: list[object] | tuple[object, ...]) -> AnyArray | ArrowArray:
    if len(values) > _SMALL:
        import pyarrow as pa

        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            inferred = _chunked(pa.array(values))
            kind = inferred.type
            if pa.types.is_int64(kind) or pa.types.is_string(kind) or pa.types.is_float64(kind):
                return inferred
    return np.fromiter(values, dtype=object, count=len(values))


def _validated(column: ArrowArray, what: str) -> ArrowArray:
    """Check that text is UTF-8, which Arrow does not check by itself."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if is_text(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(f"{what}: the text is damaged or not UTF-8: {error}") from None
    return column


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN, NaT or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating, np.datetime64, np.timedelta64)) and bool(
        value != value
    )


def is_text(kind: object) -> bool:
    """Whether an Arrow type is text."""
    return str(kind) in ("string", "large_string", "string_view")


def to_numpy(column: ArrowArray) -> AnyArray:
    """Return Arrow numbers without nulls as a NumPy array, without a copy where possible."""
    # The first call of Arrow's own to_numpy imports pandas.
    parts = [np.from_dlpack(chunk) for chunk in _chunked(column).chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def to_python(value: ArrowArray) -> object:
    """Return an Arrow scalar as a Python value, or as text if Python has no such value."""
    import pyarrow as pa

    with suppress(ValueError, OverflowError):
        return value.as_py()
    with suppress(pa.ArrowException, ValueError):
        return value.cast(pa.string()).as_py()
    return str(value.type)


def _chunked(array: ArrowArray) -> ArrowArray:
    import pyarrow as pa

    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def first_null(column: ArrowArray) -> int:
    """Return the first row that is null."""
    import pyarrow.compute as pc

    return int(pc.index(column.is_null(), True).as_py())


# -- ids and row numbers -------------------------------------------------------------------------


class _Table:
    """Rows of integers in a small range, found by the integer itself."""

    def __init__(self, offset: int, rows: Int64Array) -> None:
        self._offset = offset  # the integer of the first place
        self._rows = rows  # -1 at the first and last place, where integers out of range end up

    @classmethod
    def of(cls, ids: Int64Array, room: int = 0) -> _Table | None:
        """Return a table of ids with ``room`` on both sides; None if they are too far apart."""
        low, high = int(ids.min()), int(ids.max())
        places = _PLACES_PER_ID * len(ids) + _FREE_PLACES
        if max(-low, high) > _MAX_TABLE_ID or high - low > places:
            return None
        offset, rows = low - 1 - room, np.full(high - low + 3 + 2 * room, -1)
        rows[ids - offset] = np.arange(len(ids))
        return cls(offset, rows)

    def find(self, ids: Int64Array) -> Int64Array:
        """Return the row of each id, or -1."""
        return self._rows.take(ids - self._offset, mode="clip")

    def truncate(self, size: int) -> None:
        """Remove rows from ``size`` on."""
        self._rows[self._rows >= size] = -1

    def extended(self, ids: AnyArray, first: int) -> _Table | None:
        """Return a table of all ids; those from row ``first`` on are new."""
        if ids.dtype != np.int64:
            return None
        new = ids[first:]
        if new.min() <= self._offset or new.max() >= self._offset + len(self._rows) - 1:
            return self.of(ids, room=len(ids))
        self._rows[new - self._offset] = np.arange(first, len(ids))
        return self


class Vocabulary:
    """Growable map between ids (any hashable) and row numbers, in order of first appearance.

    Ids that are equal in Python are the same id: ``np.int32(5)``, ``5`` and ``5.0`` are one,
    ``1`` and ``"1"`` are two. ``None`` and NaN are not allowed.

    >>> people = Vocabulary(["ann", "bob"])
    >>> people.add(["bob", "eve"])
    array([1, 2])
    >>> people.rows(["eve", "zoe"])
    array([ 2, -1])
    >>> people.ids[2], len(people), "zoe" in people
    ('eve', 3, False)
    """

    def __init__(self, ids: IdsLike = ()) -> None:
        self._size = 0
        self._buffer: AnyArray | None = np.empty(0, np.int64)  # None: the ids are in _text only
        self._text: ArrowArray = None  # all ids as Arrow text, until another id is added
        self._index: dict[object, int] | None = None  # built on demand
        self._table: _Table | None = None  # used instead of the index for suitable integers
        self._n_lookups = 0
        self._n_searches = 0
        self.add(ids)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, id: object) -> bool:
        return id in self._rows_by_id()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return len(self) == len(other) and self.ids.tolist() == other.ids.tolist()

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self.ids[:3].tolist())) + (", …" if len(self) > 3 else "")
        return f"Vocabulary({len(self)} ids: {some})"

    @property
    def ids(self) -> AnyArray:
        """The id of each row: an int64 array if all ids are integers, else an object array."""
        view = self._objects()[: self._size]
        view.flags.writeable = False
        return view

    @property
    def _integers(self) -> Int64Array | None:
        """The id of each row if all ids are integers, else None."""
        buffer = self._buffer
        return buffer[: self._size] if buffer is not None and buffer.dtype == np.int64 else None

    def rows(self, ids: IdsLike) -> Int64Array:
        """Return the row number of each id, -1 for unknown ids."""
        is_array = type(ids) is np.ndarray and ids.ndim == 1  # a masked array may lack ids
        if is_array and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
            self._prepare(len(ids))
            if self._table is not None:
                return self._table.find(ids.astype(np.int64, copy=False))
        if self._index is not None and is_array and len(ids) < self._size:
            kind = ids.dtype.kind
            if kind in "iuU" or (kind == "O" and set(map(type, ids.tolist())) <= {int, str}):
                return self._find_in_index(ids)
        coded = factorise(ids)
        rows: Int64Array = self._find(coded.distinct)[coded.codes]
        return rows

    def add(self, ids: IdsLike) -> Int64Array:
        """Return the row number of each id; append unknown ids."""
        return self.add_coded(factorise(ids)).astype(np.int64)

    def add_coded(self, coded: CodedIds) -> Int32Array:
        """Add factorised ids and return their rows."""
        if not len(coded.distinct):
            return np.empty(0, np.int32)
        if self._size == 0:
            self._append(coded.distinct)
            return coded.codes
        rows = self._find(coded.distinct)
        new = rows < 0
        if new.any():
            rows[new] = np.arange(self._size, self._size + new.sum())
            self._append(as_array(coded.distinct)[new])
        translated: Int32Array = rows.astype(np.int32)[coded.codes]
        return translated

    def knows_all(self, coded: CodedIds) -> bool:
        """Whether every factorised id has a row."""
        return bool((self._find(coded.distinct) >= 0).all())

    def similar(self, text: str, *, length_difference: int = 2) -> list[str]:
        """Return text ids of similar length that share the digits and a third of ``text``.

        Returns none if there are more than 1,000 of them, and none after 100 searches: unknown ids
        are then usual.

        >>> Vocabulary(["Matrix", "Alien", "matrx"]).similar("matrix")
        ['Matrix', 'matrx']
        """
        if self._n_searches >= _MAX_SEARCHES or self._integers is not None or not _is_utf8(text):
            return []
        self._n_searches += 1
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._text
        if known is None:
            texts = [id for id in self.ids.tolist() if isinstance(id, str) and _is_utf8(id)]
            known = pa.array(texts, pa.large_string())
        for digits in re.findall("[0-9]+", text):
            known = known.filter(pc.match_substring(known, digits))
        difference = pc.abs(pc.subtract(pc.utf8_length(known), len(text)))
        known = known.filter(pc.less_equal(difference, length_difference))
        lower = pc.utf8_lower(known)
        third = max(1, len(text) // 3)
        # An id with two typos has one of three parts without any.
        parts = text[:third], text[third:-third] or text, text[-third:]
        shared = reduce(pc.or_, (pc.match_substring(lower, part.lower()) for part in parts))
        chosen = known.filter(shared)
        similar: list[str] = chosen.to_pylist() if len(chosen) <= _MAX_SIMILAR else []
        return similar

    def copy(self) -> Vocabulary:
        """Return an independent copy with the same rows."""
        twin = Vocabulary()
        twin._size = self._size
        twin._text = self._text  # Arrow arrays are immutable
        twin._buffer = None if self._buffer is None else self._buffer[: self._size].copy()
        twin._index = None if self._index is None else self._index.copy()
        return twin

    def mark(self) -> Callable[[], None]:
        """Return a function that removes all ids added after this call."""
        before, size, index, table = vars(self).copy(), self._size, self._index, self._table

        def undo() -> None:
            if self._size != size:
                if table is not None:
                    table.truncate(size)
                if index is not None:
                    for id in [id for id, row in index.items() if row >= size]:
                        index.pop(id, None)
            vars(self).update(before)  # last: an interrupted undo can be repeated

        return undo

    def _find(self, distinct: DistinctIds) -> Int64Array:
        """Return the row of each distinct id, or -1."""
        self._prepare(len(distinct))
        known = self._text  # if it may hold ids of this type
        if isinstance(distinct, np.ndarray):
            known = self._integers if distinct.dtype == np.int64 else None
            if self._table is not None and distinct.dtype == np.int64:
                return self._table.find(distinct)
        if known is None or len(distinct) * (_BULK if self._index is None else 1) < self._size:
            return self._find_in_index(as_array(distinct))

        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.index_in(pa.array(distinct), value_set=pa.array(known)).fill_null(-1)
        return to_numpy(found).astype(np.int64)

    def _prepare(self, n: int) -> None:
        """Build a table or an index if n ids are few, or many have been looked up by now."""
        self._n_lookups += n
        if not self._size or self._table is not None or self._index is not None:
            return
        if self._n_lookups >= _INDEX_AFTER * self._size or n * _BULK < self._size:
            if self._integers is not None:
                self._table = _Table.of(self._integers)
            if self._table is None:
                self._rows_by_id()

    def _find_in_index(self, ids: AnyArray) -> Int64Array:
        found = map(self._rows_by_id().get, ids.tolist(), repeat(-1))
        return np.fromiter(found, np.int64, count=len(ids))

    def _rows_by_id(self) -> dict[object, int]:
        if self._index is None:
            self._index = dict(zip(self.ids.tolist(), range(self._size), strict=True))
        return self._index

    def _objects(self) -> AnyArray:
        if self._buffer is None:
            self._buffer = as_array(self._text)
        return self._buffer

    def _append(self, distinct: DistinctIds) -> None:
        start, end = self._size, self._size + len(distinct)
        if start == 0:
            is_array = isinstance(distinct, np.ndarray)
            self._buffer = distinct.copy() if is_array else None
            self._text = None if is_array else distinct
        else:
            buffer = self._objects()
            if buffer.dtype != distinct.dtype:
                buffer = buffer.astype(object)
            buffer = with_room(buffer, start, end)
            buffer[start:end] = distinct
            self._buffer, self._text = buffer, None
        self._size = end
        if self._table is not None:
            self._table = self._table.extended(self._objects()[:end], start)
        if self._index is not None:
            self._index.update(zip(as_array(distinct).tolist(), range(start, end), strict=True))


def _is_utf8(text: str) -> bool:
    """Whether text is not empty and without lone surrogates, which Arrow cannot hold."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def as_ids(ids: IdsLike, known: Vocabulary) -> tuple[IdsLike, bool]:
    """Return a list or array of ids, and whether a single id was passed.

    A tuple is a single id if any ``known`` id is a tuple; otherwise it holds several ids.

    >>> as_ids("ann", Vocabulary(["ann"]))
    (array(['ann'], dtype=object), True)
    >>> as_ids(("ann", "bob"), Vocabulary(["ann"]))
    (['ann', 'bob'], False)
    >>> as_ids(("ann", 3), Vocabulary([("bob", 1)]))
    (array([('ann', 3)], dtype=object), True)
    """
    if isinstance(ids, np.ndarray) and ids.ndim == 0:
        ids = ids[()]
    if isinstance(ids, tuple) and not (
        known.ids.dtype == object and any(isinstance(id, tuple) for id in known.ids)
    ):
        return list(ids), False
    if isinstance(ids, str | bytes | tuple | Set | Mapping):
        return repeat_id(ids, 1), True
    if isinstance(ids, Iterator):
        return list(ids), False
    if not hasattr(ids, "__len__") or getattr(ids, "ndim", 1) == 0:
        return repeat_id(ids, 1), True
    return ids, False


def pair_up(
    users: tuple[IdsLike, bool], items: tuple[IdsLike, bool]
) -> tuple[IdsLike, IdsLike, bool]:
    """Return as many users as items, and whether it is a single pair.

    Takes two results of `as_ids`. A single id is repeated for each id of the other side.
    """
    (user_ids, one_user), (item_ids, one_item) = users, items
    if one_user and not one_item:
        user_ids = repeat_id(user_ids[0], len(item_ids))
    elif one_item and not one_user:
        item_ids = repeat_id(item_ids[0], len(user_ids))
    if len(user_ids) != len(item_ids):
        raise DataError(f"{len(user_ids)} users and {len(item_ids)} items do not pair up")
    return user_ids, item_ids, one_user and one_item


def repeat_id(id: object, times: int) -> AnyArray:
    """Return an object array that holds an id several times, even if it is a tuple."""
    return np.fromiter(repeat(id, times), object, count=times)


# -- distinct ratings ----------------------------------------------------------------------------


class RatingBook:
    """The distinct rating values in float64, numbered in the order in which they were first seen.

    >>> book = RatingBook()
    >>> book.codes(np.float32([4, 3.5, 4])).tolist(), book.values.tolist()
    ([0, 1, 0], [4.0, 3.5])
    >>> book.known(np.float32([3.5, 2])).tolist(), len(book)
    ([1, -1], 2)
    """

    def __init__(self) -> None:
        self._values: Float64Array = np.empty(0, np.float64)
        self._count = 0
        # Most values are in the long index, the latest in a short one: otherwise each new value
        # could move millions.
        self._long = self._recent = _Index.empty()

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Float64Array:
        """The value of each code; valid until values are added or removed."""
        return self._values[: self._count]

    def known(self, values: Array) -> Int64Array:
        """Return the code of each value, -1 for those not in the book."""
        wanted = values.astype(np.float64, copy=False)
        codes = self._recent.find(wanted)
        if len(self._long.values):
            missed = np.flatnonzero(codes < 0)
            if len(missed):
                codes[missed] = self._long.find(wanted[missed])
        return codes

    def codes(self, values: Array) -> Int64Array:
        """Return the code of each value; new values are added."""
        codes = self.known(values)
        new = codes < 0
        if new.any():
            self._add(values[new].astype(np.float64))
            codes = self.known(values)
        return codes

    def truncate(self, count: int) -> None:
        """Remove all values but the first ``count``.

        >>> book = RatingBook()
        >>> _ = book.codes(np.float32([4])), book.codes(np.float32([3, 5]))
        >>> book.truncate(1)
        >>> book.values.tolist(), book.known(np.float32([5, 4])).tolist()
        ([4.0], [-1, 0])
        """
        if count < self._count:
            self._long, self._recent = self._long.below(count), self._recent.below(count)
            self._count = count

    def _add(self, values: Float64Array) -> None:
        distinct, first = np.unique(values, return_index=True)
        rank = np.empty(len(first), np.uint32)
        rank[np.argsort(first)] = np.arange(len(first))
        count = self._count + len(distinct)
        stored = with_room(self._values, self._count, count)
        stored[self._count + rank.astype(np.int64)] = distinct
        long = self._long
        recent = self._recent.merged(_Index(distinct, rank + np.uint32(self._count)))
        if len(recent.values) > max(RECENT_VALUES, 8 * int(len(long.values) ** 0.5)):
            long, recent = long.merged(recent), _Index.empty()
        self._values, self._long, self._recent = stored, long, recent
        self._count = count


class _Index(NamedTuple):
    """Values in ascending order, each with its code."""

    values: Float64Array
    codes: npt.NDArray[np.uint32]

    @classmethod
    def empty(cls) -> _Index:
        return cls(np.empty(0, np.float64), np.empty(0, np.uint32))

    def find(self, wanted: Float64Array) -> Int64Array:
        if not len(self.values):
            return np.full(len(wanted), -1)
        place = self.values.searchsorted(wanted)
        codes = self.codes.take(place, mode="clip").astype(np.int64)
        codes[self.values.take(place, mode="clip") != wanted] = -1
        return codes

    def merged(self, other: _Index) -> _Index:
        values = np.concatenate([self.values, other.values])
        order = np.argsort(values, kind="stable")  # of two sorted parts, a mere merge
        return _Index(values[order], np.concatenate([self.codes, other.codes])[order])

    def below(self, count: int) -> _Index:
        kept = self.codes < count
        return _Index(self.values[kept], self.codes[kept])


# -- arrays that grow ----------------------------------------------------------------------------


def with_room(array: A, used: int, wanted: int) -> A:
    """Return an array with room for ``wanted`` rows; the first ``used`` are kept.

    An array without enough room is copied to one of at least twice its length, so that appending
    costs constant time on average. New rows are zero, or None in an object array.

    >>> with_room(np.array([7, 8]), 2, 3)[:4]
    array([7, 8, 0, 0])
    """
    if wanted <= len(array):
        return array
    room = max(wanted, 2 * len(array), _MIN_ROOM)
    grown = np.zeros((room, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown  # type: ignore[return-value]
