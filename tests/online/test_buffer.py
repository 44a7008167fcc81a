"""The first ratings of a stream are all kept, whatever the history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hemf import HeMF, ParameterError

N_USERS, N_ITEMS = 40, 25


def stream(rng: np.random.Generator, n: int) -> list[tuple[int, int, float]]:
    """Distinct pairs of a table of rank one, in random order."""
    left, right = rng.normal(size=N_USERS), rng.normal(size=N_ITEMS)
    pairs = rng.permutation(N_USERS * N_ITEMS)[:n]
    users, items = np.divmod(pairs, N_ITEMS)
    values = 3.0 + left[users] * right[items] + 0.1 * rng.normal(size=n)
    return [(int(u), int(i), float(v)) for u, i, v in zip(users, items, values, strict=True)]


def model(history: Any, buffer: int) -> HeMF:
    return HeMF(n_factors=3, history=history, buffer=buffer, rng=0, rating_range=None)


@pytest.mark.parametrize("history", ["none", 4])
@pytest.mark.parametrize("begin", ["nothing", "fit"])
def test_a_buffered_stream_learns_as_with_a_full_history(
    history: Any, begin: str, rng: np.random.Generator
) -> None:
    ratings = stream(rng, 600)
    found = []
    for kept in (history, "full"):
        learner = model(kept, 1000)
        learner.fit(ratings[:300]) if begin == "fit" else learner.partial_fit(ratings[:300])
        for first in range(300, 600, 50):
            learner.partial_fit(ratings[first : first + 50])
        found.append(learner.predict(np.arange(25), np.arange(25), return_std=True))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("history", ["none", 4])
@pytest.mark.parametrize("begin", ["nothing", "fit"])
def test_beyond_the_buffer_the_history_is_what_was_asked_for(
    history: Any, begin: str, rng: np.random.Generator
) -> None:
    ratings = stream(rng, 600)
    learner = model(history, 400)
    learner.fit(ratings[:200]) if begin == "fit" else learner.partial_fit(ratings[:200])
    learner.partial_fit(ratings[200:400])
    assert learner._fit.learner.ratings.n_ratings == 400
    users, items, values = (np.array(column) for column in zip(*ratings, strict=True))
    before = np.std(learner.predict(users, items) - values)
    learner.partial_fit(ratings[400:401])
    most = 0 if history == "none" else 4 * (N_USERS + N_ITEMS)
    assert learner._fit.learner.ratings.n_ratings <= most
    # Nothing is lost with the ratings that are summed up.
    assert np.std(learner.predict(users, items) - values) < 1.02 * before
    learner.partial_fit(ratings[401:])
    assert learner._fit.learner.ratings.n_ratings <= most


@pytest.mark.parametrize("history", ["none", 4])
def test_the_buffer_makes_a_stream_from_nothing_better(
    history: Any, rng: np.random.Generator
) -> None:
    ratings = stream(rng, 1000)
    users, items = (np.array(column) for column in list(zip(*ratings[900:], strict=True))[:2])
    wanted = np.array([value for _, _, value in ratings[900:]])
    errors = {}
    for buffer in (0, 500):
        learner = model(history, buffer)
        for first in range(0, 900, 30):
            learner.partial_fit(ratings[first : first + 30])
        errors[buffer] = float(np.sqrt(np.mean((learner.predict(users, items) - wanted) ** 2)))
    assert errors[500] < errors[0]


@pytest.mark.parametrize("history", ["none", 4])
@pytest.mark.parametrize("n", [300, 500])
def test_a_saved_stream_goes_on_as_if_it_had_not_been(
    history: Any, n: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    ratings = stream(rng, 700)
    learner = model(history, 400).partial_fit(ratings[:n])
    learner.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    for one in (learner, again):
        for first in range(n, 700, 40):
            one.partial_fit(ratings[first : first + 40])
    np.testing.assert_array_equal(
        learner.predict(np.arange(25), np.arange(25)), again.predict(np.arange(25), np.arange(25))
    )


def test_an_exception_at_the_end_of_the_buffer_leaves_the_buffered_model(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    from hemf.online import learner as steps

    ratings = stream(rng, 500)
    learner = model("none", 400).partial_fit(ratings[:400])
    before = learner.predict(np.arange(25), np.arange(25), return_std=True)
    end = steps.end_buffering

    def fails(state: Any) -> None:
        end(state)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(steps, "end_buffering", fails)
        with pytest.raises(MemoryError):
            learner.partial_fit(ratings[400:])
    assert learner._fit.learner.ratings.n_ratings == 400
    np.testing.assert_array_equal(
        before, learner.predict(np.arange(25), np.arange(25), return_std=True)
    )
    learner.partial_fit(ratings[400:])
    assert learner._fit.learner.ratings.n_ratings == 0


@pytest.mark.parametrize("buffer", [-1, 0.5, "many"])
def test_a_buffer_that_is_no_number_of_ratings_is_refused(buffer: Any) -> None:
    with pytest.raises(ParameterError, match="buffer"):
        model("none", buffer).partial_fit([(1, 2, 3.0)])


def test_a_restart_is_tried_once(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Ratings are taken out of a copy to judge a restart; that is no occasion for another."""
    from hemf.online import learner as steps

    depth, deepest = 0, 0
    restart = steps.start_again

    def counted(state: Any) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        restart(state)
        depth -= 1

    monkeypatch.setattr(steps, "start_again", counted)
    learner = HeMF(n_factors=3, rng=0)
    for first in range(0, 1000, 200):
        learner.partial_fit(stream(np.random.default_rng(3), 1000)[first : first + 200])
    assert deepest == 1
