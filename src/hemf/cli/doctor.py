"""``hemf doctor``: check this machine and compile the kernels."""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hemf._files import library_version
from hemf.cli.output import Document, Output

if TYPE_CHECKING:
    from hemf.kernels.compile import Kernel

REQUIRED = ("numpy", "scipy", "numba", "pyarrow", "narwhals", "threadpoolctl", "rich", "matplotlib")
OPTIONAL = ("pandas", "polars")


def doctor(output: Output) -> None:
    """Check this machine and compile the kernels.

    Checks versions, cores, memory, BLAS and caches, and fits a small model. The exit code is 1 if a
    check fails.
    """
    findings = []
    for name, look in CHECKS.items():
        with output.status(name):
            finding = _finding(name, look)
        findings.append(finding)
        if not output.json:
            mark = "ok  " if finding["ok"] else "FAIL"
            took = f"  ({finding['seconds']:.1f} s)" if finding["seconds"] >= 0.1 else ""
            output.line(f"{mark}  {name:<16}{finding['detail']}{took}")
    broken = [finding["check"] for finding in findings if not finding["ok"]]
    output.result({"ok": not broken, "checks": findings}, lambda: None)
    if broken:
        output.error(f"broken: {', '.join(broken)}")
        raise typer.Exit(1)


def _finding(name: str, look: Callable[[], str]) -> Document:
    begin = time.perf_counter()
    try:
        detail, ok = look(), True
    except Exception as error:  # whatever is broken, the other checks go on
        detail, ok = " ".join(f"{type(error).__name__}: {error}".split()), False
    seconds = round(time.perf_counter() - begin, 3)
    return {"check": name, "ok": ok, "detail": detail, "seconds": seconds}


def _system() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _versions() -> str:
    found = [f"hemf {library_version()}"]
    found += [f"{name} {importlib.metadata.version(name)}" for name in REQUIRED]
    for name in OPTIONAL:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _cores() -> str:
    from hemf._checks import thread_count

    return f"{thread_count(None)} usable of {os.cpu_count()}"


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.total / 2**30:.1f} GB, {memory.available / 2**30:.1f} GB free"


def _blas() -> str:
    import numpy as np
    from threadpoolctl import threadpool_info

    from hemf._checks import one_blas_thread

    np.eye(2) @ np.eye(2)  # loads it

    def blas() -> list[Document]:
        return [library for library in threadpool_info() if library["user_api"] == "blas"]

    with one_blas_thread():
        if any(library["num_threads"] != 1 for library in blas()):
            raise RuntimeError("its threads cannot be limited, and would compete with hemf's")
    return ", ".join(
        f"{library['internal_api']} {library.get('version') or ''}, "
        f"{library['num_threads']} threads, 1 inside hemf"
        for library in blas()
    ) or ("none that threadpoolctl knows")


def _cache() -> str:
    from hemf.data.datasets import cache_folder

    folder = cache_folder()
    _try_to_write(folder)
    if folder.parent == Path(tempfile.gettempdir()):
        return f"{folder}, since there is no home folder; HEMF_CACHE chooses one that is kept"
    return f"{folder} can be written to"


def _kernel_cache() -> str:
    from hemf.kernels.compile import folders

    for folder in folders():
        try:
            _try_to_write(folder)
        except OSError:
            continue
        return f"{folder} can be written to"
    return (
        f"none of {', '.join(map(str, folders()))} can be written to; "
        "set NUMBA_CACHE_DIR to a writable folder if kernels compile every time"
    )


def _try_to_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"hemf")


def _kernels() -> str:
    """Compile every kernel for float32 storage."""
    import numpy as np

    for kernel in kernels():
        kernel.compiled(np.float32)
    return f"{', '.join(kernel.__name__ for kernel in kernels())} for float32"


def kernels() -> list[Kernel]:
    """Return all kernels.

    >>> "coupled_rows" in [kernel.__name__ for kernel in kernels()]
    True
    """
    import hemf.kernels
    from hemf.kernels.compile import Kernel

    found: dict[str, Kernel] = {}
    for module in pkgutil.iter_modules(hemf.kernels.__path__, "hemf.kernels."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Kernel):
                found[value.__name__] = value
    return list(found.values())


def _fit() -> str:
    """Fit a small model with one thread and with two; the predictions must be equal and good."""
    import numpy as np

    from hemf import evaluation
    from hemf.data import datasets
    from hemf.estimator import HeMF

    drawn = datasets.draw(200, 100, density=0.3, rng=0)
    table = (drawn.users, drawn.items, drawn.ratings)
    settings: Document = {"n_factors": 5, "tol": 0.1, "rng": 0}
    answers = [HeMF(**settings, n_jobs=n_jobs).fit(table).predict(*table[:2]) for n_jobs in (1, 2)]
    error = evaluation.rmse(drawn.ratings, answers[0])
    if not np.array_equal(*answers):
        raise RuntimeError("one thread and two give different predictions")
    if not error < drawn.ratings.std():
        raise RuntimeError(f"RMSE {error:.3f} of a small model is that of guessing")
    return f"RMSE {error:.3f} with noise of {drawn.noise:g}, the same with one thread and two"


CHECKS: dict[str, Callable[[], str]] = {
    "system": _system,
    "versions": _versions,
    "cores": _cores,
    "memory": _memory,
    "BLAS": _blas,
    "cache folder": _cache,
    "kernel cache": _kernel_cache,
    "kernels": _kernels,
    "a little model": _fit,
}
"""Checks by name: functions that return a description or raise."""
