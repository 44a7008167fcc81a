"""Copies of rows that are about to change, and of their lists: see `hemf.online.journal`.

A copy is made and put back within a kernel, which no exception interrupts. Putting it back twice
has the same result as once.

Tables are given by their addresses: to look at dozens of arrays takes longer than to copy one row
of each. The buffer is an array of 64-bit numbers, of which the first says how many are in use. A
copy begins with the number of its rows and the rows. Then come the entries of the tables, one table
after the other, where the lists are, and the lists.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# Numba and llvmlite have no types.

from __future__ import annotations

from typing import Annotated, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hemf.kernels.compile import inner, kernel
from hemf.kernels.structures import Copy, Int64Array, Pools

Int64Matrix = Annotated[Any, "int64[:, ::1]"]

PLACE, ENTRIES = 8, 16
"""Parts of a row that are copied: where its list is, and the list. Tables are the lower bits."""
BITS = 5
"""Lowest bits of a row's stamp: the parts that were copied; above them is who did so."""


def _typed(_context, _target, _source, _size):
    def generate(context, builder, _signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        to, of = (builder.inttoptr(address, pointer) for address in arguments[:2])
        copy: Any = cgutils.raw_memcpy
        copy(builder, to, of, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy_bytes: Any = intrinsic(_typed)
"""Copies bytes: address to copy to, address to copy from, and how many."""


@inner
def move(array: int, buffer: int, size: int, back: bool) -> None:
    """Copy so many bytes from one address to that in a buffer, or ``back``."""
    if back:
        array, buffer = buffer, array
    if size == 8:  # most tables: without a call
        copy_bytes(buffer, array, 8)
    elif size == 4:
        copy_bytes(buffer, array, 4)
    else:
        copy_bytes(buffer, array, size)


@kernel
def copy_rows(
    rows: Int64Array, tables: Int64Matrix, stamps: Int64Array, lists: Int64Matrix, pools: Pools,
    buffer: Int64Array, copy: Copy, back: bool,
) -> int:  # fmt: skip
    """Copy parts of rows to a buffer; return where the copy ends.

    ``tables`` are copied, an address and the bytes of a row each, and of lists what the parts say.
    Rows that have all of these under the same stamp are left out; others get the stamp, for the
    parts in ``stamped``. Where the buffer is too short, nothing is done. With ``back``, an earlier
    copy is put back.
    """
    at, stamp, parts, stamped = copy
    other, halves, width, session = pools
    own = at + 1
    n, entries = buffer[at], 0
    if not back:
        n = 0
        for k in range(rows.size):
            known = stamps[rows[k]]
            if known >> BITS != stamp or known & parts != parts:
                n += 1
                if parts & ENTRIES:
                    entries += lists[1, rows[k]]
    row_bytes = 0
    for c in range(tables.shape[0]):
        row_bytes += tables[c, 1]
    places = own + n + (n * row_bytes + 7) // 8
    if back and parts & PLACE:
        for k in range(n):
            for c in range(3):
                lists[c, buffer[own + k]] = buffer[places + 3 * k + c]
            if parts & ENTRIES:
                entries += lists[1, buffer[own + k]]
    end = places
    if parts & PLACE:
        end += 3 * n
    base = buffer.ctypes.data
    others_to = base + 8 * end
    codes_to = others_to + 4 * entries
    sessions_to = codes_to + 2 * width * entries
    listed = (4 + 2 * width) * entries
    if session.size > 0:
        listed += 4 * entries
    end += (listed + 7) // 8
    if end > buffer.size:
        return end
    if not back:
        n = 0
        for k in range(rows.size):
            known = stamps[rows[k]]
            if known >> BITS != stamp or known & parts != parts:
                buffer[own + n] = rows[k]
                n += 1
                kept = known if known >> BITS == stamp else stamp << BITS
                stamps[rows[k]] = kept | stamped
    to = base + 8 * (own + n)
    for c in range(tables.shape[0]):
        address, size = tables[c, 0], tables[c, 1]
        for k in range(n):
            move(address + size * buffer[own + k], to, size, back)
            to += size
    if parts & PLACE:
        for k in range(n):
            row = buffer[own + k]
            start, length = lists[0, row], lists[1, row]
            if not back:
                for c in range(3):
                    buffer[places + 3 * k + c] = lists[c, row]
            if parts & ENTRIES:
                move(other.ctypes.data + 4 * start, others_to, 4 * length, back)
                others_to += 4 * length
                size = 2 * width
                move(halves.ctypes.data + size * start, codes_to, size * length, back)
                codes_to += size * length
                if session.size > 0:
                    move(session.ctypes.data + 4 * start, sessions_to, 4 * length, back)
                    sessions_to += 4 * length
    if not back:
        buffer[at] = n
        buffer[0] = end
    return end
