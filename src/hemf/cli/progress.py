"""How far a command has come, told on stderr: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from hemf.baselines import EpochReport
    from hemf.batch.callbacks import SweepReport
    from hemf.cli.arguments import Learner
    from hemf.cli.output import Output
    from hemf.evaluation import Prequential
    from hemf.samplers import SampleReport


SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_PICTURES = 0.125
SECONDS_BEFORE_COUNTING = 2.0
LATENCIES_SHOWN = 50_000  # that a passing picture is drawn from


class FitProgress:
    """Callback of a fit that shows sweep, bound, errors, communities and time left.

    Use as a context manager around the fit.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._said = time.monotonic()
        self._live: Any = nullcontext()
        if output.live:
            from rich.live import Live

            self._live = Live(console=output.screen, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)

    def __call__(self, report: SweepReport) -> None:
        """Show how the fit stands."""
        if self._output.silent:
            return
        if self._output.live:
            self._live.update(self._drawn(report))
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._output.remark(
                f"sweep {report.sweep}/{report.max_sweeps} · {figures(report)} · {outlook(report)}"
            )

    @staticmethod
    def _drawn(report: SweepReport) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"sweep {report.sweep:>3}/{report.max_sweeps}", style="bold"),
            ProgressBar(total=report.max_sweeps, completed=report.sweep, width=32),
            Text(outlook(report), style="dim"),
        )
        whole = Table.grid()
        whole.add_row(bar)
        whole.add_row(Text(figures(report)))
        return whole


def figures(report: SweepReport) -> str:
    """Say bound, errors and communities of a sweep in one line.

    >>> from hemf.batch.callbacks import SweepReport
    >>> figures(SweepReport(3, 100, -1234.5, {}, 0.81, None, 4, 3, 0.6, 0.1))
    'ELBO -1,234 · RMSE 0.8100 · communities 4 × 3'
    """
    held_out = report.validation_rmse
    parts = [f"ELBO {report.elbo:,.0f}", f"RMSE {report.train_rmse:.4f}"]
    if held_out is not None:
        parts.append(f"held-out {held_out:.4f}")
    return " · ".join(
        [*parts, f"communities {report.user_communities} × {report.item_communities}"]
    )


def outlook(report: SweepReport) -> str:
    """Say what is still to come after a sweep.

    >>> from hemf.batch.callbacks import SweepReport
    >>> outlook(SweepReport(3, 100, -1234.5, {}, 0.81, None, 4, 3, 0.6, 6.0))
    'at most 3:14 left'
    """
    if report.trials_next:
        return "trying merges and splits"
    return f"at most {duration(time_left(report))} left"


def time_left(report: SweepReport) -> float:
    """Seconds until the last sweep allowed; a fit that settles sooner needs less."""
    return report.seconds / report.sweep * (report.max_sweeps - report.sweep)


def duration(seconds: float) -> str:
    """Minutes and seconds.

    >>> duration(83)
    '1:23'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextmanager
def rounds(output: Output) -> Iterator[Callable[[EpochReport | SampleReport], None]]:
    """Yield a callback that shows epoch or iteration, error and time left of other models' fits."""
    said, first = time.monotonic(), None
    with output.screen.status("learning") if output.live else nullcontext() as shown:

        def show(report: EpochReport | SampleReport) -> None:
            nonlocal said, first
            first = first or report
            if shown is not None:
                shown.update(standing(report, first))
            elif time.monotonic() - said >= SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                output.remark(standing(report, first))

        yield show


def standing(
    report: EpochReport | SampleReport, first: EpochReport | SampleReport | None = None
) -> str:
    """Say in one line how a fit stands, of a sampler or a baseline.

    What went before the ``first`` report, such as a start, does not come again.

    >>> from hemf.samplers import SampleReport
    >>> first = SampleReport(1, 250, False, 0.99, None, 0.5, 30.0)
    >>> standing(SampleReport(51, 250, False, 0.93, None, 0.5, 40.0), first)
    'iteration 51/250 · RMSE 0.9300 · 0:40 left'
    """
    from hemf.baselines import EpochReport

    if isinstance(report, EpochReport):
        word, total = "epoch", report.epochs
    else:
        word, total = "iteration", report.iterations
    done, before = _done(report), 0 if first is None else _done(first)
    line = f"{word} {done}/{total} · RMSE {report.train_rmse:.4f}"
    if done == before:  # the first one tells nothing of the pace
        return line
    pace = (report.seconds - (0.0 if first is None else first.seconds)) / (done - before)
    return f"{line} · {duration(pace * (total - done))} left"


def _done(report: EpochReport | SampleReport) -> int:
    from hemf.baselines import EpochReport

    return report.epoch if isinstance(report, EpochReport) else report.iteration


