"""When and for which storage type a kernel is compiled, and its machine code on disk.

Every kernel states its argument types, contiguity included: a strided array is a type error
rather than a kernel that is seven times slower. Compilation happens once for each storage type
that is asked for.

Numba optimises every function and generates machine code for it, then does so again in each
function that calls it. Functions that only kernels call stay LLVM code here until the kernel that
calls them is optimised as a whole.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType, NoneType
from typing import Annotated, Any, get_origin, get_type_hints

import llvmlite
import numba
import numpy as np
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import compiler, serialize, sigutils, typed_passes
from numba.core.caching import CompileResultCacheImpl, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.misc.appdirs import AppDirs

MAGIC = b"hemf kernel 1\n"
STALE_SECONDS = 3600  # a temporary file of this age is of a process that was killed

_config: Any = numba.config  # Numba has no types
_app_dirs: Any = AppDirs
_results: Any = CompileResultCacheImpl
_dumps: Any = serialize.dumps
_log = logging.getLogger(__name__)
_failed: list[OSError] = []
_warned = False
_TYPES = {np.dtype(name): name for name in ("float32", "float64", "uint16", "uint32")}
_NUMBERS: dict[Any, Any] = {
    int: numba.int64,
    float: numba.float64,
    bool: numba.boolean,
    NoneType: numba.void,
}
_lock = threading.Lock()
_dynamic: Any = _dynfunc  # Numba has no types
_library: Any = JITCodeLibrary
_lowering: Any = typed_passes.NativeLowering
_base: Any = compiler.CompilerBase
_passes: Any = compiler.DefaultPassBuilder
_register: Any = register_pass
_manager: Any = PassManager
_dispatcher: Any = CPUDispatcher


# ------------------------------------------------------------------------------------------------
# Machine code on disk, which only whole files of the right version are loaded from.
#
# Numba's own cache raises an error where it finds no folder to write to, and unpickles whatever a
# file holds. Here a file that cannot be read, or is not as it was written, is the same as no file:
# the kernel is compiled, and the file written again. Files are replaced in one step, and there is
# no index, so processes may share a folder.
#
# Files are looked for in all of `folders`, and written to the first that can be written to.


def folders() -> list[Path]:
    """Folders of the cache: NUMBA_CACHE_DIR, beside the source, and in the user's cache."""
    chosen = [Path(_config.CACHE_DIR) / "hemf"] if _config.CACHE_DIR else []
    own = Path(_app_dirs(appname="numba", appauthor=False).user_cache_dir) / "hemf"
    # It begins with "~" for a user who has no home.
    return [*chosen, Path(__file__).parent / "__pycache__", *([own] if own.is_absolute() else [])]


def warn_if_not_written() -> None:
    """Warn, once in a process, that kernels were compiled and could not be kept.

    This is logged, as kernels import nothing but each other; `hemf.errors.KernelWarnings` makes it
    a warning.
    """
    global _warned
    if _failed and not _warned:
        _warned = True
        places = ", ".join(map(str, folders()))
        _log.warning(
            "compiled kernels cannot be kept in any of %s (%s); every process compiles them again. "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            places,
            _failed[0].strerror,
        )


class Contents(_results):  # type: ignore[misc]
    """Numba's serialisation of a compiled function, without its choice of a folder."""

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
        """Write a compiled function; `warn_if_not_written` warns if that is not possible."""
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
        fields = [_fields(each) for each in getattr(sig, "args", ())]
        whole = *versions, self._source, str(sig), fields, codegen.magic_tuple()
        return hashlib.blake2b(repr(whole).encode(), digest_size=32).digest()

    @cached_property
    def _source(self) -> str:
        return source_digest(self._dispatcher)

    def _file(self, key: bytes) -> str:
        return f"{self._name}-{key.hex()[:24]}.nbc"


def sealed(data: bytes, key: bytes) -> bytes:
    """Return the contents of a file: a checksum of key and data, then the data.

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
        contents.update(repr((name, _described(options))).encode())
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


def _fields(kind: Any) -> tuple[Any, ...]:
    """Return the names of a named tuple's fields, and of those that it holds."""
    nested = [found for each in getattr(kind, "types", ()) if (found := _fields(each))]
    return *getattr(kind, "fields", ()), *nested


def _described(options: Any) -> list[str]:
    """Return how a function is compiled, in the same order in every process."""
    return sorted(
        f"{name}={sorted(value) if isinstance(value, set) else value}"
        for name, value in (options or {}).items()
    )


# ------------------------------------------------------------------------------------------------
# Compilation.


class PartLibrary(_library):  # type: ignore[misc]
    """LLVM code of a function and of those that it calls, hardly optimised."""

    def _optimize_final_module(self) -> None:
        """Leave that to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@_register(mutates_CFG=True, analysis_only=False)
class PartLowering(_lowering):  # type: ignore[misc]
    """Lowering to LLVM code, without machine code."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower a function, and tell Numba about it."""
        name = state.func_id.func_qualname
        state.library = PartLibrary(state.targetctx.codegen(), name)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library.finalize()
        found = state["cr"]
        # Numba knows a function by its entry point, which this one does not have.
        entry = _dynamic.make_function(
            found.fndesc.lookup_module(), name, "", 0, found.env, (state.library,)
        )
        state.targetctx.insert_user_function(entry, found.fndesc, [state.library])
        state["cr"] = found._replace(cfunc=entry)
        return True


