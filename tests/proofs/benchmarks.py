"""Modules of the benchmarks' folder, for tests that run a small part of them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def benchmark(name: str) -> ModuleType:
    """Return a module of the benchmarks' folder."""
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)
