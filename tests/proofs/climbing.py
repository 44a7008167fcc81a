"""Learning again what is known already can only raise the bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hemf import HeMF


def assert_climbs(model: HeMF, triples: Sequence[Any], sizes: Sequence[int]) -> None:
    """Learn random parts of what a model was fitted to, in batches and one by one."""
    model.partial_fit(triples)  # entropies of rows from a fit are exact once each is refreshed
    rng, bounds = np.random.default_rng(1), [model.elbo_]
    for size in sizes:
        again = [triples[k] for k in rng.choice(len(triples), size, replace=False)]
        model.partial_fit(again)
        bounds.append(model.elbo_)
        model.predict_then_learn(again)
        bounds.append(model.elbo_)
    assert np.diff(bounds).min() >= -1e-9 * abs(bounds[0])
    assert bounds[-1] > bounds[0]
