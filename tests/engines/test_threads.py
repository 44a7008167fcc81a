"""Chunks of rows cover every row once, and threads share them out."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf._checks import thread_count
from hemf.engines.threads import CHUNKS, chunk_bounds, share_out
from proofs.problems import Setting, problem


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 500), min_size=1, max_size=3000),
    order=st.integers(1, 40),
)
def test_chunks_cover_every_row_once(counts: list[int], order: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    cuts = chunk_bounds(indptr, order)
    assert cuts[0] == 0
    assert cuts[-1] == len(counts)
    assert (np.diff(cuts) > 0).all()
    assert cuts.size - 1 <= CHUNKS


def test_chunks_share_the_work_even_when_ratings_are_few_in_most_rows() -> None:
    counts = np.full(5000, 3)
    counts[::100] = 2000
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    cuts = chunk_bounds(indptr, 10)
    work = np.diff((indptr + 20 * np.arange(indptr.size))[cuts])
    assert work.max() < 2.5 * work.mean()


def test_a_rating_of_another_type_than_the_moments_is_refused(rng: np.random.Generator) -> None:
    state = problem(rng, Setting())
    for table in state.ratings.tables.values():
        vars(table).update(values=table.values.astype(np.float32))
    for n_jobs in (1, 3):
        state.ratings.n_jobs = n_jobs
        with pytest.raises(TypeError):
            state.ratings.half_sweep("user", state)


def test_thread_counts_are_scikit_learns() -> None:
    every = thread_count(None)
    assert every >= 1
    assert thread_count(-1) == every
    assert thread_count(7) == 7
    assert thread_count(-1000) == 1


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_chunk_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    share_out(lambda begin, end: done.extend(range(begin, end)), 64, threads)
    assert sorted(done) == list(range(64))


@pytest.mark.parametrize("culprit", [0, 63])
def test_an_error_on_any_thread_reaches_the_caller(culprit: int) -> None:
    def work(begin: int, end: int) -> None:
        time.sleep(0.001)  # so that both threads get some ranges
        if begin <= culprit < end:
            raise ZeroDivisionError(culprit)

    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            share_out(work, 64, 2)
