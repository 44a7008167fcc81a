"""A clock that compiled loops can read, for how long each rating of a stream takes.

Reading it costs a few nanoseconds. Ticks are turned into seconds by the caller, who knows how long
the whole loop took: `seconds`.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# Numba and llvmlite have no types.

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hemf.kernels.compile import inner

HAS_COUNTER = platform.machine().lower() in ("x86_64", "amd64")  # elsewhere reading it may trap


def _typed(_context):
    def generate(_context, builder, _signature, _arguments):
        if not HAS_COUNTER:
            return ir.Constant(ir.IntType(64), 0)
        function_type = ir.FunctionType(ir.IntType(64), [])
        counter = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=function_type)
        return builder.call(counter, [])

    return types.int64(), generate


_cycles: Any = intrinsic(_typed)


@inner
def ticks() -> int:
    """Return the processor's count of cycles; 0 where it has none that a program may read."""
    return int(_cycles())


def seconds(spent: npt.NDArray[np.int64], in_all: float) -> npt.NDArray[np.float64]:
    """Turn the ticks of each step into seconds, given what all steps together took.

    Without a counter every step is given the same time.

    >>> seconds(np.array([10, 30]), 4.0).tolist()
    [1.0, 3.0]
    """
    total = int(spent.sum())
    if total <= 0:
        return np.full(spent.size, in_all / max(spent.size, 1))
    return np.asarray(spent * (in_all / total))
