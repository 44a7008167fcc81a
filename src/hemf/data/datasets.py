"""Data to try the model on: public data sets, fetched and verified, and synthetic ratings.

A data set is downloaded once, its checksum verified, and its files kept in a cache. Importing
`hemf.experiments` adds EachMovie and the Netflix Prize to the catalogue.

>>> from hemf.data import datasets
>>> datasets.names()[0]
'ml-100k'
>>> datasets.draw(20, 10, density=0.5, rng=0).ratings.shape
(100,)
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias, Unpack

import numpy as np

from hemf._files import expand_home, temporary_folder
from hemf._typing import AnyArray, Float32Array, Int32Array, Int64Array, RatingsLike
from hemf.data.ratings import Ratings, ReadOptions
from hemf.data.sources import is_plain, read_columns
from hemf.data.streams import DriftingStream, EmergingStream, drifting, emerging
from hemf.data.synthetic import (
    Population,
    SyntheticRatings,
    demo_ratings,
    draw,
    draw_blocks,
    netflix_like,
    netflix_like_blocks,
    plant,
)
from hemf.data.vocabulary import CodedIds, as_array
from hemf.errors import DataError, DatasetError, row_error

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes expected (None if unknown)."""


class RatingColumns(NamedTuple):
    """Ratings as arrays of equal length, in the order of the file."""

    users: Int32Array
    items: Int32Array
    ratings: Float32Array
    timestamps: Int64Array | None = None  # seconds since 1970, if known

    @property
    def known(self) -> tuple[AnyArray, ...]:
        """The columns that are known, as :meth:`hemf.Ratings.from_any` takes them."""
        return tuple(column for column in self if column is not None)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set as its owner publishes it."""

    name: str
    title: str
    url: str | None = None  # of the zip archive; None if the owner no longer offers it
    md5: str | None = None  # of the archive; None if it changes: it is in the .md5 beside it
    ratings_member: str  # the file of the archive that holds the ratings
    placed: str | None = None  # without an archive: the files to put into the set's folder
    other_members: tuple[str, ...] = ()  # files to keep beside it: terms, titles, people
    users: int | None  # None if it changes with the release
    items: int | None
    ratings: int | None
    scale: tuple[float, float, float]  # lowest rating, highest rating, step
    megabytes: float  # approximate size of the archive
    terms: str
    citation: str
    read: Callable[[Path], RatingColumns]  # reads the ratings file
    read_ratings: Callable[[Path], RatingsLike] | None = None
    """Returns the same as `Ratings`, or as anything that these are read from."""
    convert: Callable[[Dataset, Path, Progress | None], Path] | None = None
    """Makes the ratings file from the files placed in the set's folder."""

    @property
    def archive(self) -> str:
        """File name of the archive; empty if there is none."""
        return PurePosixPath(self.url or "").name

    @property
    def members(self) -> tuple[str, ...]:
        """Every file taken from the archive, the ratings last."""
        return (*self.other_members, self.ratings_member)

    @property
    def ratings_file(self) -> str:
        """Name of the ratings file once extracted."""
        return PurePosixPath(self.ratings_member).name


DATASETS: dict[str, Dataset] = {}
"""Every data set by name, the smallest release of a family first."""


def register(*entries: Dataset) -> None:
    """Add data sets to the catalogue."""
    DATASETS.update({entry.name: entry for entry in entries})


def names() -> list[str]:
    """Return the names of all data sets.

    >>> names()[:3]
    ['ml-100k', 'ml-1m', 'ml-10m']
    """
    return list(DATASETS)


def find(name: str) -> Dataset:
    """Return the data set of that name, or raise an error that suggests similar names.

    >>> find("ml-100k").ratings
    100000
    >>> find("ml-1M")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-1M'; did you mean ml-1m, ml-10m?
    """
    try:
        return DATASETS[name]
    except KeyError:
        likely = difflib.get_close_matches(str(name).lower(), DATASETS, n=2, cutoff=0.7)
        hint = f"did you mean {', '.join(likely)}?" if likely else f"there are {', '.join(names())}"
        raise DatasetError(f"no data set is called {name!r}; {hint}", value=name) from None


