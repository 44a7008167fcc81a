"""Figures of the source tree: size, imports, long signatures, private accesses, `Any`, repetition.

python benchmarks/house.py            # a table with bars; exit code 1 where one is missed
python benchmarks/house.py --verbose  # also what is counted
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = "hemf"
LONG = 10  # parameters that a function may have without being counted
BARS: dict[str, int | None] = {
    "files in src": 140,
    "lines in src": 31_000,
    "modules at the top": 8,
    "import depth": 10,
    "import cycles": 0,
    "functions with more than ten parameters": 12,
    "private attributes of other objects": 0,
    "Any in syntax trees": 819,
    "pairs of repeated code": 0,
}


@dataclass
class Figure:
    """A number, and what was counted."""

    value: int | None
    """None where it could not be measured."""
    entries: list[str] = field(default_factory=list)


# -- imports -------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Return the modules of the package by name."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return what a module imports of the package, anywhere in it, type-only imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {nearest(alias.name, known) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in known else nearest(base, known))
    return {one for one in found if one and one != name}


def nearest(name: str, known: dict[str, Path]) -> str:
    """Return the module that a dotted name belongs to, or nothing."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components, each after all that it imports (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group: list[str] = []
            while not group or group[-1] != node:
                group.append(stack.pop())
                on_stack.discard(group[-1])
            found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def depth_and_cycles(known: dict[str, Path]) -> tuple[Figure, Figure]:
    """Return the longest chain of the condensed import graph, and its cycles.

    A chain of modules that import each other one way has as many steps as imports; the modules of
    a cycle count as one.
    """
    graph = {name: imports_of(name, path, known) for name, path in known.items()}
    groups = components(graph)
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    depth: dict[int, int] = {}
    below: dict[int, int | None] = {}
    for number, group in enumerate(groups):  # what is imported comes first
        others = {group_of[other] for name in group for other in graph[name]} - {number}
        deepest = max(others, key=lambda other: depth[other], default=None)
        depth[number] = 0 if deepest is None else depth[deepest] + 1
        below[number] = deepest
    at: int | None = max(depth, key=lambda number: depth[number])
    chain = []
    length = depth[at] if at is not None else 0
    while at is not None:
        rest = f" and {len(groups[at]) - 1} more" if len(groups[at]) > 1 else ""
        chain.append(groups[at][0] + rest)
        at = below[at]
    cycles = [" ".join(group) for group in groups if len(group) > 1]
    return Figure(length, chain), Figure(len(cycles), cycles)


# -- syntax --------------------------------------------------------------------------------------


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text())


def long_signatures() -> Figure:
    """Find functions with more than ten parameters; self and cls are not counted."""
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [a.arg for a in (given.vararg, given.kwarg) if a is not None]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > LONG:
                    found.append(f"{path}:{node.lineno} {node.name} {count}")
    return Figure(len(found), found)


def names_any() -> Figure:
    """Count `Any` as a name, and as an attribute such as ``typing.Any``."""
    by_file: dict[Path, int] = {}
    for path, tree in trees():
        count = sum(
            (isinstance(node, ast.Name) and node.id == "Any")
            or (isinstance(node, ast.Attribute) and node.attr == "Any")
            for node in ast.walk(tree)
        )
        if count:
            by_file[path] = count
    ordered = sorted(by_file.items(), key=lambda entry: -entry[1])
    return Figure(sum(by_file.values()), [f"{path} {count}" for path, count in ordered])


# -- other programs ------------------------------------------------------------------------------


def private_accesses() -> Figure:
    """Count accesses to private attributes of other objects (ruff SLF001)."""
    command = (
        *(sys.executable, "-m", "ruff", "check", "--isolated", "--select", "SLF001", "--no-cache"),
        *("--output-format", "json", str(SOURCE)),
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return Figure(None, [done.stderr.strip()])
    found = json.loads(done.stdout)
    lines = [
        f"{Path(one['filename']).relative_to(ROOT)}:{one['location']['row']} {one['message']}"
        for one in found
    ]
    return Figure(len(found), lines)


def repetitions() -> Figure:
    """Find places that share six lines or more, by the command `duplicates` if it is there."""
    program = shutil.which("duplicates")
    if program is None:
        return Figure(None, ["no command `duplicates` on PATH"])
    command = (program, "--repo", str(SOURCE), "--most", "200", "--seconds", "120")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    rows = [line for line in lines if re.match(r"D\d+ ", line)]
    more = sum(int(one[1]) for line in lines if (one := re.match(r"\(\+(\d+) more pairs?\)", line)))
    incomplete = [line for line in lines if line.startswith("incomplete:")]
    thin = sum("boilerplate" in line for line in rows)
    notes = [f"{thin} of these are boilerplate"] if thin else []
    return Figure(len(rows) - thin + more, [*rows, *notes, *incomplete])


# -- all -----------------------------------------------------------------------------------------


def measured() -> dict[str, Figure]:
    """Return all figures by name."""
    known = modules()
    paths = sorted(SOURCE.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    longest = sorted(lines.items(), key=lambda entry: -entry[1])[:10]
    top = [path.name for path in sorted((SOURCE / PACKAGE).glob("*.py"))]
    depth, cycles = depth_and_cycles(known)
    return {
        "files in src": Figure(len(paths)),
        "lines in src": Figure(
            sum(lines.values()), [f"{path.relative_to(ROOT)} {count}" for path, count in longest]
        ),
        "modules at the top": Figure(len(top), top),
        "import depth": depth,
        "import cycles": cycles,
        "functions with more than ten parameters": long_signatures(),
        "private attributes of other objects": private_accesses(),
        "Any in syntax trees": names_any(),
        "pairs of repeated code": repetitions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="list what is counted")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    found = measured()
    met = {
        name: figure.value is None or BARS[name] is None or figure.value <= BARS[name]
        for name, figure in found.items()
    }
    if arguments.json:
        rows: dict[str, Any] = {
            name: {"value": figure.value, "bar": BARS[name], "met": met[name]}
            for name, figure in found.items()
        }
        print(json.dumps(rows))
    else:
        print(f"{'':42} {'now':>8} {'bar':>8}")
        for name, figure in found.items():
            value = "–" if figure.value is None else f"{figure.value:,}"
            print(f"{name:42} {value:>8} {BARS[name]:>8,}{'' if met[name] else '  missed'}")
            if arguments.verbose:
                print("".join(f"    {entry}\n" for entry in figure.entries), end="")
    raise SystemExit(not all(met.values()))


if __name__ == "__main__":
    main()
