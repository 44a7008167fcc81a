"""How a fit begins: one community on each side, then seeds from a clustering of the factors.

Communities started from random responsibilities collapse into one. So the factors are first
learnt with a single community, then clustered in the metric of their prior.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.sparse import csr_array

from hemf._typing import Float64Array
from hemf.engines.threads import Rows
from hemf.model.communities import Prior, Statistics, community_posterior
from hemf.model.features import Design
from hemf.model.layout import Layout, lower_triangle
from hemf.model.noise import NoiseScales
from hemf.model.regression import Regression
from hemf.model.side import Moments, Side

FACTOR_VARIANCE = 0.1  # of a factor at the start, with ratings scaled to unit variance
FACTOR_START = 0.3  # root mean square of the factors' means, which break the symmetry
NOISE_START = 0.3  # σ² before the first sweep; at 1 small data looks like noise, and factors die


def start_side(
    n_rows: int,
    layout: Layout,
    *,
    tied: bool,
    concentration: float,
    spread: float,
    rng: np.random.Generator,
    dtype: type[np.floating],
    noise_scales: bool = False,
    design: Design | None = None,
    directions: Float64Array | None = None,
) -> Side:
    """Return a side with one community and offsets at zero.

    A side with a ``design``, the features of its rows, has tied covariances.
    Factors follow ``directions`` (rows, at most n_factors), those beyond are random.
    """
    order = layout.order
    mean = np.zeros((n_rows, layout.total), dtype)
    factors = layout.factors
    mean[:, factors] = rng.normal(scale=FACTOR_START, size=(n_rows, factors.size))
    if directions is not None:
        mean[:, factors[: directions.shape[1]]] = FACTOR_START * directions
    if layout.pinned >= 0:
        mean[:, layout.pinned] = 1.0
    rows, columns = lower_triangle(layout.total)
    second = np.empty((n_rows, rows.size), dtype)
    np.multiply(mean[:, rows], mean[:, columns], out=second)
    prior = Prior.start(
        order, variance=FACTOR_VARIANCE, concentration=concentration, mean_scale=spread
    )
    nothing = Statistics(np.zeros(1), np.zeros((1, order)), np.zeros((1, order, order)), 0.0)
    return Side(
        layout=layout,
        tied=tied or design is not None,
        prior=prior,
        moments=Moments(mean, second),
        membership=np.ones((n_rows, 1), dtype),
        statistics=nothing,
        communities=community_posterior(nothing, prior),
        noise_scales=NoiseScales.start(n_rows) if noise_scales else None,
        regression=None if design is None else Regression.start(design, order),
    )


def seed_communities(side: Side, count: int, rng: np.random.Generator) -> None:
    """Give every row to one of ``count`` clusters of the whitened factor means.

    The communities' posterior is refreshed by the next half-sweep, which must hold memberships.
    """
    whitened = side.residual_means @ np.linalg.cholesky(side.communities.precision[0])
    labels = cluster(whitened, count, rng)
    occupied = np.unique(labels)
    labels = np.searchsorted(occupied, labels)
    assign(side, labels, occupied.size)


def cluster(points: Float64Array, count: int, rng: np.random.Generator) -> np.ndarray:
    """k-means labels, k-means++ starts; fewer clusters where there are fewer points."""
    from scipy.cluster.vq import kmeans2

    count = min(count, np.unique(points, axis=0).shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is simply not there
        _, labels = kmeans2(points, count, iter=30, minit="++", rng=rng)
    return np.asarray(labels)


def assign(side: Side, labels: np.ndarray, count: int) -> None:
    """Set hard memberships, and communities estimated from the rows' marginal moments."""
    membership = np.zeros((side.n_rows, count), side.membership.dtype)
    membership[np.arange(side.n_rows), labels] = 1.0
    side.membership = membership
    side.refresh(hard_statistics(side, labels, count))


def hard_statistics(side: Side, labels: np.ndarray, count: int) -> Statistics:
    """Statistics of hard memberships from row moments (exact where a row has one community)."""
    from scipy.sparse import csr_array

    n_rows, order = side.n_rows, side.layout.order
    onehot = csr_array(
        (np.ones(n_rows), labels, np.arange(n_rows + 1)), shape=(n_rows, count)
    ).T.tocsr()
    if side.regression is not None:  # of one Σ for all, whoever belongs where
        scatter = side.statistics.scatter
    else:
        free = side.layout.free
        rows, columns = lower_triangle(side.layout.total)
        full = np.empty((count, side.layout.total, side.layout.total))
        packed = onehot @ side.moments.second.astype(np.float64)
        full[:, rows, columns] = packed
        full[:, columns, rows] = packed
        scatter = full[:, free[:, None], free[None, :]].reshape(count, order, order)
        if side.tied or count == 1:
            scatter = scatter.sum(axis=0, keepdims=True)
    return Statistics(
        size=np.bincount(labels, minlength=count).astype(np.float64),
        first=onehot @ side.residual_means,
        scatter=scatter,
        entropy=side.statistics.entropy,
    )


