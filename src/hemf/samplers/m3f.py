"""Mixed membership matrix factorization by Gibbs sampling, in its two forms."""

from __future__ import annotations

import numpy as np

from hemf._checks import check_int, check_number
from hemf._options import MOST_FACTORS
from hemf.samplers.bpmf import LEAST_VARIANCE, GibbsSampler
from hemf.samplers.chains import (
    RatingTable,
    TopicBiasChain,
    TopicFactorChain,
    TopicFactorSettings,
    TopicSettings,
)
from hemf.samplers.draws import NormalWishart

MOST_TOPICS = 255  # a rating's topic is kept in a byte


class M3F(GibbsSampler):
    """What both forms have in common; `M3FTIB` and `M3FTIF` are the ones to use."""

    user_topics: int
    item_topics: int
    concentration: float
    offset_variance: float

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        super().check_parameters()
        check_int("user_topics", self.user_topics, low=1, high=MOST_TOPICS)
        check_int("item_topics", self.item_topics, low=1, high=MOST_TOPICS)
        check_number("concentration", self.concentration, low=LEAST_VARIANCE)
        check_number("offset_variance", self.offset_variance, low=LEAST_VARIANCE)


class M3FTIB(M3F):
    """Mixed membership matrix factorization with topic-indexed biases (Mackey et al., 2010).

    In every rating a user shows one of K_U topics, and an item one of K_M::

        r_uj ~ N(c + c_u^k + d_j^i + a_u·b_j, σ²),  i ~ θ_u,  k ~ θ_j,

    where a user has an offset c_u^k for each item topic and an item an offset d_j^i for each user
    topic, both from N(0, σ0²), and θ ~ Dirichlet(α/K). Factors, and c, are those of `BPMF`. An
    iteration draws μ and Λ of the factors, the topics of every rating, how often each occurs, the
    offsets, and the factors. Predictions average over topics.

    Parameters
    ----------
    n_factors
        Length of a_u and b_j, D.
    user_topics, item_topics
        K_U and K_M.
    concentration
        α; one as large as this leaves all topics of a user about equally frequent.
    offset_variance
        σ0².
    samples, burn_in, kept, noise_variance, learn_noise, mean_precision, degrees, wishart_scale,
    rating_range, duplicates, n_jobs, rng
        As for `BPMF`. Offsets and shares of topics take 4 bytes each in a sample, too.

    Examples
    --------
    >>> from hemf.samplers import M3FTIB
    >>> model = M3FTIB(n_factors=2, user_topics=2, item_topics=1, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_users_
    2
    >>> model.predict(["bob", "eve"], "milk", return_known=True)[1]
    array([ True, False])

    """

    def __init__(
        self,
        *,
        n_factors: int = 40,
        user_topics: int = 2,
        item_topics: int = 1,
        samples: int = 200,
        burn_in: int = 50,
        kept: int = 100,
        concentration: float = 10_000.0,
        offset_variance: float = 0.1,
        noise_variance: float = 0.5,
        learn_noise: bool = False,
        mean_precision: float = 10.0,
        degrees: float | None = None,
        wishart_scale: float = 1.0,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        n_jobs: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.user_topics = user_topics
        self.item_topics = item_topics
        self.samples = samples
        self.burn_in = burn_in
        self.kept = kept
        self.concentration = concentration
        self.offset_variance = offset_variance
        self.noise_variance = noise_variance
        self.learn_noise = learn_noise
        self.mean_precision = mean_precision
        self.degrees = degrees
        self.wishart_scale = wishart_scale
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.n_jobs = n_jobs
        self.rng = rng

    def _chain(self, table: RatingTable, rng: np.random.Generator, threads: int) -> TopicBiasChain:
        settings = TopicSettings(
            self.n_factors,
            self.noise_variance,
            self.learn_noise,
            self._prior(),
            (self.user_topics, self.item_topics),
            self.concentration,
            self.offset_variance,
        )
        return TopicBiasChain(table, settings, rng, threads)


class M3FTIF(M3F):
    """Mixed membership matrix factorization with topic-indexed factors (Mackey et al., 2010).

    As `M3FTIB`, but what goes with topics is the product of two short vectors::

        r_uj ~ N(ξ_u + χ_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u,  k ~ θ_j,

    c_u^k and d_j^i from Gaussians of their own with Normal-Wishart priors like those of the
    factors, and biases ξ_u ~ N(0, σ0²), χ_j ~ N(c, σ0²).

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
        As for `BPMF`. Biases, vectors and shares of topics take 4 bytes a number in a sample, too.

    Examples
    --------
    >>> from hemf.samplers import M3FTIF
    >>> model = M3FTIF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_sweeps_
    25
    >>> model.predict("bob", ["tea", "milk"]).shape
    (2,)

    """

    def __init__(
        self,
        *,
        n_factors: int = 40,
        user_topics: int = 2,
        item_topics: int = 2,
        samples: int = 200,
        burn_in: int = 50,
        kept: int = 100,
        topic_factors: int = 2,
        topic_mean_precision: float = 10_000.0,
        concentration: float = 10.0,
        offset_variance: float = 0.1,
        noise_variance: float = 0.5,
        learn_noise: bool = False,
        mean_precision: float = 10.0,
        degrees: float | None = None,
        wishart_scale: float = 1.0,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        n_jobs: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.user_topics = user_topics
        self.item_topics = item_topics
        self.samples = samples
        self.burn_in = burn_in
        self.kept = kept
        self.topic_factors = topic_factors
        self.topic_mean_precision = topic_mean_precision
        self.concentration = concentration
        self.offset_variance = offset_variance
        self.noise_variance = noise_variance
        self.learn_noise = learn_noise
        self.mean_precision = mean_precision
        self.degrees = degrees
        self.wishart_scale = wishart_scale
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.n_jobs = n_jobs
        self.rng = rng

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        super().check_parameters()
        check_int("topic_factors", self.topic_factors, low=1, high=MOST_FACTORS)
        check_number("topic_mean_precision", self.topic_mean_precision, low=LEAST_VARIANCE)

    def _chain(
        self, table: RatingTable, rng: np.random.Generator, threads: int
    ) -> TopicFactorChain:
        settings = TopicFactorSettings(
            self.n_factors,
            self.noise_variance,
            self.learn_noise,
            self._prior(),
            (self.user_topics, self.item_topics),
            self.concentration,
            self.offset_variance,
            self.topic_factors,
            NormalWishart(self.topic_mean_precision, scale=self.wishart_scale),
        )
        return TopicFactorChain(table, settings, rng, threads)
