"""Similar items and users: correlations of the scores that the model expects of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hemf._checks import check_bool, check_choice, check_int, one_blas_thread
from hemf._typing import OTHER, Array, BoolArray, Float64Array, IdsLike, Int64Array
from hemf.errors import ParameterError
from hemf.model.rows import BestColumns, Moments, best_columns, unpack
from hemf.model.state import FittedModel
from hemf.queries.lists import BestLists

KINDS = ("choices", "ratings")
BLOCK_BYTES = 1 << 27  # of similarities that are in memory at once
BLOCK_ROWS = 256  # whose covariances are in memory at once


def similar(
    model: FittedModel, side: str, given: IdsLike, n: int, by: str | None, return_std: bool
) -> tuple[Any, ...]:
    """See `hemf.HeMF.similar_items`."""
    n, return_std = check_int("n", n, low=1), check_bool("return_std", return_std)
    kind = kind_of(model, check_choice("by", by, (None, *KINDS)))
    asked, alone = model.ids(side, given)
    places = model.find(side, asked).places
    if kind == "choices":
        places = model.choice_places(side, places)
    tastes = tastes_of(model, side, kind)
    n_rows = tastes.is_known.size
    has_row = (places >= 0) & (places < n_rows)
    is_unknown = places < 0
    is_unknown[has_row] = ~tastes.is_known[places[has_row]]
    model.reject_unknown(side, asked, is_unknown)
    moments = _moments(model, side, kind, with_unknown=not has_row.all())
    length = min(n, int(tastes.is_known.sum()))
    lists = BestLists(model.vocabulary(side).ids[:n_rows], places.size, length)
    std = np.full(lists.scores.shape, np.nan)
    step = max(1, BLOCK_BYTES // (16 * max(1, n_rows)))
    with one_blas_thread():
        for start in range(0, places.size, step):
            part = slice(start, start + step)
            own = _at(moments, places[part])
            scores = np.clip(tastes.directions(own)[0] @ tastes.units[:-1].T, -1.0, 1.0)
            scores[:, ~tastes.is_known] = -np.inf
            scores[has_row[part], places[part][has_row[part]]] = -np.inf  # itself
            best = best_columns(scores, length)
            lists.put(part, best)
            if return_std:
                std[part] = tastes.deviations(own, moments, best)
    if alone:
        return lists.first(*([std] if return_std else []))
    return (lists.ids, lists.scores, std) if return_std else (lists.ids, lists.scores)


def kind_of(model: FittedModel, by: str | None) -> str:
    """Return the data that similarity goes by: choices where they are learnt, unless given."""
    has_choices = "choices" in model.components
    if by == "choices" and not has_choices:
        raise ParameterError(
            "by='choices': this model has not learnt choices; fit HeMF(choices=True), or take "
            "by='ratings'",
            value=by,
        )
    return by or ("choices" if has_choices else "ratings")


# docs/model.md#similarity
@dataclass(frozen=True)
class Tastes:
    """Rows of a side in coordinates in which the cosine of two of them is their similarity.

    Scores a_i·b_j and a_i·b_k have the covariance b_jᵀ M b_k over the rows i of the other side,
    M = mean E[a aᵀ] - mean E[a] mean E[a]ᵀ. With M = R Rᵀ it is the product of Rᵀb_j and Rᵀb_k.
    """

    root: Float64Array
    """R, (total, factors); zeros for offsets."""
    units: Array
    """Rᵀb of each row scaled to length 1, (rows + 1, factors); 0 if unknown, and at the end."""
    is_known: BoolArray
    """Which rows have ratings or features."""

    def directions(self, rows: Moments) -> tuple[Array, Float64Array]:
        """Return Rᵀb of rows scaled to length 1, and these lengths; a length of 0 stays 0."""
        return _directions(rows, self.root)

    def deviations(self, own: Moments, others: Moments, best: BestColumns) -> Float64Array:
        """Return standard deviations of the similarities, to second order; NaN in empty places."""
        found = np.full(best.columns.shape, np.nan)
        for row, columns in enumerate(best.columns):
            one = _at(own, np.array([row]))
            there = np.flatnonzero(columns >= 0)
            for start in range(0, there.size, BLOCK_ROWS):
                part = there[start : start + BLOCK_ROWS]
                found[row, part] = self._deviation(one, _at(others, columns[part]))
        return found

    def _deviation(self, one: Moments, others: Moments) -> Float64Array:
        """Return the standard deviation of the similarity s of one row and others, at most 1.

        Var s = vᵀ C v + uᵀ D u + tr(C D) + ½ s² (tr C² + tr D²) for directions u and v with the
        covariances C and D.
        """
        (u, c), (v, d) = self._uncertain(one), self._uncertain(others)
        linear = np.einsum("nl,nl->n", v @ c[0], v) + np.einsum("l,nlm,m->n", u[0], d, u[0])
        both = np.einsum("lm,nlm->n", c[0], d)
        squares = np.square(c).sum() + np.square(d).sum(axis=(1, 2))
        variance = linear + both + 0.5 * np.square(v @ u[0]) * squares
        return np.asarray(np.sqrt(np.minimum(variance, 1.0)))

    def _uncertain(self, rows: Moments) -> tuple[Float64Array, Float64Array]:
        """Return directions of rows, and the covariances of their parts across; I for length 0."""
        units, lengths = self.directions(rows)
        u, mean = units.astype(np.float64), rows.mean.astype(np.float64)
        covariance = unpack(rows.second) - mean[:, :, None] * mean[:, None, :]
        across = np.eye(u.shape[1]) - u[:, :, None] * u[:, None, :]
        map_ = self.root @ across / np.where(lengths > 0.0, lengths, 1.0)[:, None, None]
        found = map_.transpose(0, 2, 1) @ covariance @ map_
        found[lengths == 0.0] = np.eye(u.shape[1])
        return u, found


def tastes_of(model: FittedModel, side: str, kind: str) -> Tastes:
    """Return the tastes of a side's rows, computed once for each version of a model."""
    key = f"{side} tastes by {kind}"
    if key not in model.derived:
        with one_blas_thread():
            model.derived[key] = _tastes(model, side, kind)
    found: Tastes = model.derived[key]
    return found


