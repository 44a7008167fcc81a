"""Predictions for a visitor: a user with a few ratings who is not stored in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf._checks import check_bool, check_int, check_range, rating_text
from hemf._options import MIN_SHARE
from hemf._typing import AnyArray, Array, FeaturesLike, Float64Array, IdsLike, RatingsLike
from hemf.data.features import as_parts
from hemf.data.ratings import Ratings, pairs_from_any, read_in_order
from hemf.data.sources import ColumnChoice, downcast, open_source, parse_ratings
from hemf.data.vocabulary import Vocabulary, as_ids, factorise
from hemf.errors import DataError
from hemf.model import rows as predictive
from hemf.model.rows import Moments
from hemf.model.side import Side, newcomer_moments
from hemf.model.state import FittedModel, given_at_fit
from hemf.online.journal import ModelHolder
from hemf.online.record import Fit
from hemf.online.state import community_arguments
from hemf.online.store import RowStore

HUGE = 1e38  # ratings beyond may be beyond float32


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of a visitor, given one version of the model."""

    moments: Moments
    """E[a] and E[a aᵀ] of the one row there is, in the standardised scale of the model."""
    probabilities: Float64Array
    """Of belonging to each user community."""
    noise_scale: float
    """E[1/τ]: how much noisier than others' this visitor's ratings are."""
    rated: npt.NDArray[np.int64]
    """Rows of the items that were rated; -1 is one that the model does not know."""
    version: int
    """Version of the model: incremented with everything that it learns."""


@dataclass(eq=False)
class Visitor:
    """A user who is not part of the model, known by a few ratings; made by `hemf.HeMF.fold_in`.

    When the model has changed, the ratings are folded in again before the next answer.

    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> model = HeMF(n_factors=2, rng=0).fit(ratings)
    >>> visitor = model.fold_in([("tea", 5)])
    >>> mean, std = visitor.predict(["milk"], return_std=True)
    >>> bool(std[0] > 0), model.n_users_
    (True, 3)
    >>> model.partial_fit([("eve", "ale", 3)]).fold_in([("tea", 5)]).recommend(5)[0].tolist()
    ['ale', 'milk']
    """

    holder: ModelHolder[Fit] = field(repr=False)
    """Holds the current model."""
    items: AnyArray = field(repr=False)
    """Ids of the items that were rated."""
    ratings: Array = field(repr=False)
    """Their ratings."""
    features: FeaturesLike = field(default=None, repr=False)
    """Features of the visitor."""
    _posterior: Posterior | None = field(default=None, repr=False)

    @property
    def posterior(self) -> Posterior:
        """Posterior of the visitor, given the current model."""
        with self.holder.lock:
            model, found = self._model, self._posterior
            if found is None or found.version != model.version:
                found = self._posterior = _fold(model, self.items, self.ratings, self.features)
            return found

    @property
    def _model(self) -> FittedModel:
        fit = self.holder.content
        assert fit is not None  # a model does not become unfitted
        return fit.model

    @property
    def probabilities(self) -> Float64Array:
        """Probabilities of belonging to each user community."""
        return self.posterior.probabilities

    def predict(
        self, items: IdsLike, *, return_std: bool = False, include_noise: bool = True
    ) -> Any:
        """Return the expected rating of each item; see `hemf.HeMF.predict`."""
        return_std = check_bool("return_std", return_std)
        include_noise = check_bool("include_noise", include_noise)
        with self.holder.lock:
            own, model = self.posterior, self._model
            ids, alone = model.ids("item", items)
            asked = model.find("item", ids)
            model.warn_of_unknown(item=(ids, asked.places))
            right = model.moments("item", with_unknown=asked.any_unknown)
            left = np.zeros(asked.rows.size, np.int64)
            mean, variance = predictive.pair_moments(
                own.moments, right, left, asked.places, variance=return_std
            )
            expected = model.to_rating(mean)
            if not return_std:
                return expected[0] if alone else expected
            if include_noise:
                noise = model.state.noise * own.noise_scale
                scales = model.sides["item"].noise_scales
                of_items = 1.0 if scales is None else scales.inverse[asked.rows]
                variance = variance + noise * of_items + model.mood_variance
            spread = np.sqrt(variance) * model.scale
        return (expected[0], spread[0]) if alone else (expected, spread)

    def recommend(self, n: int = 10, *, exclude_seen: bool = True) -> tuple[Any, Float64Array]:
        """Return the ids and expected ratings of the n items with the highest, best first."""
        n, exclude_seen = check_int("n", n, low=1), check_bool("exclude_seen", exclude_seen)
        with self.holder.lock:
            own, model = self.posterior, self._model
            right = model.moments("item")
            scores, _ = predictive.score_rows(
                own.moments, right, np.zeros(1, np.int64), variance=False
            )
            scores = scores.astype(np.float64)
            scores[0, model.rated("item", np.arange(model.n_items)) < 0] = -np.inf
            if exclude_seen:
                scores[0, own.rated[own.rated >= 0]] = -np.inf
            best = predictive.best_columns(scores, n)
            there = best.columns[0] >= 0
            ids = model.record.items.ids[best.columns[0][there]]
            return ids, model.to_rating(best.scores[0][there])


