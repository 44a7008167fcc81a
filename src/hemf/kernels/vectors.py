"""Steps on a few numbers at a time, which the compiler does not find by itself.

It takes short loops over parts of one array for loops that may get in their own way, and works
through them number by number. Here it is told: `LANES` numbers at a time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 4
WIDE = 8


def _at(context: Any, builder: Any, kind: Any, value: Any, place: Any, vector: Any) -> Any:
    """Return a pointer to the lanes at a place of an array."""
    data = context.make_array(kind)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


def _in_all(builder: Any, number: Any, vector: Any) -> Any:
    """Return lanes that all hold a number."""
    nothing, zero = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    first = builder.insert_element(nothing, number, zero)
    every = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, every)


def _steps(builder: Any, n: Any, vector: Any) -> Any:
    return cgutils.for_range(builder, builder.sdiv(n, ir.Constant(n.type, vector.count)))


def _add_scaled(_context: Any, x: Any, _at_: Any, y: Any, _by: Any, _factor: Any, _n: Any) -> Any:
    vector = ir.VectorType(ir.DoubleType(), LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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


def _add_two(
    _context: Any, x: Any, _at_: Any, y: Any, _by: Any, _one: Any, _and: Any, _two: Any, _n: Any
) -> Any:
    vector = ir.VectorType(ir.DoubleType(), LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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


def _put_products(_context: Any, x: Any, y: Any, _n: Any, factor: Any) -> Any:
    number = ir.FloatType() if y.dtype == types.float32 else ir.DoubleType()
    vector, aligned = ir.VectorType(number, WIDE), y.dtype.bitwidth // 8

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
