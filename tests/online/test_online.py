"""Learning online is coordinate ascent on the ratings seen so far, row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hemf import DataError, HeMF, Ratings
from hemf._options import ALL, FitOptions, OnlineOptions, Schedule
from hemf._typing import SIDES
from hemf.batch.fit import BatchState, learn_noise, sweep, update_side
from hemf.data.ratings import Sparse
from hemf.evaluation import rmse
from hemf.online import start, updates
from hemf.online import state as states
from hemf.online.state import OnlineState
from proofs.climbing import assert_climbs
from proofs.learners import (
    CENTRE,
    EXACT,
    SETTINGS,
    absorb,
    adopted,
    as_batch,
    assert_nothing_drifted,
    assert_same_statistics,
    batch_of,
    bound_terms,
    coarse,
    learner,
    pairs,
    planted,
    predict_then_learn,
    record,
    solve,
    some,
)
from proofs.problems import Setting, fit_with, problem, tables

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

WINDOWS = [ALL, 0, 3]
AT_ONCE = Schedule(warm_up=-1, hold_scale=0, hold_structure=0, hold_noise=0, merge_every=1)
"""Everything is learnt in every sweep."""


def assert_same_state(ours: OnlineState, theirs: BatchState, tolerance: float = 1e-8) -> None:
    assert ours.noise == pytest.approx(theirs.noise, rel=tolerance)
    for name in SIDES:
        left, right = ours.sides[name], theirs.sides[name]
        arrays = [
            (left.moments.mean, right.moments.mean),
            (left.moments.second, right.moments.second),
            (left.membership, right.membership),
            (left.weights, right.weights),
            (left.prior.centre, right.prior.centre),
            (left.prior.scale, right.prior.scale),
            (left.prior.dof, right.prior.dof),
            (left.prior.mean_scale, right.prior.mean_scale),
            (left.prior.concentration, right.prior.concentration),
            (left.communities.scale, right.communities.scale),
            (left.communities.mean, right.communities.mean),
        ]
        for one, other in arrays:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        assert_same_statistics(left.statistics, right.statistics, tolerance)
    quick, slow = ours.bound_terms(), theirs.bound_terms()
    total = abs(sum(slow.values()))
    assert quick == pytest.approx(slow, abs=tolerance * total)


# -- one batch that holds everything is one sweep ------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_batch_fit_is_taken_over_by_one_sweep(setting: Setting, seed: int) -> None:
    state = coarse(problem(np.random.default_rng(seed), setting, communities=(4, 3)))
    online = adopted(state)
    for name in SIDES:
        update_side(state, name, learn=False)
    learn_noise(state)
    assert_same_state(online, state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_refreshing_all_rows_is_a_half_sweep(setting: Setting, seed: int) -> None:
    online = adopted(
        coarse(problem(np.random.default_rng(seed), setting, communities=(3, 4))), evb=None
    )
    state = as_batch(online)
    for name in ("item", "user", "user", "item"):
        updates.refresh(online, name, np.arange(online.stores[name].n_rows))
        update_side(state, name, learn=False)
    assert_same_state(online, state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_batch_of_everything_is_one_sweep_with_hyper_parameters_and_moves(
    setting: Setting,
) -> None:
    rng = np.random.default_rng(0)
    converged = replace(planted(rng, setting), seeded_at=0, sweeps=1)
    options = fit_with(setting, schedule=AT_ONCE)
    for _ in range(3):
        sweep(converged, options, rng)
    online = adopted(converged)
    state = replace(as_batch(online), seeded_at=0, sweeps=1)
    absorb(online, *pairs(online), np.full(online.n_ratings, -1))
    sweep(state, options, rng)
    for side in state.sides.values():
        side.refresh()  # online, communities have followed the new prior already
    assert [online.sides[name].n_communities for name in SIDES] == [3, 3]
    assert_same_state(online, state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_first_batch_is_the_first_sweep(setting: Setting) -> None:
    data = coarse(problem(np.random.default_rng(3), setting))
    fit = FitOptions(
        n_factors=2, offsets=setting.offsets, max_communities={"user": 1, "item": 1},
        tied={"user": setting.tied_users, "item": setting.tied_items}, coupled=True,
        noise_scales=dict.fromkeys(SIDES, setting.noise_scales), evb="closed", concentration=1.0,
        spread=1.0, max_sweeps=1, tolerance=0.0, patience=1, n_jobs=1, dtype=np.float64,
    )  # fmt: skip
    online = start.begin(
        fit,
        OnlineOptions(**EXACT),
        centre=CENTRE,
        unit=data.unit,
        rng=np.random.default_rng(0),
    )
    for name in SIDES:
        states.add_new_rows(online, name, data.sides[name].n_rows)
    state = replace(data, noise=online.noise, sides=as_batch(online).sides, sweeps=0)
    rows = tables(data)["user"]
    codes = online.book.codes(np.float32(rows.values * data.unit + CENTRE))
    users = np.repeat(np.arange(rows.indptr.size - 1), np.diff(rows.indptr))
    # Rows without a rating wait for their first; a sweep gives them to the community at once.
    rated = {"user": np.unique(users), "item": np.unique(rows.indices)}
    assert all(rated[name].size == state.sides[name].n_rows for name in SIDES)
    assert absorb(online, users, rows.indices.astype(np.int64), codes, np.full(codes.size, -1)) == (
        codes.size
    )
    held = replace(AT_ONCE, hold_scale=9)  # many ratings are new: W0 is not learnt yet
    sweep(state, replace(fit, schedule=held), np.random.default_rng(0))
    for side in state.sides.values():
        side.refresh()
    assert_same_state(online, state)


# -- every update raises the bound of the ratings seen so far ------------------------------------


class Climb:
    """A state, and its bound computed from scratch after every step."""

    def __init__(self, state: OnlineState) -> None:
        self.state = state
        self.value = self.total()

    def total(self) -> float:
        return sum(bound_terms(self.state).values())

    def assert_no_lower(self, block: str) -> None:
        value = self.total()
        assert value >= self.value - 1e-9 * abs(self.value), (block, value - self.value)
        self.value = value


def arrive(rng: np.random.Generator, state: OnlineState, n: int) -> None:
    """New, changed and removed ratings come into both histories, and no row has noticed."""
    users, items = (rng.integers(0, state.stores[name].n_rows, n) for name in SIDES)
    codes = rng.integers(0, len(state.book), n)
    for i, j, code in zip(users, items, codes, strict=True):
        was = state.stores["user"].history.row(i)
        there = np.flatnonzero(was[0] == j)
        before = int(was[1][there[0]]) if there.size else -1
        removes = before >= 0 and rng.random() < 0.5
        for name in SIDES:
            record(state, name, i, j, -1 if removes else code, before)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_refreshing_any_rows_raises_the_bound(setting: Setting, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = learner(rng, setting, communities=(4, 3), options={"min_share": 1e-14})
    first = Climb(state).value
    for _ in range(3):
        climb = Climb(state)
        for name in rng.choice(SIDES, 6):
            updates.refresh(state, name, some(rng, state, name), learn=False)
            climb.assert_no_lower(name)
        for name in SIDES:
            updates.refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)
            climb.assert_no_lower(f"all {name}s")
        assert climb.value > first
        assert_nothing_drifted(state)
        arrive(rng, state, 6)
        first = -np.inf


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_shared_parameters_raise_the_bound_once_rows_are_up_to_date(
    setting: Setting, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    start = planted(rng, setting, users=(8, 6), items=(7, 5), spread=0.3)
    state = adopted(start, min_share=1e-14)
    climb = Climb(state)
    for _ in range(3):
        for name in SIDES:
            updates.refresh(state, name, np.arange(state.stores[name].n_rows), learn=False)
            climb.assert_no_lower(name)
            updates.learn_row_scales(state, name, all_fresh=True)
            climb.assert_no_lower(f"{name} noise scales")
        updates.learn_noise(state, "item", None)
        climb.assert_no_lower("σ²")
        state.clocks.last |= {("prior", name): -np.inf for name in SIDES}  # all is due
        updates.learn_priors(state)
        climb.assert_no_lower("hyper-parameters and moves")
        assert_nothing_drifted(state)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_passes_over_everything_climb(setting: Setting) -> None:
    rng = np.random.default_rng(4)
    state = learner(rng, setting, communities=(3, 3), options={"min_share": 1e-14})
    climb = Climb(state)
    first = climb.value
    for _ in range(6):
        absorb(state, *pairs(state), np.full(state.n_ratings, -1))
        climb.assert_no_lower("pass")
    assert climb.value > first + 1.0


def in_range(state: OnlineState) -> OnlineState:
    """The same state with a prior of its noise scales that may be learnt."""
    for name in SIDES:
        updates.learn_row_scales(state, name)
    return state


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_small_batches_climb(setting: Setting, thorough: bool, seed: int) -> None:
    """σ² and noise scales too, though most rows have not been refreshed for long."""
    rng = np.random.default_rng(seed)
    options = {"min_share": 1e-14, "thorough": thorough}
    state = learner(rng, setting, communities=(3, 3), options=options)
    climb = Climb(in_range(state))
    for _ in range(20):
        again = rng.choice(state.n_ratings, 2, replace=False)
        users, items, codes = (part[again] for part in pairs(state))
        absorb(state, users, items, codes, codes)
        climb.assert_no_lower("batch")
        assert_nothing_drifted(state)
    assert (
        state.stores["user"].totals[2] > state.clocks.last["prior", "user"] > 0
    )  # scales were learnt


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_climbs(setting: Setting, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = {"min_share": 1e-14, "thorough": False}
    state = learner(rng, setting, communities=(3, 3), options=options)
    climb = Climb(in_range(state))
    for _ in range(20):
        again = rng.choice(state.n_ratings, 5, replace=False)
        predict_then_learn(state, *(part[again] for part in pairs(state)))
        climb.assert_no_lower("stream")
        assert_nothing_drifted(state)


# docs/model.md#online-noise
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_noise_and_its_scales_climb_wherever_rows_are(setting: Setting) -> None:
    rng = np.random.default_rng(7)
    state = in_range(learner(rng, setting, communities=(3, 3), options={"min_share": 1e-14}))
    for _ in range(5):
        arrive(rng, state, 6)
        for name in rng.choice(SIDES, 3):
            updates.refresh(state, name, some(rng, state, name), learn=False)
        updates.refresh(state, "user", np.flatnonzero(state.stores["user"].pending), learn=False)
        climb = Climb(state)
        for name in SIDES:
            updates.learn_row_scales(state, name)
            climb.assert_no_lower(f"{name} noise scales")
        before, total = state.noise, state.squared_error
        updates.learn_noise(state, "item", None)
        climb.assert_no_lower("σ²")
        assert state.noise == pytest.approx(total / state.n_ratings)
        assert state.noise != before
        assert_nothing_drifted(state)


# docs/model.md#squared-error
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_bound_on_record_is_the_bound(setting: Setting) -> None:
    """All of it once items are up to date; but for the ratings' term, always."""
    rng = np.random.default_rng(6)
    state = learner(rng, setting, communities=(4, 3))
    for _ in range(3):
        for name in rng.choice(SIDES, 4):
            updates.refresh(state, name, some(rng, state, name), learn=False)
        quick, slow = state.bound_terms(), bound_terms(state)
        total = abs(sum(slow.values()))
        quick["ratings"] = slow["ratings"]
        assert quick == pytest.approx(slow, abs=1e-9 * total)
        updates.refresh(state, "item", np.arange(state.stores["item"].n_rows), learn=False)
        assert state.bound_terms() == pytest.approx(bound_terms(state), abs=1e-9 * total)


