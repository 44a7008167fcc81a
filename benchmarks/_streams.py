"""Streams for the benchmark of online learning, its peer, and the constants of its opponents."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from _data import FOLDER, drawn

# Best of 500 trials each of a compiled copy of river's update, judged on the prequential RMSE of
# the very stream that they are for, and confirmed with river itself: as good as it can be there. A
# step of river's is half of what it would be in our formulas, because its loss is e² and not ½e²;
# offsets and factors have steps of their own.
RIVER = {
    "time": {
        "n_factors": 20,
        "offset_step": 0.017,
        "factor_step": 0.042,
        "offset_penalty": 0.04,
        "factor_penalty": 0.008,
        "start_scale": 0.04,
    },  # MovieLens 1M by time, after the first tenth: 0.884
    "random": {
        "n_factors": 20,
        "offset_step": 0.0125,
        "factor_step": 0.05,
        "offset_penalty": 0.003,
        "factor_penalty": 0.02,
        "start_scale": 0.055,
    },  # all of it in random order: 0.909; the classic training part: 0.913
    "nothing": {
        "n_factors": 20,
        "offset_step": 0.03,
        "factor_step": 0.065,
        "offset_penalty": 0.13,
        "factor_penalty": 0.02,
        "start_scale": 0.05,
    },  # MovieLens 100K by time, all of it: 0.945
}

# Found by sgd_search.py, judged in the same way.
SGD_CONSTANTS: dict[str, dict[str, Any]] = {
    "time": {
        "step": 0.0708,
        "decay": 2.28e6,
        "power": 0.976,
        "factor_penalty": 2.42e-4,
        "offset_penalty": 0.0559,
        "start_scale": 0.003,
        "epochs": 6,
    },  # 0.8805
    "random": {
        "step": 0.258,
        "decay": 1.09e5,
        "power": 0.795,
        "factor_penalty": 2.86e-3,
        "offset_penalty": 7.42e-3,
        "start_scale": 8.95e-4,
        "epochs": 6,
    },  # 0.914
}

STARS = (0.5, 5.0)  # of drawn streams, by halves
INSTALL = "python -m venv V && V/bin/pip install river"


class Stream(NamedTuple):
    """Ratings in the order in which they come."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray

    def part(self, begin: int, end: int) -> Stream:
        return Stream(*(column[begin:end] for column in self))

    def pieces(self, size: int, begin: int = 0) -> Iterator[Stream]:
        for low in range(begin, len(self.ratings), size):
            yield self.part(low, low + size)


class AbsentError(Exception):
    """Something that a section needs is not here."""


def read(name: str, *more: str) -> list[np.ndarray]:
    """Return users, items, ratings, and more columns, of a real data set."""
    import pyarrow.parquet as pq

    path = FOLDER / f"{name}.parquet"
    if not path.exists():
        raise AbsentError(
            f"{path.name} is not in {FOLDER}; set HEMF_DATA to the folder that has it"
        )
    names = ["user", "item", "rating", *more]
    table = pq.read_table(path, columns=names)
    return [table[column].to_numpy() for column in names]


def in_time_order(name: str) -> Stream:
    """Return a data set by its timestamps; of one second, as the file has them."""
    *columns, times = read(name, "timestamp")
    order = np.argsort(times, kind="stable")
    return Stream(*(column[order] for column in columns))


def in_random_order(name: str, seed: int) -> Stream:
    columns = read(name)
    order = np.random.default_rng(seed).permutation(len(columns[2]))
    return Stream(*(column[order] for column in columns))


def movielens_or_drawn() -> tuple[Stream, str]:
    """Return MovieLens 1M by time, or a stream of its size where it is absent: for speed alone."""
    try:
        return in_time_order("ml-1m"), "MovieLens 1M by time"
    except AbsentError as reason:
        return Stream(*drawn(6040, 3700, 1_000_000)), f"drawn ratings: {reason}"


