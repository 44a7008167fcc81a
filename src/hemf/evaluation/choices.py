"""Rankings of the item that a user of a stream chooses next."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from hemf._checks import check_int, check_lengths
from hemf._typing import Array, Float64Array, IdsLike, Int64Array
from hemf.data.vocabulary import as_array, factorise
from hemf.errors import UnknownIdWarning
from hemf.evaluation.ranking import check_cutoffs, checked_scores, scorer

EVENTS = 5000  # ranked of a stream, by default
_BLOCK_BYTES = 1 << 25  # of scores in memory at once
_SEED = 0  # of the sample of events: the same for all models


class NextChoices:
    """Ranks of the items that come next in a stream, by a model and by their popularity so far.

    Candidates are all items that have occurred in the stream and that the user has not rated in it.
    Popularity is the number of users who have rated an item so far. A random sample of the ratings
    is ranked, without repeated pairs. Left out are items that occur for the first time: no model
    can rank them. Equal scores are ranked in the order in which items appeared.

    Parameters
    ----------
    users, items
        The stream.
    n
        Length of the lists to judge, or several of them.
    start
        Position of the first rating that may be ranked.
    events
        Number of ratings to rank, or more than there are for all.

    Examples
    --------
    >>> choices = NextChoices(["ann", "bob", "bob"], ["tea", "ale", "tea"], n=1, start=2)
    >>> choices.rank(lambda users, items: np.array([[0.0, 1.0]]), 2, 3)
    >>> choices.ranks.tolist(), choices.popularity_ranks.tolist(), choices.to_dict()["ndcg@1"]
    ([1], [1], 1.0)

    """

    def __init__(
        self,
        users: IdsLike,
        items: IdsLike,
        n: int | Sequence[int] = 10,
        *,
        start: int = 0,
        events: int = EVENTS,
    ) -> None:
        self.cutoffs = check_cutoffs("n", n)
        check_int("events", events, low=1)
        coded = factorise(users, "user"), factorise(items, "item")
        self._users, self._items = (side.codes.astype(np.int64) for side in coded)
        check_lengths(users=self._users, items=self._items)
        self._ids = tuple(as_array(side.distinct) for side in coded)
        # Codes are in order of appearance: the largest code counts the ids so far.
        self._known = np.maximum.accumulate(self._items) + 1
        self._by_user = np.argsort(self._users, kind="stable")
        self._bounds = np.searchsorted(self._users[self._by_user], np.arange(len(self._ids[0]) + 1))
        pairs = self._users * np.int64(len(self._ids[1])) + self._items
        self._is_first = np.zeros(pairs.size, bool)
        self._is_first[np.unique(pairs, return_index=True)[1]] = True
        possible = np.flatnonzero(self._is_first)
        possible = possible[possible >= start]
        rng = np.random.default_rng(_SEED)
        chosen = rng.choice(possible, min(events, possible.size), replace=False)
        self.positions: Int64Array = np.sort(chosen)
        """Positions in the stream of the ratings to rank."""
        self._counts = np.zeros(len(self._ids[1]))
        self._counted = 0
        self._ranks: tuple[list[int], list[int]] = ([], [])

    @property
    def ranks(self) -> Int64Array:
        """Rank by the model of each item ranked so far, 1 for the first."""
        return np.array(self._ranks[0], np.int64)

    @property
    def popularity_ranks(self) -> Int64Array:
        """Rank by popularity of the same items."""
        return np.array(self._ranks[1], np.int64)

    def next_after(self, position: int, end: int) -> int:
        """Return the first position to rank after one, at most ``end``."""
        place = int(np.searchsorted(self.positions, position, side="right"))
        return end if place == self.positions.size else min(end, int(self.positions[place]))

    def rank(self, model: object, begin: int, end: int) -> None:
        """Rank the sampled ratings from ``begin`` to ``end`` by a model that knows those before.

        ``model`` is anything that `ranking_metrics` takes.
        """
        events = self.positions[slice(*np.searchsorted(self.positions, [begin, end]))]
        n_items = int(self._known[begin - 1]) if begin else 0
        events = events[self._items[events] < n_items]
        if not events.size:
            return
        self._count_until(begin)
        score, items = scorer(model), self._ids[1][:n_items]
        step = max(1, _BLOCK_BYTES // (8 * n_items))
        for first in range(0, events.size, step):
            part = events[first : first + step]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnknownIdWarning)  # usual in a stream
                scores = checked_scores(score, self._ids[0][self._users[part]], items)
            for event, row in zip(part.tolist(), scores, strict=True):
                self._add(event, begin, row)

    def to_dict(self) -> dict[str, object]:
        """Return the figures in JSON's types; names end in ``@n``."""
        return {
            **self._figures(self.ranks),
            "ranked_choices": len(self.ranks),
            "popularity": self._figures(self.popularity_ranks),
        }

    def _figures(self, ranks: Int64Array) -> dict[str, object]:
        found: dict[str, object] = {}
        for n in self.cutoffs:
            inside = ranks <= n
            # A single item is relevant: the ideal gain is 1.
            found[f"ndcg@{n}"] = _mean(inside / np.log2(ranks + 1.0))
            found[f"hit_rate@{n}"] = _mean(inside.astype(np.float64))
            found[f"reciprocal_rank@{n}"] = _mean(inside / ranks)
        return found

    def _count_until(self, position: int) -> None:
        part = slice(self._counted, position)
        items = self._items[part][self._is_first[part]]
        self._counts += np.bincount(items, minlength=self._counts.size)
        self._counted = position

    def _add(self, event: int, begin: int, scores: Array) -> None:
        user, item = self._users[event], self._items[event]
        own = self._by_user[self._bounds[user] : self._bounds[user + 1]]
        seen = self._items[own[: np.searchsorted(own, begin)]]
        for ranks, values in zip(self._ranks, (scores, self._counts[: scores.size]), strict=True):
            ahead = values > values[item]
            ahead[:item] |= values[:item] == values[item]
            ahead[seen] = False
            ranks.append(1 + int(np.count_nonzero(ahead)))


def _mean(values: Float64Array) -> float | None:
    return float(values.mean()) if values.size else None
