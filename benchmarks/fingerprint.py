"""Hashes of results: they stay the same when only the structure of the code changes.

Runs a matrix of small seeded cases and prints one line for each: its name and a SHA-256 over the
exact bits of predictions, bounds and posteriors. Hashes are compared on one machine and are not
committed.

    python benchmarks/fingerprint.py --save /tmp/before    # then change the code
    python benchmarks/fingerprint.py --compare /tmp/before # exit code 1 if any case differs
    python benchmarks/fingerprint.py --only 'online/*' --only moods
    python benchmarks/fingerprint.py --threads 2 --compare /tmp/before
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime as dt
import fnmatch
import hashlib
import importlib
import inspect
import io
import json
import multiprocessing
import os
import pickle
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402  (the number of BLAS threads is read on import)

# -- names that may move -------------------------------------------------------------------------
#
# Everything here that is no public name of hemf, each with the places where it may be found, the
# first that exists is used. After a move or a renaming, add the new place.

PLACES: dict[str, tuple[str, ...]] = {
    "cli": ("hemf.cli.__main__:main", "hemf.cli:main"),
    "read_tabs": ("hemf.data.movielens:read_tabs", "hemf.data.datasets:read_movielens"),
    "read_double_colon": (
        "hemf.data.movielens:read_double_colon",
        "hemf.data.datasets:read_movielens",
    ),
    "read_votes": ("hemf.data.datasets:read_votes", "hemf.experiments:read_votes"),
    "convert_netflix": (
        "hemf.data.datasets:pack_netflix",
        "hemf.experiments:pack_netflix",
        "hemf.experiments:convert_netflix",
    ),
    "read_netflix": (
        "hemf.data.datasets:read_packed",
        "hemf.experiments:read_packed",
        "hemf.experiments:read_netflix",
    ),
    "stream_order": ("hemf.evaluation:stream_order",),
    "warm_start_size": ("hemf.evaluation:warm_start_size",),
}
KEYWORDS: dict[str, tuple[str, ...]] = {
    "by": ("by", "metric"),
    "share": ("share", "holdout"),
    "watch": ("watch", "callback"),
}
"""Parameters that may be renamed, see `called`."""
POSTERIOR: dict[str, tuple[str, ...]] = {
    "mean": ("state_.sides.{side}.moments.mean",),
    "second moment": ("state_.sides.{side}.moments.second",),
    "membership": ("state_.sides.{side}.membership",),
    "community means": ("state_.sides.{side}.communities.mean",),
    "community κ": (
        "state_.sides.{side}.communities.strength",
        "state_.sides.{side}.communities.kappa",
    ),
    "community scales": ("state_.sides.{side}.communities.scale",),
    "community degrees of freedom": ("state_.sides.{side}.communities.dof",),
    "sticks taken": ("state_.sides.{side}.communities.sticks.taken",),
    "sticks left": ("state_.sides.{side}.communities.sticks.left",),
    "prior concentration": ("state_.sides.{side}.prior.concentration",),
    "prior scale": ("state_.sides.{side}.prior.scale",),
    "noise shape": ("state_.sides.{side}.noise_scales.shape",),
    "noise rate": ("state_.sides.{side}.noise_scales.rate",),
    "coefficients": ("state_.sides.{side}.regression.coefficients",),
    "coefficient precision": ("state_.sides.{side}.regression.precision",),
}
"""Paths from a fitted model to its posterior; a part that the model does not have is None."""
TIMES = frozenset(
    ("seconds", "cpu_seconds", "peak_rss_mb", "ratings_per_second", "p50_us", "p99_us")
)
"""Fields and JSON keys that differ from run to run."""

SIDES = ("user", "item")


def place(name: str) -> Any:
    """Return the object of this name in `PLACES`."""
    for where in PLACES[name]:
        module, _, attribute = where.partition(":")
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), attribute)
    raise LookupError(f"{name} is at none of {PLACES[name]}; add its new place to PLACES")


def called(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function, with its present names for the `KEYWORDS`."""
    known = inspect.signature(function).parameters
    found = {
        next(new for new in KEYWORDS.get(name, (name,)) if new in known): value
        for name, value in keywords.items()
    }
    return function(*arguments, **found)


def posterior(model: Any, name: str, side: str) -> Any:
    """Return a part of the posterior of a model, see `POSTERIOR`."""
    for path in POSTERIOR[name]:
        value = model
        try:
            for step in path.format(side=side).split("."):
                if value is None:
                    return None
                value = value[step] if isinstance(value, Mapping) else getattr(value, step)
        except (AttributeError, KeyError):
            continue
        return value
    raise LookupError(f"{name} is at none of {POSTERIOR[name]}; add its new path to POSTERIOR")


# -- hashing -------------------------------------------------------------------------------------


def encode(value: Any) -> Iterator[bytes]:
    """Yield the exact content of a value; floats by their bits, records without field names."""
    if value is None or isinstance(value, bool | np.bool_ | int | str | bytes):
        yield f"{type(value).__name__.rstrip('_')} {value!s};".encode()
    elif isinstance(value, np.integer):
        yield f"int {int(value)};".encode()
    elif isinstance(value, float | np.floating):
        number = float(value)
        yield b"f" + struct.pack("<d", float("nan") if number != number else number)
    elif isinstance(value, np.ndarray):
        yield from _encode_array(value)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)};".encode()
        for key in value:
            if key not in TIMES:
                yield from encode(key)
                yield from encode(value[key])
    elif is_dataclass(value):
        shown = [one.name for one in fields(value) if one.name not in TIMES]
        yield from encode([getattr(value, name) for name in shown])
    elif isinstance(value, Sequence | set | frozenset):
        entries = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        yield f"list {len(entries)};".encode()
        for entry in entries:
            yield from encode(entry)
    elif isinstance(value, dt.date | Decimal):
        yield f"{value!r};".encode()
    else:
        raise TypeError(f"no encoding for {type(value)}")


def _encode_array(array: np.ndarray) -> Iterator[bytes]:
    if array.dtype.kind == "O":
        yield from encode(array.tolist())
        return
    if array.dtype.kind in "US":
        array = array.astype("U")
        yield from encode(array.tolist())
        return
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    yield f"array {array.dtype.kind}{array.dtype.itemsize} {array.shape};".encode()
    yield np.ascontiguousarray(array).tobytes()


class Record:
    """What a case has computed: named parts, each with a hash."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Add a part; a name that is there already gets a number."""
        unique, number = name, 2
        while unique in self.parts:
            unique, number = f"{name} {number}", number + 1
        digest = hashlib.sha256()
        for piece in encode(value):
            digest.update(piece)
        self.parts[unique] = digest.hexdigest()

    @property
    def hash(self) -> str:
        """Hash of all parts."""
        whole = "".join(f"{name}\0{digest}\0" for name, digest in self.parts.items())
        return hashlib.sha256(whole.encode()).hexdigest()


# -- data ----------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Ratings in the order of their times."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray

    def part(self, begin: int | slice | np.ndarray, end: int | None = None) -> Table:
        """Return some of the rows."""
        which = slice(begin, end) if isinstance(begin, int) else begin
        return Table(*(column[which] for column in self))

    @property
    def triples(self) -> tuple[np.ndarray, ...]:
        """Users, items and ratings."""
        return self[:3]

    def columns(self, timed: bool = False) -> tuple[np.ndarray, ...]:
        """Users, items and ratings, with ``timed`` also timestamps."""
        return tuple(self) if timed else self.triples


