"""How well a model ranks: what it would recommend, against what people went on to like.

Users are taken in blocks: scores of all items for a block at once, what they have rated in
training masked, the best picked by partial sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf._typing import Float64Array
from hemf.data.ratings import Ratings, Sparse
from hemf.errors import DataError, ParameterError

Rows = NDArray[np.int64]
Scorer = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.floating]]
"""From ids of users and of items to a table of scores."""
Progress = Callable[[int, int], None]
"""Told how many users are done, and of how many."""

BLOCK_BYTES = 1 << 26  # of scores that are in memory at once; a few copies of them are made


@dataclass(frozen=True)
class RankingMetrics:
    """What `ranking_metrics` found: means over users, and over all that was recommended."""

    n: int
    """Items recommended to each user."""
    users: int
    """Users judged: those with relevant ratings in test, and any in training."""
    relevant: float
    """Ratings of at least this are relevant."""
    ndcg: float
    """Discounted gain of relevant items by rank, of the most there could be."""
    recall: float
    """Share of a user's relevant items that are among the n."""
    precision: float
    """Share of the n that are relevant."""
    average_precision: float
    """Mean of the precision at each relevant item's rank, 0 for those not among the n (MAP)."""
    reciprocal_rank: float
    """One over the rank of the first relevant item, 0 without any (MRR)."""
    hit_rate: float
    """Share of the users with a relevant item among the n."""
    coverage: float
    """Share of the items in training that are recommended to anybody."""
    novelty: float
    """Mean of -log2(share of the users who rated the item in training), in bits."""
    left_out: int
    """Relevant ratings in test that no ranking can be judged by: user or item not in training."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures in JSON's types, their names with the N that they are at.

        >>> figures = RankingMetrics(10, 3, 4.0, 0.5, *[0.25] * 5, 0.1, 8.0, 0).to_dict()
        >>> figures["ndcg@10"], figures["ranked_users"]
        (0.5, 3)
        """
        plain = asdict(self)
        n, users, relevant, left = (
            plain.pop(name) for name in ("n", "users", "relevant", "left_out")
        )
        return {
            **{f"{name}@{n}": value for name, value in plain.items()},
            "relevant": relevant,
            "ranked_users": users,
            "ranking_left_out": left,
        }


def ranking_metrics(
    model: Any,
    train: Any,
    test: Any,
    n: int = 10,
    *,
    relevant: float | None = None,
    progress: Progress | None = None,
) -> RankingMetrics:
    """Rank all items that users have not rated in training; judge the best n by ratings in test.

    ``model`` is one with ``scores`` or ``predict``, or a function from ids of users and ids of
    items to a table of scores. ``train`` and ``test`` are ratings, as `Ratings.from_any` reads
    them. A rating in test of at least ``relevant`` is relevant, by default of more than the mean
    in training; items without a rating in test count as not relevant. Equal scores are ranked in
    the order of the items in training.

    >>> train = [("ann", "tea", 5), ("bob", "tea", 4), ("bob", "milk", 2), ("eve", "ale", 5)]
    >>> by_length = lambda users, items: np.tile([len(item) for item in items], (len(users), 1))
    >>> found = ranking_metrics(by_length, train, [("ann", "ale", 5), ("eve", "milk", 5)], n=1)
    >>> found.hit_rate, found.users, round(found.coverage, 2)
    (0.5, 2, 0.33)
    """
    learnt, withheld = Ratings.from_any(train), Ratings.from_any(test)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ParameterError(f"n is {n!r}; it must be a whole number of 1 or more", value=n)
    kind = learnt.by_user.values.dtype.type
    least = _above(learnt.mean, kind) if relevant is None else relevant
    if not isinstance(least, int | float | np.number) or not np.isfinite(least):
        raise ParameterError(f"relevant is {relevant!r}; it must be a number", value=relevant)
    if not learnt.n_ratings:
        raise DataError("there are no ratings in train to have learnt from")
    catalogue = np.flatnonzero(np.diff(learnt.by_item.indptr))  # those without rating are unknown
    column = np.full(learnt.n_items + 1, -1)  # the last for items that are not in training
    column[catalogue] = np.arange(catalogue.size)
    wanted, left_out = _wanted(learnt, withheld, float(least), column)
    judged = np.flatnonzero(np.diff(wanted.indptr))
    if not judged.size:
        raise DataError(
            f"no user and item of training have a rating of {least:g} or more in test; lower "
            "relevant, or give other ratings",
            value=float(least),
        )
    width = min(int(n), catalogue.size)
    top = np.empty((judged.size, width), np.int64)
    hits = np.empty((judged.size, width), bool)
    for part, scores in _blocks(_scorer(model), learnt, judged, catalogue, progress):
        rows = judged[part]
        at, seen = _entries(learnt.by_user, rows)
        scores[at, column[seen]] = -np.inf
        best = top_columns(scores, width)
        top[part] = best
        is_wanted = np.zeros(scores.shape, bool)
        is_wanted[_entries(wanted, rows)] = True
        hits[part] = np.take_along_axis(is_wanted, np.maximum(best, 0), axis=1) & (best >= 0)
    raters = np.diff(learnt.by_item.indptr)[catalogue]
    n_users = int((np.diff(learnt.by_user.indptr) > 0).sum())
    shown = top[top >= 0]
    return RankingMetrics(
        n=int(n),
        users=int(judged.size),
        relevant=float(least),
        **_rank_figures(hits, np.diff(wanted.indptr)[judged], int(n)),
        coverage=float(np.unique(shown).size / catalogue.size),
        novelty=float(-np.log2(raters[shown] / n_users).mean()) if shown.size else float("nan"),
        left_out=left_out,
    )


