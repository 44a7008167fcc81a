"""What hemf recommends beside rankers: the same splits, each method in a process of its own.

    python benchmarks/ranking.py --set ml-1m-classic              # all methods
    python benchmarks/ranking.py --method hemf ease --hemf implicit_features=True n_factors=32
    python benchmarks/ranking.py --search --set filmtrust         # settings, on held-out train

A test rating of the level or more is relevant; candidates are all items of the training part that
the user has not rated in it. NDCG@10 has gain 1, and the best possible list has min(10, relevant)
hits; averages are over users with a relevant item, of Letterboxd over a random 5,000 of them. CPU
seconds are user and system of all threads, of fitting and of ranking, compilation of hemf's
kernels aside; memory is the most that the process ever held. Settings are the first of METHODS,
or those of CHOSEN, which --search found on a tenth held out of the training part, the last one of
the set by time.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import _peer_splits
from _data import FOLDER
from _peer_runs import Environments, Peer, PeerError, Runner
from _peer_splits import Columns, Split, rows
from hemf.errors import DuplicateWarning
from hemf.evaluation import random_split, ranking_metrics
from peers import Results, cache, figure, side_of

LEVELS = {
    "filmtrust": 3.0, "ml-100k": 4.0, "ml-1m-classic": 4.0, "ml-1m-time": 4.0, "eachmovie": 5.0,
    "letterboxd": 8.0,
}  # fmt: skip
"""Smallest relevant rating of each set."""
JUDGED = 5000  # users of the largest set
Settings = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A ranker: its adapter, its environment, and the settings to choose from, best guess first.

    ``liked`` is whether only pairs of the level or more are choices.
    """

    adapter: str
    model: str
    axes: dict[str, tuple[Any, ...]]
    environment: str | None = None
    requirements: tuple[str, ...] = ()


IMPLICIT = {"environment": "implicit", "requirements": ("implicit==0.7.3", "threadpoolctl")}
LENSKIT = {
    "environment": "lenskit",
    "requirements": ("lenskit==2025.8.1", "scipy>=1.17", "threadpoolctl"),
}
METHODS = {
    "popularity": Method("rank_hemf", "popularity", {}),
    "implicit-als": Method(
        "rank_implicit",
        "als",
        {
            "liked": (True, False),
            "factors": (64, 32, 128),
            "alpha": (5.0, 1.0, 20.0),
            "regularization": (10.0, 1.0, 50.0),
        },
        **IMPLICIT,
    ),
    "implicit-bpr": Method(
        "rank_implicit",
        "bpr",
        {
            "liked": (True, False),
            "factors": (64, 32),
            "regularization": (0.01, 0.05),
            "learning_rate": (0.05, 0.02),
            "iterations": (100, 300),
        },
        **IMPLICIT,
    ),
    "ease": Method(
        "rank_hemf", "ease", {"liked": (False, True), "regularization": (500.0, 200.0, 1500.0)}
    ),
    "lenskit-ease": Method(
        "rank_lenskit", "ease", {"liked": (False,), "regularization": (500.0,)}, **LENSKIT
    ),
    "lenskit-slim": Method(
        "rank_lenskit",
        "slim",
        {"liked": (False, True), "l1_reg": (5.0, 1.0, 20.0), "l2_reg": (200.0, 50.0)},
        **LENSKIT,
    ),
    "hemf": Method("rank_hemf", "hemf", {}),
    "hemf-given": Method("rank_hemf", "hemf", {}),
}
CHOSEN: dict[str, dict[str, Settings]] = {
    "filmtrust": {
        "ease": {"liked": True},
        "implicit-als": {"factors": 128, "alpha": 1.0},
        "implicit-bpr": {
            "liked": False,
            "factors": 32,
            "regularization": 0.05,
            "learning_rate": 0.02,
        },
    },
    "ml-100k": {"ease": {"liked": True}, "implicit-als": {"factors": 32, "alpha": 1.0}},
}
"""Settings of each method on each set, where they are not the first ones."""


