"""What must not matter does not: order of rows and communities, scale of ratings, threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf.batch.fit import BatchState, assign, learn_noise, update_side
from hemf.data import datasets
from hemf.data.ratings import Sparse
from hemf.engines.threads import Threads
from hemf.model.communities import learn_prior
from hemf.model.regression import Design
from hemf.model.rows import Moments, NoiseScales
from hemf.model.side import Side, order_by_size
from proofs.problems import OTHER, SETTINGS, Setting, problem, tables

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def sweeps(state: BatchState, setting: Setting, times: int = 3) -> None:
    """Sweep both sides, hyper-parameters and moves included."""
    for _ in range(times):
        for name, side in state.sides.items():
            update_side(state, name, coupled=setting.coupled)
            order_by_size(side)
        learn_noise(state)
        for side in state.sides.values():
            side.prior = learn_prior(
                side.prior, side.communities, evb="closed", structure=True, scale=True
            )
            side.refresh()


def permuted_side(side: Side, order: np.ndarray) -> Side:
    scales = side.noise_scales
    if scales is not None:
        scales = NoiseScales(scales.prior_shape, scales.shape[order], scales.rate[order])
    regression = side.regression
    if regression is not None:
        design = Design.of({"block": regression.design.matrix[order]})
        design = replace(design, names=regression.design.names, widths=regression.design.widths)
        information, leverage = regression.information[order], regression.leverage[order]
        regression = replace(regression, design=design, information=information, leverage=leverage)
    return replace(
        side,
        regression=regression,
        moments=Moments(side.moments.mean[order], side.moments.second[order]),
        membership=side.membership[order],
        noise_scales=scales,
    )


def permuted_rows(rows: Sparse, order: np.ndarray) -> Sparse:
    """The same ratings with the rows in another order."""
    counts = np.diff(rows.indptr)[order]
    picks = [np.arange(rows.indptr[i], rows.indptr[i + 1]) for i in order]
    pick = np.concatenate(picks)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Sparse(indptr, rows.indices[pick], rows.values[pick])


def renamed_columns(rows: Sparse, order: np.ndarray) -> Sparse:
    """The same ratings with the other side's rows in another order; ratings shuffled too."""
    place = np.argsort(order).astype(np.int32)
    indices, values = place[rows.indices], rows.values.copy()
    for low, high in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        sort = low + np.argsort(indices[low:high], kind="stable")
        indices[low:high], values[low:high] = indices[sort], values[sort]
    return Sparse(rows.indptr, indices, values)


@settings
@pytest.mark.parametrize("name", ["user", "item"])
def test_the_order_of_rows_does_not_matter(
    setting: Setting, name: str, rng: np.random.Generator
) -> None:
    state = problem(rng, setting, users=45, items=35)
    order = rng.permutation(state.sides[name].n_rows)
    other = OTHER[name]
    twin = replace(
        state,
        sides={
            side: permuted_side(state.sides[side].copy(), order)
            if side == name
            else state.sides[side].copy()
            for side in state.sides
        },
        engine=Threads.of(
            {
                side: permuted_rows(tables(state)[side], order)
                if side == name
                else renamed_columns(tables(state)[side], order)
                for side in tables(state)
            }
        ),
    )
    sweeps(state, setting)
    sweeps(twin, setting)
    ours, theirs = state.sides, twin.sides
    close = {"rtol": 1e-7, "atol": 1e-9}
    np.testing.assert_allclose(theirs[name].moments.mean, ours[name].moments.mean[order], **close)
    np.testing.assert_allclose(theirs[name].membership, ours[name].membership[order], **close)
    np.testing.assert_allclose(theirs[other].moments.mean, ours[other].moments.mean, **close)
    np.testing.assert_allclose(theirs[other].moments.second, ours[other].moments.second, **close)
    assert twin.noise == pytest.approx(state.noise, rel=1e-9)
    elbo, again = (sum(s.bound_terms().values()) for s in (state, twin))
    assert again == pytest.approx(elbo, rel=1e-10)


