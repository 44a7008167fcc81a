"""What a few ratings say about somebody whom the model does not know, and need not remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf.errors import DataError
from hemf.inference.fold import fold_in as fold_row
from hemf.model import predictive
from hemf.model.side import Moments
from hemf.parameters import switch, whole_number
from hemf.streaming import check_range
from hemf.triples import in_order

if TYPE_CHECKING:
    from hemf.estimator import HeMF

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Visitor:
    """Posterior of a user who is not part of the model; made by `hemf.HeMF.fold_in`.

    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> model = HeMF(n_factors=2, rng=0).fit(ratings)
    >>> visitor = model.fold_in([("tea", 5)])
    >>> mean, std = visitor.predict(["milk"], return_std=True)
    >>> bool(std[0] > 0), model.n_users_
    (True, 3)
    """

    moments: Moments
    """E[a] and E[a aᵀ] of the one row there is, in the standardised scale of the model."""
    probabilities: Floats
    """Of belonging to each user community."""
    noise_scale: float
    """E[1/τ]: how much noisier than others' this visitor's ratings are."""
    rated: npt.NDArray[np.int64]
    """Rows of the items that were rated, as far as the model knows them."""
    model: HeMF

    def predict(self, items: Any, *, return_std: bool = False, include_noise: bool = True) -> Any:
        """Return the expected rating of each item; see `hemf.HeMF.predict`."""
        return_std = switch("return_std", return_std)
        include_noise = switch("include_noise", include_noise)
        model = self.model
        with model._turn:
            ids, alone = model._ids("item", items)
            rows = model._learnt("item", model._rows("item", ids))
            right = model._moments("item", with_stranger=bool((rows < 0).any()))
            left = np.zeros(rows.size, np.int64)
            mean, variance = predictive.pair_moments(
                self.moments, right, left, rows, variance=return_std
            )
            expected = model._to_rating(mean)
            if not return_std:
                return expected[0] if alone else expected
            if include_noise:
                noise = np.full(rows.size, model._fitted().noise * self.noise_scale)
                scales = model._fitted().sides["item"].noise_scales
                variance = variance + noise * (1.0 if scales is None else scales.inverse[rows])
            spread = np.sqrt(variance) * model.rating_scale_
        return (expected[0], spread[0]) if alone else (expected, spread)

    def recommend(self, n: int = 10, *, exclude_seen: bool = True) -> tuple[Any, Floats]:
        """Return the ids and expected ratings of the n items with the highest, best first."""
        n, exclude_seen = whole_number("n", n, at_least=1), switch("exclude_seen", exclude_seen)
        model = self.model
        with model._turn:
            right = model._moments("item")
            scores, _ = predictive.score_rows(
                self.moments, right, np.zeros(1, np.int64), variance=False
            )
            scores = scores.astype(np.float64)
            scores[0, model._learnt("item", np.arange(model.n_items_)) < 0] = -np.inf
            if exclude_seen:
                scores[0, self.rated] = -np.inf
            best = predictive.best_columns(scores, n)
            there = best.columns[0] >= 0
            ids = model._vocabularies()[1].ids[best.columns[0][there]]
            return ids, model._to_rating(best.scores[0][there])


def fold_in(model: HeMF, ratings: Any, y: Any, *, columns: Any) -> Visitor:
    """See `hemf.HeMF.fold_in`."""
    state = model._fitted()
    items, values = _read(model, ratings, y, columns)
    check_range(model, values)
    rows = model._learnt("item", model._rows("item", items))
    right = model._moments("item", with_stranger=bool((rows < 0).any()))
    scales = state.sides["item"].noise_scales
    weight = np.ones(right.mean.shape[0]) if scales is None else scales.mean
    if weight.size < right.mean.shape[0]:
        weight = np.append(weight, 1.0)  # a stranger's
    rows = np.where(rows < 0, right.mean.shape[0] - 1, rows)
    standardised = (values.astype(np.float64) - model.global_mean_) / model.rating_scale_
    side = state.sides["user"]
    mean, second, probabilities, shape, rate = fold_row(
        side, right, weight, state.noise, rows, standardised
    )
    inverse = 1.0 if side.noise_scales is None else rate / (shape - 1.0)
    known = np.unique(rows[rows < state.sides["item"].n_rows])
    return Visitor(Moments(mean, second), probabilities, float(inverse), known, model)


def _read(model: HeMF, ratings: Any, y: Any, columns: Any) -> tuple[Any, npt.NDArray[np.float32]]:
    """Return items and ratings: pairs of these, a mapping, or ratings with one user."""
    known_users, known_items = model._vocabularies()
    if y is None and isinstance(ratings, dict) and not {"item", "rating"} <= set(ratings):
        ratings = list(ratings.items())
    if y is not None:
        if len(ratings) != len(y):
            raise DataError("with y, fold_in takes as many item ids as there are ratings in y")
        ratings = list(zip(ratings, y, strict=True))
    if isinstance(ratings, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in ratings):
        ratings = list(ratings)
    if (
        isinstance(ratings, list)
        and ratings
        and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in ratings)
    ):
        items, numbers = zip(*ratings, strict=True)
        ratings = (["visitor"] * len(items), _column(items), _column(numbers))
        columns = None
    read = in_order(ratings, None, columns, users=known_users, items=known_items)
    assert read.ratings is not None
    if len(read.users.distinct) != 1:
        raise DataError(
            f"these are ratings by {len(read.users.distinct)} users; fold in one at a time"
        )
    ids = read.items.decode()
    rows, counts = np.unique(read.items.codes, return_counts=True)
    if (counts > 1).any():
        twice = ids.item(int(np.flatnonzero(read.items.codes == rows[counts > 1][0])[0]))
        raise DataError(f"item {twice!r} is rated twice", value=twice)
    return ids, read.ratings


def _column(values: tuple[Any, ...]) -> npt.NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
