"""Arguments of kernels: named tuples of arrays."""

# mypy: allow-untyped-defs, allow-untyped-calls
# Numba and llvmlite have no types.

from __future__ import annotations

import hashlib
from typing import Annotated, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model

WIDTH = 32
"""Rows side by side in lanes."""
LANES, WIDE = 4, 8
"""Numbers of a row that are worked on at once, float64 and storage."""
ROUNDING_OF_SINGLE, ROUNDING_OF_DOUBLE = 1e-6, 1e-14
"""Relative rounding errors of what is computed from float32 and float64 storage."""
MEAN, SPREAD = range(2)
"""Columns of moods: E o and Var o, which every row that is refreshed looks up."""

# What arrays hold: {T} is the storage type, {C} that of codes.
Int64 = Annotated[Any, "int64"]
Int32Array = Annotated[Any, "int32[::1]"]
Int64Array = Annotated[Any, "int64[::1]"]
Float64Array = Annotated[Any, "float64[::1]"]
Vector = Annotated[Any, "{T}[::1]"]
Table = Annotated[Any, "{T}[:, ::1]"]
Cube = Annotated[Any, "{T}[:, :, ::1]"]
Float64Matrix = Annotated[Any, "float64[:, ::1]"]
Float64Cube = Annotated[Any, "float64[:, :, ::1]"]


# -- batch learning: a half-sweep over chunks of rows ---------------------------------------------


class Ratings(NamedTuple):
    """Ratings of one side's rows, centred and scaled, as compressed rows."""

    indptr: Int64Array
    indices: Int32Array
    values: Vector
    """Empty where all are 1."""
    weights: Vector
    """u_ij, how often each rating counts; empty where all count once."""

    @classmethod
    def of(cls, indptr: Any, indices: Any, values: Any, weights: Any = None) -> Ratings:
        """Return ratings that count once each unless there are ``weights``."""
        return cls(indptr, indices, values, values[:0] if weights is None else weights)


class OtherRows(NamedTuple):
    """Moments of the rows of the other side."""

    mean: Table
    """E[b], (other rows, total)."""
    second: Table
    """E[b bᵀ], packed lower triangle, (other rows, packed)."""
    weight: Vector
    """υ_j, the weight of a row's ratings."""
    excess: Vector
    """υ_j - w₀, the weight beyond that of a pair that was not observed."""
    base: Vector
    """w₀ Σ_j E[b bᵀ], packed: the Gram matrix of a row without observed pairs."""

    @classmethod
    def of(cls, mean: Any, second: Any, weight: Any, background: float = 0.0) -> OtherRows:
        """Return rows to update against; ``background`` is w₀."""
        if background == 0.0:
            return cls(mean, second, weight, weight, np.zeros(second.shape[1], second.dtype))
        base = background * second.sum(axis=0, dtype=np.float64)
        excess = (weight - background).astype(weight.dtype)
        return cls(mean, second, weight, excess, base.astype(second.dtype))


class Prior(NamedTuple):
    """Prior of rows: the communities."""

    free: Int64Array
    """Coordinates that have a posterior, (order,)."""
    pinned: int
    """The coordinate that is 1, or -1."""
    precision: Float64Matrix
    """P_d = E[Σ_d⁻¹], (C, packed order); C = 1 where covariances are tied."""
    natural_mean: Float64Matrix
    """P_d m_d, (D, order)."""
    log_weight: Float64Array
    """The terms of ln q_i(d) that do not depend on the row, (D,)."""


class Posterior(NamedTuple):
    """Posterior of the rows; all but the noise is written."""

    noise: Float64Array
    """σ²/τ_i of each row."""
    mean: Table
    second: Table
    """As those of `OtherRows`."""
    membership: Table
    """q_i(d), (rows, D)."""
    errors: Float64Array
    """Σ_j υ_j E(r_ij - a·b)²."""
    hold: bool
    """Whether memberships are held."""


