"""`tune`: make one choice after the other, each with the best settings so far."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from hemf._checks import check_bool, check_choice, check_int, check_n_jobs, check_number
from hemf._files import expand_home
from hemf._options import fit_options, online_options
from hemf._typing import FeaturesLike, RatingsLike
from hemf.batch.callbacks import Callback, SweepReport
from hemf.data.features import as_parts, read_table
from hemf.data.ratings import Ratings
from hemf.data.sources import ColumnChoice
from hemf.errors import ConvergenceWarning, DataError, HemfError, ParameterError
from hemf.estimator import HeMF
from hemf.evaluation.splits import k_fold
from hemf.report import plots
from hemf.report.page import card, page, picture, section, table, write_drawn
from hemf.tuning.trial import (
    BEHIND,
    COMMUNITIES,
    CONVERGED,
    CRITERIA,
    ELSEWHERE,
    FAILED,
    FEATURES,
    RISEN,
    TIME,
    Choice,
    Curve,
    Features,
    Protocol,
    Settings,
    Space,
    Trial,
    TrialLog,
    asked_space,
    check_times,
    fingerprint,
    key_of,
    used,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FACTORS = (2, 5, 10, 20, 32, 50)
ONE_SIDE = ("item", "user")
ROUNDS = 2  # passes over all choices
DONE, OUT_OF_TIME, OUT_OF_TRIALS, INTERRUPTED = "done", "minutes", "trials", "interrupted"
"""Reasons for the end of a search."""


@dataclass(frozen=True)
class SearchReport:
    """Progress of a search."""

    trials: Sequence[Trial]
    """Finished trials."""
    settings: Settings | None
    """Settings of the present trial; None after the last."""
    fold: int
    sweep: SweepReport | None
    """Report of the last sweep; None after a trial."""
    planned: int
    """Maximal number of further trials in this round."""
    seconds_left: float | None
    """Time left, if it is limited."""


TuneCallback = Callable[[SearchReport], object]


@dataclass
class Tuning:
    """Result of a search."""

    first: Settings
    """Settings of the first trial: defaults and fixed settings."""
    metric: str
    trials: list[Trial] = field(default_factory=list)
    ended: str = DONE
    """Why: ``"done"``, ``"minutes"``, ``"trials"`` or ``"interrupted"``."""
    data: tuple[Ratings, Features] | None = field(default=None, repr=False)
    rng: int = 0
    n_jobs: int | None = None

    @property
    def best(self) -> Trial:
        """The finished trial with the lowest score."""
        return min((trial for trial in self.trials if trial.finished), key=lambda t: t.score)

    @property
    def settings(self) -> Settings:
        """Settings of the best trial, with ``max_sweeps`` if its error began to rise."""
        found = dict(self.best.settings)
        if self.best.max_sweeps is not None:
            found["max_sweeps"] = self.best.max_sweeps
        return found

    def described(self, trial: Trial) -> str:
        """Return how the settings of a trial differ from the first."""
        return trial.described(self.first)

    @property
    def changed(self) -> Settings:
        """The settings that are parameters of `HeMF` and differ from its defaults."""
        usual = HeMF().get_params()
        return {n: v for n, v in self.settings.items() if n in usual and v != usual[n]}

    def model(self) -> HeMF:
        """Return an unfitted model with the best settings."""
        return new_model(self.settings, rng=self.rng, n_jobs=self.n_jobs)

    def fit(self, *, callbacks: Sequence[Callback] = ()) -> HeMF:
        """Return a model with the best settings, fitted to all ratings."""
        assert self.data is not None
        ratings, features = self.data
        with warnings.catch_warnings():
            if self.best.max_sweeps is not None:  # max_sweeps was chosen
                warnings.simplefilter("ignore", ConvergenceWarning)
            chosen = used(features, self.settings)
            return self.model().fit(ratings, callbacks=callbacks, **chosen)


def tune(
    ratings: RatingsLike,
    *,
    columns: ColumnChoice = None,
    user_features: FeaturesLike = None,
    item_features: FeaturesLike = None,
    fixed: Settings | None = None,
    space: Space | None = None,
    metric: str = "rmse",
    holdout: float = 0.1,
    folds: int = 1,
    patience: int = 5,
    trials: int | None = None,
    minutes: float | None = None,
    rng: int = 0,
    n_jobs: int | None = None,
    results: str | Path | None = None,
    callback: TuneCallback | None = None,
) -> Tuning:
    """Choose settings of `HeMF` by ratings that are held out of ``ratings``.

    The first trial is a fit with the defaults and the ``fixed`` settings; if its held-out error
    rose, the second is the same fit with fewer sweeps. Then one choice after the other is made,
    each with the best settings so far: implicit features, given features and moods (if there are
    timestamps), one community or several, number of factors, noise. A second round follows if the
    first one has changed anything.

    Parameters
    ----------
    ratings, columns, user_features, item_features
        As for `HeMF.fit`.
    fixed
        Settings that are not tuned.
    space
        Names and values to try, instead of the default choices.
    metric
        Score: held-out ``"rmse"`` or ``"nlpd"``, or the ``"elbo"`` of the fit.
    holdout, folds
        Share of the ratings that is held out, at random, and how many times.
    patience
        Number of sweeps that the held-out error may rise; the best sweep is then part of the
        settings. A candidate that cannot win is stopped too. With NLPD no candidate is stopped.
    trials, minutes
        Limits of the search; the first trial is always finished.
    rng, n_jobs
        As for `HeMF`. The same seed gives the same result, unless ``minutes`` end the search.
    results
        File of trials: the same call continues from it.
    callback
        Called with a `SearchReport` after every sweep and every trial.

    Returns
    -------
    Tuning
        Also after Ctrl-C, if a trial has finished.

    """
    fixed = dict(fixed or {})
    rng, n_jobs = fixed.pop("rng", rng), fixed.pop("n_jobs", n_jobs)
    check_choice("metric", metric, CRITERIA)
    check_number("holdout", holdout, low=0.01, high=0.5)
    check_int("folds", folds, low=1)
    check_int("patience", patience, low=1)
    check_int("rng", rng, low=0)
    check_n_jobs(n_jobs)
    if trials is not None:
        check_int("trials", trials, low=1)
    if minutes is not None:
        check_number("minutes", minutes, low=0.0)
    given = {"user_features": user_features, "item_features": item_features}
    there = [name for name in FEATURES if given[name] is not None]
    asked = check_space(fixed, space, there)  # before anything is read
    duplicates = fixed.get("duplicates", HeMF().duplicates)
    data = Ratings.from_any(ratings, columns=columns, duplicates=duplicates)
    choices = default_space(data, there, fixed) if asked is None else asked
    first = first_settings(choices, there, fixed)
    check_times(first, choices, data)
    features = {
        name: [read_table(part, name.partition("_")[0]) for part in as_parts(given[name])]
        for name in there
    }
    protocol = Protocol(metric, holdout, folds, patience)
    evaluator = Evaluator(data, features, protocol, seed=rng, n_jobs=n_jobs)
    about = {"by": metric, "share": holdout, "folds": folds, "patience": patience, "rng": rng}
    log = TrialLog(
        None if results is None else expand_home(results),
        {**about, "data": fingerprint(data, features)},
    )
    found = Tuning(first, metric, data=(data, features), rng=rng, n_jobs=n_jobs)
    search = _Search(found, evaluator, log, choices, trials, minutes, callback)
    try:
        search.run()
    except KeyboardInterrupt:
        if not found.trials:
            raise
        found.ended = INTERRUPTED
    return found


# -- choices ---------------------------------------------------------------------------------------


def default_space(
    ratings: Ratings, given: Iterable[str], fixed: Mapping[str, object]
) -> tuple[Choice, ...]:
    """Return the default choices, those with the largest gains on most data first.

    ``given`` are the available features; ``fixed`` parameters are left out.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> [min(choice.names) for choice in default_space(data, (), {"n_factors": 3})]
    ['implicit_features', 'max_item_communities', 'noise_scales', 'implicit_features']
    """
    usual = HeMF().get_params()
    most = max(min(ratings.n_users, ratings.n_items), 1)
    ladder = sorted({HeMF().n_factors, *(n for n in FACTORS if n <= most)})
    one = dict.fromkeys(COMMUNITIES, 1)
    choices = [
        Choice(({"implicit_features": True}, {"implicit_features": False})),
        Choice((one, {name: usual[name] for name in COMMUNITIES})),
        *(Choice(({name: False}, {name: True})) for name in FEATURES if name in given),
        Choice(tuple({"n_factors": n} for n in ladder), ordered=True),
        Choice(tuple({"noise_scales": of} for of in (None, "both", *ONE_SIDE))),
        Choice(tuple({"implicit_features": of} for of in ONE_SIDE)),
    ]
    if ratings.timestamps is not None:
        choices.insert(2, Choice(({"moods": True}, {"moods": False})))
    return tuple(choice for choice in choices if not choice.names & set(fixed))


def first_settings(
    choices: Sequence[Choice], given: Iterable[str], fixed: Mapping[str, object]
) -> Settings:
    """Return the settings of the first trial: the defaults and the ``fixed`` ones.

    They and all options are checked.

    >>> first_settings(asked_space({"n_factors": [5]}, {}), (), {"moods": False})
    {'moods': False, 'n_factors': 20}
    """
    if "validation_fraction" in fixed:
        raise ParameterError(
            f"validation_fraction cannot be fixed: {ELSEWHERE['validation_fraction']}"
        )
    usual = HeMF().get_params() | dict.fromkeys(FEATURES, True)
    names = set().union(*(choice.names for choice in choices))
    first = {**fixed, **{name: usual[name] for name in sorted(names & set(usual))}}
    for name in FEATURES:
        if name in {*fixed, *names} and name not in given:
            raise ParameterError(f"{name} are not given, so there is nothing to try", value=name)
    for options in ({}, *(option for choice in choices for option in choice.options)):
        settings = {**first, **options}
        for name in FEATURES:
            check_bool(name, settings.get(name, True))
        online_options(new_model(settings))  # checks those of a fit too
    return first


def check_space(
    fixed: Mapping[str, object], space: Space | None, given: Iterable[str]
) -> tuple[Choice, ...] | None:
    """Check settings and space before data is read; return the choices of the space.

    >>> check_space({"n_factors": 5}, {"n_factors": [5, 10]}, ())
    Traceback (most recent call last):
    hemf.errors.ParameterError: n_factors is both fixed and to be tried; do one
    """
    asked = None if space is None else asked_space(space, fixed)
    first_settings(asked or (), given, fixed)
    return asked


def new_model(settings: Mapping[str, object], **more: object) -> HeMF:
    """Return an unfitted model with these settings.

    >>> new_model({"n_factors": 5, "user_features": False}, rng=0)
    HeMF(n_factors=5, rng=0)
    """
    own = {name: value for name, value in settings.items() if name not in FEATURES}
    return HeMF().set_params(**own, **more)


# -- trials ----------------------------------------------------------------------------------------


class Evaluator:
    """Fits candidates to the ratings of each fold, and scores them on those held out."""

    def __init__(
        self,
        ratings: Ratings,
        features: Features,
        protocol: Protocol,
        *,
        seed: int,
        n_jobs: int | None,
    ) -> None:
        parts = round(1.0 / protocol.holdout)
        if ratings.n_ratings < 2 * parts:
            raise DataError(
                f"{ratings.n_ratings} ratings are too few to hold out 1/{parts} of them; "
                f"give at least {2 * parts}",
                value=ratings.n_ratings,
            )
        if protocol.folds > parts:
            raise ParameterError(
                f"{protocol.folds} folds of 1/{parts} of the ratings are more than all; "
                f"take at most {parts}, or hold out less",
                value=protocol.folds,
            )
        splits = k_fold(ratings.n_ratings, parts, rng=seed)
        self._folds = [
            (ratings.select(kept), ratings.select(held))
            for (kept, held), _ in zip(splits, range(protocol.folds), strict=False)
        ]
        self._features, self._protocol = features, protocol
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
        ended, reason = CONVERGED, None
        try:
            for fold in range(len(self._folds)):
                curve = self._curve(settings)
                curve.deadline, curve.whole = deadline, rival is None
                if rival is not None:
                    curve.rival = rival.scores[fold], len(rival.curves[fold])
                scores.append(self._fit(fold, settings, curve, callback))
                curves.append(curve)
                if curve.ended in (BEHIND, TIME):
                    ended = curve.ended
                    break
        except (HemfError, MemoryError) as problem:
            if rival is None:
                raise
            ended, reason = FAILED, " ".join(str(problem).split()) or "out of memory"
        return _combined(
            curves,
            scores,
            number=number,
            settings=settings,
            ended=ended,
            reason=reason,
            cpu_seconds=time.process_time() - cpu,
            seconds=time.perf_counter() - begin,
        )

    def cut_short(self, trial: Trial) -> Trial | None:
        """Return the trial with early stopping; None if the error did not rise."""
        if self._protocol.metric != "rmse":
            return None
        curves = [self._curve(trial.settings) for _ in trial.curves]
        for curve, values in zip(curves, trial.curves, strict=True):
            for sweep, value in enumerate(values, start=1):
                curve.errors.append(value)
                if curve.stops(sweep, value):
                    break
        scores = [curve.score for curve in curves]
        shorter = _combined(curves, scores, number=trial.number + 1, settings=trial.settings)
        return shorter if shorter.ended == RISEN else None

    def _curve(self, settings: Settings) -> Curve:
        earliest = fit_options(new_model(settings)).earliest
        return Curve(self._protocol.metric, self._protocol.patience, earliest)

    def _fit(
        self,
        fold: int,
        settings: Settings,
        curve: Curve,
        callback: Callable[[int, SweepReport], None],
    ) -> float:
        """Fit to the ratings of a fold; return the score."""
        train, held_out = self._folds[fold]
        model = new_model(settings, **self._more)
        curve.n_ratings = train.n_ratings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(
                train,
                validation=held_out,
                callbacks=[curve, lambda report: callback(fold, report)],
                **used(self._features, settings),
            )
        if self._protocol.metric != "nlpd":
            return curve.score
        *pairs, actual = held_out.id_columns()
        predicted = model.predict_distribution(*pairs, timestamps=held_out.timestamps)
        return -float(predicted.log_density(actual).mean())


def _combined(
    curves: list[Curve], scores: list[float], *, ended: str = CONVERGED, **more: Any
) -> Trial:
    """Combine the folds."""
    lengths = [len(c.values) if c.ended == CONVERGED else c.best_sweep for c in curves]
    if ended == CONVERGED and 2 * sum(c.ended == RISEN for c in curves) > len(curves):
        ended = RISEN
    is_complete = bool(curves) and ended != FAILED
    return Trial(
        score=fmean(scores) if is_complete else float("inf"),
        rmse=fmean(c.rmse for c in curves) if is_complete else float("inf"),
        error=stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None,
        sweeps=sum(len(c.values) for c in curves),
        max_sweeps=max(round(median(lengths)), 1) if ended == RISEN else None,
        ended=ended,
        curves=tuple(tuple(c.values) for c in curves),
        scores=tuple(scores),
        **more,
    )


# -- the search ------------------------------------------------------------------------------------


class _LimitError(Exception):
    """No more trials."""


class _Search:
    """A search under way."""

    def __init__(
        self,
        found: Tuning,
        evaluator: Evaluator,
        log: TrialLog,
        choices: Sequence[Choice],
        trials: int | None,
        minutes: float | None,
        callback: TuneCallback | None,
    ) -> None:
        self._found, self._evaluator, self._log, self._choices = found, evaluator, log, choices
        self._most = trials
        self._end = None if minutes is None else time.monotonic() + 60.0 * minutes
        self._callback = callback or (lambda report: None)
        self._tried: set[str] = set()
        self._planned = 1 + sum(_most_of(choice) for choice in choices)

    def run(self) -> None:
        """Make all choices, within the limits."""
        try:
            self._begin()
            for _ in range(ROUNDS):
                before = self._found.best
                for place, one in enumerate(self._choices):
                    self._planned = sum(_most_of(later) for later in self._choices[place:])
                    self._choose(one)
                if self._found.best is before:
                    break
        except _LimitError:
            pass
        self._report(None, 0, None)

    def _begin(self) -> None:
        """Try the first settings, without early stopping and with it."""
        self._try(self._found.first)
        shorter = self._evaluator.cut_short(self._found.trials[0])
        if shorter is not None and self._most != 1:
            self._found.trials.append(shorter)
            self._report(self._found.first, 0, None)

    def _choose(self, one: Choice) -> None:
        """Try the options of a choice with the best settings so far."""
        start = self._found.best.settings
        if not one.ordered:
            for option in one.options:
                self._try({**start, **option})
            return
        place = one.options.index({name: start[name] for name in one.names})
        for step in (-1, 1):  # fewer are cheaper
            best, here = self._found.best, place + step
            while 0 <= here < len(one.options):
                self._try({**start, **one.options[here]})
                if self._found.best is best:
                    break
                best, here = self._found.best, here + step
            if self._found.best.settings is not start:
                return  # it was better on this side

    def _try(self, settings: Settings) -> None:
        key = key_of(settings)
        if key in self._tried:
            return
        done = len(self._found.trials)
        if self._most is not None and done >= self._most:
            self._found.ended = OUT_OF_TRIALS
            raise _LimitError
        if done and self._end is not None and time.monotonic() > self._end:
            self._found.ended = OUT_OF_TIME
            raise _LimitError
        trial = self._log.find(done + 1, settings)
        if trial is None:
            trial = self._evaluator.run(
                done + 1,
                settings,
                rival=self._found.best if done else None,
                deadline=self._end if done else None,
                callback=lambda fold, report: self._report(settings, fold, report),
            )
            if trial.ended != TIME:
                self._log.add(trial)
        self._tried.add(key)
        self._found.trials.append(trial)
        self._planned = max(self._planned - 1, 0)
        self._report(settings, 0, None)

    def _report(self, settings: Settings | None, fold: int, report: SweepReport | None) -> None:
        left = None if self._end is None else max(self._end - time.monotonic(), 0.0)
        planned = self._planned
        if self._most is not None:
            planned = min(planned, max(self._most - len(self._found.trials), 0))
        self._callback(SearchReport(self._found.trials, settings, fold, report, planned, left))


def _most_of(one: Choice) -> int:
    """Return the maximal number of trials of a choice, on a ladder the usual one."""
    return 2 if one.ordered else max(len(one.options) - 1, 1)


# ------------------------------------------------------------------------------------------------
# Table and plot of a search.


TITLES = {"rmse": "held-out RMSE", "nlpd": "held-out NLPD", "elbo": "ELBO"}


def table_of(found: Tuning) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the trials, the best one marked."""
    folds = max(len(trial.scores) for trial in found.trials)
    headers, rows = table_rows(found.trials, found.metric, folds=folds)
    for trial, row in zip(found.trials, rows, strict=True):
        row[-1] += " ← best" if trial is found.best else ""
    return headers, rows


