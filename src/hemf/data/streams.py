"""Streams in which something happens: a community appears, or tastes change.

They are drawn from planted populations, so that what happened, when, and to whom is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from hemf.data.synthetic import Labels, PlantOptions, Population, Vector, plant, require


@dataclass(frozen=True, kw_only=True)
class RatingStream:
    """Ratings in the order in which they come, and what they would be without noise.

    >>> users, items, ratings = emerging(60, 50, rng=0).columns
    >>> len(users) == len(items) == len(ratings)
    True
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    ratings: NDArray[np.float32]
    expected: Vector  # before noise and rounding: what a model that knew all would predict

    @property
    def columns(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Users, items and ratings, as models take them."""
        return self.users, self.items, self.ratings


@dataclass(frozen=True, kw_only=True)
class EmergingStream(RatingStream):
    """A stream in which a user community appears, with the truth.

    >>> stream = emerging(60, 50, rng=0)
    >>> stream.newest, stream.user_community[stream.users[stream.begins]].item()
    (3, 3)
    """

    population: Population
    newest: int | None  # which community appears; None if none does
    begins: int  # position of its first rating; the number of ratings if it never comes

    @property
    def user_community(self) -> Labels:
        """Community of every user."""
        return self.population.user_community


@dataclass(frozen=True, kw_only=True)
class DriftingStream(RatingStream):
    """A stream in which users change their taste, with the truth.

    >>> stream = drifting(20, 50, ratings_each=30, rng=0)
    >>> int(stream.changed.sum()), stream.begins
    (20, 300)
    """

    before: Population
    after: Population  # the same items, noise and scale; other user communities and factors
    begins: int  # position of the first rating that is not given by the old taste alone
    ends: int  # position of the first rating given by the new taste alone

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Which users' taste is another in the end."""
        return np.asarray(self.before.user_community != self.after.user_community)


def emerging(
    n_users: int = 1200,
    n_items: int = 300,
    *,
    appears: float | None = 0.5,
    share: float = 0.5,
    ratings_each: int | tuple[int, int] = (20, 50),
    visit: float = 0.02,
    rng: int | np.random.Generator | None = None,
    **population: Unpack[PlantOptions],
) -> EmergingStream:
    """Draw a stream of users who come one after the other; half-way, a new kind of users appears.

    Parameters
    ----------
    n_users, n_items : int
        Sizes; users of the new community included.
    appears : float or None
        After which part of the users the first one of the new community comes. With ``None``
        none ever does, and users stay as they were.
    share : float
        Part of the users coming from then on who are of the new community.
    ratings_each : int or pair of int
        How many ratings a user gives, or the least and the most.
    visit : float
        How long a user stays, as a part of the whole stream; 0.02 of 1200 users are 24 at once.
    rng : int or Generator, optional
        Seed or source of randomness.
    **population
        Handed to :func:`plant`; ``user_communities`` and ``user_weights`` are those there are
        from the beginning.

    >>> stream = emerging(rng=0)
    >>> round(stream.begins / len(stream.ratings), 1)
    0.5
    >>> np.bincount(stream.user_community).tolist()
    [300, 300, 300, 300]

    """
    low, high = _limits(ratings_each, n_items)
    require("visit", visit, 0 <= visit <= 1, "between 0 and 1")
    require("share", share, 0 < share <= 1, "above 0 and at most 1")
    options, newest = population.copy(), None
    generator = np.random.default_rng(rng)
    if appears is not None:
        require("appears", appears, 0 < appears < 1, "between 0 and 1, or None")
        newest = options.get("user_communities", 3)
        first_weights = options.get("user_weights")
        weights = np.ones(newest) if first_weights is None else np.asarray(first_weights, float)
        late = share * (1.0 - appears)
        options["user_communities"] = newest + 1
        options["user_weights"] = np.append((1.0 - late) * weights / weights.sum(), late)
    people = plant(n_users, n_items, rng=generator, **options)
    arrivals = generator.permutation(n_users)  # users, first come first
    if newest is not None and appears is not None:
        arrivals = _new_ones_late(arrivals, people.user_community == newest, appears, generator)
    counts = generator.integers(low, high, size=n_users, endpoint=True)
    users, items = _pairs(people, counts, generator)
    moments = np.empty(n_users)
    moments[arrivals] = np.arange(n_users) / n_users
    order = np.argsort(moments[users] + visit * generator.random(users.size), kind="stable")
    users, items = users[order], items[order]
    expected = people.expected(users, items)
    of_new = people.user_community[users] == (-1 if newest is None else newest)
    return EmergingStream(
        users=users,
        items=items,
        ratings=_rated(people, expected, generator),
        expected=expected,
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
    rng: int | np.random.Generator | None = None,
    **population: Unpack[PlantOptions],
) -> DriftingStream:
    """Draw a stream of users who rate all the time, and move to another community on the way.

    Parameters
    ----------
    n_users, n_items : int
        Sizes. No pair is rated twice, so there must be at least as many items as a user rates.
    changes, over : float
        When tastes begin to change, and how long that takes, as parts of the stream. With
        ``over=0`` they change at once, else in a straight line from the old to the new.
    share : float
        Part of the users whose taste changes.
    ratings_each : int or pair of int
        How many ratings a user gives, or the least and the most.
    rng : int or Generator, optional
        Seed or source of randomness.
    **population
        Handed to :func:`plant`.

    >>> stream = drifting(50, 100, ratings_each=80, share=0.4, rng=0)
    >>> int(stream.changed.sum()), len(stream.ratings), stream.begins == stream.ends
    (20, 4000, True)

    """
    low, high = _limits(ratings_each, n_items)
    require("changes", changes, 0 <= changes <= 1, "between 0 and 1")
    require(
        "over", over, 0 <= over <= 1 - changes, f"between 0 and the {1 - changes:g} that follow"
    )
    require("share", share, 0 < share <= 1, "above 0 and at most 1")
    communities = population.get("user_communities", 3)
    require("user_communities", communities, communities >= 2, "at least 2, to move from and to")
    generator = np.random.default_rng(rng)
    before = plant(n_users, n_items, rng=generator, **population)
    movers = generator.permutation(n_users)[: max(1, round(share * n_users))]
    after = _moved(before, movers, generator)
    counts = generator.integers(low, high, size=n_users, endpoint=True)
    users, items = _pairs(before, counts, generator)
    order = generator.permutation(users.size)
    users, items = users[order], items[order]
    begins, ends = round(changes * users.size), round((changes + over) * users.size)
    new = np.clip((np.arange(users.size) - begins + 1) / max(ends - begins, 1), 0.0, 1.0)
    expected = (1.0 - new) * before.expected(users, items) + new * after.expected(users, items)
    return DriftingStream(
        users=users,
        items=items,
        ratings=_rated(before, expected, generator),
        expected=expected,
        before=before,
        after=after,
        begins=begins,
        ends=ends,
    )


def _limits(ratings_each: int | tuple[int, int], n_items: int) -> tuple[int, int]:
    low, high = ratings_each if isinstance(ratings_each, tuple) else (ratings_each, ratings_each)
    good = 1 <= low <= high <= n_items
    require("ratings_each", ratings_each, good, f"between 1 and the {n_items} items, least first")
    return low, high


def _new_ones_late(
    arrivals: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    appears: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Move users of the new community behind the first ones, and keep all else in order."""
    first = round(appears * len(arrivals))
    old, new = arrivals[~is_new[arrivals]], arrivals[is_new[arrivals]]
    good = first + len(new) <= len(arrivals)
    require("appears", appears, good, f"smaller, for {len(new)} users to come after")
    later = np.concatenate((old[first:], new))
    # The one who opens the second part is a new one: what is asked for happens when it is.
    opening, rest = later[-1:], rng.permutation(later[:-1])
    return np.concatenate((old[:first], opening, rest))


def _pairs(
    people: Population, counts: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Users, each as often as said, with items that differ; the popular ones more often."""
    rank = 1.0 + rng.permutation(people.n_items)
    waiting = rank**people.popularity  # the mean waiting time for an item
    chosen = [
        # The first to ring of clocks that ring at random: a sample without replacement.
        np.argsort(waiting * rng.exponential(size=people.n_items))[:count]
        for count in counts.tolist()
    ]
    users = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return users, np.concatenate(chosen).astype(np.int32)


def _rated(people: Population, expected: Vector, rng: np.random.Generator) -> NDArray[Any]:
    noisy = expected + people.noise * rng.standard_normal(expected.size)
    return people._on_scale(noisy).astype(np.float32)


def _moved(people: Population, movers: NDArray[np.int64], rng: np.random.Generator) -> Population:
    """Move users into another community each, as far from its mean as from their old one's."""
    count = len(people.user_means)
    community, factors = people.user_community.copy(), people.user_factors.copy()
    step = rng.integers(1, count, size=len(movers))
    old = community[movers]
    community[movers] = (old + step) % count
    factors[movers] += people.user_means[community[movers]] - people.user_means[old]
    return replace(people, user_community=community, user_factors=factors)
