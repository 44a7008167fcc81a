"""Packing, coordinates, statistics and sides: the bookkeeping under the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemf.kernels.reference import rows as reference
from hemf.model.communities import Prior, Statistics, community_posterior, stick_posterior
from hemf.model.rows import Layout, order_of, pack, unpack
from proofs.problems import SETTINGS, Setting, any_prior, any_statistics, problem, spd, update_rows


@given(order=st.integers(1, 60), stack=st.integers(0, 3), seed=st.integers(0, 999))
def test_packing_goes_there_and_back(order: int, stack: int, seed: int) -> None:
    matrices = spd(np.random.default_rng(seed), order, stack)
    triangles = pack(matrices)
    assert triangles.flags.c_contiguous
    assert order_of(triangles.shape[-1]) == order
    np.testing.assert_array_equal(unpack(triangles), matrices)


def test_model_and_reference_pack_alike(rng: np.random.Generator) -> None:
    matrix = spd(rng, 5)
    np.testing.assert_array_equal(reference.triangle(matrix), pack(matrix))
    np.testing.assert_array_equal(reference.symmetric(pack(matrix)), matrix)


# docs/model.md#offsets
@pytest.mark.parametrize("n_factors", [1, 4])
def test_each_sides_offset_meets_the_others_one(n_factors: int) -> None:
    user = Layout.of("user", n_factors=n_factors, offsets=True)
    item = Layout.of("item", n_factors=n_factors, offsets=True)
    a, b = np.ones(user.total), np.ones(item.total)
    a[user.free] = np.arange(user.order) + 10.0  # offset 10, factors 11, 12, …
    b[item.free] = np.arange(item.order) + 20.0
    assert a @ b == 10.0 + 20.0 + a[2:] @ b[2:]
    assert user.order == item.order == n_factors + 1
    assert user.packed == user.total * (user.total + 1) // 2


def test_without_offsets_there_are_only_factors() -> None:
    layout = Layout.of("user", n_factors=3, offsets=False)
    assert layout.free.tolist() == [0, 1, 2]
    assert layout.order == layout.total == 3


def test_sticks_count_what_comes_after(rng: np.random.Generator) -> None:
    sizes = rng.uniform(0.0, 50.0, 6)
    sticks = stick_posterior(sizes, 1.5)
    np.testing.assert_allclose(sticks.taken, 1.0 + sizes)
    for d in range(6):
        assert sticks.left[d] == pytest.approx(1.5 + sizes[d + 1 :].sum())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
def test_communities_without_rows_are_at_the_prior(tied: bool, rng: np.random.Generator) -> None:
    prior = any_prior(rng, 3)
    statistics = any_statistics(rng, 2, 3, tied=tied, rows=0)
    communities = community_posterior(statistics, prior)
    np.testing.assert_allclose(communities.mean, np.tile(prior.centre, (2, 1)))
    np.testing.assert_allclose(communities.kappa, prior.kappa)
    np.testing.assert_allclose(communities.dof, prior.dof)
    np.testing.assert_allclose(communities.scale, np.broadcast_to(prior.scale, (2 - tied, 3, 3)))


# docs/model.md#statistics
def test_the_posterior_counts_rows_as_conjugacy_says(rng: np.random.Generator) -> None:
    """NIW posterior of rows known exactly, against textbook sums over the rows."""
    prior, rows = any_prior(rng, 2), rng.normal(size=(9, 2))
    statistics = Statistics(np.array([9.0]), rows.sum(0)[None], (rows.T @ rows)[None], 0.0)
    found = community_posterior(statistics, prior)
    kappa0, mean = prior.kappa, rows.mean(axis=0)
    away, gap = rows - mean, mean - prior.centre
    scale = prior.scale + away.T @ away + kappa0 * 9.0 / (kappa0 + 9.0) * np.outer(gap, gap)
    np.testing.assert_allclose(found.scale[0], scale)
    np.testing.assert_allclose(found.mean[0], (kappa0 * prior.centre + 9.0 * mean) / (kappa0 + 9.0))
    assert found.dof[0] == prior.dof + 9.0


# docs/model.md#generative-model
def test_the_first_prior_expects_the_variance_it_was_given() -> None:
    prior = Prior.start(4, variance=0.3, concentration=2.0, mean_scale=0.5)
    np.testing.assert_allclose(np.linalg.inv(prior.scale) * prior.dof, np.eye(4) / 0.3)
    assert prior.kappa == 2.0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_copy_of_a_side_can_be_changed_alone(setting: Setting, rng: np.random.Generator) -> None:
    state = problem(rng, setting)
    twin = state.copy()
    twin.sides["user"].moments.mean[:] = 0.0
    twin.sides["user"].moments.second[:] = 0.0
    twin.sides["user"].membership[:] = 0.0
    assert state.sides["user"].moments.mean.any()
    assert state.sides["user"].moments.second.any()
    assert state.sides["user"].membership.any()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_selected_communities_share_the_rows_among_them(
    setting: Setting, rng: np.random.Generator
) -> None:
    state = problem(rng, setting, communities=(4, 2))
    update_rows(state, "user", setting)
    side = state.sides["user"]
    old = side.membership.copy()
    side.select(np.array([2, 0]))
    expected = old[:, [2, 0]] / old[:, [2, 0]].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(side.membership, expected)
    assert side.n_communities == 2
