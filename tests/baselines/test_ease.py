"""EASE is the ridge regression of each item on all others, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from hemf import DataError, NotFittedError, ParameterError
from hemf.baselines import EASE
from hemf.baselines import ease as module
from hemf.data.datasets import draw
from hemf.evaluation import ranking_metrics
from hemf.model import links

CAFE = [
    ("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("bob", "ale", 2), ("eve", "tea", 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn():
    data = draw(40, 15, density=0.4, n_factors=2, rng=1)
    return data.users, data.items, data.ratings


def brute_force(choices, regularization):
    """Regress each item on the others, one after the other: the diagonal is 0 by construction."""
    n = choices.shape[1]
    weights = np.zeros((n, n))
    for target in range(n):
        others = np.delete(np.arange(n), target)
        left = choices[:, others]
        gram = left.T @ left + regularization * np.eye(n - 1)
        weights[others, target] = np.linalg.solve(gram, left.T @ choices[:, target])
    return weights


# docs/model.md#ease
@pytest.mark.parametrize("regularization", [0.1, 5.0, 300.0])
@pytest.mark.parametrize("part", [1 << 28, 1])
def test_the_closed_form_is_the_constrained_ridge(drawn, regularization, part, monkeypatch):
    monkeypatch.setattr(links, "GRAM_BYTES", part)
    users, items, _ = drawn
    choices = np.zeros((users.max() + 1, items.max() + 1))
    choices[users, items] = 1.0
    model = EASE(regularization=regularization).fit(drawn)
    everyone, all_items = np.arange(len(choices)), np.arange(choices.shape[1])
    expected = choices @ brute_force(choices, regularization)
    assert model.scores(everyone, all_items) == pytest.approx(expected, abs=1e-5)
    assert model.scores([3, 1], [4, 0, 2]) == pytest.approx(
        expected[[3, 1]][:, [4, 0, 2]], abs=1e-5
    )


def test_only_pairs_at_the_level_are_choices(drawn):
    users, items, ratings = drawn
    level = float(np.median(ratings))
    liked = ratings >= level
    own = EASE(regularization=2.0, level=level).fit(drawn)
    alone = EASE(regularization=2.0).fit((users[liked], items[liked], ratings[liked]))
    everything = EASE(regularization=2.0).fit(drawn)
    first, alike, other = (model.scores(users[:9], items[:9]) for model in (own, alone, everything))
    assert first == pytest.approx(alike, abs=1e-6)
    assert not np.allclose(first, other, atol=1e-3)


def test_unknown_ids_and_items_that_nobody_chose_have_no_score():
    model = EASE(regularization=1.0, level=3).fit(CAFE)  # milk and ale are below the level
    assert model.scores(["zoe"], ["tea", "milk", "gin"]).tolist() == [[0, 0, 0]]
    assert model.scores(["ann", "bob"], ["milk", "ale", "gin"]).tolist() == [[0, 0, 0]] * 2
    assert model.scores(["ann"], []).shape == (1, 0)
    assert EASE(regularization=1.0).fit(CAFE[:1]).scores(["ann"], ["tea"]).tolist() == [[0.0]]


def test_it_ranks_what_goes_together_first():
    pairs = [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
        ("c", 3),
        ("c", 4),
        ("d", 3),
        ("e", 1),
        ("f", 3),
    ]
    train = [(user, int(item), 1.0) for user, item in pairs] + [("f", 5, 0.0)]
    model = EASE(regularization=1.0).fit(train)
    found = ranking_metrics(model, train, [("d", 4, 1), ("e", 2, 1)], n=1, level=1)
    assert found.hit_rate == 1.0


def test_it_is_an_estimator_that_only_ranks():
    model = EASE(regularization=7, level=2)
    with pytest.raises(NotFittedError, match="call fit first"):
        model.scores(["ann"], ["tea"])
    assert model.get_params() == {"regularization": 7, "level": 2, "duplicates": "last"}
    assert clone(model).get_params() == model.get_params()
    assert model.fit(CAFE) is model
    assert (model.n_users_, model.n_items_, model.n_sweeps_) == (3, 3, 0)
    assert not hasattr(model, "predict")


def test_a_catalogue_that_is_too_large_is_refused_before_memory_runs_out(monkeypatch):
    monkeypatch.setattr(module, "available_bytes", lambda: 1 << 20)
    with pytest.raises(DataError, match=r"3 × 3 items, which needs about 512 MB .* 1 MB are"):
        EASE().fit(CAFE)
    monkeypatch.setattr(module, "available_bytes", lambda: None)  # unknown: try
    assert EASE().fit(CAFE).n_items_ == 3


def test_what_cannot_be_learnt_is_an_error():
    with pytest.raises(ParameterError, match="regularization must be"):
        EASE(regularization=0).fit(CAFE)
    with pytest.raises(ParameterError, match="level must be"):
        EASE(level="high").fit(CAFE)
    with pytest.raises(DataError, match="no rating is 9 or more; lower the level"):
        EASE(level=9).fit(CAFE)
    with pytest.raises(DataError, match="there are no rows"):
        EASE().fit([])
