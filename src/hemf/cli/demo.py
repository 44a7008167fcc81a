"""``hemf demo``: a tour on synthetic ratings."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hemf.cli import arguments
from hemf.cli.arguments import WRITTEN
from hemf.cli.models import WARM_UP, Seed, ranked_items, warm_up
from hemf.cli.output import Document, FitProgress, Output
from hemf.errors import UnknownIdWarning

if TYPE_CHECKING:
    from hemf._typing import ArrowTable
    from hemf.data.datasets import SyntheticRatings
    from hemf.estimator import HeMF

HELD_OUT = 0.1
NEWCOMERS = 20  # users who join after the fit
FIRST = 5  # ratings of a newcomer
RECOMMENDED = 5


def demo(
    output: Output,
    report: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Report to write."),
        WRITTEN,
        ".html",
    ] = Path("report.html"),
    seed: Seed = 0,
) -> None:
    """Take a tour in a minute, on synthetic ratings.

    Fits, predicts, recommends, writes a report, and learns online.
    """
    from hemf import evaluation
    from hemf.baselines import Bias
    from hemf.data import datasets
    from hemf.data.ratings import Ratings
    from hemf.estimator import HeMF

    begin = time.perf_counter()
    arguments.check_writable(report)
    drawn = datasets.demo_ratings(seed)
    club, joining = _split_newcomers(drawn.frame(), seed)
    ratings = Ratings.from_any(club)
    learn, withhold = evaluation.random_split(ratings.n_ratings, HELD_OUT, rng=seed)
    train, test = ratings.select(learn), ratings.select(withhold)
    output.remark(
        f"A synthetic film club: {ratings.n_users} people, {ratings.n_items} films,\n"
        f"{train.n_ratings:,} ratings to learn from, {test.n_ratings:,} withheld; "
        f"{NEWCOMERS} people join later."
    )
    model = HeMF(rng=seed)
    with compiling() as wait:
        with output.status(WARM_UP):
            warm_up(model)
        with FitProgress(output) as progress:
            model.fit(train, callbacks=[progress])
        *pairs, actual = test.id_columns()
        mean, std = model.predict(*pairs, return_std=True)
        user = example_user(model)
        facts: Document = {
            "rmse": evaluation.rmse(actual, mean),
            "bias_rmse": evaluation.rmse(actual, Bias().fit(train).predict(*pairs)),
            "noise": drawn.noise,
            "coverage90": evaluation.coverage(actual, mean, std, level=0.9),
            "communities": {side: _found(model, drawn, side) for side in ("user", "item")},
            "sweeps": model.n_sweeps_,
            "user": user,
            "recommendations": ranked_items(model, user, RECOMMENDED),
        }
        with output.status("drawing the report"):
            model.report(
                report,
                title="A film club",
                held_out=test,
                example_user=user,
                facts={"RMSE of user + item biases": f"{facts['bias_rmse']:.4f}"},
            )
        with output.status("compiling what learns online (the first run only)"):
            wait()
    with output.status("learning as people join"):
        facts["stream"] = _joined(model, joining)
    facts["report"] = str(report)
    facts["seconds"] = round(time.perf_counter() - begin, 2)
    output.result(facts, lambda: _show(output, facts))


def _split_newcomers(table: ArrowTable, seed: int) -> tuple[ArrowTable, ArrowTable]:
    """Return the ratings of the users to fit to, and of those who join later."""
    import numpy as np
    import pyarrow as pa

    people = np.array(table["user"].to_pylist())
    late = np.random.default_rng(seed).choice(np.unique(people), NEWCOMERS, replace=False)
    is_late = np.isin(people, late)
    return table.filter(pa.array(~is_late)), table.filter(pa.array(is_late))


def _joined(model: HeMF, joining: ArrowTable) -> Document:
    """Predict and learn the ratings of newcomers, one of each at a time; return the errors."""
    import numpy as np

    from hemf.evaluation import rmse

    people, films = (np.array(joining[side].to_pylist()) for side in ("user", "item"))
    actual = joining["rating"].to_numpy()
    given: Counter[str] = Counter()
    rank = np.empty(people.size, np.int64)
    for row, person in enumerate(people.tolist()):  # by time
        rank[row] = given[person]
        given[person] += 1
    expected = np.empty(people.size)
    for now in range(int(rank.max()) + 1):
        rows = np.flatnonzero(rank == now)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownIdWarning)  # newcomers are unknown at first
            expected[rows] = model.predict(people[rows], films[rows])
        model.partial_fit((people[rows], films[rows], actual[rows]))
    early = rank < FIRST
    return {
        "ratings": int(people.size),
        "new_users": len(given),
        "rmse_first": rmse(actual[early], expected[early]),
        "rmse_later": rmse(actual[~early], expected[~early]),
    }


def example_user(model: HeMF) -> object:
    """Return the user whose first and fifth recommendations differ most."""
    users = model.ratings_.users.ids
    _, scores = model.recommend(users, RECOMMENDED)
    return users[int((scores[:, 0] - scores[:, -1]).argmax())]


def _found(model: HeMF, drawn: SyntheticRatings, side: str) -> Document:
    """Return the numbers of planted and found communities of one side, and their agreement."""
    from hemf.evaluation import adjusted_rand_index

    planted = getattr(drawn, f"{side}_community")
    labels = model.communities(side).labels
    ids = getattr(drawn, f"{side}_ids").tolist()
    known = [row for row, id in enumerate(ids) if id in labels]
    found = [labels[ids[row]] for row in known]
    return {
        "planted": len(set(planted.tolist())),
        "found": getattr(model, f"n_{side}_communities_"),
        "adjusted_rand_index": adjusted_rand_index(planted[known], found),
    }


def _show(output: Output, facts: Document) -> None:
    output.line("Withheld ratings", style="bold")
    output.line(
        f"  RMSE {facts['rmse']:.4f}; biases of users and films alone {facts['bias_rmse']:.4f}"
    )
    output.line(f"  90 % intervals hold {100 * facts['coverage90']:.1f} % of them")
    output.line("Communities", style="bold")
    for side, found in facts["communities"].items():
        output.line(
            f"  {side}s: {found['found']} found, {found['planted']} planted, "
            f"agreement {found['adjusted_rand_index']:.2f} (adjusted Rand index; 1 is perfect)"
        )
    output.line(f"Best films for {facts['user']}", style="bold")
    for row in facts["recommendations"]:
        output.line(f"  {row['item']}  {row['mean']:.1f} ± {row['std']:.1f}")
    joined = facts["stream"]
    output.line(
        f"{joined['new_users']} people join; each rating is predicted, then learnt", style="bold"
    )
    output.line(
        f"  RMSE of their first {FIRST} ratings {joined['rmse_first']:.4f}, of later ones "
        f"{joined['rmse_later']:.4f}"
    )
    output.line(f"Report: {facts['report']}  ({facts['seconds']:.0f} s in all)", style="bold")


COMPILE = "from hemf.kernels.online import compile_batch; compile_batch()"
COMPILE_TIMEOUT = 180.0  # seconds


@contextmanager
def compiling() -> Iterator[Callable[[], object]]:
    """Compile the kernels of online learning in another process; yield a function that waits.

    If that fails, they are compiled where they are needed.
    """
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-P", "-c", COMPILE],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        yield lambda: None
        return

    def wait() -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(COMPILE_TIMEOUT)

    try:
        yield wait
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
