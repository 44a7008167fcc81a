"""Output of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, Self, TypeAlias

import numpy as np
import typer

from hemf._files import atomic_write
from hemf.errors import DataError, ParameterError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from hemf._files import FileState
    from hemf._typing import AnyArray, ArrowArray
    from hemf.baselines.base import EpochReport
    from hemf.batch.callbacks import SweepReport
    from hemf.estimator import HeMF
    from hemf.samplers.base import SampleReport


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
            self.check_binary(format)
            sys.stdout.flush()
            write_rows(sys.stdout.buffer, columns, format or "csv")
            sys.stdout.buffer.flush()

    def is_table(self, format: Format | None = None) -> bool:
        """Whether rows are shown as a table rather than written as a file."""
        return not self.json and (self.aside or (format is None and sys.stdout.isatty()))

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
        table = empty_table(headers, numbers)
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

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a text on the terminal during some work."""
        if self.live:
            with self.screen.status(self.named(text)):
                yield
        else:
            yield

    @contextmanager
    def download(self, name: str) -> Iterator[Callable[[int, int | None], None]]:
        """Yield a callback that shows the progress of a download."""
        if not self.live:
            yield lambda done, total: None
            return
        from rich import progress

        with progress.Progress(
            progress.TextColumn(f"fetching {name}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=self.screen,
            transient=True,
        ) as bar:
            task = bar.add_task(name, total=None, visible=False)
            yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)

    def load_model(self, path: Path) -> HeMF:
        """Load a model file."""
        from hemf.estimator import HeMF

        with self.status(f"reading {path}"):
            return HeMF.load(path)

    def save_model(self, path: Path, model: HeMF, *, expected: FileState | bool = True) -> None:
        """Write a model file; errors that follow name it."""
        with self.status(f"writing {path}"):
            model.save(path, expected=expected)
        if str(path) not in self.aliases:  # otherwise it is still to be copied to stdout
            self.saved = path


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


def empty_table(
    headers: Sequence[str], numbers: Sequence[int] = (), header_style: str = "bold"
) -> Table:
    """Return a table without lines and rows; the columns in ``numbers`` are right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=header_style)
    for place, header in enumerate(headers):
        justify: Literal["left", "right"] = "right" if place in numbers else "left"
        table.add_column(header, justify=justify, overflow="fold")
    return table


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
        "--format", help="Format of the rows, all of them; csv unless stdout is a terminal."
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
            f"{path}: the name must end in .csv, .tsv, .jsonl, .parquet or .pq", value=str(path)
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
    listed = list(rows)
    return {name: [row[place] for row in listed] for place, name in enumerate(names)}


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
# Progress on stderr: live on a terminal, otherwise a line every few seconds.


SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_PICTURES = 0.125
SECONDS_BEFORE_COUNTING = 2.0
COUNTERS = {"sweep": "max_sweeps", "epoch": "epochs", "iteration": "iterations"}
"""Fields of reports: the number of steps done, and their total."""
Report: TypeAlias = "EpochReport | SampleReport | SweepReport"
"""Report of a fit."""


class LiveDisplay:
    """Display that is redrawn while a command works; a context manager."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begin = self._shown = time.monotonic()
        self._live: Any = nullcontext()
        if output.live:
            from rich.live import Live

            self._live = Live(console=output.screen, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)

    def _show(
        self, draw: Callable[[], RenderableType], line: Callable[[], str], *, now: bool = False
    ) -> None:
        """Draw, or print a line, if enough time has passed since the last time or ``now``."""
        if self._output.silent:
            return
        wait = SECONDS_BETWEEN_PICTURES if self._output.live else SECONDS_BETWEEN_LINES
        if not now and time.monotonic() - self._shown < wait:
            return
        self._shown = time.monotonic()
        if self._output.live:
            self._live.update(draw(), refresh=True)
        else:
            self._output.remark(line())


class FitProgress(LiveDisplay):
    """Callback of a fit that shows steps, errors, communities and time left."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._first: Report | None = None

    def __call__(self, report: Report) -> None:
        """Show a report."""
        first = self._first = self._first or report
        word, done, total = position(report)
        left = outlook(report, first)

        def line() -> str:
            return " · ".join(filter(None, [f"{word} {done}/{total}", figures(report), left]))

        self._show(
            lambda: progress_bar(f"{word} {done:>3}/{total}", done, total, left, figures(report)),
            line,
        )


def progress_bar(
    title: str, done: float, total: float, left: str, *below: RenderableType
) -> RenderableType:
    """Return a progress bar with other things below."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(title, style="bold"),
        ProgressBar(total=total, completed=done, width=32),
        Text(left, style="dim"),
    )
    whole = Table.grid()
    for part in (bar, *below):
        whole.add_row(part)
    return whole


def position(report: Report) -> tuple[str, int, int]:
    """Return the name of a step, the number of steps done, and their total.

    >>> from hemf.baselines import EpochReport
    >>> position(EpochReport(1, 30, 0.93, 0.05, 0.2))
    ('epoch', 1, 30)
    """
    name = next(name for name in COUNTERS if hasattr(report, name))
    return name, getattr(report, name), getattr(report, COUNTERS[name])


def figures(report: Report) -> str:
    """Return bound, errors and communities in one line, as far as the report has them.

    >>> from hemf.batch.callbacks import SweepReport
    >>> figures(SweepReport(3, 100, -1234.5, {}, 0.81, None, 4, 3, 0.6, 0.1))
    'ELBO -1,234 · RMSE 0.8100 · communities 4 × 3'
    """
    elbo, users = getattr(report, "elbo", None), getattr(report, "user_communities", None)
    parts = [] if elbo is None else [f"ELBO {elbo:,.0f}"]
    parts.append(f"RMSE {report.train_rmse:.4f}")
    if report.validation_rmse is not None:
        parts.append(f"held-out {report.validation_rmse:.4f}")
    if users is not None:
        parts.append(f"communities {users} × {getattr(report, 'item_communities', None)}")
    return " · ".join(parts)


def outlook(report: Report, first: Report) -> str:
    """Return the time left, from the pace since the first report.

    >>> from hemf.samplers import SampleReport
    >>> first = SampleReport(1, 250, False, 0.99, None, 0.5, 30.0)
    >>> outlook(SampleReport(51, 250, False, 0.93, None, 0.5, 40.0), first)
    '0:40 left'
    """
    if getattr(report, "trials_next", False):
        return "trying merges and splits"
    (word, done, total), (_, before, _) = position(report), position(first)
    if done == before:
        return ""
    pace = (report.seconds - first.seconds) / (done - before)
    most = "at most " if word == "sweep" else ""  # a fit may converge earlier
    return f"{most}{duration(pace * (total - done))} left"


def duration(seconds: float) -> str:
    """Return minutes and seconds.

    >>> duration(83)
    '1:23'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextmanager
def counted(output: Output, text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows how many of how many are done, after some seconds."""
    begin = shown = time.monotonic()
    with nullcontext() if not output.live else output.screen.status(text) as status:

        def show(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            left = duration((now - begin) / done * (total - done))
            line = f"{text}  {done:,}/{total:,} · {left} left"
            if now - begin < SECONDS_BEFORE_COUNTING:
                return
            if status is not None:
                status.update(line)
            elif now - shown >= SECONDS_BETWEEN_LINES:
                shown = now
                output.remark(line)

        yield show
