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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from scipy.sparse import csr_array, hstack

from hemf._typing import Array, Float64Array, Int32Array, Int64Array

START_SHARE = 2.0  # λ_b at the start: features move a row by half of the factors' variance
MAX_STEP = 2.0  # of ln λ_b in one update
OVERSTEP = 2.5  # times the step to the optimum for fixed M and rows, which follow
MIN_CHANGE = 0.02  # of ln λ_b, or of an information weight, that is worth a new factorisation
MIN_INFORMATION = 1e-3  # of a row, for C
RANGE = (1e-6, 1e9)  # of λ_b, in units of a block's mean square


class UnknownFeatures(NamedTuple):
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


@dataclass(frozen=True)
class FeaturePrior:
    """Shift of rows without ratings by their features; see `hemf.model.regression`."""

    shift: Float64Array
    """E[Vᵀx], (rows, order)."""
    leverage: Float64Array
    """xᵀCx, (rows,): uncertainty of V in units of Σ."""
    covariance: Float64Array
    """Covariance of the shift by unknown features, (order, order)."""


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

        ``rest`` is the distribution of the shift by the other columns; by default that over the
        rows here. ``solver`` is by default that of this regression.
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


# ------------------------------------------------------------------------------------------------
# Ridge regression with one Gram matrix for all coordinates: M = E[V] and its covariance C.
#
#     q(V | Σ) = MN(M, C, Σ),   C⁻¹ = XᵀWX + Λ,   M = (XᵀX + Λ)⁻¹ Xᵀ R
#
# Solvers get the design weighted by the information of the rows, W^½ X. Where rows or columns are
# few enough, the smaller of XᵀWX + Λ and I + W^½ X Λ⁻¹ Xᵀ W^½ is factorised (`Direct`). Otherwise C
# is diagonal, in memory proportional to the non-zeros of the features: the optimal diagonal one,
# 1/C_ff = Σ_i w_i x_if² + λ, whose bound is lower (`Iterative`). M is found by conjugate gradients
# from where it was, preconditioned by C.


Product: TypeAlias = tuple[Float64Array, Callable[[], Float64Array]]
"""vᵀAv, and a function that returns A v."""
Operator: TypeAlias = Callable[[Float64Array], Product]

DIRECT = 5000  # rows or columns up to which a matrix of them is factorised
PRECISE = 1500  # rows or columns up to which that is done in float64 for any storage type
CHUNK_BYTES = 1 << 25  # of features that are made dense at a time
DENSE = 40.0  # products by BLAS in the time of one product of sparse entries
ACCURACY = 1e-4  # of the residual, at which conjugate gradients stop early


@dataclass(frozen=True)
class CovarianceSummary:
    """Summary of C, the covariance of V among features."""

    trace: Float64Array
    """tr C_bb of each block, (B,)."""
    log_det: float
    """ln|C|."""
    weighted_leverage: float
    """Σ_i w_i x_iᵀ C x_i."""


