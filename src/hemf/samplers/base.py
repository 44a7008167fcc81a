"""What all samplers share: parameters, the loop over iterations, samples, predictions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hemf._checks import (
    MAX_FACTORS,
    available_bytes,
    check_bool,
    check_int,
    check_n_jobs,
    format_bytes,
    one_blas_thread,
    resolve_rating_range,
    thread_count,
)
from hemf._typing import AnyArray, Array, Float64Array, IdsLike, Int32Array, RatingsLike
from hemf.baselines.base import Estimator, Progress, RatingRange, Trained, parameter, rated_ids
from hemf.data.pairs import Pairs
from hemf.data.ratings import Ratings, validation_pairs, warn_of_equal
from hemf.data.sources import ColumnChoice
from hemf.errors import ParameterError
from hemf.evaluation.distribution import Predictive

Moments = tuple[Float64Array, Float64Array]
"""Mean and variance of each pair."""
PredictUnknown = Callable[[IdsLike, IdsLike], Float64Array]
"""Returns predictions for pairs with unknown ids, which do not depend on samples."""


@dataclass(frozen=True)
class SampleReport:
    """Progress of a sampler after an iteration, passed to callbacks.

    >>> SampleReport(1, 300, False, 0.93, None, 0.5, 0.2).averaged
    False
    """

    iteration: int
    """Number of iterations done, from 1, burn-in included."""
    iterations: int
    averaged: bool
    """Whether the burn-in is over, so that this iteration's sample counts."""
    train_rmse: float
    """RMSE of the latest sample on the training ratings."""
    validation_rmse: float | None
    """RMSE on the ``validation`` ratings: of the average over all samples that count or, during
    burn-in, of the latest sample."""
    noise_variance: float
    seconds: float
    """Seconds since the start of the fit, without callbacks."""


class Draw(Protocol):
    """One sample of everything that ratings depend on."""

    @property
    def noise(self) -> float:
        """σ², in squared rating units."""

    @property
    def nbytes(self) -> int:
        """Memory of the sample."""

    def moments(self, user_rows: Int32Array, item_rows: Int32Array) -> Moments:
        """Return mean and variance of r - c, the ratings of pairs less their mean c."""

    def table(self, user_rows: Int32Array, item_rows: Int32Array) -> Array:
        """Return the mean of r - c of rows of items for rows of users."""


class Chain(Protocol):
    """A Gibbs sampler."""

    @property
    def noise(self) -> float:
        """σ², in squared rating units."""

    @property
    def train_rmse(self) -> float:
        """RMSE of the last step's draws on the training ratings."""

    @property
    def step_bytes(self) -> int:
        """Temporary memory of a step."""

    def step(self) -> None:
        """Draw everything once, each part given the rest."""

    def sample(self) -> Draw:
        """Return the draws of the last step."""


# docs/model.md#sample-average
class RunningMoments:
    """Mean and variance over samples that each have a mean and a variance.

    >>> average = RunningMoments(1)
    >>> average.add(np.array([1.0]), np.array([0.5]))
    >>> average.add(np.array([3.0]), np.array([0.5]))
    >>> average.mean, average.variance
    (array([2.]), array([1.5]))
    """

    def __init__(self, n: int) -> None:
        self.count = 0
        self.mean = np.zeros(n)
        self._within = np.zeros(n)
        self._between = np.zeros(n)

    def add(self, mean: Float64Array, variance: Float64Array) -> None:
        """Add a sample."""
        self.count += 1
        away = mean - self.mean
        self.mean += away / self.count
        self._between += away * (mean - self.mean)
        self._within += variance

    @property
    def variance(self) -> Float64Array:
        """Mean of the variances plus variance of the means."""
        return (self._within + self._between) / self.count


def averaged(samples: Sequence[Draw], user_rows: Int32Array, item_rows: Int32Array) -> Moments:
    """Return mean and variance of r - c of pairs over all samples."""
    average = RunningMoments(len(user_rows))
    for sample in samples:
        average.add(*sample.moments(user_rows, item_rows))
    return average.mean, average.variance


@dataclass(frozen=True)
class SampledState(Trained):
    """Samples that predictions are averaged over."""

    samples: list[Draw] = field(default_factory=list)

    def moments(self, user_rows: Int32Array, item_rows: Int32Array) -> Moments:
        """Return the clipped mean and the variance of pairs' ratings; row -1 is an unknown id."""
        mean, variance = averaged(self.samples, *self._unknown_last(user_rows, item_rows))
        return self.clip(self.mean + mean), variance

    def table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Return the mean of ratings, not clipped, of rows of items for rows of users."""
        rows = self._unknown_last(user_rows, item_rows)
        total = np.zeros((len(user_rows), len(item_rows)))
        for sample in self.samples:
            total += sample.table(*rows)
        return np.asarray(self.mean + total / len(self.samples))

    def _unknown_last(
        self, user_rows: AnyArray, item_rows: AnyArray
    ) -> tuple[Int32Array, Int32Array]:
        """Replace -1 by the last row of a sample's tables, the one for unknown ids."""
        return (
            np.where(user_rows < 0, self.users.n_rows, user_rows).astype(np.int32),
            np.where(item_rows < 0, self.items.n_rows, item_rows).astype(np.int32),
        )

    def validation(
        self,
        users: IdsLike,
        items: IdsLike,
        ratings: Float64Array,
        predict_unknown: PredictUnknown | None,
    ) -> Callable[[Draw, bool], float]:
        """Return a function: RMSE of a sample or, if the sample counts, of the average so far."""
        user_rows, item_rows = self.users.find(users), self.items.find(items)
        of_unknown = None if predict_unknown is None else predict_unknown(users, items)
        unknown = (user_rows < 0) | (item_rows < 0)
        pairs = self._unknown_last(user_rows, item_rows)
        average = RunningMoments(len(ratings))

        def rmse(sample: Draw, counts: bool) -> float:
            mean, variance = sample.moments(*pairs)
            if counts:
                average.add(mean, variance)
                mean = average.mean
            mean = self.clip(self.mean + mean)
            if of_unknown is not None:
                mean = np.where(unknown, of_unknown, mean)
            return float(np.sqrt(np.mean((mean - ratings) ** 2)))

        return rmse


