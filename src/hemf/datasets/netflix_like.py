"""Ratings in the shape of the Netflix Prize, drawn from the model: a stand-in for what is no more.

As many users, movies and ratings, or fewer in the same proportion; some users and some movies with
far more ratings than others; one to five stars. Tastes are planted, with communities on both sides.

Where the constants are from, and how far they can be relied on:

* 480,189 users, 17,770 movies, 100 million ratings, and the five stars are what the paper prints of
  the Netflix Prize; the exact number of ratings is that of the catalogue here.
* The numbers of ratings that users and movies have (quartiles and ends), and the mean of 3.63 stars
  before rounding, are neither in the paper nor computed from the data, which are not to be had:
  they are about what is known of the set, and give the shape alone. Above the quartiles they are
  chosen such that users have 209 and movies 5,667 ratings in the mean, as those totals demand.
* Factors, communities, their separation, signal, noise and offsets are made up.

So nothing that is measured on these ratings says anything about errors on the Netflix Prize.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hemf.datasets.catalog import find
from hemf.datasets.margins import Floats, UnevenPairs
from hemf.datasets.planting import Block, Population, check, plant
from hemf.datasets.synthetic import SyntheticRatings

# Numbers of ratings that a share of the users or movies has at most; see above for what they are.
_OF_USERS = {
    0.0: 1, 0.25: 39, 0.5: 96, 0.75: 259, 0.9: 535, 0.99: 1250, 0.999: 1900, 0.9999: 3000,
    1.0: 17_653,
}  # fmt: skip
_OF_MOVIES = {
    0.0: 3, 0.25: 192, 0.5: 561, 0.75: 2668, 0.9: 12_000, 0.95: 26_000, 0.99: 82_000, 1.0: 232_944,
}  # fmt: skip


def netflix_like(
    scale: float = 0.01, *, rng: int | np.random.Generator | None = 0
) -> SyntheticRatings:
    """Draw ratings in the shape of the Netflix Prize, ``scale`` times as many.

    Only sizes and shape are about those of the Netflix Prize; the tastes are made up, and errors
    measured here say nothing about errors there.

    Users and movies are each fewer by the root of ``scale``: the share of all pairs that is rated,
    1.2 %, stays, and the numbers of ratings a user or a movie has keep their proportions.

    >>> data = netflix_like(0.0001, rng=0)
    >>> len(data.ratings), len(data.user_ids), len(data.item_ids)
    (10048, 4802, 178)
    """
    people, n_ratings, pairs = _shape(scale, rng)
    ((users, items, ratings),) = people.blocks(n_ratings, block=n_ratings, pairs=pairs)
    return SyntheticRatings(
        users=users,
        items=items,
        ratings=ratings,
        timestamps=None,
        population=people,
        item_word="movie",
    )


def netflix_like_blocks(
    scale: float = 1.0,
    *,
    block: int = 1_000_000,
    rng: int | np.random.Generator | None = 0,
) -> Iterator[Block]:
    """Yield what :func:`netflix_like` gives, ``block`` rows at a time, in memory that stays small.

    >>> users, items, ratings = next(netflix_like_blocks(0.001, block=1000, rng=0))
    >>> len(ratings), sorted(set(ratings.tolist()))
    (1000, [1.0, 2.0, 3.0, 4.0, 5.0])
    """
    people, n_ratings, pairs = _shape(scale, rng)
    return people.blocks(n_ratings, block=block, pairs=pairs)


def _shape(
    scale: float, rng: int | np.random.Generator | None
) -> tuple[Population, int, UnevenPairs]:
    check("scale", scale, 1e-5 <= scale <= 1, "between 0.00001 and 1")
    whole = find("netflix")
    assert whole.users is not None
    assert whole.items is not None
    assert whole.ratings is not None
    n_users, n_items = (max(round(size * scale**0.5), 2) for size in (whole.users, whole.items))
    n_ratings = max(round(whole.ratings * scale), 1)
    generator = np.random.default_rng(rng)
    people = plant(
        n_users,
        n_items,
        n_factors=8,
        user_communities=4,
        item_communities=4,
        separation=3.0,
        mean=3.63,
        signal=0.45,
        noise=0.85,
        offset=0.4,
        levels=(1.0, 2.0, 3.0, 4.0, 5.0),
        rng=generator,
    )
    pairs = UnevenPairs(
        generator.permutation(_quantiles(_OF_USERS, n_users)),
        generator.permutation(_quantiles(_OF_MOVIES, n_items)),
        n_ratings,
        key=people.key,
    )
    return people, n_ratings, pairs


def _quantiles(known: dict[float, int], n: int) -> Floats:
    """Numbers of ratings of n rows, between the known ones in proportion to their logarithms."""
    shares = (np.arange(n) + 0.5) / n
    logs = np.interp(shares, list(known), np.log(list(known.values())))
    numbers: Floats = np.exp(logs)
    return numbers