def fold_in(
    holder: ModelHolder[Fit],
    model: FittedModel,
    ratings: RatingsLike,
    y: IdsLike,
    *,
    columns: ColumnChoice,
    features: FeaturesLike,
    declared_range: tuple[float, float] | None,
) -> Visitor:
    """See `hemf.HeMF.fold_in`."""
    if features is not None and y is None and _is_empty(ratings):
        items, values = np.empty(0, object), np.empty(0, np.float32)
    else:
        items, values = _read(model, ratings, y, columns)
    check_range(declared_range, values)
    return Visitor(holder, items, values, features, _fold(model, items, values, features))


def _fold(model: FittedModel, items: AnyArray, values: Array, features: FeaturesLike) -> Posterior:
    """Return the posterior of a row with these ratings of these items."""
    side, other = model.sides["user"], model.sides["item"]
    if not items.size:
        return _newcomer(model, features)
    rows = model.rated("item", model.rows("item", items))
    rated = Moments(other.moments.mean.take(rows, 0), other.moments.second.take(rows, 0))
    scales = other.noise_scales
    weight = np.ones(rows.size) if scales is None else scales.shape[rows] / scales.rate[rows]
    if -1 in rows.tolist():  # for a few rows, NumPy takes ten times as long to find out
        places = model.find("item", items).places
        model.warn_of_unknown(item=(items, places))
        expected = model.moments("item", with_unknown=True)
        rated = Moments(expected.mean.take(places, 0), expected.second.take(places, 0))
        weight[rows < 0] = 1.0
    effects = _feature_effects(
        side, rows, None if features is None else visitor_row(model, features)
    )
    standardised = (values.astype(np.float64) - model.mean) / model.scale
    scales = side.noise_scales
    with _LOCK:
        moments, probabilities, shape, rate = _folding(side).run(
            _Rated(rated, weight, standardised, effects),
            noise=float(model.state.noise + model.mood_variance),
            prior_shape=0.0 if scales is None else float(scales.prior_shape),
        )
    if not np.isfinite(moments.second).all():
        worst = values[np.abs(standardised).argmax()].item()
        raise DataError(
            f"the rating {rating_text(worst)} is too far from all that the model has learnt "
            f"(their mean is {model.mean:.3g}); leave it out or correct it",
            value=worst,
        )
    inverse = 1.0 if scales is None else rate / (shape - 1.0)
    return Posterior(moments, probabilities, float(inverse), rows, model.version)


def _newcomer(model: FittedModel, features: FeaturesLike) -> Posterior:
    """Return the posterior of a visitor with features and no ratings."""
    side = model.sides["user"]
    counts = model.state.counts["user"]
    moments = newcomer_moments(side, visitor_row(model, features), counts)
    scales, nothing = side.noise_scales, np.empty(0, np.int64)
    inverse = 1.0 if scales is None else float(scales.inverse[-1])
    return Posterior(moments, side.communities.sticks.weights, inverse, nothing, model.version)


def _is_empty(ratings: RatingsLike) -> bool:
    """Whether a visitor has no ratings."""
    return isinstance(ratings, list | tuple | dict) and not ratings


def _read(
    model: FittedModel, ratings: RatingsLike, y: IdsLike, columns: ColumnChoice
) -> tuple[AnyArray, Array]:
    """Return items and ratings: pairs of these, a mapping, or ratings with one user."""
    users, items = model.record.users, model.record.items
    if y is not None:
        ratings, columns = (*_rated(ratings, columns, users, items), _sized(y)), None
        if not len(ratings[0]) == len(ratings[1]) == len(ratings[2]):
            raise DataError("with y, fold_in takes as many item ids as there are ratings in y")
    elif isinstance(ratings, dict) and not {"item", "rating"} <= set(ratings):
        ratings = list(ratings.items())
    elif isinstance(ratings, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in ratings):
        ratings = list(ratings)
    if (
        isinstance(ratings, list)
        and ratings
        and all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in ratings)
    ):
        rated, numbers = zip(*ratings, strict=True)
        found = _as_they_are(rated, numbers)
        if found is not None:
            return found
        coded, values = (
            factorise(np.fromiter(rated, object), "item"),
            parse_ratings(np.fromiter(numbers, object)),
        )
    else:
        read = read_in_order(ratings, None, columns, users=users, items=items)
        assert read.ratings is not None
        if len(read.users.distinct) != 1:
            raise DataError(
                f"these are ratings by {len(read.users.distinct)} users; fold in one at a time"
            )
        coded, values = read.items, read.ratings
    ids = coded.decode()
    if len(coded.distinct) < ids.size:
        rows, counts = np.unique(coded.codes, return_counts=True)
        twice = ids.item(int(np.flatnonzero(coded.codes == rows[counts > 1][0])[0]))
        raise DataError(f"item {twice!r} is rated twice", value=twice)
    return ids, values


