"""The command line: ``hemf demo``, ``hemf fit``, and the rest of a model's life.

Only Typer is imported here; each command imports what it needs when it runs, so that
``hemf --help`` answers at once.
"""

from hemf.cli.app import main

__all__ = ["main"]
