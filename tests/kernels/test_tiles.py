"""Rows gathered tile by tile, or in several batches, are the rows gathered at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf.batch.fit import BatchState, start_side
from hemf.data.ratings import Sparse
from hemf.engines.threads import Threads
from hemf.model.rows import Moments
from proofs.problems import Setting, fit_with


def test_a_table_larger_than_the_cache_gives_what_its_used_rows_give() -> None:
    rng = np.random.default_rng(0)
    n_rows, n_other, n_factors = 1500, 12_000, 20  # 12,000 x 253 x 8 bytes: several tiles
    setting = Setting(tied_users=False, offsets=True)
    options = fit_with(setting, n_factors=n_factors, concentration=1.0, spread=1.0)
    side = start_side("user", n_rows, options, rng)
    other = start_side("item", n_other, options, rng)
    few = np.sort(rng.choice(n_other, 800, replace=False))  # the rows in use, all over the table
    compact = np.sort(rng.integers(0, few.size, (n_rows, 15)), axis=1).ravel().astype(np.int32)
    values = rng.normal(size=compact.size)
    indptr = np.arange(0, compact.size + 1, 15, dtype=np.int64)
    small = Moments(
        np.ascontiguousarray(other.moments.mean[few]),
        np.ascontiguousarray(other.moments.second[few]),
    )
    assert small.second.nbytes < 1 << 23 < other.moments.second.nbytes
    results = []
    for table, indices in ((other.moments, few[compact].astype(np.int32)), (small, compact)):
        items = replace(other, moments=table, membership=other.membership[: len(table.mean)])
        empty = Sparse(np.zeros(len(table.mean) + 1, np.int64), indices[:0], values[:0])
        rows = {"user": Sparse(indptr, indices, values), "item": empty}
        found = []
        for n_jobs in (1, 2, 3):  # other batches, the same bits
            sides = {"user": side.copy(), "item": items}
            state = BatchState(sides, Threads.of(rows, n_jobs=n_jobs), noise=1.0, unit=1.0)
            found.append(state.ratings.half_sweep("user", state))
            np.testing.assert_array_equal(found[-1].errors, found[0].errors)
            np.testing.assert_array_equal(found[-1].moments.second, found[0].moments.second)
        first = found[0]
        moments = first.moments
        results.append((moments.mean, moments.second, first.statistics.first, first.errors))
    for tiled, whole in zip(*results, strict=True):
        np.testing.assert_allclose(tiled, whole, rtol=1e-9, atol=1e-9)
