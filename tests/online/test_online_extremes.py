"""Online learning where digits run out: mistyped ratings, tables without noise, other rules."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest

from hemf import DataError, HeMF
from hemf.model.rows import NOISE_FLOOR
from hemf.online import learner as steps
from hemf.online import start, updates
from hemf.online.state import OnlineState

pytestmark = [
    pytest.mark.filterwarnings("ignore:not all ratings are kept"),
    pytest.mark.filterwarnings("ignore:the bound was still rising"),
    pytest.mark.filterwarnings("ignore::hemf.errors.OutlierWarning"),
]
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def ratings(n: int = 1200, noise: float = 0.3, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    users, items = np.divmod(rng.permutation(60 * 40)[:n], 40)
    left, right = rng.normal(size=(60, 3)), rng.normal(size=(40, 3))
    values = 3.0 + 0.5 * np.sum(left[users] * right[items], axis=1) + noise * rng.normal(size=n)
    return users, items, np.round(np.clip(values, 0.5, 5.5) * 2.0) / 2.0


def part(columns: Columns, begin: int, end: int) -> Columns:
    users, items, values = (column[begin:end] for column in columns)
    return users, items, values


def learner(model: HeMF) -> OnlineState:
    assert isinstance(model.state_, OnlineState)
    return model.state_


def assert_total_is_right(model: HeMF) -> None:
    state = learner(model)
    assert state.knows_total == state.can_be_exact
    if state.knows_total:
        assert state.total[0] == pytest.approx(state.squared_error, rel=1e-4)


@pytest.mark.parametrize("before", [1.0, 0.9])
def test_a_model_may_begin_to_forget_or_stop_it(before: float, tmp_path) -> None:
    data = ratings()
    model = HeMF(n_factors=3, forgetting=before, rng=0).fit(part(data, 0, 800))
    model.partial_fit(part(data, 800, 810))
    assert_total_is_right(model)
    model.forgetting = 1.9 - before
    for begin in range(810, 1200, 130):
        model.partial_fit(part(data, begin, begin + 130))
    assert_total_is_right(model)
    state = learner(model)
    if not state.knows_total:
        users = state.stores["user"]
        assert users.totals[3] == pytest.approx(users.effective_count.sum())
    model.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    assert again.predict(data[0], data[1]).tolist() == model.predict(data[0], data[1]).tolist()
    assert_total_is_right(again)


def test_a_batch_that_fails_does_not_change_how_the_model_forgets() -> None:
    data = ratings()
    model = HeMF(n_factors=3, rng=0).fit(part(data, 0, 800)).partial_fit(part(data, 800, 810))
    model.forgetting = 0.9
    with pytest.raises(DataError):
        model.partial_fit([(1, 2, np.nan)])
    assert learner(model).options.forgetting == {"user": 1.0, "item": 1.0}


@pytest.mark.parametrize("mistyped", [1e3, 1e5, 1e6, 1e8])
def test_a_mistyped_rating_that_is_corrected_leaves_no_trace_in_the_noise(mistyped: float) -> None:
    data = ratings()
    model = HeMF(n_factors=3, rng=0).fit(data).partial_fit(part(data, 0, 1))
    before = model.noise_variance_
    model.partial_fit([(data[0][5], data[1][5], mistyped)])
    model.partial_fit(part(data, 5, 6))
    for begin in range(0, 200, 50):
        model.partial_fit(part(data, begin, begin + 50))
    assert model.noise_variance_ == pytest.approx(before, rel=0.1)
    assert_total_is_right(model)


def test_what_was_never_rated_cannot_have_been_so_before() -> None:
    data = ratings()
    model = HeMF(n_factors=3, rng=0).fit(part(data, 0, 1100))
    noise = model.partial_fit(part(data, 0, 1)).noise_variance_
    with pytest.raises(DataError, match=r"previous: a rating of 2 at row 0 .* there is none"):
        model.partial_fit(part(data, 1100, 1200), previous=np.full(100, 2.0))
    assert model.noise_variance_ == noise
    assert_total_is_right(model)


@pytest.mark.parametrize("history", ["full", 64])
@pytest.mark.parametrize("how", ["removed", "previous"])
def test_what_is_taken_back_must_be_what_is_on_record(history, how: str) -> None:
    data = ratings()
    model = HeMF(n_factors=3, history=history, rng=0).fit(data).partial_fit(part(data, 0, 1))
    user, item, rating = data[0][7], data[1][7], data[2][7]
    other = 1.0 if rating != 1.0 else 2.0
    n = model.n_ratings_
    arguments = {
        "removed": lambda value: {"removed": [(user, item, value)]},
        "previous": lambda value: {"ratings": [(user, item, 3.0)], "previous": [value]},
    }[how]
    if history != "full" or how == "previous":  # pairs are enough where all are kept
        with pytest.raises(DataError, match=f"not the one on record; it is {rating:g}"):
            model.partial_fit(**arguments(other))
    assert model.n_ratings_ == n
    model.partial_fit(**arguments(float(rating)))
    assert model.n_ratings_ == n - (how == "removed")


def block_table(kinds: int, seed: int = 0) -> Columns:
    users, items = np.divmod(np.random.default_rng(seed).permutation(60 * 40)[:1500], 40)
    return users, items, np.where(users % kinds == items % kinds, 5.0, 1.0)


# The errors are rounding: 1e-7 of the ratings, now a little more and now less.
@pytest.mark.filterwarnings("ignore:forecasts of new ratings have become worse")
@pytest.mark.parametrize("history", ["full", "none", 8])
@pytest.mark.parametrize("table", [block_table(2), block_table(3, seed=2)], ids=["2", "3"])
def test_tables_without_noise_leave_numbers(history, table: Columns, tmp_path) -> None:
    model = HeMF(n_factors=3, history=history, rng=0).fit(part(table, 0, 1000))
    model.predict_then_learn(table)
    for begin in range(0, 1500, 300):
        model.partial_fit(part(table, begin, begin + 300))
    mean, std = model.predict(table[0], table[1], return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    # Without a history, ratings that come again count again, as they looked at first.
    assert np.sqrt(np.mean((mean - table[2]) ** 2)) < (1.6 if history == "none" else 0.5)
    model.save(tmp_path / "m.hemf")
    assert HeMF.load(tmp_path / "m.hemf").n_ratings_ == model.n_ratings_


def test_offsets_alone_without_noise_leave_numbers_in_a_short_history() -> None:
    users, items, _ = block_table(2)
    table = users, items, 1.0 + users % 5
    model = HeMF(n_factors=3, history=8, rng=0).fit(part(table, 0, 1000))
    rng = np.random.default_rng(0)
    for _ in range(15):
        again = rng.permutation(1500)[:300]
        model.predict_then_learn(tuple(column[again] for column in table))
    largest = max(np.abs(store.mean).max() for store in learner(model).stores.values())
    assert largest < 20.0  # it grew to 10⁵ where means without a rating were lost in rounding


def test_the_bound_does_not_fall_where_noise_is_as_low_as_it_can_be() -> None:
    table = block_table(2)
    model = HeMF(n_factors=3, dtype="float64", rng=0).fit(table).partial_fit(part(table, 0, 1))
    bounds = [model.elbo_]
    for begin in range(0, 400, 50):
        bounds.append(model.partial_fit(part(table, begin, begin + 50)).elbo_)
    assert learner(model).noise >= NOISE_FLOOR
    assert np.diff(bounds).min() >= -1e-9 * abs(bounds[0])


def test_nothing_is_learnt_of_noise_from_no_ratings() -> None:
    data = ratings(200)
    model = HeMF(n_factors=2, rng=0).fit(data)
    model.partial_fit(removed=list(zip(data[0], data[1], strict=True))[:-1])
    model.partial_fit(removed=[(data[0][-1], data[1][-1])])
    assert model.n_ratings_ == 0
    assert model.noise_variance_ > 1e-3


def test_equal_ratings_are_not_begun_with_again_at_every_batch(monkeypatch) -> None:
    tries: list[int] = []
    restart = start.restart

    def counted(state: OnlineState) -> OnlineState:
        tries.append(state.seen)
        return restart(state)

    monkeypatch.setattr(start, "restart", counted)
    model = HeMF(n_factors=2, rating_range=(1, 5), rng=0)
    for user in range(100):
        model.partial_fit([(user, item, 3.0) for item in range(10)])
    assert len(tries) <= 4


def test_forecasts_are_on_the_scale_of_when_they_were_made(monkeypatch) -> None:
    """Another thread may have the model start again, on another scale, between two blocks."""
    model = HeMF(n_factors=2, rating_range=(-100, 100), rng=0)
    model.partial_fit([(user, item, 50.0 + user) for user in range(3) for item in range(3)])
    state, entered = learner(model), threading.Event()
    turn = model._holder.lock
    original = updates.apply_stream

    class Slow:
        """A lock that lets somebody in before."""

        def __enter__(self) -> None:
            if not entered.is_set():
                entered.set()
                state.centre, state.unit = 55.0, 3.0
            turn.acquire()

        def __exit__(self, *_: object) -> None:
            turn.release()

    seen = []

    def watched(state: OnlineState, *arguments: np.ndarray):
        forecasts, ticks = original(state, *arguments)
        seen.append((state.centre, state.unit, forecasts.copy()))
        return forecasts, ticks

    monkeypatch.setattr(updates, "apply_stream", watched)
    monkeypatch.setattr(model._holder, "lock", Slow())
    expected = model.predict_then_learn([(0, 7, 50.0)])
    centre, unit, forecasts = seen[0]
    assert expected[0] == pytest.approx(np.clip(centre + unit * forecasts[0], -100, 100))


@pytest.mark.parametrize("options", [{}, {"history": "none"}, {"dtype": "float64"}], ids=str)
@pytest.mark.parametrize("kind", ["clipped", "one-hot", "one outlier"])
def test_new_users_with_the_ratings_of_others_leave_numbers(kind, options, tmp_path):
    """Rounding online is more than the prior's scale of such tables."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((60, 40)) < 0.5)
    level = (rng.normal(size=(60, 2)) @ rng.normal(size=(40, 2)).T)[users, items]
    place = np.arange(users.size)
    ratings = {
        "clipped": np.maximum(level, 1.5),
        "one-hot": (place % 97 == 0).astype(float),
        "one outlier": np.where(place == 7, 1e12, level),
    }[kind]
    model = HeMF(n_factors=4, max_sweeps=60, rng=0, n_jobs=1, **options)
    model.fit((users, items, ratings))
    for begin in range(0, 300, 60):
        part = slice(begin, begin + 60)
        model.partial_fit((users[part] + 3, items[part], ratings[part]))
        mean, std = model.predict(users, items, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
    model.save(tmp_path / "model.hemf")
    HeMF.load(tmp_path / "model.hemf")


def drawn(seed: int, shape: tuple[int, int], density: float, outlier: float) -> Columns:
    """A table of rank 2 without noise, and one rating far from all others."""
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random(shape) < density)
    level = rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    values = 3.0 + level[users, items]
    values[7] = outlier
    return users, items, values


