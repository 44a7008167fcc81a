"""When and for which storage type a kernel is compiled.

Every kernel states its argument types, contiguity included: a strided array is a type error
rather than a kernel that is seven times slower. Compilation happens once for each storage type
that is asked for, and is cached on disk (in ``NUMBA_CACHE_DIR`` where that is set).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_STORAGE = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}
_lock = threading.Lock()


class Kernel:
    """A Numba function for float32 or float64 storage, compiled on first use.

    ``signature`` is written with ``{T}`` for the storage type.
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._signature = signature
        self._dispatcher = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
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


inner = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
"""For functions that only kernels call."""
