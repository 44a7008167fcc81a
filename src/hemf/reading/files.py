"""Files of ratings: Parquet, and text with any of the usual separators."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hemf.errors import DataError
from hemf.reading.columns import ColumnChoice, is_header
from hemf.reading.jsonlines import JSON_LINES, read_json_lines
from hemf.reading.text import Text, first_row, not_utf8, read_text

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

_STREAMS = (Path("/dev"), Path("/dev/fd"))
# By first bytes, the ending of a name. What is compressed may be text with any separator.
_MAGIC = {
    b"PAR1": ".parquet", b"PK": ".hemf", b"\x1f\x8b": ".dat.gz", b"BZh": ".dat.bz2",
    b"\x28\xb5\x2f\xfd": ".dat.zst",
}  # fmt: skip
_PACKED = {".dat.gz": "gzip", ".dat.bz2": "bz2", ".dat.zst": "zstd"}


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
    for ratings. ``n_ids`` are the columns of ids. Pipes can be read once only, so they are kept in
    memory; where the name does not tell what is in them, their first bytes do: see `kind_of`.

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
    judge = names_in or partial(is_header, columns=columns, rated=rated)
    if not path.is_file() or path.parent in _STREAMS:
        return _open_pipe(path, kind, judge, n_ids)
    if kind in PARQUET and not compressed:
        return _open_parquet(str(path), lambda: str(path), n_ids)
    if kind in JSON_LINES and not compressed:
        with _readable(str(path)), path.open("rb") as lines:
            return _json_source(str(path), lines)
    if kind in TEXT:
        return _open_text(str(path), partial(_open_packed, str(path), "detect"), kind, judge, n_ids)
    raise DataError(
        f"{path}: cannot tell what kind of file this is; "
        f"the name should end in {', '.join(PARQUET + JSON_LINES + TEXT)} (text also with .gz)",
        value=str(path),
    )


def _open_pipe(
    path: Path, kind: str, names_in: Callable[[Sequence[str]], bool], n_ids: int
) -> Source:
    """Take in what can be read only once, and see by its first bytes what it is."""
    import pyarrow as pa

    where = str(path)
    with _readable(where):
        data = path.read_bytes()
    buffer, found = pa.py_buffer(data), kind_of(data[: 1 << 16])
    if found in PARQUET:
        return _open_parquet(where, lambda: pa.BufferReader(buffer), n_ids)
    if kind in JSON_LINES or (not kind and found in JSON_LINES):
        return _json_source(where, io.BytesIO(data))

    def open_stream() -> Any:
        return _open_packed(pa.BufferReader(buffer), _PACKED.get(found))

    return _open_text(where, open_stream, kind, names_in, n_ids)


def kind_of(head: bytes) -> str:
    """Return the ending that the name of a file with this beginning would have.

    >>> kind_of(b"user,item,rating"), kind_of(b"1::31::2.5"), kind_of(b'{"user": 1}')
    ('.csv', '.dat', '.jsonl')
    """
    for magic, ending in _MAGIC.items():
        if head.startswith(magic):
            return ending
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if line.startswith(b"{"):
        return ".jsonl"
    for separators, ending in ((b"\t", ".tsv"), (b"::", ".dat"), (b",", ".csv")):
        if separators in line:
            return ending
    return ".csv" if any(mark in line for mark in b";|") else ".dat"


def _open_packed(source: Any, compression: str | None) -> Any:
    import pyarrow as pa

    return pa.input_stream(source, compression=compression)


def _json_source(where: str, lines: Iterable[bytes]) -> Source:
    table = read_json_lines(where, lines)
    return Source(list(table), len(table), partial(_chosen, list(table.values())), where)


def _chosen(columns: list[Any], positions: Sequence[int]) -> list[Any]:
    return [columns[position] for position in positions]


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Arrow's and the system's complaints as one kind of error, with the file's name."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise not_utf8(where) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {error}", value=where) from error


def _open_parquet(where: str, opened: Callable[[], Any], n_ids: int) -> Source:
    """See what columns a Parquet file has; ``opened`` gives its path or its bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(where):
        schema = pq.read_schema(opened())
        all_names = schema.names  # which may be no UTF-8

    def checked(values: Any, name: str) -> Any:
        """Return values that are what their type promises, such as text that is UTF-8."""
        column = f"{where}: column {name!r}"
        with _readable(column):
            try:
                values.validate(full=True)
            except pa.ArrowInvalid as error:
                raise not_utf8(column) if "UTF8" in str(error) else error from error
        return values

    def read(positions: Sequence[int]) -> list[Any]:
        names = [all_names[position] for position in positions]
        # Most files hold text as codes and a dictionary: keep it so, and there is less to hash.
        coded = [
            names[place] for place in range(n_ids) if not schema.types[positions[place]].num_fields
        ]
        options = {"read_dictionary": coded, "pre_buffer": True}
        # Not read_table: that loads Arrow's data sets, and with them pandas.
        with _readable(where), pq.ParquetFile(opened(), **options) as file:
            table = file.read(columns=list(set(names)))

        def column(position: int) -> Any:
            name = all_names[position]  # which another column may have too
            which = schema.get_all_field_indices(name).index(position)
            return checked(table.column(table.schema.get_all_field_indices(name)[which]), name)

        return [column(position) for position in positions]

    return Source(all_names, len(all_names), read, where)


def _open_text(
    where: str,
    opened: Callable[[], Any],
    suffix: str,
    names_in: Callable[[Sequence[str]], bool],
    n_ids: int,
) -> Source:
    with _readable(where), opened() as stream:
        row = first_row(where, stream, _SEPARATORS.get(suffix, _ANY_SEPARATOR))
    names = [field.strip() for field in row.fields] if names_in(row.fields) else None
    begin, line = (row.begin, row.first_line) if names is None else (row.end, row.next_line)
    text = Text(where, opened, row.separator, len(row.fields), begin, line)

    def read(positions: Sequence[int]) -> list[Any]:
        with _readable(where):
            return read_text(text, n_ids, positions)

    return Source(names, len(row.fields), read, where, is_text=True)
