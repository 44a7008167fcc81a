"""Ratings of any origin as two sparse tables, one by user and one by item."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hemf.errors import DataError, DuplicateWarning, ParameterError, warn_caller
from hemf.reading.columns import ColumnChoice
from hemf.reading.identifiers import CodedIds
from hemf.reading.readers import Columns, read_columns
from hemf.reading.values import Values, stored
from hemf.vocabulary import Vocabulary

_DUPLICATES = ("last", "error", "mean")


@dataclass(frozen=True, eq=False)
class Sparse:
    """Compressed rows of one side: row i holds ``values[indptr[i]:indptr[i + 1]]``.

    ``indices`` are the row numbers of the other side, ascending within a row.

    >>> table = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3), ("ann", "milk", 1)]).by_user
    >>> table.n_rows, table.nnz, table.row(0)
    (2, 3, (array([0, 1], dtype=int32), array([5., 1.], dtype=float32)))
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Values

    @property
    def n_rows(self) -> int:
        """Number of rows, empty ones included."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """Number of ratings."""
        return len(self.values)

    def row(self, number: int) -> tuple[NDArray[np.int32], Values]:
        """Rows of the other side that this row has ratings for, and the ratings."""
        span = slice(self.indptr[number], self.indptr[number + 1])
        return self.indices[span], self.values[span]


@dataclass(frozen=True, eq=False, repr=False)
class Ratings:
    """Ratings with the ids of both sides, sorted by user and by item.

    Make them with :meth:`from_any`. ``timestamps`` are in the order of ``by_user``, or None.
    Statistics of no ratings at all are 0, their scale 1.

    >>> ratings = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3), ("ann", "milk", 1)])
    >>> ratings
    Ratings(2 users, 2 items, 3 ratings)
    >>> ratings.mean, ratings.minimum, ratings.maximum
    (3.0, 1.0, 5.0)
    """

    users: Vocabulary
    items: Vocabulary
    by_user: Sparse
    by_item: Sparse
    timestamps: NDArray[np.int64] | None = None

    @classmethod
    def from_any(
        cls,
        data: Any,
        *,
        columns: ColumnChoice = None,
        duplicates: str = "last",
        users: Vocabulary | None = None,
        items: Vocabulary | None = None,
        exact: bool = False,
    ) -> Ratings:
        """Read ratings, and check every one of them.

        ``data`` is a DataFrame (pandas, polars, Arrow), a path (Parquet, CSV, TSV, MovieLens
        ``.dat`` and ``u.data``), a SciPy sparse matrix (every stored entry is a rating), a tuple
        of columns (users, items, ratings[, timestamps], lists or arrays), an array of 3 or 4
        columns, a structured array, a mapping of columns, tuples or records in a list, tuples in a
        tuple, or ``Ratings``.

        ``columns`` names the columns for user, item, rating[, timestamp], or gives their
        positions, or maps these words to names; by default the usual names are recognised.
        ``duplicates`` says what to do with a pair rated twice: ``"last"`` of the input wins (with
        a warning), ``"mean"``, or ``"error"``. With ``users`` and ``items``, rows are numbered as
        there and new ids follow; the vocabularies handed in are never changed.

        Ratings are kept in float32 where that moves none of them by more than a millionth of their
        range, or with ``exact`` by nothing at all; otherwise in float64.

        >>> Ratings.from_any((["ann", "bob"], ["tea", "tea"], [5.0, 3.0]))
        Ratings(2 users, 1 items, 2 ratings)
        """
        if duplicates not in _DUPLICATES:
            raise ParameterError(
                f"duplicates: expected one of {', '.join(_DUPLICATES)}, got {duplicates!r}",
                value=duplicates,
            )
        if isinstance(data, Ratings):
            _reject_choice(columns)
            if users is None and items is None:
                return data
            read = data._columns()
        else:
            read = read_columns(data, columns, users=users, items=items)
        assert read.ratings is not None
        user_map, user_rows = _numbered(read.users, users)
        item_map, item_rows = _numbered(read.items, items)
        order, indptr, indices = _sorted_by_user(user_rows, item_rows, len(user_map), len(item_map))
        values = read.ratings[order]
        times = None if read.timestamps is None else read.timestamps[order]
        del read, user_rows, item_rows

        repeated = _repeated(indptr, indices)
        if repeated.any():
            row = int(np.searchsorted(indptr, repeated.argmax(), side="right")) - 1
            pair = (user_map.ids.item(row), item_map.ids.item(indices[repeated.argmax()]))
            _report(duplicates, pair, repeated, order)
            keep = ~np.append(repeated[1:], False)  # the last of each run of one pair
            values = _averaged(values, repeated) if duplicates == "mean" else values[keep]
            times = None if times is None else times[keep]
            indptr, indices = _kept(indptr, keep), indices[keep]
        by_user = Sparse(indptr, indices, stored(values, exact=exact))
        return cls(user_map, item_map, by_user, transposed(by_user, len(item_map)), times)

    @classmethod
    def from_rows(
        cls,
        users: Vocabulary,
        items: Vocabulary,
        user_rows: NDArray[np.int32],
        item_rows: NDArray[np.int32],
        values: Values,
        timestamps: NDArray[np.int64] | None = None,
        *,
        exact: bool = False,
    ) -> Ratings:
        """Make ratings of row numbers that were checked before; no pair is there twice.

        >>> people, things = Vocabulary(["ann", "bob"]), Vocabulary(["tea"])
        >>> Ratings.from_rows(people, things, np.int32([1]), np.int32([0]), np.float32([4]))
        Ratings(2 users, 1 items, 1 ratings)
        """
        order, indptr, indices = _sorted_by_user(user_rows, item_rows, len(users), len(items))
        by_user = Sparse(indptr, indices, stored(values, exact=exact)[order])
        times = None if timestamps is None else timestamps[order]
        return cls(users, items, by_user, transposed(by_user, len(items)), times)

    def __repr__(self) -> str:
        return f"Ratings({self.n_users} users, {self.n_items} items, {self.n_ratings} ratings)"

    @property
    def n_users(self) -> int:
        """Number of users, those without ratings included."""
        return self.by_user.n_rows

    @property
    def n_items(self) -> int:
        """Number of items, those without ratings included."""
        return self.by_item.n_rows

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return self.by_user.nnz

    @cached_property
    def mean(self) -> float:
        """Mean of the ratings."""
        if self.minimum == self.maximum:
            return self.minimum  # without the rounding of a sum
        return float(self.by_user.values.mean(dtype=np.float64))

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the ratings (of the population); 1 where they are all equal."""
        deviation = self.by_user.values.std(dtype=np.float64) if self.n_ratings else 0.0
        # Rounding of the mean leaves equal ratings with a deviation of about 1e-16 of their size.
        return float(deviation) if self.maximum > self.minimum else 1.0

    @cached_property
    def minimum(self) -> float:
        """The smallest rating."""
        return float(self.by_user.values.min()) if self.n_ratings else 0.0

    @cached_property
    def maximum(self) -> float:
        """The largest rating."""
        return float(self.by_user.values.max()) if self.n_ratings else 0.0

    def triples(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Values]:
        """User row, item row and rating of every entry, in the order of ``by_user``.

        >>> Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)]).triples()[0]
        array([0, 1], dtype=int32)
        """
        rows = np.arange(self.n_users, dtype=np.int32)
        user_rows = np.repeat(rows, np.diff(self.by_user.indptr))
        return user_rows, self.by_user.indices, self.by_user.values

    def subset(self, mask: Any) -> Ratings:
        """Those ratings where ``mask`` (one truth value each, in the order of ``by_user``) is true.

        Users and items keep their rows, also where no rating is left.

        >>> ratings = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
        >>> ratings.subset(ratings.by_user.values > 4)
        Ratings(2 users, 1 items, 1 ratings)
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (self.n_ratings,):
            raise DataError(
                f"subset: expected a mask of {self.n_ratings} truth values, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        kept = Sparse(
            _kept(self.by_user.indptr, mask),
            self.by_user.indices[mask],
            self.by_user.values[mask],
        )
        times = None if self.timestamps is None else self.timestamps[mask]
        by_item = transposed(kept, self.n_items)
        return Ratings(self.users, self.items, kept, by_item, times)

    def select(self, positions: Any) -> Ratings:
        """Ratings at these positions in the order of ``by_user``; a position counts once.

        Truth values are a mask, as for :meth:`subset`.

        >>> Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)]).select([1]).mean
        3.0
        """
        positions = np.asarray(positions)
        if positions.dtype == bool:
            return self.subset(positions)
        mask = np.zeros(self.n_ratings, dtype=bool)
        mask[positions.astype(np.int64)] = True
        return self.subset(mask)

    def _columns(self) -> Columns:
        user_rows, item_rows, values = self.triples()
        return Columns(
            CodedIds(user_rows, self.users.ids[: self.n_users]),
            CodedIds(item_rows, self.items.ids[: self.n_items]),
            values,
            self.timestamps,
        )


def pairs_from_any(
    data: Any,
    columns: ColumnChoice = None,
    *,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read pairs of users and items, for which ratings are wanted, from anything that holds them.

    Ids in a text file have no type: those in ``users`` and ``items`` decide whether ``12`` there
    means the number or the text.

    >>> pairs_from_any([("ann", "tea"), ("bob", "milk")])[1]
    array(['tea', 'milk'], dtype=object)
    """
    return timed_pairs_from_any(data, columns, timed=False, users=users, items=items)[:2]


