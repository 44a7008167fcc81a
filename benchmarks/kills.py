"""Kill ``hemf fit``, ``update`` and ``predict -o`` at random moments, and look at what is left.

    python benchmarks/kills.py 200 --seed 0

After every kill the model opens and is the old or the new one to the byte, a file of predictions
is the old or the new one, and the same command run again ends well. An update is then applied
exactly once, and no file is left behind. Half of the kills fall into the last part of a command,
when files are written. The exit code is 1 if anything else was found.

Commands run in processes that are forked from this one, where everything is imported and compiled
already: so most kills fall into what a command does rather than into its start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from hemf.cli.__main__ import main as hemf

SETTINGS = [
    "--set", "n_factors=8", "--set", "max_sweeps=4", "--set", "history='none'", "--n-jobs", "1",
]  # fmt: skip
NAMES = {"r.csv", "n.csv", "p.csv", "m.hemf", "out.csv"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=60, help="kills in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    found: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        trial = Trial(folder, rng)
        for number in range(options.count):
            command = ("fit", "update", "predict")[number % 3]
            trial.kill(command, found, wrong)
    figures = {"kills": options.count, "seed": options.seed, **found, "wrong": wrong}
    print(json.dumps(figures, indent=1) if options.json else describe(found, wrong))
    sys.exit(bool(wrong))


def describe(found: Counter[str], wrong: list[str]) -> str:
    lines = [f"{what}: {count}" for what, count in sorted(found.items())]
    return "\n".join([*lines, f"wrong: {len(wrong)}", *wrong])


class Trial:
    """A folder of files, and what each command makes of them when nobody interferes."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.messages = folder.with_name(f"{folder.name}.txt")
        ratings = [
            f"u{rng.randrange(1000)},i{rng.randrange(400)},{rng.randint(1, 5)}"
            for _ in range(10_000)
        ]
        for name, head, rows in (
            ("r.csv", "user,item,rating", ratings),
            ("n.csv", "user,item,rating", [f"n{k},i{k % 400},{k % 5 + 1}" for k in range(2000)]),
            ("p.csv", "user,item", [f"u{k % 1000},i{k % 400}" for k in range(30_000)]),
        ):
            (folder / name).write_text("\n".join([head, *rows]) + "\n")
        self.commands = {
            "fit": ["fit", "r.csv", "-o", "m.hemf", *SETTINGS, "--seed", "1"],
            "update": ["update", "m.hemf", "n.csv"],
            "predict": ["predict", "m.hemf", "p.csv", "-o", "out.csv"],
        }
        self.targets = {"fit": "m.hemf", "update": "m.hemf", "predict": "out.csv"}
        # In this process too, so that everything is compiled in those forked from it.
        here = Path.cwd()
        with (
            open(self.messages, "w") as printed,
            redirect_stdout(printed),
            redirect_stderr(printed),
        ):
            for arguments in self.commands.values():
                call(folder, *arguments, "-q")
        os.chdir(here)
        # What is there before each command: another model, or predictions of another one.
        self.run("fit", "r.csv", "-o", "m.hemf", *SETTINGS, "--seed", "2")
        self.run("predict", "m.hemf", "p.csv", "-o", "out.csv")
        self.old = {name: self.content(name) for name in ("m.hemf", "out.csv")}
        self.new, self.seconds = {}, {}
        for command, arguments in self.commands.items():
            self.restore()
            if command == "predict":  # the old predictions are of another model than the one here
                self.run(*self.commands["fit"])
                self.model_of_predictions = self.content("m.hemf")
            begun = time.monotonic()
            self.run(*arguments)
            self.seconds[command] = time.monotonic() - begun
            self.new[command] = self.content(self.targets[command])

    def content(self, name: str) -> bytes:
        """Bytes of a file."""
        return (self.folder / name).read_bytes()

    def restore(self) -> None:
        """Put back what was there before a command."""
        for name in ("m.hemf", "out.csv"):
            (self.folder / name).write_bytes(self.old[name])

    def run(self, *arguments: str) -> None:
        """Run a command to its end in a process of its own; it must succeed."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.start(*arguments), 0)[1])
        if code:
            raise RuntimeError(f"{arguments}: code {code}: {self.printed()}")

    def start(self, *arguments: str) -> int:
        """Start a command, and return the number of its process."""
        number = os.fork()
        if number:
            return number
        with open(self.messages, "wb") as printed:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
        call(self.folder, *arguments)
        os._exit(0)

    def printed(self) -> str:
        """Return what the last command printed."""
        return self.messages.read_text(errors="replace").strip()

    def left(self) -> list[str]:
        """Files that do not belong into the folder."""
        return sorted({entry.name for entry in self.folder.iterdir()} - NAMES)

    def kill(self, command: str, found: Counter[str], wrong: list[str]) -> None:
        """Kill a command once, and note what was found and what was wrong."""
        self.restore()
        if command == "predict":
            (self.folder / "m.hemf").write_bytes(self.model_of_predictions)
        late = self.rng.random() < 0.5
        moment = self.seconds[command] * self.rng.uniform(0.0, 1.1)
        number = self.start(*self.commands[command])
        if late:  # once the temporary file is there, any moment until it is renamed
            deadline = time.monotonic() + 60.0
            while not list(self.folder.glob(".hemf-*.tmp")) and time.monotonic() < deadline:
                if os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    break
            moment = self.rng.uniform(0.0, 0.02)
        time.sleep(moment)
        os.kill(number, signal.SIGKILL)  # of no effect once it has ended
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        found[f"{command}: {'killed' if code == -signal.SIGKILL else 'ended before'}"] += 1
        found[f"{command}: left a file"] += bool(self.left())
        target, content = self.targets[command], self.content(self.targets[command])
        if content == self.new[command]:
            found[f"{command}: new"] += 1
        elif content == self.old[target]:
            found[f"{command}: old"] += 1
        else:
            wrong.append(f"{command} after {moment:.2f} s: {target} is neither old nor new")
        try:
            self.run(*self.commands[command])
        except RuntimeError as error:
            wrong.append(f"again: {error}")
        if self.content(target) != self.new[command]:
            wrong.append(f"{command} again: {target} is not what an undisturbed run gives")
        if self.left():
            wrong.append(f"{command}: {', '.join(self.left())} left behind")
            for name in self.left():
                (self.folder / name).unlink()


def call(folder: Path, *arguments: str) -> None:
    """Run a command in this process; end it unless the command succeeds."""
    os.chdir(folder)
    sys.argv = ["hemf", *arguments]
    try:
        hemf()
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        if ended.code:
            os._exit(int(ended.code))


if __name__ == "__main__":
    main()
