"""Files that are written atomically, by one process at a time, and logs of JSON lines.

`atomic_write` writes a temporary file beside the target and renames it. Temporary files can be
read only by their owner and are locked while they are in use, so that the next writer recognises
and removes those of a killed process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from hemf.errors import DataError, ModelFileError

if sys.platform != "win32":
    import fcntl

LOCK_TIMEOUT = 60.0  # seconds until `file_lock` gives up
_POLL = 0.1  # seconds between two attempts
_STALE = 86_400.0  # seconds; only where files cannot be locked
_OURS = re.compile(r"\.hemf-[0-9a-f]{16}\.(tmp|lock)")

FileState = tuple[int, ...] | None
"""What tells one version of a file from another; None where there is no file."""


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
        with _temporary_file(target.parent) as (temporary, fd):
            yield temporary
            with _flushed(temporary, fd):
                _adopt_attributes(target, temporary, fd)
            if expected is not True and file_state(target) != expected:
                raise ModelFileError(
                    f"{path} was changed by another program in the meantime and is not replaced; "
                    "run the command again",
                    value=str(path),
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
            raise ModelFileError(
                f"{path} is in use by another hemf{holder}, also after {seconds:g} s; nothing was "
                "changed. Run the command again when the other one has ended",
                value=str(path),
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
    while True:
        folder = _new_name(parent)
        folder.mkdir(mode=0o700)
        fd = None if os.name != "posix" else os.open(folder, os.O_RDONLY)
        if fd is None or _hold(fd, folder):
            break
        os.close(fd)  # `remove_leftovers` was faster
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if fd is not None:
            os.close(fd)


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
def _temporary_file(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield name and descriptor of a new locked file that only its owner can read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = _new_name(folder)
        fd = os.open(temporary, flags, 0o600)
        if _hold(fd, temporary):
            break
        os.close(fd)  # `remove_leftovers` was faster
    try:
        yield temporary, fd
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        with suppress(OSError):  # Windows has closed it already
            os.close(fd)


def _new_name(folder: Path) -> Path:
    return folder / f".hemf-{secrets.token_hex(8)}.tmp"


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


@contextmanager
def _flushed(temporary: Path, fd: int) -> Iterator[None]:
    """Flush a file to disk after the attributes are set inside."""
    if not _is_at(fd, temporary):
        raise FileNotFoundError(
            2, "the temporary file was removed by another program", str(temporary)
        )
    yield
    os.fsync(fd)
    if sys.platform == "win32":
        os.close(fd)  # an open file cannot be renamed there


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
