"""Directions that few ratings had closed are opened as more of them arrive."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from hemf import HeMF
from hemf._options import ALL
from hemf.batch.fit import CHANCE_RATINGS, clear_directions
from hemf.data.ratings import Sparse
from hemf.engines.threads import scaled_residuals
from hemf.evaluation import rmse
from hemf.model.rows import pack
from hemf.online import jumps, updates
from hemf.online import learner as steps
from hemf.online import state as states
from hemf.online.eviction import rotate_packed
from hemf.online.learner import is_opening_due, open_directions
from proofs.learners import assert_same_statistics, given, learner
from proofs.problems import Setting

N_USERS, N_ITEMS, N_RATINGS, RANK = 300, 120, 12_000, 3

Triples = tuple[np.ndarray, np.ndarray, np.ndarray]


def tastes(seed: int = 0) -> Triples:
    """Ratings of three tastes and noise, every pair once, in random order."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(N_USERS * N_ITEMS)[:N_RATINGS]
    users, items = pairs // N_ITEMS, pairs % N_ITEMS
    left, right = rng.normal(size=(N_USERS, RANK)), rng.normal(size=(N_ITEMS, RANK))
    clean = 0.5 * np.einsum("nk,nk->n", left[users], right[items])
    return users, items, np.float32(clean + rng.normal(scale=0.7, size=N_RATINGS))


def part(ratings: Triples, begin: int, end: int) -> Triples:
    users, items, values = ratings
    return users[begin:end], items[begin:end], values[begin:end]


def started(history: str | int, ratings: Triples, n: int = 700) -> HeMF:
    """A model of so few ratings that hardly a direction stands out."""
    return HeMF(
        n_factors=6, history=history, rng=0, max_user_communities=1, max_item_communities=1
    ).fit(part(ratings, 0, n))


def n_closed(model: HeMF) -> int:
    return jumps.closed_directions(model.state_).shape[1]


def table(values: np.ndarray) -> csr_array:
    n_rows, n_columns = values.shape
    indices = np.tile(np.arange(n_columns, dtype=np.int32), n_rows)
    rows = Sparse(np.arange(n_rows + 1) * n_columns, indices, values.ravel())
    return scaled_residuals(rows, n_columns, CHANCE_RATINGS)


def test_directions_stronger_than_chance_are_clear(rng: np.random.Generator) -> None:
    left, right = rng.normal(size=(200, 2)), rng.normal(size=(80, 2))
    found = clear_directions(table(left @ right.T + rng.normal(size=(200, 80))), 6, rng)
    assert found.shape[1] >= 2
    explained = np.linalg.lstsq(found[:, :2], right - right.mean(axis=0), rcond=None)[1]
    assert (explained < 0.1 * ((right - right.mean(axis=0)) ** 2).sum(axis=0)).all()


def test_noise_has_no_direction_as_a_rule(rng: np.random.Generator) -> None:
    counts = [
        clear_directions(table(rng.normal(size=(200, 80))), 20, rng).shape[1] for _ in range(20)
    ]
    assert np.count_nonzero(counts) <= 3


def test_a_stream_without_directions_is_learnt_as_well_as_ever() -> None:
    rng = np.random.default_rng(11)
    users, items, _ = tastes(11)
    left, right = 0.3 * rng.normal(size=N_USERS), 0.3 * rng.normal(size=N_ITEMS)
    values = left[users] + right[items] + rng.normal(scale=0.7, size=N_RATINGS)
    ratings = users, items, values.astype(np.float32)
    model = started("full", ratings)
    model.predict_then_learn(part(ratings, 700, N_RATINGS))
    pairs = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    online = rmse(left[pairs[0]] + right[pairs[1]], model.predict(*pairs))
    batch = rmse(
        left[pairs[0]] + right[pairs[1]], started("full", ratings, N_RATINGS).predict(*pairs)
    )
    assert online < 1.1 * batch


REPEATED = pytest.mark.filterwarnings("ignore::hemf.errors.DuplicateWarning")
"""Pairs are drawn at random, so that a batch may hold one of them twice."""


@REPEATED
@pytest.mark.parametrize("history", ["full", "none", 4])
def test_ratings_that_leave_nothing_to_explain_are_learnt(history: str | int) -> None:
    rng = np.random.default_rng(6)
    n = 3000
    values = np.where(np.arange(n) % 500 == 7, 4.0, 3.0).astype(np.float32)
    ratings = rng.integers(0, 100, n), rng.integers(0, 50, n), values
    model = HeMF(n_factors=8, offsets=False, history=history, rng=0)
    for begin in range(0, n, 50):
        model.partial_fit(part(ratings, begin, begin + 50))
    predicted = model.predict(np.arange(100), np.arange(100) % 50)
    assert (np.abs(predicted - 3.0) < 0.6).all()


