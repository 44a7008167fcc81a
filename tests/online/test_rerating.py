"""Pairs that are measured again and again, and the watch on forecasts of a stream."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hemf import HeMF, StreamWarning
from hemf.online import eviction, updates
from hemf.online.clocks import MIN_WINDOW, Watch
from proofs.learners import absorb

N_USERS, N_ITEMS = 40, 30


class Table:
    """Ratings of a table of rank 2, some of its pairs held out."""

    def __init__(self, seed: int, share: float = 0.4) -> None:
        self.rng = np.random.default_rng(seed)
        left, right = self.rng.normal(size=(N_USERS, 2)), self.rng.normal(size=(N_ITEMS, 2))
        self.truth = (3.0 + 0.9 * left @ right.T).ravel()
        order = self.rng.permutation(self.truth.size)
        n_rated = round(share * order.size)
        self.rated, self.held = order[:n_rated], order[n_rated:]

    def ratings(self, pairs: Any) -> Any:
        """Return ratings of pairs, with noise of variance 0.25."""
        values = self.truth[pairs] + self.rng.normal(scale=0.5, size=pairs.size)
        return pairs // N_ITEMS, pairs % N_ITEMS, values.astype(np.float32)

    def batch(self, size: int) -> Any:
        """Return ratings of pairs that were rated before, each at most once."""
        pairs = np.unique(self.rng.choice(self.rated, size=size))
        self.rng.shuffle(pairs)
        return self.ratings(pairs)

    def error(self, model: HeMF) -> float:
        """Root mean squared error of held-out pairs."""
        found = model.predict(self.held // N_ITEMS, self.held % N_ITEMS)
        return float(np.sqrt(np.mean((found - self.truth[self.held]) ** 2)))


def test_a_bounded_history_that_lists_everything_begins_as_a_full_one_does() -> None:
    errors = {}
    for history in (64, "full"):
        table = Table(seed=1)
        model = HeMF(n_factors=4, history=history, rating_range=None, rng=0, n_jobs=1)
        for _ in range(25):
            model.partial_fit(table.batch(100))
        errors[history] = table.error(model)
    assert errors[64] == pytest.approx(errors["full"], rel=0.02)
    assert errors[64] < 0.5


@pytest.mark.parametrize(("history", "size", "n_batches"), [("none", 100, 220), (8, 1000, 160)])
def test_pairs_rated_again_and_again_do_not_spoil_a_model(
    history: Any, size: int, n_batches: int
) -> None:
    table = Table(seed=0)
    model = HeMF(n_factors=4, history=history, rating_range=None, rng=0, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamWarning)
        model.partial_fit(table.ratings(table.rated))
        for _ in range(n_batches):
            model.partial_fit(table.batch(size))
    assert table.error(model) < 0.35
    assert model.noise_variance_ == pytest.approx(0.25, rel=0.25)


@pytest.mark.parametrize(("duplicates", "history"), [("mean", "full"), ("last", "none")])
@pytest.mark.filterwarnings("ignore::hemf.StreamWarning")  # what is fed is not new
def test_the_same_ratings_fed_again_and_again_do_not_spoil_a_model(
    duplicates: str, history: str
) -> None:
    """Some rows come to have almost no noise; rounding then grew from batch to batch."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(40 * 30)[:480], 30)
    tastes, kinds = rng.normal(size=(40, 2)), rng.normal(size=(30, 2))
    noise = 0.5 * rng.normal(size=480)
    ratings = (3 + np.einsum("ij,ij->i", tastes[users], kinds[items]) + noise).astype(np.float32)
    model = HeMF(
        n_factors=4, duplicates=duplicates, history=history, rating_range=None, rng=0, n_jobs=1
    )
    model.partial_fit((users, items, ratings))
    for _ in range(800):
        again = rng.permutation(480)[:100]
        model.partial_fit((users[again], items[again], ratings[again]))
    assert np.sqrt(np.mean((model.predict(users, items) - ratings) ** 2)) < 0.5
    assert model.noise_variance_ < 0.5


def test_sums_stay_where_they_are_in_a_long_stream(rng: np.random.Generator) -> None:
    table = Table(seed=1)
    model = HeMF(n_factors=3, history="none", rating_range=None, rng=0, n_jobs=1)
    model.fit(table.ratings(table.rated)).partial_fit(table.batch(10))
    state, items = model.state_, model.state_.stores["item"]
    moment = state.stores["user"].moment
    before = moment.copy()
    moves = []
    for turns in (0.0, 0.5, 1.0):
        items.totals[2] = turns * eviction.LONG * items.n_rows
        items.rotated_means = 0.8 * items.mean.astype(np.float64)
        state.clocks.last["rotation", "item"] = -1e9
        moment[:] = before
        updates.rotate_sums(state, "item")
        moves.append(float(np.linalg.norm(moment - before) / np.linalg.norm(before)))
    assert moves[0] == pytest.approx(0.25, rel=1e-3)
    assert moves[1] == pytest.approx(0.75 * moves[0], rel=1e-3)
    assert moves[2] == pytest.approx(0.0, abs=1e-6)


