"""The command line: ``hemf demo``, ``hemf fit``, and the rest of a model's life.

Only Typer is imported here; each command imports what it needs when it runs, so that
``hemf --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from hemf._files import library_version
from hemf.cli import (
    communities,
    data,
    demo,
    describe,
    doctor,
    evaluate,
    explain,
    fit,
    predict,
    recommend,
    reproduce,
    similar,
    stream,
    tune,
    update,
)
from hemf.cli.command import INTERRUPTED, command, reporting
from hemf.cli.output import Output

# Plain help: importing Rich takes longer than everything else.
app = typer.Typer(
    name="hemf",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hemf {library_version()}")
        raise typer.Exit


@app.callback()
def hemf(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Predict ratings with their uncertainty, and find communities.

    Start with `hemf demo`, then `hemf fit ratings.csv -o model.hemf`.
    """


for function in (
    demo.demo,
    fit.fit,
    update.update,
    predict.predict,
    recommend.recommend,
    similar.similar,
    describe.describe,
    communities.communities,
    explain.explain,
    evaluate.evaluate,
    tune.tune,
    stream.stream,
    reproduce.reproduce,
    doctor.doctor,
):
    command(app, function)
data_app = typer.Typer(
    help="Public data sets: list, fetch, describe.", no_args_is_help=True, rich_markup_mode=None
)
command(data_app, data.list_data, name="list")
command(data_app, data.fetch)
command(data_app, data.describe)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line with the arguments of this process."""
    _open_missing_channels()
    for channel in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows another one.
        if hasattr(channel, "reconfigure"):
            channel.reconfigure(errors="replace")
    sys.exit(_run())


def _open_missing_channels() -> None:
    """Open the standard channels that the process was started without.

    Otherwise the next file that is opened gets the number of one of them, and whatever is printed
    goes into that file. Input is empty, messages go nowhere, and writing output is an error.
    """
    for name, access, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, access)  # the lowest that is free
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _run() -> int:
    """Run a command; a usage error is one line that names the help."""
    try:
        # Help and version are printed outside of any command.
        with reporting(Output(), debug="--debug" in sys.argv):
            answer = app(prog_name="hemf", standalone_mode=False)
    except typer.Exit as ended:
        return int(ended.exit_code)
    except typer.Abort:
        print("hemf: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        # Typer may have its own copy of Click: usage errors are known by their attributes.
        message, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message(), file=sys.stderr)
        else:
            where = context.command_path if context else "hemf"
            Output().error(f"{' '.join(message().split())} (see {where} --help)")
        return int(getattr(error, "exit_code", 2))
    return answer if isinstance(answer, int) else 0


if __name__ == "__main__":
    main()
