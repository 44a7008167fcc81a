"""Columns of ids, numbers and times of any origin, checked and converted to arrays.

Columns of ids become codes: the distinct ids, and the position of each row's id among them. Text
stays Arrow text, because a million Python strings cost far more memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hemf._checks import check_rows
from hemf._typing import AnyArray, Array, ArrowArray, DistinctIds, IdsLike, Int32Array, Int64Array
from hemf.errors import DataError, row_error

_SMALL = 64  # a dict is faster than Arrow below this length
_MAX_TABLE_ROWS = 65_536  # integers in a small range are coded by a table up to this length …
_TABLE_SPARSITY = 16  # … if the range has at most this many values per row
_MAX_EXACT_FLOAT = 2**53  # float64 holds every integer up to this one
_NEGLIGIBLE = 1e-6  # rounding to float32 may move ratings by this share of their range


# -- ids -----------------------------------------------------------------------------------------


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

    def decode(self) -> AnyArray:
        """Return the column as an int64 or object array."""
        decoded: AnyArray = as_array(self.distinct)[self.codes]
        return decoded


class _InvalidIdError(Exception):
    """An unusable id; becomes a DataError once its row in the input is known."""

    def __init__(self, position: int, value: object, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.value = value
        self.reason = reason


def factorise(ids: IdsLike, what: str = "id") -> CodedIds:
    """Find the distinct ids of a column and the code of each row.

    Accepts lists, NumPy arrays, Arrow arrays (dictionaries too), and pandas or polars series.
    Floats become integers if all of them are whole. ``what`` names the column in errors.

    >>> factorise(np.array([3.0, 1.0, 3.0])).distinct
    array([3, 1])
    >>> factorise(["ann", None], what="user")
    Traceback (most recent call last):
    hemf.errors.DataError: user None at row 1 is missing; drop or fill such rows first
    """
    # Not for subclasses: a masked array may lack ids.
    if type(ids) is np.ndarray and ids.dtype.kind in "iu" and ids.ndim == 1:
        coded = _factorise_by_table(ids)
        if coded is not None:
            return coded
    try:
        return _factorise(as_column(ids, what))
    except _InvalidIdError as bad:
        raise row_error(what, bad.value, bad.position, bad.reason) from None


def as_array(distinct: DistinctIds) -> AnyArray:
    """Return distinct ids as an int64 array or an object array of Python values."""
    if isinstance(distinct, np.ndarray):
        return distinct
    return np.asarray(distinct.to_numpy(zero_copy_only=False), dtype=object)


def _factorise(column: AnyArray | ArrowArray) -> CodedIds:
    if isinstance(column, np.ndarray):
        return _factorise_objects(column)

    import pyarrow as pa

    if len(column) == 0:
        return CodedIds(np.empty(0, np.int32), np.empty(0, np.int64))
    if column.null_count:
        raise _missing_id(_first_null(column), None)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _factorise_dictionary(column)
    if pa.types.is_floating(kind):
        numbers = to_numpy(column).astype(np.float64) + 0.0  # -0.0 and 0.0 are one id
        missing = np.isnan(numbers)
        if missing.any():
            raise _missing_id(int(missing.argmax()), float("nan"))
        codes, distinct = _encode(_chunked(pa.array(numbers)))
        values = to_numpy(distinct)
        whole = (np.floor(values) == values) & (np.abs(values) <= _MAX_EXACT_FLOAT)
        return CodedIds(codes, values.astype(np.int64 if whole.all() else object))
    if pa.types.is_integer(kind):
        codes, distinct = _encode(column)
        if pa.types.is_uint64(kind):
            return CodedIds(codes, _integers_or_objects(distinct.to_pylist()))
        return CodedIds(codes, to_numpy(distinct.cast(pa.int64())))
    if is_text(kind):
        codes, distinct = _encode(column)
        return CodedIds(codes, distinct.cast(pa.large_string()))
    return _factorise_objects(np.fromiter(_to_python_ids(column), object, count=len(column)))


def _factorise_by_table(ids: AnyArray) -> CodedIds | None:
    """Factorise integers in a small range with a lookup table; None if they do not qualify."""
    n = len(ids)
    if not _SMALL < n <= _MAX_TABLE_ROWS:
        return None
    low, high = int(ids.min()), int(ids.max())
    if high - low >= _TABLE_SPARSITY * n or high >= 2**63:
        return None
    numbers = ids.astype(np.int64)
    place, order = numbers - low, np.arange(n, dtype=np.int32)
    table = np.empty(high - low + 1, np.int32)
    table[place[::-1]] = order[::-1]  # the first of equal ids is written last
    first = table[place]
    is_first = first == order
    number: Int32Array = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return CodedIds(number[first], numbers[is_first])


def _factorise_dictionary(column: ArrowArray) -> CodedIds:
    """Factorise a dictionary column; its entries may be unused, unordered, null or repeated."""
    import pyarrow as pa

    chunks = [chunk for chunk in column.unify_dictionaries().chunks if len(chunk)]
    codes, used = _encode(pa.chunked_array([chunk.indices for chunk in chunks]))
    values = chunks[-1].dictionary.take(used)
    try:
        inner = _factorise(_chunked(values))
    except _InvalidIdError as bad:
        first_row = int((codes == bad.position).argmax())
        raise _InvalidIdError(first_row, bad.value, bad.reason) from None
    if len(inner.distinct) == len(values):
        return CodedIds(codes, inner.distinct)
    return CodedIds(inner.codes[codes], inner.distinct)


def _factorise_objects(values: AnyArray) -> CodedIds:
    index: dict[object, int] = {}
    codes = np.empty(len(values), np.int32)
    for position, value in enumerate(values):
        try:
            code = index.get(value)
        except TypeError:
            reason = "is not hashable; use a number, a string or a tuple"
            raise _InvalidIdError(position, value, reason) from None
        if code is None:
            if is_missing(value):
                raise _missing_id(position, value)
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


def _to_python_ids(column: ArrowArray) -> list[object]:
    """Return an Arrow column as Python values; Arrow has times and dates that Python lacks."""
    import pyarrow as pa

    if column.type == pa.time64("ns"):
        fine = to_numpy(column.cast(pa.int64())) % 1000 != 0
        if fine.any():  # Python would drop the nanoseconds and merge different ids
            row = int(fine.argmax())
            reason = "has nanoseconds, which Python's times have not; convert the column to text"
            raise _InvalidIdError(row, to_python(column[row]), reason)
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError):
        for row, value in enumerate(column):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                reason = f"cannot be an id ({error}); convert the column of {column.type} to text"
                raise _InvalidIdError(row, to_python(value), reason) from None
        raise
    return values


def _integers_or_objects(values: list[object]) -> AnyArray:
    """Return an int64 array if every value is a whole number that fits, else an object array."""

    def is_whole(value: object) -> bool:
        if type(value) is int:
            return -(2**63) <= value < 2**63
        return type(value) is float and value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT

    if all(map(is_whole, values)):
        return np.array(values, np.int64)
    return np.fromiter(values, object, count=len(values))


def _missing_id(position: int, value: object) -> _InvalidIdError:
    return _InvalidIdError(position, value, "is missing; drop or fill such rows first")


# -- ratings and times ---------------------------------------------------------------------------


def downcast(ratings: Array, *, exact: bool = False) -> Array:
    """Return ratings as float32 if that is accurate enough, else as float64.

    No rating may move by more than a millionth of their range; with ``exact``, not at all.

    >>> downcast(np.array([0.1, 0.5])).dtype, downcast(np.array([1e9, 1e9 + 1])).dtype
    (dtype('float32'), dtype('float64'))
    """
    if ratings.dtype == np.float32 or not ratings.size:
        return ratings.astype(np.float32, copy=False)
    single = ratings.astype(np.float32)
    moved = float(np.abs(single - ratings).max())
    allowed = 0.0 if exact else _NEGLIGIBLE * (float(ratings.max()) - float(ratings.min()))
    return single if moved <= allowed else ratings


def parse_ratings(column: object) -> Array:
    """Return ratings, all of them finite numbers, as float32 if that is exact, else as float64.

    >>> parse_ratings([1, 2.5, "3"])
    array([1. , 2.5, 3. ], dtype=float32)
    >>> parse_ratings([1, "good"])
    Traceback (most recent call last):
    hemf.errors.DataError: rating 'good' at row 1 is not a number
    """
    numbers = _parse_numbers(column, "rating")
    with np.errstate(over="ignore"):  # too large a number becomes infinite
        bad = ~np.isfinite(numbers.astype(np.float32, copy=False))
    if bad.any():
        row = int(bad.argmax())
        value = numbers[row].item()
        reason = "is too large" if np.isfinite(value) else "is not finite"
        raise row_error("rating", value, row, reason)
    if numbers.dtype.kind in "iu":
        _reject_merged(numbers)
    ratings: Array = numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
    return downcast(ratings, exact=True)


def parse_timestamps(column: object) -> Int64Array:
    """Return times as int64: numbers rounded down, dates as seconds since 1970.

    >>> import datetime
    >>> parse_timestamps([datetime.datetime(1970, 1, 2)])
    array([86400])
    """
    import pyarrow as pa

    if isinstance(column, (list, tuple, np.ndarray)):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            column = pa.array(column)  # finds dates too
    values = as_column(column, "timestamp")
    if not isinstance(values, np.ndarray):
        values = _without_dictionary(values)
        if pa.types.is_integer(values.type) and not values.null_count:
            return to_numpy(_cast(values, pa.int64()))
        # The first entry that is not null decides the type of a text column.
        if is_text(values.type) and not _is_castable(values.drop_null()[:1], pa.float64()):
            values = _parse_dates(values)
        if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
            _reject_nulls(values, "timestamp")
            seconds = _cast(values, pa.timestamp("s"), safe=False)
            return to_numpy(_cast(seconds, pa.int64()))
    numbers = _parse_numbers(values, "timestamp")
    is_time = np.abs(numbers.astype(np.float64)) < 2.0**63  # false for NaN
    check_rows("timestamp", numbers, ~is_time, "is not a time")
    times: Int64Array = np.floor(numbers).astype(np.int64)
    return times


def as_times(timestamps: object, n: int) -> Int64Array:
    """Return one time for each of n pairs; a single time is used for all of them."""
    if isinstance(timestamps, Iterator):
        timestamps = list(timestamps)
    if isinstance(timestamps, np.datetime64):
        timestamps = np.array([timestamps])
    is_single = isinstance(timestamps, str | bytes) or np.ndim(timestamps) == 0  # type: ignore[arg-type]
    values: IdsLike = [timestamps] if is_single else timestamps
    times = parse_timestamps(values) if len(values) else np.empty(0, np.int64)
    if times.size == 1:
        times = np.repeat(times, n)
    if times.size != n:
        raise DataError(f"there are {times.size} timestamps for {n} pairs", value=times.size)
    return times


def is_plain(text: str | bytes) -> bool:
    """Whether text has none of the number notation that only Python accepts, such as ``1_0``.

    >>> is_plain(" 1e3"), is_plain("1_0"), is_plain("١٢")
    (True, False, False)
    """
    characters = text.decode("latin-1") if isinstance(text, bytes) else text
    return characters.strip().isascii() and "_" not in characters


def _reject_merged(numbers: AnyArray) -> None:
    """Reject integers so large that different ones are the same float."""
    if ((numbers > _MAX_EXACT_FLOAT) | (numbers < -_MAX_EXACT_FLOAT)).any():
        values, rows = np.unique(numbers, return_index=True)
        same = np.flatnonzero(np.diff(values.astype(np.float64)) == 0.0)
        if same.size:
            row = int(rows[same[0] + 1])
            reason = "differs from another by less than float64 can hold; subtract a constant"
            raise row_error("rating", numbers[row].item(), row, f"{reason} from all ratings")


def _parse_numbers(column: IdsLike, what: str) -> AnyArray:
    """Return numbers; the first entry that is missing or not a number raises a DataError."""
    import pyarrow as pa

    if type(column) is np.ndarray and column.ndim == 1 and column.dtype.kind in "iufb":
        return column
    column = as_column(column, what)
    if isinstance(column, np.ndarray):
        return _parse_objects(column, what)
    column = _without_dictionary(column)
    _reject_nulls(column, what)
    if is_text(column.type):
        if not _is_castable(column, pa.float64()):
            return _parse_objects(np.asarray(column.to_pylist(), dtype=object), what)
        column = column.cast(pa.float64())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        reason = f"is not a number (the column holds {column.type})"
        raise row_error(what, to_python(column[0]), 0, reason)
    return to_numpy(column)


def _parse_objects(values: AnyArray, what: str) -> AnyArray:
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        with suppress(OverflowError):
            return np.array(values, np.int64 if kinds == {int} else np.float64)
    numbers = np.empty(len(values), np.float64)
    for row, value in enumerate(values):
        if value is None or (is_missing(value) and not isinstance(value, float)):
            raise _missing_value(what, row)
        if isinstance(value, (str, bytes)) and not is_plain(value):
            raise row_error(what, value, row, "is not a number")
        try:
            numbers[row] = float(value)
        except OverflowError:
            raise DataError(f"{what} at row {row} is too large", value=value, row=row) from None
        except (TypeError, ValueError):
            raise row_error(what, value, row, "is not a number") from None
    return numbers


def _parse_dates(column: ArrowArray) -> ArrowArray:
    import pyarrow as pa

    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        if _is_castable(column, kind):
            return column.cast(kind)
    row = next(row for row, text in enumerate(column) if not _is_castable(text, pa.timestamp("us")))
    reason = "is not a time (write ISO dates, or leave the column out)"
    raise row_error("timestamp", to_python(column[row]), row, reason)


def _missing_value(what: str, row: int) -> DataError:
    return DataError(f"{what} at row {row} is missing; drop or fill such rows first", row=row)


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
    if not isinstance(values, np.ndarray):
        if not isinstance(values, (list, tuple)):
            return _validated(values, what)  # Arrow
        return _from_objects(values)
    if values.ndim != 1:
        raise DataError(f"{what}: expected one dimension, got shape {values.shape}")
    if values.dtype.kind in "iufU" and len(values) > _SMALL:
        import pyarrow as pa

        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        return _chunked(pa.array(native))
    # tolist() turns NumPy's dates into integers, so they stay scalars.
    return _from_objects(list(values) if values.dtype.kind in "mM" else values.tolist())


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


def _without_dictionary(column: ArrowArray) -> ArrowArray:
    import pyarrow as pa

    is_dictionary = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_dictionary else column


def _cast(column: ArrowArray, kind: object, *, safe: bool = True) -> ArrowArray:
    import pyarrow as pa

    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowException as error:
        raise DataError(f"timestamp: {error}") from None


def _is_castable(values: ArrowArray, kind: object) -> bool:
    import pyarrow as pa

    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _first_null(column: ArrowArray) -> int:
    import pyarrow.compute as pc

    return int(pc.index(column.is_null(), True).as_py())


def _reject_nulls(column: ArrowArray, what: str) -> None:
    if column.null_count:
        raise _missing_value(what, _first_null(column))