def describe(name: str) -> str:
    """Return size, scale, origin, terms and citation of a data set as text.

    >>> print(describe("ml-100k").splitlines()[1])
    100,000 ratings, 943 users × 1,682 items, rated 1 to 5 in steps of 1
    """
    entry = find(name)
    if entry.ratings is None:
        size = "number of ratings changes from release to release"
    else:
        size = f"{entry.ratings:,} ratings, {entry.users:,} users × {entry.items:,} items"
    lowest, highest, step = entry.scale
    source = (
        f"Archive: {entry.url} (about {entry.megabytes:g} MB)",
        f"Checksum: {f'MD5 {entry.md5}' if entry.md5 else f'MD5 as in {entry.url}.md5'}",
    )
    if entry.url is None:
        source = (
            "Archive: no longer offered by its owner",
            f"Files: if you have them, {entry.placed} (about {entry.megabytes:g} MB)",
        )
    return "\n".join(
        (
            f"{entry.name}: {entry.title}",
            f"{size}, rated {lowest:g} to {highest:g} in steps of {step:g}",
            *source,
            f"Terms: {entry.terms}",
            f"Cite: {entry.citation}",
        )
    )


# -- fetching ------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of everything hemf keeps: ``$HEMF_CACHE``, else in the user's cache.

    A user without a home, as in some containers, has a temporary one.
    """
    if chosen := os.environ.get("HEMF_CACHE"):
        return expand_home(chosen)

    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("hemf", appauthor=False, opinion=False))
    except RuntimeError:
        return _temporary_cache()


def _temporary_cache() -> Path:
    """Return the folder of this user's data sets among temporary files.

    One that belongs to another user is an error: what is in it may be anything.
    """
    user = getattr(os, "getuid", lambda: 0)()
    folder = Path(tempfile.gettempdir()) / f"hemf-{user}"
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != user):
        raise DatasetError(
            f"{folder} belongs to another user; set HEMF_CACHE to a folder of your own"
        )
    return folder


def cached(name: str, *, folder: str | Path | None = None) -> Path | None:
    """Return the ratings file of a data set if it is in the cache, else None."""
    entry = find(name)
    ratings = _root(folder) / entry.name / entry.ratings_file
    return ratings if ratings.is_file() else None


def fetch(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> Path:
    """Return the path of a data set's ratings file; download it the first time.

    An archive that you put into the folder is used instead of a download. Its MD5 is verified, only
    the members in the catalogue are extracted, and a failed attempt leaves nothing. Of a set that
    its owner no longer offers, the files that you put into its folder are used.

    Parameters
    ----------
    name : str
        A name of the catalogue, such as ``"ml-100k"``.
    folder : path, optional
        Where to keep the data; by default ``datasets`` in :func:`cache_folder`.
    progress : callable, optional
        ``progress(done_bytes, total_bytes)``, called as the download proceeds.
    base_url : str, optional
        Address of a mirror that has the archive under its own file name; by default
        ``$HEMF_DATASETS_URL``, else the owner's address.

    Returns
    -------
    Path
        The file of ratings.

    Raises
    ------
    DatasetError
        Unknown name, no network or no longer offered (the message says which file to put where),
        wrong checksum, damaged archive, no space.

    Examples
    --------
    >>> fetch("ml-1000")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-1000'; did you mean ml-100k, ml-10m?

    """
    entry = find(name)
    root = _root(folder)
    if there := cached(name, folder=root):
        return there
    if entry.url is None:
        return _convert_placed(entry, root / entry.name, progress)
    base = base_url or os.environ.get("HEMF_DATASETS_URL")
    url = f"{base.rstrip('/')}/{entry.archive}" if base else entry.url
    placed = root / entry.archive
    with _workspace(entry, root) as work:
        is_placed = placed.is_file()
        md5, source = _expected_md5(entry, url, work, root, is_placed)
        if is_placed:
            archive = placed
            advice = f"Delete {placed} to have it downloaded, or replace it by a whole copy."
        else:
            archive = work / entry.archive
            _download(url, archive, entry, root, progress)
            advice = f"Nothing was kept. Try again, or {_manual_steps(entry, root)}"

        import pooch

        found = pooch.file_hash(str(archive), alg="md5")
        if found != md5:
            raise DatasetError(
                f"{entry.archive} has the wrong checksum: MD5 {found}, but {source} says {md5}. "
                f"It is damaged or has been replaced. {advice}",
                value=found,
            )
        extracted = _extract(entry, archive, work)
        home = root / entry.name
        home.mkdir(exist_ok=True)
        for path in extracted:  # the ratings last: their presence marks the set as complete
            path.replace(home / path.name)
        return home / entry.ratings_file


def _root(folder: str | Path | None) -> Path:
    return cache_folder() / "datasets" if folder is None else expand_home(folder)


def _convert_placed(entry: Dataset, home: Path, progress: Progress | None) -> Path:
    """Make the ratings file from files in the set's folder, or say which files to put there."""
    if not home.is_dir() or not any(home.iterdir()):
        raise DatasetError(
            f"{entry.title} cannot be downloaded: its owner no longer offers it. If you have it, "
            f"put {entry.placed} into the folder {home.absolute()} and run this again.",
            value=entry.name,
        )
    if entry.convert is None:
        raise DatasetError(
            f"{home.absolute()} holds no {entry.ratings_file}; put {entry.placed} there",
            value=str(home),
        )
    return entry.convert(entry, home, progress)


