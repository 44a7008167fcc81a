"""Ratings as a fit takes them and is judged on: split, standardised, or beside predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError, DataWarning, OutlierWarning, warn_caller
from hemf.ratings import Ratings, Sparse, pairs_from_any
from hemf.reading.readers import read_columns

if TYPE_CHECKING:
    from hemf.engines.threads import Rows
    from hemf.inference.batch import BatchState

FAR = 10.0
"""Times as wide as that of all others, the range that a single rating makes an outlier with."""
MIN_RATINGS = 20

Floats = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]


def standardised(ratings: Ratings, dtype: type[np.floating]) -> dict[str, Rows]:
    """Return the ratings of each side with their mean at 0 and their scale 1.

    >>> rows = standardised(Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)]), np.float32)
    >>> rows["item"].values.tolist()
    [1.0, -1.0]
    """
    from hemf.engines.threads import Rows

    def side(table: Sparse) -> Rows:
        # In float64: of large ratings that differ little, float32 would leave few digits.
        values = table.values.astype(np.float64)
        values -= ratings.mean
        values /= ratings.scale
        return Rows(table.indptr, table.indices, values.astype(dtype, copy=False))

    return {"user": side(ratings.by_user), "item": side(ratings.by_item)}


def warn_of_equal(ratings: Ratings) -> None:
    """Warn where all ratings are equal, as clicks are: they do not tell what is liked more."""
    if ratings.n_ratings > 1 and ratings.minimum == ratings.maximum:
        warn_caller(
            f"all {ratings.n_ratings:,} ratings are {ratings.minimum:g}, so the model can only "
            "predict that everywhere. If these are clicks or purchases, add pairs that were not "
            "chosen, rated 0, or give ratings that differ, such as counts or durations",
            DataWarning,
        )


def warn_of_outlier(ratings: Ratings) -> None:
    """Warn of one rating far outside all others, which is likely to be a typing error."""
    values = ratings.by_user.values
    if values.size < MIN_RATINGS:
        return
    ends = np.partition(values, [0, 1, values.size - 2, values.size - 1])
    low, second, last, high = (float(ends[k]) for k in (0, 1, -2, -1))
    if high - low > FAR * (last - second) > 0.0:
        value, others = (high, (low, last)) if high - last > second - low else (low, (second, high))
        warn_caller(
            f"one rating is {value:g}, and all others are from {others[0]:g} to {others[1]:g}; if "
            "it is a mistake, correct it and fit again, and declare rating_range to have such "
            "ratings refused",
            OutlierWarning,
        )


def hold_out(
    data: Ratings, fraction: float, rng: np.random.Generator
) -> tuple[Ratings, Ratings, Callable[[BatchState], float]]:
    """Split the ratings; also return a function that measures a state on the second part.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> hold_out(data, 0.5, np.random.default_rng(0))[:2]
    (Ratings(2 users, 1 items, 1 ratings), Ratings(2 users, 1 items, 1 ratings))
    """
    from hemf.evaluation.splits import random_split
    from hemf.model.predictive import pair_moments

    if data.n_ratings < 2:
        raise DataError("a single rating cannot be split; set validation_fraction=0")
    kept, held = random_split(data.n_ratings, fraction, rng=rng)
    train = data.select(kept)
    user_rows, item_rows, values = data.triples()
    users, items = user_rows[held].astype(np.int64), item_rows[held].astype(np.int64)
    ratings, times = values[held], None if data.timestamps is None else data.timestamps[held]

    def error(state: BatchState) -> float:
        left, right = state.sides["user"].moments, state.sides["item"].moments
        mean, _ = pair_moments(left, right, users, items, variance=False)
        if state.moods is not None and times is not None:
            mean += state.moods.at(users, times)[0]
        predicted = train.mean + train.scale * mean
        return float(np.sqrt(np.mean((predicted - ratings) ** 2)))

    return train, data.select(held), error


def error_on(
    ratings: Any, train: Ratings, limits: tuple[float, float] | None
) -> Callable[[BatchState], float]:
    """Return a function that measures a state's RMSE on ratings it does not learn from.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> callable(error_on([("bob", "milk", 4)], data, (3.0, 5.0)))
    True
    """
    from hemf.model.predictive import pair_moments, with_stranger

    users, items, actual, times = validation_pairs(ratings, train)

    def rows_of(ids: Any, known: Any, table: Sparse) -> tuple[npt.NDArray[np.int64], Any]:
        rows = known.rows(ids)
        unrated = np.diff(table.indptr, append=table.indptr[-1])[rows] == 0
        return rows.astype(np.int64), (rows < 0) | unrated

    found = {
        "user": rows_of(users, train.users, train.by_user),
        "item": rows_of(items, train.items, train.by_item),
    }

    def error(state: BatchState) -> float:
        moments, rows = {}, {}
        for name, (own, unrated) in found.items():
            side = state.sides[name]
            # -1 is the stranger's; but where features tell of a row, it is none
            rows[name] = own if side.regression is not None else np.where(unrated, -1, own)
            moments[name] = with_stranger(side) if (rows[name] < 0).any() else side.moments
        mean, _ = pair_moments(
            moments["user"], moments["item"], rows["user"], rows["item"], variance=False
        )
        if state.moods is not None and times is not None:
            known = np.where(found["user"][1], -1, found["user"][0])
            mean += state.moods.at(known, times)[0]
        predicted = train.mean + train.scale * mean
        if limits is not None:
            np.clip(predicted, *limits, out=predicted)
        return float(np.sqrt(np.mean((predicted - actual) ** 2)))

    return error


def validation_pairs(
    ratings: Any, train: Ratings
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats, Wholes | None]:
    """Return users, items, ratings and times to report an error on; some must be there.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> validation_pairs([("bob", "milk", 4)], data)[2]
    array([4.])
    """
    read = rated_pairs(ratings, None, None, like=train)
    if not read[2].size:
        raise DataError("there are no ratings to report the error on")
    return read


def rated_pairs(
    ratings: Any, y: Any, columns: Any, *, like: Ratings
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats, Wholes | None]:
    """Return users, items, ratings and times of anything that `hemf.HeMF.fit` takes, row by row.

    Ids in text are read as those of ``like`` are, and a pair rated twice stays twice.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> rated_pairs([("bob", "tea")], [4], None, like=data)[2]
    array([4.])
    """
    if y is not None:
        users, items = pairs_from_any(ratings, columns, users=like.users, items=like.items)
        ratings, columns = (users, items, y), None
    if isinstance(ratings, Ratings):
        values = ratings.by_user.values.astype(np.float64)
        return *pairs_from_any(ratings), values, ratings.timestamps
    read = read_columns(ratings, columns, users=like.users, items=like.items)
    assert read.ratings is not None
    values = read.ratings.astype(np.float64)
    return read.users.decode(), read.items.decode(), values, read.timestamps


def explained_share(actual: Floats, predicted: Floats) -> float:
    """Return R²; of ratings that are all equal, 1 if they are met and else 0.

    >>> explained_share(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    0.5
    """
    if not actual.size:
        raise DataError("there are no ratings to score predictions on")
    missed = float(np.sum((actual - predicted) ** 2))
    spread = float(np.sum((actual - actual.mean()) ** 2))
    return 1.0 - missed / spread if spread > 0.0 else float(missed == 0.0)
