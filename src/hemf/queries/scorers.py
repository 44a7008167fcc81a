"""What items are ranked by: expected ratings, or relevance where choices are learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from scipy.sparse import csr_array

from hemf._arrays import top_columns
from hemf._typing import Array, BoolArray, Float64Array, Int64Array
from hemf.model import rows as predictive
from hemf.model.relevance import Relevance
from hemf.model.rows import BestColumns, Moments, pair_moments
from hemf.model.state import FittedModel

STRATEGIES = ("relevance", "mean", "ucb", "thompson")
CANDIDATES = 128  # items that are looked at first; four times as many where they are too few


class Ranking(NamedTuple):
    """Strategy of a ranking, and its parameters."""

    strategy: str
    exploration: float
    rng: np.random.Generator


class Scorer(Protocol):
    """Scores of items for users, which are given by their places in the moments."""

    @property
    def are_ratings(self) -> bool:
        """Whether scores are expected ratings."""

    def all(self, users: Int64Array) -> Float64Array:
        """Return the score of every item, (users, items)."""

    def best(self, users: Int64Array, n: int, excluded: BoolArray) -> BestColumns:
        """Return the n best items of each user but those ``excluded``, (users, items)."""


def scorer_of(
    model: FittedModel, ranking: Ranking, *, any_unknown: bool, items: Int64Array | None = None
) -> Scorer:
    """Return what scores all items, or those at these places, for users that may be unknown."""
    users = model.moments("user", with_unknown=any_unknown)
    places = _rated_items(model) if items is None else items
    is_row = (places >= 0) & (places < model.n_items)  # others are strangers and newcomers
    right = model.moments("item", with_unknown=not is_row.all())
    ratings = RatingScorer(model, ranking, users, _at(right, places), places)
    if model.relevance is None or ranking.strategy == "mean":
        return ratings
    at = model.choice_places("item", places)
    return RelevanceScorer(
        ratings,
        model.relevance,
        model.choice_moments("user"),
        _at(model.choice_moments("item"), at),
    )


@dataclass(frozen=True)
class RatingScorer:
    """Scores by the expected rating."""

    model: FittedModel
    ranking: Ranking
    users: Moments
    items: Moments
    places: Int64Array
    """Of the items; -1 is a stranger."""

    @property
    def are_ratings(self) -> bool:
        """Whether scores are expected ratings."""
        return self.ranking.strategy in ("relevance", "mean")

    def all(self, users: Int64Array) -> Float64Array:
        """Return the score of every item, (users, items)."""
        scores = self.to_ratings(_by_strategy(self.users, self.items, users, self.ranking))
        if self.are_ratings and self.model.rating_range is not None:
            # Many items can reach the end of the range; they keep their order by a hair.
            low, high = self.model.rating_range
            inside = np.clip(scores, low, high)
            scores = inside + 1e-9 * (scores - inside)
        return scores

    def best(self, users: Int64Array, n: int, excluded: BoolArray) -> BestColumns:
        """Return the n best items of each user but those ``excluded``, (users, items)."""
        found = _best(self.all(users), n, excluded)
        if self.are_ratings and self.model.rating_range is not None:
            return replace(found, scores=np.clip(found.scores, *self.model.rating_range))
        return found

    def to_ratings(self, standardised: Array) -> Float64Array:
        """Return scores on the rating scale."""
        return self.model.mean + self.model.scale * standardised.astype(np.float64)

    def noise(self, users: Int64Array, items: Int64Array) -> Float64Array:
        """Variance of ratings of the items in these columns given the taste; broadcasts."""
        rows, columns = np.broadcast_arrays(users, self.places[items])
        noise = self.model.noise(rows.ravel(), columns.ravel()).reshape(rows.shape)
        return np.asarray(noise + self.model.mood_variance)


@dataclass(frozen=True)
class RelevanceScorer:
    """Scores by relevance (docs/model.md#relevance)."""

    ratings: RatingScorer
    rule: Relevance
    users: Moments
    """Of the choices of users, at the end those of a stranger."""
    items: Moments

    @property
    def are_ratings(self) -> bool:
        """Whether scores are expected ratings."""
        return False

    def all(self, users: Int64Array) -> Float64Array:
        """Return the score of every item, (users, items)."""
        ratings, ranking = self.ratings, self.ratings.ranking
        variance = ratings.noise(users[:, None], np.arange(ratings.places.size))
        if ranking.strategy == "relevance":
            mean, taste = predictive.score_rows(ratings.users, ratings.items, users, variance=True)
            variance = variance + taste
        else:  # what is explored is a taste, as if it were known
            mean = _by_strategy(ratings.users, ratings.items, users, ranking)
        liked = self._probability(mean.astype(np.float64), variance)
        return np.asarray(self.rule.of(self.choices(users), liked), np.float64)

    def best(self, users: Int64Array, n: int, excluded: BoolArray) -> BestColumns:
        """Return the n best items of each user but those ``excluded``, (users, items).

        The relevance of an item is at most its expected choice. So the items with the highest
        choices are looked at until no other can be among the best.
        """
        if self.ratings.ranking.strategy != "relevance" or self.rule.choice_exponent == 0.0:
            return _best(self.all(users), n, excluded)
        choices = self.choices(users)
        choices[excluded] = -np.inf
        columns = np.empty((users.size, n), np.int64)
        scores = np.empty((users.size, n))
        left, size = np.arange(users.size), max(CANDIDATES, 4 * n)
        while left.size:
            among, rest = _highest(choices[left], size)
            own = np.take_along_axis(choices[left], among, axis=1)
            found = self._relevance(users[left], among, own)
            best = top_columns(found, n)
            highest = np.take_along_axis(found, np.maximum(best, 0), axis=1)
            done = (rest <= highest[:, -1]) | (size >= choices.shape[1])
            at = left[done]
            columns[at] = np.where(
                best < 0, -1, np.take_along_axis(among, np.maximum(best, 0), axis=1)
            )[done]
            scores[at] = np.where(best < 0, -np.inf, highest)[done]
            left, size = left[~done], 4 * size
        return BestColumns(columns, scores)

    def choices(self, users: Int64Array) -> Array:
        """Return the choice of every item that the strategy ranks by, (users, items)."""
        rows = self.ratings.model.choice_places("user", users)
        found = _by_strategy(self.users, self.items, rows, self.ratings.ranking)
        model, places = self.ratings.model, self.ratings.places
        if model.links is None:
            return found
        share, n_items = np.float32(model.links.share), model.links.table.shape[0]
        linked = model.links.scores(_chosen(model, rows, n_items))
        if not np.array_equal(places, np.arange(n_items)):
            there = (places >= 0) & (places < n_items)
            linked = np.where(there, linked[:, np.where(there, places, 0)], np.float32(0.0))
        found *= np.float32(1.0) - share
        found += share * linked
        return found

    def _relevance(self, users: Int64Array, columns: Int64Array, choices: Array) -> Float64Array:
        """Relevance of the items in some columns of each user."""
        rows = np.repeat(users, columns.shape[1])
        ratings = self.ratings
        mean, taste = pair_moments(
            ratings.users, ratings.items, rows, columns.ravel(), variance=True
        )
        variance = taste.reshape(columns.shape) + ratings.noise(users[:, None], columns)
        relevance = self.rule.of(choices, self._probability(mean.reshape(columns.shape), variance))
        return np.where(np.isneginf(choices), -np.inf, relevance)

    def _probability(self, mean: Float64Array, variance: Float64Array) -> Float64Array:
        scale = self.ratings.model.scale
        return self.rule.probability(self.ratings.to_ratings(mean), scale * np.sqrt(variance))


def _by_strategy(left: Moments, right: Moments, rows: Int64Array, ranking: Ranking) -> Array:
    """Mean of a·b, plus its standard deviations for "ucb"; a draw for "thompson"."""
    if ranking.strategy == "thompson":
        return np.asarray(predictive.draw_scores(left, right, rows, ranking.rng))
    wide = ranking.strategy == "ucb"
    mean, variance = predictive.score_rows(left, right, rows, variance=wide)
    return np.asarray(mean + ranking.exploration * np.sqrt(variance) if wide else mean)


def _chosen(model: FittedModel, rows: Int64Array, n_items: int) -> csr_array:
    """Return which items the users of these rows have chosen, (users, items)."""
    none = np.zeros(0, np.int32)
    lists = [none if row < 0 else model.state.row_ratings("user", row)[0] for row in rows.tolist()]
    lists = [items[items < n_items] for items in lists]
    indptr = np.cumsum([0, *(items.size for items in lists)])
    indices = np.concatenate([none, *lists])
    return csr_array(
        (np.ones(indices.size, np.float32), indices, indptr), shape=(rows.size, n_items)
    )


def _rated_items(model: FittedModel) -> Int64Array:
    """Return the places of all items; those without a rating are strangers, as in `predict`."""
    places = np.arange(model.n_items)
    if model.sides["item"].regression is not None:
        return places  # every item has features
    return model.rated("item", places)


def _at(moments: Moments, places: Int64Array) -> Moments:
    """Return the moments at these places; without a copy where these are the first ones."""
    if np.array_equal(places, np.arange(places.size)):
        return Moments(moments.mean[: places.size], moments.second[: places.size])
    return Moments(moments.mean[places], moments.second[places])


def _best(scores: Float64Array, n: int, excluded: BoolArray) -> BestColumns:
    scores[excluded] = -np.inf
    return predictive.best_columns(scores, n)


def _highest(values: Array, size: int) -> tuple[Int64Array, Array]:
    """Return the columns of the highest values of each row, and the highest of the others."""
    if size >= values.shape[1]:
        columns = np.tile(np.arange(values.shape[1]), (values.shape[0], 1))
        return columns, np.full(values.shape[0], -np.inf)
    order = np.argpartition(-values, size, axis=1)
    rest = np.take_along_axis(values, order[:, size : size + 1], axis=1)[:, 0]
    return np.sort(order[:, :size], axis=1), rest
