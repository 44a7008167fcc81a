"""Settings to try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hemf._checks import check_bool
from hemf._options import fit_options, online_options
from hemf._typing import FeaturesLike
from hemf.data.ratings import Ratings
from hemf.errors import DataError, ParameterError
from hemf.estimator import HeMF

Settings = dict[str, Any]
"""Parameters of `HeMF`, and whether ``user_features`` and ``item_features`` are used."""
Space = Mapping[str, Sequence[object]]
"""Values to try of each parameter."""
Features = dict[str, list[FeaturesLike]]

FEATURES = ("user_features", "item_features")
COMMUNITIES = ("max_user_communities", "max_item_communities")
FACTORS = (2, 5, 10, 20, 32, 50)
ONE_SIDE = ("item", "user")
ELSEWHERE = {
    "validation_fraction": "ratings are held out anyway",
    "rng": "it is the seed of the whole search",
    "n_jobs": "the result is the same for any",
    "duplicates": "it changes what there is to predict",
    "buffer": "only what is learnt online depends on it",
    "history": "only what is learnt online depends on it",
    "forgetting": "only what is learnt online depends on it",
    "refresh": "only what is learnt online depends on it",
    "max_online_communities": "only what is learnt online depends on it",
}
"""Parameters that cannot be tried, and why."""


@dataclass(frozen=True)
class Choice:
    """Options of which one is chosen; all of them set the same parameters."""

    options: tuple[Settings, ...]
    ordered: bool = False
    """Whether the options are ordered: if one is no better, neither are those beyond it."""

    @property
    def names(self) -> set[str]:
        """Parameters that the options set."""
        return set(self.options[0])

    def place_in(self, settings: Mapping[str, object]) -> int | None:
        """Return the index of the option that these settings have."""
        held = {name: settings[name] for name in self.names}
        return self.options.index(held) if held in self.options else None


def default_space(
    ratings: Ratings, given: Iterable[str], fixed: Mapping[str, object]
) -> tuple[Choice, ...]:
    """Return the default choices, those with the largest gains on most data first.

    ``given`` are the available features; ``fixed`` parameters are left out.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> [min(choice.names) for choice in default_space(data, (), {"n_factors": 3})]
    ['implicit_features', 'max_item_communities', 'noise_scales', 'implicit_features']
    """
    usual = HeMF().get_params()
    most = max(min(ratings.n_users, ratings.n_items), 1)
    ladder = sorted({HeMF().n_factors, *(n for n in FACTORS if n <= most)})
    one = dict.fromkeys(COMMUNITIES, 1)
    choices = [
        Choice(({"implicit_features": True}, {"implicit_features": False})),
        Choice((one, {name: usual[name] for name in COMMUNITIES})),
        *(Choice(({name: False}, {name: True})) for name in FEATURES if name in given),
        Choice(tuple({"n_factors": n} for n in ladder), ordered=True),
        Choice(tuple({"noise_scales": of} for of in (None, "both", *ONE_SIDE))),
        Choice(tuple({"implicit_features": of} for of in ONE_SIDE)),
    ]
    if ratings.timestamps is not None:
        choices.insert(2, Choice(({"moods": True}, {"moods": False})))
    return tuple(choice for choice in choices if not choice.names & set(fixed))


def asked_space(space: Space, fixed: Mapping[str, object]) -> tuple[Choice, ...]:
    """Return the choices of a space.

    >>> [choice.options for choice in asked_space({"n_factors": [5, 10]}, {})]
    [({'n_factors': 5}, {'n_factors': 10})]
    """
    choices = []
    for name, values in space.items():
        if name in fixed:
            raise ParameterError(f"{name} is both fixed and to be tried; do one", value=name)
        if name in ELSEWHERE:
            raise ParameterError(f"{name} is not to be tried: {ELSEWHERE[name]}", value=name)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise ParameterError(f"{name}: give a list of values to try, not {values!r}")
        choices.append(Choice(tuple({name: value} for value in values)))
    return tuple(choices)


def first_settings(
    choices: Sequence[Choice], given: Iterable[str], fixed: Mapping[str, object]
) -> Settings:
    """Return the settings of the first trial: the defaults and the ``fixed`` ones.

    They and all options are checked.

    >>> first_settings(asked_space({"n_factors": [5]}, {}), (), {"moods": False})
    {'moods': False, 'n_factors': 20}
    """
    if "validation_fraction" in fixed:
        raise ParameterError(
            f"validation_fraction cannot be fixed: {ELSEWHERE['validation_fraction']}"
        )
    usual = HeMF().get_params() | dict.fromkeys(FEATURES, True)
    names = set().union(*(choice.names for choice in choices)) if choices else set()
    first = {**fixed, **{name: usual[name] for name in sorted(names & set(usual))}}
    for name in FEATURES:
        if name in {*fixed, *names} and name not in given:
            raise ParameterError(f"{name} are not given, so there is nothing to try", value=name)
    for options in ({}, *(option for choice in choices for option in choice.options)):
        check_settings({**first, **options})
    return first


def check_space(
    fixed: Mapping[str, object], space: Space | None, given: Iterable[str]
) -> tuple[Choice, ...] | None:
    """Check settings and space before data is read; return the choices of the space.

    >>> check_space({"n_factors": 5}, {"n_factors": [5, 10]}, ())
    Traceback (most recent call last):
    hemf.errors.ParameterError: n_factors is both fixed and to be tried; do one
    """
    asked = None if space is None else asked_space(space, fixed)
    first_settings(asked or (), given, fixed)
    return asked


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise an error for an unknown parameter or an invalid value."""
    for name in FEATURES:
        check_bool(name, settings.get(name, True))
    model = new_model(settings)
    fit_options(model)
    online_options(model)


def check_times(
    settings: Mapping[str, object], choices: Sequence[Choice], ratings: Ratings
) -> None:
    """Raise an error for moods without timestamps."""
    options = [settings, *(option for choice in choices for option in choice.options)]
    if ratings.timestamps is None and any(option.get("moods") for option in options):
        raise DataError(
            "moods are learnt from when ratings were given, and these have no timestamps; give a "
            "fourth column with them, or leave moods out"
        )


def new_model(settings: Mapping[str, object], **more: object) -> HeMF:
    """Return an unfitted model with these settings.

    >>> new_model({"n_factors": 5, "user_features": False}, rng=0)
    HeMF(n_factors=5, rng=0)
    """
    own = {name: value for name, value in settings.items() if name not in FEATURES}
    return HeMF().set_params(**own, **more)


def described(settings: Mapping[str, object], first: Mapping[str, object]) -> str:
    """Return how settings differ from the first ones.

    >>> described({"n_factors": 5, "moods": True}, {"n_factors": 20, "moods": False})
    'n_factors=5, moods'
    """
    changed = {name: value for name, value in settings.items() if value != first.get(name)}
    words = []
    if all(changed.get(name) == 1 for name in COMMUNITIES):
        changed = {name: value for name, value in changed.items() if name not in COMMUNITIES}
        words.append("one community")
    for name, value in changed.items():
        if isinstance(value, bool):
            words.append(name if value else f"no {name}")
        else:
            words.append(f"no {name}" if value is None else f"{name}={value}")
    return ", ".join(words) or "defaults"
