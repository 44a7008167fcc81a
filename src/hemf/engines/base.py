"""Protocol of engines: what a fit asks of the ratings.

An engine owns the ratings. A fit sees posteriors of rows, additive statistics, counts and sums,
never an array of ratings. An engine holds nothing that is learnt: every method gets the model as it
is, so calling it again, in any process, gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

import numpy as np

from hemf._typing import Array, Float64Array, Int32Array, Int64Array, Matrix, Storage
from hemf.model.communities import Communities, Statistics
from hemf.model.moods import MoodPosterior, MoodPrior, Moods, MoodSums
from hemf.model.regression import Regression
from hemf.model.rows import Layout, Moments

RATINGS: Final = "ratings"
"""Name of the component of ratings."""
CHOICES: Final = "choices"
"""Name of the component of choices: which pairs were observed."""


class Rows(Protocol):
    """Compressed rows of one side, as `hemf.data.ratings.Sparse` holds them."""

    @property
    def indptr(self) -> Int64Array:
        """Where each row begins, and the last ends."""

    @property
    def indices(self) -> Int32Array:
        """Row numbers of the other side, ascending within a row."""

    @property
    def values(self) -> Array:
        """Ratings."""


class RatingTables(Protocol):
    """Ratings as `hemf.data.ratings.Ratings` holds them."""

    @property
    def by_user(self) -> Rows:
        """Ratings of each user."""

    @property
    def by_item(self) -> Rows:
        """Ratings of each item."""

    @property
    def timestamps(self) -> Int64Array | None:
        """Times in the order of ``by_user``, or None."""

    @property
    def mean(self) -> float:
        """Mean of the ratings."""

    @property
    def scale(self) -> float:
        """Standard deviation of the ratings."""


class LoadOptions(NamedTuple):
    """How an engine holds ratings."""

    dtype: Storage
    n_jobs: int | None = None
    """Number of threads or workers, counted as scikit-learn does."""
    sessions: bool = False
    """Whether ratings of one rater at one time are grouped, for moods."""
    background: float | None = None
    """Weight of pairs that were not observed; with it, there is a component of choices."""


class Side(Protocol):
    """The part of `hemf.model.side.Side` that an engine reads."""

    @property
    def layout(self) -> Layout:
        """Coordinates of the rows' vectors."""

    @property
    def communities(self) -> Communities:
        """Posterior of the communities."""

    @property
    def moments(self) -> Moments:
        """Posterior moments of every row."""

    @property
    def membership(self) -> Array:
        """q_i(d) of every row, (rows, D)."""

    @property
    def weights(self) -> Float64Array:
        """E[τ_i] of every row."""

    @property
    def regression(self) -> Regression | None:
        """Regression on features; None without."""


class Model(Protocol):
    """The part of a model that an engine reads."""

    @property
    def sides(self) -> Mapping[str, Side]:
        """Both sides by name."""

    @property
    def noise(self) -> float:
        """σ² of standardised ratings."""

    @property
    def moods(self) -> Moods | None:
        """Moods of raters, subtracted from their ratings; None without."""


@dataclass(frozen=True)
class HalfSweep:
    """Result of a half-sweep over the rows of one side."""

    moments: Moments
    """Posterior moments of every row."""
    membership: Array
    """q_i(d) of every row, (rows, D)."""
    statistics: Statistics
    """Additive over rows; of a_i - f_i where rows have features."""
    errors: Float64Array
    """Σ_j υ_j E(r - a·b)² of every row; slightly below zero where rounding exceeds it."""
    information: Float64Array
    """Information weight w_i = 1 - tr(P S_i)/L of every row; empty without features."""


class EntryTable(Protocol):
    """One table of entries that an engine holds, such as the ratings."""

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""

    @property
    def background(self) -> float:
        """w₀, the weight of a pair that was not observed; 0 for ratings."""

    @property
    def total_weight(self) -> float:
        """Σ u_ij over the entries, and w₀ for each pair that was not observed."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Type in which ratings are stored."""

    def counts(self, side: str) -> Int64Array:
        """Return the number of ratings of every row of a side."""

    def row(
        self, side: str, row: int, moods: Moods | None = None
    ) -> tuple[Int32Array, Float64Array]:
        """Return a row's columns, ascending, and its standardised ratings less ``moods``."""

    def row_sums(self, side: str, other: Float64Array) -> Float64Array:
        """Return Σ_j other_j of every row of a side, over the columns j that it has rated."""

    def residuals(self, pseudo_ratings: float) -> Matrix:
        """Return ratings less both sides' offsets, (users, items), to multiply with.

        Rows and columns are divided by the root of their number of ratings. Every one of them has
        ``pseudo_ratings`` ratings of zero in addition. Choices have no offsets.
        """

    def half_sweep(
        self, side: str, model: Model, *, coupled: bool = True, hold: bool = False
    ) -> HalfSweep:
        """Update all rows of a side against the moments of the other side.

        Moments and memberships of the side may be overwritten. With ``coupled`` q(a, z) is joint,
        otherwise the paper's q(a) q(z). With ``hold`` memberships stay.
        """

    def start_moods(self) -> Moods | None:
        """Return moods of zero for every session; None without timestamps."""

    def mood_information(self, model: Model) -> tuple[Float64Array, Float64Array]:
        """Return Σ τ_i υ_j/σ² of each session, and the same sum of (r - E[a·b]) times it."""

    def smooth_moods(
        self, prior: MoodPrior, precision: Float64Array, natural_mean: Float64Array
    ) -> tuple[MoodPosterior, MoodSums]:
        """Return the posterior of moods given the result of `mood_information`."""


class Engine(Protocol):
    """Owner of the entries of all components of a model."""

    @property
    def components(self) -> Mapping[str, EntryTable]:
        """Components by name: `RATINGS`, and `CHOICES` where they are learnt."""

    @classmethod
    def load(cls, ratings: RatingTables, options: LoadOptions) -> Self:
        """Return an engine that holds these ratings, standardised."""
