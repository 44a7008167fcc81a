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

from hemf.datasets.catalog import DATASETS, Dataset, describe, find, names
from hemf.datasets.fetch import Progress, cache_folder, cached, fetch
from hemf.datasets.movielens import RatingColumns, read_csv, read_double_colon, read_tabs
from hemf.datasets.planting import Population, plant
from hemf.datasets.streams import DriftingStream, EmergingStream, drifting, emerging
from hemf.datasets.synthetic import SyntheticRatings, demo_ratings, draw, draw_blocks

READERS: dict[str, Callable[[Path], RatingColumns]] = {
    "tabs": read_tabs,
    "double-colon": read_double_colon,
    "csv": read_csv,
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

    The parameters are those of :func:`fetch`.

    >>> load("ml-2k")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-2k'; did you mean ml-25m, ml-20m?
    """
    path = fetch(name, folder=folder, progress=progress, base_url=base_url)
    return READERS[find(name).format](path)


__all__ = [
    "DATASETS",
    "READERS",
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
    "names",
    "plant",
]
