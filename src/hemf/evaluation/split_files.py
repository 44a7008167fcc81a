"""Splits in files, without pickles, that know the data set they are of."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hemf.errors import DataError
from hemf.evaluation.protocols import (
    PROTOCOLS,
    USUAL_CHUNKS,
    Data,
    Splits,
    fingerprint,
    make_splits,
)
from hemf.writing import replacing

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
        with replacing(path) as fresh, fresh.open("wb") as file:
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