# -- nothing drifts ------------------------------------------------------------------------------


# docs/model.md#online-rows
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("setting", SETTINGS[1::2], ids=str)
def test_statistics_are_what_rows_have_given_whatever_happened(
    setting: Setting, window: int
) -> None:
    rng = np.random.default_rng(12)
    options = {"thorough": False, "min_share": 1e-2, "max_parts": 2, "refresh": 0.5}
    state = adopted(planted(rng, setting), window=window, **options)
    state.start_scale = 0.1
    for step in range(12):
        absorb(state, *batch_of(rng, state, 12))
        n_rows = [state.stores[name].n_rows for name in SIDES]
        codes = rng.integers(0, len(state.book), 30)
        predict_then_learn(
            state, rng.integers(0, n_rows[0], 30), rng.integers(0, n_rows[1], 30), codes
        )
        if step % 3 == 2:
            state.clocks.last |= {("prior", name): -np.inf for name in SIDES}
            state.clocks.last |= {("search", name): -np.inf for name in SIDES}
            updates.learn_priors(state)
        assert_nothing_drifted(state)


def test_float32_rows_take_back_what_they_gave() -> None:
    rng = np.random.default_rng(13)
    start = planted(rng, SETTINGS[3])
    for name, side in start.sides.items():
        side.moments = type(side.moments)(
            side.moments.mean.astype(np.float32), side.moments.second.astype(np.float32)
        )
        side.membership = side.membership.astype(np.float32)
        rows = tables(start)[name]
        tables(start)[name] = Sparse(rows.indptr, rows.indices, rows.values.astype(np.float32))
    state = adopted(start)
    for _ in range(300):
        for name in SIDES:
            solve(state, name, some(rng, state, name))
    for name in SIDES:
        state.sides[name].refresh(state.stores[name].statistics)
    assert_nothing_drifted(state)


