"""Trials in a file, a line of JSON each, so that a search goes on where it was stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hemf.errors import DataError
from hemf.ratings import Ratings
from hemf.tuning.trial import Trial
from hemf.writing import replacing

_HEAD = b'{"search": {'  # every file of trials begins with this


def key_of(settings: Mapping[str, Any]) -> str:
    """Return what equal settings have alike, whatever their order.

    >>> key_of({"n_factors": 5, "moods": True}) == key_of({"moods": True, "n_factors": 5})
    True
    """
    return json.dumps(settings, sort_keys=True, default=str)


def fingerprint(ratings: Ratings, features: Mapping[str, Any]) -> str:
    """Return a hash of all that is learnt from.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> fingerprint(data, {}) == fingerprint(data.select([0]), {})
    False
    """
    digest = hashlib.sha256()
    for known in (ratings.users, ratings.items):
        digest.update("\0".join(map(repr, known.ids.tolist())).encode())
    for array in (*ratings.triples(), ratings.timestamps):
        digest.update(b"none" if array is None else array.tobytes())
    for name, tables in features.items():
        digest.update(name.encode())
        for table in tables:
            numbers = table.numbers
            digest.update(repr((table.ids.tolist(), table.names, table.labels)).encode())
            parts = (
                (numbers,)
                if not hasattr(numbers, "indptr")
                else (numbers.data, numbers.indices, numbers.indptr)
            )
            for part in parts:
                digest.update(part.tobytes())
    return digest.hexdigest()[:16]


class Kept:
    """Trials of a search that were kept before, and a place for more; without a file, no place.

    The first line says what search they are of; those of another are an error. A last line that a
    kill has cut in two is dropped.
    """

    def __init__(self, path: Path | None, search: Mapping[str, Any]) -> None:
        self._path, self._head = path, json.dumps({"search": dict(search)}, default=str)
        self._found: dict[str, dict[str, Any]] = {}
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}", value=str(path)) from error
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            # What is there may be the beginning of a first line that a kill has cut in two.
            if content.strip() and not _HEAD.startswith(content[: len(_HEAD)]):
                raise DataError(f"{path} is no file of trials; choose another", value=str(path))
            with replacing(path) as fresh:
                fresh.write_text(self._head + "\n", encoding="utf-8")
            return
        try:
            head, *lines = [json.loads(line) for line in whole.decode().splitlines()]
            theirs, ours = dict(head["search"]), json.loads(self._head)["search"]
            for line in lines:
                self._found[key_of(line["settings"])] = line
                self._trial(line, 0, line["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no file of trials, or damaged ({error}); choose another",
                value=str(path),
            ) from error
        other = [name for name in ours if theirs.get(name) != ours[name]]
        if other:
            raise DataError(
                f"{path} holds trials of another search: {other[0]} was {theirs.get(other[0])!r} "
                f"and is {ours[other[0]]!r}; choose another file",
                value=str(path),
            )
        if len(whole) < len(content):
            os.truncate(path, len(whole))

    @staticmethod
    def _trial(line: Mapping[str, Any], number: int, settings: dict[str, Any]) -> Trial:
        curves = tuple(tuple(curve) for curve in line["curves"])
        numbers = {**line, "number": number, "settings": settings}
        infinite = {n: float("inf") for n in ("score", "rmse") if line[n] is None}
        return Trial(**numbers | infinite | {"curves": curves, "scores": tuple(line["scores"])})

    def find(self, number: int, settings: dict[str, Any]) -> Trial | None:
        """Return the trial of these settings, if it was kept."""
        line = self._found.get(key_of(settings))
        return None if line is None else self._trial(line, number, settings)

    def add(self, trial: Trial) -> None:
        """Keep a trial; when this returns, it is on disk."""
        if self._path is None:
            return
        line = trial.plain()
        line |= {n: None for n in ("score", "rmse") if line[n] == float("inf")}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
