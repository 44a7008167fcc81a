"""The best items for users: scored by matrix products, chosen by partial sorting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hemf._checks import check_rng
from hemf._typing import AnyArray, BoolArray, Float64Array, IdsLike, Int64Array
from hemf.engines.threads import one_blas_thread
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.model import rows as predictive
from hemf.model.rows import Moments
from hemf.model.state import FittedModel

STRATEGIES = ("mean", "ucb", "thompson")
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
    left, right = model.moments("user", with_unknown=asked.any_unknown), _item_moments(model)
    allowed = _allowed(model, items)
    ids = model.record.items.ids[: model.n_items]
    width = min(n, ids.size if allowed is None else int(allowed.sum()))
    found = np.full((rows.size, width), None, dtype=object)
    scores = np.full((rows.size, width), np.nan)
    step = max(1, BLOCK_BYTES // (16 * max(1, ids.size)))
    with one_blas_thread():
        for start in range(0, rows.size, step):
            block = asked.places[start : start + step]
            values = _scores(model, left, right, block, ranking)
            if allowed is not None:
                values[:, ~allowed] = -np.inf
            if exclude_seen:
                _exclude_seen(model, rows[start : start + step], values)
            best = predictive.best_columns(values, width)
            there = best.columns >= 0
            part = slice(start, start + block.size)
            found[part][there] = ids[best.columns[there]]
            shown = best.scores
            if strategy == "mean" and model.rating_range is not None:
                shown = np.clip(shown, *model.rating_range)
            scores[part] = np.where(there, shown, np.nan)
    answer: tuple[Any, ...] = found, scores, asked.rows >= 0
    if alone:
        there = ~np.isnan(scores[0])
        answer = _plain(found[0][there], ids), scores[0][there], asked.rows[0] >= 0
    return answer if return_known else answer[:2]


class Ranking(NamedTuple):
    """Criterion by which items are ranked."""

    strategy: str
    exploration: float
    rng: np.random.Generator


def scores(model: FittedModel, users: IdsLike, items: IdsLike, ranking: Ranking) -> Float64Array:
    """See `hemf.HeMF.scores`."""
    user_ids, item_ids = model.ids("user", users)[0], model.ids("item", items)[0]
    rows, columns = model.find("user", user_ids), model.find("item", item_ids)
    model.warn_of_unknown(user=(user_ids, rows.places), item=(item_ids, columns.places))
    left = model.moments("user", with_unknown=rows.any_unknown)
    right = model.moments("item", with_unknown=columns.any_unknown)
    if not np.array_equal(columns.places, np.arange(right.mean.shape[0])):
        right = Moments(right.mean[columns.places], right.second[columns.places])
    with one_blas_thread():
        return _scores(model, left, right, rows.places, ranking)


def _item_moments(model: FittedModel) -> Moments:
    """Moments of all items; those without a rating are strangers, as in `predict`."""
    if model.sides["item"].regression is not None:
        return model.moments("item")  # every item has features
    rated = model.rated("item", np.arange(model.n_items))
    if (rated >= 0).all():
        return model.moments("item")
    extended = model.moments("item", with_unknown=True)
    return Moments(extended.mean[rated], extended.second[rated])


def _scores(
    model: FittedModel, left: Moments, right: Moments, rows: Int64Array, ranking: Ranking
) -> Float64Array:
    strategy = ranking.strategy
    if strategy == "thompson":
        values = predictive.draw_scores(left, right, rows, ranking.rng)
    else:
        values, variance = predictive.score_rows(left, right, rows, variance=strategy == "ucb")
        if strategy == "ucb":
            values = values + ranking.exploration * np.sqrt(variance)
    scores = model.mean + model.scale * values.astype(np.float64)
    if strategy == "mean" and model.rating_range is not None:
        # Many items can reach the end of the range; they keep their order by a hair.
        low, high = model.rating_range
        inside = np.clip(scores, low, high)
        scores = inside + 1e-9 * (scores - inside)
    return scores


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


def _exclude_seen(model: FittedModel, rows: Int64Array, values: Float64Array) -> None:
    for position, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        values[position, model.state.row_ratings("user", row)[0]] = -np.inf
        if model.held_out is not None and row < model.held_out.n_users:
            values[position, model.held_out.by_user.row(row)[0]] = -np.inf


def _plain(found: AnyArray, ids: AnyArray) -> AnyArray:
    """Give integer ids back as integers."""
    return found.astype(ids.dtype) if ids.dtype != object else found