def _as_they_are(
    items: tuple[object, ...], numbers: tuple[float, ...]
) -> tuple[AnyArray, Array] | None:
    """Return items and ratings that are valid and in the usual form; a fast path for short lists.

    None if they need the full checks.
    """
    kinds = set(map(type, items))
    if len(kinds) > 1 or not kinds <= {int, str} or len(set(items)) < len(items):
        return None
    if not set(map(type, numbers)) <= {int, float} or not all(-HUGE < x < HUGE for x in numbers):
        return None
    try:
        ids = np.array(items, np.int64 if kinds == {int} else object)
    except OverflowError:
        return None
    return ids, downcast(np.array(numbers, np.float64), exact=True)


def _rated(
    given: IdsLike, columns: ColumnChoice, users: Vocabulary, items: Vocabulary
) -> tuple[IdsLike, IdsLike]:
    """Return users and items whose ratings are given separately: pairs of one user, or items."""
    given = list(given) if isinstance(given, Iterator) else given
    if _is_table(given, items):
        source = None if isinstance(given, Ratings) else open_source(given, columns, rated=False)
        if source is None or source.width != 1:
            return pairs_from_any(given, columns, users=users, items=items)
        (given,) = source.read([0])
    given = _sized(given)
    if isinstance(given, list | tuple):
        given = np.fromiter(given, object)
    return ["visitor"] * len(given), given


def _is_table(given: IdsLike, items: Vocabulary) -> bool:
    """Whether it has columns or rows; a list of tuples has, unless these are ids of items."""
    if isinstance(given, Mapping | Ratings) or hasattr(type(given), "columns"):
        return True
    if isinstance(given, np.ndarray):
        return given.ndim == 2 or given.dtype.names is not None
    if not isinstance(given, list | tuple) or not given:
        return False
    rows = all(isinstance(row, list | tuple) for row in given)
    return rows and (isinstance(given[0], list) or not as_ids(given[0], items)[1])


def _sized(values: IdsLike) -> IdsLike:
    values = list(values) if isinstance(values, Iterator) else values
    one = not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0
    if one or isinstance(values, str | bytes):
        raise DataError(f"with y, fold_in takes lists of items and ratings, got {values!r}")
    return values


# ------------------------------------------------------------------------------------------------
# The posterior of one more row, which leaves everything else as it was.


ROUNDS = 3  # of q(a, z) and q(τ) in turn; one more changes E[τ] by 0.0004
ROW_ZERO = np.zeros(ROUNDS, np.int64)  # the only row, once for each round
SHORT_LIST = 64  # lists of as many ratings as most visitors have are made once
SHORT_CODES = 1 << 16  # different ratings that 16 bits can encode

_LOCK = Lock()  # copies of a model share its sides, and with them the memory worked in


class _Rated(NamedTuple):
    """Ratings of a visitor, and the items that they are of."""

    moments: Moments
    weight: Float64Array
    values: Float64Array
    """Standardised ratings."""
    effects: tuple[Float64Array, Float64Array] | None
    """g and Σ_j M_j where the side has features: `_feature_effects`."""


def _feature_effects(
    side: Side, rows: npt.NDArray[np.int64], features: csr_array | None
) -> tuple[Float64Array, Float64Array] | None:
    """Return the effect of a row's features, and Σ_j M_j over the ``rows`` that it has rated.

    None if the side has no features. Rows below 0 are unknown and are left out.
    """
    if side.regression is None:
        return None
    blocks = side.regression.coefficient_blocks
    base = np.zeros(side.layout.order)
    if features is not None:
        base = np.asarray(features @ blocks.given)[0]
    known = rows[(rows >= 0) & (rows < blocks.rated.shape[0])]
    return base, blocks.rated[known].sum(axis=0)


def _folding(side: Side) -> Folding:
    """Return the kernel arguments of a side, which are kept with it."""
    folding = side.folding
    if not isinstance(folding, Folding) or folding.communities.count != side.n_communities:
        folding = side.folding = Folding(side)
    elif folding.communities is not side.communities:
        folding.follow(side)
    return folding


