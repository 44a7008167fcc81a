"""Models with features go on learning: newcomers start from theirs, and nothing is forgotten."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hemf import HeMF
from hemf.errors import DataError, HistoryWarning, ParameterError
from hemf.evaluation import rmse
from hemf.online import learner
from proofs.climbing import assert_climbs

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

N_USERS, N_ITEMS, NEW_USERS, NEW_ITEMS = 150, 60, 30, 10
FAST: dict[str, Any] = {
    "n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "rng": 0, "n_jobs": 1,
    "rating_range": None, "dtype": "float64",
}  # fmt: skip
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


class World:
    """Ratings by users, of items, that are what their features say, and noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.users, self.items = rng.normal(size=(N_USERS, 4)), rng.normal(size=(N_ITEMS, 3))
        taste = self.users @ rng.normal(size=(4, 2)) + 0.2 * rng.normal(size=(N_USERS, 2))
        kind = self.items @ rng.normal(size=(3, 2)) + 0.2 * rng.normal(size=(N_ITEMS, 2))
        self.table = 0.5 * taste @ kind.T + 0.3 * rng.normal(size=(N_USERS, N_ITEMS))
        users, items = np.nonzero(rng.random(self.table.shape) < 0.25)
        self.is_old = (users < N_USERS - NEW_USERS) & (items < N_ITEMS - NEW_ITEMS)
        self.triples = users, items, self.table[users, items]

    def part(self, which: np.ndarray) -> Columns:
        users, items, ratings = (column[which] for column in self.triples)
        return users, items, ratings

    @property
    def old(self) -> Columns:
        return self.part(self.is_old)

    @property
    def new(self) -> Columns:
        return self.part(~self.is_old)

    @property
    def features(self) -> dict[str, Any]:
        """Of those in the training ratings alone."""
        return {
            "user_features": self.users[: N_USERS - NEW_USERS],
            "item_features": self.items[: N_ITEMS - NEW_ITEMS],
        }

    @property
    def later(self) -> dict[str, Any]:
        """Of the newcomers."""
        return {
            "user_features": (np.arange(N_USERS - NEW_USERS, N_USERS), self.users[-NEW_USERS:]),
            "item_features": (np.arange(N_ITEMS - NEW_ITEMS, N_ITEMS), self.items[-NEW_ITEMS:]),
        }

    def error(self, model: HeMF, columns: Columns | None = None) -> float:
        users, items, ratings = columns or self.new
        return rmse(ratings, model.predict(users, items))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def fitted(world: World) -> HeMF:
    return HeMF(**FAST, implicit_features=True).fit(world.old, **world.features)


@pytest.fixture
def model(fitted: HeMF) -> HeMF:
    return deepcopy(fitted)


def grid(world: World) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.indices(world.table.shape)
    return users.ravel(), items.ravel()


# -- cold start ----------------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["full", "none", 8])
def test_newcomers_known_by_features_alone_beat_strangers(world, fitted, history):
    model = deepcopy(fitted).set_params(history=history)
    strangers = world.error(model)
    assert model.partial_fit(**world.later).n_users_ == N_USERS - NEW_USERS
    assert world.error(model) < 0.6 * strangers
    _, known = model.predict([140, 0], 0, return_known=True)
    assert known.tolist() == [False, True]


@pytest.mark.parametrize("history", ["full", "none", 8])
def test_features_of_newcomers_are_where_their_ratings_start_from(world, fitted, history):
    """With a rating each, those with features are known better than those without."""
    first = np.unique(world.new[0], return_index=True)[1]
    few = tuple(column[first] for column in world.new)
    rest = tuple(np.delete(column, first) for column in world.new)
    errors = []
    for later in ({}, world.later):
        model = deepcopy(fitted).set_params(history=history).partial_fit(few, **later)
        assert model.n_users_ == N_USERS
        errors.append(world.error(model, rest))
    assert errors[1] < 0.75 * errors[0]


