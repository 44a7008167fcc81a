"""What every sampler is to its user: parameters in, samples kept, predictions out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hemf._checks import (
    Parametrised,
    check_bool,
    check_choice,
    check_int,
    check_n_jobs,
    check_rating_range,
    resolve_rating_range,
)
from hemf._options import MOST_FACTORS
from hemf._typing import BoolArray, Float32Array, Float64Array, Int32Array
from hemf.batch.fit import one_blas_thread
from hemf.batch.inputs import available_bytes, format_bytes, validation_pairs, warn_of_equal
from hemf.data.pairs import KnownIds, Pairs, check_ratings_in_range, find_pairs
from hemf.data.ratings import Ratings, pairs_from_any
from hemf.data.vocabulary import Vocabulary
from hemf.engines.threads import thread_count
from hemf.errors import NotFittedError, ParameterError
from hemf.samplers.draws import products


@dataclass(frozen=True)
class SampleReport:
    """How a sampler stands after an iteration; what callbacks receive.

    >>> SampleReport(1, 300, False, 0.93, None, 0.5, 0.2).averaged
    False
    """

    iteration: int
    """Iterations done so far, from 1, those of the burn-in included."""
    iterations: int
    averaged: bool
    """Whether the burn-in is over, so that this iteration's draw counts."""
    train_rmse: float
    """Of the latest draw, on the training ratings."""
    validation_rmse: float | None
    """On the ratings given as ``validation``: of the average over all draws that count, or while
    there are none of the latest draw."""
    noise_variance: float
    seconds: float
    """Since the start of the fit, what callbacks took left out."""


@dataclass(frozen=True)
class Drawn:
    """What a fit has left."""

    users: Vocabulary
    items: Vocabulary
    mean: float
    limits: tuple[float, float] | None
    samples: list[Draw]
    rated: tuple[BoolArray, BoolArray]
    """Whether each user, and each item, has a rating; those without are strangers."""

    @property
    def known(self) -> tuple[KnownIds, KnownIds]:
        """Ids of users and of items, and what finds their rows."""
        users, items = self.rated
        return (
            KnownIds(self.users, partial(_rated_rows, self.users, users)),
            KnownIds(self.items, partial(_rated_rows, self.items, items)),
        )

    def moments(
        self, user_rows: Int32Array, item_rows: Int32Array
    ) -> tuple[Float64Array, Float64Array]:
        """Mean, within the limits, and variance of the ratings of pairs; -1 is a stranger."""
        mean, variance = averaged(self.samples, *self._strangers_last(user_rows, item_rows))
        return self.clipped(mean), variance

    def clipped(self, mean: Float64Array) -> Float64Array:
        """Return ratings that are expected, given their distance from the mean."""
        mean = self.mean + mean
        return mean if self.limits is None else np.clip(mean, *self.limits)

    def _strangers_last(
        self, user_rows: npt.NDArray[Any], item_rows: npt.NDArray[Any]
    ) -> tuple[Int32Array, Int32Array]:
        return (
            np.where(user_rows < 0, self.rated[0].size, user_rows).astype(np.int32),
            np.where(item_rows < 0, self.rated[1].size, item_rows).astype(np.int32),
        )

    def judge(
        self, users: Any, items: Any, ratings: Float64Array, expected: Float64Array | None = None
    ) -> Callable[[Draw, bool], float]:
        """Return what tells the RMSE on ratings: of a draw or of the average with those before.

        ``expected`` is what is answered for strangers, whatever is drawn.
        """
        known_users, known_items = self.known
        user_rows, item_rows = known_users.find(users), known_items.find(items)
        strange = (user_rows < 0) | (item_rows < 0)
        pairs = self._strangers_last(user_rows, item_rows)
        average = RunningMoments(len(ratings))

        def error(sample: Draw, counts: bool) -> float:
            mean, variance = sample.moments(*pairs)
            if counts:
                average.add(mean, variance)
                mean = average.mean
            mean = self.clipped(mean)
            if expected is not None:
                mean = np.where(strange, expected, mean)
            return float(np.sqrt(np.mean((mean - ratings) ** 2)))

        return error


def _rated_rows(ids: Vocabulary, rated: BoolArray, asked_for: Any) -> npt.NDArray[Any]:
    """Row of each id, -1 for those that are not known or have no rating."""
    rows = ids.rows(asked_for)
    rows[rows >= rated.size] = -1  # ids may have been added since
    rows[~rated[rows]] = -1
    return rows


