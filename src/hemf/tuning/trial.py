"""Settings to try, and trials: scores on held-out ratings, early stopping, and their file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hemf._files import JsonLog, digest
from hemf._typing import FeaturesLike
from hemf.batch.callbacks import SweepReport
from hemf.data.ratings import Ratings
from hemf.errors import DataError, ParameterError

T = TypeVar("T")

Settings = dict[str, Any]
"""Parameters of `HeMF`, and whether ``user_features`` and ``item_features`` are used."""
Space = Mapping[str, Sequence[object]]
"""Values to try of each parameter."""
Features = dict[str, list[FeaturesLike]]

FEATURES = ("user_features", "item_features")
COMMUNITIES = ("max_user_communities", "max_item_communities")
ELSEWHERE = {
    "validation_fraction": "ratings are held out anyway",
    "rng": "it is the seed of the whole search",
    "n_jobs": "the result is the same for any",
    "duplicates": "it changes what there is to predict",
    **dict.fromkeys(
        ("buffer", "history", "forgetting", "refresh", "max_online_communities"),
        "only what is learnt online depends on it",
    ),
}
"""Parameters that cannot be tried, and why."""


@dataclass(frozen=True)
class Choice:
    """Options of which one is chosen; all of them set the same parameters."""

    options: tuple[Settings, ...]
    ordered: bool = False
    """Whether the options are ordered: if one is no better, neither are those beyond it."""

    @property
    def names(self) -> set[str]:
        """Parameters that the options set."""
        return set(self.options[0])


def asked_space(space: Space, fixed: Mapping[str, object]) -> tuple[Choice, ...]:
    """Return the choices of a space.

    >>> [choice.options for choice in asked_space({"n_factors": [5, 10]}, {})]
    [({'n_factors': 5}, {'n_factors': 10})]
    """
    choices = []
    for name, values in space.items():
        if name in fixed:
            raise ParameterError(f"{name} is both fixed and to be tried; do one", value=name)
        if name in ELSEWHERE:
            raise ParameterError(f"{name} is not to be tried: {ELSEWHERE[name]}", value=name)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise ParameterError(f"{name}: give a list of values to try, not {values!r}")
        choices.append(Choice(tuple({name: value} for value in values)))
    return tuple(choices)


def check_times(
    settings: Mapping[str, object], choices: Sequence[Choice], ratings: Ratings
) -> None:
    """Raise an error for moods without timestamps."""
    options = [settings, *(option for choice in choices for option in choice.options)]
    if ratings.timestamps is None and any(option.get("moods") for option in options):
        raise DataError(
            "moods are learnt from when ratings were given, and these have no timestamps; give a "
            "fourth column with them, or leave moods out"
        )


# -- trials --------------------------------------------------------------------------------------

CONVERGED, RISEN, BEHIND, TIME, FAILED = "converged", "risen", "behind", "time", "failed"
"""Ends of a fit, as in files of trials: it converged, its held-out error rose, it cannot win, the
time limit was reached, it raised an error."""
CRITERIA = ("rmse", "nlpd", "elbo")
RISE = 1e-4  # smallest relative rise of the error that counts
LOOK_BACK = 3  # sweeps for the slope of a curve
LOOK_AHEAD = 10  # minimal number of sweeps for which the slope is extrapolated
BEHIND_SWEEPS = 2  # consecutive sweeps after which a candidate is behind


@dataclass(frozen=True)
class Trial:
    """Result of a candidate; lower scores are better."""

    number: int
    settings: Settings
    score: float
    """Mean over folds of held-out RMSE or NLPD, or of minus the bound per rating."""
    rmse: float
    """Held-out RMSE, mean over folds."""
    error: float | None
    """Standard error of the score; None with one fold."""
    sweeps: int
    """Number of sweeps of all folds."""
    max_sweeps: int | None
    """Sweep after which the held-out error began to rise; None if it did not."""
    ended: str
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    curves: tuple[tuple[float, ...], ...] = ()
    """Score of each fold after every sweep."""
    scores: tuple[float, ...] = ()
    """Score of each fold."""
    reason: str | None = None
    """Message of an error."""

    @property
    def finished(self) -> bool:
        """Whether it ran to its end, and so can win."""
        return self.ended in (CONVERGED, RISEN)

    def described(self, first: Mapping[str, object]) -> str:
        """Return how its settings differ from the first ones, such as ``n_factors=5, moods``."""
        changed = {n: value for n, value in self.settings.items() if value != first.get(n)}
        words = []
        if all(changed.get(name) == 1 for name in COMMUNITIES):
            changed = {n: value for n, value in changed.items() if n not in COMMUNITIES}
            words.append("one community")
        for name, value in changed.items():
            if value is None or isinstance(value, bool):
                words.append(name if value else f"no {name}")
            else:
                words.append(f"{name}={value}")
        return ", ".join(words) or "defaults"


@dataclass
class Curve:
    """Callback of a fit that records scores and stops the fit early.

    >>> curve = Curve("rmse", patience=2, earliest=0)
    >>> errors = [0.9, 0.8, 0.85, 0.86]
    >>> [curve.stops(sweep, error) for sweep, error in enumerate(errors, start=1)]
    [False, False, False, True]
    >>> curve.ended, curve.best_sweep
    ('risen', 2)
    """

    metric: str
    patience: int
    earliest: int
    """First sweep that counts: before it parts of the model are fixed."""
    whole: bool = False
    """Whether the fit is never stopped early."""
    rival: tuple[float, int] | None = None
    """Score and sweeps of the best candidate so far on the same fold."""
    deadline: float | None = None
    n_ratings: int = 1
    values: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    ended: str = CONVERGED
    best_sweep: int = 0
    _behind: int = 0

    def __call__(self, report: SweepReport) -> bool:
        """Record a sweep; return whether to stop."""
        assert report.validation_rmse is not None
        self.errors.append(report.validation_rmse)
        value = self.errors[-1] if self.metric == "rmse" else -report.elbo / self.n_ratings
        if self.stops(report.sweep, value):
            return True
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.ended = TIME
        return self.ended == TIME

    def stops(self, sweep: int, value: float) -> bool:
        """Record a value; return whether the error has risen or the candidate is behind."""
        self.values.append(value)
        if self.whole or self.metric == "nlpd" or sweep < self.earliest:
            return False  # there is no curve of NLPD
        if not self.best_sweep or value < self.values[self.best_sweep - 1]:
            self.best_sweep = sweep
        best = self.values[self.best_sweep - 1]
        waited = sweep - self.best_sweep >= self.patience
        if waited and value > best + RISE * abs(best):
            self.ended = RISEN
        elif self._is_behind(sweep, value):
            self.ended = BEHIND
        return self.ended != CONVERGED

    def _is_behind(self, sweep: int, value: float) -> bool:
        """Whether the linearly extrapolated curve does not reach the rival."""
        if self.rival is None or sweep < self.earliest + LOOK_BACK:
            return False
        score, sweeps = self.rival
        fall = max(self.values[-1 - LOOK_BACK] - value, 0.0) / LOOK_BACK
        ahead = max(sweeps - sweep, LOOK_AHEAD)
        best = min(value, self.values[self.best_sweep - 1])
        self._behind = self._behind + 1 if min(best, value - fall * ahead) > score else 0
        return self._behind >= BEHIND_SWEEPS

    @property
    def score(self) -> float:
        """Score of the best sweep if the error rose, else of the last."""
        return self.values[self.best_sweep - 1] if self.ended == RISEN else self.values[-1]

    @property
    def rmse(self) -> float:
        """RMSE of the same sweep."""
        return self.errors[self.best_sweep - 1] if self.ended == RISEN else self.errors[-1]


class Protocol(NamedTuple):
    """How candidates are compared."""

    metric: str = "rmse"
    holdout: float = 0.1
    folds: int = 1
    patience: int = 5


def used(features: Mapping[str, T], settings: Mapping[str, object]) -> dict[str, T]:
    """Return the features that settings use.

    >>> used({"user_features": 1, "item_features": 2}, {"user_features": False})
    {'item_features': 2}
    """
    return {n: f for n, f in features.items() if n in FEATURES and settings.get(n, True)}


# -- file of trials ------------------------------------------------------------------------------

_HEAD = b'{"search": {'  # every file of trials begins with this


def key_of(settings: Mapping[str, object]) -> str:
    """Return the same text for equal settings, whatever their order.

    >>> key_of({"n_factors": 5, "moods": True}) == key_of({"moods": True, "n_factors": 5})
    True
    """
    return json.dumps(settings, sort_keys=True, default=str)


def fingerprint(ratings: Ratings, features: Features) -> str:
    """Return a hash of ratings and features.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> fingerprint(data, {}) == fingerprint(data.select([0]), {})
    False
    """

    def parts() -> Iterator[bytes]:
        for known in (ratings.users, ratings.items):
            yield "\0".join(map(repr, known.ids.tolist())).encode()
        for array in (*ratings.triples(), ratings.timestamps):
            yield b"none" if array is None else array.tobytes()
        for name, tables in features.items():
            yield name.encode()
            for table in tables:
                yield repr((table.ids.tolist(), table.names, table.labels)).encode()
                n = table.numbers
                is_sparse = hasattr(n, "indptr")
                for array in (n.data, n.indices, n.indptr) if is_sparse else (n,):
                    yield array.tobytes()

    return digest(parts())[:16]


class TrialLog:
    """File of trials, a line of JSON each, so that a search continues; without a path, nothing.

    The first line describes the search; trials of another search are an error. A last line that was
    cut by a kill is dropped.
    """

    def __init__(self, path: Path | None, search: Mapping[str, object]) -> None:
        self._log = None if path is None else JsonLog(path)
        self._found: dict[str, Settings] = {}
        if self._log is not None:
            self._read(self._log, json.loads(json.dumps(dict(search), default=str)))

    def _read(self, log: JsonLog, ours: Settings) -> None:
        path = log.path
        if not log.entries:
            # The rest may be the beginning of a first line that was cut.
            if log.cut.strip() and not _HEAD.startswith(log.cut[: len(_HEAD)]):
                raise DataError(f"{path} is no file of trials; choose another", value=str(path))
            log.append({"search": ours})
            return
        lines: list[Any] = log.entries
        try:
            theirs = dict(lines[0]["search"])
            for line in lines[1:]:
                self._found[key_of(line["settings"])] = line
                self._trial(line, 0, line["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no file of trials, or damaged ({error}); choose another",
                value=str(path),
            ) from error
        other = [name for name in ours if theirs.get(name) != ours[name]]
        if other:
            raise DataError(
                f"{path} holds trials of another search: {other[0]} was {theirs.get(other[0])!r} "
                f"and is {ours[other[0]]!r}; choose another file",
                value=str(path),
            )

    @staticmethod
    def _trial(line: Settings, number: int, settings: Settings) -> Trial:
        curves = tuple(tuple(curve) for curve in line["curves"])
        numbers = {**line, "number": number, "settings": settings}
        infinite = {n: float("inf") for n in ("score", "rmse") if line[n] is None}
        return Trial(**numbers | infinite | {"curves": curves, "scores": tuple(line["scores"])})

    def find(self, number: int, settings: Settings) -> Trial | None:
        """Return the trial of these settings, if there is one."""
        line = self._found.get(key_of(settings))
        return None if line is None else self._trial(line, number, settings)

    def add(self, trial: Trial) -> None:
        """Append a trial; when this returns, it is on disk."""
        if self._log is None:
            return
        line = asdict(trial)
        line |= {n: None for n in ("score", "rmse") if line[n] == float("inf")}
        self._log.append(line)
