"""HeMF with one community on each side, by Gibbs sampling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from hemf.errors import ConvergenceWarning, DataError
from hemf.estimator import HeMF
from hemf.evaluation.distribution import distinct_levels, is_scale
from hemf.inference.batch import BatchState
from hemf.options import fit_options, generator
from hemf.parameters import functions, switch
from hemf.questions import Pairs
from hemf.ratings import Ratings
from hemf.sampling.chain import InformedChain
from hemf.sampling.draws import Floats
from hemf.sampling.grades import Grades
from hemf.sampling.sampler import Chain, Sampler, SampleReport

START_SWEEPS = 25  # of the variational fit that a chain begins with


class GibbsHeMF(Sampler):
    """HeMF with one community on each side, by Gibbs sampling: slower, and often more accurate.

    Variational Bayes takes the posterior apart; a sampler does not. Where ratings are few and
    features many, that is worth some percent of a rating's error, and takes some ten times as long.
    Ratings are::

        r_ij ~ N(c + o_i + p_j + a_i·b_j, σ²/(τ_i υ_j)),   (o_i, a_i) ~ N(μ + Vᵀx_i, Λ⁻¹)

    and likewise for items. An iteration draws V and all users at once, then their priors, then the
    same for items, then the noise and its scales. It begins with a `HeMF` of the same settings,
    ``start_``, which also answers for strangers: users and items without a rating.

    Parameters
    ----------
    n_factors
        Length of a_i and b_j.
    samples, burn_in
        Iterations that are averaged over, and those before, which are not.
    kept
        At most so many of the samples are kept for `predict`, evenly spread. A sample takes
        4 (n_factors + 4) bytes for each user and item; with fewer, predictions are noisier.
    implicit_features, noise_scales
        As `HeMF` has them.
    outliers
        Whether every rating has a noise scale of its own, too: errors have Student's t
        distribution, whose degrees of freedom are drawn, and what does not fit counts less.
    ordinal
        Whether ratings are levels of a scale, whose ends nobody can go beyond, and not numbers.
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
    >>> from hemf import GibbsHeMF
    >>> model = GibbsHeMF(n_factors=2, samples=20, burn_in=5, rng=0)
    >>> model.fit([("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]).n_items_
    2
    >>> mean, std = model.predict("bob", ["tea", "milk"], return_std=True)
    >>> mean.shape, bool((std > 0.3).all())
    ((2,), True)

    """

    def __init__(
        self,
        *,
        n_factors: int = 20,
        samples: int = 300,
        burn_in: int = 30,
        kept: int = 300,
        implicit_features: bool | str = True,
        noise_scales: str | None = "both",
        outliers: bool = False,
        ordinal: bool = False,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        n_jobs: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.samples = samples
        self.burn_in = burn_in
        self.kept = kept
        self.implicit_features = implicit_features
        self.noise_scales = noise_scales
        self.outliers = outliers
        self.ordinal = ordinal
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.n_jobs = n_jobs
        self.rng = rng

    def fit(
        self,
        ratings: Any,
        y: Any = None,
        *,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
        validation: Any = None,
        callbacks: Sequence[Callable[[SampleReport], Any]] = (),
    ) -> Self:
        """Learn from ratings and features, anything that `HeMF.fit` reads, from the start.

        ``callbacks`` are called with a `SampleReport` after every iteration; one that returns
        something true stops the fit, and if no draw counts by then, the latest one is kept.
        ``validation`` are ratings to report the error on, which nothing is learnt from. A fit that
        fails leaves the estimator as it was.
        """
        self.check_parameters()
        rng, told = generator(self.rng), functions("callbacks", callbacks)
        data, begin = self._read(ratings, y, columns), time.perf_counter()
        levels = _levels(data) if self.ordinal else None
        first = self._first(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first.fit(data, user_features=user_features, item_features=item_features)
        state, scale, grades = first.state_, first.rating_scale_, None
        if levels is not None:
            grades = Grades.of((levels - first.global_mean_) / scale)
        assert isinstance(state, BatchState)

        def start(threads: int) -> Chain:
            outliers = self.outliers
            return InformedChain.of(state, scale, rng, threads, outliers=outliers, grades=grades)

        self._sample(data, start, validation, told, of_strangers=first.predict, begin=begin)
        self.start_ = first
        return self

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        super().check_parameters()
        switch("outliers", self.outliers)
        switch("ordinal", self.ordinal)
        fit_options(self._first(0))

    def _first(self, rng: int | np.random.Generator) -> HeMF:
        """Return the model that a chain begins with."""
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

    def _answers(self, pairs: Pairs) -> tuple[Floats, Floats]:
        """Mean and standard deviation of pairs; for strangers ``start_`` answers.

        It does so by their features, if it was given any.
        """
        mean, std = super()._answers(pairs)
        strange = ~pairs.known
        if strange.any():
            theirs = self.start_.predict(pairs.user_ids, pairs.item_ids, return_std=True)
            mean, std = np.where(strange, theirs[0], mean), np.where(strange, theirs[1], std)
        return mean, std


def _levels(data: Ratings) -> Floats:
    """Return the levels of the scale of ratings, or say that there is none."""
    levels = distinct_levels(data.by_user.values)
    if not is_scale(levels):
        raise DataError(
            f"ordinal=True is for levels of a scale, and there are {levels.size:,} different "
            "ratings; round them, or choose ordinal=False"
        )
    return levels
