"""Protocols of the paper: seeded splits, saved so that every method is tested on the same ones.

=================  ================================================================================
protocol           a split
=================  ================================================================================
``weak``           withholds one random rating of each user (weak generalisation)
``random 90/10``   withholds a random tenth
``chunks``         withholds the same tenth as ``random 90/10`` of the same seed, and divides the
                   rest at random into chunks of equal size, to be learnt one after the other, in
                   one or more passes: see :func:`passes`
=================  ================================================================================

>>> users, items, ratings = ["al", "al", "bo", "bo"], [1, 2, 1, 2], [5, 3, 4, 1]
>>> splits = make_splits("weak", (users, items, ratings), n_splits=3)
>>> [len(test) for train, test in splits]
[2, 2, 2]
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hemf._checks import check_choice, check_int, check_value
from hemf._files import atomic_write, digest
from hemf._typing import AnyArray, Float64Array, IdsLike, Int64Array, UInt8Array
from hemf.data.ratings import Ratings
from hemf.errors import DataError
from hemf.evaluation.splits import Split, random_split, weak_generalisation

PROTOCOLS = ("weak", "random 90/10", "chunks")
_DEFAULT_CHUNKS = 30
_MAX_CHUNKS = 255  # the number of a chunk is one byte
_TEST_FRACTION = 0.1
_FORMAT = 1  # of the files
_FIELDS = ("protocol", "seed", "n_chunks", "fingerprint", "parts")

Data: TypeAlias = Ratings | tuple[IdsLike, IdsLike, IdsLike]
"""Ratings, whose rows are those of ``by_user``, or columns of users, items and ratings."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Splits:
    """Splits of one data set: a sequence of ``(train, test)``, positions of its rows.

    >>> data = (np.arange(100), np.arange(100), np.ones(100))
    >>> splits = make_splits("chunks", data, n_splits=2, n_chunks=4, seed=7)
    >>> len(splits), len(splits[0][1]), [len(chunk) for chunk in splits.chunks(0)]
    (2, 10, [23, 23, 22, 22])
    """

    protocol: str
    seed: int
    """Of the first split; each further one adds 1."""
    n_chunks: int
    """1 if the training rows are not divided."""
    fingerprint: str
    """Of the data."""
    parts: UInt8Array
    """(splits, rows): 0 for test, else the number of the chunk, from 1."""

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Split:
        part = self.parts[number]
        return np.flatnonzero(part), np.flatnonzero(part == 0)

    def __iter__(self) -> Iterator[Split]:
        return (self[number] for number in range(len(self)))

    def chunks(self, number: int) -> list[Int64Array]:
        """Return the chunks of the training rows of a split, in order."""
        part = self.parts[number]
        order = np.argsort(part, kind="stable")
        return np.split(order, np.searchsorted(part[order], np.arange(1, self.n_chunks + 1)))[1:]


def make_splits(
    protocol: str, data: Data, *, n_splits: int = 10, n_chunks: int | None = None, seed: int = 0
) -> Splits:
    """Split ratings by a protocol, ``n_splits`` times.

    Parameters
    ----------
    protocol
        One of `PROTOCOLS`.
    data
        Ratings, or columns of users, items and ratings.
    n_splits
        Number of splits; split k has the seed ``seed + k``.
    n_chunks
        Number of chunks, only for the protocol ``chunks``; 30 by default. The withheld rows do
        not depend on it.
    seed
        Seed of the first split.

    Returns
    -------
    Splits

    Examples
    --------
    >>> data = ([1, 1, 2, 2], [1, 2, 1, 2], [5, 3, 4, 1])
    >>> len(make_splits("weak", data, n_splits=3))
    3

    """
    chunks = _check(protocol, n_splits, n_chunks, seed)
    users, items, ratings = columns_of(data)
    n = len(ratings)
    parts = np.ones((n_splits, n), np.uint8)
    for number, part in enumerate(parts):
        generator = np.random.default_rng(seed + number)
        if protocol == "weak":
            train, test = weak_generalisation(users, items, rng=generator)
        else:
            train, test = random_split(n, _TEST_FRACTION, rng=generator)
        if not len(test):
            raise DataError("no user has two ratings, so none can be withheld", value=n)
        if chunks > len(train):
            raise DataError(
                f"{len(train)} training ratings cannot be divided into {chunks} chunks",
                value=chunks,
            )
        part[test] = 0
        if chunks > 1:
            order = generator.permutation(train)
            for chunk, rows in enumerate(np.array_split(order, chunks), start=1):
                part[rows] = chunk
    found = fingerprint((users, items, ratings))
    return Splits(protocol=protocol, seed=seed, n_chunks=chunks, fingerprint=found, parts=parts)


