"""Arguments of commands: their types, and functions that parse and check them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, Unpack

import typer

from hemf._files import expand_home
from hemf.errors import DataError, ParameterError

if TYPE_CHECKING:
    from hemf._typing import FeaturesLike
    from hemf.data.ratings import Ratings, ReadOptions
    from hemf.data.sources import Columns
    from hemf.data.vocabulary import Vocabulary

STANDARD = "-"
READ = "a file that is read"
"""Marks a parameter, with ``Annotated``: ``-`` is standard input."""
WRITTEN = "a file that is written"
"""Marks a parameter: ``-`` is standard output."""
_FEATURES = "Features of {side}s: a file of ids (named as in the ratings, or first) and columns."

Model = Annotated[Path, typer.Argument(help="Model file that `hemf fit` wrote.", metavar="M"), READ]
Data = Annotated[
    str,
    typer.Argument(
        help="Ratings: CSV, TSV, Parquet or .dat file, or the name of a data set.", metavar="DATA"
    ),
    READ,
]
ColumnNames = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Columns of user, item, rating[, timestamp], by name or position from 0.",
    ),
]


class Display(Protocol):
    """Where reading shows its progress, such as an `Output`."""

    def remark(self, text: str) -> None:
        """Print a remark."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Show a text during some work."""

    def download(self, name: str) -> AbstractContextManager[Callable[[int, int | None], None]]:
        """Give a callback that shows the progress of a download."""


@dataclass(frozen=True)
class FeatureFiles:
    """Files of features, options of a command."""

    user_features: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help=_FEATURES.format(side="user")), READ
    ] = None
    item_features: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help=_FEATURES.format(side="item")), READ
    ] = None

    @property
    def by_name(self) -> dict[str, list[Path]]:
        """The files by the name of the option, without absent ones."""
        return {name: files for name, files in vars(self).items() if files}

    @property
    def paths(self) -> list[str | Path]:
        """All files."""
        return [path for files in self.by_name.values() for path in files]

    def read(
        self, output: Display, ratings: Ratings, columns: str | None, *, learning: bool = True
    ) -> dict[str, list[FeaturesLike]]:
        """Return the ``user_features`` and ``item_features`` of a model, without absent ones.

        ``ratings`` decide the type of ids, and ``columns`` name them. When ``learning``, columns of
        names such as titles are left out.
        """
        from hemf.data.features import drop_unique_text, read_feature_file

        chosen = parse_columns(columns) or (None, None)
        sides = {
            "user_features": ("user", ratings.users, chosen[0]),
            "item_features": ("item", ratings.items, chosen[1]),
        }
        features: dict[str, list[FeaturesLike]] = {}
        for name, files in self.by_name.items():
            side, known, column = sides[name]
            for path in files:
                with output.status(f"reading {path}"):
                    table = read_feature_file(path, side, known=known, column=column)
                if learning:
                    table, left_out = drop_unique_text(table)
                    for title in left_out:
                        output.remark(f"{path}: {title} is different in every row and is left out")
                features.setdefault(name, []).append(table)
        return features


def parse_columns(text: str | None) -> tuple[str | int, ...] | None:
    """Parse ``--columns``: names, or positions from 0.

    >>> parse_columns("client, service, latency"), parse_columns("0,2,1")
    (('client', 'service', 'latency'), (0, 2, 1))
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdigit() for part in parts):
        return tuple(map(int, parts))
    return tuple(parts)


def read_ratings(
    output: Display, data: str, names: str | None, **options: Unpack[ReadOptions]
) -> Ratings:
    """Read ratings from a file or a data set; see `Ratings.from_any`.

    ``names`` are those of the columns.
    """
    from hemf.data.ratings import Ratings
    from hemf.experiments import datasets

    options["columns"] = parse_columns(names)
    is_dataset = _fetched(output, data, names)
    if is_dataset and names is not None:
        raise ParameterError(
            f"--columns {names}: the columns of the data set {data} are known; leave --columns out",
            value=names,
        )
    with output.status(f"reading {data}"):
        if is_dataset:
            return datasets.load_ratings(data, **options)
        return Ratings.from_any(expand_home(data), **options)


def read_rows(
    output: Display,
    data: str,
    columns: str | None,
    *,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> Columns:
    """Read all ratings of a file or a data set in their order, pairs rated twice included."""
    from hemf.data.sources import read_columns
    from hemf.experiments import datasets

    chosen = parse_columns(columns)
    if chosen is None and _fetched(output, data, columns):
        with output.status(f"reading {data}"):
            return read_columns(tuple(datasets.load(data)), users=users, items=items)
    path = expand_home(data)
    if not path.exists():
        read_ratings(output, data, columns)  # raises the error for this name
    with output.status(f"reading {data}"):
        return read_columns(path, chosen, users=users, items=items)


def _fetched(output: Display, data: str, columns: str | None) -> bool:
    """Download a data set, unless ``data`` is a file; return whether it is a data set."""
    from hemf.experiments import datasets

    path = expand_home(data)
    if data in datasets.names() and not path.is_file():
        if columns is None:
            if datasets.cached(data) is None:
                entry = datasets.find(data)
                output.remark(f"{entry.title}: {entry.terms}")
            with output.download(data) as progress:
                datasets.fetch(data, progress=progress)
        return True
    if not path.exists() and not path.suffix:
        known = ", ".join(datasets.names())
        raise DataError(
            f"{data}: no such file, and no data set of that name; there are {known}", value=data
        )
    return False


def check_writable(
    path: Path | None, *, apart_from: Iterable[str | Path] = (), regular: bool = False
) -> None:
    """Raise an error if a file cannot be written, before minutes of work.

    ``apart_from`` are files that it must not overwrite; ``regular`` rejects devices.
    """
    if path is None:
        return
    place = os.path.realpath(expand_home(path))
    for other in apart_from:
        if os.path.realpath(expand_home(other)) == place:
            raise DataError(f"{path} would overwrite {other}; choose another name", value=str(path))
    folder = expand_home(path).absolute().parent
    if regular and path.exists() and not path.is_file() and not path.is_dir():
        why = " is a device; give the name of a file"
    elif path.is_dir():
        why = " is a directory; give the name of a file to write"
    elif not folder.is_dir():
        why = f": there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        why = f": the folder {folder} cannot be written to"
    else:
        return
    raise DataError(f"{path}{why}", value=str(path))


def parse_cutoffs(text: str | None) -> list[int] | None:
    """Parse ``--top``: whole numbers with commas.

    >>> parse_cutoffs("10"), parse_cutoffs("5,10,20"), parse_cutoffs(None)
    ([10], [5, 10, 20], None)
    """
    from hemf.evaluation.ranking import check_cutoffs

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ParameterError(
            f"--top {text}: expected a whole number, or several with commas, as in 5,10,20",
            value=text,
        )
    return check_cutoffs("--top", [int(part) for part in parts])
