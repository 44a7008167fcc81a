"""What the sampler answers: to strangers, for ids in any form, of its noise; and when it warns."""

from __future__ import annotations

import time
import warnings
from itertools import pairwise

import numpy as np
import pytest

from hemf import ConvergenceWarning, GibbsHeMF, ParameterError, Ratings, UnknownIdError
from hemf.batch.inputs import regression_bytes
from hemf.model.regression import conjugate_gradients
from hemf.samplers import BPMF, M3FTIB, M3FTIF
from hemf.samplers import hemf as sampler
from hemf.samplers.hemf import HeMFChain, drawn_sides
from proofs.problems import tables

CAFE = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
QUICK = {"n_factors": 2, "samples": 8, "burn_in": 4, "rng": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def model():
    return GibbsHeMF(**QUICK).fit(CAFE)


@pytest.mark.parametrize("features", [None, {"ann": {"age": 20}, "bob": {"age": 30}}])
def test_an_id_without_a_rating_is_a_stranger_even_if_the_ratings_name_it(features):
    part = Ratings.from_any(CAFE).select(np.arange(3))  # eve has no rating left
    assert (len(part.users), part.n_ratings) == (3, 3)
    model = GibbsHeMF(**QUICK).fit(
        part, user_features=features, validation=[("eve", "tea", 3), ("eve", "milk", 1)]
    )
    mean, std, known = model.predict(["ann", "eve"], "tea", return_std=True, return_known=True)
    by_start = model.start_.predict(["ann", "eve"], "tea", return_std=True, return_known=True)
    assert known.tolist() == by_start[2].tolist() == [True, False]
    assert (mean[1], std[1]) == (by_start[0][1], by_start[1][1])
    assert mean[0] != by_start[0][0]
    errors = model.start_.predict("eve", ["tea", "milk"]) - [3, 1]
    assert model.history_[-1].validation_rmse == pytest.approx(np.sqrt(np.mean(errors**2)))
    with pytest.raises(UnknownIdError, match="'eve'"):
        model.predict("eve", "tea", unknown="error")


@pytest.mark.parametrize(
    ("kind", "more"),
    [(GibbsHeMF, {}), (GibbsHeMF, {"ordinal": True}), (BPMF, {}), (M3FTIB, {}), (M3FTIF, {})],
)
def test_scores_are_expected_ratings_of_all_pairs_strangers_included(kind, more):
    model = kind(**QUICK, **more, rating_range=None).fit(CAFE)
    users, items = ["ann", "zoe", "eve"], ["milk", "gin", "tea"]
    expected = model.predict(np.repeat(users, 3), np.tile(items, 3)).reshape(3, 3)
    assert model.scores(users, items) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [GibbsHeMF, BPMF])
def test_ids_that_the_ratings_have_learnt_since_are_strangers(kind):
    ratings = Ratings.from_any(CAFE)
    model = kind(**QUICK).fit(ratings)
    before = model.predict(["ann", "zoe", "kim"], "tea", return_std=True)
    ratings.users.add(["kim", "zoe"])
    ratings.items.add(["gin"])
    after = model.predict(["ann", "zoe", "kim"], "tea", return_std=True)
    assert np.array_equal(before, after)
    assert (model.n_users_, model.n_items_) == (3, 2)


def test_ids_that_can_be_read_once_are_enough_for_strangers_too(model):
    pairs = [("ann", "tea"), ("kim", "milk"), ("bob", "gin")]
    users, items = zip(*pairs, strict=True)
    wanted = model.predict(list(users), list(items))
    assert np.array_equal(model.predict(iter(users), iter(items)), wanted)
    assert np.array_equal(model.predict(pair for pair in pairs), wanted)


def test_switches_may_be_those_of_numpy(model):
    wanted = model.predict("ann", "tea", return_std=True, return_known=True)
    assert model.predict("ann", "tea", return_std=np.True_, return_known=np.True_) == wanted
    assert model.predict("ann", "tea", return_std=np.False_) == wanted[0]


def test_noise_is_that_of_the_report_and_outliers_add_to_the_deviation():
    settings = {**QUICK, "samples": 1, "noise_scales": None, "outliers": True}
    model = GibbsHeMF(**settings).fit(CAFE)
    (sample,) = model.samples_
    assert model.noise_variance_ == sample.noise == model.history_[-1].noise_variance
    assert sample.outlier_variance > 1.0
    _, std = model.predict("ann", "tea", return_std=True)  # one sample: noise, and nothing else
    assert std == pytest.approx(np.sqrt(sample.noise * sample.outlier_variance))


def test_a_sample_takes_the_memory_of_all_its_tables():
    (sample,) = GibbsHeMF(**{**QUICK, "samples": 1}).fit(CAFE).samples_
    assert sample.nbytes == 4 * 4 * (4 + 3) + 8 * (4 + 3)  # one row more each, for strangers
    assert 0.0 < sample.user_weights[-1] < 1.0  # of whose noise nothing is known: it counts less


def test_features_that_are_factorised_anew_count_in_the_memory_that_is_asked_for(rng):
    states = [
        GibbsHeMF(**QUICK, implicit_features=implicit).fit(CAFE).start_.state_
        for implicit in (True, False)
    ]
    with_features, without = (
        HeMFChain(drawn_sides(state), state.noise, 1.0, rng, 1).step_bytes for state in states
    )
    assert without == 4 * 3 * 3**2  # S_i of three users, their offset and two factors
    designs = [side.regression.design for side in states[0].sides.values()]
    wanted = sum(regression_bytes(design, QUICK["n_factors"]) for design in designs)
    assert with_features == without + wanted


