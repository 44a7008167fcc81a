"""Files of ratings: Parquet, JSON lines, and text with any of the usual separators.

Arrow parses text. It splits a file into blocks before it knows where values begin and end, so a
quote that is never closed silently hides all rows up to the end of a block. A `Scanner` therefore
reads the same bytes, finds the quotes, and counts the rows.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np

from hemf._typing import ArrowArray, ArrowTable, Int64Array, UInt8Array
from hemf.errors import DataError, DataWarning, warn_caller

PARQUET = (".parquet", ".pq")
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".bz2", ".zst")
# By suffix, the separators to look for in the first line, the likeliest first.
_SEPARATORS = {
    ".csv": (",", ";", "\t", "|"),
    ".tsv": ("\t", ",", ";", "|"),
    ".tab": ("\t", ",", ";", "|"),
}
_ANY_SEPARATOR = ("::", "\t", ",", ";", "|", " ")
TEXT = (*_SEPARATORS, ".dat", ".data", ".base", ".test", ".txt")

MAX_ROW_BYTES = 1 << 24
MAX_FIELDS = 100_000
BLOCK = 1 << 20
UNIT_SEPARATOR = b"\x1f"
"""Replaces ``::``, which Arrow cannot split at."""

_PIPE_FOLDERS = (Path("/dev"), Path("/dev/fd"))
# By first bytes, the suffix of a file name. Compressed text may have any separator.
_MAGIC = {
    b"PAR1": ".parquet", b"PK": ".hemf", b"\x1f\x8b": ".dat.gz", b"BZh": ".dat.bz2",
    b"\x28\xb5\x2f\xfd": ".dat.zst",
}  # fmt: skip
_COMPRESSIONS = {".dat.gz": "gzip", ".dat.bz2": "bz2", ".dat.zst": "zstd"}
_HEAD_BYTES = 1 << 16
_NEWLINE, _QUOTE = ord("\n"), ord('"')
_BLANK_LINES = re.compile(rb"(?:[^\S\r\n]*+(?:\r\n?|\n))*+")
_LINE_END = re.compile(rb"\r\n?|\n")  # as Arrow has it
_UNEVEN = re.compile(r"(?s)Row #(\d+): Expected (\d+) columns, got (\d+): (.*)")
_QUOTE_ADVICE = (
    'close it, remove it, or write a quote that is part of a value twice ("") in a quoted value'
)
_NOT_CLOSED = f"has a quote that is not closed; {_QUOTE_ADVICE}"

HasNames: TypeAlias = Callable[[Sequence[str]], bool]
"""Decides whether the fields of the first line are names of columns."""
OpenStream: TypeAlias = Callable[[], ArrowArray]
"""Opens a file for reading, as often as needed."""


@dataclass(frozen=True)
class Source:
    """Columns that can be read: their names, if they have any, and a function to read some."""

    names: Sequence[object] | None
    width: int
    read: Callable[[Sequence[int]], list[ArrowArray]]
    """Takes positions, those of ids first, and returns as many columns."""
    where: str
    """Names the source in errors."""
    is_text: bool = False
    """Whether ids have no type: ``"12"`` may stand for 12."""


def open_file(path: Path, has_names: HasNames, *, n_ids: int = 2) -> Source:
    """Find out what columns a file has; only its head is read.

    ``has_names`` decides whether the first line of a text file is a header. ``n_ids`` is the number
    of columns of ids. Pipes can be read only once and are kept in memory; if their name has no
    suffix, `guess_suffix` decides.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ratings.dat"
    >>> _ = path.write_text("1::31::2.5::1260759144")
    >>> source = open_file(path, lambda fields: False)
    >>> source.names, source.width, source.read([0, 1, 2])[2].to_pylist()
    (None, 4, [2.5])
    """
    import pyarrow as pa

    path = Path(os.path.expanduser(path))  # a home that is not known stays, as in a shell
    where = str(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = "".join(suffixes[-2:-1] if compressed else suffixes[-1:])
    with _clear_errors(where):  # the name may be too long
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        raise DataError(f"{path} is a directory; give a file in it", value=where)
    if not exists:
        raise DataError(f"{path}: no such file", value=where)
    if not path.is_file() or path.parent in _PIPE_FOLDERS:
        return _open_pipe(path, kind, has_names, n_ids)
    if kind in PARQUET and not compressed:
        return _open_parquet(where, lambda: where, n_ids)
    if kind in JSON_LINES and not compressed:
        with _clear_errors(where), path.open("rb") as lines:
            return _open_json_lines(where, lines)
    if kind in TEXT:
        return _open_text(
            where, lambda: pa.input_stream(where, compression="detect"), kind, has_names, n_ids
        )
    raise DataError(
        f"{path}: cannot tell what kind of file this is; "
        f"the name should end in {', '.join(PARQUET + JSON_LINES + TEXT)} (text also with .gz)",
        value=where,
    )


def _open_pipe(path: Path, kind: str, has_names: HasNames, n_ids: int) -> Source:
    """Read all of a pipe, and recognise its kind by its first bytes."""
    import pyarrow as pa

    where = str(path)
    with _clear_errors(where):
        data = path.read_bytes()
    buffer, found = pa.py_buffer(data), guess_suffix(data[:_HEAD_BYTES])
    if found in PARQUET:
        return _open_parquet(where, lambda: pa.BufferReader(buffer), n_ids)
    if kind in JSON_LINES or (not kind and found in JSON_LINES):
        return _open_json_lines(where, io.BytesIO(data))

    def open_stream() -> ArrowArray:
        return pa.input_stream(pa.BufferReader(buffer), compression=_COMPRESSIONS.get(found))

    return _open_text(where, open_stream, kind, has_names, n_ids)


def guess_suffix(head: bytes) -> str:
    """Return the suffix of a file that begins like this.

    >>> guess_suffix(b"user,item,rating"), guess_suffix(b"1::31::2.5"), guess_suffix(b'{"user": 1}')
    ('.csv', '.dat', '.jsonl')
    """
    for magic, suffix in _MAGIC.items():
        if head.startswith(magic):
            return suffix
    line = head.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 1)[0]
    if line.startswith(b"{"):
        return ".jsonl"
    for separator, suffix in ((b"\t", ".tsv"), (b"::", ".dat"), (b",", ".csv")):
        if separator in line:
            return suffix
    return ".csv" if any(mark in line for mark in b";|") else ".dat"


@contextmanager
def _clear_errors(where: str) -> Iterator[None]:
    """Turn errors of Arrow and of the system into a DataError that names the file."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise not_utf8(where) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {error}", value=where) from error


