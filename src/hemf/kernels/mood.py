"""Moods of raters by Kalman filtering and smoothing, one rater after the other.

MODEL.md, "Time: the rater's mood", and `hemf.model.mood`. Ratings that a rater gave at the same
time are a sitting; a rater's sittings are in order of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels.compile import kernel

FIRST, NOW, BEFORE, PRODUCT, EXTRA, DIVERGENCE = range(6)
SUMS = 6
"""Sums over raters: see `hemf.model.mood.MoodSums`."""


@kernel(
    "void(int64, int64, int64[::1], int64[::1], int32[::1], int32[::1], {T}[::1], "
    "{T}[:, ::1], {T}[:, ::1], float64[::1], float64[::1], float64[::1], float64[::1])"
)
def gather(
    begin: Any,
    end: Any,
    cuts: Any,
    indptr: Any,
    others: Any,
    sitting: Any,
    values: Any,
    own_mean: Any,
    other_mean: Any,
    own_precision: Any,
    other_weight: Any,
    precision: Any,
    pull: Any,
) -> None:
    """Sum up what is left of the ratings of each sitting, for raters of these chunks.

    ``precision`` becomes Σ τ_i υ_j/σ² and ``pull`` the same of r - E[a·b].
    """
    total = own_mean.shape[1]
    for i in range(cuts[begin], cuts[end]):
        m = own_mean[i]
        for k in range(indptr[i], indptr[i + 1]):
            n = other_mean[others[k]]
            product = 0.0
            for t in range(total):
                product += np.float64(m[t]) * np.float64(n[t])
            weight = own_precision[i] * other_weight[others[k]]
            precision[sitting[k]] += weight
            pull[sitting[k]] += weight * (np.float64(values[k]) - product)


@kernel(
    "void(int64, int64, int64[::1], int64[::1], float64[::1], float64[::1], float64, float64, "
    "float64, float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], "
    "float64[:, ::1])"
)
def smooth(
    begin: Any,
    end: Any,
    cuts: Any,
    indptr: Any,
    precision: Any,
    pull: Any,
    persistence: Any,
    variance: Any,
    extra: Any,
    level: Any,
    level_spread: Any,
    product: Any,
    mean: Any,
    spread: Any,
    sums: Any,
) -> None:
    """Write q(l) and q(o) of the sittings of raters in these chunks, and add to the sums.

    ``level``, ``level_spread`` and ``product`` become E l(t), Var l(t) and Cov(l(t), l(t+1)), 0 for
    the last; ``mean`` and ``spread`` E o(t) and Var o(t), o = l + g.
    """
    innovation = variance * (1.0 - persistence * persistence)
    for chunk in range(begin, end):
        for i in range(cuts[chunk], cuts[chunk + 1]):
            first, last = indptr[i], indptr[i + 1] - 1
            if last < first:
                continue
            divergence = 0.0
            expected, uncertain = 0.0, variance
            for t in range(first, last + 1):
                noise = 1.0 / precision[t]
                total = uncertain + extra + noise
                surprise = pull[t] * noise - expected
                divergence += 0.5 * (np.log(total / noise) + surprise * surprise / total)
                filtered = expected + uncertain / total * surprise
                narrowed = uncertain * (extra + noise) / total
                level[t], level_spread[t] = filtered, narrowed
                expected = persistence * filtered
                uncertain = persistence * persistence * narrowed + innovation
            product[last] = 0.0
            later, later_spread = 0.0, 0.0
            for t in range(last, first - 1, -1):
                here, v = level[t], level_spread[t]
                if t < last:
                    uncertain = persistence * persistence * v + innovation
                    back = persistence * v / uncertain if uncertain > 0.0 else 0.0
                    product[t] = back * later_spread
                    here += back * (later - persistence * here)
                    v += back * back * (later_spread - uncertain)
                    level[t], level_spread[t] = here, v
                    sums[chunk, NOW] += later * later + later_spread
                    sums[chunk, BEFORE] += here * here + v
                    sums[chunk, PRODUCT] += here * later + product[t]
                later, later_spread = here, v
                noise = 1.0 / precision[t]
                left = pull[t] * noise
                share = extra / (extra + noise)
                sums[chunk, EXTRA] += share * share * ((left - here) ** 2 + v) + extra * (
                    1.0 - share
                )
                mean[t] = here + share * (left - here)
                spread[t] = (1.0 - share) * (1.0 - share) * v + share * noise
                # KL = E ln p(r|o) - ln p(r), the constants of both alike.
                divergence -= 0.5 * precision[t] * ((left - mean[t]) ** 2 + spread[t])
            sums[chunk, FIRST] += later * later + later_spread
            sums[chunk, DIVERGENCE] += divergence


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def places(indptr: Any, times: Any, rows: Any, when: Any, place: Any) -> None:
    """Write how many of a rater's sittings are earlier than a time, for each of these raters."""
    for k in range(rows.size):
        low, high = indptr[rows[k]], indptr[rows[k] + 1]
        begin = low
        while low < high:
            middle = (low + high) // 2
            if times[middle] < when[k]:
                low = middle + 1
            else:
                high = middle
        place[k] = low - begin
