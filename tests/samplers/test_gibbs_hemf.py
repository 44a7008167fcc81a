"""The sampler towards its user: parameters, features, strangers, and what it learns."""

from __future__ import annotations

import inspect
import subprocess
import sys
from operator import attrgetter

import numpy as np
import pytest
from sklearn.utils.validation import check_is_fitted

import hemf
from hemf import DataError, GibbsHeMF, HeMF, NotFittedError, ParameterError, UnknownIdError
from hemf.evaluation import coverage, random_split, rmse

CAFE = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
QUICK = {"n_factors": 2, "samples": 8, "burn_in": 4, "rng": 0}


@pytest.fixture(scope="module")
def chosen():
    """Ratings where what users chose to rate tells of their taste, a tenth of them withheld."""
    rng = np.random.default_rng(5)
    n_users, n_items = 250, 150
    users, items = rng.normal(size=(n_users, 3)), rng.normal(size=(n_items, 3))
    taste = 0.5 * users @ items.T
    odds = np.exp(1.2 * taste + 0.3 * rng.normal(size=taste.shape))
    rows, columns = [], []
    for user in range(n_users):
        share = odds[user] / odds[user].sum()
        rows += [user] * 12
        columns += rng.choice(n_items, 12, replace=False, p=share).tolist()
    rows, columns = np.array(rows), np.array(columns)
    scale = np.where(np.arange(n_users) % 2, 0.4, 1.2)[rows]  # half of the raters are careless
    ratings = 3.0 + taste[rows, columns] + scale * rng.normal(size=rows.size)
    whole = rows, columns, ratings
    return [tuple(part[kept] for part in whole) for kept in random_split(rows.size, 0.1, rng=0)]


def test_parameters_are_keywords_and_those_of_hemf_where_they_have_its_names():
    parameters = inspect.signature(GibbsHeMF).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    assert repr(GibbsHeMF(samples=3)) == "GibbsHeMF(samples=3)"
    theirs = inspect.signature(HeMF).parameters
    shared = set(parameters) & set(theirs) - {"implicit_features", "noise_scales"}
    assert {name: parameters[name].default for name in shared} == {
        name: theirs[name].default for name in shared
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_factors", 0), ("n_factors", 2.5), ("samples", 0), ("burn_in", -1), ("kept", 0),
        ("implicit_features", "users"), ("noise_scales", True), ("rating_range", (5, 1)),
        ("duplicates", "first"), ("n_jobs", 0), ("rng", -1),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_named_and_nothing_is_learnt(name, value):
    model = GibbsHeMF(**{name: value})
    with pytest.raises(ParameterError, match=f"^{name} must be"):
        model.fit(CAFE)
    assert not hasattr(model, "state_")


def test_what_is_known_is_said_once_it_is_learnt():
    model = GibbsHeMF(**QUICK)
    with pytest.raises(NotFittedError, match="this GibbsHeMF is not fitted yet"):
        model.predict("ann", "tea")
    check_is_fitted(model.fit(CAFE))
    assert (model.n_users_, model.n_items_, model.n_sweeps_) == (3, 2, 12)
    assert (model.global_mean_, model.rating_range_) == (3.0, (1, 5))
    assert 0.0 < model.noise_variance_ < 10.0
    assert isinstance(model.start_, HeMF)


def test_the_same_seed_gives_the_same_draws_on_any_number_of_threads(chosen):
    train, _ = chosen
    first, again, threads = (
        GibbsHeMF(**{**QUICK, "samples": 2}, n_jobs=jobs).fit(train).samples_[-1]
        for jobs in (1, 1, 3)
    )
    for other in (again, threads):
        assert np.array_equal(first.users, other.users)
        assert np.array_equal(first.items, other.items)
        assert np.array_equal(first.user_weights, other.user_weights)
    other = GibbsHeMF(**{**QUICK, "samples": 2, "rng": 1}).fit(train).samples_[-1]
    assert not np.array_equal(first.users, other.users)


def test_a_scale_of_ratings_is_as_good_as_another():
    """Up to where float32 holds the ratings; all is drawn in units of their deviation."""
    far = [(user, item, 1e6 + 1e4 * value) for user, item, value in CAFE]
    near, away = (
        GibbsHeMF(**QUICK, rating_range=None).fit(data).predict("ann", "tea", return_std=True)
        for data in (CAFE, far)
    )
    assert away[0] == pytest.approx(1e6 + 1e4 * near[0], rel=1e-5)
    assert away[1] == pytest.approx(1e4 * near[1], rel=1e-2)


def test_the_start_answers_for_strangers_and_newcomers_with_features():
    people = {"ann": {"age": 20}, "bob": {"age": 30}, "eve": {"age": 40}, "zoe": {"age": 50}}
    model = GibbsHeMF(**QUICK).fit(CAFE, user_features=people)
    pairs = ["ann", "zoe", "kim"], ["tea", "tea", "gin"]
    mean, std, known = model.predict(*pairs, return_std=True, return_known=True)
    assert known.tolist() == [True, False, False]
    by_start = model.start_.predict(*pairs, return_std=True)
    assert mean[1:].tolist() == by_start[0][1:].tolist()
    assert std[1:].tolist() == by_start[1][1:].tolist()
    assert mean[0] != by_start[0][0]
    assert model.predict("zoe", "tea") == mean[1]
    with pytest.raises(UnknownIdError, match="'kim'"):
        model.predict("kim", "tea", unknown="error")


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        ({"kim": [1.0], "zoe": [2.0]}, "none of its 2 ids is among those of the ratings"),
        ({"ann": [1.0], "bob": [1.0]}, "every column is constant"),
    ],
)
def test_bad_features_are_refused_and_leave_the_old_model(features, complaint):
    model = GibbsHeMF(**QUICK).fit(CAFE)
    before = model.predict("ann", "tea")
    with pytest.raises(DataError, match=complaint):
        model.fit(CAFE, user_features=features)
    assert model.predict("ann", "tea") == before


@pytest.mark.parametrize("implicit", [True, False, "user", "item"])
@pytest.mark.parametrize("scales", ["both", "user", None])
def test_every_form_is_sampled(chosen, implicit, scales):
    train, test = chosen
    settings = {**QUICK, "implicit_features": implicit, "noise_scales": scales}
    model = GibbsHeMF(**settings).fit(train)
    users, items, ratings = test
    mean = model.predict(users, items)
    assert rmse(ratings, mean) < np.std(ratings)


def test_what_raters_chose_and_how_careless_they_are_pays(chosen):
    train, test = chosen
    *pairs, ratings = test
    errors = {}
    for name, changes in {
        "all": {},
        "no features": {"implicit_features": False},
        "no scales": {"noise_scales": None},
    }.items():
        settings = {"n_factors": 3, "samples": 150, "burn_in": 30, "rng": 0, **changes}
        mean, std = GibbsHeMF(**settings).fit(train).predict(*pairs, return_std=True)
        errors[name] = rmse(ratings, mean)
        if name == "all":
            assert coverage(ratings, mean, std) == pytest.approx(0.9, abs=0.06)
    assert errors["all"] < 0.99 * errors["no features"], errors
    assert errors["all"] < errors["no scales"], errors


def test_the_sampler_is_loaded_when_it_is_asked_for_and_not_before():
    code = (
        "import sys, hemf; assert 'hemf.samplers' not in sys.modules; "
        "from hemf import GibbsHeMF; print(GibbsHeMF(samples=2))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "GibbsHeMF(samples=2)\n"
    with pytest.raises(AttributeError, match="module 'hemf' has no attribute 'Gibbs'"):
        attrgetter("Gibbs")(hemf)
