"""Start of a fit: one community on each side, then seeds from a clustering of the factors.

Communities that start from random memberships collapse into one. So the factors are first learnt
with a single community, then clustered in the metric of their prior.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.sparse import csr_array

from hemf._typing import Float64Array, Matrix
from hemf.batch.options import FitOptions
from hemf.model.communities import Prior, Statistics, community_posterior
from hemf.model.features import Design
from hemf.model.layout import lower_triangle
from hemf.model.noise import NoiseScales
from hemf.model.regression import Regression
from hemf.model.side import Moments, Side

FACTOR_VARIANCE = 0.1  # of a factor at the start, with ratings scaled to unit variance
FACTOR_START = 0.3  # root mean square of the factors' means
NOISE_START = 0.3  # σ² before the first sweep; at 1 small data looks like noise and factors vanish


def start_side(
    name: str,
    n_rows: int,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    design: Design | None = None,
    directions: Float64Array | None = None,
) -> Side:
    """Return a side with one community and offsets of zero.

    A side with a ``design`` has tied covariances. The first factors are ``directions``, (rows, at
    most n_factors), the others are random.
    """
    layout, dtype = options.layout(name), options.dtype
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
        order,
        variance=FACTOR_VARIANCE,
        concentration=options.concentration,
        mean_scale=options.spread,
    )
    nothing = Statistics(np.zeros(1), np.zeros((1, order)), np.zeros((1, order, order)), 0.0)
    return Side(
        layout=layout,
        tied=options.tied[name] or design is not None,
        prior=prior,
        moments=Moments(mean, second),
        membership=np.ones((n_rows, 1), dtype),
        statistics=nothing,
        communities=community_posterior(nothing, prior),
        noise_scales=NoiseScales.start(n_rows) if options.noise_scales[name] else None,
        regression=None if design is None else Regression.start(design, order),
    )


def seed_communities(side: Side, count: int, rng: np.random.Generator) -> None:
    """Assign every row to one of ``count`` clusters of the whitened factor means.

    The next half-sweep has to hold memberships.
    """
    whitened = side.residual_means @ np.linalg.cholesky(side.communities.precision[0])
    labels = cluster(whitened, count, rng)
    occupied = np.unique(labels)
    labels = np.searchsorted(occupied, labels)
    assign(side, labels, occupied.size)


def cluster(points: Float64Array, count: int, rng: np.random.Generator) -> np.ndarray:
    """k-means labels with k-means++ starts; fewer clusters where there are fewer points."""
    from scipy.cluster.vq import kmeans2

    count = min(count, np.unique(points, axis=0).shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters
        _, labels = kmeans2(points, count, iter=30, minit="++", rng=rng)
    return np.asarray(labels)


def assign(side: Side, labels: np.ndarray, count: int) -> None:
    """Set hard memberships, and communities from the rows' moments."""
    membership = np.zeros((side.n_rows, count), side.membership.dtype)
    membership[np.arange(side.n_rows), labels] = 1.0
    side.membership = membership
    side.refresh(hard_statistics(side, labels, count))


def hard_statistics(side: Side, labels: np.ndarray, count: int) -> Statistics:
    """Statistics of hard memberships from row moments (exact where a row has one community)."""
    n_rows, order = side.n_rows, side.layout.order
    onehot = csr_array(
        (np.ones(n_rows), labels, np.arange(n_rows + 1)), shape=(n_rows, count)
    ).T.tocsr()
    if side.regression is not None:  # one Σ for all, for any memberships
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
# too little: in the first sweeps all directions look like noise, their prior shrinks, and none of
# them comes back. The leading directions are the ones that the data has most to say about.
#
# The strength of a direction by chance is seen where every rating's sign is drawn anew: numbers of
# ratings and their sizes stay, everything that they have in common is lost.


ITERATIONS = 3  # of the block power method; sweeps do the rest
PSEUDO_RATINGS = 5.0  # that shrink the offset of a row, and keep rare rows from leading
MIN_STRENGTH = 1e-6  # of the largest singular value; directions below hold rounding errors
CHANCE_RATINGS = 20.0  # pseudo-ratings where strengths are judged: a rare row alone is no direction
CHANCES = 4  # times that signs are drawn
CLEAR = 3.0  # standard deviations from chance at which there is something


def leading_directions(residuals: Matrix, count: int, rng: np.random.Generator) -> Float64Array:
    """Return up to ``count`` directions of the columns, (columns, ≤ count), of unit mean square.

    >>> two = csr_array([[1.0, -1.0], [-1.0, 1.0]])  # ann and bob disagree on tea and milk
    >>> np.abs(leading_directions(two, 1, np.random.default_rng(0))).round(6).tolist()
    [[1.0], [1.0]]
    """
    strength, found = _leading(residuals, count, rng)
    return found[:, strength > MIN_STRENGTH * max(strength.max(initial=0.0), MIN_STRENGTH)]


def clear_directions(
    residuals: csr_array, count: int, rng: np.random.Generator, *, margin: float = CLEAR
) -> Float64Array:
    """Return the leading directions that are stronger than those of random signs.

    The strongest is compared with the strongest, the second with the second, and so on; there are
    none unless all together are stronger by ``margin`` standard deviations.

    >>> rng = np.random.default_rng(0)
    >>> taste = np.outer(rng.normal(size=100), rng.normal(size=20))
    >>> clear_directions(csr_array(taste + rng.normal(size=(100, 20))), 3, rng).shape
    (20, 1)
    """
    strength, found = _leading(residuals, count, rng)
    by_chance = np.empty((CHANCES, strength.size))
    for drawn in by_chance:
        signs = rng.integers(0, 2, residuals.data.size, np.int8) * 2.0 - 1.0
        flipped = residuals.copy()
        flipped.data *= signs
        drawn[:] = _leading(flipped, count, rng)[0]
    sums = by_chance.sum(axis=1)
    if not strength.sum() > sums.mean() + margin * sums.std(ddof=1):
        return found[:, :0]
    return found[:, strength > by_chance.mean(axis=0)]


def _leading(
    table: Matrix, count: int, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    """Return the largest singular values, and their right vectors, of unit mean square."""
    n_columns = table.shape[1]
    block = rng.normal(size=(n_columns, min(count, *table.shape)))
    for _ in range(ITERATIONS):
        block = np.linalg.qr(table.T @ (table @ block))[0]
    _, strength, rotation = np.linalg.svd(table @ block, full_matrices=False)
    return strength, np.asarray((block @ rotation.T) * np.sqrt(n_columns))
