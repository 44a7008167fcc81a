"""Reports after each sweep, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hemf._typing import Float64Array


@dataclass(frozen=True)
class SweepReport:
    """Figures of a fit after a sweep; the argument of callbacks."""

    sweep: int
    """Number of sweeps so far, from 1."""
    max_sweeps: int
    elbo: float
    elbo_terms: dict[str, float]
    train_rmse: float
    """Root of the expected squared error on the training ratings, weighted by noise scales."""
    validation_rmse: float | None
    """RMSE on the validation ratings, or else on the held-out part; None without."""
    user_communities: int
    item_communities: int
    noise_variance: float
    seconds: float
    """Since the start of the fit; NaN in a loaded model."""
    trials_next: bool = False
    """Whether merges and splits are tried next, which may take as long as many sweeps."""


Callback = Callable[[SweepReport], bool | None]
"""Called after every sweep; a true result stops the fit."""


def elbo_history(reports: Sequence[SweepReport]) -> dict[str, Float64Array]:
    """Return the lower bound of each report: ``"total"``, and each of its terms by name."""
    names = reports[0].elbo_terms if reports else {}
    by_term = {n: np.array([report.elbo_terms[n] for report in reports]) for n in names}
    return {"total": np.array([report.elbo for report in reports]), **by_term}
