"""What people type, as what the library takes: data, columns, settings, ids, places to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf._files import expand_home
from hemf.cli import arguments
from hemf.cli.output import READ
from hemf.errors import DataError, ParameterError

if TYPE_CHECKING:
    from hemf import GibbsHeMF, HeMF, Ratings
    from hemf.baselines import SGD, Bias
    from hemf.cli.output import Output
    from hemf.data.datasets import Dataset
    from hemf.data.vocabulary import Vocabulary
    from hemf.samplers import BPMF, M3FTIB, M3FTIF

    Learner = HeMF | GibbsHeMF | SGD | Bias | BPMF | M3FTIB | M3FTIF


Model = Annotated[Path, typer.Argument(help="Model file that `hemf fit` wrote.", metavar="M"), READ]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Parameter of the model; may be repeated."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.", min=0)]
ColumnNames = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Columns of user, item, rating[, timestamp], by name or position from 0.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--n-jobs", help="Threads, -1 for all cores (as without); same result for any."),
]

WORDS = {"true": True, "false": False, "none": None}


def parse_value(text: str) -> Any:
    """Read a parameter's value: a number, true, false, none, several with commas, or text.

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


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """Read ``--set`` options.

    >>> parse_settings(["n_factors=10", "rating_range=1,5"])
    {'n_factors': 10, 'rating_range': (1, 5)}
    """
    parsed = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals:
            raise ParameterError(
                f"--set {setting}: expected name=value, such as --set n_factors=10", value=setting
            )
        parsed[name.strip().replace("-", "_")] = parse_value(value)
    return parsed


def parse_columns(text: str | None) -> tuple[str | int, ...] | None:
    """Read ``--columns``: names, or positions from 0.

    >>> parse_columns("client, service, latency"), parse_columns("0,2,1")
    (('client', 'service', 'latency'), (0, 2, 1))
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdigit() for part in parts):
        return tuple(map(int, parts))
    return tuple(parts)


def new_model(settings: list[str] | None, seed: int, n_jobs: int | None = None) -> HeMF:
    """Return an unfitted model with these settings, checked before any data is read."""
    from hemf import HeMF
    from hemf._options import fit_options

    model = HeMF(rng=seed).set_params(**parse_settings(settings))
    if n_jobs is not None:
        model.set_params(n_jobs=n_jobs)
    fit_options(model)
    return model


def read_ratings(output: Output, data: str, columns: str | None, **options: Any) -> Ratings:
    """Read ratings from a file, or from a data set by its name.

    ``options`` are those of `Ratings.from_any`.
    """
    from hemf import Ratings
    from hemf.experiments import datasets

    chosen = parse_columns(columns)
    path = expand_home(data)
    if data in datasets.names() and not path.is_file():
        from hemf.cli.progress import download

        if chosen is not None:
            raise ParameterError(
                f"--columns {columns}: the columns of the data set {data} are known; "
                "leave --columns out",
                value=columns,
            )
        if datasets.cached(data) is None:
            show_terms(output, datasets.find(data))
        with download(output, data) as progress:
            datasets.fetch(data, progress=progress)
        with output.status(f"reading {data}"):
            return datasets.load_ratings(data, **options)
    if not path.exists() and not path.suffix:
        raise DataError(
            f"{data}: no such file, and no data set of that name; there are "
            f"{', '.join(datasets.names())}",
            value=data,
        )
    with output.status(f"reading {data}"):
        return Ratings.from_any(path, columns=chosen, **options)


def show_terms(output: Output, entry: Dataset) -> None:
    """Say what a data set is and on what terms, as is due before it is downloaded."""
    output.remark(f"{entry.title}: {entry.terms}")


def find_id(known: Vocabulary, text: str) -> tuple[Any, bool]:
    """Return the id that was meant, and whether it is known: 42 may be a number or text.

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
    if known.ids.dtype != object:  # all are integers: so is a newcomer
        return (value if isinstance(value, int) else text), False
    # Dates, tuples and the like are found by what they look like.
    found = (id for id in known.ids if not isinstance(id, str | int | float) and str(id) == text)
    id = next(found, None)
    return (text, False) if id is None else (id, True)


def check_writable(
    path: Path | None, *, apart_from: Iterable[str | Path] = (), regular: bool = False
) -> None:
    """Complain now rather than after minutes of work when a file cannot be written there.

    ``apart_from`` are files that it must not overwrite; ``regular`` refuses devices.
    """
    if path is None:
        return
    place = os.path.realpath(expand_home(path))
    for other in apart_from:
        if os.path.realpath(expand_home(other)) == place:
            raise DataError(f"{path} would overwrite {other}; choose another name", value=str(path))
    if regular and path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is a device; give the name of a file", value=str(path))
    folder = expand_home(path).absolute().parent
    if path.is_dir():
        raise DataError(f"{path} is a directory; give the name of a file to write", value=str(path))
    if not folder.is_dir():
        raise DataError(f"{path}: there is no folder {folder}", value=str(path))
    if not os.access(folder, os.W_OK):
        raise DataError(f"{path}: the folder {folder} cannot be written to", value=str(path))


# ------------------------------------------------------------------------------------------------
# Files of what is known of users and items: ``--user-features`` and ``--item-features``.


_HELP = "File of what is known of {side}s: ids (as in the ratings, or first) and other columns."

UserFeatures = Annotated[
    list[Path] | None,
    typer.Option("--user-features", metavar="FILE", help=_HELP.format(side="user")),
    READ,
]
ItemFeatures = Annotated[
    list[Path] | None,
    typer.Option("--item-features", metavar="FILE", help=_HELP.format(side="item")),
    READ,
]


def read_features(
    output: Output,
    ratings: Ratings,
    columns: str | None,
    *,
    user: list[Path] | None,
    item: list[Path] | None,
    learning: bool = True,
) -> dict[str, Any]:
    """Return ``user_features`` and ``item_features`` as the model takes them; none where not given.

    ``ratings`` tell what kind of ids there are, and ``columns`` what they may be called. Where
    their meaning is to be learnt, names such as titles are left out.
    """
    from hemf.data.features import drop_unique_text, read_feature_file

    chosen = arguments.parse_columns(columns) or (None, None)
    sides = {"user": (user, ratings.users, chosen[0]), "item": (item, ratings.items, chosen[1])}
    features: dict[str, Any] = {}
    for side, (files, known, column) in sides.items():
        for path in files or ():
            with output.status(f"reading {path}"):
                table = read_feature_file(path, side, known=known, column=column)
            if learning:
                table, left_out = drop_unique_text(table)
                for name in left_out:
                    output.remark(f"{path}: {name} is another in every row, and is left out")
            features.setdefault(f"{side}_features", []).append(table)
    return features


# ------------------------------------------------------------------------------------------------
# What learns, by the name that is typed: ``--model NAME[:K=V,…]``.


NewModel = Callable[[list[str] | None, int, int | None], "Learner"]
"""Makes an unfitted model from settings, a seed and a number of threads, all of them checked."""


def _new(name: str, module: str = "hemf.samplers") -> NewModel:
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


STREAMING: dict[str, NewModel] = {"hemf": arguments.new_model, "sgd": _new("SGD", "hemf.baselines")}
"""How to make each model that learns rating by rating."""

MODELS: dict[str, NewModel] = {
    **STREAMING,
    "gibbs": _new("GibbsHeMF"),
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