def test_a_row_that_rates_all_anew_changes_its_community() -> None:
    state = adopted(planted(np.random.default_rng(0), SETTINGS[0]), thorough=False)
    users, items, codes = pairs(state)
    theirs = state.stores["user"]
    new, model = 0, theirs.n_rows - 1
    mine = users == new
    wanted = theirs.mean[model] @ state.stores["item"].mean[items[mine]].T
    ratings = np.round(4.0 * (wanted * state.unit + state.centre)) / 4.0
    assert theirs.membership[new].argmax() != theirs.membership[model].argmax()
    for _ in range(5):
        absorb(state, users[mine], items[mine], state.book.codes(np.float32(ratings)), codes[mine])
    assert theirs.membership[new].argmax() == theirs.membership[model].argmax()


# -- through the model ---------------------------------------------------------------------------

ONE: dict[str, Any] = {
    "n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "dtype": "float64",
    "rng": 0,
}  # fmt: skip


def tastes(rng: np.random.Generator, noise: float) -> tuple[list[Any], np.ndarray]:
    """Ratings, in quarters, by 60 users of 50 items, in any order; and all that could be given."""
    table = 3.0 + rng.normal(size=(60, 2)) @ rng.normal(size=(50, 2)).T
    table = np.round(4.0 * (table + noise * rng.normal(size=table.shape))) / 4.0
    chosen = np.argwhere(rng.random(table.shape) < 0.6)
    rng.shuffle(chosen)
    return [(int(i), int(j), float(table[i, j])) for i, j in chosen], table


