"""Reports after each sweep, callbacks and convergence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


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


MIN_SIZE = 10_000.0  # nats; of a smaller bound the fifth digit is not worth a sweep

Callback = Callable[[SweepReport], bool | None]
"""Called after every sweep; a true result stops the fit."""


@dataclass
class Convergence:
    """Convergence of the bound, or of the error on held-out ratings.

    >>> converged = Convergence(tolerance=1e-3, patience=1, earliest=0)
    >>> [converged.bound(sweep, elbo) for sweep, elbo in enumerate([-200.0, -100.0, -99.99])]
    [False, False, True]
    """

    tolerance: float
    patience: int
    earliest: int
    """First sweep that can converge: before it, parts of the model are held."""
    size: float = MIN_SIZE
    """Changes are relative to the bound or to this, whichever is larger."""
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
        """Start again after a change from outside; return False for "not converged"."""
        self._last, self._quiet, self._worse = None, 0, 0
        return False

    def validation(self, sweep: int, rmse: float) -> tuple[bool, bool]:
        """Whether this error is the smallest so far, and whether it is time to stop."""
        if sweep < self.earliest:
            return False, False
        if rmse < self._best:
            self._best, self._worse = rmse, 0
            return True, False
        self._worse += 1
        return False, self._worse >= self.patience


def notify(callbacks: tuple[Callback, ...], report: SweepReport) -> bool:
    """Call every callback; return whether any asked to stop."""
    answers = [callback(report) for callback in callbacks]
    return any(answers)
