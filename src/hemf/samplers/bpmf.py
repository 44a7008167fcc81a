"""Bayesian probabilistic matrix factorization by Gibbs sampling."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np

from hemf._checks import check_bool, check_callables, check_number, check_rng
from hemf._typing import AnyArray, Float32Array, Float64Array, Int32Array, Int64Array, RatingsLike
from hemf.baselines.base import Callbacks, Clock
from hemf.data.ratings import Ratings, Sparse, drop_unrated_ids
from hemf.data.sources import ColumnChoice
from hemf.engines.threads import chunk_bounds, share_out
from hemf.errors import DataError
from hemf.model.rows import pack
from hemf.samplers.base import Chain, Moments, Sampler, SampleReport
from hemf.samplers.draws import NormalWishart, draw_noise, inverse, products, with_unknown

MIN_VARIANCE = 1e-9


@dataclass(kw_only=True, repr=False, eq=False)
class GibbsSampler(Sampler):
    """Base class of `BPMF`, `M3FTIB` and `M3FTIF`."""

    noise_variance: float = 0.5
    learn_noise: bool = False
    mean_precision: float = 2.0
    degrees: float | None = None
    wishart_scale: float = 1.0

    def fit(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        columns: ColumnChoice = None,
        validation: RatingsLike = None,
        callbacks: Callbacks[SampleReport] = (),
    ) -> Self:
        """Fit to ratings, anything that `Ratings.from_any` reads.

        With ``y``, ``ratings`` holds pairs and ``y`` their ratings. ``callbacks`` receive a
        `SampleReport` after every iteration; a true return value stops the fit, and if no sample
        counts by then, the latest one is kept. ``validation`` are ratings to report the error on.
        If a fit fails, the estimator keeps its state.
        """
        self.check_parameters()
        rng, callbacks = check_rng(self.rng), check_callables("callbacks", callbacks)
        data = _rated(self._read(ratings, y, columns))

        def start(threads: int) -> Chain:
            return self._chain(RatingTable.of(data), rng, threads)

        self._sample(data, start, validation, callbacks, Clock())
        return self

    @abstractmethod
    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        """Return the chain before its first step."""

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        check_number("noise_variance", self.noise_variance, low=MIN_VARIANCE)
        check_bool("learn_noise", self.learn_noise)
        check_number("mean_precision", self.mean_precision, low=MIN_VARIANCE)
        if self.degrees is not None:
            check_number("degrees", self.degrees, low=float(self.n_factors))
        check_number("wishart_scale", self.wishart_scale, low=MIN_VARIANCE)

    def _settings(self) -> Settings:
        prior = NormalWishart(self.mean_precision, self.degrees, self.wishart_scale)
        return Settings(self.n_factors, self.noise_variance, self.learn_noise, prior)


@dataclass(kw_only=True, repr=False, eq=False)
class BPMF(GibbsSampler):
    """Bayesian probabilistic matrix factorization (Salakhutdinov and Mnih, 2008).

    Factors of users and of items are Gaussian, and so is the noise::

        r_uj ~ N(c + a_u·b_j, σ²),  a_u ~ N(μ, Λ⁻¹),  μ ~ N(0, (λ0 Λ)⁻¹),  Λ ~ Wishart(ν0, s I)

    and likewise for b_j; c is the mean of the ratings. An iteration draws μ and Λ of both sides,
    then all users, then all items, each given the rest.

    Parameters
    ----------
    n_factors
        Length of a_u and b_j, D.
    samples, burn_in
        Iterations that are averaged over, and iterations before these.
    kept
        Maximal number of samples that are kept for `predict`, evenly spaced. A sample takes 4
        bytes for each factor of each user and item: at 40 factors, 1.6 MB for MovieLens 1M.
    noise_variance, learn_noise
        σ², in squared rating units. With ``learn_noise`` σ² is drawn, with the prior
        1/σ² ~ Gamma(1, noise_variance).
    mean_precision, degrees, wishart_scale
        λ0, ν0 (None: D), and s.
    rating_range
        Range that averaged predictions are clipped to: ``"observed"``, a pair of numbers (a rating
        outside is an error), or ``None``.
    duplicates
        What `fit` does with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``,
        ``"error"``.
    n_jobs
        Number of threads, None for all cores; the result does not depend on it.
    rng
        Seed or NumPy generator.

    Examples
    --------
    >>> from hemf.samplers import BPMF
    >>> model = BPMF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_items_
    2
    >>> mean, std = model.predict("bob", ["tea", "milk"], return_std=True)
    >>> mean.shape, bool((std**2 > 0.5).all())
    ((2,), True)

    """

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> FactorChain:
        return FactorChain(table, self._settings(), rng, threads)


def _rated(data: Ratings) -> Ratings:
    """Drop users and items without ratings."""
    if not data.n_ratings:
        raise DataError("there are no ratings to learn from")
    user_rows, item_rows, values = data.triples()
    users, user_rows = drop_unrated_ids(data.users, user_rows)
    items, item_rows = drop_unrated_ids(data.items, item_rows)
    return Ratings.from_rows(users, items, user_rows, item_rows, values)


# ------------------------------------------------------------------------------------------------
# The chain. Ratings are r - c = terms + a_u·b_j + noise, c the mean of the ratings. `FactorChain`
# has no terms; those of `hemf.samplers.m3f` depend on topics.

MAX_OUTER_BYTES = 1 << 31  # of the outer products of all rows
START_SCALE = 0.3  # standard deviation of the initial vectors


@dataclass(frozen=True)
class Settings:
    """Constants of a model; the estimators document each."""

    n_factors: int
    noise_variance: float
    learn_noise: bool
    prior: NormalWishart


@dataclass(frozen=True)
class RatingTable:
    """Ratings less their mean, sorted by user; ``by_item`` sorts them by item."""

    users: Int32Array
    items: Int32Array
    values: Float32Array
    user_starts: Int64Array
    item_starts: Int64Array
    users_by_item: Int32Array
    by_item: AnyArray

    @classmethod
    def of(cls, ratings: Ratings) -> RatingTable:
        """Return the table of some ratings.

        >>> data = Ratings.from_any([("ann", "tea", 5), ("ann", "ale", 1), ("bob", "tea", 3)])
        >>> table = RatingTable.of(data)
        >>> table.values.tolist(), table.by_item.tolist()
        ([2.0, -2.0, 0.0], [0, 2, 1])
        """
        users, items, values = ratings.triples()
        centred = (values.astype(np.float64) - ratings.mean).astype(np.float32)
        starts, by_item = (ratings.by_user.indptr, ratings.by_item.indptr), ratings.by_item.indices
        return cls(users, items, centred, *starts, by_item, np.argsort(items, kind="stable"))

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of users and of items."""
        return len(self.user_starts) - 1, len(self.item_starts) - 1

    def rows(self, values: Float32Array) -> tuple[Sparse, Sparse]:
        """Return values of the ratings as rows of users and of items."""
        return (
            Sparse(self.user_starts, self.items, values),
            Sparse(self.item_starts, self.users_by_item, values[self.by_item]),
        )


