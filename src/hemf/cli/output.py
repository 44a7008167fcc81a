"""Where a command's words go: its result to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hemf.cli.plain import plain
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from rich.console import Console

    from hemf.cli.tables import Columns, Format

UNLIMITED = 10_000  # columns, where nobody's screen is the limit


class Output:
    """What a command prints with.

    With ``json`` the result is one JSON document and nothing else is said but errors and warnings
    of likely mistakes; ``quiet`` leaves out progress, remarks and warnings.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.silent = json or quiet
        # Asked now: while Rich draws, another stream stands there, which may not know.
        self.live = not self.silent and sys.stderr.isatty()
        """Whether someone is watching: progress may be drawn."""
        self.aside = False
        """Whether stdout is taken by a file, so that everything else goes to stderr."""
        self.aliases: dict[str, str] = {}
        """Names of temporary files, and what to call them."""

    @cached_property
    def screen(self) -> Console:
        """Console for progress, on stderr."""
        return _console(stderr=True)

    @cached_property
    def _page(self) -> Console:
        return _console()

    def result(self, document: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Print the result: the document with --json, else whatever ``show`` prints."""
        if self.json:
            self.document(document)
        else:
            show()

    def rows(
        self,
        columns: Columns,
        show: Callable[[], None],
        *,
        document: Mapping[str, Any],
        format: Format | None = None,
    ) -> None:
        """Print a result of many rows, the same in each of its forms.

        With --json that is the document. On a terminal it is what ``show`` prints, for people; off
        a terminal, or with ``format``, all rows of the ``columns``, for machines.
        """
        if self.json and format is not None:
            raise ParameterError("--json and --format exclude each other; give one of them")
        if self.json:
            self.document(document)
        elif self.for_people(format):
            show()
        else:
            self.write_rows(columns, format)

    def for_people(self, format: Format | None = None) -> bool:
        """Whether rows are shown as a table rather than written for machines."""
        return not self.json and (self.aside or (format is None and sys.stdout.isatty()))

    def write_rows(self, columns: Columns, format: Format | None = None) -> None:
        """Write all rows to stdout, as CSV unless another format was asked for."""
        from hemf.cli.tables import write_rows

        self.check_binary(format)
        sys.stdout.flush()
        write_rows(sys.stdout.buffer, columns, format or "csv")
        sys.stdout.buffer.flush()

    def check_binary(self, format: Format | None) -> None:
        """Complain of rows that a terminal cannot show."""
        if format == "parquet" and sys.stdout.isatty():
            raise ParameterError(
                "--format parquet is not for terminals; send it to a file, or to another program"
            )

    def document(self, document: Mapping[str, Any]) -> None:
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
        self._page.print(text, style=style, soft_wrap=True)

    def table(
        self, headers: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()
    ) -> None:
        """Print a table; the columns in ``numbers`` stand right, and nothing is cut off."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place, header in enumerate(headers):
            side: Any = "right" if place in numbers else "left"
            table.add_column(header, justify=side, overflow="fold")
        for row in rows:
            table.add_row(*map(str, row))
        with self._page.capture() as drawn:
            self._page.print(table)
        for line in drawn.get().splitlines():
            print(line.rstrip(), file=sys.stderr if self.aside else sys.stdout)

    def remark(self, text: str) -> None:
        """Say something on stderr, unless silence was asked for."""
        if not self.silent:
            self._say(text)

    def warning(self, text: str) -> None:
        """Warn on stderr of a likely mistake, also with --json, unless --quiet was asked for."""
        if not self.quiet:
            self._say(f"warning: {text}")

    def error(self, text: str) -> None:
        """Say on stderr what went wrong, whatever was asked for."""
        self._say(f"hemf: {text}")

    def _say(self, text: str) -> None:
        print(self.named(text), file=sys.stderr, flush=True)

    def named(self, text: str) -> str:
        """Return a text with temporary files called what they stand for."""
        for path, name in self.aliases.items():
            text = text.replace(path, name)
        return text

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show on the terminal that something is going on."""
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
