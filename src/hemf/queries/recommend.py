"""The best items for users: scored by matrix products, chosen by partial sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf._checks import check_bool, check_choice, check_int, check_number, check_rng
from hemf.batch.fit import one_blas_thread
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.model import predictive
from hemf.model.side import Moments

if TYPE_CHECKING:
    from hemf.estimator import HeMF

STRATEGIES = ("mean", "ucb", "thompson")
BLOCK_BYTES = 1 << 27  # of scores that are in memory at once


def recommend(
    model: HeMF,
    user: Any,
    n: int,
    *,
    exclude_seen: bool,
    strategy: str,
    exploration: float,
    items: Any,
    return_known: bool,
    rng: int | np.random.Generator | None,
) -> tuple[Any, ...]:
    """See `hemf.HeMF.recommend`."""
    n = check_int("n", n, low=1)
    check_choice("strategy", strategy, STRATEGIES)
    exploration = check_number("exploration", exploration, low=0.0)
    exclude_seen = check_bool("exclude_seen", exclude_seen)
    return_known = check_bool("return_known", return_known)
    model._fitted()
    if exclude_seen and model._learner is not None and not model._learner.state.is_complete:
        warn_caller(
            "not all ratings are kept (history is not full): items that a user rated long ago may "
            "be recommended again; exclude_seen=False says that you know",
            HistoryWarning,
        )
    draws = check_rng(rng)
    user_ids, alone = model._ids("user", user)
    rows = model._rows("user", user_ids)
    learnt, places = model._known_and_placed("user", user_ids)
    model._warn_of_unknown(user=(user_ids, places), expected=return_known)
    left = model._moments("user", with_stranger=bool((learnt < 0).any()))
    right = _item_moments(model)
    allowed = _allowed(model, items)
    ids = model._vocabularies()[1].ids[: model.n_items_]
    width = min(n, ids.size if allowed is None else int(allowed.sum()))
    found = np.full((rows.size, width), None, dtype=object)
    scores = np.full((rows.size, width), np.nan)
    step = max(1, BLOCK_BYTES // (16 * max(1, ids.size)))
    with one_blas_thread():
        for start in range(0, rows.size, step):
            block = places[start : start + step]
            values = _scores(model, left, right, block, strategy, exploration, draws)
            if allowed is not None:
                values[:, ~allowed] = -np.inf
            if exclude_seen:
                _forget_seen(model, rows[start : start + step], values)
            best = predictive.best_columns(values, width)
            there = best.columns >= 0
            part = slice(start, start + block.size)
            found[part][there] = ids[best.columns[there]]
            shown = best.scores
            if strategy == "mean" and model.rating_range_ is not None:
                shown = np.clip(shown, *model.rating_range_)
            scores[part] = np.where(there, shown, np.nan)
    answer: tuple[Any, ...] = found, scores, learnt >= 0
    if alone:
        there = ~np.isnan(scores[0])
        answer = _plain(found[0][there], ids), scores[0][there], learnt[0] >= 0
    return answer if return_known else answer[:2]


def scores(
    model: HeMF,
    users: Any,
    items: Any,
    strategy: str,
    exploration: float,
    rng: int | np.random.Generator | None,
) -> npt.NDArray[np.float64]:
    """See `hemf.HeMF.scores`."""
    check_choice("strategy", strategy, STRATEGIES)
    exploration = check_number("exploration", exploration, low=0.0)
    model._fitted()
    user_ids, item_ids = model._ids("user", users)[0], model._ids("item", items)[0]
    learnt, rows = model._known_and_placed("user", user_ids)
    item_learnt, columns = model._known_and_placed("item", item_ids)
    model._warn_of_unknown(user=(user_ids, rows), item=(item_ids, columns))
    left = model._moments("user", with_stranger=bool((learnt < 0).any()))
    right = model._moments("item", with_stranger=bool((item_learnt < 0).any()))
    if not np.array_equal(columns, np.arange(right.mean.shape[0])):
        right = Moments(right.mean[columns], right.second[columns])
    with one_blas_thread():
        return _scores(model, left, right, rows, strategy, exploration, check_rng(rng))


def _item_moments(model: HeMF) -> Moments:
    """Moments of all items; those that nothing is known of are strangers, as in `predict`."""
    if model._fitted().sides["item"].regression is not None:
        return model._moments("item")  # features are known of every one
    learnt = model._learnt("item", np.arange(model.n_items_))
    if (learnt >= 0).all():
        return model._moments("item")
    extended = model._moments("item", with_stranger=True)
    return Moments(extended.mean[learnt], extended.second[learnt])


def _scores(
    model: HeMF,
    left: Moments,
    right: Moments,
    rows: npt.NDArray[np.int64],
    strategy: str,
    exploration: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    if strategy == "thompson":
        values = predictive.draw_scores(left, right, rows, rng)
    else:
        values, variance = predictive.score_rows(left, right, rows, variance=strategy == "ucb")
        if strategy == "ucb":
            values = values + exploration * np.sqrt(variance)
    scores = model.global_mean_ + model.rating_scale_ * values.astype(np.float64)
    if strategy == "mean" and model.rating_range_ is not None:
        # Many items can reach the end of the range; they keep their order by a hair.
        low, high = model.rating_range_
        inside = np.clip(scores, low, high)
        scores = inside + 1e-9 * (scores - inside)
    return scores


def _allowed(model: HeMF, items: Any) -> npt.NDArray[np.bool_] | None:
    if items is None:
        return None
    item_ids, _ = model._ids("item", items)
    rows = model._rows("item", item_ids)
    model._refuse("item", item_ids, rows < 0)
    if not rows.size:
        raise DataError("items is empty: there is nothing to choose from")
    allowed = np.zeros(model.n_items_, dtype=bool)
    allowed[rows] = True
    return allowed


def _forget_seen(model: HeMF, rows: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
    state, held_out = model._fitted(), model.held_out_
    for position, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        values[position, state.row_ratings("user", row)[0]] = -np.inf
        if held_out is not None and row < held_out.n_users:
            values[position, held_out.by_user.row(row)[0]] = -np.inf


def _plain(found: npt.NDArray[Any], ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give integer ids back as integers."""
    return found.astype(ids.dtype) if ids.dtype != object else found