class Folding:
    """Kernel arguments for one visitor: a row to fill in, the communities, and working memory.

    All that does not depend on the ratings is made once, as that takes longer than the arithmetic.
    """

    def __init__(self, side: Side) -> None:
        from hemf.kernels.structures import Rows, Rules, Shared, scratch

        self.communities = side.communities
        layout, count, dtype = side.layout, side.n_communities, side.moments.mean.dtype
        tables = []
        if side.regression is not None:
            tables = ["shift", "base"]
            if side.regression.coefficient_blocks.has_rated:
                tables.append("coefficient_sum")
        store = RowStore(layout, dtype, sums=False, communities=count, most=count, tables=tables)
        store.add(1, mean=0.0, second=0.0, prior_shape=1.0)
        self._dtype = dtype
        self._row = Rows(
            **store.in_use(),
            start=np.zeros(1, np.int64),
            length=np.zeros(1, np.int64),
            other=np.zeros(0, np.int32),
            code=np.zeros(0, np.uint16),
            session=np.zeros(0, np.int32),
        )
        self._shared = Shared(
            **community_arguments(side),
            size=store.size,  # statistics of no community; not used
            first=store.first,
            scatter=store.scatter,
            totals=store.totals,
            error_unit=1.0,
            spread=np.zeros(layout.packed, dtype),
            forgetting=1.0,
            pending_share=0.0,
            change=0.0,
        )
        self._rows: dict[int, Any] = {}
        nothing = np.zeros(0, dtype)
        self._rules = Rules(
            nothing, 1.0, -1, 0, 0.0, MIN_SHARE, 0, np.zeros(0), nothing.reshape(0, 2)
        )  # fmt: skip
        self._memory = scratch(self._row, self._shared)
        self.follow(side)

    def follow(self, side: Side) -> None:
        """Take over communities that have changed; there are as many as before."""
        self.communities = side.communities
        self._shared = self._shared._replace(**community_arguments(side))
        if side.regression is not None:
            self._row.leverage[0] = side.regression.mean_leverage

    def run(
        self, rated: _Rated, *, noise: float, prior_shape: float
    ) -> tuple[Moments, Float64Array, float, float]:
        """Return moments, memberships, and q(τ); ``prior_shape`` is 0 without noise scales."""
        dtype, row, shared, n = self._dtype, self._row, self._shared, rated.values.size
        if shared.prior_shape != prior_shape or shared.error_unit != noise:
            shared = shared._replace(prior_shape=prior_shape, error_unit=noise)
            self._shared = shared
        # The row leaves its communities as any other does; what else it was is forgotten here.
        row.weight[0], row.count[0], row.length[0] = 1.0, n, n
        shared.totals[:] = 0.0
        if rated.effects is not None:
            base, coefficient_sum = rated.effects
            row.base[0] = base
            row.coefficient_sum[0] = coefficient_sum[: row.coefficient_sum.shape[1]]
        own = self._rows.get(n) or self._row_of(n)
        seen = own._replace(
            mean=np.ascontiguousarray(rated.moments.mean, dtype),
            second=np.ascontiguousarray(rated.moments.second, dtype),
            weight=rated.weight.astype(dtype),
        )
        rules = self._rules._replace(levels=rated.values.astype(dtype), noise=noise)
        again = ROW_ZERO if prior_shape else ROW_ZERO[:1]
        _kernel(dtype, own.code.dtype)(again, own, seen, shared, rules, self._memory)
        membership = row.membership[0].astype(np.float64)
        moments = Moments(row.mean.copy(), row.second.copy())
        return moments, membership, row.shape[0], row.rate[0]

    def _row_of(self, n: int) -> Any:
        """Return the row with a list of n ratings, each with a code of its own."""
        codes = np.arange(n, dtype=np.uint16 if n <= SHORT_CODES else np.uint32)
        row = self._row._replace(other=codes.astype(np.int32), code=codes)
        if n <= SHORT_LIST:
            self._rows[n] = row
        return row


@cache
def _kernel(dtype: npt.DTypeLike, codes: npt.DTypeLike) -> Callable[..., object]:
    from hemf.kernels.online import refresh_all

    kernel: Callable[..., object] = refresh_all.trusting(dtype, codes)
    return kernel


def visitor_row(model: FittedModel, features: Any) -> csr_array:
    """Encode the features of one visitor; names that a mapping lacks are missing values."""
    encoder = given_at_fit(model, "user").encoder
    tables: list[Any] = []
    for part, row in enumerate(as_parts(features) if encoder.parts > 1 else [features]):
        if isinstance(row, Mapping):
            known = encoder.columns(part)
            if row and known and not {*map(str, row)} & {*known}:
                raise DataError(
                    f"features: none of {', '.join(map(str, row))} is a column that was learnt of; "
                    f"these are {', '.join(known)}",
                    value=[*row],
                )
            row = {**dict.fromkeys(encoder.columns(part)), **row}
        tables.append({"visitor": row})
    return encoder.encode(tables)[1]
