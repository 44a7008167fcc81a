"""Options of a fit and of online learning, made of the estimator's parameters.

Parameters are checked once, before anything is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from hemf.errors import ParameterError
from hemf.model.rows import Layout

ALL = -1  # window: every rating is kept
MAX_PARTS = 4  # communities that a row can belong to at once, its likeliest ones
MIN_SHARE = 1e-6  # of a row; communities with less are left out


@dataclass(frozen=True)
class OnlineOptions:
    """How to learn online; `hemf.HeMF` documents each."""

    window: int = ALL
    """Ratings kept of each row; the others are summed up."""
    counts_repeats: bool = False
    """Whether another rating of a pair is added to the earlier ones instead of replacing them."""
    buffer: int = 0
    """Ratings that are all kept at first, whatever ``window`` is."""
    forgetting: dict[str, float] = field(default_factory=lambda: {"user": 1.0, "item": 1.0})
    evb: str | None = "closed"
    max_communities: dict[str, int | None] = field(
        default_factory=lambda: {"user": None, "item": None}
    )
    thorough: bool = False
    """Weigh every community at every refresh, and leave none out: for proofs."""
    min_share: float = MIN_SHARE
    max_parts: int = MAX_PARTS
    refresh: float = 0.0
    """Rows with the oldest information that are refreshed too, for each rating learnt."""
    duplicates: str = "last"
    """What to do with a pair rated twice in one batch."""
    rating_range: str | tuple[float, float] | None = "observed"
    """Range that predictions are clipped to."""


@dataclass(frozen=True)
class Schedule:
    """When the parts of a model are learnt, in sweeps."""

    warm_up: int = 8
    """Sweeps with one community on each side before any is seeded."""
    hold_scale: int = 3
    """Sweeps before the prior covariances are learnt: directions that close early stay closed."""
    hold_structure: int = 4
    """Sweeps after seeding before λ0, ι0 and W0 are learnt: sooner, communities collapse."""
    hold_noise: int = 10
    """Sweeps before noise scales are learnt: sooner, unlearnt structure passes for noise."""
    hold_mood: int = 10
    """Sweeps before moods are learnt: sooner, unlearnt structure passes for mood."""
    merge_every: int = 3
    """Sweeps between attempts to merge communities."""

    def features_due(self, sweep: int) -> bool:
        """Whether features' precisions are learnt: less and less often, to save time.

        >>> [sweep for sweep in range(60) if Schedule().features_due(sweep)]
        [3, 5, 8, 13, 21, 34, 54]
        """
        due = self.hold_scale
        while due < sweep:
            due += max(1, round(0.6 * due))
        return due == sweep


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit; `hemf.HeMF` documents each."""

    n_factors: int
    offsets: bool
    max_communities: dict[str, int]
    tied: dict[str, bool]
    coupled: bool
    noise_scales: dict[str, bool]
    evb: str | None
    concentration: float
    spread: float
    max_sweeps: int
    tolerance: float
    patience: int
    n_jobs: int | None
    dtype: type[np.floating]
    moods: bool = False
    implicit_features: tuple[str, ...] = ()
    """Sides with features made of their ratings."""
    duplicates: str = "last"
    """What to do with a pair rated twice."""
    rating_range: str | tuple[float, float] | None = "observed"
    """Range that predictions are clipped to."""
    validation_fraction: float = 0.0
    """Share of the ratings to hold out."""
    choices: bool = False
    """Whether to learn which pairs were observed."""
    n_choice_factors: int = 64
    n_links: int = 50
    unobserved_weight: float = 0.3
    """w₀, the weight of a pair that was not observed."""
    schedule: Schedule = field(default_factory=Schedule)

    def layout(self, side: str) -> Layout:
        """Return the layout of a side's vectors."""
        return Layout.of(side, n_factors=self.n_factors, offsets=self.offsets)

    @property
    def seeds(self) -> bool:
        """Whether any side may have several communities."""
        return max(self.max_communities.values()) > 1

    @property
    def earliest(self) -> int:
        """First sweep that can converge: before it, parts of the model are held."""
        schedule, held = self.schedule, [self.schedule.hold_scale]
        if self.seeds:
            held.append(schedule.warm_up + schedule.hold_structure + 2)
        if any(self.noise_scales.values()):
            held.append(schedule.hold_noise + 2)
        if self.moods:
            held.append(schedule.hold_mood + 2)
        return max(held)


# -- from parameters -----------------------------------------------------------------------------


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
        choices=check_bool("choices", params["choices"]),
        n_choice_factors=check_int(
            "n_choice_factors", params["n_choice_factors"], low=1, high=MAX_FACTORS
        ),
        n_links=check_int("n_links", params["n_links"], low=0),
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
