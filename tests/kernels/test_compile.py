"""Kernels are compiled once, and anew when any of their files changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError

from hemf.kernels import compile as compiling
from hemf.kernels import products, rows


def test_a_change_in_any_file_gives_another_digest(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("WIDTH = 32\n")
    (tmp_path / "lanes.py").write_text("")
    seen = {compiling.digest(tmp_path)}
    (tmp_path / "lanes.py").write_text("x = 1\n")
    seen.add(compiling.digest(tmp_path))
    (tmp_path / "lanes.py").rename(tmp_path / "blocks.py")
    seen.add(compiling.digest(tmp_path))
    assert len(seen) == 3
    (tmp_path / "notes.txt").write_text("not code")
    assert compiling.digest(tmp_path) in seen


def test_the_cache_is_kept_under_that_digest() -> None:
    own = compiling.digest(Path(compiling.__file__).parent)
    for kernel in (rows.coupled_rows, rows.mean_field_rows, products.pair_moments):
        assert own in kernel.compiled(np.float64).py_func.__qualname__


def test_threads_that_ask_at_once_get_the_same_code() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(products.pair_moments.compiled, [np.float32, np.float64] * 4))
    assert len({id(code) for code in found}) == 1
    assert len(found[0].signatures) == 2


def test_a_kernel_keeps_its_name_and_documentation() -> None:
    assert rows.coupled_rows.__name__ == "coupled_rows"
    assert "q(a_i, z_i)" in str(rows.coupled_rows.__doc__)


def doubled(x: Any, y: Any) -> None:
    y[:] = np.concatenate((x, x))


def test_a_kernel_that_makes_arrays_has_to_say_so() -> None:
    signature = "void({T}[::1], {T}[::1])"
    y = np.empty(4)
    compiling.kernel(signature, allocates=True)(doubled).compiled(np.float64)(np.arange(2.0), y)
    assert y.tolist() == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(NumbaError):
        compiling.kernel(signature)(doubled).compiled(np.float64)


def test_code_without_a_guard_does_the_same() -> None:
    kernel = compiling.kernel("void({T}[::1], {T}[::1])", allocates=True)(doubled)
    guarded, trusting = np.empty(4, np.float32), np.empty(4, np.float32)
    x = np.arange(2, dtype=np.float32)
    kernel.trusting(np.float32)(x, trusting)
    kernel.compiled(np.float32)(x, guarded)
    assert trusting.tolist() == guarded.tolist() == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(TypeError):
        kernel.compiled(np.float32)(np.arange(4, dtype=np.float32)[::2], guarded)
