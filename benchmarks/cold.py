"""What compiling costs: CPU seconds of a command with an empty kernel cache, less with a full one.

Seconds are those of the process and all that it starts. The commands are `hemf fit` and `hemf
stream` on a CSV file of 500 ratings, which is drawn here, and `hemf demo`. They run on a copy of
the source, so that no kernels are found beside it.

    python benchmarks/cold.py             # exit code 1 where a bar is missed
    python benchmarks/cold.py fit         # one command
    python benchmarks/cold.py --kernels   # also which kernels are compiled, and how long each takes
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hemf"
BARS = {"fit": 6.0, "demo": 20.0, "stream": 30.0}
"""CPU seconds."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "fit": ("fit", "ratings.csv", "-o", "model.hemf", "--json"),
    "demo": ("demo", "-o", "report.html", "--json"),
    "stream": ("stream", "--ratings", "ratings.csv", "--json"),
}
WARM_RUNS = 2
"""Of which the faster counts."""

# Started with every process: writes a line for each function that Numba has compiled.
LISTENER = """
import json, os, threading, time
from numba.core import event

class Listener(event.Listener):
    def __init__(self):
        self.local = threading.local()
    def on_start(self, event):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        self.local.stack.append([time.thread_time(), 0.0])
    def on_end(self, event):
        begin, inner = self.local.stack.pop()
        whole = time.thread_time() - begin
        if self.local.stack:
            self.local.stack[-1][1] += whole
        function = event.data["dispatcher"].py_func
        line = [function.__module__, function.__name__, len(self.local.stack), whole, whole - inner]
        with open(os.environ["HEMF_COLD_LOG"], "a") as file:
            file.write(json.dumps(line) + "\\n")

event.register("numba:compile", Listener())
"""


class Kernel(NamedTuple):
    """A function that was compiled, for one or several types of arguments."""

    name: str
    times: int
    whole: float
    """CPU seconds, with the functions that are compiled on its way."""
    own: float
    """Without these."""
    is_outer: bool
    """Whether it was compiled for itself, not on the way of another."""


def write_ratings(path: Path) -> None:
    """Write 500 ratings of 40 users and 30 items, one to five stars, in order of time."""
    rng = np.random.default_rng(0)
    pairs = rng.choice(40 * 30, 500, replace=False)
    taste = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 30))
    noise = rng.normal(scale=0.5, size=500)
    lines = ["user,item,rating,timestamp"]
    for row, pair in enumerate(pairs.tolist()):
        stars = min(max(round(3 + taste.flat[pair] + noise[row]), 1), 5)
        lines.append(f"u{pair // 30:02d},i{pair % 30:02d},{stars},{1_600_000_000 + 60 * row}")
    path.write_text("\n".join(lines) + "\n")


class Bench:
    """A copy of the source, and folders for caches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = folder / "src"
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE, source / SOURCE.name, ignore=unwanted)
        compileall.compile_dir(source, quiet=2)  # that is no cost of kernels
        (folder / "listener").mkdir()
        (folder / "listener" / "sitecustomize.py").write_text(LISTENER)
        self._paths = [str(source)]
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            # Where kernels are also looked for; fonts are kept, which are no cost of kernels.
            "XDG_CACHE_HOME": str(folder / "user-cache"),
            "MPLCONFIGDIR": str(folder / "matplotlib"),
        }
        prepared = "import matplotlib.font_manager, pyarrow.csv, rich, scipy.stats, typer"
        self._run((sys.executable, "-c", prepared), {})

    def cpu_seconds(self, command: str, cache: Path, log: Path | None = None) -> float:
        """Run a command in a folder of its own, and return the CPU seconds that it took."""
        more = {"NUMBA_CACHE_DIR": str(cache)}
        if log is not None:
            more |= {"HEMF_COLD_LOG": str(log)}
            more["PYTHONPATH"] = os.pathsep.join([str(self.folder / "listener"), *self._paths])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run((sys.executable, "-m", "hemf.cli", *COMMANDS[command]), more)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _run(self, command: tuple[str, ...], more: dict[str, str]) -> None:
        work = Path(tempfile.mkdtemp(dir=self.folder))
        write_ratings(work / "ratings.csv")
        done = subprocess.run(
            command, cwd=work, env={**self.environment, **more}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")

    def new_cache(self) -> Path:
        """Make an empty folder for kernels."""
        return Path(tempfile.mkdtemp(prefix="kernels-", dir=self.folder))


def kernels(log: Path) -> list[Kernel]:
    """Return what a log of the listener says, the costliest first."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for line in log.read_text().splitlines() if log.exists() else ():
        module, name, *figures = json.loads(line)
        found[f"{module}.{name}"].append(figures)
    listed = [
        Kernel(
            name,
            len(lines),
            sum(whole for _, whole, _ in lines),
            sum(own for _, _, own in lines),
            any(depth == 0 for depth, _, _ in lines),
        )
        for name, lines in found.items()
    ]
    return sorted(listed, key=lambda kernel: -kernel.whole)


def show_kernels(command: str, found: list[Kernel]) -> None:
    print(f"\n{command}: kernels compiled, CPU seconds with and without what they call")
    for kernel in found:
        if kernel.is_outer:
            times = f"  ×{kernel.times}" if kernel.times > 1 else ""
            print(f"  {kernel.name:50} {kernel.whole:7.2f} {kernel.own:7.2f}{times}")
    inner = [kernel for kernel in found if not kernel.is_outer]
    print(f"  {len(inner)} functions that kernels call: {sum(k.own for k in inner):.2f}, of these")
    for kernel in sorted(inner, key=lambda one: -one.own)[:12]:
        times = f"  ×{kernel.times}" if kernel.times > 1 else ""
        print(f"    {kernel.name:48} {kernel.whole:7.2f} {kernel.own:7.2f}{times}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="fit, demo, stream")
    parser.add_argument("--kernels", action="store_true", help="list what is compiled")
    arguments = parser.parse_args()
    wanted = arguments.commands or list(BARS)
    if unknown := set(wanted) - set(BARS):
        parser.error(f"no such command: {', '.join(sorted(unknown))}")
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        for command in wanted:
            cache = bench.new_cache()
            cold = bench.cpu_seconds(command, cache)
            warm = min(bench.cpu_seconds(command, cache) for _ in range(WARM_RUNS))
            figures[command] = {
                "cold": round(cold, 2),
                "warm": round(warm, 2),
                "compiling": round(cold - warm, 2),
                "bar": BARS[command],
                "met": cold - warm <= BARS[command],
            }
            print(f"{command}: {json.dumps(figures[command])}", flush=True)
            if arguments.kernels:
                log = Path(name) / f"{command}.log"
                bench.cpu_seconds(command, bench.new_cache(), log)
                show_kernels(command, kernels(log))
    raise SystemExit(not all(figure["met"] for figure in figures.values()))


if __name__ == "__main__":
    main()