class Chain(Protocol):
    """A Gibbs sampler at work."""

    @property
    def noise(self) -> float:
        """σ², in squared units of a rating."""

    @property
    def train_rmse(self) -> float:
        """Root of the mean squared error under the draws of the last step."""

    @property
    def step_bytes(self) -> int:
        """Memory that a step takes and leaves again."""

    def step(self) -> None:
        """Draw everything once, each given the rest."""

    def sample(self) -> Draw:
        """Return the draws of the last step."""


class Sampler(Parametrised):
    """What every sampler is to its user, whatever it draws."""

    n_factors: int
    samples: int
    burn_in: int
    kept: int
    rating_range: str | tuple[float, float] | None
    duplicates: str
    n_jobs: int | None
    rng: int | np.random.Generator | None

    # -- learning ------------------------------------------------------------------------------

    def _read(self, ratings: Any, y: Any, columns: Any) -> Ratings:
        """Read ratings, anything `Ratings.from_any` does, or pairs whose ratings are ``y``."""
        if y is not None:
            ratings, columns = (*pairs_from_any(ratings, columns), y), None
        data = Ratings.from_any(ratings, columns=columns, duplicates=self.duplicates)
        check_ratings_in_range(data.by_user.values, self.rating_range)
        warn_of_equal(data)
        return data

    def _sample(
        self,
        data: Ratings,
        start: Callable[[int], Chain],
        validation: Any,
        callbacks: Sequence[Callable[[SampleReport], Any]],
        of_strangers: Callable[[Any, Any], Float64Array] | None = None,
        begin: float | None = None,
    ) -> None:
        """Run the chain that ``start`` makes for a number of threads, and keep what it draws.

        ``of_strangers`` predicts pairs of ids where draws do not. ``begin`` is when the fit began,
        if that was earlier.
        """
        begin = time.perf_counter() if begin is None else begin
        limits = resolve_rating_range(self.rating_range, (data.minimum, data.maximum))
        rated = np.diff(data.by_user.indptr) > 0, np.diff(data.by_item.indptr) > 0
        drawn = Drawn(data.users, data.items, data.mean, limits, [], rated)
        judge = None
        if validation is not None:
            users, items, actual = validation_pairs(validation, data)[:3]
            expected = None if of_strangers is None else of_strangers(users, items)
            judge = drawn.judge(users, items, actual, expected)
        with one_blas_thread():
            chain = start(thread_count(self.n_jobs))
            self._check_memory(chain)
            history = self._iterate(chain, drawn.samples, judge, callbacks, begin)
        self.drawn_, self.history_ = drawn, history

    def _iterate(
        self,
        chain: Chain,
        kept: list[Draw],
        judge: Callable[[Draw, bool], float] | None,
        callbacks: Sequence[Callable[[SampleReport], Any]],
        begin: float,
    ) -> list[SampleReport]:
        """Run the chain; keep one sample in so many, at most ``self.kept`` of them."""
        history: list[SampleReport] = []
        stride = -(-self.samples // self.kept)
        iterations = self.burn_in + self.samples
        for iteration in range(1, iterations + 1):
            train_rmse = self._step(chain)
            counted = iteration - self.burn_in
            keep = counted > 0 and counted % stride == 0
            sample = chain.sample() if keep or judge is not None else None
            if keep and sample is not None:
                kept.append(sample)
            report = SampleReport(
                iteration,
                iterations,
                counted > 0,
                train_rmse,
                judge(sample, counted > 0) if judge is not None and sample is not None else None,
                chain.noise,
                time.perf_counter() - begin,
            )
            history.append(report)
            called = time.perf_counter()
            answers = [callback(report) for callback in callbacks]
            begin += time.perf_counter() - called
            if any(answers):
                break
        if not kept:
            kept.append(chain.sample())
        return history

    def _step(self, chain: Chain) -> float:
        """Do an iteration and return its error, or say why it cannot be done."""
        train_rmse = float("nan")
        with contextlib.suppress(np.linalg.LinAlgError):
            with np.errstate(over="ignore", invalid="ignore"):
                chain.step()
            train_rmse = chain.train_rmse
        if not np.isfinite(train_rmse):
            has_noise = "noise_variance" in self._defaults()
            more = ", or choose a noise_variance in their squared units" if has_noise else ""
            raise ParameterError(
                "the numbers of the sampler have left the range of float32: its constants do not "
                f"suit these ratings; bring the ratings to a scale like 1 to 5{more}"
            )
        return train_rmse

    def _check_memory(self, chain: Chain) -> None:
        """Complain now rather than hours later of samples that memory does not hold."""
        number, there = min(self.samples, self.kept), available_bytes()
        needed = number * chain.sample().nbytes + chain.step_bytes
        if there is not None and needed > there:
            raise ParameterError(
                f"{number} samples with n_factors={self.n_factors} need about "
                f"{format_bytes(needed)} of memory, and {format_bytes(there)} are available; "
                "choose a smaller kept or n_factors",
                value=self.kept,
            )

    def check_parameters(self) -> None:
        """Check every parameter; an error names it and what it may be."""
        check_int("n_factors", self.n_factors, low=1, high=MOST_FACTORS)
        check_int("samples", self.samples, low=1)
        check_int("burn_in", self.burn_in, low=0)
        check_int("kept", self.kept, low=1)
        check_rating_range(self.rating_range)
        check_choice("duplicates", self.duplicates, ("last", "mean", "error"))
        check_n_jobs(self.n_jobs)

    # -- what is known -------------------------------------------------------------------------

    @property
    def n_users_(self) -> int:
        """How many users have been learnt of."""
        return self._fitted().rated[0].size

    @property
    def n_items_(self) -> int:
        """How many items have been learnt of."""
        return self._fitted().rated[1].size

    @property
    def n_sweeps_(self) -> int:
        """Iterations done by the last `fit`."""
        self._fitted()
        return len(self.history_)

    @property
    def global_mean_(self) -> float:
        """Mean of the training ratings."""
        return self._fitted().mean

    @property
    def noise_variance_(self) -> float:
        """σ², its mean over the samples kept."""
        return float(np.mean([sample.noise for sample in self._fitted().samples]))

    @property
    def rating_range_(self) -> tuple[float, float] | None:
        """What predictions are clipped to."""
        return self._fitted().limits

    @property
    def samples_(self) -> list[Draw]:
        """The samples kept, which predictions are averaged over."""
        return self._fitted().samples

    # -- prediction ----------------------------------------------------------------------------

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
        deviation of the rating: noise, topics, and what samples differ by. With ``return_known``
        also whether both are known: of strangers what their prior says is expected
        (``unknown="error"``: an error).
        """
        return_std = check_bool("return_std", return_std)
        return_known = check_bool("return_known", return_known)
        pairs = find_pairs(users, items, *self._fitted().known, unknown)
        mean, std = self._answers(pairs)
        answer: list[npt.NDArray[Any]] = [mean]
        if return_std:
            answer.append(std)
        if return_known:
            answer.append(pairs.known)
        if pairs.is_single:
            answer = [part[0] for part in answer]
        return answer[0] if len(answer) == 1 else tuple(answer)

    # -- inner workings ------------------------------------------------------------------------

    def _answers(self, pairs: Pairs) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of the ratings of pairs."""
        mean, variance = self._fitted().moments(pairs.users, pairs.items)
        return mean, np.sqrt(variance)

    def _fitted(self) -> Drawn:
        try:
            return self.drawn_
        except AttributeError:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet; call fit first"
            ) from None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "drawn_")


