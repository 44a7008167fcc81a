"""FittedModel: the result of learning, in the one form that every query reads.

The batch state and the online state each present themselves as a `Component`. A query is a
function of a `FittedModel`; it does not know how the model was learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf._typing import SIDES, Array, BoolArray, Float64Array, IdsLike, Int64Array
from hemf.data.features import FeatureEncoder
from hemf.data.ratings import Ratings
from hemf.data.sources import as_times
from hemf.data.unknown import RequestedIds, likely_reason, warn_of_unknown
from hemf.data.vocabulary import Vocabulary, as_ids, factorise
from hemf.errors import DataError, UnknownIdError
from hemf.model.links import Links
from hemf.model.moods import MoodPrior
from hemf.model.relevance import Relevance
from hemf.model.rows import Moments
from hemf.model.side import Side, with_stranger


class Moods(Protocol):
    """Posterior of the raters' moods (docs/model.md#moods)."""

    @property
    def prior(self) -> MoodPrior:
        """Hyper-parameters of the moods."""

    def at(self, raters: Int64Array, times: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Mean and variance of moods at these times; rater -1 is unknown."""


class Component(Protocol):
    """Posterior of one kind of data: both sides, the noise, and the ratings behind them."""

    @property
    def sides(self) -> dict[str, Side]:
        """Posteriors and communities of users and items."""

    @property
    def noise(self) -> float:
        """σ², standardised."""

    @property
    def moods(self) -> Moods | None:
        """Raters' moods; None where they are not modelled."""

    @property
    def n_ratings(self) -> int:
        """Number of ratings learnt."""

    @property
    def sweeps(self) -> int:
        """Number of sweeps done."""

    @property
    def is_complete(self) -> bool:
        """Whether all ratings are kept."""

    @property
    def in_place(self) -> RowsInPlace | None:
        """Rows that learning changes in place; None after a batch fit."""

    @property
    def counts(self) -> Mapping[str, Int64Array]:
        """Number of ratings of each row, by side."""

    def row_ratings(
        self, name: str, row: int, *, as_given: bool = False
    ) -> tuple[npt.NDArray[np.int32], Float64Array]:
        """Rows rated by a row, ascending, and the standardised ratings."""

    def bound_terms(self) -> dict[str, float]:
        """Lower bound by term."""


class RowsInPlace(Protocol):
    """Rows that learning changes in place."""

    def current_moments(self, name: str) -> Moments:
        """Moments of a side's rows."""

    def with_stranger(self, name: str) -> Moments:
        """Moments of a side's rows, and at the end those of an unknown row."""


class Record(Protocol):
    """The ratings that are kept, and the ids of their rows."""

    @property
    def users(self) -> Vocabulary:
        """Ids of the users' rows."""

    @property
    def items(self) -> Vocabulary:
        """Ids of the items' rows."""

    @property
    def ratings(self) -> Ratings:
        """The ratings that are kept."""


@dataclass(frozen=True)
class TrainingRecord:
    """Record of a batch fit: the training ratings."""

    ratings: Ratings

    @property
    def users(self) -> Vocabulary:
        """Ids of the users' rows."""
        return self.ratings.users

    @property
    def items(self) -> Vocabulary:
        """Ids of the items' rows."""
        return self.ratings.items


@dataclass(frozen=True)
class GivenFeatures:
    """Features of one side that were given to a fit."""

    encoder: FeatureEncoder
    newcomers: Vocabulary
    """Ids that have features but no row."""
    features: csr_array
    """Encoded features of the newcomers."""


class FoundIds(NamedTuple):
    """Where the ids of a request are found."""

    rows: Int64Array
    """Row of each id; -1 if it has no rating."""
    places: Int64Array
    """Row of its moments; beyond the rows come newcomers with features, -1 is a stranger."""

    @property
    def any_unknown(self) -> bool:
        """Whether any id has no rating."""
        return bool((self.rows < 0).any())


@dataclass(frozen=True, eq=False)
class FittedModel:
    """Result of learning. It is replaced, never changed, when more is learnt."""

    components: Mapping[str, Component]
    """Posteriors by kind of data: "ratings", and "choices" where they are learnt."""
    record: Record
    """Ratings that are kept, and the ids of the rows."""
    mean: float
    """Mean of the ratings, c."""
    scale: float
    """Standard deviation of the ratings; the posterior is of standardised ratings."""
    rating_range: tuple[float, float] | None
    """Predictions are clipped to this range."""
    coupled: bool = True
    """Whether factors and communities of a row were inferred together."""
    features: Mapping[str, GivenFeatures] = field(default_factory=dict)
    """Features given to the fit, by side."""
    relevance: Relevance | None = None
    """How choices and ratings are combined to rank items; None without choices."""
    links: Links | None = None
    """Links between items; None without choices."""
    held_out: Ratings | None = None
    """Ratings held out for validation."""
    version: int = 1
    """Incremented with every change of the model."""
    derived: dict[str, Any] = field(default_factory=dict, repr=False)
    """Results that queries compute once for this version."""

    @cached_property
    def state(self) -> Component:
        """Posterior of the ratings."""
        return self.components["ratings"]

    @property
    def sides(self) -> dict[str, Side]:
        """Posteriors and communities of users and items."""
        return self.state.sides

    @property
    def n_items(self) -> int:
        """Number of items, including those without a rating."""
        return self.sides["item"].n_rows

    @property
    def ratings(self) -> Ratings:
        """The ratings that are kept."""
        return self.record.ratings

    @property
    def keeps_all_ratings(self) -> bool:
        """Whether all ratings learnt are kept."""
        return self.state.in_place is None or self.ratings.n_ratings >= self.state.n_ratings

    # -- ids and rows --------------------------------------------------------------------------

    def vocabulary(self, side: str) -> Vocabulary:
        """Ids of a side's rows."""
        return self.record.users if side == "user" else self.record.items

    def ids(self, side: str, given: IdsLike) -> tuple[IdsLike, bool]:
        """Return ids as a list or array, and whether it was a single one."""
        return as_ids(given, self.vocabulary(side))

    def rows(self, side: str, ids: IdsLike) -> Int64Array:
        """Row of each id; -1 if it is unknown."""
        known, n_rows = self.vocabulary(side), self.state.counts[side].size
        rows = known.rows(ids)
        if len(known) > n_rows:  # ids may have been added since
            rows[rows >= n_rows] = -1
        return rows

    def rated(self, side: str, rows: Int64Array) -> Int64Array:
        """Return these rows, with -1 for those that have no rating."""
        counts = self.state.counts[side]
        if not counts.size:
            return np.full(rows.size, -1)
        rated = rows.copy()
        rated[counts[rows] == 0] = -1
        return rated

    def find(self, side: str, ids: IdsLike) -> FoundIds:
        """Return where ids are found; those without a rating may have features."""
        rows, own = self.rows(side, ids), self.sides[side]
        rated = self.rated(side, rows)
        places = rated.copy()
        if own.regression is not None:
            places[rows >= 0] = rows[rows >= 0]
            if self._newcomer_features(side) is not None and (rows < 0).any():
                new = self.features[side].newcomers.rows(ids)
                is_new = (rows < 0) & (new >= 0)
                places[is_new] = own.n_rows + new[is_new]
        return FoundIds(rated, places)

    def reject_unknown(self, side: str, ids: IdsLike, is_unknown: BoolArray) -> None:
        """Raise UnknownIdError for the first unknown id, if there is any."""
        if is_unknown.any():
            at = int(np.argmax(is_unknown))
            value = factorise(ids).decode().item(at)
            own, other = self._own_and_other(side)
            known = value in own
            reason = "it has no ratings" if known else likely_reason(side, value, own, other)
            message = f"{side} {value!r} at row {at} is not known to the model"
            message += "" if reason is None else f": {reason}"
            raise UnknownIdError(message, value=value, row=at)

    def warn_of_unknown(
        self, *, expected: bool = False, **asked: tuple[IdsLike, Int64Array]
    ) -> None:
        """Warn where most ids of a side are unknown, given ids and places by side."""
        unknown = {side: (ids, places < 0) for side, (ids, places) in asked.items()}
        if any(is_unknown.any() for _, is_unknown in unknown.values()):
            warn_of_unknown(
                *(
                    RequestedIds(side, ids, is_unknown, *self._own_and_other(side))
                    for side, (ids, is_unknown) in unknown.items()
                ),
                expected=expected,
            )

    def _own_and_other(self, side: str) -> tuple[Vocabulary, Vocabulary]:
        users, items = (self.vocabulary(name) for name in SIDES)
        return (users, items) if side == "user" else (items, users)

    # -- moments -------------------------------------------------------------------------------

    def moments(self, side: str, *, with_unknown: bool = False) -> Moments:
        """Moments of a side's rows; with_unknown appends newcomers and, last, a stranger."""
        in_place = self.state.in_place
        current = self.sides[side].moments if in_place is None else in_place.current_moments(side)
        if not with_unknown:
            return current
        newcomers = self._newcomer_features(side)
        if newcomers is None and in_place is not None:
            return in_place.with_stranger(side)  # it must not be kept
        key = f"{side} moments"
        if key not in self.derived:
            counts = self.state.counts[side]
            self.derived[key] = with_stranger(self.sides[side], newcomers, counts)
        found: Moments = self.derived[key]
        return found

    def moments_at(self, side: str, place: int) -> tuple[Array, Array]:
        """Mean and second moment of one row, of a newcomer, or of a stranger at -1."""
        is_row = 0 <= place < self.sides[side].n_rows
        moments = self.moments(side, with_unknown=not is_row)
        return moments.mean[place], moments.second[place]

    def choice_moments(self, side: str) -> Moments:
        """Moments of the choices of a side's rows, and at the end those of a stranger."""
        key = f"{side} choices"
        if key not in self.derived:
            self.derived[key] = with_stranger(self.components["choices"].sides[side])
        found: Moments = self.derived[key]
        return found

    def choice_places(self, side: str, places: Int64Array) -> Int64Array:
        """Return where `choice_moments` has these rows; -1 is a stranger."""
        n_rows = self.components["choices"].sides[side].n_rows
        return np.where((places >= 0) & (places < n_rows), places, -1)

    def _newcomer_features(self, side: str) -> csr_array | None:
        """Features of ids that have no row; None where there are none."""
        given = self.features.get(side)
        return given.features if given is not None and len(given.newcomers) else None

    # -- the rating scale ----------------------------------------------------------------------

    def noise(self, user_rows: Int64Array, item_rows: Int64Array) -> Float64Array:
        """Noise variance of each pair, standardised; row -1 is a stranger."""
        noise = np.full(len(user_rows), self.state.noise)
        for name, rows in (("user", user_rows), ("item", item_rows)):
            scales = self.sides[name].noise_scales
            if scales is not None:
                noise *= scales.inverse[rows]
        return noise

    @property
    def has_moods(self) -> bool:
        """Whether raters have moods."""
        return self.state.moods is not None

    @property
    def mood_variance(self) -> float:
        """Variance of a mood at an unknown time, standardised; 0 without moods."""
        moods = self.state.moods
        return 0.0 if moods is None else float(moods.prior.variance + moods.prior.extra)

    def mood(
        self, user_rows: Int64Array, timestamps: IdsLike
    ) -> tuple[Float64Array | float, Float64Array | float]:
        """Mean and variance of users' moods at these times; row -1 is a stranger."""
        moods = self.state.moods
        if moods is None or timestamps is None:
            return 0.0, self.mood_variance
        return moods.at(user_rows, as_times(timestamps, user_rows.size))

    def to_rating(self, standardised: Float64Array) -> Float64Array:
        """Return standardised predictions on the rating scale, clipped to its range."""
        ratings = self.mean + self.scale * standardised
        if self.rating_range is not None:
            np.clip(ratings, *self.rating_range, out=ratings)
        return ratings


def given_at_fit(model: FittedModel | None, side: str) -> GivenFeatures:
    """Return the features that a side was fitted with; DataError where there were none."""
    given = None if model is None else model.features.get(side)
    if given is None:
        begun = "was fitted" if model is not None else "has to be fitted first, and not"
        raise DataError(
            f"{side}_features: what they mean is learnt by fit, and this model {begun} without "
            f"features of {side}s; call fit with them",
            value=side,
        )
    return given
