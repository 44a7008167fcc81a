"""``-`` in the place of a file: standard input, or standard output.

This is the only place that knows ``-``: commands and the library get names of files.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from hemf.errors import ParameterError
from hemf.writing import temporary_folder

if TYPE_CHECKING:
    from hemf.cli.output import Output

STANDARD = "-"
READ = "a file that is read"
"""Marks parameters, by ``Annotated``, for which ``-`` is standard input."""
WRITTEN = "a file that is written"
"""Marks parameters for which ``-`` is standard output."""


class StandardFiles:
    """Stand-ins for ``-`` among the arguments of a command: files in a temporary folder.

    Readers look at a file more than once and writers write it in any order, which pipes do not
    allow. Files are written whole or not at all: what is there when the command ends, as a file
    with a name would be, is copied to standard output.
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

    def replaced(self, value: Any, marks: tuple[Any, ...]) -> Any:
        """Return an argument with the stand-in for ``-``, if it is one of a file."""
        if isinstance(value, list):
            return [self.replaced(entry, marks) for entry in value]
        if READ in marks and isinstance(value, (str, Path)) and _is_pipe(value):
            with open(value, "rb") as pipe:
                return type(value)(self._copy_of(pipe, str(value)))
        if value is None or str(value) != STANDARD:
            return value
        if READ in marks:
            return type(value)(self._copy_of_input())
        if WRITTEN in marks:
            suffix = next((mark for mark in marks if str(mark).startswith(".")), "")
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
        from hemf.reading.files import kind_of

        copy = self._folder() / f"input-{len(self._output.aliases)}"
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)
        with copy.open("rb") as file:
            ending = kind_of(file.read(1 << 16))
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
    return Path(path).expanduser().is_fifo()
