"""Tables as files: CSV, TSV, JSON lines and Parquet, to be read again by any of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import typer

from hemf.cli.plain import plain
from hemf.errors import DataError
from hemf.writing import replacing


class Format(StrEnum):
    """How rows are written."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


RowFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="How to write the rows: all of them. As csv unless stdout is a terminal.",
    ),
]

Columns = Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]
ENDINGS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".pq": "parquet",
}  # fmt: skip
_ROWS = 1 << 16  # that are put into words at a time


def check_table_name(path: Path | None, format: Format | None = None) -> None:
    """Complain of a file name that does not say what to write.

    >>> check_table_name(Path("ratings.xls"))
    Traceback (most recent call last):
    hemf.errors.DataError: ratings.xls: the name must end in .csv, .tsv, .jsonl, .parquet or .pq
    """
    if path is not None and format is None and path.suffix.lower() not in ENDINGS:
        raise DataError(
            f"{path}: the name must end in .csv, .tsv, .jsonl, .parquet or .pq",
            value=str(path),
        )


def write_table(path: Path, columns: Columns, format: Format | None = None) -> None:
    """Write columns to a file; without ``format``, by the ending of its name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.csv"
    >>> write_table(path, {"user": np.array(["ann", "bob"], object), "mean": np.array([1.5, 2])})
    >>> path.read_text().split()
    ['"user","mean"', '"ann",1.5', '"bob",2']
    """
    kind = ENDINGS[path.suffix.lower()] if format is None else format.value
    with replacing(path) as fresh, fresh.open("wb") as stream:
        write_rows(stream, columns, kind)


def write_rows(stream: BinaryIO, columns: Columns, kind: str = "csv") -> None:
    r"""Write columns to a stream, piece by piece.

    >>> import io
    >>> stream = io.BytesIO()
    >>> write_rows(stream, {"user": ["a,b"], "settings": [{"n_factors": 5}]}, "jsonl")
    >>> stream.getvalue()
    b'{"user": "a,b", "settings": {"n_factors": 5}}\n'
    """
    if kind == "jsonl":
        stream.writelines(_json_lines(columns))
        return
    import pyarrow as pa

    table = pa.table({name: _arrow(values, name) for name, values in columns.items()})
    if kind == "parquet":
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        stream.write(sink.getvalue())
        return
    from pyarrow import csv

    delimiter = "\t" if kind == "tsv" else ","
    for start in range(0, max(table.num_rows, 1), _ROWS):
        sink = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=start == 0, delimiter=delimiter)
        csv.write_csv(table.slice(start, _ROWS), sink, options)
        stream.write(sink.getvalue())


def columns_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return rows as columns.

    >>> columns_of(("user", "mean"), [("ann", 1.5), ("bob", 2.0)])
    {'user': ['ann', 'bob'], 'mean': [1.5, 2.0]}
    """
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return columns


def _json_lines(columns: Columns) -> Iterator[bytes]:
    lists = [_listed(values) for values in columns.values()]
    for row in zip(*lists, strict=True):
        record = {name: plain(value) for name, value in zip(columns, row, strict=True)}
        try:
            yield json.dumps(record, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # half a character
            yield json.dumps(record).encode() + b"\n"


def _arrow(values: Sequence[Any] | np.ndarray[Any, Any], name: str) -> Any:
    """Ids of one type keep it; ids of several become text, as a column has one type."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    listed = _listed(values)
    kinds = {type(value) for value in listed if value is not None}
    try:
        if kinds <= {str} or (len(kinds) == 1 and kinds <= {int, float, bool}):
            return pa.array(listed)
        if kinds <= {int, float} and name not in ("user", "item", "id"):
            return pa.array(listed, pa.float64())
    except UnicodeEncodeError as error:
        raise _not_unicode(error.object) from error
    except OverflowError:
        pass  # integers of more than 64 bits
    return pa.array([None if value is None else _text(value) for value in listed], pa.string())


def _listed(values: Sequence[Any] | np.ndarray[Any, Any]) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _text(value: Any) -> str:
    """Return a value as one field: settings and lists as JSON, everything else as it prints."""
    nested = isinstance(value, (dict, list))
    return json.dumps(plain(value), ensure_ascii=False) if nested else str(value)


def _not_unicode(text: str) -> DataError:
    return DataError(f"{text!r} is half a character and cannot be written as UTF-8", value=text)
