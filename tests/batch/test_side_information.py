"""Features make predictions better, reach those without a rating, and never break a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from hemf import HeMF
from hemf.errors import DataError, ParameterError, UnknownIdError
from hemf.evaluation import rmse
from hemf.model import regression
from proofs.problems import tables

N_USERS, N_ITEMS, NEW = 150, 60, 30
FAST = {"n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "rng": 0, "n_jobs": 1}


class World:
    """Ratings whose users are what their features say, and noise; the last users rate nothing."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.features = rng.normal(size=(N_USERS, 4))
        taste = self.features @ rng.normal(size=(4, 2)) + 0.2 * rng.normal(size=(N_USERS, 2))
        table = taste @ rng.normal(size=(N_ITEMS, 2)).T + 0.3 * rng.normal(size=(N_USERS, N_ITEMS))
        users, items = np.nonzero(rng.random(table.shape) < 0.25)
        self.table = table
        old = users < N_USERS - NEW
        self.train = users[old], items[old], table[users[old], items[old]]
        self.new = users[~old], items[~old], table[users[~old], items[~old]]


UNKNOWN = pytest.mark.filterwarnings("ignore:451 of 451 users are not known")
"""The new users are asked for on purpose, of models that have no features of them."""
UNFINISHED = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
"""Few sweeps are enough."""


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def model(world: World) -> HeMF:
    frame = pd.DataFrame(world.features, columns=list("abcd"))
    frame["user"], frame["group"] = np.arange(N_USERS), np.where(world.features[:, 0] > 0, "x", "y")
    return HeMF(**FAST, implicit_features=True).fit(world.train, user_features=frame)


@pytest.fixture(scope="module")
def plain(world: World) -> HeMF:
    return HeMF(**FAST).fit(world.train)


@UNKNOWN
def test_newcomers_are_predicted_from_their_features(world, model, plain):
    users, items, ratings = world.new
    assert rmse(ratings, model.predict(users, items)) < 0.5 * rmse(
        ratings, plain.predict(users, items)
    )


def test_newcomers_are_like_the_row_of_a_typical_rating():
    """What is rated most is liked most here, and of a newcomer it is ratings that are asked for."""
    rng = np.random.default_rng(7)
    share = np.repeat([0.02, 0.8], [45, 20])  # of the users, who rate an item
    quality = np.repeat([-1.0, 1.0], [45, 20])
    kind = rng.normal(size=65)
    rated = rng.random((200, 65)) < share
    rated[:, 55:] = False  # ten of those that will be popular are new
    users, items = np.nonzero(rated)
    level = quality + 0.5 * kind
    values = level[items] + 0.1 * rng.normal(size=items.size)
    for implicit in (False, True):
        fitted = HeMF(**FAST, implicit_features=implicit).fit(
            (users, items, values), item_features={i: [kind[i]] for i in range(65)}
        )
        new = np.arange(55, 65)
        mean, std = fitted.predict(0, new, return_std=True)
        assert abs(float(np.mean(level[new] - mean))) < 0.35  # a typical row would be 1.5 below
        assert np.corrcoef(mean, kind[new])[0, 1] > 0.99
        assert (std > 0.3).all()


def test_newcomers_with_features_are_flagged(world, model):
    mean, std, known = model.predict([149, 0, 999], 0, return_std=True, return_known=True)
    assert known.tolist() == [False, True, False]
    assert std[1] < std[0] < std[2]  # ratings say most, features something, nothing nothing
    with pytest.raises(UnknownIdError):
        model.predict(149, 0, unknown="error")
    ids, scores, is_known = model.recommend(149, 5, return_known=True)
    assert not is_known
    assert rmse(scores, model.predict(149, ids)) < 1e-5
    assert len(set(np.round(model.predict([149, 999], 0), 6))) == 2
    assert mean[0] == pytest.approx(model.predict(149, 0))


def test_intervals_of_newcomers_cover_what_they_should(world, model):
    users, items, ratings = world.new
    mean, std = model.predict(users, items, return_std=True)
    assert 0.8 < np.mean(np.abs(ratings - mean) < 1.645 * std) < 0.99


def test_the_bound_rises_and_says_what_features_cost(model):
    history = model.elbo_history_
    assert {"user features", "item features"} <= history.keys()
    assert model.elbo_ == pytest.approx(sum(model.state_.bound_terms().values()))
    free = history["total"][13:]  # before, parts of the model are still held
    assert (np.diff(free) > -1e-3 * np.abs(free[1:])).all()