# ------------------------------------------------------------------------------------------------
# Guesses of one side's factors: the leading directions of ratings less their offsets.
#
# Factors that start at random agree with the ratings by chance only. On small data that is often
# too
# little: in the first sweeps all directions look like noise, their prior shrinks, and none of
# them
# comes back. The leading directions are the ones that the data has most to say about.
#
# How strong a direction looks by chance is seen where every rating's sign is drawn anew: that
# leaves
# how many and how large they are, and takes away all that they have in common.


ITERATIONS = 3  # of the block power method; sweeps do the rest
PSEUDO_RATINGS = 5.0  # that pull the offset of a row towards zero, and keep rare rows from leading
LEAST = 1e-6  # of the largest singular value; directions below hold rounding errors
CHANCE_RATINGS = 20.0  # pseudo-ratings where strengths are judged: a rare row alone is no direction
CHANCES = 4  # times that signs are drawn
CLEAR = 3.0  # standard deviations from chance at which there is something


def leading_directions(
    rows: Rows, n_other: int, count: int, rng: np.random.Generator
) -> Float64Array:
    """Return up to ``count`` directions of the other side, (n_other, ≤ count), of unit mean square.

    >>> two = np.array([1.0, -1.0, -1.0, 1.0])  # ann and bob disagree on tea and milk
    >>> rows = Rows(np.array([0, 2, 4]), np.array([0, 1, 0, 1], np.int32), two)
    >>> np.abs(leading_directions(rows, 2, 1, np.random.default_rng(0))).round(6).tolist()
    [[1.0], [1.0]]
    """
    strength, found = _leading(_scaled_residuals(rows, n_other, PSEUDO_RATINGS), count, rng)
    return found[:, strength > LEAST * max(strength.max(initial=0.0), LEAST)]


def clear_directions(
    rows: Rows, n_other: int, count: int, rng: np.random.Generator, *, margin: float = CLEAR
) -> Float64Array:
    """Return the leading directions that are stronger than chance makes their like.

    The strongest is compared with the strongest, the second with the second, and so on; there are
    none unless all together are stronger by ``margin`` standard deviations.

    >>> rng = np.random.default_rng(0)
    >>> taste = np.outer(rng.normal(size=100), rng.normal(size=20))
    >>> values = (taste + rng.normal(size=(100, 20))).ravel()
    >>> rows = Rows(np.arange(0, 2001, 20), np.tile(np.arange(20, dtype=np.int32), 100), values)
    >>> clear_directions(rows, 20, 3, rng).shape
    (20, 1)
    """
    table = _scaled_residuals(rows, n_other, CHANCE_RATINGS)
    strength, found = _leading(table, count, rng)
    by_chance = np.empty((CHANCES, strength.size))
    for drawn in by_chance:
        signs = rng.integers(0, 2, table.data.size, np.int8) * 2.0 - 1.0
        flipped = csr_array((table.data * signs, table.indices, table.indptr), shape=table.shape)
        drawn[:] = _leading(flipped, count, rng)[0]
    sums = by_chance.sum(axis=1)
    if not strength.sum() > sums.mean() + margin * sums.std(ddof=1):
        return found[:, :0]
    return found[:, strength > by_chance.mean(axis=0)]


def _leading(
    table: csr_array, count: int, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    """Return the largest singular values, and their right vectors, of unit mean square."""
    n_other = table.shape[1]
    block = rng.normal(size=(n_other, min(count, *table.shape)))
    for _ in range(ITERATIONS):
        block = np.linalg.qr(table.T @ (table @ block))[0]
    _, strength, turn = np.linalg.svd(table @ block, full_matrices=False)
    return strength, np.asarray((block @ turn.T) * np.sqrt(n_other))


def _scaled_residuals(rows: Rows, n_other: int, pull: float) -> csr_array:
    """Ratings less both sides' offsets; busy rows and columns count by the root of their number.

    ``pull`` is how many ratings of zero every row and column has beside its own.
    """
    counts = np.diff(rows.indptr)
    other_counts = np.bincount(rows.indices, minlength=n_other)
    left = rows.values.astype(np.float64)
    other_offset = np.bincount(rows.indices, left, n_other) / (other_counts + pull)
    left -= other_offset[rows.indices]
    of_row = np.repeat(np.arange(counts.size), counts)
    left -= (np.bincount(of_row, left, counts.size) / (counts + pull))[of_row]
    left /= np.sqrt(counts + pull)[of_row]
    left /= np.sqrt(other_counts + pull)[rows.indices]
    return csr_array((left, rows.indices, rows.indptr), shape=(counts.size, n_other))