@pytest.mark.parametrize("noise_scales", [None, "both"])
def test_forgetting_does_not_pass_for_precision(noise_scales: str | None) -> None:
    """Where nothing drifts, σ² comes out too large, by what rows might have drifted.

    The posterior variance of a row's predictions is h = k/Σw of σ², for k coordinates and weights
    w. But they err by g = k Σw²/(Σw)² of it, which is less: old ratings count less and average out
    all the same. E(r - a·b)² of a rating that was learnt is the true σ²(1 - g) and the model's
    σ² h, once for each side: σ² is multiplied by 1 + 2(h - g) at least, and as it multiplies h
    itself, by (1 - 2g)/(1 - 2h) at most.
    """
    triples, _ = tastes(np.random.default_rng(22), noise=0.5)
    found = {}
    for forgetting in (1.0, 0.95, 0.9):
        model = HeMF(**ONE, noise_scales=noise_scales, forgetting=forgetting).fit(triples[:1000])
        for begin in range(1000, len(triples), 100):
            model.partial_fit(triples[begin : begin + 100])
        found[forgetting] = model.noise_variance_
    assert found[1.0] == pytest.approx(0.25, rel=0.1)
    coordinates = ONE["n_factors"] + 1  # and an offset
    for forgetting in (0.95, 0.9):
        w = forgetting ** np.arange(len(triples) / 55.0)  # of 60 users and 50 items
        h, g = coordinates / w.sum(), coordinates * (w**2).sum() / w.sum() ** 2
        ratio = found[forgetting] / found[1.0]
        assert 0.95 * (1.0 + 2.0 * (h - g)) < ratio < (1.0 - 2.0 * g) / (1.0 - 2.0 * h)


