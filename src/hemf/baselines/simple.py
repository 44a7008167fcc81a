"""Bias and popularity: the baselines that any model should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from hemf._checks import (
    check_bool,
    check_callables,
    check_choice,
    check_number,
    check_rating_range,
    resolve_rating_range,
)
from hemf._typing import AnyArray, Float64Array, IdsLike, RatingsLike
from hemf.baselines.base import Callbacks, Clock, Estimator, RatingRange, Trained, rated_ids
from hemf.baselines.sgd import EpochReport
from hemf.data.ratings import Ratings
from hemf.data.sources import ColumnChoice
from hemf.errors import DataError

EPOCHS = 10  # alternations between users and items


@dataclass(frozen=True)
class Biases(Trained):
    """Biases of users and items; the last entry, 0, is that of unknown ids."""

    user_bias: Float64Array
    item_bias: Float64Array
    counts: Float64Array
    """Number of ratings of each item."""


@dataclass(kw_only=True, repr=False, eq=False)
class Bias(Estimator[Biases, EpochReport]):
    """Mean + user bias + item bias, estimated in turn.

    Parameters
    ----------
    damping
        Number of ratings without bias that are added to every user and item.
    rating_range, duplicates
        As for `SGD`.

    Examples
    --------
    >>> from hemf.baselines import Bias
    >>> model = Bias(damping=1.0).fit([("ann", "tea", 5), ("ann", "milk", 2), ("bob", "tea", 4)])
    >>> model.predict("bob", ["tea", "milk"]).round(1)
    array([4.1, 2.7])

    """

    has_user_bias: ClassVar[bool] = True
    damping: float = 5.0
    rating_range: RatingRange = "observed"
    duplicates: str = "last"

    def fit(
        self,
        ratings: RatingsLike,
        y: RatingsLike = None,
        *,
        columns: ColumnChoice = None,
        callbacks: Callbacks[EpochReport] = (),
    ) -> Self:
        """Fit to ratings, anything that `Ratings.from_any` reads; see `SGD.fit`."""
        self.check_parameters()
        callbacks = check_callables("callbacks", callbacks)
        data = self._read(ratings, y, columns)
        if not data.n_ratings:
            raise DataError("there are no ratings to learn from")
        users, items, values = data.triples()
        rest = values - data.mean
        user_bias, item_bias = np.zeros(data.n_users), np.zeros(data.n_items)
        history: list[EpochReport] = []
        clock = Clock()
        for epoch in range(1, EPOCHS + 1):
            if self.has_user_bias:
                user_bias = self._biases(users, rest - item_bias[items], data.n_users)
            item_bias = self._biases(items, rest - user_bias[users], data.n_items)
            errors = rest - user_bias[users] - item_bias[items]
            error = float(np.sqrt(np.mean(errors**2)))
            history.append(EpochReport(epoch, EPOCHS, error, 0.0, clock.seconds))
            if clock.call(callbacks, history[-1]):
                break
        self.state_, self.history_ = self._state(data, user_bias, item_bias), history
        return self

    def _biases(self, rows: AnyArray, rest: AnyArray, n_rows: int) -> Float64Array:
        """Return the damped mean of each row's residuals."""
        total = np.bincount(rows, rest, minlength=n_rows)
        return np.asarray(total / (np.bincount(rows, minlength=n_rows) + self.damping))

    def _state(self, data: Ratings, user_bias: Float64Array, item_bias: Float64Array) -> Biases:
        limits = resolve_rating_range(self.rating_range, (data.minimum, data.maximum))
        counts = np.diff(data.by_item.indptr).astype(np.float64)
        padded = (np.append(values, 0.0) for values in (user_bias, item_bias, counts))
        return Biases(*rated_ids(data), data.mean, limits, *padded)

    def check_parameters(self) -> None:
        """Check all parameters; an error names the parameter and its valid values."""
        check_number("damping", self.damping, low=0.0)
        check_rating_range(self.rating_range)
        check_choice("duplicates", self.duplicates, ("last", "mean", "error"))

    def predict(
        self,
        users: IdsLike,
        items: IdsLike = None,
        *,
        return_known: bool = False,
        unknown: str = "prior",
    ) -> AnyArray | tuple[AnyArray, ...]:
        """Return the expected rating of each pair; see `SGD.predict`."""
        return_known = check_bool("return_known", return_known)
        state, pairs = self._fitted(), self._find(users, items, unknown)
        expected = state.mean + state.user_bias[pairs.users] + state.item_bias[pairs.items]
        expected = expected if state.limits is None else np.clip(expected, *state.limits)
        return self._answer(pairs, expected, *([pairs.known] if return_known else []))


@dataclass(kw_only=True, repr=False, eq=False)
class Popularity(Bias):
    """Ranks items by their number of ratings; predicts mean + item bias.

    Parameters are those of `Bias`.

    Examples
    --------
    >>> from hemf.baselines import Popularity
    >>> model = Popularity().fit([("ann", "tea", 5), ("ann", "milk", 2), ("bob", "tea", 4)])
    >>> model.scores(["bob"], ["tea", "milk"])
    array([[2., 1.]])

    """

    has_user_bias: ClassVar[bool] = False

    def scores(self, users: IdsLike, items: IdsLike) -> Float64Array:
        """Return the number of ratings of each item, one row for each user."""
        state = self._fitted()
        return np.tile(state.counts[state.items.find(items)], (len(users), 1))
