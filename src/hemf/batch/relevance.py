"""How much choices, links and ratings count in a ranking, judged by choices that are left out.

Of some users one liked item is left out, of the posteriors of the user and of the item. Rules are
compared by the rank of these items among all items that the user has not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import available_bytes, one_blas_thread
from hemf._typing import OTHER, BoolArray, Float32Array, Float64Array, Int64Array
from hemf.batch.fit import BatchState
from hemf.data.ratings import Ratings
from hemf.model.links import Links, item_weights, strongest, weight_bytes, without_user
from hemf.model.relevance import Relevance
from hemf.model.rows import pair_moments, unpack

SAMPLE = 2000  # users
BLOCK = 256  # users whose posteriors are computed at once
VARIANCE_ITEMS = 64
LIKED = 0.5  # gain of a rating at the level, in standard deviations; what is above it is added
EXPONENTS = ((1.0, 0.0), (1.0, 0.25), (1.0, 0.5), (1.0, 0.75), (1.0, 1.0), (1.0, 1.5), (1.0, 3.0),
             (0.0, 1.0))  # fmt: skip
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FIRST_SHARE = 0.6
PENALTY = 2.0  # of squared weights of links, in mean numbers of choices of an item
MAX_ITEMS = 20_000  # for which links are computed: their time grows with the cube


class FoundLinks(NamedTuple):
    """Links, and what they were chosen from."""

    links: Links
    weights: Float32Array
    """B with all weights."""
    diagonal: Float64Array
    """Of P."""

    def without_pair(self, train: Ratings, user: int, item: int) -> float:
        """Return the expected choice of an item by a user who has chosen it, without that."""
        chosen = train.by_user.row(user)[0].astype(np.int64)
        counts = self.links.table[chosen[chosen != item], :][:, [item]].toarray()[:, 0] != 0.0
        linked = chosen[chosen != item][counts]
        return without_user(self.weights, self.diagonal, chosen, item, linked)


def find_links(train: Ratings, n: int) -> FoundLinks | None:
    """Return the ``n`` strongest links of each item; None for a catalogue that is too large."""
    needed, there = weight_bytes(train.n_items), available_bytes()
    too_large = train.n_items > MAX_ITEMS or (there is not None and needed > there)
    if n == 0 or too_large or train.n_items < 2:
        return None
    table = train.by_user
    shape = train.n_users, train.n_items
    choices = csr_array((np.ones(table.nnz, np.float32), table.indices, table.indptr), shape=shape)
    with one_blas_thread():
        weights, diagonal = item_weights(choices, PENALTY * table.nnz / train.n_items)
    return FoundLinks(Links.of(strongest(weights, n), FIRST_SHARE), weights, diagonal)


def learn_relevance(
    choices: BatchState,
    ratings: BatchState,
    train: Ratings,
    found: FoundLinks | None,
    rng: np.random.Generator,
) -> tuple[Relevance, Links | None]:
    """Return the rule and the share of links that rank liked items highest that are left out.

    Without any liked item to leave out they are the first ones.
    """
    rule, links = Relevance(train.mean), None if found is None else found.links
    users, items, gains = _left_out(train, rule.level, rng)
    if not users.size:
        return rule, links
    with one_blas_thread():
        blocks = [
            _Block.of(choices, ratings, train, found, rule, users[part], items[part], gains[part])
            for part in _parts(users.size)
        ]
    share = 0.0 if links is None else links.share

    def gain(rule: Relevance, share: float) -> float:
        return sum(block.gain(rule, share) for block in blocks)

    rules = [replace(rule, choice_exponent=a, rating_exponent=g) for a, g in EXPONENTS]
    rule = max(rules, key=lambda one: gain(one, share))
    if links is None or rule.choice_exponent == 0.0:
        return rule, None
    share = max(SHARES, key=lambda one: gain(rule, one))
    return rule, replace(links, share=share) if share > 0.0 else None


def _parts(n: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, n, BLOCK))


@dataclass(frozen=True)
class _Block:
    """Scores of all items for some users without the item left out of each."""

    choices: Float32Array
    links: Float32Array
    probability: Float32Array
    items: Int64Array
    seen: BoolArray
    gains: Float64Array

    @classmethod
    def of(
        cls,
        choices: BatchState,
        ratings: BatchState,
        train: Ratings,
        found: FoundLinks | None,
        rule: Relevance,
        users: Int64Array,
        items: Int64Array,
        gains: Float64Array,
    ) -> _Block:
        """Compute the scores."""
        rows = np.arange(users.size)
        expected, own = _products(choices, users, items)
        expected[rows, items] = own
        mean, own = _products(ratings, users, items)
        mean[rows, items] = own
        std = _deviations(ratings, users)
        probability = rule.probability(train.mean + train.scale * mean, train.scale * std)
        seen = np.zeros(expected.shape, bool)
        for k, user in enumerate(users.tolist()):
            seen[k, train.by_user.row(user)[0]] = True
        others = seen.copy()
        others[rows, items] = False
        linked = np.zeros((0, 0), np.float32)
        if found is not None:
            linked = found.links.scores(csr_array(others))
            for k, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
                linked[k, item] = found.without_pair(train, user, item)
        return cls(
            choices=expected.astype(np.float32),
            links=linked,
            probability=probability.astype(np.float32),
            items=items,
            seen=seen,
            gains=gains,
        )

    def gain(self, rule: Relevance, share: float) -> float:
        """Return the sum of the gains of the items left out, discounted by rank."""
        expected = self.choices
        if self.links.size:
            expected = (1.0 - share) * expected + share * self.links
        scores = rule.of(expected, self.probability)
        own = np.take_along_axis(scores, self.items[:, None], axis=1)
        rank = ((scores > own) & ~self.seen).sum(axis=1)
        return float(np.sum(self.gains / np.log2(2.0 + rank)))


def _left_out(
    train: Ratings, level: float, rng: np.random.Generator
) -> tuple[Int64Array, Int64Array, Float64Array]:
    """Return users, a liked item of each, and its gain, which grows with the rating.

    Users with a single choice are left out.
    """
    table = train.by_user
    users = np.repeat(np.arange(table.n_rows), np.diff(table.indptr))
    liked = np.flatnonzero((table.values >= level) & (np.diff(table.indptr)[users] > 1))
    liked = rng.permutation(liked)
    chosen, first = np.unique(users[liked], return_index=True)
    keep = rng.permutation(chosen.size)[:SAMPLE]
    places = liked[first[keep]]
    gains = table.values[places].astype(np.float64) - level + LIKED * train.scale
    return chosen[keep], table.indices[places].astype(np.int64), gains


# docs/model.md#left-out
def without_pairs(
    state: BatchState, side: str, own_rows: Int64Array, other_rows: Int64Array
) -> Float64Array:
    """Return the means of a side's vectors without one of their entries each.

    A = S⁻¹ - g E[b bᵀ]/σ²,  h = S⁻¹ m - w r n/σ²,  m′ = A⁻¹h; w is the weight of the entry, and g
    is w less that of a pair that was not observed.
    """
    own, other = state.sides[side], state.sides[OTHER[side]]
    free, pinned = own.layout.free, own.layout.pinned
    square = np.ix_(free, free)
    means = own.moments.mean[own_rows].astype(np.float64)
    own_weights, other_weights = own.weights, other.weights
    for k, (row, column) in enumerate(zip(own_rows, other_rows, strict=True)):
        columns, values = state.row_ratings(side, int(row))
        value = values[np.searchsorted(columns, column)]
        weight = own_weights[row] * other_weights[column] / state.noise
        excess = weight - state.ratings.background / state.noise
        n = other.moments.mean[column].astype(np.float64)
        second = unpack(other.moments.second[column].astype(np.float64))
        m = means[k]
        covariance = unpack(own.moments.second[row].astype(np.float64)) - np.outer(m, m)
        precision = np.linalg.inv(covariance[square])
        natural = precision @ m[free] - weight * value * n[free]
        if pinned >= 0:
            natural += excess * second[free, pinned]
        means[k, free] = np.linalg.solve(precision - excess * second[square], natural)
    return means


def _products(
    state: BatchState, users: Int64Array, items: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Return a·b of the users without their items, for all items and for the one left out."""
    rows = without_pairs(state, "user", users, items)
    columns = without_pairs(state, "item", items, users)
    every = rows @ state.sides["item"].moments.mean.T.astype(np.float64)
    return every, np.einsum("kt,kt->k", rows, columns)


def _deviations(state: BatchState, users: Int64Array) -> Float64Array:
    """Return the standard deviation of the ratings of all items by users.

    The variance of the taste is that of a few items, on average.
    """
    left, right = state.sides["user"], state.sides["item"]
    some = np.linspace(0, right.n_rows - 1, min(VARIANCE_ITEMS, right.n_rows)).astype(np.int64)
    pairs = np.repeat(users, some.size), np.tile(some, users.size)
    taste = pair_moments(left.moments, right.moments, *pairs, variance=True)[1]
    noise = state.noise / (left.weights[users][:, None] * right.weights)
    return np.asarray(np.sqrt(noise + taste.reshape(users.size, -1).mean(axis=1)[:, None]))
