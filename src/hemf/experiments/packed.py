"""Ratings on disk in five bytes each, to be read in blocks: a hundred million take half a gigabyte.

A file holds, all numbers with the low byte first:

* 64 bytes: ``HEMFRATE``, format, whether there are dates, number of ratings, number of items,
  highest user; the rest is zero;
* a row for each rating: the user in four bytes, the rating in one. Rows of an item stand together,
  in rising order of users;
* where there are dates, days since 1970 in two bytes for each rating;
* the items in four bytes each, then their numbers of ratings in eight.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf._files import atomic_write
from hemf.data.movielens import RatingColumns, unreadable
from hemf.data.ratings import Ratings, Sparse, transpose
from hemf.data.synthetic import Block
from hemf.data.vocabulary import Vocabulary
from hemf.errors import DatasetError

ROW = np.dtype([("user", "<u4"), ("rating", "u1")])
"""A rating: five bytes."""

_DAY, _ITEM, _COUNT = np.dtype("<u2"), np.dtype("<i4"), np.dtype("<i8")
_HEADER = struct.Struct("<8sIIqqq24x")
_MAGIC, _FORMAT = b"HEMFRATE", 1
_BLOCK = 1 << 20  # ratings
SECONDS_OF_A_DAY = 86_400


class ItemRatings(NamedTuple):
    """All ratings of an item, users rising."""

    item: int
    users: NDArray[np.integer]
    ratings: NDArray[np.integer]  # whole, 0 to 255
    days: NDArray[np.integer] | None = None  # since 1970


def write_packed(path: str | Path, items: Iterable[ItemRatings], *, dates: bool = False) -> None:
    """Write ratings item by item as they come: all of them, or no file.

    >>> path = getfixture("tmp_path") / "ratings.packed"
    >>> write_packed(path, [ItemRatings(7, np.array([3, 5]), np.array([4, 1]))])
    >>> path.stat().st_size - 64 - 2 * 5 - 12, PackedRatings.open(path)
    (0, PackedRatings(1 items, 2 ratings))
    """
    path = Path(path)
    try:
        with atomic_write(path) as fresh, fresh.open("wb") as file:
            # Dates come with the rows but stand behind them: they wait in a file without a name.
            with tempfile.TemporaryFile(dir=path.parent) as waiting:
                _write(file, waiting, items, dates)
            file.flush()
            os.fsync(file.fileno())
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(
            f"{path} could not be written: {error.strerror or error}. Nothing was kept; make "
            "room, or choose a folder that exists and may be written to",
            value=str(path),
        ) from error


def _write(file: BinaryIO, waiting: Any, items: Iterable[ItemRatings], dates: bool) -> None:
    file.write(bytes(_HEADER.size))
    index: dict[int, int] = {}
    highest = 0
    for item, users, ratings, days in items:
        assert item not in index
        assert (np.diff(users) > 0).all()
        rows = np.empty(len(users), ROW)
        rows["user"], rows["rating"] = users, ratings
        file.write(rows.tobytes())
        if dates:
            assert days is not None
            waiting.write(days.astype(_DAY).tobytes())
        index[item] = len(rows)
        highest = max(highest, int(users[-1]))
    waiting.seek(0)
    shutil.copyfileobj(waiting, file)
    file.write(np.array(list(index), _ITEM).tobytes())
    file.write(np.array(list(index.values()), _COUNT).tobytes())
    file.seek(0)
    total = sum(index.values())
    file.write(_HEADER.pack(_MAGIC, _FORMAT, dates, total, len(index), highest))


@dataclass(frozen=True, eq=False, repr=False)
class PackedRatings:
    """Ratings in a file that :func:`write_packed` wrote; only its index is in memory.

    >>> path = getfixture("tmp_path") / "ratings.packed"
    >>> two = [ItemRatings(7, np.array([3, 5]), np.array([4, 1]))]
    >>> write_packed(path, [*two, ItemRatings(2, np.array([5]), np.array([2]))])
    >>> packed = PackedRatings.open(path)
    >>> packed.ratings()
    Ratings(2 users, 2 items, 3 ratings)
    >>> [users.tolist() for users, items, ratings in packed.blocks(2)]
    [[3, 5], [5]]
    """

    path: Path
    items: NDArray[np.int32]
    """The items, in the order of the file."""
    counts: NDArray[np.int64]
    """How many ratings each has."""
    highest_user: int
    has_dates: bool

    @classmethod
    def open(cls, path: str | Path) -> PackedRatings:
        """Read the index of a file, and see that the file is whole."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                if len(head) < _HEADER.size or not head.startswith(_MAGIC):
                    raise DatasetError(f"{path} is no file of packed ratings", value=str(path))
                _, kind, dates, n_ratings, n_items, highest = _HEADER.unpack(head)
                if kind != _FORMAT:
                    raise DatasetError(
                        f"{path} has format {kind}, and this version of hemf reads format "
                        f"{_FORMAT}; delete the file to have it made again",
                        value=kind,
                    )
                each = ROW.itemsize + (_DAY.itemsize if dates else 0)
                before = _HEADER.size + each * n_ratings
                size = before + (_ITEM.itemsize + _COUNT.itemsize) * n_items
                file.seek(0, os.SEEK_END)
                if file.tell() != size:
                    raise DatasetError(
                        f"{path} is damaged: {file.tell():,} bytes where {size:,} are expected; "
                        "delete the file to have it made again",
                        value=file.tell(),
                    )
                file.seek(before)
                items = np.fromfile(file, _ITEM, n_items).astype(np.int32)
                counts = np.fromfile(file, _COUNT, n_items).astype(np.int64)
        except DatasetError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error
        if counts.sum() != n_ratings:
            raise DatasetError(
                f"{path} is damaged: its index does not fit its {n_ratings:,} ratings; delete "
                "the file to have it made again",
                value=str(path),
            )
        return cls(path, items, counts, highest, bool(dates))

    def __repr__(self) -> str:
        return f"PackedRatings({len(self.items)} items, {self.n_ratings} ratings)"

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return int(self.counts.sum())

    def blocks(self, block: int = _BLOCK) -> Iterator[Block]:
        """Yield users, items and ratings, at most ``block`` rows at a time."""
        ends = np.cumsum(self.counts)
        for start, rows in self._rows(block):
            positions = np.arange(start, start + len(rows))
            items = self.items[np.searchsorted(ends, positions, side="right")]
            yield rows["user"].astype(np.int32), items, rows["rating"].astype(np.float32)

    def columns(self) -> RatingColumns:
        """All ratings as columns, 12 bytes each, and 8 more where there are dates."""
        n = self.n_ratings
        users, ratings = np.empty(n, np.int32), np.empty(n, np.float32)
        for start, rows in self._rows(_BLOCK):
            part = slice(start, start + len(rows))
            users[part], ratings[part] = rows["user"], rows["rating"]
        items = np.repeat(self.items, self.counts)
        times = self._days().astype(np.int64) * SECONDS_OF_A_DAY if self.has_dates else None
        return RatingColumns(users, items, ratings, times)

    def ratings(self) -> Ratings:
        """All ratings as :class:`hemf.Ratings`, in less than twice the memory that these take.

        Rows of users are in rising order of their ids, rows of items as in the file.
        """
        is_there = np.zeros(self.highest_user + 1, dtype=bool)
        for _, rows in self._rows(_BLOCK):
            is_there[rows["user"]] = True
        user_ids = np.flatnonzero(is_there)
        row_of = np.cumsum(is_there, dtype=np.int32) - 1
        user_rows = np.empty(self.n_ratings, np.int32)
        values = np.empty(self.n_ratings, np.float32)
        for start, rows in self._rows(_BLOCK):
            part = slice(start, start + len(rows))
            user_rows[part], values[part] = row_of[rows["user"]], rows["rating"]
        indptr = np.concatenate(([0], np.cumsum(self.counts)))
        by_item = Sparse(indptr, user_rows, values)
        by_user = transpose(by_item, len(user_ids))
        times = None
        if self.has_dates:
            dated = transpose(Sparse(indptr, user_rows, self._days()), len(user_ids))
            times = dated.values.astype(np.int64) * SECONDS_OF_A_DAY
        return Ratings(Vocabulary(user_ids), Vocabulary(self.items), by_user, by_item, times)

    def _rows(self, block: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the position of the first row, and some rows, read and not mapped.

        The pages of a mapped file would count as memory of this process, and so grow with it.
        """
        for start in range(0, self.n_ratings, block):
            offset = _HEADER.size + start * ROW.itemsize
            count = min(block, self.n_ratings - start)
            yield start, np.fromfile(self.path, ROW, count, offset=offset)

    def _days(self) -> NDArray[Any]:
        offset = _HEADER.size + self.n_ratings * ROW.itemsize
        return np.fromfile(self.path, _DAY, self.n_ratings, offset=offset)


def read_packed(path: str | Path) -> RatingColumns:
    """Read a file of packed ratings whole; see :meth:`PackedRatings.columns`.

    >>> path = getfixture("tmp_path") / "ratings.packed"
    >>> write_packed(path, [ItemRatings(7, np.array([3, 5]), np.array([4, 1]))])
    >>> read_packed(path).users
    array([3, 5], dtype=int32)
    """
    return PackedRatings.open(path).columns()