@cache
def planted(
    n_users: int = 60,
    n_items: int = 40,
    n_ratings: int = 900,
    *,
    seed: int = 1,
    kinds: tuple[int, int] = (3, 2),
    text: bool = True,
    stars: bool = True,
    late: bool = False,
) -> Table:
    """Draw ratings of planted communities, given in sessions of up to four by users who arrive.

    With ``late``, users of the last kind arrive in the second half.
    """
    rng = np.random.default_rng(seed)
    vectors, labels = [], []
    for size, count in ((n_users, kinds[0]), (n_items, kinds[1])):
        centres = rng.normal(scale=1.0, size=(count, 3))
        label = np.arange(size) % count
        vectors.append(centres[label] + rng.normal(scale=0.3, size=(size, 3)))
        labels.append(label)
    offsets = rng.normal(scale=0.3, size=n_users), rng.normal(scale=0.4, size=n_items)
    chosen = rng.choice(n_users * n_items, n_ratings, replace=False)
    users, items = np.divmod(chosen, n_items)
    noise = np.where(users % 7 == 0, 0.8, 0.35) * rng.normal(size=n_ratings)
    values = 3.2 + offsets[0][users] + offsets[1][items] + noise
    values += np.einsum("rk,rk->r", vectors[0][users], vectors[1][items])
    arrival = rng.integers(0, 60, size=n_users)
    if late:
        is_last = labels[0] == kinds[0] - 1
        arrival = np.where(is_last, 60 + arrival // 2, arrival)
    rank = np.zeros(n_ratings, np.int64)
    for user in range(n_users):
        own = np.flatnonzero(users == user)
        rank[own] = np.arange(own.size)
    times = 1_600_000_000 + 86_400 * (2 * (rank // 4) + arrival[users]) + users
    values += 0.4 * np.sin(times / 50_000.0)  # moods
    if stars:
        values = np.clip(np.rint(values), 1, 5)
    order = np.argsort(times, kind="stable")
    users, items = users[order], items[order]
    if text:
        users = np.array([f"u{user:03d}" for user in range(n_users)])[users]
        items = np.array([f"i{item:03d}" for item in range(n_items)])[items]
    return Table(users, items, values[order], times[order])


@cache
def known_features(n_users: int = 60, n_items: int = 40, seed: int = 3) -> dict[str, Any]:
    """Return a frame of users and a frame of items: numbers, categories, labels, gaps."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    users = pd.DataFrame(
        {
            "user": [f"u{user:03d}" for user in range(n_users)],
            "age": rng.integers(18, 70, n_users).astype(float),
            "city": np.array(["Rome", "Oslo", "Lima"])[np.arange(n_users) % 3],
        }
    )
    users.loc[::9, "age"] = np.nan
    genres = np.array(["Action", "Comedy", "Drama", "Action|Drama", "Comedy|Drama"])
    items = pd.DataFrame(
        {
            "item": [f"i{item:03d}" for item in range(n_items)],
            "genres": genres[np.arange(n_items) % 2 + rng.integers(0, 4, n_items)],
            "year": rng.integers(1950, 2000, n_items),
        }
    )
    return {"user_features": users, "item_features": items}


# -- models --------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "n_factors": 3, "max_user_communities": 4, "max_item_communities": 3, "max_sweeps": 25, "rng": 0
}  # fmt: skip
_threads = 1
"""Threads of the models."""


def hemf_model(**settings: Any) -> Any:
    """Return an unfitted HeMF; the number of threads is that of the command line."""
    from hemf import HeMF

    return HeMF(**{"n_jobs": _threads, **SMALL, **settings})


def describe(record: Record, model: Any, *, timestamps: Any = None, prefix: str = "") -> None:
    """Add what a fitted HeMF knows: predictions, bound, posteriors, communities, ratings."""
    kept = model.ratings_
    users, items = list(kept.users.ids[:40].tolist()), list(kept.items.ids[:15].tolist())
    kind = type(users[0])
    stranger = kind("nobody") if kind is str else kind(987_654)
    users, items = [*users, stranger], [*items, stranger]
    pairs = [one for one in users for _ in items], items * len(users)
    found = model.predict(*pairs, return_std=True, return_known=True)
    for name, value in zip(("mean", "std", "known"), found, strict=True):
        record.add(f"{prefix}predicted {name}", value)
    taste = model.predict(*pairs, return_std=True, include_noise=False)[1]
    record.add(f"{prefix}std without noise", taste)
    if timestamps is not None:
        when = np.resize(np.asarray(timestamps), len(pairs[0]))
        found = model.predict(*pairs, timestamps=when, return_std=True)
        record.add(f"{prefix}predicted at times", found)
    record.add(f"{prefix}bound", model.elbo_)
    record.add(f"{prefix}bound by sweep", list(model.elbo_history_.values()))
    figures = (
        "noise_variance_ global_mean_ rating_scale_ rating_range_ n_users_ n_items_ n_ratings_ "
        "n_user_communities_ n_item_communities_ n_sweeps_ converged_ is_online_"
    )
    for name in figures.split():
        record.add(f"{prefix}{name}", getattr(model, name))
    for side in SIDES:
        for name in POSTERIOR:
            record.add(f"{prefix}{side} {name}", posterior(model, name, side))
        view = model.communities(side)
        shown = view.ids, view.probabilities, view.sizes, view.weights, view.typical, view.divisive
        record.add(f"{prefix}{side} communities", shown)
    describe_ratings(record, kept, f"{prefix}ratings")


def describe_ratings(record: Record, ratings: Any, name: str = "ratings") -> None:
    """Add ratings: ids, rows, values, times."""
    record.add(f"{name} ids", (ratings.users.ids, ratings.items.ids))
    record.add(f"{name} rows", ratings.triples())
    record.add(f"{name} times", ratings.timestamps)


# -- batch ---------------------------------------------------------------------------------------


def batch(
    settings: Mapping[str, Any],
    table: Callable[[], Any] = planted,
    features: Callable[[], Mapping[str, Any]] | None = None,
    timed: bool = False,
) -> Record:
    """Fit once and describe the model."""
    record, data = Record(), table()
    times = data.times if timed else None
    if isinstance(data, Table):
        data = data.columns(timed)
    model = hemf_model(**settings).fit(data, **(features() if features else {}))
    describe(record, model, timestamps=times)
    return record


def some_features(*names: str) -> dict[str, Any]:
    return {name: known_features()[name] for name in names}


def sparse_features() -> dict[str, Any]:
    """Features as a pair of ids and a sparse matrix, as a dict, and as a list of both kinds."""
    import scipy.sparse as sp

    rng = np.random.default_rng(5)
    matrix = sp.csr_array((rng.random((60, 12)) < 0.3).astype(float))
    ids = np.array([f"u{user:03d}" for user in range(60)])
    by_item = {
        f"i{item:03d}": {"price": float(item % 5), "kind": "ab"[item % 2]} for item in range(30)
    }
    return {
        "user_features": [(ids, matrix), known_features()["user_features"]],
        "item_features": by_item,
    }


def features_of_newcomers() -> dict[str, Any]:
    """Features also of users and items that have no rating."""
    return dict(known_features(70, 50))


def forms_of_features() -> Record:
    """Fit features in every form that is read."""
    import polars as pl
    import pyarrow as pa

    record, frame = Record(), known_features()["user_features"]
    ids = frame["user"].tolist()
    dated = {
        "user": ids,
        "born": [dt.date(1950 + k, 1 + k % 12, 3) for k in range(60)],
        "member": [k % 3 == 0 for k in range(60)],
    }
    forms: dict[str, Any] = {
        "polars": pl.from_pandas(frame),
        "arrow": pa.Table.from_pandas(frame),
        "index": frame.set_index("user"),
        "dates": pl.DataFrame(dated),
        "dict of dates": {
            one: {"born": born} for one, born in zip(ids, dated["born"], strict=True)
        },
        "dict of sequences": {one: [k % 5, k % 3, 1.5] for k, one in enumerate(ids)},
        "dict of labels": {one: "abc"[k % 3] for k, one in enumerate(ids)},
        # Sets of one label: the order of more differs from process to process.
        "dict of sets": {one: {"abc"[k % 3]} for k, one in enumerate(ids)},
        "few": frame.head(11),
    }
    for name, features in forms.items():
        model = hemf_model(max_sweeps=6).fit(planted().triples, user_features=features)
        describe(record, model, prefix=f"{name} ")
    numbers = np.random.default_rng(1).normal(size=(60, 4))
    model = hemf_model(max_sweeps=6).fit(planted(text=False).triples, user_features=numbers)
    describe(record, model, prefix="matrix ")
    return record


def one_row(side: str) -> list[tuple[str, str, float]]:
    others = [(f"x{k}", float(1 + k % 5)) for k in range(12)]
    return [("a", x, r) if side == "user" else (x, "a", r) for x, r in others]


def with_repeats() -> tuple[np.ndarray, ...]:
    table = planted()
    again = np.arange(0, 900, 9)
    values = np.concatenate([table.ratings, 6.0 - table.ratings[again]])
    users, items = (np.concatenate([column, column[again]]) for column in table[:2])
    return users, items, values


def mixed_ids() -> list[tuple[Any, Any, float]]:
    """Ids of several types: text, whole numbers, tuples."""
    table = planted(seed=7, text=False)
    kinds: tuple[Callable[[int], Any], ...] = (str, int, lambda row: (row, "x"))
    rows = zip(*(column.tolist() for column in table.triples), strict=True)
    return [(kinds[user % 3](user), f"i{item}", value) for user, item, value in rows]


TABLES: dict[str, Callable[[], Any]] = {
    "whole numbers as ids": partial(planted, text=False),
    "ids of several types": mixed_ids,
    "not stars": partial(planted, stars=False),
    "dense": partial(planted, 20, 15, 300),
    "sparse": partial(planted, 200, 150, 260),
    "more ratings than a chunk": partial(planted, 250, 80, 6000),
    "one rating": lambda: [("a", "x", 3.0)],
    "two ratings": lambda: [("a", "x", 3.0), ("b", "x", 5.0)],
    "one user": partial(one_row, "user"),
    "one item": partial(one_row, "item"),
    "all equal": lambda: [(f"u{k % 7}", f"i{k % 5}", 4.0) for k in range(35)],
    "large values": lambda: planted()._replace(ratings=1e6 * planted().ratings),
    "small values": lambda: planted()._replace(ratings=1e-6 * planted().ratings - 3.0),
    "exact rank": lambda: [(f"u{k % 12}", f"i{k % 9}", float(k % 12 + k % 9)) for k in range(36)],
    "one far off": lambda: planted()._replace(ratings=np.append(planted().ratings[:-1], 60.0)),
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {
    "small defaults": {},
    "defaults": {"n_factors": 20, "max_user_communities": 12, "max_item_communities": 12,
                 "max_sweeps": 300},
    "one community": {"max_user_communities": 1, "max_item_communities": 1},
    "one user community": {"max_user_communities": 1},
    "one item community": {"max_item_communities": 1},
    "one factor": {"n_factors": 1},
    "no offsets": {"offsets": False},
    "user covariances tied": {"user_covariances": "tied"},
    "item covariances tied": {"item_covariances": "tied"},
    "covariances tied": {"user_covariances": "tied", "item_covariances": "tied"},
    "mean-field": {"membership": "mean-field"},
    "noise scales none": {"noise_scales": None},
    "noise scales user": {"noise_scales": "user"},
    "noise scales item": {"noise_scales": "item"},
    "evb gradient": {"evb": "gradient"},
    "evb none": {"evb": None},
    "evb gradient, own start": {"evb": "gradient", "concentration": 3.0, "spread": 0.3},
    "concentration": {"concentration": 3.0},
    "spread": {"spread": 0.3},
    "until it converges": {"max_sweeps": 200, "tol": 1e-6, "patience": 2},
    "validation": {"validation_fraction": 0.2, "max_sweeps": 60},
    "range none": {"rating_range": None},
    "range given": {"rating_range": (0, 6)},
    "float64": {"dtype": "float64"},
    "published form": {"offsets": False, "membership": "mean-field", "noise_scales": None,
                       "evb": "gradient"},
    "two threads": {"n_jobs": 2},
}  # fmt: skip
PRODUCT = {
    "offsets": (True, False),
    "membership": ("coupled", "mean-field"),
    "noise_scales": ("both", None),
    "user_covariances": ("own", "tied"),
    "dtype": ("float32", "float64"),
}
FEATURED: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]] | None]] = {
    "implicit": ({"implicit_features": True}, None),
    "implicit user": ({"implicit_features": "user"}, None),
    "implicit item": ({"implicit_features": "item"}, None),
    "implicit, no offsets": ({"implicit_features": True, "offsets": False}, None),
    "implicit, float64": ({"implicit_features": True, "dtype": "float64"}, None),
    "implicit, mean-field": ({"implicit_features": True, "membership": "mean-field"}, None),
    "implicit, evb none": ({"implicit_features": True, "evb": None}, None),
    "implicit, validation": ({"implicit_features": True, "validation_fraction": 0.15}, None),
    "implicit, one community": (
        {"implicit_features": True, "max_user_communities": 1, "max_item_communities": 1}, None),
    "user features": ({}, partial(some_features, "user_features")),
    "item features": ({}, partial(some_features, "item_features")),
    "features": ({}, known_features),
    "features, no noise scales": ({"noise_scales": None}, known_features),
    "features of newcomers": ({}, features_of_newcomers),
    "sparse features": ({}, sparse_features),
    "implicit and given": ({"implicit_features": True}, known_features),
    "given to one side, implicit to the other": (
        {"implicit_features": "item"}, partial(some_features, "user_features")),
}  # fmt: skip
MOODY: dict[str, dict[str, Any]] = {
    "moods": {},
    "moods, float64": {"dtype": "float64"},
    "moods, no offsets": {"offsets": False},
    "moods, implicit": {"implicit_features": True},
    "moods, no noise scales": {"noise_scales": None},
    "moods, validation": {"validation_fraction": 0.15},
    "moods, evb none": {"evb": None},
}


def batch_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    for name, settings in OPTIONS.items():
        yield f"batch/{name}", partial(batch, settings)
    for number in range(2 ** len(PRODUCT)):
        chosen = {
            option: values[number >> bit & 1]
            for bit, (option, values) in enumerate(PRODUCT.items())
        }
        name = " ".join(f"{value}" for value in chosen.values())
        yield f"batch/product/{name}", partial(batch, {**chosen, "max_sweeps": 12})
    for name, table in TABLES.items():
        yield f"batch/table/{name}", partial(batch, {}, table)
    for name in ("dense", "sparse", "one rating", "one user", "all equal", "exact rank"):
        yield f"batch/table/{name}, defaults", partial(batch, OPTIONS["defaults"], TABLES[name])
        yield f"batch/table/{name}, float64", partial(batch, {"dtype": "float64"}, TABLES[name])
    for kind in ("last", "mean"):
        yield f"batch/duplicates/{kind}", partial(batch, {"duplicates": kind}, with_repeats)
    for name, (settings, features) in FEATURED.items():
        yield f"batch/features/{name}", partial(batch, settings, planted, features)
    for name, settings in MOODY.items():
        yield f"batch/{name}", partial(batch, {"moods": True, **settings}, timed=True)
    everything = {"moods": True, "implicit_features": True}
    yield "batch/moods and all features", partial(batch, everything, planted, known_features, True)
    few = {"n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "max_sweeps": 6}
    many = partial(planted, 6500, 6400, 20_000)  # more features than a factorisation takes
    yield (
        "batch/features/implicit, many rows",
        partial(batch, {**few, "implicit_features": True}, many),
    )
    yield "batch/features/forms", partial(forms_of_features)
    yield "batch/callbacks", callbacks
    yield "batch/again and generator", again
    yield "batch/X and y", features_and_target


def callbacks() -> Record:
    """Collect the reports of all sweeps, stop a fit by a callback, give validation ratings."""
    record, table = Record(), planted()
    reports: list[Any] = []
    train, test = table.part(0, 800).triples, table.part(800, 900).triples
    hemf_model().fit(train, validation=test, callbacks=[reports.append])
    for report in reports:
        values = [getattr(report, one.name) for one in fields(report) if one.name not in TIMES]
        values = [list(v.values()) if isinstance(v, Mapping) else v for v in values]
        record.add("report", values)
    stopped = hemf_model().fit(train, callbacks=[lambda report: report.sweep >= 6])
    describe(record, stopped)
    return record


def again() -> Record:
    """Fit one model twice with a generator of the caller's, whose state is part of the result."""
    record, rng = Record(), np.random.default_rng(9)
    model = hemf_model(rng=rng).fit(planted().triples)
    describe(record, model, prefix="first ")
    model.fit(planted(seed=2).triples)
    describe(record, model, prefix="second ")
    record.add("draws that follow", rng.random(4))
    return record


def features_and_target() -> Record:
    """Fit pairs and targets as scikit-learn passes them, and score them."""
    record, table = Record(), planted()
    pairs = np.column_stack(table[:2])
    model = hemf_model().fit(pairs[:800], table.ratings[:800])
    describe(record, model)
    record.add("score", model.score(pairs[800:], table.ratings[800:]))
    record.add("parameters", model.set_params(n_jobs=None).get_params())
    return record


# -- online --------------------------------------------------------------------------------------

HISTORIES: tuple[Any, ...] = ("full", 8, 64, "none")
"""Ratings kept of each row."""
STREAM = partial(planted, 110, 60, 2400, kinds=(3, 3), late=True, seed=4)
SHORT = partial(planted, 70, 40, 1100, kinds=(3, 2), late=True, seed=5)

DENSE_STREAM = partial(planted, 90, 86, 7200, kinds=(3, 3), late=True, seed=4)
DENSE_SHORT = partial(planted, 74, 71, 5100, kinds=(3, 2), late=True, seed=5)
"""Streams whose rows have so many ratings that a history of 64 does not keep all of them."""


def feed(record: Record, model: Any, table: Table, way: str, *, timed: bool = False) -> None:
    """Let a model learn a stream in one of three ways, and add what it predicts on the way."""
    size = len(table.ratings)
    if way == "predict_then_learn":
        for begin in range(0, size, 700):
            columns = table.part(begin, begin + 700).columns(timed)
            record.add("predicted, then learnt", model.predict_then_learn(columns))
        return
    step = 1 if way == "one at a time" else 60
    looks = []
    for begin in range(0, size, step):
        part = table.part(begin, begin + step)
        if begin and begin % 60 == 0:
            looks.append(model.predict(part.users, part.items, return_std=True))
        model.partial_fit(part.columns(timed))
        if begin % 600 == 0:
            looks.append(model.elbo_)
    record.add("predicted on the way", looks)


def online(
    settings: Mapping[str, Any],
    way: str,
    *,
    first: int,
    table: Callable[[], Table] = STREAM,
    features: bool = False,
) -> Record:
    """Learn a stream after a fit of its ``first`` ratings, or with 0 from nothing."""
    record, data = Record(), table()
    timed = bool(settings.get("moods"))
    if way == "one at a time":
        data = data.part(0, first + 800)
    model = hemf_model(**settings)
    later: dict[str, Any] = {}
    if features:
        frames = known_features(110, 60)
        met = {side: np.unique(data.part(0, first)[k]) for k, side in enumerate(SIDES)}
        early = {f"{s}_features": frames[f"{s}_features"] for s in SIDES}
        later = {f"{s}_features": frames[f"{s}_features"].iloc[::2] for s in SIDES}
        early = {name: f[f[name[:4]].isin(met[name[:4]])] for name, f in early.items()}
        model.fit(data.part(0, first).columns(timed), **early)
        model.partial_fit(**later)
    elif first:
        model.fit(data.part(0, first).columns(timed))
    feed(record, model, data.part(first, len(data.ratings)), way, timed=timed)
    describe(record, model, timestamps=data.times if timed else None)
    return record


def changes(
    settings: Mapping[str, Any], table: Callable[[], Table], start: int, *, fitted: bool = True
) -> Record:
    """Change ratings, take some back, mistype one and correct it.

    The ratings before ``start`` are fitted, or learnt online with those that follow.
    """
    record, whole = Record(), table()
    timed = bool(settings.get("moods"))
    model = hemf_model(**settings)
    if fitted:
        model.fit(whole.part(0, start).columns(timed))
    else:
        model.partial_fit(whole.part(0, start).columns(timed))
    data = whole.part(start, start + 600)
    model.partial_fit(data.part(0, 300).columns(timed))
    describe(record, model, prefix="before ")
    changed = data.part(slice(0, 280, 7))
    new = changed._replace(ratings=6.0 - changed.ratings)
    model.partial_fit(new.columns(timed), previous=changed.ratings)
    describe(record, model, prefix="changed ")
    gone = np.setdiff1d(np.arange(1, 280, 9), np.arange(0, 280, 7))
    model.partial_fit(data.part(300, 360).columns(timed), removed=data.part(gone).triples)
    describe(record, model, prefix="removed ")
    typo = data.part(360, 361)
    mistyped = typo._replace(ratings=np.array([44.0]))
    model.partial_fit(mistyped.columns(timed))
    model.partial_fit(data.part(361, 400).columns(timed))
    model.partial_fit(typo.columns(timed), previous=mistyped.ratings)
    model.partial_fit(removed=data.part(361, 366).triples)
    describe(record, model, prefix="corrected ")
    from hemf import HemfError

    more = data.part(400, 410)._replace(ratings=np.append(np.ones(9), np.nan))
    with contextlib.suppress(HemfError):
        model.partial_fit(more.columns(timed))
    describe(record, model, prefix="refused ")
    feed(record, model, data.part(400, 600), "predict_then_learn", timed=timed)
    describe(record, model)
    return record


def repeated(settings: Mapping[str, Any], table: Callable[[], Table], start: int) -> Record:
    """Learn a stream in which pairs come again, also within a batch and within a block."""
    record, data = Record(), table()
    rng = np.random.default_rng(8)
    again = data.part(rng.integers(0, start, 500))
    again = again._replace(ratings=np.clip(again.ratings + rng.integers(-1, 2, 500), 1, 5))
    model = hemf_model(**settings).fit(data.part(0, start).triples)
    feed(record, model, again.part(0, 200), "batches")
    feed(record, model, again.part(200, 500), "predict_then_learn")
    describe(record, model)
    return record


def switched() -> Record:
    """Change options on the way: forgetting, refresh, the limit of communities."""
    record, data = Record(), SHORT()
    model = hemf_model().fit(data.part(0, 400).triples)
    model.set_params(forgetting=0.98).partial_fit(data.part(400, 600).triples)
    model.set_params(refresh=1.5, max_online_communities=2)
    feed(record, model, data.part(600, 900), "predict_then_learn")
    model.set_params(forgetting=1.0, refresh=0.0).partial_fit(data.part(900, 1100).triples)
    describe(record, model)
    return record


ONLINE: dict[str, dict[str, Any]] = {
    "forgetting": {"forgetting": 0.97},
    "forgetting of a pair": {"forgetting": (0.95, 1.0)},
    "refresh": {"refresh": 2.0},
    "moods": {"moods": True},
    "moods, forgetting": {"moods": True, "forgetting": 0.98},
    "implicit": {"implicit_features": True},
    "no noise scales": {"noise_scales": None},
    "float64": {"dtype": "float64"},
    "no offsets": {"offsets": False},
    "evb none": {"evb": None},
    "one community": {"max_user_communities": 1, "max_item_communities": 1},
    "tied": {"user_covariances": "tied", "item_covariances": "tied"},
}  # fmt: skip
ONLINE_ONCE: dict[str, dict[str, Any]] = {
    "mean-field": {"membership": "mean-field"},
    "range given": {"rating_range": (1, 5)},
    "range none": {"rating_range": None},
    "implicit user": {"implicit_features": "user"},
    "implicit, moods, refresh": {"implicit_features": True, "moods": True, "refresh": 1.0},
    "limit of communities": {"max_online_communities": 2},
    "duplicates mean": {"duplicates": "mean"},
    "evb gradient": {"evb": "gradient"},
}
WAYS = ("batches", "one at a time", "predict_then_learn")


def online_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    for history in HISTORIES:
        kept = {"history": history}
        long, n_long = (DENSE_STREAM, 6300) if history == 64 else (STREAM, 700)
        short, n_short = (DENSE_SHORT, 4400) if history == 64 else (SHORT, 450)
        for way in WAYS:
            fitted = partial(online, kept, way, first=n_long, table=long)
            yield f"online/{history}/after fit, {way}", fitted
            nothing = partial(online, kept, way, first=0, table=long)
            yield f"online/{history}/from nothing, {way}", nothing
        for name, settings in ONLINE.items():
            both = {**kept, **settings}
            fitted = partial(online, both, "batches", first=n_short, table=short)
            # Without all ratings on record, implicit features take a fit to begin with.
            begin = n_short if history != "full" and "implicit_features" in settings else 0
            streamed = partial(online, both, "predict_then_learn", first=begin, table=short)
            yield f"online/{history}/{name}, after fit, batches", fitted
            yield f"online/{history}/{name}, streamed", streamed
        for name, settings in ONLINE_ONCE.items():
            both = {**kept, **settings}
            run = partial(online, both, "predict_then_learn", first=n_short, table=short)
            yield f"online/{history}/{name}, after fit, streamed", run
        for way in ("batches", "predict_then_learn"):
            given = partial(online, kept, way, first=n_short, table=short, features=True)
            yield f"online/{history}/features, {way}", given
        both = {**kept, "implicit_features": True}
        given = partial(online, both, "batches", first=n_short, table=short, features=True)
        yield f"online/{history}/features and implicit, batches", given
        changing = {"table": short, "start": n_short + 50}
        for name, settings in {
            "changes": {},
            "changes, moods": {"moods": True},
            "changes, forgetting, implicit": {"forgetting": 0.98, "implicit_features": True},
        }.items():
            run = partial(changes, {**kept, **settings}, **changing)
            yield f"online/{history}/{name}", run
        run = partial(changes, kept, **changing, fitted=False)
        yield f"online/{history}/changes, from nothing", run
        yield f"online/{history}/repeated pairs", partial(repeated, kept, **changing)
    yield "online/switched options", switched
    many = partial(planted, 1100, 1050, 5000, kinds=(3, 3), late=True, seed=4)
    for history in ("full", "none"):
        settings = {"implicit_features": True, "history": history}
        for way in ("batches", "predict_then_learn"):
            run = partial(online, settings, way, first=3000, table=many)
            yield f"online/{history}/implicit, many rows, {way}", run
    shrinking = {"forgetting": 0.6, "refresh": 3.0}
    yield "online/strong forgetting", partial(online, shrinking, "predict_then_learn", first=700)
    wide = partial(planted, 110, 60, 2400, kinds=(6, 5), late=True, seed=11, stars=False)
    for history in HISTORIES:
        run = partial(online, {"history": history}, "predict_then_learn", first=900, table=wide)
        yield f"online/{history}/many kinds, not stars", run
    yield "online/scarce fit, then many", partial(online, {}, "batches", first=130)
    yield "online/scarce fit, window", partial(online, {"history": 8}, "batches", first=130)


# -- queries -------------------------------------------------------------------------------------


def models() -> dict[str, Callable[[], Any]]:
    """Return how to make models of every kind that queries and files have to serve."""

    def fitted(**settings: Any) -> Any:
        features = settings.pop("features", None)
        timed = bool(settings.get("moods"))
        return hemf_model(**settings).fit(planted().columns(timed), **(features or {}))

    def taught(**settings: Any) -> Any:
        more = planted(66, 44, 500, seed=6).columns(bool(settings.get("moods")))
        return fitted(**settings).partial_fit(more)

    everything = {"moods": True, "implicit_features": True}
    return {
        "batch": fitted,
        "batch, whole numbers": lambda: hemf_model().fit(planted(text=False).triples),
        "batch, validation": partial(fitted, validation_fraction=0.2),
        "batch, mean-field": partial(fitted, membership="mean-field"),
        "batch, published form": partial(fitted, **OPTIONS["published form"]),
        "batch, features": lambda: fitted(features=features_of_newcomers()),
        "batch, all": lambda: fitted(**everything, features=features_of_newcomers()),
        "batch, float64": partial(fitted, dtype="float64"),
        "online, full": taught,
        "online, 8": partial(taught, history=8),
        "online, none": partial(taught, history="none"),
        "online, moods": partial(taught, moods=True, history=8),
        "online, all": lambda: taught(**everything, features=features_of_newcomers()),
        "online, all, none": lambda: taught(
            **everything, features=features_of_newcomers(), history="none"
        ),
        "online, from nothing": lambda: hemf_model().partial_fit(planted().triples),
    }


def queries(name: str) -> Record:
    """Ask a model everything that there is to ask."""
    record, model = Record(), models()[name]()
    describe(record, model)
    number = isinstance(model.ratings_.users.ids[0].item() if name.endswith("numbers") else "", int)
    users = list(range(8)) if number else [f"u{k:03d}" for k in (0, 3, 7, 21, 59, 61, 68)]
    items = list(range(9)) if number else [f"i{k:03d}" for k in (0, 1, 5, 8, 33, 39, 42, 48)]
    stranger: Any = 99_999 if number else "nobody"
    one, other = users[1], items[2]
    record.add("one pair", model.predict(one, other, return_std=True, return_known=True))
    record.add("one user, many items", model.predict(one, items))
    record.add("many users, one item", model.predict(users, other))
    record.add("pairs in rows", model.predict([(one, other), (users[2], items[3])]))
    pairs = [user for user in users for _ in items], items * len(users)
    answer = model.predict_distribution(*pairs)
    record.add("distribution", (answer.mean, answer.std, answer.freedom))
    record.add("interval", [*answer.interval(0.9), *answer.interval(0.5)])
    record.add("below", answer.below(3.5))
    record.add("density", answer.log_density(3.0))
    record.add("score", answer.crps(4.0))
    record.add("between", answer.between(2.0, 4.5))
    record.add("levels", model.predict_proba(*pairs, levels=[1, 2, 3, 4, 5]))
    if model.ratings_.n_ratings:
        record.add("own levels", (model.levels_, model.predict_proba(*pairs)))
    record.add("tails", model.tail_freedom_)
    for strategy in ("mean", "ucb", "thompson"):
        for chosen in (one, [*users, stranger]):
            found = model.recommend(
                chosen, 6, strategy=strategy, exploration=1.5, return_known=True, rng=3
            )
            record.add(f"recommended by {strategy}", found)
        record.add(f"scores by {strategy}", model.scores(users, items, strategy=strategy, rng=3))
    record.add("recommended of all", model.recommend(one, 50, exclude_seen=False))
    known_items = model.ratings_.items.ids[:9].tolist() or items[:4]
    record.add("recommended of some", model.recommend(users[:3], 4, items=known_items))
    for side in SIDES:
        view = model.communities(side, n=4)
        record.add(f"{side} view", view.to_dict(labels=True, member_ids=True))
        record.add(f"{side} labels", view.labels)
    record.add("biclusters", model.biclusters().to_dict())
    for user, item in ((one, other), (users[0], items[0]), (stranger, other), (one, stranger)):
        record.add("explanation", model.explain(user, item, n=4).to_dict())
    rated = [(items[0], 5.0), (items[1], 2.0), (items[3], 4.0)]
    visitor = model.fold_in(rated)
    record.add("visitor", visitor.predict(items, return_std=True))
    record.add("visitor, taste", visitor.predict(items, return_std=True, include_noise=False))
    record.add("visitor's list", visitor.recommend(5))
    record.add("visitor's communities", visitor.probabilities)
    record.add("visitor of one rating", model.fold_in([rated[0]]).predict(items))
    record.add("visitor of a stranger", model.fold_in({stranger: 4.0}).predict(items))
    by_column = model.fold_in([item for item, _ in rated], [value for _, value in rated])
    record.add("visitor by columns", by_column.predict(items))
    if "features" in name or "all" in name:
        described = {"age": 33.0, "city": "Oslo"}
        record.add("visitor with features", model.fold_in(rated, features=described).predict(items))
        record.add("visitor of features", model.fold_in([], features=described).predict(items))
    similar = getattr(model, "similar", None)
    if similar is not None:
        record.add("similar", similar(other))
    model.partial_fit([(one, other, 2.0)] if not getattr(model, "moods", False) else
                      [(one, other, 2.0, 1_700_000_000)])  # fmt: skip
    record.add("visitor of the model as it is now", visitor.predict(items, return_std=True))
    return record


def file_members(record: Record, path: Path, prefix: str = "") -> None:
    """Add what a model file holds: arrays by their content, so that they may be renamed."""
    digests, texts = [], []
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            content = archive.read(name)
            if name.endswith(".npy"):
                array = np.load(io.BytesIO(content), allow_pickle=False)
                own = hashlib.sha256()
                for piece in encode(array):
                    own.update(piece)
                digests.append(own.hexdigest())
            else:
                texts.append(content)
    record.add(f"{prefix}arrays of the file", sorted(digests))
    record.add(f"{prefix}texts of the file", texts)


def kept(name: str) -> Record:
    """Save and load a model, copy and pickle it; let each of them go on learning."""
    from hemf import HeMF

    record, model = Record(), models()[name]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.hemf"
        model.save(path)
        loaded = HeMF.load(path)
        loaded.save(path.with_name("again.hemf"))
        same = path.read_bytes() == path.with_name("again.hemf").read_bytes()
        record.add("saves the same again", same)
    describe(record, loaded)
    numbers = name.endswith("numbers")
    more = planted(66, 44, 200, seed=9, text=not numbers).columns(bool(model.moods))
    clones = {
        "loaded": loaded,
        "copied": copy.deepcopy(model),
        "unpickled": pickle.loads(pickle.dumps(model)),
    }
    for kind, clone in clones.items():
        clone.set_params(n_jobs=_threads).partial_fit(more)
        describe(record, clone, prefix=f"{kind}, learnt ")
    return record


def members(name: str) -> Record:
    """Hash the content of a model file, which holds the number of threads: here always one."""
    global _threads
    threads, _threads = _threads, 1
    try:
        record, model = Record(), models()[name]()
    finally:
        _threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.hemf"
        model.save(path)
        file_members(record, path)
    return record


def query_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    for name in models():
        yield f"query/{name}", partial(queries, name)
        yield f"save/{name}", partial(kept, name)
        yield f"file/{name}", partial(members, name)


# -- reading -------------------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, Any]:
    """Return the same ratings in every form that is read."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import scipy.sparse as sp

    table = planted()
    names = ("user", "item", "rating", "timestamp")
    columns = dict(zip(names, table, strict=True))
    frame = pd.DataFrame(columns)
    numbers = planted(text=False)
    frame.to_csv(folder / "r.csv", index=False)
    frame.to_csv(folder / "r.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "r.parquet")
    frame.to_json(folder / "r.jsonl", orient="records", lines=True)
    rows = zip(*(column.tolist() for column in numbers), strict=True)
    lines = [f"{u}::{i}::{r:g}::{t}" for u, i, r, t in rows]
    (folder / "r.dat").write_text("\n".join(lines) + "\n")
    (folder / "u.data").write_text("\n".join(lines).replace("::", "\t") + "\n")
    frame.rename(
        columns=dict(zip(names, ("userId", "movieId", "score", "when"), strict=True))
    ).to_csv(folder / "named.csv", index=False)
    spelled = frame.assign(user='Smith, "' + frame["user"] + '"\n')
    spelled.to_csv(folder / "quoted.csv", index=False)
    frame.to_csv(folder / "bare.csv", index=False, header=False)
    frame.to_csv(folder / "semi.csv", index=False, sep=";")
    frame.to_csv(folder / "r.csv.gz", index=False)
    when = pd.Series(pd.to_datetime(table.times, unit="s"))
    when_text = when.dt.strftime("%Y-%m-%d %H:%M:%S")
    triples = [*zip(*(column.tolist() for column in table.triples), strict=True)]
    matrix = sp.coo_array((numbers.ratings, (numbers.users, numbers.items)), shape=(60, 40))
    return {
        "csv": folder / "r.csv",
        "tsv": folder / "r.tsv",
        "parquet": folder / "r.parquet",
        "jsonl": folder / "r.jsonl",
        "dat": folder / "r.dat",
        "u.data": folder / "u.data",
        "pandas": frame,
        "pandas, categories": frame.astype({"user": "category", "item": "category"}),
        "polars": pl.DataFrame(columns),
        "arrow": pa.table(columns),
        "tuples": triples,
        "records": frame.head(50).to_dict("records"),
        "mapping": {name: values.tolist() for name, values in columns.items()},
        "columns": tuple(table),
        "array": np.column_stack([numbers.users, numbers.items, numbers.ratings]),
        "sparse": matrix.tocsr(),
        "structured": frame.to_records(index=False),
        "quoted csv": folder / "quoted.csv",
        "no header": folder / "bare.csv",
        "semicolons": folder / "semi.csv",
        "compressed": folder / "r.csv.gz",
        "dates as text": frame.assign(timestamp=when_text),
        "dates": frame.assign(timestamp=when),
        "ratings as text": frame.assign(rating=frame["rating"].astype(str)),
        "lists of Decimals": [(user, item, Decimal(str(value))) for user, item, value in triples],
        "tuples as ids": [((user, 1), (item, "x"), value) for user, item, value in triples],
        "dates as ids": frame.assign(user=when.dt.date).drop_duplicates(["user", "item"]),
        "floats as ids": frame.assign(user=np.arange(900) % 37 + 0.5),
        "bytes as ids": [(user.encode(), item, value) for user, item, value in triples],
        "named columns": (folder / "named.csv", ("userId", "movieId", "score", "when")),
        "columns by position": (folder / "named.csv", (1, 0, 2)),
    }  # fmt: skip


def reading() -> Record:
    """Read ratings from every form."""
    from hemf import Ratings

    record = Record()
    with tempfile.TemporaryDirectory() as name:
        for kind, source in sources(Path(name)).items():
            options = {}
            if isinstance(source, tuple) and isinstance(source[0], Path):
                source, options["columns"] = source[0], source[1]
            describe_ratings(record, Ratings.from_any(source, **options), kind)
    for kind in ("last", "mean"):
        describe_ratings(
            record, Ratings.from_any(with_repeats(), duplicates=kind), f"repeats {kind}"
        )
    whole = Ratings.from_any(planted().triples)
    record.add("figures", (whole.mean, whole.scale, whole.minimum, whole.maximum, repr(whole)))
    describe_ratings(record, whole.select(np.arange(0, 900, 3)), "selected")
    describe_ratings(record, whole.subset(np.arange(900) % 4 > 0), "subset")
    more = Ratings.from_any(
        planted(66, 44, 300, seed=6).triples, users=whole.users, items=whole.items
    )
    describe_ratings(record, more, "numbered as others")
    describe_ratings(record, Ratings.from_any(planted(stars=False).triples, exact=True), "exact")
    return record


def fitted_from_file() -> Record:
    """Fit from files."""
    record = Record()
    with tempfile.TemporaryDirectory() as name:
        found = sources(Path(name))
        for kind in ("csv", "parquet", "dat"):
            describe(record, hemf_model(max_sweeps=6).fit(found[kind]), prefix=f"{kind} ")
    return record


# -- samplers and baselines ----------------------------------------------------------------------

FEW: dict[str, Any] = {"n_factors": 3, "samples": 14, "burn_in": 4, "rng": 0}
SAMPLERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gibbs": ("hemf", "GibbsHeMF", {}),
    "gibbs, no features": ("hemf", "GibbsHeMF", {"implicit_features": False}),
    "gibbs, of users": ("hemf", "GibbsHeMF", {"implicit_features": "user"}),
    "gibbs, outliers": ("hemf", "GibbsHeMF", {"outliers": True}),
    "gibbs, ordinal": ("hemf", "GibbsHeMF", {"ordinal": True}),
    "gibbs, ordinal, outliers": ("hemf", "GibbsHeMF", {"ordinal": True, "outliers": True}),
    "gibbs, no noise scales": ("hemf", "GibbsHeMF", {"noise_scales": None}),
    "gibbs, noise of items": ("hemf", "GibbsHeMF", {"noise_scales": "item"}),
    "gibbs, few kept": ("hemf", "GibbsHeMF", {"kept": 5, "rating_range": None}),
    "bpmf": ("hemf.samplers", "BPMF", {}),
    "bpmf, noise learnt": ("hemf.samplers", "BPMF", {"learn_noise": True, "kept": 4}),
    "bpmf, prior": ("hemf.samplers", "BPMF",
                    {"mean_precision": 5.0, "degrees": 6.0, "wishart_scale": 0.5}),
    "m3f-tib": ("hemf.samplers", "M3FTIB", {}),
    "m3f-tib, topics": ("hemf.samplers", "M3FTIB",
                        {"user_topics": 3, "item_topics": 2, "concentration": 10.0}),
    "m3f-tif": ("hemf.samplers", "M3FTIF", {}),
    "m3f-tif, topics": ("hemf.samplers", "M3FTIF",
                        {"user_topics": 3, "item_topics": 2, "topic_factors": 3,
                         "learn_noise": True}),
}  # fmt: skip


def sampler(module: str, kind: str, settings: Mapping[str, Any], features: bool = False) -> Record:
    """Draw some samples, with reports and validation ratings."""
    record, table = Record(), planted()
    model = getattr(importlib.import_module(module), kind)(**FEW, n_jobs=_threads, **settings)
    reports: list[Any] = []
    given = features_of_newcomers() if features else {}
    train, test = table.part(0, 800).triples, table.part(800, 900).triples
    model.fit(train, validation=test, callbacks=[reports.append], **given)
    record.add("reports", reports)
    users, items = np.append(np.unique(table.users), "u068"), np.append(np.unique(table.items), "?")
    pairs = np.repeat(users, items.size), np.tile(items, users.size)
    record.add("predicted", model.predict(*pairs, return_std=True, return_known=True))
    record.add("figures", (model.n_sweeps_, model.noise_variance_, model.global_mean_))
    record.add("range", model.rating_range_)
    samples = model.samples_
    record.add("number of samples", len(samples))
    for sample in (samples[0], samples[-1]):
        tables = [getattr(sample, one.name) for one in fields(sample)]
        record.add("sample", [value for value in tables if isinstance(value, np.ndarray)])
    return record


def descent(settings: Mapping[str, Any]) -> Record:
    """Let SGD learn in a fit, on a stream, and in both."""
    from hemf.baselines import SGD

    record, table = Record(), planted()
    own = {"n_factors": 3, "epochs": 6, "rng": 0, **settings}
    reports: list[Any] = []
    model = SGD(**own).fit(table.part(0, 600).triples, callbacks=[reports.append])
    record.add("reports", reports)
    stream = SGD(**own)
    model.partial_fit(table.part(600, 700).triples)
    record.add("streamed", model.predict_then_learn(table.part(700, 900).triples))
    record.add("streamed from nothing", stream.predict_then_learn(table.triples))
    for one in (model, stream):
        users, items = (
            np.append(np.unique(table.users), "?"),
            np.append(np.unique(table.items), "?"),
        )
        pairs = np.repeat(users, items.size), np.tile(items, users.size)
        record.add("predicted", one.predict(*pairs, return_known=True))
        for name in ("user_offsets_", "item_offsets_", "user_factors_", "item_factors_"):
            record.add(name, getattr(one, name))
        record.add(
            "figures", (one.n_updates_, one.global_mean_, one.rating_scale_, one.rating_range_)
        )
    return record


def biases() -> Record:
    """Predict by user and item biases."""
    from hemf import Ratings
    from hemf.baselines import Bias

    record, whole = Record(), Ratings.from_any(planted().triples)
    train, test = whole.select(np.arange(0, 900, 2)), whole.select(np.arange(1, 900, 2))
    users, items, _ = test.triples()
    pairs = test.users.ids[users], test.items.ids[items]
    record.add("predicted", Bias().fit(train).predict(*pairs))
    record.add("damped", Bias(damping=1.0).fit(train).predict(*pairs))
    return record


def learner_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    for name, (module, kind, settings) in SAMPLERS.items():
        yield f"sampler/{name}", partial(sampler, module, kind, settings)
    yield "sampler/gibbs, features", partial(sampler, "hemf", "GibbsHeMF", {}, True)
    for name, settings in {
        "sgd": {},
        "sgd, float64": {"dtype": "float64"},
        "sgd, no factors": {"n_factors": 0},
        "sgd, steps": {"step": 0.1, "decay": 300.0, "power": 1.0, "rating_range": (1, 5)},
        "sgd, penalties": {"factor_penalty": 0.2, "offset_penalty": 0.1, "start_scale": 0.1},
    }.items():
        yield f"baseline/{name}", partial(descent, settings)
    yield "baseline/biases", biases


# -- evaluation and tuning -----------------------------------------------------------------------


def metrics() -> Record:
    """Compute metrics of predictions that are drawn, not fitted."""
    from hemf import evaluation

    record, rng = Record(), np.random.default_rng(2)
    mean, std = rng.normal(3.5, 0.8, 400), rng.uniform(0.3, 1.5, 400)
    actual = np.clip(np.rint(mean + std * rng.normal(size=400)), 1, 5)
    for name in ("rmse", "mae"):
        record.add(name, getattr(evaluation, name)(actual, mean))
    for name in ("coverage", "nlpd", "pit", "calibration_curve"):
        record.add(name, getattr(evaluation, name)(actual, mean, std))
    record.add("coverage of half", evaluation.coverage(actual, mean, std, level=0.5))
    labels, found = rng.integers(0, 4, 300), rng.integers(0, 3, 300)
    record.add("rand", evaluation.adjusted_rand_index(labels, found))
    record.add("purity", evaluation.purity(labels, found))
    for freedom in (float("inf"), 6.0):
        answer = evaluation.Predictive(mean, std, freedom)
        record.add("judged", evaluation.judge(actual, answer).to_dict())
        record.add(
            "judged by levels", evaluation.judge(actual, answer, levels=[1, 2, 3, 4, 5]).to_dict()
        )
    first, second = rng.normal(size=9), rng.normal(size=9)
    record.add("summary", evaluation.summarise(first))
    record.add("paired", evaluation.paired_difference(first, second, test_per_train=1 / 9))
    return record


def splits() -> Record:
    """Make splits, those of the protocols, and the order of streams."""
    from hemf import evaluation

    record, table = Record(), planted()
    record.add("random", evaluation.random_split(500, 0.2, rng=3))
    record.add("weak", evaluation.weak_generalisation(table.users, table.items, rng=3))
    record.add("by time", evaluation.time_ordered(table.times, 0.15))
    record.add("folds", [*evaluation.k_fold(100, 4, rng=3)])
    for protocol in evaluation.PROTOCOLS:
        found = evaluation.make_splits(protocol, table.triples, n_splits=3, seed=5)
        record.add(protocol, (found.parts, found.n_chunks, found.fingerprint))
        record.add(f"{protocol}, passes", [*evaluation.passes(found.chunks(0), 2)])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "splits.npz"
            evaluation.kept_splits(path, protocol, table.triples, n_splits=3, seed=5)
            record.add(f"{protocol}, kept", evaluation.load_splits(path, table.triples).parts)
    record.add("fingerprint", evaluation.fingerprint(table.triples))
    for order in (None, "time", "file", "random"):
        record.add("order", place("stream_order")(900, table.times, order, rng=4))
    record.add("warm start", place("warm_start_size")(900, 0.15))
    return record


def ranking() -> Record:
    """Rank with every kind of model."""
    from hemf import evaluation
    from hemf.baselines import SGD
    from hemf.samplers import BPMF

    record, table = Record(), planted()
    train, test = table.part(0, 650).triples, table.part(650, 900).triples
    for model in (hemf_model(), SGD(n_factors=3, epochs=5, rng=0), BPMF(**FEW, n_jobs=_threads)):
        model.fit(train)
        record.add("ranked", evaluation.ranking_metrics(model, train, test, 5).to_dict())
        found = evaluation.ranking_metrics(model, train, test, 3, level=4.0)
        record.add("ranked, relevant", found.to_dict())
    return record


def prequential(kind: str, size: int, settings: Mapping[str, Any]) -> Record:
    """Judge a stream as it is learnt."""
    from hemf import evaluation
    from hemf.baselines import SGD

    record, table = Record(), SHORT()
    sgd = partial(SGD, n_factors=3, rng=0)
    for start in (0, 300):
        model = sgd() if kind == "sgd" else hemf_model(**settings)
        if start:
            model.fit(table.part(0, start).columns(bool(settings.get("moods"))))
        stream = evaluation.Prequential(
            model, *table.part(0, 900).triples, timestamps=table.times[:900], start=start,
            batch_size=size, test=table.part(900, 1100).columns(bool(settings.get("moods"))),
        ).run()  # fmt: skip
        record.add("figures", (stream.rmse, stream.recent_rmse, stream.test_rmse, stream.ratings))
        record.add("new rows", (stream.new_users, stream.new_items, stream.communities))
        record.add("curve", stream.curve)
    return record


def tuned(settings: Mapping[str, Any], features: bool = False) -> Record:
    """Search for settings."""
    from hemf.tuning import tune

    record, table = Record(), planted()
    given = known_features() if features else {}
    fixed = {"n_factors": 2, "max_sweeps": 30, "max_user_communities": 3, "max_item_communities": 2}
    usual = {} if "space" in settings else {"trials": 5}
    seen: list[Any] = []
    found = called(
        tune, table.columns(features), fixed={k: v for k, v in fixed.items()
        if k not in settings.get("space", {})}, rng=1, n_jobs=_threads,
        watch=lambda standing: seen.append(1) and None, **usual, **settings, **given,
    )  # fmt: skip
    record.add("calls", len(seen))
    for trial in found.trials:
        record.add("trial", trial)
    record.add("settings", found.settings)
    record.add("changed", found.changed)
    record.add("ended", found.ended)
    describe(record, found.fit())
    return record


def tuned_in_two() -> Record:
    """Stop a search and resume it from its file of results."""
    from hemf.tuning import tune

    record = Record()
    space = {"n_factors": [1, 2, 3], "noise_scales": ["both", None]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        for trials in (2, None):
            found = tune(
                planted().triples, space=space, fixed={"max_sweeps": 20}, trials=trials, rng=2,
                results=path, n_jobs=_threads,
            )  # fmt: skip
            for trial in found.trials:
                record.add("trial", trial)
            record.add("ended", found.ended)
    return record


def evaluation_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    yield "evaluation/metrics", metrics
    yield "evaluation/splits", splits
    yield "evaluation/ranking", ranking
    for kind, size, settings in (
        ("hemf", 1, {}),
        ("hemf", 50, {}),
        ("hemf", 50, {"moods": True}),
        ("hemf", 1, {"history": 8, "moods": True}),
        ("sgd", 1, {}),
        ("sgd", 50, {}),
    ):
        name = ", ".join([kind, f"batches of {size}", *settings])
        yield f"evaluation/stream, {name}", partial(prequential, kind, size, settings)
    yield "tuning/usual choices", partial(tuned, {})
    yield "tuning/features and moods", partial(tuned, {}, True)
    yield "tuning/stopped and resumed", tuned_in_two
    yield "tuning/nlpd", partial(tuned, {"by": "nlpd", "space": {"noise_scales": ["both", None]}})
    space = {"n_factors": [1, 2, 3]}
    yield "tuning/bound, folds", partial(tuned, {"by": "elbo", "folds": 2, "space": space})
    yield "tuning/share", partial(tuned, {"share": 0.2, "patience": 1, "space": space})


# -- command line --------------------------------------------------------------------------------


def command(*words: Any) -> Any:
    """Run a command of the command line in this process, and return the JSON that it prints."""
    printed, arguments = io.StringIO(), sys.argv
    sys.argv = ["hemf", *map(str, words), "--json"]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            place("cli")()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(
                f"hemf {' '.join(map(str, words))} ended with {ended.code}"
            ) from None
    finally:
        sys.argv = arguments
    return json.loads(printed.getvalue())


def without_times(value: Any, folder: str) -> Any:
    """Return a JSON document without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_times(v, folder) for k, v in value.items() if k not in TIMES}
    if isinstance(value, list):
        return [without_times(entry, folder) for entry in value]
    return value.replace(folder, "") if isinstance(value, str) else value


def commanded(*calls: Sequence[Any]) -> Record:
    """Run commands one after the other in a folder with files; {} in a word is the folder."""
    record = Record()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for words in calls:
            answer = command(*(str(word).replace("{}", name) for word in words))
            answer = without_times(answer, name)
            for key, value in answer.items() if isinstance(answer, dict) else [("rows", answer)]:
                record.add(f"{words[0]}: {key}", value)
        for path in sorted(folder.glob("*.hemf")):
            describe_file(record, path)
    return record


def describe_file(record: Record, path: Path) -> None:
    from hemf import HeMF

    describe(record, HeMF.load(path), prefix=f"{path.name} ")


def write_files(folder: Path) -> None:
    import pandas as pd

    def frame(table: Table, n: int = 4) -> Any:
        names = ("user", "item", "rating", "timestamp")[:n]
        return pd.DataFrame(dict(zip(names, table, strict=False)))

    table = SHORT()
    frame(table).to_csv(folder / "all.csv", index=False)
    frame(table.part(0, 800)).to_csv(folder / "train.csv", index=False)
    frame(table.part(800, 1000)).to_csv(folder / "test.csv", index=False)
    frame(table.part(1000, 1100)).to_csv(folder / "new.csv", index=False)
    frame(table.part(0, 20), 3).to_csv(folder / "gone.csv", index=False)
    frame(table.part(30, 60), 2).to_csv(folder / "pairs.csv", index=False)
    for side, features in known_features(70, 40).items():
        features.to_csv(folder / f"{side}.csv", index=False)


def small(*more: str) -> list[str]:
    words = [f"{name}={value}" for name, value in SMALL.items() if name != "rng"]
    return [part for word in [*words, *more] for part in ("--set", word)]


FILES = ("--train", "{}/train.csv", "--test", "{}/test.csv")
GIVEN = ("--user-features", "{}/user_features.csv", "--item-features", "{}/item_features.csv")


def cli_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    for name, words in {
        "hemf": small(),
        "hemf, top": [*small("n_factors=2"), "--top", "5"],
        "hemf, moods": small("moods=true", "implicit_features=true"),
        "hemf, features": [*small(), *GIVEN],
        "sgd": ["--model", "sgd:n_factors=3,epochs=5"],
        "gibbs": ["--model", "gibbs:n_factors=2,samples=10,burn_in=3"],
        "bpmf": ["--model", "bpmf:n_factors=2,samples=10,burn_in=3", "--top", "5"],
        "m3f-tib": ["--model", "m3f-tib:n_factors=2,samples=10,burn_in=3"],
        "m3f-tif": ["--model", "m3f-tif:n_factors=2,samples=10,burn_in=3"],
    }.items():
        threads = () if name == "sgd" else ("--n-jobs", _threads)
        yield f"cli/evaluate {name}", partial(commanded, ("evaluate", *FILES, *words, *threads))
    for name, words in {
        "full": (),
        "window": ("--history", "8"),
        "none": ("--history", "none"),
        "batches": ("--batch-size", "50"),
        "warm start": ("--warm-start", "0.3", "--test", "{}/test.csv"),
        "warm start, none": ("--warm-start", "0.3", "--history", "none", "--batch-size", "20"),
        "random order": ("--order", "random", "--limit", "500"),
        "moods": ("--set", "moods=true", "--warm-start", "0.3"),
        "two models": ("--model", "hemf", "--model", "sgd:step=0.08"),
    }.items():
        words = ("stream", "--ratings", "{}/all.csv", *small(), *words, "--n-jobs", _threads)
        yield f"cli/stream {name}", partial(commanded, words)
    model = "{}/m.hemf"
    yield (
        "cli/fit to explain",
        partial(
            commanded,
            ("fit", "{}/train.csv", "-o", model, *small(), *GIVEN, "--n-jobs", _threads),
            ("describe", model),
            ("predict", model, "{}/pairs.csv"),
            ("recommend", model, "--user", "u003", "-n", "5"),
            ("communities", model, "--members"),
            ("explain", model, "u003", "i004"),
            ("update", model, "{}/new.csv"),
            ("update", model, "--removed", "{}/gone.csv"),
            ("predict", model, "{}/pairs.csv"),
            ("describe", model),
        ),
    )
    tries = ("--try", "n_factors=1,2", "--set", "max_sweeps=8")
    tune = ("tune", "{}/train.csv", *tries, "-o", model, "--n-jobs", _threads)
    yield "cli/tune", partial(commanded, tune)
    yield "cli/demo", partial(commanded, ("demo", "-o", "{}/report.html"))


# -- data sets -----------------------------------------------------------------------------------


def drawn(record: Record, data: Any, name: str) -> None:
    record.add(f"{name} columns", (data.users, data.items, data.ratings, data.timestamps))
    record.add(f"{name} ids", (data.user_ids, data.item_ids))
    record.add(f"{name} communities", (data.user_community, data.item_community))
    record.add(f"{name} factors", (data.user_factors, data.item_factors, data.noise))


def generators() -> Record:
    """Draw synthetic ratings and streams."""
    from hemf.data import datasets

    record = Record()
    for seed in (0, 3):
        drawn(record, datasets.demo_ratings(seed), "demo")
    drawn(record, datasets.draw(40, 30, density=0.3, rng=1), "drawn")
    options = {"popularity": 0.8, "levels": (1, 2, 3), "offset": 0.3, "concentration": 2.0}
    drawn(record, datasets.draw(40, 30, n_ratings=400, rng=2, **options), "drawn, options")
    wide = {"covariance_freedom": 12.0, "separation": 3.0, "user_weights": [0.5, 0.3, 0.2]}
    drawn(record, datasets.draw(40, 30, n_ratings=400, rng=2, **wide), "drawn, covariances")
    crowded = {"user_communities": 6, "n_factors": 2, "item_communities": 5}
    drawn(record, datasets.draw(40, 30, n_ratings=400, rng=2, **crowded), "drawn, crowded")
    drawn(record, datasets.netflix_like(0.0001, rng=0), "netflix-like")
    blocks = datasets.draw_blocks(50, 40, n_ratings=900, block=400, rng=1)
    record.add("blocks", [list(block) for block in blocks])
    blocks = datasets.netflix_like_blocks(0.0001, block=3000, rng=1)
    record.add("netflix-like blocks", [list(block) for block in blocks])
    for appears in (0.5, None):
        stream = datasets.emerging(80, 40, appears=appears, ratings_each=(5, 12), rng=0)
        record.add("emerging", (*stream.columns, stream.expected, stream.begins))
        record.add("emerging communities", stream.user_community)
    stream = datasets.drifting(30, 60, ratings_each=40, share=0.5, over=0.2, rng=0)
    record.add("drifting", (*stream.columns, stream.expected, stream.begins, stream.ends))
    record.add("drifting users", stream.changed)
    return record


def readers() -> Record:
    """Read files in the formats of published data sets."""
    record = Record()
    table = planted(text=False)
    rows = [*zip(*(column.tolist() for column in table), strict=True)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for reader, mark in (("read_tabs", "\t"), ("read_double_colon", "::")):
            path = folder / "ratings.dat"
            path.write_text("\n".join(mark.join(f"{x:g}" if k == 2 else str(x)
                            for k, x in enumerate(row)) for row in rows) + "\n")  # fmt: skip
            read = place(reader)(path)
            record.add(reader, [getattr(read, one) for one in _columns_of(read)])
        votes = [f"{u}\t{i}\t{(r - 1) / 5:g}\t{u % 5 / 4:g}\t1996-02-28" for u, i, r, _ in rows]
        (folder / "vote.txt").write_text("\n".join(votes) + "\n")
        read = place("read_votes")(folder / "vote.txt")
        record.add("votes", [getattr(read, one) for one in _columns_of(read)])
        lines = []
        for movie in range(1, 41):
            own = [row for row in rows if row[1] == movie - 1]
            lines += [
                f"{movie}:",
                *(f"{u + 1},{r:g},2004-03-{1 + u % 28:02d}" for u, _, r, _ in own),
            ]
        (folder / "combined_data_1.txt").write_text("\n".join(lines) + "\n")
        for dates in (False, True):
            target = folder / f"{dates}.parquet"
            found = place("convert_netflix")(folder / "combined_data_1.txt", target, dates=dates)
            if hasattr(found, "ratings"):  # until the file became Parquet
                ratings = found.ratings()
            else:
                ratings = importlib.import_module("hemf.experiments.netflix").load_netflix(target)
            describe_ratings(record, ratings, f"netflix {dates}")
            read = place("read_netflix")(target)
            record.add(f"packed {dates}", [getattr(read, one) for one in _columns_of(read)])
    return record


def _columns_of(read: Any) -> Iterable[str]:
    return [one.name for one in fields(read)] if is_dataclass(read) else read._fields


def other_cases() -> Iterator[tuple[str, Callable[[], Record]]]:
    yield "data/generators", generators
    yield "data/readers", readers
    yield "data/forms", reading
    yield "data/fits from files", fitted_from_file


# -- running -------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], Record]]:
    """Return all cases by name."""
    found: dict[str, Callable[[], Record]] = {}
    for group in (
        batch_cases, online_cases, query_cases, learner_cases, evaluation_cases, cli_cases,
        other_cases,
    ):  # fmt: skip
        for name, run in group():
            if name in found:
                raise ValueError(f"two cases are named {name}")
            found[name] = run
    return found


def chosen_names(patterns: Sequence[str] | None) -> list[str]:
    """Return names of cases that match any pattern, or that hold it where it has no wildcard."""
    return [
        name
        for name in cases()
        if not patterns
        or any(pattern in name or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


class Outcome(NamedTuple):
    """What a case has left."""

    name: str
    hash: str
    parts: dict[str, str]
    seconds: float
    error: str = ""


def start_process(threads: int) -> None:
    """Set the number of threads of the models; warnings say nothing of results."""
    global _threads
    _threads = threads
    warnings.simplefilter("ignore")


def outcome(name: str) -> Outcome:
    """Run one case."""
    begin = time.perf_counter()
    record, error = Record(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = cases()[name]()
    except Exception:
        error = traceback.format_exc()
    return Outcome(name, record.hash, record.parts, time.perf_counter() - begin, error)


def outcomes(names: Sequence[str], jobs: int, threads: int) -> Iterator[Outcome]:
    """Run cases, in their order, in this process or in several."""
    if jobs == 1:
        start_process(threads)
        yield from map(outcome, names)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, start_process, (threads,)) as pool:
        yield from pool.imap(outcome, names)


def write(path: Path, found: Sequence[Outcome]) -> None:
    """Write hashes of cases and of their parts."""
    content = {one.name: {"hash": one.hash, "parts": one.parts} for one in found}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def differences(path: Path, found: Sequence[Outcome], *, all_cases: bool) -> list[str]:
    """Return a line for each case that differs from those in a file."""
    before = json.loads(path.read_text())
    lines = []
    for one in found:
        if one.name not in before:
            lines.append(f"{one.name}: not in {path}")
            continue
        old = before[one.name]["parts"]
        if before[one.name]["hash"] != one.hash:
            changed = [part for part in one.parts if one.parts[part] != old.get(part)]
            changed += [f"{part} (gone)" for part in old if part not in one.parts]
            shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" * (len(changed) > 6))
            lines.append(f"{one.name}: {shown or 'order of its parts'}")
    if all_cases:
        there = {one.name for one in found}
        lines += [f"{name}: no such case now" for name in before if name not in there]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run cases")
    parser.add_argument("--threads", type=int, default=1, help="n_jobs of the models")
    parser.add_argument("--save", type=Path, metavar="FILE", help="where to write the hashes")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="hashes to compare with")
    parser.add_argument("--times", action="store_true", help="show the seconds of each case")
    arguments = parser.parse_args()
    begin, found = time.perf_counter(), []
    for one in outcomes(chosen_names(arguments.only), arguments.jobs, arguments.threads):
        spent = f"  {one.seconds:.2f} s" if arguments.times else ""
        print(f"{one.name}  {'failed' if one.error else one.hash[:32]}{spent}", flush=True)
        if one.error:
            print(one.error, file=sys.stderr)
        found.append(one)
    failed = [one for one in found if one.error]
    print(
        f"{len(found)} cases in {time.perf_counter() - begin:.0f} s, {len(failed)} failed",
        file=sys.stderr,
    )
    if arguments.save:
        write(arguments.save, found)
    if arguments.compare:
        lines = differences(arguments.compare, found, all_cases=not arguments.only)
        print("\n".join(["", *lines, f"{len(lines)} of {len(found)} cases differ"]))
        raise SystemExit(bool(lines or failed))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
