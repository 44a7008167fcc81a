"""Ranking metrics: recommended items compared with the items that users liked later.

Users are handled in blocks: all items are scored for a block, items rated in training are masked,
and the best are selected by partial sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias, overload

import numpy as np
from scipy.sparse import csr_array

from hemf._arrays import top_columns
from hemf._checks import check_int, check_value
from hemf._typing import (
    AnyArray,
    Array,
    BoolArray,
    Float64Array,
    Int64Array,
    RatingsLike,
)
from hemf.data.ratings import Ratings
from hemf.errors import DataError, ParameterError

Scorer: TypeAlias = Callable[[AnyArray, AnyArray], Array]
"""Returns a matrix of scores for ids of users and of items."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of users done and of all users."""

BLOCK_BYTES = 1 << 26  # of scores in memory at once; a few copies of them are made


@dataclass(frozen=True)
class RankingMetrics:
    """Result of `ranking_metrics`: means over users, and over all recommendations."""

    n: int
    """Number of items recommended to each user."""
    users: int
    """Number of users judged: those with relevant test ratings and any training ratings."""
    level: float
    """Smallest rating that is relevant."""
    ndcg: float
    """Normalised discounted cumulative gain."""
    recall: float
    """Share of a user's relevant items that are among the n."""
    precision: float
    """Share of the n that are relevant."""
    average_precision: float
    """Mean of the precision at the rank of each relevant item, 0 if not among the n (MAP)."""
    reciprocal_rank: float
    """One over the rank of the first relevant item, 0 without any (MRR)."""
    hit_rate: float
    """Share of the users with a relevant item among the n."""
    coverage: float
    """Share of the training items that are recommended to anybody."""
    novelty: float
    """Mean of -log2(share of the users who rated the item in training), in bits."""
    left_out: int
    """Relevant test ratings that are not used: user or item not in training, or pair in it."""

    def to_dict(self) -> dict[str, object]:
        """Return the figures in JSON's types; names end in ``@n``."""
        others = {
            "relevant": self.level,
            "ranked_users": self.users,
            "ranking_left_out": self.left_out,
        }
        metrics = {
            f"{name}@{self.n}": value
            for name, value in asdict(self).items()
            if name not in ("n", "users", "level", "left_out")
        }
        return metrics | others


@overload
def ranking_metrics(
    model: object,
    train: RatingsLike,
    test: RatingsLike,
    n: int = 10,
    *,
    level: float | None = None,
    progress: Progress | None = None,
) -> RankingMetrics: ...


@overload
def ranking_metrics(
    model: object,
    train: RatingsLike,
    test: RatingsLike,
    n: Sequence[int],
    *,
    level: float | None = None,
    progress: Progress | None = None,
) -> list[RankingMetrics]: ...


