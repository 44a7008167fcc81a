"""Whatever holds features, as a table: ids, columns of numbers, and columns of labels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from hemf._typing import Float64Array
from hemf.data.columns import factorise
from hemf.data.files import Source, open_file
from hemf.data.sources import id_column, infer_text_ids, is_number
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError

LARGEST = 1e38  # of what float32 holds
DAY_ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TEMPORAL = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)


@dataclass(frozen=True)
class FeatureTable:
    """Features of some rows. Missing numbers are NaN, missing labels None."""

    ids: npt.NDArray[Any]
    """Of each row; no two alike."""
    names: tuple[str, ...]
    """Of the columns of numbers; none where these have no names."""
    numbers: Float64Array | sp.csr_array
    """(rows, columns)."""
    labels: dict[str, list[Any]]
    """Values of each column that holds no numbers."""


def read_table(features: Any, side: str) -> FeatureTable:
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
    if isinstance(features, FeatureTable):
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


def _of_matrix(ids: Any, matrix: Any, where: str) -> FeatureTable:
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
    return FeatureTable(known, (), numbers, {})


def _of_mapping(rows: Mapping[Any, Any], where: str) -> FeatureTable:
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


def _of_frame(features: Any, side: str, where: str) -> FeatureTable:
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


def table_of(ids: npt.NDArray[Any], columns: Any, side: str) -> FeatureTable:
    """Return the features in a frame of other columns than ids, checked.

    >>> import pyarrow as pa
    >>> table_of(np.array([7, 8]), pa.table({"age": [30, None]}), "user").numbers.tolist()
    [[30.0], [nan]]
    """
    import narwhals as nw

    frame = nw.from_native(columns, eager_only=True)
    columns = {name: frame.get_column(name) for name in frame.columns}
    return _checked(_of_columns(ids, _usable(columns, "")), side)


def _usable(columns: Mapping[Any, Any], where: str) -> dict[str, Float64Array | list[Any]]:
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


def _values(column: Any) -> Float64Array | list[Any]:
    """Numbers of a frame's column, or its values where they are none."""
    import narwhals as nw

    if column.dtype in (nw.Categorical, nw.Enum):  # whatever stands for the kinds
        return [None if _is_missing(value) else str(value) for value in column.to_list()]
    kind = column.dtype
    if kind == nw.Date or (isinstance(kind, nw.Datetime) and kind.time_zone is None):
        column = column.cast(nw.Datetime("us")).dt.timestamp("us")
    is_number = column.dtype.is_numeric() or column.dtype == nw.Boolean
    return _as_floats(column) if is_number else column.to_list()


def _as_floats(column: Any) -> Float64Array:
    import narwhals as nw

    values = column.cast(nw.Float64)
    missing = values.is_null().to_numpy()
    numbers = np.array(values.fill_null(0.0).to_numpy(), np.float64)
    numbers[missing] = np.nan
    return numbers


def _of_columns(ids: npt.NDArray[Any], columns: Mapping[str, Any]) -> FeatureTable:
    """Tell columns of numbers from columns of labels."""
    numbers: dict[str, Float64Array] = {}
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
    return FeatureTable(np.asarray(ids), tuple(numbers), matrix, labels)


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


def _checked(table: FeatureTable, side: str) -> FeatureTable:
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


def _complaint(table: FeatureTable, row: int, side: str, what: str) -> DataError:
    value = table.ids[row : row + 1].tolist()[0]
    return DataError(f"{side}_features: {side} {value!r} at row {row} {what}", value=value, row=row)


def as_parts(features: Any) -> Sequence[Any]:
    """Return the tables that features are given in: a list holds several."""
    return features if isinstance(features, list) else [features]


# ------------------------------------------------------------------------------------------------
# Features of users or items in files.


MANY_ROWS = 50
"""Of so many, a text of its own for each is a name that tells nothing of others."""


