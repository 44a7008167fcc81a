"""HeMF with one community on each side, by Gibbs sampling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from hemf._checks import check_bool, check_callables, check_int, check_rng
from hemf._options import fit_options
from hemf._typing import (
    SIDES,
    Array,
    FeaturesLike,
    Float32Array,
    Float64Array,
    IdsLike,
    Int32Array,
    RatingsLike,
)
from hemf.baselines.base import Callbacks, Progress, parameter
from hemf.batch.fit import NOISE_START, BatchState
from hemf.batch.inputs import regression_bytes
from hemf.data.pairs import Pairs
from hemf.data.ratings import Ratings, Sparse
from hemf.data.sources import ColumnChoice
from hemf.engines.threads import EntriesInMemory, chunk_bounds, share_out
from hemf.errors import ConvergenceWarning, DataError
from hemf.estimator import HeMF
from hemf.evaluation.distribution import distinct_levels, is_scale
from hemf.model.regression import (
    START_SHARE,
    Design,
    Product,
    Solver,
    conjugate_gradients,
    mean_squares,
    solver,
)
from hemf.model.rows import START_SHAPE, Layout, pack
from hemf.samplers.base import Chain, Moments, Sampler, SampleReport
from hemf.samplers.draws import (
    DrawnScales,
    NormalWishart,
    OrdinalScale,
    draw_noise,
    over_parts,
    products,
    with_unknown,
)

START_SWEEPS = 25  # of the variational fit that a chain starts from


@dataclass(kw_only=True, repr=False, eq=False)
class GibbsHeMF(Sampler):
    """HeMF with one community on each side, by Gibbs sampling: slower, often more accurate.

    A sampler does not need the factorised posterior of variational Bayes. With few ratings and many
    features this lowers the error by some percent, in about ten times the time. Ratings are::

        r_ij ~ N(c + o_i + p_j + a_i·b_j, σ²/(τ_i υ_j)),   (o_i, a_i) ~ N(μ + Vᵀx_i, Λ⁻¹)

    and likewise for items. An iteration draws V and all users at once, then their priors, then the
    same for items, then the noise and its scales. The chain starts from a `HeMF` of the same
    settings, ``start_``, which also predicts unknown ids: users and items without a rating.

    Parameters
    ----------
    n_factors
        Length of a_i and b_j.
    samples, burn_in, rating_range, duplicates, n_jobs, rng
        As for `hemf.samplers.BPMF`.
    kept
        Maximal number of samples that are kept for `predict`, evenly spaced. A sample takes
        4 (n_factors + 4) bytes for each user and item; fewer samples make predictions noisier.
    implicit_features, noise_scales
        As for `HeMF`.
    outliers
        Whether every rating has a noise scale of its own: errors then have Student's t
        distribution, whose degrees of freedom are drawn, and outliers count less.
    ordinal
        Whether ratings are levels of a bounded scale rather than numbers.

    Examples
    --------
    >>> from hemf import GibbsHeMF
    >>> model = GibbsHeMF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_items_
    2
    >>> mean, std = model.predict("bob", ["tea", "milk"], return_std=True)
    >>> mean.shape, bool((std > 0.3).all())
    ((2,), True)

    """

    samples: int = parameter(300, check_int, low=1)
    burn_in: int = parameter(30, check_int, low=0)
    kept: int = parameter(300, check_int, low=1)
    implicit_features: bool | str = True
    noise_scales: str | None = "both"
    outliers: bool = parameter(False, check_bool)
    ordinal: bool = parameter(False, check_bool)

    def fit(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        columns: ColumnChoice = None,
        user_features: FeaturesLike = None,
        item_features: FeaturesLike = None,
        validation: RatingsLike = None,
        callbacks: Callbacks[SampleReport] = (),
    ) -> Self:
        """Fit to ratings and features, anything that `HeMF.fit` reads.

        For ``validation`` and ``callbacks`` see `hemf.samplers.BPMF.fit`.
        """
        self.check_parameters()
        rng, callbacks = check_rng(self.rng), check_callables("callbacks", callbacks)
        data, progress = self._read(ratings, y, columns), Progress(callbacks)
        levels = _levels(data) if self.ordinal else None
        first = self._first(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first.fit(data, user_features=user_features, item_features=item_features)
        state, unit, scale = first.state_, first.rating_scale_, None
        if levels is not None:
            scale = OrdinalScale((levels - first.global_mean_) / unit)
        assert isinstance(state, BatchState)

        def start(threads: int) -> Chain:
            sides, outliers = drawn_sides(state), bool(self.outliers)
            return HeMFChain(sides, state.noise, unit, rng, threads, outliers, scale)

        self._sample(data, start, validation, progress, first.predict)
        self.start_ = first
        return self

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        fit_options(self._first(0))

    def _first(self, rng: int | np.random.Generator) -> HeMF:
        """Return the model that a chain starts from."""
        return HeMF(
            n_factors=self.n_factors,
            max_user_communities=1,
            max_item_communities=1,
            implicit_features=self.implicit_features,
            noise_scales=self.noise_scales,
            max_sweeps=START_SWEEPS,
            rating_range=self.rating_range,
            n_jobs=self.n_jobs,
            rng=rng,
        )

    def scores(self, users: IdsLike, items: IdsLike) -> Float64Array:
        """Return the score of each of ``items`` for each of ``users``; see `BPMF.scores`."""
        state = self._fitted()
        user_rows, item_rows = state.users.find(users), state.items.find(items)
        table = self._table(user_rows, item_rows)
        unknown = (user_rows < 0)[:, None] | (item_rows < 0)
        if unknown.any():
            table = np.where(unknown, self.start_.scores(users, items), table)
        return table

    def _moments(self, pairs: Pairs) -> Moments:
        """Return mean and standard deviation of pairs; ``start_`` predicts unknown ids."""
        mean, std = super()._moments(pairs)
        unknown = ~pairs.known
        if unknown.any():
            theirs = self.start_.predict(pairs.user_ids, pairs.item_ids, return_std=True)
            mean, std = np.where(unknown, theirs[0], mean), np.where(unknown, theirs[1], std)
        return mean, std


def _levels(data: Ratings) -> Float64Array:
    """Return the levels of ordinal ratings."""
    levels = distinct_levels(data.by_user.values)
    if not is_scale(levels):
        raise DataError(
            f"ordinal=True is for levels of a scale, and there are {levels.size:,} different "
            "ratings; round them, or choose ordinal=False"
        )
    return levels


# ------------------------------------------------------------------------------------------------
# The chain.


class HeMFChain:
    """Vectors, coefficients of features, priors, noise and its scales."""

    def __init__(
        self,
        sides: dict[str, DrawnSide],
        noise: float,
        unit: float,
        rng: np.random.Generator,
        threads: int,
        outliers: bool = False,
        scale: OrdinalScale | None = None,
    ) -> None:
        self.sides, self.variance, self.unit = sides, noise, unit
        self.rng, self.threads, self.scale = rng, threads, scale
        rows = sides["user"].rows
        self.outliers = DrawnScales(np.ones(rows.nnz), START_SHAPE) if outliers else None
        """Noise scales of ratings."""
        self.ratings = rows.values
        """Given ratings; of ordinal ones, the rows hold the latent numbers."""
        self._levels = None if scale is None else scale.indices(rows.values)
        users = np.repeat(np.arange(sides["user"].n_rows, dtype=np.int32), np.diff(rows.indptr))
        self._pairs: tuple[Int32Array, Int32Array] = users, rows.indices
        self._by_item = np.argsort(rows.indices, kind="stable")
        self.counts = {name: np.diff(side.rows.indptr) for name, side in sides.items()}
        self.errors = self._errors()

    @property
    def noise(self) -> float:
        """σ², in squared rating units."""
        return self.variance * self.unit**2

    @property
    def train_rmse(self) -> float:
        """RMSE of the last step's draws on the training ratings."""
        errors = self.errors
        if self.scale is not None:
            std = np.sqrt(self.variance / self.weights)
            errors = self.scale.moments(self._latent() - errors, std)[0] - self.ratings
        return float(np.sqrt(np.mean(errors**2))) * self.unit

    @property
    def step_bytes(self) -> int:
        """Temporary memory: S_i of the larger side, and factorised features."""
        sides = self.sides.values()
        designs = [side.regression.design for side in sides if side.regression is not None]
        n_factors = self.sides["user"].layout.order - 1
        return max(4 * side.n_rows * side.layout.order**2 for side in sides) + sum(
            regression_bytes(design, n_factors) for design in designs
        )

    @property
    def weights(self) -> Float64Array:
        """τ_i υ_j of every rating, times its own scale, sorted by user."""
        users, items = self._pairs
        weights = self.sides["user"].weights[users] * self.sides["item"].weights[items]
        return weights if self.outliers is None else weights * self.outliers.weights

    def step(self) -> None:
        """Draw everything once, each part given the rest."""
        user, item = self.sides["user"], self.sides["item"]
        self._draw_latent()
        weights = (self.weights / self.variance).astype(np.float32)
        user.draw(item.vectors, weights, self.rng, self.threads)
        item.draw(user.vectors, weights[self._by_item], self.rng, self.threads)
        self.errors = self._errors()
        self._draw_noise()

    def _latent(self) -> Float64Array:
        """Return ratings or, where they are ordinal, their latent numbers."""
        return np.asarray(self.sides["user"].rows.values, np.float64)

    def _draw_latent(self) -> None:
        """Draw the latent numbers of ordinal ratings."""
        if self.scale is None or self._levels is None:
            return
        user, item = self.sides["user"], self.sides["item"]
        mean, std = self._latent() - self.errors, np.sqrt(self.variance / self.weights)
        drawn = self.scale.draw(self._levels, mean, std, self.rng).astype(np.float32)
        user.rows = replace(user.rows, values=drawn)
        item.rows = replace(item.rows, values=drawn[self._by_item])

    def _draw_noise(self) -> None:
        """Draw the scales of ratings, of rows, and σ², each given the rest."""
        if self.outliers is not None:
            errors = self._weighted_squares() / self.outliers.weights
            self.outliers.draw(errors, np.ones(errors.size, np.int64), self.rng)
        for name, rows in zip(SIDES, self._pairs, strict=True):
            side = self.sides[name]
            if side.scales is not None:
                errors = np.bincount(rows, self._weighted_squares(), side.n_rows) / side.weights
                side.scales.draw(errors, self.counts[name], self.rng)
        self.variance = draw_noise(np.sqrt(self.weights) * self.errors, NOISE_START, self.rng)

    def _weighted_squares(self) -> Float64Array:
        return np.asarray(self.weights * self.errors**2 / self.variance)

    def _errors(self) -> Float64Array:
        user, item = self.sides["user"], self.sides["item"]
        return self._latent() - products(*self._pairs, user.vectors, item.vectors, self.threads)

    def sample(self) -> FactorSample:
        """Return the draws of the last step."""
        user, item = self.sides["user"], self.sides["item"]
        return FactorSample(
            users=with_unknown(user.vectors, 0.0),
            items=with_unknown(item.vectors, 0.0),
            user_weights=None if user.scales is None else user.scales.with_unknown,
            item_weights=None if item.scales is None else item.scales.with_unknown,
            unit=self.unit,
            noise=self.noise,
            outlier_variance=1.0 if self.outliers is None else self.outliers.mean_inverse,
            scale=self.scale,
        )


