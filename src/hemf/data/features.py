"""Features of users and items: read from any form, and encoded as numbers.

`read_table` and `read_feature_file` return a `FeatureTable`: ids, columns of numbers and columns of
labels. A `FeatureEncoder` learns how to turn tables into numbers and applies it to other rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from hemf._typing import AnyArray, FeaturesLike, Float64Array, FrameLike, IdsLike, Int64Array
from hemf.data.files import Source, open_file
from hemf.data.sources import id_column, infer_text_ids, is_number
from hemf.data.vocabulary import Vocabulary, factorise, is_missing
from hemf.errors import DataError, row_error

_MAX_NUMBER = 1e38  # what float32 holds
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEMPORAL = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)

Label: TypeAlias = str | bool | int | float


@dataclass(frozen=True)
class FeatureTable:
    """Features of some rows. Missing numbers are NaN, missing labels None."""

    ids: AnyArray
    """Of each row; all different."""
    names: tuple[str, ...]
    """Of the columns of numbers; empty if they have no names."""
    numbers: Float64Array | sp.csr_array
    """(rows, columns)."""
    labels: dict[str, list[object]]
    """Values of each column that holds no numbers."""


def read_table(features: FeaturesLike, side: str) -> FeatureTable:
    """Read features of "user" or "item" rows.

    A frame (pandas, polars, Arrow) has a column of ids (``user``, ``userId``, … or ``id``), or a
    pandas frame has them in its index. Row k of a matrix, dense or sparse, is of id k; other ids
    are given as a pair (ids, matrix). A dict holds a row for each id: a sequence of numbers, a
    mapping from names to values, or a single value. A `FeatureTable` is returned as it is.

    >>> table = read_table({"ann": {"age": 31, "city": "Rome"}, "bob": {"age": 45}}, "user")
    >>> table.names, table.numbers.tolist(), table.labels
    (('age',), [[31.0], [45.0]], {'city': ['Rome', None]})
    """
    where = f"{side}_features"
    if isinstance(features, FeatureTable):
        return features
    if isinstance(features, Mapping):
        table = _from_mapping(features, where)
    elif isinstance(features, tuple) and len(features) == 2:
        table = _from_matrix(*features, where)
    elif sp.issparse(features) or isinstance(features, np.ndarray):
        rows = features.shape[0] if features.ndim else 0
        table = _from_matrix(np.arange(rows), features, where)
    else:
        table = _from_frame(features, side, where)
    return _checked(table, side)


def _from_matrix(ids: IdsLike, matrix: FeaturesLike, where: str) -> FeatureTable:
    try:
        if sp.issparse(matrix):
            numbers = sp.csr_array(matrix, dtype=np.float64)
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


def _from_mapping(rows: Mapping[object, FeaturesLike], where: str) -> FeatureTable:
    ids = np.fromiter(rows, object, count=len(rows))
    values = list(rows.values())
    if any(isinstance(row, Mapping) for row in values):
        if not all(isinstance(row, Mapping) for row in values):
            raise DataError(f"{where}: some rows have names for their values and some have not")
        names = dict.fromkeys(name for row in values for name in row)
        return _from_columns(ids, {str(name): [row.get(name) for row in values] for name in names})
    if all(isinstance(row, (str, set, frozenset)) or np.ndim(row) == 0 for row in values):
        return _from_columns(ids, {"value": values})
    if not all(isinstance(row, (list, tuple, np.ndarray)) and np.ndim(row) for row in values):
        raise DataError(
            f"{where}: rows must all be sequences of numbers, all mappings from names to values, "
            "or all single values; give sparse rows as one matrix with its ids"
        )
    lengths = {len(row) for row in values}
    if len(lengths) > 1:
        raise DataError(f"{where}: rows have {min(lengths)} to {max(lengths)} values")
    return _from_matrix(ids, np.array(values, object), where)


def _from_frame(features: FrameLike, side: str, where: str) -> FeatureTable:
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
    place = id_column(names, side)
    index = getattr(features, "index", None)
    if place is not None:
        ids = eager.get_column(names.pop(place)).to_numpy()
    elif index is not None and type(index).__name__ != "RangeIndex":
        ids = index.to_numpy()
    else:
        raise DataError(
            f"{where}: no column holds the ids of the {side}s; call it {side!r}, or make it the "
            f"index of a pandas frame. Found the columns {', '.join(map(str, names))}",
            value=names,
        )
    return _from_columns(ids, _frame_columns(eager, names, f"{where}: "))


def _frame_columns(
    frame: FrameLike, names: Iterable[str], where: str
) -> dict[str, Float64Array | list[object]]:
    """Return the columns of a narwhals frame as numbers, or as values if they are no numbers."""
    columns = {}
    for name in names:
        try:
            columns[str(name)] = _frame_column(frame.get_column(name))
        except Exception as error:  # of Arrow and narwhals
            message = f"{where}column {name!r} cannot be used: {error}"
            raise DataError(message, value=name) from error
    return columns


def _frame_column(column: FrameLike) -> Float64Array | list[object]:
    import narwhals as nw

    kind = column.dtype
    if kind in (nw.Categorical, nw.Enum):
        return [None if _is_missing(value) else str(value) for value in column.to_list()]
    if kind == nw.Date or (isinstance(kind, nw.Datetime) and kind.time_zone is None):
        column = column.cast(nw.Datetime("us")).dt.timestamp("us")
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        values: list[object] = column.to_list()
        return values
    floats = column.cast(nw.Float64)
    numbers = np.array(floats.fill_null(0.0).to_numpy(), np.float64)
    numbers[floats.is_null().to_numpy()] = np.nan
    return numbers


def _from_columns(
    ids: AnyArray, columns: Mapping[str, Float64Array | list[object]]
) -> FeatureTable:
    """Separate columns of numbers from columns of labels."""
    numbers: dict[str, Float64Array] = {}
    labels: dict[str, list[object]] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            numbers[name] = values
            continue
        present = [value for value in values if not _is_missing(value)]
        if present and (
            all(map(_is_number, present)) or all(isinstance(value, _TEMPORAL) for value in present)
        ):
            numbers[name] = np.array([np.nan if _is_missing(v) else _as_float(v) for v in values])
        else:
            labels[name] = [None if _is_missing(value) else value for value in values]
    matrix = np.column_stack(list(numbers.values())) if numbers else np.empty((len(ids), 0))
    return FeatureTable(np.asarray(ids), tuple(numbers), matrix, labels)


def _is_number(value: object) -> bool:
    is_duration = isinstance(value, np.timedelta64)  # NumPy takes it for a number
    return isinstance(value, (int, float, Decimal, np.number, np.bool_)) and not is_duration


def _as_float(value: object) -> float:
    """Return a number; dates, times of the day and durations in microseconds, as in frames."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
        return float(value.astype(kind).astype(np.int64))
    if isinstance(value, dt.time):
        value = dt.datetime.combine(_EPOCH, value.replace(tzinfo=None))
    elif not isinstance(value, dt.date | dt.timedelta):
        return float(value)  # type: ignore[arg-type]
    if isinstance(value, dt.datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - _EPOCH
    elif isinstance(value, dt.date):
        value = value - _EPOCH.date()
    return float(value / dt.timedelta(microseconds=1))


def _is_missing(value: object) -> bool:
    return is_missing(value) or (isinstance(value, Decimal) and value != value)


def _checked(table: FeatureTable, side: str) -> FeatureTable:
    """Reject tables without rows, with numbers that are too large, or with ids that repeat."""
    where = f"{side}_features: {side}"

    def error(row: int, reason: str) -> DataError:
        return row_error(where, table.ids[row : row + 1].tolist()[0], row, reason)

    if not len(table.ids):
        raise DataError(f"{side}_features: there are no rows")
    entries = sp.coo_array(table.numbers)
    beyond = np.abs(entries.data) > _MAX_NUMBER
    if beyond.any():
        row, column = int(entries.row[beyond][0]), int(entries.col[beyond][0])
        is_finite = np.isfinite(entries.data[beyond][0])
        what = f"a number beyond ±{_MAX_NUMBER:g}" if is_finite else "an infinite number"
        name = repr(table.names[column]) if table.names else f"{column} from 0"
        raise error(
            row, f"holds {what} in its features, in column {name}; leave it out (NaN) or bound it"
        )
    missing = np.isnan(entries.data)
    if sp.issparse(table.numbers) and missing.any():
        reason = "holds NaN in its features; in a sparse matrix, leave out what is missing"
        raise error(int(entries.row[missing][0]), reason)
    # New ids are numbered in order, so the first number out of order is of a repeated id.
    repeated = Vocabulary().add(table.ids) != np.arange(len(table.ids))
    if repeated.any():
        raise error(int(repeated.argmax()), f"has features already; give each {side} one row")
    return table


def as_parts(features: FeaturesLike) -> Sequence[FeaturesLike]:
    """Return the tables of features: a list holds several."""
    return features if isinstance(features, list) else [features]


# -- files ---------------------------------------------------------------------------------------

_MANY_ROWS = 50  # text that differs in each of so many rows is a name


def read_feature_file(
    path: str | Path, side: str, *, known: Vocabulary | None = None, column: str | int | None = None
) -> FeatureTable:
    r"""Read features from CSV, TSV, Parquet or MovieLens files.

    Ids are in ``column``; by default in a column with a usual name (``userId``, ``movie``, …,
    ``id``), else in the first. The first line of text files holds names, unless one of its fields
    is a number. Ids in text have no type: ``known`` ids decide whether ``12`` is a number.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> _ = path.write_text("age,who,city\n31,ann,Rome\n45,bob,")
    >>> table = read_feature_file(path, "user", column="who")
    >>> table.ids.tolist(), table.numbers.tolist(), table.labels
    (['ann', 'bob'], [[31.0], [45.0]], {'city': ['Rome', '']})
    """

    def has_names(fields: Sequence[str]) -> bool:
        return _id_place(fields, side, column) is not None or not any(map(is_number, fields))

    source = open_file(Path(path), has_names, n_ids=1)
    try:
        return _read(source, side, known, column)
    except DataError as error:
        raise error.inside(source.where) from None


def _read(
    source: Source, side: str, known: Vocabulary | None, column: str | int | None
) -> FeatureTable:
    import narwhals as nw
    import pyarrow as pa

    names = [f"column {place}" for place in range(source.width)]
    if source.names is not None:
        names = [str(name) for name in source.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{names.count(twice)} columns are called {twice!r}", value=twice)
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
        raise error.inside(f"column {names[place]!r}") from None
    table = pa.table(values, names=[names[position] for position in others])
    frame = nw.from_native(table, eager_only=True)
    columns = _frame_columns(frame, frame.columns, "")
    return _checked(_from_columns(coded.decode(), columns), side)


def _id_place(names: Sequence[str], side: str, column: str | int | None) -> int | None:
    stripped = [name.strip() for name in names]
    if isinstance(column, str) and column in stripped:
        return stripped.index(column)
    return id_column(stripped, side)


def drop_unique_text(table: FeatureTable) -> tuple[FeatureTable, list[str]]:
    """Drop columns of text that differs in every row, such as titles; return their names too.

    Such text says nothing about other rows. Tables of fewer than 50 rows keep all columns.

    >>> import numpy as np
    >>> films = [f"film {k}" for k in range(60)]
    >>> labels = {"title": films, "kind": ["a"] * 60}
    >>> table = FeatureTable(np.arange(60), (), np.empty((60, 0)), labels)
    >>> rest, dropped = drop_unique_text(table)
    >>> list(rest.labels), dropped
    (['kind'], ['title'])
    """

    def all_differ(values: list[object]) -> bool:
        texts = [value for value in values if value is not None and value != ""]
        are_text = all(isinstance(text, str) for text in texts)
        return are_text and len(set(texts)) == len(texts) >= _MANY_ROWS

    dropped = [name for name, values in table.labels.items() if all_differ(values)]
    labels = {name: values for name, values in table.labels.items() if name not in dropped}
    return replace(table, labels=labels), dropped


# -- encoding ------------------------------------------------------------------------------------

_NUMBERS = "(numbers)"  # name of the block of all numbers
_SEPARATOR = "|"  # between the labels of a text such as "Action|Comedy"


@dataclass(frozen=True)
class NumberBlock:
    """Standardised columns of numbers.

    Sparse ones are not centred. Constant columns become zero.
    """

    part: int
    """Position of their table."""
    name: str
    columns: tuple[str, ...]
    """Their names; empty for a matrix."""
    centre: Float64Array
    scale: Float64Array
    """Standard deviations; infinite for constant columns."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.centre.size

    def encode(self, table: FeatureTable, where: str) -> sp.csr_array:
        """Encode other rows; missing numbers become the mean."""
        numbers = table.numbers
        if self.columns:
            numbers = np.column_stack([self._column(table, name, where) for name in self.columns])
        if numbers.shape[1] != self.width:
            raise DataError(
                f"{where}: {numbers.shape[1]} columns instead of the {self.width} of the fit",
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
        """Return a column of numbers; one without any value counts as such."""
        if name in table.names:
            return np.asarray(table.numbers[:, table.names.index(name)])
        if name in table.labels and all(value is None for value in table.labels[name]):
            return np.full(len(table.ids), np.nan)
        raise DataError(f"{where}: no column {name!r} of numbers", value=name)


@dataclass(frozen=True)
class LabelBlock:
    """A column of labels: 1/√n for each of the n labels of a row."""

    part: int
    name: str
    column: str
    levels: tuple[Label, ...]
    several: bool
    """Whether text is split at every ``|``."""

    @property
    def width(self) -> int:
        """Number of labels."""
        return len(self.levels)

    def encode(self, table: FeatureTable, where: str) -> sp.csr_array:
        """Encode other rows; unknown labels are ignored."""
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


def labels_of(value: object, several: bool) -> list[Label]:
    """Return the distinct labels of a value.

    >>> labels_of("Action|Comedy", True), labels_of("Action|Comedy", False), labels_of(None, True)
    (['Action', 'Comedy'], ['Action|Comedy'], [])
    >>> labels_of({"Comedy", "Action"}, True)
    ['Action', 'Comedy']
    """
    if value is None:
        return []
    if isinstance(value, str):
        texts = [part.strip() for part in value.split(_SEPARATOR)] if several else [value]
        return list(dict.fromkeys(text for text in texts if text))
    parts = list(value) if isinstance(value, list | tuple | np.ndarray) else [value]
    if isinstance(value, set | frozenset):
        parts = sorted(value, key=str)  # their order differs between processes
    plain = [part.item() if isinstance(part, np.generic) else part for part in parts]
    present = [part for part in plain if part is not None and part == part]  # not NaN
    return list(dict.fromkeys(part if isinstance(part, Label) else str(part) for part in present))


@dataclass(frozen=True)
class FeatureEncoder:
    """Encoding of the features of one side.

    Numbers are standardised; a missing one becomes the mean. Text and categories have a column
    for each value; lists, and text with ``|`` in it, hold several labels. A row without features
    is zero.

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
    """Number of tables."""
    of_numbers: tuple[NumberBlock, ...]
    of_labels: tuple[LabelBlock, ...]

    @classmethod
    def learn(cls, features: FeaturesLike, side: str) -> FeatureEncoder:
        """Learn the encoding of features, or of a list of several tables."""
        parts = as_parts(features)
        numbers, labels = [], []
        for part, one in enumerate(parts):
            table = read_table(one, side)
            suffix = f" {part + 1}" if len(parts) > 1 else ""
            numbers.append(_learn_numbers(table, part, f"{_NUMBERS}{suffix}"))
            for name, values in table.labels.items():
                if name == _NUMBERS:
                    raise DataError(
                        f"{side}_features: a column of labels cannot be called {name!r}, the name "
                        "of all numbers together; give it another name",
                        value=name,
                    )
                block = _learn_labels(values, part, f"{name}{suffix}", name)
                if len({frozenset(labels_of(value, block.several)) for value in values}) > 1:
                    labels.append(block)
        of_numbers = tuple(b for b in numbers if np.isfinite(b.scale).any())
        of_labels = tuple(labels)
        if not of_numbers and not of_labels:
            raise DataError(
                f"{side}_features: every column is constant or empty; leave the features out"
            )
        return cls(side, len(parts), of_numbers, of_labels)

    @property
    def blocks(self) -> dict[str, int]:
        """Names and widths of the blocks of columns; each block has its own precision."""
        return {block.name: block.width for block in self._blocks}

    @property
    def _blocks(self) -> list[NumberBlock | LabelBlock]:
        return [*self.of_numbers, *self.of_labels]

    def columns(self, part: int) -> list[str]:
        """Names of the columns of one of the tables."""
        numbers = [
            name for block in self.of_numbers if block.part == part for name in block.columns
        ]
        return [*numbers, *(block.column for block in self.of_labels if block.part == part)]

    def encode(self, features: FeaturesLike) -> tuple[list[object], sp.csr_array]:
        """Return the ids that have features, and a row of numbers for each."""
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


def scatter_rows(matrix: sp.csr_array, rows: Int64Array, n_rows: int) -> sp.csr_array:
    """Return a matrix of ``n_rows`` rows, with the given ones at ``rows`` and zeros elsewhere."""
    entries = sp.coo_array(matrix)
    place = (rows[entries.row], entries.col)
    return sp.csr_array(sp.coo_array((entries.data, place), shape=(n_rows, matrix.shape[1])))


def _learn_numbers(table: FeatureTable, part: int, name: str) -> NumberBlock:
    numbers = table.numbers
    if sp.issparse(numbers):
        varies = np.zeros(numbers.shape[1], bool)
        if all(numbers.shape):
            ends = (numbers.min(axis=0), numbers.max(axis=0))
            lowest, highest = (np.asarray(end.todense()).ravel() for end in ends)
            varies = highest > lowest
        return NumberBlock(part, name, (), np.zeros(varies.size), np.where(varies, 1.0, np.inf))
    present = ~np.isnan(numbers)
    counts = np.maximum(present.sum(axis=0), 1)
    centre = np.where(present, numbers, 0.0).sum(axis=0) / counts
    residuals = np.where(present, numbers - centre, 0.0)
    # In units of the largest residual, because squares of small ones vanish.
    unit = np.maximum(np.abs(residuals).max(axis=0, initial=0.0), 1e-300)
    deviation = unit * np.sqrt(np.square(residuals / unit).sum(axis=0) / counts)
    varies = deviation > 1e-12 * np.maximum(np.abs(centre), 1e-300)
    return NumberBlock(part, name, table.names, centre, np.where(varies, deviation, np.inf))


def _learn_labels(values: list[object], part: int, name: str, column: str) -> LabelBlock:
    several = any(
        _SEPARATOR in value if isinstance(value, str) else len(labels_of(value, True)) > 1
        for value in values
    )
    levels = dict.fromkeys(label for value in values for label in labels_of(value, several))
    return LabelBlock(part, name, column, tuple(levels), several)
