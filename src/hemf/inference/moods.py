"""Moods of raters inside a batch fit: what they explain is taken off the ratings of both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hemf.engines.threads import Rows, chunk_bounds, share_out, thread_count
from hemf.model.mood import MoodPosterior, MoodPrior, MoodSums, learn_prior, mood_at
from hemf.model.packing import Array, Float64

if TYPE_CHECKING:
    from hemf.inference.batch import BatchState

Wholes = npt.NDArray[np.int64]
ROUNDS = 3  # of q(l, g) and its prior in turns, which is little work beside the ratings


@dataclass(frozen=True)
class Moods:
    """The moods of all raters, and the ratings that they are taken off."""

    ratings: dict[str, Array]
    """Standardised, moods included, as in the table of each side."""
    sitting: dict[str, npt.NDArray[np.int32]]
    """Of each rating, as in the table of each side."""
    indptr: Wholes
    """Where each rater's sittings begin, and the last ends."""
    times: Wholes
    """Of each sitting."""
    prior: MoodPrior
    posterior: MoodPosterior
    divergence: float = 0.0

    @classmethod
    def start(cls, rows: dict[str, Rows], times: Wholes) -> Moods:
        """Return moods of which nothing is known: none is taken off yet.

        ``times`` are those of the ratings in the users' table.
        """
        users, items = rows["user"], rows["item"]
        n_users = users.indptr.size - 1
        of_user = np.repeat(np.arange(n_users), np.diff(users.indptr))
        order = np.lexsort((times, of_user))
        user, time = of_user[order], times[order]
        begins = np.ones(order.size, bool)
        begins[1:] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
        sitting = np.empty(order.size, np.int32)
        sitting[order] = np.cumsum(begins) - 1
        indptr = np.zeros(n_users + 1, np.int64)
        np.cumsum(np.bincount(user[begins], minlength=n_users), out=indptr[1:])
        by_item = np.argsort(users.indices, kind="stable")
        return cls(
            ratings={"user": users.values, "item": items.values},
            sitting={"user": sitting, "item": sitting[by_item]},
            indptr=indptr,
            times=time[begins],
            prior=MoodPrior(),
            posterior=MoodPosterior.none(int(begins.sum())),
        )

    def spread_sums(self, name: str, rows: Rows, other_weight: Float64) -> Float64:
        """Σ_j υ_j Var[o_ij] of each row of a side."""
        return rows.sums(self.posterior.spread[self.sitting[name]] * other_weight[rows.indices])

    def rows_without(self, rows: dict[str, Rows]) -> dict[str, Rows]:
        """Return the tables of both sides, the moods taken off their ratings."""
        moods = self.posterior.mean.astype(self.ratings["user"].dtype)
        return {
            name: Rows(own.indptr, own.indices, self.ratings[name] - moods[self.sitting[name]])
            for name, own in rows.items()
        }

    def at(self, users: Wholes, when: Wholes) -> tuple[Float64, Float64]:
        """Mean and variance of these users' moods at these times; -1 is a stranger."""
        from hemf.kernels.mood import places

        known = np.flatnonzero(users >= 0)
        place, found = np.zeros(users.size, np.int64), np.zeros(known.size, np.int64)
        places.compiled(np.float64)(self.indptr, self.times, users[known], when[known], found)
        place[known] = found
        return mood_at(self.prior, self.posterior, self.indptr, self.times, users, when, place)


def update_moods(state: BatchState, *, learn: bool, n_jobs: int | None = None) -> None:
    """Bring q(l, g), and with ``learn`` its prior too, to their optimum given all else."""
    moods, threads = state.moods, thread_count(n_jobs)
    assert moods is not None
    precision, pull = _gathered(state, moods, threads)
    prior = used = moods.prior
    for _ in range(ROUNDS if learn else 1):
        used = prior
        posterior, sums = _smoothed(moods, used, precision, pull, threads)
        prior = learn_prior(used, sums) if learn else used
    old = moods.posterior
    squares = posterior.mean**2 - old.mean**2 + posterior.spread - old.spread
    change = precision @ squares - 2.0 * pull @ (posterior.mean - old.mean)
    state.squared_error = max(state.squared_error + state.noise * float(change), 0.0)
    state.moods = replace(moods, prior=used, posterior=posterior, divergence=sums.divergence)
    state.rows = state.moods.rows_without(state.rows)


def _gathered(state: BatchState, moods: Moods, threads: int) -> tuple[Float64, Float64]:
    """Return Σ τ_i υ_j/σ² of each sitting, and the same of r - E[a·b]."""
    from hemf.kernels.mood import gather

    users, items, rows = state.sides["user"], state.sides["item"], state.rows["user"]
    cuts = chunk_bounds(rows.indptr, users.layout.order)
    precision, pull = np.zeros(moods.times.size), np.zeros(moods.times.size)
    own, other = users.weights / state.noise, np.ascontiguousarray(items.weights)
    run = gather.compiled(users.moments.mean.dtype)

    def work(begin: int, end: int) -> None:
        run(
            begin, end, cuts, rows.indptr, rows.indices, moods.sitting["user"],
            moods.ratings["user"], users.moments.mean, items.moments.mean, own, other,
            precision, pull,
        )  # fmt: skip

    share_out(work, cuts.size - 1, threads)
    return precision, pull


def _smoothed(
    moods: Moods, prior: MoodPrior, precision: Float64, pull: Float64, threads: int
) -> tuple[MoodPosterior, MoodSums]:
    from hemf.kernels.mood import SUMS, smooth

    cuts = chunk_bounds(moods.indptr, 1)
    new = MoodPosterior.none(moods.times.size)
    sums = np.zeros((cuts.size - 1, SUMS))
    run = smooth.compiled(np.float64)

    def work(begin: int, end: int) -> None:
        run(
            begin, end, cuts, moods.indptr, precision, pull, prior.persistence, prior.variance,
            prior.extra, new.level, new.level_spread, new.product, new.mean, new.spread, sums,
        )  # fmt: skip

    share_out(work, cuts.size - 1, threads)
    first, now, before, product, extra, divergence = sums.sum(axis=0).tolist()
    n_raters = int((np.diff(moods.indptr) > 0).sum())
    return new, MoodSums(first, now, before, product, extra, divergence, n_raters, moods.times.size)