def ranking_metrics(
    model: object,
    train: RatingsLike,
    test: RatingsLike,
    n: int | Sequence[int] = 10,
    *,
    level: float | None = None,
    progress: Progress | None = None,
) -> RankingMetrics | list[RankingMetrics]:
    """Rank all items that a user has not rated in training, and judge the best n by test ratings.

    Items without a test rating count as not relevant. Equal scores are ranked in the order of the
    items in training.

    Parameters
    ----------
    model
        Has ``scores`` or ``predict``, or is a function that returns a matrix of scores for ids of
        users and ids of items.
    train, test
        Ratings, as `Ratings.from_any` reads them.
    n
        Number of recommendations for each user, or several of them, judged by one ranking.
    level
        Smallest test rating that is relevant; by default, all above the training mean are.
    progress
        ``progress(done, total)``, called as users are done.

    Returns
    -------
    RankingMetrics or list of RankingMetrics
        A list, in the order of ``n``, if ``n`` is a sequence.

    Examples
    --------
    >>> train = [("ann", "tea", 5), ("bob", "tea", 4), ("bob", "milk", 2), ("eve", "ale", 5)]
    >>> by_length = lambda users, items: np.tile([len(item) for item in items], (len(users), 1))
    >>> test = [("ann", "ale", 5), ("eve", "milk", 5)]
    >>> found = ranking_metrics(by_length, train, test, n=1)
    >>> found.hit_rate, found.users, round(found.coverage, 2)
    (0.5, 2, 0.33)
    >>> [found.recall for found in ranking_metrics(by_length, train, test, n=[1, 2])]
    [0.5, 1.0]

    """
    cutoffs = check_cutoffs("n", n)
    learnt, withheld = Ratings.from_any(train), Ratings.from_any(test)
    threshold = _above(learnt.mean, learnt.by_user.values.dtype.type)
    if level is not None:
        is_number = isinstance(level, int | float | np.number) and bool(np.isfinite(level))
        check_value("level", level, is_number, "a number")
        threshold = float(level)
    if not learnt.n_ratings:
        raise DataError("train holds no ratings")
    catalogue = Catalogue.of(learnt)
    wanted, left_out = catalogue.relevant(withheld, threshold)
    relevant_items = np.diff(wanted.indptr)
    judged = np.flatnonzero(relevant_items)
    if not judged.size:
        raise DataError(
            f"no user and item of training have a rating of {threshold:g} or more in test; lower "
            "the level, or give other ratings",
            value=threshold,
        )
    width = min(max(cutoffs), catalogue.raters.size)
    top = np.empty((judged.size, width), np.int64)
    hits = np.empty((judged.size, width), bool)
    for part, scores in _blocks(scorer(model), catalogue, judged, progress):
        scores[catalogue.seen[judged[part]].nonzero()] = -np.inf
        top[part] = best = top_columns(scores, width)
        is_wanted = wanted[judged[part]].toarray()
        hits[part] = np.take_along_axis(is_wanted, np.maximum(best, 0), axis=1) & (best >= 0)
    found = [
        RankingMetrics(
            n=cutoff,
            users=int(judged.size),
            level=threshold,
            **_rank_metrics(hits[:, :cutoff], relevant_items[judged], cutoff),
            **catalogue.variety(top[:, :cutoff]),
            left_out=left_out,
        )
        for cutoff in cutoffs
    ]
    return found if isinstance(n, Sequence) else found[0]


def check_cutoffs(name: str, n: int | Sequence[int]) -> list[int]:
    """Check a length of lists, or several different ones.

    >>> check_cutoffs("n", 10), check_cutoffs("n", (5, 10))
    ([10], [5, 10])
    """
    several = list(n) if isinstance(n, Sequence) else [n]
    check_value(name, n, bool(several), "a whole number, or a sequence of at least one")
    checked = [check_int(name, one, low=1) for one in several]
    check_value(name, n, len(set(checked)) == len(checked), "without repetitions")
    return checked


@dataclass(frozen=True)
class Catalogue:
    """The items rated in training, who rated them, and the users."""

    learnt: Ratings
    column: Int64Array
    """Column of each item; -1 for items without ratings and, in the last entry, for unknown."""
    raters: Int64Array
    """Number of ratings of each column."""
    seen: csr_array
    """Which user rated which column."""

    @classmethod
    def of(cls, learnt: Ratings) -> Catalogue:
        """Return the catalogue of training ratings."""
        raters = np.diff(learnt.by_item.indptr)
        rated = np.flatnonzero(raters)
        column = np.full(learnt.n_items + 1, -1)
        column[rated] = np.arange(rated.size)
        by_user = learnt.by_user
        seen = csr_array(
            (np.ones(by_user.nnz, bool), column[by_user.indices], by_user.indptr),
            shape=(learnt.n_users, rated.size),
        )
        return cls(learnt, column, raters[rated], seen)

    @property
    def ids(self) -> AnyArray:
        """Id of the item of each column."""
        ids: AnyArray = self.learnt.items.ids[self.column[:-1] >= 0]
        return ids

    def relevant(self, withheld: Ratings, threshold: float) -> tuple[csr_array, int]:
        """Return which columns are relevant to each training user, and the number left out."""
        users, items, values = withheld.triples()
        # Compared in the type of the ratings: float32 is coarser.
        liked = values >= values.dtype.type(threshold)
        user_rows = self.learnt.users.rows(withheld.users.ids)[users[liked]]
        columns = self.column[self.learnt.items.rows(withheld.items.ids)[items[liked]]]
        active = np.append(np.diff(self.seen.indptr) > 0, False)  # row -1 is the last
        known = active[user_rows] & (columns >= 0)
        pairs = user_rows[known], columns[known]
        ones = np.ones(pairs[0].size, bool)
        wanted = csr_array(csr_array((ones, pairs), shape=self.seen.shape) > self.seen)
        return wanted, int(liked.sum()) - wanted.nnz

    def variety(self, top: Int64Array) -> dict[str, float]:
        """Return coverage and novelty of lists of columns; -1 is an empty place."""
        shown = top[top >= 0]
        n_users = np.count_nonzero(np.diff(self.seen.indptr))
        novelty = float("nan")
        if shown.size:
            novelty = float(-np.log2(self.raters[shown] / n_users).mean())
        return {
            "coverage": float(np.unique(shown).size / self.raters.size),
            "novelty": novelty,
        }