# ------------------------------------------------------------------------------------------------
# What many draws say of pairs together.


class Draw(Protocol):
    """One draw of all that a rating depends on."""

    @property
    def noise(self) -> float:
        """σ², in squared units of a rating."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""

    def moments(
        self, user_rows: Int32Array, item_rows: Int32Array
    ) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of r - c, the ratings of pairs less their mean."""


def averaged(
    samples: Sequence[Draw], user_rows: Int32Array, item_rows: Int32Array
) -> tuple[Float64Array, Float64Array]:
    """Mean and variance of the ratings of pairs, less their mean, over all samples."""
    average = RunningMoments(len(user_rows))
    for sample in samples:
        average.add(*sample.moments(user_rows, item_rows))
    return average.mean, average.variance


# docs/model.md#sample-average
class RunningMoments:
    """Mean and variance over samples that each come with a mean and a variance.

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
        """Take in one more sample."""
        self.count += 1
        away = mean - self.mean
        self.mean += away / self.count
        self._between += away * (mean - self.mean)
        self._within += variance

    @property
    def variance(self) -> Float64Array:
        """The mean of the variances plus the variance of the means."""
        return (self._within + self._between) / self.count


# ------------------------------------------------------------------------------------------------
# What a Gibbs sampler has drawn, and what a draw says of pairs.


BLOCK = 1 << 20  # numbers that go with topics, of all pairs that are asked about at once


@dataclass(frozen=True)
class SideSample:
    """One side's part of a sample; the last row of every table is the mean of a stranger."""

    factors: Float32Array
    """(rows + 1, D)"""
    shares: Float32Array
    """How often each topic occurs, (rows + 1, topics)."""
    vectors: Float32Array
    """What goes with each topic of the other side, (rows + 1, other topics, size)."""
    biases: Float32Array
    factor_covariance: Float64Array
    """With what follows, how much a stranger may differ from its mean."""
    vector_covariance: Float64Array
    bias_variance: float

    @property
    def stranger(self) -> int:
        """Row of those that nothing is known of."""
        return len(self.factors) - 1

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tables = self.factors, self.shares, self.vectors, self.biases
        return sum(table.nbytes for table in tables)


