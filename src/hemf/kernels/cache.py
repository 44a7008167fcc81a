"""Machine code of kernels on disk, which only whole files of the right version are loaded from.

Numba's own cache raises an error where it finds no folder to write to, and unpickles whatever a
file holds. Here a file that cannot be read, or is not as it was written, is the same as no file:
the kernel is compiled, and the file written again. Files are replaced in one step, and there is no
index, so processes may share a folder.

Files are looked for in all of `folders`, and written to the first that can be written to.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import time
import uuid
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import numba
from numba.core import serialize
from numba.core.caching import CompileResultCacheImpl, NullCache
from numba.misc.appdirs import AppDirs

from hemf.errors import CacheWarning, warn_caller

MAGIC = b"hemf kernel 1\n"
STALE_SECONDS = 3600  # a temporary file of this age is of a process that was killed

_config: Any = numba.config  # Numba has no types
_app_dirs: Any = AppDirs
_results: Any = CompileResultCacheImpl
_dumps: Any = serialize.dumps
_log = logging.getLogger(__name__)
_failed: list[OSError] = []
_warned = False


def folders() -> list[Path]:
    """Folders of the cache: NUMBA_CACHE_DIR, beside the source, and in the user's cache."""
    chosen = [Path(_config.CACHE_DIR) / "hemf"] if _config.CACHE_DIR else []
    own = Path(_app_dirs(appname="numba", appauthor=False).user_cache_dir) / "hemf"
    # It begins with "~" for a user who has no home.
    return [*chosen, Path(__file__).parent / "__pycache__", *([own] if own.is_absolute() else [])]


def warn_if_not_written() -> None:
    """Warn, once in a process, that kernels were compiled and could not be kept."""
    global _warned
    if _failed and not _warned:
        _warned = True
        places = ", ".join(map(str, folders()))
        warn_caller(
            f"compiled kernels cannot be kept in any of {places} ({_failed[0].strerror}); every "
            "process compiles them again. Set NUMBA_CACHE_DIR to a writable folder.",
            CacheWarning,
        )


class Contents(_results):  # type: ignore[misc]
    """What Numba writes of a compiled function, without its choice of a folder."""

    def __init__(self) -> None:
        """Look for no folder."""


_contents: Any = Contents()


class KernelCache(NullCache):
    """Cache of one function's machine code, as Numba's dispatchers use it."""

    def __init__(self, dispatcher: Any) -> None:
        function = dispatcher.py_func
        self._dispatcher = dispatcher
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        # What a function encloses is part of its code.
        self._enabled = function.__closure__ is None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for this signature, None if it has to be compiled."""
        if not self._enabled:
            return None
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        for folder in folders():
            path = folder / self._file(key)
            try:
                contents = path.read_bytes()
            except OSError:
                continue
            try:
                found = _contents.rebuild(target_context, pickle.loads(opened(contents, key)))
            except Exception as error:
                _log.info("%s is damaged and will be written again: %s", path, error)
                continue
            if _config.CACHE_DIR and folder != folders()[0]:  # the chosen one is to have all
                with suppress(OSError):
                    replace(folders()[0] / self._file(key), contents)
            return found
        return None

    def has_overload(self, sig: Any, target_context: Any) -> bool:
        """Whether there is a file for this signature; it is not read."""
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        return self._enabled and any((folder / self._file(key)).exists() for folder in folders())

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function; where that is not possible, `warn_if_not_written` says so."""
        if not self._enabled or data.library.has_dynamic_globals or data.lifted:
            return
        key = self._key(sig, data.codegen)
        contents = sealed(_dumps(_contents.reduce(data)), key)
        first: OSError | None = None
        for folder in folders():
            try:
                replace(folder / self._file(key), contents)
            except OSError as error:
                first = first or error
            else:
                return
        if first is not None:
            _failed.append(first)

    def _key(self, sig: Any, codegen: Any) -> bytes:
        versions = MAGIC, numba.__version__, llvmlite.__version__, sys.version
        fields = [getattr(each, "fields", ()) for each in getattr(sig, "args", ())]
        whole = *versions, self._source, str(sig), fields, codegen.magic_tuple()
        return hashlib.blake2b(repr(whole).encode(), digest_size=32).digest()

    @cached_property
    def _source(self) -> str:
        return source_digest(self._dispatcher)

    def _file(self, key: bytes) -> str:
        return f"{self._name}-{key.hex()[:24]}.nbc"


def sealed(data: bytes, key: bytes) -> bytes:
    """Return the contents of a file: a checksum of the data and of what they are for, and they.

    >>> opened(sealed(b"code", b"float32"), b"float32")
    b'code'
    """
    return MAGIC + _checksum(data, key) + data


def opened(contents: bytes, key: bytes) -> bytes:
    """Return the data of a file that was `sealed` with the same key; else raise ValueError."""
    head = len(MAGIC) + 32
    data = contents[head:]
    if contents[:head] != MAGIC + _checksum(data, key):
        raise ValueError("its checksum is wrong")
    return data


def replace(path: Path, contents: bytes) -> None:
    """Write a file so that others see the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        with suppress(OSError):  # another process removes it too
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
    try:
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _checksum(data: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, key=key).digest()


def source_digest(dispatcher: Any) -> str:
    """Return a name for the code of a function and of all that it uses in its own package.

    That is bytecode and constants, so comments and the order of functions do not matter.
    """
    contents = hashlib.blake2b(digest_size=16)
    module = dispatcher.py_func.__module__
    package, seen = module.rpartition(".")[0] or module, set[str]()
    left: list[Any] = [dispatcher]
    while left:
        one = left.pop()
        options = getattr(one, "targetoptions", None)
        one = getattr(one, "py_func", getattr(one, "_defn", one))  # of what Numba has decorated
        code = getattr(one, "__code__", None)
        if code is None or not one.__module__.startswith(package):
            continue
        name = f"{one.__module__}.{one.__qualname__}"
        if name in seen:
            continue
        seen.add(name)
        contents.update(repr((name, _options(options))).encode())
        codes = [code]
        while codes:
            part = codes.pop()
            codes += [const for const in part.co_consts if hasattr(const, "co_code")]
            plain = [c for c in part.co_consts if not hasattr(c, "co_code") and c != one.__doc__]
            contents.update(part.co_code + repr((plain, part.co_names, part.co_varnames)).encode())
            for used in part.co_names:
                value = one.__globals__.get(used)
                if isinstance(value, ModuleType) and value.__name__.startswith(package):
                    found = [vars(value)[each] for each in part.co_names if each in vars(value)]
                else:
                    found = [value]
                left += found
                constants = [each for each in found if isinstance(each, int | float | str | tuple)]
                contents.update(repr((used, constants)).encode())
    return contents.hexdigest()


def _options(options: Any) -> list[str]:
    """Return how a function is compiled, in the same order in every process."""
    return sorted(
        f"{name}={sorted(value) if isinstance(value, set) else value}"
        for name, value in (options or {}).items()
    )
