"""Data of any kind as columns: users, items, ratings and times.

`open_source` wraps whatever holds ratings (a frame, a file, arrays, rows) in a `Source` that knows
its columns. `locate` finds the column of each role. `read_columns` reads and checks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from hemf._typing import SIDES, AnyArray, Array, ArrowArray, BoolArray, Int64Array, RatingsLike
from hemf.data.columns import CodedIds, factorise, parse_ratings, parse_timestamps, to_numpy
from hemf.data.files import Source, open_file
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError, ParameterError

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


@dataclass(frozen=True, eq=False)
class Columns:
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
        positions = locate(
            source.names, source.width, columns, rated=rated, where=where, timed=timed
        )
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
    names: Sequence[object] | None,
    width: int,
    columns: ColumnChoice,
    *,
    rated: bool,
    where: str,
    timed: bool = False,
) -> dict[str, int]:
    """Return the position of each role's column.

    Columns without names (None) are in the order of `ROLES`. ``columns`` overrides this. Pairs to
    predict are not ``rated``; they have times if they are ``timed``.

    >>> locate(["movieId", "userId", "rating"], 3, None, rated=True, where="frame")
    {'user': 1, 'item': 0, 'rating': 2}
    >>> locate(["client", "service", "latency"], 3, ("client", "service", "latency"),
    ...        rated=True, where="frame")
    {'user': 0, 'item': 1, 'rating': 2}
    >>> locate(None, 4, None, rated=True, where="array")
    {'user': 0, 'item': 1, 'rating': 2, 'timestamp': 3}
    """
    required = ROLES[:3] if rated else ROLES[:2]
    wanted = (*required, "timestamp") if rated or timed else required
    chosen = _parse_choice(columns, required)
    if names is None and columns is None and width > len(ROLES):
        raise DataError(
            f"{where}: expected the columns {', '.join(wanted)} in this order, found {width}; "
            f"choose with columns={tuple(range(len(required)))}",
            value=width,
        )
    positions: dict[str, int] = {}
    missing: list[str] = []
    for role in wanted:
        if role in chosen:
            positions[role] = _position(chosen[role], names, width, where)
            continue
        if columns is not None and not isinstance(columns, Mapping):
            continue  # a sequence without a timestamp
        position = _by_alias(role, names) if names is not None else ROLES.index(role)
        if position is not None and position < width:
            if names is not None:
                position = _position(names[position], names, width, where)  # the name is unique
            positions[role] = position
        elif role in required:
            missing.append(role)
    if missing:
        raise DataError(
            f"{where}: no column for {', '.join(missing)}; found {_listed(names, width)}"
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
    if all(_by_alias(role, fields) is not None for role in required):
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
    found = _by_alias(side, names)
    if found is not None:
        return found
    simple = [_simplified(name) for name in names]
    return simple.index("id") if "id" in simple else None


def _parse_choice(columns: ColumnChoice, required: Sequence[str]) -> dict[str, str | int]:
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


def _position(choice: object, names: Sequence[object] | None, width: int, where: str) -> int:
    matches = [place for place, name in enumerate(names or ()) if name == choice]
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        raise DataError(
            f"{where}: {len(matches)} columns are called {choice!r}; rename all but one, or "
            "choose columns by position",
            value=choice,
        )
    if isinstance(choice, int) and 0 <= choice < width:
        return choice
    unnamed = "" if names is not None else " (they have no names: choose by position)"
    raise DataError(
        f"{where}: no column {choice!r}; found {_listed(names, width)}{unnamed}", value=choice
    )


def _by_alias(role: str, names: Sequence[object]) -> int | None:
    simple = [_simplified(name) for name in names]
    return next((simple.index(alias) for alias in _ALIASES[role] if alias in simple), None)


def _simplified(name: object) -> str:
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


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


def _listed(names: Sequence[object] | None, width: int) -> str:
    if names is None:
        return f"{width} column{'' if width == 1 else 's'}"
    return "the columns " + ", ".join(map(str, names)) if len(names) else "no columns"


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