# docs/model.md#bpmf
def draw_rows(
    table: Sparse,
    other: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rng: np.random.Generator,
    threads: int,
) -> Float32Array:
    """Draw one side's factors given the other's; see `hemf.kernels.gibbs.draw_rows`."""
    from hemf.kernels import gibbs as kernels
    from hemf.kernels import structures

    n_rows, order = table.indptr.size - 1, other.shape[1]
    rows = rng.standard_normal((n_rows, order), np.float32)
    cuts = chunk_bounds(table.indptr, order)
    shape = len(other), order * (order + 1) // 2
    if shape[0] * shape[1] * rows.itemsize > MAX_OUTER_BYTES:
        _draw_long_rows(table, other, noise, mean, precision, rows, cuts, threads)
        return rows
    second = np.empty(shape, np.float32)
    kernels.outer_products.compiled(np.float32)(other, second)
    ratings = structures.Ratings(table.indptr, table.indices, table.values)
    others = structures.OtherRows(other, second, np.ones(len(other), np.float32))
    given = np.full(n_rows, noise), pack(precision), precision @ mean, rows
    run = kernels.draw_rows.compiled(np.float32)

    def work(begin: int, end: int) -> None:
        memory = structures.sweep_memory(others, order, int(cuts[end] - cuts[begin]))
        run(begin, end, cuts, ratings, others, *given, memory)

    share_out(work, cuts.size - 1, threads)
    return rows


