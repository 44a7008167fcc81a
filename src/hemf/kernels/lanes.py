"""Small symmetric solves, many at a time.

A row's matrix is too small to keep the vector units busy on its own, so `WIDTH` of them go
through every step together: arrays are (packed entry, lane), the lane innermost. Entry (i, j),
j ≤ i, of the packed lower triangle is at i(i+1)/2 + j. At 21 coordinates a factorisation takes
0.4 µs this way where one matrix at a time takes 4.5 µs.

One line of such an array, a number of each row, is a value of its own: `load`, arithmetic, `store`.
Loops over lanes would have to be vectorised, which takes most of the time of compiling.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# Numba and llvmlite have no types.

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from hemf.kernels.compile import inner, plain
from hemf.kernels.structures import LANES, WIDE, WIDTH

_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_primitive: Any = models.PrimitiveModel  # Numba has no types


class _Lanes(types.Type):
    """`WIDTH` numbers."""


_lanes: Any = _Lanes("lanes")


@register_model(_Lanes)
class _Model(_primitive):  # type: ignore[misc]
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


def _define(operation, name):
    """Define an operator for lanes and lanes, or a number."""

    def generate(_context, builder, _signature, arguments):
        both = [x if x.type == _VECTOR else _in_all(builder, x, _VECTOR) for x in arguments]
        return getattr(builder, name)(*both)

    kinds = [(_lanes, _lanes), (_lanes, types.float64), (types.float64, _lanes)]
    cases = [signature(_lanes, *kind) for kind in kinds]
    infer_global(operation)(type(name, (ConcreteTemplate,), {"cases": cases}))
    for kind in kinds:
        lower_builtin(operation, *kind)(generate)


for _operation, _name in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):  # fmt: skip
    _define(_operation, _name)


def _load(_context, x, _p):
    def generate(context, builder, signature, arguments):
        return builder.load(_line(context, builder, signature, arguments), align=8)

    return _lanes(x, types.intp), generate


def _store(_context, x, _p, _value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _line(context, builder, signature, arguments), align=8)
        return context.get_dummy_value()

    return types.void(x, types.intp, _lanes), generate


def _line(context, builder, signature, arguments):
    begin = builder.mul(arguments[1], ir.Constant(arguments[1].type, WIDTH))
    return _at(context, builder, signature.args[0], arguments[0], begin, _VECTOR)


def _full(_context, _value):
    def generate(_context, builder, _signature, arguments):
        return _in_all(builder, arguments[0], _VECTOR)

    return _lanes(types.float64), generate


def _call(builder, name, result, arguments):
    kind = ir.FunctionType(result, [each.type for each in arguments])
    name = f"llvm.{name}.v{WIDTH}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _sqrt(_context, _value):
    def generate(_context, builder, _signature, arguments):
        return _call(builder, "sqrt", _VECTOR, arguments)

    return _lanes(_lanes), generate


def _fma(_context, _x, _y, _z):
    def generate(_context, builder, _signature, arguments):
        return _call(builder, "fmuladd", _VECTOR, arguments)

    return _lanes(_lanes, _lanes, _lanes), generate


def _fnma(_context, _x, _y, _z):
    def generate(_context, builder, _signature, arguments):
        x, *others = arguments
        return _call(builder, "fmuladd", _VECTOR, [builder.fneg(x), *others])

    return _lanes(_lanes, _lanes, _lanes), generate


def _total(_context, _value):
    def generate(_context, builder, _signature, arguments):
        zero = ir.Constant(ir.DoubleType(), 0.0)
        return _call(builder, "vector.reduce.fadd", zero.type, [zero, *arguments])

    return types.float64(_lanes), generate


load: Any = intrinsic(_load)
"""load(x, p): lanes of line p of an array, which is contiguous, float64 and `WIDTH` wide."""
store: Any = intrinsic(_store)
"""store(x, p, lanes): write them to line p."""
full: Any = intrinsic(_full)
"""full(x): lanes that all hold a number."""
root: Any = intrinsic(_sqrt)
"""root(lanes): their square roots."""
fma: Any = intrinsic(_fma)
"""fma(x, y, z): x * y + z of lanes, rounded once where the processor can."""
fnma: Any = intrinsic(_fnma)
"""fnma(x, y, z): z - x * y, likewise."""
total: Any = intrinsic(_total)
"""total(lanes): their sum, from the first to the last."""


@inner
def packed(i: int, j: int) -> int:
    """Position of entry (i, j) in a packed lower triangle."""
    return i * (i + 1) // 2 + j if i >= j else j * (j + 1) // 2 + i


@plain
def factorise(a: Any, order: int) -> None:
    """Overwrite each matrix with its lower Cholesky factor."""
    for i in range(order):
        u = i * (i + 1) // 2
        for j in range(i + 1):
            v = j * (j + 1) // 2
            x = load(a, u + j)
            k = 0
            while k + 4 <= j:
                one = load(a, u + k + 1) * load(a, v + k + 1)
                two = load(a, u + k + 3) * load(a, v + k + 3)
                one = fma(load(a, u + k), load(a, v + k), one)
                x = x - (one + fma(load(a, u + k + 2), load(a, v + k + 2), two))
                k += 4
            while k < j:
                x = fnma(load(a, u + k), load(a, v + k), x)
                k += 1
            store(a, u + j, root(x) if i == j else x / load(a, v + j))


@plain
def solve_forward(factor: Any, y: Any, order: int) -> None:
    """Overwrite each y with C⁻¹ y, C the Cholesky factor."""
    for i in range(order):
        row = i * (i + 1) // 2
        x = load(y, i)
        for k in range(i):
            x = fnma(load(factor, row + k), load(y, k), x)
        store(y, i, x / load(factor, row + i))


@plain
def solve_backward(factor: Any, y: Any, order: int) -> None:
    """Overwrite each y with C⁻ᵀ y, C the Cholesky factor."""
    for i in range(order - 1, -1, -1):
        row = i * (i + 1) // 2
        x = load(y, i) / load(factor, row + i)
        store(y, i, x)
        for k in range(i):
            store(y, k, fnma(load(factor, row + k), x, load(y, k)))


@plain
def invert(a: Any, order: int) -> None:
    """Overwrite each Cholesky factor C with (C Cᵀ)⁻¹, packed."""
    for i in range(order):  # C → C⁻¹, row by row
        row = i * (i + 1) // 2
        pivot = 1.0 / load(a, row + i)
        store(a, row + i, pivot)
        for j in range(i):
            x = load(a, row + j) * load(a, j * (j + 1) // 2 + j)
            k = j + 1
            while k + 2 <= i:
                other = load(a, row + k + 1) * load(a, (k + 1) * (k + 2) // 2 + j)
                x = x + fma(load(a, row + k), load(a, k * (k + 1) // 2 + j), other)
                k += 2
            if k < i:
                x = fma(load(a, row + k), load(a, k * (k + 1) // 2 + j), x)
            store(a, row + j, x * (-1.0 * pivot))
    for i in range(order):  # C⁻¹ → C⁻ᵀ C⁻¹; row i is not needed once written
        row = i * (i + 1) // 2
        pivot = load(a, row + i)
        for j in range(i + 1):
            x = load(a, row + j) * pivot
            k = i + 1
            while k + 2 <= order:
                u, v = k * (k + 1) // 2, (k + 1) * (k + 2) // 2
                x = x + fma(load(a, u + i), load(a, u + j), load(a, v + i) * load(a, v + j))
                k += 2
            if k < order:
                u = k * (k + 1) // 2
                x = fma(load(a, u + i), load(a, u + j), x)
            store(a, row + j, x)


# ------------------------------------------------------------------------------------------------
# Steps on a few numbers at a time, which the compiler does not find by itself.
#
# In short loops over parts of one array the compiler assumes that reads and writes may overlap, and
# does not vectorise. These functions work on `LANES` numbers at a time.


def _at(context, builder, kind, value, place, vector):
    """Return a pointer to the lanes at a place of an array."""
    data = context.make_array(kind)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


def _in_all(builder, number, vector):
    """Return lanes that all hold a number."""
    nothing, zero = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    first = builder.insert_element(nothing, number, zero)
    every = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, every)


def _steps(builder, n, vector):
    return cgutils.for_range(builder, builder.sdiv(n, ir.Constant(n.type, vector.count)))


def _add_scaled(_context, x, _at_, y, _by, _factor, _n):
    vector = ir.VectorType(ir.DoubleType(), LANES)

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        target = _at(context, builder, kinds[0], arguments[0], arguments[1], vector)
        source = _at(context, builder, kinds[2], arguments[2], arguments[3], vector)
        factor = _in_all(builder, arguments[4], vector)
        with _steps(builder, arguments[5], vector) as loop:
            to = builder.gep(target, [loop.index])
            read = builder.load(builder.gep(source, [loop.index]), align=8)
            product = builder.fmul(factor, read, flags=("contract",))
            total = builder.fadd(builder.load(to, align=8), product, flags=("contract",))
            builder.store(total, to, align=8)
        return context.get_dummy_value()

    return types.void(x, types.intp, y, types.intp, types.float64, types.intp), generate


add_scaled: Any = intrinsic(_add_scaled)
"""add_scaled(x, at, y, by, factor, n): x[at:at+n] += factor * y[by:by+n].

