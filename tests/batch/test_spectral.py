"""A fit begins with the directions that the ratings have most to say about."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from hemf import HeMF, Ratings
from hemf.batch.fit import PSEUDO_RATINGS, leading_directions
from hemf.data.datasets import demo_ratings
from hemf.engines.threads import scaled_residuals
from hemf.evaluation import random_split, rmse
from proofs.problems import rows_of


def complete(table: np.ndarray) -> csr_array:
    rows = rows_of(table, np.ones(table.shape, bool))
    return scaled_residuals(rows, table.shape[1], PSEUDO_RATINGS)


def test_directions_of_a_complete_table_are_its_singular_vectors(rng: np.random.Generator) -> None:
    left, right = rng.normal(size=(200, 3)), rng.normal(size=(60, 3)) * [3.0, 2.0, 1.0]
    left -= left.mean(axis=0)  # no offsets to take away
    right -= right.mean(axis=0)
    table = left @ right.T
    found = leading_directions(complete(table), 3, rng)
    exact = np.linalg.svd(table, full_matrices=False)[2][:3].T
    np.testing.assert_allclose(np.abs(found.T @ exact) / np.sqrt(60), np.eye(3), atol=1e-3)
    np.testing.assert_allclose((found**2).mean(axis=0), 1.0)


def test_offsets_lead_nowhere(rng: np.random.Generator) -> None:
    offsets = rng.normal(size=(500, 1)) + rng.normal(size=(1, 400))
    taste = np.outer(rng.choice([-1.0, 1.0], 500), rng.choice([-1.0, 1.0], 400))
    found = leading_directions(complete(3.0 * offsets + taste), 1, rng)[:, 0]
    assert abs(np.corrcoef(found, taste[0])[0, 1]) > 0.99


def test_there_are_no_more_directions_than_the_ratings_have(rng: np.random.Generator) -> None:
    one = np.outer([1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 1.0, -1.0, 0.0])
    assert leading_directions(complete(one), 20, rng).shape == (5, 1)
    assert leading_directions(complete(np.zeros((4, 5))), 20, rng).shape == (5, 0)
    assert leading_directions(complete(np.ones((1, 1))), 20, rng).shape == (1, 1)


@pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
def test_small_data_is_learnt_whatever_the_seed() -> None:
    frame = demo_ratings(0).frame()
    few, rest = Ratings.from_any(frame.slice(0, 6000)), frame.slice(6000)
    train = few.select(random_split(6000, 0.1, rng=101)[0])
    truth = rest["rating"].to_numpy()
    errors = [
        rmse(truth, HeMF(rng=seed, max_sweeps=40).fit(train).predict(rest)) for seed in range(4)
    ]
    assert max(errors) < 0.65  # offsets alone: 0.84
