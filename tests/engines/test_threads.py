"""A half-sweep is the same however it is cut up and however many threads share it."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.engines.threads import (
    CHUNKS,
    Rows,
    Shared,
    chunk_bounds,
    half_sweep,
    share_out,
    thread_count,
)
from hemf.model.communities import Statistics
from hemf.model.layout import Layout, pack
from hemf.model.side import Moments
from proofs.problems import any_communities, sparse_rows, spd

FORMS = pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "mean-field"])
TIED = pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
N_ROWS = 700


class HalfSweep:
    """One side's half-sweep, ready to be run in several ways."""

    def __init__(self, *, coupled: bool, tied: bool, dtype: type = np.float64) -> None:
        rng = np.random.default_rng(12)
        layout = Layout.of("user", n_factors=3, offsets=True)
        mean = rng.normal(size=(40, layout.total))
        mean[:, 1] = 1.0
        second = spd(rng, layout.total, 40)
        second[:, 1, :] = second[:, :, 1] = 0.0
        second += mean[:, :, None] * mean[:, None, :]
        self.rows = sparse_rows(rng, N_ROWS, 40, 0.2, dtype)
        self.other = Moments(mean.astype(dtype), pack(second).astype(dtype))
        self.shared = Shared(
            layout,
            any_communities(rng, 4, layout.order, tied=tied),
            noise=rng.uniform(0.3, 2.0, N_ROWS),
            other_weight=rng.uniform(0.5, 2.0, 40),
            coupled=coupled,
        )
        self.membership = rng.dirichlet(np.ones(4), size=N_ROWS).astype(dtype)
        self.dtype = dtype

    def run(
        self, low: int = 0, high: int = N_ROWS, n_jobs: int = 1
    ) -> tuple[Statistics, np.ndarray, Moments, np.ndarray]:
        """Statistics, errors, moments and memberships of the rows low ≤ i < high."""
        indptr = self.rows.indptr[low : high + 1]
        part = slice(indptr[0], indptr[-1])
        rows = Rows(indptr - indptr[0], self.rows.indices[part], self.rows.values[part])
        layout = self.shared.layout
        own = Moments(
            np.empty((high - low, layout.total), self.dtype),
            np.empty((high - low, layout.packed), self.dtype),
        )
        membership = self.membership[low:high].copy()
        shared = replace(self.shared, noise=self.shared.noise[low:high])
        found = half_sweep(rows, self.other, shared, own, membership, n_jobs=n_jobs)
        return found.statistics, found.errors, own, membership


@FORMS
@TIED
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_number_of_threads_gives_the_same_bits(coupled: bool, tied: bool, dtype: type) -> None:
    half = HalfSweep(coupled=coupled, tied=tied, dtype=dtype)
    assert chunk_bounds(half.rows.indptr, 4).size > 10
    one_statistics, one_errors, one_own, one_membership = half.run(n_jobs=1)
    for n_jobs in (2, 3, 5):
        statistics, errors, own, membership = half.run(n_jobs=n_jobs)
        for name in ("size", "first", "scatter", "entropy"):
            np.testing.assert_array_equal(
                getattr(statistics, name), getattr(one_statistics, name), err_msg=name
            )
        np.testing.assert_array_equal(errors, one_errors)
        np.testing.assert_array_equal(own.mean, one_own.mean)
        np.testing.assert_array_equal(own.second, one_own.second)
        np.testing.assert_array_equal(membership, one_membership)


@FORMS
@TIED
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_merged_equal_one(coupled: bool, tied: bool, shards: int) -> None:
    half = HalfSweep(coupled=coupled, tied=tied)
    whole, whole_errors, whole_own, whole_membership = half.run()
    cuts = np.linspace(0, N_ROWS, shards + 1).astype(int)
    parts = [half.run(low, high) for low, high in pairwise(cuts)]
    for name in ("size", "first", "scatter", "entropy"):
        added = sum(getattr(statistics, name) for statistics, *_ in parts)
        np.testing.assert_allclose(added, getattr(whole, name), rtol=1e-11, atol=1e-9)
    rows = [np.concatenate([part[k] for part in parts]) for k in (1, 3)]
    np.testing.assert_allclose(rows[0], whole_errors, rtol=1e-12)
    np.testing.assert_allclose(rows[1], whole_membership, rtol=1e-12, atol=1e-15)
    mean = np.concatenate([own.mean for _, _, own, _ in parts])
    second = np.concatenate([own.second for _, _, own, _ in parts])
    np.testing.assert_allclose(mean, whole_own.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(second, whole_own.second, rtol=1e-12, atol=1e-14)


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


def test_an_error_in_a_thread_comes_out() -> None:
    half = HalfSweep(coupled=True, tied=True)
    half.rows = replace(half.rows, values=half.rows.values.astype(np.float32))
    for n_jobs in (1, 3):
        with pytest.raises(TypeError):
            half.run(n_jobs=n_jobs)


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
        time.sleep(0.001)  # so that both threads get turns
        if begin <= culprit < end:
            raise ZeroDivisionError(culprit)

    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            share_out(work, 64, 2)
