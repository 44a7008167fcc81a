"""Draws from the conditional posteriors of what the samplers here have, rows and topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hemf._typing import Float32Array, Float64Array, Int32Array
from hemf.data.ratings import Ratings
from hemf.engines.threads import Rows, chunk_bounds, share_out
from hemf.model.layout import pack
from hemf.samplers.base import Sample, SideSample
from hemf.samplers.draws import (
    NormalWishart,
    draw_noise,
    inverse,
    over_parts,
    products,
    with_stranger,
)

MOST_OUTER_BYTES = 1 << 31  # for the products of all rows with themselves


# docs/model.md#bpmf
def draw_rows(
    table: Rows,
    other: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rng: np.random.Generator,
    threads: int,
) -> Float32Array:
    """Draw one side's factors given the other's; see `hemf.kernels.gibbs.draw_rows`."""
    from hemf.kernels import gibbs as kernels

    n_rows, order = table.indptr.size - 1, other.shape[1]
    rows = rng.standard_normal((n_rows, order), np.float32)
    cuts = chunk_bounds(table.indptr, order)
    shape = len(other), order * (order + 1) // 2
    if shape[0] * shape[1] * rows.itemsize > MOST_OUTER_BYTES:
        _draw_long_rows(table, other, noise, mean, precision, rows, cuts, threads)
        return rows
    second = np.empty(shape, np.float32)
    kernels.outer_products.compiled(np.float32)(other, second)
    given = (
        cuts, table.indptr, table.indices, table.values, other, second,
        np.ones(len(other), np.float32), np.full(n_rows, noise), pack(precision), precision @ mean,
        rows,
    )  # fmt: skip
    run = kernels.draw_rows.compiled(np.float32)
    share_out(lambda begin, end: run(begin, end, *given), cuts.size - 1, threads)
    return rows


def _draw_long_rows(
    table: Rows,
    other: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rows: Float32Array,
    cuts: npt.NDArray[np.int64],
    threads: int,
) -> None:
    """Draw rows as the kernel does, but one after the other, each with the products it needs.

    Of long rows the products of all others with themselves would not fit into memory: with 200
    factors, those of Netflix's users take 39 GB. So long ones are drawn sooner like this, too.
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


def draw_topics(
    users: Int32Array,
    items: Int32Array,
    residuals: Float32Array,
    noise: float,
    shares: tuple[Float32Array, Float32Array],
    vectors: tuple[Float32Array, Float32Array],
    rng: np.random.Generator,
    threads: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Draw user topic and item topic of every rating; see `hemf.kernels.gibbs.draw_topics`."""
    from hemf.kernels import gibbs as kernels

    uniforms = rng.random(len(users), np.float32)
    drawn = np.empty(len(users), np.uint8), np.empty(len(users), np.uint8)
    run = kernels.draw_topics.compiled(np.float32)
    given = users, items, residuals, noise, *shares, *vectors, uniforms, *drawn
    over_parts(lambda begin, end: run(begin, end, *given), len(users), threads)
    return drawn


def draw_shares(
    rows: Int32Array,
    topics: npt.NDArray[np.uint8],
    shape: tuple[int, int],
    concentration: float,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw θ ~ Dirichlet(α/K + how often each topic occurred) of every row; shape is (rows, K)."""
    n_rows, count = shape
    groups = rows.astype(np.intp) * count + topics
    occurred = np.bincount(groups, minlength=n_rows * count).reshape(shape)
    drawn = rng.standard_gamma(concentration / count + occurred)
    drawn = np.maximum(drawn, np.finfo(np.float32).tiny)  # of a tiny shape every draw may be 0
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), np.float32)


