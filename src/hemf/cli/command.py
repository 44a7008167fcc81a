"""What all commands share: --json, --quiet, --debug, errors and warnings."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self, get_type_hints

import typer

from hemf._files import expand_home, temporary_folder
from hemf.cli.arguments import READ, STANDARD, WRITTEN
from hemf.cli.output import Output
from hemf.errors import (
    DataWarning,
    DuplicateWarning,
    HemfError,
    HemfWarning,
    ParameterError,
    UnknownIdWarning,
)

INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, remarks or warnings.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_SHARED = {"json": Json, "quiet": Quiet, "debug": Debug}


def command(app: typer.Typer, function: Callable[..., None], *, name: str | None = None) -> None:
    """Register a function as a command; its first parameter is the `Output`.

    A parameter whose type is a dataclass stands for the fields of that class. The options that all
    commands have are added.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    groups = {p.name: _fields(p.annotation) for p in own if is_dataclass(p.annotation)}
    options = [option for p in own for option in groups.get(p.name, [p])]
    marks = {p.name: getattr(p.annotation, "__metadata__", ()) for p in options}

    def run(*, json: bool, quiet: bool, debug: bool, **chosen: object) -> None:
        output = Output(json=json, quiet=quiet)
        with reporting(output, debug=debug), StandardFiles(output) as files:
            given = {name: files.replaced(value, marks[name]) for name, value in chosen.items()}
            for p in own:
                if p.name in groups:
                    fields = {field.name: given.pop(field.name) for field in groups[p.name]}
                    given[p.name] = p.annotation(**fields)
            function(output, **given)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in _SHARED.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options] + shared
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = function.__doc__
    app.command(name or function.__name__)(run)


def _fields(kind: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass, inherited ones too."""
    hints = get_type_hints(kind, include_extras=True)
    parameters = inspect.signature(kind).parameters.values()
    return [p.replace(annotation=hints[p.name]) for p in parameters]


@contextmanager
def reporting(output: Output, *, debug: bool) -> Iterator[None]:
    """Turn errors into one line and an exit code, and warnings into remarks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default" if debug else "ignore")
            warnings.simplefilter("always", HemfWarning)
            shown: set[str] = set()  # a command may cause a warning twice

            def show(message: Warning | str, *_: object, **__: object) -> None:
                if str(message) not in shown:
                    shown.add(str(message))
                    if isinstance(message, DataWarning | DuplicateWarning | UnknownIdWarning):
                        output.warning(str(message))
                    else:
                        output.remark(f"warning: {message}")

            warnings.showwarning = show
            yield
            print(end="", flush=True)  # raises errors of writing
    except KeyboardInterrupt:
        output.error("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except EOFError as error:  # which Click takes for an interrupt
        raise RuntimeError("a file or stream ended unexpectedly") from error
    except (BrokenPipeError, SystemExit):  # the reader of the pipe has gone; Rich raises SystemExit
        _drop_unwritten()
        if output.saved:
            output.error("the output could not be printed")
        raise typer.Exit(1) from None
    except (HemfError, OSError, MemoryError) as error:
        if debug:
            raise
        output.error(_one_line(error))
        _drop_unwritten()
        raise typer.Exit(1) from None


def _drop_unwritten() -> None:
    """Drop output that cannot be written, or Python would report it again at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: BaseException) -> str:
    """Return the message of an error on one line; those of the system begin with the file."""
    if isinstance(error, OSError) and not isinstance(error, HemfError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or "out of memory"
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------
# ``-`` instead of a file: standard input or output. Commands get names of temporary files.


class StandardFiles:
    """Temporary files for ``-`` among the arguments of a command.

    Pipes cannot be read twice or written in any order. The file that exists when the command ends
    is copied to standard output.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._stack = ExitStack()
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
        if READ in marks and isinstance(value, (str, Path)) and expand_home(value).is_fifo():
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

    @cached_property
    def _folder(self) -> Path:
        return self._stack.enter_context(temporary_folder(Path(tempfile.gettempdir())))

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

        copy = self._folder / f"input-{len(self._output.aliases)}"
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
        self._written = self._folder / f"output{suffix}"
        self._output.aliases[str(self._written)] = "standard output"
        self._output.aside = True
        return self._written
