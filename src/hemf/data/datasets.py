"""Data to try the model on: public data sets, fetched and verified, and synthetic ratings.

Importing `hemf.experiments` adds EachMovie and the Netflix Prize to the catalogue.

>>> from hemf.data import datasets
>>> datasets.names()[0]
'ml-100k'
>>> datasets.draw(20, 10, density=0.5, rng=0).ratings.shape
(100,)
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from hemf.data.catalog import (
    DATASETS,
    Dataset,
    Progress,
    RatingColumns,
    cache_folder,
    cached,
    describe,
    fetch,
    find,
    names,
    register,
)
from hemf.data.movielens import read_csv, read_double_colon, read_tabs
from hemf.data.netflix_like import netflix_like, netflix_like_blocks
from hemf.data.ratings import Ratings, ReadOptions
from hemf.data.streams import DriftingStream, EmergingStream, drifting, emerging
from hemf.data.synthetic import Population, SyntheticRatings, demo_ratings, draw, draw_blocks, plant


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> RatingColumns:
    """Return users, items, ratings and timestamps of a data set; fetch it the first time.

    The parameters are those of :func:`fetch`. Timestamps are None if they are not known. Large data
    sets take less memory with :func:`load_ratings`.

    >>> load("ml-2k")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-2k'; did you mean ml-25m, ml-20m?
    """
    path = fetch(name, folder=folder, progress=progress, base_url=base_url)
    return find(name).read(path)


def load_ratings(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> Ratings:
    """Return a data set as :class:`hemf.Ratings`; fetch it the first time.

    ``options`` are those of :meth:`hemf.Ratings.from_any`. The Netflix Prize takes little more
    memory than its ratings do: less than 3 GB for a hundred million.

    >>> load_ratings("ml-2k")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-2k'; did you mean ml-25m, ml-20m?
    """
    path = fetch(name, folder=folder, progress=progress)
    entry = find(name)
    data = entry.read(path).known if entry.read_ratings is None else entry.read_ratings(path)
    return Ratings.from_any(data, **options)


__all__ = [
    "DATASETS",
    "Dataset",
    "DriftingStream",
    "EmergingStream",
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
    "plant",
    "read_csv",
    "read_double_colon",
    "read_tabs",
    "register",
]