class Features(NamedTuple):
    """Effect of features on rows; arrays are empty without features."""

    shift: Float64Matrix
    """f_i, by which the prior mean μ_d of a row is shifted, (rows, order)."""
    leverage: Float64Array
    """c_i, the variance of f_i in units of Σ."""
    root: Float64Matrix
    """U, P = U Uᵀ, (order, order)."""
    information: Float64Array
    """Written: 1 - tr(P S_i)/L."""


class Statistics(NamedTuple):
    """Additive statistics of each chunk, of a_i - f_i; they are added to.

    With leverage, S + c (S P S - S) takes the place of S.
    """

    size: Float64Matrix
    """ρ_d, (chunks, D)."""
    first: Float64Cube
    """Σ q m, (chunks, D, order)."""
    scatter: Float64Cube
    """Σ q (S + mmᵀ), (chunks, C, packed order)."""
    entropy: Float64Array
    """Σ q (½ ln|S| - ln q)."""


class RowUpdate(NamedTuple):
    """What an update of the rows of all chunks reads, and where it writes."""

    cuts: Int64Array
    """Where chunks begin, and the last ends."""
    ratings: Ratings
    other: OtherRows
    prior: Prior
    posterior: Posterior
    features: Features
    statistics: Statistics


class SweepMemory(NamedTuple):
    """Working memory of a half-sweep: a batch of rows, and `WIDTH` of them side by side."""

    grams: Table
    moments: Table
    row_squares: Float64Array
    cursor: Int64Array
    batch: Int64Array
    """First row of the batch, and the one after its last."""
    gram: Float64Matrix
    moment: Float64Matrix
    squares: Float64Array
    scale: Float64Array
    data_precision: Float64Matrix
    data_natural_mean: Float64Matrix
    factors: Float64Cube
    solutions: Float64Cube
    half_log_det: Float64Matrix
    share: Float64Matrix
    mean: Float64Matrix
    second: Float64Matrix
    zero: Float64Matrix
    ones: Float64Array
    unused: Float64Array
    shift: Float64Matrix
    product: Float64Matrix
    """S U of rows with features, and `SPARE` lines more."""


BATCH_BYTES = 1 << 21
SPARE = 2
LINE = 64


