"""What was planted is found again: communities, their number, and honest intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from hemf import HeMF
from hemf.data import datasets

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
N_FACTORS = 5


def planted(seed: int, **options: Any) -> datasets.SyntheticRatings:
    """2000 × 1000 with 5 % observed, 4 × 3 communities apart from each other."""
    known = {"user_communities": 4, "item_communities": 3, "separation": 7.0, "noise": 0.3}
    return datasets.draw(
        2000, 1000, density=0.05, n_factors=N_FACTORS, rng=seed, **{**known, **options}
    )


def fitted(data: datasets.SyntheticRatings, seed: int, **parameters: Any) -> HeMF:
    limits = {"max_user_communities": 10, "max_item_communities": 10}
    model = HeMF(**{"n_factors": N_FACTORS, "rng": seed, **limits, **parameters})
    return model.fit((data.users, data.items, data.ratings))


def agreement(model: HeMF, data: datasets.SyntheticRatings, side: str) -> float:
    """Adjusted Rand index of the communities found with those planted."""
    ids = model.ratings_.users.ids if side == "user" else model.ratings_.items.ids
    truth = data.user_community if side == "user" else data.item_community
    found = model.state_.sides[side].membership.argmax(axis=1)
    return float(adjusted_rand_score(truth[np.asarray(ids, dtype=int)], found))


def assert_found(model: HeMF, data: datasets.SyntheticRatings) -> None:
    assert (model.n_user_communities_, model.n_item_communities_) == (4, 3)
    assert agreement(model, data, "user") >= 0.95
    assert agreement(model, data, "item") >= 0.95


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))]
)
def test_four_by_three_communities_are_found_exactly(seed: int) -> None:
    data = planted(seed)
    assert_found(fitted(data, seed), data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_more_factors_than_were_planted_do_no_harm(seed: int) -> None:
    data = planted(seed)
    assert_found(fitted(data, seed, n_factors=N_FACTORS + 3), data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_defaults_find_them_too(seed: int) -> None:
    data = planted(seed)
    assert_found(HeMF(rng=seed).fit((data.users, data.items, data.ratings)), data)


@pytest.mark.slow
@pytest.mark.parametrize("covariances", ["own", "tied"])
@pytest.mark.parametrize("seed", range(3))
def test_communities_are_found_with_covariances_of_either_kind(covariances: str, seed: int) -> None:
    data = planted(seed)
    same = {"user_covariances": covariances, "item_covariances": covariances}
    assert_found(fitted(data, seed, **same), data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_communities_of_unequal_size_are_found(seed: int) -> None:
    data = planted(seed, user_weights=[8, 4, 2, 1], item_weights=[6, 3, 1])
    assert_found(fitted(data, seed), data)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_one_planted_community_is_one(seed: int) -> None:
    data = planted(seed, user_communities=1, item_communities=1)
    model = fitted(data, seed)
    assert (model.n_user_communities_, model.n_item_communities_) == (1, 1)


# -- intervals ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """A model, and 10,000 ratings drawn from the same population that it has not seen."""

    model: HeMF
    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    expected: np.ndarray
    noise: float


def held_out(noise_scales: str | None) -> HeldOut:
    data = datasets.draw(800, 500, density=0.1, n_factors=3, separation=5.0, noise=0.5, rng=21)
    held = np.random.default_rng(0).random(len(data.ratings)) < 0.25
    parts = (data.users, data.items, data.ratings)
    model = HeMF(n_factors=3, rng=0, rating_range=None, noise_scales=noise_scales)
    model.fit(tuple(part[~held] for part in parts))
    users, items, ratings = (part[held] for part in parts)
    expected = data.population.expected(users, items)
    return HeldOut(model, users, items, ratings, expected, data.noise)


@pytest.mark.parametrize("noise_scales", ["both", None])
def test_intervals_cover_what_they_say(noise_scales: str | None) -> None:
    from scipy.stats import norm

    test = held_out(noise_scales)
    mean, std = test.model.predict(test.users, test.items, return_std=True)
    for level in (0.5, 0.9):
        inside = np.abs(test.ratings - mean) <= norm.ppf(0.5 + level / 2.0) * std
        assert inside.mean() == pytest.approx(level, abs=0.02)


def test_noise_is_told_from_taste() -> None:
    test = held_out(noise_scales=None)
    noise = test.model.noise_variance_
    assert noise**0.5 == pytest.approx(test.noise, rel=0.03)
    _, whole = test.model.predict(test.users, test.items, return_std=True)
    mean, taste = test.model.predict(test.users, test.items, return_std=True, include_noise=False)
    np.testing.assert_allclose(whole**2, taste**2 + noise, rtol=1e-5)
    # Taste alone: q(A)q(B) forgets how the two sides' errors go together and is a little too
    # sure of itself (80 % of the truth within its 90 %), but knows where it is unsure.
    errors = np.abs(test.expected - mean)
    assert np.mean(errors < 1.645 * taste) > 0.75
    unsure = taste > np.quantile(taste, 0.8)
    assert errors[unsure].mean() > 1.2 * errors[~unsure].mean()
