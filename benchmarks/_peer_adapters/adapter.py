"""One fit of one peer, in the process and the environment of its own that ``peers.py`` made.

    python benchmarks/_peer_adapters/adapter.py ADAPTER FOLDER

FOLDER holds task.json and the columns of the split as .npy files. The ratings of the test part are
not among them: adapters predict, and the parent judges. ADAPTER is a module of this folder with

    PACKAGES                 # whose versions are reported
    def run(task, settings)  # fits, and calls task.point and task.finish

and may import NumPy and its peer, nothing of hemf's (but for hemf's own).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("users", "items", "ratings", "test_users", "test_items")


class Clock:
    """CPU seconds, user and system of all threads, of fitting and of predicting, apart.

    What is timed inside another pauses it, so that predictions made by a callback of the fit do
    not count as fitting.
    """

    def __init__(self) -> None:
        self.spent = {"fit": 0.0, "predict": 0.0}
        self._kinds: list[str] = []
        self._last = 0.0

    @contextlib.contextmanager
    def running(self, kind: str) -> Iterator[None]:
        """Charge what follows to "fit" or to "predict"."""
        self._charge()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._charge()
            self._kinds.pop()

    def fitted(self) -> float:
        """Return the seconds of fitting until now."""
        self._charge()
        return self.spent["fit"]

    def _charge(self) -> None:
        now = time.process_time()
        if self._kinds:
            self.spent[self._kinds[-1]] += now - self._last
        self._last = now


class Task:
    """What to learn and to predict, and where the answers go."""

    def __init__(self, folder: Path) -> None:
        given = json.loads((folder / "task.json").read_text())
        self.n_users: int = given["n_users"]
        self.n_items: int = given["n_items"]
        self.threads: int = given["threads"]
        self.seed: int = given["seed"]
        self.curve: bool = given["curve"]
        self.settings: dict[str, Any] = given["settings"]
        for name in COLUMNS:
            setattr(self, name, np.load(folder / f"{name}.npy"))
        self.clock = Clock()
        self.result: dict[str, Any] = {"points": [], "curve_by": None}
        self._folder = folder

    def point(self, seconds: float, iterations: int, mean: np.ndarray) -> None:
        """Record what is predicted after so many seconds of fitting: a point of the curve."""
        points = self.result["points"]
        np.save(self._folder / f"point{len(points)}.npy", mean.astype(np.float32))
        points.append({"cpu_seconds": seconds, "iterations": iterations})

    def finish(self, mean: np.ndarray, std: np.ndarray | None = None, **notes: Any) -> None:
        """Record the predictions of the whole fit, and what it took until here."""
        np.save(self._folder / "mean.npy", np.asarray(mean, dtype=np.float64))
        if std is not None:
            np.save(self._folder / "std.npy", np.asarray(std, dtype=np.float64))
        self.result |= {
            "fit_cpu_seconds": self.clock.spent["fit"],
            "predict_cpu_seconds": self.clock.spent["predict"],
            "peak_rss_mb": peak_rss_mb(),
            "notes": notes,
        }

    def standardised(self) -> tuple[np.ndarray, float, float]:
        """Return the ratings with mean 0 and deviation 1, and what takes predictions back."""
        mean, scale = float(self.ratings.mean()), float(self.ratings.std()) or 1.0
        return (self.ratings - mean) / scale, mean, scale


def peak_rss_mb() -> float:
    """Return the most memory that this process has held.

    Linux carries the peak of whoever started a process over into ru_maxrss, so that a parent with
    a large set would count; VmHWM begins again.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def worth_a_point(iteration: int) -> bool:
    """Say whether the curve has a point here: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on."""
    power = 1 << (iteration.bit_length() - 1)
    return iteration == power or (power > 1 and iteration == power + power // 2)


Answer = np.ndarray | tuple[np.ndarray, np.ndarray]
Fitted = tuple[Callable[[], Answer], int]
"""What predicts the test part, means or means and deviations, and how many iterations it took."""


def by_refitting(
    task: Task, settings: dict[str, Any], iterations: str, fit: Callable[[dict[str, Any]], Fitted]
) -> None:
    """Fit and finish; then, for the curve, fit from the start with 2, 4, 8, … iterations.

    ``iterations`` is the setting that limits them.
    """
    with task.clock.running("fit"):
        predict, done = fit(settings)
    with task.clock.running("predict"):
        mean, std = both(predict())
    task.finish(mean, std, iterations=done)
    if not task.curve:
        return
    task.result["curve_by"] = "refitting with fewer iterations"
    few = 2
    while few < done:
        clock = Clock()
        with clock.running("fit"):
            predict, _ = fit({**settings, iterations: few})
        task.point(clock.spent["fit"], few, both(predict())[0])
        few *= 2
    task.point(task.clock.spent["fit"], done, mean)


def both(answer: Answer) -> tuple[np.ndarray, np.ndarray | None]:
    return answer if isinstance(answer, tuple) else (answer, None)


def main() -> None:
    adapter, folder = importlib.import_module(sys.argv[1]), Path(sys.argv[2])
    task = Task(folder)
    adapter.run(task, task.settings)
    versions = {name: importlib.metadata.version(name) for name in adapter.PACKAGES}
    task.result["versions"] = {**versions, "numpy": np.__version__}
    (folder / "result.json").write_text(json.dumps(task.result))


if __name__ == "__main__":
    main()