def not_utf8(where: str) -> DataError:
    """Return the error for text in another encoding."""
    message = f"{where} is not UTF-8 text (perhaps Latin-1 or UTF-16); save it as UTF-8"
    return DataError(message, value=where)


def _open_parquet(where: str, get_file: OpenStream, n_ids: int) -> Source:
    """Find out what columns a Parquet file has; ``get_file`` returns its path or a reader."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _clear_errors(where):
        schema = pq.read_schema(get_file())
        all_names = schema.names  # fails here if they are not UTF-8

    def read(positions: Sequence[int]) -> list[ArrowArray]:
        names = [all_names[position] for position in positions]
        # Most files store text as codes and a dictionary; kept so, there is less to hash.
        coded = [
            names[place] for place in range(n_ids) if not schema.types[positions[place]].num_fields
        ]
        options = {"read_dictionary": coded, "pre_buffer": True}
        # Arrow's read_table would import pandas.
        with _clear_errors(where), pq.ParquetFile(get_file(), **options) as file:
            table = file.read(columns=list(set(names)))

        def column(position: int) -> ArrowArray:
            name = all_names[position]  # another column may have the same name
            which = schema.get_all_field_indices(name).index(position)
            values = table.column(table.schema.get_all_field_indices(name)[which])
            described = f"{where}: column {name!r}"
            with _clear_errors(described):
                try:
                    values.validate(full=True)  # text may not be UTF-8
                except pa.ArrowInvalid as error:
                    raise not_utf8(described) if "UTF8" in str(error) else error from error
            return values

        return [column(position) for position in positions]

    return Source(all_names, len(all_names), read, where)


def _open_json_lines(where: str, lines: Iterable[bytes]) -> Source:
    """Read lines that each hold an object with the same names."""
    columns: dict[str, list[object]] = {}
    filled = ((n, line) for n, line in enumerate(lines, start=1) if line.strip())
    for row, (number, line) in enumerate(filled):
        at = f"{where}: line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{at} is not JSON ({error})", value=line[:80]) from error
        if not isinstance(record, dict):
            raise DataError(f"{at} is not an object of names and values", value=line[:80])
        if not columns:
            columns = {name: [] for name in record}
        if record.keys() != columns.keys():
            other = sorted(record.keys() ^ columns.keys())[0]
            raise DataError(
                f"{at} differs from the first one in the name {other!r}; all lines must have the "
                "same names",
                value=other,
                row=row,
            )
        for name, value in record.items():
            # An id of several values is a tuple, as everywhere.
            columns[name].append(tuple(value) if isinstance(value, list) else value)
    if not columns:
        raise DataError(f"{where} is empty", value=where)
    values = list(columns.values())
    return Source(list(columns), len(columns), lambda places: [values[k] for k in places], where)


# -- delimited text ------------------------------------------------------------------------------


class FirstRow(NamedTuple):
    """The first row that is not blank."""

    separator: str
    fields: list[str]
    begin: int
    """Byte at which it begins."""
    end: int
    """Byte at which the next row begins."""
    first_line: int
    next_line: int


@dataclass(frozen=True)
class _Text:
    """Rows of delimited text from byte ``begin`` on, which is in line ``line``."""

    where: str
    open_stream: OpenStream
    separator: str
    width: int
    begin: int
    line: int

    def scanner(self) -> Scanner:
        return Scanner(self.separator, self.width, line=self.line)

    def parse(
        self,
        chosen: list[str],
        n_ids: int,
        scanner: Scanner,
        *,
        again: bool = False,
        threads: bool = True,
    ) -> ArrowTable:
        """Parse columns with Arrow, the first ``n_ids`` of them as text.

        The scanner scans the same bytes. If they are parsed ``again``, its results are used.
        """
        import pyarrow as pa
        from pyarrow import csv

        is_double = len(self.separator) > 1
        reading = csv.ReadOptions(
            column_names=[str(place) for place in range(self.width)],
            block_size=max(BLOCK, 2 * scanner.longest) if again else BLOCK,
            use_threads=threads,
        )
        parsing = csv.ParseOptions(
            delimiter=UNIT_SEPARATOR.decode() if is_double else self.separator,
            quote_char=False if is_double else '"',
            newlines_in_values=again and scanner.spans_lines,
        )
        converting = csv.ConvertOptions(
            include_columns=chosen,
            # Ids are read as text, so that 007, 1e5 and 2020-01-01 stay as they are.
            column_types={name: pa.dictionary(pa.int32(), pa.string()) for name in chosen[:n_ids]},
        )
        with self.open_stream() as stream:
            stream.read(self.begin)
            scanned = ScannedStream(stream, self.separator, None if again else scanner)
            return csv.read_csv(pa.PythonFile(scanned, mode="r"), reading, parsing, converting)


def _open_text(
    where: str, open_stream: OpenStream, suffix: str, has_names: HasNames, n_ids: int
) -> Source:
    with _clear_errors(where), open_stream() as stream:
        row = first_row(where, stream, _SEPARATORS.get(suffix, _ANY_SEPARATOR))
    names = [field.strip() for field in row.fields] if has_names(row.fields) else None
    begin, line = (row.begin, row.first_line) if names is None else (row.end, row.next_line)
    text = _Text(where, open_stream, row.separator, len(row.fields), begin, line)

    def read(positions: Sequence[int]) -> list[ArrowArray]:
        with _clear_errors(where):
            return _read_text(text, n_ids, positions)

    return Source(names, len(row.fields), read, where, is_text=True)


def first_row(where: str, stream: BinaryIO, separators: Sequence[str]) -> FirstRow:
    r"""Read as much of a stream as its first row takes, and split that row.

    The separator is the first of ``separators`` that occurs in the row.
    """
    data, final = b"", False
    while not final:
        block = stream.read(max(_HEAD_BYTES, len(data)))
        data, final = data + block, not block
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise not_utf8(where)
        mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        blank = _BLANK_LINES.match(data, mark)
        begin = mark if blank is None else blank.end()
        has_row = bool(data[begin:].strip())
        found = _divide(where, data, begin, separators, final=final) if has_row else None
        if found is not None:
            separator, fields, end = found
            try:
                names = [field.decode() for field in fields]
            except UnicodeDecodeError as error:
                raise not_utf8(where) from error
            lines = (1 + len(_LINE_END.findall(data, 0, place)) for place in (begin, end))
            return FirstRow(separator, names, begin, end, *lines)
        if len(data) > MAX_ROW_BYTES:
            break
    if not data[begin:].strip():
        raise DataError(f"{where} is empty", value=where)
    scanner = Scanner(separators[-1] if len(separators[0]) > 1 else separators[0], 1)
    scanner.feed(data)
    scanner.finish()
    fault = scanner.fault or Fault(1, "has a quote that is not closed")
    raise DataError(f"{where}: line {fault.line} {fault.reason}", value=fault.line)


def _divide(
    where: str, data: bytes, begin: int, separators: Sequence[str], *, final: bool
) -> tuple[str, list[bytes], int] | None:
    """Return separator, fields and end of a row; None if the row is not complete."""
    for separator in separators:
        split = _split_row(data, begin, separator.encode())
        if split is None:
            return None
        fields, end = split
        if len(fields) > MAX_FIELDS:
            raise DataError(
                f"{where}: the first row has more than {MAX_FIELDS:,} fields; check the separators "
                "and line ends",
                value=where,
            )
        line_end = _LINE_END.match(data, end)
        if not final and (line_end is None or line_end.end() == len(data)):
            return None  # more of the row, or half of a line end, may follow
        if len(fields) > 1:
            return separator, fields, end if line_end is None else line_end.end()
    return ",", fields, end if line_end is None else line_end.end()


def _split_row(data: bytes, begin: int, separator: bytes) -> tuple[list[bytes], int] | None:
    """Return the fields of a row and its end; None if a quote is not closed.

    It stops after `MAX_FIELDS` fields and one more, which are too many.
    """
    if len(separator) > 1:
        line_end = _LINE_END.search(data, begin)
        end = len(data) if line_end is None else line_end.start()
        return data[begin:end].split(separator, MAX_FIELDS), end
    rest = rb"([^\r\n%s]*+)" % re.escape(separator)
    field = re.compile(rb'"([^"]*+(?:""[^"]*+)*+)"%s|%s' % (rest, rest))
    fields: list[bytes] = []
    end = begin
    while len(fields) <= MAX_FIELDS and (match := field.match(data, end)):
        quoted, tail, plain = match.groups()
        if quoted is None and plain.startswith(b'"'):
            return None
        fields.append(plain if quoted is None else quoted.replace(b'""', b'"') + tail)
        end = match.end()
        if data[end : end + 1] != separator:
            break
        end += 1
    return fields, end


def _read_text(text: _Text, n_ids: int, positions: Sequence[int]) -> list[ArrowArray]:
    """Read columns, those of ids first and as text; raise a DataError if a row would be lost."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = [str(position) for position in positions]
    scanner, failure, table = text.scanner(), None, None
    try:
        table = text.parse(chosen, n_ids, scanner)
    except pa.ArrowInvalid as error:
        failure = error
        scanner = text.scanner()
        with text.open_stream() as stream:
            stream.read(text.begin)
            scanned = ScannedStream(stream, text.separator, scanner)
            while scanned.read():
                pass
    _check_rows(text.where, scanner)
    if scanner.spans_lines or scanner.longest > BLOCK:
        failure = None
        try:
            table = text.parse(chosen, n_ids, scanner, again=True)
        except pa.ArrowInvalid as error:
            failure = error
    if failure is not None or table is None:
        raise _explain(text, chosen, n_ids, scanner, failure)
    if table.num_rows != scanner.rows:
        raise DataError(
            f"{text.where}: {scanner.rows} rows were found and {table.num_rows} could be read; "
            "look for quotes and line ends that are out of place",
            value=table.num_rows,
        )
    # Arrow reads 0x10 as an integer; such columns stay text, which is rejected later.
    whole = [name for name in chosen[n_ids:] if pa.types.is_integer(table[name].type)]
    if scanner.hexadecimal and whole:
        as_text = text.parse(whole, len(whole), scanner, again=True)
        for name in whole:
            if any(
                pc.any(pc.match_substring_regex(chunk.dictionary, r"^\s*0[xX]")).as_py()
                for chunk in as_text[name].chunks
            ):
                table = table.set_column(chosen.index(name), name, as_text[name])
    return [table[name] for name in chosen]


