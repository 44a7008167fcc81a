"""Synthetic ratings with the size and shape of the Netflix Prize, which is no longer available.

The data have as many users, movies and ratings as the Netflix Prize, or fewer in the same
proportion; some users and movies have far more ratings than others; ratings are one to five stars.
Tastes are drawn from the model, with communities on both sides.

Where the constants come from, and how far they can be relied on:

* 480,189 users, 17,770 movies, 100 million ratings and five stars are printed in the paper; the
  exact number of ratings is the one that is published for the data set.
* The number of ratings per user and per movie (quartiles and extremes) and the mean of 3.63 stars
  before rounding are neither in the paper nor computed from the data. They are about what is known
  of the set. Above the quartiles they are chosen such that users have 209 and movies 5,667 ratings
  on average, as the totals demand.
* Factors, communities, their separation, signal, noise and offsets are invented.

Errors measured on these ratings say nothing about errors on the Netflix Prize.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hemf._checks import check_number
from hemf._typing import Float64Array
from hemf.data.sampling import Pairs, uneven_pairs
from hemf.data.synthetic import Block, Population, Seed, SyntheticRatings, plant

NETFLIX_USERS = 480_189
NETFLIX_ITEMS = 17_770
NETFLIX_RATINGS = 100_480_507

# Largest number of ratings among a share of the users or movies.
_USER_QUANTILES = {
    0.0: 1, 0.25: 39, 0.5: 96, 0.75: 259, 0.9: 535, 0.99: 1250, 0.999: 1900, 0.9999: 3000,
    1.0: 17_653,
}  # fmt: skip
_MOVIE_QUANTILES = {
    0.0: 3, 0.25: 192, 0.5: 561, 0.75: 2668, 0.9: 12_000, 0.95: 26_000, 0.99: 82_000, 1.0: 232_944,
}  # fmt: skip


def netflix_like(scale: float = 0.01, *, rng: Seed = 0) -> SyntheticRatings:
    """Draw ratings with the shape of the Netflix Prize, ``scale`` times as many.

    The numbers of users and movies are multiplied by the square root of ``scale``, so that 1.2 % of
    all pairs are rated. Tastes are invented: errors measured here say nothing about errors there.

    >>> data = netflix_like(0.0001, rng=0)
    >>> len(data.ratings), len(data.user_ids), len(data.item_ids)
    (10048, 4802, 178)
    """
    people, n_ratings, pairs = _shape(scale, rng)
    ((users, items, ratings),) = people.blocks(n_ratings, block=n_ratings, pairs=pairs)
    return SyntheticRatings(
        users=users, items=items, ratings=ratings, population=people, item_word="movie"
    )


def netflix_like_blocks(
    scale: float = 1.0, *, block: int = 1_000_000, rng: Seed = 0
) -> Iterator[Block]:
    """Yield the ratings of :func:`netflix_like`, ``block`` rows at a time, in constant memory.

    >>> users, items, ratings = next(netflix_like_blocks(0.001, block=1000, rng=0))
    >>> len(ratings), sorted(set(ratings.tolist()))
    (1000, [1.0, 2.0, 3.0, 4.0, 5.0])
    """
    people, n_ratings, pairs = _shape(scale, rng)
    return people.blocks(n_ratings, block=block, pairs=pairs)


def _shape(scale: float, rng: Seed) -> tuple[Population, int, Pairs]:
    check_number("scale", scale, low=1e-5, high=1.0)
    n_users, n_items = (max(round(n * scale**0.5), 2) for n in (NETFLIX_USERS, NETFLIX_ITEMS))
    n_ratings = max(round(NETFLIX_RATINGS * scale), 1)
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
    pairs = uneven_pairs(
        generator.permutation(_counts(_USER_QUANTILES, n_users)),
        generator.permutation(_counts(_MOVIE_QUANTILES, n_items)),
        n_ratings,
        key=people.key,
    )
    return people, n_ratings, pairs


def _counts(quantiles: dict[float, int], n: int) -> Float64Array:
    """Return numbers of ratings of n rows; logarithms are interpolated between the quantiles."""
    shares = (np.arange(n) + 0.5) / n
    logs = np.interp(shares, list(quantiles), np.log(list(quantiles.values())))
    counts: Float64Array = np.exp(logs)
    return counts
