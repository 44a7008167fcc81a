"""The estimator's parameters, checked once, before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hemf._checks import (
    checked_jobs,
    checked_range,
    choice,
    implicit_sides,
    number,
    switch,
    whole_number,
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
    number("validation_fraction", model.validation_fraction, low=0.0, high=0.9)
    choice("duplicates", model.duplicates, ("last", "mean", "error"))
    checked_range(model.rating_range)
    choice("noise_scales", model.noise_scales, ("both", "user", "item", None))
    single = choice("dtype", model.dtype, ("float32", "float64")) == "float32"
    return FitOptions(
        n_factors=whole_number("n_factors", model.n_factors, at_least=1, at_most=MOST_FACTORS),
        offsets=bool(choice("offsets", model.offsets, (True, False))),
        max_communities={side: _limit(model, side) for side in SIDES},
        tied={side: _tied(model, side) for side in SIDES},
        coupled=choice("membership", model.membership, ("coupled", "mean-field")) == "coupled",
        noise_scales={side: model.noise_scales in (side, "both") for side in SIDES},
        moods=switch("moods", model.moods),
        implicit_features=implicit_sides(model.implicit_features),
        evb=choice("evb", model.evb, ("closed", "gradient", None)),
        concentration=number("concentration", model.concentration, low=1e-6, high=1e6),
        spread=number("spread", model.spread, low=1e-9, high=1e9),
        max_sweeps=whole_number("max_sweeps", model.max_sweeps, at_least=1),
        tolerance=number("tol", model.tol, low=0.0),
        patience=whole_number("patience", model.patience, at_least=1),
        n_jobs=checked_jobs(model.n_jobs),
        dtype=np.float32 if single else np.float64,
    )


def online_options(model: HeMF) -> OnlineOptions:
    """Return how a model learns online; an error names the parameter and what it may be."""
    fit, cap = fit_options(model), model.max_online_communities
    if cap is not None:
        cap = whole_number("max_online_communities", cap, at_least=1)
    window = _window(model.history)
    return OnlineOptions(
        window=window,
        counts_repeats=window == 0 or model.duplicates == "mean",
        buffer=whole_number("buffer", model.buffer, at_least=0),
        forgetting=_forgetting(model.forgetting),
        evb=fit.evb,
        max_communities={
            side: 1 if most == 1 else cap for side, most in fit.max_communities.items()
        },
        refresh=number("refresh", model.refresh, low=0.0, high=100.0),
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
    return whole_number("history", history, at_least=1)


def _forgetting(given: float | tuple[float, float]) -> dict[str, float]:
    pair = given if isinstance(given, tuple) and len(given) == 2 else (given, given)
    try:
        return {
            side: number("forgetting", part, low=0.01, high=1.0)
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
    return whole_number(name, getattr(model, name), at_least=1)


def _tied(model: HeMF, side: str) -> bool:
    name = f"{side}_covariances"
    return bool(choice(name, getattr(model, name), ("own", "tied")) == "tied")
