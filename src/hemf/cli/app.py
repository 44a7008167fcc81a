"""The ``hemf`` program: its commands put together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hemf.cli import data, demo, doctor, evaluate, fit, insight, prediction
from hemf.cli.command import command

# Plain help: Rich's would take longer to load than everything else together.
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
        from hemf import __version__

        print(f"hemf {__version__}")
        raise typer.Exit


@app.callback()
def hemf(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Predict ratings, say how sure, and find the communities behind them.

    Start with `hemf demo`, then `hemf fit ratings.csv -o model.hemf`.
    """


for function in (
    demo.demo,
    fit.fit,
    prediction.predict,
    prediction.recommend,
    insight.communities,
    insight.explain,
    evaluate.evaluate,
    doctor.doctor,
):
    command(app, function)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line with the arguments of this process."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows another one rather than a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="hemf")