def _check_rows(where: str, scanner: Scanner) -> None:
    """Reject text whose rows cannot be separated, and warn if they are ambiguous."""
    if scanner.fault is not None:
        at = f"{where}: line {scanner.fault.line}"
        raise DataError(f"{at} {scanner.fault.reason}", value=scanner.fault.line)
    if not scanner.rows:
        raise DataError(f"{where}: there are no rows", value=where)
    if scanner.ambiguous is not None:
        first, last = scanner.ambiguous
        more = f" ({scanner.n_ambiguous} rows are like this)" if scanner.n_ambiguous > 1 else ""
        warn_caller(
            f"{where}: lines {first} to {last} are read as one row, since a quote in line "
            f"{first} is closed in line {last}, but without the quotes each of the lines is a "
            f"complete row{more}; if these quotes are there by mistake, remove them",
            DataWarning,
        )


def _explain(
    text: _Text, chosen: list[str], n_ids: int, scanner: Scanner, failure: Exception | None
) -> Exception:
    """Return the error for text that Arrow cannot read; a single thread knows the row."""
    import pyarrow as pa

    if "invalid UTF8" in str(failure):
        return not_utf8(text.where)
    try:
        text.parse(chosen, n_ids, scanner, again=True, threads=False)
    except pa.ArrowInvalid as error:
        failure = error
    uneven = _UNEVEN.search(str(failure))
    if uneven is None:
        return DataError(f"{text.where} cannot be read: {failure}", value=text.where)
    number, expected, found, content = uneven.groups()
    row = int(number) - 1
    message = f"{text.where}: row {row} has {found} fields instead of {expected}: {content!r}"
    return DataError(message, value=content, row=row)


