"""The benchmark of cold start withholds what it says, and measures what it says."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from proofs.benchmarks import benchmark


@pytest.fixture(scope="module")
def coldstart() -> ModuleType:
    return benchmark("coldstart")


@pytest.fixture
def ratings(rng):
    pairs = rng.permutation(40 * 30)[:700]
    return [pairs // 30, pairs % 30, rng.integers(1, 6, 700).astype(float)]


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_of_newcomers_is_left_with_the_others(coldstart, ratings, which):
    parts = coldstart.withheld(ratings, which, seed=3)
    others, judged, known = parts["others"], parts["judged"], parts["known"]
    assert np.array_equal(np.sort(np.concatenate([others, judged, known])), np.arange(700))
    newcomers = np.unique(ratings[which][np.concatenate([judged, known])])
    assert newcomers.size == (4, 3)[which]
    assert not np.isin(ratings[which][others], newcomers).any()
    assert judged.size == round(0.1 * (judged.size + known.size))


def test_the_few_are_so_many_of_each_newcomer(coldstart, ratings):
    parts = coldstart.withheld(ratings, 0, seed=3)
    of_each = np.bincount(ratings[0][parts["known"]])
    few = np.bincount(ratings[0][parts["known"][parts["place"] < 5]], minlength=of_each.size)
    assert np.array_equal(few, np.minimum(of_each, 5))
    more = parts["known"][parts["place"] < 9]
    assert np.isin(parts["known"][parts["place"] < 5], more).all()


def test_means_of_the_other_side(coldstart):
    ratings = [np.array([0, 0, 1]), np.array([5, 6, 5]), np.array([1.0, 4.0, 3.0])]
    judged = [np.array([2, 2]), np.array([5, 9]), np.array([0.0, 0.0])]
    means = coldstart.other_means(ratings, np.arange(3), 1, judged)
    assert means.tolist() == [2.0, pytest.approx(8 / 3)]  # nobody has rated 9: the mean of all


def test_offsets_are_those_that_newcomers_have(coldstart, rng):
    """Raters who differ by offsets alone are predicted by these, all but exactly."""
    users, items = (part.ravel() for part in np.mgrid[0:40, 0:60])
    offset, quality = rng.normal(size=40), rng.normal(size=60)
    offset[:30] -= offset[:30].mean()
    ratings = [users, items, offset[users] + quality[items]]
    rows = np.arange(users.size)
    others, own = rows[users < 30], rows[users >= 30]
    judged = [column[own[::2]] for column in ratings]
    error = coldstart.best_offsets(ratings, others, own[1::2], 0, judged)
    assert error < 0.05 * judged[2].std()