class PartCompiler(_base):  # type: ignore[misc]
    """Numba's compiler with `PartLowering`."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes."""
        manager = _manager("part")
        for each, text in _passes.define_nopython_pipeline(self.state).passes:
            manager.add_pass(PartLowering if each is _lowering else each, text)
        manager.finalize()
        return [manager]


class KernelDispatcher(_dispatcher):  # type: ignore[misc]
    """Numba's dispatcher with our cache, which is used as one that ``cache=True`` makes."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=options)
        self._cache = KernelCache(self)

    def is_kept(self, types: Any) -> bool:
        """Whether machine code for these types is on disk."""
        return self._cache.has_overload(types, self.targetctx)


def _options(allocates: bool) -> dict[str, Any]:
    always = {"nopython": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    return {**always, "_nrt": allocates}


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    decorate: Any = numba.jit
    return decorate(**_options(False), no_cpython_wrapper=True, **options)(function)


def _part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    return lambda function: _jit(function, pipeline_class=PartCompiler, **options)


class Kernel:
    """A Numba function for float32 or float64 storage, compiled on first use.

    Annotations give the types of its arguments: a number, an array as `hemf.kernels.structures`
    names them, or a named tuple of these.

    A function that makes arrays must say that it ``allocates``. In all others references to arrays
    are not counted, which would take most of the time of a function with dozens of arrays.
    """

    def __init__(self, function: Callable[..., Any], *, allocates: bool = False) -> None:
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._function = function
        self._dispatcher = KernelDispatcher(function, _options(allocates))
        self._ready: dict[Any, Any] = {}

    def is_ready(self, dtype: Any, codes: Any = np.uint16) -> bool:
        """Whether machine code for ``dtype`` storage is loaded, or can be read from disk."""
        key = np.dtype(dtype), np.dtype(codes)
        return key in self._ready or self._dispatcher.is_kept(self._signature(*key))

    def compiled(self, dtype: Any, codes: Any = np.uint16) -> Any:
        """Return the machine code for ``dtype`` storage; any other argument type is refused."""
        self.trusting(dtype, codes)
        return self._dispatcher

    def trusting(self, dtype: Any, codes: Any = np.uint16) -> Any:
        """Return the machine code without its guard, for arguments that were made to fit.

        To look at the types of dozens of arrays takes longer than a row's arithmetic. One that
        does not fit makes numbers without meaning, or worse.
        """
        key = np.dtype(dtype), np.dtype(codes)
        if key not in self._ready:
            with _lock:
                if key not in self._ready:
                    self._dispatcher.disable_compile(False)
                    entry = self._dispatcher.compile(self._signature(*key))
                    self._dispatcher.disable_compile(True)
                    self._ready[key] = entry
            warn_if_not_written()
        return self._ready[key]

    def _signature(self, dtype: Any, codes: Any) -> Any:
        names = {"T": _TYPES[dtype], "C": _TYPES[codes]}
        hints = get_type_hints(self._function, include_extras=True)
        result = _type(hints.pop("return"), names)
        return result(*(_type(hint, names) for hint in hints.values()))


def _type(hint: Any, names: dict[str, str]) -> Any:
    """Return Numba's type of an annotation."""
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    if get_origin(hint) is Annotated:
        parse: Any = sigutils.normalize_signature
        return parse(f"void({hint.__metadata__[0].format(**names)})")[0][0]
    hints = get_type_hints(hint, include_extras=True).values()
    fields = [_type(each, names) for each in hints]
    mixed: Any = numba.types.NamedTuple
    uniform: Any = numba.types.NamedUniTuple
    is_uniform = len(set(fields)) == 1
    return uniform(fields[0], len(fields), hint) if is_uniform else mixed(fields, hint)


kernel = Kernel
"""Decorate a function as a `Kernel`."""
allocating_kernel = partial(Kernel, allocates=True)
"""Decorate a function that makes arrays as a `Kernel`."""
inner = _part(fastmath={"contract"}, forceinline=True)
"""Decorate a function that only kernels call, and that makes no arrays."""
plain = _part(forceinline=True)
"""Decorate an `inner` function whose products and sums are fused only where it says so."""
step = _part(fastmath={"contract"})
"""Decorate an `inner` function that is large, and called rather than copied."""


def separate_step(function: Callable[..., Any], **options: Any) -> Any:
    """Decorate a `step` that is optimised on its own first.

    That takes longer to compile. How its products and sums are fused, and so its rounding, depends
    less on who calls it.
    """
    return _jit(function, fastmath={"contract"}, **options)


def separate(function: Callable[..., Any]) -> Any:
    """Decorate an `inner` function that is optimised on its own first."""
    return separate_step(function, forceinline=True)


summing = _part(fastmath={"contract", "reassoc"}, forceinline=True)
"""Decorate an `inner` function that adds up numbers, in whatever order is fastest."""
