"""``hemf stream``: predict every rating of a stream, then learn it; one model or several."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf._files import expand_home
from hemf.cli import arguments
from hemf.cli.arguments import STREAMING, parse_model
from hemf.cli.evaluate import learn
from hemf.cli.output import READ, WRITTEN, Output, RowFormat, columns_of
from hemf.errors import DuplicateWarning

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hemf._typing import Array
    from hemf.data.sources import Columns
    from hemf.data.vocabulary import Vocabulary
    from hemf.evaluation import CurvePoint, Prequential


class Order(StrEnum):
    """In what order ratings come."""

    time = "time"
    file = "file"
    random = "random"


def stream(
    output: Output,
    data: Annotated[
        str,
        typer.Option("--ratings", metavar="R", help="Ratings: a file or a data set's name."),
        READ,
    ],
    batch_size: Annotated[
        int,
        typer.Option(help="Ratings predicted, then learnt, together; 1: one by one.", min=1),
    ] = 1,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="none|full|H",
            help="Ratings that hemf keeps: none, all, or the newest H of each user and item.",
        ),
    ] = None,
    model_names: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME[:K=V,…]",
            help=f"What learns, hemf unless said: {', '.join(STREAMING)}, with settings of its "
            "own, as in sgd:step=0.08; may be repeated.",
        ),
    ] = None,
    warm_start: Annotated[
        float,
        typer.Option(metavar="FRACTION", help="Share of the ratings to fit in batch beforehand."),
    ] = 0.0,
    order: Annotated[
        Order | None,
        typer.Option(help="How ratings come; unless said, by time if known, else as in the file."),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="V", help="Ratings to predict at every tenth of the stream."),
        READ,
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N ratings.", min=1)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="P", help="Where to draw RMSE by ratings seen: P.html or P.png."),
        WRITTEN,
        ".html",
    ] = None,
    settings: arguments.Settings = None,
    seed: arguments.Seed = 0,
    columns: arguments.ColumnNames = None,
    n_jobs: arguments.Jobs = None,
    format: RowFormat = None,
) -> None:
    """Predict each rating of a stream, then learn it.

    Says how well and how fast each model did it. Times are those of predicting and learning:
    reading, compiling, the warm start and the test ratings aside. With batches, p50 and p99 are
    those of a batch. --history and --set are for the models that have such a parameter and do
    not say otherwise themselves.
    """
    from hemf.report.model import check_plot_name

    models = new_models(model_names or ["hemf"], settings, history, seed, n_jobs)
    if history is not None and not any("history" in model.get_params() for _, model in models):
        output.remark(f"--history {history}: there is no model here that keeps any")
    check_plot_name(plot)
    arguments.check_writable(plot, apart_from=[data, *([test] if test else [])])
    read = read_rows(output, data, columns)
    rows = ordered(read, None if order is None else order.value, warm_start, limit, seed)
    judged: tuple[Any, ...] | None = None
    if test is not None:
        judged = read_test(output, test, columns, read)
    runs: list[Run] = []
    interrupted = False
    try:
        for name, model in models:
            run(output, name, model, rows, batch_size, judged, runs)
    except KeyboardInterrupt:
        if not runs:
            raise
        interrupted = True
    said = description(rows, batch_size, runs[0])
    if plot is not None:
        draw(output, plot, runs, rows, Path(data).name, said)
    document = {
        **(runs[0].document if len(models) == 1 else {}),
        "order": rows.order,
        "batch_size": batch_size,
        "warm_start_ratings": rows.start,
        "interrupted": interrupted,
        "plot": plot and str(plot),
        "models": [done.document for done in runs],
    }
    names = [name for name in runs[0].document if name != "curve"]
    output.rows(
        columns_of(names, ([done.document[name] for name in names] for done in runs)),
        lambda: show(output, said, runs),
        document=document,
        format=format,
    )
    if plot is not None:
        (output.line if output.for_people(format) else output.remark)(f"plot: {plot}")
    if interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Rows:
    """Ratings in the order in which they come; those before ``start`` are learnt in batch."""

    users: NDArray[Any]
    items: NDArray[Any]
    ratings: Array
    times: NDArray[np.int64] | None
    start: int
    order: str


@dataclass(frozen=True)
class Run:
    """What is left of a stream when it is over, or was interrupted."""

    row: list[str]
    """The name of the model and its figures, for people."""
    curve: list[CurvePoint]
    document: dict[str, Any]
    """The same, for machines."""


def ordered(
    read: Columns, order: str | None, warm_start: float, limit: int | None, seed: int
) -> Rows:
    """Return what was read in the order asked for, or by time where that is known."""
    from hemf.evaluation import stream_order, warm_start_size

    assert read.ratings is not None
    positions = stream_order(len(read.users), read.timestamps, order, rng=seed)[:limit]
    return Rows(
        read.users.decode()[positions],
        read.items.decode()[positions],
        read.ratings[positions],
        None if read.timestamps is None else read.timestamps[positions],
        warm_start_size(len(positions), warm_start),
        str(order or ("file" if read.timestamps is None else "time")),
    )


def run(
    output: Output,
    name: str,
    model: Any,
    rows: Rows,
    batch_size: int,
    test: tuple[Any, ...] | None,
    runs: list[Run],
) -> None:
    """Let a model learn the stream and add what was measured to ``runs``, come what may."""
    from hemf import Ratings
    from hemf.cli.progress import StreamProgress, stream_figures, warm_up
    from hemf.evaluation import Prequential

    warm_up(output, model, online=True)
    columns = rows.users, rows.items, rows.ratings
    if rows.start:
        beginning = tuple(column[: rows.start] for column in columns)
        if rows.times is not None and getattr(model, "moods", False):
            beginning += (rows.times[: rows.start],)
        learn(output, model, Ratings.from_any(beginning, duplicates=model.duplicates))
    stream = Prequential(
        model, *columns, timestamps=rows.times, start=rows.start, batch_size=batch_size, test=test
    )
    try:
        with (
            StreamProgress(output, name, [done.row for done in runs]) as progress,
            warnings.catch_warnings(),
        ):
            # A pair that comes twice in a batch is nothing to complain of batch after batch.
            warnings.simplefilter("ignore", DuplicateWarning)
            stream.run(progress)
    finally:
        if stream.ratings:
            row = [name, *stream_figures(stream, exact=True)]
            runs.append(Run(row, stream.curve, measured(name, stream)))


def new_models(
    texts: Sequence[str],
    settings: list[str] | None,
    history: str | None,
    seed: int,
    n_jobs: int | None,
) -> list[tuple[str, Any]]:
    """Return unfitted models by what was written for them, all of their settings checked."""
    from hemf import HeMF
    from hemf._options import online_options

    arguments.parse_settings(settings)  # what is no setting at all is told as such
    wanted = [parse_model(text, STREAMING) for text in texts]
    common = [*(settings or []), *([] if history is None else [f"history={history}"])]
    known = {name: STREAMING[name](None, seed, n_jobs).get_params() for name, _ in wanted}
    for setting in settings or ():
        if not any(setting_name(setting) in parameters for parameters in known.values()):
            STREAMING[wanted[0][0]]([setting], seed, n_jobs)  # names those there are
    models = []
    for text, (name, own) in zip(texts, wanted, strict=True):
        named = {setting_name(setting) for setting in own}
        fitting = [s for s in common if setting_name(s) in known[name].keys() - named]
        model = STREAMING[name]([*map(quoted, [*fitting, *own])], seed, n_jobs)
        if isinstance(model, HeMF):
            online_options(model)
        models.append((text, model))
    return models


def setting_name(setting: str) -> str:
    """Return the parameter that a setting is for.

    >>> setting_name("n-factors=3")
    'n_factors'
    """
    return setting.partition("=")[0].strip().replace("-", "_")


def quoted(setting: str) -> str:
    """Return a setting with the word none as a word where it is one of the history's modes.

    >>> quoted("history=none"), quoted("evb=none")
    ("history='none'", 'evb=none')
    """
    is_mode = setting_name(setting) == "history" and setting.partition("=")[2].strip() == "none"
    return "history='none'" if is_mode else setting


def read_rows(
    output: Output,
    data: str,
    columns: str | None,
    *,
    users: Vocabulary | None = None,
    items: Vocabulary | None = None,
) -> Columns:
    """Read ratings as they stand in a file or a data set: in order, and all of them.

    `arguments.read_ratings` sorts them, and keeps one of each pair.
    """
    from hemf.data.sources import read_columns
    from hemf.experiments import datasets

    path = expand_home(data)
    chosen = arguments.parse_columns(columns)
    if data in datasets.names() and not path.is_file() and chosen is None:
        from hemf.cli.progress import download

        if datasets.cached(data) is None:
            arguments.show_terms(output, datasets.find(data))
        with download(output, data) as progress:
            datasets.fetch(data, progress=progress)
        with output.status(f"reading {data}"):
            return read_columns(tuple(datasets.load(data)), users=users, items=items)
    if not path.exists():
        arguments.read_ratings(output, data, columns)  # says what is wrong with the name
    with output.status(f"reading {data}"):
        return read_columns(path, chosen, users=users, items=items)


def read_test(output: Output, test: str, columns: str | None, stream: Columns) -> tuple[Any, ...]:
    """Read users, items, ratings and, if there are any, times to judge models on.

    Ids are meant as those of the stream.
    """
    from hemf.data.vocabulary import Vocabulary

    users, items = Vocabulary(), Vocabulary()
    users.add_coded(stream.users)
    items.add_coded(stream.items)
    withheld = arguments.read_ratings(output, test, columns, users=users, items=items)
    user_rows, item_rows, ratings = withheld.triples()
    times = () if withheld.timestamps is None else (withheld.timestamps,)
    return withheld.users.ids[user_rows], withheld.items.ids[item_rows], ratings, *times


def measured(name: str, stream: Prequential) -> dict[str, Any]:
    """Figures of a stream, those that others rely on first."""
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
    }


def description(rows: Rows, batch_size: int, first: Run) -> str:
    """Say what was streamed, and how."""
    facts = first.document
    how = "one by one" if batch_size == 1 else f"in batches of {batch_size:,}"
    start = f", after {rows.start:,} learnt in batch" if rows.start else ""
    return (
        f"{facts['ratings']:,} ratings in {rows.order} order, {how}{start}; "
        f"{facts['new_users']:,} new users, {facts['new_items']:,} new items"
    )


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of what was measured, for people."""
    from hemf.cli.progress import STREAM_FIGURES

    headers, rows = ["model", *STREAM_FIGURES], [run.row for run in runs]
    tested = [run.document["test_rmse"] for run in runs]
    if any(rmse is not None for rmse in tested):
        headers.insert(2, "test\nRMSE")
        shown = ["-" if rmse is None else f"{rmse:.4f}" for rmse in tested]
        rows = [[*row[:2], rmse, *row[2:]] for row, rmse in zip(rows, shown, strict=True)]
    return headers, rows


def draw(
    output: Output, plot: Path, runs: Sequence[Run], rows: Rows, title: str, subtitle: str
) -> None:
    """Draw the curves of all models into one file."""
    from hemf.report.model import write_stream_plot

    headers, figures = table(runs)
    with output.status(f"drawing {plot}"):
        write_stream_plot(
            plot,
            [(run.row[0], run.curve) for run in runs],
            start=rows.start,
            title=title,
            subtitle=subtitle,
            headers=headers,
            rows=figures,
        )


def show(output: Output, said: str, runs: Sequence[Run]) -> None:
    """Print what was measured."""
    headers, rows = table(runs)
    output.line(said)
    output.table(headers, rows, numbers=range(1, len(headers)))
