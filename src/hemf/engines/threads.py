"""A half-sweep on the threads of one machine.

Rows are cut into chunks of similar work, always at the same places, and their statistics are
added in the order of the chunks: the result is the same, to the bit, for any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hemf._typing import Array, Float64Array
from hemf.model.communities import Communities, Statistics
from hemf.model.layout import Layout, pack, unpack
from hemf.model.side import Moments

CHUNKS = 64


@dataclass(frozen=True)
class Rows:
    """One side's ratings, centred and scaled, as compressed rows."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: Array

    def sums(self, each: Array) -> Float64Array:
        """Add up, for every row, what there is of each of its ratings."""
        running = np.concatenate([[0.0], np.cumsum(each)])
        return np.asarray(running[self.indptr[1:]] - running[self.indptr[:-1]])


@dataclass(frozen=True)
class Shared:
    """What every row of a half-sweep is updated with."""

    layout: Layout
    communities: Communities
    noise: Float64Array
    """σ²/τ_i of every row."""
    other_weight: Float64Array
    """υ_j of the other side's rows."""
    coupled: bool = True
    """q(a, z) together; otherwise the paper's q(a) q(z)."""
    hold: bool = False
    """Leave the memberships as they are."""
    shift: Float64Array | None = None
    """f_i, what features say of each row, (rows, order); None without any."""
    leverage: Float64Array | None = None
    """c_i, what that is uncertain by in units of Σ, (rows,); None without features."""


@dataclass(frozen=True)
class HalfSweep:
    """What a half-sweep returns."""

    statistics: Statistics
    """Additive, of a_i - f_i where rows have a shift."""
    errors: Float64Array
    """Σ_j υ_j E(r - a·b)² of every row."""
    information: Float64Array
    """1 - tr(P S_i)/L, how much ratings tell of every row that has a shift."""


def half_sweep(
    rows: Rows,
    other: Moments,
    shared: Shared,
    own: Moments,
    membership: Array,
    *,
    n_jobs: int | None = None,
) -> HalfSweep:
    """Update all rows of one side against the other side's moments.

    Writes ``own`` and ``membership``.
    """
    from hemf.kernels import rows as kernels

    chosen = kernels.coupled_rows if shared.coupled else kernels.mean_field_rows
    run = chosen.compiled(own.mean.dtype)
    communities, layout = shared.communities, shared.layout
    precision = pack(communities.precision)
    natural_mean = np.ascontiguousarray(communities.natural_mean)
    log_weight = np.ascontiguousarray(communities.log_weight)
    count, order, covariances = communities.count, layout.order, precision.shape[0]
    free = layout.free
    cuts = chunk_bounds(rows.indptr, order)
    n_chunks = cuts.size - 1
    size = np.zeros((n_chunks, count))
    first = np.zeros((n_chunks, count, order))
    scatter = np.zeros((n_chunks, covariances, precision.shape[1]))
    entropy = np.zeros(n_chunks)
    errors = np.zeros(rows.indptr.size - 1)
    noise = np.ascontiguousarray(shared.noise)
    weight = shared.other_weight.astype(other.mean.dtype)
    shift, leverage, root = np.empty((0, order)), np.empty(0), np.empty((0, order))
    if shared.shift is not None:
        shift, root = shared.shift, np.linalg.cholesky(communities.precision[0])
        leverage = np.zeros(len(shift)) if shared.leverage is None else shared.leverage
    information = np.zeros(len(shift))

    def work(begin: int, end: int) -> None:
        run(
            begin, end, cuts, rows.indptr, rows.indices, rows.values,
            other.mean, other.second, weight, free, layout.pinned, noise,
            precision, natural_mean, log_weight, shared.hold, shift, leverage, root,
            own.mean, own.second, membership, errors, information, size, first, scatter, entropy,
        )  # fmt: skip

    share_out(work, n_chunks, thread_count(n_jobs))
    statistics = Statistics(
        size=size.sum(axis=0),
        first=first.sum(axis=0),
        scatter=unpack(scatter.sum(axis=0)),
        entropy=float(entropy.sum()),
    )
    return HalfSweep(statistics, errors, information)


def share_out(work: Callable[[int, int], None], n_chunks: int, threads: int) -> None:
    """Call ``work`` on ranges of chunks, long ones first, so that threads end together.

    A call costs tens of microseconds in which other threads may have to wait for the interpreter:
    there are about a dozen for each thread, not one for each chunk.
    """
    if threads == 1 or n_chunks == 1:
        work(0, n_chunks)
        return
    turns, begin = [], 0
    while begin < n_chunks:
        end = begin + max(1, (n_chunks - begin) // (2 * threads))
        turns.append((begin, end))
        begin = end
    left = iter(turns)

    def take_turns() -> None:
        for turn in left:
            work(*turn)

    with ThreadPoolExecutor(threads - 1) as pool:  # the caller is one of the threads
        helpers = [pool.submit(take_turns) for _ in range(threads - 1)]
        take_turns()
        for helper in helpers:
            helper.result()


def chunk_bounds(indptr: npt.NDArray[np.int64], order: int) -> npt.NDArray[np.int64]:
    """Cut rows into at most CHUNKS ranges of similar work: a row's solve costs ~2·order ratings."""
    n_rows = indptr.size - 1
    work = indptr + 2 * order * np.arange(n_rows + 1)
    targets = np.linspace(0, work[-1], min(CHUNKS, max(1, n_rows // 32)) + 1)
    cuts = np.unique(np.searchsorted(work, targets))
    cuts[0], cuts[-1] = 0, n_rows
    return cuts.astype(np.int64)


def thread_count(n_jobs: int | None) -> int:
    """Threads for ``n_jobs``, scikit-learn's way: None is all cores, -1 too.

    >>> thread_count(3)
    3
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    available = available or 1
    if n_jobs is None:
        return available
    return n_jobs if n_jobs > 0 else max(1, available + 1 + n_jobs)