def read_feature_file(
    path: str | Path,
    side: str,
    *,
    known: Vocabulary | None = None,
    column: str | int | None = None,
) -> FeatureTable:
    r"""Read what is known of users or items from CSV, TSV, Parquet or MovieLens files.

    Ids are in the column called ``column``, which is what the ratings have them in; else in one of
    the usual names for them (``userId``, ``movie``, …, ``id``); else in the first. Text files begin
    with names, unless a number stands in the first line. Ids there have no type: those ``known``
    show whether ``12`` means the number or the text.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> _ = path.write_text("age,who,city\n31,ann,Rome\n45,bob,")
    >>> table = read_feature_file(path, "user", column="who")
    >>> table.ids.tolist(), table.numbers.tolist(), table.labels
    (['ann', 'bob'], [[31.0], [45.0]], {'city': ['Rome', '']})
    """
    path = Path(path).expanduser()

    def names_in(fields: Sequence[str]) -> bool:
        return _id_place(fields, side, column) is not None or not any(map(is_number, fields))

    source = open_file(path, names_in, n_ids=1)
    try:
        return _read(source, side, known, column)
    except DataError as error:
        if str(error).startswith(source.where):
            raise
        raise DataError(f"{source.where}: {error}", value=error.value, row=error.row) from None


def _read(
    source: Source, side: str, known: Vocabulary | None, column: str | int | None
) -> FeatureTable:
    import pyarrow as pa

    names = _names(source)
    if len(names) < 2:
        raise DataError(
            f"expected a column of {side} ids and others beside it, found {', '.join(names)} alone",
            value=names,
        )
    found = _id_place(names, side, column)
    place = 0 if found is None else found
    others = [position for position in range(len(names)) if position != place]
    ids, *values = source.read([place, *others])
    if not len(ids):
        raise DataError("there are no rows")
    try:
        coded = factorise(ids, side)
        coded = infer_text_ids(coded, known, side) if source.is_text else coded
    except DataError as error:
        where = f"column {names[place]!r}: {error}"
        raise DataError(where, value=error.value, row=error.row) from None
    frame = pa.table(values, names=[names[position] for position in others])
    return table_of(coded.decode(), frame, side)


