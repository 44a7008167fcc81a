"""Gibbs samplers of the two mixed membership models; see `hemf.baselines.chains`.

A rating's terms are c_u^k·d_j^i plus, in one of them, biases: i is the topic that this rating has
of its user, k that of its item. Vectors are (rows, topics of the other side, size).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from hemf.baselines.chains import FactorChain, RatingTable, TopicFactorSettings, TopicSettings
from hemf.baselines.draws import draw_offsets, draw_shares, draw_topics, draw_vectors
from hemf.baselines.samples import SideSample
from hemf.sampling.draws import Floats, RowNumbers, Singles, inverse, products, with_stranger

Groups = list[RowNumbers]


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

    def draw_terms(self) -> Singles:
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

    def flat(self, side: int) -> Singles:
        """Vectors of one side, one row for each group."""
        return self.vectors[side].reshape(-1, self.vectors[side].shape[2])

    @abstractmethod
    def start_vectors(self) -> list[Singles]:
        """Return the vectors of both sides that the chain starts with."""

    @abstractmethod
    def draw_effects(self, left: Singles, groups: Groups) -> Singles:
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


class TopicBiasChain(TopicChain):
    """M3F-TIB: terms c_u^k + d_j^i, as vectors (c, 1) and (1, d)."""

    def start_vectors(self) -> list[Singles]:
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

    def draw_effects(self, left: Singles, groups: Groups) -> Singles:
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
        self.vector_means: list[Floats] = [np.zeros(size), np.zeros(size)]
        self.vector_precisions: list[Floats] = [np.eye(size), np.eye(size)]

    def start_vectors(self) -> list[Singles]:
        """Return vectors at random."""
        size, topics = self.settings.topic_factors, self.settings.topics
        return [self._start((n, topics[1 - side], size)) for side, n in enumerate(self.table.sizes)]

    def draw_effects(self, left: Singles, groups: Groups) -> Singles:
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
