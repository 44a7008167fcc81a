"""One side of the sampled model: what is drawn of its rows, given the other side."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hemf._typing import Float32Array, Float64Array
from hemf.engines.threads import Rows, chunk_bounds, share_out
from hemf.errors import ConvergenceWarning
from hemf.model.features import Design
from hemf.model.layout import Layout, pack
from hemf.model.regression import START_SHARE
from hemf.model.ridge import Solver, solver
from hemf.samplers.draws import DrawnScales, NormalWishart, over_parts


@dataclass
class DrawnSide:
    """Vectors of one side's rows and all that they depend on, as drawn last."""

    layout: Layout
    rows: Rows
    """Ratings, standardised."""
    vectors: Float32Array
    """a_i with the pinned coordinate, (rows, total)."""
    mean: Float64Array
    """μ, (order,)."""
    precision: Float64Array
    """Λ, (order, order)."""
    prior: NormalWishart
    regression: DrawnRegression | None = None
    scales: DrawnScales | None = None

    @property
    def n_rows(self) -> int:
        """How many users, or items."""
        return len(self.vectors)

    @property
    def weights(self) -> Float64Array:
        """τ_i, how much a row's ratings count."""
        return np.ones(self.n_rows) if self.scales is None else self.scales.weights

    @property
    def shift(self) -> Float64Array:
        """f_i, what features say of each row, (rows, order); without any, nothing."""
        if self.regression is not None:
            return self.regression.shift
        return np.zeros((self.n_rows, self.layout.order))

    def draw(
        self, other: Float32Array, weights: Float32Array, rng: np.random.Generator, threads: int
    ) -> None:
        """Draw V and all rows at once, given the other side; then μ, Λ and λ_b given these.

        ``other`` are the other side's vectors, and ``weights`` those of the ratings, τ_i υ_j/σ².

        Gaussians are drawn by solving for a right side that is drawn: h_i + g_i, g_i ~ N(0, G_i)
        of the ratings, and t_i ~ N(0, Λ) of the prior, which is in the equations of V too.
        """
        covariance, natural_mean = self._conditionals(other, weights, threads)
        natural_mean += self._rating_noise(other, weights, rng)
        root = np.linalg.cholesky(self.precision)
        own = rng.standard_normal(natural_mean.shape) @ root.T + self.precision @ self.mean
        natural_mean += own

        def multiply(vectors: Float64Array) -> Float64Array:
            return _products(covariance, vectors, threads)

        if self.regression is not None:
            right = multiply(natural_mean) @ self.precision - own
            known = np.einsum("nij,ij->n", covariance, self.precision, dtype=np.float64)
            told = np.clip(1.0 - known / self.layout.order, 1e-3, 1.0)
            self.regression.draw(multiply, told, right, self.precision, rng)
        shift = self.shift
        found = multiply(natural_mean + shift @ self.precision)
        self.vectors[:, self.layout.free] = found
        central = None if self.regression is None else self.regression.scaled
        self.mean, self.precision = self.prior.draw(found - shift, rng, central)
        if self.regression is not None:
            self.regression.draw_precision(self.precision, rng)

    def _conditionals(
        self, other: Float32Array, weights: Float32Array, threads: int
    ) -> tuple[Float32Array, Float64Array]:
        """S_i and h_i of every row; see `hemf.kernels.gibbs.conditional_rows`."""
        from hemf.kernels import gibbs as kernels

        rows, layout, order = self.rows, self.layout, self.layout.order
        values = rows.values
        if layout.pinned >= 0:  # what the other side's offsets say
            values = values - other[rows.indices, layout.pinned]
        covariance = np.empty((self.n_rows, order, order), np.float32)
        natural_mean = np.empty((self.n_rows, order))
        cuts = chunk_bounds(rows.indptr, order)
        given = (
            cuts, rows.indptr, rows.indices, values, weights,
            np.ascontiguousarray(other[:, layout.free]), pack(self.precision), covariance,
            natural_mean,
        )  # fmt: skip
        run = kernels.conditional_rows.compiled(np.float32)
        share_out(lambda begin, end: run(begin, end, *given), cuts.size - 1, threads)
        return covariance, natural_mean

    def _rating_noise(
        self, other: Float32Array, weights: Float32Array, rng: np.random.Generator
    ) -> Float64Array:
        """g_i = Σ_j √w_ij b_j z_ij with standard normal z: N(0, Σ_j w_ij b_j b_jᵀ) of each row."""
        from scipy.sparse import csr_array

        drawn = np.sqrt(weights) * rng.standard_normal(weights.size, np.float32)
        rows, shape = self.rows, (self.n_rows, len(other))
        table = csr_array((drawn, rows.indices, rows.indptr), shape=shape)
        return np.asarray(table @ other[:, self.layout.free], np.float64)


