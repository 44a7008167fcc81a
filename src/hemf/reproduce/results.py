"""Results as JSON lines: each is on disk before the next one begins.

>>> path = getfixture("tmp_path") / "results.jsonl"
>>> entry = {"key": "a", "test_rmse": 0.8, "train_rmse": 0.7, "cpu_seconds": 2.0, "n_train": 90,
...          "n_test": 10, "settings": {}, "curve": []}
>>> with Results(path) as results:
...     results.add(entry)
>>> Results(path).by_key["a"]["test_rmse"]
0.8
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from hemf.errors import DataError


class Results:
    """Results that are there already, and a file that more of them are appended to.

    A last line that a kill has cut in two is dropped when the first result is added; lines before
    it that cannot be read are left alone and count for nothing. ``notes`` say so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._file: Any = None
        self._whole = 0  # bytes that end with a whole line
        self._read()

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read: {error.strerror or error}", value=str(self.path)
            ) from error
        self._whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._whole].splitlines(), start=1):
            entry = _parsed(line)
            if entry is None:
                self.notes.append(f"{self.path}: line {number} is no result; it counts for nothing")
            else:
                self.by_key[entry["key"]] = entry
        if self._whole < len(content):
            self.notes.append(
                f"{self.path}: the last line was cut in two; it is dropped and its run repeated, "
                f"{len(self.by_key)} finished results are kept"
            )

    def add(self, entry: dict[str, Any]) -> None:
        """Append a result; when this returns, it is on disk."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
            self._drop_half_a_line()
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.by_key[entry["key"]] = entry

    def _drop_half_a_line(self) -> None:
        """Cut off what comes after the last whole line, and nothing else.

        The file is looked at again: another run may have added to it since it was read.
        """
        self._file.seek(min(self._whole, self._file.seek(0, os.SEEK_END)))
        self._file.truncate(self._file.tell() + self._file.read().rfind(b"\n") + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_NUMBERS = ("test_rmse", "train_rmse", "cpu_seconds", "n_train", "n_test")
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "key": str, "settings": dict, "curve": list, **dict.fromkeys(_NUMBERS, (int, float)),
}  # fmt: skip


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the result on a line, or None if it lacks something that tables are made of."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    whole = all(isinstance(entry.get(name), kind) for name, kind in _NEEDED.items())
    return entry if whole and all(math.isfinite(entry[name]) for name in _NUMBERS) else None


UNKNOWN = "a version not noted"


def version_of(entry: Mapping[str, Any]) -> str:
    """Return the version of hemf that a result is of; in the first ones it was not noted.

    >>> version_of({"version": "0.1.0"}), version_of({})
    ('0.1.0', 'a version not noted')
    """
    return str(entry.get("version") or UNKNOWN)
