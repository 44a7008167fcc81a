"""Populations with planted communities, and the stream of ratings they give.

A row's factors are normal around the mean of its community, a rating is the product of two
rows' factors plus noise (MODEL: ``a_i | z_i=d ~ N(μ_d, Σ_d)``, ``r_ij ~ N(c + a_i·b_j, σ²)``).
The community means are not drawn but placed, so that how clear the communities are is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from hemf.data.sampling import DistinctPairs, shares, uniforms
from hemf.errors import ParameterError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Labels = NDArray[np.int32]
Block = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
"""Users, items and ratings of some rows."""
Pairs = Callable[[int, int], tuple[NDArray[np.int32], NDArray[np.int32]]]
"""Gives users and items of the pairs at positions from … to of a stream."""

_CHUNK = 1 << 14  # ratings computed at a time: their factors stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Population:
    """Users and items with their communities and factors, ready to rate.

    >>> plant(40, 30, user_communities=2, rng=0).user_factors.shape
    (40, 5)
    """

    user_community: Labels  # community of every user, from 0
    item_community: Labels
    user_factors: Matrix  # (users, factors)
    item_factors: Matrix
    user_means: Matrix  # (communities, factors)
    item_means: Matrix
    user_offsets: Vector
    item_offsets: Vector
    mean: float
    noise: float  # standard deviation
    popularity: float
    levels: Vector | None
    key: int  # decides which pairs are rated, and the noise

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_community)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_community)

    def expected(self, users: NDArray[Any], items: NDArray[Any]) -> Vector:
        """Ratings before noise and rounding.

        >>> people = plant(4, 3, user_communities=1, item_communities=1, mean=3.0, rng=0)
        >>> people.expected(np.array([0, 1]), np.array([2, 2])).shape
        (2,)
        """
        a = self.user_factors.take(users, axis=0)  # three times as fast as indexing
        b = self.item_factors.take(items, axis=0)
        expected: Vector = np.einsum("ij,ij->i", a, b)
        expected += self.mean + self.user_offsets.take(users) + self.item_offsets.take(items)
        return expected

    def blocks(
        self, n_ratings: int, *, block: int = 1_000_000, pairs: Pairs | None = None
    ) -> Iterator[Block]:
        """Yield ``n_ratings`` ratings of distinct pairs, ``block`` at a time.

        The stream is the same whatever the size of its blocks. ``pairs`` says who rates what,
        where it is not to be drawn by ``popularity``.

        >>> people = plant(40, 30, rng=0)
        >>> [len(users) for users, items, ratings in people.blocks(100, block=60)]
        [60, 40]
        """
        _check_count(n_ratings, self.n_users, self.n_items)
        require("block", block, block >= 1, "at least 1")
        return self._blocks(n_ratings, block, pairs)

    def _blocks(self, n_ratings: int, block: int, pairs: Pairs | None) -> Iterator[Block]:
        if pairs is None:
            pairs = DistinctPairs(
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
                ratings[part] = self._on_scale(self.expected(users[part], items[part]) + noise)
            yield users, items, ratings

    def _on_scale(self, ratings: Vector) -> Vector:
        if self.levels is None:
            return ratings
        borders = (self.levels[1:] + self.levels[:-1]) / 2
        return self.levels[np.searchsorted(borders, ratings)]


def plant(
    n_users: int,
    n_items: int,
    *,
    n_factors: int = 5,
    user_communities: int = 3,
    item_communities: int = 3,
    separation: float = 6.0,
    user_weights: ArrayLike | None = None,
    item_weights: ArrayLike | None = None,
    concentration: float | None = None,
    covariance_freedom: float | None = None,
    mean: float = 3.5,
    signal: float = 1.0,
    noise: float = 0.3,
    offset: float = 0.0,
    popularity: float = 0.0,
    levels: Sequence[float] | None = None,
    rng: int | np.random.Generator | None = None,
) -> Population:
    """Place communities on both sides and draw every row's factors.

    Parameters
    ----------
    n_users, n_items, n_factors : int
        Sizes.
    user_communities, item_communities : int
        How many communities to plant on each side.
    separation : float
        Distance of the two nearest community means of a side, in standard deviations within a
        community (Mahalanobis). Of two equal communities that far apart, a share
        Φ(-separation/2) of the rows lies nearer to the other one: 7 % at 3, 0.1 % at 6.
        All pairs are equally far apart while there are at most ``n_factors + 1`` communities.
    user_weights, item_weights : array, optional
        Shares of the communities, kept exactly up to rounding; equal by default.
    concentration : float, optional
        Draw the shares instead, from sticks Beta(1, concentration), levelled so that every
        community has at least half of an equal share.
    covariance_freedom : float, optional
        Draw every community's own covariance from an inverse Wishart with that many degrees
        of freedom (more than ``n_factors + 1``) and the identity as its mean. By default all
        are the identity.
    mean : float
        Global offset of the ratings.
    signal, noise : float
        Root mean square of ``a·b``, and standard deviation of what is added to it.
    offset : float
        Standard deviation of a further offset of every user and every item.
    popularity : float
        0: all pairs are equally likely. Else an item's number of ratings goes with
        ``1 / rank ** popularity``.
    levels : sequence of float, optional
        Round every rating to the nearest of these, such as ``(1, 2, 3, 4, 5)``.
    rng : int or Generator, optional
        Seed or source of randomness.

    >>> people = plant(90, 30, user_communities=3, rng=0)
    >>> np.bincount(people.user_community).tolist()
    [30, 30, 30]

    """
    for name, value in (("n_users", n_users), ("n_items", n_items), ("n_factors", n_factors)):
        require(name, value, value >= 1, "at least 1")
    for name, size in (("separation", separation), ("noise", noise), ("offset", offset)):
        require(name, size, 0 <= size < np.inf, "a finite number, not negative")
    require("signal", signal, 0 < signal < np.inf, "positive")
    require("popularity", popularity, 0 <= popularity <= 10, "between 0 and 10")
    generator = np.random.default_rng(rng)

    def side(rows: int, name: str, communities: int, weights: ArrayLike | None) -> _Side:
        parts = _weights(name, rows, communities, weights, concentration, generator)
        return _draw_side(rows, n_factors, parts, separation, covariance_freedom, generator)

    users = side(n_users, "user", user_communities, user_weights)
    items = side(n_items, "item", item_communities, item_weights)
    a, b = users.factors, items.factors
    # Root mean square of a·b over all pairs: tr(E[aaᵀ] E[bbᵀ])
    size = np.sqrt(np.sum((a.T @ a) * (b.T @ b)) / (n_users * n_items))
    # One turn for both sides: products stay, but no factor is an axis of the communities.
    turn = np.sqrt(signal / size) * _rotation(n_factors, generator)
    return Population(
        user_community=users.community,
        item_community=items.community,
        user_factors=a @ turn,
        item_factors=b @ turn,
        user_means=users.means @ turn,
        item_means=items.means @ turn,
        user_offsets=offset * generator.standard_normal(n_users),
        item_offsets=offset * generator.standard_normal(n_items),
        mean=float(mean),
        noise=float(noise),
        popularity=float(popularity),
        levels=None if levels is None else _checked_levels(levels),
        key=int(generator.integers(2**62)),
    )


@dataclass(frozen=True)
class _Side:
    community: Labels
    factors: Matrix
    means: Matrix


def _draw_side(
    rows: int,
    n_factors: int,
    weights: Vector,
    separation: float,
    freedom: float | None,
    rng: np.random.Generator,
) -> _Side:
    """Place the community means, then draw the rows around them."""
    communities = len(weights)
    covariances = _covariances(communities, n_factors, freedom, rng)
    means = _spread_points(communities, n_factors, rng)
    if communities > 1:
        means *= separation / _nearest(means, covariances)
    counts = shares(weights, rows, most=rows)
    if not counts.all():
        raise ParameterError(
            f"community {counts.argmin()} with a share of {weights[counts.argmin()]:.3g} would "
            f"have none of the {rows} rows; give it more weight, or ask for more rows",
            value=weights,
        )
    community = rng.permutation(np.repeat(np.arange(communities, dtype=np.int32), counts))
    factors = rng.standard_normal((rows, n_factors))
    for number, root in enumerate(np.linalg.cholesky(covariances)):
        members = community == number
        factors[members] = means[number] + factors[members] @ root.T
    return _Side(community, factors, means)


def _spread_points(count: int, dimensions: int, rng: np.random.Generator) -> Matrix:
    """Give points far from each other: a regular simplex where the dimensions allow it.

    The simplex lies in the first dimensions on either side, so that what tells users apart is
    what tells items apart: communities that differ where no item does could not be found.
    """
    if count <= dimensions + 1:
        # The unit vectors are equally far apart; seen from their centre they need one
        # dimension less. The eigenvectors of the centring matrix are their coordinates there.
        _, vectors = np.linalg.eigh(np.eye(count) - 1.0 / count)
        simplex = np.zeros((count, dimensions))
        simplex[:, : count - 1] = vectors[:, 1:] @ _rotation(count - 1, rng)
        return simplex
    candidates = rng.standard_normal((100 * count, dimensions))
    chosen = [0]
    distance = np.full(len(candidates), np.inf)
    while len(chosen) < count:
        step = np.linalg.norm(candidates - candidates[chosen[-1]], axis=1)
        distance = np.minimum(distance, step)
        chosen.append(int(distance.argmax()))
    points = candidates[chosen]
    centred: Matrix = points - points.mean(axis=0)
    return centred


def _rotation(dimensions: int, rng: np.random.Generator) -> Matrix:
    rotation: Matrix = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]
    return rotation


def _nearest(means: Matrix, covariances: NDArray[np.float64]) -> float:
    """Smallest Mahalanobis distance of two means, under the average of their covariances."""
    first, second = np.triu_indices(len(means), k=1)
    gaps = means[first] - means[second]
    between = (covariances[first] + covariances[second]) / 2
    solved = np.linalg.solve(between, gaps[:, :, None])[:, :, 0]
    return float(np.sqrt(np.sum(gaps * solved, axis=1).min()))


def _covariances(
    communities: int, n_factors: int, freedom: float | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    identity = np.eye(n_factors)
    if freedom is None:
        return np.broadcast_to(identity, (communities, n_factors, n_factors))
    least = n_factors + 1
    require("covariance_freedom", freedom, freedom > least, f"above n_factors + 1 = {least}")
    from scipy.stats import invwishart

    drawn = invwishart(df=freedom, scale=(freedom - least) * identity).rvs(
        size=communities, random_state=rng
    )
    return np.reshape(drawn, (communities, n_factors, n_factors))


def _weights(
    side: str,
    rows: int,
    communities: int,
    weights: ArrayLike | None,
    concentration: float | None,
    rng: np.random.Generator,
) -> Vector:
    name = f"{side}_communities"
    require(name, communities, 1 <= communities <= rows, f"between 1 and the {rows} {side}s")
    equal = np.full(communities, 1.0 / communities)
    if weights is not None:
        given = np.asarray(weights, dtype=np.float64)
        good = given.shape == (communities,) and bool(np.all(given > 0))
        require(f"{side}_weights", weights, good, f"{communities} positive numbers")
        result: Vector = given / given.sum()
        return result
    if concentration is None:
        return equal
    require("concentration", concentration, 0 < concentration < np.inf, "positive")
    sticks = rng.beta(1.0, concentration, size=communities)
    sticks[-1] = 1.0  # the truncation
    drawn = sticks * np.concatenate(([1.0], np.cumprod(1.0 - sticks[:-1])))
    levelled: Vector = (drawn + equal) / 2
    return levelled


def _checked_levels(levels: Sequence[float]) -> Vector:
    values = np.asarray(levels, dtype=np.float64)
    good = values.ndim == 1 and len(values) > 1 and bool(np.all(np.diff(values) > 0))
    require("levels", levels, good, "two or more rising numbers")
    return values


def _check_count(n_ratings: int, n_users: int, n_items: int) -> None:
    pairs = n_users * n_items
    wanted = f"between 1 and the {pairs:,} pairs of {n_users:,} users and {n_items:,} items"
    require("n_ratings", n_ratings, 1 <= n_ratings <= pairs, wanted)


def require(name: str, value: Any, good: bool, wanted: str) -> None:
    """Raise a ParameterError unless ``good``.

    >>> require("noise", -1, False, "positive")
    Traceback (most recent call last):
    hemf.errors.ParameterError: noise is -1; it must be positive
    """
    if not good:
        raise ParameterError(f"{name} is {value!r}; it must be {wanted}", value=value)


# ------------------------------------------------------------------------------------------------
# Ratings drawn from the model itself, with communities planted on both sides.


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
    timestamps: NDArray[np.int64] | None = None  # seconds since 1970, rising
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
        require("density", density, 0 < density <= 1, "above 0 and at most 1")
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
