"""What features say of a side's rows: MODEL.md, "Side information".

    a_i | z_i=d ~ N(μ_d + Vᵀx_i, Σ),   V ~ MN(0, Λ⁻¹, Σ),   Λ = λ_b for the features of block b

The posterior is q(V | Σ) = MN(M, C, Σ), C⁻¹ = XᵀX + Λ: the covariance among the coordinates of a
row is the factors' own, so that it drops out of M and C, and one regression serves all of them. A
side with features therefore has one Σ for all of its communities.

Rows are inferred as what is left of them, a_i - Mᵀx_i, and so are the communities' statistics.
MᵀΛM counts as if it were the scatter of such rows: W = W0 + Σ_i … + MᵀΛM. What else V adds to the
bound does not depend on Σ, for its uncertainty is measured in Σ like all else:

    -½ L (Σ_i x_iᵀCx_i + tr ΛC - F - ln|ΛC|)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf.model.design import Design
from hemf.model.implicit import HOW_MANY, RATED, Spoken
from hemf.model.packing import Float64
from hemf.model.ridge import Iterative, Solver, Spread, solver
from hemf.model.stranger import Hint

START_SHARE = 2.0  # λ_b before any is learnt: features move a row by half of the factors' variance
LEAP = 2.0  # most that ln λ_b is tried to change by at once
WORTH_IT = 0.2  # change of ln λ_b that is worth a try
RANGE = (1e-6, 1e9)  # of λ_b, in units of a block's mean square


@dataclass(frozen=True)
class Rest:
    """What features that are not known of a newcomer say of rows where they are."""

    average: Float64
    """(order,)."""
    spread: Float64
    """Their covariance, (order, order)."""

    @classmethod
    def of(cls, said: Float64) -> Rest:
        """Return this for what is said of each row, (rows, order)."""
        average = said.sum(axis=0) / max(1, said.shape[0])
        away = said - average
        return cls(average, np.asarray(away.T @ away / max(1, said.shape[0])))


@dataclass(frozen=True)
class Regression:
    """q(V | Σ) of one side, and the precisions of its prior."""

    design: Design
    coefficients: Float64
    """M = E[V], (F, order)."""
    precision: Float64
    """λ_b, (B,)."""
    spread: Spread
    """Of C; that of the λ_b at the time."""

    @classmethod
    def start(cls, design: Design, order: int) -> Regression:
        """Return the prior, which features say nothing under."""
        square = np.maximum(design.by_block(design.squares) / max(1, design.n_rows), 1e-12)
        precision = START_SHARE * square
        columns = design.by_column(precision)
        return cls(
            design=design,
            coefficients=np.zeros((design.n_columns, order)),
            precision=precision,
            spread=Spread(
                trace=design.widths / precision,
                log_det=-float(np.log(columns).sum()),
                leverage=float(np.sum(design.squares / columns)),
            ),
        )

    @cached_property
    def solver(self) -> Solver:
        """The way to solve that suits the size; handed on from one regression to the next."""
        return solver(self.design)

    @cached_property
    def shift(self) -> Float64:
        """Mᵀx_i of each row, (rows, order)."""
        return np.ascontiguousarray(self.design.matrix @ self.coefficients, np.float64)

    @cached_property
    def penalty(self) -> Float64:
        """MᵀΛM, (order, order)."""
        weighted = self.design.by_column(self.precision)[:, None] * self.coefficients
        return np.asarray(self.coefficients.T @ weighted)

    def fitted(self, targets: Float64) -> Regression:
        """Return the posterior given E[a_i] - Σ_d q_i(d) m_d of each row, (rows, order)."""
        found = self.solver.coefficients(targets, self.precision, self.coefficients)
        return self._with(coefficients=found, spread=self.solver.spread(self.precision))

    def learnt(self, factor_precision: Float64, at_least: float = 0.0) -> Regression:
        """Return the same with the λ_b that raise the bound most; q(V) stays.

        λ_b = L F_b / (tr(P M_bᵀM_b) + L tr C_bb), unless none would change by the share
        ``at_least``.
        """
        order = self.coefficients.shape[1]
        squares = self._squares(factor_precision)
        wanted = self._within(order * self.design.widths / (squares + order * self.spread.trace))
        if (np.abs(np.log(wanted / self.precision)) < at_least).all():
            return self
        return self._with(precision=wanted)

    def leap(self, factor_precision: Float64, stalled: float) -> Float64 | None:
        """Return λ_b that may be far better where `learnt` hardly moves them; None elsewhere.

        Where features are many more than rows, q(V) is its prior in most directions, and what
        suits it best is about that prior again: a step changes ln λ_b by some (γ_b - x_b)/F_b, with
        γ_b = F_b - λ_b tr C_bb, the directions told of, and x_b = λ_b tr(P M_bᵀM_b)/L. At the
        optimum these are equal, so λ_b γ_b/x_b is worth a try (MacKay's step). It may be too far.

        What rows chose to rate is left alone: q(V) and q(a) apart overstate what it costs, and the
        bound would have it say less than held-out ratings would.
        """
        widths, order = self.design.widths, self.coefficients.shape[1]
        told = np.maximum(widths - self.precision * self.spread.trace, 1e-12)
        seen = np.maximum(self.precision * self._squares(factor_precision) / order, 1e-12)
        step = np.log(widths / (widths - told + seen))
        far = np.clip(np.log(told / seen), -LEAP, LEAP)
        slow = (np.abs(step) < stalled) & (np.abs(far) > WORTH_IT) & self._given
        if not slow.any():
            return None
        return self._within(self.precision * np.exp(np.where(slow, far, step)))

    def under(self, precision: Float64, targets: Float64) -> Regression:
        """Return the posterior under other λ_b."""
        return self._with(precision=precision).fitted(targets)

    def moved(self, targets: Float64) -> Regression:
        """Return the same with an M that is nearer to its optimum; C stays, and so does λ_b.

        That takes time proportional to the features' non-zeros, whatever their number.
        """
        found = Iterative(self.design).coefficients(targets, self.precision, self.coefficients)
        return replace(self, coefficients=found)

    @cached_property
    def spoken(self) -> Spoken:
        """The coefficients by what they are of."""
        return Spoken.of(self.design, self.coefficients)

    def rest(self, known: int) -> Rest:
        """Return what all columns but the first ``known`` ones say of the rows here."""
        unknown = self.coefficients.copy()
        unknown[:known] = 0.0
        return Rest.of(np.asarray(self.design.matrix @ unknown, np.float64))

    def hint(
        self, features: csr_array, rest: Rest | None = None, solver: Solver | None = None
    ) -> Hint:
        """Return what is said of other rows by these features, of the first columns of X.

        The other columns are not known: they are expected to be what they are on average, and
        what they say of the rows here, where they are known, shows how uncertain that leaves us.
        ``rest`` says so, and ``solver`` knows C, where these are known better than from here.
        """
        known = features.shape[1]
        rest = rest or self.rest(known)
        leverage = np.full(features.shape[0], self.spread.leverage / max(1, self.design.n_rows))
        if known:
            shape = (features.shape[0], self.design.n_columns)
            whole = csr_array((features.data, features.indices, features.indptr), shape=shape)
            leverage = (solver or self.solver).variance(whole, self.precision)
        shift = np.asarray(features @ self.coefficients[:known], np.float64) + rest.average
        return Hint(shift, leverage, rest.spread)

    def at_rest(self) -> Regression:
        """Return the same without the matrices that it was solved with; they are made if needed."""
        return replace(self)

    @property
    def _given(self) -> npt.NDArray[np.bool_]:
        """Which blocks are of features that were given, (B,)."""
        return np.array([name not in (RATED, HOW_MANY) for name in self.design.names], bool)

    def _squares(self, factor_precision: Float64) -> Float64:
        """tr(P M_bᵀM_b) of each block, (B,)."""
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        return self.design.by_block(np.sum(weighted, axis=1))

    def _within(self, precision: Float64) -> Float64:
        """Return λ_b that can be computed with."""
        design = self.design
        unit = np.maximum(design.by_block(design.squares) / max(1, design.n_rows), 1e-12)
        return np.asarray(np.clip(precision, RANGE[0] * unit, RANGE[1] * unit))

    def _with(self, **changes: Float64 | Spread) -> Regression:
        changed = replace(self, **changes)  # type: ignore[arg-type]
        changed.__dict__["solver"] = self.solver  # the features are the same
        return changed


def regression_term(regression: Regression) -> float:
    """-½ L (Σ_i x_iᵀCx_i + tr ΛC - F - ln|ΛC|), what V adds to the bound beside MᵀΛM."""
    spread, precision = regression.spread, regression.precision
    widths, order = regression.design.widths, regression.coefficients.shape[1]
    log_det = float(widths @ np.log(precision)) + spread.log_det  # ln|ΛC|
    expected = spread.leverage + float(precision @ spread.trace) - widths.sum() - log_det
    return float(-0.5 * order * expected)
