"""``hemf demo``: the whole of it in a minute, on ratings made on the spot."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.output import WRITTEN, Output

if TYPE_CHECKING:
    from hemf import HeMF
    from hemf.data.datasets import SyntheticRatings

HELD_OUT = 0.1
NEWCOMERS = 20  # people who join after the fit
FIRST = 5  # of a newcomer's ratings
RECOMMENDED = 5


def demo(
    output: Output,
    report: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the report."),
        WRITTEN,
        ".html",
    ] = Path("report.html"),
    seed: arguments.Seed = 0,
) -> None:
    """See it all in a minute, on made-up ratings.

    Fits, predicts, recommends, draws and goes on learning, on ratings made on the spot; writes a
    report.
    """
    from hemf import HeMF, Ratings, evaluation
    from hemf.baselines import Bias
    from hemf.cli.evaluate import predicted
    from hemf.cli.predict import ranked_items
    from hemf.cli.progress import FitProgress, compiling, warm_up
    from hemf.data import datasets
    from hemf.report.model import write_report

    begin = time.perf_counter()
    arguments.check_writable(report)
    drawn = datasets.demo_ratings(seed)
    club, joining = _apart(drawn.frame(), seed)
    ratings = Ratings.from_any(club)
    learn, withhold = evaluation.random_split(ratings.n_ratings, HELD_OUT, rng=seed)
    train, test = ratings.select(learn), ratings.select(withhold)
    output.remark(
        f"A film club made on the spot: {ratings.n_users} people, {ratings.n_items} films,\n"
        f"{train.n_ratings:,} ratings to learn from, {test.n_ratings:,} withheld; "
        f"{NEWCOMERS} people join later."
    )
    model = HeMF(rng=seed)
    with compiling() as wait:
        warm_up(output, model)
        with FitProgress(output) as progress:
            model.fit(train, callbacks=[progress])
        actual, mean, std = predicted(model, test)
        user = example_user(model)
        facts: dict[str, Any] = {
            "rmse": evaluation.rmse(actual, mean),
            "bias_rmse": evaluation.rmse(actual, predicted(Bias().fit(train), test)[1]),
            "noise": drawn.noise,
            "coverage90": evaluation.coverage(actual, mean, std, level=0.9),
            "communities": {side: _found(model, drawn, side) for side in ("user", "item")},
            "sweeps": model.n_sweeps_,
            "user": user,
            "recommendations": ranked_items(model, user, RECOMMENDED),
        }
        with output.status("drawing the report"):
            write_report(
                report,
                model,
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


def _apart(table: Any, seed: int) -> tuple[Any, Any]:
    """Return the ratings of those who are there from the start, and of those who join later."""
    import numpy as np
    import pyarrow as pa

    people = np.array(table["user"].to_pylist())
    late = np.random.default_rng(seed).choice(np.unique(people), NEWCOMERS, replace=False)
    is_late = np.isin(people, late)
    return table.filter(pa.array(~is_late)), table.filter(pa.array(is_late))


def _joined(model: HeMF, joining: Any) -> dict[str, Any]:
    """Learn what newcomers say, a rating of each at a time, and tell how well it was foreseen."""
    import numpy as np

    from hemf.evaluation import rmse

    people, films = (np.array(joining[side].to_pylist()) for side in ("user", "item"))
    actual = joining["rating"].to_numpy()
    given: Counter[str] = Counter()
    turn = np.empty(people.size, np.int64)
    for row, person in enumerate(people.tolist()):  # by time
        turn[row] = given[person]
        given[person] += 1
    expected = np.empty(people.size)
    for now in range(int(turn.max()) + 1):
        rows = np.flatnonzero(turn == now)
        expected[rows] = model.predict(people[rows], films[rows])
        model.partial_fit((people[rows], films[rows], actual[rows]))
    early = turn < FIRST
    return {
        "ratings": int(people.size),
        "new_users": len(given),
        "rmse_first": rmse(actual[early], expected[early]),
        "rmse_later": rmse(actual[~early], expected[~early]),
    }


def example_user(model: HeMF) -> Any:
    """Return the user whose list says most: first and fifth place differ most."""
    users = model.ratings_.users.ids
    _, scores = model.recommend(users, RECOMMENDED)
    return users[int((scores[:, 0] - scores[:, -1]).argmax())]


def _found(model: HeMF, drawn: SyntheticRatings, side: str) -> dict[str, Any]:
    """Communities planted and found on one side, and how well they agree."""
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


def _show(output: Output, facts: dict[str, Any]) -> None:
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