# -- quotes and rows -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Error in a text, and its line."""

    line: int
    reason: str


class Scanner:
    r"""Finds where rows end, block by block.

    A quote opens a value only at the start of a field, as in Arrow.

    >>> scanner = Scanner(",", 3)
    >>> scanner.feed(b'ann,"tea,\nor ""milk"" ",3\nbob,5" disk')
    >>> scanner.feed(b",4\n")
    >>> scanner.finish()
    >>> scanner.rows, scanner.spans_lines, scanner.fault
    (2, True, None)
    """

    def __init__(self, separator: str, width: int, *, line: int = 1) -> None:
        self._separator = ord(separator) if len(separator) == 1 else None  # None: without quotes
        self._width = width
        self._line = line  # the first line that is not counted yet
        self._parts: list[bytes] = []  # bytes of incomplete rows
        self._next_scan = 0  # bytes of them at which the next scan pays
        self._size = 0
        self.rows = 0
        """Rows so far, without empty lines."""
        self.longest = 0
        """Bytes of the longest row."""
        self.spans_lines = False
        """Whether a quoted value contains a line break."""
        self.ambiguous: tuple[int, int] | None = None
        """First and last line of the first ambiguous row, see `_note_ambiguous`."""
        self.n_ambiguous = 0
        self.hexadecimal = False
        """Whether ``0x`` occurs, which Arrow accepts in integers."""
        self._last = b""  # the last byte so far
        self.fault: Fault | None = None
        """The first fault; counting stops there."""
        if self._separator is not None:
            mark = re.escape(separator.encode())
            self._opening = re.compile(rb'(?:(?<=[\n%s])|\A)"' % mark)
        self._closing = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')

    def feed(self, block: bytes) -> None:
        """Scan the next bytes."""
        if self.fault is not None:
            return
        if not self.hexadecimal:
            self.hexadecimal = has_hexadecimal(block) or has_hexadecimal(self._last + block[:1])
            self._last = block[-1:]
        if self._separator is None and UNIT_SEPARATOR in block:
            before = b"".join([*self._parts, block[: block.index(UNIT_SEPARATOR)]])
            text, _ = _unified(before, final=True)
            self._fail(text, len(text), "holds the control character U+001F; remove it")
            return
        self._parts.append(block)
        self._size += len(block)
        # Each scan starts at the beginning of the row, so the steps double.
        if self._size >= self._next_scan:
            self._scan(final=False)
            self._next_scan = 2 * self._size
            if self._size > MAX_ROW_BYTES and self.fault is None:
                self._reject_long(_unified(b"".join(self._parts), final=True)[0])

    def finish(self) -> None:
        """Scan what is left at the end of the file."""
        if self.fault is None:
            self._scan(final=True)

    def _scan(self, *, final: bool) -> None:
        text, held_back = _unified(b"".join(self._parts), final=final)
        if self._separator is not None and b'"' in text:
            ends = self._quoted_ends(text, final=final)
            if ends is None:
                return
        else:
            ends = _with_last(_places(text, _NEWLINE), text, final=final)
        if ends.size:
            lengths = np.diff(ends, prepend=-1)
            self.rows += int((lengths > 1).sum())
            self.longest = max(self.longest, int(lengths.max()))
            if self.longest > MAX_ROW_BYTES:
                long = int((lengths > MAX_ROW_BYTES).argmax())
                begin = int(ends[long] - lengths[long]) + 1
                self._line += text.count(b"\n", 0, begin)
                self._reject_long(text[begin:])
                return
            used = int(ends[-1]) + 1
            self._line += text.count(b"\n", 0, used)
            text = text[used:]
        self._parts = [text + held_back]
        self._size = len(self._parts[0])

    def _quoted_ends(self, text: bytes, *, final: bool) -> Int64Array | None:
        """Return where rows of text with quotes end; None after a fault."""
        data = np.frombuffer(text, np.uint8)
        quotes = _places(text, _QUOTE)
        breaks = _places(text, _NEWLINE)
        if self._is_regular(data, quotes):
            ends = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
            if quotes.size % 2 and final:
                opening = quotes[0::2]
                fresh = opening[(opening == 0) | (data[opening - 1] != _QUOTE)]
                self._fail(text, int(fresh[-1]), _NOT_CLOSED)
                return None
        else:
            found = self._ends_one_by_one(text, breaks, final=final)
            if found is None:
                return None
            ends = found
        lines, ends = _with_last(breaks, text, final=final), _with_last(ends, text, final=final)
        lines = lines[: np.searchsorted(lines, ends[-1], side="right")] if ends.size else ends
        if ends.size < lines.size:
            self.spans_lines = True
            self._note_ambiguous(text, lines, ends)
        return ends

    def _is_regular(self, data: UInt8Array, quotes: Int64Array) -> bool:
        """Whether every quote opens or closes a field or is doubled, so that parity decides."""
        opening, closing = quotes[0::2], quotes[1::2]
        before = data[opening[opening > 0] - 1]
        after = data[closing[closing < data.size - 1] + 1]
        neighbours = np.concatenate([before, after])
        allowed = (neighbours == self._separator) | (neighbours == _NEWLINE)
        return bool((allowed | (neighbours == _QUOTE)).all())

    def _ends_one_by_one(
        self, text: bytes, breaks: Int64Array, *, final: bool
    ) -> Int64Array | None:
        """Return where rows end, one quoted value after the other."""
        separator = bytes([self._separator or 0])
        hidden = np.zeros(breaks.size, bool)  # line breaks within quotes
        at, cut = 0, len(text)
        while match := self._opening.search(text, at):
            opened = match.start()
            closed = self._closing.match(text, match.end())
            if closed is None or (closed.end() == len(text) and not final):
                if final:
                    self._fail(text, opened, _NOT_CLOSED)
                    return None
                cut = opened  # the rest of the value follows
                break
            at = closed.end()
            if text.find(b"\n", opened, at) >= 0:
                first, last = np.searchsorted(breaks, [opened, at])
                hidden[first:last] = True
                if text[at : at + 1] not in (separator, b"\n", b""):
                    end = self._line + last
                    reason = "has a quote that is closed in the middle of a value in line"
                    self._fail(text, opened, f"{reason} {end}; {_QUOTE_ADVICE}")
                    return None
        return np.asarray(breaks[~hidden & (breaks < cut)])

    def _note_ambiguous(self, text: bytes, lines: Int64Array, ends: Int64Array) -> None:
        """Note rows of several lines that would each be a complete row without the quotes.

        It may be valid CSV, or the effect of two stray quotes.
        """
        separators = _places(text, self._separator or 0)
        is_row = np.diff(np.searchsorted(separators, lines), prepend=0) == self._width - 1
        first = np.concatenate([[0], np.searchsorted(lines, ends)[:-1] + 1])
        counts = np.diff(np.append(first, lines.size))
        found = np.flatnonzero(np.logical_and.reduceat(is_row, first) & (counts > 1))
        if found.size and self.ambiguous is None:
            at = self._line + int(first[found[0]])
            self.ambiguous = at, at + int(counts[found[0]]) - 1
        self.n_ambiguous += int(found.size)

    def _fail(self, text: bytes, place: int, reason: str) -> None:
        """Note a fault at a place of text that begins in the current line."""
        self.fault = Fault(self._line + text.count(b"\n", 0, place), reason)

    def _reject_long(self, text: bytes) -> None:
        match = None if self._separator is None else self._opening.search(text)
        limit = f"{MAX_ROW_BYTES >> 20} MB"
        if match is not None and b"\n" in text:
            reason = f"has a quote that is not closed within {limit}; {_QUOTE_ADVICE}"
            self._fail(text, match.start(), reason)
        else:
            self._fail(text, 0, f"is longer than {limit}")


