"""Models in files, versioned and free of pickles; see `hemf.archive` for the file itself.

``manifest.json`` holds what is plain in a model (parameters, hyper-parameters, history) and names
the members that hold its arrays. The ratings are kept by user; the table by item and the
standardised ratings follow from them, to the bit, when a model is opened.
"""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hemf.archive import (
    Members,
    decoded,
    described,
    encoded,
    encoded_ids,
    read_array,
    restored,
    write_archive,
)
from hemf.errors import ModelFileError, ParameterError
from hemf.moods_io import describe_moods, restore_moods
from hemf.ratings import Ratings, Sparse, transposed
from hemf.training import standardised
from hemf.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hemf.estimator import HeMF
    from hemf.model.regression import Regression
    from hemf.model.side import Side

FORMAT = "hemf-model"
VERSION = 4  # since 2, models that learn online; 3, features and moods; 4, doubts of features
MANIFEST = "manifest.json"

_SIDES = ("user", "item")
_PLAIN = ("noise", "unit", "sweeps", "seeded_at", "squared_error")
_FITTED = ("global_mean_", "rating_scale_", "rating_range_", "converged_")
_Model = TypeVar("_Model", bound="HeMF")


def save_model(model: HeMF, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, all of it or nothing.

    >>> import tempfile
    >>> from hemf import HeMF
    >>> model = HeMF(n_factors=1, max_sweeps=1).fit([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> path = Path(tempfile.mkdtemp()) / "model.hemf"
    >>> save_model(model, path)
    >>> load_model(HeMF, path).predict("ann", "tea") == model.predict("ann", "tea")
    np.True_
    """
    from hemf.features_io import describe_given
    from hemf.online_io import describe_online

    state, held_out, learner = model._fitted(), model.held_out_, model._learner
    # What is learnt online is kept in the order it came, among what is needed to go on.
    ratings = model.ratings_ if learner is None else _no_ratings(learner.users, learner.items)
    if held_out is not None and learner is not None:  # users and items may have come since
        held_out = Ratings.from_any(held_out, users=learner.users, items=learner.items)
    members: Members = {}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "library": _library_version(),
        "params": {name: _parameter(name, value) for name, value in model.get_params().items()},
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
        "sides": {side: described(state.sides[side], side, members) for side in _SIDES},
        "features": {
            side: describe_given(given, side, members) for side, given in model._given.items()
        },
        "state": {name: encoded(getattr(state, name, None)) for name in _PLAIN},
        # What is learnt online has them among what is needed to go on.
        "moods": describe_moods(
            getattr(state, "moods", None) if learner is None else None, members
        ),
        "online": learner and describe_online(learner.state, members),
        "coupled": model._coupled,
        "fitted": {name: encoded(getattr(model, name)) for name in _FITTED},
        "history": [described(report, "history", members) for report in model.history_],
    }
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    write_archive(path, {MANIFEST: text, **members})


def check_ids(ratings: Ratings) -> None:
    """Raise what `save_model` would of ids that no model file can hold, before a fit is spent.

    >>> import datetime
    >>> check_ids(Ratings.from_any([("ann", datetime.date(2024, 2, 29), 5)]))
    Traceback (most recent call last):
    hemf.errors.DataError: item datetime.date(2024, 2, 29) cannot be saved: ids in a model file ...
    """
    _describe_ids("user", ratings.users.ids[: ratings.n_users], {})
    _describe_ids("item", ratings.items.ids[: ratings.n_items], {})


def load_model(cls: type[_Model], path: str | os.PathLike[str]) -> _Model:
    """Read a model that `save_model` wrote; see there.

    Anything else, a damaged file and one of a newer format are a `ModelFileError`.
    """
    place = Path(path).expanduser()
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
            with zipfile.ZipFile(stream) as archive:
                manifest = _read_manifest(archive, str(path))
                return _read_model(cls, archive, manifest)
        except ModelFileError:
            raise
        except Exception as error:  # zip, NumPy and JSON fail on damaged bytes in many ways
            raise ModelFileError(
                f"{path} is damaged or incomplete ({error or type(error).__name__}); use another "
                "copy of it, or fit and save the model again",
                value=str(path),
            ) from error


def _read_manifest(archive: zipfile.ZipFile, path: str) -> dict[str, Any]:
    if MANIFEST not in archive.namelist():
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
            f"{_library_version()} reads up to format {VERSION}. Upgrade hemf to open it",
            value=path,
        )
    return manifest


def _read_model(cls: type[_Model], archive: zipfile.ZipFile, manifest: dict[str, Any]) -> _Model:
    from hemf.inference.batch import BatchState
    from hemf.inference.callbacks import SweepReport
    from hemf.model.side import Side

    damaged = archive.testzip()  # before any of it is believed
    _require(damaged is None, f"the checksum of {damaged} is wrong")
    model = cls(**{name: decoded(form) for name, form in manifest["params"].items()})
    for name in _FITTED:
        setattr(model, name, decoded(manifest["fitted"][name]))
    _check_scale(model.global_mean_, model.rating_scale_, model.rating_range_)
    ratings = model._table = _restore_ratings(manifest, archive)
    model.held_out_ = _restore_held_out(manifest, archive, ratings)
    for side, form in manifest.get("features", {}).items():
        from hemf.features_io import restore_given

        model._given = {**model._given, side: restore_given(form, side, archive)}
    # The saved numbers, so that the sums of another machine do not change the last digit.
    vars(ratings).update(mean=model.global_mean_, scale=model.rating_scale_)
    model.history_ = [restored(SweepReport, form, archive) for form in manifest["history"]]
    sides = {side: restored(Side, manifest["sides"][side], archive) for side in _SIDES}
    if manifest["version"] < 4:
        for own in sides.values():
            own.regression = own.regression and own.regression.without_doubt()
    user, item = sides["user"], sides["item"]
    is_online = manifest.get("online") is not None
    _check_side(user, "user", ratings.n_users, is_online=is_online)
    _check_side(item, "item", ratings.n_items, is_online=is_online)
    _require(user.layout.total == item.layout.total, "the sides' vectors differ in length")
    dtype = user.moments.mean.dtype
    _require(item.moments.mean.dtype == dtype, "the sides differ in their type")
    if is_online:
        from hemf.online_io import restore_online
        from hemf.streaming import Learner

        online = restore_online(manifest["online"], sides, archive)
        _require_positive("state", online.noise, online.unit)
        model._adopt(online, coupled=True)
        model._learner = Learner(online, ratings.users, ratings.items)
        return model
    plain = {name: decoded(form) for name, form in manifest["state"].items()}
    state = BatchState(sides=sides, rows=standardised(ratings, dtype.type), **plain)
    _require_positive("state", state.noise, state.unit)
    if manifest.get("moods") is not None:
        restore_moods(manifest["moods"], state, ratings.timestamps, archive)
    # Files of before it was kept say how the fit was made in the parameter alone.
    coupled = manifest.get("coupled", model.membership == "coupled")
    model._adopt(state, coupled=bool(coupled))
    return model


def _check_scale(mean: Any, scale: Any, ends: Any) -> None:
    _require(np.isfinite(mean), f"the mean of the ratings is {mean}")
    _require_positive("scale of the ratings", scale)
    ordered = ends is None or bool(np.isfinite(ends).all() and ends[0] <= ends[1])
    _require(ordered, f"the range of the ratings is {ends}")


def _check_side(side: Side, name: str, n_rows: int, *, is_online: bool) -> None:
    """Hold every array against the shape and type that `hemf.model` documents."""
    layout, count = side.layout, side.communities.count
    order, covariances = layout.order, side.communities.dof.size
    _require(layout.pinned in (-1, _SIDES.index(name)), f"{name}: it has a wrong {layout}")
    _require(covariances in (1, count), f"{name}: {covariances} covariances for {count}")
    storage = side.moments.mean.dtype
    _require(storage in (np.float32, np.float64), f"{name}: its factors are {storage}")
    by_row: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (side.membership, (n_rows, count)),
        (side.moments.mean, (n_rows, layout.total)),
        (side.moments.second, (n_rows, layout.packed)),
    ]
    for array, shape in by_row:
        _check(name, array, storage, shape)
        _require(array.flags.c_contiguous, f"{name}: an array is transposed")
    shared: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (side.prior.centre, (order,)),
        (side.prior.scale, (order, order)),
        (side.statistics.size, (count,)),
        (side.statistics.first, (count, order)),
        (side.statistics.scatter, (covariances, order, order)),
        (side.communities.sticks.taken, (count,)),
        (side.communities.sticks.left, (count,)),
        (side.communities.mean, (count, order)),
        (side.communities.strength, (count,)),
        (side.communities.scale, (covariances, order, order)),
        (side.communities.dof, (covariances,)),
    ]
    if side.noise_scales is not None:
        shared += [(side.noise_scales.shape, (n_rows,)), (side.noise_scales.rate, (n_rows,))]
    if side.regression is not None:
        rows = side.regression.design.n_rows
        _require(rows == n_rows or (is_online and rows < n_rows), f"{name}: features of others")
        _check_regression(side.regression, name, rows, order)
    for array, shape in shared:
        _check(name, array, np.float64, shape)
    _check_numbers(side, name)


def _check_regression(regression: Regression, name: str, n_rows: int, order: int) -> None:
    design = regression.design
    _check(name, design.widths, np.int64, (len(design.names),))
    _check(name, design.indptr, np.int64, (n_rows + 1,))
    _check(name, design.indices, np.int32, (design.values.size,))
    _check(name, design.values, design.values.dtype, (design.values.size,))
    design.matrix.check_format(full_check=True)
    _check(name, regression.coefficients, np.float64, (design.n_columns, order))
    _check(name, regression.precision, np.float64, design.widths.shape)
    _check(name, regression.spread.trace, np.float64, design.widths.shape)
    _check(name, regression.told, np.float64, (n_rows,))
    _check(name, regression.doubt, np.float64, (n_rows,))
    _require(bool((regression.told >= 0.0).all()), f"{name}: less than nothing is told of a row")
    _require(bool((regression.doubt >= 0.0).all()), f"{name}: a doubt is below 0")
    _require_positive(name, regression.precision)


def _check_numbers(side: Side, name: str) -> None:
    """Refuse what no fit can have ended in."""
    prior, both, scales = side.prior, side.communities, side.noise_scales
    _require(bool((side.membership >= 0.0).all()), f"{name}: a probability is below 0")
    _require_positive(name, prior.concentration, prior.spread, prior.dof)
    _require_positive(name, both.strength, both.dof, both.sticks.taken, both.sticks.left)
    _require_positive(name, np.diagonal(prior.scale), np.diagonal(both.scale, axis1=1, axis2=2))
    if scales is not None:  # noise has an expectation for shapes above 1 only
        _require_positive(name, scales.prior_shape - 1.0, scales.shape - 1.0, scales.rate)


def _no_ratings(users: Vocabulary, items: Vocabulary) -> Ratings:
    nothing = np.empty(0, np.int32)
    return Ratings.from_rows(users, items, nothing, nothing, np.empty(0, np.float32))


def _restore_ratings(manifest: dict[str, Any], archive: zipfile.ZipFile) -> Ratings:
    users, items = (_restore_ids(side, manifest["ids"][side], archive) for side in _SIDES)
    table = _restore_table(manifest["ratings"], archive, len(users), len(items))
    timestamps = _restore_timestamps(manifest["timestamps"], archive, table)
    return Ratings(users, items, table, transposed(table, len(items)), timestamps)


def _restore_held_out(
    manifest: dict[str, Any], archive: zipfile.ZipFile, ratings: Ratings
) -> Ratings | None:
    if manifest["held_out"] is None:
        return None
    table = _restore_table(manifest["held_out"], archive, ratings.n_users, ratings.n_items)
    timestamps = _restore_timestamps(manifest.get("held_out_timestamps"), archive, table)
    by_item = transposed(table, ratings.n_items)
    return Ratings(ratings.users, ratings.items, table, by_item, timestamps)


def _restore_timestamps(
    form: Any, archive: zipfile.ZipFile, table: Sparse
) -> NDArray[np.int64] | None:
    if form is None:
        return None
    timestamps = read_array(archive, form["array"])
    _check("ratings", timestamps, np.int64, (table.values.size,))
    return timestamps


def _restore_table(form: Any, archive: zipfile.ZipFile, n_users: int, n_items: int) -> Sparse:
    table = restored(Sparse, form, archive)
    indptr, indices = table.indptr, table.indices
    n_ratings = (table.values.size,)
    _check("ratings", indptr, np.int64, (n_users + 1,))
    _check("ratings", indices, np.int32, n_ratings)
    single = table.values.dtype == np.float32
    _check("ratings", table.values, np.float32 if single else np.float64, n_ratings)
    # What is out of range here would be out of bounds in compiled code.
    ordered = indptr[0] == 0 and indptr[-1] == indices.size and bool((np.diff(indptr) >= 0).all())
    _require(ordered, "ratings: rows overlap")
    inside = not indices.size or (int(indices.min()) >= 0 and int(indices.max()) < n_items)
    _require(inside, "ratings: one is of an item that is not there")
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


def _restore_ids(side: str, kept_as: str, archive: zipfile.ZipFile) -> Vocabulary:
    from hemf.reading.identifiers import CodedIds

    distinct: Any
    if kept_as == "integers":
        distinct = read_array(archive, f"{side}/ids.npy")
        _check(side, distinct, np.int64, (distinct.size,))
        n_different = np.unique(distinct).size
    elif kept_as == "text":
        import pyarrow as pa

        ends = read_array(archive, f"{side}/ids-ends.npy")
        text = read_array(archive, f"{side}/ids-text.npy")
        _check(side, ends, np.int64, (max(ends.size, 1),))
        _check(side, text, np.uint8, (text.size,))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
        distinct = pa.Array.from_buffers(pa.large_string(), ends.size - 1, buffers)
        distinct.validate(full=True)
        n_different = len(distinct.unique())
    else:
        _require(kept_as == "values", f"{side}: ids are kept as {kept_as!r}")
        values = [decoded(form) for form in json.loads(archive.read(f"{side}/ids.json"))]
        distinct = np.fromiter(values, object, count=len(values))
        n_different = len(set(values))
    _require(n_different == len(distinct), f"{side}: an id is there twice")
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


def _check(where: str, array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> None:
    _require(
        array.dtype == dtype and array.shape == shape,
        f"{where}: an array is {array.dtype} {array.shape} instead of {np.dtype(dtype)} {shape}",
    )
    _require(bool(np.isfinite(array).all()), f"{where}: a number is missing or infinite")


def _require_positive(where: str, *values: Any) -> None:
    for value in values:
        positive = bool(np.all(np.isfinite(value)) and np.all(np.greater(value, 0.0)))
        _require(positive, f"{where}: a number that must be above 0 is not")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _library_version() -> str:
    from hemf import __version__

    return __version__
