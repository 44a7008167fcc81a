"""Ratings of any origin as two sparse tables, one by user and one by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypedDict

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from hemf._checks import check_choice, rating_text
from hemf._typing import (
    AnyArray,
    Array,
    BoolArray,
    Float64Array,
    IdsLike,
    Int32Array,
    Int64Array,
    RatingsLike,
)
from hemf.data.sources import ColumnChoice, Columns, downcast, read_columns
from hemf.data.vocabulary import CodedIds, Vocabulary
from hemf.errors import DataError, DataWarning, DuplicateWarning, ParameterError, warn_caller


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `Ratings.from_any`."""

    columns: ColumnChoice
    duplicates: str
    users: Vocabulary | None
    items: Vocabulary | None
    exact: bool


@dataclass(frozen=True, eq=False)
class Sparse:
    """Compressed rows of one side: row i holds ``values[indptr[i]:indptr[i + 1]]``.

    ``indices`` are the row numbers of the other side, ascending within a row.

    >>> table = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3), ("ann", "milk", 1)]).by_user
    >>> table.n_rows, table.nnz, table.row(0)
    (2, 3, (array([0, 1], dtype=int32), array([5., 1.], dtype=float32)))
    """

    indptr: Int64Array
    indices: Int32Array
    values: Array

    @property
    def n_rows(self) -> int:
        """Number of rows, empty ones included."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """Number of ratings."""
        return len(self.indices)

    def row(self, number: int) -> tuple[Int32Array, Array]:
        """Return the rows of the other side with a rating in this row, and the ratings."""
        span = slice(self.indptr[number], self.indptr[number + 1])
        return self.indices[span], self.values[span]


@dataclass(frozen=True, eq=False, repr=False)
class Ratings:
    """Ratings with the ids of both sides, sorted by user and by item.

    Created with :meth:`from_any`. ``timestamps`` are in the order of ``by_user``, or None.
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
    timestamps: Int64Array | None = None

    @classmethod
    def from_any(
        cls,
        data: RatingsLike,
        *,
        columns: ColumnChoice = None,
        duplicates: str = "last",
        users: Vocabulary | None = None,
        items: Vocabulary | None = None,
        exact: bool = False,
    ) -> Ratings:
        """Read and check ratings.

        Parameters
        ----------
        data
            A DataFrame (pandas, polars, Arrow), a path (Parquet, CSV, TSV, MovieLens ``.dat`` and
            ``u.data``), a SciPy sparse matrix (every stored entry is a rating), a tuple of columns
            (users, items, ratings[, timestamps]), an array of 3 or 4 columns, a structured array, a
            mapping of columns, a list of tuples or records, a tuple of tuples, or ``Ratings``.
        columns
            Names or positions of the columns user, item, rating[, timestamp], or a mapping from
            these words; by default the usual names are recognised.
        duplicates
            What to do with a pair rated twice: ``"last"`` keeps the last one (with a warning),
            ``"mean"`` the mean, ``"error"`` raises an error.
        users, items
            Vocabularies that number the rows; new ids follow. They are never changed.
        exact
            Ratings are kept in float32 if that moves none of them by more than a millionth of
            their range, otherwise in float64. With ``exact`` they may not move at all.

        Returns
        -------
        Ratings

        Examples
        --------
        >>> Ratings.from_any((["ann", "bob"], ["tea", "tea"], [5.0, 3.0]))
        Ratings(2 users, 1 items, 2 ratings)

        """
        check_choice("duplicates", duplicates, ("last", "error", "mean"))
        if isinstance(data, Ratings):
            _reject_choice(columns)
            if users is None and items is None:
                return data
            read = data.columns()
        else:
            read = read_columns(data, columns, users=users, items=items)
        assert read.ratings is not None
        user_map, user_rows = _add_ids(read.users, users)
        item_map, item_rows = _add_ids(read.items, items)
        order, indptr, indices = _sort_by_user(user_rows, item_rows, len(user_map), len(item_map))
        values = read.ratings[order]
        times = None if read.timestamps is None else read.timestamps[order]
        del read, user_rows, item_rows

        repeated = np.zeros(len(indices), dtype=bool)  # same user and item as the entry before
        np.equal(indices[1:], indices[:-1], out=repeated[1:])
        starts = indptr[:-1]
        repeated[starts[starts < len(indices)]] = False
        if repeated.any():
            second = int(repeated.argmax())
            row = int(np.searchsorted(indptr, second, side="right")) - 1
            pair = (user_map.ids.item(row), item_map.ids.item(indices[second]))
            _report_duplicates(
                duplicates, int(repeated.sum()), pair, order[[second - 1, second]].tolist(),
                "that was rated before",
            )  # fmt: skip
            keep = ~np.append(repeated[1:], False)  # the last entry of each pair
            if duplicates == "mean":
                starts = np.flatnonzero(~repeated)
                counts = np.diff(np.append(starts, len(values)))
                values = np.add.reduceat(values.astype(np.float64), starts) / counts
            else:
                values = values[keep]
            times = None if times is None else times[keep]
            indptr, indices = _filter_indptr(indptr, keep), indices[keep]
        by_user = Sparse(indptr, indices, downcast(values, exact=exact))
        return cls(user_map, item_map, by_user, transpose(by_user, len(item_map)), times)

    @classmethod
    def from_rows(
        cls,
        users: Vocabulary,
        items: Vocabulary,
        triples: tuple[Int32Array, Int32Array, Array],
        timestamps: Int64Array | None = None,
        *,
        exact: bool = False,
    ) -> Ratings:
        """Create ratings from checked user rows, item rows and values; no pair may occur twice."""
        user_rows, item_rows, values = triples
        order, indptr, indices = _sort_by_user(user_rows, item_rows, len(users), len(items))
        by_user = Sparse(indptr, indices, downcast(values, exact=exact)[order])
        times = None if timestamps is None else timestamps[order]
        return cls(users, items, by_user, transpose(by_user, len(items)), times)

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

    def with_scale(self, mean: float, scale: float) -> Ratings:
        """Return the same ratings with a mean and a scale that were computed before."""
        twin = replace(self)
        vars(twin)["mean"], vars(twin)["scale"] = mean, scale
        return twin

    @cached_property
    def mean(self) -> float:
        """Mean of the ratings."""
        if self.minimum == self.maximum:
            return self.minimum  # without rounding errors
        return float(self.by_user.values.mean(dtype=np.float64))

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the ratings (of the population); 1 if all are equal."""
        # Rounding leaves equal ratings with a deviation of about 1e-16 of their size.
        return _deviation(self.by_user.values) if self.maximum > self.minimum else 1.0

    @cached_property
    def minimum(self) -> float:
        """The smallest rating."""
        return float(self.by_user.values.min()) if self.n_ratings else 0.0

    @cached_property
    def maximum(self) -> float:
        """The largest rating."""
        return float(self.by_user.values.max()) if self.n_ratings else 0.0

    def triples(self) -> tuple[Int32Array, Int32Array, Array]:
        """Return user row, item row and rating of every entry, in the order of ``by_user``."""
        rows = np.arange(self.n_users, dtype=np.int32)
        user_rows = np.repeat(rows, np.diff(self.by_user.indptr))
        return user_rows, self.by_user.indices, self.by_user.values

    def id_columns(self) -> tuple[AnyArray, AnyArray, Array]:
        """Return user id, item id and rating of every entry, in the order of ``by_user``.

        >>> Ratings.from_any([("ann", "tea", 5)]).id_columns()[1].tolist()
        ['tea']
        """
        users, items, values = self.triples()
        return self.users.ids[users], self.items.ids[items], values

    def subset(self, mask: ArrayLike) -> Ratings:
        """Return the ratings where ``mask``, in the order of ``by_user``, is true.

        Users and items keep their rows, also those without ratings.

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
        table = self.by_user
        indptr = _filter_indptr(table.indptr, mask)
        by_user = Sparse(indptr, table.indices[mask], table.values[mask])
        times = None if self.timestamps is None else self.timestamps[mask]
        by_item = transpose(by_user, self.n_items)
        return Ratings(self.users, self.items, by_user, by_item, times)

    def select(self, positions: ArrayLike) -> Ratings:
        """Return the ratings at these positions in the order of ``by_user``, each once.

        Truth values are a mask, as for :meth:`subset`.
        """
        positions = np.asarray(positions)
        if positions.dtype == bool:
            return self.subset(positions)
        mask = np.zeros(self.n_ratings, dtype=bool)
        mask[positions.astype(np.int64)] = True
        return self.subset(mask)

    def columns(self) -> Columns:
        """Return the ratings as columns, in the order of ``by_user``."""
        user_rows, item_rows, values = self.triples()
        return Columns(
            CodedIds(user_rows, self.users.ids[: self.n_users]),
            CodedIds(item_rows, self.items.ids[: self.n_items]),
            values,
            self.timestamps,
        )