@dataclass(frozen=True)
class FactorSample:
    """One sample of everything that ratings depend on: r - c ~ N(s a_i·b_j, σ²/(τ_i υ_j ω_ij)).

    The last row of every table is for unknown ids, whose predictions do not use samples.
    """

    users: Float32Array
    """a_i with the pinned coordinate, (rows + 1, total)."""
    items: Float32Array
    user_weights: Float64Array | None
    """τ_i; None where all are 1."""
    item_weights: Float64Array | None
    unit: float
    """s, the standard deviation of the ratings."""
    noise: float
    """σ², in squared rating units."""
    outlier_variance: float = 1.0
    """E[1/ω_ij] of a new rating."""
    scale: OrdinalScale | None = None
    """Scale of ordinal ratings; the normal distribution is that of their latent numbers."""

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        tables = self.users, self.items, self.user_weights, self.item_weights
        return sum(table.nbytes for table in tables if table is not None)

    def moments(self, user_rows: Int32Array, item_rows: Int32Array) -> Moments:
        """Return mean and variance of r - c."""
        mean = products(user_rows, item_rows, self.users, self.items, threads=1).astype(np.float64)
        noise = self.noise * self.outlier_variance / self.unit**2
        variance: Float64Array = np.full(len(user_rows), noise)
        if self.user_weights is not None:
            variance /= self.user_weights[user_rows]
        if self.item_weights is not None:
            variance /= self.item_weights[item_rows]
        if self.scale is not None:
            mean, variance = self.scale.moments(mean, np.sqrt(variance))
        return self.unit * mean, self.unit**2 * variance

    def table(self, user_rows: Int32Array, item_rows: Int32Array) -> Array:
        """Return the mean of r - c of rows of items for rows of users."""
        if self.scale is None:
            return np.asarray(self.unit * (self.users[user_rows] @ self.items[item_rows].T))
        shape = len(user_rows), len(item_rows)
        pairs = np.repeat(user_rows, shape[1]), np.tile(item_rows, shape[0])
        return self.moments(*pairs)[0].reshape(shape)


