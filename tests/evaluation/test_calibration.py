"""Honest predictions are distinguished from those that are too sure, too cautious, or off."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from hemf.errors import DataError
from hemf.evaluation import Predictive, coverage, judge, nlpd

N = 40_000


@pytest.fixture
def predicted(rng):
    return Predictive(
        rng.normal(3, 1, N), rng.uniform(0.3, 1.5, N), rng.choice([4.5, 9.0, np.inf], N)
    )


@pytest.fixture
def actual(predicted, rng):
    """Ratings drawn from their predictive distribution."""
    v = np.where(np.isinf(predicted.freedom), 1e9, predicted.freedom)
    return predicted.mean + predicted.std * np.sqrt((v - 2) / v) * rng.standard_t(v)


def test_honest_predictions_hold_what_they_say(predicted, actual):
    found = judge(actual, predicted)
    for level, share in found.coverage.items():
        assert share == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / N))
    assert found.pit_distance < 3 * 1.2 / np.sqrt(N)
    assert found.pit.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.curve.observed, found.curve.nominal, atol=0.01)
    assert found.log_score is None


def test_honest_predictions_of_levels_are_uniform_too(predicted, actual):
    """Plain PIT of five levels has gaps; the PIT over levels has none."""
    levels = np.arange(1.0, 6.0)
    rounded = np.clip(np.round(actual), 1, 5)
    found = judge(rounded, predicted, levels=levels)
    assert found.pit_distance < 3 * 1.2 / np.sqrt(N)
    assert judge(rounded, predicted).pit_distance > 2 * found.pit_distance
    odds = predicted.probabilities(levels)
    entropy = -np.sum(odds * np.log(odds), axis=1).mean()
    assert found.log_score == pytest.approx(entropy, abs=0.02)


@pytest.mark.parametrize(("factor", "too"), [(0.6, "sure"), (1.7, "cautious")])
def test_what_is_too_sure_or_too_cautious_shows(predicted, actual, factor, too):
    wrong, right = (
        Predictive(predicted.mean, factor * predicted.std, predicted.freedom),
        judge(actual, predicted),
    )
    found = judge(actual, wrong)
    ends, middle = found.pit[[0, -1]].mean(), found.pit[4:6].mean()
    if too == "sure":
        assert found.coverage[0.9] < 0.8
        assert ends > 1.5 * middle
    else:
        assert found.coverage[0.9] > 0.95
        assert ends < 0.6 * middle
    assert found.pit_distance > 0.1
    assert found.nlpd > right.nlpd
    assert found.crps > right.crps


def test_heavier_tails_than_predicted_cost_density(predicted, rng):
    heavy = predicted.mean + predicted.std * np.sqrt(1 / 3) * rng.standard_t(3, N)
    normal = judge(heavy, Predictive(predicted.mean, predicted.std))
    student = judge(heavy, Predictive(predicted.mean, predicted.std, 3.0))
    assert student.nlpd < normal.nlpd - 0.05


def test_figures_by_hand():
    predicted = Predictive(np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    found = judge([3.0, 5.0], predicted, levels=[1, 2, 3, 4, 5])
    middle, last = stats.norm.cdf(0.5) - stats.norm.cdf(-0.5), stats.norm.sf(1.5)
    assert found.log_score == pytest.approx(-(np.log(middle) + np.log(last)) / 2)
    # The first rating is spread evenly over 0.309 … 0.691, the second over 0.933 … 1.
    spread = np.interp(np.linspace(0, 1, 11), [0.5 - middle / 2, 0.5 + middle / 2], [0, 1])
    pit = 0.5 * np.diff(spread)
    pit[9] += 0.5
    np.testing.assert_allclose(found.pit, pit, atol=1e-12)
    assert found.pit_distance == pytest.approx(0.5 * np.abs(pit - 0.1).sum())


def test_a_rating_that_was_next_to_impossible_is_counted_all_the_same():
    predicted = Predictive(np.array([-90.0, 90.0, 1.0]), np.full(3, 0.5))
    found = judge([5.0, 1.0, 1.0], predicted, levels=[1, 2, 3, 4, 5])
    assert found.pit.sum() == pytest.approx(1.0)
    assert (found.pit[0], found.pit[9]) == (pytest.approx(1 / 3, abs=0.1), pytest.approx(1 / 3))
    assert np.isfinite(found.log_score)


def test_ratings_between_levels_count_as_the_nearest():
    predicted = Predictive(np.array([3.0]), np.array([1.0]))
    off, on = (judge([value], predicted, levels=[1, 3, 5]).log_score for value in (3.9, 3.0))
    assert off == on


def test_it_agrees_with_the_single_figures(predicted, actual):
    found = judge(actual, predicted)
    given = (actual, predicted.mean, predicted.std)
    assert found.nlpd == pytest.approx(nlpd(*given, freedom=predicted.freedom))
    assert found.coverage[0.8] == coverage(*given, level=0.8, freedom=predicted.freedom)


def test_figures_are_json(predicted, actual):
    figures = json.loads(json.dumps(judge(actual, predicted, levels=[1, 2, 3]).to_dict()))
    assert list(figures) == [
        "coverage50", "coverage80", "coverage90", "coverage95", "nlpd", "crps", "log_score",
        "pit_distance", "pit",
    ]  # fmt: skip
    assert len(figures["pit"]) == 10


def test_ratings_without_predictions_are_refused(predicted):
    with pytest.raises(DataError, match="lengths differ: ratings 2, predictions 40000"):
        judge([1.0, 2.0], predicted)
    with pytest.raises(DataError, match="must be numbers"):
        judge(["good", "bad"], Predictive(np.ones(2), np.ones(2)))
    with pytest.raises(DataError, match="no rows in ratings, predictions"):
        judge([], Predictive(np.empty(0), np.empty(0)))
