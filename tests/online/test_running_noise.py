"""σ² of models that keep no ratings."""

from __future__ import annotations

import numpy as np
import pytest

from hemf.online import updates
from proofs.learners import learner
from proofs.problems import Setting


# docs/model.md#online-noise
@pytest.mark.parametrize("window", [20, 10**6])
def test_noise_is_a_running_mean_over_a_window(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "NOISE_MEMORY", window)
    state = learner(np.random.default_rng(0), Setting(), window=0)
    before, errors = state.noise, np.array([0.5, 0.9, 1.6])
    updates.learn_noise(state, "user", errors)
    weight = 3 / (3 + min(window, state.seen))
    assert state.noise == pytest.approx((1 - weight) * before + weight * errors.mean())
