"""Ratings that a model predicts: means, standard deviations, distributions, levels of the scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hemf._typing import AnyArray, Float64Array, IdsLike, Int64Array
from hemf.data.ratings import timed_pairs_from_any
from hemf.data.vocabulary import pair_up
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.evaluation import distribution
from hemf.model.rows import matched_freedom, pair_moments
from hemf.model.state import FittedModel

TAIL_SAMPLE = 20_000  # ratings that the tail is estimated from
MIN_FREEDOM = 5.0  # the fourth moment needs more than 4, and centres become too narrow
MAX_FREEDOM = 200.0  # more cannot be distinguished from a normal distribution


class Wanted(NamedTuple):
    """Options of `hemf.HeMF.predict`."""

    unknown: str = "prior"
    std: bool = True
    noise: bool = True
    known: bool = False


MEAN_AND_STD = Wanted()


def predict(
    model: FittedModel,
    users: IdsLike,
    items: IdsLike,
    timestamps: IdsLike = None,
    wanted: Wanted = MEAN_AND_STD,
) -> Any:
    """See `hemf.HeMF.predict` (docs/model.md#predictive-variance)."""
    user_ids, item_ids, alone, timestamps = _pairs(model, users, items, timestamps)
    left, right = model.find("user", user_ids), model.find("item", item_ids)
    if wanted.unknown == "error":
        model.reject_unknown("user", user_ids, left.rows < 0)
        model.reject_unknown("item", item_ids, right.rows < 0)
    new_users, new_items = left.any_unknown, right.any_unknown
    if new_users or new_items:
        asked = {"user": (user_ids, left.places), "item": (item_ids, right.places)}
        model.warn_of_unknown(expected=wanted.known, **asked)
    mean, variance = pair_moments(
        model.moments("user", with_unknown=new_users),
        model.moments("item", with_unknown=new_items),
        left.places,
        right.places,
        variance=wanted.std,
    )
    mood, mood_variance = model.mood(left.rows, timestamps)
    mean += mood
    answer: list[Any] = [model.to_rating(mean)]
    if wanted.std:
        if wanted.noise:
            variance = variance + model.noise(left.rows, right.rows) + mood_variance
        answer.append(np.sqrt(variance) * model.scale)
    if wanted.known:
        answer.append((left.rows >= 0) & (right.rows >= 0))
    if alone:
        answer = [values[0] for values in answer]
    return answer[0] if len(answer) == 1 else tuple(answer)


def predict_distribution(
    model: FittedModel, users: IdsLike, items: IdsLike, timestamps: IdsLike
) -> distribution.Predictive:
    """See `hemf.HeMF.predict_distribution`."""
    user_ids, item_ids, _, times = _pairs(model, users, items, timestamps)
    mean, std = predict(model, user_ids, item_ids, times)
    return distribution.Predictive(mean, std, _freedom(model, user_ids, item_ids, std))


def predict_proba(
    model: FittedModel, users: IdsLike, items: IdsLike, timestamps: IdsLike, levels: IdsLike
) -> Float64Array:
    """See `hemf.HeMF.predict_proba`."""
    columns = _scale(model) if levels is None else distribution.level_values(levels)
    return predict_distribution(model, users, items, timestamps).probabilities(columns)


def levels(model: FittedModel) -> Float64Array:
    """Return the distinct ratings that are kept, ascending."""
    if "levels" not in model.derived:
        seen = [model.ratings.by_user.values]
        if model.held_out is not None:
            seen.append(model.held_out.by_user.values)
        model.derived["levels"] = distribution.distinct_levels(np.concatenate(seen))
    found: Float64Array = model.derived["levels"]
    return found.copy()


def tail_freedom(model: FittedModel) -> float:
    """See `hemf.HeMF.tail_freedom_`."""
    if "freedom" not in model.derived:
        model.derived["freedom"] = _fitted_tail(model)
    return float(model.derived["freedom"])


def _fitted_tail(model: FittedModel) -> float:
    kept = model.ratings
    users, items, actual = kept.triples()
    step = max(1, -(-actual.size // TAIL_SAMPLE))
    users, items, actual = users[::step], items[::step], actual[::step]
    if not actual.size:
        return float("inf")
    times = None if kept.timestamps is None else kept.timestamps[::step]
    pairs = kept.users.ids[users], kept.items.ids[items]
    mean, std = predict(model, *pairs, times)
    return distribution.tail_freedom((actual - mean) / std, least=MIN_FREEDOM, most=MAX_FREEDOM)


def _pairs(
    model: FittedModel, users: IdsLike, items: IdsLike, timestamps: IdsLike
) -> tuple[AnyArray, AnyArray, bool, IdsLike]:
    """Return ids of users and items, equally many, whether it was a single pair, and times."""
    if items is None:
        users, items, times = timed_pairs_from_any(
            users, timed=model.has_moods, users=model.record.users, items=model.record.items
        )
        timestamps = times if timestamps is None else timestamps
    return *pair_up(model.ids("user", users), model.ids("item", items)), timestamps


def _freedom(
    model: FittedModel, user_ids: IdsLike, item_ids: IdsLike, std: Float64Array
) -> Float64Array:
    """Degrees of freedom of each pair's distribution."""
    rows: dict[str, Int64Array] = {
        "user": model.rated("user", model.rows("user", user_ids)),
        "item": model.rated("item", model.rows("item", item_ids)),
    }
    noise = model.noise(rows["user"], rows["item"]) * model.scale**2
    freedom = tail_freedom(model)
    spread = np.full(std.size, 1.0 if np.isinf(freedom) else (freedom - 2) / (freedom - 4))
    for side, own in rows.items():
        scales = model.sides[side].noise_scales
        if scales is not None:
            spread *= scales.inverse_spread[own]
    return matched_freedom(noise / std**2, spread)


def _scale(model: FittedModel) -> Float64Array:
    """Return the levels of the rating scale; DataError if there is none."""
    found = levels(model)
    if not found.size:
        raise DataError(
            "the model has kept no ratings to see the levels of the scale in; give levels, "
            "such as levels=[1, 2, 3, 4, 5]"
        )
    if not distribution.is_scale(found):
        raise DataError(
            f"the ratings learnt have {found.size:,} different values: they are measured "
            "rather than on a scale; give the levels that you want the probabilities of, such "
            "as levels=[1, 2, 3, 4, 5]",
            value=int(found.size),
        )
    if not model.keeps_all_ratings:
        warn_caller(
            f"not all ratings are kept (history is not full): the levels are the {found.size} "
            "of those that are; give levels to be sure",
            HistoryWarning,
        )
    return found
