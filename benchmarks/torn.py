"""Exceptions at random moments of learning: after each, a model is the old one or the new one.

python benchmarks/torn.py --count 100 --seed 0

Each kind of exception strikes so many calls, of models of all kinds. After each, the model must be
equal to the bit to what it was or to what an undisturbed model became, be saved and loaded, and go
on learning as an undisturbed model does.
"""

from __future__ import annotations

import argparse
import copy
import json
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hemf import HeMF
from proofs import tearing
from proofs.sameness import difference
from proofs.tearing import Operation, Trial

Strike = Callable[[Callable[[], Any], int, float, np.random.Generator], None]


def at_line(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    tearing.strike_at_line(run, int(rng.integers(1, n + 1)))


def between(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    tearing.strike_between(run, int(rng.integers(1, n + 1)))


def twice(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    """Also while the first is being undone."""
    first = int(rng.integers(1, n + 1))
    tearing.strike_between(run, first, first + int(rng.integers(1, 60)))


def by_alarm(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    tearing.strike_by_alarm(run, seconds * rng.random())


def from_thread(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    tearing.strike_from_thread(run, seconds * rng.random())


def from_thread_twice(
    run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator
) -> None:
    tearing.strike_from_thread(run, seconds * rng.random(), 3e-4 * rng.random())


def memory(run: Callable[[], Any], n: int, seconds: float, rng: np.random.Generator) -> None:
    tearing.without_memory(run, int(rng.integers(1, max(2, n // 6))))


KINDS: dict[str, Strike] = {
    function.__name__: function
    for function in (at_line, between, twice, by_alarm, from_thread, from_thread_twice, memory)
}
FROM_OUTSIDE = ("between", "twice", "by_alarm", "from_thread", "from_thread_twice")
"""Kinds that strike where the interpreter lets them, which is not at any line."""


def try_one(model: HeMF, trial: Trial, strike: Strike, rng: np.random.Generator, kind: str) -> str:
    """Let an exception strike while a model learns; return "old", "new" or what is wrong."""
    operation: Operation = trial.operation()
    following = trial.operation()
    if hasattr(model, "history_"):
        model.forgetting = 1.0  # a parameter, which operations set before they learn
    before, after, counted = (copy.deepcopy(model) for _ in range(3))
    n = tearing.lines(lambda: operation(counted))
    begun = time.perf_counter()
    operation(after)
    seconds = time.perf_counter() - begun
    handler = signal.getsignal(signal.SIGINT)
    strike(lambda: operation(model), n, seconds, rng)
    wrong = []
    if kind in FROM_OUTSIDE and not tearing.is_free(model):
        wrong.append("the lock is taken")
    if not tearing.answers_ctrl_c() or signal.getsignal(signal.SIGINT) is not handler:
        signal.signal(signal.SIGINT, handler)
        if kind in FROM_OUTSIDE:
            wrong.append("Ctrl-C is not answered")
    hasattr(model, "state_")  # whoever asks undoes what was cut short
    before.forgetting = after.forgetting = model.forgetting
    from_old, from_new = difference(model, before), difference(model, after)
    if from_old and from_new:
        return f"torn: {from_old}; {from_new}"
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        HeMF.load(Path(folder) / "model")
    if not from_old:
        operation(model)
    following(model)
    following(after)
    if different := difference(model, after):
        wrong.append(f"goes on otherwise: {different}")
    return "; ".join(wrong) or ("old" if not from_old else "new")


def run(kind: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Let one kind of exception strike so many calls; return how often what came of it."""
    rng = np.random.default_rng([seed, *kind.encode()])
    cases, results, wrong = tearing.cases(), Counter[str](), []
    for k in range(count):
        name, history = cases[int(rng.integers(len(cases)))]
        trial = Trial(name, history, seed=seed + 2 * k + int(rng.integers(2)))
        model = trial.model()
        for _ in range(int(rng.integers(3))):
            trial.operation()(model)
        result = try_one(model, trial, KINDS[kind], rng, kind)
        results[result if result in ("old", "new") else "wrong"] += 1
        if result not in ("old", "new"):
            wrong.append(f"{name}, {history}, {k}: {result}")
    return results, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="calls for each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--often", action="store_true", help="let rare steps be frequent")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.often:
        tearing.make_rare_steps_frequent(setattr)
    failed = False
    for kind in options.kinds:
        results, wrong = run(kind, options.count, options.seed)
        print(json.dumps({"kind": kind, **results}), *wrong, sep="\n", flush=True)
        failed = failed or bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
