"""One side of the sampled model: what is drawn of its rows, given the other side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemf.engines.threads import Rows, chunk_bounds, share_out
from hemf.model.layout import Layout
from hemf.model.packing import pack
from hemf.sampling.draws import Floats, NormalWishart, Singles, over_parts
from hemf.sampling.regression import DrawnRegression
from hemf.sampling.scales import DrawnScales


@dataclass
class DrawnSide:
    """Vectors of one side's rows and all that they depend on, as drawn last."""

    layout: Layout
    rows: Rows
    """Ratings, standardised."""
    vectors: Singles
    """a_i with the pinned coordinate, (rows, total)."""
    mean: Floats
    """μ, (order,)."""
    precision: Floats
    """Λ, (order, order)."""
    prior: NormalWishart
    regression: DrawnRegression | None = None
    scales: DrawnScales | None = None

    @property
    def n_rows(self) -> int:
        """How many users, or items."""
        return len(self.vectors)

    @property
    def weights(self) -> Floats:
        """τ_i, how much a row's ratings count."""
        return np.ones(self.n_rows) if self.scales is None else self.scales.weights

    @property
    def shift(self) -> Floats:
        """f_i, what features say of each row, (rows, order); without any, nothing."""
        if self.regression is not None:
            return self.regression.shift
        return np.zeros((self.n_rows, self.layout.order))

    def draw(
        self, other: Singles, weights: Singles, rng: np.random.Generator, threads: int
    ) -> None:
        """Draw V and all rows at once, given the other side; then μ, Λ and λ_b given these.

        ``other`` are the other side's vectors, and ``weights`` those of the ratings, τ_i υ_j/σ².

        Gaussians are drawn by solving for a right side that is drawn: h_i + g_i, g_i ~ N(0, G_i)
        of the ratings, and t_i ~ N(0, Λ) of the prior, which is in the equations of V too.
        """
        covariance, pull = self._conditionals(other, weights, threads)
        pull += self._rating_noise(other, weights, rng)
        root = np.linalg.cholesky(self.precision)
        own = rng.standard_normal(pull.shape) @ root.T + self.precision @ self.mean
        pull += own

        def multiply(vectors: Floats) -> Floats:
            return _products(covariance, vectors, threads)

        if self.regression is not None:
            right = multiply(pull) @ self.precision - own
            known = np.einsum("nij,ij->n", covariance, self.precision, dtype=np.float64)
            told = np.clip(1.0 - known / self.layout.order, 1e-3, 1.0)
            self.regression.draw(multiply, told, right, self.precision, rng)
        shift = self.shift
        found = multiply(pull + shift @ self.precision)
        self.vectors[:, self.layout.free] = found
        central = None if self.regression is None else self.regression.scaled
        self.mean, self.precision = self.prior.draw(found - shift, rng, central)
        if self.regression is not None:
            self.regression.draw_precision(self.precision, rng)

    def _conditionals(
        self, other: Singles, weights: Singles, threads: int
    ) -> tuple[Singles, Floats]:
        """S_i and h_i of every row; see `hemf.kernels.gibbs.conditional_rows`."""
        from hemf.kernels import gibbs as kernels

        rows, layout, order = self.rows, self.layout, self.layout.order
        values = rows.values
        if layout.pinned >= 0:  # what the other side's offsets say
            values = values - other[rows.indices, layout.pinned]
        covariance = np.empty((self.n_rows, order, order), np.float32)
        pull = np.empty((self.n_rows, order))
        cuts = chunk_bounds(rows.indptr, order)
        given = (
            cuts, rows.indptr, rows.indices, values, weights,
            np.ascontiguousarray(other[:, layout.free]), pack(self.precision), covariance, pull,
        )  # fmt: skip
        run = kernels.conditional_rows.compiled(np.float32)
        share_out(lambda begin, end: run(begin, end, *given), cuts.size - 1, threads)
        return covariance, pull

    def _rating_noise(self, other: Singles, weights: Singles, rng: np.random.Generator) -> Floats:
        """g_i = Σ_j √w_ij b_j z_ij with standard normal z: N(0, Σ_j w_ij b_j b_jᵀ) of each row."""
        from scipy.sparse import csr_array

        drawn = np.sqrt(weights) * rng.standard_normal(weights.size, np.float32)
        rows, shape = self.rows, (self.n_rows, len(other))
        table = csr_array((drawn, rows.indices, rows.indptr), shape=shape)
        return np.asarray(table @ other[:, self.layout.free], np.float64)


def _products(matrices: Singles, vectors: Floats, threads: int) -> Floats:
    """Return the product of each row's matrix with its vector."""
    from hemf.kernels import gibbs as kernels

    out = np.empty_like(vectors)
    run = kernels.multiply_rows.compiled(np.float32)
    over_parts(lambda begin, end: run(begin, end, matrices, vectors, out), len(vectors), threads)
    return out
