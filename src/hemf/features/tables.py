"""Whatever holds features, as a table: ids, columns of numbers, and columns of labels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from hemf.errors import DataError
from hemf.reading.columns import id_column
from hemf.vocabulary import Vocabulary

Numbers = npt.NDArray[np.float64]

LARGEST = 1e38  # of what float32 holds
DAY_ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TEMPORAL = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)


@dataclass(frozen=True)
class Table:
    """Features of some rows. Missing numbers are NaN, missing labels None."""

    ids: npt.NDArray[Any]
    """Of each row; no two alike."""
    names: tuple[str, ...]
    """Of the columns of numbers; none where these have no names."""
    numbers: Numbers | sp.csr_array
    """(rows, columns)."""
    labels: dict[str, list[Any]]
    """Values of each column that holds no numbers."""


def read_table(features: Any, side: str) -> Table:
    """Read features of "user" or "item" rows.

    A frame (pandas, polars, Arrow) has a column of ids (``user``, ``userId``, … or ``id``), or they
    are the index of a pandas frame. Row k of a matrix, dense or sparse, is about id k; other ids
    are given as a pair (ids, matrix). A dict holds a row for each id: a sequence of numbers, a
    mapping from names to values, or a single value. A table that was read is returned as it is.

    >>> table = read_table({"ann": {"age": 31, "city": "Rome"}, "bob": {"age": 45}}, "user")
    >>> table.names, table.numbers.tolist(), table.labels
    (('age',), [[31.0], [45.0]], {'city': ['Rome', None]})
    """
    where = f"{side}_features"
    if isinstance(features, Table):
        return features
    if isinstance(features, Mapping):
        table = _of_mapping(features, where)
    elif isinstance(features, tuple) and len(features) == 2:
        table = _of_matrix(*features, where)
    elif sp.issparse(features) or isinstance(features, np.ndarray):
        rows = features.shape[0] if features.ndim else 0
        table = _of_matrix(np.arange(rows), features, where)
    else:
        table = _of_frame(features, side, where)
    return _checked(table, side)


def _of_matrix(ids: Any, matrix: Any, where: str) -> Table:
    try:
        if sp.issparse(matrix):
            numbers: Any = sp.csr_array(matrix, dtype=np.float64)
            numbers.sum_duplicates()
        else:
            numbers = np.array(matrix, np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: a matrix must hold numbers; give labels as columns of a frame, or as a "
            "mapping from names to values for each id"
        ) from None
    if numbers.ndim == 1:
        numbers = numbers[:, None]
    if numbers.ndim != 2:
        raise DataError(f"{where}: expected rows and columns, found {numbers.ndim} dimensions")
    known = np.fromiter(ids, object) if not isinstance(ids, np.ndarray) else ids
    if len(known) != numbers.shape[0]:
        raise DataError(f"{where}: {len(known)} ids for {numbers.shape[0]} rows do not pair up")
    return Table(known, (), numbers, {})


def _of_mapping(rows: Mapping[Any, Any], where: str) -> Table:
    ids = np.empty(len(rows), object)
    ids[:] = list(rows)
    values = list(rows.values())
    if any(isinstance(row, Mapping) for row in values):
        if not all(isinstance(row, Mapping) for row in values):
            raise DataError(f"{where}: some rows have names for their values and some have not")
        names = dict.fromkeys(name for row in values for name in row)
        columns = {str(name): [row.get(name) for row in values] for name in names}
        return _of_columns(ids, columns)
    if all(isinstance(row, (str, set, frozenset)) or np.ndim(row) == 0 for row in values):
        return _of_columns(ids, {"value": values})
    if not all(isinstance(row, (list, tuple, np.ndarray)) and np.ndim(row) for row in values):
        raise DataError(
            f"{where}: rows must all be sequences of numbers, all mappings from names to values, "
            "or all single values; of sparse rows make one matrix, and give it with its ids"
        )
    lengths = {len(row) for row in values}
    if len(lengths) > 1:
        raise DataError(f"{where}: rows have {min(lengths)} to {max(lengths)} values")
    return _of_matrix(ids, np.array(values, object), where)


def _of_frame(features: Any, side: str, where: str) -> Table:
    import narwhals as nw

    try:
        frame = nw.from_native(features)
    except TypeError:
        raise DataError(
            f"{where}: expected a DataFrame, a matrix, a pair of ids and a matrix, or a dict from "
            f"id to row, got {type(features).__name__}",
            value=type(features).__name__,
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"{where}: {' '.join(str(error).split())}") from None
    eager = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    names = list(eager.columns)
    columns = {name: eager.get_column(name) for name in names}
    place = id_column(names, side)
    index = getattr(features, "index", None)
    if place is not None:
        ids = columns.pop(names.pop(place)).to_numpy()
    elif index is not None and type(index).__name__ != "RangeIndex":
        ids = index.to_numpy()
    else:
        raise DataError(
            f"{where}: no column holds the ids of the {side}s; call it {side!r}, or make it the "
            f"index of a pandas frame. Found the columns {', '.join(map(str, names))}",
            value=names,
        )
    return _of_columns(ids, _usable(columns, f"{where}: "))


def table_of(ids: npt.NDArray[Any], columns: Any, side: str) -> Table:
    """Return the features in a frame of other columns than ids, checked.

    >>> import pyarrow as pa
    >>> table_of(np.array([7, 8]), pa.table({"age": [30, None]}), "user").numbers.tolist()
    [[30.0], [nan]]
    """
    import narwhals as nw

    frame = nw.from_native(columns, eager_only=True)
    columns = {name: frame.get_column(name) for name in frame.columns}
    return _checked(_of_columns(ids, _usable(columns, "")), side)


def _usable(columns: Mapping[Any, Any], where: str) -> dict[str, Numbers | list[Any]]:
    """Read the columns of a frame, or say which cannot be."""
    values = {}
    for name, column in columns.items():
        try:
            values[str(name)] = _values(column)
        except Exception as error:  # whatever Arrow and narwhals cannot turn into numbers
            raise DataError(
                f"{where}column {name!r} cannot be used: {error}", value=name
            ) from error
    return values


def _values(column: Any) -> Numbers | list[Any]:
    """Numbers of a frame's column, or its values where they are none."""
    import narwhals as nw

    if column.dtype in (nw.Categorical, nw.Enum):  # whatever stands for the kinds
        return [None if _is_missing(value) else str(value) for value in column.to_list()]
    kind = column.dtype
    if kind == nw.Date or (isinstance(kind, nw.Datetime) and kind.time_zone is None):
        column = column.cast(nw.Datetime("us")).dt.timestamp("us")
    is_number = column.dtype.is_numeric() or column.dtype == nw.Boolean
    return _as_floats(column) if is_number else column.to_list()


