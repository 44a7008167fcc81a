"""Gibbs samplers: what each draws in one iteration, and in which order.

All of them are of ratings r - c = terms + a_u·b_j + noise, c the mean of the ratings. The terms
are nothing (`FactorChain`), or depend on a topic that every rating has of its user and of its item
(`hemf.baselines.topics`), in one way or another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hemf.baselines.draws import MOST_OUTER_BYTES, draw_rows
from hemf.baselines.samples import Sample, SideSample
from hemf.engines.threads import Rows
from hemf.ratings import Ratings
from hemf.sampling.draws import (
    Floats,
    NormalWishart,
    RowNumbers,
    Singles,
    draw_noise,
    inverse,
    products,
    with_stranger,
)

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

    users: RowNumbers
    items: RowNumbers
    values: Singles
    user_starts: npt.NDArray[np.int64]
    item_starts: npt.NDArray[np.int64]
    users_by_item: RowNumbers
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

    def rows(self, values: Singles) -> tuple[Rows, Rows]:
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
        self.means: list[Floats] = [np.zeros(size), np.zeros(size)]
        self.precisions: list[Floats] = [np.eye(size), np.eye(size)]
        self.product = self._products()
        self.errors = table.values - self.product
        """Of the ratings, under the draws of the last step."""
        self.stepped = False

    def _start(self, shape: tuple[int, ...]) -> Singles:
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

    def _products(self) -> Singles:
        left, right = self.factors
        return products(self.table.users, self.table.items, left, right, self.threads)

    def draw_terms(self) -> Singles:
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
