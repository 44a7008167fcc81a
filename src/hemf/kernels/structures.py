"""What the kernels of online learning work on: named tuples of arrays."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from hemf.kernels.lanes import LANES, WIDE

Whole = Annotated[Any, "int64"]
Number = Annotated[Any, "float64"]
Wholes = Annotated[Any, "int64[::1]"]
Numbers = Annotated[Any, "float64[::1]"]
Vector = Annotated[Any, "{T}[::1]"]
Table = Annotated[Any, "{T}[:, ::1]"]
Square = Annotated[Any, "float64[:, ::1]"]
Squares = Annotated[Any, "float64[:, :, ::1]"]


class Rows(NamedTuple):
    """What is kept of the rows of one side."""

    mean: Table
    """E[a], (rows, total)."""
    second: Table
    """E[a aᵀ], (rows, packed)."""
    membership: Table
    """q_i(d), (rows, D)."""
    listed: Annotated[Any, "int32[:, ::1]"]
    """The communities that a row gives something to, (rows, parts); -1 is none."""
    parts: Annotated[Any, "{T}[:, :, ::1]"]
    """What it gives: q, q m, q (S + mmᵀ) packed; (rows, parts, 1 + order + triangle)."""
    weight: Vector
    """E[τ], how much the row's ratings count."""
    shape: Numbers
    rate: Numbers
    """q(τ) = Gamma(shape, rate)."""
    error: Numbers
    """Σ_j υ_j E(r_ij - a·b)²."""
    entropy: Numbers
    """Σ_d q(½ ln|S| - ln q)."""
    count: Wholes
    """Ratings learnt."""
    worth: Numbers
    """What they were worth at the last refresh, each weighed by how old it was."""
    judged: Wholes
    """Ratings there were when all communities were last considered."""
    pending: Wholes
    """Ratings recorded since the last refresh."""
    touched: Wholes
    """When the row was last refreshed, in refreshes of the side."""
    met: Wholes
    """Refreshes that the other side had had by then."""
    start: Wholes
    length: Wholes
    other: Annotated[Any, "int32[::1]"]
    code: Annotated[Any, "{C}[::1]"]
    sitting: Annotated[Any, "int32[::1]"]
    """The history's lists; see `hemf.kernels.record`. Without moods there are no sittings."""
    gram: Table
    moment: Table
    square: Numbers
    settled: Numbers
    """Σ υ nnᵀ, Σ υ r n, Σ υ r² and Σ υ of ratings that are no longer listed.

    Where all are listed, the first two have no columns.
    """
    shift: Square
    """f_i, what features said of the row when it was last refreshed, (rows, order).

    Without features, this and the next two have no columns.
    """
    base: Square
    """g_i, what those say that were given."""
    chosen: Square
    """Σ_j M_j over what the row has rated; no columns without implicit features."""
    leverage: Numbers
    """c_i, what f_i is uncertain by in units of Σ,"""
    information: Numbers
    """and 1 - tr(P S_i)/L, the information weight at the last refresh of the row."""
    voice: Square
    """M_j of the other side's regression: what it says of a row there to have rated this one."""


class Shared(NamedTuple):
    """The communities of one side and what they are estimated from."""

    precision: Annotated[Any, "float64[:, :, ::1]"]
    """P_d, (C, order, order)."""
    natural_mean: Annotated[Any, "float64[:, ::1]"]
    """P_d m_d, (D, order)."""
    log_weight: Numbers
    """The terms of ln q_i(d) that do not depend on the row, (D,)."""
    size: Numbers
    first: Annotated[Any, "float64[:, ::1]"]
    scatter: Annotated[Any, "float64[:, ::1]"]
    """ρ_d, Σ q m and Σ q (S + mmᵀ), the last packed, (C, triangle)."""
    totals: Numbers
    """Σ entropy, Σ τ error, refreshes so far, Σ worth."""
    free: Wholes
    """Which coordinates the posterior covers."""
    pinned: Whole
    prior_shape: Number
    """a0 of the noise scales, or 0 where there are none."""
    error_unit: Number
    """What errors are measured in where noise scales are learnt; σ² or their mean."""
    expected: Numbers
    """E[a] of a row that nothing is known of, (total,)."""
    spread: Vector
    """Posterior covariance of the other side's rows, the mean over ratings, packed.

    A rating that is no longer listed was learnt when less was known of the other row. What was
    uncertain then may be certain today, so its part of G is taken at today's mean.
    """
    keep: Number
    """Forgetting factor γ."""
    patience: Number
    """A row is refreshed when more than this part of its ratings is pending,"""
    change: Number
    """or when the other side has had more than so many refreshes since it last was."""
    how_many: Square
    """Coefficients of ln n and of its square, (2, order); nothing without implicit features."""
    logs: Numbers
    """Mean, scale, least and largest of ln n, by which it is standardised."""


