"""Environments and processes of peers, and what their predictions are worth.

A peer that cannot be installed, that crashes or that takes too long is a row that says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from _peer_splits import Split
from hemf.evaluation import coverage, mae, nlpd, rmse

ADAPTERS = Path(__file__).resolve().parent / "_peer_adapters"


class PeerError(Exception):
    """Why there is no result of a peer, in one line."""


@dataclass(frozen=True)
class Peer:
    """A method: what it needs, which adapter fits it, and with what."""

    name: str
    adapter: str
    environment: str | None = None
    """Name of the environment, which peers may share; ``None``: the one that runs this."""
    requirements: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Environments:
    """Virtual environments by name, made once and kept."""

    folder: Path
    timeout: float = 3600.0
    failures: dict[str, str] = field(default_factory=dict, init=False)
    """What went wrong in this run: it is not tried again."""

    def python(self, peer: Peer) -> str:
        """Return the interpreter that has the peer; make its environment if there is none."""
        if peer.environment is None:
            return sys.executable
        if peer.environment in self.failures:
            raise PeerError(self.failures[peer.environment])
        home = self.folder / peer.environment
        python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        done = home / "requirements.json"
        wanted = sorted(peer.requirements)
        if done.exists() and json.loads(done.read_text()) == wanted:
            return str(python)
        try:
            self._make(home, python, wanted)
        except PeerError as error:
            self.failures[peer.environment] = str(error)
            raise
        done.write_text(json.dumps(wanted))
        return str(python)

    def _make(self, home: Path, python: Path, wanted: list[str]) -> None:
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        try:
            tried = subprocess.run(
                [*pip, *wanted], capture_output=True, text=True, timeout=self.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"install took more than {self.timeout:.0f} s") from None
        if tried.returncode:
            raise PeerError(f"install failed: {last_error(tried.stderr)}")


def last_error(text: str) -> str:
    """Return the line of an output that says most about what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no reason given"])[-1][:300]


@dataclass
class Runner:
    """Runs peers on splits, each in a process of its own."""

    environments: Environments
    threads: int = 2
    seed: int = 0
    curve: bool = True
    timeout: float = 7200.0
    script: str = "adapter.py"

    def row(self, peer: Peer, split: Split) -> dict[str, Any]:
        """Return the figures of one peer on one split, or why there are none."""
        row = {"set": split.name, "peer": peer.name, "settings": peer.settings}
        try:
            python = self.environments.python(peer)
            with tempfile.TemporaryDirectory() as folder:
                self._run(python, peer, split, Path(folder))
                return row | self.judge(Path(folder), split)
        except PeerError as error:
            return row | {"failure": str(error)}

    def judge(self, folder: Path, split: Split) -> dict[str, Any]:
        """Return the figures of what the script has left in a folder."""
        return judged(folder, split)

    def _run(self, python: str, peer: Peer, split: Split, folder: Path) -> None:
        for name, column in zip(("users", "items", "ratings"), split.train, strict=True):
            np.save(folder / f"{name}.npy", column)
        for name, column in zip(("test_users", "test_items"), split.test[:2], strict=True):
            np.save(folder / f"{name}.npy", column)
        task = {
            "n_users": split.n_users,
            "n_items": split.n_items,
            "threads": self.threads,
            "seed": self.seed,
            "curve": self.curve,
            "settings": peer.settings,
        }
        (folder / "task.json").write_text(json.dumps(task))
        limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | {name: str(self.threads) for name in limits}
        if peer.environment is not None:  # nothing of this environment may leak into another
            environment.pop("PYTHONPATH", None)
        command = [python, str(ADAPTERS / self.script), peer.adapter, str(folder)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"took more than {self.timeout:.0f} s") from None
        if done.returncode or not (folder / "result.json").exists():
            raise PeerError(f"exit code {done.returncode}: {last_error(done.stderr)}")


def judged(folder: Path, split: Split) -> dict[str, Any]:
    """Return the figures of what an adapter has left in a folder."""
    result = json.loads((folder / "result.json").read_text())
    actual = split.test[2]
    mean, missing = usable(np.load(folder / "mean.npy"), split)
    row = {
        "rmse": rmse(actual, mean),
        "mae": mae(actual, mean),
        "missing": missing,
        "nlpd": None,
        "coverage90": None,
    }
    if (folder / "std.npy").exists():
        std = np.load(folder / "std.npy")
        row |= {"nlpd": nlpd(actual, mean, std), "coverage90": coverage(actual, mean, std)}
    curve = []
    for k, point in enumerate(result.pop("points")):
        at = usable(np.load(folder / f"point{k}.npy"), split)[0]
        curve.append({**point, "rmse": rmse(actual, at)})
    total = result["fit_cpu_seconds"] + result["predict_cpu_seconds"]
    return row | result | {"cpu_seconds": total, "curve": curve}


def usable(mean: np.ndarray, split: Split) -> tuple[np.ndarray, int]:
    """Clip predictions to the range of the training ratings; the mean stands in for missing ones.

    The second is how many there were.
    """
    if mean.shape != split.test[2].shape:
        raise PeerError(f"{mean.shape} predictions for {split.test[2].size} pairs")
    ratings = split.train[2]
    missing = ~np.isfinite(mean)
    filled = np.where(missing, ratings.mean(), mean)
    return np.clip(filled, ratings.min(), ratings.max()), int(missing.sum())


def seconds_to(row: dict[str, Any], target: float) -> float | None:
    """Return the CPU seconds of fitting after which a peer first had this error, if it had."""
    reached = [p["cpu_seconds"] for p in row.get("curve", ()) if p["rmse"] <= target]
    return min(reached) if reached else None
