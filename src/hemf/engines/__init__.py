"""Where a half-sweep runs; `hemf.engines.base` has the protocol.

>>> engine_class("threads").__name__
'Threads'
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from hemf.engines.base import Engine
from hemf.errors import ParameterError

ENGINES: Final = {"threads": "hemf.engines.threads:Threads"}
"""Names of engines, and where their classes are: imported when first used."""


def engine_class(name: str) -> type[Engine]:
    """Return the class of an engine by its name in `ENGINES`."""
    if name not in ENGINES:
        raise ParameterError(
            f"engine must be one of {', '.join(map(repr, ENGINES))}, got {name!r}", value=name
        )
    module, _, attribute = ENGINES[name].partition(":")
    found: type[Engine] = getattr(import_module(module), attribute)
    return found
