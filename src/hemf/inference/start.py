"""How a fit begins: one community on each side, then seeds from a clustering of the factors.

Communities started from random responsibilities collapse into one. So the factors are first
learnt with a single community, then clustered in the metric of their prior.
"""

from __future__ import annotations

import warnings

import numpy as np

from hemf.model.communities import Statistics, community_posterior
from hemf.model.design import Design
from hemf.model.hyper import Prior
from hemf.model.layout import Layout
from hemf.model.noise import NoiseScales
from hemf.model.packing import Float64, lower_triangle
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
    directions: Float64 | None = None,
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
    prior = Prior.start(order, variance=FACTOR_VARIANCE, concentration=concentration, spread=spread)
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


def cluster(points: Float64, count: int, rng: np.random.Generator) -> np.ndarray:
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
