"""Tasks of the experiments, each run once, also after an interruption.

A task is one method on one split. Experiments share tasks: what one has run, another finds. All
first splits come before the second ones, so that every comparison is there early.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from hemf import __version__
from hemf._files import JsonLog, digest
from hemf.errors import DatasetError
from hemf.evaluation import Splits, kept_splits
from hemf.experiments.catalog import CHUNKS, Experiment, Method, Part
from hemf.experiments.data import Found, find
from hemf.experiments.learners import LEARNERS, Trial, columns_of, expected_cost
from hemf.online.journal import uninterrupted

RESULTS, SPLITS = "results.jsonl", "splits"


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
    settings: Mapping[str, Any]
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

    @property
    def cost(self) -> float:
        """Approximate relative cost."""
        n_ratings = self.found.ratings.n_ratings
        return expected_cost(self.method.learner, self.settings, n_ratings)


@dataclass
class Plan:
    """The tasks of experiments, and what is missing for others."""

    request: Request
    experiments: list[Experiment]
    tasks: list[Task]
    missing: list[str]
    """What to place where, for the parts that cannot be run."""

    def tasks_of(self, part: Part) -> list[Task]:
        """Return the tasks of a part; none if its data are missing."""
        return [task for task in self.tasks if task.part is part]

    def other_versions(self, results: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return how many of the plan's results are of each version of hemf that is not this."""
        keys = {task.key for task in self.tasks} & results.keys()
        found = Counter(version_of(results[key]) for key in keys)
        return {version: found[version] for version in sorted(found) if version != __version__}

    def remark_on_versions(self, results: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Say which results are of other versions, and what to do about it; None if none is."""
        others = self.other_versions(results)
        if not others:
            return None
        listed = ", ".join(f"{number} of {version}" for version, number in others.items())
        return (
            f"{self.request.output / RESULTS} holds results of other versions of hemf: {listed}. "
            f"This is {__version__}. They are kept and not run again; name another folder with "
            "--output to have all of this version"
        )


def plan(experiments: Sequence[Experiment], request: Request) -> Plan:
    """Find the data and list the tasks, all first splits first."""
    missing: list[str] = []
    numbered: list[tuple[int, Task]] = []
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
        numbered += [
            (split, Task(found, part, method, split, method.settings_of(request.quick),
                         request.seed))
            for method in part.methods_of(request.quick)
            for split in range(request.splits_of(part))
        ]  # fmt: skip
    if not numbered:
        raise DatasetError("; ".join(missing))
    numbered.sort(key=lambda pair: pair[0])
    return Plan(request, list(experiments), [task for _, task in numbered], missing)


Watch = Callable[[Task, float, str], None]
"""Called with the task at work, the share of all work that is done, and a word on the task."""


def run(planned: Plan, watch: Watch = lambda task, share, said: None) -> Results:
    """Run what is not there yet; every result is on disk before the next task begins."""
    request = planned.request
    results = Results(request.output / RESULTS)
    splits = _KeptSplits(request)
    for part in {id(task.part): task for task in planned.tasks}.values():
        splits.of(part)  # made, or found to be of other data, before hours of work
    unique = {task.key: task for task in planned.tasks}
    left = [task for key, task in unique.items() if key not in results.by_key]
    total = sum(task.cost for task in left) or 1.0
    done = 0.0
    for task in left:
        start = done

        def tell(share: float, said: str, task: Task = task, start: float = start) -> None:
            watch(task, (start + min(share, 1.0) * task.cost) / total, said)

        tell(0.0, "begins")
        outcome = LEARNERS[task.method.learner](
            splits.trial(task), task.settings, task.seed + task.split, tell
        )
        with uninterrupted():
            results.add(
                {
                    "key": task.key,
                    "version": __version__,
                    "dataset": task.found.name,
                    "stand_in": task.found.stand_in,
                    "fingerprint": task.found.fingerprint,
                    "protocol": task.protocol,
                    "split": task.split,
                    "seed": task.seed,
                    "method": task.method.label,
                    "learner": task.method.learner,
                    "settings": dict(task.settings),
                    **splits.sizes(task),
                    **outcome.as_dict(),
                }
            )
        done += task.cost
    return results


class _KeptSplits:
    """Splits in files of the output folder; the one at work is held in memory."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._folder = request.output / SPLITS
        self._splits: dict[Path, Splits] = {}
        self._trial: tuple[tuple[Path, int], Trial] | None = None

    def _path(self, task: Task) -> Path:
        protocol = task.protocol.replace("/", "-").replace(" ", "-")
        count = self._request.splits_of(task.part)
        return self._folder / f"{task.found.name}-{protocol}-seed{task.seed}-{count}.npz"

    def of(self, task: Task) -> Splits:
        """Return the splits of a task's part: from the file, or made and saved."""
        path = self._path(task)
        if path not in self._splits:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._splits[path] = kept_splits(
                path,
                task.part.protocol,
                task.found.ratings,
                n_splits=self._request.splits_of(task.part),
                n_chunks=task.part.n_chunks,
                seed=task.seed,
            )
        return self._splits[path]

    def trial(self, task: Task) -> Trial:
        """Return the ratings of a task's split."""
        place = self._path(task), task.split
        if self._trial is None or self._trial[0] != place:
            splits, ratings = self.of(task), task.found.ratings
            train, test = splits[task.split]
            chunks: list[Any] = []
            if task.part.n_chunks is not None:
                columns = columns_of(ratings)
                chunks = [
                    tuple(column[rows] for column in columns) for rows in splits.chunks(task.split)
                ]
            self._trial = place, Trial(ratings.select(train), ratings.select(test), chunks)
        return self._trial[1]

    def sizes(self, task: Task) -> dict[str, int]:
        """Return how many ratings a split learns and withholds."""
        trial = self.trial(task)
        return {"n_train": trial.train.n_ratings, "n_test": trial.test.n_ratings}


# -- results -------------------------------------------------------------------------------------


class Results:
    """Results of earlier runs, and a file to which new ones are appended.

    A last line that was cut by a kill is dropped when the first result is added. Other lines that
    cannot be read are ignored and kept. ``notes`` report both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, dict[str, Any]] = {}
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

    def add(self, entry: dict[str, Any]) -> None:
        """Append a result; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._log.append(entry)
        self.by_key[entry["key"]] = entry


_NUMBERS = ("test_rmse", "train_rmse", "cpu_seconds", "n_train", "n_test")
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "key": str, "settings": dict, "curve": list, **dict.fromkeys(_NUMBERS, (int, float)),
}  # fmt: skip


def _is_result(entry: object) -> TypeGuard[dict[str, Any]]:
    """Whether an entry has everything that tables are made of."""
    if not isinstance(entry, dict):
        return False
    complete = all(isinstance(entry.get(name), kind) for name, kind in _NEEDED.items())
    return complete and all(math.isfinite(entry[name]) for name in _NUMBERS)


UNKNOWN = "a version not noted"


def version_of(entry: Mapping[str, Any]) -> str:
    """Return the version of hemf that a result is of; in the first ones it was not noted.

    >>> version_of({"version": "0.1.0"}), version_of({})
    ('0.1.0', 'a version not noted')
    """
    return str(entry.get("version") or UNKNOWN)
