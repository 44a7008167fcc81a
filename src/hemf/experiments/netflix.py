"""Pack the ratings of the Netflix Prize, as they are read, into five bytes each.

They are found in two forms, of the same lines: one file for each movie, ``mv_0000001.txt`` to
``mv_0017770.txt``, and four files of many movies, ``combined_data_1.txt`` to
``combined_data_4.txt``. The movie stands before its ratings, a rating is user, stars and date::

    1:
    1488844,3,2005-09-06
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf._files import expand_home
from hemf.data.datasets import Progress
from hemf.data.movielens import unreadable
from hemf.errors import DatasetError
from hemf.experiments.packed import ItemRatings, PackedRatings, write_packed

BLOCK = 1 << 21  # bytes of text that are parsed at once
NETFLIX_FILES = (
    "the folder training_set with mv_0000001.txt to mv_0017770.txt, or the files "
    "combined_data_1.txt to combined_data_4.txt"
)

_PER_MOVIE = re.compile(r"mv_(\d+)\.txt")
_COMBINED = re.compile(r"combined_data_(\d+)\.txt")


def pack_netflix(
    source: str | Path,
    target: str | Path,
    *,
    dates: bool = False,
    block: int = BLOCK,
    progress: Progress | None = None,
) -> PackedRatings:
    r"""Parse the ratings in a folder or a file, and keep them packed in the file ``target``.

    Text is parsed ``block`` bytes at a time, so memory does not grow with it. The first line that
    is wrong ends it, and then there is no new file. ``dates`` keeps the dates too.
    ``progress(done_bytes, total_bytes)`` is called after every block.

    >>> folder = getfixture("tmp_path")
    >>> lines = "1:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n"
    >>> _ = (folder / "mv_0000001.txt").write_text(lines)
    >>> pack_netflix(folder, folder / "ratings.packed").columns().ratings
    array([5., 3.], dtype=float32)
    """
    files = find_ratings(source)
    total = sum(path.stat().st_size for path in files)
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    def items() -> Iterator[ItemRatings]:
        seen: dict[int, str] = {}
        for path in files:
            for movie in read_movies(path, block=block, progress=report):
                _check_place(path, movie, seen)
                seen[movie.number] = f"{path}, line {movie.line}"
                yield movie.sorted_by_user()

    write_packed(target, items(), dates=dates)
    return PackedRatings.open(target)


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
    places = (source, source / "training_set")
    found = {
        f"{kind.pattern} in {place}": files
        for place in places
        for kind in (_PER_MOVIE, _COMBINED)
        if place.is_dir() and (files := _matching(place, kind))
    }
    if not found:
        raise DatasetError(
            f"{source} holds no ratings of the Netflix Prize; expected {NETFLIX_FILES}",
            value=str(source),
        )
    if len(found) > 1:
        each = " and ".join(f"{files[0]}" for files in found.values())
        raise DatasetError(
            f"{source} holds the ratings more than once: {each}, and the like; keep one form",
            value=str(source),
        )
    (files,) = found.values()
    return files


def _matching(folder: Path, kind: re.Pattern[str]) -> list[Path]:
    numbered = [
        (int(match[1]), path) for path in folder.iterdir() if (match := kind.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered)]


def _check_place(path: Path, movie: Movie, seen: dict[int, str]) -> None:
    """See that a movie is where it belongs, and there alone."""
    if movie.number in seen:
        raise DatasetError(
            f"{path}, line {movie.line}: movie {movie.number} comes a second time; the first "
            f"was {seen[movie.number]}",
            value=movie.number,
            row=movie.line,
        )
    match = _PER_MOVIE.fullmatch(path.name)
    if match and int(match[1]) != movie.number:
        raise DatasetError(
            f"{path}, line {movie.line}: expected ratings of movie {int(match[1])} alone, as the "
            f"name of the file says, and not '{movie.number}:'",
            value=movie.number,
            row=movie.line,
        )


# ------------------------------------------------------------------------------------------------
# Parse lines of Netflix ratings, many at a time.
#
# A rating ends in a comma, the stars, a comma and ten characters of date, so that every field but
# the user has a fixed place before the end of the line. NumPy takes the bytes there out of all
# lines of a block at once; what is not as it should be is found on the way.


MOVIES = 17_770
HIGHEST_USER = 2_649_429  # ids have gaps: there are 480,189 users
STARS = 5

_EXPECTED = "expected a rating such as 1488844,3,2005-09-06 or a movie such as 1:"
_USER_DIGITS = len(str(HIGHEST_USER))
_TAIL = len(",3,2005-09-06")
_WINDOW = _USER_DIGITS + _TAIL
_DATE = slice(0, 4), slice(5, 7), slice(8, 10)  # year, month and day
_FIRST_YEAR, _LAST_YEAR = 1995, 2010  # the service is of 1998, the data end in 2005
_NO_DAY = np.uint16(0)
_LONGEST_LINE = 1 << 12
_MARGIN = b"\n" * 32  # before a block, so that places before the end of a short line are there
_NEWLINE, _RETURN, _COLON, _COMMA, _DASH, _ZERO = b"\n\r:,-0"

Bytes = NDArray[np.uint8]


class Movie(NamedTuple):
    """A movie with its ratings as they stand in the file."""

    path: Path
    line: int  # of "1:"
    number: int
    users: NDArray[np.int32]
    ratings: Bytes
    days: NDArray[np.uint16]

    def sorted_by_user(self) -> ItemRatings:
        """Return the ratings in the order of users, each of whom has one."""
        order = np.argsort(self.users, kind="stable")
        users = self.users[order]
        if (twice := np.flatnonzero(users[1:] == users[:-1])).size:
            line = self.line + 1 + int(order[twice[0] + 1])
            raise DatasetError(
                f"{self.path}, line {line}: user {users[twice[0]]} has rated movie "
                f"{self.number} before",
                value=int(users[twice[0]]),
                row=line,
            )
        return ItemRatings(self.number, users, self.ratings[order], self.days[order])


def read_movies(path: Path, *, block: int, progress: Callable[[int], None]) -> Iterator[Movie]:
    """Yield the movies of a file; ``progress`` is told the bytes of every block."""
    movie: tuple[int, int] | None = None  # the line of its header, its number
    pieces: list[_Parsed] = []
    line = 1
    for text in _whole_lines(path, block):
        parsed = _parse(path, line, text)
        for header, part in parsed.parts():
            if header is not None:
                if movie is not None:
                    yield _joined(path, movie, pieces)
                movie, pieces = header, []
            if part.size and movie is None:
                raise _wrong(path, line, text, 0, "a rating before any movie")
            if part.size:
                pieces.append(part)
        line += parsed.lines
        progress(len(text))
    if movie is None:
        raise DatasetError(f"{path} is empty; {_EXPECTED}", value=str(path))
    yield _joined(path, movie, pieces)


class _Parsed(NamedTuple):
    """Ratings of some lines, and the movies whose headers are among them."""

    users: NDArray[np.int32]
    ratings: Bytes
    days: NDArray[np.uint16]
    headers: list[tuple[int, int]]  # line and number of the movies
    begins: NDArray[np.intp]  # how many ratings come before each of them
    lines: int

    @property
    def size(self) -> int:
        return len(self.users)

    def parts(self) -> Iterator[tuple[tuple[int, int] | None, _Parsed]]:
        """Yield what comes before the first header, then every header with what comes after."""
        bounds = [0, *self.begins.tolist(), self.size]
        for header, start, end in zip([None, *self.headers], bounds, bounds[1:], strict=False):
            part = slice(start, end)
            yield (
                header,
                self._replace(
                    users=self.users[part], ratings=self.ratings[part], days=self.days[part]
                ),
            )


def _joined(path: Path, movie: tuple[int, int], pieces: list[_Parsed]) -> Movie:
    line, number = movie
    if not pieces:
        raise DatasetError(
            f"{path}, line {line}: movie {number} has no ratings; is the file cut off?",
            value=number,
            row=line,
        )
    columns = zip(*((p.users, p.ratings, p.days) for p in pieces), strict=True)
    return Movie(path, line, number, *(np.concatenate(column) for column in columns))


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
                    break  # no text of lines; what there is of it goes on to be complained of
            if rest:
                yield rest + b"\n"
    except DatasetError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def _parse(path: Path, first_line: int, text: bytes) -> _Parsed:
    data = np.frombuffer(_MARGIN + text, np.uint8)
    breaks = np.flatnonzero(data[len(_MARGIN) - 1 :] == _NEWLINE) + len(_MARGIN) - 1
    starts, ends = breaks[:-1] + 1, breaks[1:]
    ends = ends - (data[ends - 1] == _RETURN)
    is_header = data[ends - 1] == _COLON
    at = np.flatnonzero(is_header)
    headers = []
    for place in at.tolist():
        digits = data[starts[place] : ends[place] - 1].tobytes()
        if not (digits.isdigit() and len(digits) < 9 and 1 <= int(digits) <= MOVIES):
            why = f"the movie is no number from 1 to {MOVIES:,}"
            raise _wrong(path, first_line, text, place, why)
        headers.append((first_line + place, int(digits)))
    rated = ~is_header if len(at) else slice(None)
    users, ratings, days, bad = _fields(data, starts[rated], ends[rated])
    if bad.any():
        place = int(np.flatnonzero(~is_header)[bad.argmax()])
        raise _wrong(path, first_line, text, place)
    return _Parsed(users, ratings, days, headers, at - np.arange(len(at)), len(ends))


def _fields(
    data: Bytes, starts: NDArray[np.intp], ends: NDArray[np.intp]
) -> tuple[NDArray[np.int32], Bytes, NDArray[np.uint16], NDArray[np.bool_]]:
    """Users, ratings and days of lines, and which lines are not ratings."""
    length = ends - starts - _TAIL
    bad = (length < 1) | (length > _USER_DIGITS)
    # The last bytes of every line taken out at once, then turned: a row holds the bytes at one
    # place of all lines, and what is computed with them runs through memory in order.
    windows = np.ndarray(len(data) - _WINDOW + 1, f"V{_WINDOW}", data, strides=(1,))
    lines = windows[ends - _WINDOW].view(np.uint8).reshape(-1, _WINDOW)
    digits = np.ascontiguousarray(lines.T) - np.uint8(_ZERO)  # below "0" comes out above 9

    user, (comma, ratings, second_comma), day = np.split(digits, (_USER_DIGITS, _USER_DIGITS + 3))
    for place, row in enumerate(user):
        row *= length >= _USER_DIGITS - place  # zero before the line
    users = _number(user, bad)
    bad |= (users < 1) | (users > HIGHEST_USER)
    bad |= (ratings < 1) | (ratings > STARS)
    for mark, row in ((_COMMA, comma), (_COMMA, second_comma), (_DASH, day[4]), (_DASH, day[7])):
        bad |= row != np.uint8((mark - _ZERO) % 256)
    year, month, of_month = (_number(day[part], bad) for part in _DATE)
    calendar = _calendar()
    bad |= (year < _FIRST_YEAR) | (year > _LAST_YEAR) | (month > 12) | (of_month > 31)
    days = calendar.take(((year - _FIRST_YEAR) * 13 + month) * 32 + of_month, mode="clip")
    bad |= days == _NO_DAY
    return users, ratings, days, bad


def _number(digits: Bytes, bad: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Numbers of digits, the first the highest; what is none is noted in ``bad``."""
    value = np.zeros(digits.shape[1], np.int32)
    for digit in digits:
        bad |= digit > 9
        value *= 10
        value += digit
    return value


