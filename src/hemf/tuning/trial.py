"""A candidate, scored on held-out ratings and stopped early."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from hemf._files import JsonLog, digest
from hemf._options import fit_options
from hemf.batch.callbacks import SweepReport
from hemf.data.ratings import Ratings
from hemf.errors import ConvergenceWarning, DataError, HemfError, ParameterError
from hemf.estimator import HeMF
from hemf.evaluation.splits import k_fold
from hemf.tuning.space import FEATURES, Features, Settings, described, new_model

T = TypeVar("T")

SETTLED, RISEN, BEHIND, TIME, FAILED = "settled", "risen", "behind", "time", "failed"
"""Ends of a fit: converged, held-out error rose, cannot win, time limit, error."""
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
    cpu_seconds: float
    seconds: float
    curves: tuple[tuple[float, ...], ...] = ()
    """Score of each fold after every sweep."""
    scores: tuple[float, ...] = ()
    """Score of each fold."""
    reason: str | None = None
    """Message of an error."""

    @property
    def finished(self) -> bool:
        """Whether it ran to its end, and so can win."""
        return self.ended in (SETTLED, RISEN)

    def described(self, first: Mapping[str, object]) -> str:
        """Return how its settings differ from the first ones."""
        return described(self.settings, first)

    def plain(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)


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
    ended: str = SETTLED
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
        return self.ended != SETTLED

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


class Judge:
    """Fits candidates, with a share ``holdout`` of the ratings held out, ``folds`` times."""

    def __init__(
        self,
        ratings: Ratings,
        features: Features,
        *,
        metric: str,
        holdout: float,
        folds: int,
        patience: int,
        seed: int,
        n_jobs: int | None,
    ) -> None:
        parts = round(1.0 / holdout)
        if ratings.n_ratings < 2 * parts:
            raise DataError(
                f"{ratings.n_ratings} ratings are too few to hold out 1/{parts} of them; "
                f"give at least {2 * parts}",
                value=ratings.n_ratings,
            )
        if folds > parts:
            raise ParameterError(
                f"{folds} folds of 1/{parts} of the ratings are more than all; "
                f"take at most {parts}, or hold out less",
                value=folds,
            )
        splits = k_fold(ratings.n_ratings, parts, rng=seed)
        self._folds = [
            (ratings.select(kept), ratings.select(held))
            for (kept, held), _ in zip(splits, range(folds), strict=False)
        ]
        self._features, self._metric, self._patience = features, metric, patience
        self._more = {"rng": seed, "n_jobs": n_jobs}

    def run(
        self,
        number: int,
        settings: Settings,
        *,
        rival: Trial | None,
        deadline: float | None,
        callback: Callable[[int, SweepReport], None],
    ) -> Trial:
        """Fit a candidate to each fold; without a rival it is not stopped early."""
        begin, cpu = time.perf_counter(), time.process_time()
        curves: list[Curve] = []
        scores: list[float] = []
        ended, reason = SETTLED, None
        try:
            for fold in range(len(self._folds)):
                against = None
                if rival is not None:
                    against = rival.scores[fold], len(rival.curves[fold])
                curve, score = self._fit(fold, settings, against, deadline, callback)
                curves.append(curve)
                scores.append(score)
                if curve.ended in (BEHIND, TIME):
                    ended = curve.ended
                    break
        except (HemfError, MemoryError) as problem:
            if rival is None:
                raise
            ended, reason = FAILED, " ".join(str(problem).split()) or "out of memory"
        spent = time.process_time() - cpu, time.perf_counter() - begin
        return _judged(number, settings, curves, scores, ended, reason, spent)

    def cut_short(self, trial: Trial) -> Trial | None:
        """Return the trial with early stopping; None if the error did not rise."""
        if self._metric != "rmse":
            return None
        curves = [self._curve(trial.settings) for _ in trial.curves]
        for curve, values in zip(curves, trial.curves, strict=True):
            for sweep, value in enumerate(values, start=1):
                curve.errors.append(value)
                if curve.stops(sweep, value):
                    break
        scores = [curve.score for curve in curves]
        shorter = _judged(trial.number + 1, trial.settings, curves, scores, SETTLED, None, (0, 0))
        return shorter if shorter.ended == RISEN else None

    def _curve(self, settings: Settings) -> Curve:
        options = fit_options(new_model(settings))
        return Curve(self._metric, self._patience, options.earliest)

    def _fit(
        self,
        fold: int,
        settings: Settings,
        against: tuple[float, int] | None,
        deadline: float | None,
        callback: Callable[[int, SweepReport], None],
    ) -> tuple[Curve, float]:
        train, held_out = self._folds[fold]
        model, curve = new_model(settings, **self._more), self._curve(settings)
        curve.whole, curve.rival, curve.deadline = against is None, against, deadline
        curve.n_ratings = train.n_ratings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(
                train,
                validation=held_out,
                callbacks=[curve, lambda report: callback(fold, report)],
                **used(self._features, settings),
            )
        return curve, _density(model, held_out) if self._metric == "nlpd" else curve.score


def _judged(
    number: int,
    settings: Settings,
    curves: list[Curve],
    scores: list[float],
    ended: str,
    reason: str | None,
    spent: tuple[float, float],
) -> Trial:
    """Combine the folds."""
    rises = [len(c.values) if c.ended == SETTLED else c.best_sweep for c in curves]
    if ended == SETTLED and 2 * sum(c.ended == RISEN for c in curves) > len(curves):
        ended = RISEN
    whole = bool(curves) and ended != FAILED
    return Trial(
        number=number,
        settings=settings,
        score=fmean(scores) if whole else float("inf"),
        rmse=fmean(c.rmse for c in curves) if whole else float("inf"),
        error=stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None,
        sweeps=sum(len(c.values) for c in curves),
        max_sweeps=max(round(median(rises)), 1) if ended == RISEN else None,
        ended=ended,
        cpu_seconds=spent[0],
        seconds=spent[1],
        curves=tuple(tuple(c.values) for c in curves),
        scores=tuple(scores),
        reason=reason,
    )


def used(features: Mapping[str, T], settings: Mapping[str, object]) -> dict[str, T]:
    """Return the features that settings use.

    >>> used({"user_features": 1, "item_features": 2}, {"user_features": False})
    {'item_features': 2}
    """
    return {n: f for n, f in features.items() if n in FEATURES and settings.get(n, True)}


def _density(model: HeMF, held_out: Ratings) -> float:
    users, items, actual = held_out.triples()
    pairs = held_out.users.ids[users], held_out.items.ids[items]
    said = model.predict_distribution(*pairs, timestamps=held_out.timestamps)
    return -float(said.log_density(actual).mean())


# ------------------------------------------------------------------------------------------------
# Trials in a file, a line of JSON each, so that a search goes on where it was stopped.


_HEAD = b'{"search": {'  # every file of trials begins with this


def key_of(settings: Mapping[str, object]) -> str:
    """Return what equal settings have alike, whatever their order.

    >>> key_of({"n_factors": 5, "moods": True}) == key_of({"moods": True, "n_factors": 5})
    True
    """
    return json.dumps(settings, sort_keys=True, default=str)


def fingerprint(ratings: Ratings, features: Features) -> str:
    """Return a hash of all that is learnt from.

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


