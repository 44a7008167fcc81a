"""What a model says of ratings: distributions, their tails, and the odds of levels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from hemf import DataError, HeMF, NotFittedError
from hemf.data.datasets import draw
from hemf.errors import HistoryWarning
from hemf.evaluation import judge, random_split
from hemf.model.rows import NoiseScales, matched_freedom

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

DATA = draw(150, 80, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=1)
STARS = np.clip(np.round(DATA.ratings - DATA.ratings.mean() + 3), 1, 5)
KEPT, HELD = random_split(STARS.size, 0.2, rng=0)


def fitted(ratings=STARS, **parameters) -> HeMF:
    known = {"n_factors": 3, "max_user_communities": 2, "max_item_communities": 2, "max_sweeps": 25}
    columns = DATA.users[KEPT], DATA.items[KEPT], ratings[KEPT]
    return HeMF(**{**known, "rng": 0, **parameters}).fit(columns)


@pytest.fixture(scope="module")
def stars() -> HeMF:
    return fitted()


@pytest.fixture(scope="module")
def measured() -> HeMF:
    return fitted(DATA.ratings)


def pairs(part=HELD) -> tuple[np.ndarray, np.ndarray]:
    return DATA.users[part], DATA.items[part]


# -- the distribution ---------------------------------------------------------------------------


def test_it_has_the_mean_and_standard_deviation_of_predict(stars):
    predicted = stars.predict_distribution(*pairs())
    mean, std = stars.predict(*pairs(), return_std=True)
    np.testing.assert_array_equal(predicted.mean, mean)
    np.testing.assert_array_equal(predicted.std, std)
    assert (predicted.freedom > 4).all()


def test_ratings_of_a_row_whose_noise_is_uncertain_are_students(rng):
    """A Gaussian whose precision is Gamma(a, b) is a Student-t with 2a degrees of freedom."""
    scales = NoiseScales(9.0, np.array([11.0]), np.array([14.0]))
    freedom = matched_freedom(np.ones(2), scales.inverse_spread)
    np.testing.assert_allclose(freedom, [22.0, 18.0], rtol=1e-12)  # the last is a stranger's
    drawn = rng.normal(size=100_000) / np.sqrt(rng.gamma(11.0, 1 / 14.0, 100_000))
    scale = np.sqrt(scales.inverse[0] * (22 - 2) / 22)
    assert stats.kstest(drawn / scale, stats.t(22).cdf).pvalue > 0.01
    assert stats.kstest(drawn / np.sqrt(scales.inverse[0]), stats.norm.cdf).pvalue < 1e-3


# docs/model.md#student-t
def test_two_scales_and_a_taste_have_the_moments_of_the_mixture(rng):
    a, c, n = 8.0, 12.0, 2_000_000
    taste, noise = 0.3, a / (a - 1) * c / (c - 1)
    variance = taste + 1 / (rng.gamma(a, 1 / a, n) * rng.gamma(c, 1 / c, n))
    spread = (a - 1) / (a - 2) * (c - 1) / (c - 2)
    share = noise / (taste + noise)
    assert variance.mean() == pytest.approx(taste + noise, rel=0.005)
    found = float(matched_freedom(np.array([share]), np.array([spread]))[0])
    kurtosis = 3 * variance.var() / variance.mean() ** 2
    assert 6 / (found - 4) == pytest.approx(kurtosis, rel=0.03)


def test_noise_that_is_known_is_normal():
    plain = fitted(noise_scales=None)
    assert np.isinf(plain.tail_freedom_)
    assert np.isinf(plain.predict_distribution(*pairs()).freedom).all()


def test_tails_are_heavier_the_fewer_ratings_tell_of_a_row(measured):
    scales = measured.state_.sides["user"].noise_scales
    counts = np.append(measured.state_.counts["user"], 0)  # a stranger's at the end
    order = np.argsort(counts)
    assert (np.diff(scales.inverse_spread[order]) <= 0).all()
    users, items = pairs()
    predicted = measured.predict_distribution(users, items)
    taste = measured.predict(users, items, return_std=True, include_noise=False)[1]
    shapes = [
        measured.state_.sides[side].noise_scales.shape[measured._model.rows(side, ids)]
        for side, ids in (("user", users), ("item", items))
    ]
    assert np.isinf(measured.tail_freedom_)
    spread = np.prod([(a - 1) / (a - 2) for a in shapes], axis=0)
    share = 1 - (taste / predicted.std) ** 2
    np.testing.assert_allclose(predicted.freedom, 4 + 2 / (share**2 * (spread - 1)), rtol=1e-6)


def test_heavy_tails_are_found_and_said(rng):
    heavy = DATA.ratings + 0.3 * rng.standard_t(2.5, DATA.ratings.size)
    model = fitted(heavy, noise_scales=None, rating_range=None)
    assert 5 <= model.tail_freedom_ < 12
    predicted = model.predict_distribution(*pairs())
    normal = judge(heavy[HELD], type(predicted)(predicted.mean, predicted.std))
    assert judge(heavy[HELD], predicted).nlpd < normal.nlpd


def test_tails_are_of_the_model_as_it_is(rng):
    model = fitted(DATA.ratings, rating_range=None)
    before = model.tail_freedom_
    assert np.isinf(before) or before > 12
    wild = DATA.ratings[HELD] + 3 * rng.standard_t(1.5, HELD.size)
    model.partial_fit((*pairs(), wild))
    assert model.tail_freedom_ < 12


def test_drawn_ratings_are_where_they_should_be(measured):
    found = judge(DATA.ratings[HELD], measured.predict_distribution(*pairs()))
    assert found.coverage[0.9] == pytest.approx(0.9, abs=0.04)
    assert found.pit_distance < 0.08


# -- levels -------------------------------------------------------------------------------------


def test_columns_are_the_levels_seen(stars):
    assert stars.levels_.tolist() == [1, 2, 3, 4, 5]
    odds = stars.predict_proba(*pairs())
    assert odds.shape == (HELD.size, 5)
    assert (odds >= 0).all()
    np.testing.assert_allclose(odds.sum(axis=1), 1.0, rtol=1e-12)
    predicted = stars.predict_distribution(*pairs())
    at_least_4 = odds[:, stars.levels_ >= 4].sum(axis=1)
    np.testing.assert_allclose(at_least_4, 1 - predicted.below(3.5), atol=1e-12)


def test_levels_are_as_frequent_as_they_are_said_to_be(stars):
    odds, actual = stars.predict_proba(*pairs()), STARS[HELD]
    frequent = [(actual == level).mean() for level in stars.levels_]
    np.testing.assert_allclose(odds.mean(axis=0), frequent, atol=0.04)
    # and they tell pairs apart: the log score is better than that of the frequencies
    found = judge(actual, stars.predict_distribution(*pairs()), levels=stars.levels_)
    assert found.log_score < -np.sum(frequent * np.log(frequent)) - 0.1


def test_levels_may_be_given(measured):
    odds = measured.predict_proba(*pairs(), levels=[0, 3.5, 4])
    assert odds.shape == (HELD.size, 3)
    predicted = measured.predict_distribution(*pairs())
    np.testing.assert_allclose(odds[:, 0], predicted.below(1.75), atol=1e-12)


def test_measurements_have_no_levels_of_their_own(measured):
    with pytest.raises(DataError, match=r"different values: they are measured .* levels=\[1, 2"):
        measured.predict_proba(*pairs())
    with pytest.raises(DataError, match="must be higher than the one before"):
        measured.predict_proba(*pairs(), levels=[3, 1])


def test_levels_read_as_they_were_written():
    model = HeMF(n_factors=1, max_sweeps=2, rng=0).fit([("a", "x", 0.1), ("b", "x", 0.7)])
    assert model.levels_.tolist() == [0.1, 0.7]


def test_levels_that_were_held_out_of_a_fit_count_as_seen():
    rare = STARS.copy()
    rare[KEPT[:1]] = 5.5
    for seed in range(8):
        model = fitted(rare, validation_fraction=0.5, max_sweeps=2, rng=seed)
        assert 5.5 in model.levels_


def test_strangers_and_single_pairs_have_odds_too(stars):
    odds = stars.predict_proba("nobody", "nothing")
    assert odds.shape == (1, 5)
    assert odds.sum() == pytest.approx(1.0)
    known = stars.predict_proba(int(DATA.users[0]), int(DATA.items[0]))
    assert known.max() > odds.max()  # more is known of these
    one_for_many = stars.predict_proba("nobody", DATA.items[:3])
    assert one_for_many.shape == (3, 5)
    table = np.column_stack([DATA.users[:3], DATA.items[:3]])
    np.testing.assert_array_equal(
        stars.predict_proba(table), stars.predict_proba(DATA.users[:3], DATA.items[:3])
    )
    np.testing.assert_array_equal(
        stars.predict_proba(iter(DATA.users[:3]), iter(DATA.items[:3])), stars.predict_proba(table)
    )


@pytest.mark.parametrize("history", ["full", 5, "none"])
def test_models_that_learn_online_have_odds(history):
    model = HeMF(n_factors=2, history=history, rating_range=(1, 5), rng=0)
    model.predict_then_learn((*pairs(KEPT), STARS[KEPT]))
    given = model.predict_proba(*pairs(), levels=[1, 2, 3, 4, 5])
    np.testing.assert_allclose(given.sum(axis=1), 1.0, rtol=1e-12)
    if history == "none":
        with pytest.raises(DataError, match=r"kept no ratings .* give levels"):
            model.predict_proba(*pairs())
        return
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(model.predict_proba(*pairs()), given)
    assert [w.category for w in issued] == ([] if history == "full" else [HistoryWarning])


def test_a_model_that_was_kept_says_the_same(stars, tmp_path):
    stars.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    np.testing.assert_array_equal(again.predict_proba(*pairs()), stars.predict_proba(*pairs()))
    assert again.tail_freedom_ == stars.tail_freedom_


def test_the_time_of_a_rating_counts():
    times = np.arange(KEPT.size) // 5
    model = HeMF(n_factors=2, moods=True, max_sweeps=25, rng=0).fit(
        (*pairs(KEPT), STARS[KEPT], times)
    )
    mean = model.predict(*pairs(KEPT), timestamps=times)
    predicted = model.predict_distribution(*pairs(KEPT), timestamps=times)
    np.testing.assert_array_equal(predicted.mean, mean)
    assert model.predict_proba(*pairs(KEPT), timestamps=times).shape == (KEPT.size, 5)


def test_a_model_that_has_learnt_nothing_says_so():
    for ask in ("predict_proba", "predict_distribution", "scores"):
        with pytest.raises(NotFittedError):
            getattr(HeMF(), ask)(["ann"], ["tea"])
    for attribute in ("levels_", "tail_freedom_"):
        assert not hasattr(HeMF(), attribute)
