"""``hemf update``: a kept model learns what has happened since."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf._files import LOCK_TIMEOUT, expand_home, file_lock, file_state
from hemf.cli import arguments
from hemf.cli.arguments import ItemFeatures, UserFeatures, read_features
from hemf.cli.output import READ, WRITTEN, Output
from hemf.errors import DataError, ParameterError
from hemf.online.batches import Batch, find

if TYPE_CHECKING:
    from hemf import HeMF
    from hemf.data.sources import Columns


def update(
    output: Output,
    model_file: arguments.Model,
    data: Annotated[
        str | None,
        typer.Argument(
            help="New and changed ratings: CSV, TSV, Parquet or .dat file.", metavar="NEW"
        ),
        READ,
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where to keep the new model, if not in M."
        ),
        WRITTEN,
        ".hemf",
    ] = None,
    removed: Annotated[
        Path | None,
        typer.Option(
            metavar="R",
            help="File of pairs whose ratings are taken back; with the ratings, unless the model "
            "keeps them all.",
        ),
        READ,
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            metavar="P",
            help="File of ratings that NEW changes, as they were before; for models that do not "
            "keep them all.",
        ),
        READ,
    ] = None,
    user_features: UserFeatures = None,
    item_features: ItemFeatures = None,
    columns: arguments.ColumnNames = None,
    batch_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Name of this batch; a digest of its files without."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Learn the batch even if the model has learnt it.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for another update of M."),
    ] = LOCK_TIMEOUT,
) -> None:
    """Let a kept model learn new ratings.

    New users and items are welcome, with features if the model has learnt what these mean; a pair
    that the model remembers is a changed rating. When anything is wrong, the model stays as it was.

    A model remembers the last 1,000 batches that it has learnt: one of these is not learnt again,
    so that an update that was interrupted can simply be repeated.
    """
    from hemf import HeMF

    told = [*(user_features or ()), *(item_features or ())]
    if data is None and removed is None and not told:
        raise ParameterError("nothing to learn: give a file of ratings, or --removed, or both")
    place = model_file if target is None else target
    if previous is not None and data is None:
        raise ParameterError("--previous says what ratings were before; give the new ones, too")
    others = [file for file in (data, removed, previous, *told) if file is not None]
    arguments.check_writable(place, apart_from=others, regular=True)
    if str(place) in output.aliases and target is None:
        raise ParameterError("the model is read from standard input; say with -o where to keep it")
    files = {"ratings": data, "removed": removed, "previous": previous}
    digest = digest_of(
        {
            **{name: [file] for name, file in files.items() if file is not None},
            "user features": user_features or [],
            "item features": item_features or [],
        },
        columns,
    )
    batch_id = digest if batch_id is None else batch_id
    with file_lock(place, seconds=wait, waiting=output.remark):
        in_place = len({os.path.realpath(expand_home(path)) for path in (model_file, place)}) == 1
        expected = file_state(place) if in_place else True
        with output.status(f"reading {model_file}"):
            model = HeMF.load(model_file)
        known = find(model.batches_, batch_id)
        if known is not None and not again:
            if not in_place:
                model.save(place)
            facts = _facts(model, place, batch_id)
            output.result(facts, lambda: _show_known(output, facts, same=known.digest == digest))
            return
        facts = learn(output, model, data, removed, previous, user_features, item_features, columns)
        batch = Batch(batch_id, digest, facts["ratings"])
        model.add_batch(batch)
        with output.status(f"writing {place}"):
            model.save(place, expected=expected)
    facts = {**_facts(model, place, batch_id), **facts, "applied": True}
    output.result(facts, lambda: _show(output, facts))


def digest_of(files: dict[str, list[Any]], columns: str | None) -> str:
    """Return what tells one batch from another: the content of its files, and how it is read."""
    digest = hashlib.sha256(repr((columns, [(n, len(f)) for n, f in files.items()])).encode())
    for path in (path for group in files.values() for path in group):
        with suppress(OSError), expand_home(path).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
            continue
        digest.update(repr(str(path)).encode())  # a data set by its name
    return digest.hexdigest()[:32]


def learn(
    output: Output,
    model: HeMF,
    data: str | None,
    removed: Path | None,
    previous: Path | None,
    user_features: list[Path] | None,
    item_features: list[Path] | None,
    columns: str | None,
) -> dict[str, Any]:
    """Let a model learn a batch, and return what that was."""
    from hemf.cli.stream import read_rows

    known = {"users": model.ratings_.users, "items": model.ratings_.items}
    read = None if data is None else read_rows(output, data, columns, **known)
    rows: tuple[Any, ...] | None = None
    if read is not None:
        times = () if read.timestamps is None else (read.timestamps,)
        rows = read.users.decode(), read.items.decode(), read.ratings, *times
    taken = None if removed is None else read_removed(model, removed, columns)
    old = (
        None if previous is None or rows is None else read_previous(model, previous, columns, rows)
    )
    features = read_features(
        output, model.ratings_, columns, user=user_features, item=item_features, learning=False
    )
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


def _facts(model: HeMF, place: Path, batch_id: str) -> dict[str, Any]:
    """Return the message about an update that learnt nothing."""
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


def read_removed(model: HeMF, path: Path, columns: str | None) -> tuple[Any, ...]:
    """Read what is to be taken back: pairs, and their ratings where the model does not know them.

    A model that keeps all ratings does.
    """
    from hemf.data.ratings import pairs_from_any
    from hemf.data.sources import read_columns

    chosen, known = arguments.parse_columns(columns), model.ratings_
    if model.history == "full":
        pairs = chosen and chosen[:2]
        return pairs_from_any(path, pairs, users=known.users, items=known.items)
    read = read_columns(path, chosen, users=known.users, items=known.items)
    return read.users.decode(), read.items.decode(), read.ratings


def read_previous(model: HeMF, path: Path, columns: str | None, rows: Any) -> list[float]:
    """Return what each of these ratings was before by a file of some of them, NaN for others."""
    from hemf.data.sources import read_columns

    known = model.ratings_
    chosen = arguments.parse_columns(columns)
    read = read_columns(path, chosen, users=known.users, items=known.items)
    assert read.ratings is not None
    pairs = zip(read.users.decode().tolist(), read.items.decode().tolist(), strict=True)
    before = dict(zip(pairs, read.ratings.tolist(), strict=True))
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
    """Return how many ratings were of pairs rated before; None where the model does not know."""
    if read is None:
        return 0
    if model.history != "full":
        return None
    pairs = set(zip(read.users.codes.tolist(), read.items.codes.tolist(), strict=True))
    return len(pairs) - added


def _show_known(output: Output, facts: dict[str, Any], *, same: bool) -> None:
    output.line(f"batch {facts['batch_id']} has been learnt already; nothing was changed")
    output.line("To learn it once more, add --again; another batch needs another --batch-id.")
    if not same:
        output.remark("warning: the batch of that name held something else than this one")
    output.line(f"model: {facts['model']}", style="bold")


def _show(output: Output, facts: dict[str, Any]) -> None:
    of_these = f", {facts['changed']:,} of them changed ones" if facts["changed"] else ""
    output.line(f"{facts['ratings']:,} ratings learnt in {facts['seconds']:.1f} s{of_these}")
    if facts["removed"]:
        output.line(f"{facts['removed']:,} ratings taken back")
    output.line(
        f"{facts['new_users']:,} new users, {facts['new_items']:,} new items; "
        f"{facts['users']:,} users and {facts['items']:,} items in all"
    )
    output.line(f"{facts['user_communities']} user × {facts['item_communities']} item communities")
    output.line(f"batch: {facts['batch_id']}")
    output.line(f"model: {facts['model']}", style="bold")
