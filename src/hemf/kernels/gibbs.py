"""Draws of a Gibbs sampler: rows of factors, topics of ratings, and the sums they need.

Random numbers are arguments, so that results do not depend on how threads share the work.
Rows of a table of vectors are numbered by int32; ``begin … end`` is the part to work on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hemf.kernels import lanes
from hemf.kernels.blocks import data_part, load_block
from hemf.kernels.compile import allocating_kernel, kernel, summing
from hemf.kernels.structures import (
    WIDTH,
    Cube,
    Float64Array,
    Float64Cube,
    Float64Matrix,
    Int32Array,
    Int64Array,
    OtherRows,
    Ratings,
    SweepMemory,
    Table,
    TopicRatings,
    TopicRows,
    Vector,
    refer,
)


@kernel
def outer_products(rows: Table, second: Table) -> None:
    """Write b bᵀ of every row, packed."""
    for n in range(rows.shape[0]):
        row, out = rows[n], second[n]
        p = 0
        for i in range(row.size):
            for j in range(i + 1):
                out[p + j] = row[i] * row[j]
            p += i + 1


@allocating_kernel
def draw_rows(
    begin: int, end: int, cuts: Int64Array, ratings: Ratings, other: OtherRows,
    noise: Float64Array, precision: Float64Array, natural_mean: Float64Array, rows: Table,
    memory: SweepMemory,
) -> None:  # fmt: skip
    """Draw the rows of chunks begin … end from their conditional posterior.

    A row a with ratings r_j of the other side's rows b_j, and the prior N(μ, Λ⁻¹)::

        a ~ N(A⁻¹h, A⁻¹),  A = Λ + Σ b_j b_jᵀ / σ²,  h = Λμ + Σ r_j b_j / σ²

    ``noise`` is σ² of each row, ``precision`` Λ, packed, and ``natural_mean`` Λμ; other rows
    have a weight of 1. ``rows`` holds standard normals on entry.
    """
    ratings, other, memory = refer(ratings), refer(other), refer(memory)
    order = rows.shape[1]
    triangle = order * (order + 1) // 2
    free = np.arange(order)
    factor, drawn = memory.factors[0], memory.mean
    memory.batch[:] = cuts[begin]
    for start in range(cuts[begin], cuts[end], WIDTH):
        count = load_block(start, cuts[end], cuts[end], ratings, other, memory)
        data_part(start, count, free, -1, noise, memory, factor, drawn)
        for p in range(triangle):
            lanes.store(factor, p, lanes.load(factor, p) + precision[p])
        for i in range(order):
            lanes.store(drawn, i, lanes.load(drawn, i) + natural_mean[i])
        lanes.factorise(factor, order)
        lanes.solve_forward(factor, drawn, order)
        for i in range(order):  # A = CCᵀ, and C⁻ᵀ(C⁻¹h + z) has mean A⁻¹h and covariance A⁻¹
            for b in range(count):
                drawn[i, b] += rows[start + b, i]
        lanes.solve_backward(factor, drawn, order)
        for i in range(order):
            for b in range(count):
                rows[start + b, i] = drawn[i, b]


@summing
def dot(a: Any, b: Any) -> Any:
    """Return a·b."""
    total = a.dtype.type(0)
    for t in range(a.size):
        total += a[t] * b[t]
    return total


@allocating_kernel
def conditional_rows(
    begin: int, end: int, cuts: Int64Array, ratings: Ratings, weights: Vector, other: Table,
    precision: Float64Array, covariance: Cube, natural_mean: Float64Matrix,
) -> None:  # fmt: skip
    """Write S and h of the rows of chunks begin … end: S⁻¹ = Λ + Σ w b bᵀ, h = Σ w r b.

    Arguments are those of `draw_rows`, but every rating has a weight w of its own, 1/σ² included.
    """
    indptr, indices, values = ratings.indptr, ratings.indices, ratings.values
    order = other.shape[1]
    triangle = order * (order + 1) // 2
    gram = np.empty(triangle, other.dtype)
    moment = np.empty(order, other.dtype)
    factor = np.empty((triangle, WIDTH))
    for start in range(cuts[begin], cuts[end], WIDTH):
        count = min(WIDTH, cuts[end] - start)
        for p in range(triangle):
            lanes.store(factor, p, lanes.full(precision[p]))
        for b in range(count):
            gram[:] = 0
            moment[:] = 0
            for k in range(indptr[start + b], indptr[start + b + 1]):
                row, r = other[indices[k]], values[k]
                p = 0
                for i in range(order):
                    x = weights[k] * row[i]
                    moment[i] += x * r
                    for j in range(i + 1):
                        gram[p + j] += x * row[j]
                    p += i + 1
            for i in range(order):
                natural_mean[start + b, i] = moment[i]
            for p in range(triangle):
                factor[p, b] += gram[p]
        lanes.factorise(factor, order)
        lanes.invert(factor, order)
        p = 0
        for i in range(order):
            for j in range(i + 1):
                for b in range(count):
                    covariance[start + b, i, j] = factor[p, b]
                    covariance[start + b, j, i] = factor[p, b]
                p += 1


@kernel
def multiply_rows(
    begin: int, end: int, matrices: Cube, vectors: Float64Matrix, out: Float64Matrix
) -> None:
    """Write the product of each row's matrix with its vector."""
    for n in range(begin, end):
        matrix, vector, product = matrices[n], vectors[n], out[n]
        for i in range(vector.size):
            product[i] = dot(matrix[i], vector)


