"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the name of a new file that takes the place of ``path`` at the end.

    When something goes wrong before that, what was there stays as it was and nothing is left
    beside it. A device, such as /dev/stdout, is written to as it is.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as fresh:
    ...     _ = fresh.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    target = Path(os.path.realpath(Path(path).expanduser()))  # a link stays a link
    if target.exists() and not target.is_file():
        yield target
        return
    fresh = target.with_name(f".hemf-{secrets.token_hex(8)}.tmp")
    try:
        yield fresh
        if target.exists():
            shutil.copymode(target, fresh)
        os.replace(fresh, target)
        _flush_folder(target.parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


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