@dataclass(kw_only=True, repr=False, eq=False)
class Sampler(Estimator[SampledState, SampleReport]):
    """Base class of the samplers."""

    n_factors: int = parameter(20, check_int, low=1, high=MAX_FACTORS)
    samples: int = parameter(200, check_int, low=1)
    burn_in: int = parameter(50, check_int, low=0)
    kept: int = parameter(100, check_int, low=1)
    rating_range: RatingRange = "observed"
    duplicates: str = "last"
    n_jobs: int | None = None
    rng: int | np.random.Generator | None = None

    def _read(self, ratings: RatingsLike, y: RatingsLike, columns: ColumnChoice) -> Ratings:
        data = super()._read(ratings, y, columns)
        warn_of_equal(data)
        return data

    def _sample(
        self,
        data: Ratings,
        start: Callable[[int], Chain],
        validation: RatingsLike,
        progress: Progress[SampleReport],
        predict_unknown: PredictUnknown | None = None,
    ) -> None:
        """Run the chain that ``start`` makes for a number of threads.

        At most ``self.kept`` samples are kept, evenly spaced.
        """
        limits = resolve_rating_range(self.rating_range, (data.minimum, data.maximum))
        state, rmse = SampledState(*rated_ids(data), data.mean, limits), None
        if validation is not None:
            rmse = state.validation(*validation_pairs(validation, data)[:3], predict_unknown)
        stride, iterations = -(-self.samples // self.kept), self.burn_in + self.samples
        with one_blas_thread():
            chain = start(thread_count(self.n_jobs))
            self._check_memory(chain)
            for iteration in range(1, iterations + 1):
                train_rmse = self._step(chain)
                sample, number = chain.sample(), iteration - self.burn_in
                counts = number > 0
                if counts and number % stride == 0:
                    state.samples.append(sample)
                error = None if rmse is None else rmse(sample, counts)
                done = iteration, iterations, counts
                report = SampleReport(*done, train_rmse, error, chain.noise, progress.seconds)
                if progress.add(report):
                    break
        if not state.samples:
            state.samples.append(sample)
        self.state_, self.history_ = state, progress.history

    def _step(self, chain: Chain) -> float:
        """Run an iteration; return its RMSE."""
        train_rmse = float("nan")
        with contextlib.suppress(np.linalg.LinAlgError):
            with np.errstate(over="ignore", invalid="ignore"):
                chain.step()
            train_rmse = chain.train_rmse
        if not np.isfinite(train_rmse):
            has_noise = "noise_variance" in self.get_params()
            more = ", or choose a noise_variance in their squared units" if has_noise else ""
            raise ParameterError(
                "the numbers of the sampler have left the range of float32: its constants do not "
                f"suit these ratings; bring the ratings to a scale like 1 to 5{more}"
            )
        return train_rmse

    def _check_memory(self, chain: Chain) -> None:
        """Raise an error if memory is too small for the samples."""
        number, available = min(self.samples, self.kept), available_bytes()
        needed = number * chain.sample().nbytes + chain.step_bytes
        if available is not None and needed > available:
            raise ParameterError(
                f"{number} samples with n_factors={self.n_factors} need about "
                f"{format_bytes(needed)} of memory, and {format_bytes(available)} are available; "
                "choose a smaller kept or n_factors",
                value=self.kept,
            )

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        super().check_parameters()
        check_n_jobs(self.n_jobs)

    @property
    def noise_variance_(self) -> float:
        """σ², mean over the samples kept."""
        return float(np.mean([sample.noise for sample in self.samples_]))

    @property
    def samples_(self) -> list[Draw]:
        """Samples that predictions are averaged over."""
        return self._fitted().samples

    def predict(
        self,
        users: IdsLike,
        items: IdsLike = None,
        *,
        return_std: bool = False,
        return_known: bool = False,
        unknown: str = "prior",
    ) -> AnyArray | tuple[AnyArray, ...]:
        """Return the expected rating of each pair, the average over samples; ids as in `HeMF`.

        With ``return_std`` also the standard deviation of the rating: noise, topics, and the
        differences between samples. With ``return_known`` also whether both ids are known. For
        unknown ids the prior is used, or they are an error with ``unknown="error"``.
        """
        return_std = check_bool("return_std", return_std)
        return_known = check_bool("return_known", return_known)
        pairs = self._find(users, items, unknown)
        return self._answer(pairs, return_known, *self._moments(pairs)[: 1 + return_std])

    def predict_distribution(self, users: IdsLike, items: IdsLike = None) -> Predictive:
        """Return the normal distribution of the rating of each pair, as `predict` gives it."""
        mean, std = self._moments(self._find(users, items, "prior"))
        return Predictive(np.asarray(mean, np.float64), np.maximum(std, np.finfo(float).tiny))

    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        return self._fitted().table(user_rows, item_rows)

    def _moments(self, pairs: Pairs) -> Moments:
        """Return mean and standard deviation of the ratings of pairs."""
        mean, variance = self._fitted().moments(pairs.users, pairs.items)
        return mean, np.sqrt(variance)