def _tastes(model: FittedModel, side: str, kind: str) -> Tastes:
    component, other = model.components[kind], OTHER[side]
    own = component.sides[side]
    root = _root(_moments(model, other, kind), component.counts[other] > 0, own.layout.factors)
    rows = _moments(model, side, kind)
    is_known = np.asarray(component.counts[side] > 0)
    if own.regression is not None:
        is_known = np.ones(own.n_rows, bool)
    units = _directions(rows, root)[0]
    units[~is_known] = 0.0
    return Tastes(root, np.vstack([units, np.zeros_like(units[:1])]), is_known)


def _root(rows: Moments, counted: BoolArray, factors: Int64Array) -> Float64Array:
    """R with R Rᵀ = M, the covariance of these rows' factors; zeros for the other coordinates."""
    number, among = max(1, np.count_nonzero(counted)), counted[:, None]
    mean = rows.mean.sum(axis=0, dtype=np.float64, where=among) / number
    second = rows.second.sum(axis=0, dtype=np.float64, where=among) / number
    covariance = unpack(second) - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance[np.ix_(factors, factors)])
    root = np.zeros((mean.size, factors.size))
    root[factors] = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _directions(rows: Moments, root: Float64Array) -> tuple[Array, Float64Array]:
    vectors = rows.mean.astype(np.float64) @ root
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    return units.astype(rows.mean.dtype), lengths


def _moments(model: FittedModel, side: str, kind: str, *, with_unknown: bool = False) -> Moments:
    if kind == "choices":
        return model.components[kind].sides[side].moments
    return model.moments(side, with_unknown=with_unknown)


def _at(moments: Moments, places: Int64Array) -> Moments:
    return Moments(moments.mean[places], moments.second[places])