def sweep_memory(
    other: OtherRows, order: int, n_rows: int, *, communities: int = 1, covariances: int = 1,
    has_features: bool = False,
) -> SweepMemory:  # fmt: skip
    """Return working memory for a range of rows.

    Rows are gathered about `BATCH_BYTES` of sums at a time, in multiples of `WIDTH`.
    """
    packed, total, dtype = other.second.shape[1], other.mean.shape[1], other.mean.dtype
    triangle = order * (order + 1) // 2
    most = max(1, BATCH_BYTES // (packed * dtype.itemsize * WIDTH)) * WIDTH
    batch = min(most, max(WIDTH, n_rows))
    return SweepMemory(
        grams=aligned((batch, packed), dtype),
        moments=aligned((batch, total), dtype),
        row_squares=aligned((batch,)),
        cursor=aligned((batch,), np.int64),
        batch=np.zeros(2, np.int64),
        gram=aligned((packed, WIDTH)),
        moment=aligned((total, WIDTH)),
        squares=aligned((WIDTH,)),
        scale=aligned((WIDTH,)),
        data_precision=aligned((triangle, WIDTH)),
        data_natural_mean=aligned((order, WIDTH)),
        factors=aligned((covariances, triangle, WIDTH)),
        solutions=aligned((communities, order, WIDTH)),
        half_log_det=aligned((covariances, WIDTH)),
        share=aligned((communities, WIDTH)),
        mean=aligned((order, WIDTH)),
        second=aligned((triangle, WIDTH)),
        zero=aligned((triangle, WIDTH), fill=0.0),
        ones=aligned((WIDTH,)),
        unused=np.zeros(triangle),
        shift=aligned((order, WIDTH)),
        product=aligned((order * order + SPARE if has_features else 0, WIDTH)),
    )


def aligned(shape: tuple[int, ...], dtype: Any = np.float64, fill: float | None = None) -> Any:
    """Return an array that begins at a line of the cache: lanes are read a line at a time."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    begin = -raw.ctypes.data % LINE
    array = raw[begin : begin + size].view(dtype).reshape(shape)
    if fill is not None:
        array[...] = fill
    return array


# -- moods of raters -------------------------------------------------------------------------------


class SessionInformation(NamedTuple):
    """Information of the ratings of each session about its mood."""

    precision: Float64Array
    """Σ τ_i υ_j/σ²."""
    natural_mean: Float64Array
    """The same sum of r - E[a·b]."""


class SessionPosterior(NamedTuple):
    """q(l) and q(o) of each session, o = l + g."""

    level: Float64Array
    level_spread: Float64Array
    """E l(t) and Var l(t)."""
    product: Float64Array
    """Cov(l(t), l(t+1)), 0 for the last session of a rater."""
    mean: Float64Array
    spread: Float64Array
    """E o(t) and Var o(t)."""


# -- Gibbs sampling --------------------------------------------------------------------------------

UInt8Array = Annotated[Any, "uint8[::1]"]


class TopicRatings(NamedTuple):
    """Ratings whose topics are drawn."""

    users: Int32Array
    items: Int32Array
    residuals: Vector
    """Rating minus all terms but the product of topic vectors."""
    user_topics: UInt8Array
    item_topics: UInt8Array
    """Written: the topics drawn."""


class TopicRows(NamedTuple):
    """Topics of the rows of one side."""

    shares: Table
    """θ, (rows, own topics)."""
    vectors: Cube
    """c of users, d of items, (rows, topics of the other side, factors)."""


# -- online learning -----------------------------------------------------------------------------

Int32Matrix = Annotated[Any, "int32[:, ::1]"]


class Rows(NamedTuple):
    """Posterior, ratings and counters of the rows of one side."""

    mean: Table
    """E[a], (rows, total)."""
    second: Table
    """E[a aᵀ], (rows, packed)."""
    membership: Table
    """q_i(d), (rows, D)."""
    listed: Int32Matrix
    """Communities that a row contributes to, (rows, parts); -1 is none."""
    parts: Cube
    """Its contributions: q, q m, q (S + mmᵀ) packed; (rows, parts, 1 + order + triangle)."""
    weight: Vector
    """E[τ], the weight of the row's ratings."""
    shape: Float64Array
    rate: Float64Array
    """q(τ) = Gamma(shape, rate)."""
    error: Float64Array
    """Σ_j υ_j E(r_ij - a·b)²."""
    entropy: Float64Array
    """Σ_d q(½ ln|S| - ln q)."""
    count: Int64Array
    """Number of ratings."""
    effective_count: Float64Array
    """Effective number of ratings at the last refresh: Σ γ^age."""
    considered_count: Int64Array
    """Number of ratings when all communities were last considered for the row."""
    pending: Int64Array
    """Ratings recorded since the last refresh."""
    last_refresh: Int64Array
    """Number of refreshes of the side at the row's last refresh."""
    other_refreshes: Int64Array
    """Number of refreshes of the other side at that time."""
    start: Int64Array
    length: Int64Array
    other: Int32Array
    code: Annotated[Any, "{C}[::1]"]
    session: Int32Array
    """Lists of ratings, see `hemf.kernels.record`; ``session`` is empty without moods."""
    gram: Table
    moment: Table
    square: Float64Array
    summed_weight: Float64Array
    """Σ υ nnᵀ, Σ υ r n, Σ υ r² and Σ υ of ratings that are no longer listed.

    Where all are listed, the first two have no columns.
    """
    shift: Float64Matrix
    """f_i, the effect of features at the last refresh of the row, (rows, order).

    Without features, this and the next have no columns.
    """
    base: Float64Matrix
    """g_i, the effect of given features."""
    coefficient_sum: Float64Matrix
    """Σ_j M_j over the rows that it has rated; no columns without implicit features."""
    leverage: Float64Array
    """c_i, the leverage of the row."""
    information: Float64Array
    """w_i = 1 - tr(P S_i)/L, the information weight at the last refresh of the row."""
    coefficients: Float64Matrix
    """M_j, coefficients of the other side's regression for having rated this row."""


class Shared(NamedTuple):
    """Communities of one side, their statistics, and settings of its rows."""

    precision: Float64Cube
    """P_d, (C, order, order)."""
    natural_mean: Float64Matrix
    """P_d m_d, (D, order)."""
    log_weight: Float64Array
    """The terms of ln q_i(d) that do not depend on the row, (D,)."""
    size: Float64Array
    first: Float64Matrix
    scatter: Float64Matrix
    """ρ_d, Σ q m and Σ q (S + mmᵀ), the last packed, (C, triangle)."""
    totals: Float64Array
    """Σ entropy, Σ τ error, number of refreshes, Σ effective count."""
    free: Int64Array
    """Coordinates that have a posterior, (order,)."""
    pinned: int
    prior_shape: float
    """a0 of the noise scales, or 0 where there are none."""
    error_unit: float
    """Unit of the errors from which noise scales are learnt: σ² or the mean error."""
    expected: Float64Array
    """E[a] of a stranger, (total,)."""
    spread: Vector
    """Mean posterior covariance of the other side's rows, over ratings, packed.

    It takes the place of the covariances in G of ratings that are no longer listed: the sums hold
    products of means only, as covariances become smaller with later ratings.
    """
    forgetting: float
    """Forgetting factor γ."""
    pending_share: float
    """A row is refreshed when more than this share of its ratings is pending,"""
    change: float
    """or after more than this number of refreshes of the other side."""
    count_coefficients: Float64Matrix
    """M_1 and M_2 of ln n and its square, (2, order); empty without implicit features."""
    logs: Float64Array
    """Mean, scale, minimum and maximum of ln n, to standardise it."""


class Batch(NamedTuple):
    """Ratings to record or to add to sums, seen from one side."""

    rows: Int64Array
    others: Int64Array
    codes: Int64Array
    """-1 removes the rating with the previous code."""
    previous: Int64Array
    """Code that the pair had before, or -1."""
    sessions: Int64Array
    """Empty without moods."""


class Rating(NamedTuple):
    """One rating of a `Batch`; the session is -1 without moods."""

    row: Int64
    other: Int64
    code: Int64
    previous: Int64
    session: Int64


class Stream(NamedTuple):
    """Ratings that are learnt one after the other, and results for each."""

    users: Int64Array
    items: Int64Array
    codes: Int64Array
    times: Int64Array
    """Empty without moods."""
    forecasts: Float64Array
    errors: Float64Array
    """Without history, E(r - a·b)² τ υ after the rating was learnt."""
    spent: Int64Array
    """Ticks of the clock."""


UInt16Array = Annotated[Any, "uint16[::1]"]


class Pools(NamedTuple):
    """Pools of the lists of ratings, see `hemf.kernels.record`."""

    other: Int32Array
    halves: UInt16Array
    """Codes, as 16-bit halves."""
    width: int
    """Halves of a code."""
    session: Int32Array


class Copy(NamedTuple):
    """A copy of rows to make or to restore, see `hemf.kernels.undo`."""

    at: int
    """Position in the buffer."""
    stamp: int
    parts: int
    stamped: int
    """Parts that later copies with the same stamp leave out."""


class Descent(NamedTuple):
    """Ratings of gradient descent, in the order in which they are learnt, and its settings."""

    users: Int32Array
    items: Int32Array
    ratings: Annotated[Any, "float32[::1]"]
    means: Float64Array
    """c before each rating, and after the last; rating k is learnt with entry k + 1."""
    steps: Float64Array
    """Step size at each rating."""
    scale: float
    offset_penalty: float
    factor_penalty: float
    known_users: int
    """Rows from this number on are new until their first rating."""
    known_items: int


class Rules(NamedTuple):
    """Settings of both sides."""

    levels: Vector
    """Standardised rating of each code."""
    noise: float
    """σ²."""
    window: int
    """Ratings listed of each row; -1 is all of them."""
    repeats: int
    """Whether a repeated rating of a pair is added to the earlier ones or replaces them."""
    renewal: float
    """Additional weight of a rating in sums of pairs that are rated repeatedly."""
    min_share: float
    """Communities with a smaller q_i(d) are left out."""
    thorough: int
    """Consider all communities at every refresh."""
    total: Float64Array
    """Σ τ_i υ_j E(r_ij - a_i·b_j)², and its largest change since it was last computed; empty where
    not every rating is listed."""
    moods: Table
    """E o and Var o of each session, (sessions, 2); no rows without moods."""


class Sessions(NamedTuple):
    """Sessions of raters while ratings arrive; see `hemf.kernels.moods`.

    All arrays are empty without moods.
    """

    table: Table
    """Posterior of each, (sessions, COLUMNS)."""
    moods: Table
    """The same as in `Rules`."""
    time: Int64Array
    links: Int32Matrix
    """Previous and next session of the rater, and the rater; -1 is none."""
    last: Int64Array
    """The latest session of each rater, or -1."""
    smoothed: Int64Array
    """Number of ratings of each rater when their moods were last smoothed."""
    used: Int64Array
    """Number of sessions, in an array of one."""
    prior: Float64Array
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
    data: Float64Matrix
    factors: Float64Cube
    reciprocals: Float64Matrix
    solutions: Float64Matrix
    half_log_det: Float64Array
    share: Float64Array
    candidates: Int64Array
    considered: Int64Array
    kept: Int64Array
    inverse: Float64Matrix
    work: Float64Matrix
    mean: Float64Array
    second: Float64Array
    extra: Float64Array
    before: Vector
    past_mean: Vector
    past_second: Vector
    shift: Float64Array
    moods: Float64Array
    """Sums over raters; not used."""


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


# -- named tuples by reference -------------------------------------------------------------------

_primitive: Any = models.PrimitiveModel  # Numba has no types
_attributes: Any = AttributeTemplate


class Reference(types.Type):
    """Reference to a named tuple.

    Numba passes a tuple to a function as its numbers: seven and more for each array, hundreds for
    the rows of a side, in and out of every function. That took a third of the time of compiling.
    """

    def __init__(self, kind):
        self.kind = kind
        digest = hashlib.blake2b(str(kind).encode(), digest_size=6).hexdigest()
        super().__init__(f"{kind.instance_class.__name__}_{digest}")


@register_model(Reference)
class _Model(_primitive):  # type: ignore[misc]
    def __init__(self, manager, kind):
        super().__init__(manager, kind, manager.lookup(kind.kind).get_value_type().as_pointer())


@infer_getattr
class _Attributes(_attributes):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference, name):
        fields = reference.kind.fields
        if name not in fields:
            return None
        kind = reference.kind[fields.index(name)]
        return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


