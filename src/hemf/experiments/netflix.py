"""Ratings of the Netflix Prize, converted to Parquet.

They come in two forms, of the same lines: one file for each movie, ``mv_0000001.txt`` to
``mv_0017770.txt``, and four files of many movies, ``combined_data_1.txt`` to
``combined_data_4.txt``. The movie stands before its ratings, a rating is user, stars and date::

    1:
    1488844,3,2005-09-06
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hemf._files import atomic_write, expand_home
from hemf._typing import ArrowTable
from hemf.data.datasets import Dataset, Progress, RatingColumns, register
from hemf.data.ratings import Ratings, Sparse, transpose
from hemf.data.synthetic import NETFLIX_ITEMS, NETFLIX_RATINGS, NETFLIX_USERS
from hemf.data.vocabulary import Vocabulary, to_numpy
from hemf.errors import DatasetError, DatasetWarning, warn_caller

if TYPE_CHECKING:
    from pyarrow.csv import InvalidRow

BLOCK = 1 << 21  # bytes of text that are parsed at once
MOVIES = 17_770
HIGHEST_USER = 2_649_429  # ids have gaps: there are 480,189 users
STARS = ("1", "2", "3", "4", "5")
NETFLIX_FILES = (
    "the folder training_set with mv_0000001.txt to mv_0017770.txt, or the files "
    "combined_data_1.txt to combined_data_4.txt"
)

_PER_MOVIE = re.compile(r"mv_(\d+)\.txt")
_COMBINED = re.compile(r"combined_data_(\d+)\.txt")
_EXPECTED = "expected a rating such as 1488844,3,2005-09-06 or a movie such as 1:"
_CHARACTERS = b"0123456789,:-\n"
_FIRST_DAY, _LAST_DAY = date(1995, 1, 1), date(2010, 12, 31)  # the data end in 2005
_LONGEST_LINE = 1 << 12
_ROW_GROUP = 1 << 20  # ratings that are written at once
_SECONDS_PER_DAY = 86_400
_TYPES = {"user": np.int32, "item": np.int32, "rating": np.float32, "timestamp": np.int64}


def convert_netflix(
    source: str | Path,
    target: str | Path,
    *,
    dates: bool = False,
    block: int = BLOCK,
    progress: Progress | None = None,
) -> tuple[int, int]:
    r"""Convert the ratings in a folder or a file to the Parquet file ``target``.

    Ratings are sorted by movie, as they are found, and by user. Text is parsed ``block`` bytes at a
    time, so memory does not grow with it. An error leaves no new file. ``dates`` keeps the dates
    too. ``progress(done_bytes, total_bytes)`` is called after every block. Returns the numbers of
    movies and ratings.

    >>> folder = getfixture("tmp_path")
    >>> lines = "1:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n"
    >>> _ = (folder / "mv_0000001.txt").write_text(lines)
    >>> convert_netflix(folder, folder / "ratings.parquet")
    (1, 2)
    >>> read_netflix(folder / "ratings.parquet").ratings
    array([5., 3.], dtype=float32)
    """
    files = find_ratings(source)
    total = sum(path.stat().st_size for path in files)
    done = 0
    places: dict[int, str] = {}

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    def tables() -> Iterator[ArrowTable]:
        for path in files:
            for movie in read_movies(path, block=block, progress=report):
                _check_place(movie, places)
                places[movie.number] = movie.place
                table = movie.ratings()
                yield table if dates else table.drop_columns("timestamp")

    try:
        with atomic_write(target) as fresh:
            n_ratings = _write(fresh, tables())
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(
            f"{target} could not be written: {error.strerror or error}. Nothing was kept; make "
            "room, or choose a folder that exists and may be written to",
            value=str(target),
        ) from error
    return len(places), n_ratings


def _write(path: Path, tables: Iterator[ArrowTable]) -> int:
    """Write tables to a Parquet file, in larger row groups; return the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n_rows = 0
    waiting = [next(tables)]
    with pq.ParquetWriter(path, waiting[0].schema, write_page_checksum=True) as writer:
        for table in chain(tables, [None]):
            if table is None or sum(map(len, waiting)) >= _ROW_GROUP:
                n_rows += sum(map(len, waiting))
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
            waiting.append(table)
    return n_rows