def timed_pairs_from_any(
    data: Any,
    columns: ColumnChoice = None,
    *,
    timed: bool = True,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]:
    """Read pairs as `pairs_from_any` does, and when they are, where that stands beside them.

    >>> timed_pairs_from_any({"user": ["ann"], "item": ["tea"], "timestamp": [7]})[2]
    array([7])
    """
    if isinstance(data, Ratings):
        _reject_choice(columns)
        read = data._columns()
    else:
        read = read_columns(data, columns, rated=False, timed=timed, users=users, items=items)
    return read.users.decode(), read.items.decode(), read.timestamps if timed else None


def _reject_choice(columns: ColumnChoice) -> None:
    if columns is not None:
        raise ParameterError(
            f"columns={columns!r}: Ratings have their columns already; leave columns out, "
            "or choose them when reading the ratings",
            value=columns,
        )


def _numbered(coded: CodedIds, known: Vocabulary | None) -> tuple[Vocabulary, NDArray[np.int32]]:
    """Rows of a column; a vocabulary that has to grow is copied first."""
    if known is None:
        known = Vocabulary()
    elif not known.knows_all(coded):
        known = known.copy()
    return known, known.add_coded(coded)


def _sorted_by_user(
    user_rows: NDArray[np.int32], item_rows: NDArray[np.int32], n_users: int, n_items: int
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32]]:
    """Order by user, then item, then position in the input, as (order, indptr, item rows).

    Two counting sorts, which is what SciPy's change between compressed rows and columns is; unlike
    its constructor from coordinates, it leaves repeated entries alone.
    """
    n = len(user_rows)
    rows = np.arange(n + 1, dtype=np.int32 if n < np.iinfo(np.int32).max else np.int64)
    one_per_row = sp.csr_array((np.zeros(n, np.int8), item_rows, rows), shape=(n, n_items)).tocsc()
    position = one_per_row.indices  # sorted by item
    by_item = sp.csc_array(
        (position, user_rows[position], one_per_row.indptr), shape=(n_users, n_items)
    )
    del rows, one_per_row, position
    by_user = by_item.tocsr()
    return by_user.data, *_as_contract(by_user)