def load(name: str) -> Split:
    """Read a set and split it; of the test part, only what is relevant to users judged is kept."""
    if name == "ml-1m-time":
        table = pq.read_table(FOLDER / "ml-1m.parquet")
        columns = tuple(table[column].to_numpy() for column in ("user", "item", "rating"))
        order = np.argsort(table["timestamp"].to_numpy(), kind="stable")
        split = last_tenth(name, rows(columns, order))
    elif name == "letterboxd":
        columns = _peer_splits.read("letterboxd-18m")
        kept, held = random_split(columns[0].size, 0.1, rng=0)
        split = Split.of(name, rows(columns, kept), rows(columns, held))
    else:
        split = _peer_splits.load(name)
    return judged_part(split)


def is_there(name: str) -> bool:
    file = {"ml-1m-time": "ml-1m", "letterboxd": "letterboxd-18m"}.get(name)
    if file is None:
        return _peer_splits.is_there(name)
    return (FOLDER / f"{file}.parquet").exists()


def last_tenth(name: str, columns: Columns) -> Split:
    """Split off the last tenth of ratings in order of time."""
    end = columns[0].size * 9 // 10
    return Split.of(name, rows(columns, np.s_[:end]), rows(columns, np.s_[end:]))


def held_out(split: Split) -> Split:
    """Split a tenth off the training part, as the test part was; of a large set, for some users."""
    if split.name == "ml-1m-time":
        return judged_part(last_tenth(split.name, split.train))
    return judged_part(_peer_splits.held_out(split))


def judged_part(split: Split) -> Split:
    """Keep the relevant ratings of the test part, of at most 5,000 users, known items and users."""
    users, items, ratings = split.test
    kept = (ratings >= LEVELS[split.name]) & np.isin(users, split.train[0])
    kept &= np.isin(items, split.train[1])
    known = np.unique(users[kept])
    if known.size > JUDGED and split.name == "letterboxd":
        known = np.random.default_rng(0).choice(known, JUDGED, replace=False)
    test = rows(split.test, np.flatnonzero(kept & np.isin(users, known)))
    return Split(split.name, split.train, test, split.n_users, split.n_items)


class RankRunner(Runner):
    """Runs methods on splits, each in a process of its own, and judges their lists."""

    def judge(self, folder: Path, split: Split) -> Settings:
        """Return the figures of the lists in a folder."""
        lists = np.load(folder / "lists.npy")
        users = np.unique(split.test[0])
        if lists.shape[0] != users.size:
            raise PeerError(f"{lists.shape[0]} lists for {users.size} users")

        def scores(asked: np.ndarray, items: np.ndarray) -> np.ndarray:
            own = lists[np.searchsorted(users, asked)]
            # The last column is that of empty places.
            table = np.zeros((len(asked), split.n_items + 1))
            ranks = np.broadcast_to(np.arange(own.shape[1], 0, -1), own.shape)
            np.put_along_axis(table, np.where(own < 0, split.n_items, own), ranks, axis=1)
            return table[:, items]

        at10, at20 = ranking_metrics(
            scores, split.train, split.test, [10, 20], level=float(split.test[2].min())
        )
        told = json.loads((folder / "result.json").read_text())
        total = told["fit_cpu_seconds"] + told["rank_cpu_seconds"]
        figures = {"ndcg@10": at10.ndcg, "recall@20": at20.recall, "coverage@10": at10.coverage}
        return told | figures | {"users": at10.users, "cpu_seconds": total}


def peer(name: str, set_name: str, given: Settings) -> Peer:
    """Return a method with the settings of its adapter."""
    method, settings = METHODS[name], dict(given)
    if settings.pop("liked", False):
        settings["level"] = LEVELS[set_name]
    settings["model"] = method.model
    return Peer(name, method.adapter, method.environment, method.requirements, settings)


def first_settings(name: str) -> Settings:
    return {axis: values[0] for axis, values in METHODS[name].axes.items()}


