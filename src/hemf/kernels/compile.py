"""When and for which storage type a kernel is compiled.

Every kernel states its argument types, contiguity included: a strided array is a type error
rather than a kernel that is seven times slower. Compilation happens once for each storage type
that is asked for, and is cached on disk (in ``NUMBA_CACHE_DIR`` where that is set).

Numba's cache looks at a function's own file alone, and would go on using machine code whose
helpers in other files have changed. So the cache is kept under a name that holds a digest of all
files here.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

_STORAGE = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}
_lock = threading.Lock()


def digest(folder: Path) -> str:
    """Return a name for the contents of all Python files in a folder.

    >>> digest(Path(__file__).parent) == digest(Path(__file__).parent)
    True
    """
    contents = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.glob("*.py")):
        contents.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return contents.hexdigest()


_DIGEST = digest(Path(__file__).parent)


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    function.__qualname__ += f"_{_DIGEST}"
    return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)


class Kernel:
    """A Numba function for float32 or float64 storage, compiled on first use.

    ``signature`` is written with ``{T}`` for the storage type.
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._signature = signature
        self._dispatcher = _jit(function)
        self._ready: set[np.dtype[Any]] = set()

    def compiled(self, dtype: Any) -> Any:
        """Return the machine code for ``dtype`` storage; any other argument type is refused."""
        dtype = np.dtype(dtype)
        if dtype not in self._ready:
            with _lock:
                if dtype not in self._ready:
                    self._dispatcher.disable_compile(False)
                    self._dispatcher.compile(self._signature.replace("{T}", _STORAGE[dtype]))
                    self._dispatcher.disable_compile(True)
                    self._ready.add(dtype)
        return self._dispatcher


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a function as a `Kernel` of this signature."""
    return lambda function: Kernel(function, " ".join(signature.split()))


def inner(function: Callable[..., Any]) -> Any:
    """Decorate a function that only kernels call."""
    return _jit(function, fastmath={"contract"})