@pytest.mark.parametrize("settings", [{}, {"noise_scales": None}, {"offsets": False}])
def test_no_update_of_a_model_with_its_defaults_lowers_the_bound(settings: Any) -> None:
    triples, _ = tastes(np.random.default_rng(0), noise=0.5)
    model = HeMF(n_factors=4, rng=0, dtype="float64", n_jobs=1, **settings).fit(triples)
    assert_climbs(model, triples, [1, 5, 1, 200] * 8)


def test_a_history_that_no_row_exceeds_learns_as_a_full_one() -> None:
    triples, table = tastes(np.random.default_rng(0), noise=0.5)
    grid = [part.ravel() for part in np.indices(table.shape)]
    errors = []
    for history in ("full", 64):
        model = HeMF(**ONE, history=history).fit(triples[:300])
        for begin in range(300, len(triples), 20):
            model.partial_fit(triples[begin : begin + 20])
        errors.append(rmse(table.ravel(), model.predict(*grid)))
    assert errors[1] == pytest.approx(errors[0], abs=0.05)


# docs/model.md#removed-rating
@pytest.mark.parametrize("history", ["none", 8])
def test_taking_one_rating_back_does_not_change_the_noise(history: str | int) -> None:
    triples, _ = tastes(np.random.default_rng(23), noise=0.5)
    model = HeMF(**ONE, history=history).fit(triples[:300])
    for begin in range(300, len(triples), 100):
        model.partial_fit(triples[begin : begin + 100])
    before = model.noise_variance_
    model.partial_fit(removed=triples[-1:])
    assert model.noise_variance_ == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize(("history", "forgetting"), [("none", 0.9), ("none", 1.0), (8, 0.9)])
def test_taking_ratings_back_leaves_no_nan_behind(history: str | int, forgetting: float) -> None:
    triples, _ = tastes(np.random.default_rng(0), noise=0.5)
    model = HeMF(**ONE, history=history, forgetting=forgetting).fit(triples[:300])
    for begin in range(300, len(triples), 100):
        model.partial_fit(triples[begin : begin + 100])
    for part in [*np.split(np.arange(1500), 30), *np.arange(1500, len(triples))[:, None]]:
        model.partial_fit(removed=[triples[k] for k in part])
        for name in SIDES:
            assert np.isfinite(model.state_.stores[name].mean).all()
        assert np.isfinite(model.noise_variance_)


@pytest.mark.parametrize("noise_scales", [None, "both"])
def test_predictions_elsewhere_come_back_when_a_rating_does(noise_scales: str | None) -> None:
    rng = np.random.default_rng(24)
    triples, table = tastes(rng, noise=0.5)
    model = HeMF(
        n_factors=3, dtype="float64", rating_range=None, noise_scales=noise_scales, rng=0
    ).fit(triples)
    model.partial_fit(triples[:1])
    grid = [part.ravel() for part in np.indices(table.shape)]
    rated = {triple[:2] for triple in triples}
    free = [
        pair for pair in zip(*(part.tolist() for part in grid), strict=True) if pair not in rated
    ]
    for _ in range(6):
        user, item, rating = triples[rng.integers(len(triples))]
        there = model.predict(*grid)
        model.partial_fit([(user, item, rating + (1.0 if rating < 3.0 else -1.0))])
        moved = model.predict(*grid)
        model.partial_fit([(user, item, rating)])
        assert_back(there, moved, model.predict(*grid), grid, (user, item))
        user, item = free[rng.integers(len(free))]
        there = model.predict(*grid)
        model.partial_fit([(user, item, float(table[user, item]))])
        moved = model.predict(*grid)
        model.partial_fit(removed=[(user, item)])
        assert_back(there, moved, model.predict(*grid), grid, (user, item))


