"""Communities that a model found: those of a side, and the table of user × item communities."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf._checks import check_int
from hemf._typing import OTHER, AnyArray, Float64Array
from hemf.errors import HistoryWarning, warn_caller
from hemf.model.rows import pair_moments
from hemf.model.side import Side
from hemf.model.state import FittedModel

MIN_RATINGS = 10  # ratings that an id must have to be named as typical or divisive …
CHOICE = 10  # … as long as there are this many times more such ids than are named
BLOCK = 1 << 20  # ratings that are looked at together


class Typical(NamedTuple):
    """An id of the other side that sets a community apart."""

    id: Hashable
    rating: float
    """Expected rating by the community."""
    lift: float
    """That rating less the community's mean, less what the id has above the overall mean.

    Means over communities are weighted by their sizes, and those over ids are of all ids that may
    be named. A community that rates all high, or an id that all like, has no lift of its own.
    """


class Divisive(NamedTuple):
    """An id of the other side on which the communities disagree."""

    id: Hashable
    ratings: tuple[float, ...]
    """Expected rating by each community."""
    spread: float
    """Standard deviation of those ratings, weighted by the communities' sizes."""


@dataclass(frozen=True, eq=False, repr=False)
class CommunityView:
    """The communities of one side, largest first, and what sets them apart.

    Typical and divisive ids are chosen among those with at least 10 ratings; where there are too
    few of them to choose from, among the half with the most ratings, and in a tiny table among all.

    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> view = HeMF(n_factors=1, rng=0).fit(ratings).communities("user")
    >>> view
    CommunityView(1 user community of 3 users)
    >>> view.labels
    {'ann': 0, 'bob': 0, 'eve': 0}
    >>> view.members(0)
    ['ann', 'bob', 'eve']
    """

    side: str
    """"user" or "item"."""
    ids: AnyArray
    """Id of each row."""
    probabilities: NDArray[np.floating]
    """q_i(d): how surely each row belongs to each community, (rows, D)."""
    sizes: Float64Array
    """ρ_d: expected number of members, (D,)."""
    weights: Float64Array
    """Expected share of each community among rows yet to come, (D,)."""
    typical: tuple[tuple[Typical, ...], ...]
    """For each community, what has the largest lift, most so first; of one, what it likes best."""
    divisive: tuple[Divisive, ...]
    """Ids that the communities disagree on, most first; empty with one community."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        noun = "community" if len(self) == 1 else "communities"
        return f"CommunityView({len(self)} {self.side} {noun} of {len(self.ids)} {self.side}s)"

    @cached_property
    def assignment(self) -> NDArray[np.int64]:
        """Most probable community of each row."""
        return most_probable(self.probabilities)

    @cached_property
    def labels(self) -> dict[Hashable, int]:
        """Most probable community by id."""
        return dict(zip(self.ids.tolist(), self.assignment.tolist(), strict=True))

    def members(self, community: int) -> list[Hashable]:
        """Ids whose most probable community this is, the surest first."""
        community = check_int("community", community, low=0, high=len(self) - 1)
        rows = np.flatnonzero(self.assignment == community)
        surest = np.argsort(-self.probabilities[rows, community], kind="stable")
        found: list[Hashable] = self.ids[rows[surest]].tolist()
        return found

    def to_dict(self, *, labels: bool = False, member_ids: bool = False) -> dict[str, object]:
        """Return the view in JSON's types.

        With ``labels`` also the community of every id; with ``member_ids`` the ids of every
        community, the surest first.
        """
        counts = np.bincount(self.assignment, minlength=len(self)).tolist()
        communities: list[dict[str, object]] = [
            {
                "community": d,
                "size": float(self.sizes[d]),
                "weight": float(self.weights[d]),
                "members": counts[d],
                "typical": [{**t._asdict(), "id": json_id(t.id)} for t in self.typical[d]],
            }
            for d in range(len(self))
        ]
        answer: dict[str, object] = {
            "side": self.side,
            "rows": len(self.ids),
            "communities": communities,
            "divisive": [
                {"id": json_id(d.id), "ratings": list(d.ratings), "spread": d.spread}
                for d in self.divisive
            ],
        }
        if member_ids:
            for d, entry in enumerate(communities):
                entry["member_ids"] = [json_id(value) for value in self.members(d)]
        if labels:
            answer["ids"] = [json_id(value) for value in self.ids.tolist()]
            answer["labels"] = self.assignment.tolist()
        return answer


def community_view(model: FittedModel, side: str, n: int) -> CommunityView:
    """See `hemf.HeMF.communities`."""
    opposite = OTHER[side]
    own_ids, other_ids = model.vocabulary(side).ids, model.vocabulary(opposite).ids
    own, other = model.sides[side], model.sides[opposite]
    chosen = _well_known(model.state.counts[opposite], n)
    unclipped = community_vectors(own) @ other.moments.mean[chosen].T.astype(np.float64)
    expected = model.to_rating(unclipped)
    sizes = own.statistics.size
    typical, divisive = _contrast(expected, unclipped, sizes / sizes.sum(), other_ids[chosen], n)
    return CommunityView(
        side=side,
        ids=own_ids[: own.n_rows],
        probabilities=_read_only(own.membership),
        sizes=_read_only(sizes),
        weights=_read_only(own.communities.sticks.weights),
        typical=typical,
        divisive=divisive,
    )


def community_vectors(side: Side) -> Float64Array:
    """Full vector of each community's mean, pinned coordinate included, (D, total)."""
    vectors = np.ones((side.n_communities, side.layout.total))
    vectors[:, side.layout.free] = side.communities.mean
    if side.regression is not None:  # and the effect of features on its members
        share = side.membership / np.maximum(side.membership.sum(axis=0), 1e-12)
        vectors[:, side.layout.free] += share.T @ side.shift
    return vectors


