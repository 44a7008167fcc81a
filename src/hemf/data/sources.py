"""Data of any kind as columns: users, items, ratings and times.

`open_source` wraps whatever holds ratings (a frame, a file, arrays, rows) in a `Source` that knows
its columns. `locate` finds the column of each role. `read_columns` reads and checks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp

from hemf._checks import check_rows
from hemf._typing import SIDES, AnyArray, Array, ArrowArray, BoolArray, Int64Array, RatingsLike
from hemf.data.files import Source, open_file
from hemf.data.vocabulary import (
    MAX_EXACT_FLOAT,
    CodedIds,
    Vocabulary,
    as_column,
    factorise,
    first_null,
    is_missing,
    is_text,
    to_numpy,
    to_python,
)
from hemf.errors import DataError, ParameterError, row_error

_NEGLIGIBLE = 1e-6  # rounding to float32 may move ratings by this share of their range

ROLES = ("user", "item", "rating", "timestamp")

# In order of preference, compared without letter case and punctuation; ids come before names.
_ALIASES = {
    "user": (
        "user", "userid", "uid", "users", "username", "customerid", "customer", "reviewerid",
        "visitorid",
    ),
    "item": (
        "item", "itemid", "iid", "items", "movieid", "movie", "productid", "product", "asin",
        "parentasin", "bookid", "book", "isbn", "trackid", "songid", "artistid", "jokeid",
    ),
    "rating": ("rating", "ratings", "score", "stars", "overall", "value"),
    "timestamp": (
        "timestamp", "timestamps", "ts", "time", "unixtime", "unixreviewtime", "datetime", "date",
    ),
}  # fmt: skip

ColumnChoice: TypeAlias = Sequence[str | int] | Mapping[str, str | int] | None
"""Names or positions of columns in the order of `ROLES`, or a mapping from roles to these."""


class Columns(NamedTuple):
    """Columns of equal length; ratings and times are None where there are none."""

    users: CodedIds
    items: CodedIds
    ratings: Array | None
    timestamps: Int64Array | None


def read_columns(
    data: RatingsLike,
    columns: ColumnChoice = None,
    *,
    rated: bool = True,
    timed: bool = False,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> Columns:
    """Read and check users, items, and ratings and times.

    Pairs to predict are not ``rated``; their times are read if they are ``timed``. Ids of text
    files have no type: those known in ``users`` and ``items`` decide whether ``12`` is a number.
    Without known ids a column of integers is read as integers, any other as text.

    >>> read = read_columns([("ann", "tea", 5.0), ("bob", "tea", 3.0)])
    >>> read.users.decode(), read.ratings
    (array(['ann', 'bob'], dtype=object), array([5., 3.], dtype=float32))
    """
    source = open_source(data, columns, rated=rated)
    where = source.where
    try:
        positions = locate(source, columns, rated=rated, timed=timed)
        found = dict(zip(positions, source.read(list(positions.values())), strict=True))
        lengths = {role: len(values) for role, values in found.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} {role}s" for role, length in lengths.items())
            raise DataError(f"{where}: the columns have unequal lengths: {listed}", value=lengths)
        if not lengths["user"]:
            raise DataError(f"{where}: there are no rows")
        ids = {}
        for role, known in zip(SIDES, (users, items), strict=True):
            ids[role] = factorise(found.pop(role), role)  # popped to free the memory
            if source.is_text:
                ids[role] = infer_text_ids(ids[role], known, role)
        ratings = parse_ratings(found["rating"]) if rated else None
        times = parse_timestamps(found["timestamp"]) if "timestamp" in found else None
    except DataError as error:
        if not isinstance(data, (str, os.PathLike)):
            raise
        raise error.inside(where) from None
    return Columns(ids["user"], ids["item"], ratings, times)


# -- anything as a source ------------------------------------------------------------------------


def open_source(data: RatingsLike, columns: ColumnChoice = None, *, rated: bool = True) -> Source:
    """Find out what kind of data this is, and what columns it has."""
    if isinstance(data, (str, os.PathLike)):
        has_names = partial(is_header, columns=columns, rated=rated)
        return open_file(Path(os.fsdecode(data)), has_names)
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
            return _from_columns(_transpose(list(data)), rows)
        return _from_columns(list(data), "tuple of columns")
    if type(data).__module__.partition(".")[0] == "pyarrow":  # does not import Arrow
        import pyarrow as pa

        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        elif isinstance(data, pa.RecordBatchReader):
            data = data.read_all()
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, list):
        return _from_list(data)
    return _from_frame(data, rated=rated)


def _from_columns(
    values: list[RatingsLike], where: str, names: list[object] | None = None
) -> Source:
    def read(positions: Sequence[int]) -> list[RatingsLike]:
        return [as_sized(values[position]) for position in positions]

    def as_sized(column: RatingsLike) -> RatingsLike:
        if hasattr(column, "__len__") and not isinstance(column, (str, bytes, Mapping)):
            return column
        if isinstance(column, Iterator):
            return list(column)
        raise DataError(
            f"{where}: expected columns, got {column!r}; give a tuple of lists or arrays, "
            "or a list of tuples",
            value=column,
        )

    return Source(names, len(values), read, where)


def _from_numpy(data: AnyArray, *, rated: bool) -> Source:
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


def _from_list(data: list[RatingsLike]) -> Source:
    """Take a list as rows; only a list of arrays or series holds columns."""
    if not data:
        raise DataError("list: there are no rows")
    first = data[0]
    if isinstance(first, Mapping):
        names = list(first)
        for number, row in enumerate(data):
            if not isinstance(row, Mapping) or any(name not in row for name in names):
                message = f"list: row {number} lacks a field of row 0: {row!r}"
                raise DataError(message, value=row, row=number)
        rows = [[row[name] for name in names] for row in data]
        return _from_columns(_transpose(rows), "list of records", names)
    if isinstance(first, (tuple, list)):
        return _from_columns(_transpose(data), "list of rows")
    return _from_columns(data, "list of columns")


def _transpose(rows: list[RatingsLike]) -> list[RatingsLike]:
    width = len(rows[0])
    for number, row in enumerate(rows):
        if not isinstance(row, (tuple, list)) or len(row) != width:
            message = f"row {number} is {row!r}, but row 0 has {width} fields"
            raise DataError(message, value=row, row=number)
    return [list(column) for column in zip(*rows, strict=True)]


def _from_frame(data: RatingsLike, *, rated: bool) -> Source:
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
    except Exception as error:  # of narwhals, such as two columns of one name
        raise DataError(f"frame: {error}") from error
    names = list(frame.collect_schema().names())

    def read(positions: Sequence[int]) -> list[RatingsLike]:
        chosen = frame.select(nw.nth(*positions))
        eager = chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen
        return [eager[:, place].to_native() for place in range(len(positions))]

    return Source(names, len(names), read, "frame")


# -- which column is which -----------------------------------------------------------------------


def locate(
    source: Source, columns: ColumnChoice, *, rated: bool, timed: bool = False
) -> dict[str, int]:
    """Return the position of each role's column.

    Columns without names (None) are in the order of `ROLES`. ``columns`` overrides this. Pairs to
    predict are not ``rated``; they have times if they are ``timed``.

    >>> source = open_source({"movieId": [31], "userId": [1], "rating": [2.5]})
    >>> locate(source, None, rated=True)
    {'user': 1, 'item': 0, 'rating': 2}
    >>> locate(source, ("movieId", "userId", "rating"), rated=True)
    {'user': 0, 'item': 1, 'rating': 2}
    >>> locate(open_source([(1, 31, 2.5, 1260759144)]), None, rated=True)
    {'user': 0, 'item': 1, 'rating': 2, 'timestamp': 3}
    """
    names, width, where = source.names, source.width, source.where
    required = ROLES[:3] if rated else ROLES[:2]
    wanted = (*required, "timestamp") if rated or timed else required
    chosen = _parse_choice(columns, required)
    if names is None and columns is None and width > len(ROLES):
        raise DataError(
            f"{where}: expected the columns {', '.join(wanted)} in this order, found {width}; "
            f"choose with columns={tuple(range(len(required)))}",
            value=width,
        )
    if columns is None or isinstance(columns, Mapping):
        for role in wanted:
            place = ROLES.index(role) if names is None else _by_alias(_ALIASES[role], names)
            if place is not None and place < width:
                chosen.setdefault(role, place if names is None else names[place])
    positions = {role: _position(chosen[role], source) for role in wanted if role in chosen}
    missing = [role for role in required if role not in chosen]
    if missing:
        raise DataError(
            f"{where}: no column for {', '.join(missing)}; found {_listed(source)}"
            f"{_advice(len(required), width, rated=rated)}",
            value=list(names) if names is not None else width,
        )
    roles: dict[int, str] = {}
    for role, position in positions.items():
        other = roles.setdefault(position, role)
        if other != role:
            name = names[position] if names is not None else position
            message = f"{where}: column {name!r} cannot be both {other} and {role}"
            raise DataError(message, value=name)
    return positions


def is_header(fields: Sequence[str], columns: ColumnChoice, *, rated: bool) -> bool:
    """Whether the first line of a text file holds names rather than data.

    It does if columns are chosen by name, if it has the usual names, or if none of its fields is a
    number. The last rule does not apply to pairs chosen by position: their ids may all be text.

    >>> is_header(["client", "service", "latency"], None, rated=True)
    True
    >>> is_header(["ann", "matrix", "4.5"], None, rated=True)
    False
    >>> is_header(["ann", "matrix"], (0, 1), rated=False)
    False
    """
    required = ROLES[:3] if rated else ROLES[:2]
    if any(isinstance(choice, str) for choice in _parse_choice(columns, required).values()):
        return True
    if all(_by_alias(_ALIASES[role], fields) is not None for role in required):
        return True
    if columns is not None and not rated:
        return False
    return not any(map(is_number, fields))


def is_number(field: str) -> bool:
    """Whether a field of text is a number and therefore not the name of a column.

    This includes notations that are rejected as ratings, so that no row is taken for a header.
    """
    for parse in (float, partial(int, base=0)):
        with suppress(ValueError):
            parse(field)
            return True
    return False


def id_column(names: Sequence[object], side: str) -> int | None:
    """Return the position of the column of user or item ids, by its name."""
    return _by_alias((*_ALIASES[side], "id"), names)


def _parse_choice(columns: ColumnChoice, required: Sequence[str]) -> dict[str, object]:
    if columns is None:
        return {}
    if isinstance(columns, Mapping):
        unknown = [key for key in columns if key not in ROLES]
        if unknown:
            raise ParameterError(
                f"columns: unknown role {unknown[0]!r}; the roles are {', '.join(ROLES)}",
                value=unknown[0],
            )
        return dict(columns)
    if isinstance(columns, str) or not len(required) <= len(columns) <= len(ROLES):
        raise ParameterError(
            f"columns: expected {len(required)} to {len(ROLES)} names in the order "
            f"{', '.join(ROLES)}, or a mapping from these; got {columns!r}",
            value=columns,
        )
    return dict(zip(ROLES, columns, strict=False))


def _position(choice: object, source: Source) -> int:
    where = source.where
    matches = [place for place, name in enumerate(source.names or ()) if name == choice]
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        raise DataError(
            f"{where}: {len(matches)} columns are called {choice!r}; rename all but one, or "
            "choose columns by position",
            value=choice,
        )
    if isinstance(choice, int) and 0 <= choice < source.width:
        return choice
    unnamed = "" if source.names is not None else " (they have no names: choose by position)"
    message = f"{where}: no column {choice!r}; found {_listed(source)}{unnamed}"
    raise DataError(message, value=choice)


def _by_alias(aliases: Sequence[str], names: Sequence[object]) -> int | None:
    simple = ["".join(filter(str.isalnum, str(name).lower())) for name in names]
    return next((simple.index(alias) for alias in aliases if alias in simple), None)


def _advice(needed: int, width: int, *, rated: bool) -> str:
    if width < needed:
        return ""  # there is nothing to choose from
    places = range(needed)
    # See `is_header`.
    meaning = "" if rated else "; by position, the first line of a text file is data"
    return (
        f"; choose by name or position, such as columns={tuple(places)} or, on the command line, "
        f"--columns {','.join(map(str, places))}{meaning}"
    )


def _listed(source: Source) -> str:
    if source.names is None:
        return f"{source.width} column{'' if source.width == 1 else 's'}"
    return "the columns " + ", ".join(map(str, source.names)) if source.names else "no columns"


# -- ids in text ---------------------------------------------------------------------------------


def infer_text_ids(coded: CodedIds, known: Vocabulary | None, role: str) -> CodedIds:
    """Decide which ids of a text file are integers, and drop blanks after a separator."""
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
        typed = factorise(trimmed.cast("int64"), role)
    else:
        pairs = zip(texts.to_pylist(), as_integers, strict=True)
        typed = factorise([int(text) if is_int else text for text, is_int in pairs], role)
    return CodedIds(typed.codes[coded.codes], typed.distinct)


def _without_leading_blanks(coded: CodedIds, known: Vocabulary | None) -> CodedIds:
    """Read ``a, x`` like ``a,x``, unless the id with the blank is known."""
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


def _are_integers(texts: ArrowArray) -> BoolArray:
    """Which texts are an int64 in canonical notation: 007 and 7 are two ids."""
    import pyarrow.compute as pc

    found = pc.match_substring_regex(texts, r"^(0|-?[1-9][0-9]{0,18})$")
    is_integer = np.array(found.to_numpy(zero_copy_only=False))
    candidates = texts.filter(found)
    if len(candidates):
        # 19 digits always fit 64 bits without a sign, but not always with one.
        sizes = to_numpy(pc.utf8_ltrim(candidates, "-").cast("uint64"))
        negative = pc.starts_with(candidates, "-").to_numpy(zero_copy_only=False)
        is_integer[is_integer] = sizes <= np.where(negative, np.uint64(2**63), np.uint64(2**63 - 1))
    return is_integer


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


def parse_ratings(column: object, what: str = "rating") -> Array:
    """Return ratings, all of them finite numbers, as float32 if that is exact, else as float64.

    >>> parse_ratings([1, 2.5, "3"])
    array([1. , 2.5, 3. ], dtype=float32)
    >>> parse_ratings([1, "good"])
    Traceback (most recent call last):
    hemf.errors.DataError: rating 'good' at row 1 is not a number
    """
    numbers = _parse_numbers(column, what)
    with np.errstate(over="ignore"):  # too large a number becomes infinite
        bad = ~np.isfinite(numbers.astype(np.float32, copy=False))
    if bad.any():
        row = int(bad.argmax())
        value = numbers[row].item()
        reason = "is too large" if np.isfinite(value) else "is not finite"
        raise row_error(what, value, row, reason)
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
        if is_text(values.type) and _try_cast(values.drop_null()[:1], pa.float64()) is None:
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
    values: RatingsLike = [timestamps] if is_single else timestamps
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
    if ((numbers > MAX_EXACT_FLOAT) | (numbers < -MAX_EXACT_FLOAT)).any():
        values, rows = np.unique(numbers, return_index=True)
        same = np.flatnonzero(np.diff(values.astype(np.float64)) == 0.0)
        if same.size:
            row = int(rows[same[0] + 1])
            reason = "differs from another by less than float64 can hold; subtract a constant"
            raise row_error("rating", numbers[row].item(), row, f"{reason} from all ratings")


def _parse_numbers(column: RatingsLike, what: str) -> AnyArray:
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
        numbers = _try_cast(column, pa.float64())
        if numbers is None:
            return _parse_objects(np.asarray(column.to_pylist(), dtype=object), what)
        column = numbers
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
        if (dates := _try_cast(column, kind)) is not None:
            return dates
    kind = pa.timestamp("us")
    row = next(row for row, text in enumerate(column) if _try_cast(text, kind) is None)
    reason = "is not a time (write ISO dates, or leave the column out)"
    raise row_error("timestamp", to_python(column[row]), row, reason)


def _missing_value(what: str, row: int) -> DataError:
    return DataError(f"{what} at row {row} is missing; drop or fill such rows first", row=row)


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


def _try_cast(values: ArrowArray, kind: object) -> ArrowArray | None:
    import pyarrow as pa

    with suppress(pa.ArrowInvalid):
        return values.cast(kind)
    return None


def _reject_nulls(column: ArrowArray, what: str) -> None:
    if column.null_count:
        raise _missing_value(what, first_null(column))
