"""Ratings that a fit reports its error on, and learns nothing from."""

from __future__ import annotations

import numpy as np
import pytest

from hemf import HeMF, Ratings, evaluation
from hemf.data import datasets
from hemf.errors import DataError


@pytest.fixture(scope="module")
def parts():
    drawn = datasets.draw(60, 40, density=0.3, rng=1)
    data = Ratings.from_any((drawn.users, drawn.items, drawn.ratings))
    learn, withhold = evaluation.random_split(data.n_ratings, 0.1, rng=0)
    return data.select(learn), data.select(withhold)


def fitted(train, **options):
    reports = []
    model = HeMF(n_factors=3, max_sweeps=6, rng=0)
    with pytest.warns(UserWarning, match="still rising"):
        model.fit(train, callbacks=[reports.append], **options)
    return model, reports


def test_the_error_is_that_of_the_predictions(parts):
    train, test = parts
    users, items, actual = test.triples()
    strangers = ["nobody"], [test.items.ids[0]], [2.0]
    columns = (
        [*test.users.ids[users], *strangers[0]],
        [*test.items.ids[items], *strangers[1]],
        np.append(actual, strangers[2]),
    )
    model, reports = fitted(train, validation=columns)
    error = evaluation.rmse(columns[2], model.predict(columns[0], columns[1]))
    assert reports[-1].validation_rmse == pytest.approx(error, abs=1e-5)
    assert reports[0].validation_rmse > reports[-1].validation_rmse


def test_nothing_is_learnt_from_them(parts):
    train, test = parts
    (one, with_it), (other, without) = fitted(train, validation=test), fitted(train)
    assert one.elbo_ == other.elbo_
    assert [report.elbo for report in with_it] == [report.elbo for report in without]
    assert without[0].validation_rmse is None


def test_none_at_all_are_an_error(parts):
    with pytest.raises(DataError, match="no ratings to report"):
        HeMF(n_factors=2).fit(parts[0], validation=parts[1].select([]))
