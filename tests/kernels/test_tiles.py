"""Rows gathered tile by tile, or in several batches, are the rows gathered at once."""

from __future__ import annotations

import numpy as np
import pytest

from hemf.engines.threads import Rows, Shared, chunk_bounds, half_sweep
from hemf.inference.start import start_side
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
        statistics, errors = half_sweep(rows, table, shared, own, side.membership.copy())
        results.append((own.mean, own.second, statistics.first, errors))
    for tiled, whole in zip(*results, strict=True):
        np.testing.assert_allclose(tiled, whole, rtol=1e-9, atol=1e-9)


def test_large_tables_are_cut_into_fewer_ranges() -> None:
    indptr = np.arange(0, 20_001 * 10, 10, dtype=np.int64)[:20_001]
    assert chunk_bounds(indptr, 20, 0).size == 65
    assert chunk_bounds(indptr, 20, 1 << 26).size == pytest.approx(20, abs=1)
