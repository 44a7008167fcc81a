"""Distributions of ratings agree with SciPy's, and are checked at the door."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from hemf.errors import DataError, ParameterError
from hemf.evaluation import Predictive
from hemf.evaluation.distribution import tail_freedom

FREEDOM = np.array([3.0, 5.5, 40.0, 1e5, np.inf])
MEAN = np.array([3.0, -1.0, 0.5, 2.0, 2.5])
STD = np.array([1.0, 0.2, 4.0, 1.5, 0.7])
PREDICTED = Predictive(MEAN, STD, FREEDOM)


def expected(k: int):
    """SciPy's distribution of the same mean and standard deviation."""
    if np.isinf(FREEDOM[k]):
        return stats.norm(MEAN[k], STD[k])
    v = FREEDOM[k]
    return stats.t(v, MEAN[k], STD[k] * np.sqrt((v - 2) / v))


def test_they_are_students_of_that_mean_and_standard_deviation():
    values = np.array([4.2, -1.3, 0.5, -3.0, 2.9])
    for k in range(5):
        known = expected(k)
        assert known.std() == pytest.approx(STD[k])
        assert PREDICTED.below(values)[k] == pytest.approx(known.cdf(values[k]), rel=1e-9)
        assert PREDICTED.log_density(values)[k] == pytest.approx(known.logpdf(values[k]), rel=1e-9)
        for level in (0.5, 0.9, 0.99):
            ends = [end[k] for end in PREDICTED.interval(level)]
            assert ends == pytest.approx(known.interval(level), rel=1e-9)


def test_one_number_of_degrees_is_for_all():
    one = Predictive(MEAN, STD, 7.0)
    many = Predictive(MEAN, STD, np.full(5, 7.0))
    np.testing.assert_array_equal(one.below(3.0), many.below(3.0))
    np.testing.assert_array_equal(one.probabilities([1, 2, 3]), many.probabilities([1, 2, 3]))


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("away", [-2.5, 0.0, 0.3, 4.0])
def test_crps_is_the_integral_that_it_is_defined_by(k, away):
    known, value = expected(k), MEAN[k] + away * STD[k]
    below = integrate.quad(lambda x: known.cdf(x) ** 2, -np.inf, value, epsabs=1e-10)[0]
    above = integrate.quad(lambda x: known.sf(x) ** 2, value, np.inf, epsabs=1e-10)[0]
    values = MEAN + away * STD
    assert PREDICTED.crps(values)[k] == pytest.approx(below + above, rel=2e-5)


@pytest.mark.parametrize("freedom", [5.0, np.inf])
def test_crps_of_a_sure_prediction_is_its_absolute_error(freedom):
    sure = Predictive(np.array([3.0, 3.0]), np.array([1e-9, 1e-300]), freedom)
    np.testing.assert_allclose(sure.crps([4.0, 1.0]), [1.0, 2.0], rtol=1e-6)


def test_levels_share_out_what_lies_between_their_midpoints():
    levels = [1, 2, 4, 4.5]
    edges = [-np.inf, 1.5, 3.0, 4.25, np.inf]
    odds = PREDICTED.probabilities(levels)
    for k in range(5):
        assert odds[k] == pytest.approx(np.diff(expected(k).cdf(edges)), rel=1e-8)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0, rtol=1e-14)


def test_odds_of_levels_far_from_the_mean_keep_their_digits():
    sure = Predictive(np.array([0.0, 0.0]), np.array([1.0, 1.0]))
    odds = sure.probabilities([-20, -10, 0, 10, 20])
    np.testing.assert_allclose(odds, odds[:, ::-1], rtol=1e-12)
    assert odds[0, 4] == pytest.approx(stats.norm.sf(15), rel=1e-10)
    np.testing.assert_allclose(sure.between([-25, 5], [-15, 15])[1], stats.norm.sf(5), rtol=1e-10)


def test_one_level_is_certain():
    np.testing.assert_array_equal(PREDICTED.probabilities([3.0]), np.ones((5, 1)))


@pytest.mark.parametrize(
    ("levels", "complaint"),
    [
        ([2, 1], "level 1.0 at row 1 must be higher than the one before, 2"),
        ([1, 1], "must be higher"),
        ([], "one number or more"),
        ([[1, 2]], "one dimension"),
        ([1, np.nan], "levels nan at row 1"),
        (["low", "high"], "levels must be numbers"),
    ],
)
def test_levels_that_are_no_scale_are_refused(levels, complaint):
    with pytest.raises(DataError, match=complaint):
        PREDICTED.probabilities(levels)


def test_what_is_no_distribution_is_refused():
    with pytest.raises(DataError, match=r"std 0\.0 at row 1"):
        Predictive(np.zeros(2), np.array([1.0, 0.0]))
    with pytest.raises(DataError, match="lengths differ"):
        Predictive(np.zeros(2), np.ones(3))
    with pytest.raises(ParameterError, match="no standard deviation"):
        Predictive(np.zeros(2), np.ones(2), 2.0)
    with pytest.raises(DataError, match="5 predictions, 2 values"):
        PREDICTED.below([1.0, 2.0])
    with pytest.raises(ParameterError, match="between 0 and 1"):
        PREDICTED.interval(1.0)


@pytest.mark.parametrize("freedom", [6.0, 9.0, 15.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_tails_are_found_whatever_the_scale(rng, freedom, scale):
    drawn = scale * rng.standard_t(freedom, 40_000)
    assert tail_freedom(drawn, least=5, most=200) == pytest.approx(freedom, rel=0.25)


def test_tails_have_limits(rng):
    assert tail_freedom(rng.standard_cauchy(5000), least=5, most=200) == pytest.approx(5, rel=0.01)
    assert np.isinf(tail_freedom(rng.uniform(-1, 1, 5000), least=5, most=200))
    assert np.isinf(tail_freedom(np.zeros(10), least=5, most=200))
    assert np.isinf(tail_freedom(np.ones(1), least=5, most=200))


@pytest.mark.parametrize("others", [1, 3, 30])
def test_residuals_that_are_nearly_all_zero_have_a_freedom(others: int) -> None:
    """Their likeliest scale is none: it would be halved until it underflows."""
    residuals = np.zeros(500)
    residuals[:others] = np.linspace(1.0, 40.0, others)
    with np.errstate(all="raise", under="ignore"):
        freedom = tail_freedom(residuals, least=5, most=200)
    assert freedom >= 5
