"""Lists of ratings, one for each row of a side, in one pool.

The list of row i is at ``start[i]`` to ``start[i] + length[i]`` of the pools ``other`` (the row of
the other side) and ``code`` (which rating), newest last. It may grow to ``room[i]`` entries where
it is; `hemf.inference.history` sees to that before kernels append. Where raters have moods, there
is a third pool: the ``sitting`` that each rating is of.

Codes have 16 or 32 bits. The kernels that move whole lists take either as 16-bit halves, of which
a code has ``width``. Sittings are moved where their pool has any room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import inner, kernel

BLOCK = 64
"""Entries that `find` compares at once."""


@inner
def find(start: Any, length: Any, other: Any, row: Any, wanted: Any) -> int:
    """Return where in the pool the newest entry of a row for ``wanted`` is, or -1."""
    entries = other[start[row] : start[row] + length[row]]
    key = np.int32(wanted)
    last = entries.size
    # A loop that may leave at every entry cannot be vectorised, one over a whole block can.
    while last >= BLOCK:
        block = entries[last - BLOCK : last]
        hits = np.int32(0)
        for k in range(BLOCK):
            hits |= np.int32(block[k] == key)
        if hits:
            break
        last -= BLOCK
    for k in range(last - 1, -1, -1):
        if entries[k] == key:
            return np.int64(start[row] + k)  # type: ignore[return-value]
    return np.int64(-1)  # type: ignore[return-value]


@inner
def find_oldest(start: Any, length: Any, other: Any, row: Any, wanted: Any) -> int:
    """Return where in the pool the oldest entry of a row for ``wanted`` is, or -1."""
    key = np.int32(wanted)
    for k in range(start[row], start[row] + length[row]):
        if other[k] == key:
            return np.int64(k)  # type: ignore[return-value]
    return np.int64(-1)  # type: ignore[return-value]


@inner
def find_code(
    start: Any, length: Any, other: Any, code: Any, row: Any, wanted: Any, rating: Any
) -> int:
    """Return where in the pool the newest entry of a row for ``wanted`` with a code is, or -1."""
    key = np.int32(wanted)
    for k in range(start[row] + length[row] - 1, start[row] - 1, -1):
        if other[k] == key and np.int64(code[k]) == rating:
            return np.int64(k)  # type: ignore[return-value]
    return np.int64(-1)  # type: ignore[return-value]


@inner
def append(
    start: Any, length: Any, other: Any, code: Any, row: Any, other_row: Any, new_code: Any
) -> None:
    """Add an entry to a row that has room for it."""
    position = start[row] + length[row]
    other[position] = other_row
    code[position] = new_code
    length[row] += 1


@inner
def drop(start: Any, length: Any, other: Any, code: Any, row: Any, position: Any) -> None:
    """Take out the entry at a position in the pool; later ones of its row move down."""
    end = start[row] + length[row]
    others, codes = other[position:end], code[position:end]
    for k in range(others.size - 1):
        others[k] = others[k + 1]
    for k in range(codes.size - 1):
        codes[k] = codes[k + 1]
    length[row] -= 1


@inner
def enough(n: Any) -> int:
    """Return the least power of two that is at least n."""
    room = np.int64(1)
    while room < n:
        room *= 2
    return room  # type: ignore[return-value]


@inner
def copy_entries(source: Any, first: Any, target: Any, to: Any, n: Any) -> None:
    """Copy n values to another place, which does not overlap."""
    origin, goal = source[first : first + n], target[to : to + n]
    for k in range(origin.size):
        goal[k] = origin[k]


@kernel(
    "boolean(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int32[::1], "
    "uint16[::1], int64, int32[::1])"
)
def extend(
    rows: Any, extra: Any, start: Any, length: Any, room: Any, used: Any, other: Any, halves: Any,
    width: Any, sitting: Any,
) -> bool:  # fmt: skip
    """Move lists that lack room for ``extra`` more entries behind what is ``used[0]`` of the pools.

    Return whether the pools are large enough for that; where they are not, nothing has changed.
    """
    needed = 0
    for k in range(rows.size):
        wanted = length[rows[k]] + extra[k]
        if wanted > room[rows[k]]:
            needed += enough(wanted)
    end = used[0]
    if end + needed > other.size:
        return False
    if needed:
        for k in range(rows.size):
            i = rows[k]
            wanted = length[i] + extra[k]
            if wanted > room[i]:
                copy_entries(other, start[i], other, end, length[i])
                copy_entries(halves, width * start[i], halves, width * end, width * length[i])
                if sitting.size > 0:
                    copy_entries(sitting, start[i], sitting, end, length[i])
                start[i] = end
                room[i] = enough(wanted)
                end += room[i]
        used[0] = end
    return True


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", allocates=True
)
def lay_out(rows: Any, extra: Any, length: Any, room: Any, new_start: Any, new_room: Any) -> int:
    """Write where lists go in pools without gaps, with room for ``extra`` more entries in ``rows``.

    Return the entries that are needed.
    """
    # Room that was promised is kept, in use or not.
    new_room[:] = room
    for k in range(rows.size):
        wanted = length[rows[k]] + extra[k]
        if wanted > new_room[rows[k]]:
            new_room[rows[k]] = enough(wanted)
    end = 0
    for i in range(length.size):
        new_start[i] = end
        end += new_room[i]
    return end


@kernel(
    "void(int64[::1], int64[::1], int32[::1], uint16[::1], int64, int32[::1], int64[::1], "
    "int32[::1], uint16[::1], int32[::1])"
)
def gather(
    start: Any, length: Any, other: Any, halves: Any, width: Any, sitting: Any, new_start: Any,
    new_other: Any, new_halves: Any, new_sitting: Any,
) -> None:  # fmt: skip
    """Copy every list to its new start in other pools."""
    for i in range(length.size):
        copy_entries(other, start[i], new_other, new_start[i], length[i])
        copy_entries(halves, width * start[i], new_halves, width * new_start[i], width * length[i])
        if sitting.size > 0:
            copy_entries(sitting, start[i], new_sitting, new_start[i], length[i])
