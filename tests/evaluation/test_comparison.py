from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hemf.errors import DataError, ParameterError
from hemf.evaluation import paired_difference, summarise


def test_a_summary_is_the_mean_with_its_standard_error(rng):
    scores = rng.normal(0.85, 0.01, size=10)
    summary = summarise(scores)
    assert summary.mean == pytest.approx(scores.mean())
    assert summary.standard_error == pytest.approx(stats.sem(scores))
    assert summary.n == 10


def test_one_split_has_no_standard_error():
    assert np.isnan(summarise([0.8]).standard_error)


def test_a_difference_is_that_of_the_paired_t_test(rng):
    splits = rng.normal(0.85, 0.05, size=10)
    first, second = splits + rng.normal(0, 0.001, 10), splits + rng.normal(0.002, 0.001, 10)
    found, known = paired_difference(first, second), stats.ttest_rel(first, second)
    assert found.t == pytest.approx(known.statistic)
    assert found.p_value == pytest.approx(known.pvalue)
    low, high = known.confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high))
    assert found.first_is_lower
    assert not paired_difference(second, first).first_is_lower


def test_a_difference_that_may_be_chance_is_none():
    found = paired_difference([1.0, 2.0, 3.0], [1.1, 1.8, 3.05])
    assert found.p_value > 0.5
    assert not found.first_is_lower


def test_splits_that_share_rows_make_a_difference_less_sure(rng):
    first, second = rng.normal(size=10), rng.normal(0.5, size=10)
    plain, widened = (paired_difference(first, second, test_per_train=s) for s in (0, 1 / 9))
    assert widened.mean == plain.mean
    assert widened.standard_error == pytest.approx(plain.standard_error * np.sqrt(1 + 10 / 9))
    assert widened.p_value > plain.p_value


def test_equal_differences_are_certain_and_equal_scores_are_not():
    always = paired_difference([1.0, 2.0], [2.0, 3.0])
    assert (always.t, always.p_value, always.interval) == (-np.inf, 0.0, (-1.0, -1.0))
    never = paired_difference([1.0, 2.0], [1.0, 2.0])
    assert (never.t, never.p_value, never.first_is_lower) == (0.0, 1.0, False)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([1, 2], [1, 2, 3], "lengths differ: first 2, second 3"),
        ([1], [2], "at least two splits"),
        ([], [], "no rows in first, second"),
        ([1, np.nan], [1, 2], "first nan at row 1 is not finite"),
        ([1, 2], [np.inf, 2], "second inf at row 0 is not finite"),
        ([[1, 2]], [1, 2], "first must have one dimension, got 2"),
        (["good", "bad"], [1, 2], "first must be numbers"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(first, second, why):
    with pytest.raises(DataError, match=why):
        paired_difference(first, second)


@pytest.mark.parametrize("share", [-0.1, np.inf, np.nan])
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(ParameterError, match="test_per_train"):
        paired_difference([1, 2], [2, 4], test_per_train=share)
