"""Models that commands can fit, by the name given with ``--model NAME[:K=V,…]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TypeAlias, cast, runtime_checkable

import typer

from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf._typing import Array
    from hemf.data.ratings import Ratings
    from hemf.data.vocabulary import Vocabulary
    from hemf.estimator import HeMF
    from hemf.evaluation import Predictive

Settings: TypeAlias = dict[str, Any]
"""Parameters by name."""
Seed = Annotated[int, typer.Option("--seed", help="Random seed.", min=0)]


@dataclass(frozen=True)
class ModelOptions:
    """Parameters of a model, options of a command."""

    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Parameter of the model; may be repeated."),
    ] = None
    seed: Seed = 0
    n_jobs: Annotated[
        int | None,
        typer.Option(help="Threads, -1 (the default) for all cores; same result for any."),
    ] = None


WORDS = {"true": True, "false": False, "none": None}


def parse_value(text: str) -> Any:
    """Parse the value of a parameter: a number, true, false, none, a tuple with commas, or text.

    >>> [parse_value(text) for text in ("20", "1e-5", "None", "1,5", "tied")]
    [20, 1e-05, None, (1, 5), 'tied']
    """
    if "," in text:
        return tuple(parse_value(part) for part in text.strip("()[] ").split(",") if part.strip())
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")


def setting_name(setting: str) -> str:
    """Return the parameter of a setting.

    >>> setting_name("n-factors=3")
    'n_factors'
    """
    return setting.partition("=")[0].strip().replace("-", "_")


def parse_settings(settings: list[str] | None) -> Settings:
    """Parse ``--set`` options.

    >>> parse_settings(["n_factors=10", "rating_range=1,5"])
    {'n_factors': 10, 'rating_range': (1, 5)}
    """
    parsed = {}
    for setting in settings or ():
        _, equals, value = setting.partition("=")
        if not equals:
            raise ParameterError(
                f"--set {setting}: expected name=value, such as --set n_factors=10", value=setting
            )
        parsed[setting_name(setting)] = parse_value(value)
    return parsed


class Model(Protocol):
    """Methods of a model that commands call; all model classes have them."""

    duplicates: str

    @property
    def n_sweeps_(self) -> int:
        """Number of passes over the ratings."""

    @property
    def fit(self) -> Callable[..., object]:
        """Fit to ratings; with ``callbacks`` and, for some models, features."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Return the expected ratings of pairs."""

    def get_params(self, deep: bool = True) -> Settings:
        """Return the parameters."""

    def set_params(self, **params: object) -> Self:
        """Set parameters."""


@runtime_checkable
class Probabilistic(Protocol):
    """A model that predicts distributions."""

    @property
    def predict_distribution(self) -> Callable[..., Predictive]:
        """Return the distribution of the ratings of pairs."""


@dataclass(frozen=True)
class Kind:
    """A class of models."""

    name: str
    module: str
    streams: bool = False
    """Whether it learns rating by rating."""
    features: bool = False
    """Whether it learns from features."""
    predicts: bool = True
    """Whether it predicts ratings; if not, it only ranks."""

    def new(self, options: ModelOptions, own: Sequence[str] = ()) -> Model:
        """Return an unfitted model; its ``own`` settings override others, and all are checked."""
        model: Model = getattr(import_module(self.module), self.name)()
        known = model.get_params()
        if "rng" in known:
            model.set_params(rng=options.seed)
        model.set_params(**parse_settings([*(options.settings or ()), *own]))
        if options.n_jobs is not None and "n_jobs" in known:
            model.set_params(n_jobs=options.n_jobs)
        check_parameters(model)
        return model


MODELS = {
    "hemf": Kind("HeMF", "hemf", streams=True, features=True),
    "sgd": Kind("SGD", "hemf.baselines", streams=True),
    "gibbs": Kind("GibbsHeMF", "hemf.samplers", features=True),
    "bpmf": Kind("BPMF", "hemf.samplers"),
    "m3f-tib": Kind("M3FTIB", "hemf.samplers"),
    "m3f-tif": Kind("M3FTIF", "hemf.samplers"),
    "bias": Kind("Bias", "hemf.baselines"),
    "popularity": Kind("Popularity", "hemf.baselines"),
    "ease": Kind("EASE", "hemf.baselines", predicts=False),
}
"""Models by name.

>>> MODELS["m3f-tib"].new(ModelOptions(["item_topics=2"], seed=3))
M3FTIB(item_topics=2, rng=3)
"""
STREAMING = {name: kind for name, kind in MODELS.items() if kind.streams}
"""Models that learn rating by rating."""


def check_parameters(model: Model, *, online: bool = False) -> None:
    """Check all parameters of a model, with ``online`` also those of online learning."""
    check = getattr(model, "check_parameters", None)
    if check is not None:
        check()
        return
    from hemf._options import fit_options, online_options

    fitted = cast("HeMF", model)
    fit_options(fitted)
    if online:
        online_options(fitted)