# ------------------------------------------------------------------------------------------------
# One side, drawn given the other.


@dataclass
class DrawnSide:
    """Latest draw of one side's vectors, of μ and Λ of their prior, and of all they depend on."""

    layout: Layout
    rows: Sparse  # standardised ratings
    vectors: Float32Array  # a_i with the pinned coordinate, (rows, total)
    mean: Float64Array
    precision: Float64Array
    prior: NormalWishart
    regression: DrawnRegression | None = None
    scales: DrawnScales | None = None

    @property
    def n_rows(self) -> int:
        """Number of users or items."""
        return len(self.vectors)

    @property
    def weights(self) -> Float64Array:
        """τ_i of each row."""
        return np.ones(self.n_rows) if self.scales is None else self.scales.weights

    def draw(
        self, other: Float32Array, weights: Float32Array, rng: np.random.Generator, threads: int
    ) -> None:
        """Draw V and all rows at once, given the other side; then μ, Λ and λ_b given these.

        ``other`` are the other side's vectors, and ``weights`` those of the ratings, τ_i υ_j/σ².

        A Gaussian is drawn by solving for a random right side: h_i + g_i, g_i ~ N(0, G_i) of the
        ratings, and t_i ~ N(0, Λ) of the prior, which is part of the equations of V too.
        """
        covariance, natural_mean = self._conditionals(other, weights, threads)
        natural_mean += self._rating_noise(other, weights, rng)
        root = np.linalg.cholesky(self.precision)
        own = rng.standard_normal(natural_mean.shape) @ root.T + self.precision @ self.mean
        natural_mean += own

        def multiply(vectors: Float64Array) -> Float64Array:
            return _products(covariance, vectors, threads)

        shift: Float64Array = np.zeros((self.n_rows, self.layout.order))
        regression, central = self.regression, None
        if regression is not None:
            right = multiply(natural_mean) @ self.precision - own
            known = np.einsum("nij,ij->n", covariance, self.precision, dtype=np.float64)
            information = np.clip(1.0 - known / self.layout.order, 1e-3, 1.0)
            regression.draw(multiply, information, right, self.precision, rng)
            shift, central = regression.shift, regression.scaled
        found = multiply(natural_mean + shift @ self.precision)
        self.vectors[:, self.layout.free] = found
        self.mean, self.precision = self.prior.draw(found - shift, rng, central)
        if regression is not None:
            regression.draw_precision(self.precision, rng)

    def _conditionals(
        self, other: Float32Array, weights: Float32Array, threads: int
    ) -> tuple[Float32Array, Float64Array]:
        """Return S_i and h_i of every row; see `hemf.kernels.gibbs.conditional_rows`."""
        from hemf.kernels import gibbs as kernels
        from hemf.kernels import structures

        rows, layout, order = self.rows, self.layout, self.layout.order
        values = rows.values
        if layout.pinned >= 0:  # subtract the other side's offsets
            values = values - other[rows.indices, layout.pinned]
        covariance = np.empty((self.n_rows, order, order), np.float32)
        natural_mean = np.empty((self.n_rows, order))
        cuts = chunk_bounds(rows.indptr, order)
        given = (
            cuts, structures.Ratings.of(rows.indptr, rows.indices, values), weights,
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


def drawn_sides(state: BatchState) -> dict[str, DrawnSide]:
    """Return the sides of a chain that starts from a variational fit."""
    assert isinstance(state.ratings, EntriesInMemory)
    sides = {}
    for name, side in state.sides.items():
        sides[name] = drawn = DrawnSide(
            side.layout,
            state.ratings.tables[name],
            side.moments.mean.astype(np.float32),
            side.communities.mean[0].copy(),
            side.communities.precision[0].copy(),
            NormalWishart(mean_precision=1.0, degrees=side.layout.order + 1.0),
        )
        if (found := side.regression) is not None:
            start = found.coefficients.copy()
            drawn.regression = DrawnRegression(found.design, start, found.precision)
        if (scales := side.noise_scales) is not None:
            drawn.scales = DrawnScales(scales.mean, scales.prior_shape)
    return sides


def _products(matrices: Float32Array, vectors: Float64Array, threads: int) -> Float64Array:
    """Return the product of each row's matrix with its vector."""
    from hemf.kernels import gibbs as kernels

    out = np.empty_like(vectors)
    run = kernels.multiply_rows.compiled(np.float32)
    over_parts(lambda begin, end: run(begin, end, matrices, vectors, out), len(vectors), threads)
    return out


# ------------------------------------------------------------------------------------------------
# Coefficients of features, with the rows integrated out.
#
#     a_i ~ N(μ + Vᵀx_i, Λ⁻¹),   V ~ MN(0, L⁻¹, Λ⁻¹),   L = λ_b for the features of block b
#
# Drawn one given the other, V and the rows would mix slowly: V is almost determined by the rows,
# and rows with few ratings by V. So both are drawn at once. Given ratings, a_i has precision S_i⁻¹
# and natural mean h_i; with rows integrated out, V has the precision Σ_i x_i x_iᵀ ⊗ W_i + L ⊗ Λ,
# W_i = Λ - Λ S_i Λ. Conjugate gradients solve for a random right side with that precision as its
# covariance: the solution is a draw.

ACCURACY = 1e-3  # relative residual at which conjugate gradients end
MAX_STEPS = 200
PRIOR_SHAPE = 1.0  # of λ_b's Gamma distribution
STALE = 1.5  # change of a ln λ_b that justifies a new factorisation

Multiply = Callable[[Float64Array], Float64Array]
"""Returns S_i v_i of each row's vector."""


# docs/model.md#gibbs-hemf
class DrawnRegression:
    """Latest draw of V and λ_b of one side."""

    def __init__(self, design: Design, coefficients: Float64Array, precision: Float64Array) -> None:
        self.design = design
        self.coefficients = coefficients
        """V, (F, order)."""
        self.precision = precision
        """λ_b, (B,)."""
        self.steps = 0
        """Conjugate gradient steps of the last draw."""
        self.not_converged = 0
        """Number of draws for which conjugate gradients did not converge."""
        self.guess = START_SHARE * mean_squares(design)
        """Prior mean of λ_b; 1/λ_b is on the scale of a block's columns."""
        self._solver: Solver | None = None
        self._solver_precision = precision

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
        information: Float64Array,
        right: Float64Array,
        factor_precision: Float64Array,
        rng: np.random.Generator,
    ) -> None:
        """Draw V; ``right`` is the right side of each row with its random part, (rows, order).

        ``information`` is about the share of W_i in Λ, (rows,).
        """
        matrix, transposed = self.design.matrix, self.design.transposed
        columns = self.design.by_column(self.precision)[:, None]
        root = np.linalg.cholesky(factor_precision)
        prior = rng.standard_normal(self.coefficients.shape) @ root.T

        def times_precision(v: Float64Array) -> Float64Array:
            weighted = (matrix @ v) @ factor_precision
            weighted -= multiply(np.ascontiguousarray(weighted)) @ factor_precision
            return np.asarray(transposed @ weighted + columns * (v @ factor_precision))

        def apply(v: Float64Array) -> Product:
            moved = times_precision(v)
            return np.asarray(np.sum(v * moved)), lambda: moved

        target = np.asarray(transposed @ right + np.sqrt(columns) * prior)
        precondition = self._preconditioner(information, factor_precision)
        enough = ACCURACY**2 * float(np.sum(target * precondition(target)))
        residual = target - times_precision(self.coefficients)
        self.coefficients, self.steps, size = conjugate_gradients(
            apply, residual, self.coefficients, precondition, max_steps=MAX_STEPS, enough=enough
        )
        converged = 0.0 <= size <= enough  # below 0 where rounding spoils the preconditioner
        self.not_converged += not converged
        if self.not_converged == 1 and not converged:
            warnings.warn(
                f"conjugate gradients for the coefficients of features did not converge in "
                f"{self.steps} steps: predictions may be less accurate than they could be; leave "
                "out features that are nearly sums of others",
                ConvergenceWarning,
                stacklevel=2,
            )

    def draw_precision(self, factor_precision: Float64Array, rng: np.random.Generator) -> None:
        """Draw λ_b, with prior mean ``guess``."""
        order = len(factor_precision)
        weighted = (self.coefficients @ factor_precision) * self.coefficients
        squares = self.design.by_block(np.sum(weighted, axis=1))
        shape = PRIOR_SHAPE + 0.5 * order * self.design.widths
        self.precision = rng.standard_gamma(shape) / (PRIOR_SHAPE / self.guess + 0.5 * squares)

    def _preconditioner(
        self, information: Float64Array, factor_precision: Float64Array
    ) -> Multiply:
        """Return the inverse of the precision, with information_i Λ in place of W_i.

        The factorisation is reused while λ_b changes little.
        """
        changes = np.abs(np.log(self.precision / self._solver_precision))
        if self._solver is None or changes.max() > STALE:
            self._solver = solver(self.design.weighted(information))
            self._solver_precision = self.precision
        precision, solve = self._solver_precision, self._solver.solve
        covariance = np.linalg.inv(factor_precision)
        return lambda v: solve(v, precision) @ covariance
