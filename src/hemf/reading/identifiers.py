"""Columns of ids, turned into codes: the distinct ids, and which of them stands in each row.

Text stays Arrow text here, so that a million strings become Python objects only when somebody
looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf.errors import DataError

Distinct = Any
"""Different ids: an int64 array, an Arrow array of ``large_string``, or an object array."""

_SHORT = 64  # below this many ids a dict is faster than waking Arrow
_FEW = 65_536  # up to so many, whole numbers that lie close together are numbered by a table
_CLOSE = 16  # places of such a table for each id
_LARGEST_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True, eq=False)
class CodedIds:
    """A column of ids: ``distinct[codes]``, distinct ids in order of first appearance.

    >>> coded = factorise(["ann", "bob", "ann"])
    >>> coded.codes.tolist(), list(coded.distinct)
    ([0, 1, 0], ['ann', 'bob'])
    """

    codes: NDArray[np.int32]
    distinct: Distinct

    def __len__(self) -> int:
        return len(self.codes)

    def decode(self) -> NDArray[Any]:
        """Write the column out again, as an int64 or an object array.

        >>> factorise([7, 5, 7]).decode()
        array([7, 5, 7])
        """
        decoded: NDArray[Any] = as_array(self.distinct)[self.codes]
        return decoded


class _UnusableIdError(Exception):
    """An id that cannot be one; becomes a DataError once its row in the input is known."""

    def __init__(self, position: int, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.value = value
        self.reason = reason


def factorise(ids: Any, what: str = "id") -> CodedIds:
    """Find the distinct ids of a column and the code of each row.

    Accepts lists, NumPy arrays, Arrow arrays (dictionaries too), and pandas or polars series.
    Floats that are all whole become integers. ``what`` names the column in errors.

    >>> factorise(np.array([3.0, 1.0, 3.0])).distinct
    array([3, 1])
    >>> factorise(["ann", None], what="user")
    Traceback (most recent call last):
    hemf.errors.DataError: user None at row 1 is missing; drop or fill such rows first
    """
    if type(ids) is np.ndarray and ids.dtype.kind in "iu" and ids.ndim == 1:  # no masked one
        coded = _factorise_close(ids)
        if coded is not None:
            return coded
    try:
        return _factorise(as_column(ids, what))
    except _UnusableIdError as bad:
        message = f"{what} {bad.value!r} at row {bad.position} {bad.reason}"
        raise DataError(message, value=bad.value, row=bad.position) from None


def as_column(values: Any, what: str = "column") -> Any:
    """One-dimensional data of any kind as an Arrow chunked array, or an object array.

    Objects that Arrow has no common type for (mixed types, tuples, huge integers) and short lists
    come back as an object array.

    >>> as_column(np.arange(100)).type
    DataType(int64)
    >>> as_column([1, "two", (3, 4)])
    array([1, 'two', (3, 4)], dtype=object)
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
            return _checked(values, what)  # Arrow
        return _from_objects(values)
    if values.ndim != 1:
        raise DataError(f"{what}: expected one dimension, got shape {values.shape}")
    if values.dtype.kind in "iufU" and len(values) > _SHORT:
        import pyarrow as pa

        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        return _chunked(pa.array(native))
    # NumPy's own dates would become bare integers in a list, so they stay scalars.
    return _from_objects(list(values) if values.dtype.kind in "mM" else values.tolist())


def as_array(distinct: Distinct) -> NDArray[Any]:
    """Distinct ids as an int64 or an object array of Python values.

    >>> import pyarrow as pa
    >>> as_array(pa.array(["ann"], pa.large_string()))
    array(['ann'], dtype=object)
    """
    if isinstance(distinct, np.ndarray):
        return distinct
    return np.asarray(distinct.to_numpy(zero_copy_only=False), dtype=object)


