"""Files of plain values and arrays: one zip of JSON and ``.npy`` members, and never a pickle.

The zip is stored, not compressed, and holds no clock time: the same content gives the same bytes.
It takes the place of an older file in one step, once all of it is on the disk.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hemf._files import FileState, expand_home
from hemf._files import atomic_write as whole
from hemf.errors import DataError, ModelFileError

Members = dict[str, NDArray[Any] | bytes]
"""Content of an archive by name: arrays, and bytes of anything else."""

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_FILE_HEADER = 30  # bytes before the name of a member
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member; a zip cannot go without a time
_Kind = TypeVar("_Kind")

# Values that JSON has no form for, as {tag: text}.
_TAGGED: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),  # beyond 64 bits; hex has no limit on digits
    "float": (float, repr, float),  # NaN and infinities
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "uuid": (UUID, str, UUID),
}


# -- files -------------------------------------------------------------------------------------


def write_archive(
    path: str | os.PathLike[str],
    members: Mapping[str, NDArray[Any] | bytes],
    *,
    expected: FileState | bool = True,
) -> None:
    """Write members to one file, all of them or nothing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.zip"
    >>> write_archive(path, {"three.npy": np.arange(3)})
    >>> with path.open("rb") as stream:
    ...     read_array(FileArchive(stream), "three.npy")
    array([0, 1, 2])

    ``expected`` is that of `hemf._files.atomic_write`.
    """
    with replacing(path, expected=expected) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3  # the same bytes on every system
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    npy.write_array(member, content, allow_pickle=False)  # piece by piece


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, expected: FileState | bool = True
) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once everything is on the disk, and only then.

    Whatever goes wrong before, an older file stays as it was and nothing is left beside it.
    ``expected`` is that of `hemf._files.atomic_write`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as stream:
    ...     _ = stream.write(b"new"), path.exists()
    >>> path.read_bytes()
    b'new'
    """
    target = Path(os.path.realpath(expand_home(path)))  # a link stays a link
    if target.is_dir():
        raise ModelFileError(f"{path} is a directory; give the name of a file", value=str(path))
    if target.exists() and not target.is_file():
        raise ModelFileError(f"{path} is a device; give the name of a file", value=str(path))
    try:
        with whole(path, expected=expected) as fresh, open(fresh, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(
            f"{path} could not be saved: {error.strerror or error}; nothing was changed. Make "
            "room, or choose a folder that exists and may be written to",
            value=str(path),
        ) from error


class Archive(Protocol):
    """Members by name, of a file or about to become one."""

    @property
    def names(self) -> Collection[str]:
        """Names of all members."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""

    def array(self, name: str) -> NDArray[Any]:
        """Return the array in a member."""


class FileArchive:
    """Members of a file that `write_archive` wrote.

    Nothing is believed that the file's size does not bear out: members are stored as they are, one
    after the other and each name once, and an array is as large as its member. So no more memory is
    allocated than there are bytes in the file. Everything else is a ValueError.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._size = stream.seek(0, os.SEEK_END)
        self._zip = zipfile.ZipFile(stream)
        self.names = self._zip.namelist()
        self._check_layout()

    def _check_layout(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError("a name is in it twice")
        end = 0
        for info in sorted(self._zip.infolist(), key=lambda info: info.header_offset):
            name, size = info.filename, info.file_size
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != size:
                raise ValueError(f"{name} is compressed, which model files are not")
            if info.header_offset < end:
                raise ValueError(f"{name} overlaps with another member")
            end = info.header_offset + _FILE_HEADER + size
            if end > self._size:
                raise ValueError(f"{name} is larger than the file")

    def check_sums(self) -> None:
        """Raise ValueError if the checksum of a member is wrong."""
        damaged = self._zip.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        return self._zip.read(name)

    def array(self, name: str) -> NDArray[Any]:
        """Return the array in a member, in this machine's byte order."""
        info = self._zip.getinfo(name)
        with self._zip.open(info) as member:
            read_header = _HEADERS.get(npy.read_magic(member))
            if read_header is None:
                raise ValueError(f"{name} is of another version of the npy format")
            shape, _, dtype = read_header(member)
            if dtype.kind not in "biuf":
                raise ValueError(f"{name} holds {dtype}")
            count = math.prod(shape)
            if not all(0 <= length <= self._size for length in shape):
                raise ValueError(f"{name} is said to be of the shape {shape}")
            if count * dtype.itemsize != info.file_size - member.tell():
                raise ValueError(f"{name} is not as large as its shape {shape} says")
        with self._zip.open(info) as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        return array.astype(array.dtype.newbyteorder("="), copy=False)


class MemoryArchive:
    """Members that are not in a file yet, to be checked as if they were.

    >>> MemoryArchive({"three.npy": np.arange(3)}).array("three.npy")
    array([0, 1, 2])
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self.names = members.keys()

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        content = self._members[name]
        assert isinstance(content, bytes)
        return content

    def array(self, name: str) -> NDArray[Any]:
        """Return the array in a member; it cannot be written to."""
        content = self._members[name]
        assert isinstance(content, np.ndarray)
        if not (content.flags.c_contiguous or content.flags.f_contiguous):
            content = np.ascontiguousarray(content)  # as it is read from a file
        view = content.view()
        view.flags.writeable = False
        return view


def read_array(archive: Archive, name: str) -> NDArray[Any]:
    """Return one array of an archive."""
    return archive.array(name)


# -- dataclasses -------------------------------------------------------------------------------


def described(value: Any, at: str, members: Members) -> Any:
    """Return the JSON form of a dataclass; its arrays become members under the name ``at``.

    >>> from hemf.model.side import Moments
    >>> members = {}
    >>> described(Moments(np.zeros((1, 2)), np.zeros((1, 3))), "moments", members)["mean"]
    {'array': 'moments/mean.npy'}
    >>> list(members)
    ['moments/mean.npy', 'moments/second.npy']
    """
    if is_dataclass(value):
        return {
            field.name: described(getattr(value, field.name), f"{at}/{field.name}", members)
            for field in fields(value)
        }
    if isinstance(value, np.ndarray):
        members[f"{at}.npy"] = value
        return {"array": f"{at}.npy"}
    if isinstance(value, dict):
        return {name: encoded(part) for name, part in value.items()}
    return encoded(value)


def restored(kind: type[_Kind], form: dict[str, Any], archive: Archive) -> _Kind:
    """Make a dataclass again of what `described` returned."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, part in form.items():
        inner = _dataclass_in(hints[name])
        if inner is not None and part is not None:
            values[name] = restored(inner, part, archive)
        elif isinstance(part, dict) and set(part) == {"array"}:
            values[name] = read_array(archive, part["array"])
        elif get_origin(hints[name]) is dict:
            values[name] = {key: decoded(entry) for key, entry in part.items()}
        else:
            values[name] = decoded(part)
    return kind(**values)


def _dataclass_in(hint: Any) -> type | None:
    """Return the dataclass that a hint names, also where it may be absent."""
    named = (hint, *get_args(hint))
    return next((one for one in named if isinstance(one, type) and is_dataclass(one)), None)


# -- plain values ------------------------------------------------------------------------------


def encoded_ids(ids: Iterable[Any], what: str) -> bytes:
    """Return ids as JSON text; ``what`` they are of is named in the error about one that has none.

    >>> encoded_ids(["ann", 3], "user")
    b'["ann", 3]'
    """
    listed = []
    for row, value in enumerate(ids):
        try:
            listed.append(encoded(value))
        except TypeError:
            raise DataError(
                f"{what} {value!r} cannot be saved: ids in a model file are numbers, text, bytes, "
                f"UUIDs or tuples of these, not {type(value).__name__}; "
                "turn such ids into text before fitting",
                value=value,
                row=row,
            ) from None
    return json.dumps(listed, allow_nan=False).encode()


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


def decoded(form: Any) -> Any:
    """Return the value that `encoded` was given.

    >>> decoded(encoded((1, 2.5, None, b"x")))
    (1, 2.5, None, b'x')
    """
    if isinstance(form, list):
        return [decoded(part) for part in form]
    if not isinstance(form, dict):
        return form
    ((tag, content),) = form.items()
    if tag == "tuple":
        return tuple(decoded(part) for part in content)
    return _TAGGED[tag][2](content)