@pytest.mark.parametrize("history", ["full", 4])
@pytest.mark.parametrize("outlier", [1e12, -9e7])
def test_communities_are_judged_where_an_outlier_has_one_of_its_own(history, outlier) -> None:
    """Rounding of the outlier's squares is more than all that others give to their community."""
    options = {"noise_scales": None, "evb": "gradient", "membership": "mean-field"}
    for seed in range(2):
        data = drawn(seed, (35, 18), 0.6, outlier)
        model = HeMF(n_factors=2, rng=0, n_jobs=1, dtype="float64", history=history, **options)
        model.fit(data)
        for begin in range(0, 70, 7):
            model.partial_fit(part(data, begin, begin + 7))
        mean, std = model.predict(*data[:2], return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_rating_that_drowns_all_others_leaves_numbers(seed: int) -> None:
    """Where squares of it are all that float32 can hold, later ratings may have to be refused."""
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((42, 78)) < 0.1)
    order = rng.permutation(users.size)[:210]
    data = users[order], items[order], np.full(order.size, 3.0)
    data[2][200] = 1e9
    model = HeMF(
        n_factors=20, rng=0, n_jobs=1, noise_scales=None, evb=None, offsets=False, history="none",
        membership="mean-field", user_covariances="tied", item_covariances="tied",
    )  # fmt: skip
    for begin in [*range(0, 210, 7), *range(0, 140, 7)]:
        with suppress(DataError):
            model.partial_fit(part(data, begin, begin + 7))
        mean, std = model.predict(*data[:2], return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("breaks", ["numbers", "arithmetic"])
def test_learning_that_breaks_down_is_undone_with_a_clear_error(
    breaks, stream, tmp_path, monkeypatch
) -> None:
    data = ratings()
    model = HeMF(n_factors=3, rng=0, n_jobs=1).fit(part(data, 0, 800))
    model.partial_fit(part(data, 800, 900))
    model.save(tmp_path / "before")

    def broken(state: OnlineState) -> bool:
        if breaks == "arithmetic":
            raise np.linalg.LinAlgError
        state.noise = float("nan")
        return False

    learn = model.predict_then_learn if stream else model.partial_fit
    with monkeypatch.context() as patch:
        patch.setattr(steps, "make_due", broken)
        with pytest.raises(DataError, match="these ratings cannot be learnt"):
            learn(part(data, 900, 905))
    model.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    learn(part(data, 900, 905))


@pytest.mark.filterwarnings("ignore:invalid value encountered in slogdet:RuntimeWarning")
def test_a_fit_that_breaks_down_says_what_to_do() -> None:
    """Noise is at its floor, and the prior of one direction a billionth of that of others."""
    rng = np.random.default_rng(461)
    shape = int(rng.integers(5, 80)), int(rng.integers(5, 80))
    there = rng.random(shape) < rng.choice([0.3, 0.6, 1.0])
    there[0, 0] = True
    users, items = np.nonzero(there)
    level = 3.0 + (rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1])))[users, items]
    rng.integers(1, 6, users.size)
    rng.integers(2)
    rng.choice(4)
    level[rng.integers(users.size)] = 100.0
    options = {"n_factors": 4, "rng": 0, "n_jobs": 1, "noise_scales": None, "evb": "gradient"}
    model = HeMF(**options)
    try:
        model.fit((users, items, level))
    except DataError as error:
        assert 'use dtype="float64"' in str(error)  # noqa: PT017
        assert not hasattr(model, "state_")
    else:
        assert np.isfinite(model.predict(users, items)).all()
    right = HeMF(**options, dtype="float64").fit((users, items, level))
    assert np.isfinite(right.predict(users, items)).all()