def is_missing(value: Any) -> bool:
    """Whether a value stands for nothing: None, NaN, NaT or pandas' NA.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating, np.datetime64, np.timedelta64)) and bool(
        value != value
    )


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text.

    >>> import pyarrow as pa
    >>> is_text(pa.large_string()), is_text(pa.int8())
    (True, False)
    """
    return str(kind) in ("string", "large_string", "string_view")


def first_missing_row(column: Any) -> int:
    """Position of the first null of an Arrow column.

    >>> import pyarrow as pa
    >>> first_missing_row(pa.chunked_array([["a"], [None]]))
    1
    """
    import pyarrow.compute as pc

    return int(pc.index(column.is_null(), True).as_py())


def numbers_of(column: Any) -> NDArray[Any]:
    """Arrow integers or floats without nulls as one NumPy array, without a copy where it can be.

    >>> import pyarrow as pa
    >>> numbers_of(pa.chunked_array([[1], [2]]))
    array([1, 2])
    """
    # Not to_numpy: the first call of that loads pandas.
    parts = [np.from_dlpack(chunk) for chunk in _chunked(column).chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _chunked(array: Any) -> Any:
    import pyarrow as pa

    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _checked(column: Any, what: str) -> Any:
    """Return an Arrow column; text in it has to be UTF-8, which Arrow does not check by itself."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if is_text(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(f"{what}: the text is damaged or not UTF-8: {error}") from None
    return column


def _from_library(values: Any) -> Any:
    """Arrow arrays and series of the DataFrame libraries; anything else through NumPy or a list."""
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


def _from_objects(values: Any) -> Any:
    if len(values) > _SHORT:
        import pyarrow as pa

        try:
            inferred = _chunked(pa.array(values))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # no common type: keep the objects
        else:
            kind = inferred.type
            if pa.types.is_int64(kind) or pa.types.is_string(kind) or pa.types.is_float64(kind):
                return inferred
    return np.fromiter(values, dtype=object, count=len(values))


def _factorise(column: Any) -> CodedIds:
    if isinstance(column, np.ndarray):
        return _factorise_objects(column)

    import pyarrow as pa

    if len(column) == 0:
        return CodedIds(np.empty(0, np.int32), np.empty(0, np.int64))
    if column.null_count:
        raise _missing(first_missing_row(column), None)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _factorise_dictionary(column)
    if pa.types.is_floating(kind):
        numbers = numbers_of(column).astype(np.float64) + 0.0  # -0.0 and 0.0 are one id
        missing = np.isnan(numbers)
        if missing.any():
            raise _missing(int(missing.argmax()), float("nan"))
        codes, distinct = _encode(_chunked(pa.array(numbers)))
        values = numbers_of(distinct)
        whole = (np.floor(values) == values) & (np.abs(values) <= _LARGEST_EXACT_FLOAT)
        return CodedIds(codes, values.astype(np.int64 if whole.all() else object))
    if pa.types.is_integer(kind):
        codes, distinct = _encode(column)
        if pa.types.is_uint64(kind):
            return CodedIds(codes, _whole_numbers(distinct.to_pylist()))
        return CodedIds(codes, numbers_of(distinct.cast(pa.int64())))
    if is_text(kind):
        codes, distinct = _encode(column)
        return CodedIds(codes, distinct.cast(pa.large_string()))
    return _factorise_objects(np.fromiter(_python_values(column), object, count=len(column)))


def _python_values(column: Any) -> list[Any]:
    """Return an Arrow column as Python values; some dates are beyond those that Python has."""
    import pyarrow as pa

    if column.type == pa.time64("ns"):
        fine = numbers_of(column.cast(pa.int64())) % 1000 != 0
        if fine.any():  # Python would drop the nanoseconds, and ids would become equal
            row = int(fine.argmax())
            reason = "has nanoseconds, which Python's times have not; convert the column to text"
            raise _UnusableIdError(row, python_value(column[row]), reason)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        for row, value in enumerate(column):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                reason = f"cannot be an id ({error}); convert the column of {column.type} to text"
                raise _UnusableIdError(row, python_value(value), reason) from None
        raise
    return values


def python_value(value: Any) -> Any:
    """Return an Arrow value as a Python value, or as text where Python has none such.

    >>> import pyarrow as pa
    >>> python_value(pa.scalar(3)), python_value(pa.scalar(2**40, pa.timestamp("s")))
    (3, '<value out of range: 1099511627776>')
    """
    import pyarrow as pa

    try:
        return value.as_py()
    except (ValueError, OverflowError):
        pass
    try:
        return value.cast(pa.string()).as_py()
    except (pa.ArrowException, ValueError):
        return str(value.type)


def _factorise_close(ids: NDArray[Any]) -> CodedIds | None:
    """Factorise a batch of whole numbers that lie close together; None where it is no such."""
    n = len(ids)
    if not _SHORT < n <= _FEW:
        return None
    low, high = int(ids.min()), int(ids.max())
    if high - low >= _CLOSE * n or high >= 2**63:
        return None
    numbers = ids.astype(np.int64)
    place, order = numbers - low, np.arange(n, dtype=np.int32)
    table = np.empty(high - low + 1, np.int32)
    table[place[::-1]] = order[::-1]  # the first of equal ones is written last
    first = table[place]
    is_first = first == order
    number: NDArray[np.int32] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return CodedIds(number[first], numbers[is_first])


def _encode(column: Any) -> tuple[NDArray[np.int32], Any]:
    import pyarrow as pa

    chunks = column.dictionary_encode().chunks  # all of them share one dictionary
    codes = pa.chunked_array([chunk.indices for chunk in chunks])
    return numbers_of(codes), chunks[-1].dictionary


def _factorise_dictionary(column: Any) -> CodedIds:
    """Factorise a column that has its own dictionary: only the dictionary is looked through.

    Its entries may be unused, out of order, missing, or even repeated.
    """
    import pyarrow as pa

    chunks = [chunk for chunk in column.unify_dictionaries().chunks if len(chunk)]
    given = pa.chunked_array([chunk.indices for chunk in chunks])
    codes, used = _encode(given)
    values = chunks[-1].dictionary.take(used)
    try:
        inner = _factorise(_chunked(values))
    except _UnusableIdError as bad:
        first_row = int((codes == bad.position).argmax())
        raise _UnusableIdError(first_row, bad.value, bad.reason) from None
    if len(inner.distinct) == len(values):
        return CodedIds(codes, inner.distinct)
    return CodedIds(inner.codes[codes], inner.distinct)


def _factorise_objects(values: NDArray[Any]) -> CodedIds:
    index: dict[Any, int] = {}
    codes = np.empty(len(values), np.int32)
    for position, value in enumerate(values):
        try:
            code = index.get(value)
        except TypeError:
            reason = "is not hashable; use a number, a string or a tuple"
            raise _UnusableIdError(position, value, reason) from None
        if code is None:
            if is_missing(value):
                raise _missing(position, value)
            code = len(index)
            index[_plain(value)] = code
        codes[position] = code
    return CodedIds(codes, _whole_numbers(list(index)))


def _plain(value: Any) -> Any:
    """Turn a NumPy scalar into the Python value it equals; dates would lose their unit and stay."""
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    return value


def _whole_numbers(values: list[Any]) -> NDArray[Any]:
    """Make an int64 array of whole numbers that fit, an object array of anything else."""
    if all(_is_whole(value) for value in values):
        return np.fromiter(map(int, values), np.int64, count=len(values))
    return np.fromiter(values, object, count=len(values))


def _is_whole(value: Any) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and value.is_integer() and abs(value) <= _LARGEST_EXACT_FLOAT


def _missing(position: int, value: Any) -> _UnusableIdError:
    return _UnusableIdError(position, value, "is missing; drop or fill such rows first")