def test_features_come_before_with_or_after_the_ratings(world, fitted):
    """What is known in the end is the same, and so are the features that all are fitted with."""
    before = deepcopy(fitted).partial_fit(**world.later).partial_fit(world.new)
    beside = deepcopy(fitted).partial_fit(world.new, **world.later)
    after = deepcopy(fitted).partial_fit(world.new).partial_fit(**world.later)
    asked = grid(world)
    np.testing.assert_allclose(before.predict(*asked), beside.predict(*asked), atol=1e-8)
    for model in (before, beside, after):
        for _ in range(30):
            model.partial_fit(model.ratings_)
    np.testing.assert_allclose(after.predict(*asked), beside.predict(*asked), atol=0.1)
    for name in ("user", "item"):
        designs = [m.state_.sides[name].regression.design.matrix for m in (beside, after)]
        assert abs(designs[0] - designs[1]).max() < 1e-12


def test_a_stream_meets_newcomers_with_their_features(world, fitted):
    with_features, without = (deepcopy(fitted), deepcopy(fitted))
    with_features.partial_fit(**world.later)
    first = with_features.predict(world.new[0][:1], world.new[1][:1])
    forecasts = with_features.predict_then_learn(world.new)
    assert forecasts[0] == pytest.approx(first[0])
    assert rmse(world.new[2], forecasts) < 0.8 * rmse(
        world.new[2], without.predict_then_learn(world.new)
    )


def test_newcomers_that_came_with_the_fit_are_met_with_their_features(world):
    model = HeMF(**FAST).fit(world.old, user_features=world.users)
    user = N_USERS - 1
    forecast = model.predict(user, 0)
    model.partial_fit([(0, 0, 1.0)])
    assert model.predict(user, 0) == pytest.approx(forecast, abs=0.05)
    model.partial_fit([(user, 0, float(world.table[user, 0]))])
    given = model.state_.features["user"].together(model.n_users_)
    encoder = model.given_features_["user"].encoder
    row = model._model.rows("user", [user])[0]
    wanted = encoder.encode((np.array([user]), world.users[[user]]))[1]
    np.testing.assert_allclose(given[[row]].toarray(), wanted.toarray())


def test_strangers_and_rows_without_features_count_as_average(world, model):
    model.partial_fit([("nobody", 0, 1.0)])
    assert not model.state_.features["user"].together(model.n_users_)[[-1]].nnz
    assert np.isfinite(model.predict(["nobody", "other"], 0)).all()


@pytest.mark.parametrize("history", ["full", "none", 8])
def test_a_forecast_is_what_would_have_been_predicted(world, fitted, history):
    model = deepcopy(fitted).set_params(history=history).partial_fit(**world.later)
    for user, item, rating in zip(*(column[:20].tolist() for column in world.new), strict=True):
        expected = model.predict(user, item)
        assert model.predict_then_learn([(user, item, rating)])[0] == pytest.approx(expected)


def test_the_same_seed_gives_the_same_model(world, fitted):
    def made() -> np.ndarray:
        model = deepcopy(fitted).partial_fit(world.new, **world.later)
        model.predict_then_learn(world.old)
        return model.predict(*grid(world))

    np.testing.assert_array_equal(made(), made())


# -- where repeated passes lead ------------------------------------------------------------------


def test_rounds_of_refreshing_end_where_a_batch_fit_ends(world):
    rng = np.random.default_rng(0)
    order = rng.permutation(world.triples[0].size)
    train, test = world.part(order[200:]), world.part(order[:200])
    features = {"user_features": world.users, "item_features": world.items}
    settings = {**FAST, "tol": 1e-12, "implicit_features": True}
    batch = HeMF(**settings, max_sweeps=400).fit(train, **features)
    model = HeMF(**settings, max_sweeps=20).fit(train, **features)
    parts = np.array_split(rng.permutation(order.size - 200), 3)
    for _ in range(60):
        for part in parts:
            model.partial_fit(tuple(column[part] for column in train))
    assert world.error(model, test) == pytest.approx(world.error(batch, test), abs=0.0005)
    assert model.elbo_ > batch.elbo_ - 0.001 * abs(batch.elbo_)


