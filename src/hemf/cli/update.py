"""``hemf update``: a saved model learns new ratings."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hemf._files import LOCK_TIMEOUT, expand_home, file_lock, file_state
from hemf.cli import arguments
from hemf.cli.arguments import READ, WRITTEN
from hemf.cli.output import Document, Output
from hemf.errors import DataError, ParameterError
from hemf.online.record import Batch, find

if TYPE_CHECKING:
    from hemf._typing import AnyArray
    from hemf.data.sources import Columns
    from hemf.estimator import HeMF


@dataclass(frozen=True)
class Files:
    """Files of a batch, arguments of a command."""

    data: Annotated[
        str | None,
        typer.Argument(
            help="New and changed ratings: CSV, TSV, Parquet or .dat file.", metavar="NEW"
        ),
        READ,
    ] = None
    removed: Annotated[
        Path | None,
        typer.Option(
            metavar="R",
            help="File of pairs whose ratings are removed; with the ratings, unless the model "
            "keeps them all.",
        ),
        READ,
    ] = None
    previous: Annotated[
        Path | None,
        typer.Option(
            metavar="P",
            help="File of the old values of ratings that NEW changes; for models that do not keep "
            "them all.",
        ),
        READ,
    ] = None
    columns: arguments.ColumnNames = None


def update(
    output: Output,
    model_file: arguments.Model,
    files: Files,
    feature_files: arguments.FeatureFiles,
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Model file to write, if not M."),
        WRITTEN,
        ".hemf",
    ] = None,
    batch_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Name of this batch; by default a digest of its files."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Learn the batch even if it was learnt before.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for another update of M."),
    ] = LOCK_TIMEOUT,
) -> None:
    """Update a saved model with new ratings.

    Users and items may be new, with features if the model was fitted with features; a pair in the
    model's history is a changed rating. After an error the model file is unchanged, unless the
    message says that it was written.

    A model file lists the last 1,000 batches. A batch in this list is not learnt again, so that an
    interrupted update can be repeated.
    """
    if files.data is None and files.removed is None and not feature_files.paths:
        raise ParameterError("nothing to learn: give a file of ratings, or --removed, or both")
    place = model_file if target is None else target
    if files.previous is not None and files.data is None:
        raise ParameterError("--previous holds old values of ratings; give the new ones, too")
    named = {"ratings": files.data, "removed": files.removed, "previous": files.previous}
    given = {name: [file] for name, file in named.items() if file is not None}
    others = [*(file for group in given.values() for file in group), *feature_files.paths]
    arguments.check_writable(place, apart_from=others, regular=True)
    if str(place) in output.aliases and target is None:
        raise ParameterError("the model is read from standard input; name the new file with -o")
    digest = digest_of(
        {
            **given,
            "user features": feature_files.user_features or [],
            "item features": feature_files.item_features or [],
        },
        files.columns,
    )
    batch_id = digest if batch_id is None else batch_id
    with file_lock(place, seconds=wait, waiting=output.remark):
        in_place = len({os.path.realpath(expand_home(path)) for path in (model_file, place)}) == 1
        expected = file_state(place) if in_place else True
        model = output.load_model(model_file)
        known = find(model.batches_, batch_id)
        if known is not None and not again:
            if not in_place:
                output.save_model(place, model)
            facts = _facts(model, place, batch_id)
            output.result(facts, lambda: _show_known(output, facts, same=known.digest == digest))
            return
        facts = learn(output, model, files, feature_files)
        batch = Batch(batch_id, digest, facts["ratings"])
        model.add_batch(batch)
        output.save_model(place, model, expected=expected)
    facts = {**_facts(model, place, batch_id), **facts, "applied": True}
    output.result(facts, lambda: _show(output, facts))


def digest_of(files: Mapping[str, Sequence[str | Path]], columns: str | None) -> str:
    """Return a digest of a batch: the content of its files, and the columns read."""
    digest = hashlib.sha256(repr((columns, [(n, len(f)) for n, f in files.items()])).encode())
    for path in (path for group in files.values() for path in group):
        with suppress(OSError), expand_home(path).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
            continue
        digest.update(repr(str(path)).encode())  # a data set by its name
    return digest.hexdigest()[:32]


def learn(
    output: Output, model: HeMF, files: Files, feature_files: arguments.FeatureFiles
) -> Document:
    """Learn a batch; return its figures."""
    columns, known = files.columns, {"users": model.ratings_.users, "items": model.ratings_.items}
    read = None if files.data is None else arguments.read_rows(output, files.data, columns, **known)
    rows: tuple[AnyArray, ...] | None = None
    if read is not None:
        assert read.ratings is not None
        times = () if read.timestamps is None else (read.timestamps,)
        rows = read.users.decode(), read.items.decode(), read.ratings, *times
    taken = None if files.removed is None else read_removed(model, files.removed, columns)
    old = None
    if files.previous is not None and rows is not None:
        old = read_previous(model, files.previous, columns, rows)
    features = feature_files.read(output, model.ratings_, columns, learning=False)
    before = model.n_users_, model.n_items_, model.n_ratings_
    begin = time.perf_counter()
    with output.status("learning"):
        model.partial_fit(rows, removed=taken, previous=old, **features)
    seconds = time.perf_counter() - begin
    n_taken = 0 if taken is None else len(taken[0])
    return {
        "ratings": 0 if read is None else len(read.users),
        "new_users": model.n_users_ - before[0],
        "new_items": model.n_items_ - before[1],
        "changed": changed(model, read, model.n_ratings_ - before[2] + n_taken),
        "removed": n_taken,
        "seconds": round(seconds, 3),
    }


def _facts(model: HeMF, place: Path, batch_id: str) -> Document:
    """Return the figures of an update without changes."""
    return {
        "users": model.n_users_,
        "items": model.n_items_,
        "ratings": 0,
        "new_users": 0,
        "new_items": 0,
        "changed": 0,
        "removed": 0,
        "user_communities": model.n_user_communities_,
        "item_communities": model.n_item_communities_,
        "seconds": 0.0,
        "model": str(place),
        "batch_id": batch_id,
        "applied": False,
    }


def read_known(model: HeMF, path: Path, columns: str | None) -> tuple[AnyArray, ...]:
    """Read users, items and ratings of a file; the model decides the type of ids."""
    from hemf.data.sources import read_columns

    chosen, known = arguments.parse_columns(columns), model.ratings_
    read = read_columns(path, chosen, users=known.users, items=known.items)
    assert read.ratings is not None
    return read.users.decode(), read.items.decode(), read.ratings


def read_removed(model: HeMF, path: Path, columns: str | None) -> tuple[AnyArray, ...]:
    """Read pairs to remove, with their ratings unless the model keeps all ratings."""
    from hemf.data.ratings import pairs_from_any

    if model.history != "full":
        return read_known(model, path, columns)
    chosen, known = arguments.parse_columns(columns), model.ratings_
    return pairs_from_any(path, chosen and chosen[:2], users=known.users, items=known.items)


def read_previous(
    model: HeMF, path: Path, columns: str | None, rows: tuple[AnyArray, ...]
) -> list[float]:
    """Return the old value of each rating by a file of some of them, NaN for others."""
    users, items, ratings = (column.tolist() for column in read_known(model, path, columns))
    before = dict(zip(zip(users, items, strict=True), ratings, strict=True))
    changed = list(zip(rows[0].tolist(), rows[1].tolist(), strict=True))
    strange = before.keys() - set(changed)
    if strange:
        user, item = min(strange, key=repr)
        raise DataError(
            f"{path}: the rating of item {item!r} by user {user!r} is not among those that change",
            value=(user, item),
        )
    return [before.get(pair, float("nan")) for pair in changed]


def changed(model: HeMF, read: Columns | None, added: int) -> int | None:
    """Return the number of changed ratings; None unless the model keeps all ratings."""
    if read is None:
        return 0
    if model.history != "full":
        return None
    pairs = set(zip(read.users.codes.tolist(), read.items.codes.tolist(), strict=True))
    return len(pairs) - added


def _show_known(output: Output, facts: Document, *, same: bool) -> None:
    output.line(f"batch {facts['batch_id']} has been learnt before; nothing was changed")
    output.line("To learn it once more, add --again; another batch needs another --batch-id.")
    if not same:
        output.remark("warning: the batch of that name had other content than this one")
    output.line(f"model: {facts['model']}", style="bold")


def _show(output: Output, facts: Document) -> None:
    of_these = f", {facts['changed']:,} of them changed ones" if facts["changed"] else ""
    output.line(f"{facts['ratings']:,} ratings learnt in {facts['seconds']:.1f} s{of_these}")
    if facts["removed"]:
        output.line(f"{facts['removed']:,} ratings removed")
    output.line(
        f"{facts['new_users']:,} new users, {facts['new_items']:,} new items; "
        f"{facts['users']:,} users and {facts['items']:,} items in all"
    )
    output.line(f"{facts['user_communities']} user × {facts['item_communities']} item communities")
    output.line(f"batch: {facts['batch_id']}")
    output.line(f"model: {facts['model']}", style="bold")
