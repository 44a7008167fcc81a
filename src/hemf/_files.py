"""Files that are written atomically, by one process at a time; JSON logs; archives of arrays.

`atomic_write` writes a temporary file beside the target and renames it. Temporary files can be
read only by their owner and are locked while they are in use, so that the next writer recognises
and removes those of a killed process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import numpy as np
from numpy.lib import format as npy

from hemf._typing import AnyArray
from hemf.errors import DataError, ModelFileError, file_error

if sys.platform != "win32":
    import fcntl

LOCK_TIMEOUT = 60.0  # seconds until `file_lock` gives up
_POLL = 0.1  # seconds between two attempts
_STALE = 86_400.0  # seconds; only where files cannot be locked
_OURS = re.compile(r"\.hemf-[0-9a-f]{16}\.(tmp|lock)")

FileState = tuple[int, ...] | None
"""Identifies a version of a file; None if there is no file."""


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Replace a leading ``~``; where the home folder is not known, it stays, as in a shell.

    >>> expand_home("~a-user-that-is-not-there/ratings.csv").name
    'ratings.csv'
    """
    return Path(os.path.expanduser(path))


def library_version() -> str:
    """Return the version of hemf."""
    return metadata.version("hemf")


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, expected: FileState | bool = True
) -> Iterator[Path]:
    """Yield the name of an empty file that replaces ``path`` at the end.

    After an error the old file is unchanged and nothing is left beside it. The target of a symbolic
    link is replaced, not the link. Mode and, if permitted, owner of the old file are kept. A
    device, such as /dev/stdout, is written directly.

    With ``expected``, a result of `file_state`, a file that has changed since then is not replaced
    and a `ModelFileError` is raised.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(path) as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        yield target
        return
    try:
        remove_leftovers(target.parent)
        with _temporary_place(target.parent, _make_file) as (temporary, fd):
            yield temporary
            if not _is_at(fd, temporary):
                problem = "the temporary file was removed by another program"
                raise FileNotFoundError(2, problem, str(temporary))
            _adopt_attributes(target, temporary, fd)
            os.fsync(fd)
            if sys.platform == "win32":
                os.close(fd)  # an open file cannot be renamed there
            if expected is not True and file_state(target) != expected:
                raise file_error(
                    path,
                    "was changed by another program in the meantime and is not replaced; "
                    "run the command again",
                )
            os.replace(temporary, target)
        _flush_folder(target.parent)
    except OSError as error:
        if error.errno is None:  # an error of hemf, which says more
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def file_state(path: str | os.PathLike[str]) -> FileState:
    """Return the state of a file, which differs after every change."""
    try:
        found = os.stat(_resolved(path))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextmanager
def file_lock(
    path: str | os.PathLike[str],
    *,
    seconds: float = LOCK_TIMEOUT,
    waiting: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Hold the lock of a file; other processes that want it wait.

    The lock is advisory, ends with its process, and is the same for all links to a file.
    ``waiting`` is called once with a message if another process holds the lock; after ``seconds``
    a `ModelFileError` is raised.
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        yield
        return
    key = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    place = target.with_name(f".hemf-{key}.lock")
    deadline, notified = time.monotonic() + seconds, False
    while (fd := _take_lock(place)) is None:
        holder = _holder(place)
        if not notified:
            waiting(f"{path} is in use by another hemf{holder}; waiting up to {seconds:g} s for it")
            notified = True
        if time.monotonic() >= deadline:
            raise file_error(
                path,
                f"is in use by another hemf{holder}, also after {seconds:g} s; nothing was "
                "changed. Run the command again when the other one has ended",
            )
        time.sleep(_POLL)
    try:
        yield
    finally:
        if sys.platform == "win32":
            os.close(fd)
        with suppress(OSError):
            os.unlink(place)
        if sys.platform != "win32":
            os.close(fd)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder that is removed at the end, or by `remove_leftovers` after a kill."""
    remove_leftovers(parent)
    with _temporary_place(parent, _make_folder) as (folder, _):
        yield folder