def _manual_steps(entry: Dataset, root: Path) -> str:
    """Say which files to put where when the download does not work."""
    endings = [""] if entry.md5 else ["", ".md5"]
    return (
        f"download {' and '.join(f'{entry.url}{ending}' for ending in endings)} by hand, put "
        f"{' and '.join(entry.archive + ending for ending in endings)} into the folder "
        f"{root.absolute()} and run this again: the archive will be found there, verified and "
        "extracted."
    )


@contextmanager
def _workspace(entry: Dataset, root: Path) -> Iterator[Path]:
    """Yield a folder beside the final place that is always removed; report disk errors."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with temporary_folder(root) as work:
            yield work
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(
            f"{entry.name} could not be stored in {root.absolute()}: {error}. "
            "Make room, or choose another folder with HEMF_CACHE."
        ) from error


class _ProgressBar:
    """The interface of a progress bar that pooch expects."""

    def __init__(self, progress: Progress) -> None:
        self.total = 0  # set by pooch; 0 if unknown
        self._done = 0
        self._progress = progress

    def update(self, size: int) -> None:
        self._done = min(self._done + size, self.total or self._done + size)
        self._progress(self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _download(
    url: str, target: Path, entry: Dataset, root: Path, progress: Progress | None = None
) -> None:
    import pooch
    import requests

    downloader = pooch.HTTPDownloader(
        progressbar=_ProgressBar(progress) if progress is not None else False,
        chunk_size=_CHUNK,
        headers={"User-Agent": "hemf", "Accept-Encoding": "identity"},
        timeout=_TIMEOUT_SECONDS,
    )
    try:
        downloader(url, str(target), None)
    except requests.RequestException as error:
        if error.response is not None:
            why = f"the server answered {error.response.status_code} {error.response.reason}"
        elif isinstance(error, requests.ConnectionError):
            why = f"no connection: {error}"
        else:
            why = f"the connection failed: {error!r}"
        raise DatasetError(
            f"{url} could not be downloaded ({why}). Nothing was kept. Please "
            f"{_manual_steps(entry, root)}"
        ) from error


def _expected_md5(
    entry: Dataset, url: str, work: Path, root: Path, is_placed: bool
) -> tuple[str, str]:
    """Return the checksum the archive must have, and its source."""
    if entry.md5 is not None:
        return entry.md5, "the catalogue"
    path = root / f"{entry.archive}.md5"
    source = str(path)
    if not (is_placed and path.is_file()):
        path, source = work / path.name, f"{url}.md5"
        _download(source, path, entry, root)
    text = path.read_text(errors="replace")
    # Both "MD5 (file) = <sum>" and "<sum>  file" are in use.
    if match := re.search(r"\b[0-9a-fA-F]{32}\b", text[:4096]):
        return match.group().lower(), source
    raise DatasetError(
        f"{source} holds no MD5 checksum. Please {_manual_steps(entry, root)}", value=text[:80]
    )


def _extract(entry: Dataset, archive: Path, work: Path) -> list[Path]:
    """Extract the known members by their bare names; paths in the archive are ignored."""
    import zlib
    from zipfile import BadZipFile, ZipFile

    extracted = []
    try:
        with ZipFile(archive) as opened:
            present = set(opened.namelist())
            if entry.ratings_member not in present:
                raise DatasetError(
                    f"{archive.name} holds no {entry.ratings_member}; it is not {entry.title}",
                    value=sorted(present)[:10],
                )
            for member in entry.members:
                if member in present:
                    target = work / PurePosixPath(member).name
                    with opened.open(member) as source, target.open("wb") as file:
                        shutil.copyfileobj(source, file, _CHUNK)
                    extracted.append(target)
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DatasetError(f"{archive.name} is not a readable zip archive: {error}") from error
    return extracted


# -- loading -------------------------------------------------------------------------------------


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> RatingColumns:
    """Return users, items, ratings and timestamps of a data set; fetch it the first time.

    The parameters are those of :func:`fetch`. Timestamps are None if they are not known. Large data
    sets take less memory with :func:`load_ratings`.
    """
    path = fetch(name, folder=folder, progress=progress, base_url=base_url)
    return find(name).read(path)


def load_ratings(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> Ratings:
    """Return a data set as :class:`hemf.Ratings`; fetch it the first time.

    ``options`` are those of :meth:`hemf.Ratings.from_any`. The Netflix Prize takes little more
    memory than its ratings do: less than 3 GB for a hundred million.
    """
    path = fetch(name, folder=folder, progress=progress)
    entry = find(name)
    with dataset_errors(path):
        data = entry.read(path).known if entry.read_ratings is None else entry.read_ratings(path)
        return Ratings.from_any(data, **options)


# -- MovieLens -----------------------------------------------------------------------------------


def read_movielens(path: str | Path) -> RatingColumns:
    r"""Read ratings as MovieLens publishes them: ``u.data``, ``ratings.dat`` or ``ratings.csv``.

    >>> path = getfixture("tmp_path") / "ratings.dat"
    >>> _ = path.write_text("1::1193::5::978300760\n")
    >>> read_movielens(path).items
    array([1193], dtype=int32)
    """
    with dataset_errors(path):
        users, items, ratings, times = read_columns(path)
        assert ratings is not None
        return RatingColumns(
            int32_ids(users, "user"), int32_ids(items, "item"), ratings.astype(np.float32), times
        )


@contextmanager
def dataset_errors(path: str | Path) -> Iterator[None]:
    """Raise a DatasetError that names the file instead of a DataError."""
    try:
        yield
    except DataError as error:
        found = error.inside(str(path))
        raise DatasetError(str(found), value=found.value, row=found.row) from error


def int32_ids(ids: CodedIds, what: str) -> Int32Array:
    """Return a column of ids that have to be integers of 32 bits."""
    numbers = [_as_int32(id) for id in as_array(ids.distinct).tolist()]
    if None in numbers:
        code = numbers.index(None)
        row = int((ids.codes == code).argmax())
        value = as_array(ids.distinct)[code : code + 1].tolist()[0]
        raise row_error(what, value, row, "is not an integer of 32 bits")
    return np.array(numbers, np.int32)[ids.codes]


def _as_int32(id: int | str) -> int | None:
    try:
        number = int(id) if is_plain(str(id)) else None
    except ValueError:
        return None
    return number if number is not None and -(2**31) <= number < 2**31 else None


_CITATION = (
    "F. Maxwell Harper and Joseph A. Konstan (2015). The MovieLens Datasets: History and Context. "
    "ACM Transactions on Interactive Intelligent Systems 5(4), article 19. "
    "https://doi.org/10.1145/2827872"
)
_OLD_TERMS = (
    "GroupLens, University of Minnesota: for research; acknowledge the use in publications; "
    "no endorsement may be implied; neither commercial use nor passing the data on without "
    "the owner's permission. The README beside the ratings is binding."
)
_NEW_TERMS = (
    "GroupLens, University of Minnesota: for research; acknowledge the use in publications; "
    "no endorsement may be implied; no commercial use without the owner's permission; "
    "may be passed on under the same conditions. The README beside the ratings is binding."
)
_Counts: TypeAlias = tuple[int, int, int] | tuple[None, None, None]  # users, items, ratings
_UNKNOWN = (None, None, None)
_NEW_FILES = ("README.txt", "movies.csv")


def _movielens(
    name: str, title: str, md5: str | None, counts: _Counts, megabytes: float, ratings_member: str,
    others: tuple[str, ...], step: float = 0.5,
) -> Dataset:  # fmt: skip
    folder, file = ratings_member.split("/")
    users, items, ratings = counts
    return Dataset(
        name=name,
        title=title,
        url=f"https://files.grouplens.org/datasets/movielens/{name}.zip",
        md5=md5,
        ratings_member=ratings_member,
        other_members=tuple(f"{folder}/{other}" for other in others),
        users=users,
        items=items,
        ratings=ratings,
        scale=(step, 5.0, step),
        megabytes=megabytes,
        terms=_NEW_TERMS if file == "ratings.csv" else _OLD_TERMS,
        citation=_CITATION,
        read=read_movielens,
        read_ratings=Path,
    )


register(
    _movielens("ml-100k", "MovieLens 100K (1998)", "0e33842e24a9c977be4e0107933c0723",
               (943, 1_682, 100_000), 4.9, "ml-100k/u.data",
               ("README", "u.item", "u.genre", "u.user"), step=1.0),
    _movielens("ml-1m", "MovieLens 1M (2003)", "c4d9eecfca2ab87c1945afe126590906",
               (6_040, 3_706, 1_000_209), 5.9, "ml-1m/ratings.dat",
               ("README", "movies.dat", "users.dat"), step=1.0),
    _movielens("ml-10m", "MovieLens 10M (2009)", "ce571fd55effeba0271552578f2648bd",
               (69_878, 10_677, 10_000_054), 65.6, "ml-10M100K/ratings.dat",
               ("README.html", "movies.dat")),
    _movielens("ml-20m", "MovieLens 20M (2015)", "cd245b17a1ae2cc31bb14903e1204af3",
               (138_493, 26_744, 20_000_263), 198.7, "ml-20m/ratings.csv", _NEW_FILES),
    _movielens("ml-25m", "MovieLens 25M (2019)", "6b51fb2759a8657d3bfcbfc42b592ada",
               (162_541, 59_047, 25_000_095), 262.0, "ml-25m/ratings.csv", _NEW_FILES),
    _movielens("ml-latest-small", "MovieLens Latest, small (changes over time)", None, _UNKNOWN,
               1.0, "ml-latest-small/ratings.csv", _NEW_FILES),
    _movielens("ml-latest", "MovieLens Latest (changes over time, about 33 million ratings)", None,
               _UNKNOWN, 350.0, "ml-latest/ratings.csv", _NEW_FILES),
)  # fmt: skip

__all__ = [
    "DATASETS", "Dataset", "DriftingStream", "EmergingStream", "Population", "RatingColumns",
    "SyntheticRatings", "cache_folder", "cached", "demo_ratings", "describe", "draw", "draw_blocks",
    "drifting", "emerging", "fetch", "find", "load", "load_ratings", "names", "netflix_like",
    "netflix_like_blocks", "plant", "read_movielens", "register",
]  # fmt: skip