def table_rows(
    trials: Sequence[Trial], metric: str, *, folds: int
) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of trials; settings are described by their changes."""
    headers = ["trial", "settings", "sweeps", TITLES["rmse"]]
    headers += [TITLES[metric]] if metric != "rmse" else []
    headers += ["±"] if folds > 1 else []
    rows = []
    for trial in trials:
        row = [str(trial.number), trial.described(trials[0].settings), str(trial.sweeps)]
        row.append(shown_score(trial.rmse))
        if metric != "rmse":
            row.append(shown(trial, metric))
        if folds > 1:
            row.append("" if trial.error is None else f"{trial.error:.4f}")
        rows.append([*row, f"{trial.cpu_seconds:.1f}", how_it_ended(trial)])
    return [*headers, "CPU s", "ended"], rows


def numbers_in(headers: Sequence[str]) -> list[int]:
    """Return the numeric columns of the table.

    >>> numbers_in(["trial", "settings", "sweeps", "ended"])
    [0, 2]
    """
    return [0, *range(2, len(headers) - 1)]


def shown(trial: Trial, metric: str) -> str:
    """Return the score of a trial as text; bounds with their own sign."""
    return shown_score(-trial.score if metric == "elbo" else trial.score)


def shown_score(score: float) -> str:
    """Return a score as text.

    >>> shown_score(0.91234), shown_score(float("inf"))
    ('0.9123', '-')
    """
    return f"{score:.4f}" if np.isfinite(score) else "-"


def how_it_ended(trial: Trial) -> str:
    """Return why a trial ended."""
    return {
        CONVERGED: "converged",
        RISEN: f"error rose after {trial.max_sweeps}",
        BEHIND: "stopped, behind",
        TIME: "time was up",
        FAILED: f"failed: {trial.reason}",
    }[trial.ended]


def tuning_figure(found: Tuning) -> Figure:
    """Draw the held-out error of trials by sweep."""
    with plots.drawing(8.0, 4.2) as figure:
        axes = figure.subplots()
        later: list[float] = []
        others = "others"
        for trial in sorted(found.trials, key=lambda trial: trial is found.best):
            if not trial.curves:
                continue
            curve = np.array(trial.curves[0])
            later += curve[len(curve) // 4 :].tolist()
            look: Settings
            if trial is found.best:
                look = {"color": plots.USERS, "lw": 2.2, "label": "best"}
            elif trial is found.trials[0]:
                look = {"color": plots.ITEMS, "ls": "--", "label": "first"}
            else:
                look = {"color": plots.OTHER, "lw": 0.8, "alpha": 0.6, "label": others}
                others = "_"
            axes.plot(np.arange(1, len(curve) + 1), curve, **look)
        if later:
            room = 0.06 * (max(later) - min(later)) + 0.001 * abs(max(later))
            axes.set_ylim(min(later) - room, max(later) + room)
        elbo = found.metric == "elbo"
        axes.set(xlabel="sweep", ylabel="minus ELBO for each rating" if elbo else "held-out RMSE")
        axes.legend()
    return figure


def write_tuning_plot(path: Path, found: Tuning, *, title: str) -> None:
    """Write the figure as PNG or, with the table of trials, as HTML, by the name."""
    figure = tuning_figure(found)

    def html() -> str:
        drawn = card(
            "Error against sweeps",
            "Of each candidate, on the held-out ratings; lower is better. Lines that end early are "
            "of candidates that were stopped.",
            picture("tuning", figure, "held-out error against sweeps"),
            wide=True,
        )
        headers, rows = table_of(found)
        measured = card("Trials", "", table(headers, rows, numbers=numbers_in(headers)), wide=True)
        subtitle = f"{len(found.trials)} trials, compared by {TITLES[found.metric]}"
        return page(title, subtitle, [section("Choosing settings", [drawn, measured])])

    write_drawn(path, figure, html)
