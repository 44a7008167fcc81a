"""What every fitted model has to be, whatever it was fitted to: free of NaN, and of use."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

from hemf import ConvergenceWarning, DataWarning, HeMF, NotFittedError

CAFE = [
    ("ann", "tea", 5.0),
    ("ann", "milk", 1.0),
    ("bob", "tea", 4.0),
    ("eve", "milk", 2.0),
    ("bob", "ale", 3.0),
]


def fit(data, **parameters) -> HeMF:
    """Fit with the defaults but for the seed; an arithmetic warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", r"all \d+ ratings are", DataWarning)
        return HeMF(**{"rng": 0, **parameters}).fit(data)


def assert_sensible(model: HeMF) -> None:
    """Nothing anywhere is infinite or not a number, and every question has an answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for name, values in model.elbo_history_.items():
            assert np.isfinite(values).all(), name
        for report in model.history_:
            assert np.isfinite([report.train_rmse, report.noise_variance]).all()
        assert np.isfinite(model.elbo_)
        assert model.noise_variance_ > 0
        for side in model.state_.sides.values():
            both, prior = side.communities, side.prior
            arrays = (
                side.moments.mean, side.moments.second, side.membership, side.weights, both.mean,
                both.scale, both.kappa, both.dof, both.sticks.weights, prior.centre, prior.scale,
                prior.concentration, prior.mean_scale, prior.dof,
            )  # fmt: skip
            assert all(np.isfinite(array).all() for array in arrays)
            np.testing.assert_allclose(side.membership.sum(axis=1), 1.0, rtol=1e-5)
        users = [*model.ratings_.users.ids[:20], "somebody new"]
        items = [*model.ratings_.items.ids[:20], "something new"]
        for user in users:
            mean, std = model.predict(user, items, return_std=True)
            taste = model.predict(user, items, return_std=True, include_noise=False)[1]
            assert np.isfinite(mean).all()
            assert np.isfinite(std).all()
            assert (std > 0).all()
            assert (std >= taste).all()
            assert (taste >= 0).all()
            if model.rating_range_ is not None:
                low, high = model.rating_range_
                assert ((mean >= low) & (mean <= high)).all()
        for strategy in ("mean", "ucb", "thompson"):
            _, scores = model.recommend(users[0], strategy=strategy, exclude_seen=False, rng=0)
            assert np.isfinite(scores).all()
        for side in ("user", "item"):
            assert sum(model.communities(side).sizes) == pytest.approx(
                model.n_users_ if side == "user" else model.n_items_, rel=1e-3
            )
        assert model.biclusters()
        for user, item in product((users[0], users[-1]), (items[0], items[-1])):
            assert str(model.explain(user, item))


def assert_answers_only_when_fitted(model, data, advice: str) -> None:
    """Before `fit` a question is an error that says what to do, after it there is an answer."""
    with pytest.raises(NotFittedError, match=advice):
        model.predict("ann", "tea")
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(model)
    assert not hasattr(model, "n_users_")
    assert model.fit(data) is model
    check_is_fitted(model)
