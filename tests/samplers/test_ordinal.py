"""Levels of a scale, and what is behind them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hemf import DataError, GibbsHeMF
from hemf.evaluation import random_split, rmse
from hemf.samplers.draws import OrdinalScale

SCALE = OrdinalScale(np.array([-2.0, -0.5, 0.0, 1.0]))


def test_a_rating_is_the_level_that_it_is_nearest_to():
    found = SCALE.levels[SCALE.indices(np.array([-9.0, -1.3, -1.2, -0.3, 0.2, 0.6, 7.0]))]
    assert found.tolist() == [-2.0, -2.0, -0.5, -0.5, 0.0, 1.0, 1.0]


# docs/model.md#ordinal
@pytest.mark.parametrize("which", range(4))
def test_what_is_behind_a_level_is_drawn_from_its_piece_of_the_normal(which, rng):
    mean, std, n = 0.4, 1.3, 40_000
    drawn = SCALE.draw(np.full(n, which), np.full(n, mean), np.full(n, std), rng)
    ends = (SCALE.edges[which : which + 2] - mean) / std
    assert stats.kstest(drawn, stats.truncnorm(*ends, mean, std).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("mean", "which"), [(1e4, 0), (-1e4, 3), (60.0, 1), (-60.0, 2)])
def test_however_unlikely_a_level_is_something_inside_it_is_drawn(mean, which, rng):
    drawn = SCALE.draw(np.full(9, which), np.full(9, mean), np.ones(9), rng)
    assert np.isfinite(drawn).all()
    assert (drawn >= SCALE.edges[which] - 1e-9).all()
    assert (drawn <= SCALE.edges[which + 1] + 1e-9).all()


def test_moments_are_those_of_the_levels(rng):
    mean, std = np.array([-3.0, 0.1, 0.9, 50.0]), np.array([0.5, 1.0, 2.0, 1.0])
    found = SCALE.levels[SCALE.indices(rng.normal(mean, std, (200_000, 4)))]
    expected, variance = SCALE.moments(mean, std)
    assert expected == pytest.approx(found.mean(axis=0), abs=0.01)
    assert variance == pytest.approx(found.var(axis=0), abs=0.02)


def test_ratings_that_are_no_scale_are_refused_and_leave_the_old_model():
    model = GibbsHeMF(n_factors=1, samples=3, burn_in=1, rng=0, ordinal=True)
    rng = np.random.default_rng(0)
    few = [(user, item, float(rng.integers(1, 6))) for user in range(9) for item in range(9)]
    before = model.fit(few).predict(0, 0)
    with pytest.raises(DataError, match="ordinal=True is for levels of a scale, and there are"):
        model.fit([(user, item, rng.normal()) for user in range(40) for item in range(40)])
    assert model.predict(0, 0) == before


def test_where_most_ratings_are_at_an_end_levels_predict_better_than_numbers():
    rng = np.random.default_rng(3)
    users, items = np.divmod(rng.permutation(100 * 80)[:3000], 80)
    taste = 0.8 * rng.normal(size=100)[users] + 0.8 * rng.normal(size=80)[items]
    taste += (rng.normal(size=(100, 2))[users] * rng.normal(size=(80, 2))[items]).sum(axis=1)
    ratings = np.clip(np.round(4.8 + taste + 0.5 * rng.normal(size=users.size)), 1, 5)
    assert np.mean(ratings == 5) > 0.4
    train, test = random_split(users.size, 0.2, rng=0)
    errors = {}
    for ordinal in (False, True):
        model = GibbsHeMF(
            n_factors=2, samples=100, burn_in=20, implicit_features=False, noise_scales=None,
            ordinal=ordinal, rng=0,
        )  # fmt: skip
        model.fit((users[train], items[train], ratings[train]))
        mean, std = model.predict(users[test], items[test], return_std=True)
        errors[ordinal] = rmse(ratings[test], mean)
        assert ((mean >= 1) & (mean <= 5)).all()
    assert errors[True] < 0.97 * errors[False], errors
    assert np.mean(((ratings[test] - mean) / std) ** 2) == pytest.approx(1.0, abs=0.25)