def test_features_raise_the_bound_where_they_tell_something(world):
    """Of two models of the same ratings, the bound prefers the one with the features."""
    with_features = HeMF(**FAST).fit(world.train, user_features=world.features)
    rng = np.random.default_rng(0)
    shuffled = HeMF(**FAST).fit(world.train, user_features=rng.permutation(world.features))
    assert with_features.elbo_ > shuffled.elbo_ + 50.0
    assert with_features.elbo_ > HeMF(**FAST).fit(world.train).elbo_ + 50.0


def test_precisions_are_learnt_for_each_block(world):
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(N_USERS, 4))
    fitted = HeMF(**FAST).fit(world.train, user_features=[world.features, noise])
    regression = fitted.state_.sides["user"].regression
    assert regression.design.names == ("(numbers) 1", "(numbers) 2")
    telling, empty = regression.precision
    assert empty > 20.0 * telling


def test_implicit_features_are_of_the_ratings_that_are_learnt_from(world):
    fitted = HeMF(**FAST, implicit_features=True, validation_fraction=0.2).fit(world.train)
    for name, other in (("user", "item"), ("item", "user")):
        design = fitted.state_.sides[name].regression.design
        rated = design.matrix[:, : fitted.state_.sides[other].n_rows]
        rows = tables(fitted.state_)[name]
        assert rated.nnz == fitted.ratings_.n_ratings < world.train[0].size
        np.testing.assert_array_equal(np.sort(rated.indices), np.sort(rows.indices))
        counts = np.diff(rows.indptr)
        np.testing.assert_allclose(
            np.asarray(rated.sum(axis=1)).ravel(), np.sqrt(counts), rtol=1e-5
        )


def test_a_saved_model_predicts_to_the_bit_what_it_did(world, model, tmp_path):
    model.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    users, items, _ = world.new
    asked = np.concatenate([users, world.train[0], [999]])
    things = np.concatenate([items, world.train[1], [0]])
    for ours, theirs in zip(
        model.predict(asked, things, return_std=True),
        again.predict(asked, things, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert again.elbo_ == model.elbo_
    kept = again.given_features_["user"].encoder
    assert kept.blocks == {"(numbers)": 4, "group": 2}
    row = pd.DataFrame({"user": ["new"], **{name: [0.5] for name in "abcd"}, "group": ["x"]})
    np.testing.assert_array_equal(
        kept.encode(row)[1].toarray(),
        model.given_features_["user"].encoder.encode(row)[1].toarray(),
    )


def test_an_explanation_adds_up(world, model):
    why = model.explain(0, 3)
    parts = why.global_mean + why.user_offset + why.item_offset + why.interaction
    assert parts == pytest.approx(why.mean, abs=1e-4)
    assert why.from_features != 0.0
    assert why.from_ratings + why.from_features + why.from_communities == pytest.approx(
        why.user_offset + why.interaction
    )
    newcomer = model.explain(149, 3)
    assert not newcomer.known_user
    parts = newcomer.global_mean + newcomer.user_offset + newcomer.item_offset
    assert parts + newcomer.interaction == pytest.approx(model.predict(149, 3), abs=1e-4)
    assert "from_features" in why.to_dict()


def test_communities_are_of_what_features_leave(world):
    options = {**FAST, "max_user_communities": 4, "max_item_communities": 4}
    fitted = HeMF(**options).fit(world.train, user_features=world.features)
    view = fitted.communities("user")
    assert sum(view.sizes) == pytest.approx(N_USERS - NEW, abs=1.0)
    assert fitted.state_.sides["user"].tied
    assert fitted.state_.sides["item"].regression is None


@UNKNOWN
@UNFINISHED
def test_the_number_of_threads_changes_nothing(world):
    one, two = (
        HeMF(**{**FAST, "n_jobs": jobs, "max_sweeps": 5}, implicit_features=True).fit(world.train)
        for jobs in (1, 2)
    )
    np.testing.assert_array_equal(one.predict(*world.new[:2]), two.predict(*world.new[:2]))


@UNFINISHED
def test_implicit_features_may_be_of_one_side_alone(world):
    options = {**FAST, "max_sweeps": 5}
    for given, sides in ((True, {"user", "item"}), ("item", {"item"}), ("user", {"user"})):
        fitted = HeMF(**options, implicit_features=given).fit(world.train)
        with_features = {
            name for name, side in fitted.state_.sides.items() if side.regression is not None
        }
        assert with_features == sides
    both = HeMF(**options, implicit_features="item").fit(world.train, user_features=world.features)
    assert both.state_.sides["user"].regression.design.n_columns == world.features.shape[1]
    assert both.state_.sides["item"].regression.design.n_columns == N_USERS - NEW + 2
    with pytest.raises(ParameterError, match='must be True, False, "user" or "item", got \'both\''):
        HeMF(implicit_features="both").fit(world.train)


# -- bad input ----------------------------------------------------------------------------------


def test_ten_times_more_features_than_rows_are_no_danger(world, plain):
    """Rows with ratings and newcomers are predicted as well as without features."""
    empty = np.random.default_rng(5).normal(size=(N_USERS, 10 * N_USERS))
    fitted = HeMF(**FAST).fit(world.train, user_features=empty)
    everyone, everything = np.indices(world.table.shape)
    for some in (slice(0, N_USERS - NEW), slice(N_USERS - NEW, N_USERS)):
        asked, actual = (
            (everyone[some].ravel(), everything[some].ravel()),
            world.table[some].ravel(),
        )
        assert rmse(actual, fitted.predict(*asked)) < 1.05 * rmse(actual, plain.predict(*asked))
    assert fitted.elbo_ > plain.elbo_ - 10.0  # they are shrunk away, and cost nothing


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_precisions_of_wide_tables_are_found_from_anywhere(share, monkeypatch):
    """Whether ten times more features than rows tell all or nothing of users."""
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(100, 6))
    features = hidden @ rng.normal(size=(6, 1000)) + rng.normal(size=(100, 1000))
    known = hidden @ rng.normal(size=(6, 2)) / np.sqrt(6)
    taste = np.sqrt(share) * known + np.sqrt(1 - share) * rng.normal(size=(100, 2))
    users, items = np.nonzero(rng.random((100, 60)) < 0.3)
    ratings = np.sum(taste[users] * rng.normal(size=(60, 2))[items], axis=1)
    ratings += 0.3 * rng.normal(size=users.size)
    bounds = []
    for start in (0.2, 20.0):
        monkeypatch.setattr(regression, "START_SHARE", start)
        fitted = HeMF(**FAST, tol=1e-6).fit((users, items, ratings), user_features=features)
        bounds.append(fitted.elbo_)
    assert abs(bounds[0] - bounds[1]) < 3.0


@UNFINISHED
def test_ratings_without_noise_do_not_lower_the_bound():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(60, 4))
    taste, kinds = features @ rng.normal(size=(4, 2)), rng.normal(size=(30, 2))
    users, items = np.nonzero(rng.random((60, 30)) < 0.5)
    ratings = np.sum(taste[users] * kinds[items], axis=1)
    settings = {**FAST, "max_sweeps": 40, "tol": 1e-12, "dtype": "float64"}
    fitted = HeMF(**settings).fit((users, items, ratings), user_features=features)
    bounds = fitted.elbo_history_["total"][12:]
    assert bounds.size > 20
    assert np.diff(bounds).min() >= -1e-6 * np.abs(bounds).max()


