"""The paper's protocols: lists of seeded splits that are saved, so that every method gets the same.

=================  ================================================================================
protocol           what every split does
=================  ================================================================================
``weak``           withholds one random rating of each user (weak generalisation)
``random 90/10``   withholds a random tenth
``chunks``         withholds a random tenth, the same as ``random 90/10`` of the same seed, and
                   deals the rest out at random to chunks of equal size. They are learnt one after
                   the other, and then again from the first: see :func:`passes`
=================  ================================================================================

>>> users, items, ratings = ["al", "al", "bo", "bo"], [1, 2, 1, 2], [5, 3, 4, 1]
>>> splits = make_splits("weak", (users, items, ratings), n_splits=3)
>>> [len(test) for train, test in splits]
[2, 2, 2]
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf._files import atomic_write
from hemf.data.ratings import Ratings
from hemf.errors import DataError, ParameterError
from hemf.evaluation.splits import Positions, Split, random_split, weak_generalisation

PROTOCOLS = ("weak", "random 90/10", "chunks")
USUAL_CHUNKS = 30
MOST_CHUNKS = 255  # a chunk's number takes a byte
TEST_SHARE = 0.1
_PIECE = 1 << 20

Data = Ratings | tuple[Any, Any, Any]
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
    seed: int  # of the first split; the next one's is one more
    n_chunks: int  # 1 where the train rows are not divided
    fingerprint: str  # of the data
    parts: NDArray[np.uint8]  # (splits, rows): 0 for test, else the number of the chunk, from 1

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Split:
        part = self.parts[number]
        return np.flatnonzero(part), np.flatnonzero(part == 0)

    def __iter__(self) -> Iterator[Split]:
        return (self[number] for number in range(len(self)))

    def chunks(self, number: int) -> list[Positions]:
        """Return the chunks of the train rows of a split, in the order in which they are fed."""
        part = self.parts[number]
        order = np.argsort(part, kind="stable")
        return np.split(order, np.searchsorted(part[order], np.arange(1, self.n_chunks + 1)))[1:]


def make_splits(
    protocol: str, data: Data, *, n_splits: int = 10, n_chunks: int | None = None, seed: int = 0
) -> Splits:
    """Split ratings as a protocol has it, ``n_splits`` times.

    Split k is that of the seed ``seed + k``. ``n_chunks`` is for the protocol ``chunks`` alone, and
    30 unless said; the withheld rows are the same for any number of chunks.

    >>> make_splits("strong", ([1, 2], [1, 2], [3, 4]))
    Traceback (most recent call last):
    hemf.errors.ParameterError: protocol is 'strong'; choose one of weak, random 90/10, chunks
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
            train, test = random_split(n, TEST_SHARE, rng=generator)
        if not len(test):
            raise DataError("no user has two ratings, so that one could be withheld", value=n)
        if chunks > len(train):
            raise DataError(
                f"{len(train)} ratings to learn cannot be divided into {chunks} chunks",
                value=chunks,
            )
        part[test] = 0
        if chunks > 1:
            dealt = np.array_split(generator.permutation(train), chunks)
            for chunk, rows in enumerate(dealt, start=1):
                part[rows] = chunk
    return Splits(
        protocol=protocol,
        seed=seed,
        n_chunks=chunks,
        fingerprint=fingerprint((users, items, ratings)),
        parts=parts,
    )


def passes(chunks: Sequence[Positions], n_passes: int = 1) -> Iterator[tuple[int, int, Positions]]:
    """Yield chunks one after the other, and all of them again in each further pass.

    With every chunk come the numbers of the pass and of the chunk in it, from 0.

    >>> [(again, number) for again, number, rows in passes([np.array([0]), np.array([1])], 2)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if n_passes < 1:
        raise ParameterError(f"n_passes is {n_passes}; it must be at least 1", value=n_passes)
    return (
        (again, number, rows) for again in range(n_passes) for number, rows in enumerate(chunks)
    )


def columns_of(data: Data) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Return users, items and ratings of the rows that splits are of, in order.

    >>> columns_of(Ratings.from_any([("bo", 1, 4), ("al", 1, 5)]))[2]
    array([4., 5.])
    """
    if isinstance(data, Ratings):
        user_rows, item_rows, values = data.triples()
        data = data.users.ids[user_rows], data.items.ids[item_rows], values
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
    """Return a hash of users, items and ratings in their order; equal data have equal ones.

    >>> fingerprint(([1, 2], [7, 7], [3, 4])) == fingerprint((np.int32([1, 2]), [7, 7], [3.0, 4]))
    True
    >>> fingerprint(([1, 2], [7, 7], [3, 4])) == fingerprint(([1, 2], [7, 8], [3, 4]))
    False
    """
    digest = hashlib.sha256()
    for column in columns_of(data):
        digest.update(
            f"{len(column)} {'numbers' if column.dtype.kind in 'iuf' else 'ids'}".encode()
        )
        for start in range(0, len(column), _PIECE):
            digest.update(_plain_bytes(column[start : start + _PIECE]))
    return digest.hexdigest()


