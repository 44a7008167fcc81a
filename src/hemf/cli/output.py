"""Output of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self, TypeAlias

import numpy as np
import typer

from hemf._files import atomic_write, expand_home, temporary_folder
from hemf.errors import DataError, ParameterError

if TYPE_CHECKING:
    from rich.console import Console

    from hemf._typing import AnyArray, ArrowArray


UNLIMITED = 10_000  # columns, off a terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Document: TypeAlias = dict[str, Any]
"""A JSON document."""
Values: TypeAlias = "Sequence[object] | AnyArray"
Columns: TypeAlias = Mapping[str, Values]
"""Columns of a table by name."""


class Output:
    """Output of a command.

    With ``json`` the result is one JSON document, and only errors and warnings of likely mistakes
    are printed besides; ``quiet`` leaves out progress, remarks and warnings.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.silent = json or quiet
        # Now: while Rich draws, sys.stderr is another stream.
        self.live = not self.silent and sys.stderr.isatty()
        """Whether progress is drawn on a terminal."""
        self.aside = False
        """Whether stdout holds a file, so that everything else goes to stderr."""
        self.aliases: dict[str, str] = {}
        """Temporary files and their names in messages."""
        self.saved: Path | None = None
        """The model file that the command has written, which errors name."""

    @cached_property
    def screen(self) -> Console:
        """Console for progress, on stderr."""
        return _console(stderr=True)

    @cached_property
    def _page(self) -> Console:
        return _console()

    def result(self, document: Mapping[str, object], show: Callable[[], None]) -> None:
        """Print the document with --json, otherwise call ``show``."""
        if self.json:
            self.document(document)
        else:
            show()

    def rows(
        self,
        columns: Columns,
        show: Callable[[], None],
        *,
        document: Mapping[str, object],
        format: Format | None = None,
    ) -> None:
        """Print a table: the document with --json, ``show`` on a terminal, else all rows."""
        if self.json and format is not None:
            raise ParameterError("--json and --format exclude each other; give one of them")
        if self.json:
            self.document(document)
        elif self.is_table(format):
            show()
        else:
            self.write_rows(columns, format)

    def is_table(self, format: Format | None = None) -> bool:
        """Whether rows are shown as a table rather than written as a file."""
        return not self.json and (self.aside or (format is None and sys.stdout.isatty()))

    def write_rows(self, columns: Columns, format: Format | None = None) -> None:
        """Write all rows to stdout, as CSV by default."""
        self.check_binary(format)
        sys.stdout.flush()
        write_rows(sys.stdout.buffer, columns, format or "csv")
        sys.stdout.buffer.flush()

    def check_binary(self, format: Format | None) -> None:
        """Reject binary formats if the output is a terminal."""
        if format == "parquet" and sys.stdout.isatty():
            raise ParameterError(
                "--format parquet is not for terminals; write it to a file or a pipe"
            )

    def document(self, document: Mapping[str, object]) -> None:
        """Print one JSON document."""
        text = json.dumps(plain(document), indent=2, allow_nan=False)
        if self.aside:
            self.remark(text)
        else:
            print(text, flush=True)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line of the result."""
        if self.aside:
            self.remark(text)
            return
        self._page.print(printable(text), style=style, soft_wrap=True)

    def table(
        self, headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
    ) -> None:
        """Print a table; the columns in ``numbers`` are right-aligned."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place, header in enumerate(headers):
            if place in numbers:
                table.add_column(header, justify="right", overflow="fold")
            else:
                table.add_column(header, overflow="fold")
        for row in rows:
            table.add_row(*(printable(str(cell)) for cell in row))
        with self._page.capture() as drawn:
            self._page.print(table)
        for line in drawn.get().splitlines():
            print(line.rstrip(), file=sys.stderr if self.aside else sys.stdout)

    def remark(self, text: str) -> None:
        """Print a remark on stderr, unless --json or --quiet."""
        if not self.silent:
            self._print(text)

    def warning(self, text: str) -> None:
        """Print a warning of a likely mistake on stderr, unless --quiet."""
        if not self.quiet:
            self._print(f"warning: {text}")

    def error(self, text: str) -> None:
        """Print an error on stderr."""
        written = f"; the model file {self.saved} was written" if self.saved else ""
        self._print(f"hemf: {text}{written}")

    def _print(self, text: str) -> None:
        print(printable(self.named(text)), file=sys.stderr, flush=True)

    def named(self, text: str) -> str:
        """Return a text with temporary files replaced by their names."""
        for path, name in self.aliases.items():
            text = text.replace(path, name)
        return text

    def note_saved(self, path: Path) -> None:
        """Note that a model file was written, unless it is still to be copied to stdout."""
        if str(path) not in self.aliases:
            self.saved = path

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a text on the terminal during some work."""
        if self.live:
            with self.screen.status(self.named(text)):
                yield
        else:
            yield


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    watched = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        width=None if watched else UNLIMITED,
        markup=False,  # ids may hold brackets
        emoji=False,
        highlight=False,
    )


def printable(text: str) -> str:
    r"""Escape control characters, which terminals obey, other than line ends and tabs.

    >>> printable("a\x1b[31mb\x00")
    'a\\x1b[31mb\\x00'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def plain(value: object) -> object:
    """Return a value made of JSON types; NaN and infinities are null.

    >>> plain({"mean": np.float32(0.5), 3: np.array([1, 2]), "std": float("nan")})
    {'mean': 0.5, '3': [1, 2], 'std': None}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    return str(value)


# ------------------------------------------------------------------------------------------------
# Tables as files: CSV, TSV, JSON lines and Parquet.


class Format(StrEnum):
    """Format of rows."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


RowFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Format of the rows, all of them; csv unless stdout is a terminal.",
    ),
]

ENDINGS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".pq": "parquet",
}  # fmt: skip
_ROWS = 1 << 16  # formatted at a time


def check_table_name(path: Path | None, format: Format | None = None) -> None:
    """Reject a file name that does not end in a known format.

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
    with atomic_write(path) as fresh, fresh.open("wb") as stream:
        write_rows(stream, columns, kind)


def write_rows(stream: BinaryIO, columns: Columns, kind: str = "csv") -> None:
    r"""Write columns to a stream.

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


def columns_of(names: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, list[object]]:
    """Return rows as columns.

    >>> columns_of(("user", "mean"), [("ann", 1.5), ("bob", 2.0)])
    {'user': ['ann', 'bob'], 'mean': [1.5, 2.0]}
    """
    columns: dict[str, list[object]] = {name: [] for name in names}
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


def _arrow(values: Values, name: str) -> ArrowArray:
    """Return a column; values of several types become text."""
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
        message = f"{error.object!r} is half a character and cannot be written as UTF-8"
        raise DataError(message, value=error.object) from error
    except OverflowError:
        pass  # integers of more than 64 bits
    return pa.array([None if value is None else _text(value) for value in listed], pa.string())


def _listed(values: Values) -> list[object]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _text(value: object) -> str:
    """Return a value as a field: dicts and lists as JSON, others as text."""
    nested = isinstance(value, (dict, list))
    return json.dumps(plain(value), ensure_ascii=False) if nested else str(value)


# ------------------------------------------------------------------------------------------------
# ``-`` instead of a file: standard input or output. Commands get names of temporary files.


STANDARD = "-"
READ = "a file that is read"
"""Marks a parameter, with ``Annotated``: ``-`` is standard input."""
WRITTEN = "a file that is written"
"""Marks a parameter: ``-`` is standard output."""


class StandardFiles:
    """Temporary files for ``-`` among the arguments of a command.

    Pipes cannot be read twice or written in any order. The file that exists when the command ends
    is copied to standard output.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._stack = ExitStack()
        self._place: Path | None = None
        self._written: Path | None = None
        self._has_read = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            if self._written is not None and self._written.exists():
                with self._written.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()

    def replaced(self, value: Any, marks: tuple[object, ...]) -> Any:
        """Return an argument with ``-`` replaced by a temporary file."""
        if isinstance(value, list):
            return [self.replaced(entry, marks) for entry in value]
        if READ in marks and isinstance(value, (str, Path)) and _is_pipe(value):
            with open(value, "rb") as pipe:
                return type(value)(self._copy_of(pipe, str(value)))
        if WRITTEN in marks and str(value) == "/dev/stdout":
            value = type(value)(STANDARD)  # opened by this name, a file would lose what it has
        if value is None or str(value) != STANDARD:
            return value
        if READ in marks:
            return type(value)(self._copy_of_input())
        if WRITTEN in marks:
            suffix = next((str(mark) for mark in marks if str(mark).startswith(".")), "")
            return type(value)(self._for_output(suffix))
        return value

    def _folder(self) -> Path:
        if self._place is None:
            folder = temporary_folder(Path(tempfile.gettempdir()))
            self._place = self._stack.enter_context(folder)
        return self._place

    def _copy_of_input(self) -> Path:
        if self._has_read:
            raise ParameterError(
                "- stands for standard input, which can be read once; give the other file by its "
                "name",
                value=STANDARD,
            )
        self._has_read = True
        if sys.stdin.isatty():
            self._output.remark("reading standard input; Ctrl-D ends it")
        return self._copy_of(sys.stdin.buffer, "standard input")

    def _copy_of(self, stream: BinaryIO, name: str) -> Path:
        from hemf.data.files import guess_suffix

        copy = self._folder() / f"input-{len(self._output.aliases)}"
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)
        with copy.open("rb") as file:
            ending = guess_suffix(file.read(1 << 16))
        named = copy.rename(copy.with_name(f"{copy.name}{ending}"))
        self._output.aliases[str(named)] = name
        return named

    def _for_output(self, suffix: str) -> Path:
        if self._output.json or self._written is not None:
            both = "--json and -" if self._output.json else "two files"
            raise ParameterError(
                f"{both} cannot both go to standard output; give the file a name", value=STANDARD
            )
        self._written = self._folder() / f"output{suffix}"
        self._output.aliases[str(self._written)] = "standard output"
        self._output.aside = True
        return self._written


def _is_pipe(path: str | Path) -> bool:
    return expand_home(path).is_fifo()