@UNFINISHED
def test_columns_that_are_constant_or_zero_change_nothing(world):
    wide = np.column_stack([world.features, np.ones(N_USERS), np.zeros(N_USERS)])
    sparse = sp.csr_array(np.column_stack([world.features, np.zeros((N_USERS, 2))]))
    options = {**FAST, "max_sweeps": 10}
    asked = world.new[:2]
    narrow = HeMF(**options).fit(world.train, user_features=world.features).predict(*asked)
    for features in (wide, sparse):
        same = HeMF(**options).fit(world.train, user_features=features).predict(*asked)
        np.testing.assert_allclose(same, narrow, atol=0.15)


def test_rows_and_values_that_are_missing_count_as_average(world):
    some = {k: world.features[k] for k in range(0, N_USERS, 2)}
    holes = world.features.copy()
    holes[::7, 0] = np.nan
    for features in (some, holes):
        fitted = HeMF(**FAST).fit(world.train, user_features=features)
        assert np.isfinite(fitted.predict(*world.new[:2])).all()


REFUSED = {
    "none of its 2 ids is among those of the ratings": {"0": [1.0], "1": [2.0]},
    "user 3 at row 1 has features already": (np.array([3, 3]), np.eye(2)),
    "user 1 at row 1 holds an infinite number": np.array([[1.0], [np.inf]]),
    "every column is constant": np.ones((N_USERS, 3)),
}


@UNKNOWN
@pytest.mark.parametrize("message", REFUSED)
def test_bad_features_leave_the_estimator_as_it_was(world, message):
    fitted = HeMF(**FAST).fit(world.train)
    before = fitted.predict(*world.new[:2])
    with pytest.raises(DataError, match=message):
        fitted.fit(world.train, user_features=REFUSED[message])
    np.testing.assert_array_equal(fitted.predict(*world.new[:2]), before)


def test_a_model_fitted_anew_without_features_forgets_them(world):
    fitted = HeMF(**FAST).fit(world.train, user_features=world.features)
    fitted.fit(world.train)
    assert fitted.given_features_ == {}
    assert fitted.partial_fit([(0, 0, 1.0)]).n_users_ == N_USERS - NEW
