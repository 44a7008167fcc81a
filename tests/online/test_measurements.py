"""With duplicates="mean" every rating of a pair is a measurement that counts, online too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf import DataError, HeMF, ParameterError

HISTORIES = ["full", 64, 8, "none"]


def drawn(rng: np.random.Generator, n_users: int, n_items: int) -> tuple[Any, Any, Any]:
    """A true table of rank two, pairs that are rated, and others that are held out."""
    table = 3.0 + rng.normal(size=(n_users, 2)) @ rng.normal(size=(n_items, 2)).T
    order = rng.permutation(n_users * n_items)
    n = round(0.4 * order.size)
    return table.ravel(), order[:n], order[n:]


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("buffer", [0, 3000])
def test_measurements_add_up_to_the_fit_of_their_means(
    history: Any, buffer: int, rng: np.random.Generator
) -> None:
    n_users, n_items, noise = 20, 15, 0.5
    table, rated, held = drawn(rng, n_users, n_items)
    total, count = np.zeros(table.size), np.zeros(table.size)
    learner = HeMF(
        n_factors=3, history=history, buffer=buffer, duplicates="mean", rng=0, rating_range=None
    )
    for step in range(150):
        pairs = rated if step == 0 else rng.choice(rated, 60)
        values = table[pairs] + noise * rng.normal(size=pairs.size)
        np.add.at(total, pairs, values)
        np.add.at(count, pairs, 1.0)
        learner.partial_fit((pairs // n_items, pairs % n_items, values.astype(np.float32)))
    assert learner._fit.learner.state.n_ratings == count.sum()
    reference = HeMF(n_factors=3, rng=0, rating_range=None)
    reference.fit((rated // n_items, rated % n_items, total[rated] / count[rated]))
    errors = [
        np.sqrt(np.mean((one.predict(held // n_items, held % n_items) - table[held]) ** 2))
        for one in (learner, reference)
    ]
    # Without a buffer, sums hold what was learnt of the first few ratings.
    assert errors[0] < (1.3 if buffer or history == "full" else 3.0) * errors[1]
    assert learner.noise_variance_ == pytest.approx(noise**2, rel=0.2)


def test_a_batch_with_a_pair_twice_is_two_batches_with_it_once() -> None:
    first = [("ann", "tea", 5.0), ("bob", "tea", 3.0), ("ann", "ale", 2.0), ("eve", "ale", 4.0)]
    options: dict[str, Any] = {"n_factors": 2, "duplicates": "mean", "rng": 0}
    counts = []
    for batches in ([[("ann", "tea", 4.0), ("ann", "tea", 3.0)]], [[("ann", "tea", 4.0)]] * 2):
        learner = HeMF(**options).fit(first)
        for batch in batches:
            learner.partial_fit(batch)
        counts.append(learner._fit.learner.state.counts["user"].tolist())
    assert counts[0] == counts[1] == [4, 1, 1]


def test_a_measurement_is_removed_by_its_rating_and_a_pair_by_itself() -> None:
    first = [("ann", "tea", 5.0), ("bob", "tea", 3.0), ("ann", "ale", 2.0), ("eve", "ale", 4.0)]
    again = [("ann", "tea", 4.0), ("ann", "tea", 3.0)]
    learner = HeMF(n_factors=2, duplicates="mean", rng=0).fit(first).partial_fit(again)
    assert learner._fit.learner.ratings.n_ratings == 4  # one pair is there three times
    learner.partial_fit(removed=[("ann", "tea")])
    assert learner._fit.learner.state.counts["user"].tolist() == [1, 1, 1]
    bounded = HeMF(n_factors=2, duplicates="mean", history=8, rng=0).fit(first).partial_fit(again)
    bounded.partial_fit(removed=[("ann", "tea", 4.0)])
    user = bounded._fit.learner.state.stores["user"]
    listed = bounded._fit.learner.state.book.values[user.history.row(0)[1]]
    assert sorted(listed.tolist()) == [2.0, 3.0, 5.0]
    bounded.partial_fit([("ann", "tea", 1.0)], previous=[3.0])
    listed = bounded._fit.learner.state.book.values[user.history.row(0)[1]]
    assert sorted(listed.tolist()) == [1.0, 2.0, 5.0]


def test_a_measurement_that_never_was_cannot_be_taken_back() -> None:
    first = [("ann", "tea", 5.0), ("bob", "tea", 3.0), ("ann", "ale", 2.0)]
    learner = HeMF(n_factors=2, duplicates="mean", rng=0).fit(first)
    learner.partial_fit([("ann", "tea", 4.0)])
    with pytest.raises(DataError, match="there is none of it"):
        learner.partial_fit([("ann", "tea", 1.0)], previous=[3.0])
    with pytest.raises(DataError, match="no rating"):
        learner.partial_fit(removed=[("bob", "ale")])


def test_whether_repeats_count_cannot_be_changed_later() -> None:
    learner = HeMF(n_factors=2, rng=0).fit([("ann", "tea", 5.0), ("bob", "ale", 3.0)])
    learner.partial_fit([("ann", "ale", 4.0)])
    with pytest.raises(ParameterError, match="duplicates"):
        learner.set_params(duplicates="mean").partial_fit([("bob", "tea", 4.0)])


@pytest.mark.parametrize("history", HISTORIES)
def test_a_stream_of_measurements_is_learnt_one_at_a_time(
    history: Any, rng: np.random.Generator
) -> None:
    table, rated, _ = drawn(rng, 12, 10)
    learner = HeMF(n_factors=2, history=history, duplicates="mean", rng=0, rating_range=None)
    pairs = rng.choice(rated, 400)
    values = table[pairs] + 0.1 * rng.normal(size=pairs.size)
    learner.predict_then_learn((pairs // 10, pairs % 10, values))
    assert learner._fit.learner.state.n_ratings == 400
    assert np.isfinite(learner.predict(np.arange(10), np.arange(10))).all()
