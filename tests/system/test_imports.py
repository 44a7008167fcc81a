"""Imports point one way, and `import hemf` is cheap."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hemf"
HEAVY = [
    "numba", "pandas", "polars", "matplotlib", "sklearn", "pyarrow", "rich", "typer", "scipy.stats",
    "narwhals", "pooch",
]  # fmt: skip


def module_of(path: Path) -> str:
    """Full name: "hemf.model.rows" of model/rows.py, "hemf.model" of model/__init__.py."""
    inner = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(inner).removesuffix(".__init__")


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}


def for_types_alone(tree: ast.Module) -> set[ast.AST]:
    """Imports under ``if TYPE_CHECKING``."""
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        node
        for block in blocks
        if ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }


def imports_of(path: Path) -> tuple[set[str], set[str]]:
    """Modules of the package that a file imports anywhere, and private names it takes of them."""
    modules, private = set(), set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in set(ast.walk(tree)) - for_types_alone(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            modules.update(name if name in MODULES else base for name in names)
            if base.startswith("hemf."):
                private.update(name for name in names - MODULES.keys() if "._" in name[len(base) :])
    return modules & MODULES.keys(), private


def test_layers_are_kept() -> None:
    """The layers are in pyproject.toml, under tool.importlinter."""
    command = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not inside functions either; the packages that a module is in aside."""
    graph = {
        name: {other for other in imports_of(path)[0] if not f"{name}.".startswith(f"{other}.")}
        for name, path in MODULES.items()
    }
    assert "hemf.persistence.model" in graph["hemf.estimator"]
    graphlib.TopologicalSorter(graph).prepare()  # a circle is a CycleError that names it


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_takes_what_is_private_to_another(path: Path) -> None:
    assert not imports_of(path)[1]


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
    assert "numba" not in loaded_after("import hemf.kernels.reference.rows")