@pytest.mark.parametrize("settings", [{}, {"noise_scales": None}, {"offsets": False}])
def test_no_update_lowers_the_bound(world, settings, monkeypatch):
    monkeypatch.setattr(learner, "is_opening_due", lambda state: False)  # a jump may, if it pays
    options = {**FAST, "max_user_communities": 4, "max_item_communities": 4, **settings}
    model = HeMF(**options, implicit_features=True).fit(world.old, **world.features)
    triples = list(zip(*(column.tolist() for column in world.old), strict=True))
    assert_climbs(model, triples, [1, 5, 1, 200, 400] * 8)


def test_a_stream_from_nothing_makes_features_of_its_ratings(world):
    model = HeMF(**FAST, implicit_features=True)
    rng = np.random.default_rng(1)
    order = rng.permutation(world.triples[0].size)
    model.predict_then_learn(world.part(order))
    for name, other in (("user", "item"), ("item", "user")):
        regression = model.state_.sides[name].regression
        assert regression is not None
        assert regression.design.names == ("(rated)", "(how many)")
        assert model.state_.stores[other].coefficients.any()
    assert np.isfinite(model.elbo_)


# -- visitors ------------------------------------------------------------------------------------


def test_a_visitor_is_what_the_user_with_the_same_ratings_and_features_is(world, fitted):
    users, items, ratings = world.old
    everything = np.arange(N_ITEMS - NEW_ITEMS)
    for user in (0, 7, 50):
        mine = users == user
        pairs = list(zip(items[mine].tolist(), ratings[mine].tolist(), strict=True))
        with_features = fitted.fold_in(pairs, features=world.users[user])
        np.testing.assert_allclose(
            with_features.predict(everything), fitted.predict(user, everything), atol=0.02
        )
        without = fitted.fold_in(pairs[:1])
        asked = fitted.fold_in(pairs[:1], features=world.users[user])
        actual = world.table[user, everything]
        assert rmse(actual, asked.predict(everything)) < rmse(actual, without.predict(everything))


def test_a_visitor_follows_the_model_with_what_was_told(world, model):
    visitor = model.fold_in([(3, 0.5)], features=world.users[0])
    before = visitor.predict([1, 2])
    model.partial_fit(world.new, **world.later)
    again = model.fold_in([(3, 0.5)], features=world.users[0])
    np.testing.assert_array_equal(visitor.predict([1, 2]), again.predict([1, 2]))
    assert np.abs(visitor.predict([1, 2]) - before).max() > 1e-6


@pytest.mark.filterwarnings("ignore:10 of 10 items are not known")  # until their features come
def test_what_visitors_think_of_new_items_is_told_by_the_features_of_these(world, model):
    users, items, ratings = world.old
    late = np.arange(N_ITEMS - NEW_ITEMS, N_ITEMS)
    squares = {"information": [], "without": []}
    visits = {}
    for user in range(20):
        mine = users == user
        visits[user] = list(zip(items[mine].tolist(), ratings[mine].tolist(), strict=True))
        guess = model.fold_in(visits[user]).predict(late)
        squares["without"].append((guess - world.table[user, late]) ** 2)
        assert np.ptp(guess) == 0.0
    model.partial_fit(item_features=world.later["item_features"])
    for user, pairs in visits.items():
        visitor = model.fold_in(pairs)
        guess = visitor.predict(late)
        squares["information"].append((guess - world.table[user, late]) ** 2)
        knows = model.fold_in([*pairs, (int(late[0]), float(world.table[user, late[0]]))])
        assert np.abs(knows.predict(late) - guess).max() > 1e-4  # to have rated one tells, too
    error = {name: np.sqrt(np.mean(each)) for name, each in squares.items()}
    assert error["information"] < 0.8 * error["without"]


def test_a_visitor_may_be_known_by_features_alone(world, model):
    model.partial_fit(user_features=world.later["user_features"])
    everything = np.arange(N_ITEMS - NEW_ITEMS)
    user = N_USERS - 1  # has no rating yet
    for nothing in ([], {}, ()):
        visitor = model.fold_in(nothing, features=world.users[user])
        mean, std = visitor.predict(everything, return_std=True)
        expected, spread = model.predict(user, everything, return_std=True)
        np.testing.assert_allclose(mean, expected, rtol=1e-10)
        np.testing.assert_allclose(std, spread, rtol=1e-10)
        assert visitor.recommend(3)[0].size == 3
    with pytest.raises(DataError):
        model.fold_in([])


