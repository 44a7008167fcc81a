"""Tasks of the experiments, and the file of their results.

A task is one method on one split. Experiments share tasks: what one has run, another finds. All
first splits come before the second ones, so that every comparison is there early.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from hemf._files import JsonLog, digest, library_version
from hemf.errors import DatasetError
from hemf.experiments.catalog import CHUNKS, Experiment, Method, Part, Settings
from hemf.experiments.data import Found, find

RESULTS = "results.jsonl"

Entry: TypeAlias = Mapping[str, Any]
"""A result: one line of the file."""


@dataclass(frozen=True)
class Request:
    """Arguments of `hemf reproduce`."""

    output: Path
    quick: bool = False
    data: Path | None = None
    seed: int = 0
    splits: int | None = None

    def splits_of(self, part: Part) -> int:
        """Return how many splits a part has."""
        if self.splits is not None:
            return self.splits
        return part.quick_splits if self.quick else part.splits


@dataclass(frozen=True, eq=False)
class Task:
    """One method on one split of one data set."""

    found: Found
    part: Part
    method: Method
    split: int
    settings: Settings
    seed: int

    @cached_property
    def key(self) -> str:
        """Name of the result: the same for the same data, split, learner, settings and seed."""
        exact = json.dumps(
            [self.found.fingerprint, self.part.protocol, self.part.n_chunks, self.seed + self.split,
             self.method.learner, dict(self.settings), self.seed],
            sort_keys=True,
        )  # fmt: skip
        found, label = self.found.name, self.method.label
        return (
            f"{found} | {self.protocol} | {self.split} | {label} | {digest([exact.encode()])[:12]}"
        )

    @property
    def protocol(self) -> str:
        """Name of the protocol, with the number of chunks."""
        chunks = self.part.n_chunks
        return self.part.protocol if chunks is None else f"{chunks} {CHUNKS}"


@dataclass
class Plan:
    """The tasks of experiments, and what is missing for others."""

    request: Request
    experiments: list[Experiment]
    tasks: list[Task]
    missing: list[str]
    """Missing files, and where to put them, for the parts that cannot be run."""

    def tasks_of(self, part: Part) -> list[Task]:
        """Return the tasks of a part; none if its data are missing."""
        return [task for task in self.tasks if task.part is part]

    def other_versions(self, results: Mapping[str, Entry]) -> dict[str, int]:
        """Return how many of the plan's results are of each version of hemf that is not this."""
        keys = {task.key for task in self.tasks} & results.keys()
        found = Counter(version_of(results[key]) for key in keys)
        return {
            version: found[version] for version in sorted(found) if version != library_version()
        }

    def remark_on_versions(self, results: Mapping[str, Entry]) -> str | None:
        """Say which results are of other versions, and what to do about it; None if none is."""
        others = self.other_versions(results)
        if not others:
            return None
        listed = ", ".join(f"{number} of {version}" for version, number in others.items())
        return (
            f"{self.request.output / RESULTS} holds results of other versions of hemf: {listed}. "
            f"This is {library_version()}. They are kept and not run again; name another folder "
            "with --output to have all of this version"
        )


def plan(experiments: Sequence[Experiment], request: Request) -> Plan:
    """Find the data and list the tasks, all first splits first."""
    missing: list[str] = []
    tasks: list[Task] = []
    known: dict[str, Found | None] = {}
    for part in (part for experiment in experiments for part in experiment.parts):
        if part.dataset not in known:
            try:
                known[part.dataset] = find(part.dataset, request.data, quick=request.quick)
            except DatasetError as error:
                known[part.dataset] = None
                missing.append(str(error))
        found = known[part.dataset]
        if found is None:
            continue
        tasks += [
            Task(found, part, method, split, method.settings_of(request.quick), request.seed)
            for method in part.methods_of(request.quick)
            for split in range(request.splits_of(part))
        ]
    if not tasks:
        raise DatasetError("; ".join(missing))
    tasks.sort(key=lambda task: task.split)
    return Plan(request, list(experiments), tasks, missing)


# -- results -------------------------------------------------------------------------------------


class Results:
    """Results of earlier runs, and a file to which new ones are appended.

    A last line that was cut by a kill is dropped when the first result is added. Other lines that
    cannot be read are ignored and kept. ``notes`` report both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, Entry] = {}
        self.notes: list[str] = []
        self._log = JsonLog(path)
        for number, entry in enumerate(self._log.entries, start=1):
            if _is_result(entry):
                self.by_key[entry["key"]] = entry
            else:
                self.notes.append(f"{path}: line {number} is no result and is ignored")
        if self._log.cut:
            self.notes.append(
                f"{path}: the last line was cut in two; it is dropped and its run repeated, "
                f"{len(self.by_key)} finished results are kept"
            )

    def add(self, entry: Entry) -> None:
        """Append a result; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._log.append(entry)
        self.by_key[entry["key"]] = entry


_NUMBERS = ("test_rmse", "train_rmse", "cpu_seconds", "n_train", "n_test")
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "key": str, "settings": dict, "curve": list, **dict.fromkeys(_NUMBERS, (int, float)),
}  # fmt: skip


def _is_result(entry: object) -> TypeGuard[Entry]:
    """Whether an entry has all the fields that tables show."""
    if not isinstance(entry, dict):
        return False
    complete = all(isinstance(entry.get(name), kind) for name, kind in _NEEDED.items())
    return complete and all(math.isfinite(entry[name]) for name in _NUMBERS)


def version_of(entry: Entry) -> str:
    """Return the version of hemf that a result is of; in the first ones it was not noted.

    >>> version_of({"version": "0.1.0"}), version_of({})
    ('0.1.0', 'a version not noted')
    """
    return str(entry.get("version") or "a version not noted")
