"""When and for which storage type a kernel is compiled.

Every kernel states its argument types, contiguity included: a strided array is a type error
rather than a kernel that is seven times slower. Compilation happens once for each storage type
that is asked for, and is cached on disk (see `hemf.kernels.cache`).

Numba optimises every function and generates machine code for it, then does so again in each
function that calls it. Functions that only kernels call stay LLVM code here until the kernel that
calls them is optimised as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, get_type_hints

import numba
import numpy as np
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import compiler, sigutils, typed_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher

from hemf.kernels.cache import KernelCache, warn_if_not_written

_TYPES = {np.dtype(name): name for name in ("float32", "float64", "uint16", "uint32")}
_lock = threading.Lock()
_dynamic: Any = _dynfunc  # Numba has no types
_library: Any = JITCodeLibrary
_lowering: Any = typed_passes.NativeLowering
_base: Any = compiler.CompilerBase
_passes: Any = compiler.DefaultPassBuilder
_register: Any = register_pass
_manager: Any = PassManager
_dispatcher: Any = CPUDispatcher


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

    ``signature`` is written with ``{T}`` for the storage type and ``{C}`` for that of codes. A
    function with named tuples of arrays among its arguments has a list of these instead, and
    returns nothing; their fields say what they hold: ``Annotated[Any, "{T}[:, ::1]"]``. Code that
    runs only ``if argument is not None`` is not compiled for those that are None.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: str | tuple[Any, ...],
        *,
        allocates: bool,
        optional: tuple[type, ...] = (),
    ) -> None:
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._signature = signature
        self._optional = optional
        self._dispatcher = KernelDispatcher(function, _options(allocates))
        self._ready: dict[Any, Any] = {}

    def is_ready(self, dtype: Any, codes: Any = np.uint16) -> bool:
        """Whether machine code for ``dtype`` storage is loaded, or can be read from disk."""
        key = np.dtype(dtype), np.dtype(codes), ()
        return key in self._ready or self._dispatcher.is_kept(self._types(*key))

    def compiled(self, dtype: Any, codes: Any = np.uint16, absent: tuple[type, ...] = ()) -> Any:
        """Return the machine code for ``dtype`` storage; any other argument type is refused.

        Arguments of the types ``absent`` are None.
        """
        self.trusting(dtype, codes, absent)
        return self._dispatcher

    def compile_all(self, dtype: Any) -> None:
        """Compile for ``dtype`` storage, with all arguments and without those that may be None."""
        self.compiled(dtype)
        if self._optional:
            self.compiled(dtype, absent=self._optional)

    def trusting(self, dtype: Any, codes: Any = np.uint16, absent: tuple[type, ...] = ()) -> Any:
        """Return the machine code without its guard, for arguments that were made to fit.

        To look at the types of dozens of arrays takes longer than a row's arithmetic. One that
        does not fit makes numbers without meaning, or worse.
        """
        key = np.dtype(dtype), np.dtype(codes), absent
        if key not in self._ready:
            with _lock:
                if key not in self._ready:
                    self._dispatcher.disable_compile(False)
                    entry = self._dispatcher.compile(self._types(*key))
                    self._dispatcher.disable_compile(True)
                    self._ready[key] = entry
            warn_if_not_written()
        return self._ready[key]

    def _types(self, dtype: Any, codes: Any, absent: tuple[type, ...]) -> Any:
        return _typed(self._signature, {"T": _TYPES[dtype], "C": _TYPES[codes]}, absent)


def _typed(
    signature: str | tuple[Any, ...], names: dict[str, str], absent: tuple[type, ...]
) -> Any:
    if isinstance(signature, str):
        return signature.format(**names)
    types: list[Any] = []
    mixed: Any = numba.types.NamedTuple
    uniform: Any = numba.types.NamedUniTuple
    for argument in signature:
        if isinstance(argument, str):
            types.append(_type(argument, names))
            continue
        if argument in absent:
            types.append(numba.types.none)
            continue
        hints = get_type_hints(argument, include_extras=True)
        fields = [_type(hint.__metadata__[0], names) for hint in hints.values()]
        is_uniform = len(set(fields)) == 1
        types.append(
            uniform(fields[0], len(fields), argument) if is_uniform else mixed(fields, argument)
        )
    return numba.void(*types)


def _type(text: str, names: dict[str, str]) -> Any:
    parse: Any = sigutils.normalize_signature
    return parse(f"void({text.format(**names)})")[0][0]


def kernel(
    *signature: Any, allocates: bool = False, optional: tuple[type, ...] = ()
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a function as a `Kernel` of this signature, one text or a list of arguments.

    Arguments of ``optional`` types may be None.

    A function that makes arrays must set ``allocates``. In all others references to arrays are not
    counted, which would take most of the time of a function with dozens of arrays.
    """
    first = signature[0]
    whole = " ".join(first.split()) if len(signature) == 1 else signature
    return lambda function: Kernel(function, whole, allocates=allocates, optional=optional)


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
