"""The estimator's parameters, checked once, before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hemf._checks import (
    MAX_FACTORS,
    check_bool,
    check_choice,
    check_implicit_features,
    check_int,
    check_n_jobs,
    check_number,
    check_rating_range,
)
from hemf._typing import SIDES
from hemf.batch.options import FitOptions
from hemf.errors import ParameterError
from hemf.online.options import ALL, OnlineOptions


class Parameters(Protocol):
    """Anything with the parameters of `hemf.HeMF`."""

    def get_params(self) -> dict[str, Any]:
        """Return every parameter by name."""


def fit_options(model: Parameters) -> FitOptions:
    """Check the parameters of a fit; an error names the parameter and what it may be."""
    params = model.get_params()
    check_number("validation_fraction", params["validation_fraction"], low=0.0, high=0.9)
    check_choice("duplicates", params["duplicates"], ("last", "mean", "error"))
    check_choice("noise_scales", params["noise_scales"], ("both", "user", "item", None))
    single = check_choice("dtype", params["dtype"], ("float32", "float64")) == "float32"
    return FitOptions(
        n_factors=check_int("n_factors", params["n_factors"], low=1, high=MAX_FACTORS),
        offsets=bool(check_choice("offsets", params["offsets"], (True, False))),
        max_communities={side: _limit(params, side) for side in SIDES},
        tied={side: _tied(params, side) for side in SIDES},
        coupled=check_choice("membership", params["membership"], ("coupled", "mean-field"))
        == "coupled",
        noise_scales={side: params["noise_scales"] in (side, "both") for side in SIDES},
        moods=check_bool("moods", params["moods"]),
        implicit_features=check_implicit_features(params["implicit_features"]),
        evb=check_choice("evb", params["evb"], ("closed", "gradient", None)),
        concentration=check_number("concentration", params["concentration"], low=1e-6, high=1e6),
        spread=check_number("spread", params["spread"], low=1e-9, high=1e9),
        max_sweeps=check_int("max_sweeps", params["max_sweeps"], low=1),
        tolerance=check_number("tol", params["tol"], low=0.0),
        patience=check_int("patience", params["patience"], low=1),
        n_jobs=check_n_jobs(params["n_jobs"]),
        dtype=np.float32 if single else np.float64,
        duplicates=params["duplicates"],
        rating_range=check_rating_range(params["rating_range"]),
        validation_fraction=params["validation_fraction"],
    )


def online_options(model: Parameters, fit: FitOptions | None = None) -> OnlineOptions:
    """Check the parameters of online learning, and those of a fit unless they are checked."""
    fit, params = fit or fit_options(model), model.get_params()
    cap = params["max_online_communities"]
    if cap is not None:
        cap = check_int("max_online_communities", cap, low=1)
    window = _window(params["history"])
    return OnlineOptions(
        window=window,
        counts_repeats=window == 0 or params["duplicates"] == "mean",
        buffer=check_int("buffer", params["buffer"], low=0),
        forgetting=_forgetting(params["forgetting"]),
        evb=fit.evb,
        max_communities={
            side: 1 if most == 1 else cap for side, most in fit.max_communities.items()
        },
        refresh=check_number("refresh", params["refresh"], low=0.0, high=100.0),
        duplicates=fit.duplicates,
        rating_range=fit.rating_range,
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


def _limit(params: Mapping[str, Any], side: str) -> int:
    name = f"max_{side}_communities"
    return check_int(name, params[name], low=1)


def _tied(params: Mapping[str, Any], side: str) -> bool:
    name = f"{side}_covariances"
    return bool(check_choice(name, params[name], ("own", "tied")) == "tied")
