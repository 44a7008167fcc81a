"""Real ratings, where they are at hand: as accurate as promised, and never worse than biases."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hemf import HeMF
from hemf.evaluation import rmse
from proofs.benchmarks import benchmark

pytestmark = [
    pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::hemf.errors.DuplicateWarning"),
]

ONE_COMMUNITY = {"max_user_communities": 1, "max_item_communities": 1}
SPARSE_SETS = ["filmtrust", "monti-yahoo-music"]  # a few ratings a row: the most at risk
OTHER_SETS = ["monti-flixster", "monti-douban", "kiba-dta", "chembl-ic50-346targets"]
LARGE_SETS = ["eachmovie-ads-sample", "jester-1"]


@pytest.fixture(scope="module")
def accuracy(shared_data: Path) -> ModuleType:
    """The benchmark of accuracy, for its splits and its biases."""
    module = benchmark("accuracy")
    module.FOLDER = shared_data
    return module


def split(accuracy: ModuleType, name: str, seed: int = 0):
    part = f"{name}-classic-train" if name == "ml-1m" else name
    if not (accuracy.FOLDER / f"{part}.parquet").exists():
        pytest.skip(f"{part}.parquet is not in {accuracy.FOLDER}")
    return accuracy.split(name, seed)


def fitted(accuracy: ModuleType, name: str, **parameters) -> tuple[HeMF, float]:
    """A model of the training part, and its error on the test part."""
    train, (users, items, ratings) = split(accuracy, name)
    model = HeMF(rng=0, **parameters).fit(train)
    return model, rmse(ratings, model.predict(users, items))


@cache
def movielens_1m(accuracy: ModuleType, communities: bool) -> tuple[HeMF, float]:
    return fitted(accuracy, "ml-1m", n_factors=20, **({} if communities else ONE_COMMUNITY))


def test_movielens_100k_with_ten_factors(accuracy):
    errors = []
    for seed in range(3):
        train, (users, items, ratings) = split(accuracy, "ml-100k", seed)
        errors.append(rmse(ratings, HeMF(rng=0, n_factors=10).fit(train).predict(users, items)))
    assert np.mean(errors) <= 0.885


def test_movielens_1m_with_one_community_and_twenty_factors(accuracy):
    model, error = movielens_1m(accuracy, communities=False)
    assert (model.n_user_communities_, model.n_item_communities_) == (1, 1)
    assert error <= 0.8345


@pytest.mark.slow
def test_movielens_1m_with_the_defaults(accuracy):
    assert HeMF().n_factors == 20
    _, error = movielens_1m(accuracy, communities=True)
    assert error <= 0.8320


@pytest.mark.slow
def test_communities_pay_on_movielens_1m(accuracy):
    row = benchmark("communities").gain(*split(accuracy, "ml-1m"), seed=0)
    assert row["gain"] >= 0.002
    assert row["bound"] > 0
    assert row["converged"]


@pytest.mark.slow
def test_communities_pay_on_the_mean_of_splits_of_movielens_1m(accuracy):
    split(accuracy, "ml-1m")  # skips where the data is not
    communities = benchmark("communities")
    gains = [communities.gain(train, test, seed=0) for _, train, test in communities.splits(2)]
    assert np.mean([row["gain"] for row in gains]) >= 0.002
    assert min(row["gain"] for row in gains) > 0.001
    assert min(row["bound"] for row in gains) > 0
    assert all(row["converged"] for row in gains)
    assert all(min(row["communities"]) > 1 for row in gains)


@pytest.mark.parametrize(
    ("name", "max_sweeps"),
    [
        *((name, HeMF().max_sweeps) for name in SPARSE_SETS),
        *((name, 20) for name in OTHER_SETS),
        *(
            pytest.param(name, HeMF().max_sweeps, marks=pytest.mark.slow)
            for name in OTHER_SETS + LARGE_SETS
        ),
    ],
)
def test_no_data_set_ends_worse_than_user_and_item_biases(accuracy, name, max_sweeps):
    biases = accuracy.biases(*split(accuracy, name))
    _, error = fitted(accuracy, name, max_sweeps=max_sweeps)
    assert error <= biases
