"""The posterior of one more row, which leaves everything else as it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.inference.binding import believed
from hemf.inference.rowstore import RowStore
from hemf.model.packing import Array, Float64
from hemf.model.side import Moments, Side

ROUNDS = 4  # of q(a, z) and q(τ) in turn, which depend on each other
LEAST_SHARE = 1e-6  # communities with less of a row are left out


def fold_in(
    side: Side, rated: Moments, weight: Float64, noise: float, values: Float64
) -> tuple[Array, Array, Float64, float, float]:
    """Return mean, second moment, memberships, and q(τ) of a row with these ratings.

    ``rated`` and ``weight`` are those of the other side's rows that it has rated, ``values``
    standardised. One thread at a time may fold in to a side.
    """
    from hemf.kernels.online import refresh_all
    from hemf.kernels.structures import Rules

    folding: Folding | None = side._folding
    if folding is None or folding.communities is not side.communities:
        folding = side._folding = Folding(side)
    scales, dtype = side.noise_scales, rated.mean.dtype
    prior_shape = 0.0 if scales is None else float(scales.prior_shape)
    own = folding.blank(values.size, prior_shape)
    shared = folding.shared._replace(prior_shape=prior_shape, error_unit=float(noise))
    rules = Rules(values.astype(dtype), float(noise), -1, LEAST_SHARE, 0)
    seen = own._replace(mean=rated.mean, second=rated.second, weight=weight.astype(dtype))
    again = np.zeros(1 if scales is None else ROUNDS, np.int64)  # the only row, time after time
    refresh_all.compiled(dtype, own.code.dtype)(again, own, seen, shared, rules, folding.memory)
    return own.mean, own.second, own.membership[0].astype(np.float64), own.shape[0], own.rate[0]


class Folding:
    """A row of a side to fill in, the communities as they are, and working memory."""

    def __init__(self, side: Side) -> None:
        from hemf.kernels.structures import Shared, scratch

        self.communities = side.communities
        layout, count, dtype = side.layout, side.n_communities, side.moments.mean.dtype
        store = RowStore(layout, dtype, sums=False, communities=count, most=count)
        store.add(1, mean=0.0, second=0.0, prior_shape=1.0)
        self._row = store.in_use()
        self.shared = Shared(
            **believed(side),
            size=store.size,  # these statistics are nobody's
            first=store.first,
            scatter=store.scatter,
            totals=store.totals,
            error_unit=1.0,
            spread=np.zeros(layout.packed, dtype),
            keep=1.0,
            patience=0.0,
            change=0.0,
        )
        self.memory = scratch(self.blank(0, 1.0), self.shared)

    def blank(self, n: int, prior_shape: float) -> Any:
        """Return a row that has rated the rows 0 to n - 1 of the other side."""
        from hemf.kernels.structures import Rows

        own, wide = self._row, n > np.iinfo(np.uint16).max
        for name in ("error", "entropy", "worth", "judged", "pending", "membership"):
            own[name][:] = 0
        own["listed"][:], own["weight"][:], own["count"][:] = -1, 1.0, n
        own["shape"][:] = own["rate"][:] = prior_shape or 1.0
        self.shared.totals[:] = 0.0
        return Rows(
            **{**own, "mean": np.empty_like(own["mean"]), "second": np.empty_like(own["second"])},
            start=np.zeros(1, np.int64),
            length=np.full(1, n),
            other=np.arange(n, dtype=np.int32),
            code=np.arange(n, dtype=np.uint32 if wide else np.uint16),
        )
