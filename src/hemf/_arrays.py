"""Arrays that grow, distinct values with numbers, and the largest entries of rows."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hemf._typing import Array, Float64Array, Int64Array

A = TypeVar("A", bound=npt.NDArray[Any])

_MIN_ROOM = 16  # rows
RECENT_VALUES = 1024  # of ratings, which are indexed apart


def with_room(array: A, used: int, wanted: int) -> A:
    """Return an array with room for ``wanted`` rows; the first ``used`` are kept.

    An array without enough room is copied to one of at least twice its length, so that appending
    costs constant time on average. New rows are zero, or None in an object array.

    >>> with_room(np.array([7, 8]), 2, 3)[:4]
    array([7, 8, 0, 0])
    """
    if wanted <= len(array):
        return array
    room = max(wanted, 2 * len(array), _MIN_ROOM)
    grown = np.zeros((room, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown  # type: ignore[return-value]


def top_columns(scores: npt.NDArray[np.floating[Any]], n: int) -> npt.NDArray[np.int64]:
    """Columns of the n highest scores of every row, best first; ties in the order of the columns.

    Columns at -inf are never chosen; -1 fills the places that are left.

    >>> top_columns(np.array([[1.0, 3.0, 3.0, 3.0], [-np.inf, 2.0, -np.inf, -np.inf]]), 2)
    array([[ 1,  2],
           [ 1, -1]])
    """
    n = min(n, scores.shape[1])
    chosen = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    last = np.take_along_axis(scores, chosen, axis=1).min(axis=1, keepdims=True)
    tied = np.flatnonzero((scores >= last).sum(axis=1) > n)  # argpartition picks any of them
    if tied.size:
        chosen[tied] = np.argsort(-scores[tied], axis=1, kind="stable")[:, :n]
    values = np.take_along_axis(scores, chosen, axis=1)
    order = np.lexsort((chosen, -values), axis=1)
    best = np.take_along_axis(values, order, axis=1)
    return np.where(np.isneginf(best), -1, np.take_along_axis(chosen, order, axis=1))


class RatingBook:
    """The distinct rating values in float64, numbered in the order in which they were first seen.

    >>> book = RatingBook()
    >>> book.codes(np.float32([4, 3.5, 4])).tolist(), book.values.tolist()
    ([0, 1, 0], [4.0, 3.5])
    >>> book.known(np.float32([3.5, 2])).tolist(), len(book)
    ([1, -1], 2)
    """

    def __init__(self) -> None:
        self._values: Float64Array = np.empty(0, np.float64)
        self._count = 0
        # Most values are in the long index, the latest in a short one: otherwise each new value
        # could move millions.
        self._long = self._recent = _Index.empty()

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Float64Array:
        """The value of each code; valid until values are added or removed."""
        return self._values[: self._count]

    def known(self, values: Array) -> Int64Array:
        """Return the code of each value, -1 for those not in the book."""
        wanted = values.astype(np.float64, copy=False)
        codes = self._recent.find(wanted)
        if len(self._long.values):
            missed = np.flatnonzero(codes < 0)
            if len(missed):
                codes[missed] = self._long.find(wanted[missed])
        return codes

    def codes(self, values: Array) -> Int64Array:
        """Return the code of each value; new values are added."""
        codes = self.known(values)
        new = codes < 0
        if new.any():
            self._add(values[new].astype(np.float64))
            codes = self.known(values)
        return codes

    def truncate(self, count: int) -> None:
        """Remove all values but the first ``count``.

        >>> book = RatingBook()
        >>> _ = book.codes(np.float32([4])), book.codes(np.float32([3, 5]))
        >>> book.truncate(1)
        >>> book.values.tolist(), book.known(np.float32([5, 4])).tolist()
        ([4.0], [-1, 0])
        """
        if count < self._count:
            self._long, self._recent = self._long.below(count), self._recent.below(count)
            self._count = count

    def _add(self, values: Float64Array) -> None:
        distinct, first = np.unique(values, return_index=True)
        rank = np.empty(len(first), np.uint32)
        rank[np.argsort(first)] = np.arange(len(first))
        count = self._count + len(distinct)
        stored = with_room(self._values, self._count, count)
        stored[self._count + rank.astype(np.int64)] = distinct
        long = self._long
        recent = self._recent.merged(_Index(distinct, rank + np.uint32(self._count)))
        if len(recent.values) > max(RECENT_VALUES, 8 * int(len(long.values) ** 0.5)):
            long, recent = long.merged(recent), _Index.empty()
        self._values, self._long, self._recent = stored, long, recent
        self._count = count


class _Index(NamedTuple):
    """Values in ascending order, each with its code."""

    values: Float64Array
    codes: npt.NDArray[np.uint32]

    @classmethod
    def empty(cls) -> _Index:
        return cls(np.empty(0, np.float64), np.empty(0, np.uint32))

    def find(self, wanted: Float64Array) -> Int64Array:
        if not len(self.values):
            return np.full(len(wanted), -1)
        place = self.values.searchsorted(wanted)
        codes = self.codes.take(place, mode="clip").astype(np.int64)
        codes[self.values.take(place, mode="clip") != wanted] = -1
        return codes

    def merged(self, other: _Index) -> _Index:
        values = np.concatenate([self.values, other.values])
        order = np.argsort(values, kind="stable")  # of two sorted parts, a mere merge
        return _Index(values[order], np.concatenate([self.codes, other.codes])[order])

    def below(self, count: int) -> _Index:
        kept = self.codes < count
        return _Index(self.values[kept], self.codes[kept])