def _draw_long_rows(
    table: Sparse,
    other: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rows: Float32Array,
    cuts: Int64Array,
    threads: int,
) -> None:
    """Draw rows as the kernel does, one by one, each with the outer products that it needs.

    The outer products of all long rows would not fit into memory: with 200 factors, those of
    Netflix's users take 39 GB.
    """
    from scipy.linalg import cholesky, solve_triangular

    natural_mean, options = precision @ mean, {"lower": True, "check_finite": False}

    def draw(begin: int, end: int) -> None:
        for n in range(cuts[begin], cuts[end]):
            part = slice(table.indptr[n], table.indptr[n + 1])
            near = other[table.indices[part]]
            root = cholesky(precision + (near.T @ near) / noise, **options)
            half = solve_triangular(
                root, natural_mean + near.T @ table.values[part] / noise, **options
            )
            rows[n] = solve_triangular(root, half + rows[n], trans=1, **options)

    share_out(draw, cuts.size - 1, threads)


class FactorChain:
    """The chain of BPMF."""

    def __init__(
        self, table: RatingTable, settings: Settings, rng: np.random.Generator, threads: int
    ) -> None:
        self.table, self.settings, self.rng, self.threads = table, settings, rng, threads
        self.noise = settings.noise_variance
        size = settings.n_factors
        self.factors = [self._start((n, size)) for n in table.sizes]
        self.means: list[Float64Array] = [np.zeros(size), np.zeros(size)]
        self.precisions: list[Float64Array] = [np.eye(size), np.eye(size)]
        self.product = self._products()
        self.errors = table.values - self.product
        """Residuals of the ratings under the draws of the last step."""
        self.stepped = False

    def _start(self, shape: tuple[int, ...]) -> Float32Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(START_SCALE)

    def step(self) -> None:
        """Draw everything once, each part given the rest."""
        if self.settings.learn_noise and self.stepped:  # residuals of the start are meaningless
            self.noise = draw_noise(self.errors, self.settings.noise_variance, self.rng)
        self.stepped = True
        for side in (0, 1):
            drawn = self.settings.prior.draw(self.factors[side], self.rng)
            self.means[side], self.precisions[side] = drawn
        left = self.table.values - self.draw_terms()
        for side, rows in enumerate(self.table.rows(left)):
            self.factors[side] = draw_rows(
                rows, self.factors[1 - side], self.noise, self.means[side], self.precisions[side],
                self.rng, self.threads,
            )  # fmt: skip
        self.product = self._products()
        self.errors = left - self.product

    def _products(self) -> Float32Array:
        left, right = self.factors
        return products(self.table.users, self.table.items, left, right, self.threads)

    def draw_terms(self) -> Float32Array:
        """Draw the other terms of the ratings; return their sum for every rating."""
        return np.zeros(1, np.float32)

    @property
    def step_bytes(self) -> int:
        """Temporary memory for outer products of the larger side's rows."""
        size = self.settings.n_factors
        return min(MAX_OUTER_BYTES, 2 * max(self.table.sizes) * size * (size + 1))

    @property
    def train_rmse(self) -> float:
        """RMSE of the last step's draws on the training ratings."""
        return float(np.sqrt(np.mean(self.errors.astype(np.float64) ** 2)))

    def sample(self) -> Sample:
        """Return the draws of the last step."""
        return Sample(self._side(0), self._side(1), self.noise)

    def _side(self, side: int) -> SideSample:
        rows = self.table.sizes[side] + 1
        return SideSample(
            factors=with_unknown(self.factors[side], self.means[side]),
            shares=np.ones((rows, 1), np.float32),
            vectors=np.zeros((rows, 1, 1), np.float32),
            biases=np.zeros(rows, np.float32),
            factor_covariance=inverse(self.precisions[side]),
            vector_covariance=np.zeros((1, 1)),
            bias_variance=0.0,
        )


# ------------------------------------------------------------------------------------------------
# Samples of BPMF and M3F.

BLOCK = 1 << 20  # topic-indexed numbers that `Sample.moments` handles at once


