"""Entries of lists in a pool are found, appended and dropped as in plain lists."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from hemf.kernels import record

GUARD = -7
"""What the pool holds outside of the lists."""
NO_SITTINGS = np.zeros(0, np.int32)


@numba.njit
def find(start: Any, length: Any, other: Any, row: Any, wanted: Any) -> Any:
    return record.find(start, length, other, row, wanted)


@numba.njit
def append(start: Any, length: Any, other: Any, code: Any, row: Any, j: Any, new: Any) -> None:
    record.append(start, length, other, code, row, j, new)


@numba.njit
def drop(start: Any, length: Any, other: Any, code: Any, row: Any, position: Any) -> None:
    record.drop(start, length, other, code, row, position)


@numba.njit
def enough(n: Any) -> Any:
    return record.enough(n)


def pools(entries: list[int], before: int, after: int, dtype: Any = np.uint16) -> list[Any]:
    """Start, length, other and code of two rows, the second with these entries."""
    other = np.array([GUARD] * before + entries + [GUARD] * after, np.int32)
    code = np.arange(len(other)).astype(dtype)
    return [np.array([0, before]), np.array([0, len(entries)]), other, code]


@pytest.mark.parametrize("n", [0, 1, 5, record.BLOCK - 1, record.BLOCK, 3 * record.BLOCK + 7])
def test_every_entry_is_found_and_no_other(n: int) -> None:
    start, length, other, _ = pools(list(range(100, 100 + n)), before=9, after=5)
    assert [find(start, length, other, 1, 100 + k) for k in range(n)] == list(range(9, 9 + n))
    for absent in (99, 100 + n, GUARD):
        assert find(start, length, other, 1, absent) == -1
    assert find(start, length, other, 0, 100) == -1


def test_the_newest_of_equal_entries_is_found(rng: np.random.Generator) -> None:
    for n in range(1, 3 * record.BLOCK, 5):
        entries = rng.integers(0, 4, n).tolist()
        start, length, other, _ = pools(entries, before=3, after=3)
        for wanted in set(entries):
            newest = max(k for k in range(n) if entries[k] == wanted)
            assert find(start, length, other, 1, wanted) == 3 + newest


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_an_entry_is_appended_behind_the_newest(dtype: Any) -> None:
    start, length, other, code = pools([4, 5], before=2, after=2, dtype=dtype)
    append(start, length, other, code, 1, 6, np.iinfo(dtype).max)
    assert other.tolist() == [GUARD, GUARD, 4, 5, 6, GUARD]
    assert code.tolist() == [0, 1, 2, 3, np.iinfo(dtype).max, 5]
    assert length.tolist() == [0, 3]


@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_dropping_an_entry_keeps_the_order_of_the_others(n: int, dtype: Any) -> None:
    for k in range(n):
        start, length, other, code = pools(list(range(n)), before=3, after=2, dtype=dtype)
        drop(start, length, other, code, 1, 3 + k)
        left = [j for j in range(n) if j != k]
        assert length.tolist() == [0, n - 1]
        assert other[3 : 3 + n - 1].tolist() == left
        assert code[3 : 3 + n - 1].tolist() == [3 + j for j in left]
        assert other[:3].tolist() == [GUARD] * 3
        assert other[-2:].tolist() == [GUARD] * 2


def test_room_is_the_least_power_of_two_that_is_enough() -> None:
    assert [enough(n) for n in (1, 2, 3, 4, 5, 1000, 1 << 40)] == [1, 2, 4, 4, 8, 1024, 1 << 40]


def test_lists_that_do_not_fit_into_the_pools_stay_where_they_are() -> None:
    start, length, other, code = pools([4, 5], before=0, after=1)
    room, used, rows = length.copy(), np.array([2]), np.array([1])
    extend = record.extend.compiled(np.float64)
    before = [part.copy() for part in (start, length, room, used, other, code)]
    assert not extend(rows, np.array([1]), start, length, room, used, other, code, 1, NO_SITTINGS)
    for part, old in zip((start, length, room, used, other, code), before, strict=True):
        assert np.array_equal(part, old)


def test_a_list_moves_to_the_end_of_the_pools_only_if_it_lacks_room() -> None:
    start, length, other, code = pools([4, 5], before=0, after=8)
    room, used, rows = np.array([0, 3]), np.array([3]), np.array([1])
    extend = record.extend.compiled(np.float64)
    assert extend(rows, np.array([1]), start, length, room, used, other, code, 1, NO_SITTINGS)
    assert (start[1], room[1], used[0]) == (0, 3, 3)
    assert extend(rows, np.array([2]), start, length, room, used, other, code, 1, NO_SITTINGS)
    assert (start[1], room[1], used[0]) == (3, 4, 7)
    assert (other[3:5].tolist(), code[3:5].tolist()) == ([4, 5], [0, 1])
