"""Biases and popularity are what they are defined to be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from hemf import DataError, NotFittedError, ParameterError
from hemf.baselines import Bias, Popularity
from hemf.evaluation import ranking_metrics

CAFE = [
    ("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("bob", "ale", 2), ("eve", "tea", 3),
]  # fmt: skip


def test_biases_minimise_the_damped_squares():
    model = Bias(damping=2.0, rating_range=None).fit(CAFE)
    state, mean = model.state_, np.mean([rating for *_, rating in CAFE])
    assert model.global_mean_ == pytest.approx(mean)
    users, items = state.users.ids.ids.tolist(), state.items.ids.ids.tolist()
    for item, bias in zip(items, state.item_bias, strict=False):
        rest = [r - mean - state.user_bias[users.index(u)] for u, i, r in CAFE if i == item]
        assert bias == pytest.approx(sum(rest) / (len(rest) + 2.0), abs=1e-6)


def test_an_unknown_id_has_no_bias():
    model = Bias().fit(CAFE)
    expected, known = model.predict(["ann", "zoe"], "tea", return_known=True)
    assert known.tolist() == [True, False]
    tea = model.state_.item_bias[model.state_.items.find(["tea"])[0]]
    assert expected[1] == pytest.approx(model.global_mean_ + tea)


def test_predictions_stay_in_the_range_of_the_ratings():
    model = Bias(damping=0.0).fit(CAFE)
    assert model.rating_range_ == (1.0, 5.0)
    assert model.predict("ann", "tea") <= 5.0
    assert isinstance(model.predict("ann", "tea"), float)


def test_popular_items_rank_first_whoever_asks():
    model = Popularity().fit(CAFE)
    assert model.scores(["ann", "zoe"], ["ale", "tea", "gin"]).tolist() == [[1, 3, 0]] * 2
    assert model.predict("ann", "tea") == model.predict("eve", "tea")
    found = ranking_metrics(model, CAFE, [("eve", "milk", 5), ("ann", "ale", 5)], n=1)
    assert found.hit_rate == 1.0


def test_biases_rank_by_what_they_predict_before_clipping():
    model = Bias(damping=0.0, rating_range=(1, 5)).fit(CAFE)
    users, items = ["ann", "zoe", "eve"], ["milk", "gin", "tea"]
    free = Bias(damping=0.0, rating_range=None).fit(CAFE)
    expected = [[free.predict(user, item) for item in items] for user in users]
    assert model.scores(users, items) == pytest.approx(np.array(expected))
    assert model.scores(users, items).min() < 1


@pytest.mark.parametrize("kind", [Bias, Popularity])
def test_it_is_an_estimator_like_any(kind):
    reports = []
    model = kind(damping=3.0)
    with pytest.raises(NotFittedError, match="call fit first"):
        model.predict("ann", "tea")
    assert model.fit(CAFE, callbacks=[reports.append]) is model
    assert model.n_sweeps_ == len(reports) == 10
    assert clone(model).get_params() == model.get_params()
    stopped = kind().fit(CAFE, callbacks=[lambda report: report.epoch == 2])
    assert stopped.n_sweeps_ == 2


def test_what_cannot_be_learnt_is_an_error():
    with pytest.raises(ParameterError, match="damping must be"):
        Bias(damping=-1).fit(CAFE)
    with pytest.raises(DataError, match="outside the rating_range"):
        Bias(rating_range=(1, 4)).fit(CAFE)
