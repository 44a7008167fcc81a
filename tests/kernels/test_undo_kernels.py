"""Copies of rows and lists are put back to the bit, and no row is copied twice under a stamp."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from hemf import HeMF
from hemf.kernels import undo
from hemf.model.rows import Layout
from hemf.online import journal as journals
from hemf.online import store as rowstore
from hemf.online.journal import Journal
from hemf.online.state import mappings_in
from hemf.online.store import ALL_ARRAYS, SUMS, WHOLE, History, RowStore


@pytest.fixture
def store():
    rng = np.random.default_rng(0)
    store = RowStore(Layout.of("user", n_factors=3, offsets=True), np.float32, sums=True)
    store.add(40, mean=np.zeros(5), second=np.zeros(15), prior_shape=10.0)
    for array in store.in_use().values():
        array[...] = rng.integers(0, 100, array.shape)
    lengths = rng.integers(0, 9, 40)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    n = int(indptr[-1])
    store.history = History.from_rows(
        indptr, rng.integers(0, 99, n), rng.integers(0, 9, n), rng.integers(0, 9, n)
    )
    return store


def everything(store: RowStore) -> list[bytes]:
    history = store.history
    arrays = [*store.in_use().values(), *history.to_rows(), history.sessions()]
    return [array.tobytes() for array in arrays]


def scramble(store: RowStore, rows: np.ndarray) -> None:
    for name in ALL_ARRAYS:
        getattr(store, name)[rows] += 1
    history = store.history
    for row in rows:
        history.other[history.start[row] : history.start[row] + history.length[row]] += 1
        history.code[history.start[row] : history.start[row] + history.length[row]] += 1
        history.session[history.start[row] : history.start[row] + history.length[row]] += 1
        history.length[row] = 0


@pytest.mark.parametrize("rows", [[3], [0, 3, 7, 39], range(40)], ids=len)
@pytest.mark.parametrize("wide", [False, True])
def test_what_is_kept_is_put_back(store, rows, wide):
    if wide:
        store.history.widen()
    rows, journal = np.array(rows), Journal()
    before = everything(store)
    store.backup(journal, rows, lists=WHOLE)
    scramble(store, rows)
    assert everything(store) != before
    store.backup(journal, rows, lists=WHOLE)  # of no effect: they are kept
    journal.undo()
    assert everything(store) == before


def test_a_copy_that_does_not_fit_goes_to_a_larger_buffer(store, monkeypatch):
    monkeypatch.setattr(journals, "MIN_BUFFER", 4)
    monkeypatch.setattr(journals, "_spare", [])
    journal, before = Journal(), everything(store)
    for row in range(40):
        store.backup(journal, np.array([row]), lists=WHOLE)
        scramble(store, np.array([row]))
    journal.undo()
    assert everything(store) == before


def test_what_changes_after_a_mark_is_kept_once_more(store):
    journal, rows = Journal(), np.array([1, 2])
    store.backup(journal, rows, lists=WHOLE)
    scramble(store, rows)
    between, mark = everything(store), journal.mark()
    store.backup(journal, rows, lists=WHOLE)
    scramble(store, rows)
    journal.undo(mark)
    assert everything(store) == between


def test_parts_that_are_not_kept_yet_are_kept(store):
    journal, rows, before = Journal(), np.array([1, 2]), everything(store)
    store.backup(journal, rows, SUMS)
    store.gram[rows] += 1
    store.backup(journal, rows, ALL_ARRAYS, lists=WHOLE)
    scramble(store, rows)
    journal.undo()
    assert everything(store) == before


def test_rows_are_kept_in_arrays_that_have_moved(store):
    journal, rows, before = Journal(), np.array([1, 2]), everything(store)
    journal.add(store.mark())
    store.backup(journal, rows)
    store.mean[rows] += 1
    store.reserve(500)
    store.backup(journal, rows)
    store.mean[rows] += 1
    journal.undo()
    assert everything(store) == before


def test_a_buffer_is_used_again_unless_it_was_read(store, monkeypatch):
    spare: list = []
    monkeypatch.setattr(journals, "_spare", spare)
    journal = Journal()
    store.backup(journal, np.array([1]))
    journal.close()
    journal.close()
    assert len(spare) == 1
    journal = Journal()
    store.backup(journal, np.array([1]))
    assert not spare
    journal.undo()
    journal.close()
    assert not spare


def test_constants_are_those_of_the_kernel():
    assert rowstore.PLACE == undo.PLACE
    assert rowstore.PLACE | undo.ENTRIES == rowstore.WHOLE
    assert rowstore.BITS == undo.BITS
    assert rowstore.WHOLE < 2**undo.BITS


def test_a_call_leaves_nothing_to_garbage_collection():
    """Full collections, which calls would bring about, take longer than hundreds of calls."""
    model = HeMF(n_factors=2, max_sweeps=2, rng=0)
    with pytest.warns(match="sweeps"):
        model.fit([(u, i, float((u * i) % 5)) for u in range(9) for i in range(7)])

    class Batch(list):
        pass

    batch = Batch([(1, 2, 3.0)])
    seen = weakref.ref(batch)
    gc.collect()
    gc.disable()
    try:
        model.partial_fit(batch)
        left = []
        for _ in range(5):  # other threads and first uses leave objects too, but not every time
            n = len(gc.get_objects())
            for _ in range(20):
                model.partial_fit([(1, 2, 3.0)])
            left.append(len(gc.get_objects()) - n)
        assert min(left) < 20
        del batch
        assert seen() is None
    finally:
        gc.enable()


def test_all_dictionaries_of_a_state_are_kept():
    model = HeMF(n_factors=2, rng=0)
    model.partial_fit([(1, 2, 3.0), (2, 2, 4.0)])
    state = model._fit.learner.state
    kept = {id(mapping) for mapping in mappings_in(state)}
    held = [*vars(state).values(), vars(state.clocks), *vars(state.clocks).values()]
    assert {id(value) for value in held if isinstance(value, dict)} <= kept