def _as_floats(column: Any) -> Numbers:
    import narwhals as nw

    values = column.cast(nw.Float64)
    missing = values.is_null().to_numpy()
    numbers = np.array(values.fill_null(0.0).to_numpy(), np.float64)
    numbers[missing] = np.nan
    return numbers


def _of_columns(ids: npt.NDArray[Any], columns: Mapping[str, Any]) -> Table:
    """Tell columns of numbers from columns of labels."""
    numbers: dict[str, Numbers] = {}
    labels: dict[str, list[Any]] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            numbers[name] = values
            continue
        there = [value for value in values if not _is_missing(value)]
        if there and all(_is_number(value) for value in there):
            numbers[name] = np.array([np.nan if _is_missing(v) else float(v) for v in values])
        elif there and all(isinstance(value, TEMPORAL) for value in there):
            numbers[name] = np.array(
                [np.nan if _is_missing(v) else _microseconds(v) for v in values]
            )
        else:
            labels[name] = [None if _is_missing(value) else value for value in values]
    matrix = np.column_stack(list(numbers.values())) if numbers else np.empty((len(ids), 0))
    return Table(np.asarray(ids), tuple(numbers), matrix, labels)


def _is_number(value: Any) -> bool:
    if isinstance(value, np.timedelta64):  # to NumPy it is one
        return False
    return isinstance(value, (int, float, Decimal, np.number, np.bool_))


def _microseconds(value: Any) -> float:
    """Return a date, a time of the day or a duration as a number, as those of frames are.

    >>> _microseconds(dt.date(1970, 1, 2)) == _microseconds(dt.timedelta(days=1))
    True
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
        return float(value.astype(kind).astype(np.int64))
    if isinstance(value, dt.time):
        value = dt.datetime.combine(DAY_ZERO, value.replace(tzinfo=None))
    elif not isinstance(value, dt.date | dt.timedelta):
        raise TypeError(value)
    if isinstance(value, dt.datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - DAY_ZERO
    elif isinstance(value, dt.date):
        value = value - DAY_ZERO.date()
    return float(value / dt.timedelta(microseconds=1))


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating, Decimal)) and bool(value != value)


def _checked(table: Table, side: str) -> Table:
    """Refuse what cannot be meant."""
    if not len(table.ids):
        raise DataError(f"{side}_features: there are no rows")
    entries = sp.coo_array(table.numbers)
    beyond = np.abs(entries.data) > LARGEST
    if beyond.any():
        row, column = int(entries.row[beyond][0]), int(entries.col[beyond][0])
        is_finite = np.isfinite(entries.data[beyond][0])
        what = f"a number beyond ±{LARGEST:g}" if is_finite else "an infinite number"
        called = repr(table.names[column]) if table.names else f"{column} from 0"
        raise _complaint(
            table, row, side, f"holds {what} in its features, in column {called}; "
            "leave it out (NaN) or bound it",
        )  # fmt: skip
    if sp.issparse(table.numbers) and np.isnan(entries.data).any():
        raise _complaint(
            table, int(entries.row[np.isnan(entries.data)][0]), side, "holds NaN in its features; "
            "in a sparse matrix what is not stored is zero, so leave it out",
        )  # fmt: skip
    rows = Vocabulary().add(table.ids)
    first = np.unique(rows, return_index=True)[1]
    if first.size < rows.size:
        again = int(np.setdiff1d(np.arange(rows.size), first)[0])
        raise _complaint(table, again, side, f"has features already; give each {side} one row")
    return table


def _complaint(table: Table, row: int, side: str, what: str) -> DataError:
    value = table.ids[row : row + 1].tolist()[0]
    return DataError(f"{side}_features: {side} {value!r} at row {row} {what}", value=value, row=row)


def parts_of(features: Any) -> Sequence[Any]:
    """Return the tables that features are given in: a list holds several."""
    return features if isinstance(features, list) else [features]
