"""Mixed membership matrix factorization by Gibbs sampling, in its two forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from hemf._checks import MAX_FACTORS, check_int, check_number
from hemf._typing import AnyArray, Float32Array, Float64Array, Int32Array, UInt8Array
from hemf.samplers.bpmf import (
    MIN_VARIANCE,
    FactorChain,
    GibbsSampler,
    RatingTable,
    Settings,
    SideSample,
)
from hemf.samplers.draws import NormalWishart, inverse, over_parts, products, with_unknown

MAX_TOPICS = 255  # the topic of a rating is a byte


@dataclass(kw_only=True, repr=False, eq=False)
class M3F(GibbsSampler):
    """Base class of `M3FTIB` and `M3FTIF`."""

    n_factors: int = 40
    mean_precision: float = 10.0
    user_topics: int = 2
    item_topics: int = 1
    concentration: float = 10_000.0
    offset_variance: float = 0.1

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        check_int("user_topics", self.user_topics, low=1, high=MAX_TOPICS)
        check_int("item_topics", self.item_topics, low=1, high=MAX_TOPICS)
        check_number("concentration", self.concentration, low=MIN_VARIANCE)
        check_number("offset_variance", self.offset_variance, low=MIN_VARIANCE)

    def _topic_settings(
        self, topic_factors: int = 2, topic_prior: NormalWishart | None = None
    ) -> TopicSettings:
        return TopicSettings(
            **vars(self._settings()),
            topics=(self.user_topics, self.item_topics),
            concentration=self.concentration,
            offset_variance=self.offset_variance,
            topic_factors=topic_factors,
            topic_prior=topic_prior or NormalWishart(1.0),
        )


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

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> TopicBiasChain:
        return TopicBiasChain(table, self._topic_settings(), rng, threads)


@dataclass(kw_only=True, repr=False, eq=False)
class M3FTIF(M3F):
    """Mixed membership matrix factorization with topic-indexed factors (Mackey et al., 2010).

    As `M3FTIB`, but the topics contribute the product of two short vectors::

        r_uj ~ N(ξ_u + χ_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u,  k ~ θ_j,

    c_u^k and d_j^i from Gaussians with Normal-Wishart priors like those of the factors, and biases
    ξ_u ~ N(0, σ0²), χ_j ~ N(c, σ0²).

    Parameters
    ----------
    n_factors
        Length of a_u and b_j, D.
    user_topics, item_topics
        K_U and K_M.
    topic_factors
        Length of c_u^k and d_j^i.
    topic_mean_precision
        λ0 of their prior; its ν0 is their length and its s that of the factors.
    concentration
        α.
    offset_variance
        σ0² of the biases.
    samples, burn_in, kept, noise_variance, learn_noise, mean_precision, degrees, wishart_scale,
    rating_range, duplicates, n_jobs, rng
        As for `BPMF`. Biases, vectors and topic frequencies also take 4 bytes a number in a sample.

    Examples
    --------
    >>> from hemf.samplers import M3FTIF
    >>> model = M3FTIF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_sweeps_
    25
    >>> model.predict("bob", ["tea", "milk"]).shape
    (2,)

    """

    item_topics: int = 2
    concentration: float = 10.0
    topic_factors: int = 2
    topic_mean_precision: float = 10_000.0

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        check_int("topic_factors", self.topic_factors, low=1, high=MAX_FACTORS)
        check_number("topic_mean_precision", self.topic_mean_precision, low=MIN_VARIANCE)

    def _chain(
        self, table: RatingTable, rng: np.random.Generator, threads: int
    ) -> TopicFactorChain:
        prior = NormalWishart(self.topic_mean_precision, scale=self.wishart_scale)
        return TopicFactorChain(
            table, self._topic_settings(self.topic_factors, prior), rng, threads
        )


# ------------------------------------------------------------------------------------------------
# Draws.


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
    groups: tuple[Int32Array, int],
    others: tuple[Int32Array, Float32Array],
    residuals: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw a vector c of each group, with prior N(μ, Λ⁻¹), from residuals ~ N(c·d, σ²).

    ``groups`` are the group of each rating and their number; ``others`` are the row of each rating
    in the table of vectors d, and that table.
    """
    from hemf.kernels import gibbs as kernels

    n_groups, size = groups[1], len(mean)
    grams, moments = np.zeros((n_groups, size, size)), np.zeros((n_groups, size))
    kernels.gather_groups.compiled(np.float32)(
        groups[0], others[0], residuals, others[1], grams, moments
    )
    root = np.linalg.cholesky(precision + grams / noise)
    natural_mean = (precision @ mean + moments / noise)[..., None]
    half = np.linalg.solve(root, natural_mean) + rng.standard_normal((n_groups, size, 1))
    drawn = np.linalg.solve(root.swapaxes(1, 2), half)
    return np.asarray(drawn[..., 0], np.float32)


# ------------------------------------------------------------------------------------------------
# The chains. The terms of a rating are c_u^k·d_j^i plus, in M3F-TIF, biases: i is the topic of its
# user, k that of its item. Vectors are (rows, topics of the other side, size).


@dataclass(frozen=True)
class TopicSettings(Settings):
    """Constants of a model with topics."""

    topics: tuple[int, int]
    """Number of user topics and of item topics."""
    concentration: float
    offset_variance: float
    topic_factors: int
    topic_prior: NormalWishart


class TopicChain(FactorChain, ABC):
    """Topics and their frequencies; subclasses draw the vectors of topics."""

    settings: TopicSettings

    def __init__(
        self, table: RatingTable, settings: TopicSettings, rng: np.random.Generator, threads: int
    ) -> None:
        super().__init__(table, settings, rng, threads)
        sides = zip(table.sizes, settings.topics, strict=True)
        self.rows = table.users, table.items
        self.shares = [np.full((n, count), 1.0 / count, np.float32) for n, count in sides]
        self.biases = [np.zeros(n, np.float32) for n in table.sizes]
        self.vectors = self.start_vectors()

    def draw_terms(self) -> Float32Array:
        """Draw topics, their frequencies and their vectors."""
        settings, rows = self.settings, self.rows
        left = self.table.values - self.product
        topics = draw_topics(
            rows, left - self.biased(), self.noise, self.shares, self.vectors, self.rng,
            self.threads,
        )  # fmt: skip
        for side in (0, 1):
            self.shares[side] = draw_shares(
                rows[side], topics[side], self.shares[side].shape, settings.concentration, self.rng
            )
        # A user's vector belongs to the topic of the item, and the other way round.
        groups = [
            (rows[side] * np.int32(settings.topics[1 - side]) + topics[1 - side]).astype(np.int32)
            for side in (0, 1)
        ]
        return self.draw_effects(left, groups)

    def biased(self) -> AnyArray | np.float32:
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
            shares=with_unknown(self.shares[side], 1.0 / self.settings.topics[side]),
            biases=with_unknown(self.biases[side], 0.0),
        )