def transposed(by_user: Sparse, n_items: int) -> Sparse:
    """Return the table of the other side.

    >>> table = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)]).by_user
    >>> transposed(table, 1).row(0)[1].tolist()
    [5.0, 3.0]
    """
    shape = (by_user.n_rows, n_items)
    by_item = sp.csr_array((by_user.values, by_user.indices, by_user.indptr), shape=shape).tocsc()
    return Sparse(*_as_contract(by_item), by_item.data)


def _as_contract(compressed: Any) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """SciPy takes one integer type for both; here it is 64 bits for ``indptr`` alone."""
    return compressed.indptr.astype(np.int64), compressed.indices.astype(np.int32, copy=False)


def _repeated(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether an entry has the same user and item as the one before."""
    repeated = np.zeros(len(indices), dtype=bool)
    np.equal(indices[1:], indices[:-1], out=repeated[1:])
    starts = indptr[:-1]
    repeated[starts[starts < len(indices)]] = False
    return repeated


def _report(
    duplicates: str, pair: tuple[Any, Any], repeated: NDArray[np.bool_], order: NDArray[Any]
) -> None:
    second = int(repeated.argmax())
    rows = int(order[second - 1]), int(order[second])
    count = int(repeated.sum())
    example = f"user {pair[0]!r} and item {pair[1]!r} at rows {rows[0]} and {rows[1]}"
    if duplicates == "error":
        raise DataError(
            f"{count} ratings are of a pair that was rated before, such as {example}; "
            f'remove them, or choose duplicates="last" or "mean"',
            value=pair,
            row=rows[1],
        )
    if duplicates == "last":
        warn_caller(
            f"{count} ratings were replaced by a later one of the same pair, such as {example}",
            DuplicateWarning,
        )


def _averaged(values: Values, repeated: NDArray[np.bool_]) -> NDArray[np.float64]:
    starts = np.flatnonzero(~repeated)
    counts = np.diff(np.append(starts, len(values)))
    means: NDArray[np.float64] = np.add.reduceat(values.astype(np.float64), starts) / counts
    return means


def _kept(indptr: NDArray[np.int64], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Row boundaries after the entries outside ``keep`` are gone."""
    before = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=before[1:])
    return before[indptr]
