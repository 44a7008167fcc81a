"""Why a prediction is what it is: offsets, communities, rated items, and what is not known."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemf._typing import AnyArray, Array, Float64Array, IdsLike
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.model.rows import unpack
from hemf.model.side import Side
from hemf.model.state import Component, FittedModel
from hemf.queries.communities import json_id
from hemf.queries.predict import predict

NOTEWORTHY = 0.01  # communities less probable than this are left out


class Reason(NamedTuple):
    """A rating of the user's that moved the prediction."""

    item: Hashable
    rating: float
    """Rating by the user."""
    contribution: float
    """By how much that rating moved the prediction, on the rating scale."""
    similarity: float
    """Cosine of the factors of that item and of the one predicted."""


@dataclass(frozen=True)
class Explanation:
    """Parts of one prediction.

    ``global_mean + user_offset + item_offset + interaction`` is the prediction before it is
    clipped to the rating range. Of ``user_offset + interaction``, the user's own ratings make up
    ``from_ratings``, the user's features ``from_features``, and the communities that the user falls
    into the rest.

    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> why = HeMF(n_factors=1, rng=0).fit(ratings).explain("bob", "milk")
    >>> [reason.item for reason in why.reasons]
    ['tea']
    >>> round(sum(why.uncertainty.values()), 9)
    1.0
    """

    user: Hashable
    item: Hashable
    known_user: bool
    """Whether the user has ratings; if not, the user is treated as a newcomer."""
    known_item: bool
    """Whether the item has ratings; if not, it is treated as a newcomer."""
    mean: float
    """The predicted rating, clipped to the rating range where there is one."""
    std: float
    """Standard deviation of the rating, noise included."""
    global_mean: float
    user_offset: float
    """How much higher this user rates than others; 0 in a model without offsets."""
    item_offset: float
    """How much higher this item is rated than others; 0 in a model without offsets."""
    interaction: float
    """How well the user's taste and the item go together."""
    from_ratings: float
    """Sum of the contributions of all ratings of the user, those beyond ``reasons`` included."""
    from_features: float
    """Contribution of the user's features, given or implicit; 0 if user or item is unknown."""
    uncertainty: dict[str, float]
    """Shares of the variance: "noise" of the ratings, not knowing the "user" well, not knowing the
    "item" well, and "both" at once; the user's "mood", where raters have moods."""
    user_communities: dict[int, float]
    """Probability of each community of the user's, most probable first, from 1 % on."""
    item_communities: dict[int, float]
    """Probability of each community of the item's, most probable first, from 1 % on."""
    reasons: tuple[Reason, ...]
    """The user's ratings that moved the prediction most; none where user or item is unknown."""

    @property
    def from_communities(self) -> float:
        """Part of ``user_offset + interaction`` not due to ratings or features."""
        return self.user_offset + self.interaction - self.from_ratings - self.from_features

    def __str__(self) -> str:
        parts = f"mean {self.global_mean:.3g}, user {self.user_offset:+.2g}, item "
        parts += f"{self.item_offset:+.2g}, taste {self.interaction:+.2g}"
        shares = ", ".join(f"{share:.0%} {name}" for name, share in self.uncertainty.items())
        lines = [
            f"user {self.user!r}, item {self.item!r}: {self.mean:.3g} ± {self.std:.2g}",
            f"  made of: {parts}",
            f"  unsure because of: {shares}",
            f"  user communities: {_listed(self.user_communities)}; "
            f"item communities: {_listed(self.item_communities)}",
        ]
        for known, what in ((self.known_user, "user"), (self.known_item, "item")):
            if not known:
                lines.append(f"  the {what} is new: taken as what the model expects of a newcomer")
        lines += [
            f"  because {reason.item!r} was rated {reason.rating:.3g}: "
            f"{reason.contribution:+.2g} (similarity {reason.similarity:.2f})"
            for reason in self.reasons
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Return the explanation in JSON's types."""
        return {
            **vars(self),
            "user": json_id(self.user),
            "item": json_id(self.item),
            "from_communities": self.from_communities,
            "uncertainty": dict(self.uncertainty),
            "user_communities": {str(d): q for d, q in self.user_communities.items()},
            "item_communities": {str(d): q for d, q in self.item_communities.items()},
            "reasons": [{**r._asdict(), "item": json_id(r.item)} for r in self.reasons],
        }


def explain(model: FittedModel, user: IdsLike, item: IdsLike, n: int) -> Explanation:
    """See `hemf.HeMF.explain`."""
    state, scale = model.state, model.scale
    users, items = _one(model, "user", user), _one(model, "item", item)
    user_row, user_place = (int(rows[0]) for rows in model.find("user", users))
    item_row, item_place = (int(rows[0]) for rows in model.find("item", items))
    mean, std = predict(model, users, items)
    left = _belief(state.sides["user"], user_row, model.moments_at("user", user_place))
    right = _belief(state.sides["item"], item_row, model.moments_at("item", item_place))
    product = left.mean * right.mean
    offsets = state.sides["user"].layout.pinned >= 0
    item_offset, user_offset = product[:2] if offsets else (0.0, 0.0)
    variance = {
        "noise": float(model.noise(np.array([user_row]), np.array([item_row]))[0]),
        "user": max(float(right.mean @ left.covariance @ right.mean), 0.0),  # nᵀSn
        "item": max(float(left.mean @ right.covariance @ left.mean), 0.0),  # mᵀTm
        "both": max(float(np.sum(left.covariance * right.covariance)), 0.0),  # tr(ST)
    }
    if model.mood_variance > 0.0:
        variance["mood"] = model.mood_variance
    total = sum(variance.values())
    moved = from_features = 0.0
    reasons: tuple[Reason, ...] = ()
    if user_row >= 0 and item_row >= 0:
        _warn_of_gaps(state, user_row, users[0])
        contributions = scale * rating_contributions(
            state, user_row, item_row, coupled=model.coupled
        )
        moved = float(contributions.sum())
        from_features = scale * feature_contribution(state, user_row, item_row)
        reasons = _strongest(model, user_row, item_row, contributions, n)
    return Explanation(
        user=users[0],
        item=items[0],
        known_user=user_row >= 0,
        known_item=item_row >= 0,
        mean=float(mean[0]),
        std=float(std[0]),
        global_mean=model.mean,
        user_offset=float(user_offset) * scale,
        item_offset=float(item_offset) * scale,
        interaction=float(product[2 if offsets else 0 :].sum()) * scale,
        from_ratings=moved,
        from_features=from_features,
        uncertainty={name: float(part / total) for name, part in variance.items()},
        user_communities=left.communities,
        item_communities=right.communities,
        reasons=reasons,
    )


def _one(model: FittedModel, side: str, given: IdsLike) -> AnyArray:
    """Return an array of the one id, Python's own where it was NumPy's."""
    ids, alone = model.ids(side, given)
    if not alone:
        raise DataError(f"explain is about one {side}, got several: {given!r}", value=given)
    if isinstance(ids[0], np.generic):
        ids[0] = ids[0].item()
    return np.asarray(ids)


def _warn_of_gaps(state: Component, user_row: int, user: IdsLike) -> None:
    """Warn if not all ratings of a user are kept."""
    kept, given = state.row_ratings("user", user_row)[0].size, state.counts["user"][user_row]
    if kept < given:
        warn_caller(
            f"not all ratings are kept (history is not full): of the {given:,} by user {user!r}, "
            f"{kept:,} can be reasons; what the others say is counted with the communities",
            HistoryWarning,
        )


def rating_contributions(
    state: Component, user_row: int, item_row: int, *, coupled: bool = True
) -> Float64Array:
    """How much each of a user's ratings adds to what is predicted for an item, standardised.

    On the coordinates that the user's posterior covers (docs/model.md#row-factors),
    m_d = S_d (Σ_k g_k + P_d m_d) with g_k = (r_k n_k - E[b_k p_k]) τ_i υ_k/σ², where the pinned
    coordinate brings in p_k, the offset of the item rated. Memberships held, the prediction for
    item j is linear in the ratings: rating k adds n_jᵀ (Σ_d q_d S_d) g_k, the prior the rest. All
    of it is taken at today's moments of the items, which at convergence are those the user has
    been updated with.
    """
    user, item = state.sides["user"], state.sides["item"]
    free, pinned = user.layout.free, user.layout.pinned
    rated, values = state.row_ratings("user", user_row)
    weights, second, data = _data_part(state, user_row)
    response = _response(user, user.membership[user_row], data, coupled=coupled)
    direction = response @ item.moments.mean[item_row, free].astype(np.float64)
    moved = values * (item.moments.mean[rated][:, free].astype(np.float64) @ direction)
    if pinned >= 0:
        high, low = np.maximum(free, pinned), np.minimum(free, pinned)
        moved -= second[:, high * (high + 1) // 2 + low] @ direction  # E[b_k p_k]
    return np.asarray(weights * moved)


def feature_contribution(state: Component, user_row: int, item_row: int) -> float:
    """Return what a user's features add to what is predicted, standardised: n_jᵀ S P f_i."""
    user, item = state.sides["user"], state.sides["item"]
    if user.regression is None:
        return 0.0
    precision = user.communities.precision[0]  # features go with one for all communities
    response = np.linalg.inv(_data_part(state, user_row)[2] + precision)
    direction = item.moments.mean[item_row, user.layout.free].astype(np.float64)
    return float(direction @ response @ precision @ user.shift[user_row])


def _data_part(state: Component, user_row: int) -> tuple[Float64Array, Float64Array, Float64Array]:
    """τ_i υ_k/σ² and E[b_k b_kᵀ] of each rating of a user's, and G_i/σ²."""
    user, item = state.sides["user"], state.sides["item"]
    rated, _ = state.row_ratings("user", user_row)
    weights = item.weights[rated] * (user.weights[user_row] / state.noise)
    second = item.moments.second[rated].astype(np.float64)
    free = user.layout.free
    return weights, second, unpack(weights @ second)[np.ix_(free, free)]


def _response(
    side: Side, membership: NDArray[np.floating], data: Float64Array, *, coupled: bool
) -> Float64Array:
    """Return how a row's mean changes with h/σ²: Σ_d q_d S_d, or S if q(a), q(z) are separate."""
    precision, share = side.communities.precision, membership.astype(np.float64)
    if precision.shape[0] == 1:
        return np.asarray(np.linalg.inv(data + precision[0]))
    if not coupled:
        return np.asarray(np.linalg.inv(data + np.einsum("d,dij->ij", share, precision)))
    return np.asarray(np.einsum("d,dij->ij", share, np.linalg.inv(data + precision)))


def _strongest(
    model: FittedModel, user_row: int, item_row: int, contributions: Float64Array, n: int
) -> tuple[Reason, ...]:
    state = model.state
    # The model learns from ratings less moods; explanations show the ratings as given.
    rated, standardised = state.row_ratings("user", user_row, as_given=True)
    ratings = model.mean + model.scale * standardised
    chosen = np.argsort(-np.abs(contributions), kind="stable")[:n]
    side = state.sides["item"]
    factors = side.moments.mean[:, 2 if side.layout.pinned >= 0 else 0 :]
    similarity = _cosines(factors[rated[chosen]], factors[item_row])
    names = model.record.items.ids[rated[chosen]].tolist()
    columns = (
        ratings[chosen].round(6).tolist(),
        contributions[chosen].tolist(),
        similarity.tolist(),
    )
    return tuple(Reason(*entry) for entry in zip(names, *columns, strict=True))


def _cosines(rows: NDArray[np.floating], vector: NDArray[np.floating]) -> Float64Array:
    """Cosine of each row with the vector; 0 where one of them is 0."""
    rows, vector = rows.astype(np.float64), vector.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
    return np.clip(rows @ vector / np.where(lengths > 0.0, lengths, 1.0), -1.0, 1.0)


class _Belief(NamedTuple):
    """Posterior of one row or newcomer: moments of its full vector, and communities."""

    mean: Float64Array
    covariance: Float64Array
    communities: dict[int, float]


def _belief(side: Side, row: int, moments: tuple[Array, Array]) -> _Belief:
    mean, second = moments
    shares = side.membership[row] if row >= 0 else side.communities.sticks.weights
    centre = mean.astype(np.float64)
    order = np.argsort(-shares, kind="stable")
    likely = {int(d): float(shares[d]) for d in order if shares[d] >= NOTEWORTHY}
    return _Belief(centre, unpack(second) - np.outer(centre, centre), likely)


def _listed(communities: dict[int, float]) -> str:
    return ", ".join(f"{d} ({probability:.0%})" for d, probability in communities.items())
