"""Small states whose rows have features, given and implicit, and their bound from scratch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hemf._typing import SIDES
from hemf.batch.fit import BatchState, update_side
from hemf.model.regression import Design, Regression, implicit_blocks
from hemf.online.features import extended
from hemf.online.state import OnlineState
from hemf.online.updates import current_design
from proofs import slow_bound
from proofs.learners import adopted, as_batch, belief, coarse, planted
from proofs.problems import OTHER, Setting, tables

TIED = Setting(tied_users=True, tied_items=True, offsets=True, noise_scales=True)
PLAIN = Setting(tied_users=True, tied_items=True)
GIVEN = 2  # columns


def planted_features(
    rng: np.random.Generator, setting: Setting, *, implicit: bool = True, **shape: Any
) -> BatchState:
    """Ratings by planted communities of rows with features, after a few sweeps."""
    state = planted(rng, setting, **shape)
    for name, side in state.sides.items():
        rows, n_other = tables(state)[name], state.sides[OTHER[name]].n_rows
        blocks: dict[str, Any] = {"given": rng.normal(size=(side.n_rows, GIVEN))}
        if implicit:
            blocks |= implicit_blocks(rows.indptr, rows.indices, n_other)
        side.regression = Regression.start(Design.of(blocks), side.layout.order)
    for number in range(4):
        for name in state.sides:
            update_side(state, name, learn=False, features=number > 1)
    return coarse(state)


def learner(rng: np.random.Generator, setting: Setting, **options: Any) -> OnlineState:
    """A state that has gone on from such ratings."""
    implicit = options.pop("implicit", True)
    return adopted(planted_features(rng, setting, implicit=implicit), **options)


def now(state: OnlineState) -> BatchState:
    """The state as a batch sees it, with the features that rows have by now."""
    batch = as_batch(state)
    for name, side in batch.sides.items():
        assert side.regression is not None
        here = (state.stores[name].listed >= 0).any(axis=1)
        design = current_design(state, name, side.regression.design, here)
        leverage = state.stores[name].leverage
        side.regression = extended(side.regression, design, leverage)
    return batch


def beliefs(state: OnlineState) -> dict[str, slow_bound.Belief]:
    """What rows believe of a_i; on record is what they believe of a_i - f_i.

    And, for S, S + c (S P S - S), which their moments have c S more than.
    """
    found = {}
    for name in SIDES:
        left, store = belief(state, name), state.stores[name]
        rows = replace(left, mean=left.mean + store.shift[:, None])
        squares = rows.covariance + rows.mean[..., :, None] * rows.mean[..., None, :]
        free = store.layout.free
        full = slow_bound.unpack(store.second.astype(np.float64))[:, free[:, None], free]
        here, c = rows.share.sum(axis=1) > 0.0, store.leverage[:, None, None]
        S = (full - np.einsum("id,idjk->ijk", rows.share, squares)) / c
        S = np.where(here[:, None, None], S, np.eye(free.size))
        given = np.einsum("id,idjk->ijk", rows.share, rows.covariance)
        moved = np.where(here[:, None, None], given - S + c * S, 0.0)
        share = np.where(here, store.information, 0.0)
        information = slow_bound.Information(np.where(here, store.leverage, 0.0), S, moved, share)
        found[name] = replace(rows, covariance=np.repeat(S[:, None], rows.share.shape[1], axis=1),
                              information=information)  # fmt: skip
    return found


class Climb:
    """A state, and its bound from scratch after every step; ratings must not change meanwhile."""

    def __init__(self, state: OnlineState) -> None:
        self.state = state
        self.among: dict[str, np.ndarray] = {}
        for name in SIDES:
            self.note(name)
        self.value = self.total()

    def note(self, name: str) -> None:
        """Take note of C: it has just been fitted."""
        self.among[name] = slow_bound.covariance_among(now(self.state).sides[name])

    def terms(self) -> dict[str, float]:
        return slow_bound.terms(now(self.state), beliefs(self.state), self.among)

    def total(self) -> float:
        return sum(self.terms().values())

    def assert_no_lower(self, block: str) -> None:
        value = self.total()
        assert value >= self.value - 1e-9 * abs(self.value), (block, value - self.value)
        self.value = value


def assert_consistent(state: OnlineState, tolerance: float = 1e-9) -> None:
    """What rows have given is what is on record, and says the same of a_i as their moments do."""
    from proofs.learners import given

    for name in SIDES:
        store, side = state.stores[name], state.sides[name]
        assert side.regression is not None
        ours, theirs = store.statistics, given(state, name)
        scale = max(1.0, float(np.abs(theirs.scatter).max()))
        np.testing.assert_allclose(ours.size, theirs.size, atol=tolerance)
        np.testing.assert_allclose(ours.first, theirs.first, atol=tolerance * scale)
        np.testing.assert_allclose(
            ours.scatter, theirs.scatter + side.regression.penalty, atol=tolerance * scale
        )
        rows = beliefs(state)[name]
        here = rows.share.sum(axis=1) > 0.0
        mean = np.einsum("id,idj->ij", rows.share, rows.mean)
        free = side.layout.free
        np.testing.assert_allclose(
            mean[here], store.mean[here][:, free].astype(float), rtol=0.0, atol=tolerance * 1e2
        )
        covariance = slow_bound.with_moved(rows).covariance
        squares = covariance + rows.mean[..., :, None] * rows.mean[..., None, :]
        second = np.einsum("id,idjk->ijk", rows.share, squares)
        full = slow_bound.unpack(store.second.astype(np.float64))
        np.testing.assert_allclose(
            second[here], full[here][:, free[:, None], free], rtol=0.0, atol=tolerance * 1e2
        )
