"""The part of a model file that holds raters' moods: what ratings and their times do not tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hemf.archive import Archive, Members, decoded, described, encoded, read_array, restored

if TYPE_CHECKING:
    from hemf.inference.batch import BatchState
    from hemf.inference.history import History
    from hemf.inference.moods import Moods
    from hemf.inference.online_moods import OnlineMoods
    from hemf.model.mood import MoodPrior
    from hemf.model.side import Side


_SITTINGS = ("table", "moods", "time", "links")
_RATERS = ("last", "smoothed")


def describe_moods(moods: Moods | None, members: Members) -> dict[str, Any] | None:
    """Return the JSON form of moods, if there are any."""
    if moods is None:
        return None
    return {
        "prior": described(moods.prior, "moods/prior", members),
        "posterior": described(moods.posterior, "moods", members),
        "divergence": encoded(moods.divergence),
    }


def restore_moods(
    form: dict[str, Any],
    state: BatchState,
    times: NDArray[np.int64] | None,
    archive: Archive,
) -> None:
    """Give a state again the moods that `describe_moods` told of."""
    from hemf.inference.moods import Moods
    from hemf.model.mood import MoodPosterior, MoodPrior

    if times is None:
        raise ValueError("it has moods, and no times")
    start = Moods.start(state.rows, times)
    prior = restored(MoodPrior, form["prior"], archive)
    posterior = restored(MoodPosterior, form["posterior"], archive)
    for name, array in vars(posterior).items():
        fits = array.dtype == np.float64 and array.shape == start.times.shape
        if not (fits and np.isfinite(array).all()):
            raise ValueError(
                f"moods: their {name} is {array.dtype} {array.shape}, or not all there"
            )
    _check_prior(prior)
    divergence = float(decoded(form["divergence"]))
    state.moods = replace(start, prior=prior, posterior=posterior, divergence=divergence)
    state.rows = state.moods.rows_without(state.rows)


def describe_online_moods(moods: OnlineMoods | None, members: Members) -> dict[str, Any] | None:
    """Return the JSON form of moods that are learnt online, if there are any."""
    if moods is None:
        return None
    n, raters = int(moods.used[0]), moods.n_raters
    for name in _SITTINGS:
        members[f"online/moods/{name}.npy"] = getattr(moods, name)[:n].copy()
    for name in _RATERS:
        members[f"online/moods/{name}.npy"] = getattr(moods, name)[:raters].copy()
    return {
        "prior": described(moods.prior, "online/moods/prior", members),
        "learnt_at": moods.learnt_at,
        "refreshed": encoded(moods.refreshed),
    }


def restore_online_moods(form: dict[str, Any], users: Side, archive: Archive) -> OnlineMoods:
    """Make moods again of what `describe_online_moods` told of."""
    from hemf.inference.online_moods import OnlineMoods
    from hemf.model.mood import MoodPrior

    prior = restored(MoodPrior, form["prior"], archive)
    _check_prior(prior)
    moods = OnlineMoods.none(users.moments.mean.dtype, prior)
    moods.learnt_at, moods.refreshed = int(form["learnt_at"]), float(decoded(form["refreshed"]))
    n = read_array(archive, "online/moods/time.npy").size
    for name in (*_SITTINGS, *_RATERS):
        array, like = read_array(archive, f"online/moods/{name}.npy"), getattr(moods, name)
        shape = (n if name in _SITTINGS else users.n_rows, *like.shape[1:])
        if array.dtype != like.dtype or array.shape != shape or not np.isfinite(array).all():
            raise ValueError(
                f"moods: their {name} is {array.dtype} {array.shape}, or not all there"
            )
        setattr(moods, name, np.concatenate([array, like[:1]]))  # there is always room for one
    moods.used[0], moods.n_raters = n, users.n_rows
    moods.check()
    return moods


def restore_sittings(history: History, moods: OnlineMoods, name: str, archive: Archive) -> None:
    """Give the ratings of a history, which is fresh from the file, their sittings again."""
    sittings, n = read_array(archive, f"online/{name}/sittings.npy"), int(moods.used[0])
    right = sittings.dtype == np.int32 and sittings.shape == history.other.shape
    # What is out of range here would be out of bounds in compiled code.
    if not right or (sittings.size and not 0 <= int(sittings.min()) <= int(sittings.max()) < n):
        raise ValueError(f"{name}: a rating is of a sitting that is not there")
    history.sitting, history.has_sittings = sittings.copy(), True


def _check_prior(prior: MoodPrior) -> None:
    if not (0.0 <= prior.persistence < 1.0 and prior.variance > 0.0 and prior.extra > 0.0):
        raise ValueError(f"moods: their prior is {prior}")