def _names(source: Source) -> list[str]:
    if source.names is None:
        return [f"column {place}" for place in range(source.width)]
    names = [str(name) for name in source.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{names.count(twice)} columns are called {twice!r}", value=twice)
    return names


def _id_place(names: Sequence[str], side: str, column: str | int | None) -> int | None:
    stripped = [name.strip() for name in names]
    if isinstance(column, str) and column in stripped:
        return stripped.index(column)
    return id_column(stripped, side)


def drop_unique_text(table: FeatureTable) -> tuple[FeatureTable, list[str]]:
    """Leave out columns of text that is another in every row, such as titles; return which.

    They tell one row from the others and nothing that rows have in common. A few rows may well
    differ in everything.

    >>> import numpy as np
    >>> films = [f"film {k}" for k in range(60)]
    >>> labels = {"title": films, "kind": ["a"] * 60}
    >>> table = FeatureTable(np.arange(60), (), np.empty((60, 0)), labels)
    >>> rest, left_out = drop_unique_text(table)
    >>> list(rest.labels), left_out
    (['kind'], ['title'])
    """
    left_out = [name for name, values in table.labels.items() if _all_differ(values)]
    labels = {name: values for name, values in table.labels.items() if name not in left_out}
    return FeatureTable(table.ids, table.names, table.numbers, labels), left_out


def _all_differ(values: list[Any]) -> bool:
    texts = [value for value in values if value is not None and value != ""]
    if len(texts) < MANY_ROWS or not all(isinstance(text, str) for text in texts):
        return False
    return len(set(texts)) == len(texts)


# ------------------------------------------------------------------------------------------------
# How features become numbers, learnt once and applied to any rows later.


MANY = (list, tuple, set, frozenset, np.ndarray)
PLAIN = (str, bool, int, float)  # labels of other kinds go by what they are called
NUMBERS = "(numbers)"
SEPARATOR = "|"  # between the labels of a text such as "Action|Comedy"


@dataclass(frozen=True)
class NumberBlock:
    """Columns of numbers: less their mean, in units of their standard deviation.

    Sparse ones stay as they are. Columns that do not vary say nothing and become zero.
    """

    part: int
    """Which of the tables they are in."""
    name: str
    columns: tuple[str, ...]
    """Their names; none in a matrix."""
    centre: Float64Array
    scale: Float64Array
    """What they are divided by; infinite where they do not vary."""

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.centre.size

    def encode(self, table: FeatureTable, where: str) -> sp.csr_array:
        """Return the block of other rows; a missing number is the mean."""
        numbers = table.numbers
        if self.columns:
            numbers = np.column_stack([self._column(table, name, where) for name in self.columns])
        if numbers.shape[1] != self.width:
            raise DataError(
                f"{where}: {numbers.shape[1]} columns instead of the {self.width} learnt from",
                value=numbers.shape[1],
            )
        if isinstance(numbers, sp.csr_array):
            if not self.centre.any():
                scaled = sp.csr_array(numbers @ sp.diags_array(1.0 / self.scale))
                scaled.eliminate_zeros()
                return scaled
            numbers = numbers.toarray()
        return sp.csr_array(np.nan_to_num((numbers - self.centre) / self.scale, nan=0.0))

    def _column(self, table: FeatureTable, name: str, where: str) -> Float64Array:
        """Return a column of numbers; where every value is missing, it is one of these too."""
        if name in table.names:
            return np.asarray(table.numbers[:, table.names.index(name)])
        if name in table.labels and all(value is None for value in table.labels[name]):
            return np.full(len(table.ids), np.nan)
        raise DataError(f"{where}: no column {name!r} of numbers", value=name)


@dataclass(frozen=True)
class LabelBlock:
    """A column of labels, one or several for a row: 1/√n in the place of each of its n."""

    part: int
    name: str
    column: str
    levels: tuple[Any, ...]
    several: bool
    """Whether text is taken apart at every ``|``."""

    @property
    def width(self) -> int:
        """How many labels there are."""
        return len(self.levels)

    def encode(self, table: FeatureTable, where: str) -> sp.csr_array:
        """Return the block of other rows; labels that are new say nothing."""
        values = table.labels.get(self.column)
        if values is None and self.column in table.names:
            numbers = table.numbers[:, table.names.index(self.column)]
            values = [None] * len(table.ids) if np.isnan(numbers).all() else None
        if values is None:
            raise DataError(f"{where}: no column {self.column!r} of labels", value=self.column)
        place = {level: column for column, level in enumerate(self.levels)}
        found = [
            [place[label] for label in labels_of(value, self.several) if label in place]
            for value in values
        ]
        counts = np.array([len(columns) for columns in found])
        weights = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
        indices = np.array([column for columns in found for column in columns], np.int64)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return sp.csr_array((weights, indices, indptr), shape=(counts.size, self.width))


def labels_of(value: Any, several: bool) -> list[Any]:
    """Return the labels that a value stands for, each once.

    >>> labels_of("Action|Comedy", True), labels_of("Action|Comedy", False), labels_of(None, True)
    (['Action', 'Comedy'], ['Action|Comedy'], [])
    >>> labels_of({"Comedy", "Action"}, True)
    ['Action', 'Comedy']
    """
    if value is None:
        return []
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(SEPARATOR)] if several else [value]
        return list(dict.fromkeys(part for part in parts if part))
    parts = list(value) if isinstance(value, MANY) else [value]
    if isinstance(value, set | frozenset):  # whose order differs from process to process
        parts.sort(key=str)
    plain = [part.item() if isinstance(part, np.generic) else part for part in parts]
    there = [part for part in plain if part is not None and part == part]  # NaN is not itself
    return list(dict.fromkeys(part if isinstance(part, PLAIN) else str(part) for part in there))


