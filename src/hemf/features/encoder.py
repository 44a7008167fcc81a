"""How features become numbers, learnt once and applied to any rows later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from hemf.errors import DataError
from hemf.features.tables import Numbers, Table, parts_of, read_table
from hemf.vocabulary import Vocabulary

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
    centre: Numbers
    scale: Numbers
    """What they are divided by; infinite where they do not vary."""

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.centre.size

    def encode(self, table: Table, where: str) -> sp.csr_array:
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

    def _column(self, table: Table, name: str, where: str) -> Numbers:
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

    def encode(self, table: Table, where: str) -> sp.csr_array:
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
        parts = parts_of(features)
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
        parts = parts_of(features)
        if len(parts) != self.parts:
            raise DataError(f"{where}: {len(parts)} tables instead of {self.parts}")
        tables = [read_table(one, self.side) for one in parts]
        ids = Vocabulary()
        rows = [ids.add(table.ids) for table in tables]
        encoded = []
        for block in self._blocks:
            own = block.encode(tables[block.part], where)
            encoded.append(placed(own, rows[block.part], len(ids)))
        return ids.ids.tolist(), sp.csr_array(sp.hstack(encoded, format="csr"))


def placed(matrix: sp.csr_array, rows: npt.NDArray[np.int64], n_rows: int) -> sp.csr_array:
    """Return a matrix of more rows, these at their places and zeros at the others.

    >>> placed(sp.csr_array([[5.0]]), np.array([1]), 2).toarray().tolist()
    [[0.0], [5.0]]
    """
    entries = sp.coo_array(matrix)
    place = (rows[entries.row], entries.col)
    return sp.csr_array(sp.coo_array((entries.data, place), shape=(n_rows, matrix.shape[1])))


def _learn_numbers(table: Table, part: int, name: str) -> NumberBlock:
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
