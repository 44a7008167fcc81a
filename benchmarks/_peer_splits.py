"""The rating sets that peers are compared on, and how each is split.

Test parts are for reporting alone. ``held_out`` splits a tenth off the training part, and that is
what settings are chosen by.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER
from hemf.evaluation import random_split, weak_generalisation

FILES = {
    "ml-1m-classic": "ml-1m-classic-train",
    "ml-100k": "ml-100k",
    **{f"weak-{seed}": "ml-1m" for seed in range(10)},
    "kiba": "kiba-dta",
    "chembl": "chembl-ic50-346targets",
    "eachmovie": "eachmovie-ads-sample",
    "jester": "jester-1",
    "douban": "monti-douban",
    "flixster": "monti-flixster",
    "yahoo-music": "monti-yahoo-music",
    "filmtrust": "filmtrust",
}
SEARCHED = 0.1  # share of the users of large sets that settings are searched on
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Split:
    """Users and items as numbers from 0, those of the training part first; ratings as given."""

    name: str
    train: Columns
    test: Columns
    n_users: int
    n_items: int

    @classmethod
    def of(cls, name: str, train: Columns, test: Columns) -> Split:
        """Give ids numbers; ratings of the test part that are of unknown ids stay in it."""
        users, n_users = numbered(train[0], test[0])
        items, n_items = numbered(train[1], test[1])
        n = train[0].size
        kept = (users[:n], items[:n], train[2].astype(np.float64))
        held = (users[n:], items[n:], test[2].astype(np.float64))
        return cls(name, kept, held, n_users, n_items)


def numbered(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, int]:
    known = np.unique(train)
    ids = np.concatenate([known, np.setdiff1d(test, known)])
    order = np.argsort(ids, kind="stable")
    both = np.concatenate([train, test])
    return order[np.searchsorted(ids[order], both)].astype(np.int64), ids.size


def is_there(name: str) -> bool:
    return (FOLDER / f"{FILES[name]}.parquet").exists()


def load(name: str) -> Split:
    """Read a set and split it: by its own test part, by its protocol, or a random tenth, seed 0."""
    columns = read(FILES[name])
    if name == "ml-1m-classic":
        return Split.of(name, columns, read("ml-1m-classic-test"))
    names = pq.read_schema(FOLDER / f"{FILES[name]}.parquet").names
    if "is_test" in names:
        table = pq.read_table(FOLDER / f"{FILES[name]}.parquet", columns=["is_test"])
        mask = table["is_test"].to_numpy().astype(bool)
        kept, held = np.flatnonzero(~mask), np.flatnonzero(mask)
    elif name.startswith("weak-"):
        seed = int(name.removeprefix("weak-"))
        kept, held = weak_generalisation(columns[0], columns[1], rng=seed)
    else:
        kept, held = random_split(columns[0].size, 0.1, rng=0)
    return Split.of(name, rows(columns, kept), rows(columns, held))


def held_out(split: Split, most: int = 1_000_000) -> Split:
    """Split a tenth off the training part, to choose settings by.

    Of a set with more than so many ratings, those of a random part of the users are taken.
    """
    train = split.train
    if train[0].size > most:
        lot = np.random.default_rng(12345).permutation(split.n_users)
        train = rows(train, np.flatnonzero(lot[train[0]] < SEARCHED * split.n_users))
    kept, held = random_split(train[0].size, 0.1, rng=12345)
    return Split.of(split.name, rows(train, kept), rows(train, held))


def read(file: str) -> Columns:
    table = pq.read_table(FOLDER / f"{file}.parquet", columns=["user", "item", "rating"])
    users, items, ratings = (table[column].to_numpy() for column in table.column_names)
    return users, items, ratings


def rows(columns: Columns, at: np.ndarray) -> Columns:
    users, items, ratings = (column[at] for column in columns)
    return users, items, ratings
