"""What the published Gibbs samplers share beside what every sampler has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from hemf._checks import check_bool, check_callables, check_number, check_rng
from hemf.data.ratings import Ratings, drop_unrated_ids
from hemf.errors import DataError
from hemf.samplers.base import Chain, Sampler, SampleReport
from hemf.samplers.chains import FactorChain, RatingTable, Settings
from hemf.samplers.draws import NormalWishart

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
        rng, told = check_rng(self.rng), check_callables("callbacks", callbacks)
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
        check_number("noise_variance", self.noise_variance, low=LEAST_VARIANCE)
        check_bool("learn_noise", self.learn_noise)
        check_number("mean_precision", self.mean_precision, low=LEAST_VARIANCE)
        if self.degrees is not None:
            check_number("degrees", self.degrees, low=float(self.n_factors))
        check_number("wishart_scale", self.wishart_scale, low=LEAST_VARIANCE)

    def _prior(self) -> NormalWishart:
        return NormalWishart(self.mean_precision, self.degrees, self.wishart_scale)


def _rated(data: Ratings) -> Ratings:
    """Leave out users and items without a rating: nothing would be learnt of them."""
    if not data.n_ratings:
        raise DataError("there are no ratings to learn from")
    user_rows, item_rows, values = data.triples()
    users, user_rows = drop_unrated_ids(data.users, user_rows)
    items, item_rows = drop_unrated_ids(data.items, item_rows)
    return Ratings.from_rows(users, items, user_rows, item_rows, values)


# ------------------------------------------------------------------------------------------------
# Bayesian probabilistic matrix factorization by Gibbs sampling.


class BPMF(GibbsSampler):
    """Bayesian probabilistic matrix factorization (Salakhutdinov and Mnih, 2008).

    Factors of users and of items are Gaussian, and so is the noise::

        r_uj ~ N(c + a_u·b_j, σ²),  a_u ~ N(μ, Λ⁻¹),  μ ~ N(0, (λ0 Λ)⁻¹),  Λ ~ Wishart(ν0, s I)

    and likewise for b_j; c is the mean of the ratings. An iteration draws μ and Λ of both sides,
    then all users, then all items, each from what is likely given the rest.

    Parameters
    ----------
    n_factors
        Length of a_u and b_j, D.
    samples, burn_in
        Iterations that are averaged over, and those before, which are not.
    kept
        At most so many of the samples are kept for `predict`, evenly spread. A sample takes 4
        bytes for each factor of each user and item: at 40 factors, 1.6 MB for MovieLens 1M.
    noise_variance, learn_noise
        σ², in squared units of a rating; if learnt, σ² is drawn too, and ``noise_variance`` is
        the prior guess: 1/σ² ~ Gamma(1, noise_variance).
    mean_precision, degrees, wishart_scale
        λ0, ν0 (None: D), and s.
    rating_range
        Predictions are clipped to it, after they were averaged: ``"observed"``, a pair of numbers
        (a rating outside is an error then), or ``None``.
    duplicates
        What `fit` does with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``,
        ``"error"``.
    n_jobs
        Threads: None is all cores. The result is the same for any number.
    rng
        Seed, or NumPy generator, of everything random.

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

    def __init__(
        self,
        *,
        n_factors: int = 20,
        samples: int = 200,
        burn_in: int = 50,
        kept: int = 100,
        noise_variance: float = 0.5,
        learn_noise: bool = False,
        mean_precision: float = 2.0,
        degrees: float | None = None,
        wishart_scale: float = 1.0,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        n_jobs: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.samples = samples
        self.burn_in = burn_in
        self.kept = kept
        self.noise_variance = noise_variance
        self.learn_noise = learn_noise
        self.mean_precision = mean_precision
        self.degrees = degrees
        self.wishart_scale = wishart_scale
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.n_jobs = n_jobs
        self.rng = rng

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> FactorChain:
        settings = Settings(self.n_factors, self.noise_variance, self.learn_noise, self._prior())
        return FactorChain(table, settings, rng, threads)
