"""SGD behaves like HeMF towards its user, and learns what there is to learn."""

from __future__ import annotations

import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from hemf import HeMF, Ratings
from hemf.baselines import SGD
from hemf.data import datasets
from hemf.errors import DataError, DuplicateWarning, ParameterError, UnknownIdError
from hemf.evaluation import rmse
from proofs.sensible import CAFE, assert_answers_only_when_fitted


def small(**parameters) -> SGD:
    return SGD(**{"n_factors": 3, "epochs": 5, "rng": 0, **parameters})


def contents(model: SGD) -> list[np.ndarray]:
    return [
        model.user_offsets_, model.user_factors_, model.item_offsets_, model.item_factors_,
        np.array([model.global_mean_, model.n_updates_, *model.rating_range_]),
    ]  # fmt: skip


def assert_same(left: SGD, right: SGD) -> None:
    for ours, theirs in zip(contents(left), contents(right), strict=True):
        assert np.array_equal(ours, theirs)


def stream(n: int, n_users: int = 40, n_items: int = 30, seed: int = 0):
    """Users, items and ratings of some structure, all at random."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    ratings = np.clip(3 + np.sin(users) + np.cos(items) + rng.normal(0, 0.5, n), 1, 5)
    return users, items, ratings.astype(np.float32)


# -- manners ------------------------------------------------------------------------------------


def test_parameters_are_keywords_with_defaults_that_are_checked_when_it_learns():
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(SGD).parameters.values())
    assert SGD(n_factors=3).get_params()["n_factors"] == 3
    assert repr(SGD(step=0.1)) == "SGD(step=0.1)"
    model = SGD(step=-1.0)
    for learn in (model.fit, model.partial_fit, model.predict_then_learn):
        with pytest.raises(ParameterError, match=r"step must be a number at least 0, got -1\.0"):
            learn(CAFE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_factors", -1), ("n_factors", 2.5), ("epochs", 0), ("step", "large"),
        ("step", float("nan")), ("decay", 0), ("power", -1), ("factor_penalty", -0.1),
        ("offset_penalty", float("inf")), ("start_scale", -1), ("rating_range", (5, 1)),
        ("duplicates", "first"), ("dtype", "float16"), ("rng", -1),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_named(name, value):
    for learn in ("fit", "partial_fit"):
        model = SGD(**{name: value})
        with pytest.raises(ParameterError, match=f"^{name} must be"):
            getattr(model, learn)(CAFE)
        assert not hasattr(model, "state_")


def test_before_learning_every_question_is_answered_by_not_fitted():
    assert_answers_only_when_fitted(SGD(), CAFE, "call fit or partial_fit first")


def test_a_clone_has_the_parameters_and_nothing_learnt():
    model = small(step=0.03).fit(CAFE)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "state_")
    assert_same(twin.fit(CAFE), model)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_goes_its_own_way(copied):
    model = small().partial_fit(CAFE)
    twin = copied(model)
    twin.partial_fit([("zoe", "tea", 1.0)])
    assert (model.n_users_, twin.n_users_) == (3, 4)
    assert_same(model.partial_fit([("zoe", "tea", 1.0)]), twin)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_seed_gives_the_same_bits(dtype):
    data = stream(500)
    first, second, third = (
        small(rng=seed, dtype=dtype, duplicates="mean").fit(data).partial_fit(data)
        for seed in (3, 3, 4)
    )
    assert_same(first, second)
    assert first.user_factors_.dtype == dtype
    assert not np.array_equal(first.user_factors_, third.user_factors_)


def test_a_generator_goes_on():
    rng = np.random.default_rng(3)
    first, second = (small(rng=rng).fit(CAFE) for _ in range(2))
    assert not np.array_equal(first.user_factors_, second.user_factors_)


# -- learning -----------------------------------------------------------------------------------


def planted(rng: np.random.Generator):
    """All ratings of a table of rank 2 with offsets, and which of them are withheld."""
    a, b = rng.normal(size=(80, 2)), rng.normal(size=(60, 2))
    table = 3 + rng.normal(0, 0.5, (80, 1)) + rng.normal(0, 0.5, (1, 60)) + a @ b.T
    users, items = (grid.ravel() for grid in np.indices(table.shape))
    noisy = table.ravel() + rng.normal(0, 0.05, table.size)
    return users, items, noisy, rng.random(table.size) < 0.5


EXACT = {"n_factors": 2, "step": 0.05, "factor_penalty": 0.001, "offset_penalty": 0.001}


def error(model: SGD, users, items, ratings) -> float:
    return float(np.sqrt(np.mean((model.predict(users, items) - ratings) ** 2)))


@pytest.mark.parametrize("scale", [1.0, 0.01, 1000.0])
def test_a_planted_table_of_low_rank_is_recovered_on_any_scale(scale, rng):
    users, items, ratings, withheld = planted(rng)
    seen, ratings = ~withheld, ratings * scale
    model = SGD(**EXACT, epochs=100, rng=0).fit((users[seen], items[seen], ratings[seen]))
    assert error(model, users[withheld], items[withheld], ratings[withheld]) < 0.12 * scale
    assert model.rating_scale_ == pytest.approx(ratings[seen].std(), rel=1e-5)
    offsets_alone = SGD(**{**EXACT, "n_factors": 0}, epochs=100, rng=0)
    offsets_alone.fit((users[seen], items[seen], ratings[seen]))
    assert error(offsets_alone, users[withheld], items[withheld], ratings[withheld]) > scale


def test_it_is_recovered_from_a_stream_that_comes_again_and_again(rng):
    users, items, ratings, withheld = planted(rng)
    seen = np.flatnonzero(~withheld)
    model = SGD(**EXACT, rng=0)
    for _ in range(100):
        order = rng.permutation(seen)
        model.partial_fit((users[order], items[order], ratings[order]))
    assert error(model, users[withheld], items[withheld], ratings[withheld]) < 0.15


def test_clear_tastes_are_learnt_with_the_defaults():
    drawn = datasets.draw(200, 150, density=0.3, rng=2)
    data = drawn.users, drawn.items, drawn.ratings
    half = len(drawn.users) // 2
    model = SGD(rng=0).fit(tuple(part[:half] for part in data))
    rest = tuple(part[half:] for part in data)
    offsets = SGD(rng=0, n_factors=0).fit(tuple(part[:half] for part in data))
    assert error(model, *rest) < 0.9 * error(offsets, *rest)


def test_every_epoch_is_reported_and_a_callback_can_stop_the_fit():
    reports = []
    model = small(epochs=50, duplicates="mean")
    model.fit(stream(800), callbacks=[reports.append, lambda report: report.epoch == 20])
    assert [report.epoch for report in reports] == list(range(1, 21))
    assert model.history_ == reports
    assert model.n_sweeps_ == 20
    assert reports[-1].train_rmse < reports[0].train_rmse
    assert reports[-1].step < reports[0].step
    assert model.fit(stream(800), epochs=3).n_sweeps_ == 3


def test_the_error_on_other_ratings_is_reported_and_nothing_learnt_from_them():
    withheld = [("ann", "ale", 2.0), ("zoe", "tea", 4.0)]
    seen = []
    model = SGD(epochs=3, rng=0).fit(CAFE, validation=withheld, callbacks=[seen.append])
    expected = model.predict(["ann", "zoe"], ["ale", "tea"])
    assert seen[-1].validation_rmse == pytest.approx(rmse([2.0, 4.0], expected))
    alone = SGD(epochs=3, rng=0).fit(CAFE)
    assert np.array_equal(alone.predict(["ann", "zoe"], ["ale", "tea"]), expected)
    assert alone.history_[-1].validation_rmse is None
    with pytest.raises(DataError, match="no rows"):
        SGD().fit(CAFE, validation=[])


def test_a_fit_starts_anew():
    model = small(duplicates="mean").fit(stream(300)).fit(CAFE)
    assert_same(model, small().fit(CAFE))
    assert model.n_users_ == 3


def test_what_is_learnt_decreases_the_error_of_that_rating():
    model = small().fit(CAFE)
    for rating in (5.0, 1.0):
        before = abs(model.predict("eve", "ale") - rating)
        assert abs(model.partial_fit([("eve", "ale", rating)]).predict("eve", "ale") - rating) < (
            before
        )


def test_the_latest_taste_counts_most():
    """Ratings are learnt in the order given: who came to hate tea is not who took to it."""
    loves, hates = [("ann", "tea", 5.0)] * 50, [("ann", "tea", 1.0)] * 50
    to_hate = small(power=0.0).partial_fit(loves + hates)
    to_love = small(power=0.0).partial_fit(hates + loves)
    assert to_hate.predict("ann", "tea") < 2.0 < 4.0 < to_love.predict("ann", "tea")


def test_ratings_with_times_are_learnt_in_time_order():
    users, items, ratings = stream(300)
    users, items = np.arange(300) % 20, np.arange(300) // 20  # every pair once
    times = np.random.default_rng(5).permutation(300)
    data = Ratings.from_any((users, items, ratings, times))
    order = np.argsort(times)
    in_order = small().partial_fit((users[order], items[order], ratings[order]))
    assert_same(small().partial_fit(data), in_order)
    by_user = np.lexsort((items, users))
    without_times = Ratings.from_any((users, items, ratings))
    assert_same(
        small().partial_fit(without_times),
        small().partial_fit((users[by_user], items[by_user], ratings[by_user])),
    )


@pytest.mark.parametrize("start", [None, CAFE], ids=["from nothing", "from a fit"])
@pytest.mark.parametrize("size", [1, 7, 250])
def test_a_stream_is_learnt_the_same_in_parts_of_any_size(start, size):
    data = stream(500)
    whole, parts = small(), small()
    if start is not None:
        whole.fit(start)
        parts.fit(start)
    expected = whole.predict_then_learn(data)
    found = [
        parts.predict_then_learn(tuple(column[k : k + size] for column in data))
        for k in range(0, 500, size)
    ]
    assert np.array_equal(np.concatenate(found), expected)
    assert_same(whole, parts)


# Users and items are numbers from 0: one that is new on its side is known on the other.
@pytest.mark.filterwarnings("ignore:.* is one of the users, not of the items")
def test_predict_then_learn_is_predict_and_then_partial_fit():
    users, items, ratings = stream(200)
    at_once, by_hand = small().fit(CAFE), small().fit(CAFE)
    found = at_once.predict_then_learn((users, items, ratings))
    expected = []
    for user, item, rating in zip(users, items, ratings, strict=True):
        expected.append(by_hand.predict(user, item))
        by_hand.partial_fit([(user, item, rating)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert_same(at_once, by_hand)
    assert_same(at_once, small().fit(CAFE).partial_fit((users, items, ratings)))


def test_the_first_prediction_is_the_middle_of_the_range_if_that_is_given():
    assert small(rating_range=(1, 5)).predict_then_learn(CAFE)[0] == 3.0
    assert small(rating_range=None).predict_then_learn(CAFE)[0] == 0.0
    observed = small().predict_then_learn(CAFE)
    assert observed[:2].tolist() == [0.0, 5.0]  # then the one rating there is


def test_the_mean_is_that_of_all_ratings_seen():
    model = small().fit(CAFE)
    assert model.global_mean_ == 3.0
    model.partial_fit([("zoe", "tea", 9.0)])
    assert model.global_mean_ == 4.0
    assert model.n_updates_ == 5 * 5 + 1
    assert model.rating_range_ == (1.0, 9.0)


# -- prediction ---------------------------------------------------------------------------------


def test_strangers_get_the_mean_and_what_is_known_of_the_other():
    model = small(rating_range=None).fit(CAFE)
    scale, mean = model.rating_scale_, model.global_mean_
    expected, known = model.predict(
        ["ann", "ann", "zoe", "zoe"], ["tea", "gin", "tea", "gin"], return_known=True
    )
    assert known.tolist() == [True, False, False, False]
    assert expected[1:] == pytest.approx(
        [mean + scale * model.user_offsets_[0], mean + scale * model.item_offsets_[0], mean]
    )
    factors = model.user_factors_[0] @ model.item_factors_[0]
    offsets = model.user_offsets_[0] + model.item_offsets_[0]
    assert expected[0] == pytest.approx(mean + scale * (offsets + factors))
    with pytest.raises(UnknownIdError, match="item 'gin' at row 1 is not known"):
        model.predict("ann", ["tea", "gin"], unknown="error")


def test_ids_without_a_rating_are_strangers():
    ratings = Ratings.from_any(CAFE)
    part = ratings.subset(ratings.by_user.values < 4)  # nobody likes tea any more
    model = small().fit(part)
    assert model.n_items_ == 2
    assert model.predict("ann", ["tea", "milk"], return_known=True)[1].tolist() == [False, True]


def test_predictions_take_ids_as_hemf_does():
    model, peer = small().fit(CAFE), HeMF(n_factors=1, rng=0, tol=1.0).fit(CAFE)
    questions = [
        ("ann", "tea"), ("ann", ["tea", "milk"]), (["ann", "zoe"], "tea"), (("ann", "bob"), "tea"),
        ([("ann", "tea"), ("bob", "gin")],), (pd.DataFrame({"user": ["ann"], "item": ["tea"]}),),
    ]  # fmt: skip
    for question in questions:
        ours, theirs = (m.predict(*question, return_known=True) for m in (model, peer))
        assert np.shape(ours[0]) == np.shape(theirs[0])
        assert np.array_equal(ours[1], theirs[1])


@pytest.mark.parametrize(("given", "ends"), [("observed", (1, 5)), ((0, 6), (0, 6)), (None, None)])
def test_predictions_are_clipped_to_the_range(given, ends):
    model = small(rating_range=given).fit(CAFE)
    assert model.rating_range_ == ends
    model.state_.users.rows[:, 0] = 100.0
    expected = model.predict("ann", ["tea", "milk", "gin"])
    assert set(expected) == {ends[1]} if ends else expected.min() > 100.0
    model.state_.users.rows[:, 0] = -100.0
    expected = model.predict("ann", ["tea", "milk", "gin"])
    assert set(expected) == {ends[0]} if ends else expected.max() < -100.0


# -- new users and items, and input of any kind ---------------------------------------------------


def test_new_users_and_items_come_in_any_number():
    model = small().fit(CAFE)
    model.partial_fit([(f"user {k}", f"item {k % 70}", float(k % 5)) for k in range(500)])
    assert (model.n_users_, model.n_items_) == (503, 73)
    assert model.user_factors_.shape == (503, 3)
    assert model.predict("user 499", "item 69", return_known=True)[1]
    assert np.isfinite(model.user_factors_).all()


def test_ids_are_anything_hashable():
    ids = [1, "1", (1, 2), 2.5, np.int64(7)]
    model = small().partial_fit([(id, id, float(k)) for k, id in enumerate(ids)])
    assert model.n_users_ == 5
    assert model.predict([7, "1", (1, 2)], [1, 1, 1], return_known=True)[1].all()


def test_every_kind_of_table_is_the_same_stream(tmp_path):
    users, items, ratings = stream(300)
    frame = pd.DataFrame({"user": users, "item": items, "rating": ratings})
    path = tmp_path / "ratings.parquet"
    frame.to_parquet(path)
    wide = np.stack([users, items, ratings], axis=1).astype(np.float32)
    expected = small().predict_then_learn(frame)
    for data in (
        pl.from_pandas(frame), pa.Table.from_pandas(frame), path, wide, wide.astype(object),
        list(zip(users, items, ratings, strict=True)),
    ):  # fmt: skip
        assert np.array_equal(small().predict_then_learn(data), expected)
    apart = small().predict_then_learn(frame[["user", "item"]], ratings)
    assert np.array_equal(apart, expected)
    assert_same(
        small(duplicates="mean").fit(frame),
        small(duplicates="mean").fit(frame[["user", "item"]], ratings),
    )


def test_text_ids_of_a_file_are_those_that_are_known(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("user,item,rating\n7,12,4\n")
    for known in (7, "7"):
        model = small().partial_fit([(known, "a film", 3.0)])
        assert model.partial_fit(path).n_users_ == 1


def test_what_is_handed_in_is_not_changed():
    users, items, ratings = stream(50)
    kept = [part.copy() for part in (users, items, ratings)]
    data = Ratings.from_any((users, items, ratings), duplicates="mean")
    small().fit(data).partial_fit((users + 100, items, ratings))
    assert data.n_users == len(data.users)
    assert all(map(np.array_equal, (users, items, ratings), kept))


# -- bad input ----------------------------------------------------------------------------------

BAD = {
    "no rating": [("zoe", "tea", 1.0), ("zoe", "gin", float("nan"))],
    "text": [("zoe", "tea", 1.0), ("zoe", "gin", "good")],
    "no user": [("zoe", "tea", 1.0), (None, "gin", 1.0)],
    "no item": [("zoe", "tea", 1.0), ("zoe", None, 1.0)],
    "outside the range": [("zoe", "tea", 1.0), ("zoe", "gin", 6.0)],
    "unequal columns": (["zoe"], ["tea", "gin"], [1.0, 2.0]),
    "nothing": [],
    "no rows": ([], [], []),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("method", ["fit", "partial_fit", "predict_then_learn"])
def test_a_batch_with_a_bad_row_changes_nothing(method, data):
    model = small(rating_range=(1, 5)).fit(CAFE)
    with pytest.raises(DataError):
        getattr(model, method)(data)
    assert_same(model, small(rating_range=(1, 5)).fit(CAFE))
    assert (model.n_users_, model.n_items_) == (3, 3)
    unfitted = small(rating_range=(1, 5))
    with pytest.raises(DataError):
        getattr(unfitted, method)(data)
    assert not hasattr(unfitted, "state_")


def test_an_error_names_value_and_row():
    with pytest.raises(DataError, match=r"rating 6 at row 1 is outside") as caught:
        small(rating_range=(1, 5)).partial_fit(BAD["outside the range"])
    assert (caught.value.value, caught.value.row) == (6.0, 1)


def test_steps_that_are_too_large_are_an_error_and_leave_the_old_model():
    model = small().fit(CAFE)
    model.set_params(step=1e12, power=0.0)
    for learn in (model.fit, model.partial_fit, model.predict_then_learn):
        with pytest.raises(ParameterError, match="choose a smaller step"):
            learn(CAFE * 3 if learn != model.fit else CAFE)
    assert_same(model, small().fit(CAFE))


def test_a_pair_rated_twice_counts_twice_on_a_stream_and_once_in_a_fit():
    twice = [*CAFE, ("ann", "tea", 1.0)]
    assert small().partial_fit(twice).n_updates_ == 6
    with pytest.warns(DuplicateWarning):
        assert small(epochs=1).fit(twice).n_updates_ == 5
    with pytest.raises(DataError):
        small(duplicates="error").fit(twice)


def test_equal_ratings_are_predicted_as_such():
    model = small().fit([(u, i, 4.0) for u in range(5) for i in range(5)])
    assert model.predict([0, 9], [1, 1]).tolist() == [4.0, 4.0]
    assert small().fit([("ann", "tea", 2.0)]).predict("ann", "tea") == 2.0


def test_threads_that_update_at_once_wait_for_each_other():
    model = small()

    def update(k: int) -> None:
        users, items, ratings = stream(50, seed=k)
        model.partial_fit((users + 10 * k, items + 10 * k, ratings))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(update, range(40)))
    assert model.n_updates_ == 40 * 50
    assert model.n_users_ == len(model.state_.users.ids)
    assert np.isfinite(model.user_factors_).all()


# -- real ratings ---------------------------------------------------------------------------------


def test_movielens_100k_is_predicted_better_than_by_offsets(shared_data):
    frame = pd.read_parquet(shared_data / "ml-100k.parquet").sample(frac=1.0, random_state=0)
    train, rest = frame[:80_000], frame[80_000:90_000]
    model = SGD(rng=0, epochs=10).fit(train)
    offsets = SGD(rng=0, epochs=10, n_factors=0).fit(train)
    assert error(model, rest.user, rest.item, rest.rating) < 0.935
    assert error(model, rest.user, rest.item, rest.rating) < error(
        offsets, rest.user, rest.item, rest.rating
    )


def test_scores_are_predictions_before_clipping():
    ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    users, items = ["ann", "zoe", "eve"], ["milk", "gin", "tea"]
    learnt = SGD(n_factors=2, epochs=5, rating_range=(-99, 99), rng=0).fit(ratings)
    expected = learnt.predict(np.repeat(users, 3), np.tile(items, 3)).reshape(3, 3)
    assert learnt.scores(users, items) == pytest.approx(expected, rel=1e-5)
