"""Delimited text: its first row, and its columns by way of Arrow."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hemf.errors import DataError, DataWarning, warn_caller
from hemf.reading.lines import BLOCK, LONGEST, UNIT_SEPARATOR, Fault, ScannedStream, Scanner

_FIRST_BYTES = 1 << 16
_BLANK_LINES = re.compile(rb"(?:[^\S\r\n]*+(?:\r\n?|\n))*+")
_UNEVEN = re.compile(r"(?s)Row #(\d+): Expected (\d+) columns, got (\d+): (.*)")
_LINE_END = re.compile(rb"\r\n?|\n")  # as Arrow has it


class FirstRow(NamedTuple):
    """The first row that is not blank: what divides it, its fields, and where it is."""

    separator: str
    fields: list[str]
    begin: int
    """Where it begins, in bytes."""
    end: int
    """Where the next row begins."""
    first_line: int
    next_line: int


@dataclass(frozen=True)
class Text:
    """Rows of text from byte ``begin`` on, which is in line ``line``.

    ``where`` names the text in errors, and ``opened`` opens it for reading, as often as needed.
    """

    where: str
    opened: Callable[[], Any]
    separator: str
    width: int
    begin: int
    line: int


def not_utf8(where: str) -> DataError:
    """Return the error for text in another encoding.

    >>> str(not_utf8("r.csv"))
    'r.csv is not UTF-8 text (perhaps Latin-1 or UTF-16); save it as UTF-8'
    """
    message = f"{where} is not UTF-8 text (perhaps Latin-1 or UTF-16); save it as UTF-8"
    return DataError(message, value=where)


def first_row(where: str, stream: Any, separators: Sequence[str]) -> FirstRow:
    r"""Read as much of a stream as its first row takes, and divide that.

    The first of the separators that divides the row at all is the one.

    >>> import io
    >>> row = first_row("r.csv", io.BytesIO(b'\n"user","the; item"\nann,tea\n'), ",;")
    >>> row.separator, row.fields, row.next_line
    (',', ['user', 'the; item'], 3)
    """
    data, final = b"", False
    while not final:
        block = stream.read(max(_FIRST_BYTES, len(data)))
        data, final = data + block, not block
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise not_utf8(where)
        mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        blank = _BLANK_LINES.match(data, mark)
        begin = mark if blank is None else blank.end()
        found = _divided(data, begin, separators, final=final) if data[begin:].strip() else None
        if found is not None:
            separator, fields, end = found
            try:
                names = [field.decode() for field in fields]
            except UnicodeDecodeError as error:
                raise not_utf8(where) from error
            lines = (1 + len(_LINE_END.findall(data, 0, place)) for place in (begin, end))
            return FirstRow(separator, names, begin, end, *lines)
        if len(data) > LONGEST:
            break
    if not data[begin:].strip():
        raise DataError(f"{where} is empty", value=where)
    scanner = Scanner(separators[-1] if len(separators[0]) > 1 else separators[0], 1)
    scanner.feed(data)
    scanner.finish()
    fault = scanner.fault or Fault(1, "has a quote that is not closed")
    raise DataError(f"{where}: line {fault.line} {fault.reason}", value=fault.line)


def _divided(
    data: bytes, begin: int, separators: Sequence[str], *, final: bool
) -> tuple[str, list[bytes], int] | None:
    """Separator, fields and end of the row that begins there; None where it does not end."""
    for separator in separators:
        split = _split_row(data, begin, separator.encode())
        if split is None:
            return None
        fields, end = split
        line_end = _LINE_END.match(data, end)
        if not final and (line_end is None or line_end.end() == len(data)):
            return None  # more of it, or half a line end, may follow
        if len(fields) > 1:
            return separator, fields, end if line_end is None else line_end.end()
    return ",", fields, end if line_end is None else line_end.end()


def _split_row(data: bytes, begin: int, separator: bytes) -> tuple[list[bytes], int] | None:
    """Fields of a row and the place behind it; None where a quote is not closed."""
    if len(separator) > 1:
        line_end = _LINE_END.search(data, begin)
        end = len(data) if line_end is None else line_end.start()
        return data[begin:end].split(separator), end
    rest = rb"([^\r\n%s]*+)" % re.escape(separator)
    field = re.compile(rb'"([^"]*+(?:""[^"]*+)*+)"%s|%s' % (rest, rest))
    fields, end = [], begin
    while match := field.match(data, end):
        quoted, tail, plain = match.groups()
        if quoted is None and plain.startswith(b'"'):
            return None
        fields.append(plain if quoted is None else quoted.replace(b'""', b'"') + tail)
        end = match.end()
        if data[end : end + 1] != separator:
            break
        end += 1
    return fields, end


def read_text(text: Text, n_ids: int, positions: Sequence[int]) -> list[Any]:
    """Read columns, those of ids first and as text; an error where a row would be lost."""
    import pyarrow as pa

    chosen = [str(position) for position in positions]
    scanner, failure, table = _scanner(text), None, None
    try:
        table = _parse(text, chosen, n_ids, scanner)
    except pa.ArrowInvalid as error:
        failure = error
        scanner = _scanner(text)
        with text.opened() as stream:
            stream.read(text.begin)
            watched = ScannedStream(stream, text.separator, scanner)
            while watched.read():
                pass
    _check(text, scanner)
    if scanner.spans_lines or scanner.longest > BLOCK:
        block, failure = max(BLOCK, 2 * scanner.longest), None
        try:
            table = _parse(text, chosen, n_ids, spans_lines=scanner.spans_lines, block=block)
        except pa.ArrowInvalid as error:
            failure = error
    if failure is not None or table is None:
        raise _explained(text, chosen, n_ids, scanner, failure)
    if table.num_rows != scanner.rows:
        raise DataError(
            f"{text.where}: {scanner.rows} rows were found and {table.num_rows} could be read; "
            "look for quotes and line ends that are out of place",
            value=table.num_rows,
        )
    return [table[name] for name in chosen]


def _scanner(text: Text) -> Scanner:
    return Scanner(text.separator, text.width, line=text.line)


def _check(text: Text, scanner: Scanner) -> None:
    """Refuse text in which rows cannot be told apart, and warn where that is in doubt."""
    if scanner.fault is not None:
        where = f"{text.where}: line {scanner.fault.line}"
        raise DataError(f"{where} {scanner.fault.reason}", value=scanner.fault.line)
    if not scanner.rows:
        raise DataError(f"{text.where}: there are no rows", value=text.where)
    if scanner.ambiguous is not None:
        first, last = scanner.ambiguous
        more = f" ({scanner.n_ambiguous} rows are like this)" if scanner.n_ambiguous > 1 else ""
        warn_caller(
            f"{text.where}: lines {first} to {last} are read as one row, since a quote in line "
            f"{first} is closed in line {last}, but without the quotes each of the lines is a "
            f"complete row{more}; if these quotes are there by mistake, remove them",
            DataWarning,
        )


def _parse(
    text: Text,
    chosen: list[str],
    n_ids: int,
    scanner: Scanner | None = None,
    *,
    spans_lines: bool = False,
    block: int | None = None,
    threads: bool = True,
) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    is_double = len(text.separator) > 1
    reading = csv.ReadOptions(
        column_names=[str(place) for place in range(text.width)],
        block_size=block or BLOCK,
        use_threads=threads,
    )
    parsing = csv.ParseOptions(
        delimiter=UNIT_SEPARATOR.decode() if is_double else text.separator,
        quote_char=False if is_double else '"',
        newlines_in_values=spans_lines,
    )
    converting = csv.ConvertOptions(
        include_columns=chosen,
        # Ids are read as text, so that 007, 1e5 and 2020-01-01 are not taken for something else.
        column_types={name: pa.dictionary(pa.int32(), pa.string()) for name in chosen[:n_ids]},
    )
    with text.opened() as stream:
        stream.read(text.begin)
        watched = pa.PythonFile(ScannedStream(stream, text.separator, scanner), mode="r")
        return csv.read_csv(watched, reading, parsing, converting)


def _explained(
    text: Text, chosen: list[str], n_ids: int, scanner: Scanner, failure: Exception | None
) -> Exception:
    """Find out what Arrow could not read, and in which row, which a single thread can count."""
    import pyarrow as pa

    if "invalid UTF8" in str(failure):
        return not_utf8(text.where)
    block = max(BLOCK, 2 * scanner.longest)
    try:
        _parse(text, chosen, n_ids, spans_lines=scanner.spans_lines, block=block, threads=False)
    except pa.ArrowInvalid as error:
        failure = error
    uneven = _UNEVEN.search(str(failure))
    if uneven is None:
        return DataError(f"{text.where} cannot be read: {failure}", value=text.where)
    number, expected, found, content = uneven.groups()
    row = int(number) - 1
    message = f"{text.where}: row {row} has {found} fields instead of {expected}: {content!r}"
    return DataError(message, value=content, row=row)
