"""Recommendations: the best of what predict says, found without predicting pair by pair."""

from __future__ import annotations

import numpy as np
import pytest

from hemf import DataError, HeMF, ParameterError, UnknownIdError
from hemf.data.datasets import draw
from hemf.queries import recommend

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

DATA = draw(70, 50, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=1)
USERS = [f"user {u}" for u in DATA.users]
ITEMS = [f"item {i}" for i in DATA.items]
EVERYONE, EVERYTHING = sorted(set(USERS)), sorted(set(ITEMS))
SEEN = {user: {i for u, i in zip(USERS, ITEMS, strict=True) if u == user} for user in EVERYONE}


def fitted(**parameters) -> HeMF:
    known = {"n_factors": 3, "max_user_communities": 3, "max_item_communities": 3, "max_sweeps": 20}
    return HeMF(**{**known, "rng": 0, **parameters}).fit((USERS, ITEMS, DATA.ratings))


@pytest.fixture(scope="module")
def model() -> HeMF:
    """A model in float64 whose predictions are not clipped, so that few scores are alike."""
    return fitted(rating_range=None, dtype="float64")


def by_prediction(model, user, items, n):
    """The best items and their scores, pair by pair."""
    mean = model.predict(user, list(items))
    order = np.argsort(-mean, kind="stable")[:n]
    return [list(items)[k] for k in order], mean[order]


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("user", [*EVERYONE[:6], "nobody"])
def test_the_best_items_are_those_that_predict_rates_highest(model, user, exclude_seen):
    seen = SEEN.get(user, set()) if exclude_seen else set()
    expected, mean = by_prediction(model, user, [i for i in EVERYTHING if i not in seen], 10)
    ids, scores = model.recommend(user, exclude_seen=exclude_seen)
    assert ids.tolist() == expected
    np.testing.assert_allclose(scores, mean, rtol=1e-9)


def test_scores_of_newcomers_with_features_are_what_predict_returns():
    rng = np.random.default_rng(0)
    table = [(user, item, float(rng.normal(item % 3))) for user in range(12) for item in range(9)]
    features = {item: [float(item % 3), rng.normal()] for item in range(12)}  # 9 to 11 are new
    model = HeMF(n_factors=2, dtype="float64", rng=0).fit(table, item_features=features)
    users, items = [0, 5], [3, 9, 11]
    expected = [[model.predict(user, item) for item in items] for user in users]
    low, high = model.rating_range_
    assert all(low < each < high for row in expected for each in row)
    np.testing.assert_allclose(model.scores(users, items, strategy="mean"), expected, rtol=1e-9)