def assert_back(there: Any, moved: Any, back: Any, grid: list[Any], pair: tuple[int, int]) -> None:
    elsewhere = (grid[0] != pair[0]) | (grid[1] != pair[1])
    assert np.abs(moved - there)[elsewhere].max() > 1e-4
    assert np.abs(back - there)[elsewhere].max() < 0.02
    apart = (grid[0] != pair[0]) & (grid[1] != pair[1])
    np.testing.assert_array_equal(back[apart], there[apart])


@pytest.mark.parametrize("history", ["full", 8, "none"])
def test_a_batch_touches_no_pair_without_its_users_and_items(history: str | int) -> None:
    triples, table = tastes(np.random.default_rng(25), noise=0.5)
    model = HeMF(**ONE, history=history).fit(triples)
    model.partial_fit(triples[:1], previous=[triples[0][2]])
    grid = [part.ravel() for part in np.indices(table.shape)]
    before = model.predict(*grid)
    batch = [(user, item, 3.0) for user, item, _ in triples[:5]]
    model.partial_fit(batch, previous=[triple[2] for triple in triples[:5]])
    apart = ~np.isin(grid[0], [t[0] for t in batch]) & ~np.isin(grid[1], [t[1] for t in batch])
    assert apart.any()
    np.testing.assert_array_equal(model.predict(*grid)[apart], before[apart])


# docs/model.md#history
@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 3])
def test_repeated_passes_end_where_batch_inference_ends(shared_data: Path, batches: int) -> None:
    """MovieLens 100K, both from the same early sweep."""
    path = shared_data / "ml-100k.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {shared_data}")
    data = Ratings.from_any(path)
    users, items, values = data.triples()
    order = np.random.default_rng(0).permutation(values.size)
    parts = np.array_split(order[10_000:], batches)
    test = order[:10_000]
    settings = {**ONE, "n_factors": 10, "tol": 1e-12, "n_jobs": 1}

    def error(model: HeMF) -> float:
        return rmse(values[test], model.predict(users[test], items[test]))

    def rated(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return users[rows], items[rows], values[rows]

    model = HeMF(**settings, max_sweeps=15).fit(rated(order[10_000:]))
    for _ in range(60 // batches):
        for rows in parts:
            model.partial_fit(rated(rows))
    batch = HeMF(**settings, max_sweeps=75).fit(rated(order[10_000:]))
    assert error(model) == pytest.approx(error(batch), abs=0.0005)
    assert model.elbo_ == pytest.approx(batch.elbo_, rel=0.001)


def test_a_side_with_few_rows_does_not_hold_up_the_refreshes_of_the_other() -> None:
    rng = np.random.default_rng(3)
    triples = [(u, i, float(rng.normal())) for u in range(4) for i in range(60)]
    model = HeMF(**ONE, refresh=1.0).fit(triples[:200])
    model.partial_fit(triples[200:])
    state = model.state_
    before = {name: state.stores[name].totals[2] for name in SIDES}
    updates.refresh_stale(state, 40)
    done = {name: state.stores[name].totals[2] - before[name] for name in SIDES}
    assert done == {"user": 4.0, "item": 40.0}


def test_a_rating_that_nobody_can_have_given_is_not_taken_back() -> None:
    model = HeMF(**ONE, history=5).fit([(0, 0, 3.0), (1, 1, 4.0), (0, 2, 2.0), (2, 1, 5.0)])
    model.partial_fit([(3, 3, 3.0)])
    with pytest.raises(DataError, match="no rating of item 0"):
        model.partial_fit(removed=[(3, 0, 3.0)])
