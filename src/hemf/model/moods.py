"""Mood of a rater: an offset that moves slowly from session to session (docs/model.md#moods).

Ratings that a rater gave at the same time are a session, t. They share the mood
o_i(t) = l_i(t) + g_i(t): a lasting level, l_i(0) ~ N(0, τ²), l_i(t+1) = φ l_i(t) + N(0, τ²(1-φ²)),
and a part of that session alone, g_i(t) ~ N(0, γ²).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hemf._typing import Float64Array, Int64Array

MIN_VARIANCE = 1e-9  # τ² and γ², of the ratings' variance
MAX_PERSISTENCE = 0.9999
ROUNDS = 3  # of q(l, g) and its prior in turn, which is little work beside the ratings


# docs/model.md#moods
@dataclass(frozen=True)
class MoodPrior:
    """Prior of moods, in units of the ratings' variance.

    >>> round(MoodPrior(persistence=0.9, variance=0.1, extra=0.0).innovation, 3)
    0.019
    """

    persistence: float = 0.9
    """φ."""
    variance: float = 0.03
    """τ²."""
    extra: float = 0.01
    """γ²."""

    @property
    def innovation(self) -> float:
        """Variance of a step of the level, τ²(1-φ²)."""
        return self.variance * (1.0 - self.persistence**2)


@dataclass(frozen=True)
class MoodSums:
    """Sums over raters and the steps between their sessions, from which the prior is learnt."""

    first: float
    """Σ E l(0)²."""
    now: float
    """Σ E l(t)² over steps."""
    before: float
    """Σ E l(t-1)² over steps."""
    product: float
    """Σ E l(t) l(t-1) over steps."""
    extra: float
    """Σ E g(t)²."""
    divergence: float
    """KL(q(l, g) ‖ p(l, g))."""
    n_raters: int
    n_sessions: int


# docs/model.md#mood-prior
def learn_mood_prior(prior: MoodPrior, sums: MoodSums) -> MoodPrior:
    """φ, τ² and γ² that maximise E ln p(l, g | φ, τ², γ²).

    Given φ the others are ratios of sums; φ is found by a bounded search.
    """
    from scipy.optimize import minimize_scalar

    n, n_steps = sums.n_sessions, sums.n_sessions - sums.n_raters
    if n == 0:
        return prior

    def best_variance(persistence: float) -> float:
        moved = sums.now - 2.0 * persistence * sums.product + persistence**2 * sums.before
        return max((sums.first + moved / (1.0 - persistence**2)) / n, MIN_VARIANCE)

    def cost(persistence: float) -> float:
        log_steps = n_steps * np.log1p(-(persistence**2))
        return float(n * np.log(best_variance(persistence)) + log_steps)

    persistence = prior.persistence
    if n_steps:
        found = minimize_scalar(
            cost, bounds=(0.0, MAX_PERSISTENCE), method="bounded", options={"xatol": 1e-6}
        )
        if cost(float(found.x)) < cost(persistence):
            persistence = float(found.x)
    return replace(
        prior,
        persistence=persistence,
        variance=best_variance(persistence),
        extra=max(sums.extra / n, MIN_VARIANCE),
    )


@dataclass(frozen=True)
class MoodPosterior:
    """q(l) and q(o) of every session, rater by rater."""

    level: Float64Array
    level_spread: Float64Array
    product: Float64Array
    """Cov(l(t), l(t+1)), 0 at the last session of a rater."""
    mean: Float64Array
    """E o(t)."""
    spread: Float64Array
    """Var o(t)."""

    @classmethod
    def none(cls, n: int) -> MoodPosterior:
        """Return moods of zero."""
        return cls(*(np.zeros(n) for _ in range(5)))


# docs/model.md#mood-at
def mood_at(
    prior: MoodPrior,
    posterior: MoodPosterior,
    indptr: Int64Array,
    times: Int64Array,
    rows: Int64Array,
    when: Int64Array,
    place: Int64Array,
) -> tuple[Float64Array, Float64Array]:
    """Mean and variance of raters' moods at these times, after ``place`` of their sessions.

    At the time of a session it is that of the session, between two it is a step from either.
    ``rows`` of -1 are strangers.
    """
    known = rows >= 0
    begin = np.where(known, indptr[rows], 0)
    count = np.where(known, indptr[rows + 1] - indptr[rows], 0)
    expected = np.zeros(rows.size)
    uncertain = np.full(rows.size, prior.variance)
    level, spread = posterior.level, posterior.level_spread
    phi, some = prior.persistence, count > 0
    for is_end, at in ((some & (place == 0), begin), (some & (place == count), begin + count - 1)):
        expected[is_end] = phi * level[at[is_end]]
        uncertain[is_end] = phi**2 * spread[at[is_end]] + prior.innovation
    inside = (place > 0) & (place < count)
    later = (begin + place)[inside]
    share = phi / (1.0 + phi**2)
    expected[inside] = share * (level[later - 1] + level[later])
    both = spread[later - 1] + spread[later] + 2.0 * posterior.product[later - 1]
    uncertain[inside] = share**2 * both + prior.innovation / (1.0 + phi**2)
    uncertain += prior.extra
    there = np.flatnonzero(some & (place < count))
    there = there[times[(begin + place)[there]] == when[there]]
    session = (begin + place)[there]
    expected[there], uncertain[there] = posterior.mean[session], posterior.spread[session]
    return expected, uncertain


@dataclass(frozen=True)
class Moods:
    """Moods of all raters and their prior."""

    indptr: Int64Array
    """Where the sessions of each rater begin, and the last ends."""
    times: Int64Array
    """Time of each session."""
    prior: MoodPrior
    posterior: MoodPosterior
    divergence: float = 0.0
    """KL(q(l, g) ‖ p(l, g))."""

    @classmethod
    def start(cls, indptr: Int64Array, times: Int64Array) -> Moods:
        """Return moods of zero."""
        return cls(indptr, times, MoodPrior(), MoodPosterior.none(times.size))

    def at(self, users: Int64Array, when: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of these users' moods at these times; -1 is a stranger."""
        from hemf.kernels.moods import places

        known = np.flatnonzero(users >= 0)
        place, found = np.zeros(users.size, np.int64), np.zeros(known.size, np.int64)
        places.compiled(np.float64)(self.indptr, self.times, users[known], when[known], found)
        place[known] = found
        return mood_at(self.prior, self.posterior, self.indptr, self.times, users, when, place)
