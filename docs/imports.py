"""Draw the picture of docs/architecture.md from the imports in src: ``python docs/imports.py``."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hemf"
INK, SOFT, FILL = "#24292f", "#8c959f", "#ddf4ff"
HELPERS = {"_typing", "_checks", "_files", "_arrays", "_options", "errors", "__init__"}
"""Used nearly everywhere: not drawn."""


def part_of(module: str) -> str:
    """Package or module at the top that a module is in: "batch" for "hemf.batch.fit"."""
    return module.split(".")[1] if "." in module else "__init__"


def import_graph() -> dict[str, set[str]]:
    """Parts and what each of them imports, imports inside functions included."""
    graph: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        graph.setdefault(part, set())
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module == "hemf":
                names = [f"hemf.{alias.name}" for alias in node.names]
                names = [name for name in names if exists(part_of(name))]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            graph[part].update(part_of(name) for name in names if name.startswith("hemf."))
    return {
        part: {other for other in others - HELPERS - {part} if exists(other)}
        for part, others in graph.items()
        if part not in HELPERS
    }


def exists(part: str) -> bool:
    return (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()


def upwards(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return imports against the layers of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rank = {
        part: number
        for number, layer in enumerate(layers)
        for part in re.findall(r"hemf\.(\w+)", layer)
    }
    return {
        (part, other)
        for part, others in graph.items()
        for other in others
        if rank.get(part, 0) > rank.get(other, len(layers))
    }


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out imports that follow from others."""

    @cache
    def reachable(part: str) -> frozenset[str]:
        below = (reachable(other) for other in graph[part])
        return frozenset(graph[part]).union(*below)

    return {
        part: {other for other in others if not any(other in reachable(third) for third in others)}
        for part, others in graph.items()
    }


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Length of the longest chain of imports below each part."""

    @cache
    def level(part: str) -> int:
        return 1 + max((level(other) for other in graph[part]), default=-1)

    return {part: level(part) for part in graph}


def main() -> None:
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "hemf"
    graph = import_graph()
    for part, other in upwards(graph):
        graph[part].remove(other)
    arrows = reduced(graph)
    level = levels(graph)
    size = Counter(level.values())
    place: dict[str, tuple[float, float]] = {}
    for row in range(max(level.values()) + 1):
        parts = [part for part in graph if level[part] == row]
        # Each near the parts it imports, so that arrows are short.
        parts.sort(key=lambda p: sum(place[o][0] for o in graph[p]) / max(len(graph[p]), 1))
        for k, part in enumerate(parts):
            place[part] = (10 * (k + 0.5) / size[row], row)
    figure = Figure(figsize=(7.5, 0.72 * len(size) + 0.2), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.5, len(size) - 0.5))
    axes.axis("off")
    for part, (x, y) in place.items():
        box = FancyBboxPatch(
            (x - 0.62, y - 0.17), 1.24, 0.34, boxstyle="round,pad=0.02", fc=FILL, ec=INK, lw=0.8
        )
        axes.add_patch(box)
        axes.text(x, y, part, ha="center", va="center", color=INK, fontsize=9.5)
        for other in sorted(arrows[part]):
            to_x, to_y = place[other]
            bend = 0.0 if y - to_y == 1 else 0.12
            axes.add_patch(
                FancyArrowPatch(
                    (x, y - 0.2), (to_x, to_y + 0.2), arrowstyle="-|>", mutation_scale=7,
                    color=SOFT, lw=0.9, connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0,
                )
            )  # fmt: skip
    figure.savefig(ROOT / "docs" / "images" / "imports.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
