"""The samplers behave like HeMF towards their user, and learn what there is to learn."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from hemf import (
    DataError,
    DataWarning,
    DuplicateWarning,
    GibbsHeMF,
    HeMF,
    ParameterError,
    Ratings,
    UnknownIdError,
)
from hemf.evaluation import random_split, rmse
from hemf.samplers import BPMF, M3FTIB, M3FTIF
from proofs.sensible import CAFE, assert_answers_only_when_fitted

MODELS = (BPMF, M3FTIB, M3FTIF)
SAMPLERS = (*MODELS, GibbsHeMF)
QUICK = {"n_factors": 3, "samples": 8, "burn_in": 4, "rng": 0}

every_model = pytest.mark.parametrize("kind", MODELS)
every_sampler = pytest.mark.parametrize("kind", SAMPLERS)


def predictions(model) -> np.ndarray:
    return np.stack(model.predict(["ann", "bob", "zoe"], ["ale", "milk", "tea"], return_std=True))


# -- manners ------------------------------------------------------------------------------------


@every_model
def test_parameters_are_keywords_with_the_published_constants(kind):
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values())
    assert repr(kind(samples=3)) == f"{kind.__name__}(samples=3)"
    given = kind().get_params()
    assert (given["noise_variance"], given["degrees"], given["wishart_scale"]) == (0.5, None, 1.0)
    assert given["mean_precision"] == (2.0 if kind is BPMF else 10.0)
    if kind is not BPMF:
        assert given["offset_variance"] == 0.1
        assert given["concentration"] == (10_000.0 if kind is M3FTIB else 10.0)


BAD_PARAMETERS = [
    ("n_factors", 0), ("n_factors", -1), ("n_factors", 2.5), ("samples", 0), ("burn_in", -1),
    ("kept", 0), ("noise_variance", 0.0), ("noise_variance", float("nan")), ("learn_noise", 1),
    ("mean_precision", -1), ("degrees", 2), ("wishart_scale", 0), ("rating_range", (5, 1)),
    ("duplicates", "first"), ("n_jobs", 0), ("rng", -1),
]  # fmt: skip
BAD_TOPICS = [
    ("user_topics", 0), ("user_topics", -2), ("item_topics", 0), ("item_topics", 256),
    ("item_topics", 1.5), ("concentration", 0), ("offset_variance", -0.1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, *bad) for kind in MODELS for bad in BAD_PARAMETERS]
    + [(kind, *bad) for kind in (M3FTIB, M3FTIF) for bad in BAD_TOPICS]
    + [(M3FTIF, "topic_factors", 0), (M3FTIF, "topic_mean_precision", 0)],
)
def test_a_parameter_out_of_range_is_named_and_nothing_is_learnt(kind, name, value):
    model = kind(**{name: value})
    with pytest.raises(ParameterError, match=f"^{name} must be"):
        model.fit(CAFE)
    assert not hasattr(model, "state_")


@every_model
def test_before_learning_every_question_is_answered_by_not_fitted(kind):
    model = kind(**QUICK)
    assert_answers_only_when_fitted(model, CAFE, "call fit first")
    assert (model.n_users_, model.n_items_, model.n_sweeps_) == (3, 3, 12)
    assert (model.global_mean_, model.rating_range_, model.noise_variance_) == (3.0, (1, 5), 0.5)


@every_model
def test_the_same_seed_gives_the_same_model_on_any_number_of_threads(kind):
    rng = np.random.default_rng(1)
    users, items = (grid.ravel() for grid in np.indices((120, 90)))
    data = users, items, rng.integers(1, 6, users.size).astype(float)
    first, again, threads = (
        kind(**{**QUICK, "samples": 2, "burn_in": 1, "n_jobs": jobs}).fit(data).samples_[-1]
        for jobs in (1, 1, 3)
    )
    for other in (again, threads):
        assert np.array_equal(first.users.factors, other.users.factors)
        assert np.array_equal(first.items.vectors, other.items.vectors)
        assert np.array_equal(first.items.shares, other.items.shares)
    assert not np.array_equal(
        predictions(kind(**QUICK).fit(CAFE)), predictions(kind(**{**QUICK, "rng": 1}).fit(CAFE))
    )


@every_sampler
def test_copies_and_clones_predict_the_same(kind):
    model = kind(**QUICK).fit(CAFE)
    twin = clone(model)
    assert not hasattr(twin, "state_")
    for other in (twin.fit(CAFE), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(predictions(other), predictions(model))


@every_sampler
def test_every_iteration_is_reported_and_a_callback_can_stop_the_fit(kind):
    reports = []
    model = kind(**QUICK).fit(
        CAFE,
        validation=[("ann", "ale", 2.0), ("zoe", "tea", 4.0)],
        callbacks=[reports.append, lambda report: report.iteration == 9],
    )
    assert [report.iteration for report in reports] == list(range(1, 10))
    assert [report.averaged for report in reports] == [False] * 4 + [True] * 5
    assert all(report.iterations == 12 for report in reports)
    assert model.history_ == reports
    assert model.n_sweeps_ == 9
    # All samples were kept, so that predictions are the average that was reported on.
    assert len(model.samples_) == 5
    found = model.predict(["ann", "zoe"], ["ale", "tea"])
    assert reports[-1].validation_rmse == pytest.approx(rmse([2.0, 4.0], found))
    assert kind(**QUICK).fit(CAFE).history_[-1].validation_rmse is None


@every_sampler
def test_validation_changes_nothing_but_the_report(kind):
    watched = kind(**QUICK).fit(CAFE, validation=[("ann", "ale", 2.0)])
    assert np.array_equal(predictions(watched), predictions(kind(**QUICK).fit(CAFE)))


@every_sampler
def test_validation_on_nothing_is_refused_as_by_hemf(kind):
    nothing = Ratings.from_any(CAFE).select(np.arange(0))
    for model in (HeMF(), kind(**QUICK)):
        with pytest.raises(DataError, match="no ratings to report the error on"):
            model.fit(CAFE, validation=nothing)


@every_sampler
def test_a_fit_stopped_in_its_burn_in_keeps_the_latest_draw(kind):
    model = kind(**QUICK).fit(CAFE, callbacks=[lambda report: report.iteration == 2])
    assert len(model.samples_) == 1
    assert np.isfinite(predictions(model)).all()


@pytest.mark.parametrize(("samples", "kept", "found"), [(10, 100, 10), (10, 5, 5), (10, 4, 3)])
def test_samples_kept_are_spread_evenly(samples, kept, found):
    model = BPMF(**{**QUICK, "samples": samples, "kept": kept}).fit(CAFE)
    assert len(model.samples_) == found


@every_sampler
def test_samples_that_memory_does_not_hold_are_refused_before_the_work(kind, monkeypatch):
    monkeypatch.setattr("hemf.samplers.base.available_bytes", lambda: 6000)
    seen = []
    with pytest.raises(ParameterError, match="choose a smaller kept or n_factors"):
        kind(**{**QUICK, "samples": 100}).fit(CAFE, callbacks=[seen.append])
    assert not seen
    assert kind(**{**QUICK, "samples": 100}, kept=2).fit(CAFE).n_sweeps_ == 104


def test_a_broken_fit_leaves_the_old_model():
    model = BPMF(**QUICK).fit(CAFE)
    before = predictions(model)

    def stumble(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit([("joe", "gin", 3.0)], callbacks=[stumble])
    assert np.array_equal(predictions(model), before)


# -- input --------------------------------------------------------------------------------------

BAD_DATA = {
    "no rating": [("zoe", "tea", 1.0), ("zoe", "gin", float("nan"))],
    "infinite": [("zoe", "tea", float("inf"))],
    "no user": [("zoe", "tea", 1.0), (None, "gin", 1.0)],
    "outside the range": [("zoe", "tea", 1.0), ("zoe", "gin", 6.0)],
    "unequal columns": (["zoe"], ["tea", "gin"], [1.0, 2.0]),
    "nothing": [],
    "no rows": ([], [], []),
}


@every_sampler
@pytest.mark.parametrize("data", BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_ratings_are_refused(kind, data):
    model = kind(**QUICK, rating_range=(1, 5))
    with pytest.raises(DataError):
        model.fit(data)
    assert not hasattr(model, "state_")
    if data is not BAD_DATA["outside the range"]:
        with pytest.raises(DataError):
            model.fit(CAFE, validation=data)


@every_model
def test_ratings_that_no_number_holds_the_square_of_are_an_error(kind):
    model = kind(**QUICK).fit(CAFE)
    before = predictions(model)
    with pytest.raises(ParameterError, match="bring the ratings to a scale like 1 to 5"):
        model.fit([(user, item, rating * 1e30) for user, item, rating in CAFE])
    assert np.array_equal(predictions(model), before)


@every_sampler
def test_all_kinds_of_tables_are_read(kind):
    frame = pd.DataFrame(CAFE, columns=["user", "item", "rating"])
    expected = predictions(kind(**QUICK).fit(CAFE))
    for data in (frame, Ratings.from_any(frame)):
        assert np.array_equal(predictions(kind(**QUICK).fit(data)), expected)
    apart = kind(**QUICK).fit(frame[["user", "item"]], frame.rating)
    assert np.array_equal(predictions(apart), expected)
    with pytest.warns(DuplicateWarning):
        twice = kind(**QUICK).fit([("ann", "tea", 1.0), *CAFE])
    assert np.array_equal(predictions(twice), expected)


@every_sampler
def test_a_single_rating_and_equal_ratings_are_learnt(kind):
    assert kind(**QUICK).fit([("ann", "tea", 2.0)]).predict("ann", "tea") == 2.0
    with pytest.warns(DataWarning, match="all 25 ratings are 4"):
        equal = kind(**QUICK).fit([(u, i, 4.0) for u in range(5) for i in range(5)])
    assert equal.predict([0, 9], [1, 1]).tolist() == [4.0, 4.0]


# -- prediction ---------------------------------------------------------------------------------


@every_model
def test_strangers_get_the_prior_mean_and_are_less_certain(kind):
    model = kind(**QUICK, rating_range=None).fit(CAFE)
    pairs = ["ann", "ann", "zoe", "zoe"], ["tea", "gin", "tea", "gin"]
    mean, std, known = model.predict(*pairs, return_std=True, return_known=True)
    assert known.tolist() == [True, False, False, False]
    assert np.isfinite(mean).all()
    assert (std >= np.sqrt(0.5)).all()
    assert std[3] > std[0]
    with pytest.raises(UnknownIdError, match="item 'gin' at row 1 is not known"):
        model.predict("ann", ["tea", "gin"], unknown="error")
    samples = [sample.users.factors[-1] @ sample.items.factors[-1] for sample in model.samples_]
    if kind is BPMF:
        assert mean[3] == pytest.approx(3.0 + np.mean(samples), abs=1e-5)


@every_model
def test_ids_without_a_rating_are_strangers(kind):
    ratings = Ratings.from_any(CAFE)
    model = kind(**QUICK).fit(ratings.subset(ratings.by_user.values < 4))
    assert model.n_items_ == 2
    assert model.predict("ann", ["tea", "milk"], return_known=True)[1].tolist() == [False, True]


@every_sampler
def test_one_pair_is_a_number_and_many_are_a_list(kind):
    model = kind(**QUICK).fit(CAFE)
    assert np.ndim(model.predict("ann", "tea")) == 0
    assert [np.ndim(part) for part in model.predict("ann", "tea", return_std=True)] == [0, 0]
    assert model.predict([("ann", "tea"), ("bob", "gin")]).shape == (2,)
    assert model.predict([], []).shape == (0,)


@every_model
def test_the_mean_is_clipped_and_not_the_samples(kind):
    data = [(u, i, 5.0 if (u + i) % 2 else 1.0) for u in range(12) for i in range(12)]
    clipped, free = (
        kind(**{**QUICK, "burn_in": 60}, noise_variance=0.01, rating_range=given).fit(data)
        for given in ("observed", None)
    )
    pairs = np.repeat(np.arange(12), 12), np.tile(np.arange(12), 12)
    assert np.array_equal(clipped.predict(*pairs), np.clip(free.predict(*pairs), 1, 5))
    assert free.predict(*pairs).max() > 5.0


# -- real ratings ---------------------------------------------------------------------------------


@every_sampler
def test_movielens_100k_is_predicted_better_than_by_offsets(kind, shared_data):
    frame = pd.read_parquet(shared_data / "ml-100k.parquet")
    train, test = random_split(len(frame), 0.1, rng=0)
    rest = frame.iloc[test]
    model = kind(n_factors=10, samples=15, burn_in=10, rng=0).fit(frame.iloc[train])
    mean, std = model.predict(rest.user, rest.item, return_std=True)
    assert rmse(rest.rating, mean) < 0.92
    assert 0.85 < np.mean(np.abs(rest.rating - mean) < 1.645 * std) < 0.95