def most_probable(probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
    """Column of the largest probability in each row.

    >>> most_probable(np.array([[0.1, 0.9], [0.5, 0.5]]))
    array([1, 0])
    """
    return np.asarray(probabilities.argmax(axis=1), np.int64)


def json_id(value: object) -> object:
    """Return an id in JSON's types: itself where it is a number or text, else as text.

    >>> json_id(np.int64(3)), json_id("ann"), json_id((1, "a")), json_id(b"x")
    (3, 'ann', [1, 'a'], "b'x'")
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [json_id(part) for part in value]
    finite = not isinstance(value, float) or bool(np.isfinite(value))
    return value if isinstance(value, bool | int | float | str) and finite else str(value)


def _well_known(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Rows with enough ratings for meaningful predictions."""
    enough = counts >= MIN_RATINGS
    if enough.sum() < CHOICE * n:
        enough = counts >= np.median(counts)
    if enough.sum() < n:
        enough[:] = True
    return np.flatnonzero(enough)


def _contrast(
    expected: Float64Array, unclipped: Float64Array, shares: Float64Array, ids: AnyArray, n: int
) -> tuple[tuple[tuple[Typical, ...], ...], tuple[Divisive, ...]]:
    """Find what sets each community apart, and where they disagree.

    ``expected`` is (D, ids); where clipping made ids equal, ``unclipped`` decides.
    """
    names = ids.tolist()
    away = expected - shares @ expected
    lift = away - away.mean(axis=1, keepdims=True)
    alone = len(expected) == 1  # nothing to differ from: what it likes best
    typical = tuple(
        tuple(
            Typical(names[k], float(expected[d, k]), float(lift[d, k]))
            for k in _largest(expected[d] if alone else lift[d], unclipped[d], n)
        )
        for d in range(len(expected))
    )
    if alone:
        return typical, ()
    spread = np.sqrt(shares @ away**2)
    divisive = tuple(
        Divisive(names[k], tuple(expected[:, k].tolist()), float(spread[k]))
        for k in _largest(spread, np.ptp(unclipped, axis=0), n)
    )
    return typical, divisive


def _largest(values: Float64Array, ties: Float64Array, n: int) -> list[int]:
    """Positions of the n largest values; equal ones by ``ties``, then by position."""
    order: list[int] = np.lexsort((-ties, -values))[:n].tolist()
    return order


def _read_only(array: AnyArray) -> AnyArray:
    view = array.view()
    view.flags.writeable = False
    return view


class Bicluster(NamedTuple):
    """One cell of `Biclusters`; an empty one has NaN for its means."""

    user_community: int
    item_community: int
    size: int
    mean_rating: float
    mean_prediction: float


@dataclass(frozen=True, eq=False)
class Biclusters:
    """Ratings by community of the user and of the item, each row in its most probable one.

    They are the ratings on record.

    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> found = HeMF(n_factors=1, rng=0).fit(ratings).biclusters()
    >>> found.size.tolist(), found.mean_rating.tolist()
    ([[4]], [[3.0]])
    """

    size: NDArray[np.int64]
    """Number of ratings, (D, K)."""
    mean_rating: Float64Array
    """Mean of those ratings; NaN where there are none, (D, K)."""
    mean_prediction: Float64Array
    """Mean prediction for the same pairs; NaN where there are none, (D, K)."""

    def rows(self) -> Iterator[Bicluster]:
        """Go through the cells, item communities fastest."""
        for (d, k), size in np.ndenumerate(self.size):
            means = float(self.mean_rating[d, k]), float(self.mean_prediction[d, k])
            yield Bicluster(d, k, int(size), *means)

    def to_dict(self) -> dict[str, object]:
        """Return the table in JSON's types, None where a cell is empty."""
        return {
            "user_communities": self.size.shape[0],
            "item_communities": self.size.shape[1],
            "size": self.size.tolist(),
            "mean_rating": _or_none(self.mean_rating),
            "mean_prediction": _or_none(self.mean_prediction),
        }


def biclusters(model: FittedModel) -> Biclusters:
    """See `hemf.HeMF.biclusters`."""
    sides = model.sides
    users, items, values = model.ratings.triples()
    if not model.keeps_all_ratings:
        warn_caller(
            f"not all ratings are kept (history is not full): the table is of the {values.size:,} "
            f"that are, out of {model.state.n_ratings:,}",
            HistoryWarning,
        )
    shape = sides["user"].n_communities, sides["item"].n_communities
    n_cells = shape[0] * shape[1]
    of_user = most_probable(sides["user"].membership)
    of_item = most_probable(sides["item"].membership)
    size = np.zeros(n_cells, np.int64)
    rating, prediction = np.zeros(n_cells), np.zeros(n_cells)
    for start in range(0, values.size, BLOCK):
        block = slice(start, start + BLOCK)
        user_rows, item_rows = users[block].astype(np.int64), items[block].astype(np.int64)
        mean, _ = pair_moments(
            sides["user"].moments, sides["item"].moments, user_rows, item_rows, variance=False
        )
        cell = of_user[user_rows] * shape[1] + of_item[item_rows]
        size += np.bincount(cell, minlength=n_cells)
        rating += np.bincount(cell, values[block], minlength=n_cells)
        prediction += np.bincount(cell, model.to_rating(mean), minlength=n_cells)
    number = np.where(size > 0, size, np.nan)
    return Biclusters(
        size=size.reshape(shape),
        mean_rating=(rating / number).reshape(shape),
        mean_prediction=(prediction / number).reshape(shape),
    )


def _or_none(table: Float64Array) -> list[list[float | None]]:
    """Nested lists with None for NaN, which JSON does not have."""
    return [[None if value != value else value for value in row] for row in table.tolist()]