def test_features_of_visitors_may_be_named(world):
    frame = pd.DataFrame(world.users, columns=list("abcd"))
    frame["user"] = np.arange(N_USERS)
    frame["group"] = np.where(world.users[:, 0] > 0, "x", "y")
    model = HeMF(**FAST).fit(world.old, user_features=frame)
    row = {"a": 0.5, "b": -1.0, "c": 0.0, "d": 2.0, "group": "x"}
    whole = model.fold_in([(3, 0.5)], features=row).predict([1])
    less = model.fold_in([(3, 0.5)], features={"a": 0.5, "group": "never seen"}).predict([1])
    assert whole != less
    with pytest.raises(DataError, match="none of aa is a column that was learnt of; these are a"):
        model.fold_in([(3, 0.5)], features={"aa": 0.5})
    with pytest.raises(DataError, match="fitted without features of users"):
        HeMF(**FAST).fit(world.old).fold_in([(3, 0.5)], features=row)


# -- everything else goes on working -------------------------------------------------------------


def test_a_saved_model_goes_on_as_the_one_in_memory_does(world, model, tmp_path: Path):
    model.partial_fit(world.new, **world.later)
    model.partial_fit(user_features={"zoe": world.users[1]})
    asked = grid(world)
    for _ in range(2):
        model.save(tmp_path / "m.hemf")
        again = HeMF.load(tmp_path / "m.hemf")
        for ours, theirs in zip(
            model.predict(*asked, return_std=True), again.predict(*asked, return_std=True),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(model.predict("zoe", [0, 1]), again.predict("zoe", [0, 1]))
        assert model.elbo_ == again.elbo_
        for one in (model, again):
            one.partial_fit([("zoe", 0, 0.5), ("kim", 1, 1.0)])
            one.predict_then_learn(world.old)
        np.testing.assert_array_equal(model.predict(*asked), again.predict(*asked))


@pytest.mark.parametrize("history", ["full", "none", 8])
def test_other_questions_are_answered(world, fitted, history):
    model = deepcopy(fitted).set_params(history=history, max_user_communities=3)
    model.partial_fit(world.new, **world.later)
    ids, scores = model.recommend(149, 5, exclude_seen=False)
    np.testing.assert_allclose(scores, model.predict(149, ids), atol=1e-6)
    assert sum(model.communities("user").sizes) == pytest.approx(N_USERS, abs=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        why = model.explain(149, 3)
    parts = why.global_mean + why.user_offset + why.item_offset + why.interaction
    assert parts == pytest.approx(why.mean, abs=1e-6)
    assert why.from_features != 0.0


def test_ratings_are_taken_back_with_what_they_said(world, model):
    user, item = 3, int(np.setdiff1d(np.arange(50), world.old[1][world.old[0] == 3])[0])
    model.partial_fit([(0, 0, 1.0)])
    before = model.state_.stores["user"].coefficient_sum.copy()
    model.partial_fit([(user, item, 1.0)])
    assert np.abs(model.state_.stores["user"].coefficient_sum - before).max() > 1e-9
    model.partial_fit(removed=[(user, item)])
    np.testing.assert_allclose(model.state_.stores["user"].coefficient_sum, before, atol=1e-9)


@pytest.mark.parametrize("history", ["none", 8])
def test_without_a_full_history_coefficients_stay(world, fitted, history):
    model = deepcopy(fitted).set_params(history=history)
    coefficients = fitted.state_.sides["user"].regression.coefficients
    model.partial_fit(world.new, **world.later)
    for _ in range(5):
        model.predict_then_learn(world.new)
    np.testing.assert_array_equal(model.state_.sides["user"].regression.coefficients, coefficients)
    assert model.state_.stores["user"].shift[-1].any()
    assert world.error(model) < 0.6 * world.error(fitted)


# -- bad input -----------------------------------------------------------------------------------


REFUSED: dict[str, Any] = {
    "user 3 at row 1 has features already": (np.array([3, 3]), np.eye(4)[:2]),
    "user 1 at row 1 holds an infinite number": np.array([[1.0] * 4, [np.inf] * 4]),
    "3 columns instead of the 4 of the fit": np.ones((2, 3)),
    "2 tables instead of 1": [np.ones((2, 4)), np.ones((2, 4))],
    "there are no rows": np.ones((0, 4)),
    "a matrix must hold numbers": (np.array([0]), np.array([["a"] * 4])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_features_leave_the_model_as_it_was(world, model, message):
    asked = grid(world)
    model.partial_fit([(0, 0, 1.0)])
    before = model.predict(*asked)
    with pytest.raises(DataError, match=message):
        model.partial_fit(world.new, user_features=REFUSED[message])
    np.testing.assert_array_equal(model.predict(*asked), before)
    assert model.n_users_ == N_USERS - NEW_USERS


def test_features_that_the_fit_knew_nothing_of_are_refused(world):
    model = HeMF(**FAST).fit(world.old, user_features=world.users)
    with pytest.raises(DataError, match="fitted without features of items"):
        model.partial_fit(world.new, item_features=world.items)
    assert model.n_items_ == N_ITEMS - NEW_ITEMS
    with pytest.raises(DataError, match="has to be fitted first"):
        HeMF(**FAST).partial_fit(world.old, user_features=world.users)


def test_a_stream_from_nothing_with_features_needs_all_of_its_ratings(world):
    for history in ("none", 5):
        model = HeMF(**FAST, implicit_features=True, history=history)
        with pytest.raises(ParameterError, match='history="full"'):
            model.partial_fit(world.old)
        with pytest.raises(ParameterError, match='history="full"'):
            model.predict_then_learn(world.old)
        assert not hasattr(model, "state_")


def test_values_that_are_missing_constant_or_new_are_no_danger(world):
    frame = pd.DataFrame(world.users[: N_USERS - NEW_USERS], columns=list("abcd"))
    frame["user"] = np.arange(len(frame))
    frame["group"] = np.where(frame["a"] > 0, "x", "y")
    frame["same"] = 1.0
    model = HeMF(**FAST).fit(world.old, user_features=frame)
    rows = pd.DataFrame(
        {
            "user": ["p", "q", "r"],
            "a": [np.nan, 1.0, 0.0], "b": [np.nan] * 3, "c": 0.0, "d": 0.0,
            "group": ["z", None, "x"], "same": [1.0, 7.0, np.nan],
        }
    )  # fmt: skip
    model.partial_fit(user_features=rows)
    assert np.isfinite(model.predict(["p", "q", "r"], 0)).all()
    one = {"s": {"a": None, "b": 1.0, "c": 0.0, "d": None, "group": None, "same": None}}
    model.partial_fit([("s", 0, 1.0)], user_features=one)
    assert np.isfinite(model.predict("s", [0, 1])).all()
    with pytest.raises(DataError, match="no column 'group' of labels"):
        model.partial_fit(user_features=rows.drop(columns="group"))
    with pytest.raises(DataError, match="no column 'a' of numbers"):
        model.partial_fit(user_features=rows.drop(columns="a"))


def test_ten_times_more_features_than_rows_are_no_danger_online(world):
    empty = np.random.default_rng(5).normal(size=(N_USERS, 10 * N_USERS))
    with_features = HeMF(**FAST).fit(world.old, user_features=empty).partial_fit(world.new)
    plain = HeMF(**FAST).fit(world.old).partial_fit(world.new)
    everyone = (*grid(world), world.table.ravel())
    assert world.error(with_features, everyone) < 1.05 * world.error(plain, everyone)


def test_columns_of_features_cannot_be_called_what_ratings_make(world):
    with pytest.raises(DataError, match="give the column another name"):
        HeMF(**FAST).fit(
            world.old, user_features={0: {"(rated)": "a"}, 1: {"(rated)": "b"}, 2: {"(rated)": "a"}}
        )
