"""Files of JSON lines: one object in each line, with the same names in all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hemf.errors import DataError

JSON_LINES = (".jsonl", ".ndjson")


def read_json_lines(where: str, lines: Iterable[bytes]) -> dict[str, list[Any]]:
    r"""Return the columns of a file, by name; ``where`` names the file in errors.

    >>> lines = [b'{"user": "ann", "item": 7}', b'{"user": "bob", "item": 3}']
    >>> read_json_lines("pairs.jsonl", lines)
    {'user': ['ann', 'bob'], 'item': [7, 3]}
    """
    columns: dict[str, list[Any]] = {}
    filled = ((n, line) for n, line in enumerate(lines, start=1) if line.strip())
    for row, (number, line) in enumerate(filled):
        record = _record(where, number, line)
        if not columns:
            columns = {name: [] for name in record}
        if record.keys() != columns.keys():
            other = sorted(record.keys() ^ columns.keys())[0]
            raise DataError(
                f"{where}: line {number} differs from the first one in the name {other!r}; all "
                "lines must have the same names",
                value=other,
                row=row,
            )
        for name, value in record.items():
            # As everywhere, several values are one id only as a tuple.
            columns[name].append(tuple(value) if isinstance(value, list) else value)
    if not columns:
        raise DataError(f"{where} is empty", value=where)
    return columns


def _record(where: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: line {number} is not JSON ({error})", value=line[:80]) from error
    if not isinstance(record, dict):
        raise DataError(
            f"{where}: line {number} is not an object of names and values", value=line[:80]
        )
    return record
