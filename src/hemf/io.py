"""Models in files: one zip of ``manifest.json`` and ``.npy`` arrays, and never a pickle.

The zip is stored, not compressed, and holds no clock time: the same model gives the same bytes.
What is plain in a model (parameters, hyper-parameters, history) is in the manifest; every array
is a member of its own, which the manifest names. The ratings are kept by user; the table by item
and the standardised ratings follow from them, to the bit, when a model is opened.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, get_type_hints
from uuid import UUID

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hemf.errors import DataError, ModelFileError, ParameterError
from hemf.ratings import Ratings, Sparse, _transposed
from hemf.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hemf.estimator import HeMF
    from hemf.inference.batch import BatchState
    from hemf.model.side import Side

FORMAT = "hemf-model"
VERSION = 1
MANIFEST = "manifest.json"

_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member; a zip cannot go without a time
_SIDES = ("user", "item")
_MEMBERS = Callable[[str], NDArray[Any]]
_Model = TypeVar("_Model", bound="HeMF")
_Kind = TypeVar("_Kind")

# Values that JSON has no form for, as {tag: text}.
_TAGGED: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),  # beyond 64 bits; hex has no limit on digits
    "float": (float, repr, float),  # NaN and infinities
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "date": (date, date.isoformat, date.fromisoformat),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "uuid": (UUID, str, UUID),
}


# -- writing -----------------------------------------------------------------------------------


def save_model(model: HeMF, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, all of it or nothing.

    >>> import tempfile
    >>> from hemf import HeMF
    >>> model = HeMF(n_factors=1, max_sweeps=1).fit([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> path = Path(tempfile.mkdtemp()) / "model.hemf"
    >>> save_model(model, path)
    >>> load_model(HeMF, path)
    HeMF(max_sweeps=1, n_factors=1)
    """
    state = model._fitted()
    members: dict[str, NDArray[Any] | bytes] = {}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "library": _library_version(),
        "params": {name: _parameter(name, value) for name, value in model.get_params().items()},
        "ratings": _describe_ratings(model.ratings_, members),
        "ids": {
            side: _describe_ids(side, vocabulary.ids[:n_rows], members)
            for side, vocabulary, n_rows in (
                ("user", model.ratings_.users, model.ratings_.n_users),
                ("item", model.ratings_.items, model.ratings_.n_items),
            )
        },
        "sides": {side: _describe(state.sides[side], side, members) for side in _SIDES},
        "state": {
            field.name: encoded(getattr(state, field.name)) for field in _plain_fields(state)
        },
        "fitted": {
            "global_mean": encoded(model.global_mean_),
            "rating_scale": encoded(model.rating_scale_),
            "rating_range": encoded(model.rating_range_),
            "converged": encoded(model.converged_),
        },
        "history": [_describe(report, "history", members) for report in model.history_],
    }
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    with _replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, content in {MANIFEST: text, **members}.items():
            _write_member(archive, name, content)


