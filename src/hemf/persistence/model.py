"""Models in files, versioned and free of pickles; the file is an `archive`.

``manifest.json`` holds what is plain in a model (parameters, hyper-parameters, history) and names
the members that hold its arrays. The ratings are kept by user; the table by item and the
standardised ratings follow from them, to the bit, when a model is opened.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemf._files import FileState, expand_home, library_version
from hemf._typing import SIDES
from hemf.batch.callbacks import SweepReport
from hemf.batch.sweep import BatchState
from hemf.data.ratings import Ratings, Sparse, transpose
from hemf.data.vocabulary import Vocabulary
from hemf.engines import engine_class
from hemf.errors import ModelFileError, ParameterError
from hemf.model.side import Side
from hemf.model.state import FittedModel, TrainingRecord
from hemf.online import batches
from hemf.online.learner import Fit, Learner
from hemf.online.state import OnlineState
from hemf.persistence.archive import (
    Archive,
    FileArchive,
    Members,
    MemoryArchive,
    decoded,
    described,
    encoded,
    encoded_ids,
    read_array,
    restored,
    write_archive,
)
from hemf.persistence.checks import (
    check_array,
    check_rated,
    check_scale,
    check_side,
    require,
    require_positive,
)
from hemf.persistence.online import (
    describe_given,
    describe_moods,
    describe_online,
    restore_given,
    restore_moods,
    restore_online,
)

FORMAT = "hemf-model"
VERSION = 1
MANIFEST = "manifest.json"

_PLAIN = ("noise", "unit", "sweeps", "seeded_at", "squared_error")
_SCALE = ("mean", "scale", "rating_range")


def save_model(
    params: Mapping[str, Any],
    fit: Fit,
    path: str | os.PathLike[str],
    *,
    expected: FileState | bool = True,
) -> None:
    """Write a fitted model to one file, all of it or nothing.

    The model is checked first as `load_model` does: one that could not be read again replaces
    nothing. ``expected`` is that of `hemf._files.atomic_write`. Equal models give equal files.
    """
    manifest, members = _described(params, fit)
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    try:
        _read_fit(MemoryArchive(members), json.loads(text))
    except Exception as error:
        raise ModelFileError(
            f"{path} was left as it was: the model is damaged ({error or type(error).__name__}) "
            "and could not be read again. Go on from the last model that was saved",
            value=str(path),
        ) from error
    write_archive(path, {MANIFEST: text, **members}, expected=expected)


def _described(params: Mapping[str, Any], fit: Fit) -> tuple[dict[str, Any], Members]:
    """Return what is plain in a model, and its arrays by the names of their members."""
    model, learner = fit.model, fit.learner
    state, held_out = model.state, model.held_out
    sides = state.sides if learner is None else learner.state.current_sides()
    # What is learnt online is kept in the order it came, among what is needed to go on.
    ratings = model.ratings if learner is None else _no_ratings(learner.users, learner.items)
    if held_out is not None and learner is not None:  # users and items may have come since
        held_out = Ratings.from_any(held_out, users=learner.users, items=learner.items)
    members: Members = {}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "library": library_version(),
        "params": {name: _parameter(name, value) for name, value in params.items()},
        "ids": {
            "user": _describe_ids("user", ratings.users.ids[: ratings.n_users], members),
            "item": _describe_ids("item", ratings.items.ids[: ratings.n_items], members),
        },
        "ratings": described(ratings.by_user, "ratings", members),
        "held_out": described(held_out and held_out.by_user, "held_out", members),
        "timestamps": described(ratings.timestamps, "ratings/timestamps", members),
        "held_out_timestamps": described(
            held_out and held_out.timestamps, "held_out/timestamps", members
        ),
        "sides": {side: described(sides[side], side, members) for side in SIDES},
        "features": {
            side: describe_given(given, side, members) for side, given in model.features.items()
        },
        "state": {name: encoded(getattr(state, name, None)) for name in _PLAIN},
        # What is learnt online has them among what is needed to go on.
        "moods": describe_moods(state.moods if isinstance(state, BatchState) else None, members),
        "online": learner and describe_online(learner.state, members),
        "coupled": model.coupled,
        "fitted": {name: encoded(getattr(model, name)) for name in _SCALE},
        "converged": fit.converged,
        # Not the time they took: equal fits are equal files.
        "history": [
            described(replace(report, seconds=math.nan), "history", members)
            for report in fit.history
        ],
        "batches": [list(batch) for batch in fit.batches],
    }
    return manifest, members


def check_ids(ratings: Ratings) -> None:
    """Raise what `save_model` would of ids that no model file can hold, before a fit is spent.

    >>> import datetime
    >>> check_ids(Ratings.from_any([("ann", datetime.date(2024, 2, 29), 5)]))
    Traceback (most recent call last):
    hemf.errors.DataError: item datetime.date(2024, 2, 29) cannot be saved: ids in a model file ...
    """
    _describe_ids("user", ratings.users.ids[: ratings.n_users], {})
    _describe_ids("item", ratings.items.ids[: ratings.n_items], {})


def load_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Fit]:
    """Read the parameters and the fit that `save_model` wrote.

    Anything else, a damaged file and one of a newer format are a `ModelFileError`.
    """
    with _opened(path) as archive:
        manifest = _read_manifest(archive, str(path))
        archive.check_sums()  # before any of it is believed
        params = {name: decoded(form) for name, form in manifest["params"].items()}
        return params, _read_fit(archive, manifest)


def read_versions(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the version of a model file's format, and that of the library that wrote it."""
    with _opened(path) as archive:
        manifest = _read_manifest(archive, str(path))
        return {
            "format_version": manifest["version"],
            "library_version": str(manifest.get("library")),
        }


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileArchive]:
    """Open a model file; whatever goes wrong with it is a `ModelFileError`."""
    place = expand_home(path)
    if place.exists() and not place.is_file():
        what = "a directory" if place.is_dir() else "a device"
        raise ModelFileError(f"{path} is {what}; give a model file", value=str(path))
    try:
        stream = place.open("rb")
    except FileNotFoundError:
        raise ModelFileError(
            f"{path}: no such file; fit a model and save it there first", value=str(path)
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be opened: {error.strerror or error}", value=str(path)
        ) from error
    with stream:
        try:
            if stream.read(2) != b"PK":
                raise ModelFileError(
                    f"{path} is not a hemf model; give a file that save wrote", value=str(path)
                )
            yield FileArchive(stream)
        except ModelFileError:
            raise
        except Exception as error:  # zip, NumPy and JSON fail on damaged bytes in many ways
            raise ModelFileError(
                f"{path} is damaged or incomplete ({error or type(error).__name__}); use another "
                "copy of it, or fit and save the model again",
                value=str(path),
            ) from error