@settings
def test_users_and_items_are_one_algorithm_with_the_roles_exchanged(
    setting: Setting, rng: np.random.Generator
) -> None:
    """A table turned on its side has the same answer, turned."""
    setting = replace(setting, tied_users=True, tied_items=True)
    state = problem(rng, setting)
    turned = replace(
        state,
        sides={
            "user": exchanged(state.sides["item"], setting),
            "item": exchanged(state.sides["user"], setting),
        },
        engine=Threads.of({"user": tables(state)["item"], "item": tables(state)["user"]}),
    )
    update_side(state, "user", coupled=setting.coupled)
    update_side(turned, "item", coupled=setting.coupled)
    ours, theirs = state.sides["user"], turned.sides["item"]
    np.testing.assert_allclose(theirs.membership, ours.membership, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(theirs.factor_means, ours.factor_means, rtol=1e-10)
    elbo, again = (sum(s.bound_terms().values()) for s in (state, turned))
    assert again == pytest.approx(elbo, rel=1e-12)


def exchanged(side: Side, setting: Setting) -> Side:
    """A side in the other's layout: the first two coordinates change places."""
    side = side.copy()
    if not setting.offsets:
        return side
    total = side.layout.total
    order = np.array([1, 0, *range(2, total)])
    rows, columns = np.tril_indices(total)
    full = np.empty((side.n_rows, total, total))
    full[:, rows, columns] = full[:, columns, rows] = side.moments.second
    second = np.ascontiguousarray(full[:, order][:, :, order][:, rows, columns])
    layout = replace(side.layout, pinned=1 - side.layout.pinned)
    moments = Moments(np.ascontiguousarray(side.moments.mean[:, order]), second)
    return replace(side, layout=layout, moments=moments)


@settings
def test_the_names_of_communities_do_not_matter(setting: Setting, rng: np.random.Generator) -> None:
    """Seeds under other labels: the same communities, largest first either way."""
    base = problem(rng, setting, users=40, items=30)
    labels = rng.permutation(np.repeat(np.arange(4), [17, 12, 7, 4]))
    states = []
    for relabel in (np.arange(4), np.array([2, 0, 3, 1])):
        state = base.copy()
        side = state.sides["user"]
        side.prior = replace(side.prior, concentration=0.5)
        assign(side, relabel[labels], 4)
        update_side(state, "user", coupled=setting.coupled, hold=True)
        order_by_size(side)
        for name in ("user", "item", "user"):
            update_side(state, name, coupled=setting.coupled)
            order_by_size(state.sides[name])
        states.append(state)
    one, two = states
    for name in ("user", "item"):
        ours, theirs = one.sides[name], two.sides[name]
        np.testing.assert_allclose(theirs.membership, ours.membership, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(theirs.moments.mean, ours.moments.mean, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(theirs.communities.mean, ours.communities.mean, rtol=1e-7)
    elbo, again = (sum(s.bound_terms().values()) for s in states)
    assert again == pytest.approx(elbo, rel=1e-11)


# -- the estimator ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> datasets.SyntheticRatings:
    return datasets.draw(150, 100, density=0.2, n_factors=2, separation=7.0, rng=3)


def model(**parameters: Any) -> HeMF:
    known = {"n_factors": 3, "max_user_communities": 5, "max_item_communities": 5}
    return HeMF(**{**known, "max_sweeps": 30, "rng": 0, **parameters})


def test_ratings_on_another_scale_are_predicted_on_it(data: datasets.SyntheticRatings) -> None:
    """r → 3r + 7: predictions follow, deviations are three times as wide, nothing else moves."""
    pairs = (data.users[::7], data.items[::7])
    ratings = np.round(64.0 * data.ratings) / 64.0  # so that 3r + 7 is exact in any storage
    exact = {"dtype": "float64", "max_sweeps": 20}
    plain = model(**exact).fit((data.users, data.items, ratings))
    other = model(**exact).fit((data.users, data.items, 3.0 * ratings + 7.0))
    mean, std = plain.predict(*pairs, return_std=True)
    again, wide = other.predict(*pairs, return_std=True)
    np.testing.assert_allclose(again, 3.0 * mean + 7.0, rtol=1e-6)
    np.testing.assert_allclose(wide, 3.0 * std, rtol=1e-6)
    assert other.n_user_communities_ == plain.n_user_communities_
    assert other.n_item_communities_ == plain.n_item_communities_
    assert other.noise_variance_ == pytest.approx(9.0 * plain.noise_variance_, rel=1e-6)
    # The density of a rating three times as wide is a third as high.
    lower = len(ratings) * np.log(3.0)
    assert other.elbo_ == pytest.approx(plain.elbo_ - lower, rel=1e-8)


def fitted_arrays(fitted: HeMF) -> list[np.ndarray]:
    arrays = [np.array([report.elbo for report in fitted.history_])]
    for side in fitted.state_.sides.values():
        arrays += [side.moments.mean, side.moments.second, side.membership, side.communities.scale]
    return arrays


@pytest.mark.parametrize("changed", [{}, {"n_jobs": 1}, {"n_jobs": 3}, {"n_jobs": 5}], ids=str)
def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads(
    data: datasets.SyntheticRatings, changed: dict[str, int]
) -> None:
    given = (data.users, data.items, data.ratings)
    one = model(n_jobs=2).fit(given)
    two = model(**{"n_jobs": 2, **changed}).fit(given)
    for ours, theirs in zip(fitted_arrays(one), fitted_arrays(two), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_seed_starts_elsewhere(data: datasets.SyntheticRatings) -> None:
    given = (data.users, data.items, data.ratings)
    one, two = (model(rng=seed, max_sweeps=2).fit(given) for seed in (0, 1))
    assert not np.array_equal(fitted_arrays(one)[1], fitted_arrays(two)[1])


def test_the_order_in_which_ratings_are_listed_hardly_matters(
    data: datasets.SyntheticRatings,
) -> None:
    """Ids are numbered as they come, so the random start differs; what is found does not."""
    shuffle = np.random.default_rng(0).permutation(len(data.ratings))
    given = (data.users, data.items, data.ratings)
    one = model(max_sweeps=100).fit(given)
    two = model(max_sweeps=100).fit(tuple(part[shuffle] for part in given))
    assert two.n_user_communities_ == one.n_user_communities_
    assert two.n_item_communities_ == one.n_item_communities_
    pairs = (data.users[::3], data.items[::3])
    difference = two.predict(*pairs) - one.predict(*pairs)
    assert np.sqrt(np.mean(difference**2)) < 0.1 * one.noise_variance_**0.5
