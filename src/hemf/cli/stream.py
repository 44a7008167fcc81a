"""``hemf stream``: predict every rating of a stream, then learn it, with one model or several."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hemf.cli import arguments, models
from hemf.cli.arguments import READ, WRITTEN
from hemf.cli.output import (
    Document,
    FitProgress,
    LiveDisplay,
    Output,
    RowFormat,
    columns_of,
    duration,
    empty_table,
    progress_bar,
)
from hemf.errors import DuplicateWarning

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hemf._typing import AnyArray, Array, Int64Array
    from hemf.data.sources import Columns
    from hemf.data.vocabulary import CodedIds
    from hemf.evaluation import CurvePoint, NextChoices, Prequential
    from hemf.evaluation.prequential import Learner

    TestRows = tuple[AnyArray, ...]
    """Users, items, ratings and maybe times."""


class Order(StrEnum):
    """Order of the ratings."""

    time = "time"
    file = "file"
    random = "random"


@dataclass(frozen=True)
class StreamModels(models.ModelOptions):
    """Models and their parameters, options of the command."""

    history: Annotated[
        str | None,
        typer.Option(
            metavar="none|full|H",
            help="Ratings that hemf keeps: none, all, or the newest H of each user and item.",
        ),
    ] = None
    model_names: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME[:K=V,…]",
            help=f"Model, hemf by default: {', '.join(models.STREAMING)}, with settings, as in "
            "sgd:step=0.08; may be repeated.",
        ),
    ] = None


@dataclass(frozen=True)
class RowOptions:
    """Ratings of the stream and their order, options of the command."""

    warm_start: Annotated[
        float,
        typer.Option(metavar="FRACTION", help="Share of the ratings to fit in batch beforehand."),
    ] = 0.0
    order: Annotated[
        Order | None,
        typer.Option(help="Order of the ratings; by default time if known, else file."),
    ] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N ratings.", min=1)
    ] = None


@dataclass(frozen=True)
class RankOptions:
    """Rankings of the next choices, options of the command."""

    top: Annotated[
        str | None,
        typer.Option(
            help="Also judge lists of N items by what their users choose next, beside a list of "
            "the most rated ones; several lengths with commas.",
            metavar="N[,N…]",
        ),
    ] = None
    ranked: Annotated[
        int, typer.Option(metavar="M", help="With --top: ratings that are ranked.", min=1)
    ] = 5000


def stream(
    output: Output,
    data: Annotated[
        str,
        typer.Option("--ratings", metavar="R", help="Ratings: a file or the name of a data set."),
        READ,
    ],
    batch_size: Annotated[
        int, typer.Option(help="Ratings predicted, then learnt, together; 1: one by one.", min=1)
    ] = 1,
    *,
    options: StreamModels,
    chosen: RowOptions,
    ranking: RankOptions,
    test: Annotated[
        str | None,
        typer.Option(metavar="V", help="Ratings to predict at every tenth of the stream."),
        READ,
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="P", help="Plot of the RMSE to write: P.html or P.png."),
        WRITTEN,
        ".html",
    ] = None,
    columns: arguments.ColumnNames = None,
    format: RowFormat = None,
) -> None:
    """Predict each rating of a stream, then learn it.

    Reports the error and the speed of each model. Times are those of predicting and learning,
    without reading, compiling, the warm start and the test ratings. With batches, p50 and p99 are
    those of a batch. --history and --set apply to the models that have such a parameter and no
    setting of their own for it.

    With --top, items of a sample of the ratings are ranked just before these are learnt, among all
    items that their users have not rated yet.
    """
    from hemf.evaluation import NextChoices
    from hemf.report.model import check_plot_name, write_stream_plot

    learners, history = new_models(options), options.history
    if history is not None and not any("history" in model.get_params() for _, model in learners):
        output.remark(f"--history {history}: none of these models has a history")
    check_plot_name(plot)
    cutoffs = arguments.parse_cutoffs(ranking.top)
    arguments.check_writable(plot, apart_from=[data, *([test] if test else [])])
    read = arguments.read_rows(output, data, columns)
    rows = ordered(read, chosen, options.seed)
    tested = None if test is None else read_test(output, test, columns, read)
    runs: list[Run] = []
    interrupted = False
    try:
        for name, model in learners:
            choices = None
            if cutoffs is not None:
                choices = NextChoices(
                    rows.users, rows.items, cutoffs, start=rows.start, events=ranking.ranked
                )
            stream = Stream(rows, batch_size, tested, choices)
            run(output, name, model, stream, runs)
    except KeyboardInterrupt:
        if not runs:
            raise
        interrupted = True
    summary = description(rows, batch_size, runs[0])
    headers, figures = table(runs)
    if plot is not None:
        curves = [(done.row[0], done.curve) for done in runs]
        titles = {"title": Path(data).name, "subtitle": summary}
        with output.status(f"drawing {plot}"):
            write_stream_plot(
                plot, curves, start=rows.start, **titles, headers=headers, rows=figures
            )

    def show() -> None:
        output.line(summary)
        output.table(headers, figures, numbers=range(1, len(headers)))

    document = {
        **(runs[0].document if len(learners) == 1 else {}),
        "order": rows.order,
        "batch_size": batch_size,
        "warm_start_ratings": rows.start,
        "interrupted": interrupted,
        "plot": plot and str(plot),
        "models": [done.document for done in runs],
    }
    names = [name for name in runs[0].document if name not in ("curve", "popularity")]
    output.rows(
        columns_of(names, ([done.document[name] for name in names] for done in runs)),
        show,
        document=document,
        format=format,
    )
    if plot is not None:
        (output.line if output.is_table(format) else output.remark)(f"plot: {plot}")
    if interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Rows:
    """Ratings in their order; those before ``start`` are learnt in batch."""

    users: CodedIds
    items: CodedIds
    ratings: Array
    times: Int64Array | None
    start: int
    order: str


@dataclass(frozen=True)
class Stream:
    """Ratings to evaluate a model on, and options of the evaluation."""

    rows: Rows
    batch_size: int
    test: TestRows | None
    choices: NextChoices | None


@dataclass(frozen=True)
class Run:
    """Measurements of a stream that has ended or was interrupted."""

    row: list[str]
    """Name of the model and its figures, as texts."""
    curve: list[CurvePoint]
    document: Document


def ordered(read: Columns, chosen: RowOptions, seed: int) -> Rows:
    """Return ratings in the given order, by default by time."""
    from hemf.evaluation import stream_order, warm_start_size

    assert read.ratings is not None
    order = chosen.order and chosen.order.value
    positions = stream_order(len(read.users), read.timestamps, order, rng=seed)[: chosen.limit]
    return Rows(
        read.users[positions],
        read.items[positions],
        read.ratings[positions],
        None if read.timestamps is None else read.timestamps[positions],
        warm_start_size(len(positions), chosen.warm_start),
        str(order or ("file" if read.timestamps is None else "time")),
    )


def run(
    output: Output,
    name: str,
    model: models.Model,
    given: Stream,
    runs: list[Run],
) -> None:
    """Run a stream; add the measurements to ``runs``, also after an interruption."""
    from hemf.data.ratings import Ratings
    from hemf.evaluation import Prequential

    rows = given.rows
    with output.status(models.WARM_UP):
        models.warm_up(model, online=True)
    columns = rows.users, rows.items, rows.ratings
    if rows.start:
        beginning: tuple[object, ...] = tuple(column[: rows.start] for column in columns)
        if rows.times is not None and getattr(model, "moods", False):
            beginning += (rows.times[: rows.start],)
        ratings = Ratings.from_any(beginning, duplicates=model.duplicates)
        with FitProgress(output) as fitting:
            model.fit(ratings, callbacks=[fitting])
    stream = Prequential(
        cast("Learner", model),
        *columns,
        timestamps=rows.times,
        start=rows.start,
        batch_size=given.batch_size,
        test=given.test,
        choices=given.choices,
    )
    try:
        with (
            StreamProgress(output, name, [done.row for done in runs]) as progress,
            warnings.catch_warnings(),
        ):
            # Pairs that come twice are normal in a stream.
            warnings.simplefilter("ignore", DuplicateWarning)
            stream.run(progress)
    finally:
        if stream.ratings:
            row = [name, *stream_figures(stream, exact=True)]
            runs.append(Run(row, stream.curve, measured(name, stream)))


def new_models(options: StreamModels) -> list[tuple[str, models.Model]]:
    """Return unfitted models by their ``--model`` texts; all settings are checked."""
    texts, settings, history = options.model_names or ["hemf"], options.settings, options.history

    def new(name: str, own: list[str]) -> models.Model:
        return models.STREAMING[name].new(replace(options, settings=own))

    models.parse_settings(settings)  # an error for what is not a setting
    wanted = [models.parse_model(text, models.STREAMING) for text in texts]
    common = [*(settings or []), *([] if history is None else [f"history={history}"])]
    known = {name: new(name, []).get_params() for name, _ in wanted}
    for setting in settings or ():
        if not any(models.setting_name(setting) in parameters for parameters in known.values()):
            new(wanted[0][0], [setting])  # an error that lists parameters
    learners = []
    for text, (name, own) in zip(texts, wanted, strict=True):
        named = {models.setting_name(setting) for setting in own}
        fitting = [s for s in common if models.setting_name(s) in known[name].keys() - named]
        model = new(name, [*map(quoted, [*fitting, *own])])
        models.check_parameters(model, online=True)
        learners.append((text, model))
    return learners


def quoted(setting: str) -> str:
    """Return a setting with the word none in quotes if it is a mode of the history.

    >>> quoted("history=none"), quoted("evb=none")
    ("history='none'", 'evb=none')
    """
    name, value = models.setting_name(setting), setting.partition("=")[2].strip()
    return "history='none'" if (name, value) == ("history", "none") else setting


def read_test(output: Output, test: str, columns: str | None, stream: Columns) -> TestRows:
    """Read users, items, ratings and times to test on; the stream decides the type of ids."""
    from hemf.data.vocabulary import Vocabulary

    users, items = Vocabulary(), Vocabulary()
    users.add_coded(stream.users)
    items.add_coded(stream.items)
    withheld = arguments.read_ratings(output, test, columns, users=users, items=items)
    times = () if withheld.timestamps is None else (withheld.timestamps,)
    return *withheld.id_columns(), *times


def measured(name: str, stream: Prequential) -> Document:
    """Return the figures of a stream."""
    p50, p99 = stream.latency(0.5, 0.99)
    user_communities, item_communities = stream.communities or (None, None)
    return {
        "rmse": stream.rmse,
        "ratings_per_second": stream.ratings_per_second,
        "p50_us": p50 * 1e6,
        "p99_us": p99 * 1e6,
        "new_users": stream.new_users,
        "new_items": stream.new_items,
        "model": name,
        "ratings": stream.ratings,
        "seconds": stream.seconds,
        "cpu_seconds": stream.cpu_seconds,
        "user_communities": user_communities,
        "item_communities": item_communities,
        "test_rmse": stream.test_rmse,
        "curve": [asdict(point) for point in stream.curve],
        **({} if stream.choices is None else stream.choices.to_dict()),
    }


def description(rows: Rows, batch_size: int, first: Run) -> str:
    """Describe the stream."""
    facts = first.document
    how = "one by one" if batch_size == 1 else f"in batches of {batch_size:,}"
    start = f", after {rows.start:,} learnt in batch" if rows.start else ""
    return (
        f"{facts['ratings']:,} ratings in {rows.order} order, {how}{start}; "
        f"{facts['new_users']:,} new users, {facts['new_items']:,} new items"
    )


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the measurements."""
    headers, rows = ["model", *STREAM_FIGURES], [run.row for run in runs]
    tested = [run.document["test_rmse"] for run in runs]
    if any(rmse is not None for rmse in tested):
        headers.insert(2, "test\nRMSE")
        shown = ["-" if rmse is None else f"{rmse:.4f}" for rmse in tested]
        rows = [[*row[:2], rmse, *row[2:]] for row, rmse in zip(rows, shown, strict=True)]
    for name in [name for name in runs[0].document if name.startswith("ndcg@")]:
        headers += [name.replace("ndcg", "NDCG"), "most rated"]
        popular = [cast("Document", run.document["popularity"]) for run in runs]
        rows = [
            [*row, shown_ndcg(run.document[name]), shown_ndcg(beside[name])]
            for row, run, beside in zip(rows, runs, popular, strict=True)
        ]
    return headers, rows


def shown_ndcg(value: object) -> str:
    """Return an NDCG as text; there is none if nothing could be ranked."""
    return f"{value:.4f}" if isinstance(value, float) else "-"


LATENCIES_SHOWN = 50_000  # sample for live quantiles
STREAM_FIGURES = ("RMSE", "last\n10,000", "ratings/s", "p50 µs", "p99 µs", "communities")
"""Headers of `stream_figures`."""


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
        from rich.text import Text

        elapsed = time.monotonic() - self._begin
        left = elapsed / stream.ratings * (stream.length - stream.ratings)
        headers = ("model", *STREAM_FIGURES)
        figures = empty_table(headers, range(1, len(headers)), header_style="dim")
        for row in self._finished:
            figures.add_row(*row, style="dim")
        figures.add_row(self._name, *stream_figures(stream))
        new = Text(newcomers(stream), style="dim")
        return progress_bar(
            place, stream.ratings, stream.length, f"{duration(left)} left", figures, new
        )


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
