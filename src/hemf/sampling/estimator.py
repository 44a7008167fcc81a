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
from hemf.options import generator
from hemf.parameters import functions, switch
from hemf.questions import asked
from hemf.sampling.chain import InformedChain
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
        levels = distinct_levels(data.by_user.values)
        if self.ordinal and not is_scale(levels):
            raise DataError(
                f"ordinal=True is for levels of a scale, and there are {levels.size:,} different "
                "ratings; round them, or choose ordinal=False"
            )
        first = self._first(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first.fit(data, user_features=user_features, item_features=item_features)
        grades = None
        if self.ordinal:
            grades = Grades.of((levels - first.global_mean_) / first.rating_scale_)
        state = first.state_
        assert isinstance(state, BatchState)

        def start(threads: int) -> Chain:
            scale, outliers = first.rating_scale_, self.outliers
            return InformedChain.of(state, scale, rng, threads, outliers=outliers, grades=grades)

        self._sample(data, start, validation, told, of_strangers=first.predict, begin=begin)
        self.start_ = first
        return self

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        from hemf.options import fit_options

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

    def predict(
        self,
        users: Any,
        items: Any = None,
        *,
        return_std: bool = False,
        return_known: bool = False,
        unknown: str = "prior",
    ) -> Any:
        """Return the expected rating of each pair, the average over the samples kept.

        Ids are given as `HeMF.predict` takes them. With ``return_std`` also the standard
        deviation of the rating: noise, and what samples differ by. With ``return_known`` also
        whether both are known: for strangers ``start_`` answers, by their features if it was given
        any (``unknown="error"``: an error).
        """
        return_std = switch("return_std", return_std)
        return_known = switch("return_known", return_known)
        drawn = self._fitted()
        pairs = asked(users, items, *drawn.known, unknown)
        mean, variance = drawn.moments(pairs.users, pairs.items)
        std, strange = np.sqrt(variance), ~pairs.known
        if strange.any():
            by_start = self.start_.predict(pairs.user_ids, pairs.item_ids, return_std=True)
            mean, std = (
                np.where(strange, theirs, ours)
                for theirs, ours in zip(by_start, (mean, std), strict=True)
            )
        answer = [mean] + [std] * return_std + [pairs.known] * return_known
        if pairs.alone:
            answer = [part[0] for part in answer]
        return answer[0] if len(answer) == 1 else tuple(answer)