def _write_member(archive: zipfile.ZipFile, name: str, content: NDArray[Any] | bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.create_system = 3  # the same bytes on every system
    info.external_attr = 0o644 << 16
    with archive.open(info, "w", force_zip64=True) as member:
        if isinstance(content, bytes):
            member.write(content)
        else:
            npy.write_array(member, content, allow_pickle=False)  # in pieces, without a copy


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once everything is on the disk, and only then.

    Whatever goes wrong before, an older file stays as it was and nothing is left beside it.
    """
    target = Path(os.path.realpath(Path(path).expanduser()))  # a link stays a link
    if target.is_dir():
        raise ModelFileError(f"{path} is a directory; give the name of a file", value=str(path))
    if target.exists() and not target.is_file():
        raise ModelFileError(f"{path} is a device, not a file; choose another", value=str(path))
    temporary = target.with_name(f".hemf-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise ModelFileError(
            f"{path} could not be saved: {error.strerror or error}; nothing was changed. Make "
            "room, or choose a folder that exists and may be written to",
            value=str(path),
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    """Make the new name last through a loss of power, on systems that can."""
    if os.name != "posix":
        return
    with suppress(OSError):  # the model is in its place; some file systems know no such flush
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# -- reading -----------------------------------------------------------------------------------


def load_model(cls: type[_Model], path: str | os.PathLike[str]) -> _Model:
    """Read a model that `save_model` wrote.

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
        if stream.read(2) != b"PK":
            raise ModelFileError(f"{path} is not a hemf model", value=str(path))
        try:
            with zipfile.ZipFile(stream) as archive:
                return _read_model(cls, archive, str(path))
        except ModelFileError:
            raise
        except Exception as error:  # zip, NumPy and JSON fail on damaged bytes in many ways
            raise ModelFileError(
                f"{path} is damaged or incomplete ({error or type(error).__name__}); use another "
                "copy of it, or fit and save the model again",
                value=str(path),
            ) from error


def _read_model(cls: type[_Model], archive: zipfile.ZipFile, path: str) -> _Model:
    from hemf.estimator import _standardised
    from hemf.inference.batch import BatchState
    from hemf.inference.callbacks import SweepReport
    from hemf.model.side import Side

    manifest = _read_manifest(archive, path)
    damaged = archive.testzip()  # before any of it is believed
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")

    def read(name: str) -> NDArray[Any]:
        with archive.open(name) as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    users, items = (_restore_ids(side, manifest["ids"][side], archive, read) for side in _SIDES)
    ratings = _restore_ratings(manifest["ratings"], users, items, read)
    fitted = {name: decoded(value) for name, value in manifest["fitted"].items()}
    # The saved moments, so that the sums of another machine do not change the last digit.
    vars(ratings).update(mean=fitted["global_mean"], scale=fitted["rating_scale"])
    sides = {side: _restore(Side, manifest["sides"][side], read) for side in _SIDES}
    for side, n_rows in (("user", ratings.n_users), ("item", ratings.n_items)):
        _check_side(sides[side], side, n_rows)
    dtype = sides["user"].moments.mean.dtype
    _require(sides["item"].moments.mean.dtype == dtype, "the sides differ in their type")
    _require(sides["item"].layout.total == sides["user"].layout.total, "the sides differ in length")
    model = cls(**{name: decoded(value) for name, value in manifest["params"].items()})
    model.ratings_ = ratings
    model.global_mean_ = fitted["global_mean"]
    model.rating_scale_ = fitted["rating_scale"]
    model.rating_range_ = fitted["rating_range"]
    model.converged_ = fitted["converged"]
    model.history_ = [_restore(SweepReport, report, read) for report in manifest["history"]]
    model._adopt(
        BatchState(
            sides=sides,
            rows={
                "user": _standardised(ratings.by_user, ratings, dtype.type),
                "item": _standardised(ratings.by_item, ratings, dtype.type),
            },
            **{name: decoded(value) for name, value in manifest["state"].items()},
        )
    )
    return model


def _read_manifest(archive: zipfile.ZipFile, path: str) -> dict[str, Any]:
    if MANIFEST not in archive.namelist():
        raise ModelFileError(f"{path} is not a hemf model: it has no {MANIFEST}", value=path)
    manifest = json.loads(archive.read(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a hemf model: its {MANIFEST} is another's", value=path)
    version = manifest.get("version")
    _require(type(version) is int and version >= 1, f"its version is {version!r}")
    if version > VERSION:
        raise ModelFileError(
            f"{path} was written by hemf {manifest.get('library')} in format {version}; hemf "
            f"{_library_version()} reads up to format {VERSION}. Upgrade hemf to open it",
            value=path,
        )
    return manifest


def _check_side(side: Side, name: str, n_rows: int) -> None:
    """Hold every array against the shapes that `hemf.model` documents."""
    layout, count = side.layout, side.membership.shape[-1]
    order, covariances = layout.order, side.communities.dof.size
    _require(layout.pinned in (-1, _SIDES.index(name)), f"{name}: layout {layout}")
    _require(covariances in (1, count), f"{name}: {covariances} covariances")
    shapes: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (side.membership, (n_rows, count)),
        (side.moments.mean, (n_rows, layout.total)),
        (side.moments.second, (n_rows, layout.packed)),
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
    for position, (array, shape) in enumerate(shapes):
        rows = position < 3  # in storage type; all that is shared by the rows is float64
        dtype = side.moments.mean.dtype if rows else np.dtype(np.float64)
        _require(
            array.shape == shape and array.dtype == dtype and dtype.kind == "f",
            f"{name}: an array of {array.dtype} {array.shape} where {dtype} {shape} belongs",
        )
        _require(not rows or array.flags.c_contiguous, f"{name}: an array is transposed")


# -- parts of a model --------------------------------------------------------------------------


def _describe(
    value: Any, at: str, members: dict[str, NDArray[Any] | bytes]
) -> dict[str, Any] | Any:
    """Return the manifest's form of a dataclass; its arrays become members."""
    if is_dataclass(value):
        return {
            field.name: _describe(getattr(value, field.name), f"{at}/{field.name}", members)
            for field in fields(value)
        }
    if isinstance(value, np.ndarray):
        members[f"{at}.npy"] = value
        return {"array": f"{at}.npy"}
    if isinstance(value, dict):
        return {name: encoded(part) for name, part in value.items()}
    return encoded(value)


def _restore(kind: type[_Kind], described: dict[str, Any], read: _MEMBERS) -> _Kind:
    """Make a dataclass again of what `_describe` returned."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, part in described.items():
        if is_dataclass(hints[name]):
            values[name] = _restore(hints[name], part, read)
        elif isinstance(part, dict) and set(part) == {"array"}:
            values[name] = read(part["array"])
        elif getattr(hints[name], "__origin__", None) is dict:
            values[name] = {key: decoded(entry) for key, entry in part.items()}
        else:
            values[name] = decoded(part)
    return kind(**values)


def _plain_fields(state: BatchState) -> list[Any]:
    return [field for field in fields(state) if field.name not in ("sides", "rows")]


def _describe_ratings(ratings: Ratings, members: dict[str, NDArray[Any] | bytes]) -> dict[str, Any]:
    table = ratings.by_user
    described = _describe(table, "ratings", members)
    if ratings.timestamps is not None:
        described["timestamps"] = _describe(ratings.timestamps, "ratings/timestamps", members)
    return dict(described)


def _restore_ratings(
    described: dict[str, Any], users: Vocabulary, items: Vocabulary, read: _MEMBERS
) -> Ratings:
    described = dict(described)
    timestamps = described.pop("timestamps", None)
    times = None if timestamps is None else read(timestamps["array"])
    table = _restore(Sparse, described, read)
    indptr, indices, values = table.indptr, table.indices, table.values
    shapes = (
        indptr.shape,
        indices.shape,
        values.shape,
        values.shape if times is None else times.shape,
    )
    types = indptr.dtype, indices.dtype, values.dtype, np.int64 if times is None else times.dtype
    _require(
        shapes == ((len(users) + 1,), values.shape, (values.size,), values.shape)
        and types == (np.int64, np.int32, np.float32, np.int64),
        "the ratings' arrays do not fit together",
    )
    in_place = indptr[0] == 0 and indptr[-1] == values.size and bool((np.diff(indptr) >= 0).all())
    _require(in_place, "the ratings' rows overlap")
    # What is out of range here would be out of bounds in compiled code.
    inside = not indices.size or (int(indices.min()) >= 0 and int(indices.max()) < len(items))
    _require(inside, "a rating is of an item that is not there")
    return Ratings(users, items, table, _transposed(table, len(items)), times)


def _describe_ids(
    side: str, ids: NDArray[Any], members: dict[str, NDArray[Any] | bytes]
) -> dict[str, Any]:
    if ids.dtype == np.int64:
        members[f"{side}/ids.npy"] = ids
        return {"kind": "integers"}
    if all(type(value) is str for value in ids):
        import pyarrow as pa

        with suppress(UnicodeEncodeError):  # half a surrogate pair is text that UTF-8 lacks
            _, offsets, text = pa.array(ids.tolist(), pa.large_string()).buffers()
            ends = np.frombuffer(offsets, np.int64, count=len(ids) + 1)
            members[f"{side}/ids-ends.npy"] = ends
            members[f"{side}/ids-text.npy"] = np.frombuffer(text or b"", np.uint8, count=ends[-1])
            return {"kind": "text"}
    listed = []
    for row, value in enumerate(ids.tolist()):
        try:
            listed.append(encoded(value))
        except TypeError:
            raise DataError(
                f"{side} {value!r} cannot be saved: ids in a model file are numbers, text, bytes, "
                f"dates, UUIDs or tuples of them, not {type(value).__name__}; "
                "turn such ids into text before fitting",
                value=value,
                row=row,
            ) from None
    members[f"{side}/ids.json"] = json.dumps(listed, allow_nan=False).encode()
    return {"kind": "values"}


def _restore_ids(
    side: str, described: dict[str, Any], archive: zipfile.ZipFile, read: _MEMBERS
) -> Vocabulary:
    from hemf.identifiers import CodedIds

    kind = described["kind"]
    distinct: Any
    if kind == "integers":
        distinct = read(f"{side}/ids.npy")
        _require(distinct.dtype == np.int64 and distinct.ndim == 1, f"{side}: ids are no integers")
        n_different = np.unique(distinct).size
    elif kind == "text":
        import pyarrow as pa

        ends, text = read(f"{side}/ids-ends.npy"), read(f"{side}/ids-text.npy")
        _require(
            ends.dtype == np.int64 and text.dtype == np.uint8 and ends.size > 0,
            f"{side}: ids are no text",
        )
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
        distinct = pa.Array.from_buffers(pa.large_string(), ends.size - 1, buffers)
        distinct.validate(full=True)
        n_different = len(distinct.unique())
    else:
        _require(kind == "values", f"{side}: ids are {kind!r}")
        values = [decoded(value) for value in json.loads(archive.read(f"{side}/ids.json"))]
        distinct = np.fromiter(values, object, count=len(values))
        n_different = len(set(values))
    _require(n_different == len(distinct), f"{side}: an id is there twice")
    vocabulary = Vocabulary()
    vocabulary.add_coded(CodedIds(np.arange(len(distinct), dtype=np.int32), distinct))
    return vocabulary


# -- plain values ------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Return the JSON form of a plain value, from which `decoded` makes exactly that value.

    >>> encoded(("ann", 3, float("inf")))
    {'tuple': ['ann', 3, {'float': 'inf'}]}
    >>> encoded(object())
    Traceback (most recent call last):
    TypeError: object has no JSON form
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int and -(2**63) <= value < 2**63:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [encoded(part) for part in value]
    if kind is tuple:
        return {"tuple": [encoded(part) for part in value]}
    for tag, (tagged, write, _) in _TAGGED.items():
        if kind is tagged:
            return {tag: write(value)}
    raise TypeError(f"{kind.__name__} has no JSON form")


def decoded(value: Any) -> Any:
    """Return the value that `encoded` was given.

    >>> decoded(encoded((1, 2.5, None, b"x")))
    (1, 2.5, None, b'x')
    """
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tuple":
        return tuple(decoded(part) for part in content)
    return _TAGGED[tag][2](content)


def _parameter(name: str, value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return None  # its state belongs to whoever made it
    try:
        return encoded(value.tolist() if isinstance(value, np.ndarray) else value)
    except TypeError as error:
        raise ParameterError(f"{name}={value!r} cannot be saved: {error}", value=value) from None


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _library_version() -> str:
    from hemf import __version__

    return __version__