def _read(builder, pointer, *place):
    at = builder.gep(pointer, [ir.Constant(ir.IntType(32), each) for each in (0, *place)])
    found = builder.load(at)
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


def _field(context, builder, reference, pointer, name):
    place = reference.kind.fields.index(name)
    kind = reference.kind[place]
    if isinstance(kind, types.BaseNamedTuple):
        return builder.gep(pointer, [ir.Constant(ir.IntType(32), each) for each in (0, place)])
    if not isinstance(kind, types.Array):
        return _read(builder, pointer, place)
    model = context.data_model_manager[kind]
    found = context.get_constant_null(kind)
    for part in ("nitems", "itemsize", "data"):
        value = _read(builder, pointer, place, model.get_field_position(part))
        found = builder.insert_value(found, value, model.get_field_position(part))
    for part in ("shape", "strides"):
        at = model.get_field_position(part)
        for axis in range(kind.ndim):
            found = builder.insert_value(
                found, _read(builder, pointer, place, at, axis), [at, axis]
            )
    return found


lower_getattr_generic(Reference)(_field)


def _refer(_context, kind):
    def generate(_context, builder, _signature, arguments):
        return cgutils.alloca_once_value(builder, arguments[0])

    return Reference(kind)(kind), generate


refer: Any = intrinsic(_refer)
"""refer(arguments): a `Reference` to a named tuple, valid while the kernel that makes it runs."""
