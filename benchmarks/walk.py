"""How many of our modules a call passes through, and between which of them control passes.

Each call is traced on the main thread after an identical first one, so that compiling and lazy
imports are over. Counted are modules in which any function runs; code that runs on import, class
bodies, compiled kernels, and methods that `dataclass` writes are not. A fit also prepares online
learning where the kernels for it are compiled, as they are here: that is part of its walk.

    python benchmarks/walk.py            # exit code 1 where a bar is missed
    python benchmarks/walk.py --verbose  # also the modules and the passings
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

PACKAGE = "hemf"
BARS = {"fit": 20, "predict": 7, "partial_fit": 12, "save": 5}
"""Most modules that a call may pass through."""


class Walk(NamedTuple):
    """Where a call went."""

    modules: Counter[str]
    """Calls of functions in each module."""
    passings: Counter[tuple[str, str]]
    """How often control passed from one module to another, calls and not returns."""


def trace(call: Callable[[], Any]) -> Walk:
    """Run a call and return where it went.

    Control passes from the nearest caller that is ours: what SciPy or Python call in between does
    not count.
    """
    modules: Counter[str] = Counter()
    passings: Counter[tuple[str, str]] = Counter()

    def ours(frame: FrameType | None) -> str | None:
        name = None if frame is None else frame.f_globals.get("__name__")
        is_ours = isinstance(name, str) and (name == PACKAGE or name.startswith(f"{PACKAGE}."))
        return name if is_ours else None

    def is_function(frame: FrameType) -> bool:
        code = frame.f_code
        return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename != "<string>"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not is_function(frame):
            return
        here = ours(frame)
        if here is None:
            return
        modules[here] += 1
        caller = frame.f_back
        while caller is not None and ours(caller) is None:
            caller = caller.f_back
        there = ours(caller)
        if there is not None and there != here:
            passings[there, here] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(modules, passings)


def write_ratings(path: Path) -> None:
    """Write 1,000 ratings of 60 users and 40 items."""
    rng = np.random.default_rng(0)
    pairs = rng.choice(60 * 40, 1000, replace=False)
    taste = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    rows = [
        f"u{pair // 40:03d},i{pair % 40:03d},{np.clip(round(3 + taste.flat[pair]), 1, 5)}"
        for pair in pairs.tolist()
    ]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")


def unrated(path: Path) -> list[tuple[str, str]]:
    """Return pairs without a rating."""
    there = {tuple(line.split(",")[:2]) for line in path.read_text().splitlines()}
    every = [(f"u{user:03d}", f"i{item:03d}") for user in range(60) for item in range(40)]
    return [pair for pair in every if pair not in there]


def walks(folder: Path) -> dict[str, Walk]:
    """Trace the four calls, each after one like it."""
    from hemf import HeMF

    ratings, target = folder / "ratings.csv", folder / "model.hemf"
    write_ratings(ratings)
    # Learn online and save once before, so that the traced fit finds all compiled.
    HeMF(rng=0).fit(str(ratings)).partial_fit([("u001", "i001", 3)]).save(target)
    found: dict[str, Walk] = {}
    model = HeMF(rng=0)
    model.fit(str(ratings))
    found["fit"] = trace(lambda: model.fit(str(ratings)))
    model.predict("u003", "i004")
    found["predict"] = trace(lambda: model.predict("u003", "i004"))
    model.save(target)
    found["save"] = trace(lambda: model.save(target))
    first, second = unrated(ratings)[:2]
    model.partial_fit([(*first, 4)])
    found["partial_fit"] = trace(lambda: model.partial_fit([(*second, 4)]))
    return {name: found[name] for name in BARS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="list modules and passings")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = walks(Path(folder))
    figures = {
        name: {
            "modules": len(walk.modules),
            "bar": BARS[name],
            "passings": len(walk.passings),
            "calls": walk.modules.total(),
            "met": len(walk.modules) <= BARS[name],
        }
        for name, walk in found.items()
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        print(f"{'call':12} {'modules':>8} {'bar':>5} {'passings':>9} {'calls':>7}")
        for name, one in figures.items():
            missed = "" if one["met"] else "  missed"
            print(
                f"{name:12} {one['modules']:>8} {one['bar']:>5} {one['passings']:>9} "
                f"{one['calls']:>7}{missed}"
            )
    if arguments.verbose:
        for name, walk in found.items():
            print(f"\n{name}")
            for module, calls in sorted(walk.modules.items()):
                print(f"  {module}  {calls}")
            for (here, there), times in sorted(walk.passings.items()):
                print(f"    {here} -> {there}  {times}")
    raise SystemExit(not all(one["met"] for one in figures.values()))


if __name__ == "__main__":
    main()
