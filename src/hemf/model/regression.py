"""Regression of a side's rows on their features (docs/model.md#side-information).

    a_i | z_i=d ~ N(μ_d + Vᵀx_i, Σ),   V ~ MN(0, Λ⁻¹, Σ),   Λ = λ_b for the features of block b

The covariance among the coordinates of V is that of the factors, so one regression serves all of
them, and a side with features has one Σ for all of its communities. The posterior of a row is
conditional on V:

    q(V | Σ) = MN(M, C, Σ),   q(a_i, z_i=d | V) = q_i(d) N(m_id + S_i P (V - M)ᵀx_i, S_i)

S_i = (G_i/σ² + P)⁻¹ and m_id are those of a row with Vᵀx_i = Mᵀx_i. The leverage c_i = x_iᵀCx_i,
the uncertainty of Vᵀx_i in units of Σ, adds to a row's second moment, and the information weight
w_i of a row enters the optimal C:

    E[a_i a_iᵀ] = … + c_i S_i P S_i,    w_i = 1 - tr(P S_i)/L,    C⁻¹ = XᵀWX + Λ

M is the ridge regression of the rows' means. Rows are inferred as residuals a_i - Mᵀx_i, and the
communities' statistics are of these. MᵀΛM is added to their scatter, and so is
c_i (S_i P S_i - S_i), the gradient of V's uncertainty: W = W0 + Σ_i … + MᵀΛM. The rest of V's
contribution to the bound is

    -½ L (Σ_i w_i c_i + tr ΛC - F - ln|ΛC|)

P⁻¹ stands for Σ where V's uncertainty meets a row, and the part of c_i in W is linear in P around
the rows' last update. So the bound holds for known Σ; with the ι degrees of freedom of q(Σ) it may
be too high by a share of L/ι of V's contribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from hemf._typing import Float64Array
from hemf.model.communities import FeaturePrior
from hemf.model.features import CoefficientBlocks, Design
from hemf.model.ridge import CovarianceSummary, Iterative, Solver, solved, solver

START_SHARE = 2.0  # λ_b at the start: features move a row by half of the factors' variance
MAX_STEP = 2.0  # of ln λ_b in one update
OVERSTEP = 2.5  # times the step to the optimum for fixed M and rows, which follow
MIN_CHANGE = 0.02  # of ln λ_b, or of an information weight, that is worth a new factorisation
MIN_INFORMATION = 1e-3  # of a row, for C
RANGE = (1e-6, 1e9)  # of λ_b, in units of a block's mean square


@dataclass(frozen=True)
class UnknownFeatures:
    """Distribution over rows of the shift by features that a newcomer lacks."""

    mean: Float64Array
    """(order,)."""
    covariance: Float64Array
    """(order, order)."""

    @classmethod
    def of(cls, shift: Float64Array) -> UnknownFeatures:
        """Mean and covariance of the shift of each row, (rows, order)."""
        average = shift.sum(axis=0) / max(1, shift.shape[0])
        away = shift - average
        return cls(average, np.asarray(away.T @ away / max(1, shift.shape[0])))


# docs/model.md#side-information
@dataclass(frozen=True)
class Regression:
    """q(V | Σ) of one side, and the precisions of its prior."""

    design: Design
    coefficients: Float64Array
    """M = E[V], (F, order)."""
    precision: Float64Array
    """λ_b, (B,)."""
    covariance: CovarianceSummary
    """Of C under these λ_b."""
    information: Float64Array = field(default_factory=lambda: np.zeros(0))
    """w_i with which C was found, (rows,)."""
    leverage: Float64Array = field(default_factory=lambda: np.zeros(0))
    """c_i = x_iᵀCx_i, (rows,)."""

    @classmethod
    def start(cls, design: Design, order: int) -> Regression:
        """Return a regression with coefficients of zero; C is that of information weights 1."""
        precision = START_SHARE * mean_squares(design)
        known = solver(design)
        begun = cls(
            design=design,
            coefficients=np.zeros((design.n_columns, order)),
            precision=precision,
            covariance=known.covariance(precision),
            information=np.ones(design.n_rows),
            leverage=known.leverages(precision),
        )
        return _keep(begun, solver=known)

    @cached_property
    def solver(self) -> Solver:
        """Solver for C; kept as long as C stays."""
        return solver(self.design.weighted(self.information))

    @cached_property
    def shift(self) -> Float64Array:
        """Mᵀx_i of each row, (rows, order)."""
        return np.ascontiguousarray(self.design.matrix @ self.coefficients, np.float64)

    @cached_property
    def penalty(self) -> Float64Array:
        """MᵀΛM, (order, order)."""
        weighted = self.design.by_column(self.precision)[:, None] * self.coefficients
        return np.asarray(self.coefficients.T @ weighted)

    def fitted(self, targets: Float64Array) -> Regression:
        """Update M for targets E[a_i] - Σ_d q_i(d) m_d of each row, (rows, order)."""
        changed = replace(self, coefficients=self._solved(targets, self.solver))
        return _keep(changed, solver=self.solver)

    def moved(self, targets: Float64Array) -> Regression:
        """Move M towards its optimum in time proportional to the non-zeros of the features."""
        return replace(self, coefficients=self._solved(targets, Iterative(self.design)))

    def _solved(self, targets: Float64Array, known: Solver) -> Float64Array:
        start = self.coefficients
        return solved(self.design, targets, self.precision, start, self.shift, known)

    def with_leverage(self, leverage: float) -> Regression:
        """Replace Σ_i w_i c_i, for the bound."""
        changed = replace(self, covariance=replace(self.covariance, weighted_leverage=leverage))
        derived = ("solver", "shift", "penalty", "coefficient_blocks")  # of the same C, M and λ_b
        return _keep(changed, **{name: vars(self)[name] for name in derived if name in vars(self)})

    # docs/model.md#feature-precision
    def proposed_precision(self, factor_precision: Float64Array) -> Float64Array:
        """Return λ_b to try next.

        At the optimum γ_b = F_b - λ_b tr C_bb, the number of determined directions, equals
        x_b = λ_b tr(P M_bᵀM_b)/L: for fixed M and C the optimum is λ_b γ_b/x_b.
        """
        widths, order = self.design.widths, self.coefficients.shape[1]
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        squares = self.design.by_block(np.sum(weighted, axis=1))  # tr(P M_bᵀM_b)
        information = np.maximum(widths - self.precision * self.covariance.trace, 1e-12)
        seen = np.maximum(self.precision * squares / order, 1e-12)
        step = np.clip(OVERSTEP * np.log(information / seen), -MAX_STEP, MAX_STEP)
        unit = mean_squares(self.design)
        return np.asarray(np.clip(self.precision * np.exp(step), RANGE[0] * unit, RANGE[1] * unit))

    def is_stale(self, precision: Float64Array, information: Float64Array) -> bool:
        """Whether λ_b or the information weights changed enough for a new factorisation."""
        steps = np.abs(np.log(precision / self.precision))
        change = np.abs(np.maximum(information, MIN_INFORMATION) - self.information)
        return bool(steps.max() > MIN_CHANGE or change.mean() > MIN_CHANGE)

    def known(self, information: Float64Array) -> Solver:
        """Solver for the optimal C given each row's information weight w_i."""
        return solver(self.design.weighted(np.maximum(information, MIN_INFORMATION)))

    def with_precision(
        self, precision: Float64Array, information: Float64Array, known: Solver
    ) -> Regression:
        """Replace λ_b, and C by the optimal one, which ``known`` solves for; M stays."""
        information = np.maximum(information, MIN_INFORMATION)
        changed = replace(
            self,
            precision=precision,
            covariance=known.covariance(precision),
            information=information,
            leverage=known.leverages(precision) / information,
        )
        _keep(changed, solver=known)
        return changed.with_leverage(float(information @ changed.leverage))

    @cached_property
    def coefficient_blocks(self) -> CoefficientBlocks:
        """The coefficients by kind of feature."""
        return CoefficientBlocks.of(self.design, self.coefficients)

    def rest(self, known: int) -> UnknownFeatures:
        """Distribution of the shift by all columns but the first ``known`` ones."""
        unknown = self.coefficients.copy()
        unknown[:known] = 0.0
        return UnknownFeatures.of(np.asarray(self.design.matrix @ unknown, np.float64))

    # docs/model.md#newcomers
    def feature_prior(
        self, features: csr_array, rest: UnknownFeatures | None = None, solver: Solver | None = None
    ) -> FeaturePrior:
        """Return the shift of other rows by these features, the first columns of X.

        Parameters
        ----------
        features
            The known columns of each row.
        rest
            Distribution of the shift by the other columns; by default that over the rows here.
        solver
            Solver for C; by default that of this regression.

        """
        known = features.shape[1]
        rest = rest or self.rest(known)
        leverage = np.full(features.shape[0], self.mean_leverage)
        if known:
            shape = (features.shape[0], self.design.n_columns)
            whole = csr_array((features.data, features.indices, features.indptr), shape=shape)
            leverage = (solver or self.solver).variance(whole, self.precision)
        shift = np.asarray(features @ self.coefficients[:known], np.float64) + rest.mean
        return FeaturePrior(shift, leverage, rest.covariance)

    def at_rest(self) -> Regression:
        """Return a copy without the matrices of the solver; they are made again when needed."""
        return replace(self)

    @cached_property
    def mean_leverage(self) -> float:
        """Mean of c_i over the rows."""
        return float(self.leverage.mean()) if self.leverage.size else 0.0


def _keep(regression: Regression, **derived: object) -> Regression:
    """Set cached properties that are known already."""
    vars(regression).update(derived)
    return regression


def mean_squares(design: Design) -> Float64Array:
    """Mean square of the columns of each block over the rows, summed, (B,); above zero."""
    return np.maximum(design.by_block(design.squares) / max(1, design.n_rows), 1e-12)


# docs/model.md#regression-bound
def regression_term(regression: Regression) -> float:
    """-½ L (Σ_i w_i c_i + tr ΛC - F - ln|ΛC|), the contribution of V beside MᵀΛM."""
    covariance, precision = regression.covariance, regression.precision
    widths, order = regression.design.widths, regression.coefficients.shape[1]
    log_det = float(widths @ np.log(precision)) + covariance.log_det  # ln|ΛC|
    expected = (
        covariance.weighted_leverage + float(precision @ covariance.trace) - widths.sum() - log_det
    )
    return float(-0.5 * order * expected)
