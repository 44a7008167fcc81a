"""Batch fit of choices: which pairs were observed, whatever their ratings are.

y is 1 for a pair that was observed and 0 for all others, with factors of its own:

    y_ij ~ N(c_i·d_j, σ²/w_ij),   w_ij = 1 where observed, w₀ elsewhere

Sweeps are those of ratings. The pairs that were not observed enter through one Gram matrix,
w₀ Σ_j E[d_j d_jᵀ], so a sweep costs what one of ratings does (docs/model.md#choices).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf._options import FitOptions, Schedule
from hemf._typing import SIDES, Float64Array, Int64Array
from hemf.batch.fit import Convergence
from hemf.batch.sweep import BatchState, start_state, sweep
from hemf.data.ratings import Ratings
from hemf.engines.base import CHOICES, Engine
from hemf.engines.threads import one_blas_thread
from hemf.model.relevance import Relevance
from hemf.model.rows import pair_moments, unpack

MAX_SWEEPS = 6
TOLERANCE = 1e-3  # of the bound; the ranking changes little after the first sweeps


def choice_options(options: FitOptions) -> FitOptions:
    """Return the options of the fit of choices that belong to those of a fit of ratings."""
    return replace(
        options,
        n_factors=options.n_choice_factors,
        offsets=False,
        tied=dict.fromkeys(SIDES, True),
        max_communities=dict.fromkeys(SIDES, 1),
        noise_scales=dict.fromkeys(SIDES, False),
        moods=False,
        implicit_features=(),
        coupled=True,
        max_sweeps=MAX_SWEEPS,
        schedule=Schedule(hold_scale=2),
    )


def fit_choices(engine: Engine, options: FitOptions, rng: np.random.Generator) -> BatchState:
    """Fit both sides to the choices of an engine."""
    own = choice_options(options)
    convergence = Convergence(TOLERANCE, 1, own.earliest)
    with one_blas_thread():
        state = start_state(engine, 1.0, own, rng, component=CHOICES)
        done = False
        while not done and state.sweeps < own.max_sweeps:
            sweep(state, own, rng)
            done = convergence.bound(state.sweeps, sum(state.bound_terms().values()))
    return state


def choice_features(state: BatchState, side: str) -> Float64Array:
    """Return the features of a side's rows for the fit of ratings, (rows, factors)."""
    return state.sides[side].factor_means


# ------------------------------------------------------------------------------------------------
# How much ratings count beside choices: judged by the rank of choices that are left out.
#
# Of some users one liked item is left out, of the posteriors of the user's rows alone: the items'
# posteriors rest on many users. Rules are compared by the rank of these items among all items that
# the user has not chosen.


SAMPLE = 2000  # users
BLOCK = 256  # users whose scores are in memory at once
VARIANCE_ITEMS = 64
LIKED = 0.5  # gain of a rating at the level, in standard deviations; what is above it is added
RULES = ((1.0, 0.0), (1.0, 0.25), (1.0, 0.5), (1.0, 0.75), (1.0, 1.0), (1.0, 1.5), (1.0, 3.0),
         (0.0, 1.0))  # fmt: skip


def learn_relevance(
    choices: BatchState, ratings: BatchState, train: Ratings, level: float | None,
    rng: np.random.Generator,
) -> Relevance:  # fmt: skip
    """Return the rule that ranks liked items highest that are left out.

    Without any liked item to leave out it is that of `Relevance`.
    """
    first = Relevance(train.mean if level is None else level)
    users, items, above = _left_out(train, first.level, rng)
    if not users.size:
        return first
    gains = np.zeros(len(RULES))
    seen = train.by_user
    for start in range(0, users.size, BLOCK):
        part = slice(start, start + BLOCK)
        choice = without_pairs(choices, users[part], items[part])
        expected = choice @ choices.sides["item"].moments.mean.T.astype(np.float64)
        rows = without_pairs(ratings, users[part], items[part])
        mean, std = _ratings_of(ratings, users[part], rows)
        probability = first.probability(train.mean + train.scale * mean, train.scale * std)
        for place, (alpha, gamma) in enumerate(RULES):
            rule = replace(first, choice_exponent=alpha, rating_exponent=gamma)
            scores = rule.of(expected, probability)
            for k, (user, item) in enumerate(zip(users[part], items[part], strict=True)):
                own = scores[k, item]
                others = seen.row(user)[0]
                rank = np.count_nonzero(scores[k] > own) - np.count_nonzero(scores[k, others] > own)
                gains[place] += (above[start + k] + LIKED * train.scale) / np.log2(2.0 + rank)
    alpha, gamma = RULES[int(np.argmax(gains))]
    return replace(first, choice_exponent=alpha, rating_exponent=gamma)


def _left_out(
    train: Ratings, level: float, rng: np.random.Generator
) -> tuple[Int64Array, Int64Array, Float64Array]:
    """Return users, a liked item of each, and by how much its rating is above the level.

    Users with a single choice are left out.
    """
    table = train.by_user
    users = np.repeat(np.arange(table.n_rows), np.diff(table.indptr))
    liked = np.flatnonzero((table.values >= level) & (np.diff(table.indptr)[users] > 1))
    liked = rng.permutation(liked)
    chosen, first = np.unique(users[liked], return_index=True)
    keep = rng.permutation(chosen.size)[:SAMPLE]
    places = liked[first[keep]]
    above = table.values[places].astype(np.float64) - level
    return chosen[keep], table.indices[places].astype(np.int64), above


# docs/model.md#left-out
def without_pairs(state: BatchState, users: Int64Array, items: Int64Array) -> Float64Array:
    """Return the means of users' vectors without one of their entries each.

    A = S⁻¹ - g E[b bᵀ]/σ²,  h = S⁻¹ m - w r n/σ²,  m′ = A⁻¹h; w is the weight of the entry, and g
    is w less that of a pair that was not observed.
    """
    own, other = state.sides["user"], state.sides["item"]
    free, pinned = own.layout.free, own.layout.pinned
    square = np.ix_(free, free)
    means = own.moments.mean[users].astype(np.float64)
    for k, (user, item) in enumerate(zip(users, items, strict=True)):
        columns, values = state.row_ratings("user", int(user))
        value = values[np.searchsorted(columns, item)]
        weight = own.weights[user] * other.weights[item] / state.noise
        excess = weight - state.ratings.background / state.noise
        n = other.moments.mean[item].astype(np.float64)
        second = unpack(other.moments.second[item].astype(np.float64))
        m = means[k]
        covariance = unpack(own.moments.second[user].astype(np.float64)) - np.outer(m, m)
        precision = np.linalg.inv(covariance[square])
        natural = precision @ m[free] - weight * value * n[free]
        if pinned >= 0:
            natural += excess * second[free, pinned]
        means[k, free] = np.linalg.solve(precision - excess * second[square], natural)
    return means


def _ratings_of(
    state: BatchState, users: Int64Array, means: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return mean and standard deviation of the ratings of all items by users of these means.

    The variance of the taste is that of a few items, on average.
    """
    left, right = state.sides["user"], state.sides["item"]
    some = np.linspace(0, right.n_rows - 1, min(VARIANCE_ITEMS, right.n_rows)).astype(np.int64)
    pairs = np.repeat(users, some.size), np.tile(some, users.size)
    taste = pair_moments(left.moments, right.moments, *pairs, variance=True)[1]
    noise = state.noise / (left.weights[users][:, None] * right.weights)
    variance = noise + taste.reshape(users.size, some.size).mean(axis=1)[:, None]
    return means @ right.moments.mean.T.astype(np.float64), np.sqrt(variance)
