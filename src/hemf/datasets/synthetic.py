"""Ratings drawn from the model itself, with communities planted on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemf.datasets.planting import Block, Labels, Matrix, Population, check, plant
from hemf.errors import ParameterError


class PlantOptions(TypedDict, total=False):
    """What :func:`plant` takes beside the two sizes and the seed; its defaults hold."""

    n_factors: int
    user_communities: int
    item_communities: int
    separation: float
    user_weights: ArrayLike | None
    item_weights: ArrayLike | None
    concentration: float | None
    covariance_freedom: float | None
    mean: float
    signal: float
    noise: float
    offset: float
    popularity: float
    levels: Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class SyntheticRatings:
    """Drawn ratings, and the truth behind them.

    >>> data = draw(30, 20, density=0.25, rng=1)
    >>> len(data.ratings), len(data.user_community), data.noise
    (150, 30, 0.3)
    """

    users: NDArray[np.int32]  # positions: user_ids[users] are the names
    items: NDArray[np.int32]
    ratings: NDArray[np.float32]
    timestamps: NDArray[np.int64] | None  # seconds since 1970, rising
    population: Population
    user_word: str = "user"
    item_word: str = "item"

    @property
    def user_community(self) -> Labels:
        """Community of every user."""
        return self.population.user_community

    @property
    def item_community(self) -> Labels:
        """Community of every item."""
        return self.population.item_community

    @property
    def user_factors(self) -> Matrix:
        """Factors of every user."""
        return self.population.user_factors

    @property
    def item_factors(self) -> Matrix:
        """Factors of every item."""
        return self.population.item_factors

    @property
    def noise(self) -> float:
        """Standard deviation of the noise."""
        return self.population.noise

    @property
    def user_ids(self) -> NDArray[np.str_]:
        """Name of every user.

        >>> str(demo_ratings(0).user_ids[42])
        'user-0042'
        """
        return _ids(self.user_word, self.population.n_users)

    @property
    def item_ids(self) -> NDArray[np.str_]:
        """Name of every item.

        >>> str(demo_ratings(0).item_ids[137])
        'film-0137'
        """
        return _ids(self.item_word, self.population.n_items)

    def frame(self) -> Any:
        """Return a ``pyarrow.Table`` of user, item, rating and, where there are, timestamp.

        Users and items are named. ``.to_pandas()`` makes it a pandas frame.

        >>> draw(30, 20, n_ratings=5, rng=1).frame().column_names
        ['user', 'item', 'rating']
        """
        import pyarrow as pa

        columns = {
            "user": pa.DictionaryArray.from_arrays(self.users, self.user_ids).dictionary_decode(),
            "item": pa.DictionaryArray.from_arrays(self.items, self.item_ids).dictionary_decode(),
            "rating": self.ratings,
        }
        if self.timestamps is not None:
            columns["timestamp"] = self.timestamps
        return pa.table(columns)


def draw(
    n_users: int,
    n_items: int,
    *,
    density: float | None = None,
    n_ratings: int | None = None,
    rng: int | np.random.Generator | None = None,
    **population: Unpack[PlantOptions],
) -> SyntheticRatings:
    """Draw ratings of distinct pairs from a planted population.

    Say either ``density``, the share of all pairs that is rated, or ``n_ratings``. Everything
    else is handed to :func:`plant`.

    >>> data = draw(200, 100, density=0.05, user_communities=4, item_communities=3, rng=0)
    >>> len(data.ratings), len(set(data.user_community.tolist()))
    (1000, 4)
    """
    if (density is None) == (n_ratings is None):
        raise ParameterError("say either density or n_ratings, and not both")
    if density is not None:
        check("density", density, 0 < density <= 1, "above 0 and at most 1")
        n_ratings = max(1, round(density * n_users * n_items))
    assert n_ratings is not None
    people = plant(n_users, n_items, rng=rng, **population)
    ((users, items, ratings),) = people.blocks(n_ratings, block=n_ratings)
    return SyntheticRatings(
        users=users, items=items, ratings=ratings, timestamps=None, population=people
    )


def draw_blocks(
    n_users: int,
    n_items: int,
    *,
    n_ratings: int = 100_000_000,
    block: int = 1_000_000,
    rng: int | np.random.Generator | None = None,
    **population: Unpack[PlantOptions],
) -> Iterator[Block]:
    """Draw as many ratings as wanted, a block at a time, in memory that does not grow.

    Yields ``(users, items, ratings)`` with at most ``block`` rows each. No pair comes twice. The
    stream depends on the seed and not on ``block``, and is what :func:`draw` gives for the same
    seed. To know the truth behind it, call :func:`plant` and its ``blocks``.

    >>> blocks = draw_blocks(1000, 500, n_ratings=2500, block=1000, rng=0)
    >>> [len(ratings) for users, items, ratings in blocks]
    [1000, 1000, 500]
    """
    return plant(n_users, n_items, rng=rng, **population).blocks(n_ratings, block=block)


def demo_ratings(rng: int | np.random.Generator | None = 0) -> SyntheticRatings:
    """Draw a small film club: 600 users, 300 films, 30,000 ratings of 1 to 5 stars in two years.

    There are three communities on each side. Rows are in order of time.

    >>> demo_ratings(0).frame().slice(0, 1).column_names
    ['user', 'item', 'rating', 'timestamp']
    """
    generator = np.random.default_rng(rng)
    people = plant(
        600, 300, popularity=0.4, levels=(1.0, 2.0, 3.0, 4.0, 5.0), noise=0.4, rng=generator
    )
    ((users, items, ratings),) = people.blocks(30_000, block=30_000)
    january_2022, two_years = 1_640_995_200, 2 * 365 * 86_400
    timestamps = np.sort(january_2022 + generator.integers(two_years, size=len(ratings)))
    return SyntheticRatings(
        users=users,
        items=items,
        ratings=ratings,
        timestamps=timestamps,
        population=people,
        item_word="film",
    )


def _ids(word: str, count: int) -> NDArray[np.str_]:
    width = max(4, len(str(count - 1)))
    return np.array([f"{word}-{number:0{width}d}" for number in range(count)])
