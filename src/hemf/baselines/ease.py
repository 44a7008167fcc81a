"""EASE: a linear model of which items go with which, the strongest of the simple rankers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import (
    available_bytes,
    check_number,
    format_bytes,
    one_blas_thread,
)
from hemf._typing import Float32Array, Float64Array, Int32Array, Int64Array
from hemf.baselines.base import (
    Callbacks,
    Direct,
    EpochReport,
    RatingRange,
    Trained,
    parameter,
    rated_ids,
)
from hemf.data.ratings import Ratings
from hemf.errors import DataError
from hemf.model.links import item_weights, weight_bytes


@dataclass(frozen=True)
class ItemWeights(Trained):
    """Choices of the users, and what each says about every other item."""

    choices: csr_array
    """x_ui, 1 for each pair that counts; the last row is that of an unknown user."""
    column: Int64Array
    """Column of each item in ``choices``; the last entry, -1, is that of an unknown item."""
    weights: Float32Array
    """B, a column for each item with choices; the diagonal is 0."""


def check_level(name: str, level: object) -> None:
    """Check a rating, or None."""
    if level is not None:
        check_number(name, level, low=-np.finfo(float).max, high=np.finfo(float).max)


# docs/model.md#ease
@dataclass(kw_only=True, repr=False, eq=False)
class EASE(Direct[ItemWeights]):
    """Ranks items by ridge regression of every item's choices on those of all other items.

    min_B ‖X - XB‖² + λ‖B‖²  with B_jj = 0:   B = I - P / diag(P),  P = (XᵀX + λI)⁻¹

    X is 1 where a user chose an item and 0 elsewhere; the values of ratings count only for
    ``level``. It ranks, and does not predict ratings. Memory and time grow with the square and the
    cube of the number of items: 13,000 items take 2.1 GB. The solution has a closed form: there are
    no epochs, and callbacks are not called.

    Parameters
    ----------
    regularization
        λ, the penalty of squared weights, in users.
    level
        Smallest rating of a pair that counts as a choice; None for all pairs.
    duplicates
        As for `SGD`.

    References
    ----------
    H. Steck, Embarrassingly shallow autoencoders for sparse data. WWW 2019.

    Examples
    --------
    >>> from hemf.baselines import EASE
    >>> model = EASE(regularization=1.0)
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 2), ("bob", "tea", 4), ("eve", "ale", 5)]
    >>> model.fit(ratings).scores(["bob"], ["milk", "ale"]).round(2)
    array([[0.33, 0.  ]])

    """

    rating_range: RatingRange = field(default=None, init=False)  # it predicts no ratings
    regularization: float = parameter(500.0, check_number, low=1e-6)
    level: float | None = parameter(None, check_level)
    duplicates: str = "last"

    def _learn(self, data: Ratings, callbacks: Callbacks[EpochReport]) -> None:
        users, items, values = data.triples()
        if self.level is not None:
            counts = values >= values.dtype.type(self.level)
            users, items = users[counts], items[counts]
            if not users.size:
                raise DataError(
                    f"no rating is {self.level:g} or more; lower the level", value=self.level
                )
        chosen, column = np.unique(items, return_inverse=True)
        _check_memory(chosen.size)
        shape = data.n_users + 1, chosen.size
        choices = csr_array((np.ones(users.size, np.float32), (users, column)), shape=shape)
        columns_of = np.full(data.n_items + 1, -1)
        columns_of[chosen] = np.arange(chosen.size)
        with one_blas_thread():
            weights, _ = item_weights(choices, self.regularization)
        self.state_ = ItemWeights(*rated_ids(data), data.mean, None, choices, columns_of, weights)
        self.history_ = []

    def _table(self, user_rows: Int32Array, item_rows: Int32Array) -> Float64Array:
        state = self._fitted()
        columns = state.column[item_rows]
        scores = np.asarray(state.choices[user_rows] @ state.weights, np.float64)
        scores = scores[:, columns]
        scores[:, columns < 0] = 0.0
        return scores


def _check_memory(n_items: int) -> None:
    """Raise a DataError if memory is too small for the item-item matrices."""
    needed, available = weight_bytes(n_items), available_bytes()
    if available is not None and needed > available:
        raise DataError(
            f"EASE holds a matrix of {n_items:,} × {n_items:,} items, which needs about "
            f"{format_bytes(needed)} of memory, and {format_bytes(available)} are available; leave "
            "out rare items, or use a model whose size does not grow with their square",
            value=n_items,
        )
