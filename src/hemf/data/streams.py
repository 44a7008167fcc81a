"""Synthetic streams with an event: a community appears, or tastes change.

They are drawn from planted populations, so that the event is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from hemf._checks import check_int, check_number, check_value
from hemf._typing import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array
from hemf.data.synthetic import PlantOptions, Population, Seed, plant


@dataclass(frozen=True, kw_only=True)
class RatingStream:
    """Ratings in order of arrival, and their expectations."""

    users: Int32Array
    items: Int32Array
    ratings: Float32Array
    expected: Float64Array  # before noise and rounding

    @property
    def columns(self) -> tuple[Int32Array, Int32Array, Float32Array]:
        """Users, items and ratings, as models take them."""
        return self.users, self.items, self.ratings


@dataclass(frozen=True, kw_only=True)
class EmergingStream(RatingStream):
    """A stream in which a user community appears."""

    population: Population
    newest: int | None  # the community that appears, or None
    begins: int  # position of its first rating, or the number of ratings

    @property
    def user_community(self) -> Int32Array:
        """Community of every user."""
        return self.population.user_community


@dataclass(frozen=True, kw_only=True)
class DriftingStream(RatingStream):
    """A stream in which users change their taste."""

    before: Population
    after: Population  # with other user communities and factors
    begins: int  # position of the first rating that is not by the old taste alone
    ends: int  # position of the first rating by the new taste alone

    @property
    def changed(self) -> BoolArray:
        """Which users have changed their taste."""
        return np.asarray(self.before.user_community != self.after.user_community)


def emerging(
    n_users: int = 1200,
    n_items: int = 300,
    *,
    appears: float | None = 0.5,
    share: float = 0.5,
    ratings_each: int | tuple[int, int] = (20, 50),
    visit: float = 0.02,
    rng: Seed = None,
    **population: Unpack[PlantOptions],
) -> EmergingStream:
    """Draw a stream of users who arrive one after the other; then a new community appears.

    Parameters
    ----------
    n_users, n_items : int
        Sizes, the new community included.
    appears : float or None
        Fraction of the users after which the first one of the new community arrives; None for no
        new community.
    share : float
        Fraction of the users from then on who belong to the new community.
    ratings_each : int or pair of int
        Number of ratings of a user, or its smallest and largest value.
    visit : float
        How long a user stays, as a fraction of the stream; 0.02 of 1200 users are 24 at once.
    rng : int or Generator, optional
        Seed or source of randomness.
    **population
        Passed to :func:`plant`; ``user_communities`` and ``user_weights`` are without the new
        community.

    Returns
    -------
    EmergingStream

    Examples
    --------
    >>> stream = emerging(rng=0)
    >>> round(stream.begins / len(stream.ratings), 1)
    0.5
    >>> np.bincount(stream.user_community).tolist()
    [300, 300, 300, 300]

    """
    low, high = _limits(ratings_each, n_items)
    check_number("visit", visit, low=0.0, high=1.0)
    check_value("share", share, 0 < share <= 1, "above 0 and at most 1")
    options, newest = population.copy(), None
    generator = np.random.default_rng(rng)
    if appears is not None:
        check_value("appears", appears, 0 < appears < 1, "between 0 and 1, or None")
        newest = options.get("user_communities", 3)
        first_weights = options.get("user_weights")
        weights = np.ones(newest) if first_weights is None else np.asarray(first_weights, float)
        late = share * (1.0 - appears)
        options["user_communities"] = newest + 1
        options["user_weights"] = np.append((1.0 - late) * weights / weights.sum(), late)
    people = plant(n_users, n_items, rng=generator, **options)
    arrivals = generator.permutation(n_users)  # users in order of arrival
    if newest is not None and appears is not None:
        arrivals = _delay_new(arrivals, people.user_community == newest, appears, generator)
    counts = generator.integers(low, high, size=n_users, endpoint=True)
    users, items = _pairs(people, counts, generator)
    arrival = np.empty(n_users)
    arrival[arrivals] = np.arange(n_users) / n_users
    order = np.argsort(arrival[users] + visit * generator.random(users.size), kind="stable")
    users, items = users[order], items[order]
    expected = people.expected(users, items)
    of_new = people.user_community[users] == (-1 if newest is None else newest)
    return EmergingStream(
        **vars(_rate(people, users, items, expected, generator)),
        population=people,
        newest=newest,
        begins=int(of_new.argmax()) if of_new.any() else users.size,
    )


def drifting(
    n_users: int = 300,
    n_items: int = 800,
    *,
    changes: float = 0.5,
    over: float = 0.0,
    share: float = 1.0,
    ratings_each: int | tuple[int, int] = 400,
    rng: Seed = None,
    **population: Unpack[PlantOptions],
) -> DriftingStream:
    """Draw a stream of users who rate all the time, some of whom change their community.

    Parameters
    ----------
    n_users, n_items : int
        Sizes. No pair is rated twice, so there must be at least as many items as a user rates.
    changes, over : float
        When tastes begin to change, and how long that takes, as fractions of the stream. With
        ``over=0`` they change at once, else linearly.
    share : float
        Fraction of the users whose taste changes.
    ratings_each : int or pair of int
        Number of ratings of a user, or its smallest and largest value.
    rng : int or Generator, optional
        Seed or source of randomness.
    **population
        Passed to :func:`plant`.

    Returns
    -------
    DriftingStream

    Examples
    --------
    >>> stream = drifting(50, 100, ratings_each=80, share=0.4, rng=0)
    >>> int(stream.changed.sum()), len(stream.ratings), stream.begins == stream.ends
    (20, 4000, True)

    """
    low, high = _limits(ratings_each, n_items)
    check_number("changes", changes, low=0.0, high=1.0)
    check_number("over", over, low=0.0, high=1 - changes)
    check_value("share", share, 0 < share <= 1, "above 0 and at most 1")
    check_int("user_communities", population.get("user_communities", 3), low=2)
    generator = np.random.default_rng(rng)
    before = plant(n_users, n_items, rng=generator, **population)
    movers = generator.permutation(n_users)[: max(1, round(share * n_users))]
    after = _move(before, movers, generator)
    counts = generator.integers(low, high, size=n_users, endpoint=True)
    users, items = _pairs(before, counts, generator)
    order = generator.permutation(users.size)
    users, items = users[order], items[order]
    begins, ends = round(changes * users.size), round((changes + over) * users.size)
    new = np.clip((np.arange(users.size) - begins + 1) / max(ends - begins, 1), 0.0, 1.0)
    expected = (1.0 - new) * before.expected(users, items) + new * after.expected(users, items)
    return DriftingStream(
        **vars(_rate(before, users, items, expected, generator)),
        before=before,
        after=after,
        begins=begins,
        ends=ends,
    )


def _limits(ratings_each: int | tuple[int, int], n_items: int) -> tuple[int, int]:
    low, high = ratings_each if isinstance(ratings_each, tuple) else (ratings_each, ratings_each)
    valid = 1 <= low <= high <= n_items
    expected = f"between 1 and the number of items, {n_items}, the smaller first"
    check_value("ratings_each", ratings_each, valid, expected)
    return low, high


def _delay_new(
    arrivals: Int64Array, is_new: BoolArray, appears: float, rng: np.random.Generator
) -> Int64Array:
    """Move users of the new community behind the first ones."""
    first = round(appears * len(arrivals))
    old, new = arrivals[~is_new[arrivals]], arrivals[is_new[arrivals]]
    valid = first + len(new) <= len(arrivals)
    check_value("appears", appears, valid, f"smaller, for {len(new)} users to arrive after it")
    later = np.concatenate((old[first:], new))
    # The first user of the second part is of the new community.
    return np.concatenate((old[:first], later[-1:], rng.permutation(later[:-1])))


def _pairs(
    people: Population, counts: Int64Array, rng: np.random.Generator
) -> tuple[Int32Array, Int32Array]:
    """Return users, each ``counts`` times, with distinct items; popular ones are likelier."""
    rank = 1.0 + rng.permutation(people.n_items)
    waiting = rank**people.popularity  # mean waiting time for an item
    chosen = [
        # The smallest exponential times are a weighted sample without replacement.
        np.argsort(waiting * rng.exponential(size=people.n_items))[:count]
        for count in counts.tolist()
    ]
    users = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return users, np.concatenate(chosen).astype(np.int32)


def _rate(
    people: Population,
    users: Int32Array,
    items: Int32Array,
    expected: Float64Array,
    rng: np.random.Generator,
) -> RatingStream:
    noisy = expected + people.noise * rng.standard_normal(expected.size)
    ratings = people.nearest_levels(noisy).astype(np.float32)
    return RatingStream(users=users, items=items, ratings=ratings, expected=expected)


def _move(people: Population, movers: Int64Array, rng: np.random.Generator) -> Population:
    """Move users to other communities, as far from the new mean as from the old one."""
    count = len(people.user_means)
    community, factors = people.user_community.copy(), people.user_factors.copy()
    step = rng.integers(1, count, size=len(movers))
    old = community[movers]
    community[movers] = (old + step) % count
    factors[movers] += people.user_means[community[movers]] - people.user_means[old]
    return replace(people, user_community=community, user_factors=factors)
