"""A stream is predicted before it is learnt, and what is measured is that and nothing else."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hemf.baselines import SGD
from hemf.errors import DataError, ParameterError
from hemf.evaluation import Prequential, prequential, rmse, stream_order, warm_start_size


class Clock:
    """Seconds that pass only when someone spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


class Memory:
    """Expects the last rating of an item, or 3; a rating takes a second, a question a minute."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.calls: list[tuple[str, int]] = []
        self.last: dict[Any, float] = {}
        self.fail_at = -1

    def __getattr__(self, name: str) -> Any:
        if name == "n_users_" and self.last:
            return 1
        raise AttributeError(name)

    def expected(self, items: Any) -> np.ndarray:
        return np.array([self.last.get(item, 3.0) for item in items])

    def predict(self, users: Any, items: Any) -> np.ndarray:
        self.calls.append(("predict", len(items)))
        self.clock.now += 60.0
        return self.expected(items)

    def partial_fit(self, ratings: Any) -> None:
        _, items, values = ratings
        self.calls.append(("learn", len(items)))
        self.clock.now += len(items)
        self.last.update(zip(items.tolist(), values.tolist(), strict=True))

    def predict_then_learn(self, ratings: Any, *, return_seconds: bool) -> Any:
        assert return_seconds
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        _, items, values = ratings
        self.calls.append(("both", len(items)))
        self.clock.now += len(items)
        forecasts = []
        for item, value in zip(items.tolist(), values.tolist(), strict=True):
            forecasts.append(self.last.get(item, 3.0))
            self.last[item] = value
        return np.array(forecasts), np.arange(1.0, len(items) + 1)


@pytest.fixture
def clock(monkeypatch):
    pretended = Clock()
    monkeypatch.setattr(prequential, "time", pretended)
    return pretended


def drawn(n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 40, n), rng.integers(0, 30, n), rng.integers(1, 6, n).astype(np.float32)


def last_ratings(items: Any, ratings: Any, known: dict[Any, float] | None = None) -> np.ndarray:
    """What `Memory` expects of each rating, one by one."""
    seen, found = dict(known or {}), []
    for item, rating in zip(items.tolist(), ratings.tolist(), strict=True):
        found.append(seen.get(item, 3.0))
        seen[item] = rating
    return np.array(found)


# -- what is predicted and learnt -----------------------------------------------------------------


def test_one_by_one_every_rating_is_predicted_from_those_before_it_alone():
    users, items, ratings = drawn(9000)
    stream = Prequential(Memory(), users, items, ratings).run()
    assert stream.rmse == pytest.approx(rmse(ratings, last_ratings(items, ratings)))
    assert stream.ratings == stream.length == 9000
    assert {what for what, _ in stream.learner.calls} == {"both"}
    assert max(size for _, size in stream.learner.calls) <= prequential.BLOCK


def test_a_batch_is_predicted_whole_and_then_learnt_whole():
    users, items, ratings = drawn(250)
    learner = Memory()
    learner.last = {0: 5.0}
    stream = Prequential(learner, users, items, ratings, batch_size=100).run()
    sizes = (100, 100, 50)
    assert learner.calls == [call for n in sizes for call in (("predict", n), ("learn", n))]
    twin, expected = Memory(), []
    twin.last = {0: 5.0}
    for first in (0, 100, 200):
        part = slice(first, first + 100)
        expected.append(twin.expected(items[part].tolist()))
        twin.partial_fit((users[part], items[part], ratings[part]))
    assert stream.rmse == pytest.approx(rmse(ratings, np.concatenate(expected)))


def test_the_first_batch_of_a_learner_that_knows_nothing_goes_in_one_by_one():
    learner = Memory()
    Prequential(learner, *drawn(250), batch_size=100).run()
    assert [what for what, _ in learner.calls] == ["both", "predict", "learn", "predict", "learn"]


def test_ratings_before_the_start_are_neither_predicted_nor_learnt():
    users, items, ratings = drawn(500)
    stream = Prequential(Memory(), users, items, ratings, start=200).run()
    assert stream.length == sum(size for _, size in stream.learner.calls) == 300
    expected = last_ratings(items[200:], ratings[200:])
    assert stream.rmse == pytest.approx(rmse(ratings[200:], expected))


@pytest.mark.parametrize("batch_size", [1, 70])
def test_sgd_is_judged_by_what_it_says_itself(batch_size):
    users, items, ratings = drawn(3000)
    stream = Prequential(SGD(rng=0), users, items, ratings, batch_size=batch_size).run()
    if batch_size == 1:
        expected = SGD(rng=0).predict_then_learn((users, items, ratings))
        assert stream.rmse == pytest.approx(rmse(ratings, expected))
    assert 0.5 < stream.rmse < 2.5
    assert stream.learner.n_updates_ == 3000
    assert stream.communities is None
    p50, p99 = stream.latency(0.5, 0.99)
    assert 0 < p50 <= p99 < 1


def test_sgd_tells_how_long_each_rating_took():
    stream = drawn(3000)
    begin = time.perf_counter()
    expected, seconds = SGD(rng=0).predict_then_learn(stream, return_seconds=True)
    whole = time.perf_counter() - begin
    assert (expected == SGD(rng=0).predict_then_learn(stream)).all()
    assert seconds.shape == (3000,)
    assert (seconds > 0).all()
    assert seconds.sum() <= whole
    with pytest.raises(ParameterError, match="return_seconds must be True or False"):
        SGD().predict_then_learn(stream, return_seconds=1)


# -- what is measured -----------------------------------------------------------------------------


def test_users_and_items_are_new_that_were_not_there_before():
    users, items, ratings = ["ann", "bob", "ann", "eve", "bob"], [1, 1, 2, 3, 4], [3] * 5
    whole = Prequential(Memory(), users, items, ratings)
    assert (whole.new_users, whole.new_items) == (0, 0)
    whole.run()
    assert (whole.new_users, whole.new_items) == (3, 4)
    rest = Prequential(Memory(), users, items, ratings, start=2).run()
    assert (rest.new_users, rest.new_items) == (1, 3)


@pytest.mark.parametrize(("n", "batch_size"), [(7, 1), (500, 1), (25_000, 1), (25_000, 700)])
def test_the_parts_of_the_curve_make_up_the_whole(n, batch_size):
    stream = Prequential(Memory(), *drawn(n), batch_size=batch_size).run()
    ends = np.array([point.ratings for point in stream.curve])
    sizes = np.diff(ends, prepend=0)
    assert ends[-1] == n
    assert (sizes > 0).all()
    squares = sizes * np.array([point.rmse for point in stream.curve]) ** 2
    running = np.sqrt(np.cumsum(squares) / ends)
    assert [point.running_rmse for point in stream.curve] == pytest.approx(running.tolist())
    assert running[-1] == pytest.approx(stream.rmse)
    assert stream.recent_rmse == pytest.approx(stream.rmse) or n > prequential.RECENT


def test_recent_means_the_last_ten_thousand():
    users, items, ratings = drawn(25_000)
    stream = Prequential(Memory(), users, items, ratings).run()
    errors = ratings - last_ratings(items, ratings)
    assert stream.recent_rmse == pytest.approx(np.sqrt(np.mean(errors[-10_000:] ** 2)))


@pytest.mark.parametrize("batch_size", [1, 7, 900])
def test_test_ratings_are_predicted_at_every_tenth(batch_size):
    users, items, ratings = drawn(9000)
    test = drawn(50, seed=1)
    stream = Prequential(Memory(), users, items, ratings, batch_size=batch_size, test=test).run()
    tested = [point for point in stream.curve if point.test_rmse is not None]
    tenths = [900 * k for k in range(1, 11)]
    assert [-(-tenth // batch_size) * batch_size for tenth in tenths[:-1]] == [
        point.ratings for point in tested[:-1]
    ]
    assert tested[-1].ratings == 9000
    assert stream.test_rmse == tested[-1].test_rmse
    known = dict(zip(items.tolist(), ratings.tolist(), strict=True))
    assert stream.test_rmse == pytest.approx(rmse(test[2], [known[item] for item in test[1]]))


def test_without_test_ratings_there_is_no_test_error():
    stream = Prequential(Memory(), *drawn(50)).run()
    assert stream.test_rmse is None
    assert all(point.test_rmse is None for point in stream.curve)


def test_the_time_is_that_of_predicting_and_learning_alone(clock):
    learner = Memory(clock)
    stream = Prequential(learner, *drawn(5000), test=drawn(9, seed=1)).run()
    assert learner.clock.now == 5000 + 10 * 60  # ten looks at the test ratings
    assert stream.seconds == stream.cpu_seconds == 5000
    assert stream.ratings_per_second == 1.0


def test_latency_is_that_of_a_rating_or_of_a_batch(clock):
    ones = Prequential(Memory(clock), *drawn(100)).run()
    assert ones.latency(0.0, 1.0) == [1.0, 10.0]  # blocks of ten, as the curve has ten points
    learner = Memory(clock)
    learner.last = {0: 3.0}
    batches = Prequential(learner, *drawn(250), batch_size=100).run()
    assert batches.latency(0.0, 1.0) == [110.0, 160.0]


def test_some_latencies_tell_about_all():
    stream = Prequential(Memory(), *drawn(20_000)).run()
    (exact,), (about,) = stream.latency(0.5), stream.latency(0.5, most=300)
    assert about == pytest.approx(exact, rel=0.2)


def test_before_the_first_rating_nothing_is_known():
    stream = Prequential(Memory(), *drawn(5))
    assert np.isnan([stream.rmse, stream.recent_rmse, *stream.latency(0.5, 0.99)]).all()
    assert stream.ratings_per_second == 0.0


def test_communities_are_those_of_the_learner():
    learner = SimpleNamespace(n_user_communities_=4, n_item_communities_=3)
    assert Prequential(learner, *drawn(5)).communities == (4, 3)


def test_whoever_watches_sees_it_grow():
    seen: list[int] = []
    Prequential(Memory(), *drawn(9000)).run(lambda stream: seen.append(stream.ratings))
    assert seen == sorted(set(seen))
    assert seen[-1] == 9000


def test_after_an_interruption_what_was_measured_is_there_and_the_rest_can_follow():
    users, items, ratings = drawn(9000)
    learner = Memory()
    learner.fail_at = 5
    stream = Prequential(learner, users, items, ratings)
    with pytest.raises(KeyboardInterrupt):
        stream.run()
    done = stream.ratings
    assert 0 < done < 9000
    expected = last_ratings(items, ratings)
    assert stream.rmse == pytest.approx(rmse(ratings[:done], expected[:done]))
    learner.fail_at = -1
    assert stream.run().rmse == pytest.approx(rmse(ratings, expected))


# -- order and start ------------------------------------------------------------------------------


def test_ratings_of_one_time_keep_their_order():
    assert stream_order(5, [20, 10, 20, 10, 20]).tolist() == [1, 3, 0, 2, 4]
    assert stream_order(5, [20, 10, 20, 10, 20], "time").tolist() == [1, 3, 0, 2, 4]


def test_without_times_the_file_gives_the_order():
    assert stream_order(3).tolist() == stream_order(3, [9, 8, 7], "file").tolist() == [0, 1, 2]


def test_random_order_is_that_of_the_seed():
    first, again, other = (stream_order(99, None, "random", rng=seed) for seed in (1, 1, 2))
    assert sorted(first) == list(range(99))
    assert (first == again).all()
    assert (first != other).any()


def test_orders_that_cannot_be_are_refused():
    with pytest.raises(DataError, match="no timestamps"):
        stream_order(3, None, "time")
    with pytest.raises(ParameterError, match="order must be one of 'time', 'file', 'random'"):
        stream_order(3, None, "backwards")


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_a_warm_start_is_a_share(fraction):
    with pytest.raises(ParameterError, match="at least 0 and below 1"):
        warm_start_size(100, fraction)


def test_a_warm_start_leaves_something_to_stream():
    assert [warm_start_size(100, share) for share in (0.0, 0.1, 0.994)] == [0, 10, 99]
    with pytest.raises(DataError, match="leaves none of the 100 ratings"):
        warm_start_size(100, 0.996)


def test_columns_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="lengths differ"):
        Prequential(Memory(), [1, 2], [1, 2], [3.0])
    with pytest.raises(DataError, match="no rating is left"):
        Prequential(Memory(), [1, 2], [1, 2], [3.0, 4.0], start=2)
    with pytest.raises(ParameterError, match=r"batch_size must be .* got 0"):
        Prequential(Memory(), [1, 2], [1, 2], [3.0, 4.0], batch_size=0)
