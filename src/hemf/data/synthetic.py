"""Synthetic ratings: populations with planted communities, and the ratings they give.

Factors of a row are normal around the mean of its community, and a rating is the product of two
rows' factors plus noise: ``a_i | z_i=d ~ N(μ_d, Σ_d)``, ``r_ij ~ N(c + a_i·b_j, σ²)``. Community
means are placed rather than drawn, so that the separation of the communities can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from hemf._checks import check_int, check_number, check_value
from hemf._typing import AnyArray, ArrowTable, Float32Array, Float64Array, Int32Array, Int64Array
from hemf.data.sampling import Pairs, distinct_pairs, divide_by_weight, uneven_pairs, uniforms
from hemf.errors import ParameterError

Seed: TypeAlias = int | np.random.Generator | None
Block: TypeAlias = tuple[Int32Array, Int32Array, Float32Array]
"""Users, items and ratings of some rows."""

_CHUNK = 1 << 14  # ratings computed at a time, so that their factors stay in the cache


@dataclass(frozen=True, kw_only=True)
class Population:
    """Users and items with their communities and factors.

    >>> plant(40, 30, user_communities=2, rng=0).user_factors.shape
    (40, 5)
    """

    user_community: Int32Array  # community of every user, from 0
    item_community: Int32Array
    user_factors: Float64Array  # (users, factors)
    item_factors: Float64Array
    user_means: Float64Array  # (communities, factors)
    item_means: Float64Array
    user_offsets: Float64Array
    item_offsets: Float64Array
    mean: float
    noise: float  # standard deviation
    popularity: float
    levels: Float64Array | None
    key: int  # decides which pairs are rated, and the noise

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_community)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_community)

    def expected(self, users: AnyArray, items: AnyArray) -> Float64Array:
        """Ratings before noise and rounding."""
        a = self.user_factors.take(users, axis=0)  # three times as fast as indexing
        b = self.item_factors.take(items, axis=0)
        expected: Float64Array = np.einsum("ij,ij->i", a, b)
        expected += self.mean + self.user_offsets.take(users) + self.item_offsets.take(items)
        return expected

    def blocks(
        self, n_ratings: int, *, block: int = 1_000_000, pairs: Pairs | None = None
    ) -> Iterator[Block]:
        """Yield ``n_ratings`` ratings of distinct pairs, ``block`` at a time.

        The stream does not depend on the size of the blocks. ``pairs`` are the pairs to rate; by
        default they are drawn by ``popularity``.

        >>> people = plant(40, 30, rng=0)
        >>> [len(users) for users, items, ratings in people.blocks(100, block=60)]
        [60, 40]
        """
        check_int("n_ratings", n_ratings, low=1, high=self.n_users * self.n_items)
        check_int("block", block, low=1)
        return self._blocks(n_ratings, block, pairs)

    def _blocks(self, n_ratings: int, block: int, pairs: Pairs | None) -> Iterator[Block]:
        if pairs is None:
            pairs = distinct_pairs(
                self.n_users, self.n_items, n_ratings, popularity=self.popularity, key=self.key
            )
        for start in range(0, n_ratings, block):
            size = min(block, n_ratings - start)
            users, items = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
            ratings = np.empty(size, dtype=np.float32)
            for low in range(0, size, _CHUNK):
                part = slice(low, min(low + _CHUNK, size))
                users[part], items[part] = pairs(start + part.start, start + part.stop)
                positions = np.arange(start + part.start, start + part.stop, dtype=np.uint64)
                noise = self.noise * ndtri(uniforms(self.key + 3, positions))
                ratings[part] = self.nearest_levels(self.expected(users[part], items[part]) + noise)
            yield users, items, ratings

    def nearest_levels(self, ratings: Float64Array) -> Float64Array:
        """Round ratings to the nearest of the levels, if there are any."""
        if self.levels is None:
            return ratings
        borders = (self.levels[1:] + self.levels[:-1]) / 2
        return self.levels[np.searchsorted(borders, ratings)]


class PlantOptions(TypedDict, total=False):
    """Keyword arguments of `plant`, which documents them."""

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


_DEFAULTS = PlantOptions(
    n_factors=5, user_communities=3, item_communities=3, separation=6.0, user_weights=None,
    item_weights=None, concentration=None, covariance_freedom=None, mean=3.5, signal=1.0,
    noise=0.3, offset=0.0, popularity=0.0, levels=None,
)  # fmt: skip


def plant(
    n_users: int, n_items: int, *, rng: Seed = None, **options: Unpack[PlantOptions]
) -> Population:
    """Place communities on both sides and draw the factors of every row.

    Parameters
    ----------
    n_users, n_items : int
        Sizes.
    rng : int or Generator, optional
        Seed or source of randomness.
    n_factors : int, default 5
        Number of factors.
    user_communities, item_communities : int, default 3
        Number of communities on each side.
    separation : float, default 6
        Distance of the two nearest community means of a side, in standard deviations within a
        community (Mahalanobis). Of two equal communities at this distance, a share
        Φ(-separation/2) of the rows is nearer to the other one: 7 % at 3, 0.1 % at 6. All pairs
        are equally distant if there are at most ``n_factors + 1`` communities.
    user_weights, item_weights : array, optional
        Shares of the communities, exact up to rounding; equal by default.
    concentration : float, optional
        Draw the shares from sticks Beta(1, concentration), averaged with equal shares.
    covariance_freedom : float, optional
        Draw the covariance of every community from an inverse Wishart with that many degrees of
        freedom (more than ``n_factors + 1``) and the identity as its mean. By default all are the
        identity.
    mean : float, default 3.5
        Global offset of the ratings.
    signal, noise : float, default 1 and 0.3
        Root mean square of ``a·b``, and standard deviation of the noise.
    offset : float, default 0
        Standard deviation of an offset of every user and every item.
    popularity : float, default 0
        0: all pairs are equally likely. Else the number of ratings of an item is proportional to
        ``1 / rank ** popularity``.
    levels : sequence of float, optional
        Round every rating to the nearest of these, such as ``(1, 2, 3, 4, 5)``.

    Returns
    -------
    Population

    Examples
    --------
    >>> people = plant(90, 30, user_communities=3, rng=0)
    >>> np.bincount(people.user_community).tolist()
    [30, 30, 30]

    """
    for unknown in options.keys() - _DEFAULTS.keys():
        raise TypeError(f"plant() got an unexpected keyword argument {unknown!r}")
    chosen: PlantOptions = {**_DEFAULTS, **options}
    n_factors = check_int("n_factors", chosen["n_factors"], low=1)
    separation = check_number("separation", chosen["separation"], low=0.0)
    noise = check_number("noise", chosen["noise"], low=0.0)
    offset = check_number("offset", chosen["offset"], low=0.0)
    signal = chosen["signal"]
    check_value("signal", signal, 0 < signal < np.inf, "positive")
    popularity = check_number("popularity", chosen["popularity"], low=0.0, high=10.0)
    generator = np.random.default_rng(rng)

    def side(n_rows: int, name: str, communities: int, weights: ArrayLike | None) -> _Side:
        check_int(f"n_{name}s", n_rows, low=1)
        check_int(f"{name}_communities", communities, low=1, high=n_rows)
        if weights is None:
            shares = _draw_shares(communities, chosen["concentration"], generator)
        else:
            shares = np.asarray(weights, dtype=np.float64)
            valid = shares.shape == (communities,) and bool(np.all(shares > 0))
            check_value(f"{name}_weights", weights, valid, f"{communities} positive numbers")
            shares = shares / shares.sum()
        covariances = _draw_covariances(
            communities, n_factors, chosen["covariance_freedom"], generator
        )
        return _draw_side(n_rows, shares, separation, covariances, generator)

    users = side(n_users, "user", chosen["user_communities"], chosen["user_weights"])
    items = side(n_items, "item", chosen["item_communities"], chosen["item_weights"])
    a, b = users.factors, items.factors
    # Root mean square of a·b over all pairs: tr(E[aaᵀ] E[bbᵀ])
    size = np.sqrt(np.sum((a.T @ a) * (b.T @ b)) / (n_users * n_items))
    # The same rotation for both sides: products stay, but no factor is an axis of the communities.
    rotation = np.sqrt(signal / size) * _random_rotation(n_factors, generator)
    return Population(
        user_community=users.community,
        item_community=items.community,
        user_factors=a @ rotation,
        item_factors=b @ rotation,
        user_means=users.means @ rotation,
        item_means=items.means @ rotation,
        user_offsets=offset * generator.standard_normal(n_users),
        item_offsets=offset * generator.standard_normal(n_items),
        mean=float(chosen["mean"]),
        noise=noise,
        popularity=popularity,
        levels=None if chosen["levels"] is None else _check_levels(chosen["levels"]),
        key=int(generator.integers(2**62)),
    )


class _Side(NamedTuple):
    community: Int32Array
    factors: Float64Array
    means: Float64Array


def _draw_side(
    n_rows: int,
    shares: Float64Array,
    separation: float,
    covariances: Float64Array,
    rng: np.random.Generator,
) -> _Side:
    """Place the community means, then draw the rows around them."""
    communities, n_factors = len(shares), covariances.shape[-1]
    means = _place_means(communities, n_factors, rng)
    if communities > 1:
        means *= separation / _smallest_distance(means, covariances)
    counts = divide_by_weight(shares, n_rows, most=n_rows)
    if not counts.all():
        raise ParameterError(
            f"community {counts.argmin()} with a share of {shares[counts.argmin()]:.3g} would "
            f"have none of the {n_rows} rows; give it more weight, or ask for more rows",
            value=shares,
        )
    community = rng.permutation(np.repeat(np.arange(communities, dtype=np.int32), counts))
    factors = rng.standard_normal((n_rows, n_factors))
    for number, root in enumerate(np.linalg.cholesky(covariances)):
        members = community == number
        factors[members] = means[number] + factors[members] @ root.T
    return _Side(community, factors, means)


def _place_means(count: int, dimensions: int, rng: np.random.Generator) -> Float64Array:
    """Return distant points: a regular simplex if there are enough dimensions.

    The simplex lies in the first dimensions on either side. In other dimensions than those of the
    items, users of different communities would rate alike.
    """
    if count <= dimensions + 1:
        # Unit vectors are equidistant. The eigenvectors of the centring matrix are their
        # coordinates relative to their centre, in one dimension less.
        _, vectors = np.linalg.eigh(np.eye(count) - 1.0 / count)
        simplex = np.zeros((count, dimensions))
        simplex[:, : count - 1] = vectors[:, 1:] @ _random_rotation(count - 1, rng)
        return simplex
    candidates = rng.standard_normal((100 * count, dimensions))
    chosen = [0]
    distance = np.full(len(candidates), np.inf)
    while len(chosen) < count:
        step = np.linalg.norm(candidates - candidates[chosen[-1]], axis=1)
        distance = np.minimum(distance, step)
        chosen.append(int(distance.argmax()))
    points = candidates[chosen]
    centred: Float64Array = points - points.mean(axis=0)
    return centred


def _random_rotation(dimensions: int, rng: np.random.Generator) -> Float64Array:
    rotation: Float64Array = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]
    return rotation


def _smallest_distance(means: Float64Array, covariances: Float64Array) -> float:
    """Return the smallest Mahalanobis distance of two means, by their average covariance."""
    first, second = np.triu_indices(len(means), k=1)
    gaps = means[first] - means[second]
    between = (covariances[first] + covariances[second]) / 2
    solved = np.linalg.solve(between, gaps[:, :, None])[:, :, 0]
    return float(np.sqrt(np.sum(gaps * solved, axis=1).min()))


def _draw_covariances(
    communities: int, n_factors: int, freedom: float | None, rng: np.random.Generator
) -> Float64Array:
    identity = np.eye(n_factors)
    if freedom is None:
        return np.broadcast_to(identity, (communities, n_factors, n_factors))
    least = n_factors + 1
    expected = f"above n_factors + 1 = {least}"
    check_value("covariance_freedom", freedom, freedom > least, expected)

    from scipy.stats import invwishart

    drawn = invwishart(df=freedom, scale=(freedom - least) * identity).rvs(
        size=communities, random_state=rng
    )
    return np.reshape(drawn, (communities, n_factors, n_factors))


def _draw_shares(
    communities: int, concentration: float | None, rng: np.random.Generator
) -> Float64Array:
    equal = np.full(communities, 1.0 / communities)
    if concentration is None:
        return equal
    check_value("concentration", concentration, 0 < concentration < np.inf, "positive")
    sticks = rng.beta(1.0, concentration, size=communities)
    sticks[-1] = 1.0  # the truncation
    drawn = sticks * np.concatenate(([1.0], np.cumprod(1.0 - sticks[:-1])))
    shares: Float64Array = (drawn + equal) / 2
    return shares


def _check_levels(levels: Sequence[float]) -> Float64Array:
    values = np.asarray(levels, dtype=np.float64)
    valid = values.ndim == 1 and len(values) > 1 and bool(np.all(np.diff(values) > 0))
    check_value("levels", levels, valid, "two or more ascending numbers")
    return values


# -- ratings -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SyntheticRatings:
    """Drawn ratings, and the population that gave them.

    >>> data = draw(30, 20, density=0.25, rng=1)
    >>> len(data.ratings), len(data.user_community), data.noise
    (150, 30, 0.3)
    """

    users: Int32Array  # positions in user_ids
    items: Int32Array
    ratings: Float32Array
    timestamps: Int64Array | None = None  # seconds since 1970, ascending
    population: Population
    user_word: str = "user"
    item_word: str = "item"

    @property
    def user_community(self) -> Int32Array:
        """Community of every user."""
        return self.population.user_community

    @property
    def item_community(self) -> Int32Array:
        """Community of every item."""
        return self.population.item_community

    @property
    def user_factors(self) -> Float64Array:
        """Factors of every user."""
        return self.population.user_factors

    @property
    def item_factors(self) -> Float64Array:
        """Factors of every item."""
        return self.population.item_factors

    @property
    def noise(self) -> float:
        """Standard deviation of the noise."""
        return self.population.noise

    @property
    def user_ids(self) -> AnyArray:
        """Name of every user."""
        return _ids(self.user_word, self.population.n_users)

    @property
    def item_ids(self) -> AnyArray:
        """Name of every item."""
        return _ids(self.item_word, self.population.n_items)

    def frame(self) -> ArrowTable:
        """Return a ``pyarrow.Table`` of user, item, rating and, if there are any, timestamp."""
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
    rng: Seed = None,
    **population: Unpack[PlantOptions],
) -> SyntheticRatings:
    """Draw ratings of distinct pairs from a planted population.

    Parameters
    ----------
    n_users, n_items : int
        Sizes.
    density, n_ratings : float and int
        Either the share of all pairs that is rated, or the number of ratings.
    rng : int or Generator, optional
        Seed or source of randomness.
    **population
        Options of :func:`plant`.

    Returns
    -------
    SyntheticRatings

    Examples
    --------
    >>> data = draw(200, 100, density=0.05, user_communities=4, item_communities=3, rng=0)
    >>> len(data.ratings), len(set(data.user_community.tolist()))
    (1000, 4)

    """
    if (density is None) == (n_ratings is None):
        raise ParameterError("give either density or n_ratings, and not both")
    if density is not None:
        check_value("density", density, 0 < density <= 1, "above 0 and at most 1")
        n_ratings = max(1, round(density * n_users * n_items))
    assert n_ratings is not None
    people = plant(n_users, n_items, rng=rng, **population)
    ((users, items, ratings),) = people.blocks(n_ratings, block=n_ratings)
    return SyntheticRatings(users=users, items=items, ratings=ratings, population=people)


def draw_blocks(
    n_users: int,
    n_items: int,
    *,
    n_ratings: int = 100_000_000,
    block: int = 1_000_000,
    rng: Seed = None,
    **population: Unpack[PlantOptions],
) -> Iterator[Block]:
    """Draw any number of ratings, a block at a time, in constant memory.

    Yields ``(users, items, ratings)`` of at most ``block`` rows each. The ratings are those of
    :func:`draw` with the same seed. To have the population too, call :func:`plant` and its
    ``blocks``.

    >>> blocks = draw_blocks(1000, 500, n_ratings=2500, block=1000, rng=0)
    >>> [len(ratings) for users, items, ratings in blocks]
    [1000, 1000, 500]
    """
    return plant(n_users, n_items, rng=rng, **population).blocks(n_ratings, block=block)


def demo_ratings(rng: Seed = 0) -> SyntheticRatings:
    """Draw 30,000 ratings of 1 to 5 stars of 600 users for 300 films, over two years.

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


def _ids(word: str, count: int) -> AnyArray:
    width = max(4, len(str(count - 1)))
    return np.array([f"{word}-{number:0{width}d}" for number in range(count)])


# -- the shape of the Netflix Prize ---------------------------------------------------------------
#
# As many users, movies and ratings as the Netflix Prize has, which is no longer available, or fewer
# in the same proportion. Where the constants come from, and how far they can be relied on:
#
# * 480,189 users, 17,770 movies, 100 million ratings and five stars are printed in the paper; the
#   exact number of ratings is the one that is published for the data set.
# * The number of ratings per user and per movie (quartiles and extremes) and the mean of 3.63 stars
#   before rounding are neither in the paper nor computed from the data. They are about what is
#   known of the set. Above the quartiles they are chosen such that users have 209 and movies 5,667
#   ratings on average, as the totals demand.
# * Factors, communities, their separation, signal, noise and offsets are invented.
#
# Errors measured on these ratings say nothing about errors on the Netflix Prize.

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
