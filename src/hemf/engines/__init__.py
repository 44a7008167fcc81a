"""Where a half-sweep runs; `hemf.engines.base` has the protocol.

>>> from pkgutil import resolve_name
>>> resolve_name(ENGINES["threads"]).__name__
'Threads'
"""

from typing import Final

ENGINES: Final = {"threads": "hemf.engines.threads:Threads"}
"""Names of engines, and where their classes are: imported when first used."""
