"""The posterior of one more row, which leaves everything else as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hemf.model.packing import Array, Float64
from hemf.model.side import Moments, Side

ROUNDS = 4  # of q(a, z) and q(τ) in turn, which depend on each other


def fold_in(
    side: Side,
    other: Moments,
    other_weight: Float64,
    noise: float,
    rows: npt.NDArray[np.int64],
    values: Float64,
) -> tuple[Array, Array, Float64, float, float]:
    """Return mean, second moment, memberships, and q(τ) of a row with these ratings.

    ``rows`` are those of the other side that it has rated, ``values`` standardised.
    """
    from hemf.kernels.online import refresh_all
    from hemf.kernels.structures import Rules

    dtype = other.mean.dtype
    own = _rows(side, dtype, rows)
    codes = own.code.dtype
    run = refresh_all.compiled(dtype, codes)
    rules = Rules(values.astype(dtype), float(noise), -1, 0.0, 1)
    shared = _shared(side, noise)
    seen = own._replace(
        mean=other.mean, second=other.second, weight=other_weight.astype(dtype, copy=False)
    )
    first = np.zeros(1, np.int64)
    for _ in range(1 if side.noise_scales is None else ROUNDS):
        run(first, own, seen, shared, rules)
    return own.mean, own.second, own.membership[0].astype(np.float64), own.shape[0], own.rate[0]


def _rows(side: Side, dtype: Any, rated: npt.NDArray[np.int64]) -> Any:
    from hemf.kernels.structures import Rows

    layout, count, n = side.layout, side.n_communities, rated.size
    order = layout.order
    width = 1 + order + order * (order + 1) // 2
    wide = n > np.iinfo(np.uint16).max
    shape = 1.0 if side.noise_scales is None else side.noise_scales.prior_shape
    return Rows(
        mean=np.zeros((1, layout.total), dtype),
        second=np.zeros((1, layout.packed), dtype),
        membership=np.zeros((1, count), dtype),
        listed=np.full((1, count), -1, np.int32),
        parts=np.zeros((1, count, width), dtype),
        weight=np.ones(1, dtype),
        shape=np.full(1, shape),
        rate=np.full(1, shape),
        error=np.zeros(1),
        entropy=np.zeros(1),
        count=np.full(1, n),
        judged=np.zeros(1, np.int64),
        pending=np.zeros(1, np.int64),
        touched=np.zeros(1, np.int64),
        start=np.zeros(1, np.int64),
        length=np.full(1, n),
        other=rated.astype(np.int32),
        code=np.arange(n, dtype=np.uint32 if wide else np.uint16),
        gram=np.zeros((1, 0), dtype),
        moment=np.zeros((1, 0), dtype),
        square=np.zeros(1),
        settled=np.zeros(1),
    )


def _shared(side: Side, noise: float) -> Any:
    """Communities as they are, and statistics that are thrown away."""
    from hemf.kernels.structures import Shared

    communities, scales, layout = side.communities, side.noise_scales, side.layout
    count, order = communities.count, layout.order
    covariances = communities.dof.size
    return Shared(
        precision=np.ascontiguousarray(communities.precision),
        pull=np.ascontiguousarray(communities.pull),
        log_weight=np.ascontiguousarray(communities.log_weight),
        size=np.zeros(count),
        first=np.zeros((count, order)),
        scatter=np.zeros((covariances, order * (order + 1) // 2)),
        totals=np.zeros(3),
        free=layout.free,
        pinned=layout.pinned,
        prior_shape=0.0 if scales is None else float(scales.prior_shape),
        error_unit=float(noise),
        expected=np.zeros(layout.total),
        spread=np.zeros(layout.packed, side.moments.mean.dtype),
        keep=1.0,
        patience=1,
    )
