"""The best items for users: scored by matrix products, chosen by partial sorting."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any

import numpy as np

from hemf._checks import check_rng, one_blas_thread
from hemf._typing import AnyArray, BoolArray, Float64Array, IdsLike, Int64Array
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.model.state import FittedModel
from hemf.queries.diversity import CANDIDATES, diversified
from hemf.queries.lists import BestLists
from hemf.queries.scorers import Ranking, scorer_of
from hemf.queries.similar import kind_of, tastes_of

EXAMPLES = 10  # items
BLOCK_BYTES = 1 << 27  # of scores that are in memory at once


def recommend(
    model: FittedModel,
    user: IdsLike,
    n: int,
    *,
    exclude_seen: bool,
    strategy: str,
    exploration: float,
    items: IdsLike,
    diversity: float,
    return_known: bool,
    rng: int | np.random.Generator | None,
) -> tuple[Any, ...]:
    """See `hemf.HeMF.recommend`."""
    if exclude_seen and not model.state.is_complete:
        warn_caller(
            "not all ratings are kept (history is not full): items that a user rated long ago may "
            "be recommended again; exclude_seen=False says that you know",
            HistoryWarning,
        )
    ranking = Ranking(strategy, exploration, check_rng(rng))
    user_ids, alone = model.ids("user", user)
    rows, asked = model.rows("user", user_ids), model.find("user", user_ids)
    model.warn_of_unknown(user=(user_ids, asked.places), expected=return_known)
    scorer = scorer_of(model, ranking, any_unknown=asked.any_unknown)
    allowed = _allowed(model, items)
    ids = model.record.items.ids[: model.n_items]
    n_allowed = ids.size if allowed is None else int(allowed.sum())
    lists = BestLists(ids, rows.size, min(n, n_allowed))
    size = min(CANDIDATES * n if diversity else n, n_allowed)
    units = tastes_of(model, "item", kind_of(model, None)).units if diversity else None
    step = max(1, BLOCK_BYTES // (16 * max(1, ids.size)))
    with one_blas_thread():
        for start in range(0, rows.size, step):
            part = slice(start, start + step)
            excluded = np.zeros((rows[part].size, ids.size), dtype=bool)
            if allowed is not None:
                excluded[:, ~allowed] = True
            if exclude_seen:
                _exclude_seen(model, rows[part], excluded)
            best = scorer.best(asked.places[part], size, excluded)
            if units is not None:
                best = diversified(best, units, n, diversity)
            lists.put(part, best)
    is_known = asked.rows >= 0
    answer = (*lists.first(), is_known[0]) if alone else (lists.ids, lists.scores, is_known)
    return answer if return_known else answer[:2]


def example(model: FittedModel, user: Hashable) -> tuple[Hashable, AnyArray]:
    """Return a user, by default the one with most ratings, and the items recommended to them."""
    if user is None:
        user = model.record.users.ids[int(np.argmax(model.state.counts["user"]))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)  # who asks says what is missing
        items, _ = recommend(
            model,
            user,
            EXAMPLES,
            exclude_seen=True,
            strategy="mean",
            exploration=1.0,
            items=None,
            diversity=0.0,
            return_known=False,
            rng=None,
        )
    return user, items


def scores(model: FittedModel, users: IdsLike, items: IdsLike, ranking: Ranking) -> Float64Array:
    """See `hemf.HeMF.scores`."""
    user_ids, item_ids = model.ids("user", users)[0], model.ids("item", items)[0]
    rows, columns = model.find("user", user_ids), model.find("item", item_ids)
    model.warn_of_unknown(user=(user_ids, rows.places), item=(item_ids, columns.places))
    scorer = scorer_of(model, ranking, any_unknown=rows.any_unknown, items=columns.places)
    with one_blas_thread():
        return scorer.all(rows.places)


def _allowed(model: FittedModel, items: IdsLike) -> BoolArray | None:
    if items is None:
        return None
    item_ids, _ = model.ids("item", items)
    rows = model.rows("item", item_ids)
    model.reject_unknown("item", item_ids, rows < 0)
    if not rows.size:
        raise DataError("items is empty: there is nothing to choose from")
    allowed = np.zeros(model.n_items, dtype=bool)
    allowed[rows] = True
    return allowed


def _exclude_seen(model: FittedModel, rows: Int64Array, excluded: BoolArray) -> None:
    for position, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        excluded[position, model.state.row_ratings("user", row)[0]] = True
        if model.held_out is not None and row < model.held_out.n_users:
            excluded[position, model.held_out.by_user.row(row)[0]] = True