def passes(
    chunks: Sequence[Int64Array], n_passes: int = 1
) -> Iterator[tuple[int, int, Int64Array]]:
    """Yield the number of the pass, the number of the chunk and the chunk, for each pass.

    >>> [(again, number) for again, number, rows in passes([np.array([0]), np.array([1])], 2)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    check_int("n_passes", n_passes, low=1)
    return (
        (again, number, rows) for again in range(n_passes) for number, rows in enumerate(chunks)
    )


def columns_of(data: Data) -> tuple[AnyArray, AnyArray, Float64Array]:
    """Return users, items and ratings in the order that positions refer to."""
    if isinstance(data, Ratings):
        data = data.id_columns()
    columns = [np.asarray(column) for column in data]
    if len(columns) != 3 or len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise DataError(
            f"expected columns of users, items and ratings of one length, got shapes {shapes}"
        )
    if not len(columns[0]):
        raise DataError("there are no ratings to split")
    return columns[0], columns[1], columns[2].astype(np.float64)


def fingerprint(data: Data) -> str:
    """Return a hash of users, items and ratings in their order.

    >>> fingerprint(([1, 2], [7, 7], [3, 4])) == fingerprint((np.int32([1, 2]), [7, 7], [3.0, 4]))
    True
    >>> fingerprint(([1, 2], [7, 7], [3, 4])) == fingerprint(([1, 2], [7, 8], [3, 4]))
    False
    """

    def parts() -> Iterator[bytes]:
        for column in columns_of(data):
            kind = "numbers" if column.dtype.kind in "iuf" else "ids"
            yield f"{len(column)} {kind}".encode()
            for start in range(0, len(column), 1 << 20):
                yield _plain_bytes(column[start : start + (1 << 20)])

    return digest(parts())


def _plain_bytes(values: AnyArray) -> bytes:
    """Return bytes that depend neither on the width of numbers nor on the machine."""
    if values.dtype.kind in "iu":
        return values.astype("<i8").tobytes()
    if values.dtype.kind == "f":
        return values.astype("<f8").tobytes()
    return "\0".join(map(repr, values.tolist())).encode()


def _check(protocol: str, n_splits: int, n_chunks: int | None, seed: int) -> int:
    """Check the parameters of `make_splits`, and return the number of chunks."""
    check_choice("protocol", protocol, PROTOCOLS)
    check_int("n_splits", n_splits, low=1)
    check_int("seed", seed, low=0)
    if protocol == "chunks":
        return check_int(
            "n_chunks", _DEFAULT_CHUNKS if n_chunks is None else n_chunks, low=1, high=_MAX_CHUNKS
        )
    check_value("n_chunks", n_chunks, n_chunks is None, f"None for the protocol {protocol!r}")
    return 1


# -- files, without pickles ----------------------------------------------------------------------


def save_splits(path: str | Path, splits: Splits) -> None:
    """Write splits to a file, atomically."""
    fields = {name: np.asarray(getattr(splits, name)) for name in _FIELDS}
    try:
        with atomic_write(path) as fresh, fresh.open("wb") as file:
            np.savez_compressed(file, format=_FORMAT, **fields)  # type: ignore[arg-type]
    except OSError as error:
        raise DataError(
            f"{path} could not be saved: {error.strerror or error}; choose a folder that exists "
            "and may be written to",
            value=str(path),
        ) from error


def load_splits(path: str | Path, data: Data) -> Splits:
    """Read splits from a file, and check that they are of this data set.

    >>> path = getfixture("tmp_path") / "weak.npz"
    >>> save_splits(path, make_splits("weak", ([1, 1], [1, 2], [5, 3])))
    >>> load_splits(path, ([1, 1], [1, 2], [5, 4]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hemf.errors.DataError: ...weak.npz holds splits of another data set: ...
    """
    splits = _read(Path(path))
    here = fingerprint(data)
    if splits.fingerprint != here:
        raise DataError(
            f"{path} holds splits of another data set: {splits.parts.shape[1]:,} ratings with the "
            f"fingerprint {splits.fingerprint[:12]} instead of {here[:12]}; use the data they were "
            "made of, in the same order, or delete the file",
            value=splits.fingerprint,
        )
    return splits


def kept_splits(
    path: str | Path,
    protocol: str,
    data: Data,
    *,
    n_splits: int = 10,
    n_chunks: int | None = None,
    seed: int = 0,
) -> Splits:
    """Return the splits in a file; without a file, make and save them first.

    The parameters are those of :func:`make_splits`. It is an error if the splits in the file were
    made with others.

    >>> path = getfixture("tmp_path") / "weak.npz"
    >>> data = ([1, 1, 2, 2], [1, 2, 1, 2], [5, 3, 4, 1])
    >>> first, again = (kept_splits(path, "weak", data, n_splits=2) for _ in range(2))
    >>> bool((first.parts == again.parts).all())
    True
    """
    if not Path(path).exists():
        splits = make_splits(protocol, data, n_splits=n_splits, n_chunks=n_chunks, seed=seed)
        save_splits(path, splits)
        return splits
    splits = load_splits(path, data)
    chunks = _check(protocol, n_splits, n_chunks, seed)
    asked = {"protocol": protocol, "n_splits": n_splits, "seed": seed, "n_chunks": chunks}
    there = {"n_splits": len(splits), **vars(splits)}
    if other := [name for name in asked if asked[name] != there[name]]:
        has, wants = (", ".join(f"{name}={of[name]!r}" for name in other) for of in (there, asked))
        raise DataError(
            f"{path} holds splits with {has} instead of {wants}; choose another file, or delete "
            "this one",
            value=str(path),
        )
    return splits


def _read(path: Path) -> Splits:
    if path.is_dir():
        raise DataError(f"{path} is a directory; give the name of a file", value=str(path))
    if not path.exists():
        raise DataError(f"{path}: no such file", value=str(path))
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
        raise _damaged(path, "no archive, or cut off")
    try:
        with np.load(path, allow_pickle=False) as archive:
            kind = int(archive["format"])
            fields = {name: archive[name] for name in _FIELDS} if kind == _FORMAT else {}
            seed, chunks = (int(fields.get(name, 0)) for name in ("seed", "n_chunks"))
    except Exception as error:  # of zipfile, zlib and NumPy
        raise _damaged(path, str(error) or type(error).__name__) from error
    if kind != _FORMAT:
        raise DataError(
            f"{path} has format {kind}, but this version of hemf reads format {_FORMAT}",
            value=kind,
        )
    parts = fields["parts"]
    protocol = str(fields["protocol"])
    good = parts.ndim == 2 and parts.dtype == np.uint8 and parts.size and parts.max() <= chunks
    if protocol not in PROTOCOLS or not good:
        raise _damaged(path, f"no splits of {chunks} chunks each")
    found = str(fields["fingerprint"])
    return Splits(protocol=protocol, seed=seed, n_chunks=chunks, fingerprint=found, parts=parts)


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is damaged or no file of splits ({why}); delete it to make new splits",
        value=str(path),
    )