class LivePicture:
    """A picture in a terminal that changes while something is at work; a context manager."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begin = self._said = time.monotonic()
        self._live: Any = nullcontext()
        if output.live:
            from rich.live import Live

            self._live = Live(console=output.screen, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)


class StreamProgress(LivePicture):
    """Shows how a model gets on with a stream, below the models that are through with it.

    Use as a context manager around the stream, and hand it to `Prequential.run`. The picture is
    changed between two steps of the stream and never during one, whose time is being taken.
    """

    def __init__(self, output: Output, name: str, finished: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(output)
        self._name = name
        self._finished = finished

    def __call__(self, stream: Prequential) -> None:
        """Show how the stream stands, if it is time to."""
        if self._output.silent:
            return
        now = time.monotonic()
        wait = SECONDS_BETWEEN_PICTURES if self._output.live else SECONDS_BETWEEN_LINES
        if now - self._said < wait:
            return
        self._said = now
        if self._output.live:
            self._live.update(self._drawn(stream), refresh=True)
        else:
            rmse, recent, rate, p50, p99, communities = stream_figures(stream)
            self._output.remark(
                f"{self._place(stream)} · RMSE {rmse} · last 10,000 {recent} · {rate} ratings/s · "
                f"p50 {p50} µs · p99 {p99} µs · communities {communities} · {newcomers(stream)}"
            )

    def _place(self, stream: Prequential) -> str:
        return f"{self._name}  {stream.ratings:,}/{stream.length:,}"

    def _drawn(self, stream: Prequential) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        elapsed = time.monotonic() - self._begin
        left = elapsed / stream.ratings * (stream.length - stream.ratings)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._place(stream), style="bold"),
            ProgressBar(total=stream.length, completed=stream.ratings, width=24),
            Text(f"{duration(left)} left", style="dim"),
        )
        figures = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        figures.add_column("model", overflow="fold")
        for header in STREAM_FIGURES:
            figures.add_column(header, justify="right", min_width=7)
        for row in self._finished:
            figures.add_row(*row, style="dim")
        figures.add_row(self._name, *stream_figures(stream))
        whole = Table.grid()
        whole.add_row(bar)
        whole.add_row(figures)
        whole.add_row(Text(newcomers(stream), style="dim"))
        return whole


STREAM_FIGURES = ("RMSE", "last\n10,000", "ratings/s", "p50 µs", "p99 µs", "communities")
"""What `stream_figures` are; short, for several models beside one another."""


def stream_figures(stream: Prequential, *, exact: bool = False) -> list[str]:
    """Return the figures of a stream so far as texts, in the order of `STREAM_FIGURES`.

    Latencies are looked up in all of them if ``exact``, otherwise estimated from some.
    """
    p50, p99 = stream.latency(0.5, 0.99, most=None if exact else LATENCIES_SHOWN)
    communities = stream.communities
    return [
        f"{stream.rmse:.4f}",
        f"{stream.recent_rmse:.4f}",
        f"{stream.ratings_per_second:,.0f}",
        microseconds(p50),
        microseconds(p99),
        "-" if communities is None else f"{communities[0]} × {communities[1]}",
    ]


def newcomers(stream: Prequential) -> str:
    """Say how many users and items a stream has brought so far."""
    return f"{stream.new_users:,} new users, {stream.new_items:,} new items"


def microseconds(seconds: float) -> str:
    """Write a short time in microseconds.

    >>> microseconds(0.00123), microseconds(1.234e-6)
    ('1,230', '1.2')
    """
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


def warm_up(output: Output, model: Learner, *, online: bool = False) -> None:
    """Have the kernels that this model needs compiled, or loaded from the cache.

    A fit of a few ratings does it, so that the fit proper shows how fast it really is; where it
    will learn ``online``, a short stream as well.
    """
    from hemf.kernels import compile

    quick: dict[str, Any] = {"max_sweeps": 1, "epochs": 1, "validation_fraction": 0.0, "rng": 0}
    quick |= {"samples": 1, "burn_in": 0}
    quick["rating_range"] = None  # the few ratings may be outside the one chosen
    given = model.get_params()
    chosen = {name: quick.get(name, value) for name, value in given.items()}
    pairs = [(user, item) for user in range(3) for item in range(3)]
    ratings = [(user, item, float(user + item), user) for user, item in pairs]
    with output.status("getting ready (the first run compiles kernels: up to a minute)"):
        small = type(model)(**chosen).fit(ratings)
        small.predict([0], [0])
        if given.get("moods"):
            compile.compile_moods(given["dtype"])  # a single sweep does not get to them
        if online:
            learner: Any
            for learner in (small, type(model)(**chosen)):
                learner.predict_then_learn(ratings, return_seconds=True)
                learner.partial_fit([(user + 9, *others) for user, *others in ratings])


@contextmanager
def counted(output: Output, text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows how many of how many are done, once it has taken a while."""
    begin = said = time.monotonic()
    with nullcontext() if not output.live else output.screen.status(text) as shown:

        def show(done: int, total: int) -> None:
            nonlocal said
            now = time.monotonic()
            left = duration((now - begin) / done * (total - done))
            line = f"{text}  {done:,}/{total:,} · {left} left"
            if now - begin < SECONDS_BEFORE_COUNTING:
                return
            if shown is not None:
                shown.update(line)
            elif now - said >= SECONDS_BETWEEN_LINES:
                said = now
                output.remark(line)

        yield show


@contextmanager
def download(output: Output, name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback that shows how much of a data set has arrived."""
    if not output.live:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn(f"fetching {name}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=output.screen,
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


# ------------------------------------------------------------------------------------------------
# Kernels that are compiled on another core while this one is busy with something else.


PATIENCE = 180.0  # seconds until they are no longer waited for


@contextmanager
def compiling() -> Iterator[Callable[[], object]]:
    """Have the kernels of online learning compiled; yield a function that waits until they are.

    Should that fail they are compiled where they are needed, which takes longer and no more.
    """
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-P", "-m", "hemf.kernels.compile"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        yield lambda: None
        return

    def wait() -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)

    try:
        yield wait
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
