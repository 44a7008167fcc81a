"""Quotes and rows of delimited text, found independently of the parser.

Arrow divides a file into blocks before it knows where values begin and end. A quote that is never
closed then hides all rows up to the end of a block, without an error. So the bytes that Arrow
parses are scanned for quotes as well, and the rows are counted.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 1 << 24
"""Bytes that one row may have. A quote that is not closed within so many is an error."""
BLOCK = 1 << 20
UNIT_SEPARATOR = b"\x1f"
"""Stands in for ``::``, which Arrow cannot split at."""

_NEWLINE, _QUOTE = ord("\n"), ord('"')
_Places = NDArray[np.int64]


@dataclass(frozen=True)
class Fault:
    """What is wrong with the text, and in which line."""

    line: int
    reason: str


class Scanner:
    r"""Finds where rows end, block by block.

    A quote opens a value at the start of a field; any other is a character like others. Arrow has
    the same rules.

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
        self._line = line  # number of the first line that is not counted yet
        self._parts: list[bytes] = []  # bytes of rows that have not ended yet
        self._wanted = 0  # bytes that these must reach before another look at them is worth it
        self._size = 0
        self.rows = 0
        """Rows so far, without empty lines."""
        self.longest = 0
        """Bytes of the longest row."""
        self.spans_lines = False
        """Whether a quoted value has a line break in it."""
        self.ambiguous: tuple[int, int] | None = None
        """First and last line of the first row that may well be several, see `_note_ambiguous`."""
        self.n_ambiguous = 0
        self.fault: Fault | None = None
        """The first thing that is wrong; then nothing is counted any more."""
        if self._separator is not None:
            mark = re.escape(separator.encode())
            self._opening = re.compile(rb'(?:(?<=[\n%s])|\A)"' % mark)
        self._closing = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')

    def feed(self, block: bytes) -> None:
        """Take the next bytes."""
        if self.fault is not None:
            return
        if self._separator is None and UNIT_SEPARATOR in block:
            before = b"".join([*self._parts, block[: block.index(UNIT_SEPARATOR)]])
            self.fault = Fault(
                self._line + _unified(before, final=True)[0].count(b"\n"),
                "holds the control character U+001F; remove it",
            )
            return
        self._parts.append(block)
        self._size += len(block)
        # Each look at a row that is not complete takes longer, so the steps become larger.
        if self._size >= self._wanted:
            self._scan(final=False)
            self._wanted = 2 * self._size
            if self._size > LONGEST and self.fault is None:
                self._refuse_long(_unified(b"".join(self._parts), final=True)[0])

    def finish(self) -> None:
        """Say that there are no more bytes."""
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
            if self.longest > LONGEST:
                long = int((lengths > LONGEST).argmax())
                begin = int(ends[long] - lengths[long]) + 1
                self._line += text.count(b"\n", 0, begin)
                self._refuse_long(text[begin:])
                return
            used = int(ends[-1]) + 1
            self._line += text.count(b"\n", 0, used)
            text = text[used:]
        self._parts = [text + held_back]
        self._size = len(self._parts[0])

    def _quoted_ends(self, text: bytes, *, final: bool) -> _Places | None:
        """Return where rows of text with quotes end; None where there is a fault."""
        data = np.frombuffer(text, np.uint8)
        quotes = _places(text, _QUOTE)
        breaks = _places(text, _NEWLINE)
        if self._is_regular(data, quotes):
            ends = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
            if quotes.size % 2 and final:
                opening = quotes[0::2]
                fresh = opening[(opening == 0) | (data[opening - 1] != _QUOTE)]
                self._not_closed(text, int(fresh[-1]))
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

    def _is_regular(self, data: NDArray[np.uint8], quotes: _Places) -> bool:
        """Whether every quote opens a field, closes one, or is doubled: then parity tells which."""
        opening, closing = quotes[0::2], quotes[1::2]
        before = data[opening[opening > 0] - 1]
        after = data[closing[closing < data.size - 1] + 1]
        neighbours = np.concatenate([before, after])
        allowed = (neighbours == self._separator) | (neighbours == _NEWLINE)
        return bool((allowed | (neighbours == _QUOTE)).all())

    def _ends_one_by_one(self, text: bytes, breaks: _Places, *, final: bool) -> _Places | None:
        """Return where rows end, by going from one quoted value to the next."""
        separator = bytes([self._separator or 0])
        hidden = np.zeros(breaks.size, bool)  # line breaks within quotes
        at, cut = 0, len(text)
        while match := self._opening.search(text, at):
            opened = match.start()
            closed = self._closing.match(text, match.end())
            if closed is None or (closed.end() == len(text) and not final):
                if final:
                    self._not_closed(text, opened)
                    return None
                cut = opened  # the rest of it is still to come
                break
            at = closed.end()
            if text.find(b"\n", opened, at) >= 0:
                first, last = np.searchsorted(breaks, [opened, at])
                hidden[first:last] = True
                if text[at : at + 1] not in (separator, b"\n", b""):
                    line = self._line + text.count(b"\n", 0, opened)
                    self.fault = Fault(
                        line,
                        "has a quote that is closed in the middle of a value in line "
                        f"{line + last - first}; {_REMEDY}",
                    )
                    return None
        return np.asarray(breaks[~hidden & (breaks < cut)])

    def _note_ambiguous(self, text: bytes, lines: _Places, ends: _Places) -> None:
        """Note rows of several lines each of which would be a complete row without the quotes.

        That is what two stray quotes look like, and by the rules of CSV it is one row.
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

    def _not_closed(self, text: bytes, opened: int) -> None:
        line = self._line + text.count(b"\n", 0, opened)
        self.fault = Fault(line, f"has a quote that is not closed; {_REMEDY}")

    def _refuse_long(self, text: bytes) -> None:
        match = None if self._separator is None else self._opening.search(text)
        if match is not None and b"\n" in text:
            line = self._line + text.count(b"\n", 0, match.start())
            reason = f"has a quote that is not closed within {LONGEST >> 20} MB; {_REMEDY}"
            self.fault = Fault(line, reason)
        else:
            self.fault = Fault(self._line, f"is longer than {LONGEST >> 20} MB")


_REMEDY = (
    'close it, remove it, or write a quote that is part of a value twice ("") in a quoted value'
)


def _places(text: bytes, character: int) -> _Places:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == character)


def _with_last(ends: _Places, text: bytes, *, final: bool) -> _Places:
    """Add the end of the text where no line end stands there."""
    if final and text and not (ends.size and ends[-1] == len(text) - 1):
        return np.append(ends, len(text))
    return ends


def _unified(text: bytes, *, final: bool) -> tuple[bytes, bytes]:
    """Return the text with one kind of line end, and a last character that may be half of one."""
    held_back = b""
    if not final and text.endswith(b"\r"):
        text, held_back = text[:-1], b"\r"
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text, held_back


class ScannedStream:
    """Bytes for Arrow to parse, which a scanner sees too; ``::`` becomes one byte.

    Arrow reads ahead in threads of its own, so that calls take turns.
    """

    def __init__(self, stream: Any, separator: str, scanner: Scanner | None = None) -> None:
        self._stream = stream
        self._scanner = scanner
        self._double = len(separator) > 1
        self._half = b""
        self._lock = threading.Lock()
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes; none at the end alone."""
        with self._lock:
            while True:
                block = self._stream.read(size if size > 0 else BLOCK)
                if self._scanner is not None:
                    self._scanner.feed(block) if block else self._scanner.finish()
                if not self._double:
                    return bytes(block)
                text: bytes = self._half + block
                # A last colon may be the first half of two.
                colons = len(text) - len(text.rstrip(b":"))
                self._half = b":" if block and colons % 2 else b""
                text = text[: len(text) - len(self._half)].replace(b"::", UNIT_SEPARATOR)
                if text or not block:
                    return text

    def close(self) -> None:
        """Close nothing: the stream below belongs to the caller."""
        self.closed = True
