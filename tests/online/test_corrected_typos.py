"""A rating far outside all others that is corrected leaves no trace, where all are on record."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

from hemf import HeMF
from hemf.errors import DataError, OutlierWarning

TYPO = 1000.0


def ratings(seed: int = 0, n: int = 200, m: int = 100, share: float = 0.3):
    rng = np.random.default_rng(seed)
    table = 3.0 + 0.6 * rng.normal(size=(n, 3)) @ rng.normal(size=(3, m))
    table = np.clip(np.rint(2.0 * (table + 0.3 * rng.normal(size=table.shape))) / 2.0, 1.0, 5.0)
    users, items = np.nonzero(rng.random((n, m)) < share)
    return users, items, table[users, items]


DATA = ratings()


@pytest.fixture(scope="module")
def fitted() -> HeMF:
    model = HeMF(n_factors=5, max_user_communities=3, max_item_communities=3, rng=0).fit(DATA)
    return model.partial_fit(one(0))


def one(row: int, rating: float | None = None):
    users, items, values = DATA
    value = values[row] if rating is None else rating
    return users[[row]], items[[row]], np.array([value])


def learnt(model: HeMF, typo: float | None, row: int, between: int, *, streamed: bool = False):
    model = copy.deepcopy(model)

    def learn(batch) -> None:
        if streamed:
            model.predict_then_learn(batch)
        else:
            model.partial_fit(batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)
        learn(one(row, typo))
    for other in range(row + 1, row + 1 + between):
        learn(one(other))
    learn(one(row))
    return model


def largest_move(left: HeMF, right: HeMF) -> float:
    pairs = DATA[:2]
    return float(np.abs(left.predict(*pairs) - right.predict(*pairs)).max())


@pytest.mark.parametrize("between", [0, 40])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("typo", [TYPO, -60.0])
def test_a_corrected_typo_leaves_no_trace(fitted, typo, streamed: bool, between: int) -> None:
    with_typo = learnt(fitted, typo, 77, between, streamed=streamed)
    without = learnt(fitted, None, 77, between, streamed=streamed)
    assert with_typo.rating_range_ == without.rating_range_ == (1.0, 5.0)
    assert largest_move(with_typo, without) < 1e-3 * 4.0
    assert with_typo.noise_variance_ == pytest.approx(without.noise_variance_, rel=1e-3)


@pytest.mark.parametrize("between", [0, 40])
@pytest.mark.parametrize("row", [400, 2500, 5000])
def test_a_corrected_typo_leaves_no_trace_where_its_pair_is_new(row: int, between: int) -> None:
    keep = np.arange(DATA[0].size) != row
    model = HeMF(n_factors=5, max_user_communities=3, max_item_communities=3, rng=0)
    model.fit(tuple(column[keep] for column in DATA)).partial_fit(one(0))
    with_typo, without = learnt(model, TYPO, row, between), copy.deepcopy(model)
    for other in range(row, row + 1 + between):
        without.partial_fit(one(other))
    assert with_typo.rating_range_ == without.rating_range_ == (1.0, 5.0)
    assert largest_move(with_typo, without) < 1e-3 * 4.0


def test_a_mistaken_measurement_that_is_corrected_leaves_no_trace() -> None:
    row = 2500
    keep = np.arange(DATA[0].size) != row
    model = HeMF(n_factors=5, max_user_communities=3, max_item_communities=3, rng=0)
    model.set_params(duplicates="mean").fit(tuple(column[keep] for column in DATA))
    with_typo, without = copy.deepcopy(model.partial_fit(one(0))), model
    with pytest.warns(OutlierWarning):
        with_typo.partial_fit(one(row, TYPO))
    with_typo.partial_fit(one(row), previous=[TYPO])
    assert largest_move(with_typo, without.partial_fit(one(row))) < 1e-3 * 4.0


def test_a_typo_that_is_removed_leaves_no_trace_of_its_range(fitted) -> None:
    model = copy.deepcopy(fitted)
    with pytest.warns(OutlierWarning):
        model.partial_fit(one(5, TYPO))
    model.partial_fit([], removed=one(5)[:2])
    assert model.rating_range_ == (1.0, 5.0)


def test_two_typos_are_both_forgotten(fitted) -> None:
    model, without = copy.deepcopy(fitted), copy.deepcopy(fitted)
    with pytest.warns(OutlierWarning):
        model.partial_fit(one(5, TYPO))
    model.partial_fit(one(9, 990.0))
    model.partial_fit(one(5)).partial_fit(one(9))
    without.partial_fit(one(5)).partial_fit(one(9)).partial_fit(one(5)).partial_fit(one(9))
    assert model.rating_range_ == (1.0, 5.0)
    assert largest_move(model, without) < 1e-3 * 4.0


def test_a_model_file_keeps_what_a_correction_needs(fitted, tmp_path) -> None:
    model = copy.deepcopy(fitted)
    with pytest.warns(OutlierWarning):
        model.partial_fit(one(5, TYPO))
    for row in range(10, 30):
        model.partial_fit(one(row))
    model.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf").partial_fit(one(5))
    model.partial_fit(one(5))
    assert again.predict(*DATA[:2]).tolist() == model.predict(*DATA[:2]).tolist()
    assert again.rating_range_ == (1.0, 5.0)


def test_the_last_rating_at_an_end_of_the_range_takes_it_along() -> None:
    model = HeMF(n_factors=2, max_user_communities=1, max_item_communities=1, rng=0)
    values = np.where(DATA[2] == 5.0, 4.5, DATA[2])
    values[3] = 5.0
    model.fit((*DATA[:2], values)).partial_fit(one(0))
    assert model.rating_range_ == (1.0, 5.0)
    model.partial_fit((DATA[0][[3]], DATA[1][[3]], np.array([4.0])))
    assert model.rating_range_ == (1.0, 4.5)


def test_an_outlier_is_warned_of_and_a_declared_range_refuses_it(fitted) -> None:
    model = copy.deepcopy(fitted)
    with pytest.warns(OutlierWarning, match=r"rating 1000 at row 0 .* from 1 to 5.*rating_range"):
        model.partial_fit(one(5, TYPO))
    declared = HeMF(n_factors=2, rating_range=(1, 5), rng=0).fit(DATA)
    with pytest.raises(DataError, match="outside the rating_range"):
        declared.partial_fit(one(5, TYPO))


def test_a_wider_range_that_is_not_far_is_learnt_without_a_word(fitted) -> None:
    model = copy.deepcopy(fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(one(5, 5.5))
    assert model.rating_range_ == (1.0, 5.5)


@pytest.mark.parametrize("history", ["none", 4])
def test_without_a_full_history_the_range_stays_wide(history) -> None:
    model = HeMF(n_factors=2, history=history, rng=0).fit(DATA).partial_fit(one(0))
    with pytest.warns(OutlierWarning):
        model.partial_fit(one(5, TYPO), previous=one(5)[2])
    model.partial_fit(one(5), previous=[TYPO])
    assert model.rating_range_ == (1.0, TYPO)


def test_the_warning_of_an_outlier_names_a_range_that_can_be_declared() -> None:
    users, items, values = DATA
    model = HeMF(n_factors=2, rng=0).fit((users, items, values + 16_777_216.0))
    with pytest.warns(OutlierWarning, match=r"rating_range=\(16777217, 16777221\)"):
        model.partial_fit((users[:1], items[:1], [16_778_000.0]))