def parse_model(text: str, known: Mapping[str, Kind] = MODELS) -> tuple[str, list[str]]:
    """Parse ``--model``: a name, and settings as ``--set`` takes them.

    >>> parse_model("hemf"), parse_model("sgd:step=0.08,rating_range=1,5")
    (('hemf', []), ('sgd', ['step=0.08', 'rating_range=1,5']))
    """
    name, _, rest = text.partition(":")
    if name not in known:
        why = "it learns all ratings at once" if name in MODELS else "there is no such model"
        raise ParameterError(f"--model {text}: {why}; choose one of {', '.join(known)}", value=text)
    settings: list[str] = []
    for part in rest.split(",") if rest else ():
        if "=" in part:
            settings.append(part)
        elif settings:
            settings[-1] += f",{part}"  # a value of several numbers
        else:
            raise ParameterError(
                f"--model {text}: expected name=value after the colon, such as {name}:n_factors=10",
                value=text,
            )
    return name, settings


def times_for(model: Model, ratings: Ratings) -> dict[str, object]:
    """Return the ``timestamps`` that a model with moods predicts with."""
    return {"timestamps": ratings.timestamps} if model.get_params().get("moods") else {}


def predictions(model: Model, ratings: Ratings) -> tuple[Array, Array]:
    """Return ratings and their predictions."""
    users, items, actual = ratings.id_columns()
    return actual, model.predict(users, items, **times_for(model, ratings))


WARM_UP = "getting ready (the first run compiles kernels: up to a minute)"


def warm_up(model: Model, *, online: bool = False) -> None:
    """Compile the kernels that a model needs, or load them from the cache.

    A fit of a few ratings does it and, with ``online``, a short stream.
    """
    from hemf.kernels.moods import compile_moods

    quick: Settings = {"max_sweeps": 1, "epochs": 1, "validation_fraction": 0.0, "rng": 0}
    quick |= {"samples": 1, "burn_in": 0}
    quick["rating_range"] = None  # the few ratings may be outside the chosen one
    given = model.get_params()
    chosen = {name: quick.get(name, value) for name, value in given.items()}
    pairs = [(user, item) for user in range(3) for item in range(3)]
    ratings = [(user, item, float(user + item), user) for user, item in pairs]
    kind: Any = type(model)
    small = kind(**chosen).fit(ratings)
    if hasattr(small, "predict"):  # EASE only ranks
        small.predict([0], [0])
    if given.get("moods"):
        compile_moods(given["dtype"])  # a single sweep does not need them
    if online:
        for learner in (small, kind(**chosen)):
            learner.predict_then_learn(ratings, return_seconds=True)
            learner.partial_fit([(user + 9, *others) for user, *others in ratings])


def find_id(known: Vocabulary, text: str) -> tuple[object, bool]:
    """Return the id that a text stands for, and whether it is known: 42 is a number or text.

    >>> from hemf.data.vocabulary import Vocabulary
    >>> find_id(Vocabulary([7, 42]), "42"), find_id(Vocabulary(["42"]), "42")
    ((42, True), ('42', True))
    >>> find_id(Vocabulary(["ann"]), "zoe")
    ('zoe', False)
    """
    if text in known:
        return text, True
    value = parse_value(text)
    if isinstance(value, int | float) and value in known:
        return value, True
    if known.ids.dtype != object:  # all ids are integers
        return (value if isinstance(value, int) else text), False
    # Dates, tuples and the like are found by their text.
    found = (id for id in known.ids if not isinstance(id, str | int | float) and str(id) == text)
    id = next(found, None)
    return (text, False) if id is None else (id, True)


def summary(model: HeMF) -> dict[str, object]:
    """Return the main figures of a fitted model."""
    last = model.history_[-1]
    held = [r.validation_rmse for r in model.history_ if r.validation_rmse is not None]
    return {
        "users": model.n_users_,
        "items": model.n_items_,
        "ratings": model.ratings_.n_ratings,
        "user_communities": model.n_user_communities_,
        "item_communities": model.n_item_communities_,
        "sweeps": model.n_sweeps_,
        "converged": model.converged_,
        "elbo": model.elbo_,
        "noise_std": model.noise_variance_**0.5,
        "validation_rmse": min(held) if held else None,
        "seconds": last.seconds,
    }


def ranked_items(model: HeMF, user: object, n: int, **options: Any) -> list[dict[str, object]]:
    """Return the best items of a user, each with score, mean and standard deviation."""
    items, scores = model.recommend(user, n, **options)
    if not len(items):
        return []
    mean, std = model.predict(user, items, return_std=True)
    return [
        {"item": item, "score": float(score), "mean": float(m), "std": float(s)}
        for item, score, m, s in zip(items.tolist(), scores, mean, std, strict=True)
    ]