@dataclass(frozen=True)
class FeatureEncoder:
    """What the features of one side mean in numbers.

    Numbers are standardised, and one that is missing counts as the mean. Text and categories have
    a column for each value; text with ``|`` in it, and lists, hold several labels. A row that has
    no features gets zeros, which is the mean of numbers and no label.

    >>> people = {"ann": {"age": 30, "likes": "jazz|pop"}, "bob": {"age": 50, "likes": "pop"}}
    >>> encoder = FeatureEncoder.learn(people, "user")
    >>> encoder.blocks
    {'(numbers)': 1, 'likes': 2}
    >>> ids, rows = encoder.encode({"eve": {"age": 60, "likes": "jazz|folk"}})
    >>> ids, rows.toarray().tolist()
    (['eve'], [[2.0, 1.0, 0.0]])
    """

    side: str
    parts: int
    """Tables that features come in."""
    of_numbers: tuple[NumberBlock, ...]
    of_labels: tuple[LabelBlock, ...]

    @classmethod
    def learn(cls, features: Any, side: str) -> FeatureEncoder:
        """Learn an encoding of everything that `read_table` reads, or of a list of such."""
        parts = as_parts(features)
        numbers, labels = [], []
        for part, one in enumerate(parts):
            table = read_table(one, side)
            suffix = f" {part + 1}" if len(parts) > 1 else ""
            numbers.append(_learn_numbers(table, part, f"{NUMBERS}{suffix}"))
            for name, values in table.labels.items():
                if name == NUMBERS:
                    raise DataError(
                        f"{side}_features: a column of labels cannot be called {name!r}, which is "
                        "what all numbers together are called; give it another name",
                        value=name,
                    )
                block = _learn_labels(values, part, f"{name}{suffix}", name)
                if len({frozenset(labels_of(value, block.several)) for value in values}) > 1:
                    labels.append(block)
        of_numbers = tuple(b for b in numbers if np.isfinite(b.scale).any())
        of_labels = tuple(labels)
        if not of_numbers and not of_labels:
            raise DataError(
                f"{side}_features: every column is constant or empty, so they say nothing; leave "
                "them out"
            )
        return cls(side, len(parts), of_numbers, of_labels)

    @property
    def blocks(self) -> dict[str, int]:
        """Names and widths of the blocks of columns, which a precision is learnt for each."""
        return {block.name: block.width for block in self._blocks}

    @property
    def _blocks(self) -> list[NumberBlock | LabelBlock]:
        return [*self.of_numbers, *self.of_labels]

    def columns(self, part: int) -> list[str]:
        """Names of the columns of one of the tables that features come in."""
        numbers = [
            name for block in self.of_numbers if block.part == part for name in block.columns
        ]
        return [*numbers, *(block.column for block in self.of_labels if block.part == part)]

    def encode(self, features: Any) -> tuple[list[Any], sp.csr_array]:
        """Return the ids that have features and a row of numbers for each."""
        where = f"{self.side}_features"
        parts = as_parts(features)
        if len(parts) != self.parts:
            raise DataError(f"{where}: {len(parts)} tables instead of {self.parts}")
        tables = [read_table(one, self.side) for one in parts]
        ids = Vocabulary()
        rows = [ids.add(table.ids) for table in tables]
        encoded = []
        for block in self._blocks:
            own = block.encode(tables[block.part], where)
            encoded.append(scatter_rows(own, rows[block.part], len(ids)))
        return ids.ids.tolist(), sp.csr_array(sp.hstack(encoded, format="csr"))


def scatter_rows(matrix: sp.csr_array, rows: npt.NDArray[np.int64], n_rows: int) -> sp.csr_array:
    """Return a matrix of more rows, these at their places and zeros at the others.

    >>> scatter_rows(sp.csr_array([[5.0]]), np.array([1]), 2).toarray().tolist()
    [[0.0], [5.0]]
    """
    entries = sp.coo_array(matrix)
    place = (rows[entries.row], entries.col)
    return sp.csr_array(sp.coo_array((entries.data, place), shape=(n_rows, matrix.shape[1])))


def _learn_numbers(table: FeatureTable, part: int, name: str) -> NumberBlock:
    numbers = table.numbers
    if sp.issparse(numbers):
        least, most = (np.asarray(ends.todense()).ravel() for ends in _ends(numbers))
        ones = np.ones(numbers.shape[1])
        return NumberBlock(part, name, (), 0.0 * ones, np.where(most > least, ones, np.inf))
    there = ~np.isnan(numbers)
    counts = np.maximum(there.sum(axis=0), 1)
    centre = np.where(there, numbers, 0.0).sum(axis=0) / counts
    away = np.where(there, numbers - centre, 0.0)
    unit = np.maximum(np.abs(away).max(axis=0, initial=0.0), 1e-300)  # squares must not vanish
    spread = unit * np.sqrt(np.square(away / unit).sum(axis=0) / counts)
    varies = spread > 1e-12 * np.maximum(np.abs(centre), 1e-300)
    return NumberBlock(part, name, table.names, centre, np.where(varies, spread, np.inf))


def _ends(numbers: sp.csr_array) -> tuple[Any, Any]:
    """Return the least and the largest number of each column; what is not stored is zero."""
    if not all(numbers.shape):
        return sp.coo_array((1, numbers.shape[1])), sp.coo_array((1, numbers.shape[1]))
    return numbers.min(axis=0), numbers.max(axis=0)


def _learn_labels(values: list[Any], part: int, name: str, column: str) -> LabelBlock:
    several = any(
        SEPARATOR in value if isinstance(value, str) else len(labels_of(value, True)) > 1
        for value in values
    )
    levels = dict.fromkeys(label for value in values for label in labels_of(value, several))
    return LabelBlock(part, name, column, tuple(levels), several)
