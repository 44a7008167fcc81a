"""What the published Gibbs samplers share beside what every sampler has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from hemf.baselines.chains import RatingTable
from hemf.errors import DataError
from hemf.options import generator
from hemf.parameters import functions, number, switch
from hemf.ratings import Ratings
from hemf.sampling.draws import NormalWishart
from hemf.sampling.sampler import Chain, Sampler, SampleReport
from hemf.triples import rated_ids

LEAST_VARIANCE = 1e-9


class GibbsSampler(Sampler, ABC):
    """What the published samplers share; `BPMF`, `M3FTIB` and `M3FTIF` are the ones to use."""

    noise_variance: float
    learn_noise: bool
    mean_precision: float
    degrees: float | None
    wishart_scale: float

    def fit(
        self,
        ratings: Any,
        y: Any = None,
        *,
        columns: Any = None,
        validation: Any = None,
        callbacks: Sequence[Callable[[SampleReport], Any]] = (),
    ) -> Self:
        """Learn from ratings, anything `Ratings.from_any` reads, from the start.

        With ``y``, ``ratings`` holds the pairs and ``y`` their ratings. ``callbacks`` are called
        with a `SampleReport` after every iteration; one that returns something true stops the
        fit, and if no draw counts by then, the latest one is kept. ``validation`` are ratings to
        report the error on, which nothing is learnt from. A fit that fails leaves the estimator
        as it was.
        """
        self.check_parameters()
        rng, told = generator(self.rng), functions("callbacks", callbacks)
        data = _rated(self._read(ratings, y, columns))

        def start(threads: int) -> Chain:
            return self._chain(RatingTable.of(data), rng, threads)

        self._sample(data, start, validation, told)
        return self

    @abstractmethod
    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> Chain:
        """Return the chain that draws, before its first step."""

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        super().check_parameters()
        number("noise_variance", self.noise_variance, low=LEAST_VARIANCE)
        switch("learn_noise", self.learn_noise)
        number("mean_precision", self.mean_precision, low=LEAST_VARIANCE)
        if self.degrees is not None:
            number("degrees", self.degrees, low=float(self.n_factors))
        number("wishart_scale", self.wishart_scale, low=LEAST_VARIANCE)

    def _prior(self) -> NormalWishart:
        return NormalWishart(self.mean_precision, self.degrees, self.wishart_scale)


def _rated(data: Ratings) -> Ratings:
    """Leave out users and items without a rating: nothing would be learnt of them."""
    if not data.n_ratings:
        raise DataError("there are no ratings to learn from")
    user_rows, item_rows, values = data.triples()
    users, user_rows = rated_ids(data.users, user_rows)
    items, item_rows = rated_ids(data.items, item_rows)
    return Ratings.from_rows(users, items, user_rows, item_rows, values)
