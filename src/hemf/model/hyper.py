"""Hyper-parameters Ξ and their starting values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemf.model.packing import Float64


@dataclass(frozen=True)
class Prior:
    """Hyper-parameters of one side: the Dirichlet process and its NIW base measure."""

    concentration: float
    """α (β on the item side) of the sticks Beta(1, α)."""
    centre: Float64
    """μ0, (order,)."""
    spread: float
    """λ0: μ_d | Σ_d ~ N(μ0, λ0 Σ_d)."""
    scale: Float64
    """W0, (order, order)."""
    dof: float
    """ι0, degrees of freedom of Σ_d ~ IW(W0, ι0); > order - 1."""

    @property
    def strength(self) -> float:
        """κ0 = 1/λ0, how many rows the prior mean is worth."""
        return 1.0 / self.spread

    @classmethod
    def start(cls, order: int, *, variance: float, concentration: float, spread: float) -> Prior:
        """Prior that expects rows of this variance around zero."""
        dof = order + 2.0
        return cls(
            concentration=concentration,
            centre=np.zeros(order),
            spread=spread,
            scale=np.eye(order) * (dof * variance),
            dof=dof,
        )