def _plain_bytes(values: NDArray[Any]) -> bytes:
    """Bytes that do not depend on the width of numbers, nor on the machine."""
    if values.dtype.kind in "iu":
        return values.astype("<i8").tobytes()
    if values.dtype.kind == "f":
        return values.astype("<f8").tobytes()
    return "\0".join(map(repr, values.tolist())).encode()


def _check(protocol: str, n_splits: int, n_chunks: int | None, seed: int) -> int:
    """See that what is asked for makes sense, and return the number of chunks."""
    if protocol not in PROTOCOLS:
        raise ParameterError(
            f"protocol is {protocol!r}; choose one of {', '.join(PROTOCOLS)}", value=protocol
        )
    if n_splits < 1:
        raise ParameterError(f"n_splits is {n_splits}; it must be at least 1", value=n_splits)
    if seed < 0:
        raise ParameterError(f"seed is {seed}; it must not be negative", value=seed)
    if protocol != "chunks":
        if n_chunks is not None:
            raise ParameterError(
                f"n_chunks is {n_chunks}; the protocol {protocol!r} has no chunks", value=n_chunks
            )
        return 1
    chunks = USUAL_CHUNKS if n_chunks is None else n_chunks
    if not 1 <= chunks <= MOST_CHUNKS:
        raise ParameterError(
            f"n_chunks is {chunks}; it must be between 1 and {MOST_CHUNKS}", value=chunks
        )
    return chunks


# ------------------------------------------------------------------------------------------------
# Splits in files, without pickles, that know the data set they are of.


_FORMAT = 1
_FIELDS = ("protocol", "seed", "n_chunks", "fingerprint", "parts")


def save_splits(path: str | Path, splits: Splits) -> None:
    """Write splits to a file, whole or not at all.

    >>> path = getfixture("tmp_path") / "weak.npz"
    >>> data = ([1, 1, 2, 2], [1, 2, 1, 2], [5, 3, 4, 1])
    >>> save_splits(path, make_splits("weak", data))
    >>> len(load_splits(path, data))
    10
    """
    fields: dict[str, Any] = {name: np.asarray(getattr(splits, name)) for name in _FIELDS}
    try:
        with atomic_write(path) as fresh, fresh.open("wb") as file:
            np.savez_compressed(file, format=_FORMAT, **fields)
    except OSError as error:
        raise DataError(
            f"{path} could not be saved: {error.strerror or error}; choose a folder that exists "
            "and may be written to",
            value=str(path),
        ) from error


def load_splits(path: str | Path, data: Data) -> Splits:
    """Read splits from a file, and see that they are of this data set.

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
            f"fingerprint {splits.fingerprint[:12]}, where these have {here[:12]}; use the data "
            "they were made of, in the same order, or delete the file to have new splits made",
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
    """Return the splits in a file; where there is no file, make and save them first.

    The parameters are those of :func:`make_splits`. A file of splits that were made otherwise is
    an error: what was reported on it would not be what was asked for.

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
    chunks = n_chunks if n_chunks is not None else USUAL_CHUNKS if protocol == "chunks" else 1
    asked = {"protocol": protocol, "n_splits": n_splits, "seed": seed, "n_chunks": chunks}
    there = {
        "protocol": splits.protocol,
        "n_splits": len(splits),
        "seed": splits.seed,
        "n_chunks": splits.n_chunks,
    }
    if other := [name for name in asked if asked[name] != there[name]]:
        raise DataError(
            f"{path} holds splits with {_listed(there, other)}, and {_listed(asked, other)} was "
            "asked for; choose another file, or delete this one to have new splits made",
            value=str(path),
        )
    return splits


def _listed(values: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={values[name]!r}" for name in names)


def _read(path: Path) -> Splits:
    if path.is_dir():
        raise DataError(f"{path} is a directory; give the name of a file", value=str(path))
    if not path.exists():
        raise DataError(f"{path}: no such file", value=str(path))
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle, and advise to trust it
        raise _damaged(path, "no archive, or cut off")
    try:
        with np.load(path, allow_pickle=False) as archive:
            kind = int(archive["format"])
            fields = {name: archive[name] for name in _FIELDS} if kind == _FORMAT else {}
            seed, chunks = (int(fields.get(name, 0)) for name in ("seed", "n_chunks"))
    except Exception as error:  # zipfile, zlib and NumPy raise some twenty kinds
        raise _damaged(path, str(error) or type(error).__name__) from error
    if kind != _FORMAT:
        raise DataError(
            f"{path} has format {kind}, and this version of hemf reads format {_FORMAT}",
            value=kind,
        )
    parts = fields["parts"]
    protocol = str(fields["protocol"])
    good = parts.ndim == 2 and parts.dtype == np.uint8 and parts.size and parts.max() <= chunks
    if protocol not in PROTOCOLS or not good:
        raise _damaged(path, f"no splits of {chunks} chunks each")
    return Splits(
        protocol=protocol,
        seed=seed,
        n_chunks=chunks,
        fingerprint=str(fields["fingerprint"]),
        parts=parts,
    )


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is damaged, or no file of splits ({why}); delete it to have new splits made",
        value=str(path),
    )