class Kept:
    """Trials of a search that were kept before, and a place for more; without a file, no place.

    The first line says what search they are of; those of another are an error. A last line that a
    kill has cut in two is dropped.
    """

    def __init__(self, path: Path | None, search: Mapping[str, object]) -> None:
        self._log = None if path is None else JsonLog(path)
        self._found: dict[str, dict[str, Any]] = {}
        if self._log is not None:
            self._read(self._log, json.loads(json.dumps(dict(search), default=str)))

    def _read(self, log: JsonLog, ours: dict[str, Any]) -> None:
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
    def _trial(line: Mapping[str, Any], number: int, settings: dict[str, Any]) -> Trial:
        curves = tuple(tuple(curve) for curve in line["curves"])
        numbers = {**line, "number": number, "settings": settings}
        infinite = {n: float("inf") for n in ("score", "rmse") if line[n] is None}
        return Trial(**numbers | infinite | {"curves": curves, "scores": tuple(line["scores"])})

    def find(self, number: int, settings: dict[str, Any]) -> Trial | None:
        """Return the trial of these settings, if it was kept."""
        line = self._found.get(key_of(settings))
        return None if line is None else self._trial(line, number, settings)

    def add(self, trial: Trial) -> None:
        """Keep a trial; when this returns, it is on disk."""
        if self._log is None:
            return
        line = trial.plain()
        line |= {n: None for n in ("score", "rmse") if line[n] == float("inf")}
        self._log.append(line)
