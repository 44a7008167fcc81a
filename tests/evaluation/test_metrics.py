from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hemf.errors import DataError, ParameterError
from hemf.evaluation import (
    adjusted_rand_index,
    calibration_curve,
    coverage,
    mae,
    nlpd,
    pit,
    purity,
    rmse,
)


@pytest.fixture
def honest(rng):
    """Ratings that are as uncertain as their predictions say."""
    mean, std = rng.normal(3, 1, 20_000), rng.uniform(0.2, 2.0, 20_000)
    return rng.normal(mean, std), mean, std


def test_errors_equal_those_of_scikit_learn(honest):
    actual, mean, _ = honest
    assert rmse(actual, mean) == pytest.approx(
        sklearn_metrics.root_mean_squared_error(actual, mean), rel=1e-12
    )
    assert mae(actual, mean) == pytest.approx(
        sklearn_metrics.mean_absolute_error(actual, mean), rel=1e-12
    )


def test_small_floats_are_summed_in_double_precision(rng):
    actual = rng.uniform(1, 5, 1_000_000).astype(np.float32)
    off = actual.astype(np.float64) + 1e-3
    assert rmse(actual, off) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_honest_intervals_cover_what_they_promise(honest, level):
    assert coverage(*honest, level=level) == pytest.approx(level, abs=0.01)


def test_coverage_counts_the_ratings_inside(honest):
    actual, mean, std = honest
    low, high = stats.norm.interval(0.8, mean, std)
    assert coverage(actual, mean, std, level=0.8) == np.mean((actual >= low) & (actual <= high))


def test_density_equals_that_of_scipy(honest):
    actual, mean, std = honest
    expected = -stats.norm.logpdf(actual, mean, std).mean()
    assert nlpd(actual, mean, std) == pytest.approx(expected, rel=1e-12)


def test_the_right_deviation_has_the_best_density(honest):
    actual, mean, std = honest
    best = nlpd(actual, mean, std)
    assert best < nlpd(actual, mean, 1.2 * std)
    assert best < nlpd(actual, mean, std / 1.2)


def test_the_transform_equals_that_of_scipy_and_is_uniform(honest):
    values = pit(*honest)
    np.testing.assert_allclose(values, stats.norm.cdf(*honest), rtol=1e-12)
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_the_curve_is_the_coverage_at_every_level(honest):
    curve = calibration_curve(*honest)
    assert len(curve.nominal) == 19
    np.testing.assert_allclose(
        curve.observed, [coverage(*honest, level=level) for level in curve.nominal]
    )
    np.testing.assert_allclose(curve.observed, curve.nominal, atol=0.015)


def test_too_sure_predictions_lie_below_the_diagonal(honest):
    actual, mean, std = honest
    curve = calibration_curve(actual, mean, std / 2, levels=[0.3, 0.6, 0.9])
    assert (curve.observed < curve.nominal).all()


def test_a_single_number_stands_for_every_row():
    assert rmse([1.0, 3.0], 2.0) == 1.0
    assert coverage([1.0, 9.0], mean=2.0, std=1.0) == 0.5


def test_a_sure_prediction_is_right_or_wrong():
    assert coverage([3.0, 3.0], mean=[3.0, 4.0], std=0.0) == 0.5
    np.testing.assert_array_equal(pit([3.0, 3.0, 3.0], [3.0, 4.0, 2.0], 0.0), [0.5, 0.0, 1.0])
    with pytest.raises(DataError, match=r"std 0\.0 at row 1"):
        nlpd([3.0, 3.0], [3.0, 3.0], [1.0, 0.0])


labellings = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
    )
)


@given(labellings)
@settings(deadline=None)
def test_the_rand_index_equals_that_of_scikit_learn(pair):
    actual, found = pair
    expected = sklearn_metrics.adjusted_rand_score(actual, found)
    assert adjusted_rand_index(actual, found) == pytest.approx(expected, abs=1e-12)


@given(labellings)
@settings(deadline=None)
def test_purity_is_what_counting_by_hand_gives(pair):
    actual, found = pair
    best = sum(
        max(
            sum(a == value and f == group for a, f in zip(actual, found, strict=True))
            for value in set(actual)
        )
        for group in set(found)
    )
    assert purity(actual, found) == pytest.approx(best / len(actual))


def test_the_rand_index_of_many_rows_does_not_overflow(rng):
    labels = rng.integers(0, 3, 2_000_000)
    assert adjusted_rand_index(labels, 2 - labels) == 1.0
    assert adjusted_rand_index(labels, rng.permutation(labels)) == pytest.approx(0, abs=1e-3)


def test_fragments_are_pure_but_do_not_agree():
    actual = np.repeat([0, 1], 50)
    found = np.arange(100) // 10
    assert purity(actual, found) == 1.0
    assert adjusted_rand_index(actual, found) < 0.5


def test_groups_may_have_any_names():
    assert adjusted_rand_index(["x", "y", "y"], [True, False, False]) == 1.0


TWO_COLUMNS = [rmse, mae, adjusted_rand_index, purity]
THREE_COLUMNS = [coverage, nlpd, pit, calibration_curve]


@pytest.mark.parametrize("metric", TWO_COLUMNS)
def test_two_columns_must_be_equally_long_and_not_empty(metric):
    with pytest.raises(DataError, match=r"lengths differ: actual 3, \w+ 2"):
        metric([1, 2, 3], [1, 2])
    with pytest.raises(DataError, match="no rows"):
        metric([], [])
    with pytest.raises(DataError, match="one dimension, got 2"):
        metric([[1, 2]], [[1, 2]])


@pytest.mark.parametrize("metric", THREE_COLUMNS)
def test_three_columns_must_be_equally_long_and_not_empty(metric):
    with pytest.raises(DataError, match="lengths differ: actual 2, mean 2, std 1"):
        metric([1, 2], [1, 2], [1])
    with pytest.raises(DataError, match="no rows"):
        metric([], [], [])
    with pytest.raises(DataError, match=r"std -1\.0 at row 1 is negative"):
        metric([1, 2], [1, 2], [1, -1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(bad):
    with pytest.raises(DataError, match=r"predicted .* at row 2 is not finite") as caught:
        rmse([1, 2, 3], [1, 2, bad])
    assert caught.value.row == 2


def test_text_and_lone_numbers_are_refused():
    with pytest.raises(DataError, match="actual must be numbers"):
        rmse(["good"], [1.0])
    with pytest.raises(DataError, match="got single numbers"):
        rmse(1.0, 2.0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 90])
def test_levels_are_shares(level):
    with pytest.raises(ParameterError, match="level"):
        coverage([1.0], [1.0], [1.0], level=level)
    with pytest.raises(ParameterError, match="levels"):
        calibration_curve([1.0], [1.0], [1.0], levels=[level])