def _products(matrices: Float32Array, vectors: Float64Array, threads: int) -> Float64Array:
    """Return the product of each row's matrix with its vector."""
    from hemf.kernels import gibbs as kernels

    out = np.empty_like(vectors)
    run = kernels.multiply_rows.compiled(np.float32)
    over_parts(lambda begin, end: run(begin, end, matrices, vectors, out), len(vectors), threads)
    return out


# ------------------------------------------------------------------------------------------------
# Draws of what features say of rows, with the rows themselves left open.
#
#     a_i ~ N(μ + Vᵀx_i, Λ⁻¹),   V ~ MN(0, L⁻¹, Λ⁻¹),   L = λ_b for the features of block b
#
# Drawn one given the other, V and the rows would creep: V is all but determined by the rows, and
# rows with few ratings by V. So both are drawn at once. Given ratings, a_i has precision S_i⁻¹
# and
# the natural_mean h_i; with rows integrated out, V has the precision Σ_i x_i x_iᵀ ⊗ W_i + L ⊗ Λ,
# W_i = Λ - Λ S_i Λ. That is solved by conjugate gradients, for a right side that is drawn with
# that
# precision as its covariance: what comes out is a draw.


ACCURACY = 1e-3  # of the residual, at which conjugate gradients end
MOST_STEPS = 200
FIRMNESS = 1.0  # shape of the prior of λ_b, a Gamma distribution
STALE = 1.5  # change of a ln λ_b after which a new factorisation is worth its time

Multiply = Callable[[Float64Array], Float64Array]
"""Returns S_i v_i of each row's vector."""


# docs/model.md#gibbs-hemf
class DrawnRegression:
    """V and λ_b of one side, as drawn last."""

    def __init__(self, design: Design, coefficients: Float64Array, precision: Float64Array) -> None:
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
    def shift(self) -> Float64Array:
        """f_i = Vᵀx_i of each row, (rows, order)."""
        return np.ascontiguousarray(self.design.matrix @ self.coefficients, np.float64)

    @property
    def scaled(self) -> Float64Array:
        """√λ_b of its block times each row of V, which is N(0, Λ⁻¹), (F, order)."""
        columns = self.design.by_column(self.precision)
        return np.asarray(np.sqrt(columns)[:, None] * self.coefficients)

    def draw(
        self,
        multiply: Multiply,
        told: Float64Array,
        right: Float64Array,
        factor_precision: Float64Array,
        rng: np.random.Generator,
    ) -> None:
        """Draw V; ``right`` is of each row, (rows, order), with what W_i has drawn in it.

        ``told`` is about the share of W_i in Λ, (rows,).
        """
        matrix, transposed = self.design.matrix, self.design.transposed
        columns = self.design.by_column(self.precision)[:, None]
        root = np.linalg.cholesky(factor_precision)
        prior = rng.standard_normal(self.coefficients.shape) @ root.T

        def precise(v: Float64Array) -> Float64Array:
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

    def draw_precision(self, factor_precision: Float64Array, rng: np.random.Generator) -> None:
        """Draw λ_b, whose prior has the mean ``guess``."""
        order = len(factor_precision)
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        squares = self.design.by_block(np.sum(weighted, axis=1))
        shape = FIRMNESS + 0.5 * order * self.design.widths
        self.precision = rng.standard_gamma(shape) / (FIRMNESS / self.guess + 0.5 * squares)

    def _preconditioner(self, told: Float64Array, factor_precision: Float64Array) -> Multiply:
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
    multiply: Multiply, right: Float64Array, start: Float64Array, precondition: Multiply
) -> tuple[Float64Array, int, bool]:
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
