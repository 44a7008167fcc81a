"""Bayesian and mixed membership matrix factorization by Gibbs sampling: BPMF and M3F."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from hemf._checks import (
    MAX_FACTORS,
    check_bool,
    check_callables,
    check_int,
    check_number,
    check_rng,
)
from hemf._typing import (
    AnyArray,
    Array,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    RatingsLike,
    UInt8Array,
)
from hemf.baselines.base import Callbacks, Progress, drop_unrated, parameter
from hemf.data.ratings import Ratings, Sparse
from hemf.data.sources import ColumnChoice
from hemf.engines.threads import chunk_bounds, share_out
from hemf.model.rows import pack
from hemf.samplers.base import Chain, Moments, Sampler, SampleReport
from hemf.samplers.draws import (
    Gaussian,
    NormalWishart,
    draw_noise,
    inverse,
    over_parts,
    products,
    with_unknown,
)

MIN_VARIANCE = 1e-9
MAX_TOPICS = 255  # the topic of a rating is a byte


@dataclass(kw_only=True, repr=False, eq=False)
class BPMF(Sampler):
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

    noise_variance: float = parameter(0.5, check_number, low=MIN_VARIANCE)
    learn_noise: bool = parameter(False, check_bool)
    mean_precision: float = parameter(2.0, check_number, low=MIN_VARIANCE)
    degrees: float | None = None
    wishart_scale: float = parameter(1.0, check_number, low=MIN_VARIANCE)

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
        data = drop_unrated(self._read(ratings, y, columns))

        def start(threads: int) -> Chain:
            return self._chain(RatingTable.of(data), rng, threads)

        self._sample(data, start, validation, Progress(callbacks))
        return self

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        """Return the chain before its first step."""
        return FactorChain(self, table, rng, threads)

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        if self.degrees is not None:
            check_number("degrees", self.degrees, low=float(self.n_factors))


@dataclass(kw_only=True, repr=False, eq=False)
class M3F(BPMF):
    """Base class of `M3FTIB` and `M3FTIF`: factors as in `BPMF`, and topics."""

    n_factors: int = parameter(40, check_int, low=1, high=MAX_FACTORS)
    mean_precision: float = parameter(10.0, check_number, low=MIN_VARIANCE)
    user_topics: int = parameter(2, check_int, low=1, high=MAX_TOPICS)
    item_topics: int = parameter(1, check_int, low=1, high=MAX_TOPICS)
    concentration: float = parameter(10_000.0, check_number, low=MIN_VARIANCE)
    offset_variance: float = parameter(0.1, check_number, low=MIN_VARIANCE)

    @abstractmethod
    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        """Return the chain before its first step."""


@dataclass(kw_only=True, repr=False, eq=False)
class M3FTIB(M3F):
    """Mixed membership matrix factorization with topic-indexed biases (Mackey et al., 2010).

    In every rating a user has one of K_U topics, and an item one of K_M::

        r_uj ~ N(c + c_u^k + d_j^i + a_u·b_j, σ²),  i ~ θ_u,  k ~ θ_j,

    where a user has an offset c_u^k for each item topic and an item an offset d_j^i for each user
    topic, both from N(0, σ0²), and θ ~ Dirichlet(α/K). Factors, and c, are those of `BPMF`. An
    iteration draws μ and Λ of the factors, the topics of every rating, their frequencies, the
    offsets, and the factors. Predictions average over topics.

    Parameters
    ----------
    n_factors
        Length of a_u and b_j, D.
    user_topics, item_topics
        K_U and K_M.
    concentration
        α; a value as large as this makes all topics of a user about equally frequent.
    offset_variance
        σ0².
    samples, burn_in, kept, noise_variance, learn_noise, mean_precision, degrees, wishart_scale,
    rating_range, duplicates, n_jobs, rng
        As for `BPMF`. Offsets and topic frequencies also take 4 bytes each in a sample.

    Examples
    --------
    >>> from hemf.samplers import M3FTIB
    >>> model = M3FTIB(n_factors=2, user_topics=2, item_topics=1, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_users_
    2
    >>> model.predict(["bob", "eve"], "milk", return_known=True)[1]
    array([ True, False])

    """

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        return TopicBiasChain(self, table, rng, threads)


@dataclass(kw_only=True, repr=False, eq=False)
class M3FTIF(M3F):
    """Mixed membership matrix factorization with topic-indexed factors (Mackey et al., 2010).

    As `M3FTIB`, but the topics contribute the product of two short vectors::

        r_uj ~ N(ξ_u + χ_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u,  k ~ θ_j,

    c_u^k and d_j^i from Gaussians with Normal-Wishart priors like those of the factors, and biases
    ξ_u ~ N(0, σ0²), χ_j ~ N(c, σ0²).

    Parameters
    ----------
    topic_factors
        Length of c_u^k and d_j^i.
    topic_mean_precision
        λ0 of their prior; its ν0 is their length and its s that of the factors.
    offset_variance
        σ0² of the biases.
    n_factors, user_topics, item_topics, concentration, samples, burn_in, kept, noise_variance,
    learn_noise, mean_precision, degrees, wishart_scale, rating_range, duplicates, n_jobs, rng
        As for `M3FTIB`. In a sample, biases, vectors and topic frequencies take 4 bytes a number.

    Examples
    --------
    >>> from hemf.samplers import M3FTIF
    >>> model = M3FTIF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_sweeps_
    25
    >>> model.predict("bob", ["tea", "milk"]).shape
    (2,)

    """

    item_topics: int = parameter(2, check_int, low=1, high=MAX_TOPICS)
    concentration: float = parameter(10.0, check_number, low=MIN_VARIANCE)
    topic_factors: int = parameter(2, check_int, low=1, high=MAX_FACTORS)
    topic_mean_precision: float = parameter(10_000.0, check_number, low=MIN_VARIANCE)

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        return TopicFactorChain(self, table, rng, threads)


# ------------------------------------------------------------------------------------------------
# The chain. Ratings are r - c = terms + a_u·b_j + noise, c the mean of the ratings. `FactorChain`
# has no terms; those of M3F depend on topics.

MAX_OUTER_BYTES = 1 << 31  # of the outer products of all rows
START_SCALE = 0.3  # standard deviation of the initial vectors


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
    prior: Gaussian,
    rng: np.random.Generator,
    threads: int,
) -> Float32Array:
    """Draw one side's factors given the other's; see `hemf.kernels.gibbs.draw_rows`.

    Where the outer products of all other rows would not fit into memory, rows are drawn one by one,
    each with the products that it needs: with 200 factors, those of Netflix's users take 39 GB.
    """
    from scipy.linalg import cholesky, solve_triangular

    from hemf.kernels import gibbs as kernels
    from hemf.kernels import structures

    n_rows, order = table.indptr.size - 1, other.shape[1]
    rows = rng.standard_normal((n_rows, order), np.float32)
    cuts = chunk_bounds(table.indptr, order)
    precision, natural_mean = prior.precision, prior.precision @ prior.mean

    def draw_each(begin: int, end: int) -> None:
        options = {"lower": True, "check_finite": False}
        for n in range(cuts[begin], cuts[end]):
            part = slice(table.indptr[n], table.indptr[n + 1])
            near = other[table.indices[part]]
            root = cholesky(precision + (near.T @ near) / noise, **options)
            right = natural_mean + near.T @ table.values[part] / noise
            half = solve_triangular(root, right, **options)
            rows[n] = solve_triangular(root, half + rows[n], trans=1, **options)

    shape = len(other), order * (order + 1) // 2
    if shape[0] * shape[1] * rows.itemsize > MAX_OUTER_BYTES:
        share_out(draw_each, cuts.size - 1, threads)
        return rows
    second = np.empty(shape, np.float32)
    kernels.outer_products.compiled(np.float32)(other, second)
    ratings = structures.Ratings.of(table.indptr, table.indices, table.values)
    others = structures.OtherRows.of(other, second, np.ones(len(other), np.float32))
    given = np.full(n_rows, noise), pack(precision), natural_mean, rows
    run = kernels.draw_rows.compiled(np.float32)

    def draw_blocks(begin: int, end: int) -> None:
        memory = structures.sweep_memory(others, order, int(cuts[end] - cuts[begin]))
        run(begin, end, cuts, ratings, others, *given, memory)

    share_out(draw_blocks, cuts.size - 1, threads)
    return rows


class FactorChain:
    """The chain of BPMF."""

    def __init__(
        self, settings: BPMF, table: RatingTable, rng: np.random.Generator, threads: int
    ) -> None:
        self.settings, self.table, self.rng, self.threads = settings, table, rng, threads
        self.hyper_prior = NormalWishart(
            settings.mean_precision, settings.degrees, settings.wishart_scale
        )
        self.noise = settings.noise_variance
        size = settings.n_factors
        self.factors = [self._start((n, size)) for n in table.sizes]
        self.priors = [Gaussian(np.zeros(size), np.eye(size)) for _ in table.sizes]
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
        self.priors = [self.hyper_prior.draw(factors, self.rng) for factors in self.factors]
        left = self.table.values - self.draw_terms()
        for side, rows in enumerate(self.table.rows(left)):
            other, prior = self.factors[1 - side], self.priors[side]
            self.factors[side] = draw_rows(rows, other, self.noise, prior, self.rng, self.threads)
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
        rows, prior = self.table.sizes[side] + 1, self.priors[side]
        return SideSample(
            factors=with_unknown(self.factors[side], prior.mean),
            shares=np.ones((rows, 1), np.float32),
            vectors=np.zeros((rows, 1, 1), np.float32),
            biases=np.zeros(rows, np.float32),
            factor_covariance=inverse(prior.precision),
            vector_covariance=np.zeros((1, 1)),
            bias_variance=0.0,
        )


# ------------------------------------------------------------------------------------------------
# Draws of M3F.


def draw_topics(
    pairs: tuple[Int32Array, Int32Array],
    residuals: Float32Array,
    noise: float,
    shares: list[Float32Array],
    vectors: list[Float32Array],
    rng: np.random.Generator,
    threads: int,
) -> tuple[UInt8Array, UInt8Array]:
    """Draw user topic and item topic of every rating; see `hemf.kernels.gibbs.draw_topics`."""
    from hemf.kernels import gibbs as kernels
    from hemf.kernels.structures import TopicRatings, TopicRows

    n = len(residuals)
    uniforms = rng.random(n, np.float32)
    drawn = np.empty(n, np.uint8), np.empty(n, np.uint8)
    run = kernels.draw_topics.compiled(np.float32)
    ratings = TopicRatings(*pairs, residuals, *drawn)
    users, items = (TopicRows(*rows) for rows in zip(shares, vectors, strict=True))
    over_parts(
        lambda begin, end: run(begin, end, ratings, noise, users, items, uniforms), n, threads
    )
    return drawn


def draw_shares(
    rows: Int32Array,
    topics: UInt8Array,
    shape: tuple[int, int],
    concentration: float,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw θ ~ Dirichlet(α/K + count of each topic) of every row; shape is (rows, K)."""
    n_rows, count = shape
    groups = rows.astype(np.intp) * count + topics
    occurred = np.bincount(groups, minlength=n_rows * count).reshape(shape)
    drawn = rng.standard_gamma(concentration / count + occurred)
    drawn = np.maximum(drawn, np.finfo(np.float32).tiny)  # with a tiny shape all may be 0
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), np.float32)