def has_hexadecimal(text: bytes) -> bool:
    """Whether there may be a hexadecimal integer, which Arrow accepts."""
    # The search for one letter is much faster, and most files of ratings do not have it.
    return (b"x" in text and b"0x" in text) or (b"X" in text and b"0X" in text)


def _places(text: bytes, character: int) -> Int64Array:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == character)


def _with_last(ends: Int64Array, text: bytes, *, final: bool) -> Int64Array:
    """Add the end of the text if it does not end with a line end."""
    if final and text and not (ends.size and ends[-1] == len(text) - 1):
        return np.append(ends, len(text))
    return ends


def _unified(text: bytes, *, final: bool) -> tuple[bytes, bytes]:
    """Return text with one kind of line end, and a last character that may be half of one."""
    held_back = b""
    if not final and text.endswith(b"\r"):
        text, held_back = text[:-1], b"\r"
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text, held_back


class ScannedStream:
    """Stream for Arrow to parse that feeds a scanner and replaces ``::`` by one byte.

    Arrow reads ahead in its own threads, hence the lock.
    """

    def __init__(self, stream: BinaryIO, separator: str, scanner: Scanner | None = None) -> None:
        self._stream = stream
        self._scanner = scanner
        self._double = len(separator) > 1
        self._half = b""
        self._lock = threading.Lock()
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, none only at the end."""
        with self._lock:
            while True:
                block = self._stream.read(size if size > 0 else BLOCK)
                if self._scanner is not None:
                    self._scanner.feed(block) if block else self._scanner.finish()
                if not self._double:
                    return bytes(block)
                text: bytes = self._half + block
                # A last colon may be half of a separator.
                colons = len(text) - len(text.rstrip(b":"))
                self._half = b":" if block and colons % 2 else b""
                text = text[: len(text) - len(self._half)].replace(b"::", UNIT_SEPARATOR)
                if text or not block:
                    return text

    def close(self) -> None:
        """Mark as closed; the underlying stream belongs to the caller."""
        self.closed = True
