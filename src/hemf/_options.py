"""The estimator's parameters, checked once, before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hemf._checks import (
    check_bool,
    check_choice,
    check_implicit_features,
    check_int,
    check_n_jobs,
    check_number,
    check_rating_range,
)
from hemf._typing import SIDES
from hemf.batch.fit import FitOptions
from hemf.errors import ParameterError
from hemf.online.options import ALL, OnlineOptions

if TYPE_CHECKING:
    from hemf.estimator import HeMF

MOST_FACTORS = 1000  # a row's second moment takes 2 MB then; memory runs out soon after


def fit_options(model: HeMF) -> FitOptions:
    """Return what a fit needs to know; an error names the parameter and what it may be."""
    check_number("validation_fraction", model.validation_fraction, low=0.0, high=0.9)
    check_choice("duplicates", model.duplicates, ("last", "mean", "error"))
    check_rating_range(model.rating_range)
    check_choice("noise_scales", model.noise_scales, ("both", "user", "item", None))
    single = check_choice("dtype", model.dtype, ("float32", "float64")) == "float32"
    return FitOptions(
        n_factors=check_int("n_factors", model.n_factors, low=1, high=MOST_FACTORS),
        offsets=bool(check_choice("offsets", model.offsets, (True, False))),
        max_communities={side: _limit(model, side) for side in SIDES},
        tied={side: _tied(model, side) for side in SIDES},
        coupled=check_choice("membership", model.membership, ("coupled", "mean-field"))
        == "coupled",
        noise_scales={side: model.noise_scales in (side, "both") for side in SIDES},
        moods=check_bool("moods", model.moods),
        implicit_features=check_implicit_features(model.implicit_features),
        evb=check_choice("evb", model.evb, ("closed", "gradient", None)),
        concentration=check_number("concentration", model.concentration, low=1e-6, high=1e6),
        spread=check_number("spread", model.spread, low=1e-9, high=1e9),
        max_sweeps=check_int("max_sweeps", model.max_sweeps, low=1),
        tolerance=check_number("tol", model.tol, low=0.0),
        patience=check_int("patience", model.patience, low=1),
        n_jobs=check_n_jobs(model.n_jobs),
        dtype=np.float32 if single else np.float64,
    )


def online_options(model: HeMF) -> OnlineOptions:
    """Return how a model learns online; an error names the parameter and what it may be."""
    fit, cap = fit_options(model), model.max_online_communities
    if cap is not None:
        cap = check_int("max_online_communities", cap, low=1)
    window = _window(model.history)
    return OnlineOptions(
        window=window,
        counts_repeats=window == 0 or model.duplicates == "mean",
        buffer=check_int("buffer", model.buffer, low=0),
        forgetting=_forgetting(model.forgetting),
        evb=fit.evb,
        max_communities={
            side: 1 if most == 1 else cap for side, most in fit.max_communities.items()
        },
        refresh=check_number("refresh", model.refresh, low=0.0, high=100.0),
    )


def _window(history: str | int | None) -> int:
    """Ratings of each row that are kept; -1 is all of them."""
    if history is None:  # what a command line or a search may make of "none"
        return 0
    if isinstance(history, str):
        if history not in ("full", "none"):
            raise ParameterError(
                f'history must be "full", "none" or a number of ratings, got {history!r}',
                value=history,
            )
        return ALL if history == "full" else 0
    return check_int("history", history, low=1)


def _forgetting(given: float | tuple[float, float]) -> dict[str, float]:
    pair = given if isinstance(given, tuple) and len(given) == 2 else (given, given)
    try:
        return {
            side: check_number("forgetting", part, low=0.01, high=1.0)
            for side, part in zip(SIDES, pair, strict=True)
        }
    except ParameterError:
        raise ParameterError(
            "forgetting must be a number between 0.01 and 1, or two of them, for users and for "
            f"items, got {given!r}",
            value=given,
        ) from None


def _limit(model: HeMF, side: str) -> int:
    name = f"max_{side}_communities"
    return check_int(name, getattr(model, name), low=1)


def _tied(model: HeMF, side: str) -> bool:
    name = f"{side}_covariances"
    return bool(check_choice(name, getattr(model, name), ("own", "tied")) == "tied")