# docs/model.md#renewed-sums
def test_a_rating_replaces_a_part_of_sums_with_ratings_given_again() -> None:
    table = Table(seed=2)
    model = HeMF(n_factors=2, history="none", rating_range=None, noise_scales=None, rng=0, n_jobs=1)
    model.fit(table.ratings(table.rated)).partial_fit(table.batch(10))
    state = model.state_
    users, items = state.stores["user"], state.stores["item"]
    code = state.book.codes(np.array([state.centre + state.unit], np.float32))
    row, is_new = np.zeros(1, np.int64), np.full(1, -1)
    for n_summed, weight in ((N_ITEMS, 1.0), (N_ITEMS + 1.0, 2.0)):
        users.summed_weight[0] = n_summed
        before, n = users.moment[0].copy(), items.mean[0].copy()
        absorb(state, row, row, code, is_new, learn=False)
        faded = before * (1.0 - (weight - 1.0) / n_summed)
        np.testing.assert_allclose(users.moment[0], faded + weight * n, rtol=1e-4, atol=1e-4)
        assert users.summed_weight[0] == pytest.approx(n_summed + 1.0)


# -- the watch -----------------------------------------------------------------------------------


def watched(model: HeMF) -> Watch:
    watch = model.state_.watch
    assert isinstance(watch, Watch)
    return watch


@pytest.mark.parametrize("one_by_one", [False, True])
def test_ratings_that_turn_to_another_scale_are_warned_of_once(one_by_one: bool) -> None:
    table = Table(seed=3)
    model = HeMF(n_factors=2, history="none", rating_range=None, rng=0, n_jobs=1)
    model.fit(table.ratings(table.rated))
    learn = model.predict_then_learn if one_by_one else model.partial_fit
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamWarning)
        for _ in range(10):
            learn(table.batch(300))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            users, items, values = table.batch(300)
            learn((users, items, 20.0 * values))
    issued = [w for w in caught if w.category is StreamWarning]
    assert len(issued) == 1
    assert issued[0].filename == __file__
    assert "root mean squared error" in str(issued[0].message)
    assert "at best" in str(issued[0].message)


def test_damaged_sums_are_warned_of() -> None:
    table = Table(seed=4)
    model = HeMF(n_factors=2, history="none", rating_range=None, rng=0, n_jobs=1)
    model.fit(table.ratings(table.rated))
    for _ in range(10):
        model.partial_fit(table.batch(300))
    for store in model.state_.stores.values():
        store.moment[:] *= -1.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            model.partial_fit(table.batch(300))
    assert [w.category for w in caught] == [StreamWarning]


@pytest.mark.parametrize("history", ["full", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_ordinary_streams_are_not_warned_of(seed: int, history: str) -> None:
    table = Table(seed=seed, share=0.9)
    rng = np.random.default_rng(seed)
    users, items, values = table.ratings(table.rated)
    order = rng.permutation(values.size) if seed % 2 else np.argsort(users, kind="stable")
    model = HeMF(n_factors=3, history=history, rating_range=None, rng=0, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamWarning)
        for part in np.array_split(order, 20):
            model.partial_fit((users[part], items[part], values[part]))
        for _ in range(15):  # rated again
            model.partial_fit(table.batch(300))


def test_one_typing_error_is_no_reason_to_warn() -> None:
    watch = Watch()
    for _ in range(30):
        watch = watch.after(np.ones(100), 10)
    watch = watch.after(np.array([1e6]), 10)
    assert not watch.is_worse
    assert watch.recent < 1.1


def test_nothing_is_worse_before_there_are_forecasts_enough() -> None:
    watch = (
        Watch().after(np.full(MIN_WINDOW // 2, 0.01), 10).after(np.full(MIN_WINDOW // 4, 9.0), 10)
    )
    assert not watch.is_worse
    assert watch.after(np.empty(0), 10) is watch


def test_the_watch_is_saved_with_the_model(tmp_path: Any) -> None:
    table = Table(seed=5)
    model = HeMF(n_factors=2, history="none", rating_range=None, rng=0, n_jobs=1)
    model.fit(table.ratings(table.rated))
    for _ in range(6):
        model.partial_fit(table.batch(300))
    state = model.state_
    state.watch = replace(state.watch, has_warned=True)
    model.save(tmp_path / "m.hemf")
    assert watched(HeMF.load(tmp_path / "m.hemf")) == state.watch
    assert np.isfinite(state.watch.best)
