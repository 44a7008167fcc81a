"""What a fitted model knows: its figures, its rows, and the ids that these have."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hemf._checks import Parametrised
from hemf._typing import SIDES, Float64Array
from hemf.data.columns import as_times, factorise
from hemf.data.pairs import RequestedIds, likely_reason, warn_of_unknown
from hemf.data.vocabulary import as_ids
from hemf.errors import NotFittedError, UnknownIdError
from hemf.online.journal import check_idle, lock_of, settle

if TYPE_CHECKING:
    from hemf._typing import Array
    from hemf.batch.callbacks import SweepReport
    from hemf.batch.inputs import Given
    from hemf.batch.sweep import BatchState
    from hemf.data.ratings import Ratings
    from hemf.data.vocabulary import Vocabulary
    from hemf.model.side import Moments
    from hemf.online.learner import Adopted, Learner
    from hemf.online.state import OnlineState
    from hemf.persistence.model import Batch

NOT_KEPT = ("_lock", "_pending", "_prepared")
"""Attributes that a copy or a pickle of a model does not have."""


class Fitted(Parametrised):
    """The state of a model, and questions about it that need no mathematics."""

    rating_range: str | tuple[float, float] | None
    history_: list[SweepReport]
    held_out_: Ratings | None
    converged_: bool
    rating_range_: tuple[float, float] | None
    global_mean_: float
    rating_scale_: float
    _table: Ratings
    _given: Mapping[str, Given] = MappingProxyType({})
    implicit_features: bool | str
    moods: bool
    _edition: int = 0
    batches_: tuple[Batch, ...] = ()
    """The last batches that ``hemf update`` has applied, oldest first."""

    _learner: Learner | None
    _coupled: bool
    """How the state was made: the parameter may change while this state stays."""
    _strangers: dict[str, Moments]
    _derived: dict[str, Any]
    """Found when it is asked for."""
    _prepared: Adopted | None = None
    """What the first `partial_fit` after a fit goes on from, where the fit has made it."""

    @property
    def state_(self) -> BatchState | OnlineState:
        """All that was learnt; an interrupted call is undone first."""
        settle(self)
        state: BatchState | OnlineState | None = vars(self).get("state_")
        if state is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet; call fit first"
            )
        return state

    def _adopt(
        self,
        state: BatchState | OnlineState,
        *,
        coupled: bool,
        learner: Learner | None = None,
        **attributes: Any,
    ) -> None:
        """Take over a state at once; everything derived from an earlier one is forgotten."""
        vars(self).update(self._adopted(state, coupled, learner) | attributes)

    def _adopted(
        self, state: BatchState | OnlineState, coupled: bool, learner: Learner | None
    ) -> dict[str, Any]:
        """Return the attributes of a model with a state."""
        return {
            "state_": state,
            "_learner": learner,
            "_prepared": None,
            "_coupled": coupled,
            "_strangers": {},
            "_derived": {},
            "_edition": self._edition + 1,
        }

    def _taken(self, learner: Learner, values: Array) -> dict[str, Any]:
        """Return the attributes of a model with what a learner has made of these ratings."""
        from hemf._checks import check_rating_range

        state = learner.state
        attributes: dict[str, Any] = {}
        if "state_" not in vars(self):
            attributes |= {"held_out_": None, "history_": [], "converged_": False}
        limits = check_rating_range(self.rating_range)
        if isinstance(limits, str) and state.observed is not None:
            limits = state.observed.low, state.observed.high
        elif isinstance(limits, str):
            known = getattr(self, "rating_range_", None)
            ends = [] if known is None else list(known)
            if values.size:
                ends += [float(values.min()), float(values.max())]
            limits = (min(ends), max(ends)) if ends else None
        attributes |= {
            "rating_range_": limits,
            "global_mean_": state.centre,
            "rating_scale_": state.unit,
        }
        return attributes | self._adopted(state, True, learner)

    # -- what is known -------------------------------------------------------------------------

    @property
    def n_users_(self) -> int:
        """How many users the model has, those without a rating in training included."""
        with self._turn:
            return self._fitted().sides["user"].n_rows

    @property
    def n_items_(self) -> int:
        """How many items the model has, those without a rating in training included."""
        with self._turn:
            return self._fitted().sides["item"].n_rows

    @property
    def n_user_communities_(self) -> int:
        """How many user communities there are (found, not the limit)."""
        with self._turn:
            return self._fitted().sides["user"].n_communities

    @property
    def n_item_communities_(self) -> int:
        """How many item communities there are (found, not the limit)."""
        with self._turn:
            return self._fitted().sides["item"].n_communities

    @property
    def is_online_(self) -> bool:
        """Whether the model has learnt online since it was fitted."""
        self._fitted()
        return self._learner is not None

    @property
    def noise_variance_(self) -> float:
        """σ², on the scale of the ratings."""
        with self._turn:
            return self._fitted().noise * self.rating_scale_**2

    @property
    def n_sweeps_(self) -> int:
        """Sweeps done."""
        with self._turn:
            return self._fitted().sweeps

    @property
    def elbo_(self) -> float:
        """The lower bound of the ratings' log probability, of the model as it is.

        It may differ from the last report's in ``history_`` by up to a few nats either way: since
        then, merges may have been tried and the largest community put first. Where a held-out part
        chose an earlier sweep, it is that sweep's.
        """
        with self._turn:
            return float(sum(self._fitted().bound_terms().values()))

    @property
    def elbo_history_(self) -> dict[str, Float64Array]:
        """The lower bound after every sweep: ``"total"``, and each of its terms by name."""
        self._fitted()
        names = self.history_[0].elbo_terms if self.history_ else {}
        by_term = {n: np.array([report.elbo_terms[n] for report in self.history_]) for n in names}
        return {"total": np.array([report.elbo for report in self.history_]), **by_term}

    @property
    def ratings_(self) -> Ratings:
        """The ratings that were learnt, as far as they are kept."""
        with self._turn:
            self._fitted()
            return self._table if self._learner is None else self._learner.ratings

    @property
    def n_ratings_(self) -> int:
        """How many ratings the model has learnt from."""
        with self._turn:
            return self._fitted().n_ratings

    # -- inner workings ------------------------------------------------------------------------

    @property
    def _turn(self) -> threading.RLock:
        """What threads that ask the model and let it learn at once wait for."""
        return lock_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with self._turn:
            check_idle(self)
            kept = {name: vars(self)[name] for name in vars(self) if name not in NOT_KEPT}
            vars(twin).update(copy.deepcopy(kept, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # A copy, made under the lock: what is pickled later must not change in the meantime.
        return vars(copy.deepcopy(self))

    def _fitted(self) -> BatchState | OnlineState:
        return self.state_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

    def _moments(self, side: str, *, with_stranger: bool = False) -> Moments:
        """Moments of a side; newcomers' with features and, last, a stranger's where asked for."""
        own = self._fitted().sides[side]
        if self._learner is not None:
            from hemf.online.features import welcome

            welcome(self._learner.state, side)
        if not with_stranger:
            return own.moments
        newcomers = self._newcomers(side)
        if self._learner is not None and newcomers is None:
            return self._learner.state.with_stranger(side)
        if side not in self._strangers:
            from hemf.model.predictive import with_stranger as extended

            counts = self._fitted().counts(side)
            self._strangers[side] = extended(own, newcomers, counts)
        return self._strangers[side]

    def _moments_at(self, side: str, place: int) -> tuple[Any, Any]:
        """Mean and second moment of one row, a newcomer or, at -1, a stranger."""
        n_rows = self._fitted().sides[side].n_rows
        moments = self._moments(side, with_stranger=not 0 <= place < n_rows)
        return moments.mean[place], moments.second[place]

    def _noise(self, user_rows: Any, item_rows: Any) -> Float64Array:
        """Return the noise variance of each pair, standardised; row -1 is a stranger's."""
        sides = self._fitted().sides
        noise = np.full(len(user_rows), self.state_.noise)
        for name, rows in (("user", user_rows), ("item", item_rows)):
            scales = sides[name].noise_scales
            if scales is not None:
                noise *= scales.inverse[rows]
        return noise

    def _vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Ids of users and items; of a model that knows nothing, none."""
        if not hasattr(self, "state_"):
            from hemf.data.vocabulary import Vocabulary

            return Vocabulary(), Vocabulary()
        known = self._table if self._learner is None else self._learner
        return known.users, known.items

    def _ids(self, side: str, ids: Any) -> tuple[Any, bool]:
        """Return ids as a list or array, and whether it was a single one."""
        return as_ids(ids, self._vocabularies()[SIDES.index(side)])

    def _rows(self, side: str, ids: Any) -> npt.NDArray[np.int64]:
        """Row of each id, -1 for those never seen."""
        known, n_rows = self._vocabularies()[SIDES.index(side)], self._fitted().sides[side].n_rows
        rows = known.rows(ids)
        if len(known) > n_rows:  # ids may have been added since
            rows[rows >= n_rows] = -1
        return rows

    def _learnt(self, side: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return these rows with -1, a stranger's, for those that have no rating in training."""
        state = self._fitted()
        if not state.sides[side].n_rows:
            return np.full(rows.size, -1)
        learnt = rows.copy()
        learnt[state.counts(side, rows) == 0] = -1
        return learnt

    def _newcomers(self, side: str) -> Any:
        """Features of those that have nothing else; None where there are none."""
        given = self._given.get(side)
        return given.features if given is not None and len(given.newcomers) else None

    def _mood(self, user_rows: npt.NDArray[np.int64], timestamps: Any) -> tuple[Any, Any]:
        """Mean and variance of users' moods at these times, standardised; row -1 is a stranger's.

        Without times, of any mood.
        """
        moods = getattr(self._fitted(), "moods", None)
        if moods is None or timestamps is None:
            return 0.0, self._mood_variance()
        mean, variance = moods.at(user_rows, as_times(timestamps, user_rows.size))
        return mean, variance

    def _mood_variance(self) -> float:
        """Variance of a mood at a time that is not known, standardised; 0 without moods."""
        moods = getattr(self._fitted(), "moods", None)
        return 0.0 if moods is None else float(moods.prior.variance + moods.prior.extra)

    @property
    def _has_moods(self) -> bool:
        """Whether raters have moods, or will have once the model has learnt something."""
        state = getattr(self, "state_", None)
        if state is None:
            return bool(self.moods)
        return getattr(state, "moods", None) is not None

    def _known_and_placed(
        self, side: str, ids: Any
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each id, -1 for those without a rating, and where its moments are.

        Those without a rating are strangers, unless features tell of them.
        """
        rows, own = self._rows(side, ids), self._fitted().sides[side]
        learnt = self._learnt(side, rows)
        places = learnt.copy()
        if own.regression is not None:
            places[rows >= 0] = rows[rows >= 0]
            if self._newcomers(side) is not None and (rows < 0).any():
                new = self._given[side].newcomers.rows(ids)
                is_new = (rows < 0) & (new >= 0)
                places[is_new] = own.n_rows + new[is_new]
        return learnt, places

    def _refuse(self, side: str, ids: Any, which: npt.NDArray[np.bool_]) -> None:
        """Raise an error that names the first of these ids, if there is any."""
        if which.any():
            at = int(np.argmax(which))
            value = factorise(ids).decode().item(at)
            reason = likely_reason(side, value, *self._own_and_other(side))
            message = f"{side} {value!r} at row {at} is not known to the model"
            message += "" if reason is None else f": {reason}"
            raise UnknownIdError(message, value=value, row=at)

    def _warn_of_unknown(self, *, expected: bool = False, **asked: tuple[Any, Any]) -> None:
        """Warn where most ids of a side are unknown; of each, ids and the places of moments."""
        strange = {side: (ids, places < 0) for side, (ids, places) in asked.items()}
        if any(unknown.any() for _, unknown in strange.values()):
            warn_of_unknown(
                *(
                    RequestedIds(side, ids, unknown, *self._own_and_other(side))
                    for side, (ids, unknown) in strange.items()
                ),
                expected=expected,
            )

    def _own_and_other(self, side: str) -> tuple[Vocabulary, Vocabulary]:
        users, items = self._vocabularies()
        return (users, items) if side == "user" else (items, users)

    def _to_rating(self, standardised: Float64Array) -> Float64Array:
        ratings = self.global_mean_ + self.rating_scale_ * standardised
        if self.rating_range_ is not None:
            np.clip(ratings, *self.rating_range_, out=ratings)
        return ratings
