"""The part of a model file that holds raters' moods: what ratings and their times do not tell."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hemf.archive import Members, decoded, described, encoded, restored

if TYPE_CHECKING:
    from hemf.inference.batch import BatchState
    from hemf.inference.moods import Moods


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
    archive: zipfile.ZipFile,
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
    if not (0.0 <= prior.persistence < 1.0 and prior.variance > 0.0 and prior.extra > 0.0):
        raise ValueError(f"moods: their prior is {prior}")
    divergence = float(decoded(form["divergence"]))
    state.moods = replace(start, prior=prior, posterior=posterior, divergence=divergence)
    state.rows = state.moods.rows_without(state.rows)
