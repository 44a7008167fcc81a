"""Fetch a data set once: download, verify, extract what is known, keep it in the cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from hemf.datasets.catalog import Dataset, Progress, find
from hemf.datasets.netflix import pack_netflix
from hemf.errors import DatasetError, DatasetWarning, warn_caller
from hemf.writing import temporary_folder

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0


def cache_folder() -> Path:
    """Folder of everything hemf keeps between runs: ``$HEMF_CACHE``, else the user's cache.

    >>> os.environ["HEMF_CACHE"] = "here"
    >>> cache_folder().name
    'here'
    >>> del os.environ["HEMF_CACHE"]
    """
    if chosen := os.environ.get("HEMF_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hemf"


def cached(name: str, *, folder: str | Path | None = None) -> Path | None:
    """Ratings file of a data set that is already in the cache, or None. Never downloads.

    >>> cached("ml-1m", folder="a-folder-that-is-not-there") is None
    True
    """
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
    """Return the path of a data set's ratings file, downloading it the first time.

    What is already in the cache is used without a look at the network. Else an archive placed
    by hand in the folder is taken; else it is downloaded. Either way its MD5 is verified first,
    only the members that the catalogue names are extracted, and nothing is kept of an attempt
    that fails. Of a set that its owner offers no more, the files are taken that were placed by
    hand in its own folder; those of Netflix are packed there the first time.

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

    Raises
    ------
    DatasetError
        Unknown name, no network or no such offer any more (the message says which file to put
        where), wrong checksum, damaged archive, no room.

    >>> fetch("ml-1000")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-1000'; did you mean ml-100k, ml-10m?

    """
    entry = find(name)
    root = _root(folder)
    if there := cached(name, folder=root):
        return there
    if entry.url is None:
        return _from_placed(entry, root, progress)
    url = _address(entry.url, base_url)
    placed = root / entry.archive
    with _workspace(entry, root) as work:
        by_hand = placed.is_file()
        md5, source = _expected_md5(entry, url, root, by_hand)
        if by_hand:
            archive = placed
            advice = f"Delete {placed} to have it downloaded, or replace it by a whole copy."
        else:
            archive = work / entry.archive
            _download(url, archive, progress, entry, root)
            advice = f"Nothing was kept. Try again, or {_by_hand(entry, root)}"
        found = _md5_of(archive)
        if found != md5:
            raise DatasetError(
                f"{entry.archive} has the wrong checksum: MD5 {found}, but {source} says {md5}. "
                f"It is damaged or has been replaced. {advice}",
                value=found,
            )
        extracted = _extract(entry, archive, work)
        return _move_in(entry, extracted, root / entry.name)


def _root(folder: str | Path | None) -> Path:
    return cache_folder() / "datasets" if folder is None else Path(folder).expanduser()


def _from_placed(entry: Dataset, root: Path, progress: Progress | None) -> Path:
    """Make the ratings file of files placed by hand, or say which to place where."""
    home = root / entry.name
    if not home.is_dir() or not any(home.iterdir()):
        raise DatasetError(
            f"{entry.title} cannot be downloaded: its owner offers it no more. If you have it, put "
            f"{entry.placed} into the folder {home.absolute()} and run this again.",
            value=entry.name,
        )
    if entry.format != "packed":
        raise DatasetError(
            f"{home.absolute()} holds no {entry.ratings_file}; put {entry.placed} there",
            value=str(home),
        )
    packed = pack_netflix(home, home / entry.ratings_file, progress=progress)
    if packed.n_ratings != entry.ratings:
        warn_caller(
            f"{home.absolute()} holds {packed.n_ratings:,} ratings of {len(packed.items):,} "
            f"items, where {entry.title} has {entry.ratings:,} of {entry.items:,}; are files "
            f"missing? To add them, delete {packed.path.name} there and run this again",
            DatasetWarning,
        )
    return packed.path


def _address(url: str, base_url: str | None) -> str:
    base = base_url or os.environ.get("HEMF_DATASETS_URL")
    return f"{base.rstrip('/')}/{PurePosixPath(url).name}" if base else url


def _by_hand(entry: Dataset, root: Path) -> str:
    """Say exactly what to put where when the download does not work."""
    files = [entry.archive] if entry.md5 else [entry.archive, f"{entry.archive}.md5"]
    addresses = [f"{entry.url}"] if entry.md5 else [f"{entry.url}", f"{entry.url}.md5"]
    return (
        f"download {' and '.join(addresses)} by hand, put {' and '.join(files)} into the folder "
        f"{root.absolute()} and run this again: the archive will be found there, verified and "
        "extracted."
    )


@contextmanager
def _workspace(entry: Dataset, root: Path) -> Iterator[Path]:
    """Give a folder beside the final place, removed whatever happens; tell of disk trouble."""
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


def _open(url: str) -> Any:
    from urllib.request import Request, urlopen

    return urlopen(Request(url, headers={"User-Agent": "hemf"}), timeout=_TIMEOUT_SECONDS)


@contextmanager
def _network(what: str, entry: Dataset, root: Path) -> Iterator[None]:
    """Turn whatever goes wrong on the way into advice."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            why = f"the server answered {error.code} {error.reason}"
        elif isinstance(error, URLError):
            why = f"no connection: {error.reason}"
        else:
            why = f"the connection failed: {error!r}"
        raise DatasetError(
            f"{what} could not be downloaded ({why}). Please {_by_hand(entry, root)}"
        ) from error


def _receive(url: str, entry: Dataset, root: Path) -> Iterator[tuple[bytes, int | None]]:
    """Yield the body piece by piece, with its expected length.

    A generator, so that trouble with the disk at the other end is not taken for the network's.
    """
    with _network(url, entry, root), _open(url) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(_CHUNK):
            yield chunk, total


def _download(
    url: str, target: Path, progress: Progress | None, entry: Dataset, root: Path
) -> None:
    done, total = 0, None
    with target.open("wb") as file:
        for chunk, total in _receive(url, entry, root):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    if total is not None and done != total:
        raise DatasetError(
            f"{url} broke off after {done:,} of {total:,} bytes. Nothing was kept. "
            f"Try again, or {_by_hand(entry, root)}",
            value=done,
        )


def _expected_md5(entry: Dataset, url: str, root: Path, by_hand: bool) -> tuple[str, str]:
    """Return the checksum the archive must have, and who says so."""
    if entry.md5 is not None:
        return entry.md5, "the catalogue"
    placed = root / f"{entry.archive}.md5"
    if by_hand and placed.is_file():
        text, source = placed.read_text(errors="replace"), str(placed)
    else:
        source = f"{url}.md5"
        with _network(source, entry, root), _open(source) as response:
            text = response.read(4096).decode("utf-8", errors="replace")
    # Both "MD5 (file) = <sum>" and "<sum>  file" are in use.
    if match := re.search(r"\b[0-9a-fA-F]{32}\b", text):
        return match.group().lower(), source
    raise DatasetError(
        f"{source} holds no MD5 checksum. Please {_by_hand(entry, root)}", value=text[:80]
    )


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _extract(entry: Dataset, archive: Path, work: Path) -> list[Path]:
    """Extract the known members, each to its bare name: a path in the archive leads nowhere."""
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


def _move_in(entry: Dataset, extracted: list[Path], home: Path) -> Path:
    """Move the files to their final place, the ratings last: once there, the set is complete."""
    home.mkdir(exist_ok=True)
    for path in extracted:
        path.replace(home / path.name)
    return home / entry.ratings_file
