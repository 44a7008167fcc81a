"""Moods from the door to the file: fit, predict at a time, save."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hemf import HeMF, Ratings, evaluation
from hemf.errors import DataError, ModelFileError, ParameterError
from hemf.model.state import TrainingRecord
from hemf.online.journal import ModelHolder

SESSIONS, LEVEL, EXTRA, NOISE = 12, 0.5, 0.3, 0.3


@pytest.fixture(scope="module")
def moody():
    """Ratings of one taste for all, with offsets, and moods that last for some sessions."""
    rng = np.random.default_rng(4)
    users, items, per_session = 120, 60, 5
    offset, quality = rng.normal(scale=0.5, size=users), rng.normal(scale=0.8, size=items)
    rows = []
    for user in range(users):
        level = rng.normal(scale=LEVEL)
        chosen = rng.choice(items, SESSIONS * per_session, replace=False)
        for session in range(SESSIONS):
            mood = level + rng.normal(scale=EXTRA)
            for item in chosen[session * per_session : (session + 1) * per_session]:
                value = 3 + offset[user] + quality[item] + mood + rng.normal(scale=NOISE)
                rows.append((f"u{user}", f"i{item}", value, 1000 * session + 7))
            level = 0.8 * level + rng.normal(scale=LEVEL * 0.6)
    return rows


@pytest.fixture(scope="module")
def parts(moody):
    ratings = Ratings.from_any(moody)
    kept, held = evaluation.random_split(ratings.n_ratings, 0.2, rng=0)
    return ratings.select(kept), ratings.select(held)


SMALL = {"n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "rng": 0}


@pytest.fixture(scope="module")
def model(parts):
    return HeMF(**SMALL, moods=True).fit(parts[0])


def columns(ratings: Ratings):
    users, items, values = ratings.triples()
    return ratings.users.ids[users], ratings.items.ids[items], values, ratings.timestamps


def test_who_knows_the_time_knows_the_mood(parts, model):
    users, items, actual, times = columns(parts[1])
    plain = HeMF(**SMALL).fit(parts[0])
    without = evaluation.rmse(actual, plain.predict(users, items))
    mean, std = model.predict(users, items, timestamps=times, return_std=True)
    assert evaluation.rmse(actual, mean) < 0.75 * without
    assert 0.85 < evaluation.coverage(actual, mean, std, level=0.9) < 0.95
    # Separated: what lasts, what is of a session alone, and what is of a rating. What lasts for as
    # long as a rater is there is their offset, so that a part of the first is not.
    prior, unit = model.state_.moods.prior, model.rating_scale_**2
    assert 0.4 < prior.persistence < 0.8
    assert 0.4 * LEVEL**2 < unit * prior.variance < LEVEL**2
    assert unit * prior.extra == pytest.approx(EXTRA**2, rel=0.35)
    assert unit * model.state_.noise == pytest.approx(NOISE**2, rel=0.35)


def test_without_a_time_any_mood_is_possible(parts, model):
    users, items, _, times = columns(parts[1])
    _, at_time = model.predict(users, items, timestamps=times, return_std=True)
    _, at_any = model.predict(users, items, return_std=True)
    _, taste = model.predict(users, items, return_std=True, include_noise=False)
    assert (at_time < at_any).all()
    assert (taste < at_time).all()


def test_one_time_is_for_all_pairs(model):
    both = model.predict("u1", ["i1", "i2"], timestamps=1007)
    assert both.tolist() == model.predict("u1", ["i1", "i2"], timestamps=[1007, 1007]).tolist()
    assert both.tolist() != model.predict("u1", ["i1", "i2"], timestamps=9007).tolist()
    stranger = model.predict("nobody", "i1", timestamps=1007)
    assert stranger == pytest.approx(model.predict("nobody", "i1"))


def test_the_bound_rises_and_has_a_term_for_moods(model):
    bounds = [report.elbo for report in model.history_]
    free = bounds[model.history_[0].sweep + 12 :]  # once nothing is held any more
    assert all(later > earlier - 0.05 for earlier, later in pairwise(free))
    assert model.history_[-1].elbo_terms["mood"] < 0.0


def test_error_on_other_ratings_and_score_know_the_time(parts, model):
    reports = []
    HeMF(**SMALL, moods=True).fit(parts[0], validation=parts[1], callbacks=[reports.append])
    users, items, actual, times = columns(parts[1])
    mean = model.predict(users, items, timestamps=times)
    assert reports[-1].validation_rmse == pytest.approx(evaluation.rmse(actual, mean), rel=1e-5)
    explained = 1 - np.mean((actual - mean) ** 2) / actual.var()
    assert model.score(parts[1]) == pytest.approx(explained, rel=1e-5)


def test_moods_are_saved_to_the_bit(model, parts, tmp_path):
    model.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    users, items, _, times = columns(parts[1])
    for kept, loaded in zip(
        model.predict(users, items, timestamps=times, return_std=True),
        again.predict(users, items, timestamps=times, return_std=True),
        strict=True,
    ):
        assert (kept == loaded).all()
    for name in ("user", "item"):
        kept, loaded = (one.state_.row_ratings(name, 0)[1] for one in (model, again))
        assert (kept == loaded).all()
    assert again.state_.bound_terms() == model.state_.bound_terms()


def test_a_file_without_times_cannot_have_moods(model, tmp_path, monkeypatch):
    timeless = TrainingRecord(replace(model.ratings_, timestamps=None))
    fit = replace(model._fit, model=replace(model._model, record=timeless))
    monkeypatch.setitem(vars(model), "_held", ModelHolder(fit))
    with pytest.raises(ModelFileError, match="it has moods, and no times"):
        model.save(tmp_path / "m.hemf")


def test_moods_take_times(parts):
    with pytest.raises(DataError, match="these have no timestamps"):
        HeMF(moods=True).fit([("al", "tea", 5), ("bo", "tea", 3)])
    with pytest.raises(ParameterError, match="moods"):
        HeMF(moods="yes").fit(parts[0])


def test_times_must_be_as_many_as_pairs(model):
    with pytest.raises(DataError, match="there are 3 timestamps for 2 pairs"):
        model.predict("u1", ["i1", "i2"], timestamps=[1, 2, 3])
    with pytest.raises(DataError, match="timestamp"):
        model.predict("u1", ["i1", "i2"], timestamps=[1.0, np.nan])


@pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
def test_the_same_on_any_number_of_threads(parts):
    users, items, _, times = columns(parts[1])
    answers = [
        HeMF(**SMALL, moods=True, max_sweeps=16, n_jobs=n).fit(parts[0]).predict(
            users, items, timestamps=times
        )
        for n in (1, 2)
    ]  # fmt: skip
    assert (answers[0] == answers[1]).all()


def test_a_visitor_may_be_in_any_mood(moody, parts, model):
    users = sorted({row[0] for row in moody})[:40]
    actual, mean, std = [], [], []
    for user in users:
        given = [row for row in moody if row[0] == user]
        visitor = model.fold_in([(item, value) for _, item, value, _ in given[::2]])
        for _, item, value, _ in given[1::2]:
            expected, spread = visitor.predict(item, return_std=True)
            actual.append(value)
            mean.append(expected)
            std.append(spread)
    held = evaluation.coverage(np.array(actual), np.array(mean), np.array(std), level=0.9)
    assert 0.84 < held < 0.97


def test_reasons_are_ratings_as_they_were_given(moody, model):
    given = {row[1]: row[2] for row in moody if row[0] == "u3"}
    learnt = set(model.ratings_.items.ids[model.ratings_.by_user.indices])
    why = model.explain("u3", "i1")
    for reason in why.reasons:
        assert reason.item in learnt
        assert reason.rating == pytest.approx(given[reason.item], abs=1e-4)
    variance = {name: share * why.std**2 for name, share in why.uncertainty.items()}
    prior = model.state_.moods.prior
    true = (prior.variance + prior.extra) * model.rating_scale_**2
    assert variance["mood"] == pytest.approx(true, rel=1e-6)


def test_no_times_for_no_pairs(model):
    assert model.predict([], [], timestamps=[]).size == 0
    with pytest.raises(DataError, match="there are 0 timestamps for 2 pairs"):
        model.predict("u1", ["i1", "i2"], timestamps=[])


@pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
def test_pairs_that_come_with_times_are_predicted_at_these(model, parts, tmp_path):
    import pandas as pd

    users, items, _, times = columns(parts[1])
    at_time = model.predict(users, items, timestamps=times)
    frame = pd.DataFrame({"user": users, "item": items, "timestamp": times})
    assert model.predict(frame).tolist() == at_time.tolist()
    assert model.predict(parts[1]).tolist() == at_time.tolist()
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    assert model.predict(tmp_path / "pairs.csv").tolist() == at_time.tolist()
    assert model.predict(frame, timestamps=7).tolist() == (
        model.predict(users, items, timestamps=7).tolist()
    )
    without = model.predict(frame[["user", "item"]])
    assert without.tolist() == model.predict(users, items).tolist()
    plain = HeMF(**SMALL, max_sweeps=2).fit(parts[0])
    frame["timestamp"] = "no time at all"  # and nobody looks
    assert plain.predict(frame).tolist() == plain.predict(users, items).tolist()
    with pytest.raises(DataError, match="timestamp"):
        model.predict(frame)


def test_a_date_is_a_time_in_seconds(model):
    day = np.datetime64("1970-01-01")
    assert model.predict("u1", "i1", timestamps=day) == model.predict("u1", "i1", timestamps=0)
    several = model.predict("u1", ["i1", "i2"], timestamps=iter([5, 5]))
    assert several.tolist() == model.predict("u1", ["i1", "i2"], timestamps=5).tolist()


@pytest.mark.filterwarnings("ignore")
def test_moods_that_were_not_learnt_are_not_there(parts):
    few = HeMF(**SMALL, moods=True, max_sweeps=5).fit(parts[0])
    plain = HeMF(**SMALL, max_sweeps=5).fit(parts[0])
    users, items, _, times = columns(parts[1])
    for one, other in zip(
        few.predict(users, items, timestamps=times, return_std=True),
        plain.predict(users, items, return_std=True),
        strict=True,
    ):
        assert (one == other).all()


def test_moods_take_memory(parts):
    from hemf._options import fit_options
    from hemf.batch.inputs import fit_bytes

    need = [fit_bytes(parts[0], fit_options(HeMF(**SMALL, moods=m)), validated=False)
            for m in (False, True)]  # fmt: skip
    assert need[1] - need[0] >= 50 * parts[0].n_ratings
