"""What learns, by the name that is typed: ``--model NAME[:K=V,…]``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from hemf.cli import arguments
from hemf.errors import ParameterError

if TYPE_CHECKING:
    from hemf import GibbsHeMF, HeMF
    from hemf.baselines import BPMF, M3FTIB, M3FTIF, SGD

    Learner = HeMF | GibbsHeMF | SGD | BPMF | M3FTIB | M3FTIF

NewModel = Callable[[list[str] | None, int, int | None], "Learner"]
"""Makes an unfitted model from settings, a seed and a number of threads, all of them checked."""


def _new(name: str, module: str = "hemf.baselines") -> NewModel:
    """Return how to make a model of this name, from a module that is loaded when it is needed."""

    def new(settings: list[str] | None, seed: int, n_jobs: int | None = None) -> Learner:
        kind = getattr(import_module(module), name)
        model: GibbsHeMF | SGD | BPMF | M3FTIB | M3FTIF
        model = kind(rng=seed).set_params(**arguments.parse_settings(settings))
        if n_jobs is not None and "n_jobs" in model.get_params():  # some take one thread always
            model.set_params(n_jobs=n_jobs)
        model.check_parameters()
        return model

    return new


STREAMING: dict[str, NewModel] = {"hemf": arguments.new_model, "sgd": _new("SGD")}
"""How to make each model that learns rating by rating."""

MODELS: dict[str, NewModel] = {
    **STREAMING,
    "gibbs": _new("GibbsHeMF", "hemf.sampling"),
    "bpmf": _new("BPMF"),
    "m3f-tib": _new("M3FTIB"),
    "m3f-tif": _new("M3FTIF"),
}
"""How to make each model there is.

>>> MODELS["m3f-tib"](["item_topics=2"], 3, None)
M3FTIB(item_topics=2, rng=3)
"""


def parse_model(text: str, known: dict[str, NewModel] = MODELS) -> tuple[str, list[str]]:
    """Read ``--model``: a name and settings, as ``--set`` takes them.

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


FEATURED = ("hemf", "gibbs")
"""The models that learn from features, too."""