def draw_offsets(
    groups: npt.NDArray[np.integer],
    n_groups: int,
    residuals: Float32Array,
    noise: float,
    variance: float,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw what all ratings of a group have in common, a priori N(0, variance)."""
    count = np.bincount(groups, minlength=n_groups)
    total = np.bincount(groups, residuals, n_groups)
    precision = 1.0 / variance + count / noise
    drawn = total / noise / precision + rng.standard_normal(n_groups) / np.sqrt(precision)
    return np.asarray(drawn, np.float32)


def draw_vectors(
    groups: Int32Array,
    n_groups: int,
    others: Int32Array,
    other_vectors: Float32Array,
    residuals: Float32Array,
    noise: float,
    mean: Float64Array,
    precision: Float64Array,
    rng: np.random.Generator,
) -> Float32Array:
    """Draw a vector c of each group, a priori N(μ, Λ⁻¹), from residuals ~ N(c·d, σ²)."""
    from hemf.kernels import gibbs as kernels

    size = len(mean)
    grams, moments = np.zeros((n_groups, size, size)), np.zeros((n_groups, size))
    kernels.gather_groups.compiled(np.float32)(
        groups, others, residuals, other_vectors, grams, moments
    )
    root = np.linalg.cholesky(precision + grams / noise)
    natural_mean = (precision @ mean + moments / noise)[..., None]
    half = np.linalg.solve(root, natural_mean) + rng.standard_normal((n_groups, size, 1))
    drawn = np.linalg.solve(root.swapaxes(1, 2), half)
    return np.asarray(drawn[..., 0], np.float32)


# ------------------------------------------------------------------------------------------------
# Gibbs samplers: what each draws in one iteration, and in which order.
#
# All of them are of ratings r - c = terms + a_u·b_j + noise, c the mean of the ratings. The terms
# are nothing (`FactorChain`), or depend on a topic that every rating has of its user and of its
# item
# (`hemf.samplers.chains`), in one way or another.


START_SCALE = 0.3  # standard deviation of the vectors that a chain starts with


@dataclass(frozen=True)
class Settings:
    """Constants of a model; the estimators document each."""

    n_factors: int
    noise_variance: float
    learn_noise: bool
    prior: NormalWishart


@dataclass(frozen=True)
class TopicSettings(Settings):
    """Constants of a model with topics."""

    topics: tuple[int, int]
    """Of users and of items."""
    concentration: float
    offset_variance: float


@dataclass(frozen=True)
class TopicFactorSettings(TopicSettings):
    """Constants of a model with vectors for topics."""

    topic_factors: int
    topic_prior: NormalWishart


@dataclass(frozen=True)
class RatingTable:
    """Ratings less their mean, user by user; ``by_item`` says where those of an item are."""

    users: Int32Array
    items: Int32Array
    values: Float32Array
    user_starts: npt.NDArray[np.int64]
    item_starts: npt.NDArray[np.int64]
    users_by_item: Int32Array
    by_item: npt.NDArray[np.intp]

    @classmethod
    def of(cls, ratings: Ratings) -> RatingTable:
        """Arrange ratings.

        >>> data = Ratings.from_any([("ann", "tea", 5), ("ann", "ale", 1), ("bob", "tea", 3)])
        >>> table = RatingTable.of(data)
        >>> table.values.tolist(), table.by_item.tolist()
        ([2.0, -2.0, 0.0], [0, 2, 1])
        """
        users, items, values = ratings.triples()
        return cls(
            users,
            items,
            (values.astype(np.float64) - ratings.mean).astype(np.float32),
            ratings.by_user.indptr,
            ratings.by_item.indptr,
            ratings.by_item.indices,
            np.argsort(items, kind="stable"),
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """How many users and items there are."""
        return len(self.user_starts) - 1, len(self.item_starts) - 1

    def rows(self, values: Float32Array) -> tuple[Rows, Rows]:
        """Values of the ratings, given user by user, as rows of users and of items."""
        return (
            Rows(self.user_starts, self.items, values),
            Rows(self.item_starts, self.users_by_item, values[self.by_item]),
        )


class FactorChain:
    """BPMF: nothing but factors. One `step` is one iteration."""

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
        """Of the ratings, under the draws of the last step."""
        self.stepped = False

    def _start(self, shape: tuple[int, ...]) -> Float32Array:
        drawn = self.rng.standard_normal(shape, np.float32)
        return drawn * np.float32(START_SCALE)

    def step(self) -> None:
        """Draw everything once, each given the rest."""
        if self.settings.learn_noise and self.stepped:  # errors of a mere start tell nothing
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
        """Draw what else a rating is made of, and return the sum of it for every rating."""
        return np.zeros(1, np.float32)

    @property
    def step_bytes(self) -> int:
        """Memory for products of the larger side's rows, which a step takes and leaves again."""
        size = self.settings.n_factors
        return min(MOST_OUTER_BYTES, 2 * max(self.table.sizes) * size * (size + 1))

    @property
    def train_rmse(self) -> float:
        """Root of the mean squared error under the draws of the last step."""
        return float(np.sqrt(np.mean(self.errors.astype(np.float64) ** 2)))

    def sample(self) -> Sample:
        """Return the draws of the last step."""
        return Sample(self._side(0), self._side(1), self.noise)

    def _side(self, side: int) -> SideSample:
        rows = self.table.sizes[side] + 1
        return SideSample(
            factors=with_stranger(self.factors[side], self.means[side]),
            shares=np.ones((rows, 1), np.float32),
            vectors=np.zeros((rows, 1, 1), np.float32),
            biases=np.zeros(rows, np.float32),
            factor_covariance=inverse(self.precisions[side]),
            vector_covariance=np.zeros((1, 1)),
            bias_variance=0.0,
        )


# ------------------------------------------------------------------------------------------------
# Gibbs samplers of the two mixed membership models; see `hemf.samplers.chains`.
#
# A rating's terms are c_u^k·d_j^i plus, in one of them, biases: i is the topic that this rating
# has
# of its user, k that of its item. Vectors are (rows, topics of the other side, size).


Groups = list[Int32Array]


class TopicChain(FactorChain, ABC):
    """Topics and how often each occurs; what goes with them is for the two models to say."""

    settings: TopicSettings

    def __init__(
        self, table: RatingTable, settings: TopicSettings, rng: np.random.Generator, threads: int
    ) -> None:
        super().__init__(table, settings, rng, threads)
        sides = zip(table.sizes, settings.topics, strict=True)
        self.shares = [np.full((n, count), 1.0 / count, np.float32) for n, count in sides]
        self.biases = [np.zeros(n, np.float32) for n in table.sizes]
        self.vectors = self.start_vectors()

    def draw_terms(self) -> Float32Array:
        """Draw topics, their shares, and what goes with them."""
        table, settings = self.table, self.settings
        rows = table.users, table.items
        left = table.values - self.product
        topics = draw_topics(
            *rows, left - self.biased(), self.noise, (self.shares[0], self.shares[1]),
            (self.vectors[0], self.vectors[1]), self.rng, self.threads,
        )  # fmt: skip
        for side in (0, 1):
            self.shares[side] = draw_shares(
                rows[side], topics[side], self.shares[side].shape, settings.concentration, self.rng
            )
        # A user's vector goes with the topic of the item, and the other way round.
        groups = [
            (rows[side] * np.int32(settings.topics[1 - side]) + topics[1 - side]).astype(np.int32)
            for side in (0, 1)
        ]
        return self.draw_effects(left, groups)

    def biased(self) -> Any:
        """Return the sum of both biases of every rating."""
        return self.biases[0][self.table.users] + self.biases[1][self.table.items]

    def flat(self, side: int) -> Float32Array:
        """Vectors of one side, one row for each group."""
        return self.vectors[side].reshape(-1, self.vectors[side].shape[2])

    @abstractmethod
    def start_vectors(self) -> list[Float32Array]:
        """Return the vectors of both sides that the chain starts with."""

    @abstractmethod
    def draw_effects(self, left: Float32Array, groups: Groups) -> Float32Array:
        """Draw vectors and biases from what factors leave of ratings, and return their sum.

        ``groups`` says for each side which of its vectors a rating goes with, in `flat` order.
        """

    def _side(self, side: int) -> SideSample:
        count = self.settings.topics[side]
        return replace(
            super()._side(side),
            shares=with_stranger(self.shares[side], 1.0 / count),
            biases=with_stranger(self.biases[side], 0.0),
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

    def biased(self) -> Any:
        """There are no biases but those of topics."""
        return np.float32(0.0)

    def draw_effects(self, left: Float32Array, groups: Groups) -> Float32Array:
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
        return replace(
            super()._side(side),
            vectors=with_stranger(self.vectors[side], mean),
            vector_covariance=covariance,
        )


# docs/model.md#m3f
class TopicFactorChain(TopicChain):
    """M3F-TIF: terms ξ_u + χ_j + c_u^k·d_j^i."""

    settings: TopicFactorSettings

    def __init__(
        self,
        table: RatingTable,
        settings: TopicFactorSettings,
        rng: np.random.Generator,
        threads: int,
    ) -> None:
        super().__init__(table, settings, rng, threads)
        size = settings.topic_factors
        self.vector_means: list[Float64Array] = [np.zeros(size), np.zeros(size)]
        self.vector_precisions: list[Float64Array] = [np.eye(size), np.eye(size)]

    def start_vectors(self) -> list[Float32Array]:
        """Return vectors at random."""
        size, topics = self.settings.topic_factors, self.settings.topics
        return [self._start((n, topics[1 - side], size)) for side, n in enumerate(self.table.sizes)]

    def draw_effects(self, left: Float32Array, groups: Groups) -> Float32Array:
        """Draw the vectors of users and of items, then the biases of both."""
        unbiased = left - self.biased()
        for side in (0, 1):
            prior = self.settings.topic_prior.draw(self.flat(side), self.rng)
            self.vector_means[side], self.vector_precisions[side] = prior
            drawn = draw_vectors(
                groups[side], len(self.flat(side)), groups[1 - side], self.flat(1 - side),
                unbiased, self.noise, *prior, self.rng,
            )  # fmt: skip
            self.vectors[side] = drawn.reshape(self.vectors[side].shape)
        along = products(groups[0], groups[1], self.flat(0), self.flat(1), self.threads)
        left, rows = left - along, (self.table.users, self.table.items)
        for side in (0, 1):
            self.biases[side] = draw_offsets(
                rows[side], len(self.biases[side]), left - self.biases[1 - side][rows[1 - side]],
                self.noise, self.settings.offset_variance, self.rng,
            )  # fmt: skip
        return np.asarray(along + self.biased())

    def _side(self, side: int) -> SideSample:
        return replace(
            super()._side(side),
            vectors=with_stranger(self.vectors[side], self.vector_means[side]),
            vector_covariance=inverse(self.vector_precisions[side]),
            bias_variance=self.settings.offset_variance,
        )
