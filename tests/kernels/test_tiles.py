"""Rows gathered tile by tile, or in several batches, are the rows gathered at once."""

from __future__ import annotations

import numpy as np

from hemf.batch.init import start_side
from hemf.engines.threads import Rows, Shared, half_sweep
from hemf.model.layout import Layout
from hemf.model.side import Moments


def test_a_table_larger_than_the_cache_gives_what_its_used_rows_give() -> None:
    rng = np.random.default_rng(0)
    n_rows, n_other, n_factors = 1500, 12_000, 20  # 12,000 x 253 x 8 bytes: several tiles
    layout = Layout.of("user", n_factors=n_factors, offsets=True)
    side = start_side(
        n_rows, layout, tied=False, concentration=1.0, spread=1.0, rng=rng, dtype=np.float64
    )
    other = start_side(
        n_other,
        Layout.of("item", n_factors=n_factors, offsets=True),
        tied=False, concentration=1.0, spread=1.0, rng=rng, dtype=np.float64,
    )  # fmt: skip
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
        own = side.moments.copy()
        shared = Shared(layout, side.communities, np.ones(n_rows), np.ones(table.mean.shape[0]))
        rows = Rows(indptr, indices, values)
        membership = side.membership.copy()
        found = half_sweep(rows, table, shared, own, membership, n_jobs=1)
        results.append((own.mean, own.second, found.statistics.first, found.errors))
        for n_jobs in (2, 3):  # other batches, the same bits
            again = side.moments.copy()
            same = half_sweep(rows, table, shared, again, membership, n_jobs=n_jobs)
            np.testing.assert_array_equal(same.errors, found.errors)
            np.testing.assert_array_equal(again.second, own.second)
    for tiled, whole in zip(*results, strict=True):
        np.testing.assert_allclose(tiled, whole, rtol=1e-9, atol=1e-9)
