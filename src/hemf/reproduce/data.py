"""Where each data set of the paper is found, or what stands in for it.

Looked for in this order: the folder that is named, ``$HEMF_DATA``, and hemf's own cache; in each
as ``NAME.parquet``, and as `hemf data fetch` leaves it or, for what is offered no more, says where
to place it. Nothing is downloaded here: data sets come on terms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hemf.errors import DatasetError
from hemf.ratings import Ratings

SYNTHETIC = "netflix-like"


@dataclass(frozen=True)
class StandIn:
    """Other data, where the paper's are not to be had."""

    name: str
    what: str


@dataclass(frozen=True)
class Source:
    """A data set of the paper, and what may stand in for it, the best first."""

    name: str
    title: str
    stand_ins: tuple[StandIn, ...] = ()


_OTHER_MOVIELENS = tuple(
    StandIn(f"ml-{size.lower()}", f"MovieLens {size}, another release of the same collection")
    for size in ("25M", "20M", "10M", "1M")
)
SOURCES = {
    source.name: source
    for source in (
        Source("ml-1m", "MovieLens 1M"),
        Source(
            "eachmovie",
            "EachMovie",
            (StandIn("eachmovie-ads-sample", "a sample of EachMovie's heavy voters"),),
        ),
        Source("ml-latest", "MovieLens Latest", _OTHER_MOVIELENS),
        Source(
            "netflix",
            "Netflix Prize",
            (StandIn(SYNTHETIC, "ratings drawn from HeMF's own model in the shape of Netflix's"),),
        ),
    )
}
"""The data sets of the paper by name."""

NETFLIX_SCALE = 0.05  # of the synthetic set: five million ratings
QUICK_NETFLIX_SCALE = 0.004
NEARLY_ALL = 0.8  # of a data set: votes without weight are dropped, a file of four is missed


@dataclass(frozen=True, eq=False)
class Found:
    """A data set that is there, read when it is needed."""

    source: Source
    name: str  # of what is there, which may be the stand-in
    stand_in: str | None  # what it is, if it is not the data set itself
    _path: Path | None = field(repr=False, default=None)
    _folder: Path | None = field(repr=False, default=None)
    _scale: float = field(repr=False, default=0.0)

    @cached_property
    def ratings(self) -> Ratings:
        """The ratings."""
        if self._path is not None:
            return Ratings.from_any(self._path)
        from hemf import datasets

        if self._folder is not None:
            return datasets.load_ratings(self.name, folder=self._folder)
        drawn = datasets.netflix_like(self._scale, rng=0)
        return Ratings.from_any((drawn.users, drawn.items, drawn.ratings))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the ratings."""
        from hemf.evaluation import fingerprint

        return fingerprint(self.ratings)

    @property
    def shortfall(self) -> str | None:
        """What to say if the data set is there under its own name, but not all of it."""
        from hemf import datasets

        expected = None if self.stand_in else datasets.find(self.source.name).ratings
        if expected is None or self.ratings.n_ratings >= NEARLY_ALL * expected:
            return None
        return f"only {self.ratings.n_ratings:,} of its {expected:,} ratings"

    @property
    def title(self) -> str:
        """Name for people, which says so if it is a stand-in.

        >>> Found(SOURCES["netflix"], "netflix-like", "made up").title
        'stand-in for Netflix Prize: made up'
        """
        if self.stand_in is None:
            return self.source.title
        return f"stand-in for {self.source.title}: {self.stand_in}"


def find(name: str, folder: Path | None = None, *, quick: bool = False) -> Found:
    """Find a data set of the paper, or what stands in for it.

    >>> find("netflix", Path("a-folder-that-is-not-there")).stand_in is None
    False
    """
    source = SOURCES[name]
    wanted = [StandIn(name, ""), *source.stand_ins]
    for choice in wanted:
        what = choice.what or None
        for place in folders(folder):
            path = place / f"{choice.name}.parquet"
            if path.is_file():
                return Found(source, choice.name, what, _path=path)
            if _is_kept(choice.name, place):
                return Found(source, choice.name, what, _folder=place)
        if choice.name == SYNTHETIC:
            scale = QUICK_NETFLIX_SCALE if quick else NETFLIX_SCALE
            return Found(source, f"{SYNTHETIC}-{scale:g}", what, _scale=scale)
    raise _missing(source, folder)


def folders(folder: Path | None) -> Iterator[Path]:
    """Yield where data are looked for, in this order."""
    from hemf.datasets import cache_folder

    if folder is not None:
        yield folder
    if chosen := os.environ.get("HEMF_DATA"):
        yield Path(chosen).expanduser()
    yield cache_folder() / "datasets"


def _is_kept(name: str, folder: Path) -> bool:
    """Whether the folder holds a data set as hemf keeps it, or its files placed by hand."""
    from hemf import datasets

    if name not in datasets.DATASETS:
        return False
    if datasets.cached(name, folder=folder) is not None:
        return True
    home = folder / name
    return datasets.find(name).url is None and home.is_dir() and any(home.iterdir())


def _missing(source: Source, folder: Path | None) -> DatasetError:
    from hemf import datasets

    entry = datasets.find(source.name)
    home = next(folders(folder)) if folder is not None else datasets.cache_folder() / "datasets"
    how = (
        f"run `hemf data fetch {source.name}`"
        if entry.url is not None
        else f"put {entry.placed} into the folder {(home / source.name).absolute()}"
    )
    names: Sequence[str] = [source.name, *(other.name for other in source.stand_ins)]
    files = " or ".join(f"{name}.parquet" for name in names)
    return DatasetError(
        f"{source.title} is not here; {how}, or put {files} (columns user, item, rating) into a "
        "folder and name it with --data or HEMF_DATA",
        value=source.name,
    )