# -- pairs and rows in order ---------------------------------------------------------------------


def pairs_from_any(
    data: RatingsLike,
    columns: ColumnChoice = None,
    *,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> tuple[AnyArray, AnyArray]:
    """Read pairs of users and items from anything that holds them.

    Ids in a text file have no type: those in ``users`` and ``items`` decide whether ``12`` is a
    number.
    """
    return timed_pairs_from_any(data, columns, timed=False, users=users, items=items)[:2]


def timed_pairs_from_any(
    data: RatingsLike,
    columns: ColumnChoice = None,
    *,
    timed: bool = True,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> tuple[AnyArray, AnyArray, Int64Array | None]:
    """Read pairs like `pairs_from_any`, and their times if there are any."""
    if isinstance(data, Ratings):
        _reject_choice(columns)
        read = data.columns()
    else:
        read = read_columns(data, columns, rated=False, timed=timed, users=users, items=items)
    return read.users.decode(), read.items.decode(), read.timestamps if timed else None


def rated_pairs(
    ratings: RatingsLike, y: IdsLike, columns: ColumnChoice, *, like: Ratings
) -> tuple[AnyArray, AnyArray, Float64Array, Int64Array | None]:
    """Return users, items, ratings and times of anything that `hemf.HeMF.fit` reads.

    Ids in text get the type of those of ``like``. A pair rated twice stays twice.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> rated_pairs([("bob", "tea")], [4], None, like=data)[2]
    array([4.])
    """
    if y is not None:
        users, items = pairs_from_any(ratings, columns, users=like.users, items=like.items)
        ratings, columns = (users, items, y), None
    if isinstance(ratings, Ratings):
        values = ratings.by_user.values.astype(np.float64)
        return *pairs_from_any(ratings), values, ratings.timestamps
    read = read_columns(ratings, columns, users=like.users, items=like.items)
    assert read.ratings is not None
    values = read.ratings.astype(np.float64)
    return read.users.decode(), read.items.decode(), values, read.timestamps


def validation_pairs(
    ratings: RatingsLike, train: Ratings
) -> tuple[AnyArray, AnyArray, Float64Array, Int64Array | None]:
    """Return users, items, ratings and times to report an error on; raise if there are none.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> validation_pairs([("bob", "milk", 4)], data)[2]
    array([4.])
    """
    read = rated_pairs(ratings, None, None, like=train)
    if not read[2].size:
        raise DataError("there are no ratings to report the error on")
    return read


def read_in_order(
    ratings: RatingsLike,
    y: ArrayLike | None,
    columns: ColumnChoice,
    *,
    users: Vocabulary,
    items: Vocabulary,
) -> Columns:
    """Read ratings row by row; known ids decide the type of ids in text.

    `Ratings` have no order: they are sorted by time or, without times, by user.

    >>> data = Ratings.from_any([("al", "tea", 5, 30), ("bo", "tea", 3, 10), ("bo", "ale", 1, 20)])
    >>> read_in_order(data, None, None, users=Vocabulary(), items=Vocabulary()).ratings
    array([3., 1., 5.], dtype=float32)
    """
    if y is not None:
        ratings, columns = (*pairs_from_any(ratings, columns, users=users, items=items), y), None
    elif isinstance(ratings, Ratings):
        user_ids, item_ids = pairs_from_any(ratings)
        times, values = ratings.timestamps, ratings.by_user.values
        order = slice(None) if times is None else np.argsort(times, kind="stable")
        by_time = () if times is None else (times[order],)
        ratings, columns = (user_ids[order], item_ids[order], values[order], *by_time), None
    return read_columns(ratings, columns, users=users, items=items)


def drop_unrated_ids(ids: Vocabulary, rows: Int32Array) -> tuple[Vocabulary, Int32Array]:
    """Return the ids that occur in ``rows``, and the rows renumbered."""
    occurs = np.zeros(len(ids), dtype=bool)
    occurs[rows] = True
    numbers = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    return Vocabulary(ids.ids[occurs]), numbers[rows]


def _deviation(values: Array) -> float:
    """Return the standard deviation of unequal values, also where squares of it underflow."""
    found = float(values.std(dtype=np.float64))
    if found * found >= np.finfo(np.float64).tiny:
        return found
    width = float(np.ptp(values))
    return float(((values - values.min()) / width).std()) * width


def _reject_choice(columns: ColumnChoice) -> None:
    if columns is not None:
        raise ParameterError(
            f"columns={columns!r}: Ratings have their columns already; leave columns out, "
            "or choose them when reading the ratings",
            value=columns,
        )


def warn_of_equal(ratings: Ratings) -> None:
    """Warn where all ratings are equal, as clicks are."""
    if ratings.n_ratings > 1 and ratings.minimum == ratings.maximum:
        warn_caller(
            f"all {ratings.n_ratings:,} ratings are {rating_text(ratings.minimum)}, so the "
            "model can only predict that everywhere. If these are clicks or purchases, add pairs "
            "that were not chosen, rated 0, or give ratings that differ, such as counts or "
            "durations",
            DataWarning,
        )


# -- sorting -------------------------------------------------------------------------------------


def _add_ids(coded: CodedIds, known: Vocabulary | None) -> tuple[Vocabulary, Int32Array]:
    """Return a vocabulary with all ids, and their rows; ``known`` is not changed."""
    if known is None:
        known = Vocabulary()
    elif not known.knows_all(coded):
        known = known.copy()
    return known, known.add_coded(coded)


def _sort_by_user(
    user_rows: Int32Array, item_rows: Int32Array, n_users: int, n_items: int
) -> tuple[AnyArray, Int64Array, Int32Array]:
    """Sort by user, item and position in the input; return (order, indptr, item rows).

    SciPy's conversions between compressed rows and columns are counting sorts. They keep repeated
    entries, unlike its constructor from coordinates.
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
    return by_user.data, *_index_arrays(by_user)


def transpose(by_user: Sparse, n_items: int) -> Sparse:
    """Return the table of the other side."""
    shape = (by_user.n_rows, n_items)
    by_item = sp.csr_array((by_user.values, by_user.indices, by_user.indptr), shape=shape).tocsc()
    return Sparse(*_index_arrays(by_item), by_item.data)


def _index_arrays(compressed: sp.csr_array | sp.csc_array) -> tuple[Int64Array, Int32Array]:
    """Return a 64-bit indptr and 32-bit indices; SciPy has one type for both."""
    return compressed.indptr.astype(np.int64), compressed.indices.astype(np.int32, copy=False)


def _filter_indptr(indptr: Int64Array, keep: BoolArray) -> Int64Array:
    """Return the row boundaries after entries outside ``keep`` are removed."""
    return np.concatenate([[0], np.cumsum(keep)])[indptr]


# -- pairs rated twice ---------------------------------------------------------------------------


def resolve_duplicates(
    users: CodedIds,
    items: CodedIds,
    values: Array,
    before: Array,
    duplicates: str,
    times: Int64Array | None = None,
) -> tuple[CodedIds, CodedIds, Array, Array, Int64Array | None]:
    """Return the last rating of each pair of a batch, with ``before`` of the pair's first one.

    ``duplicates`` is "error" or "last".

    >>> import warnings
    >>> from hemf.data.vocabulary import factorise
    >>> users, items = factorise(["al", "bo", "al"]), factorise(["tea", "tea", "tea"])
    >>> values, nan = np.float32([5, 3, 4]), np.full(3, np.nan, np.float32)
    >>> with warnings.catch_warnings(action="ignore"):
    ...     users, _, values, _, _ = resolve_duplicates(users, items, values, nan, "last")
    >>> users.decode().tolist(), values.tolist()
    (['bo', 'al'], [3.0, 4.0])
    """
    key = users.codes.astype(np.int64) * len(items.distinct) + items.codes
    by_pair = np.argsort(key, kind="stable")
    is_first = np.diff(key[by_pair], prepend=-1) > 0
    if is_first.all():
        return users, items, values, before, times
    second = int(is_first.argmin())
    rows = by_pair[[second - 1, second]].tolist()
    pair = (users.decode().item(rows[0]), items.decode().item(rows[0]))
    _report_duplicates(duplicates, int((~is_first).sum()), pair, rows, "that is in the batch twice")
    first, last = by_pair[is_first], by_pair[np.append(is_first[1:], True)]
    order = np.argsort(last)
    first, last = first[order], last[order]
    return (
        replace(users, codes=users.codes[last]),
        replace(items, codes=items.codes[last]),
        values[last],
        before[first],
        None if times is None else times[last],
    )


def average_duplicates(
    users: Int32Array, items: Int32Array, values: Array, times: Int64Array | None
) -> tuple[Int32Array, Int32Array, Array, Int64Array | None]:
    """Return each pair once, with the mean of its ratings and its last time."""
    key = users.astype(np.int64) * (int(items.max(initial=0)) + 1) + items
    _, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    if first.size == key.size:
        return users, items, values, times
    if times is not None:
        latest = np.full(first.size, np.iinfo(np.int64).min)
        np.maximum.at(latest, inverse, times)
        times = latest
    return users[first], items[first], np.bincount(inverse, values) / counts, times


def _report_duplicates(
    duplicates: str, count: int, pair: tuple[object, object], rows: Sequence[int], where: str
) -> None:
    """Raise an error or warn about pairs that are rated twice, as ``duplicates`` asks for."""
    example = f"user {pair[0]!r} and item {pair[1]!r} at rows {rows[0]} and {rows[1]}"
    if duplicates == "error":
        raise DataError(
            f"{count} ratings are of a pair {where}, such as {example}; "
            f'remove them, or choose duplicates="last" or "mean"',
            value=pair,
            row=rows[1],
        )
    if duplicates == "last":
        warn_caller(
            f"{count} ratings were replaced by a later one of the same pair, such as {example}",
            DuplicateWarning,
        )
