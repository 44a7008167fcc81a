"""What a Gibbs sampler has drawn, and what a draw says of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemf.sampling.draws import Floats, RowNumbers, Singles, products

BLOCK = 1 << 20  # numbers that go with topics, of all pairs that are asked about at once


@dataclass(frozen=True)
class SideSample:
    """One side's part of a sample; the last row of every table is the mean of a stranger."""

    factors: Singles
    """(rows + 1, D)"""
    shares: Singles
    """How often each topic occurs, (rows + 1, topics)."""
    vectors: Singles
    """What goes with each topic of the other side, (rows + 1, other topics, size)."""
    biases: Singles
    factor_covariance: Floats
    """With what follows, how much a stranger may differ from its mean."""
    vector_covariance: Floats
    bias_variance: float

    @property
    def stranger(self) -> int:
        """Row of those that nothing is known of."""
        return len(self.factors) - 1

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tables = self.factors, self.shares, self.vectors, self.biases
        return sum(table.nbytes for table in tables)


@dataclass(frozen=True)
class Sample:
    """One draw of all that a rating depends on.

    r - c ~ N(o_u + p_j + a_u·b_j + c_u^k·d_j^i, σ²),  i ~ θ_u, k ~ θ_j
    """

    users: SideSample
    items: SideSample
    noise: float

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.users.nbytes + self.items.nbytes

    def moments(self, user_rows: RowNumbers, item_rows: RowNumbers) -> tuple[Floats, Floats]:
        """Mean and variance of r - c; topics are averaged over."""
        mean, variance = np.empty(len(user_rows)), np.empty(len(user_rows))
        topics = self.users.shares.shape[1] * self.items.shares.shape[1]
        each = topics + self.users.vectors[0].size + self.items.vectors[0].size
        block = max(1, BLOCK // each)
        for begin in range(0, len(user_rows), block):
            part = slice(begin, begin + block)
            mean[part], variance[part] = self._moments(user_rows[part], item_rows[part])
        return mean, variance + self.noise

    def _moments(self, user_rows: RowNumbers, item_rows: RowNumbers) -> tuple[Floats, Floats]:
        users, items = self.users, self.items
        along = np.einsum("nkv,niv->nik", users.vectors[user_rows], items.vectors[item_rows])
        weight = users.shares[user_rows][:, :, None] * items.shares[item_rows][:, None, :]
        in_topics = np.einsum("nik,nik->n", weight, along).astype(np.float64)
        squares = np.einsum("nik,nik,nik->n", weight, along, along).astype(np.float64)
        product = products(user_rows, item_rows, users.factors, items.factors, threads=1)
        mean = in_topics + product + users.biases[user_rows] + items.biases[item_rows]
        variance = np.maximum(squares - in_topics**2, 0.0)
        strange = (user_rows == users.stranger) | (item_rows == items.stranger)
        if strange.any():
            variance[strange] += self._strangeness(user_rows[strange], item_rows[strange])
        return mean, variance

    def _strangeness(self, user_rows: RowNumbers, item_rows: RowNumbers) -> Floats:
        """Variance that comes of not knowing the user, the item, or both."""
        users, items = self.users, self.items
        new_user, new_item = user_rows == users.stranger, item_rows == items.stranger
        of_factors = _product_variance(
            users.factors[user_rows], users.factor_covariance, new_user,
            items.factors[item_rows], items.factor_covariance, new_item,
        )  # fmt: skip
        of_vectors = np.zeros(len(user_rows))
        for k in range(items.shares.shape[1]):
            for i in range(users.shares.shape[1]):
                weight = users.shares[user_rows, i] * items.shares[item_rows, k]
                of_vectors += weight * _product_variance(
                    users.vectors[user_rows, k], users.vector_covariance, new_user,
                    items.vectors[item_rows, i], items.vector_covariance, new_item,
                )  # fmt: skip
        of_biases = users.bias_variance * new_user + items.bias_variance * new_item
        return np.asarray(of_factors + of_vectors + of_biases)


def _product_variance(
    left: Singles, left_covariance: Floats, left_varies: Floats,
    right: Singles, right_covariance: Floats, right_varies: Floats,
) -> Floats:  # fmt: skip
    """Var[a·b] = mᵀTm + nᵀSn + tr(ST) of vectors with means m, n and covariances S, T."""
    of_left = np.einsum("ns,st,nt->n", right, left_covariance, right, optimize=True)
    of_right = np.einsum("ns,st,nt->n", left, right_covariance, left, optimize=True)
    of_both = float(np.sum(left_covariance * right_covariance))
    return np.asarray(
        of_left * left_varies + of_right * right_varies + of_both * (left_varies * right_varies)
    )
