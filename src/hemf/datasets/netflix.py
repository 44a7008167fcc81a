"""Pack the ratings of the Netflix Prize, as they are read, into five bytes each.

They are found in two forms, of the same lines: one file for each movie, ``mv_0000001.txt`` to
``mv_0017770.txt``, and four files of many movies, ``combined_data_1.txt`` to
``combined_data_4.txt``. The movie stands before its ratings, a rating is user, stars and date::

    1:
    1488844,3,2005-09-06
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hemf.datasets.catalog import NETFLIX_FILES, Progress
from hemf.datasets.netflix_lines import Movie, read_movies
from hemf.datasets.packed import ItemRatings, PackedRatings, write_packed
from hemf.errors import DatasetError

BLOCK = 1 << 21  # bytes of text that are parsed at once

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
    source = Path(source).expanduser()
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
