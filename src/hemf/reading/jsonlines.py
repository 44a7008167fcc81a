"""Files of JSON lines: one object in each line, with the same names in all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hemf.errors import DataError

JSON_LINES = (".jsonl", ".ndjson")


def read_json_lines(path: Path) -> dict[str, list[Any]]:
    r"""Return the columns of a file, by name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.jsonl"
    >>> _ = path.write_text('{"user": "ann", "item": 7}\n{"user": "bob", "item": 3}\n')
    >>> read_json_lines(path)
    {'user': ['ann', 'bob'], 'item': [7, 3]}
    """
    columns: dict[str, list[Any]] = {}
    for row, (number, line) in enumerate(_lines(path)):
        record = _record(path, number, line)
        if not columns:
            columns = {name: [] for name in record}
        if record.keys() != columns.keys():
            other = sorted(record.keys() ^ columns.keys())[0]
            raise DataError(
                f"{path}: line {number} differs from the first one in the name {other!r}; all "
                "lines must have the same names",
                value=other,
                row=row,
            )
        for name, value in record.items():
            # As everywhere, several values are one id only as a tuple.
            columns[name].append(tuple(value) if isinstance(value, list) else value)
    if not columns:
        raise DataError(f"{path} is empty", value=str(path))
    return columns


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}", value=str(path)
        ) from error


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number} is not JSON ({error})", value=line[:80]) from error
    if not isinstance(record, dict):
        raise DataError(
            f"{path}: line {number} is not an object of names and values", value=line[:80]
        )
    return record