@kernel
def products(
    begin: int, end: int, left: Int32Array, right: Int32Array, left_rows: Table, right_rows: Table,
    out: Vector,
) -> None:  # fmt: skip
    """Write the product of the two rows of each pair."""
    for n in range(begin, end):
        out[n] = dot(left_rows[left[n]], right_rows[right[n]])


@allocating_kernel
def draw_topics(
    begin: int, end: int, ratings: TopicRatings, noise: float, user_rows: TopicRows,
    item_rows: TopicRows, uniforms: Vector,
) -> None:  # fmt: skip
    """Draw the user topic i and the item topic k of every rating, both at once.

    p(i, k) ∝ θ_u(i) θ_j(k) N(residual; c_u^k · d_j^i, σ²). Shares are θ, vectors c and d.
    """
    users, items, residuals = ratings.users, ratings.items, ratings.residuals
    user_shares, item_shares = user_rows.shares, item_rows.shares
    user_vectors, item_vectors = user_rows.vectors, item_rows.vectors
    n_user, n_item = user_shares.shape[1], item_shares.shape[1]
    weight = np.empty((n_user, n_item))
    for n in range(begin, end):
        u, j = users[n], items[n]
        least = np.inf
        for i in range(n_user):
            for k in range(n_item):
                error = np.float64(residuals[n] - dot(user_vectors[u, k], item_vectors[j, i]))
                weight[i, k] = 0.5 * error * error / noise
                least = min(least, weight[i, k])
        total = 0.0
        for i in range(n_user):
            for k in range(n_item):
                near = np.exp(least - weight[i, k])
                weight[i, k] = near * user_shares[u, i] * item_shares[j, k]
                total += weight[i, k]
        left = uniforms[n] * total
        i, k = 0, 0
        while left >= weight[i, k]:
            left -= weight[i, k]
            if k + 1 < n_item:
                k += 1
            elif i + 1 < n_user:
                i, k = i + 1, 0
            else:  # the last, whatever rounding has left
                break
        ratings.user_topics[n], ratings.item_topics[n] = i, k


@kernel
def gather_groups(
    groups: Int32Array, others: Int32Array, values: Vector, other_vectors: Table,
    grams: Float64Cube, moments: Float64Matrix,
) -> None:  # fmt: skip
    """Add d dᵀ and r d of every rating to the sums of its group."""
    size = other_vectors.shape[1]
    for n in range(groups.size):
        gram, moment, d = grams[groups[n]], moments[groups[n]], other_vectors[others[n]]
        for s in range(size):
            moment[s] += np.float64(values[n]) * d[s]
            for t in range(size):
                gram[s, t] += np.float64(d[s]) * d[t]