# docs/model.md#m3f
class TopicBiasChain(TopicChain):
    """M3F-TIB: terms c_u^k + d_j^i, as vectors (c, 1) and (1, d)."""

    def start_vectors(self) -> list[Float32Array]:
        """Return offsets of 0."""
        vectors = []
        for side, n in enumerate(self.table.sizes):
            start = np.zeros((n, self.settings.topics[1 - side], 2), np.float32)
            start[..., 1 - side] = 1.0
            vectors.append(start)
        return vectors

    def biased(self) -> AnyArray | np.float32:
        """Return 0: all biases belong to topics."""
        return np.float32(0.0)

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

    def start_vectors(self) -> list[Float32Array]:
        """Return random vectors."""
        size, topics = self.settings.topic_factors, self.settings.topics
        self.vector_priors: list[tuple[Float64Array, Float64Array]] = [
            (np.zeros(size), np.eye(size)) for _ in topics
        ]
        """μ and Λ of each side's vectors."""
        return [self._start((n, topics[1 - side], size)) for side, n in enumerate(self.table.sizes)]

    def draw_effects(self, left: Float32Array, groups: list[Int32Array]) -> Float32Array:
        """Draw the vectors of users and of items, then the biases of both."""
        unbiased = left - self.biased()
        for side in (0, 1):
            prior = self.settings.topic_prior.draw(self.flat(side), self.rng)
            self.vector_priors[side] = prior
            drawn = draw_vectors(
                (groups[side], len(self.flat(side))), (groups[1 - side], self.flat(1 - side)),
                unbiased, self.noise, *prior, self.rng,
            )  # fmt: skip
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
        mean, precision = self.vector_priors[side]
        return replace(
            super()._side(side),
            vectors=with_unknown(self.vectors[side], mean),
            vector_covariance=inverse(precision),
            bias_variance=self.settings.offset_variance,
        )
