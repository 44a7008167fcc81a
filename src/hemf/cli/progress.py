"""Progress of a command on stderr: live on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hemf.cli.output import Output
    from hemf.evaluation import Prequential


SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_PICTURES = 0.125
SECONDS_BEFORE_COUNTING = 2.0
LATENCIES_SHOWN = 50_000  # sample for live quantiles
COUNTERS = {"sweep": "max_sweeps", "epoch": "epochs", "iteration": "iterations"}
"""Fields of reports: the number of steps done, and their total."""
STREAM_FIGURES = ("RMSE", "last\n10,000", "ratings/s", "p50 µs", "p99 µs", "communities")
"""Headers of `stream_figures`."""


class Report(Protocol):
    """Report of a fit, of whatever model; see `COUNTERS` for further fields."""

    @property
    def train_rmse(self) -> float:
        """RMSE on the training ratings."""

    @property
    def validation_rmse(self) -> float | None:
        """RMSE on held-out ratings."""

    @property
    def seconds(self) -> float:
        """Seconds since the start."""


class LiveDisplay:
    """Display that is redrawn while a command works; a context manager."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begin = self._shown = time.monotonic()
        self._live: Any = nullcontext()
        if output.live:
            from rich.live import Live

            self._live = Live(console=output.screen, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)

    def _show(
        self, draw: Callable[[], RenderableType], line: Callable[[], str], *, now: bool = False
    ) -> None:
        """Draw, or print a line, if enough time has passed since the last time or ``now``."""
        if self._output.silent:
            return
        wait = SECONDS_BETWEEN_PICTURES if self._output.live else SECONDS_BETWEEN_LINES
        if not now and time.monotonic() - self._shown < wait:
            return
        self._shown = time.monotonic()
        if self._output.live:
            self._live.update(draw(), refresh=True)
        else:
            self._output.remark(line())


class FitProgress(LiveDisplay):
    """Callback of a fit that shows steps, errors, communities and time left."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._first: Report | None = None

    def __call__(self, report: Report) -> None:
        """Show a report."""
        first = self._first = self._first or report
        word, done, total = position(report)
        left = outlook(report, first)

        def line() -> str:
            return " · ".join(filter(None, [f"{word} {done}/{total}", figures(report), left]))

        self._show(
            lambda: _bar(f"{word} {done:>3}/{total}", done, total, left, figures(report)), line
        )


def _bar(title: str, done: int, total: int, left: str, *below: RenderableType) -> RenderableType:
    """Return a progress bar with other things below."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(title, style="bold"),
        ProgressBar(total=total, completed=done, width=32),
        Text(left, style="dim"),
    )
    whole = Table.grid()
    for part in (bar, *below):
        whole.add_row(part)
    return whole


def position(report: Report) -> tuple[str, int, int]:
    """Return the name of a step, the number of steps done, and their total.

    >>> from hemf.baselines import EpochReport
    >>> position(EpochReport(1, 30, 0.93, 0.05, 0.2))
    ('epoch', 1, 30)
    """
    name = next(name for name in COUNTERS if hasattr(report, name))
    return name, getattr(report, name), getattr(report, COUNTERS[name])


def figures(report: Report) -> str:
    """Return bound, errors and communities in one line, as far as the report has them.

    >>> from hemf.batch.callbacks import SweepReport
    >>> figures(SweepReport(3, 100, -1234.5, {}, 0.81, None, 4, 3, 0.6, 0.1))
    'ELBO -1,234 · RMSE 0.8100 · communities 4 × 3'
    """
    elbo, users = getattr(report, "elbo", None), getattr(report, "user_communities", None)
    parts = [] if elbo is None else [f"ELBO {elbo:,.0f}"]
    parts.append(f"RMSE {report.train_rmse:.4f}")
    if report.validation_rmse is not None:
        parts.append(f"held-out {report.validation_rmse:.4f}")
    if users is not None:
        parts.append(f"communities {users} × {getattr(report, 'item_communities', None)}")
    return " · ".join(parts)


