"""The posterior of one more row, which leaves everything else as it was."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf.inference.binding import believed
from hemf.inference.online_options import LEAST_SHARE
from hemf.inference.rowstore import RowStore
from hemf.model.packing import Array, Float64
from hemf.model.side import Moments, Side

ROUNDS = 3  # of q(a, z) and q(τ) in turn; one more changes E[τ] by 0.0004
AGAIN = np.zeros(ROUNDS, np.int64)  # the only row there is, time after time
SHORT_LIST = 64  # lists of as many ratings as most visitors have are made once
SHORT_CODES = 1 << 16  # that many ratings are told apart by 16 bits

_TURN = Lock()  # copies of a model share its sides, and with them the memory worked in


def fold_in(
    side: Side,
    rated: Moments,
    weight: Float64,
    noise: float,
    values: Float64,
    told: tuple[Float64, Float64] | None = None,
) -> tuple[Array, Array, Float64, float, float]:
    """Return mean, second moment, memberships, and q(τ) of a row with these ratings.

    ``rated`` and ``weight`` are those of the other side's rows that it has rated, ``values``
    standardised. ``told`` are g and Σ_j M_j where the side has features: `what_is_told`.
    """
    scales = side.noise_scales
    prior_shape = 0.0 if scales is None else float(scales.prior_shape)
    with _TURN:
        folding: Folding | None = side._folding
        if folding is None or folding.communities.count != side.n_communities:
            folding = side._folding = Folding(side)
        elif folding.communities is not side.communities:
            folding.follow(side)
        return folding.run(rated, weight, values, float(noise), prior_shape, told)


def what_is_told(
    side: Side, rows: npt.NDArray[np.int64], features: csr_array | None
) -> tuple[Float64, Float64] | None:
    """Return what a row's features say, and Σ_j M_j over the ``rows`` that it has rated.

    None where the side has no features; a row below 0 is nobody that the side knows of.
    """
    if side.regression is None:
        return None
    words = side.regression.spoken
    base = np.zeros(side.layout.order)
    if features is not None:
        base = np.asarray(features @ words.given)[0]
    known = rows[(rows >= 0) & (rows < words.rated.shape[0])]
    return base, words.rated[known].sum(axis=0)


class Folding:
    """A row of a side to fill in, the communities as they are, and working memory.

    All that does not depend on the ratings is made once: a visitor's arithmetic takes less time
    than to describe it.
    """

    def __init__(self, side: Side) -> None:
        from hemf.kernels.structures import Rows, Rules, Shared, scratch

        self.communities = side.communities
        layout, count, dtype = side.layout, side.n_communities, side.moments.mean.dtype
        told = []
        if side.regression is not None:
            told = ["shift", "base", *["chosen"] * side.regression.spoken.has_rated]
        store = RowStore(layout, dtype, sums=False, communities=count, most=count, told=told)
        store.add(1, mean=0.0, second=0.0, prior_shape=1.0)
        self._dtype = dtype
        self._row = Rows(
            **store.in_use(),
            start=np.zeros(1, np.int64),
            length=np.zeros(1, np.int64),
            other=np.zeros(0, np.int32),
            code=np.zeros(0, np.uint16),
            sitting=np.zeros(0, np.int32),
        )
        self._shared = Shared(
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
        self._rows: dict[int, Any] = {}
        nothing = np.zeros(0, dtype)
        self._rules = Rules(
            nothing, 1.0, -1, 0, 0.0, LEAST_SHARE, 0, np.zeros(0), nothing.reshape(0, 2)
        )  # fmt: skip
        self._memory = scratch(self._row, self._shared)
        self.follow(side)

    def follow(self, side: Side) -> None:
        """Take over communities that have changed; there are as many as before."""
        self.communities = side.communities
        self._shared = self._shared._replace(**believed(side))
        if side.regression is not None:
            self._row.doubt[0] = side.regression.typical_doubt

    def run(
        self,
        rated: Moments,
        weight: Float64,
        values: Float64,
        noise: float,
        prior_shape: float,
        told: tuple[Float64, Float64] | None = None,
    ) -> tuple[Array, Array, Float64, float, float]:
        """See `fold_in`; ``prior_shape`` is 0 where there are no noise scales."""
        dtype, row, shared, n = self._dtype, self._row, self._shared, values.size
        if shared.prior_shape != prior_shape or shared.error_unit != noise:
            shared = shared._replace(prior_shape=prior_shape, error_unit=noise)
            self._shared = shared
        # The row leaves its communities as any other does; what else it was is forgotten here.
        row.weight[0], row.count[0], row.length[0] = 1.0, n, n
        shared.totals[:] = 0.0
        if told is not None:
            row.base[0], row.chosen[0] = told[0], told[1][: row.chosen.shape[1]]
        own = self._rows.get(n) or self._row_of(n)
        seen = own._replace(
            mean=np.ascontiguousarray(rated.mean, dtype),
            second=np.ascontiguousarray(rated.second, dtype),
            weight=weight.astype(dtype),
        )
        rules = self._rules._replace(levels=values.astype(dtype), noise=noise)
        again = AGAIN if prior_shape else AGAIN[:1]
        _kernel(dtype, own.code.dtype)(again, own, seen, shared, rules, self._memory)
        membership = row.membership[0].astype(np.float64)
        return row.mean.copy(), row.second.copy(), membership, row.shape[0], row.rate[0]

    def _row_of(self, n: int) -> Any:
        """Return the row with a list of n ratings, each with a code of its own."""
        codes = np.arange(n, dtype=np.uint16 if n <= SHORT_CODES else np.uint32)
        row = self._row._replace(other=codes.astype(np.int32), code=codes)
        if n <= SHORT_LIST:
            self._rows[n] = row
        return row


@cache
def _kernel(dtype: Any, codes: Any) -> Any:
    from hemf.kernels.online import refresh_all

    return refresh_all.trusting(dtype, codes)