def growing(n_ratings: int, *, block: int = 100_000, rng: int = 0) -> Iterator[Stream]:
    """Yield blocks of a stream whose users and items grow in number as its ratings do.

    Every block has a hundredth as many new users as ratings, who rate about 90 items each; a tenth
    of the ratings are by users of earlier blocks. A fifth as many items are new, rated evenly with
    those of the ten blocks before and then no more. So a row has as many ratings late as early,
    and what may cost more is only that there are more rows and more ratings. A pair may rarely
    come again, which is a changed rating.
    """
    from hemf.data.datasets import plant

    blocks = -(-n_ratings // block)
    new_users, new_items = block // 100, block // 500
    at_first = 10 * new_items  # items that are there when the first users come
    people = plant(
        blocks * new_users, at_first + blocks * new_items, n_factors=8, noise=0.5, rng=rng
    )
    generator = np.random.default_rng(rng)
    for number in range(blocks):
        size = min(block, n_ratings - number * block)
        users = number * new_users + generator.integers(new_users, size=size)
        returning = generator.random(size) < 0.1
        users[returning] = generator.integers((number + 1) * new_users, size=returning.sum())
        items = number * new_items + generator.integers(at_first + new_items, size=size)
        pairs = np.unique(users * people.n_items + items)  # once each within a block
        users, items = np.divmod(generator.permutation(pairs), people.n_items)
        noise = people.noise * generator.standard_normal(len(pairs))
        ratings = np.round(2 * np.clip(people.expected(users, items) + noise, *STARS)) / 2
        yield Stream(users.astype(np.int32), items.astype(np.int32), ratings.astype(np.float32))


def fixed(n_ratings: int, *, block: int = 100_000, rng: int = 0) -> Iterator[Stream]:
    """Yield blocks of a stream of 20,000 users and 4,000 items, however long it is."""
    from hemf.data.datasets import draw_blocks

    for columns in draw_blocks(
        20_000,
        4_000,
        n_ratings=n_ratings,
        block=block,
        n_factors=8,
        noise=0.5,
        levels=np.arange(1, 11) / 2,
        rng=rng,
    ):
        yield Stream(*columns)


def newcomers(count: int, *, brings: int, rng: int = 0) -> tuple[Stream, Stream, Stream]:
    """Return MovieLens 1M without some users, a few ratings of each of these, and their others."""
    whole = Stream(*read("ml-1m"))
    generator = np.random.default_rng(rng)
    is_new = np.isin(whole.users, generator.choice(np.unique(whole.users), count, replace=False))
    rows = generator.permutation(np.flatnonzero(is_new))
    rows = rows[np.argsort(whole.users[rows], kind="stable")]  # user by user, each in random order
    number = np.arange(len(rows)) - np.searchsorted(whole.users[rows], whole.users[rows])
    few = number < brings
    old, given, others = (
        Stream(*(column[part] for column in whole)) for part in (~is_new, rows[few], rows[~few])
    )
    return old, given, others


# -- what is claimed of a planted stream ---------------------------------------------------------


class Seen(NamedTuple):
    """Communities that a model had at any time, and when it had found the new one."""

    found_after: float  # ratings of the new community; infinite if it was not found
    most: tuple[int, int]  # of users and of items, at any time
    in_the_end: tuple[int, int]


def watch(model: Any, seed: int, *, appears: float | None, often: int = 250) -> Seen:
    """Fit two fifths of a planted stream, learn the rest, and look again and again."""
    from hemf.data.datasets import emerging

    truth = emerging(appears=appears, separation=7.0, item_communities=4, rng=seed)
    stream = Stream(*truth.columns)
    length, start = len(stream.ratings), round(0.4 * len(stream.ratings))
    of_new = np.cumsum(truth.user_community[stream.users] == truth.newest)
    model.fit(stream.part(0, start))
    found, counts = np.inf, [_communities(model)]
    for begin in range(start, length, often):
        model.predict_then_learn(stream.part(begin, begin + often))
        counts.append(_communities(model))
        now = min(begin + often, length)
        if found == np.inf and is_found(model, truth, now):
            found = float(of_new[now - 1])
    users, items = (max(sizes) for sizes in zip(*counts))
    return Seen(found, (users, items), counts[-1])


def _communities(model: Any) -> tuple[int, int]:
    return model.n_user_communities_, model.n_item_communities_


def is_found(model: Any, truth: Any, now: int) -> bool:
    """Whether those of the new community who gave 5 ratings or more are together, and alone."""
    counts = np.bincount(truth.users[:now], minlength=truth.population.n_users)
    known = np.flatnonzero(counts >= 5)
    new = truth.user_community[known] == truth.newest
    if not new.any():
        return False
    labels = model.communities("user", n=1).labels
    found = np.array([labels[user] for user in known.tolist()])
    own = np.bincount(found[new]).argmax()
    return bool(np.mean(found[new] == own) >= 0.8 and np.mean(new[found == own]) >= 0.9)


# -- the peer -----------------------------------------------------------------------------------


def river_interpreter(wanted: str | None) -> str:
    """Return an interpreter that has river, or say how to make one."""
    python = wanted or os.environ.get("HEMF_RIVER")
    if python is None and importlib.util.find_spec("river"):
        python = sys.executable
    if python is None:
        raise AbsentError(
            "the peer, river, is not installed here; make an environment that has it, "
            f"{INSTALL}, and say --river V/bin/python or HEMF_RIVER=V/bin/python"
        )
    tried = subprocess.run([python, "-c", "import river"], capture_output=True, text=True)
    if tried.returncode:
        raise AbsentError(f"{python} has no river ({INSTALL}): {tried.stderr.strip()[-200:]}")
    return python


def peer(
    python: str,
    stream: Stream,
    constants: dict[str, float],
    *,
    start: int = 0,
    test: Stream | None = None,
) -> dict[str, Any]:
    """Return what river's BiasedMF reaches on a stream, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for prefix, columns in (("", stream), ("test_", test)):
            for name, column in columns._asdict().items() if columns is not None else ():
                np.save(Path(folder) / f"{prefix}{name}.npy", column)
        script = str(Path(__file__).with_name("_river.py"))
        command = [python, script, folder, "--start", str(start)]
        command += ["--constants", json.dumps(constants)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=one_thread, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"river failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