def draw_offsets(
    groups: AnyArray,
    n_groups: int,
    residuals: Float32Array,
    noise: float,
    variance: float,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw the offset of each group of ratings, with prior N(0, variance)."""
    count = np.bincount(groups, minlength=n_groups)
    total = np.bincount(groups, residuals, n_groups)
    precision = 1.0 / variance + count / noise
    drawn = total / noise / precision + rng.standard_normal(n_groups) / np.sqrt(precision)
    return np.asarray(drawn, np.float32)


def draw_vectors(
    residuals: Float32Array,
    groups: tuple[Int32Array, int],
    others: tuple[Int32Array, Float32Array],
    noise: float,
    prior: Gaussian,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw a vector c of each group, with prior N(μ, Λ⁻¹), from residuals ~ N(c·d, σ²).

    ``groups`` are the group of each rating and their number; ``others`` are the row of each rating
    in the table of vectors d, and that table.
    """
    from hemf.kernels import gibbs as kernels

    n_groups, size = groups[1], len(prior.mean)
    grams, moments = np.zeros((n_groups, size, size)), np.zeros((n_groups, size))
    kernels.gather_groups.compiled(np.float32)(
        groups[0], others[0], residuals, others[1], grams, moments
    )
    root = np.linalg.cholesky(prior.precision + grams / noise)
    natural_mean = (prior.precision @ prior.mean + moments / noise)[..., None]
    half = np.linalg.solve(root, natural_mean) + rng.standard_normal((n_groups, size, 1))
    drawn = np.linalg.solve(root.swapaxes(1, 2), half)
    return np.asarray(drawn[..., 0], np.float32)


# ------------------------------------------------------------------------------------------------
# The chains of M3F. The terms of a rating are c_u^k·d_j^i plus, in M3F-TIF, biases: i is the topic
# of its user, k that of its item. Vectors are (rows, topics of the other side, size).


class TopicChain(FactorChain, ABC):
    """Topics and their frequencies; subclasses draw the vectors of topics."""

    settings: M3F

    def __init__(
        self, settings: M3F, table: RatingTable, rng: np.random.Generator, threads: int
    ) -> None:
        super().__init__(settings, table, rng, threads)
        self.topics = settings.user_topics, settings.item_topics
        sides = zip(table.sizes, self.topics, strict=True)
        self.rows = table.users, table.items
        self.shares = [np.full((n, count), 1.0 / count, np.float32) for n, count in sides]
        self.biases = [np.zeros(n, np.float32) for n in table.sizes]
        self.vectors = self.start_vectors()

    def draw_terms(self) -> Float32Array:
        """Draw topics, their frequencies and their vectors."""
        rows, concentration = self.rows, self.settings.concentration
        left = self.table.values - self.product
        topics = draw_topics(
            rows, left - self.biased(), self.noise, self.shares, self.vectors, self.rng,
            self.threads,
        )  # fmt: skip
        for side, shares in enumerate(self.shares):
            self.shares[side] = draw_shares(
                rows[side], topics[side], shares.shape, concentration, self.rng
            )
        # A user's vector belongs to the topic of the item, and the other way round.
        groups = [
            (rows[side] * np.int32(self.topics[1 - side]) + topics[1 - side]).astype(np.int32)
            for side in (0, 1)
        ]
        return self.draw_effects(left, groups)

    def biased(self) -> Float32Array:
        """Return the sum of both biases of every rating."""
        return np.asarray(self.biases[0][self.rows[0]] + self.biases[1][self.rows[1]])

    def flat(self, side: int) -> Float32Array:
        """Return the vectors of one side, a row for each group."""
        return self.vectors[side].reshape(-1, self.vectors[side].shape[2])

    @abstractmethod
    def start_vectors(self) -> list[Float32Array]:
        """Return the initial vectors of both sides."""

    @abstractmethod
    def draw_effects(self, left: Float32Array, groups: list[Int32Array]) -> Float32Array:
        """Draw vectors and biases given the residuals of the factors; return their sum.

        ``groups`` are for each side the rows of `flat` that ratings belong to.
        """

    def _side(self, side: int) -> SideSample:
        return replace(
            super()._side(side),
            shares=with_unknown(self.shares[side], 1.0 / self.topics[side]),
            biases=with_unknown(self.biases[side], 0.0),
        )


# docs/model.md#m3f
class TopicBiasChain(TopicChain):
    """M3F-TIB: terms c_u^k + d_j^i, as vectors (c, 1) and (1, d)."""

    def start_vectors(self) -> list[Float32Array]:
        """Return offsets of 0."""
        vectors = []
        for side, n in enumerate(self.table.sizes):
            start = np.zeros((n, self.topics[1 - side], 2), np.float32)
            start[..., 1 - side] = 1.0
            vectors.append(start)
        return vectors

    def draw_effects(self, left: Float32Array, groups: list[Int32Array]) -> Float32Array:
        """Draw the offsets of users, then of items."""
        effects = [self.flat(side)[groups[side], side] for side in (0, 1)]
        for side in (0, 1):
            offsets = self.vectors[side][..., side]
            drawn = draw_offsets(
                groups[side], offsets.size, left - effects[1 - side], self.noise,
                self.settings.offset_variance, self.rng,
            )  # fmt: skip
            offsets[:] = drawn.reshape(offsets.shape)
            effects[side] = drawn[groups[side]]
        return np.asarray(effects[0] + effects[1])

    def _side(self, side: int) -> SideSample:
        mean, covariance = np.zeros(2), np.zeros((2, 2))
        mean[1 - side] = 1.0
        covariance[side, side] = self.settings.offset_variance
        vectors = with_unknown(self.vectors[side], mean)
        return replace(super()._side(side), vectors=vectors, vector_covariance=covariance)


# docs/model.md#m3f
class TopicFactorChain(TopicChain):
    """M3F-TIF: terms ξ_u + χ_j + c_u^k·d_j^i."""

    settings: M3FTIF

    def start_vectors(self) -> list[Float32Array]:
        """Return random vectors."""
        settings, sizes = self.settings, self.table.sizes
        size = settings.topic_factors
        self.vector_hyper_prior = NormalWishart(
            settings.topic_mean_precision, scale=settings.wishart_scale
        )
        self.vector_priors = [Gaussian(np.zeros(size), np.eye(size)) for _ in sizes]
        return [self._start((n, self.topics[1 - side], size)) for side, n in enumerate(sizes)]

    def draw_effects(self, left: Float32Array, groups: list[Int32Array]) -> Float32Array:
        """Draw the vectors of users and of items, then the biases of both."""
        unbiased = left - self.biased()
        for side in (0, 1):
            prior = self.vector_hyper_prior.draw(self.flat(side), self.rng)
            self.vector_priors[side] = prior
            others = groups[1 - side], self.flat(1 - side)
            own = groups[side], len(self.flat(side))
            drawn = draw_vectors(unbiased, own, others, self.noise, prior, self.rng)
            self.vectors[side] = drawn.reshape(self.vectors[side].shape)
        along = products(groups[0], groups[1], self.flat(0), self.flat(1), self.threads)
        left, rows = left - along, self.rows
        for side in (0, 1):
            self.biases[side] = draw_offsets(
                rows[side], len(self.biases[side]), left - self.biases[1 - side][rows[1 - side]],
                self.noise, self.settings.offset_variance, self.rng,
            )  # fmt: skip
        return np.asarray(along + self.biased())

    def _side(self, side: int) -> SideSample:
        prior = self.vector_priors[side]
        return replace(
            super()._side(side),
            vectors=with_unknown(self.vectors[side], prior.mean),
            vector_covariance=inverse(prior.precision),
            bias_variance=self.settings.offset_variance,
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

    def coordinates(self, rows: Int32Array, subscripts: str) -> Float32Array:
        """Return vectors whose products with those of the other side are means of ratings.

        They are the factors, and θ^i c^k for all pairs of an own topic i and another's topic k;
        ``subscripts`` orders the pairs.
        """
        in_topics = np.einsum(subscripts, self.shares[rows], self.vectors[rows])
        return np.hstack([self.factors[rows], in_topics.reshape(len(rows), -1)])


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

    def table(self, user_rows: Int32Array, item_rows: Int32Array) -> Array:
        """Return the mean of r - c of rows of items for rows of users."""
        users, items = self.users, self.items
        left = users.coordinates(user_rows, "ni,nkv->nikv")
        right = items.coordinates(item_rows, "nk,niv->nikv")
        biases = np.add.outer(users.biases[user_rows], items.biases[item_rows])
        return np.asarray(left @ right.T + biases)

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