Contiguous float64 arrays, positions as if they had one dimension, n a multiple of `LANES`.
"""


def _add_two(_context, x, _at_, y, _by, _one, _and, _two, _n):
    vector = ir.VectorType(ir.DoubleType(), LANES)

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        target = _at(context, builder, kinds[0], arguments[0], arguments[1], vector)
        terms = [
            (
                _at(context, builder, kinds[2], arguments[2], arguments[place], vector),
                _in_all(builder, arguments[place + 1], vector),
            )
            for place in (3, 5)
        ]
        with _steps(builder, arguments[7], vector) as loop:
            to = builder.gep(target, [loop.index])
            total = builder.load(to, align=8)
            for source, factor in terms:
                read = builder.load(builder.gep(source, [loop.index]), align=8)
                product = builder.fmul(factor, read, flags=("contract",))
                total = builder.fadd(total, product, flags=("contract",))
            builder.store(total, to, align=8)
        return context.get_dummy_value()

    whole, number = types.intp, types.float64
    return types.void(x, whole, y, whole, number, whole, number, whole), generate


add_two: Any = intrinsic(_add_two)
"""add_two(x, at, y, by, factor, and, other, n): `add_scaled` twice, from two places of y."""


def _put_products(_context, x, y, _n, factor):
    number = ir.FloatType() if y.dtype == types.float32 else ir.DoubleType()
    vector, aligned = ir.VectorType(number, WIDE), y.dtype.bitwidth // 8

    def generate(context, builder, signature, arguments):
        kinds, whole = signature.args, arguments[2].type
        one, zero = ir.Constant(whole, 1), ir.Constant(whole, 0)
        to = context.make_array(kinds[0])(context, builder, arguments[0]).data
        values = context.make_array(kinds[1])(context, builder, arguments[1]).data
        source = _at(context, builder, kinds[1], arguments[1], zero, vector)
        with cgutils.for_range(builder, arguments[2]) as row:
            t = row.index
            value = builder.load(builder.gep(values, [t]))
            scale = _in_all(builder, builder.fmul(arguments[3], value), vector)
            before = builder.sdiv(builder.mul(t, builder.add(t, one)), ir.Constant(whole, 2))
            target = builder.bitcast(builder.gep(to, [before]), vector.as_pointer())
            with _steps(builder, builder.add(t, ir.Constant(whole, WIDE)), vector) as loop:
                read = builder.load(builder.gep(source, [loop.index]), align=aligned)
                there = builder.gep(target, [loop.index])
                builder.store(builder.fmul(scale, read), there, align=aligned)
        return context.get_dummy_value()

    return types.void(x, y, types.intp, y.dtype), generate


put_products: Any = intrinsic(_put_products)
"""put_products(x, y, n, factor): write the packed lower triangle of factor * y yᵀ to x.

y has n numbers, both arrays room for `WIDE` more, which is written over.
"""


@inner
def copy_entries(source: Any, first: Any, target: Any, to: Any, n: Any) -> None:
    """Copy n values to another place, which does not overlap."""
    origin, goal = source[first : first + n], target[to : to + n]
    for k in range(origin.size):
        goal[k] = origin[k]
