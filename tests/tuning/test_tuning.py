"""Settings are chosen by ratings that nothing was learnt from."""

from __future__ import annotations

import json
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from hemf import DataError, HeMF, ParameterError, Ratings
from hemf.data.datasets import draw
from hemf.evaluation import judge, nlpd, rmse
from hemf.evaluation.splits import k_fold
from hemf.tuning import tune
from hemf.tuning.trial import BEHIND, CONVERGED, RISEN, TIME, Curve

ONE = {"max_user_communities": 1, "max_item_communities": 1}
QUICK = {**ONE, "tol": 1e-3, "n_factors": 3}


@pytest.fixture(scope="module")
def ratings():
    drawn = draw(60, 50, density=0.35, user_communities=2, item_communities=2, rng=3)
    return Ratings.from_any((drawn.users, drawn.items, drawn.ratings))


@pytest.fixture(scope="module")
def noise():
    """Ratings that hold nothing but noise: all that is learnt of them is wrong."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.choice(60 * 60, 1200, replace=False), 60)
    return Ratings.from_any((users, items, rng.normal(size=1200)))


@pytest.fixture(scope="module")
def tuned(ratings):
    return tune(ratings, fixed={**ONE, "tol": 1e-3}, rng=1, n_jobs=1)


def folds_of(ratings, seed, n=1):
    splits = list(k_fold(ratings.n_ratings, 10, rng=seed))[:n]
    return [(ratings.select(kept), ratings.select(held)) for kept, held in splits]


def predicted(model, held):
    users, items, actual = held.triples()
    return actual, *model.predict(held.users.ids[users], held.items.ids[items], return_std=True)


def test_the_winner_is_the_best_of_the_table(tuned):
    finished = [trial for trial in tuned.trials if trial.finished]
    assert len(tuned.trials) >= 4
    assert tuned.best.score == min(trial.score for trial in finished)
    stopped = [trial.score for trial in tuned.trials if trial.ended == BEHIND]
    assert all(score > tuned.best.score for score in stopped)
    assert tuned.ended == "done"


def test_the_first_trial_is_a_fit_without_tuning(tuned, ratings):
    """To the digit, on the same ratings; and nothing that was held out is learnt from."""
    ((train, held),) = folds_of(ratings, 1)
    model = HeMF(**ONE, tol=1e-3, rng=1, n_jobs=1).fit(train)
    actual, mean, _ = predicted(model, held)
    assert tuned.trials[0].settings["n_factors"] == 20
    assert tuned.trials[0].sweeps == model.n_sweeps_
    assert tuned.trials[0].score == pytest.approx(rmse(actual, mean), rel=1e-9)


def test_the_best_score_is_what_its_settings_give(tuned, ratings):
    ((train, held),) = folds_of(ratings, 1)
    model = tuned.model()
    assert model.get_params() == HeMF(**tuned.changed, rng=1, n_jobs=1).get_params()
    with pytest.warns() if tuned.best.ended == RISEN else nullcontext():
        model.fit(train)
    actual, mean, _ = predicted(model, held)
    assert tuned.best.score == pytest.approx(rmse(actual, mean), rel=1e-9)


def test_the_same_seed_gives_the_same_search(tuned, ratings):
    again = tune(ratings, fixed={**ONE, "tol": 1e-3}, rng=1, n_jobs=2)
    assert [t.curves for t in again.trials] == [t.curves for t in tuned.trials]
    assert again.settings == tuned.settings


def test_the_best_model_is_fitted_to_all_ratings(tuned, ratings):
    model = tuned.fit()
    assert model.n_ratings_ == ratings.n_ratings
    for name, value in tuned.changed.items():
        assert getattr(model, name) == value


def test_a_rising_error_ends_a_trial_and_is_part_of_its_settings(noise):
    fixed = {**ONE, "noise_scales": None, "evb": None}
    found = tune(noise, fixed=fixed, space={"n_factors": [10]}, rng=0, n_jobs=1, patience=3)
    first, shorter, other = found.trials
    assert first.ended == CONVERGED
    assert shorter.ended == other.ended == RISEN
    assert shorter.settings == first.settings
    assert shorter.score == first.curves[0][shorter.max_sweeps - 1] < first.score
    assert shorter.curves[0] == first.curves[0][: shorter.max_sweeps + 3]
    # It really stopped: the fit would have gone on.
    ((train, held),) = folds_of(noise, 0)
    whole = HeMF(**fixed, n_factors=10, rng=0, n_jobs=1).fit(train, validation=held)
    errors = [report.validation_rmse for report in whole.history_]
    assert other.sweeps < whole.n_sweeps_
    assert other.sweeps == other.max_sweeps + 3
    assert list(other.curves[0]) == errors[: other.sweeps]
    assert other.score == errors[other.max_sweeps - 1]
    assert found.settings["max_sweeps"] == found.best.max_sweeps


def test_a_candidate_that_cannot_win_is_stopped():
    rng = np.random.default_rng(0)
    tastes = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 50))
    users, items = np.divmod(rng.choice(60 * 50, 1500, replace=False), 50)
    data = Ratings.from_any((users, items, tastes[users, items] + 0.1 * rng.normal(size=1500)))
    fixed = {**ONE, "noise_scales": None, "tol": 1e-7, "max_sweeps": 60}
    found = tune(data, fixed=fixed, space={"n_factors": [1]}, patience=60, rng=0, n_jobs=1)
    behind = found.trials[-1]
    assert behind.ended == BEHIND
    assert not behind.finished
    ((train, held),) = folds_of(data, 0)
    whole = HeMF(**fixed, n_factors=1, rng=0, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole.fit(train, validation=held)
    errors = [report.validation_rmse for report in whole.history_]
    assert behind.sweeps < whole.n_sweeps_
    assert list(behind.curves[0]) == errors[: behind.sweeps]
    assert min(errors) > found.best.score  # and it would not have won


def test_curves_that_still_fall_fast_are_let_go_on():
    curve = Curve("rmse", patience=3, earliest=1, rival=(0.5, 30))
    fast = [curve.stops(sweep, 1.0 - 0.03 * sweep) for sweep in range(1, 10)]
    assert not any(fast)
    slow = Curve("rmse", patience=3, earliest=1, rival=(0.5, 30))
    assert any(slow.stops(sweep, 1.0 - 0.001 * sweep) for sweep in range(1, 10))
    assert slow.ended == BEHIND


def test_errors_do_not_count_while_parts_are_held():
    curve = Curve("rmse", patience=1, earliest=6, rival=(0.1, 30))
    assert not any(curve.stops(sweep, 1.0 + sweep) for sweep in range(1, 6))


def test_folds_are_averaged_and_give_an_error(ratings):
    found = tune(ratings, fixed=QUICK, space={"offsets": [True]}, folds=3, rng=2, n_jobs=1)
    (trial,) = [trial for trial in found.trials if trial.ended == CONVERGED]
    scores = []
    for train, held in folds_of(ratings, 2, 3):
        model = HeMF(**QUICK, rng=2, n_jobs=1).fit(train)
        scores.append(rmse(*predicted(model, held)[:2]))
    assert trial.scores == pytest.approx(scores)
    assert trial.score == pytest.approx(np.mean(scores))
    assert trial.error == pytest.approx(np.std(scores, ddof=1) / np.sqrt(3))


@pytest.mark.parametrize("by", ["nlpd", "elbo"])
def test_other_criteria_are_those_of_the_fit(ratings, by):
    found = tune(ratings, fixed=QUICK, space={"noise_scales": [None]}, metric=by, rng=0, n_jobs=1)
    ((train, held),) = folds_of(ratings, 0)
    model = HeMF(**QUICK, rng=0, n_jobs=1).fit(train)
    actual, mean, std = predicted(model, held)
    users, items, _ = held.triples()
    predictive = model.predict_distribution(held.users.ids[users], held.items.ids[items])
    expected = {"elbo": -model.elbo_ / train.n_ratings, "nlpd": judge(actual, predictive).nlpd}[by]
    assert found.trials[0].score == pytest.approx(expected, rel=1e-7)
    assert found.trials[0].score != pytest.approx(nlpd(actual, mean, std), rel=1e-5)  # tails count
    assert found.trials[0].rmse == pytest.approx(rmse(*predicted(model, held)[:2]))


def test_features_are_used_or_not_as_they_help(ratings):
    rng = np.random.default_rng(0)
    useless = {user: {"number": float(rng.normal())} for user in ratings.users.ids.tolist()}
    found = tune(ratings, user_features=useless, fixed=QUICK, trials=4, rng=0, n_jobs=1)
    tried = [trial.settings["user_features"] for trial in found.trials]
    assert tried[0] is True
    assert False in tried
    assert found.fit().given_features_.keys() == (
        {"user"} if found.settings["user_features"] else set()
    )


def test_moods_are_tried_where_there_are_times():
    rng = np.random.default_rng(1)
    lines = []
    for user in range(30):
        for session in range(6):
            mood = rng.normal()
            for item in rng.choice(20, 4, replace=False):
                rating = 3 + mood + rng.normal(scale=0.1)
                lines.append((user, f"{session}-{item}", rating, session))
    fixed = {**QUICK, "n_factors": 1, "implicit_features": False, "noise_scales": "both"}
    found = tune(lines, fixed=fixed, rng=0, n_jobs=1)
    assert found.settings["moods"] is True
    assert found.best.score < 0.7 * found.trials[0].score


def test_limits_are_kept(ratings):
    reports = []
    found = tune(ratings, fixed=QUICK, trials=2, n_jobs=1, callback=reports.append)
    assert len(found.trials) == 2
    assert {report.planned for report in reports} == {0, 1, 2}
    assert found.ended == "trials"
    hurried = tune(ratings, fixed=QUICK, minutes=0.0, n_jobs=1)
    assert hurried.trials[0].ended == CONVERGED  # the first is never cut
    assert all(trial.cpu_seconds == 0 for trial in hurried.trials[1:])
    assert hurried.ended == "minutes"


def test_a_trial_that_runs_out_of_time_cannot_win(ratings):
    curve = Curve("rmse", patience=3, earliest=1, deadline=0.0)
    report = HeMF(**QUICK, rng=0).fit(ratings, validation=ratings).history_[0]
    assert curve(report) is True
    assert curve.ended == TIME
    (trial,) = tune(ratings, fixed=QUICK, trials=1, n_jobs=1).trials
    assert not replace(trial, ended=TIME).finished


def test_ctrl_c_keeps_what_was_found(ratings):
    def watch(report):
        if len(report.trials) >= 2 and report.sweep is not None:
            raise KeyboardInterrupt

    found = tune(ratings, fixed=QUICK, callback=watch, n_jobs=1)
    assert found.ended == "interrupted"
    assert len(found.trials) == 2
    assert found.best in found.trials

    def at_once(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(ratings, fixed=QUICK, callback=at_once, n_jobs=1)


def test_a_search_goes_on_where_it_was_stopped(ratings, tmp_path, monkeypatch):
    path = tmp_path / "trials.jsonl"
    whole = tune(ratings, fixed=QUICK, rng=0, n_jobs=1)
    tune(ratings, fixed=QUICK, rng=0, n_jobs=1, trials=2, results=path)
    with path.open("a") as file:
        file.write('{"settings": {"n_fact')  # killed here
    fits = []
    fit = HeMF.fit
    monkeypatch.setattr(HeMF, "fit", lambda *a, **k: fits.append(1) or fit(*a, **k))
    resumed = tune(ratings, fixed=QUICK, rng=0, n_jobs=1, results=path)
    assert [t.curves for t in resumed.trials] == [t.curves for t in whole.trials]
    assert resumed.settings == whole.settings
    # A trial that costs nothing, of fewer sweeps, is made of the first, and not kept.
    free = sum(trial.cpu_seconds == 0 for trial in whole.trials)
    assert len(fits) == len(whole.trials) - 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 1 + len(whole.trials) - free
    fits.clear()
    tune(ratings, fixed=QUICK, rng=0, n_jobs=1, results=path)
    assert not fits
    with pytest.raises(DataError, match="another search: rng was 0 and is 7"):
        tune(ratings, fixed=QUICK, rng=7, n_jobs=1, results=path)
    with pytest.raises(DataError, match="another search: data"):
        tune(ratings.select(range(500)), fixed=QUICK, n_jobs=1, results=path)


@pytest.mark.parametrize("text", ["", "hello", "hello\n", '{"search": {}}\n{"no": 1}\n'])
def test_other_files_are_not_taken_for_trials(ratings, tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text)
    if not text:
        assert tune(ratings, fixed=QUICK, trials=1, n_jobs=1, results=path).trials
        return
    with pytest.raises(DataError, match="no file of trials"):
        tune(ratings, fixed=QUICK, trials=1, n_jobs=1, results=path)
    assert path.read_text() == text


def test_a_candidate_that_fails_is_a_row_that_says_so(ratings, monkeypatch):
    fit = HeMF.fit

    def refuse(model, *given, **more):
        if model.n_factors == 7:
            raise ParameterError("n_factors=7 needs too much memory")
        return fit(model, *given, **more)

    monkeypatch.setattr(HeMF, "fit", refuse)
    fixed = {name: value for name, value in QUICK.items() if name != "n_factors"}
    found = tune(ratings, fixed=fixed, space={"n_factors": [7, 2]}, n_jobs=1)
    failed = next(trial for trial in found.trials if trial.settings["n_factors"] == 7)
    assert failed.ended == "failed"
    assert "too much memory" in failed.reason
    assert found.trials[-1].settings["n_factors"] == 2
    assert found.best is not failed


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fixed": {"factors": 3}}, ParameterError, "no parameter 'factors'"),
        ({"space": {"factors": [3]}}, ParameterError, "no parameter 'factors'"),
        ({"space": {"n_factors": [5, 0]}}, ParameterError, "n_factors must be"),
        ({"space": {"n_factors": []}}, ParameterError, "list of values"),
        ({"space": {"n_factors": 5}}, ParameterError, "list of values"),
        ({"space": {"rng": [1, 2]}}, ParameterError, "rng is not to be tried"),
        ({"space": {"user_features": [True]}}, ParameterError, "user_features are not given"),
        ({"space": {"implicit_features": ["yes"]}}, ParameterError, "must be True, False"),
        ({"space": {"moods": [True]}}, DataError, "no timestamps"),
        ({"fixed": {"moods": True}}, DataError, "no timestamps"),
        ({"fixed": {"validation_fraction": 0.1}}, ParameterError, "validation_fraction"),
        ({"fixed": {"tol": 1}, "space": {"tol": [1]}}, ParameterError, "both fixed and"),
        ({"metric": "mae"}, ParameterError, "metric must be one of"),
        ({"folds": 0}, ParameterError, "folds must be"),
        ({"folds": 11}, ParameterError, "11 folds of 1/10"),
        ({"holdout": 0.9}, ParameterError, "holdout must be"),
        ({"trials": 0}, ParameterError, "trials must be"),
        ({"minutes": -1}, ParameterError, "minutes must be"),
    ],
)
def test_bad_input_is_refused_before_anything_is_fitted(
    ratings, monkeypatch, options, error, words
):
    monkeypatch.setattr(HeMF, "fit", lambda *a, **k: pytest.fail("fitted"))
    with pytest.raises(error, match=words):
        tune(ratings, **options)


def test_too_few_ratings_are_refused():
    few = [("ann", "tea", 5), ("bob", "tea", 4), ("eve", "milk", 1)]
    with pytest.raises(DataError, match="3 ratings are too few to hold out 1/10"):
        tune(few)


@pytest.mark.parametrize("length", [1, 5, 12, 40])
def test_a_first_line_that_was_cut_in_two_is_written_anew(length, ratings, tmp_path):
    path = tmp_path / "r.jsonl"
    tune(ratings, fixed=QUICK, trials=1, n_jobs=1, results=path)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    tune(ratings, fixed=QUICK, trials=1, n_jobs=1, results=path)
    assert path.read_bytes().splitlines()[0] == whole.splitlines()[0]
    assert len(path.read_bytes().splitlines()) == 2