@REPEATED
def test_factors_that_are_nowhere_carry_no_sums_along() -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 30, 2000), rng.integers(0, 20, 2000), np.full(2000, 3.0, np.float32)
    model = HeMF(n_factors=2, offsets=False, history=4, rng=0)
    for begin in range(0, 2000, 50):
        model.partial_fit(part(ratings, begin, begin + 50))
    np.testing.assert_allclose(model.predict([0, 1], [2, 3]), 3.0, atol=0.05)


@pytest.mark.parametrize("order", [1, 2, 7])
def test_all_sums_are_moved_alike(order: int, rng: np.random.Generator) -> None:
    roots = rng.normal(size=(1500, order, order))
    squares, move = roots @ roots.transpose(0, 2, 1), rng.normal(size=(order, order))
    moved = pack(squares)
    rotate_packed(moved, move)
    np.testing.assert_allclose(moved, pack(move @ squares @ move.T), atol=1e-10)


@pytest.mark.parametrize("history", ["full", 24])
def test_what_more_ratings_show_is_learnt(
    history: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings = tastes()
    truth = part(ratings, N_RATINGS - 2000, N_RATINGS)

    def error() -> float:
        model = started(history, ratings)
        for begin in range(700, N_RATINGS - 2000, 500):
            model.partial_fit(part(ratings, begin, min(begin + 500, N_RATINGS - 2000)))
        return rmse(truth[2], model.predict(*truth[:2]))

    with_opening = error()
    monkeypatch.setattr(steps, "GROWTH", np.inf)
    monkeypatch.setattr(states, "SCARCE", 0.0)
    without = error()
    assert with_opening < 0.8  # the noise alone has 0.7
    assert with_opening < 0.9 * without


def test_directions_are_opened_by_ratings_not_by_repetition() -> None:
    ratings = tastes()
    model = started("full", ratings, 2000)
    model.partial_fit(part(ratings, 2000, 2001))
    before = model.state_.clocks.ratings["directions"]
    model.partial_fit(part(ratings, 2001, 2400))
    for _ in range(3):
        model.partial_fit(part(ratings, 0, 2000))
    assert model.state_.clocks.ratings["directions"] == before == 2000
    model.partial_fit(part(ratings, 2400, 2600))
    assert model.state_.clocks.ratings["directions"] == 2600


def test_nothing_is_opened_where_nothing_is_closed_or_no_rating_is_kept() -> None:
    ratings = tastes()
    model = started("none", ratings)
    model.partial_fit(part(ratings, 700, 6000))
    assert not is_opening_due(model.state_)
    model = HeMF(n_factors=2, history="full", rng=0).fit(part(ratings, 0, 6000))
    model.partial_fit(part(ratings, 6000, 6001))
    assert n_closed(model) == 0
    before = copy.deepcopy(model.state_)
    assert open_directions(model.state_) == 0
    np.testing.assert_array_equal(model.state_.stores["item"].mean, before.stores["item"].mean)


@pytest.mark.parametrize("window", [ALL, 4])
def test_statistics_are_what_rows_have_given_when_directions_were_opened(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        jumps,
        "clear_directions",
        lambda residuals, count, rng, margin: rng.normal(size=(residuals.shape[1], count)),
    )
    monkeypatch.setattr(jumps, "pays", lambda *arguments: True)
    rng = np.random.default_rng(3)
    setting = Setting(tied_users=False, offsets=True, noise_scales=True)
    state = learner(rng, setting, window=window)
    direction = np.zeros((state.stores["item"].layout.factors.size, 1))
    direction[-1] = 1.0
    for name, store in state.stores.items():  # a direction that is closed
        store.mean[:, store.layout.factors[-1]] = 0.0
        updates.refresh(state, name, np.arange(0))
    assert jumps.closed_directions(state).shape[1] == 1
    open_directions(state)
    for name in state.stores:
        assert_same_statistics(state.stores[name].statistics, given(state, name))
    opened = state.stores["user"].mean[:, state.stores["user"].layout.factors]
    assert (np.abs(opened @ direction) > 0.0).any()


def test_a_model_read_from_a_file_goes_on_the_same(tmp_path: Path) -> None:
    ratings = tastes()
    model = started(8, ratings)
    model.partial_fit(part(ratings, 700, 800))
    model.save(tmp_path / "a.hemf")
    again = HeMF.load(tmp_path / "a.hemf")
    for one in (model, again):
        one.partial_fit(part(ratings, 800, 2000))
    assert (
        model.state_.clocks.ratings["directions"]
        == again.state_.clocks.ratings["directions"]
        == 2000
    )
    users, items, _ = part(ratings, 0, 500)
    np.testing.assert_array_equal(model.predict(users, items), again.predict(users, items))
