"""Files of ratings: Parquet, and text with any of the usual separators."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hemf.errors import DataError
from hemf.reading.columns import ColumnChoice, is_header

PARQUET = (".parquet", ".pq")
# By suffix, the separators to look for in the first line, the likeliest first.
_SEPARATORS = {
    ".csv": (",", ";", "\t", "|"),
    ".tsv": ("\t", ",", ";", "|"),
    ".tab": ("\t", ",", ";", "|"),
}
_ANY_SEPARATOR = ("::", "\t", ",", ";", "|", " ")
TEXT = (*_SEPARATORS, ".dat", ".data", ".base", ".test", ".txt")
COMPRESSED = (".gz", ".bz2", ".zst")

_FIRST_BYTES = 1 << 16
_LINE_END = re.compile("\r\n?|\n")  # as Arrow has it
_SEPARATOR_BYTE = "\x1f"  # the ASCII unit separator stands in for "::", which Arrow cannot split at


@dataclass(frozen=True)
class Source:
    """Columns that can be read: their names if they have any, and how to get some of them.

    ``read`` takes positions, those of ids first, and returns as many columns. ``is_text`` says that
    ids have no type of their own: ``"12"`` may stand for 12. ``where`` names the source in errors.
    """

    names: Sequence[Any] | None
    width: int
    read: Callable[[Sequence[int]], list[Any]]
    where: str
    is_text: bool = False


def open_file(
    path: Path,
    columns: ColumnChoice = None,
    *,
    rated: bool = True,
    names_in: Callable[[Sequence[str]], bool] | None = None,
    n_ids: int = 2,
) -> Source:
    """Look at a file and say what columns it has; nothing but its head is read yet.

    ``names_in`` tells whether the first line of a text file holds names; without, that is judged as
    for ratings. ``n_ids`` are the columns of ids.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ratings.dat"
    >>> _ = path.write_text("1::31::2.5::1260759144")
    >>> source = open_file(path)
    >>> source.names, source.width, source.read([0, 1, 2])[2].to_pylist()
    (None, 4, [2.5])
    """
    path = path.expanduser()
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = "".join(suffixes[-2:-1] if compressed else suffixes[-1:])
    if path.is_dir():
        raise DataError(f"{path} is a directory; give a file in it", value=str(path))
    if not path.exists():
        raise DataError(f"{path}: no such file", value=str(path))
    if kind in PARQUET and not compressed:
        return _open_parquet(path, n_ids)
    if kind in TEXT:
        judge = names_in or partial(is_header, columns=columns, rated=rated)
        return _open_text(path, kind, judge, n_ids)
    raise DataError(
        f"{path}: cannot tell what kind of file this is; "
        f"the name should end in {', '.join(PARQUET + TEXT)} (text also with .gz)",
        value=str(path),
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Arrow's and the system's complaints as one kind of error, with the file's name."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", value=str(path)) from error


def _open_parquet(path: Path, n_ids: int) -> Source:
    import pyarrow.parquet as pq

    with _readable(path):
        schema = pq.read_schema(path)

    def read(positions: Sequence[int]) -> list[Any]:
        names = [schema.names[position] for position in positions]
        # Most files hold text as codes and a dictionary: keep it so, and there is less to hash.
        coded = [
            names[place] for place in range(n_ids) if not schema.types[positions[place]].num_fields
        ]
        options = {"read_dictionary": coded, "pre_buffer": True}
        # Not read_table: that loads Arrow's data sets, and with them pandas.
        with _readable(path), pq.ParquetFile(path, **options) as file:
            table = file.read(columns=list(set(names)))

        def column(position: int) -> Any:
            name = schema.names[position]  # which another column may have too
            which = schema.get_all_field_indices(name).index(position)
            return table.column(table.schema.get_all_field_indices(name)[which])

        return [column(position) for position in positions]

    return Source(schema.names, len(schema.names), read, str(path))


def _open_text(
    path: Path, suffix: str, names_in: Callable[[Sequence[str]], bool], n_ids: int
) -> Source:
    import pyarrow as pa

    with _readable(path), pa.input_stream(str(path), compression="detect") as stream:
        head = stream.read(_FIRST_BYTES)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _not_utf8(path)
    lines = _LINE_END.split(head.decode("utf-8-sig", errors="replace"))
    blank = next((count for count, line in enumerate(lines) if line.strip()), None)
    if blank is None:
        raise DataError(f"{path} is empty", value=str(path))
    separator, fields = _split(lines[blank], suffix)
    has_header = names_in(fields)
    if has_header and not any(line.strip() for line in lines[blank + 1 :]):
        raise DataError(f"{path}: there are no rows", value=str(path))

    def read(positions: Sequence[int]) -> list[Any]:
        skip = blank + has_header
        return _read_text(path, separator, len(fields), skip, positions, n_ids)

    names = [field.strip() for field in fields] if has_header else None
    return Source(names, len(fields), read, str(path), is_text=True)


def _split(line: str, suffix: str) -> tuple[str, list[str]]:
    """Find the separator of a line, and its fields."""
    for separator in _SEPARATORS.get(suffix, _ANY_SEPARATOR):
        if len(separator) > 1:
            fields = line.split(separator)
        else:
            fields = next(csv.reader([line], delimiter=separator))
        if len(fields) > 1:
            return separator, fields
    return ",", [line]


def _read_text(
    path: Path, separator: str, width: int, skip: int, positions: Sequence[int], n_ids: int
) -> list[Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names = [str(place) for place in range(width)]
    chosen = [names[position] for position in positions]
    multiple = len(separator) > 1
    reading = arrow_csv.ReadOptions(column_names=names, skip_rows=skip)
    parsing = arrow_csv.ParseOptions(
        delimiter=_SEPARATOR_BYTE if multiple else separator,
        quote_char=False if multiple else '"',
    )
    converting = arrow_csv.ConvertOptions(
        include_columns=chosen,
        # Ids are read as text, so that 007, 1e5 and 2020-01-01 are not taken for something else.
        column_types={name: pa.dictionary(pa.int32(), pa.string()) for name in chosen[:n_ids]},
    )

    def table() -> Any:
        with pa.input_stream(str(path), compression="detect") as stream:
            if multiple:
                text = stream.read().replace(separator.encode(), _SEPARATOR_BYTE.encode())
                stream = pa.BufferReader(text)
            return arrow_csv.read_csv(stream, reading, parsing, converting)

    with _readable(path):
        try:
            return [table()[name] for name in chosen]
        except pa.ArrowInvalid as error:
            if "invalid UTF8" in str(error):
                raise _not_utf8(path) from error
            # Once more, to learn which row has too few or too many fields: one thread can count.
            uneven: list[Any] = []

            def note(row: Any) -> str:
                uneven.append(row)
                return "error"

            parsing.invalid_row_handler = note
            reading.use_threads = False
            with suppress(pa.ArrowInvalid):
                table()
            if not uneven:
                raise
            raise _uneven(path, uneven[0], skip) from None


def _not_utf8(path: Path) -> DataError:
    return DataError(
        f"{path} is not UTF-8 text (perhaps Latin-1 or UTF-16); save it as UTF-8", value=str(path)
    )


def _uneven(path: Path, bad: Any, skip: int) -> DataError:
    row = bad.number - 1 - skip
    fields = f"{bad.actual_columns} fields instead of {bad.expected_columns}"
    message = f"{path}: row {row} has {fields}: {bad.text!r}"
    return DataError(message, value=bad.text, row=row)