@dataclass(frozen=True)
class SideSample:
    """One side of a sample; the last row of every table is the mean of an unknown id."""

    factors: Float32Array
    """(rows + 1, D)"""
    shares: Float32Array
    """Frequency of each topic, (rows + 1, topics)."""
    vectors: Float32Array
    """Vector for each topic of the other side, (rows + 1, other topics, size)."""
    biases: Float32Array
    factor_covariance: Float64Array
    """Prior covariance of an unknown id, as are the next two."""
    vector_covariance: Float64Array
    bias_variance: float

    @property
    def unknown(self) -> int:
        """Row of unknown ids."""
        return len(self.factors) - 1

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        tables = self.factors, self.shares, self.vectors, self.biases
        return sum(table.nbytes for table in tables)


@dataclass(frozen=True)
class Sample:
    """One sample of everything that ratings depend on.

    r - c ~ N(o_u + p_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u, k ~ θ_j
    """

    users: SideSample
    items: SideSample
    noise: float

    @property
    def nbytes(self) -> int:
        """Memory of the sample."""
        return self.users.nbytes + self.items.nbytes

    def moments(self, user_rows: Int32Array, item_rows: Int32Array) -> Moments:
        """Return mean and variance of r - c, averaged over topics."""
        mean, variance = np.empty(len(user_rows)), np.empty(len(user_rows))
        topics = self.users.shares.shape[1] * self.items.shares.shape[1]
        each = topics + self.users.vectors[0].size + self.items.vectors[0].size
        block = max(1, BLOCK // each)
        for begin in range(0, len(user_rows), block):
            part = slice(begin, begin + block)
            mean[part], variance[part] = self._moments(user_rows[part], item_rows[part])
        return mean, variance + self.noise

    def _moments(self, user_rows: Int32Array, item_rows: Int32Array) -> Moments:
        users, items = self.users, self.items
        along = np.einsum("nkv,niv->nik", users.vectors[user_rows], items.vectors[item_rows])
        weight = users.shares[user_rows][:, :, None] * items.shares[item_rows][:, None, :]
        in_topics = np.einsum("nik,nik->n", weight, along).astype(np.float64)
        squares = np.einsum("nik,nik,nik->n", weight, along, along).astype(np.float64)
        product = products(user_rows, item_rows, users.factors, items.factors, threads=1)
        mean = in_topics + product + users.biases[user_rows] + items.biases[item_rows]
        variance = np.maximum(squares - in_topics**2, 0.0)
        unknown = (user_rows == users.unknown) | (item_rows == items.unknown)
        if unknown.any():
            variance[unknown] += self._prior_variance(user_rows[unknown], item_rows[unknown])
        return mean, variance

    def _prior_variance(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return the variance from an unknown user, an unknown item, or both."""
        users, items = self.users, self.items
        new_user, new_item = user_rows == users.unknown, item_rows == items.unknown
        of_factors = _product_variance(
            users.factors[user_rows], users.factor_covariance, new_user,
            items.factors[item_rows], items.factor_covariance, new_item,
        )  # fmt: skip
        of_vectors = np.zeros(len(user_rows))
        for k in range(items.shares.shape[1]):
            for i in range(users.shares.shape[1]):
                weight = users.shares[user_rows, i] * items.shares[item_rows, k]
                of_vectors += weight * _product_variance(
                    users.vectors[user_rows, k], users.vector_covariance, new_user,
                    items.vectors[item_rows, i], items.vector_covariance, new_item,
                )  # fmt: skip
        of_biases = users.bias_variance * new_user + items.bias_variance * new_item
        return np.asarray(of_factors + of_vectors + of_biases)


def _product_variance(
    left: Float32Array, left_covariance: Float64Array, left_varies: AnyArray,
    right: Float32Array, right_covariance: Float64Array, right_varies: AnyArray,
) -> Float64Array:  # fmt: skip
    """Var[a·b] = mᵀTm + nᵀSn + tr(ST) of vectors with means m, n and covariances S, T."""
    of_left = np.einsum("ns,st,nt->n", right, left_covariance, right, optimize=True)
    of_right = np.einsum("ns,st,nt->n", left, right_covariance, left, optimize=True)
    of_both = float(np.sum(left_covariance * right_covariance))
    return np.asarray(
        of_left * left_varies + of_right * right_varies + of_both * (left_varies * right_varies)
    )