def top_columns(scores: NDArray[np.floating], n: int) -> Rows:
    """Columns of the n highest scores of every row, best first; equal ones in their order.

    Columns at -inf are never chosen: -1 stands where there are no others.

    >>> top_columns(np.array([[1.0, 3.0, 3.0, 3.0], [-np.inf, 2.0, -np.inf, -np.inf]]), 2)
    array([[ 1,  2],
           [ 1, -1]])
    """
    n = min(n, scores.shape[1])
    chosen = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    last = np.take_along_axis(scores, chosen, axis=1).min(axis=1, keepdims=True)
    unsure = np.flatnonzero((scores >= last).sum(axis=1) > n)  # more are equal than there is room
    if unsure.size:
        chosen[unsure] = np.argsort(-scores[unsure], axis=1, kind="stable")[:, :n]
    values = np.take_along_axis(scores, chosen, axis=1)
    order = np.lexsort((chosen, -values), axis=1)
    best = np.take_along_axis(values, order, axis=1)
    return np.where(np.isneginf(best), -1, np.take_along_axis(chosen, order, axis=1))


def _above(mean: float, kind: type[np.floating[Any]] = np.float32) -> float:
    """Return the least rating of a type above a mean: float32 is coarser than the mean.

    >>> bool(_above(3.0) > np.float32(3.0)), bool(_above(3.1) <= np.float32(3.2))
    (True, True)
    """
    nearest = kind(mean)
    return float(nearest if nearest > mean else np.nextafter(nearest, kind(np.inf)))


def _wanted(learnt: Ratings, withheld: Ratings, least: float, column: Rows) -> tuple[Sparse, int]:
    """Relevant items, as columns of the catalogue, of each user in training; and what is left out.

    A pair that is in training too is no recommendation, and is left out.
    """
    users, items, values = withheld.triples()
    liked = values >= values.dtype.type(least)  # as ratings are kept: in float32 3.3 is less
    user_rows = learnt.users.rows(withheld.users.ids)[users[liked]]
    item_rows = learnt.items.rows(withheld.items.ids)[items[liked]]
    columns = column[item_rows]  # -1 is the last
    active = np.append(np.diff(learnt.by_user.indptr) > 0, False)
    there = active[user_rows] & (columns >= 0)
    user_rows, item_rows, columns = user_rows[there], item_rows[there], columns[there]
    order = np.lexsort((columns, user_rows))
    pairs = user_rows[order] * learnt.n_items + item_rows[order]
    of_user = np.repeat(np.arange(learnt.n_users), np.diff(learnt.by_user.indptr))
    known = of_user * learnt.n_items + learnt.by_user.indices
    new = ~np.isin(pairs, known)
    indptr = np.zeros(learnt.n_users + 1, np.int64)
    np.cumsum(np.bincount(user_rows[order][new], minlength=learnt.n_users), out=indptr[1:])
    kept = columns[order][new].astype(np.int32)
    table = Sparse(indptr, kept, np.ones(kept.size, np.float32))
    return table, int(liked.sum()) - kept.size


def _scorer(model: Any) -> Scorer:
    if hasattr(model, "scores"):
        found: Scorer = model.scores
        return found
    if not hasattr(model, "predict"):
        if callable(model):
            function: Scorer = model
            return function
        raise ParameterError(
            f"{model!r} has neither scores nor predict, and is no function", value=model
        )

    def predicted(users: NDArray[Any], items: NDArray[Any]) -> NDArray[np.floating]:
        pairs = np.repeat(users, len(items)), np.tile(items, len(users))
        return np.asarray(model.predict(*pairs), np.float64).reshape(len(users), len(items))

    return predicted


def _blocks(
    scorer: Scorer, learnt: Ratings, judged: Rows, catalogue: Rows, progress: Progress | None
) -> Iterator[tuple[slice, Float64Array]]:
    """Go through scores of the users judged, some at a time; the tables may be written to."""
    items = learnt.items.ids[catalogue]
    step = max(1, BLOCK_BYTES // (8 * items.size))
    for start in range(0, judged.size, step):
        part = slice(start, min(start + step, judged.size))
        scores = np.array(scorer(learnt.users.ids[judged[part]], items), np.float64)
        if scores.shape != (part.stop - part.start, items.size):
            raise DataError(
                f"scores are a table of {scores.shape}; a row for each of "
                f"{part.stop - part.start} users and a column for each of {items.size} items was "
                "expected",
                value=scores.shape,
            )
        if np.isnan(scores).any():
            raise DataError("a score is not a number", value=float("nan"))
        yield part, scores
        if progress is not None:
            progress(part.stop, judged.size)


def _entries(table: Sparse, rows: Rows) -> tuple[Rows, NDArray[np.int32]]:
    """Position among ``rows`` and column of all entries of these rows, one after the other."""
    sizes = np.diff(table.indptr)[rows]
    ends = np.cumsum(sizes)
    places = np.arange(sizes.sum()) + np.repeat(table.indptr[rows] - ends + sizes, sizes)
    return np.repeat(np.arange(rows.size), sizes), table.indices[places]


def _rank_figures(hits: NDArray[np.bool_], wanted: Rows, n: int) -> dict[str, float]:
    """Return the means over users of what depends on the ranks of their relevant items."""
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
