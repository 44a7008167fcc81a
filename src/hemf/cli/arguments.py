"""What people type, as what the library takes: data, columns, settings, ids, places to write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf.cli.standard import READ
from hemf.errors import DataError, ParameterError

if TYPE_CHECKING:
    from hemf import HeMF, Ratings
    from hemf.cli.output import Output
    from hemf.datasets import Dataset
    from hemf.vocabulary import Vocabulary

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
    from hemf.options import fit_options

    model = HeMF(rng=seed).set_params(**parse_settings(settings))
    if n_jobs is not None:
        model.set_params(n_jobs=n_jobs)
    fit_options(model)
    return model


def read_ratings(output: Output, data: str, columns: str | None, **options: Any) -> Ratings:
    """Read ratings from a file, or from a data set by its name.

    ``options`` are those of `Ratings.from_any`.
    """
    from hemf import Ratings, datasets

    chosen = parse_columns(columns)
    path = Path(data).expanduser()
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

    >>> from hemf.vocabulary import Vocabulary
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
    place = os.path.realpath(path.expanduser())
    for other in apart_from:
        if os.path.realpath(Path(other).expanduser()) == place:
            raise DataError(f"{path} would overwrite {other}; choose another name", value=str(path))
    if regular and path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is a device; give the name of a file", value=str(path))
    folder = path.expanduser().absolute().parent
    if path.is_dir():
        raise DataError(f"{path} is a directory; give the name of a file to write", value=str(path))
    if not folder.is_dir():
        raise DataError(f"{path}: there is no folder {folder}", value=str(path))
    if not os.access(folder, os.W_OK):
        raise DataError(f"{path}: the folder {folder} cannot be written to", value=str(path))
