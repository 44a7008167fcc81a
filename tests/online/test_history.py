"""The history is as many plain lists, in little more memory than their entries."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.data.vocabulary import RECENT_VALUES, RatingBook
from hemf.kernels import record
from hemf.online.store import NARROW_CODES, History

Model = list[list[tuple[int, int]]]
"""What a history stands for: the entries (other row, code) of each row."""


@numba.njit
def append_all(start: Any, length: Any, other: Any, code: Any, rows: Any, others: Any, codes: Any):
    for k in range(rows.size):
        record.append(start, length, other, code, rows[k], others[k], codes[k])


@numba.njit
def drop_newest(start: Any, length: Any, other: Any, code: Any, row: Any, wanted: Any) -> Any:
    position = record.find(start, length, other, row, wanted)
    if position >= 0:
        record.drop(start, length, other, code, row, position)
    return position


def arrays(history: History) -> tuple[Any, ...]:
    return history.start, history.length, history.other, history.code


def append(history: History, entries: list[tuple[int, int, int]], n_codes: int = 0) -> None:
    """Reserve room for entries (row, other row, code), and append them."""
    rows, others, codes = np.array(entries, np.int64).reshape(-1, 3).T.copy()
    history.reserve(*np.unique(rows, return_counts=True), n_codes)
    append_all(*arrays(history), rows, others, codes)


def entries_of(history: History) -> Model:
    found = []
    for i in range(history.n_rows):
        others, codes = history.row(i)
        found.append(list(zip(others.tolist(), codes.tolist(), strict=True)))
    return found


def check_layout(history: History) -> None:
    """No list leaves its room, no two share any, and all are within the pools."""
    assert (history.length <= history.room).all()
    used = history.room > 0
    order = np.argsort(history.start[used])
    start, end = history.start[used][order], (history.start + history.room)[used][order]
    assert (start[1:] >= end[:-1]).all()
    assert not len(end) or end[-1] <= len(history.other)
    assert len(history.other) == len(history.code)
    for part in arrays(history):
        assert part.flags.c_contiguous


# One step of a history: row numbers are taken modulo the rows there are.
ROW = st.integers(0, 30)
OTHER = st.integers(0, 5)
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(ROW, OTHER, st.integers(0, 99)), max_size=12)),
    st.tuples(st.just("drop"), st.tuples(ROW, OTHER)),
    st.tuples(st.just("reserve"), st.dictionaries(ROW, st.integers(0, 40), max_size=4)),
    st.tuples(st.just("rows"), st.integers(0, 20)),
    st.tuples(st.just("widen"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(start=st.lists(st.lists(st.tuples(OTHER, st.integers(0, 99)), max_size=5), max_size=6),
       steps=st.lists(STEP, max_size=25))  # fmt: skip
def test_a_history_is_as_many_lists(start: Model, steps: list[tuple[str, Any]]) -> None:
    model = [list(entries) for entries in start]
    flat = np.array([e for entries in model for e in entries], np.int64).reshape(-1, 2)
    indptr = np.concatenate([[0], np.cumsum([len(entries) for entries in model])]).astype(int)
    history = History.from_rows(indptr, flat[:, 0], flat[:, 1])
    promised: dict[int, int] = {}
    for name, what in steps:
        n = len(model)
        if name == "rows":
            history.add_rows(what)
            model.extend([] for _ in range(what))
        elif name == "widen":
            history.widen()
        elif n and name == "append":
            entries = [(row % n, other, code) for row, other, code in what]
            append(history, entries)
            for row, other, code in entries:
                model[row].append((other, code))
        elif n and name == "drop":
            row, other = what[0] % n, what[1]
            found = drop_newest(*arrays(history), row, other)
            places = [k for k, entry in enumerate(model[row]) if entry[0] == other]
            assert found == (history.start[row] + places[-1] if places else -1)
            if places:
                del model[row][places[-1]]
        elif n and name == "reserve":
            wanted = {row % n: extra for row, extra in what.items()}
            history.reserve(np.array(list(wanted), int), np.array(list(wanted.values()), int))
            for row, extra in wanted.items():
                promised[row] = max(promised.get(row, 0), len(model[row]) + extra)
        assert entries_of(history) == model
        assert all(history.room[row] >= room for row, room in promised.items())
        check_layout(history)
    assert history.n_rows == len(model)
    assert history.n_ratings == sum(map(len, model))
    again = History.from_rows(*history.to_rows())
    assert entries_of(again) == model
    check_layout(again)


def test_a_new_history_has_empty_rows() -> None:
    history = History(3)
    assert (history.n_rows, history.n_ratings) == (3, 0)
    assert history.room.tolist() == [0, 0, 0]
    assert History().n_rows == 0


def test_rows_come_back_in_the_order_of_arrival() -> None:
    indptr, indices, codes = np.array([0, 3, 3, 5]), np.array([9, 2, 5, 2, 1]), np.arange(5)
    history = History.from_rows(indptr, indices, codes)
    append(history, [(0, 1, 7), (2, 0, 8), (0, 0, 9)])
    found = history.to_rows()
    assert [part.tolist() for part in found] == [
        [0, 5, 5, 8], [9, 2, 5, 1, 0, 2, 1, 0], [0, 1, 2, 7, 9, 3, 4, 8]
    ]  # fmt: skip
    assert [part.dtype for part in found] == [np.int64, np.int32, np.uint16]


def test_what_a_history_is_made_from_is_not_changed_by_it() -> None:
    given = np.array([0, 2]), np.array([4, 5], np.int32), np.array([1, 2], np.uint16)
    history = History.from_rows(*given)
    drop_newest(*arrays(history), 0, 4)
    assert [part.tolist() for part in given] == [[0, 2], [4, 5], [1, 2]]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda history: pickle.loads(pickle.dumps(history))]
)
def test_a_copy_is_apart(duplicate: Any) -> None:
    history = History(2)
    history.add_rows(2)
    append(history, [(0, 1, 1), (3, 2, 2)])
    twin = duplicate(history)
    append(twin, [(0, 5, 5)] * 9)
    twin.add_rows(20)
    append(twin, [(23, 6, 6)])
    drop_newest(*arrays(twin), 3, 2)
    assert entries_of(history) == [[(1, 1)], [], [], [(2, 2)]]
    assert entries_of(twin)[:4] == [[(1, 1)] + [(5, 5)] * 9, [], [], []]
    assert entries_of(twin)[23] == [(6, 6)]
    check_layout(twin)


def test_room_that_is_there_moves_nothing() -> None:
    history = History(3)
    history.reserve(np.array([0, 2]), np.array([5, 1]))
    pools, start = (history.other, history.code), history.start.copy()
    append(history, [(0, k, k) for k in range(8)] + [(2, 1, 1)])
    assert history.other is pools[0]
    assert history.code is pools[1]
    assert np.array_equal(history.start, start)


def test_codes_take_two_bytes_until_there_are_too_many() -> None:
    history = History(1)
    append(history, [(0, 1, NARROW_CODES - 1)], n_codes=NARROW_CODES)
    assert history.code.dtype == np.uint16
    append(history, [(0, 2, NARROW_CODES)], n_codes=NARROW_CODES + 1)
    assert history.code.dtype == np.uint32
    append(history, [(0, 3, k) for k in range(40)])
    assert history.row(0)[1].tolist() == [NARROW_CODES - 1, NARROW_CODES, *range(40)]
    again = History.from_rows(*history.to_rows())
    assert again.code.dtype == np.uint32
    assert entries_of(again) == entries_of(history)


def test_a_history_of_a_batch_takes_twelve_bytes_a_rating(rng: np.random.Generator) -> None:
    n, n_rows = 50_000, 100
    indptr = np.linspace(0, n, n_rows + 1).astype(np.int64)
    sides = [
        History.from_rows(indptr, rng.integers(0, n_rows, n), rng.integers(0, 10, n))
        for _ in range(2)
    ]
    assert sum(side.other.nbytes + side.code.nbytes for side in sides) == 12 * n
    assert sum(side.nbytes for side in sides) == 12 * n + 2 * 3 * 8 * n_rows


def test_growth_is_cheap_in_memory_and_in_copies(rng: np.random.Generator) -> None:
    n, batch = 200_000, 100
    users = (40 * rng.pareto(1.2, n)).astype(np.int64) % 5000
    items = (40 * rng.pareto(0.8, n)).astype(np.int64) % 3000
    nbytes = np.zeros(n // batch)
    for rows, others in ((users, items), (items, users)):
        history, copies = History(), 0
        for k in range(0, n, batch):
            part = slice(k, k + batch)
            history.add_rows(max(int(rows[part].max()) + 1 - history.n_rows, 0))
            pool = history.other
            history.reserve(*np.unique(rows[part], return_counts=True))
            append_all(*arrays(history), rows[part], others[part], rows[part] % 10)
            copies += history.other is not pool
            nbytes[k // batch] += history.nbytes
        assert history.n_ratings == n
        # From one copy of a pool to the next, the lists have got at least a sixth more room.
        assert copies <= np.log(2 * n) / np.log(7 / 6)
        order = np.argsort(rows, kind="stable")
        assert np.array_equal(history.to_rows()[1], others[order])
    ratings = batch * np.arange(1, n // batch + 1)
    # 24 bytes a row, twice that where their arrays have just doubled, and 12 a rating.
    assert (nbytes <= 2.2 * 12 * ratings + 2 * 24 * (5000 + 3000)).all()
    assert nbytes[-1] / n < 2.2 * 12


def test_arrays_over_rows_double() -> None:
    history, moves = History(), 0
    for _ in range(2000):
        lengths = history.length
        history.add_rows(1)
        moves += not np.shares_memory(lengths, history.length)
    assert moves <= 12
    assert history.n_rows == 2000


values = st.lists(st.floats(width=32, allow_nan=False) | st.sampled_from([1.0, 2.5, 0.0]))


@settings(deadline=None)
@given(batches=st.lists(values, max_size=8))
def test_codes_are_places_in_the_order_of_first_sight(batches: list[list[float]]) -> None:
    book, seen = RatingBook(), dict[float, int]()
    for batch in batches:
        for value in batch:
            seen.setdefault(value, len(seen))
        codes = book.codes(np.array(batch, np.float32))
        assert codes.tolist() == [seen[value] for value in batch]
    assert book.values.tolist() == list(seen)
    assert len(book) == len(seen)
    assert book.values.dtype == np.float64


@settings(deadline=None)
@given(first=values, second=values, third=values)
def test_what_is_taken_back_was_never_there(
    first: list[float], second: list[float], third: list[float]
) -> None:
    book, plain = RatingBook(), RatingBook()
    kept = len({*first})
    for one in (book, plain):
        one.codes(np.array(first, np.float32))
    book.codes(np.array(second, np.float32))
    book.truncate(kept)
    assert book.values.tolist() == plain.values.tolist()
    for batch in (first, second, third):
        wanted = np.array(batch, np.float32)
        assert book.known(wanted).tolist() == plain.known(wanted).tolist()
    wanted = np.array(third, np.float32)
    assert book.codes(wanted).tolist() == plain.codes(wanted).tolist()


def test_looking_up_adds_nothing() -> None:
    book = RatingBook()
    assert book.known(np.float32([1, 2])).tolist() == [-1, -1]
    book.codes(np.float32([2]))
    assert book.known(np.float32([1, 2, 3])).tolist() == [-1, 0, -1]
    assert book.values.tolist() == [2.0]


def test_a_book_of_many_values_finds_and_forgets_them_all(rng: np.random.Generator) -> None:
    many = rng.permutation(NARROW_CODES + 5000).astype(np.float32) / 8
    book, step = RatingBook(), RECENT_VALUES // 2 + 1
    for k in range(0, len(many), step):
        book.codes(many[k : k + step])
    assert np.array_equal(book.codes(many), np.arange(len(many)))
    assert np.array_equal(book.values, many)
    book.truncate(40_000)
    assert np.array_equal(book.known(many[:40_000]), np.arange(40_000))
    assert (book.known(many[40_000:]) == -1).all()
    assert np.array_equal(book.codes(many[:-41:-1]), np.arange(40_000, 40_040))