@dataclass(frozen=True)
class Sample:
    """One draw of all that a rating depends on.

    r - c ~ N(o_u + p_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u, k ~ θ_j
    """

    users: SideSample
    items: SideSample
    noise: float

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.users.nbytes + self.items.nbytes

    def moments(
        self, user_rows: Int32Array, item_rows: Int32Array
    ) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of r - c; topics are averaged over."""
        mean, variance = np.empty(len(user_rows)), np.empty(len(user_rows))
        topics = self.users.shares.shape[1] * self.items.shares.shape[1]
        each = topics + self.users.vectors[0].size + self.items.vectors[0].size
        block = max(1, BLOCK // each)
        for begin in range(0, len(user_rows), block):
            part = slice(begin, begin + block)
            mean[part], variance[part] = self._moments(user_rows[part], item_rows[part])
        return mean, variance + self.noise

    def _moments(
        self, user_rows: Int32Array, item_rows: Int32Array
    ) -> tuple[Float64Array, Float64Array]:
        users, items = self.users, self.items
        along = np.einsum("nkv,niv->nik", users.vectors[user_rows], items.vectors[item_rows])
        weight = users.shares[user_rows][:, :, None] * items.shares[item_rows][:, None, :]
        in_topics = np.einsum("nik,nik->n", weight, along).astype(np.float64)
        squares = np.einsum("nik,nik,nik->n", weight, along, along).astype(np.float64)
        product = products(user_rows, item_rows, users.factors, items.factors, threads=1)
        mean = in_topics + product + users.biases[user_rows] + items.biases[item_rows]
        variance = np.maximum(squares - in_topics**2, 0.0)
        strange = (user_rows == users.stranger) | (item_rows == items.stranger)
        if strange.any():
            variance[strange] += self._strangeness(user_rows[strange], item_rows[strange])
        return mean, variance

    def _strangeness(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        """Variance that comes of not knowing the user, the item, or both."""
        users, items = self.users, self.items
        new_user, new_item = user_rows == users.stranger, item_rows == items.stranger
        of_factors = _product_variance(
            users.factors[user_rows], users.factor_covariance, new_user,
            items.factors[item_rows], items.factor_covariance, new_item,
        )  # fmt: skip
        of_vectors = np.zeros(len(user_rows))
        for k in range(items.shares.shape[1]):
            for i in range(users.shares.shape[1]):
                weight = users.shares[user_rows, i] * items.shares[item_rows, k]
                of_vectors += weight * _product_variance(
                    users.vectors[user_rows, k], users.vector_covariance, new_user,
                    items.vectors[item_rows, i], items.vector_covariance, new_item,
                )  # fmt: skip
        of_biases = users.bias_variance * new_user + items.bias_variance * new_item
        return np.asarray(of_factors + of_vectors + of_biases)


def _product_variance(
    left: Float32Array, left_covariance: Float64Array, left_varies: Float64Array,
    right: Float32Array, right_covariance: Float64Array, right_varies: Float64Array,
) -> Float64Array:  # fmt: skip
    """Var[a·b] = mᵀTm + nᵀSn + tr(ST) of vectors with means m, n and covariances S, T."""
    of_left = np.einsum("ns,st,nt->n", right, left_covariance, right, optimize=True)
    of_right = np.einsum("ns,st,nt->n", left, right_covariance, left, optimize=True)
    of_both = float(np.sum(left_covariance * right_covariance))
    return np.asarray(
        of_left * left_varies + of_right * right_varies + of_both * (left_varies * right_varies)
    )
