"""Imports point one way, and `import hemf` is cheap."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "hemf"

CHAIN = ["kernels", "model", "engines", "inference", "estimator"]
"""Each may import those before it; what is not listed (views, reports, …) serves the estimator."""
TOP = {"cli", "service", "reproduce"}
"""Nothing below imports these."""
READING = {"ratings", "reading", "vocabulary"}
LEAVES = {"evaluation", "datasets", "features", *READING}
"""Leaves know no model."""
HEAVY = [
    "numba", "pandas", "polars", "matplotlib", "sklearn", "pyarrow", "rich", "typer", "scipy.stats",
    "narwhals",
]  # fmt: skip


class Imports(ast.NodeVisitor):
    """Names of all modules a file imports, wherever in it, but for the type checker alone."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.private: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for part in node.orelse:
                self.visit(part)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "imports are written in full"
        module = node.module or ""
        self.names.add(module)
        full = {f"{module}.{alias.name}" for alias in node.names}
        self.names.update(full & MODULES.keys())  # from hemf import datasets
        if module.startswith("hemf."):
            self.private.update(f"{module}.{a.name}" for a in node.names if a.name[0] == "_")


def part_of(path: Path) -> str:
    """First name below the package: "model" of model/bound.py, "ratings" of ratings.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Full name: "hemf.model.bound" of model/bound.py, "hemf.model" of model/__init__.py."""
    inner = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(inner).removesuffix(".__init__")


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}
PARTS = {part_of(path) for path in FILES}


def imports_of(path: Path) -> Imports:
    found = Imports()
    found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def imported_parts(path: Path) -> set[str]:
    found = imports_of(path)
    return {
        name.split(".")[1] if name.split(".")[1] in PARTS else "hemf"
        for name in found.names
        if name.startswith("hemf.")
    } | ({"hemf"} if "hemf" in found.names else set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part, imports = part_of(path), imported_parts(path)
    if part in LEAVES:
        assert imports <= LEAVES | {"errors", "writing"}
    elif part in CHAIN[:-1]:
        assert imports <= {*CHAIN[: CHAIN.index(part) + 1], "errors"}
    elif part not in TOP and part != "__init__":
        assert not imports & TOP


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not inside functions either; the packages that a module is in aside."""
    graph = {
        name: {
            other
            for other in imports_of(path).names & MODULES.keys()
            if not name.startswith(f"{other}.")
        }
        for name, path in MODULES.items()
    }
    assert "hemf.io" in graph["hemf.estimator"]
    graphlib.TopologicalSorter(graph).prepare()  # a circle is a CycleError that names it


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_takes_what_is_private_to_another(path: Path) -> None:
    assert not imports_of(path).private


def test_the_chain_is_there() -> None:
    assert {*CHAIN, *LEAVES} <= PARTS
    assert "kernels" in imported_parts(PACKAGE / "engines" / "threads.py")
    assert "inference" in imported_parts(PACKAGE / "estimator.py") | imported_parts(
        PACKAGE / "options.py"
    )


def test_kernels_do_not_need_anything_above_them() -> None:
    """The hot loops can be read, tested and moved on their own."""
    for path in (PACKAGE / "kernels").glob("*.py"):
        assert imported_parts(path) <= {"kernels", "errors"}, path.name


def loaded_after(statement: str) -> list[str]:
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return list(json.loads(result.stdout))


def test_importing_hemf_loads_nothing_heavy() -> None:
    loaded = loaded_after("import hemf; hemf.HeMF(); hemf.Ratings")
    assert "hemf" in loaded
    assert "numpy" in loaded
    assert not [name for name in loaded if name in HEAVY]


def test_the_reference_needs_no_numba() -> None:
    assert "numba" not in loaded_after("import hemf.kernels.reference")
