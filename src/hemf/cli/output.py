"""Where a command's words go: its result to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

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

    @property
    def live(self) -> bool:
        """Whether someone is watching: progress may be drawn."""
        return not self.silent and sys.stderr.isatty()

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

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document."""
        print(json.dumps(plain(document), indent=2, allow_nan=False), flush=True)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line of the result."""
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
            print(line.rstrip())

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

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show on the terminal that something is going on."""
        if self.live:
            with self.screen.status(text):
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


def plain(value: Any) -> Any:
    """Return the value with nothing in it but what JSON knows; NaN and infinities are null.

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
