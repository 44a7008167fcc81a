"""Kernels are compiled once, and again when the code that they use changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError

from hemf.kernels import compile as compiling
from hemf.kernels import products, rows
from hemf.kernels.compile import source_digest
from hemf.kernels.structures import Vector

CODE = """
from hemf.kernels.compile import allocating_kernel, inner, kernel, step
from hemf.kernels.structures import Vector
FACTOR = 2.0

@inner
def scaled(x):
    return FACTOR * x

@inner
def unused(x):
    return x

@kernel
def scale(x: Vector) -> None:
    for k in range(x.size):
        x[k] = scaled(x[k])
"""


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("", "", False),
        ("FACTOR = 2.0", "FACTOR  = 2.0", False),
        ("FACTOR = 2.0", "\n# a comment\nFACTOR = 2.0", False),
        ("    return x\n", "    return x + x\n", False),  # which the kernel does not call
        ("FACTOR = 2.0", "FACTOR = 3.0", True),
        ("return FACTOR * x", "return x * FACTOR", True),
        ("x[k] = scaled(x[k])", "x[k] = scaled(x[k]) + 1.0", True),
        ("@inner\ndef scaled", "@step\ndef scaled", True),
        ("@kernel", "@allocating_kernel", True),
    ],
)
def test_the_digest_of_a_kernel_is_of_the_code_that_it_uses(
    old: str, new: str, differs: bool
) -> None:
    found = []
    for text in (CODE, CODE.replace(old, new)):
        names: dict[str, Any] = {"__name__": "example"}
        exec(text, names)
        found.append(source_digest(names["scale"]._dispatcher))
    assert (found[0] != found[1]) is differs


def test_threads_that_ask_at_once_get_the_same_code() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(products.pair_moments.compiled, [np.float32, np.float64] * 4))
    assert len({id(code) for code in found}) == 1
    assert len(found[0].signatures) == 2


def test_a_kernel_keeps_its_name_and_documentation() -> None:
    assert rows.coupled_rows.__name__ == "coupled_rows"
    assert "q(a_i, z_i)" in str(rows.coupled_rows.__doc__)


def doubled(x: Vector, y: Vector) -> None:
    y[:] = np.concatenate((x, x))


def test_a_kernel_that_makes_arrays_has_to_say_so() -> None:
    y = np.empty(4)
    compiling.allocating_kernel(doubled).compiled(np.float64)(np.arange(2.0), y)
    assert y.tolist() == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(NumbaError):
        compiling.kernel(doubled).compiled(np.float64)


def test_code_without_a_guard_does_the_same() -> None:
    kernel = compiling.allocating_kernel(doubled)
    guarded, trusting = np.empty(4, np.float32), np.empty(4, np.float32)
    x = np.arange(2, dtype=np.float32)
    kernel.trusting(np.float32)(x, trusting)
    kernel.compiled(np.float32)(x, guarded)
    assert trusting.tolist() == guarded.tolist() == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(TypeError):
        kernel.compiled(np.float32)(np.arange(4, dtype=np.float32)[::2], guarded)