@cache
def _calendar() -> NDArray[np.uint16]:
    """Days since 1970 of every year, month and day of the month, from 0 each."""
    days = np.full((_LAST_YEAR - _FIRST_YEAR + 1, 13, 32), _NO_DAY)
    first = np.datetime64(f"{_FIRST_YEAR}-01-01")
    for day in np.arange(first, np.datetime64(f"{_LAST_YEAR + 1}-01-01")).tolist():
        days[day.year - _FIRST_YEAR, day.month, day.day] = (day - date(1970, 1, 1)).days
    return days.ravel()


def _wrong(
    path: Path, first_line: int, text: bytes, place: int, why: str | None = None
) -> DatasetError:
    line = text.split(b"\n", place + 1)[place].rstrip(b"\r").decode("utf-8", errors="replace")
    number = first_line + place
    return DatasetError(
        f"{path}, line {number}: {why or _fault(line)}: {line[:80]!r}; {_EXPECTED}",
        value=line,
        row=number,
    )


def _fault(line: str) -> str:
    """Say what is wrong with a line that should be a rating."""
    fields = line.split(",")
    if not line:
        return "an empty line"
    if len(fields) != 3:
        return f"{len(fields)} fields where 3 are expected"
    user, stars, day = fields
    if not _is_whole(user, 1, HIGHEST_USER):
        return f"the user is no number from 1 to {HIGHEST_USER:,}"
    if not (len(stars) == 1 and _is_whole(stars, 1, STARS)):
        return f"the rating is no number from 1 to {STARS}"
    try:
        datetime.strptime(day, "%Y-%m-%d")
    except ValueError:
        return "the date is not one written YYYY-MM-DD"
    return f"the date is not between {_FIRST_YEAR} and {_LAST_YEAR}"


def _is_whole(text: Any, least: int, most: int) -> bool:
    return text.isascii() and text.isdigit() and least <= int(text[:20]) <= most