def test_the_time_of_the_start_is_part_of_the_fit(monkeypatch):
    now = iter(np.arange(0.0, 1e6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    fit = GibbsHeMF._first

    def slow(self, rng):
        for _ in range(1000 * isinstance(rng, np.random.Generator)):
            next(now)
        return fit(self, rng)

    monkeypatch.setattr(GibbsHeMF, "_first", slow)
    seconds = [report.seconds for report in GibbsHeMF(**QUICK).fit(CAFE).history_]
    assert seconds[0] > 1000.0
    assert all(0.0 < later - earlier < 100.0 for earlier, later in pairwise(seconds))


def test_an_interrupted_fit_leaves_the_old_model():
    model = GibbsHeMF(**QUICK).fit(CAFE)
    before, first = model.predict(["ann", "kim"], "tea").tolist(), model.start_

    def interrupt(report):
        if report.iteration == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit([("kim", "tea", 1), ("kim", "ale", 5)], callbacks=[interrupt])
    assert model.predict(["ann", "kim"], "tea").tolist() == before
    assert model.start_ is first
    assert model.n_sweeps_ == 12


@pytest.mark.parametrize(("kind", "has_it"), [(GibbsHeMF, False), (BPMF, True)])
def test_numbers_out_of_range_are_an_error_that_names_no_other_models_parameter(
    kind, has_it, monkeypatch
):
    def fail(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr("hemf.samplers.hemf.DrawnSide.draw", fail)
    monkeypatch.setattr("hemf.samplers.bpmf.draw_rows", fail)
    with pytest.raises(ParameterError, match="left the range of float32") as error:
        kind(**QUICK).fit(CAFE)
    assert ("noise_variance" in str(error.value)) is has_it


# -- conjugate gradients -------------------------------------------------------------------------


def test_conjugate_gradients_say_whether_they_got_there(rng):
    spectrum = np.geomspace(1e-3, 1.0, 60)[:, None]
    right = rng.normal(size=(60, 2))

    enough = 1e-6 * np.sum(right * right)

    def solve(max_steps):
        def apply(v):
            return np.sum(v * spectrum * v), lambda: spectrum * v

        nothing = np.zeros_like(right)
        return conjugate_gradients(
            apply, right, nothing, lambda v: v, max_steps=max_steps, enough=enough
        )

    found, steps, size = solve(200)
    assert 0.0 <= size <= enough
    assert 5 < steps < 200
    assert np.linalg.norm(spectrum * found - right) < 1e-3 * np.linalg.norm(right)
    _, steps, size = solve(5)
    assert steps == 5
    assert size > enough


def test_a_precondition_that_is_none_is_not_taken_for_the_end(rng):
    right = rng.normal(size=(60, 2))
    signs = np.where(np.arange(60) < 45, -1.0, 1.0)[:, None]
    *_, size = conjugate_gradients(
        lambda v: (np.sum(v * v), lambda: v),
        right,
        np.zeros_like(right),
        lambda v: signs * v,
        max_steps=200,
        enough=1e-6 * np.sum(right * right),
    )
    assert size < 0.0


def test_draws_that_are_cut_short_are_warned_of_once_for_each_side(monkeypatch):
    monkeypatch.setattr(sampler, "MAX_STEPS", 1)
    monkeypatch.setattr(sampler, "ACCURACY", 1e-9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GibbsHeMF(**QUICK).fit(CAFE)
    issued = [each for each in caught if issubclass(each.category, ConvergenceWarning)]
    assert len(issued) == 2
    assert "did not converge" in str(issued[0].message)


# -- order of ratings ----------------------------------------------------------------------------


def test_weights_of_ratings_stay_with_their_ratings_item_by_item(rng):
    """Ratings in any order, and ids without any: what Geweke's test of a full table cannot see."""
    pairs = rng.permutation(30 * 20)[:200]
    users, items = pairs // 20, pairs % 20
    table = Ratings.from_any((users, items, np.arange(200.0)))
    model = GibbsHeMF(**QUICK).fit(table.select(np.arange(150)))
    state = model.start_.state_
    assert any((state.counts[name] == 0).any() for name in ("user", "item"))
    chain = HeMFChain(drawn_sides(state), state.noise, 1.0, rng, 1, outliers=True)
    by_user, by_item = tables(state)["user"], tables(state)["item"]
    assert np.array_equal(by_user.values[chain._by_item], by_item.values)  # all are different
    chain.sides["user"].scales.weights = rng.uniform(0.5, 2.0, len(table.users))
    chain.sides["item"].scales.weights = rng.uniform(0.5, 2.0, len(table.items))
    chain.outliers.weights = rng.uniform(0.5, 2.0, 150)
    of_users, of_items = (chain.sides[name].weights for name in ("user", "item"))
    own = dict(zip(by_user.values.tolist(), chain.outliers.weights, strict=True))
    wanted = [
        of_items[item] * of_users[by_item.indices[k]] * own[by_item.values[k].item()]
        for item in range(len(table.items))
        for k in range(by_item.indptr[item], by_item.indptr[item + 1])
    ]
    np.testing.assert_allclose(chain.weights[chain._by_item], wanted)
