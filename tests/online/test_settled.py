"""Sums that are carried along as factors move."""

from __future__ import annotations

import numpy as np

from hemf import HeMF
from hemf.online import eviction, updates


def test_no_direction_is_stretched_beyond_measure(rng) -> None:
    move = rng.normal(size=(5, 5))
    left, _, right = np.linalg.svd(move)
    wild = (left * [1e4, 30.0, 2.0, 1.0, 0.1]) @ right
    tame = eviction.limit_stretch(wild)
    most = eviction.MAX_STRETCH
    expected = np.minimum([1e4, 30.0, 2.0, 1.0, 0.1], most)
    np.testing.assert_allclose(np.linalg.svd(tame)[1], expected, rtol=1e-10)
    mild = (left * [1.9, 1.2, 1.0, 0.5, 0.0]) @ right
    np.testing.assert_allclose(eviction.limit_stretch(mild), mild, atol=1e-12)


def test_a_direction_that_opens_does_not_blow_up_sums(rng) -> None:
    rows = [(u, i, float(rng.integers(1, 6))) for u in range(30) for i in range(20)]
    model = HeMF(n_factors=3, history="none", rng=0).fit(rows)
    model.partial_fit([(0, 0, 3.0)])
    state, items = model.state_, model.state_.stores["item"]
    # Factors of all items were next to nothing, and are fifty times that now.
    items.rotated_means = items.mean.astype(np.float64)
    items.rotated_means[:, -1] = 0.02 * rng.normal(size=items.n_rows)
    items.mean[:, -1] = 50.0 * items.rotated_means[:, -1]
    state.clocks.last["rotation", "item"] = -1e9
    gram = state.stores["user"].gram
    gram[:] = 0.0
    gram[:, -1] = 1.0  # in that direction alone, and mostly of what was not known of it
    updates.rotate_sums(state, "item")
    stretch = float(gram[:, -1].max())
    assert 1.0 < stretch <= 1.001 * eviction.MAX_STRETCH**2
