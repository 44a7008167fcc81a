"""What happens between sweeps: reports, and reasons to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SweepReport:
    """How a fit stands after a sweep; what callbacks receive."""

    sweep: int
    """Sweeps done so far, from 1."""
    max_sweeps: int
    elbo: float
    elbo_terms: dict[str, float]
    train_rmse: float
    """Root of the expected squared error on the training ratings, on their scale.

    With noise scales, ratings are weighted as they count in the fit.
    """
    validation_rmse: float | None
    """RMSE on the ratings given to report it on, or else on the held-out part, if there are any."""
    user_communities: int
    item_communities: int
    noise_variance: float
    seconds: float
    """Since the start of the fit; NaN in a model that was loaded, as files do not keep it."""
    trials_next: bool = False
    """Whether merges and splits are tried next, which may take as long as many sweeps."""


LEAST_SIZE = 10_000.0  # nats; of a smaller bound the fifth digit is not worth a sweep

Callback = Callable[[SweepReport], bool | None]
"""Called after every sweep; returning something true stops the fit there."""


@dataclass
class Convergence:
    """Stop when the bound, or the error on held-out ratings, has settled.

    >>> settled = Convergence(tolerance=1e-3, patience=1, earliest=0)
    >>> [settled.bound(sweep, elbo) for sweep, elbo in enumerate([-200.0, -100.0, -99.99])]
    [False, False, True]
    """

    tolerance: float
    patience: int
    earliest: int
    """Sweeps before which nothing can be called settled: parts of the model are still held."""
    size: float = LEAST_SIZE
    """What a change is compared with where the bound itself is smaller: the number of ratings."""
    _last: float | None = field(default=None, init=False)
    _quiet: int = field(default=0, init=False)
    _best: float = field(default=float("inf"), init=False)
    _worse: int = field(default=0, init=False)

    def bound(self, sweep: int, elbo: float) -> bool:
        """Whether the relative change of the bound was below tolerance ``patience`` times."""
        last, self._last = self._last, elbo
        if last is None or sweep < self.earliest:
            return False
        small = abs(elbo - last) <= self.tolerance * max(abs(last), self.size)
        self._quiet = self._quiet + 1 if small else 0
        return self._quiet >= self.patience

    def reset(self) -> bool:
        """Start waiting anew, after a change from outside; return False for "not settled"."""
        self._last, self._quiet, self._worse = None, 0, 0
        return False

    def validation(self, sweep: int, rmse: float) -> tuple[bool, bool]:
        """Whether this is the best error so far, and whether none was better for ``patience``.

        Nothing counts before ``earliest``: what is still held would be missing from the result.
        """
        if sweep < self.earliest:
            return False, False
        if rmse < self._best:
            self._best, self._worse = rmse, 0
            return True, False
        self._worse += 1
        return False, self._worse >= self.patience


def notify(callbacks: tuple[Callback, ...], report: SweepReport) -> bool:
    """Tell every callback, and say whether any asked to stop."""
    answers: list[Any] = [callback(report) for callback in callbacks]
    return any(answers)  # also NumPy's true
