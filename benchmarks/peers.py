"""hemf beside its peers: the same splits, two threads, each peer in an environment of its own.

    python benchmarks/peers.py                                  # everything; hours
    python benchmarks/peers.py --sets ml-100k kiba --peers hemf myfm smurff --json peers.json
    python benchmarks/peers.py --quick                          # small sets, few iterations
    python benchmarks/peers.py --search --sets kiba             # settings, on held-out train

Environments are made once, by pip, and kept. CPU seconds are user and system of all threads of the
process, compilation of hemf's kernels aside; a peer's memory is the most its process ever held.
Errors are of predictions clipped to the range of the training ratings. With --json, rows are in the
file as soon as they are there, and those that are there already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import _peer_settings
from _peer_runs import Environments, Runner, seconds_to
from _peer_splits import FILES, Split, held_out, is_there, load

QUICK_SETS = ("filmtrust", "ml-100k")
OURS = ("hemf", "hemf-implicit", "hemf-gibbs")
Row = dict[str, Any]


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hemf" / "peers"


def target_of(rows: list[Row]) -> float | None:
    """Return the error that half of the peers of a set reach: what their times are compared by."""
    errors = [row["rmse"] for row in rows if "rmse" in row]
    return statistics.median_high(errors) if errors else None


def summary(rows: list[Row], target: float | None = None) -> list[Row]:
    """Return rows of one set from best to worst, with times to the target and to the row's error.

    ``seconds_to_target``: CPU seconds of fitting until the peer had the target. ``hemf_seconds``:
    the fewest in which a form of hemf had the peer's own final error.
    """
    target = target_of(rows) if target is None else target
    ours = [row for row in rows if row["peer"] in OURS]
    found = []
    for row in sorted(rows, key=lambda row: row.get("rmse", float("inf"))):
        more: Row = {"target": target}
        if "rmse" in row:
            more["seconds_to_target"] = seconds_to(row, target)
            times = [seconds_to(own, row["rmse"]) for own in ours]
            more["hemf_seconds"] = min((t for t in times if t is not None), default=None)
        found.append(row | more)
    return found


def lines(rows: list[Row], target: float | None = None) -> list[list[str]]:
    """Return the table of one set as text: its titles, and a line for each peer."""
    ordered = summary(rows, target)
    goal = ordered[0]["target"]
    titles = ["peer", "RMSE", "MAE", "NLPD", "90 %", "fit s", "predict s", "MB"]
    titles += ["s to RMSE" if goal is None else f"s to {figure(goal, 4)}", "hemf s to same"]
    found = [titles]
    for row in ordered:
        if "failure" in row:
            found.append([row["peer"], *[""] * (len(titles) - 1), row["failure"]])
            continue
        found.append(
            [
                row["peer"],
                figure(row["rmse"], 4),
                figure(row["mae"], 4),
                figure(row["nlpd"], 4),
                figure(row["coverage90"], 3),
                figure(row["fit_cpu_seconds"], 1),
                figure(row["predict_cpu_seconds"], 1),
                figure(row["peak_rss_mb"], 0),
                figure(row["seconds_to_target"], 1),
                figure(row["hemf_seconds"], 1),
            ]
        )
    if any("failure" in row for row in ordered):
        titles.append("why not")
    return found


def table(name: str, rows: list[Row], target: float | None = None) -> Table:
    """Show the rows of one set."""
    shown = Table(title=name, title_justify="left")
    titles, *rest = lines(rows, target)
    for title in titles:
        shown.add_column(title, justify="left" if title in ("peer", "why not") else "right")
    for line in rest:
        shown.add_row(*line)
    return shown


def markdown(name: str, rows: list[Row], target: float | None = None) -> str:
    """Return the same in Markdown."""
    titles, *rest = lines(rows, target)
    rule = ["---" if title in ("peer", "why not") else "---:" for title in titles]
    padded = [line + [""] * (len(titles) - len(line)) for line in rest]
    shown = ("| " + " | ".join(line) + " |" for line in (titles, rule, *padded))
    return "\n".join([f"## {name}", "", *shown, ""])


def figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


class Results:
    """Rows, in a file of JSON where one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        there = path is not None and path.exists()
        self.rows: list[Row] = json.loads(path.read_text())["rows"] if path and there else []

    def find(self, name: str, peer: str, settings: Row, part: str) -> Row | None:
        """Return the row of this fit if there is one that came to an end."""
        wanted = {"set": name, "peer": peer, "settings": settings, "part": part}
        for row in self.rows:
            if "failure" not in row and all(row.get(k) == v for k, v in wanted.items()):
                return row
        return None

    def add(self, row: Row) -> None:
        """Keep a row; it replaces a failure of the same fit."""
        keys = ("set", "peer", "settings", "part")
        self.rows = [old for old in self.rows if any(old.get(k) != row.get(k) for k in keys)]
        self.rows.append(row)
        if self.path is not None:
            beside = self.path.with_suffix(".part")
            beside.write_text(json.dumps({"rows": self.rows}, indent=1))
            beside.replace(self.path)


