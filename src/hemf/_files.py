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


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, expected: FileState | bool = True
) -> Iterator[Path]:
    """Yield the name of an empty file that takes the place of ``path`` at the end.

    When something goes wrong before that, what was there stays as it was and nothing is left
    beside it. A symbolic link stays, and the file it points to is replaced. Mode and, where
    permitted, owner of an older file are kept. A device, such as /dev/stdout, is written to as it
    is.

    With ``expected``, a result of `file_state`, a file that has changed since then is not replaced
    and a `ModelFileError` is raised.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(path) as fresh:
    ...     _ = fresh.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        yield target
        return
    try:
        remove_leftovers(target.parent)
        with _temporary_file(target.parent) as (fresh, number):
            yield fresh
            with _flushed(fresh, number):
                _adopt_attributes(target, fresh, number)
            if expected is not True and file_state(target) != expected:
                raise ModelFileError(
                    f"{path} was changed by another program in the meantime and is left as that "
                    "program wrote it; run the command again",
                    value=str(path),
                )
            os.replace(fresh, target)
        _flush_folder(target.parent)
    except OSError as error:
        if error.errno is None:  # one of ours, which says more
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
    """Hold a file's lock: of processes that ask for it, one goes on and the others wait.

    The lock is advisory. It ends with the process that holds it, however that ends, and is the same
    for all links to a file. ``waiting`` is called once with a message where the lock is held by
    another process; after ``seconds`` a `ModelFileError` is raised.
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        yield
        return
    key = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    place = target.with_name(f".hemf-{key}.lock")
    deadline, notified = time.monotonic() + seconds, False
    while (number := _take_lock(place)) is None:
        holder = _holder(place)
        if not notified:
            waiting(f"{path} is in use by another hemf{holder}; waiting up to {seconds:g} s for it")
            notified = True
        if time.monotonic() >= deadline:
            raise ModelFileError(
                f"{path} is in use by another hemf{holder}, and still was after {seconds:g} s; "
                "nothing was changed. Run the command again once the other one has ended",
                value=str(path),
            )
        time.sleep(_POLL)
    try:
        yield
    finally:
        if sys.platform == "win32":
            os.close(number)
        with suppress(OSError):
            os.unlink(place)
        if sys.platform != "win32":
            os.close(number)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder that is removed at the end, or by `remove_leftovers` after a kill."""
    remove_leftovers(parent)
    while True:
        folder = _new_name(parent)
        folder.mkdir(mode=0o700)
        number = None if os.name != "posix" else os.open(folder, os.O_RDONLY)
        if number is None or _hold(number, folder):
            break
        os.close(number)  # `remove_leftovers` was faster
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if number is not None:
            os.close(number)


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
    """Yield name and descriptor of a new file, which is locked and only its owner can read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        fresh = _new_name(folder)
        number = os.open(fresh, flags, 0o600)
        if _hold(number, fresh):
            break
        os.close(number)  # `remove_leftovers` was faster
    try:
        yield fresh, number
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        with suppress(OSError):  # Windows has closed it already
            os.close(number)


def _new_name(folder: Path) -> Path:
    return folder / f".hemf-{secrets.token_hex(8)}.tmp"


def _hold(number: int, place: Path) -> bool:
    """Lock an open file; False if it is no longer at its place."""
    if sys.platform == "win32":
        return True
    with suppress(OSError):  # a file system without locks
        fcntl.flock(number, fcntl.LOCK_EX)
    return _is_at(number, place)


def _is_at(number: int, place: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.lstat(place))
    except FileNotFoundError:
        return False


def _remove_unused(place: str) -> None:
    """Remove a file or folder that nobody holds a lock of."""
    if sys.platform == "win32":
        if time.time() - os.stat(place).st_mtime > _STALE:
            os.unlink(place)
        return
    number = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(number)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            if time.time() - found.st_mtime < _STALE:
                return
        if not _is_at(number, place):
            return
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(place, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            os.unlink(place)
    finally:
        os.close(number)


@contextmanager
def _flushed(fresh: Path, number: int) -> Iterator[None]:
    """Have everything on the disk, with what is done to the file's attributes inside."""
    if not _is_at(number, fresh):
        raise FileNotFoundError(2, "the temporary file was removed by another program", str(fresh))
    yield
    os.fsync(number)
    if sys.platform == "win32":
        os.close(number)  # an open file cannot be renamed there


def _adopt_attributes(target: Path, fresh: Path, number: int) -> None:
    """Give the new file the mode and, where permitted, the owner of the one that it replaces."""
    if sys.platform == "win32":
        if target.exists():
            shutil.copymode(target, fresh)
        return
    try:
        old = os.stat(target)
    except FileNotFoundError:
        os.fchmod(number, 0o666 & ~_umask())
        return
    mode, mine = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(number)
    if (old.st_uid, old.st_gid) != (mine.st_uid, mine.st_gid):
        try:
            os.fchown(number, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.fchown(number, -1, old.st_gid)
            except OSError:  # another group gets no more than everybody
                mode &= ~0o070 | (mode & 0o007) << 3
    os.fchmod(number, mode)


def _umask() -> int:
    """Return the process's umask; only setting it tells where there is no /proc."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_folder(folder: Path) -> None:
    """Make the new name last through a loss of power, on systems that can."""
    if os.name != "posix":
        return
    with suppress(OSError):  # the file is in its place; some file systems know no such flush
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# -- locks ---------------------------------------------------------------------------------------


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Return the file behind all links; pipes have none, only names such as /dev/fd/3."""
    target = Path(path).expanduser()
    return target.absolute() if target.is_fifo() else Path(os.path.realpath(target))


def _take_lock(place: Path) -> int | None:
    """Return a descriptor that holds the lock, or None if another process has it."""
    number = _open_lock(place)
    try:
        _lock_now(number)
    except BlockingIOError:
        os.close(number)
        return None
    except OSError:
        pass  # a file system without locks: `atomic_write` still compares states
    if not _is_at(number, place):
        os.close(number)  # whoever had it before has removed it
        return None
    with suppress(OSError):
        os.ftruncate(number, 0)
        os.write(number, str(os.getpid()).encode())
    return number


def _open_lock(place: Path) -> int:
    """Open a lock file, which every user may lock."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    with suppress(FileNotFoundError):
        try:
            return os.open(place, flags)
        except PermissionError:
            return os.open(place, flags & ~os.O_RDWR)
    with suppress(FileExistsError):
        number = os.open(place, flags | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError, AttributeError):
            os.fchmod(number, 0o666)  # it holds no data, whatever the umask
        return number
    return os.open(place, flags)


def _lock_now(number: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(number, 64, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        os.lseek(number, 0, os.SEEK_SET)
    else:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError):
        return f" (process {int(place.read_bytes())})"
    return ""
