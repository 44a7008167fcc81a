"""Draws of what features say of rows, with the rows themselves left open.

    a_i ~ N(μ + Vᵀx_i, Λ⁻¹),   V ~ MN(0, L⁻¹, Λ⁻¹),   L = λ_b for the features of block b

Drawn one given the other, V and the rows would creep: V is all but determined by the rows, and
rows with few ratings by V. So both are drawn at once. Given ratings, a_i has precision S_i⁻¹ and
the pull h_i; with rows integrated out, V has the precision Σ_i x_i x_iᵀ ⊗ W_i + L ⊗ Λ,
W_i = Λ - Λ S_i Λ. That is solved by conjugate gradients, for a right side that is drawn with that
precision as its covariance: what comes out is a draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from hemf.errors import ConvergenceWarning
from hemf.model.design import Design
from hemf.model.regression import START_SHARE
from hemf.model.ridge import Solver, solver
from hemf.sampling.draws import Floats

ACCURACY = 1e-3  # of the residual, at which conjugate gradients end
MOST_STEPS = 200
FIRMNESS = 1.0  # shape of the prior of λ_b, a Gamma distribution
STALE = 1.5  # change of a ln λ_b after which a new factorisation is worth its time

Multiply = Callable[[Floats], Floats]
"""Returns S_i v_i of each row's vector."""


class DrawnRegression:
    """V and λ_b of one side, as drawn last."""

    def __init__(self, design: Design, coefficients: Floats, precision: Floats) -> None:
        self.design = design
        self.coefficients = coefficients
        """V, (F, order)."""
        self.precision = precision
        """λ_b, (B,)."""
        self.steps = 0
        """Of conjugate gradients, for the last draw."""
        self.cut_short = 0
        """Draws that conjugate gradients had not got to when they ended."""
        self.guess = START_SHARE * np.maximum(
            design.by_block(design.squares) / max(1, design.n_rows), 1e-12
        )
        """What λ_b is a priori, on average; 1/λ_b is on the scale of a block's columns."""
        self._solver: Solver | None = None
        self._rough = precision

    @property
    def shift(self) -> Floats:
        """f_i = Vᵀx_i of each row, (rows, order)."""
        return np.ascontiguousarray(self.design.matrix @ self.coefficients, np.float64)

    @property
    def scaled(self) -> Floats:
        """√λ_b of its block times each row of V, which is N(0, Λ⁻¹), (F, order)."""
        columns = self.design.by_column(self.precision)
        return np.asarray(np.sqrt(columns)[:, None] * self.coefficients)

    def draw(
        self,
        multiply: Multiply,
        told: Floats,
        right: Floats,
        factor_precision: Floats,
        rng: np.random.Generator,
    ) -> None:
        """Draw V; ``right`` is of each row, (rows, order), with what W_i has drawn in it.

        ``told`` is about the share of W_i in Λ, (rows,).
        """
        matrix, transposed = self.design.matrix, self.design.transposed
        columns = self.design.by_column(self.precision)[:, None]
        root = np.linalg.cholesky(factor_precision)
        prior = rng.standard_normal(self.coefficients.shape) @ root.T

        def precise(v: Floats) -> Floats:
            pulled = (matrix @ v) @ factor_precision
            pulled -= multiply(np.ascontiguousarray(pulled)) @ factor_precision
            return np.asarray(transposed @ pulled + columns * (v @ factor_precision))

        self.coefficients, self.steps, got_there = conjugate_gradients(
            precise,
            np.asarray(transposed @ right + np.sqrt(columns) * prior),
            self.coefficients,
            self._preconditioner(told, factor_precision),
        )
        self.cut_short += not got_there
        if self.cut_short == 1 and not got_there:
            warnings.warn(
                f"conjugate gradients ended after {self.steps} steps before features' coefficients "
                "were drawn: predictions may be less accurate than they could be; leave out "
                "features that are all but sums of others",
                ConvergenceWarning,
                stacklevel=2,
            )

    def draw_precision(self, factor_precision: Floats, rng: np.random.Generator) -> None:
        """Draw λ_b, whose prior has the mean ``guess``."""
        order = len(factor_precision)
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        squares = self.design.by_block(np.sum(weighted, axis=1))
        shape = FIRMNESS + 0.5 * order * self.design.widths
        self.precision = rng.standard_gamma(shape) / (FIRMNESS / self.guess + 0.5 * squares)

    def _preconditioner(self, told: Floats, factor_precision: Floats) -> Multiply:
        """Return about the inverse of the precision: as if W_i were told_i Λ.

        Of what was told and λ_b at an earlier time, if they are still about the same.
        """
        if self._solver is None or np.abs(np.log(self.precision / self._rough)).max() > STALE:
            self._solver = solver(self.design.weighted(told))
            self._rough = self.precision
        rough, solve = self._rough, self._solver.solve
        covariance = np.linalg.inv(factor_precision)
        return lambda v: solve(v, rough) @ covariance


def conjugate_gradients(
    multiply: Multiply, right: Floats, start: Floats, precondition: Multiply
) -> tuple[Floats, int, bool]:
    """Return the solution of a symmetric system, how many steps it took, and if they sufficed.

    >>> double, same = (lambda v: 2 * v), (lambda v: v)
    >>> conjugate_gradients(double, np.full((2, 1), 6.0), np.zeros((2, 1)), same)[0].tolist()
    [[3.0], [3.0]]
    """
    found = start.copy()
    left = right - multiply(found)
    enough = ACCURACY**2 * float(np.sum(right * precondition(right)))
    step = precondition(left)
    direction, size, steps = step, float(np.sum(left * step)), 0
    while size > enough and steps < MOST_STEPS:
        moved = multiply(direction)
        length = size / float(np.sum(direction * moved))
        found += length * direction
        left = left - length * moved  # not in place: a precondition may return what it was given
        step = precondition(left)
        last, size = size, float(np.sum(left * step))
        direction = step + (size / last) * direction
        steps += 1
    return found, steps, 0.0 <= size <= enough  # less than 0 where rounding spoils a precondition