def _read_manifest(archive: Archive, path: str) -> dict[str, Any]:
    if MANIFEST not in archive.names:
        raise ModelFileError(
            f"{path} is not a hemf model: it has no {MANIFEST}; give a file that save wrote",
            value=path,
        )
    manifest = json.loads(archive.read(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError(
            f"{path} is not a hemf model: its {MANIFEST} is of another format; give a file that "
            "save wrote",
            value=path,
        )
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > VERSION:
        raise ModelFileError(
            f"{path} was written by hemf {manifest.get('library')} in format {version}; hemf "
            f"{library_version()} reads up to format {VERSION}. Upgrade hemf to open it",
            value=path,
        )
    return manifest


def _read_fit(archive: Archive, manifest: dict[str, Any]) -> Fit:
    mean, scale, limits = (decoded(manifest["fitted"][name]) for name in _SCALE)
    check_scale(mean, scale, limits)
    ratings = _restore_ratings(manifest, archive)
    # The saved numbers, so that the sums of another machine do not change the last digit.
    ratings = ratings.with_scale(mean, scale)
    held_out = _restore_held_out(manifest, archive, ratings)
    features = {
        side: restore_given(form, side, archive) for side, form in manifest["features"].items()
    }
    sides = {side: restored(Side, manifest["sides"][side], archive) for side in SIDES}
    user, item = sides["user"], sides["item"]
    is_online = manifest["online"] is not None
    check_side(user, "user", ratings.n_users, is_online=is_online)
    check_side(item, "item", ratings.n_items, is_online=is_online)
    check_rated(sides, is_online=is_online)
    require(user.layout.total == item.layout.total, "the sides' vectors differ in length")
    dtype = user.moments.mean.dtype
    require(item.moments.mean.dtype == dtype, "the sides differ in their type")
    learner: Learner | None = None
    state: BatchState | OnlineState
    if is_online:
        state = restore_online(manifest["online"], sides, archive)
        learner = Learner(state, ratings.users, ratings.items)
    else:
        plain = {name: decoded(form) for name, form in manifest["state"].items()}
        plain |= {name: float(plain[name]) for name in ("noise", "unit")}
        has_moods = manifest["moods"] is not None
        if has_moods and ratings.timestamps is None:
            raise ValueError("it has moods, and no times")
        engine = engine_class("threads").load(
            ratings,
            dtype=dtype.type,
            n_jobs=decoded(manifest["params"]["n_jobs"]),
            sessions=has_moods,
        )
        state = BatchState(sides=sides, engine=engine, **plain)
        if has_moods:
            restore_moods(manifest["moods"], state, archive)
    require_positive("state", state.noise, state.unit)
    model = FittedModel(
        components={"ratings": state},
        record=learner or TrainingRecord(ratings),
        mean=mean,
        scale=scale,
        rating_range=limits,
        coupled=bool(manifest["coupled"]),
        features=features,
        held_out=held_out,
    )
    return Fit(
        model,
        history=[restored(SweepReport, form, archive) for form in manifest["history"]],
        converged=bool(decoded(manifest["converged"])),
        batches=batches.restore(manifest["batches"]),
        learner=learner,
    )


def _no_ratings(users: Vocabulary, items: Vocabulary) -> Ratings:
    nothing = np.empty(0, np.int32)
    return Ratings.from_rows(users, items, nothing, nothing, np.empty(0, np.float32))


def _restore_ratings(manifest: dict[str, Any], archive: Archive) -> Ratings:
    users, items = (_restore_ids(side, manifest["ids"][side], archive) for side in SIDES)
    table = _restore_table(manifest["ratings"], archive, len(users), len(items))
    timestamps = _restore_timestamps(manifest["timestamps"], archive, table)
    return Ratings(users, items, table, transpose(table, len(items)), timestamps)


def _restore_held_out(
    manifest: dict[str, Any], archive: Archive, ratings: Ratings
) -> Ratings | None:
    if manifest["held_out"] is None:
        return None
    table = _restore_table(manifest["held_out"], archive, ratings.n_users, ratings.n_items)
    timestamps = _restore_timestamps(manifest["held_out_timestamps"], archive, table)
    by_item = transpose(table, ratings.n_items)
    return Ratings(ratings.users, ratings.items, table, by_item, timestamps)


def _restore_timestamps(form: Any, archive: Archive, table: Sparse) -> NDArray[np.int64] | None:
    if form is None:
        return None
    timestamps = read_array(archive, form["array"])
    check_array("ratings", timestamps, np.int64, (table.values.size,))
    return timestamps


def _restore_table(form: Any, archive: Archive, n_users: int, n_items: int) -> Sparse:
    table = restored(Sparse, form, archive)
    indptr, indices = table.indptr, table.indices
    n_ratings = (table.values.size,)
    check_array("ratings", indptr, np.int64, (n_users + 1,))
    check_array("ratings", indices, np.int32, n_ratings)
    single = table.values.dtype == np.float32
    check_array("ratings", table.values, np.float32 if single else np.float64, n_ratings)
    # What is out of range here would be out of bounds in compiled code.
    ordered = indptr[0] == 0 and indptr[-1] == indices.size and bool((np.diff(indptr) >= 0).all())
    require(ordered, "ratings: rows overlap")
    inside = not indices.size or (int(indices.min()) >= 0 and int(indices.max()) < n_items)
    require(inside, "ratings: one is of an item that is not there")
    return table


def _describe_ids(side: str, ids: NDArray[Any], members: Members) -> str:
    """Put the ids of a side among the members, and return the way they are kept."""
    if ids.dtype == np.int64:
        members[f"{side}/ids.npy"] = ids
        return "integers"
    values = ids.tolist()
    if all(type(value) is str for value in values):
        import pyarrow as pa

        with suppress(UnicodeEncodeError):  # half a surrogate pair is text that UTF-8 lacks
            _, ends, text = pa.array(values, pa.large_string()).buffers()
            ends = np.frombuffer(ends, np.int64, count=len(values) + 1)
            members[f"{side}/ids-ends.npy"] = ends
            members[f"{side}/ids-text.npy"] = np.frombuffer(text or b"", np.uint8)[: ends[-1]]
            return "text"
    members[f"{side}/ids.json"] = encoded_ids(values, side)
    return "values"


def _restore_ids(side: str, kept_as: str, archive: Archive) -> Vocabulary:
    from hemf.data.vocabulary import CodedIds

    distinct: Any
    if kept_as == "integers":
        distinct = read_array(archive, f"{side}/ids.npy")
        check_array(side, distinct, np.int64, (distinct.size,))
        n_different = np.unique(distinct).size
    elif kept_as == "text":
        import pyarrow as pa

        ends = read_array(archive, f"{side}/ids-ends.npy")
        text = read_array(archive, f"{side}/ids-text.npy")
        check_array(side, ends, np.int64, (max(ends.size, 1),))
        check_array(side, text, np.uint8, (text.size,))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
        distinct = pa.Array.from_buffers(pa.large_string(), ends.size - 1, buffers)
        distinct.validate(full=True)
        n_different = len(distinct.unique())
    else:
        require(kept_as == "values", f"{side}: ids are kept as {kept_as!r}")
        values = [decoded(form) for form in json.loads(archive.read(f"{side}/ids.json"))]
        distinct = np.fromiter(values, object, count=len(values))
        n_different = len(set(values))
    require(n_different == len(distinct), f"{side}: an id is there twice")
    vocabulary = Vocabulary()
    vocabulary.add_coded(CodedIds(np.arange(len(distinct), dtype=np.int32), distinct))
    return vocabulary


def _parameter(name: str, value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return None  # its state belongs to whoever made it
    try:
        return encoded(value.tolist() if isinstance(value, np.ndarray) else value)
    except TypeError as error:
        raise ParameterError(f"{name}={value!r} cannot be saved: {error}", value=value) from None