def outlook(report: Report, first: Report) -> str:
    """Return the time left, from the pace since the first report.

    >>> from hemf.samplers import SampleReport
    >>> first = SampleReport(1, 250, False, 0.99, None, 0.5, 30.0)
    >>> outlook(SampleReport(51, 250, False, 0.93, None, 0.5, 40.0), first)
    '0:40 left'
    """
    if getattr(report, "trials_next", False):
        return "trying merges and splits"
    (word, done, total), (_, before, _) = position(report), position(first)
    if done == before:
        return ""
    pace = (report.seconds - first.seconds) / (done - before)
    most = "at most " if word == "sweep" else ""  # a fit may converge earlier
    return f"{most}{duration(pace * (total - done))} left"


def duration(seconds: float) -> str:
    """Return minutes and seconds.

    >>> duration(83)
    '1:23'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class StreamProgress(LiveDisplay):
    """Callback of `Prequential.run` that shows a stream below the models that have finished.

    It draws between two steps of the stream, never during one that is timed.
    """

    def __init__(self, output: Output, name: str, finished: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(output)
        self._name = name
        self._finished = finished

    def __call__(self, stream: Prequential) -> None:
        """Show the stream."""
        if self._output.silent:
            return
        place = f"{self._name}  {stream.ratings:,}/{stream.length:,}"

        def line() -> str:
            rmse, recent, rate, p50, p99, communities = stream_figures(stream)
            return (
                f"{place} · RMSE {rmse} · last 10,000 {recent} · {rate} ratings/s · "
                f"p50 {p50} µs · p99 {p99} µs · communities {communities} · {newcomers(stream)}"
            )

        self._show(lambda: self._drawn(stream, place), line)

    def _drawn(self, stream: Prequential, place: str) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        elapsed = time.monotonic() - self._begin
        left = elapsed / stream.ratings * (stream.length - stream.ratings)
        figures = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        figures.add_column("model", overflow="fold")
        for header in STREAM_FIGURES:
            figures.add_column(header, justify="right", min_width=7)
        for row in self._finished:
            figures.add_row(*row, style="dim")
        figures.add_row(self._name, *stream_figures(stream))
        new = Text(newcomers(stream), style="dim")
        return _bar(place, stream.ratings, stream.length, f"{duration(left)} left", figures, new)


def stream_figures(stream: Prequential, *, exact: bool = False) -> list[str]:
    """Return the figures of a stream as texts, in the order of `STREAM_FIGURES`.

    Latencies are quantiles of all of them if ``exact``, otherwise of a sample.
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
    """Return the numbers of new users and items."""
    return f"{stream.new_users:,} new users, {stream.new_items:,} new items"


def microseconds(seconds: float) -> str:
    """Return a short time in microseconds.

    >>> microseconds(0.00123), microseconds(1.234e-6)
    ('1,230', '1.2')
    """
    return f"{seconds * 1e6:,.{1 if seconds < 1e-5 else 0}f}"


@contextmanager
def counted(output: Output, text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows how many of how many are done, after some seconds."""
    begin = shown = time.monotonic()
    with nullcontext() if not output.live else output.screen.status(text) as status:

        def show(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            left = duration((now - begin) / done * (total - done))
            line = f"{text}  {done:,}/{total:,} · {left} left"
            if now - begin < SECONDS_BEFORE_COUNTING:
                return
            if status is not None:
                status.update(line)
            elif now - shown >= SECONDS_BETWEEN_LINES:
                shown = now
                output.remark(line)

        yield show


@contextmanager
def download(output: Output, name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback that shows the progress of a download."""
    if not output.live:
        yield lambda done, total: None
        return
    from rich import progress

    with progress.Progress(
        progress.TextColumn(f"fetching {name}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=output.screen,
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


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
