"""Online learning against its bars, with the peer, river's BiasedMF, beside it in the same run.

One thread, 20 factors. Prints every figure with its bar, and fails where one is missed.

    python benchmarks/online.py                       # all sections; an hour or more
    python benchmarks/online.py time nothing          # some
    python benchmarks/online.py random --plot p.png   # draws the figure
    python benchmarks/online.py --river V/bin/python  # an interpreter that has river

time       MovieLens 1M by time, one rating at a time through `hemf stream`, after a tenth in batch
moods      the same with and without raters' moods
random     the classic training part in random order: test errors at every tenth, SGD beside
nothing    MovieLens 100K by time, without a start
batches    MovieLens 1M in batches of 1,000
growth     cost of a rating, and memory, from a million ratings to ten
newcomers  1,000 users with 5 ratings each join a model of MovieLens 1M
planted    a fourth community appears half-way, or none does
drift      half of the users change their taste half-way
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import _streams
from _data import FOLDER
from _streams import AbsentError, Stream
from hemf import HeMF
from hemf.baselines import SGD
from hemf.data.datasets import drifting
from hemf.evaluation import Prequential, rmse, warm_start_size

FACTORS = 20
START = 0.1  # of a stream, fitted in batch
SEEDS = range(10)  # of planted streams


@dataclass(frozen=True)
class Figure:
    """What was measured, what it must be (nothing where ``sign`` is empty), and what peers do."""

    label: str
    value: float
    sign: str = ""
    bar: float = 0.0
    beside: str = ""

    @property
    def met(self) -> bool:
        """Whether it is what it must be."""
        return {"": True, "<=": self.value <= self.bar, ">=": self.value >= self.bar}[self.sign]

    def __str__(self) -> str:
        number = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.4g}"
        verdict = f"bar {self.sign} {self.bar:g}  {'met' if self.met else 'MISSED'}"
        return f"{self.label:55} {number:>9}   {verdict if self.sign else '':24} {self.beside}"


@dataclass(frozen=True)
class Setting:
    """Arguments of the sections."""

    river: str | None
    seed: int
    plot: Path | None
    longest: int

    def hemf(self, **parameters: Any) -> HeMF:
        """Return a model that has learnt nothing yet."""
        return HeMF(**{"n_factors": FACTORS, "n_jobs": 1, "rng": self.seed, **parameters})


Section = Callable[[Setting], Iterator[Figure]]


# -- MovieLens against river --------------------------------------------------------------------


@cache
def river_by_time(wanted: str | None) -> dict[str, Any]:
    """River on MovieLens 1M by time, which two sections need."""
    python = _streams.river_interpreter(wanted)
    stream, _ = _streams.movielens_or_drawn()
    start = warm_start_size(len(stream.ratings), START)
    return _streams.peer(python, stream, _streams.RIVER["time"], start=start)


def hemf_by_time(setting: Setting, *more: str) -> dict[str, Any]:
    """Stream MovieLens 1M by time as people do, and return what was measured."""
    path = FOLDER / "ml-1m.parquet"
    _streams.read("ml-1m")  # says what is wrong if it is not there
    command = [sys.executable, "-m", "hemf.cli", "stream", "--json", "--ratings", str(path)]
    command += ["--history", "full", "--warm-start", str(START), "--n-jobs", "1"]
    command += ["--seed", str(setting.seed), "--set", f"n_factors={FACTORS}", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["models"][0]


def moods(setting: Setting) -> Iterator[Figure]:
    plain, moody = hemf_by_time(setting), hemf_by_time(setting, "--set", "moods=true")
    facts = f"{moody['rmse']:.4f}, without {plain['rmse']:.4f}"
    yield Figure("RMSE by time, less with moods", plain["rmse"] - moody["rmse"], ">=", 0.003, facts)
    costs = [1e6 * run["cpu_seconds"] / run["ratings"] for run in (moody, plain)]
    facts = f"{costs[0]:.1f} µs, without {costs[1]:.1f} µs"
    yield Figure("cost of a rating with moods, times", costs[0] / costs[1], "<=", 1.3, facts)


def by_time(setting: Setting) -> Iterator[Figure]:
    river = river_by_time(setting.river)
    ours = hemf_by_time(setting)
    rate = ours["ratings"] / ours["cpu_seconds"]
    their_rate, (p50, p99) = river["ratings_per_second"], river["learn_us"]
    yield Figure("RMSE by time, full history", ours["rmse"], "<=", 0.8665, beside(river["rmse"]))
    last = [point["rmse"] ** 2 for point in ours["curve"][-len(ours["curve"]) // 10 :]]
    yield Figure("of the last tenth", float(np.sqrt(np.mean(last))))
    yield Figure("ratings/s over river's", rate / their_rate, ">=", 1.0, rates(rate, their_rate))
    yield Figure(
        "p99 of predict + learn over river's of learning",
        ours["p99_us"] / p99,
        "<=",
        10.0,
        f"{ours['p99_us']:.0f} µs, river {p99:.0f}; p50 {ours['p50_us']:.0f} µs, river {p50:.0f}",
    )
    yield Figure("user communities in the end", ours["user_communities"])
    yield Figure("item communities in the end", ours["item_communities"])


def in_random_order(setting: Setting) -> Iterator[Figure]:
    stream = _streams.in_random_order("ml-1m-classic-train", seed=0)
    test = Stream(*_streams.read("ml-1m-classic-test"))
    start = warm_start_size(len(stream.ratings), START)
    python = _streams.river_interpreter(setting.river)
    constants = _streams.SGD_CONSTANTS["random"]
    learners = {
        "full history": setting.hemf(history="full"),
        "history of 64": setting.hemf(history=64),
        "no history": setting.hemf(history="none"),
        "SGD": SGD(n_factors=FACTORS, rating_range=(1, 5), rng=setting.seed, **constants),
    }
    errors, curves = {}, []
    for name, learner in learners.items():
        learner.fit(stream.part(0, start))
        at_start = rmse(test.ratings, learner.predict(test.users, test.items))
        run = Prequential(learner, *stream, start=start, test=tuple(test)).run()
        tenths = [point.test_rmse for point in run.curve if point.test_rmse is not None]
        errors[name] = np.array([at_start, *tenths])
        curves.append((name, run.curve))
        print(f"  {name:36}{np.round(errors[name], 4)}", flush=True)
    river = _streams.peer(python, stream, _streams.RIVER["random"], start=start, test=test)
    print(f"  {'river':36}{np.round(river['test_rmse'], 4)}", flush=True)
    if setting.plot is not None:
        draw(setting.plot, curves, errors, start)
    peers = f"SGD {errors['SGD'][-1]:.4f}, {beside(river['test_rmse'][-1])}"
    bars = {"full history": 0.8365, "history of 64": 0.845, "no history": 0.885}
    for name, bar in bars.items():
        yield Figure(f"test RMSE after one pass, {name}", errors[name][-1], "<=", bar, peers)
    for name in bars:
        ahead = float((errors["SGD"] - errors[name]).min())
        yield Figure(f"SGD behind {name}, least of all tenths", ahead, ">=", 1e-9)


def draw(path: Path, curves: list[Any], errors: dict[str, np.ndarray], start: int) -> None:
    from hemf.report.model import write_stream_plot

    write_stream_plot(
        path,
        curves,
        start=start,
        title="One pass over MovieLens 1M",
        subtitle="classic training part in random order, a tenth of it fitted in batch before",
        headers=["model", "test RMSE at the start", "in the end"],
        rows=[[name, f"{at[0]:.4f}", f"{at[-1]:.4f}"] for name, at in errors.items()],
    )
    print(f"  drawn: {path}")


def from_nothing(setting: Setting) -> Iterator[Figure]:
    stream = _streams.in_time_order("ml-100k")
    python = _streams.river_interpreter(setting.river)
    river = _streams.peer(python, stream, _streams.RIVER["nothing"])
    run = Prequential(setting.hemf(history="full", rating_range=(1, 5)), *stream).run()
    yield Figure("RMSE from nothing, 100K by time", run.rmse, "<=", 0.9301, beside(river["rmse"]))
    rate = run.ratings / run.cpu_seconds
    their_rate = river["ratings_per_second"]
    yield Figure("ratings/s over river's", rate / their_rate, beside=rates(rate, their_rate))


def in_batches(setting: Setting) -> Iterator[Figure]:
    stream, name = _streams.movielens_or_drawn()
    print(f"  {name}")
    river = river_by_time(setting.river)
    start = warm_start_size(len(stream.ratings), START)
    for history, bar in (("none", 5.0), ("full", 2.0)):
        learner = setting.hemf(history=history).fit(stream.part(0, start))
        learner.partial_fit(stream.part(start, start + 1000))  # what is made once, once
        run = Prequential(learner, *stream, start=start + 1000, batch_size=1000).run()
        rate, their_rate = run.ratings / run.cpu_seconds, river["ratings_per_second"]
        label = f"predict + learn of 1,000 at once over river's, {history}"
        yield Figure(label, rate / their_rate, ">=", bar, rates(rate, their_rate))
        yield Figure(f"their RMSE, {history}", run.rmse, beside=beside(river["rmse"]))


def beside(error: float) -> str:
    return f"river {error:.4f}"


def rates(ours: float, theirs: float) -> str:
    return f"{ours:,.0f}/s, river {theirs:,.0f}/s"


# -- growth -------------------------------------------------------------------------------------


def growth(setting: Setting) -> Iterator[Figure]:
    """Learn long streams one by one, and compare the end with a tenth of the way."""
    label = f"cost at {setting.longest / 1e6:g}M over {setting.longest / 1e7:g}M ratings"
    for history, kind in (("none", "growing"), ("full", "growing"), ("none", "fixed")):
        then, now, on_average = alone(learn_long, setting, history, kind)
        times = f"{now.microseconds:.1f} µs, {then.microseconds:.1f} µs; {now.rows}"
        ratio = now.microseconds / then.microseconds
        yield Figure(f"{label}, {history}, rows {kind}", ratio, "<=", 1.3, times)
        label_of_all = f"mean cost of all ratings from then on, {history}, rows {kind}"
        yield Figure(label_of_all, on_average / then.microseconds, "<=", 1.3)
        sizes = f"{now.megabytes:,.0f} MB, {then.megabytes:,.0f} MB"
        is_bar = ("<=", 1.02) if kind == "fixed" else ()
        more = now.megabytes / then.megabytes
        yield Figure(f"peak memory, {history}, rows {kind}", more, *is_bar, beside=sizes)


@dataclass(frozen=True)
class Cost:
    """What a rating costs somewhere in a stream."""

    microseconds: float
    megabytes: float  # at most, so far
    rows: str


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, that begins with nothing."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def learn_long(setting: Setting, history: str, kind: str) -> tuple[Cost, Cost, float]:
    """Learn a stream in a hundred blocks; return costs a tenth of the way, and in the end.

    Also the mean cost in between, which work that is done now and then shows in.
    """
    warnings.simplefilter("ignore")
    block = setting.longest // 100
    blocks = getattr(_streams, kind)(setting.longest, block=block)
    model = setting.hemf(history=history, rating_range=_streams.STARS).fit(next(blocks))
    costs = []
    for piece in blocks:
        begin = time.process_time()
        model.predict_then_learn(piece)
        spent = (time.process_time() - begin) / len(piece.ratings)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        costs.append(Cost(spent * 1e6, peak, f"{model.n_users_:,} x {model.n_items_:,}"))

    def middle(part: list[Cost]) -> Cost:
        steady = float(np.median([cost.microseconds for cost in part]))
        return Cost(steady, part[-1].megabytes, part[-1].rows)

    on_average = float(np.mean([cost.microseconds for cost in costs[11:]]))
    return middle(costs[6:11]), middle(costs[-5:]), on_average


# -- newcomers ----------------------------------------------------------------------------------


def newcomers(setting: Setting) -> Iterator[Figure]:
    """1,000 users stay out of the fit, then bring 5 ratings each; judged on all their others."""
    old, given, others = _streams.newcomers(1000, brings=5)
    joined = Stream(*(np.concatenate(both) for both in zip(old, given)))

    def error(model: HeMF) -> float:
        return rmse(others.ratings, model.predict(others.users, others.items))

    model = setting.hemf(history="full").fit(old)
    refitted = error(setting.hemf(history="full").fit(joined))
    folded, seconds = visit(model, given, others)  # before anything is learnt: it must be pure
    strangers = error(model)
    begin = time.process_time()
    model.partial_fit(given)
    learning = time.process_time() - begin
    learnt = error(model)
    facts = f"refit {refitted:.4f}, as strangers {strangers:.4f}"
    yield Figure("RMSE less that of a refit, partial_fit", learnt - refitted, "<=", 0.005, facts)
    yield Figure("RMSE less that of a refit, fold_in", folded - refitted, "<=", 0.005)
    yield Figure("fold_in, µs a visitor, median", float(np.median(seconds)) * 1e6, "<=", 200.0)
    yield Figure("fold_in, µs a visitor, p99", float(np.quantile(seconds, 0.99)) * 1e6)
    yield Figure("partial_fit, µs a newcomer", learning / 1000 * 1e6)


def visit(model: HeMF, given: Stream, others: Stream) -> tuple[float, np.ndarray]:
    """RMSE for visitors that the model is not taught, and the seconds that each took."""
    people = np.unique(given.users)
    visits = [given.users == user for user in people]
    pairs = [list(zip(given.items[v].tolist(), given.ratings[v].tolist())) for v in visits]
    seconds, visitors = [], []
    for ratings in pairs:
        begin = time.perf_counter()
        visitors.append(model.fold_in(ratings))
        seconds.append(time.perf_counter() - begin)
    squares = []
    for user, visitor in zip(people, visitors):
        wanted = others.users == user
        squares.append((visitor.predict(others.items[wanted]) - others.ratings[wanted]) ** 2)
    return float(np.sqrt(np.mean(np.concatenate(squares)))), np.array(seconds)


# -- planted ------------------------------------------------------------------------------------


def planted(setting: Setting) -> Iterator[Figure]:
    """Watch for a community that appears half-way, and for one that does not."""

    def watch(seed: int, appears: float | None) -> _streams.Seen:
        model = setting.hemf(history="full", rating_range=None)
        return _streams.watch(model, seed, appears=appears)

    with_one = [watch(seed, 0.5) for seed in SEEDS]
    without = [watch(seed, None) for seed in SEEDS]
    worst = max(seen.found_after for seen in with_one)
    all_found = " ".join(f"{seen.found_after:g}" for seen in with_one)
    yield Figure("ratings of a new community until found", worst, "<=", 2000, all_found)
    exact = sum(seen.in_the_end == (4, 4) for seen in with_one)
    yield Figure("streams with 4 x 4 communities in the end", exact, beside=f"of {len(SEEDS)}")
    most = " ".join("x".join(map(str, seen.most)) for seen in without)
    invented = sum(seen.most[0] > 3 or seen.most[1] > 4 for seen in without)
    yield Figure("streams without one where one is invented", invented, "<=", 0, most)
    end = " ".join("x".join(map(str, seen.in_the_end)) for seen in without)
    lost = sum(seen.in_the_end[0] < 3 for seen in without)
    yield Figure("streams without one where one is lost", lost, "<=", 0, end)


def drift(setting: Setting, memory: int = 33) -> Iterator[Figure]:
    """Let half of the users change their taste, and see how far errors on them come back.

    With 1/memory forgotten at each rating, e⁻⁴ of what is no longer true is left after four times
    as many. Errors are those of expectations, without noise, before and after.
    """
    truth = drifting(share=0.5, rng=0)
    stream, begins = Stream(*truth.columns), truth.begins
    everyone = truth.before.n_users  # so many ratings are about one from each
    window, start = memory * everyone, 2 * memory * everyone
    is_changed = truth.changed[stream.users]

    def error(wrong: np.ndarray, begin: int, end: int) -> float:
        return float(np.sqrt(np.mean(wrong[begin:end][is_changed[begin:end]] ** 2)))

    for history in ("full", "none"):
        for forgetting in (1.0 - 1.0 / memory, 1.0):
            model = setting.hemf(history=history, forgetting=forgetting, rating_range=None)
            model.fit(stream.part(0, start))
            expected = model.predict_then_learn(stream.part(start, len(stream.ratings)))
            wrong = np.concatenate((np.zeros(start), expected)) - truth.expected
            before = error(wrong, begins - window, begins)
            shock = error(wrong, begins, begins + everyone)
            after = error(wrong, begins + 4 * window, begins + 5 * window)
            left = (after - before) / (shock - before)
            facts = f"error {before:.3f}, then {shock:.3f}, then {after:.3f}"
            how = f"{history}, forgetting {forgetting:.2f}"
            bar = ("<=", 0.1) if forgetting < 1.0 else (">=", 0.3)
            yield Figure(f"damage left after {4 * memory} ratings, {how}", left, *bar, facts)


SECTIONS: dict[str, Section] = {
    "time": by_time,
    "moods": moods,
    "random": in_random_order,
    "nothing": from_nothing,
    "batches": in_batches,
    "growth": growth,
    "newcomers": newcomers,
    "planted": planted,
    "drift": drift,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--river", metavar="PYTHON", help="an interpreter that has river")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="P", help="draw random to P.png or P.html")
    parser.add_argument("--longest", type=int, default=10_000_000, help="ratings of growth")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]}; choose from {', '.join(SECTIONS)}")
    warnings.simplefilter("ignore")
    setting = Setting(arguments.river, arguments.seed, arguments.plot, arguments.longest)
    document: dict[str, Any] = {}
    missed = 0
    for name in arguments.sections or SECTIONS:
        print(f"== {name}", flush=True)
        document[name] = []
        try:
            for figure in SECTIONS[name](setting):
                print(figure, flush=True)
                document[name].append({**asdict(figure), "met": figure.met})
                missed += not figure.met
        except AbsentError as reason:
            print(f"skipped: {reason}", flush=True)
            document[name] = {"skipped": str(reason)}
    if arguments.json:
        print(json.dumps(document))
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # of processes that follow
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        main()