def compare(arguments: argparse.Namespace, runner: Runner, results: Results) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    for name in arguments.sets:
        if not is_there(name):
            console.print(f"{name}: not in the data folder (HEMF_DATA)")
            continue
        split, rows = load(name), []
        for peer_name in arguments.peers:
            peer = _peer_settings.peer(peer_name, name, quick=arguments.quick)
            row = results.find(name, peer.name, peer.settings, "test")
            if row is None or (runner.curve and not row["curve"]):
                print(f"{name}: {peer_name} …", file=sys.stderr, flush=True)
                row = runner.row(peer, split) | {"part": "test"}
                results.add(row)
            rows.append(row)
        if arguments.markdown:
            print(markdown(name, rows, arguments.target), flush=True)
        else:
            console.print(table(name, rows, arguments.target))


def search(arguments: argparse.Namespace, runner: Runner, results: Results) -> None:
    """Find settings on a tenth held out of the training part, one after the other."""
    for name in arguments.sets:
        split = held_out(load(name))
        for peer_name in arguments.peers:
            axes = _peer_settings.AXES.get(peer_name, {})
            best = dict(_peer_settings.IN_SEARCH.get(peer_name, {}))
            best |= {axis: values[0] for axis, values in axes.items()}
            least = candidate(runner, results, split, peer_name, best)
            for axis, values in axes.items():
                given_up: set[Any] = set()  # sides of the first value: larger and smaller ones
                for value in values[1:]:
                    if (side := side_of(value, values[0])) in given_up:
                        continue
                    other = {**best, axis: value}
                    error = candidate(runner, results, split, peer_name, other)
                    if error < least:
                        best, least = other, error
                    else:
                        given_up.add(side)
            print(f"{name} | {peer_name} | best: {json.dumps(best)} {least:.4f}", flush=True)


def side_of(value: Any, first: Any) -> Any:
    """Return which side of the first value another is on; a word is a side of its own."""
    return value if isinstance(value, str) else value > first


def candidate(runner: Runner, results: Results, split: Split, name: str, given: Row) -> float:
    """Return the error on held-out train with the given settings, and print it."""
    peer = _peer_settings.peer(name, split.name, given=given)
    row = results.find(split.name, name, peer.settings, "train")
    if row is None:
        row = runner.row(peer, split) | {"part": "train"}
        results.add(row)
    outcome = row.get("failure") or f"{row['rmse']:.4f} {row['cpu_seconds']:.1f} s"
    print(f"{split.name} | {name} | {json.dumps(given)} | {outcome}", flush=True)
    return row.get("rmse", float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names, peers = list(FILES), list(_peer_settings.ADAPTERS)
    parser.add_argument("--sets", nargs="+", choices=names, metavar="SET", help=", ".join(names))
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers, metavar="PEER")
    parser.add_argument("--quick", action="store_true", help="small sets and few iterations")
    parser.add_argument("--search", action="store_true", help="try settings on held-out train")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where rows are kept")
    parser.add_argument("--envs", type=Path, default=cache(), metavar="DIR")
    parser.add_argument("--target", type=float, help="RMSE to give times to; default: the median")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--no-curve", action="store_true", help="no errors by time; half the work")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds of one fit")
    parser.add_argument("--install-timeout", type=float, default=3600.0, help="seconds")
    arguments = parser.parse_args()
    arguments.sets = arguments.sets or list(QUICK_SETS if arguments.quick else FILES)
    runner = Runner(
        Environments(arguments.envs, arguments.install_timeout),
        threads=arguments.threads,
        seed=arguments.seed,
        curve=not (arguments.search or arguments.no_curve),
        timeout=arguments.timeout,
    )
    (search if arguments.search else compare)(arguments, runner, Results(arguments.json))


if __name__ == "__main__":
    main()