class Rules(NamedTuple):
    """What holds for both sides."""

    levels: Vector
    """Standardised rating of each code."""
    noise: Number
    """σ²."""
    window: Whole
    """Ratings listed of each row; -1 is all of them."""
    repeats: Whole
    """Whether another rating of a pair counts beside the earlier ones."""
    renewal: Number
    """How much more a rating weighs than one, in sums of pairs that are rated again and again."""
    least_share: Number
    """Communities with less of a row are left out."""
    thorough: Whole
    """Consider all communities at every refresh."""
    total: Numbers
    """Σ τ_i υ_j E(r_ij - a_i·b_j)² as of now, and the largest change of it since it was counted;
    nothing where not every rating is listed."""
    moods: Table
    """E o and Var o of each sitting: `hemf.kernels.moods`. Without moods, no rows."""


class Sittings(NamedTuple):
    """Sittings of raters while ratings arrive; see `hemf.kernels.moods`.

    Without moods none of it has an entry.
    """

    table: Table
    """What is believed of each, (sittings, WIDTH)."""
    moods: Table
    """The same as in `Rules`."""
    time: Wholes
    links: Annotated[Any, "int32[:, ::1]"]
    """The rater's sitting before, the one after, and the rater; -1 is none."""
    last: Wholes
    """The latest sitting of each rater, or -1."""
    smoothed: Wholes
    """Ratings that each rater had when all their moods were last brought to their optimum."""
    used: Wholes
    """How many sittings there are, in an array of one."""
    prior: Numbers
    """φ, τ² and γ²."""


class Outer(NamedTuple):
    """Working memory of sums: a vector, and its products with itself."""

    vector: Vector
    products: Vector


class Scratch(NamedTuple):
    """Working memory of one refresh; systems as in `hemf.kernels.solve`."""

    values: Vector
    gram: Vector
    moment: Vector
    data: Square
    factors: Squares
    reciprocals: Square
    solutions: Square
    half_log_det: Numbers
    share: Numbers
    candidates: Wholes
    considered: Wholes
    kept: Wholes
    inverse: Square
    work: Square
    mean: Numbers
    second: Numbers
    extra: Numbers
    before: Vector
    past_mean: Vector
    past_second: Vector
    shift: Numbers
    moods: Numbers
    """Sums over raters that nobody asks for."""


def outer(mean: Any, second: Any) -> Outer:
    """Return working memory for sums of rows with these moments."""
    return Outer(
        np.zeros(mean.shape[1] + WIDE, mean.dtype), np.zeros(second.shape[1] + WIDE, mean.dtype)
    )


def scratch(own: Rows, shared: Shared) -> Scratch:
    """Return working memory for the rows of a side."""
    total, packed, dtype = own.mean.shape[1], own.second.shape[1], own.mean.dtype
    communities, order = shared.natural_mean.shape
    system = order, (order // LANES + 1) * LANES
    return Scratch(
        values=np.zeros(1024, dtype),
        gram=np.zeros(packed, dtype),
        moment=np.zeros(total, dtype),
        data=np.zeros(system),
        factors=np.zeros((communities, *system)),
        reciprocals=np.zeros((communities, order)),
        solutions=np.zeros((communities, order)),
        half_log_det=np.zeros(communities),
        share=np.zeros(communities),
        candidates=np.zeros(communities, np.int64),
        considered=np.zeros(1, np.int64),
        kept=np.zeros(communities, np.int64),
        inverse=np.zeros(system),
        work=np.zeros(system),
        mean=np.zeros(order),
        second=np.zeros(order * (order + 1) // 2),
        extra=np.zeros(order * (order + 1) // 2),
        before=np.zeros(total, dtype),
        past_mean=np.zeros(total, dtype),
        past_second=np.zeros(packed, dtype),
        shift=np.zeros(order),
        moods=np.zeros(8),
    )
