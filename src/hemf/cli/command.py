"""What all commands share: --json, --quiet, --debug, and what happens when something fails."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from hemf.cli.output import Output, StandardFiles
from hemf.errors import DataWarning, DuplicateWarning, HemfError, HemfWarning, UnknownIdWarning

INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no remarks.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_SHARED = {"json": Json, "quiet": Quiet, "debug": Debug}


def command(app: typer.Typer, function: Callable[..., None], *, name: str | None = None) -> None:
    """Make a function a command, of its own name if no other is given.

    Its first parameter is the `Output`. It declares its own options, and those that every command
    has are added.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    marks = {p.name: getattr(p.annotation, "__metadata__", ()) for p in own}

    def run(*, json: bool, quiet: bool, debug: bool, **chosen: Any) -> None:
        output = Output(json=json, quiet=quiet)
        with reporting(output, debug=debug), StandardFiles(output) as files:
            given = {name: files.replaced(value, marks[name]) for name, value in chosen.items()}
            function(output, **given)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in _SHARED.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = function.__doc__
    app.command(name or function.__name__)(run)


@contextmanager
def reporting(output: Output, *, debug: bool) -> Iterator[None]:
    """Turn errors into one line and an exit code, and warnings into remarks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default" if debug else "ignore")
            warnings.simplefilter("always", HemfWarning)
            said: set[str] = set()  # a command may ask the model about the same ids twice

            def show(message: Warning | str, *_: Any, **__: Any) -> None:
                if str(message) not in said:
                    said.add(str(message))
                    if isinstance(message, DataWarning | DuplicateWarning | UnknownIdWarning):
                        output.warning(str(message))
                    else:
                        output.remark(f"warning: {message}")

            warnings.showwarning = show
            yield
            print(end="", flush=True)  # what cannot be written is an error of the command
    except KeyboardInterrupt:
        output.error("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except EOFError as error:  # which Click takes for an interrupt
        raise RuntimeError("a file or stream ended unexpectedly") from error
    except BrokenPipeError:
        _drop_unwritten()  # whoever read our output has seen enough
        raise typer.Exit(1) from None
    except (HemfError, OSError, MemoryError) as error:
        if debug:
            raise
        output.error(_one_line(error))
        _drop_unwritten()
        raise typer.Exit(1) from None


def _drop_unwritten() -> None:
    """Forget output that cannot be written, or Python would complain of it once more at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: BaseException) -> str:
    """Say what went wrong on one line; the system's own errors begin with the file's name."""
    if isinstance(error, OSError) and not isinstance(error, HemfError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or "out of memory"
    return " ".join(text.split())