def table(name: str, found: list[Settings]) -> Table:
    """Show the rows of one set, best first."""
    users = next((row["users"] for row in found if "users" in row), 0)
    shown = Table(title=f"{name}: {users:,} users, relevant from {LEVELS[name]:g}")
    titles = ("method", "NDCG@10", "recall@20", "catalogue", "fit s", "rank s", "MB", "settings")
    for title in titles:
        shown.add_column(title, justify="left" if title in ("method", "settings") else "right")
    for row in sorted(found, key=lambda row: -row.get("ndcg@10", 0.0)):
        settings = {key: value for key, value in row["settings"].items() if key != "model"}
        about = row.get("failure") or ", ".join(f"{k}={v}" for k, v in settings.items())
        shown.add_row(
            row["peer"],
            *(figure(row.get(key), 4) for key in ("ndcg@10", "recall@20")),
            figure(row.get("coverage@10"), 3),
            *(figure(row.get(key), 1) for key in ("fit_cpu_seconds", "rank_cpu_seconds")),
            figure(row.get("peak_rss_mb"), 0),
            about,
        )
    return shown


def run(runner: Runner, results: Results, one: Peer, split: Split, part: str) -> Settings:
    """Return the row of a method on a split; one that is there already is not run again."""
    row = results.find(split.name, one.name, one.settings, part)
    if row is None:
        row = runner.row(one, split) | {"part": part}
        results.add(row)
    return row


def compare(arguments: argparse.Namespace, runner: Runner, results: Results) -> None:
    console = Console(width=None if sys.stdout.isatty() else 170)
    for name in arguments.set:
        split, found = load(name), []
        for method in arguments.method:
            given = first_settings(method) | CHOSEN.get(name, {}).get(method, {})
            if method == "hemf-given":
                given = arguments.hemf
            print(f"{name}: {method} …", file=sys.stderr, flush=True)
            found.append(run(runner, results, peer(method, name, given), split, "test"))
        console.print(table(name, found))


def search(arguments: argparse.Namespace, runner: Runner, results: Results) -> None:
    """Find settings on held-out train, one after the other."""
    for name in arguments.set:
        split = held_out(load(name))
        for method in arguments.method:

            def gain(given: Settings, method: str = method, split: Split = split) -> float:
                row = run(runner, results, peer(method, split.name, given), split, "train")
                found = row.get("ndcg@10", 0.0)
                said = row.get("failure") or f"{found:.4f} {row['cpu_seconds']:.1f} s"
                print(f"{split.name} | {method} | {json.dumps(given)} | {said}", flush=True)
                return float(found)

            best = first_settings(method)
            most = gain(best)
            for axis, values in METHODS[method].axes.items():
                first, worse = values[0], set()
                for value in values[1:]:
                    if side_of_value(value, first) in worse:
                        continue
                    found = gain({**best, axis: value})
                    if found > most:
                        best, most = {**best, axis: value}, found
                    else:
                        worse.add(side_of_value(value, first))
            print(f"{name} | {method} | best: {json.dumps(best)} {most:.4f}", flush=True)


def side_of_value(value: Any, first: Any) -> Any:
    return value if isinstance(value, bool) else side_of(value, first)


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; a value that is no Python literal is a word."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sets, methods = list(LEVELS), list(METHODS)
    parser.add_argument("--set", nargs="+", choices=sets, default=sets, metavar="SET")
    parser.add_argument("--method", nargs="+", choices=methods, metavar="METHOD")
    parser.add_argument("--hemf", nargs="+", type=parse_setting, metavar="NAME=VALUE")
    parser.add_argument("--search", action="store_true", help="try settings on held-out train")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where rows are kept")
    parser.add_argument("--envs", type=Path, default=cache(), metavar="DIR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds of one fit")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DuplicateWarning)
    arguments.hemf = dict(arguments.hemf or ())
    if arguments.method is None:
        arguments.method = [m for m in methods if m != "hemf-given" or arguments.hemf]
    for name in arguments.set:
        if not is_there(name):
            print(f"{name}: not in the data folder (HEMF_DATA)", file=sys.stderr)
    arguments.set = [name for name in arguments.set if is_there(name)]
    runner = RankRunner(
        Environments(arguments.envs),
        threads=arguments.threads,
        seed=arguments.seed,
        curve=False,
        timeout=arguments.timeout,
        script="ranker.py",
    )
    (search if arguments.search else compare)(arguments, runner, Results(arguments.json))


if __name__ == "__main__":
    main()
