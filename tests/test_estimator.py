"""The estimator as its users meet it: scikit-learn's manners, fitting, and predicting."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from hemf import ConvergenceWarning, HeMF, HemfError, NotFittedError, ParameterError, Ratings
from hemf._options import fit_options
from hemf.baselines import SGD
from hemf.batch.callbacks import SweepReport
from hemf.data.datasets import draw
from hemf.evaluation import random_split, rmse
from hemf.samplers import BPMF

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

RMSE = "neg_root_mean_squared_error"
DATA = draw(90, 70, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=1)
PAIRS = np.column_stack([DATA.users, DATA.items])
NAMES = ([f"user {u}" for u in DATA.users], [f"item {i}" for i in DATA.items])
NAMED = (*NAMES, DATA.ratings)


def small(**parameters) -> HeMF:
    quick = {"n_factors": 3, "max_user_communities": 3, "max_item_communities": 3}
    return HeMF(**{**quick, "max_sweeps": 14, "rng": 0, **parameters})


@pytest.fixture(scope="module")
def model() -> HeMF:
    return small().fit(NAMED)


# -- parameters ---------------------------------------------------------------------------------


def test_parameters_are_keywords_with_defaults():
    parameters = list(inspect.signature(HeMF).parameters.values())
    assert {p.kind for p in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(p.default is not inspect.Parameter.empty for p in parameters)
    with pytest.raises(TypeError):
        HeMF(20)


def test_nothing_is_checked_or_computed_before_fit():
    odd = {"n_factors": -1, "evb": object(), "rng": "seed", "rating_range": [5, 1]}
    model = HeMF(**odd)
    assert vars(model) == model.get_params()
    assert all(getattr(model, name) is value for name, value in odd.items())


def test_parameters_can_be_read_and_set_by_name():
    model = HeMF(n_factors=3)
    assert model.get_params() == {**HeMF().get_params(), "n_factors": 3}
    assert model.get_params(deep=False) == model.get_params()
    assert model.set_params(n_factors=5, tol=0.1) is model
    assert (model.n_factors, model.tol) == (5, 0.1)
    assert model.set_params() is model


def test_a_parameter_of_another_name_is_refused_and_none_is_set():
    model = HeMF(n_factors=3)
    with pytest.raises(ParameterError, match=r"no parameter 'factors'; it has n_factors") as caught:
        model.set_params(n_factors=5, factors=5)
    assert caught.value.value == "factors"
    assert model.n_factors == 3
    with pytest.raises(TypeError):
        HeMF(factors=5)


def test_a_clone_has_the_parameters_and_nothing_learnt(model):
    copied = clone(model)
    assert type(copied) is HeMF
    assert copied.get_params() == model.get_params()
    assert not [name for name in vars(copied) if name.endswith("_")]


def test_a_clone_draws_what_the_first_would_have_drawn():
    first = small(rng=np.random.default_rng(3))
    second = clone(first)
    assert second.rng is not first.rng
    np.testing.assert_array_equal(
        first.fit(NAMED).predict(*NAMES), second.fit(NAMED).predict(*NAMES)
    )


def test_a_repr_shows_what_differs_from_the_defaults_and_can_be_evaluated():
    assert repr(HeMF()) == "HeMF()"
    model = HeMF(n_factors=3, noise_scales=None, rating_range=(0, 10), validation_fraction=0.1)
    text = "HeMF(n_factors=3, noise_scales=None, validation_fraction=0.1, rating_range=(0, 10))"
    assert repr(model) == text
    assert eval(text).get_params() == model.get_params()


# -- life cycle ---------------------------------------------------------------------------------


def test_fit_returns_the_estimator_and_what_it_learns_ends_in_an_underscore():
    model = small()
    assert model.fit(NAMED) is model
    public = {name for name in vars(model) if not name.startswith("_")}
    assert public == set(model.get_params())
    assert (model.n_users_, model.n_items_) == (len(set(NAMES[0])), len(set(NAMES[1])))
    assert 1 <= model.n_user_communities_ <= 3
    assert 1 <= model.n_item_communities_ <= 3
    assert model.noise_variance_ > 0
    assert model.global_mean_ == pytest.approx(DATA.ratings.mean(), rel=1e-6)
    assert model.rating_scale_ == pytest.approx(DATA.ratings.std(), rel=1e-6)


PROPERTIES = [
    name
    for name in dir(HeMF)
    if isinstance(getattr(HeMF, name), property) and not name.startswith("_")
]
QUESTIONS = {
    "predict": lambda model, tmp_path: model.predict("ann", "tea"),
    "predict pairs": lambda model, tmp_path: model.predict([("ann", "tea")]),
    "recommend": lambda model, tmp_path: model.recommend("ann"),
    "similar_items": lambda model, tmp_path: model.similar_items("tea"),
    "similar_users": lambda model, tmp_path: model.similar_users("ann"),
    "communities": lambda model, tmp_path: model.communities("user"),
    "biclusters": lambda model, tmp_path: model.biclusters(),
    "explain": lambda model, tmp_path: model.explain("ann", "tea"),
    "save": lambda model, tmp_path: model.save(tmp_path / "model.hemf"),
    **{name: lambda model, tmp_path, n=name: getattr(model, n) for name in PROPERTIES},
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_before_fit_every_question_is_answered_by_not_fitted(ask, tmp_path):
    with pytest.raises(NotFittedError, match="this HeMF is not fitted yet; call fit") as e:
        ask(HeMF(), tmp_path)
    assert all(isinstance(e.value, kind) for kind in (HemfError, ValueError, AttributeError))
    assert not list(tmp_path.iterdir())


def test_attributes_appear_with_fit(model):
    assert "elbo_history_" in PROPERTIES
    assert not any(hasattr(HeMF(), name) for name in PROPERTIES)
    assert all(hasattr(model, name) for name in PROPERTIES)


def test_fitting_again_replaces_everything():
    model = small().fit(NAMED)
    model.predict("stranger", "nothing")  # what is remembered of strangers has to go too
    other = [("ann", "tea", 5.0), ("bob", "tea", 3.0), ("bob", "milk", 1.0)]
    again, fresh = model.fit(other), small().fit(other)
    assert (again.n_users_, again.n_items_) == (2, 2)
    assert again.rating_range_ == (1.0, 5.0)
    assert len(again.history_) == len(fresh.history_)
    for pair in (("ann", "milk"), ("stranger", "nothing"), ("user 1", "item 1")):
        assert again.predict(*pair, return_std=True) == fresh.predict(*pair, return_std=True)


def interrupted(report: SweepReport) -> bool:
    if report.sweep == 3:
        raise KeyboardInterrupt
    return False


@pytest.mark.parametrize(
    ("parameters", "data", "callbacks", "error"),
    [
        ({}, [("ann", "tea", "good")], (), ValueError),
        ({}, [], (), ValueError),
        ({"n_factors": 0}, NAMED, (), ParameterError),
        ({"duplicates": "error"}, [("ann", "tea", 1), ("ann", "tea", 2)], (), ValueError),
        ({}, [("ann", "tea", 1), ("bob", "milk", 2)], (interrupted,), KeyboardInterrupt),
    ],
    ids=["a bad rating", "no data", "a bad parameter", "duplicates", "Ctrl-C between sweeps"],
)
def test_a_fit_that_fails_leaves_the_old_model(parameters, data, callbacks, error):
    model = small().fit(NAMED)
    before = {name: value for name, value in vars(model).items() if name.endswith("_")}
    expected = model.predict(*NAMES)
    with pytest.raises(error):
        model.set_params(**parameters).fit(data, callbacks=callbacks)
    assert all(vars(model)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(model.predict(*NAMES), expected)


def test_the_same_seed_gives_the_same_model_and_a_generator_goes_on():
    generator = np.random.default_rng(0)
    seeded = [small(rng=0).fit(NAMED), small(rng=np.random.default_rng(0)).fit(NAMED)]
    going_on = [small(rng=generator).fit(NAMED), small(rng=generator).fit(NAMED)]
    means = [fitted.predict(*NAMES) for fitted in (*seeded, *going_on)]
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])
    assert not np.array_equal(means[2], means[3])
    assert np.isfinite(small(rng=None, max_sweeps=2).fit(NAMED).elbo_)


def test_what_is_handed_in_is_not_changed():
    arrays = tuple(np.array(column) for column in NAMED)
    frame = pd.DataFrame(dict(zip(("user", "item", "rating"), NAMED, strict=True)))
    ratings = Ratings.from_any(NAMED)
    kept = (*(a.copy() for a in arrays), frame.copy(), ratings.by_user.values.copy())
    for array in (*arrays, ratings.by_user.values, ratings.by_item.values):
        array.flags.writeable = False
    means = [small().fit(data).predict(*arrays[:2]) for data in (arrays, frame, ratings)]
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])
    for array, before in zip(arrays, kept[:3], strict=True):
        np.testing.assert_array_equal(array, before)
    pd.testing.assert_frame_equal(frame, kept[3])
    np.testing.assert_array_equal(ratings.by_user.values, kept[4])


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_a_fitted_model_can_be_copied_and_sent_to_other_processes(model, copied):
    other = copied(model)
    assert other is not model
    assert repr(other) == repr(model)
    np.testing.assert_array_equal(other.predict(*NAMES), model.predict(*NAMES))


# -- scikit-learn's tools -----------------------------------------------------------------------


def test_pairs_and_ratings_apart_are_the_same_as_together():
    apart = small().fit(PAIRS, DATA.ratings)
    together = small().fit((DATA.users, DATA.items, DATA.ratings))
    np.testing.assert_array_equal(apart.predict(PAIRS), together.predict(DATA.users, DATA.items))
    frame = pd.DataFrame(PAIRS, columns=["item", "user"])[["user", "item"]]
    assert small(max_sweeps=1).fit(frame, pd.Series(DATA.ratings)).n_users_ == apart.n_items_
    chosen = {"user": "user", "item": "item"}
    assert small(max_sweeps=1).fit(frame, DATA.ratings, columns=chosen).n_users_ == apart.n_items_


def test_scikit_learn_sees_a_regressor_that_knows_whether_it_is_fitted(model):
    assert is_regressor(HeMF())
    check_is_fitted(model)
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(HeMF())


@pytest.mark.parametrize("kind", [np.int64, object], ids=["numbers", "text"])
def test_cross_validation_scores_the_model(kind):
    pairs = PAIRS.astype(np.int64) if kind is np.int64 else np.column_stack(NAMES).astype(object)
    scores = cross_val_score(small(), pairs, DATA.ratings, scoring=RMSE, cv=3)
    assert scores.shape == (3,)
    assert (-scores < DATA.ratings.std()).all()


def test_cross_validation_predicts_every_pair():
    predicted = cross_val_predict(small(), PAIRS, DATA.ratings, cv=3)
    assert np.corrcoef(predicted, DATA.ratings)[0, 1] > 0.5


def test_a_search_finds_parameters_and_refits():
    grid = {"n_factors": [1, 2], "offsets": [True, False]}
    search = GridSearchCV(small(max_sweeps=8), grid, scoring=RMSE, cv=2).fit(PAIRS, DATA.ratings)
    assert set(search.best_params_) == set(grid)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(PAIRS).shape == DATA.ratings.shape
    assert "HeMF" in search._repr_html_()


def test_the_score_is_r_squared(model):
    expected = r2_score(DATA.ratings, model.predict(*NAMES))
    assert 0.3 < expected < 1.0
    frame = pd.DataFrame({"user": NAMES[0], "item": NAMES[1]})
    for pairs in (frame, np.column_stack(NAMES).astype(object), NAMES):
        assert model.score(pairs, DATA.ratings) == pytest.approx(expected, abs=1e-6)
    for ratings in (NAMED, Ratings.from_any(NAMED), frame.assign(rating=DATA.ratings)):
        assert model.score(ratings) == pytest.approx(expected, abs=1e-6)
    twice = model.score([("u", "i"), ("u", "i")], [1.0, 5.0])
    mean = model.predict("u", "i")
    assert twice == pytest.approx(1 - ((mean - 1) ** 2 + (mean - 5) ** 2) / 8)
    assert model.score([("u", "i"), ("u", "i")], [99.0, 99.0]) == 0.0  # as scikit-learn has it
    with pytest.raises(HemfError, match=r"no (rows|ratings)"):
        model.score([], [])
    with pytest.raises(NotFittedError):
        HeMF().score(PAIRS, DATA.ratings)


def test_searches_need_no_scoring():
    scores = cross_val_score(small(max_sweeps=8), PAIRS, DATA.ratings, cv=2)
    search = GridSearchCV(small(max_sweeps=8), {"n_factors": [3]}, cv=2).fit(PAIRS, DATA.ratings)
    assert search.best_score_ == pytest.approx(scores.mean())
    assert 0.0 < scores.mean() < 1.0


def test_the_model_ends_a_pipeline(model):
    pipeline = make_pipeline("passthrough", small())
    predicted = pipeline.fit(PAIRS, DATA.ratings).predict(PAIRS)
    np.testing.assert_array_equal(predicted, small().fit(PAIRS, DATA.ratings).predict(PAIRS))


# -- learning ----------------------------------------------------------------------------------


def held_out_error(seed: int) -> float:
    """RMSE on a third of 960 ratings, over their standard deviation; the noise is 0.3 of it."""
    data = draw(60, 40, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=seed)
    train, test = random_split(data.ratings.size, 1 / 3, rng=seed)
    columns = (data.users, data.items, data.ratings)
    model = small(n_factors=4, max_sweeps=40, rng=seed).fit(tuple(c[train] for c in columns))
    users, items, ratings = (column[test] for column in columns)
    return rmse(ratings, model.predict(users, items)) / ratings.std()


def test_clear_tastes_are_learnt_from_a_few_hundred_ratings():
    errors = np.array([held_out_error(seed) for seed in range(6)])
    assert (errors < 0.5).all(), errors


# -- progress -----------------------------------------------------------------------------------


def test_callbacks_see_every_sweep_and_can_stop():
    seen = []

    def watch(report):
        assert isinstance(report, SweepReport)
        seen.append(report)
        return report.sweep == 4

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # to be stopped is not to have run out of sweeps
        model = small().fit(NAMED, callbacks=[watch])
    assert [report.sweep for report in seen] == [1, 2, 3, 4]
    assert model.history_ == seen
    assert (model.n_sweeps_, model.converged_) == (4, False)
    assert model.noise_variance_ == pytest.approx(seen[-1].noise_variance)
    assert model.elbo_ == pytest.approx(seen[-1].elbo, rel=1e-12)
    assert all(report.max_sweeps == 14 and report.validation_rmse is None for report in seen)


def test_running_out_of_sweeps_is_said_where_fit_was_called():
    with pytest.warns(ConvergenceWarning, match="after 3 sweeps; raise max_sweeps") as caught:
        model = small(max_sweeps=3).fit(NAMED)
    assert "the bound was still rising" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert not model.converged_
    assert model.n_sweeps_ == 3


def test_running_out_of_sweeps_names_the_held_out_error_where_that_was_watched():
    expected = "the error on held-out ratings had not converged after 3 sweeps; raise max_sweeps"
    with pytest.warns(ConvergenceWarning, match=expected) as caught:
        small(max_sweeps=3, validation_fraction=0.2).fit(NAMED)
    assert "bound" not in str(caught[0].message)
    assert "tol" not in str(caught[0].message)  # which is not asked then


def test_a_fit_that_settles_is_silent(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small(max_sweeps=500, tol=1e-3).fit(NAMED)
    assert model.converged_
    assert model.n_sweeps_ == len(model.history_) < 500
    assert capfd.readouterr() == ("", "")


def test_the_terms_of_the_bound_add_up_to_it(model):
    history = model.elbo_history_
    total = history.pop("total")
    assert total.shape == (model.n_sweeps_,)
    assert total[-1] > total[0]
    assert {"ratings", "user noise", "item noise"} < set(history)
    assert all(term.shape == total.shape for term in history.values())
    np.testing.assert_allclose(sum(history.values()), total, rtol=1e-12)


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_the_bound_is_that_of_the_model_as_it_is(fraction):
    model = small(validation_fraction=fraction, max_sweeps=40).fit(NAMED)
    assert model.elbo_ == sum(model.state_.bound_terms().values())
    last_bound = model.elbo_history_["total"][model.n_sweeps_ - 1]
    assert model.elbo_ == pytest.approx(last_bound, rel=0.01)


def test_with_a_held_out_part_the_best_sweep_is_kept():
    model = small(validation_fraction=0.2, rating_range=None, max_sweeps=60).fit(NAMED)
    errors = [report.validation_rmse for report in model.history_]
    earliest = fit_options(model).earliest
    assert model.n_sweeps_ == earliest + int(np.argmin(errors[earliest - 1 :])) <= len(errors)
    assert model.ratings_.n_ratings == round(0.8 * DATA.ratings.size)
    users, items, _ = model.ratings_.triples()
    ids = (model.ratings_.users.ids[users], model.ratings_.items.ids[items])
    learnt_from = set(zip(*ids, strict=True))
    held = [k for k, pair in enumerate(zip(*NAMES, strict=True)) if pair not in learnt_from]
    error = rmse(DATA.ratings[held], model.predict(*NAMES)[held])
    assert error == pytest.approx(min(errors[earliest - 1 :]), rel=1e-6)


# -- threads and processes ----------------------------------------------------------------------


def test_several_threads_may_ask_one_model(model):
    asked = [(f"user {k}", NAMES[1][k : k + 50]) for k in range(64)]  # some are strangers
    fresh = small().fit(NAMED)  # nothing is cached yet

    def answer(question):
        user, items = question
        return fresh.predict(user, items, return_std=True), fresh.recommend(user, n=3)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, asked))
    for (mean, std), (ids, scores) in map(answer, asked):
        (other_mean, other_std), (other_ids, other_scores) = together.pop(0)
        np.testing.assert_array_equal(mean, other_mean)
        np.testing.assert_array_equal(std, other_std)
        assert ids.tolist() == other_ids.tolist()
        np.testing.assert_array_equal(scores, other_scores)


def test_several_threads_may_fit_models_of_their_own(model):
    with ThreadPoolExecutor(3) as pool:
        fitted = list(pool.map(lambda _: small(n_jobs=2).fit(NAMED), range(3)))
    for other in fitted:
        np.testing.assert_array_equal(other.predict(*NAMES), model.predict(*NAMES))


def _fit_and_send(connection, fitted):
    connection.send((fitted.predict(*NAMES), small(n_jobs=2).fit(NAMED).predict(*NAMES)))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_predicts_and_fits(model):
    small(n_jobs=2).fit(NAMED)  # threads have been used here before
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_fit_and_send, args=(theirs, model))
    child.start()
    try:
        assert ours.poll(60), "the forked process hangs"
        for predicted in ours.recv():
            np.testing.assert_array_equal(predicted, model.predict(*NAMES))
        child.join(20)
        assert child.exitcode == 0
    finally:
        child.kill()


@pytest.mark.parametrize("callbacks", [5, print, [5], [print, None]])
@pytest.mark.parametrize("kind", [HeMF, SGD, BPMF])
def test_callbacks_that_are_no_functions_are_refused(kind: type, callbacks: object) -> None:
    with pytest.raises(ParameterError, match="callbacks must be"):
        kind(n_factors=1).fit([("ann", "tea", 5.0), ("bob", "tea", 3.0)], callbacks=callbacks)