def digest(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of bytes that come in parts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


class JsonLog:
    """Append-only file of JSON lines; every line is on disk before the next one is written.

    A last line that was cut when a process was killed is ignored, and dropped by the next `append`.

    >>> import tempfile
    >>> log = JsonLog(Path(tempfile.mkdtemp()) / "results.jsonl")
    >>> log.append({"rmse": 0.9})
    >>> JsonLog(log.path).entries
    [{'rmse': 0.9}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}"
            raise DataError(message, value=str(path)) from error
        end = content.rfind(b"\n") + 1
        self.entries = [_parsed(line) for line in content[:end].splitlines()]
        """The value of each line; None if it is not JSON."""
        self.cut = content[end:]
        """The start of a last line that was cut."""

    def append(self, entry: object) -> None:
        """Add a line; it is on disk when this returns."""
        line = json.dumps(entry, ensure_ascii=False, default=str).encode() + b"\n"
        with self.path.open("a+b") as file:
            file.seek(0)  # again: another process may have written since
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files and locks that processes left in a folder when they were killed."""
    found: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        found = [entry.path for entry in entries if _OURS.fullmatch(entry.name)]
    for place in found:
        with suppress(OSError):
            _remove_unused(place)


# -- temporary files -----------------------------------------------------------------------------


@contextmanager
def _temporary_place(folder: Path, make: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """Yield name and descriptor of a new locked file or folder; it is removed at the end."""
    while True:
        place = folder / f".hemf-{secrets.token_hex(8)}.tmp"
        fd = make(place)
        if _hold(fd, place):
            break
        os.close(fd)  # `remove_leftovers` was faster
    try:
        yield place, fd
    finally:
        with suppress(OSError):
            place.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # Windows has closed it already
            os.close(fd)


def _make_file(place: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(place, flags, 0o600)


def _make_folder(place: Path) -> int:
    place.mkdir(mode=0o700)
    # Windows opens no folders.
    return os.open(place if os.name == "posix" else os.devnull, os.O_RDONLY)


def _hold(fd: int, place: Path) -> bool:
    """Lock an open file; False if it is no longer at its place."""
    if sys.platform == "win32":
        return True
    with suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_EX)
    return _is_at(fd, place)


def _is_at(fd: int, place: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(place))
    except FileNotFoundError:
        return False


def _remove_unused(place: str) -> None:
    """Remove a file or folder that no process has locked."""
    if sys.platform == "win32":
        if time.time() - os.stat(place).st_mtime > _STALE:
            os.unlink(place)
        return
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            if time.time() - found.st_mtime < _STALE:
                return
        if not _is_at(fd, place):
            return
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(place, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            os.unlink(place)
    finally:
        os.close(fd)


def _adopt_attributes(target: Path, temporary: Path, fd: int) -> None:
    """Give the new file the mode and, if permitted, the owner of the old one."""
    if sys.platform == "win32":
        if target.exists():
            shutil.copymode(target, temporary)
        return
    try:
        old = os.stat(target)
    except FileNotFoundError:
        os.fchmod(fd, 0o666 & ~_umask())
        return
    mode, mine = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(fd)
    if (old.st_uid, old.st_gid) != (mine.st_uid, mine.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.fchown(fd, -1, old.st_gid)
            except OSError:  # give the group no more rights than everybody
                mode &= ~0o070 | (mode & 0o007) << 3
    os.fchmod(fd, mode)


def _umask() -> int:
    """Return the umask; without /proc it can only be read by setting it."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_folder(folder: Path) -> None:
    """Flush the new name to disk, if the system can."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some file systems have no such flush
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# -- locks ---------------------------------------------------------------------------------------


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Return the file behind all links; pipes have none, only names such as /dev/fd/3."""
    target = expand_home(path)
    return target.absolute() if target.is_fifo() else Path(os.path.realpath(target))


def _take_lock(place: Path) -> int | None:
    """Return a descriptor that holds the lock, or None if another process has it."""
    fd = _open_lock(place)
    try:
        _lock_now(fd)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        pass  # a file system without locks: `atomic_write` still compares states
    if not _is_at(fd, place):
        os.close(fd)  # its previous holder has removed it
        return None
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
    return fd


def _open_lock(place: Path) -> int:
    """Open a lock file, which every user may lock."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    with suppress(FileNotFoundError):
        try:
            return os.open(place, flags)
        except PermissionError:
            return os.open(place, flags & ~os.O_RDWR)
    with suppress(FileExistsError):
        fd = os.open(place, flags | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError, AttributeError):
            os.fchmod(fd, 0o666)  # it holds no data, whatever the umask
        return fd
    return os.open(place, flags)


def _lock_now(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(fd, 64, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError):
        return f" (process {int(place.read_bytes())})"
    return ""


# -- archives -------------------------------------------------------------------------------------
#
# One zip of JSON and ``.npy`` members, and never a pickle. The zip is stored, not compressed, and
# holds no clock time: the same content gives the same bytes.


Members = dict[str, AnyArray | bytes]
"""Content of an archive by name: arrays, and bytes of anything else."""

Json: TypeAlias = Any
"""A value that JSON has a form for."""
Form: TypeAlias = dict[str, Json]
"""A JSON object."""

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_FILE_HEADER = 30  # bytes before the name of a member
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member; a zip cannot go without a time
_Kind = TypeVar("_Kind")

# Values that JSON has no form for, as {tag: text}.
_TAGGED: dict[str, tuple[type, Callable[[Json], str], Callable[[str], Json]]] = {
    "int": (int, hex, lambda text: int(text, 16)),  # beyond 64 bits; hex has no limit on digits
    "float": (float, repr, float),  # NaN and infinities
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "uuid": (UUID, str, UUID),
}


def write_archive(
    path: str | os.PathLike[str],
    members: Mapping[str, AnyArray | bytes],
    *,
    expected: FileState | bool = True,
) -> None:
    """Write members to one file, all of them or nothing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.zip"
    >>> write_archive(path, {"three.npy": np.arange(3)})
    >>> with path.open("rb") as stream:
    ...     FileArchive(stream).array("three.npy")
    array([0, 1, 2])

    ``expected`` is that of `atomic_write`.
    """
    target = Path(os.path.realpath(expand_home(path)))
    if target.exists() and not target.is_file():
        what = "a directory" if target.is_dir() else "a device"
        raise file_error(path, f"is {what}; give the name of a file")
    try:
        with atomic_write(path, expected=expected) as fresh, open(fresh, "wb") as stream:
            _write_members(stream, members)
    except ModelFileError:
        raise
    except OSError as error:
        raise file_error(
            path,
            f"could not be saved: {error.strerror or error}; nothing was changed. Make room, or "
            "choose a folder that exists and may be written to",
        ) from error


def _write_members(stream: BinaryIO, members: Mapping[str, AnyArray | bytes]) -> None:
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3  # the same bytes on every system
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    npy.write_array(member, content, allow_pickle=False)  # piece by piece


class FileArchive:
    """Members of a file that `write_archive` wrote.

    Sizes are checked against that of the file: members are stored uncompressed, one after the other
    and each name once, and an array is as large as its member. So no more memory is allocated than
    there are bytes in the file. Everything else is a ValueError.
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
        if (damaged := self._zip.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        return self._zip.read(name)

    def array(self, name: str) -> AnyArray:
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
                raise ValueError(f"{name} declares the shape {shape}")
            if count * dtype.itemsize != info.file_size - member.tell():
                raise ValueError(f"{name} is not as large as its shape {shape} says")
        with self._zip.open(info) as member:
            array: AnyArray = npy.read_array(member, allow_pickle=False)
        return array.astype(array.dtype.newbyteorder("="), copy=False)


class MemoryArchive:
    """Members that are not in a file yet, to be checked as if they were.

    >>> MemoryArchive({"three.npy": np.arange(3)}).array("three.npy")
    array([0, 1, 2])
    """

    def __init__(self, members: Members) -> None:
        self._members = members

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        content = self._members[name]
        assert isinstance(content, bytes)
        return content

    def array(self, name: str) -> AnyArray:
        """Return the array in a member; it cannot be written to."""
        content = self._members[name]
        assert isinstance(content, np.ndarray)
        if not (content.flags.c_contiguous or content.flags.f_contiguous):
            content = np.ascontiguousarray(content)  # as it is read from a file
        view = content.view()
        view.flags.writeable = False
        return view


Archive: TypeAlias = FileArchive | MemoryArchive


# -- dataclasses -------------------------------------------------------------------------------


def described(value: object, at: str, members: Members) -> Json:
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
            if field.init
        }
    if isinstance(value, np.ndarray):
        members[f"{at}.npy"] = value
        return {"array": f"{at}.npy"}
    if isinstance(value, dict):
        return {name: encoded(part) for name, part in value.items()}
    return encoded(value)


def restored(kind: type[_Kind], form: Form, archive: Archive) -> _Kind:
    """Make a dataclass again of what `described` returned."""
    hints = get_type_hints(kind)
    values: Form = {}
    for name, part in form.items():
        inner = _dataclass_in(hints[name])
        if inner is not None and part is not None:
            values[name] = restored(inner, part, archive)
        elif isinstance(part, dict) and set(part) == {"array"}:
            values[name] = archive.array(part["array"])
        elif get_origin(hints[name]) is dict:
            values[name] = {key: decoded(entry) for key, entry in part.items()}
        else:
            values[name] = decoded(part)
    return kind(**values)


def _dataclass_in(hint: object) -> type | None:
    """Return the dataclass that a hint names, also where it may be absent."""
    named = (hint, *get_args(hint))
    return next((one for one in named if isinstance(one, type) and is_dataclass(one)), None)


# -- plain values ------------------------------------------------------------------------------


def encoded_ids(ids: Iterable[object], what: str) -> bytes:
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


def encoded(value: Json) -> Json:
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


def decoded(form: Json) -> Json:
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
