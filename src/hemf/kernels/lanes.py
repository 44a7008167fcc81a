"""Small symmetric solves, many at a time.

A row's matrix is too small to keep the vector units busy on its own, so `WIDTH` of them go
through every step together: arrays are (packed entry, lane), the lane innermost. Entry (i, j),
j ≤ i, of the packed lower triangle is at i(i+1)/2 + j. At 21 coordinates a factorisation takes
0.4 µs this way where one matrix at a time takes 4.5 µs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hemf.kernels.compile import inner

WIDTH = 32


@inner
def factorise(a: Any, order: int) -> None:
    """Overwrite each matrix with its lower Cholesky factor."""
    width = a.shape[1]
    for i in range(order):
        row_i = i * (i + 1) // 2
        for j in range(i + 1):
            row_j = j * (j + 1) // 2
            x = a[row_i + j]
            k = 0
            while k + 4 <= j:
                u0, u1 = a[row_i + k], a[row_i + k + 1]
                u2, u3 = a[row_i + k + 2], a[row_i + k + 3]
                v0, v1 = a[row_j + k], a[row_j + k + 1]
                v2, v3 = a[row_j + k + 2], a[row_j + k + 3]
                for b in range(width):
                    x[b] -= (u0[b] * v0[b] + u1[b] * v1[b]) + (u2[b] * v2[b] + u3[b] * v3[b])
                k += 4
            while k < j:
                u0, v0 = a[row_i + k], a[row_j + k]
                for b in range(width):
                    x[b] -= u0[b] * v0[b]
                k += 1
            if i == j:
                for b in range(width):
                    x[b] = np.sqrt(x[b])
            else:
                pivot = a[row_j + j]
                for b in range(width):
                    x[b] /= pivot[b]


@inner
def solve_forward(factor: Any, y: Any, order: int) -> None:
    """Overwrite each y with C⁻¹ y, C the Cholesky factor."""
    width = y.shape[1]
    for i in range(order):
        row = i * (i + 1) // 2
        x = y[i]
        for k in range(i):
            u, v = factor[row + k], y[k]
            for b in range(width):
                x[b] -= u[b] * v[b]
        pivot = factor[row + i]
        for b in range(width):
            x[b] /= pivot[b]


@inner
def solve_backward(factor: Any, y: Any, order: int) -> None:
    """Overwrite each y with C⁻ᵀ y, C the Cholesky factor."""
    width = y.shape[1]
    for i in range(order - 1, -1, -1):
        row = i * (i + 1) // 2
        x = y[i]
        pivot = factor[row + i]
        for b in range(width):
            x[b] /= pivot[b]
        for k in range(i):
            u, v = factor[row + k], y[k]
            for b in range(width):
                v[b] -= u[b] * x[b]


@inner
def invert(a: Any, order: int) -> None:
    """Overwrite each Cholesky factor C with (C Cᵀ)⁻¹, packed."""
    width = a.shape[1]
    for i in range(order):  # C → C⁻¹, row by row
        row_i = i * (i + 1) // 2
        pivot = a[row_i + i]
        for b in range(width):
            pivot[b] = 1.0 / pivot[b]
        for j in range(i):
            x = a[row_i + j]
            diagonal = a[j * (j + 1) // 2 + j]
            for b in range(width):
                x[b] *= diagonal[b]
            k = j + 1
            while k + 2 <= i:
                u0, u1 = a[row_i + k], a[row_i + k + 1]
                v0, v1 = a[k * (k + 1) // 2 + j], a[(k + 1) * (k + 2) // 2 + j]
                for b in range(width):
                    x[b] += u0[b] * v0[b] + u1[b] * v1[b]
                k += 2
            if k < i:
                u0, v0 = a[row_i + k], a[k * (k + 1) // 2 + j]
                for b in range(width):
                    x[b] += u0[b] * v0[b]
            for b in range(width):
                x[b] *= -pivot[b]
    for i in range(order):  # C⁻¹ → C⁻ᵀ C⁻¹; row i is not needed once written
        row_i = i * (i + 1) // 2
        for j in range(i + 1):
            x, pivot = a[row_i + j], a[row_i + i]
            for b in range(width):
                x[b] *= pivot[b]
            k = i + 1
            while k + 2 <= order:
                row_k, row_l = k * (k + 1) // 2, (k + 1) * (k + 2) // 2
                u0, u1, v0, v1 = a[row_k + i], a[row_l + i], a[row_k + j], a[row_l + j]
                for b in range(width):
                    x[b] += u0[b] * v0[b] + u1[b] * v1[b]
                k += 2
            if k < order:
                row_k = k * (k + 1) // 2
                u0, v0 = a[row_k + i], a[row_k + j]
                for b in range(width):
                    x[b] += u0[b] * v0[b]


# ------------------------------------------------------------------------------------------------
# Steps on a few numbers at a time, which the compiler does not find by itself.
#
# It takes short loops over parts of one array for loops that may get in their own way, and works
# through them number by number. Here it is told: `LANES` numbers at a time.


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
