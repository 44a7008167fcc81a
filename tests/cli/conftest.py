"""The command line as people run it, judged by what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hemf.cli.__main__ import main
from hemf.data import datasets

SETTINGS = ("--set", "n_factors=3", "--set", "tol=0.01")


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout; NaN and the like are not JSON."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


Runner = Callable[..., Run]


def run_process(*arguments: object, folder: Path, **environment: str) -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "hemf.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env={**os.environ, "HEMF_CACHE": str(folder / "cache"), **environment},
        timeout=300,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def process_in() -> Runner:
    """Run ``hemf`` as a process of its own, in the ``folder`` given."""
    return run_process


@pytest.fixture
def process(tmp_path: Path) -> Runner:
    """Run ``hemf`` as a process of its own, in an empty folder."""
    return partial(run_process, folder=tmp_path)


@pytest.fixture
def run_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run ``hemf`` as `process_in` does, but in this process, where all is loaded already."""

    def run(*arguments: object, folder: Path, **environment: str) -> Run:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HEMF_CACHE", str(folder / "cache"))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["hemf", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        streams = capsys.readouterr()
        return Run(int(ended.value.code or 0), streams.out, streams.err)

    return run


@pytest.fixture
def hemf(run_in: Runner, tmp_path: Path) -> Runner:
    """Run ``hemf`` in this process, in an empty folder."""
    return partial(run_in, folder=tmp_path)


@pytest.fixture
def on_terminal(hemf: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Run ``hemf`` as the fixture of that name does, with a terminal at its stdout."""

    def run(*arguments: object, **environment: str) -> Run:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        plain = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "300", "LINES": "50"}
        return hemf(*arguments, **{**plain, **environment})

    return run


@dataclass(frozen=True)
class Club:
    """A small film club: its ratings in files, and a model of them."""

    folder: Path
    ratings: Path
    train: Path
    test: Path
    model: Path
    fitted: Run
    """How `hemf fit --json --report` answered."""

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


@pytest.fixture(scope="session")
def club(tmp_path_factory: pytest.TempPathFactory) -> Club:
    folder = tmp_path_factory.mktemp("club")
    drawn = datasets.draw(80, 50, density=0.3, user_communities=2, item_communities=2, rng=1)
    lines = [
        f"user-{user},{item},{rating:.2f}"
        for user, item, rating in zip(drawn.users, drawn.items, drawn.ratings, strict=True)
    ]
    paths = {name: folder / f"{name}.csv" for name in ("ratings", "train", "test")}
    for name, part in (("ratings", lines), ("train", lines[:-100]), ("test", lines[-100:])):
        paths[name].write_text("\n".join(["user,item,rating", *part]))
    model, report = folder / "model.hemf", folder / "report.html"
    fitted = run_process(
        "fit", paths["ratings"], "-o", model, "--report", report, "--json", *SETTINGS,
        "--set", "validation_fraction=0.1", folder=folder,
    )  # fmt: skip
    assert fitted.code == 0, fitted.err
    return Club(folder, paths["ratings"], paths["train"], paths["test"], model, fitted)


@pytest.fixture
def evaluate_keys() -> list[str]:
    """What others rely on finding in the answer of ``hemf evaluate``, in this order."""
    return [
        "rmse", "mae", "train_rmse", "coverage90", "seconds", "cpu_seconds", "peak_rss_mb",
        "sweeps", "user_communities", "item_communities",
        "coverage50", "coverage80", "coverage95", "nlpd", "crps", "log_score", "pit_distance",
        "pit",
    ]  # fmt: skip
