"""Columns of numbers: ratings as floats and times in int64, checked value by value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf.errors import DataError
from hemf.reading.identifiers import (
    as_column,
    first_missing_row,
    is_missing,
    is_text,
    numbers_of,
    python_value,
)

Values = NDArray[np.floating[Any]]
"""Ratings: in float32 where that holds them, else in float64."""

_NEGLIGIBLE = 1e-6  # of the range of ratings, which rounding may move them by
_LARGEST_EXACT = 2**53  # whole number up to which float64 has all of them


def stored(ratings: Values, *, exact: bool = False) -> Values:
    """Return ratings in float32 where that makes no difference, else in float64.

    No rating may move by more than a millionth of their range; where ``exact``, by nothing at all.

    >>> stored(np.array([0.1, 0.5])).dtype, stored(np.array([1e9, 1e9 + 1])).dtype
    (dtype('float32'), dtype('float64'))
    """
    if ratings.dtype == np.float32 or not ratings.size:
        return ratings.astype(np.float32, copy=False)
    single = ratings.astype(np.float32)
    moved = float(np.abs(single - ratings).max())
    allowed = 0.0 if exact else _NEGLIGIBLE * (float(ratings.max()) - float(ratings.min()))
    return single if moved <= allowed else ratings


def ratings_from(column: Any) -> Values:
    """Ratings as they were given, each a finite number; in float32 where that is exact.

    >>> ratings_from([1, 2.5, "3"])
    array([1. , 2.5, 3. ], dtype=float32)
    >>> ratings_from([1, "good"])
    Traceback (most recent call last):
    hemf.errors.DataError: rating 'good' at row 1 is not a number
    """
    numbers = _numbers(column, "rating")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is caught below
        bad = ~np.isfinite(numbers.astype(np.float32, copy=False))
    if bad.any():
        row = int(bad.argmax())
        value = numbers[row].item()
        reason = "is too large" if np.isfinite(value) else "is not finite"
        raise DataError(f"rating {value!r} at row {row} {reason}", value=value, row=row)
    if numbers.dtype.kind in "iu":
        _reject_merged(numbers)
    ratings: Values = numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
    return stored(ratings, exact=True)


def _reject_merged(numbers: NDArray[Any]) -> None:
    """Refuse whole numbers so large that different ones are one and the same float."""
    large = (numbers > _LARGEST_EXACT) | (numbers < -_LARGEST_EXACT)
    if large.any():
        values, rows = np.unique(numbers, return_index=True)
        same = np.flatnonzero(np.diff(values.astype(np.float64)) == 0.0)
        if same.size:
            row = int(rows[same[0] + 1])
            raise DataError(
                f"rating {numbers[row].item()!r} at row {row} differs from another by less than "
                "float64 can hold; subtract a constant from all ratings",
                value=numbers[row].item(),
                row=row,
            )


def timestamps_from(column: Any) -> NDArray[np.int64]:
    """Read times as int64: whole numbers as they are, dates as seconds since 1970.

    >>> import datetime
    >>> timestamps_from([datetime.datetime(1970, 1, 2)])
    array([86400])
    """
    import pyarrow as pa

    column = _with_dates(column)
    if not isinstance(column, np.ndarray):
        column = _decoded(column)
        if pa.types.is_integer(column.type) and not column.null_count:
            return numbers_of(_cast(column, pa.int64(), "timestamp"))
        if is_text(column.type) and not _parses(column.drop_null()[:1], pa.float64()):
            # The type of a text column is settled by its first entry that is there at all.
            column = _dates_from_text(column)
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            _reject_missing(column, "timestamp")
            seconds = _cast(column, pa.timestamp("s"), "timestamp", safe=False)
            return numbers_of(_cast(seconds, pa.int64(), "timestamp"))
    numbers = _numbers(column, "timestamp")
    bad = ~(np.abs(numbers.astype(np.float64)) < 2.0**63)  # NaN is not below either
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"timestamp {numbers[row].item()!r} at row {row} is not a time",
            value=numbers[row].item(),
            row=row,
        )
    times: NDArray[np.int64] = np.floor(numbers).astype(np.int64)
    return times


def _numbers(column: Any, what: str) -> NDArray[Any]:
    """Read numbers, up to the first entry that is missing or no number."""
    import pyarrow as pa

    if type(column) is np.ndarray and column.ndim == 1 and column.dtype.kind in "iufb":
        return column
    column = as_column(column, what)
    if isinstance(column, np.ndarray):
        return _numbers_from_objects(column, what)
    column = _decoded(column)
    _reject_missing(column, what)
    if is_text(column.type):
        if not _parses(column, pa.float64()):
            return _numbers_from_objects(np.asarray(column.to_pylist(), dtype=object), what)
        column = column.cast(pa.float64())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        value = python_value(column[0])
        raise DataError(
            f"{what} {value!r} at row 0 is not a number (the column holds {column.type})",
            value=value,
            row=0,
        )
    return numbers_of(column)


def _numbers_from_objects(values: NDArray[Any], what: str) -> NDArray[Any]:
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        with suppress(OverflowError):
            return np.array(values, np.int64 if kinds == {int} else np.float64)
    numbers = np.empty(len(values), np.float64)
    for row, value in enumerate(values):
        if value is None or (is_missing(value) and not isinstance(value, float)):
            raise _missing(what, row)
        if isinstance(value, str) and "_" in value:  # which Python takes for part of a number
            raise _not_a("number", value, row, what)
        try:
            numbers[row] = float(value)
        except OverflowError:
            raise DataError(f"{what} at row {row} is too large", value=value, row=row) from None
        except (TypeError, ValueError):
            raise _not_a("number", value, row, what) from None
    return numbers


def _with_dates(column: Any) -> Any:
    """Let Arrow find the type of a list or an array, dates among them, if it can."""
    import pyarrow as pa

    if isinstance(column, (list, tuple, np.ndarray)):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            column = pa.array(column)
    return as_column(column, "timestamp")


def _dates_from_text(column: Any) -> Any:
    import pyarrow as pa

    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        if _parses(column, kind):
            return column.cast(kind)
    row = _first(column, lambda text: not _parses(text, pa.timestamp("us")))
    raise _not_a(
        "time (write ISO dates, or leave the column out)",
        python_value(column[row]),
        row,
        "timestamp",
    )


def _decoded(column: Any) -> Any:
    import pyarrow as pa

    is_dictionary = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_dictionary else column


def _cast(column: Any, kind: Any, what: str, *, safe: bool = True) -> Any:
    import pyarrow as pa

    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowException as error:
        raise DataError(f"{what}: {error}") from None


def _parses(values: Any, kind: Any) -> bool:
    import pyarrow as pa

    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _first(column: Any, is_bad: Callable[[Any], bool]) -> int:
    return next(row for row, value in enumerate(column) if is_bad(value))


def _reject_missing(column: Any, what: str) -> None:
    if column.null_count:
        raise _missing(what, first_missing_row(column))


def _missing(what: str, row: int) -> DataError:
    return DataError(
        f"{what} at row {row} is missing; drop or fill such rows first", value=None, row=row
    )


def _not_a(kind: str, value: Any, row: int, what: str) -> DataError:
    return DataError(f"{what} {value!r} at row {row} is not a {kind}", value=value, row=row)
