"""Bias and popularity: the baselines that any model should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hemf._checks import check_number, resolve_rating_range
from hemf._typing import AnyArray, Float64Array, Int32Array
from hemf.baselines.base import (
    Baseline,
    Callbacks,
    Direct,
    EpochReport,
    Progress,
    RatingRange,
    Trained,
    parameter,
    rated_ids,
)
from hemf.data.pairs import Pairs
from hemf.data.ratings import Ratings

EPOCHS = 10  # alternations between users and items


@dataclass(frozen=True)
class Biases(Trained):
    """Biases of users and items; the last entry, 0, is that of unknown ids."""

    user_bias: Float64Array
    item_bias: Float64Array
    counts: Float64Array
    """Number of ratings of each item."""


@dataclass(kw_only=True, repr=False, eq=False)
class Bias(Direct[Biases], Baseline[Biases]):
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
    damping: float = parameter(5.0, check_number, low=0.0)
    rating_range: RatingRange = "observed"
    duplicates: str = "last"

    def _learn(self, data: Ratings, callbacks: Callbacks[EpochReport]) -> None:
        users, items, values = data.triples()
        rest = values - data.mean
        user_bias, item_bias = np.zeros(data.n_users), np.zeros(data.n_items)
        progress = Progress(callbacks)
        for epoch in range(1, EPOCHS + 1):
            if self.has_user_bias:
                user_bias = self._biases(users, rest - item_bias[items], data.n_users)
            item_bias = self._biases(items, rest - user_bias[users], data.n_items)
            errors = rest - user_bias[users] - item_bias[items]
            error = float(np.sqrt(np.mean(errors**2)))
            if progress.add(EpochReport(epoch, EPOCHS, error, 0.0, progress.seconds)):
                break
        limits = resolve_rating_range(self.rating_range, (data.minimum, data.maximum))
        counts = np.diff(data.by_item.indptr).astype(np.float64)
        padded = (np.append(values, 0.0) for values in (user_bias, item_bias, counts))
        self.state_ = Biases(*rated_ids(data), data.mean, limits, *padded)
        self.history_ = progress.history

    def _biases(self, rows: AnyArray, rest: AnyArray, n_rows: int) -> Float64Array:
        """Return the damped mean of each row's residuals."""
        total = np.bincount(rows, rest, minlength=n_rows)
        return np.asarray(total / (np.bincount(rows, minlength=n_rows) + self.damping))

    def _expected(self, pairs: Pairs) -> Float64Array:
        state = self._fitted()
        return state.clip(state.mean + state.user_bias[pairs.users] + state.item_bias[pairs.items])

    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        state = self._fitted()
        biases = np.add.outer(state.user_bias[user_rows], state.item_bias[item_rows])
        return np.asarray(state.mean + biases)


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

    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        return np.tile(self._fitted().counts[item_rows], (len(user_rows), 1))
