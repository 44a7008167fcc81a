"""Data to try the model on: public data sets, fetched and verified, and synthetic ratings.

>>> from hemf import datasets
>>> datasets.names()[0]
'ml-100k'
>>> datasets.draw(20, 10, density=0.5, rng=0).ratings.shape
(100,)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hemf.datasets.catalog import DATASETS, Dataset, Progress, describe, find, names
from hemf.datasets.delimited import RatingColumns
from hemf.datasets.eachmovie import read_votes
from hemf.datasets.fetch import cache_folder, cached, fetch
from hemf.datasets.movielens import read_csv, read_double_colon, read_tabs
from hemf.datasets.netflix import pack_netflix
from hemf.datasets.netflix_like import netflix_like, netflix_like_blocks
from hemf.datasets.packed import PackedRatings, read_packed
from hemf.datasets.planting import Population, plant
from hemf.datasets.streams import DriftingStream, EmergingStream, drifting, emerging
from hemf.datasets.synthetic import SyntheticRatings, demo_ratings, draw, draw_blocks
from hemf.ratings import Ratings

READERS: dict[str, Callable[[Path], RatingColumns]] = {
    "tabs": read_tabs,
    "double-colon": read_double_colon,
    "csv": read_csv,
    "votes": read_votes,
    "packed": read_packed,
}
"""How to read a data set's ratings, by the ``format`` of its catalogue entry."""


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> RatingColumns:
    """Return users, items, ratings and timestamps of a data set, fetching it the first time.

    The parameters are those of :func:`fetch`. Where times are not known, they are None. Sets of
    many millions of ratings take less memory with :func:`load_ratings`.

    >>> load("ml-2k")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-2k'; did you mean ml-25m, ml-20m?
    """
    path = fetch(name, folder=folder, progress=progress, base_url=base_url)
    return READERS[find(name).format](path)


def load_ratings(
    name: str, *, folder: str | Path | None = None, progress: Progress | None = None, **options: Any
) -> Ratings:
    """Return a data set as :class:`hemf.Ratings`, fetching it the first time.

    ``options`` are those of :meth:`hemf.Ratings.from_any`. A packed set, such as Netflix, takes
    little more memory than its ratings do: less than 3 GB for a hundred million.

    >>> load_ratings("ml-2k")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-2k'; did you mean ml-25m, ml-20m?
    """
    path = fetch(name, folder=folder, progress=progress)
    form = find(name).format
    data = PackedRatings.open(path).ratings() if form == "packed" else READERS[form](path).known
    return Ratings.from_any(data, **options)


__all__ = [
    "DATASETS",
    "READERS",
    "Dataset",
    "DriftingStream",
    "EmergingStream",
    "PackedRatings",
    "Population",
    "RatingColumns",
    "SyntheticRatings",
    "cache_folder",
    "cached",
    "demo_ratings",
    "describe",
    "draw",
    "draw_blocks",
    "drifting",
    "emerging",
    "fetch",
    "find",
    "load",
    "load_ratings",
    "names",
    "netflix_like",
    "netflix_like_blocks",
    "pack_netflix",
    "plant",
    "read_packed",
    "read_votes",
]
