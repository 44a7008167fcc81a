"""Have the kernels of online learning compiled ahead: ``python -m hemf.kernels.prepare``.

In a process of its own that takes another core; whoever needs them later finds them in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ONLINE = ("recall_all", "record_all", "refresh_all")  # what learning a batch takes


def compile_moods(dtype: Any) -> None:
    """Compile what moods take, unless it is in the cache."""
    from hemf.kernels import mood

    mood.gather.compiled(dtype)
    mood.smooth.compiled(np.float64)
    mood.places.compiled(np.float64)


def main() -> None:
    """Compile what is not in the cache yet."""
    from hemf.kernels import online

    for name in ONLINE:
        getattr(online, name).compiled(np.float32)


if __name__ == "__main__":
    main()