def _above(mean: float, kind: type[np.floating] = np.float32) -> float:
    """Return the smallest rating of a type above a mean: float32 is coarser than the mean.

    >>> bool(_above(3.0) > np.float32(3.0)), bool(_above(3.1) <= np.float32(3.2))
    (True, True)
    """
    nearest = kind(mean)
    return float(nearest if nearest > mean else np.nextafter(nearest, kind(np.inf)))


def scorer(model: object) -> Scorer:
    """Return what ranks items by a model: its ``scores``, else ``predict``, or the model itself."""
    if hasattr(model, "scores"):
        found: Scorer = model.scores
        return found
    if not hasattr(model, "predict"):
        if callable(model):
            return model
        raise ParameterError(
            f"{model!r} has neither scores nor predict, and is no function", value=model
        )
    predict = model.predict

    def scores(users: AnyArray, items: AnyArray) -> Array:
        pairs = np.repeat(users, len(items)), np.tile(items, len(users))
        return np.asarray(predict(*pairs), np.float64).reshape(len(users), len(items))

    return scores


def _blocks(
    score: Scorer, catalogue: Catalogue, judged: Int64Array, progress: Progress | None
) -> Iterator[tuple[slice, Array]]:
    """Yield writable matrices of scores of the users judged, some users at a time."""
    users, items = catalogue.learnt.users.ids[judged], catalogue.ids
    step = max(1, BLOCK_BYTES // (8 * items.size))
    for start in range(0, judged.size, step):
        part = slice(start, min(start + step, judged.size))
        yield part, checked_scores(score, users[part], items)
        if progress is not None:
            progress(part.stop, judged.size)


def checked_scores(score: Scorer, users: AnyArray, items: AnyArray) -> Float64Array:
    """Return a writable matrix of scores, checked for its shape and for numbers."""
    scores = np.array(score(users, items), np.float64)
    if scores.shape != (len(users), len(items)):
        raise DataError(
            f"scores are a table of {scores.shape}; expected a row for each of {len(users)} users "
            f"and a column for each of {len(items)} items",
            value=scores.shape,
        )
    if np.isnan(scores).any():
        raise DataError("a score is not a number", value=float("nan"))
    return scores


def _rank_metrics(hits: BoolArray, wanted: Int64Array, n: int) -> dict[str, float]:
    """Return the means over users of the metrics of rank."""
    width = hits.shape[1]
    discount = 1.0 / np.log2(np.arange(width) + 2.0)
    reachable = np.minimum(wanted, width)
    best = np.append(0.0, np.cumsum(discount))[reachable]
    found = hits.sum(axis=1)
    precision_at = np.cumsum(hits, axis=1) / np.arange(1, width + 1)
    first = np.where(found > 0, 1.0 / (1.0 + hits.argmax(axis=1)), 0.0)
    return {
        "ndcg": float(np.mean(hits @ discount / best)),
        "recall": float(np.mean(found / wanted)),
        "precision": float(np.mean(found / n)),
        "average_precision": float(np.mean((precision_at * hits).sum(axis=1) / reachable)),
        "reciprocal_rank": float(np.mean(first)),
        "hit_rate": float(np.mean(found > 0)),
    }