def test_scores_in_float32_are_those_of_predict_to_six_digits():
    model = fitted()
    for user in EVERYONE[:5]:
        ids, scores = model.recommend(user, n=5)
        np.testing.assert_allclose(scores, model.predict(user, ids), rtol=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_many_users_at_once_get_what_each_gets_alone(model):
    users = [*EVERYONE, "nobody"]
    ids, scores = model.recommend(users, n=4)
    assert ids.shape == scores.shape == (len(users), 4)
    for user, row, values in zip(users, ids, scores, strict=True):
        alone, score = model.recommend(user, n=4)
        assert row.tolist() == alone.tolist()
        np.testing.assert_allclose(values, score, rtol=1e-9)


def test_users_are_scored_block_by_block_with_the_same_result(model, monkeypatch):
    whole = model.recommend(EVERYONE, n=4)
    monkeypatch.setattr(recommend, "BLOCK_BYTES", 16 * len(EVERYTHING) * 3)
    blocks = model.recommend(EVERYONE, n=4)
    assert whole[0].tolist() == blocks[0].tolist()
    np.testing.assert_allclose(whole[1], blocks[1], rtol=1e-9)


def test_the_same_user_twice_and_no_user_at_all_are_fine(model):
    ids, _ = model.recommend([EVERYONE[0], EVERYONE[0]], n=3)
    assert ids[0].tolist() == ids[1].tolist()
    ids, scores = model.recommend([], n=3)
    assert ids.shape == scores.shape == (0, 3)


def test_users_come_in_an_array_too(model):
    listed, given = (model.recommend(kind(EVERYONE[:3]), n=2)[0] for kind in (list, np.array))
    assert listed.tolist() == given.tolist()


# -- what may be chosen -------------------------------------------------------------------------


def test_what_was_rated_is_not_recommended_unless_asked_for(model):
    for user in EVERYONE[:10]:
        ids, _ = model.recommend(user, n=len(EVERYTHING))
        assert set(ids) == set(EVERYTHING) - SEEN[user]
        assert len(model.recommend(user, n=len(EVERYTHING), exclude_seen=False)[0]) == len(
            EVERYTHING
        )


def test_more_than_there_is_gives_all_there_is(model):
    user = EVERYONE[0]
    left = len(EVERYTHING) - len(SEEN[user])
    ids, scores = model.recommend(user, n=10_000)
    assert len(ids) == len(scores) == left
    ids, scores = model.recommend([user, "nobody"], n=10_000)
    assert ids.shape == (2, len(EVERYTHING))
    assert all(item is None for item in ids[0, left:])
    assert np.isnan(scores[0, left:]).all()
    assert np.isfinite(scores[0, :left]).all()
    assert np.isfinite(scores[1]).all()


def test_the_choice_can_be_limited(model):
    user = EVERYONE[0]
    some = [item for item in EVERYTHING if item not in SEEN[user]][:4]
    seen = sorted(SEEN[user])[:2]
    ids, _ = model.recommend(user, items=[*some, *seen])
    assert ids.tolist() == by_prediction(model, user, some, 10)[0]
    ids, _ = model.recommend(user, items=[*some, *seen], exclude_seen=False)
    assert ids.tolist() == by_prediction(model, user, [*some, *seen], 10)[0]
    assert model.recommend(user, items=some[0])[0].tolist() == some[:1]
    assert model.recommend(user, items=[some[0], some[0]])[0].tolist() == some[:1]
    assert model.recommend(user, items=np.array(some), n=1)[0].shape == (1,)


def test_the_answer_can_say_who_is_known(model):
    user = EVERYONE[0]
    ids, scores, known = model.recommend(user, 3, return_known=True)
    assert known
    assert np.ndim(known) == 0
    assert (ids.tolist(), scores.tolist()) == tuple(x.tolist() for x in model.recommend(user, 3))
    assert not model.recommend("nobody", 3, return_known=True)[2]
    known = model.recommend([user, "nobody"], 3, return_known=True)[2]
    assert known.tolist() == [True, False]
    for name in ("return_known", "exclude_seen"):
        with pytest.raises(ParameterError, match=f"{name} must be True or False"):
            model.recommend(user, **{name: "no"})


def test_what_was_held_out_counts_as_seen_even_where_it_was_all_there_was():
    data = [(user, user % 4, float(user % 5)) for user in range(30)]
    model = HeMF(n_factors=1, max_sweeps=3, validation_fraction=0.5, rng=0).fit(data)
    stranger = int(model.held_out_.triples()[0][0])
    ids, _, known = model.recommend(stranger, return_known=True)
    assert not known
    assert stranger % 4 not in ids


def test_nothing_left_is_an_empty_answer(model):
    user = EVERYONE[0]
    seen = sorted(SEEN[user])
    ids, scores = model.recommend(user, items=seen)
    assert len(ids) == len(scores) == 0
    ids, scores = model.recommend([user], items=seen, n=2)
    assert ids.tolist() == [[None, None]]
    assert np.isnan(scores).all()


def test_a_choice_of_what_is_not_there_is_an_error(model):
    with pytest.raises(UnknownIdError, match="item 'nothing' at row 1 is not known"):
        model.recommend(EVERYONE[0], items=[EVERYTHING[0], "nothing"])
    with pytest.raises(DataError, match="items is empty"):
        model.recommend(EVERYONE[0], items=[])


def test_ids_keep_their_type():
    model = HeMF(n_factors=2, max_sweeps=5, rng=0).fit((DATA.users, DATA.items, DATA.ratings))
    ids, _ = model.recommend(int(DATA.users[0]), n=3)
    assert ids.dtype == np.int64
    ids, _ = model.recommend(DATA.users[:2], n=3)
    assert {type(item) for item in ids.ravel()} == {int}


def test_a_recommendation_changes_nothing(model):
    user = EVERYONE[0]
    before = model.predict(user, EVERYTHING)
    for strategy in ("mean", "ucb", "thompson"):
        ids, scores = model.recommend(user, strategy=strategy, rng=0)
        ids[:] = "gone"
        scores[:] = np.nan
    np.testing.assert_array_equal(model.predict(user, EVERYTHING), before)
    assert model.recommend(user)[0].tolist() == model.recommend(user)[0].tolist()


# -- the range of ratings -----------------------------------------------------------------------


def test_items_beyond_the_end_of_the_range_keep_their_order():
    free, narrow = fitted(rating_range=None), fitted(rating_range=(3.0, 3.2))
    for user in EVERYONE[:5]:
        order = free.recommend(user)[0].tolist()
        ids, scores = narrow.recommend(user)
        assert ids.tolist() == order
        assert ((scores > 3 - 1e-6) & (scores < 3.2 + 1e-6)).all()
        np.testing.assert_allclose(scores, narrow.predict(user, ids), atol=1e-6)


# -- exploring ----------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [EVERYONE[0], "nobody"])
@pytest.mark.parametrize("exploration", [0.0, 1.0, 2.5])
def test_ucb_adds_deviations_of_the_taste(model, user, exploration):
    mean, std = model.predict(user, EVERYTHING, return_std=True, include_noise=False)
    best = mean + exploration * std
    ids, scores = model.recommend(
        user, n=50, strategy="ucb", exploration=exploration, exclude_seen=False
    )
    order = np.argsort(-best)
    assert ids.tolist() == [EVERYTHING[k] for k in order]
    np.testing.assert_allclose(scores, best[order], rtol=1e-7)


def test_without_exploration_ucb_is_the_mean_also_where_predictions_are_clipped():
    model = fitted(rating_range=(3.0, 3.2))
    plain, _ = model.recommend(EVERYONE, n=5)
    ucb, _ = model.recommend(EVERYONE, n=5, strategy="ucb", exploration=0)
    assert plain.tolist() == ucb.tolist()


@pytest.mark.parametrize("user", [EVERYONE[0], "nobody"])
def test_thompson_draws_from_the_posterior(model, user):
    times = 6000
    mean, std = model.predict(user, EVERYTHING, return_std=True, include_noise=False)
    ids, scores = model.recommend(
        [user] * times, n=len(EVERYTHING), strategy="thompson", exclude_seen=False, rng=0
    )
    drawn = np.take_along_axis(scores, np.argsort(ids, axis=1), axis=1)
    assert (np.sort(ids[0]) == EVERYTHING).all()
    error = (drawn.mean(axis=0) - mean) / (std / np.sqrt(times))
    assert np.abs(error).max() < 5.0
    # A product of Gaussians has heavier tails than one, so its deviation is less sure.
    np.testing.assert_allclose(drawn.std(axis=0), std, rtol=0.1)


def test_thompson_varies_with_the_seed_alone(model):
    def draw_once(rng):
        return model.recommend(EVERYONE, n=5, strategy="thompson", rng=rng)

    ids, scores = draw_once(3)
    again, same = draw_once(np.random.default_rng(3))
    assert ids.tolist() == again.tolist()
    np.testing.assert_array_equal(scores, same)
    assert draw_once(4)[0].tolist() != ids.tolist()
    assert draw_once(None)[1].shape == scores.shape


def test_a_stranger_is_explored_more_widely_than_a_friend(model):
    """Draws for somebody unknown differ more than those for somebody with many ratings."""
    known = max(EVERYONE, key=lambda user: len(SEEN[user]))
    firsts = {
        user: model.recommend([user] * 300, n=1, strategy="thompson", exclude_seen=False, rng=1)[0]
        for user in (known, "nobody")
    }
    assert len(set(firsts["nobody"].ravel())) > len(set(firsts[known].ravel()))


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"n": -3}, "n must be a whole number of at least 1, got -3"),
        ({"n": 2.0}, "n must be a whole number of at least 1, got 2.0"),
        ({"n": True}, "n must be a whole number of at least 1, got True"),
        (
            {"strategy": "best"},
            "strategy must be one of 'relevance', 'mean', 'ucb', 'thompson', got 'best'",
        ),
        ({"strategy": "ucb", "exploration": -1}, "exploration must be a number at least 0, got -1"),
        ({"strategy": "ucb", "exploration": float("nan")}, "exploration must be .* got nan"),
        ({"strategy": "thompson", "rng": -1}, "rng must be a whole number of at least 0, got -1"),
        ({"strategy": "thompson", "rng": "lucky"}, "rng must be .* got 'lucky'"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(model, options, message):
    with pytest.raises(ParameterError, match=message):
        model.recommend(EVERYONE[0], **options)


@pytest.mark.parametrize("user", [None, float("nan"), [None], [["a"]]], ids=str)
def test_what_is_no_user_is_refused(model, user):
    with pytest.raises(DataError):
        model.recommend(user)