def read_netflix(path: str | Path) -> RatingColumns:
    """Read a file that `convert_netflix` wrote: 12 bytes a rating, and 8 more with dates."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            known = file.schema_arrow.names
            size = file.metadata.num_rows
            columns = {
                name: np.empty(size, kind)
                for name, kind in _TYPES.items()
                if name in known or name != "timestamp"
            }
            start = 0
            for batch in file.iter_batches(columns=list(columns)):
                for name, column in columns.items():
                    column[start : start + len(batch)] = to_numpy(batch[name])
                start += len(batch)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DatasetError(
            f"{path} cannot be read ({error}); delete the file to have it made again",
            value=str(path),
        ) from error
    return RatingColumns(*columns.values())


def load_netflix(path: str | Path) -> Ratings:
    """Read a file that `convert_netflix` wrote in less than twice the memory of the result.

    Rows of users are in rising order of their ids, rows of items as in the file.
    """
    users, items, values, times = read_netflix(path)
    starts = np.flatnonzero(np.diff(items, prepend=-1))
    item_ids = items[starts].astype(np.int64)
    del items
    is_there = np.zeros(int(users.max()) + 1, dtype=bool)
    is_there[users] = True
    user_ids = np.flatnonzero(is_there)
    np.take(np.cumsum(is_there, dtype=np.int32) - np.int32(1), users, out=users, mode="clip")
    indptr = np.append(starts, len(values))
    by_item = Sparse(indptr, users, values)
    if times is not None:
        days = (times // _SECONDS_PER_DAY).astype(np.float32)  # exact
        dated = transpose(Sparse(indptr, users, days), len(user_ids))
        times = dated.values.astype(np.int64) * _SECONDS_PER_DAY
    by_user = transpose(by_item, len(user_ids))
    return Ratings(Vocabulary(user_ids), Vocabulary(item_ids), by_user, by_item, times)


# -- files of ratings ----------------------------------------------------------------------------


def find_ratings(source: str | Path) -> list[Path]:
    """Return the files of ratings in a folder, or in ``training_set`` there, in order of movies.

    >>> find_ratings("a-folder-that-is-not-there")
    Traceback (most recent call last):
    hemf.errors.DatasetError: there is no a-folder-that-is-not-there
    """
    source = expand_home(source)
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DatasetError(f"there is no {source}", value=str(source))
    found = [
        files
        for place in (source, source / "training_set")
        for kind in (_PER_MOVIE, _COMBINED)
        if place.is_dir() and (files := _matching(place, kind))
    ]
    if not found:
        raise DatasetError(
            f"{source} holds no ratings of the Netflix Prize; expected {NETFLIX_FILES}",
            value=str(source),
        )
    if len(found) > 1:
        each = " and ".join(f"{files[0]}" for files in found)
        raise DatasetError(
            f"{source} holds the ratings more than once: {each}, and the like; keep one form",
            value=str(source),
        )
    return found[0]


def _matching(folder: Path, kind: re.Pattern[str]) -> list[Path]:
    numbered = [
        (int(match[1]), path) for path in folder.iterdir() if (match := kind.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered)]


class Movie(NamedTuple):
    """A movie with its ratings as they stand in the file."""

    path: Path
    line: int  # of "1:"
    number: int
    parts: list[ArrowTable]

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}, line {self.line}"

    def ratings(self) -> ArrowTable:
        """Return user, item, rating and timestamp, sorted by user; no user may rate it twice."""
        import pyarrow as pa

        if not self.parts:
            raise DatasetError(
                f"{self.place}: movie {self.number} has no ratings; is the file cut off?",
                value=self.number,
                row=self.line,
            )
        table = pa.concat_tables(self.parts)
        users = to_numpy(table["user"])
        order = np.argsort(users, kind="stable")
        again = np.flatnonzero(np.diff(users[order]) == 0)
        if again.size:
            row = order[again[0] + 1]
            line = self.line + 1 + int(row)
            raise DatasetError(
                f"{self.path}, line {line}: user {users[row]} has rated movie {self.number} before",
                value=int(users[row]),
                row=line,
            )
        items = pa.repeat(pa.scalar(self.number, pa.int32()), len(users))
        return table.take(pa.array(order)).add_column(1, "item", items)


def _check_place(movie: Movie, places: dict[int, str]) -> None:
    """Check that a movie is in the right file, and only there."""
    match = _PER_MOVIE.fullmatch(movie.path.name)
    if movie.number in places:
        why = f"movie {movie.number} comes a second time; the first was {places[movie.number]}"
    elif match and int(match[1]) != movie.number:
        why = (
            f"expected ratings of movie {int(match[1])} alone, as the name of the file says, and "
            f"not '{movie.number}:'"
        )
    else:
        return
    raise DatasetError(f"{movie.place}: {why}", value=movie.number, row=movie.line)


def read_movies(path: Path, *, block: int, progress: Callable[[int], None]) -> Iterator[Movie]:
    """Yield the movies of a file; ``progress`` is called with the bytes of every block."""
    movie: Movie | None = None
    line = 1
    for text in _whole_lines(path, block):
        ratings, headers = _parse(path, line, text)
        bounds = [row - number for number, (row, _) in enumerate(headers)]
        bounds.append(ratings.num_rows)
        if bounds[0]:
            if movie is None:
                first = _lines(text)[0]
                raise _wrong(path, line, first, "a rating before any movie")
            movie.parts.append(ratings.slice(0, bounds[0]))
        for (row, number), start, end in zip(headers, bounds, bounds[1:], strict=False):
            if movie is not None:
                yield movie
            part = ratings.slice(start, end - start)
            movie = Movie(path, line + row, number, [part] if end > start else [])
        line += text.count(b"\n")
        progress(len(text))
    if movie is None:
        raise DatasetError(f"{path} is empty; {_EXPECTED}", value=str(path))
    yield movie


def _whole_lines(path: Path, block: int) -> Iterator[bytes]:
    """Yield the text of a file in pieces of about ``block`` bytes that end where a line ends."""
    try:
        with path.open("rb") as file:
            rest = b""
            while chunk := file.read(block):
                rest += chunk
                end = rest.rfind(b"\n") + 1
                if end:
                    yield rest[:end]
                    rest = rest[end:]
                elif len(rest) > _LONGEST_LINE:
                    break  # not text; the parser rejects it
            if rest:
                yield rest + b"\n"
    except DatasetError:
        raise
    except OSError as error:
        what = "is a folder, not a file" if path.is_dir() else "cannot be read"
        raise DatasetError(f"{path} {what}: {error}", value=str(path)) from error


def _parse(path: Path, first_line: int, text: bytes) -> tuple[ArrowTable, list[tuple[int, int]]]:
    """Return the ratings of some lines, and the row and number of each movie among them.

    Arrow calls a function for rows without three fields, such as movies.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    headers: list[tuple[int, str]] = []

    def take_header(row: InvalidRow) -> str:
        headers.append((row.number - 1, row.text))
        return "skip"

    unified = text.replace(b"\r\n", b"\n")
    if unified.translate(None, _CHARACTERS):
        raise _first_fault(path, first_line, text)
    types = {"user": pa.int32(), "rating": pa.string(), "timestamp": pa.date32()}
    try:
        table = csv.read_csv(
            pa.BufferReader(unified),
            csv.ReadOptions(
                column_names=list(types), block_size=len(unified) + 1, use_threads=False
            ),
            csv.ParseOptions(
                quote_char=False, ignore_empty_lines=False, invalid_row_handler=take_header
            ),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pa.ArrowInvalid:
        raise _first_fault(path, first_line, text) from None
    users, days = (pc.min_max(table[name]).as_py() for name in ("user", "timestamp"))
    stars = pc.index_in(table["rating"], pa.array(STARS))
    is_valid = not stars.null_count and all(_fault(header) is None for _, header in headers)
    if table.num_rows:
        is_valid &= users["min"] >= 1 and users["max"] <= HIGHEST_USER
        is_valid &= days["min"] >= _FIRST_DAY and days["max"] <= _LAST_DAY
    if not is_valid:
        raise _first_fault(path, first_line, text)
    seconds = pc.multiply(table["timestamp"].cast(pa.int32()).cast(pa.int64()), _SECONDS_PER_DAY)
    ratings = pc.add(stars, 1).cast(pa.uint8())
    columns = {"user": table["user"], "rating": ratings, "timestamp": seconds}
    return pa.table(columns), [(row, int(header[:-1])) for row, header in headers]


def _first_fault(path: Path, first_line: int, text: bytes) -> DatasetError:
    lines = _lines(text)
    for number, line in enumerate(lines, start=first_line):
        if why := _fault(line):
            return _wrong(path, number, line, why)
    return _wrong(path, first_line, lines[0], "an error in this line or one that follows")


def _lines(text: bytes) -> list[str]:
    lines = text.decode("utf-8", errors="replace").split("\n")[:-1]
    return [line.rstrip("\r") for line in lines]


def _wrong(path: Path, number: int, line: str, why: str) -> DatasetError:
    message = f"{path}, line {number}: {why}: {line[:80]!r}; {_EXPECTED}"
    return DatasetError(message, value=line, row=number)


def _fault(line: str) -> str | None:
    """Return what is wrong with a line, or None."""
    if not line:
        return "an empty line"
    if line.endswith(":"):
        is_movie = _is_whole(line[:-1], MOVIES)
        return None if is_movie else f"the movie is no number from 1 to {MOVIES:,}"
    fields = line.split(",")
    if len(fields) != 3:
        return f"{len(fields)} fields where 3 are expected"
    user, stars, day = fields
    if not _is_whole(user, HIGHEST_USER):
        return f"the user is no number from 1 to {HIGHEST_USER:,}"
    if stars not in STARS:
        return f"the rating is no number from 1 to {STARS[-1]}"
    try:
        is_near = _FIRST_DAY <= datetime.strptime(day, "%Y-%m-%d").date() <= _LAST_DAY
    except ValueError:
        return "the date is not one written YYYY-MM-DD"
    return None if is_near else f"the date is not between {_FIRST_DAY.year} and {_LAST_DAY.year}"


def _is_whole(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= most


# -- the catalogue entry -------------------------------------------------------------------------


def _convert(entry: Dataset, home: Path, progress: Progress | None) -> Path:
    """Convert the Netflix files in a folder; warn if they are not complete."""
    target = home / entry.ratings_file
    n_movies, n_ratings = convert_netflix(home, target, progress=progress)
    if n_ratings != entry.ratings:
        warn_caller(
            f"{home.absolute()} holds {n_ratings:,} ratings of {n_movies:,} items, where "
            f"{entry.title} has {entry.ratings:,} of {entry.items:,}; are files missing? To add "
            f"them, delete {target.name} there and run this again",
            DatasetWarning,
        )
    return target


register(
    Dataset(
        name="netflix",
        title="Netflix Prize (2006)",
        ratings_member="netflix/ratings.parquet",
        placed=NETFLIX_FILES,
        users=NETFLIX_USERS,
        items=NETFLIX_ITEMS,
        ratings=NETFLIX_RATINGS,
        scale=(1.0, 5.0, 1.0),
        megabytes=2_000.0,
        terms="Netflix; no longer offered. The README that came with your copy is binding.",
        citation=(
            "James Bennett and Stan Lanning (2007). The Netflix Prize. Proceedings of KDD Cup "
            "and Workshop 2007."
        ),
        read=read_netflix,
        read_ratings=load_netflix,
        convert=_convert,
    ),
)
