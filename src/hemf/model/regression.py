"""Regression of a side's rows on their features (docs/model.md#side-information).

    a_i | z_i=d ~ N(μ_d + Vᵀx_i, Σ),   V ~ MN(0, Λ⁻¹, Σ),   Λ = λ_b for the features of block b

The covariance among the coordinates of V is the factors' own, so one regression serves all of
them, and a side with features has one Σ for all of its communities. Rows are believed in given V:

    q(V | Σ) = MN(M, C, Σ),   q(a_i, z_i=d | V) = q_i(d) N(m_id + S_i P (V - M)ᵀx_i, S_i)

S_i = (G_i/σ² + P)⁻¹ and m_id are those of a row with Vᵀx_i known to be Mᵀx_i. What V is uncertain
by, c_i = x_iᵀCx_i in units of Σ, reaches a row as far as its ratings leave it open,

    E[a_i a_iᵀ] = … + c_i S_i P S_i,        w_i = 1 - tr(P S_i)/L

and of V, in turn, a row has the weight w_i: C⁻¹ = XᵀWX + Λ is the
best C there is. M is the same as ever, the ridge regression of the rows' means.

Rows are inferred as what is left of them, a_i - Mᵀx_i, and so are the communities' statistics.
MᵀΛM counts as if it were the scatter of such rows, and so does c_i (S_i P S_i - S_i), which has the
gradient of what V's uncertainty does to Σ: W = W0 + Σ_i … + MᵀΛM. What else V adds to the bound is

    -½ L (Σ_i w_i c_i + tr ΛC - F - ln|ΛC|)

Σ is taken for known where V's uncertainty meets a row, P⁻¹ for Σ, and the part of c_i in W is
linear in P around where rows were found. So the bound is one where Σ is known; with the ι degrees
of freedom that q(Σ) has, it may be too high by a share of L/ι of what V's uncertainty is worth.
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

START_SHARE = 2.0  # λ_b before any is learnt: features move a row by half of the factors' variance
LEAP = 2.0  # most that ln λ_b is tried to change by at once
EAGER = 2.5  # of the step to where it would be if all else stayed: M and the rows follow
LEAST_CHANGE = 0.02  # of ln λ_b, or of an information weight, that is worth a new factorisation
MIN_INFORMATION = 1e-3  # of a row, for C: less makes no difference
RANGE = (1e-6, 1e9)  # of λ_b, in units of a block's mean square


@dataclass(frozen=True)
class UnknownFeatures:
    """What features that are not known of a newcomer say of rows where they are."""

    mean: Float64Array
    """(order,)."""
    covariance: Float64Array
    """Their covariance, (order, order)."""

    @classmethod
    def of(cls, said: Float64Array) -> UnknownFeatures:
        """Return this for what is said of each row, (rows, order)."""
        average = said.sum(axis=0) / max(1, said.shape[0])
        away = said - average
        return cls(average, np.asarray(away.T @ away / max(1, said.shape[0])))


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
    """w_i that C was found with, (rows,)."""
    leverage: Float64Array = field(default_factory=lambda: np.zeros(0))
    """c_i = x_iᵀCx_i, (rows,)."""

    @classmethod
    def start(cls, design: Design, order: int) -> Regression:
        """Return what there is before anything is known of rows: features say nothing yet.

        C is that of rows which ratings tell all of; what they do not is learnt.
        """
        square = np.maximum(design.by_block(design.squares) / max(1, design.n_rows), 1e-12)
        precision = START_SHARE * square
        known = solver(design)
        begun = cls(
            design=design,
            coefficients=np.zeros((design.n_columns, order)),
            precision=precision,
            covariance=known.covariance(precision),
            information=np.ones(design.n_rows),
            leverage=known.leverages(precision),
        )
        begun.__dict__["solver"] = known
        return begun

    @cached_property
    def solver(self) -> Solver:
        """What knows C, in the way that suits the size; handed on as long as C stays."""
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
        """Return the same with M of E[a_i] - Σ_d q_i(d) m_d of each row, (rows, order)."""
        return self._with(coefficients=self._solved(targets, self.solver))

    def moved(self, targets: Float64Array) -> Regression:
        """Return the same in time proportional to the features' non-zeros, whatever their number.

        M is nearer to its optimum, if not quite there.
        """
        return replace(self, coefficients=self._solved(targets, Iterative(self.design)))

    def _solved(self, targets: Float64Array, known: Solver) -> Float64Array:
        start = self.coefficients
        return solved(self.design, targets, self.precision, start, self.shift, known)

    def with_leverage(self, leverage: float) -> Regression:
        """Return the same with Σ_i w_i c_i of the rows as they are by now, for the bound."""
        changed = self._with(covariance=replace(self.covariance, weighted_leverage=leverage))
        for name in ("shift", "penalty", "coefficient_blocks"):  # M and λ_b are the same
            if name in self.__dict__:
                changed.__dict__[name] = self.__dict__[name]
        return changed

    # docs/model.md#feature-precision
    def proposed_precision(self, factor_precision: Float64Array) -> Float64Array:
        """Return λ_b that are worth a try.

        At the optimum γ_b = F_b - λ_b tr C_bb, the number of directions determined, equals
        x_b = λ_b tr(P M_bᵀM_b)/L, so that λ_b γ_b/x_b is where it would be if M and C stayed. They
        follow, and it goes on.
        """
        widths, order = self.design.widths, self.coefficients.shape[1]
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        squares = self.design.by_block(np.sum(weighted, axis=1))  # tr(P M_bᵀM_b)
        information = np.maximum(widths - self.precision * self.covariance.trace, 1e-12)
        seen = np.maximum(self.precision * squares / order, 1e-12)
        return self._within(
            self.precision * np.exp(np.clip(EAGER * np.log(information / seen), -LEAP, LEAP))
        )

    def is_stale(self, precision: Float64Array, information: Float64Array) -> bool:
        """Whether other λ_b, or the information weights, changed enough for a new factorisation."""
        steps = np.abs(np.log(precision / self.precision))
        change = np.abs(np.maximum(information, MIN_INFORMATION) - self.information)
        return bool(steps.max() > LEAST_CHANGE or change.mean() > LEAST_CHANGE)

    def known(self, information: Float64Array) -> Solver:
        """Solver for the optimal C given each row's information weight w_i."""
        return solver(self.design.weighted(np.maximum(information, MIN_INFORMATION)))

    def with_precision(
        self, precision: Float64Array, information: Float64Array, known: Solver
    ) -> Regression:
        """Return the same with these λ_b and their best C, which ``known`` knows; M stays."""
        information = np.maximum(information, MIN_INFORMATION)
        changed = replace(
            self,
            precision=precision,
            covariance=known.covariance(precision),
            information=information,
            leverage=known.leverages(precision) / information,
        )
        changed.__dict__["solver"] = known
        return changed.with_leverage(float(information @ changed.leverage))

    @cached_property
    def coefficient_blocks(self) -> CoefficientBlocks:
        """The coefficients by what they are of."""
        return CoefficientBlocks.of(self.design, self.coefficients)

    def rest(self, known: int) -> UnknownFeatures:
        """Return what all columns but the first ``known`` ones say of the rows here."""
        unknown = self.coefficients.copy()
        unknown[:known] = 0.0
        return UnknownFeatures.of(np.asarray(self.design.matrix @ unknown, np.float64))

    # docs/model.md#newcomers
    def feature_prior(
        self, features: csr_array, rest: UnknownFeatures | None = None, solver: Solver | None = None
    ) -> FeaturePrior:
        """Return what is said of other rows by these features, of the first columns of X.

        The other columns are not known: they are expected to be what they are on average, and
        what they say of the rows here, where they are known, shows how uncertain that leaves us.
        ``rest`` says so, and ``solver`` knows C, where these are known better than from here.
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
        """Return the same without the matrices that it was solved with; they are made if needed."""
        return replace(self)

    @cached_property
    def mean_leverage(self) -> float:
        """What V leaves uncertain of a row on average, in units of Σ."""
        return float(self.leverage.mean()) if self.leverage.size else 0.0

    def _within(self, precision: Float64Array) -> Float64Array:
        """Return λ_b that can be computed with."""
        design = self.design
        unit = np.maximum(design.by_block(design.squares) / max(1, design.n_rows), 1e-12)
        return np.asarray(np.clip(precision, RANGE[0] * unit, RANGE[1] * unit))

    def _with(self, **changes: Float64Array | CovarianceSummary) -> Regression:
        changed = replace(self, **changes)  # type: ignore[arg-type]
        if "solver" in self.__dict__:  # C is the same
            changed.__dict__["solver"] = self.solver
        return changed


# docs/model.md#regression-bound
def regression_term(regression: Regression) -> float:
    """-½ L (Σ_i w_i c_i + tr ΛC - F - ln|ΛC|), what V adds to the bound beside MᵀΛM."""
    covariance, precision = regression.covariance, regression.precision
    widths, order = regression.design.widths, regression.coefficients.shape[1]
    log_det = float(widths @ np.log(precision)) + covariance.log_det  # ln|ΛC|
    expected = (
        covariance.weighted_leverage + float(precision @ covariance.trace) - widths.sum() - log_det
    )
    return float(-0.5 * order * expected)
