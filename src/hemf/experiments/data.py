"""The data sets of the paper and where they are found, and EachMovie's catalogue entry.

`find` looks in the given folder, in ``$HEMF_DATA``, and in hemf's cache, in this order; in each for
``NAME.parquet`` and for the files that `hemf data fetch` leaves or asks for. It downloads nothing,
because the data sets have terms of use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hemf._checks import check_rows
from hemf._files import expand_home
from hemf.data import datasets
from hemf.data.datasets import Dataset, RatingColumns, register
from hemf.data.files import open_file
from hemf.data.ratings import Ratings
from hemf.data.sources import infer_text_ids, parse_ratings
from hemf.data.vocabulary import factorise
from hemf.errors import DataError, DatasetError
from hemf.evaluation.protocols import fingerprint

SYNTHETIC = "netflix-like"


@dataclass(frozen=True)
class Source:
    """A data set of the paper."""

    name: str
    title: str
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Name and description of other data where the paper's are not available, the best first."""


SOURCES = {
    source.name: source
    for source in (
        Source("ml-1m", "MovieLens 1M"),
        Source(
            "eachmovie",
            "EachMovie",
            {"eachmovie-ads-sample": "a sample of EachMovie's heavy voters"},
        ),
        Source(
            "ml-latest",
            "MovieLens Latest",
            {
                f"ml-{size.lower()}": f"MovieLens {size}, another release of the same collection"
                for size in ("25M", "20M", "10M", "1M")
            },
        ),
        Source(
            "netflix",
            "Netflix Prize",
            {SYNTHETIC: "ratings drawn from HeMF's own model in the shape of Netflix's"},
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
    read: Callable[[], Ratings] = field(repr=False)

    @cached_property
    def ratings(self) -> Ratings:
        """The ratings."""
        return self.read()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the ratings."""
        return fingerprint(self.ratings)

    @property
    def shortfall(self) -> str | None:
        """Message if the data set is there under its own name, but incomplete."""
        expected = None if self.stand_in else datasets.find(self.source.name).ratings
        if expected is None or self.ratings.n_ratings >= NEARLY_ALL * expected:
            return None
        return f"only {self.ratings.n_ratings:,} of its {expected:,} ratings"

    @property
    def title(self) -> str:
        """Name for people, which says so if it is a stand-in.

        >>> Found(SOURCES["netflix"], "netflix-like", "made up", Ratings).title
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
    wanted: dict[str, str | None] = {name: None, **source.stand_ins}
    for choice, what in wanted.items():
        for place in folders(folder):
            path = place / f"{choice}.parquet"
            if path.is_file():
                return Found(source, choice, what, partial(Ratings.from_any, path))
            if _is_kept(choice, place):
                load = partial(datasets.load_ratings, choice, folder=place)
                return Found(source, choice, what, load)
        if choice == SYNTHETIC:
            scale = QUICK_NETFLIX_SCALE if quick else NETFLIX_SCALE
            return Found(source, f"{SYNTHETIC}-{scale:g}", what, partial(_drawn, scale))
    raise _missing(source, folder)


def _drawn(scale: float) -> Ratings:
    drawn = datasets.netflix_like(scale, rng=0)
    return Ratings.from_any((drawn.users, drawn.items, drawn.ratings))


def folders(folder: Path | None) -> Iterator[Path]:
    """Yield where data are looked for, in this order."""
    if folder is not None:
        yield folder
    if chosen := os.environ.get("HEMF_DATA"):
        yield expand_home(chosen)
    yield datasets.cache_folder() / "datasets"


def _is_kept(name: str, folder: Path) -> bool:
    """Whether the folder holds a data set as hemf keeps it, or its files placed by hand."""
    if name not in datasets.DATASETS:
        return False
    if datasets.cached(name, folder=folder) is not None:
        return True
    home = folder / name
    return datasets.find(name).url is None and home.is_dir() and any(home.iterdir())


def _missing(source: Source, folder: Path | None) -> DatasetError:
    entry = datasets.find(source.name)
    home = next(folders(folder)) if folder is not None else datasets.cache_folder() / "datasets"
    how = (
        f"run `hemf data fetch {source.name}`"
        if entry.url is not None
        else f"put {entry.placed} into the folder {(home / source.name).absolute()}"
    )
    files = " or ".join(f"{name}.parquet" for name in (source.name, *source.stand_ins))
    return DatasetError(
        f"{source.title} is not here; {how}, or put {files} (columns user, item, rating) into a "
        "folder and name it with --data or HEMF_DATA",
        value=source.name,
    )


# -- EachMovie in the catalogue ------------------------------------------------------------------

_STEPS = 5  # from the lowest score to the highest
_TOLERANCE = 1e-3
_VOTE = "person, movie, score, weight and time"


def read_votes(path: str | Path, *, min_weight: float = 0.0) -> RatingColumns:
    r"""Read the votes of EachMovie as ratings of 1 to 6; votes without weight are dropped.

    A line of ``vote.txt`` is person, movie, score, weight and time, separated by tabs. The score is
    one of 0, 0.2, …, 1: none to five stars. The weight is between 0 and 1; with ``min_weight`` 1,
    votes that count less than others are dropped too. The time has no fixed format and is ignored.

    >>> path = getfixture("tmp_path") / "vote.txt"
    >>> _ = path.write_text("1\t3\t0.8\t1\t1996-02-28\n1\t4\t0\t0\t1996-02-28\n")
    >>> read_votes(path).items, read_votes(path).ratings
    (array([3], dtype=int32), array([5.], dtype=float32))
    """
    with datasets.dataset_errors(path):
        source = open_file(Path(path), lambda fields: False)
        if source.width != 5:
            raise DataError(f"{source.width} fields where 5 are expected: {_VOTE}", row=0)
        people, movies, scores, weights = source.read([0, 1, 2, 3])
        users, items = (
            datasets.int32_ids(infer_text_ids(factorise(ids, what), None, what), what)
            for what, ids in (("person", people), ("movie", movies))
        )
        score, weight = parse_ratings(scores, "score"), parse_ratings(weights, "weight")
        steps = np.round(_STEPS * score)
        wrong = (steps < 0) | (steps > _STEPS) | (np.abs(_STEPS * score - steps) > _TOLERANCE)
        check_rows("score", score, wrong, "is none of 0, 0.2, 0.4, 0.6, 0.8, 1")
        check_rows("weight", weight, (weight < 0) | (weight > 1), "is not between 0 and 1")
        kept = (weight > 0) & (weight >= min_weight)
        if not kept.any():
            at_least = f" and of at least {min_weight:g}" if min_weight > 0 else ""
            raise DataError(f"none of the {len(kept):,} votes has a weight above 0{at_least}")
    return RatingColumns(users[kept], items[kept], (steps[kept] + 1).astype(np.float32))


register(
    Dataset(
        name="eachmovie",
        title="EachMovie (1997)",
        ratings_member="eachmovie/vote.txt",
        placed="the file vote.txt",
        users=72_916,
        items=1_628,
        ratings=2_811_983,
        scale=(1.0, 6.0, 1.0),
        megabytes=100.0,
        terms=(
            "Copyright Digital Equipment Corporation 1997; no longer offered. The terms that came "
            "with your copy are binding."
        ),
        citation=(
            "Paul McJones (1997). EachMovie collaborative filtering data set. DEC Systems "
            "Research Center."
        ),
        read=read_votes,
    ),
)