# docs/model.md#coefficients
class Solver(Protocol):
    """Solver for C of a weighted design."""

    steps: int
    """Steps of conjugate gradients in one update; the next sweep continues."""

    def covariance(self, precision: Float64Array) -> CovarianceSummary:
        """Return the summary of C for these λ_b."""

    def leverages(self, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of the design."""

    def solve(self, right: Float64Array, precision: Float64Array) -> Float64Array:
        """Return C times ``right``, (F, any)."""

    def variance(self, features: csr_array, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of other features."""


def solver(design: Design) -> Solver:
    """Return a solver that suits the size of the design."""
    smaller = min(design.n_rows, design.n_columns)
    return Direct(design) if smaller <= DIRECT else Iterative(design)


class Direct:
    """Cholesky factorisation of the columns' or the rows' Gram matrix, whichever is smaller."""

    steps = 1

    def __init__(self, design: Design) -> None:
        self._design = design
        self._by_rows = design.n_rows < design.n_columns
        self._size = min(design.n_rows, design.n_columns)
        is_small = self._size <= PRECISE
        self._dtype = np.dtype(np.float64) if is_small else design.values.dtype
        if self._by_rows:  # X_b X_bᵀ of each block: λ_b changes their weights
            blocks = (design.transposed[design.block(b)] for b in range(design.widths.size))
            self._grams = [gram(csr_array(block), self._dtype) for block in blocks]
        else:
            self._grams = [gram(design.matrix, self._dtype)]
        self._precision: Float64Array | None = None
        self._factor: Array
        self._covariance: CovarianceSummary
        self._leverages: Float64Array

    def covariance(self, precision: Float64Array) -> CovarianceSummary:
        """Return the summary of C for these λ_b."""
        self._factorise(precision)
        return self._covariance

    def leverages(self, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of the design."""
        self._factorise(precision)
        return self._leverages

    def solve(self, right: Float64Array, precision: Float64Array) -> Float64Array:
        """Return C times ``right``."""
        self._factorise(precision)
        if not self._by_rows:
            return self._solve(right)
        columns, design = self._design.by_column(precision)[:, None], self._design
        scaled = right / columns  # C = Λ⁻¹ - Λ⁻¹Xᵀ (I + X Λ⁻¹ Xᵀ)⁻¹ XΛ⁻¹
        return np.asarray(
            scaled - design.transposed @ self._solve(design.matrix @ scaled) / columns
        )

    def variance(self, features: csr_array, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of other features."""
        self._factorise(precision)
        if not self._by_rows:
            dense = features.toarray().astype(np.float64)
            return np.asarray(np.sum(dense * self._solve(dense.T).T, axis=1))
        scaled = features / self._design.by_column(precision)
        seen = (self._design.matrix @ scaled.T).toarray()
        own = np.asarray(features.multiply(scaled).sum(axis=1)).ravel()
        return np.asarray(np.maximum(own - np.sum(seen * self._solve(seen), axis=0), 0.0))

    def _solve(self, right: Float64Array) -> Float64Array:
        from scipy.linalg import cho_solve

        right = right.astype(self._factor.dtype)
        return np.asarray(cho_solve((self._factor, True), right, check_finite=False), np.float64)

    def _factorise(self, precision: Float64Array) -> None:
        if self._precision is not None and np.array_equal(precision, self._precision):
            return
        from scipy.linalg import LinAlgError

        self._precision = None  # until all is computed: an exception may come in between
        try:
            self._factorise_in(self._dtype, precision)
        except LinAlgError:  # in float32, where features are almost copies of each other
            self._factorise_in(np.dtype(np.float64), precision)
        self._precision = precision.copy()

    def _factorise_in(self, dtype: np.dtype[np.floating], precision: Float64Array) -> None:
        from scipy.linalg import cholesky, lapack

        design, diagonal = self._design, np.arange(self._size)
        log_precisions = float(design.widths @ np.log(precision))
        if self._by_rows:
            whole = np.zeros((self._size, self._size), dtype, order="F")
            for weight, part in zip(1.0 / precision, self._grams, strict=True):
                whole += (weight * part).astype(dtype)
            whole[diagonal, diagonal] += 1.0
        else:
            whole = self._grams[0].astype(dtype, order="F")
            whole[diagonal, diagonal] += design.by_column(precision).astype(dtype)
        self._factor = cholesky(whole, lower=True, overwrite_a=True, check_finite=False)
        log_det = 2.0 * float(np.log(np.diagonal(self._factor), dtype=np.float64).sum())
        (invert,) = lapack.get_lapack_funcs(("potri",), (self._factor,))
        inverse, _ = invert(self._factor, lower=True)
        if self._by_rows:  # tr C_bb = F_b/λ_b - tr(X_b X_bᵀ K⁻¹)/λ_b²
            inverse += np.tril(inverse, -1).T
            explained = [np.sum(part * inverse, dtype=np.float64) for part in self._grams]
            trace = (design.widths - np.array(explained) / precision) / precision
            log_det += log_precisions
            leverages = 1.0 - np.diagonal(inverse).astype(np.float64)  # X C Xᵀ = I - K⁻¹
        else:
            trace = design.by_block(np.diagonal(inverse).astype(np.float64))
            leverages = forms(design.matrix, inverse)
        self._leverages = np.maximum(leverages, 0.0)
        self._covariance = CovarianceSummary(trace, -log_det, float(self._leverages.sum()))


class Iterative:
    """Diagonal C, in memory proportional to the non-zeros of the features."""

    steps = 8

    def __init__(self, design: Design) -> None:
        self._design = design

    def covariance(self, precision: Float64Array) -> CovarianceSummary:
        """Return the summary of C for these λ_b."""
        design, inverse = self._design, self._inverse(precision)  # C_ff
        return CovarianceSummary(
            trace=design.by_block(1.0 / inverse),
            log_det=-float(np.log(inverse).sum()),
            weighted_leverage=float(np.sum(design.squares / inverse)),
        )

    def leverages(self, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of the design."""
        return self.variance(self._design.matrix, precision)

    def solve(self, right: Float64Array, precision: Float64Array) -> Float64Array:
        """Return C times ``right``."""
        return right / self._inverse(precision)[:, None]

    def variance(self, features: csr_array, precision: Float64Array) -> Float64Array:
        """Return xᵀ C x of each row of other features."""
        squares = features.multiply(features).astype(np.float64)
        return np.asarray(squares @ (1.0 / self._inverse(precision)))

    def _inverse(self, precision: Float64Array) -> Float64Array:
        """1/C_ff."""
        return np.asarray(self._design.squares + self._design.by_column(precision))


# docs/model.md#coefficients
def solved(
    design: Design,
    targets: Float64Array,
    precision: Float64Array,
    start: Float64Array,
    shift: Float64Array,
    known: Solver,
) -> Float64Array:
    """Return M of these targets, (rows, L), from ``start`` on; ``shift`` is X times that.

    By conjugate gradients, preconditioned by the C of ``known``; every step raises the bound.
    """
    matrix, transposed = design.matrix, design.transposed
    columns = design.by_column(precision)[:, None]

    def apply(direction: Float64Array) -> Product:
        seen = matrix @ direction
        curve = np.sum(seen * seen, axis=0) + np.sum(columns * direction * direction, axis=0)
        return curve, lambda: transposed @ seen + columns * direction

    return conjugate_gradients(
        apply,
        transposed @ (targets - shift) - columns * start,
        start,
        lambda v: known.solve(v, precision),
        max_steps=known.steps,
        axis=0,
        check_last=False,
    )[0]


def conjugate_gradients(
    apply: Operator,
    residual: Float64Array,
    start: Float64Array,
    precondition: Callable[[Float64Array], Float64Array],
    *,
    max_steps: int,
    enough: float | None = None,
    axis: int | None = None,
    check_last: bool = True,
) -> tuple[Float64Array, int, Float64Array]:
    """Solve A v = b for symmetric A; return v, the number of steps, and the size of the residual.

    ``residual`` is b - A start, and ``precondition`` multiplies with about the inverse of A. It
    stops where rᵀ(precondition r) is ``enough``; by default `ACCURACY`² of the first one. ``axis``
    0 solves for each column alone, None for all of them as one vector. Without ``check_last`` the
    residual after the last step is not computed.

    >>> twice = lambda v: (2 * np.sum(v * v), lambda: 2 * v)
    >>> six, zero = np.full((2, 1), 6.0), np.zeros((2, 1))
    >>> conjugate_gradients(twice, six, zero, lambda v: v, max_steps=9)[0].tolist()
    [[3.0], [3.0]]
    """
    found, left = start.copy(), residual
    step = precondition(left)
    direction, size, steps = step, np.sum(left * step, axis=axis), 0
    limit = ACCURACY**2 * size if enough is None else enough
    while steps < max_steps and np.any(size > limit):
        curve, product = apply(direction)
        active = (size > limit) & (curve > 0.0)
        if not active.any():
            break
        length = np.where(active, size / np.where(active, curve, 1.0), 0.0)
        found += length * direction
        steps += 1
        if steps == max_steps and not check_last:
            break
        left = left - length * product()  # not in place: precondition may return its argument
        step = precondition(left)
        last, size = size, np.sum(left * step, axis=axis)
        direction = step + np.where(active, size / np.where(active, last, 1.0), 0.0) * direction
    return found, steps, np.asarray(size)


def gram(matrix: csr_array, dtype: np.dtype[np.floating]) -> Array:
    """Return matrixᵀ matrix, by dense parts or by non-zeros, whichever is faster.

    >>> gram(csr_array(np.array([[1.0, 2.0], [0.0, 1.0]])), np.dtype(np.float64)).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    n_rows, size = matrix.shape
    lengths = np.diff(matrix.indptr).astype(np.float64)
    if DENSE * float(lengths @ lengths) < float(n_rows) * size * size:
        return _sparse_gram(matrix, dtype)
    total = np.zeros((size, size), dtype)
    rows = max(1, CHUNK_BYTES // max(1, size * dtype.itemsize))
    for start in range(0, n_rows, rows):
        part = matrix[start : start + rows].astype(dtype).toarray()
        total += part.T @ part
    return total


def _sparse_gram(matrix: csr_array, dtype: np.dtype[np.floating]) -> Array:
    from hemf.kernels.products import cross_products

    matrix.sort_indices()
    by_column, size = csr_array(matrix.T), matrix.shape[1]
    total = np.zeros((size, size), dtype)
    tables = *_parts(by_column, dtype), *_parts(matrix, dtype)
    cross_products.compiled(dtype)(0, size, *tables, total)
    total += np.tril(total, -1).T
    return total


def forms(matrix: csr_array, lower: Array) -> Float64Array:
    """Return xᵀCx of each row, given the lower triangle of C.

    >>> forms(csr_array(np.array([[1.0, 2.0]])), np.array([[1.0, 0.0], [3.0, 1.0]])).tolist()
    [17.0]
    """
    from hemf.kernels.products import row_forms

    matrix.sort_indices()
    found = np.empty(matrix.shape[0])
    lower = np.ascontiguousarray(lower)
    row_forms.compiled(lower.dtype)(0, found.size, *_parts(matrix, lower.dtype), lower, found)
    return found


def _parts(matrix: csr_array, dtype: np.dtype[np.floating]) -> tuple[Array, ...]:
    """Return the arrays of a sparse matrix in the types of kernels."""
    return (
        np.ascontiguousarray(matrix.indptr, np.int64),
        np.ascontiguousarray(matrix.indices, np.int32),
        np.ascontiguousarray(matrix.data, dtype),
    )


# ------------------------------------------------------------------------------------------------
# Features of the rows of one side, as a matrix in blocks of columns.


Block: TypeAlias = Float64Array | csr_array
"""Columns of features that share a precision."""


@dataclass(frozen=True)
class Design:
    """X, compressed by rows; columns that share a precision λ_b stand in a block together.

    >>> design = Design.of({"age": np.eye(2), "genre": np.ones((2, 3))})
    >>> design.names, design.widths.tolist(), design.matrix.shape
    (('age', 'genre'), [2, 3], (2, 5))
    """

    names: tuple[str, ...]
    """Of the blocks."""
    widths: Int64Array
    """Columns of each block, (B,)."""
    indptr: Int64Array
    indices: Int32Array
    values: Array

    @classmethod
    def of(cls, blocks: Mapping[str, Block], dtype: type[np.floating] = np.float64) -> Design:
        """Concatenate blocks by columns; each is a dense or sparse matrix of all rows."""
        parts = [csr_array(block) for block in blocks.values()]
        together = csr_array(hstack(parts, format="csr"))
        together.sum_duplicates()
        return cls(
            names=tuple(blocks),
            widths=np.array([part.shape[1] for part in parts], np.int64),
            indptr=together.indptr.astype(np.int64),
            indices=together.indices.astype(np.int32),
            values=together.data.astype(dtype),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.indptr.size - 1

    @property
    def n_columns(self) -> int:
        """Number of features."""
        return int(self.widths.sum())

    @cached_property
    def matrix(self) -> csr_array:
        """X, (rows, columns)."""
        shape = (self.n_rows, self.n_columns)
        return csr_array((self.values, self.indices, self.indptr), shape=shape)

    @cached_property
    def transposed(self) -> csr_array:
        """Xᵀ, compressed by columns of X."""
        return csr_array(self.matrix.T)

    @cached_property
    def squares(self) -> Float64Array:
        """Σ_i x_if² of each column, (F,): the diagonal of XᵀX."""
        values = self.values.astype(np.float64)
        return np.bincount(self.indices, values * values, self.n_columns).astype(np.float64)

    def weighted(self, weights: Float64Array) -> Design:
        """Return W^½ X."""
        roots = np.repeat(np.sqrt(weights), np.diff(self.indptr)).astype(self.values.dtype)
        return replace(self, values=self.values * roots)

    def by_column(self, of_blocks: Float64Array) -> Float64Array:
        """Repeat a number of each block for its columns, (F,)."""
        return np.repeat(of_blocks, self.widths)

    def by_block(self, of_columns: Float64Array) -> Float64Array:
        """Sum a number of each column over the columns of a block, (B,)."""
        ends = np.concatenate([[0.0], np.cumsum(of_columns)])[np.cumsum(self.widths)]
        return np.diff(ends, prepend=0.0)

    def block(self, which: int) -> slice:
        """Columns of a block."""
        end = int(self.widths[: which + 1].sum())
        return slice(end - int(self.widths[which]), end)


# ------------------------------------------------------------------------------------------------
# Implicit features: which rows of the other side a row has rated, and how many.
#
# x_ij = 1/√n_i for each of the n_i ratings of row i; and ln n_i with its square, standardised. So
# the shift of a row follows its ratings one by one, by sums of coefficients:
#
#     f_i = g_i + Σ_j M_j / √n_i + z_i M_1 + (z_i² - 1) M_2,   z_i = ln n_i, standardised
#
# where g_i is the shift by given features.


CHOSEN = "(chosen)"
RATED = "(rated)"
HOW_MANY = "(how many)"


@dataclass(frozen=True)
class Logs:
    """Standardisation of ln n over the rows with ratings, clipped to their range."""

    mean: float
    scale: float
    """Standard deviation; 0 where all are equal."""
    low: float
    high: float

    @classmethod
    def of(cls, counts: Int64Array | Float64Array) -> Logs:
        """Return mean, scale and range of ln n."""
        logs = np.log(counts[counts > 0].astype(np.float64))
        if not logs.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(logs.mean()), float(logs.std()), float(logs.min()), float(logs.max()))

    def columns(self, counts: Int64Array | Float64Array) -> Float64Array:
        """Return z and z² - 1 of rows with these numbers of ratings; zeros without any."""
        logs = np.clip(np.log(np.maximum(counts, 1.0)), self.low, self.high)
        away = (logs - self.mean) / self.scale if self.scale > 0.0 else np.zeros(counts.size)
        columns = np.column_stack([away, away * away - 1.0])
        return np.where((counts > 0)[:, None], columns, 0.0)

    @property
    def array(self) -> Float64Array:
        """The four numbers in one array, for kernels."""
        return np.array([self.mean, self.scale, self.low, self.high])


def log_counts(counts: Int64Array | Float64Array) -> Float64Array:
    """Return z and z² - 1 of z = ln n, standardised over rows with ratings; zeros without.

    >>> log_counts(np.array([1, 1, 7, 0])).round(2).tolist()
    [[-0.71, -0.5], [-0.71, -0.5], [1.41, 1.0], [0.0, 0.0]]
    """
    return Logs.of(counts).columns(counts)


# docs/model.md#implicit-features
def implicit_blocks(indptr: Int64Array, indices: Int32Array, n_other: int) -> dict[str, Block]:
    """Return the blocks of implicit features.

    >>> blocks = implicit_blocks(np.array([0, 2, 3]), np.array([0, 1, 0]), 2)
    >>> blocks["(rated)"].toarray().round(2).tolist()
    [[0.71, 0.71], [1.0, 0.0]]
    """
    counts = np.diff(indptr)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    rated = csr_array((values, indices, indptr), shape=(counts.size, n_other))
    return {RATED: rated, HOW_MANY: log_counts(counts)}


@dataclass(frozen=True)
class CoefficientBlocks:
    """Coefficients of a regression by kind of feature, so that f_i can follow ratings."""

    given: Float64Array
    """Of given features, (G, order)."""
    rated: Float64Array
    """M_j, (rows of the other side, order); empty without implicit features."""
    count_coefficients: Float64Array
    """M_1 and M_2, (2, order), or empty."""
    logs: Logs | None
    """Standardisation of z; None without implicit features."""

    @classmethod
    def of(cls, design: Design, coefficients: Float64Array) -> CoefficientBlocks:
        """Split the coefficients of a design; implicit features come last in it."""
        order = coefficients.shape[1]
        if RATED not in design.names:
            nothing = np.zeros((0, order))
            return cls(coefficients, nothing, nothing, None)
        rated = design.block(design.names.index(RATED))
        numbers = design.block(design.names.index(HOW_MANY))
        return cls(
            given=coefficients[: rated.start],
            rated=coefficients[rated],
            count_coefficients=coefficients[numbers],
            logs=Logs.of(rated_counts(design)),
        )

    @property
    def has_rated(self) -> bool:
        """Whether there are implicit features."""
        return self.logs is not None

    def shift(
        self, base: Float64Array, coefficient_sum: Float64Array, counts: Int64Array | Float64Array
    ) -> Float64Array:
        """Return f_i of rows, given g_i, Σ_j M_j and n_i."""
        if self.logs is None:
            return base.copy()
        root = 1.0 / np.sqrt(np.maximum(counts, 1.0))
        of_counts = self.logs.columns(counts) @ self.count_coefficients
        return np.asarray(base + root[:, None] * coefficient_sum + of_counts)


def rated_counts(design: Design) -> Int64Array:
    """Return the number of ratings of each row of a design with implicit features."""
    block = design.block(design.names.index(RATED))
    inside = (design.indices >= block.start) & (design.indices < block.stop)
    ends = np.concatenate([[0], np.cumsum(inside)])[design.indptr]
    return np.diff(ends).astype(np.int64)


def given_part(design: Design) -> csr_array:
    """Return the given features of a design, (rows, G)."""
    n = design.block(design.names.index(RATED)).start if RATED in design.names else None
    return csr_array(design.matrix[:, :n])
