"""The sampler is of the model it claims to be of: rows, features, priors, noise and its scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from hemf.batch.fit import NOISE_START
from hemf.data.ratings import Sparse
from hemf.model import regression as ridge
from hemf.model.regression import Design
from hemf.model.rows import Layout
from hemf.samplers import draws
from hemf.samplers import hemf as regression
from hemf.samplers.draws import DrawnScales, NormalWishart, OrdinalScale
from hemf.samplers.hemf import DrawnRegression, DrawnSide, HeMFChain

N = {"user": 5, "item": 4}
FACTORS, ORDER = 2, 3
PRIOR = NormalWishart(mean_precision=2.0, degrees=12.0, scale=0.2)


def tables(values: np.ndarray) -> dict[str, Sparse]:
    """All users' ratings of all items, (users, items)."""
    found = {}
    for name, table in (("user", values), ("item", values.T)):
        n, m = table.shape
        indices = np.tile(np.arange(m, dtype=np.int32), n)
        found[name] = Sparse(
            np.arange(0, n * m + 1, m), indices, np.ascontiguousarray(table, np.float32).ravel()
        )
    return found


def side(name: str, rows: Sparse, rng: np.random.Generator, *, features: bool) -> DrawnSide:
    layout, n = Layout.of(name, n_factors=FACTORS, offsets=True), N[name]
    vectors = rng.normal(0.0, 0.3, (n, layout.total)).astype(np.float32)
    vectors[:, layout.pinned] = 1.0
    design = Design.of({"age": rng.normal(size=(n, 1)), "labels": rng.normal(size=(n, 7))})
    regression = DrawnRegression(design, np.zeros((8, ORDER)), np.ones(2)) if features else None
    return DrawnSide(
        layout, rows, vectors, np.zeros(ORDER), np.eye(ORDER), PRIOR, regression,
        DrawnScales(np.ones(n), 10.0),
    )  # fmt: skip


def chain(
    rng: np.random.Generator, *, features: bool = True, scale: OrdinalScale | None = None
) -> HeMFChain:
    """With noise scales of rows, and with features those of ratings too."""
    rows = tables(rng.normal(size=(N["user"], N["item"])))
    sides = {name: side(name, rows[name], rng, features=features) for name in N}
    return HeMFChain(sides, noise=0.5, unit=1.0, rng=rng, threads=1, outliers=features, scale=scale)


def figures(sampler: HeMFChain) -> list[float]:
    """Return numbers whose mean under the prior is known."""
    errors = sampler.errors
    found = [-np.log(sampler.variance), np.mean(errors**2 * sampler.weights) / sampler.variance]
    if sampler.outliers is not None:
        found += [sampler.outliers.weights.mean(), np.log(sampler.outliers.shape)]
    for part in sampler.sides.values():
        precision, apart = part.precision, part.vectors[:, part.layout.free] - part.mean
        found += [precision[0, 0], precision[0, 1], part.mean.sum()]
        apart = apart - (0.0 if part.regression is None else part.regression.shift)
        found += [np.mean((apart @ precision * apart).sum(axis=1))]
        found += [part.weights.mean(), np.log(part.scales.shape)]
        if part.regression is not None:
            regression = part.regression
            found += [np.mean((regression.scaled @ precision * regression.scaled).sum(axis=1))]
            found += list(regression.precision / regression.guess)
            # what features say and what is left of the rows have nothing to do with each other
            found += [np.mean(regression.shift[:, 0] * apart[:, 0] * precision[0, 0])]
    return found


def expected(*, features: bool) -> list[float]:
    """Return the means of `figures` under the prior."""
    wanted = [special.digamma(1.0) - np.log(NOISE_START), 1.0]
    wanted += [1.0, np.log(draws.SHAPES).mean()] * features
    for _ in N:
        wanted += [12 * 0.2, 0.0, 0.0, ORDER, 1.0, np.log(draws.SHAPES).mean()]
        if features:
            wanted += [ORDER, 1.0, 1.0, 0.0]
    return wanted


@pytest.mark.parametrize(("features", "levels"), [(True, None), (False, None), (False, [-1, 0, 2])])
def test_with_ratings_drawn_anew_at_every_step_the_chain_walks_its_prior(
    features, levels, rng, monkeypatch
):
    """Geweke's joint distribution test; see `tests.baselines.test_chains`.

    Priors are narrower than in earnest, where numbers would vary too much for a short test.
    """
    monkeypatch.setattr(draws, "SHAPES", np.geomspace(4.0, 20.0, 8))
    monkeypatch.setattr(regression, "PRIOR_SHAPE", 8.0)
    scale = None if levels is None else OrdinalScale(np.array(levels, np.float64))
    sampler, seen = chain(rng, features=features, scale=scale), []
    for _ in range(2200):
        sampler.step()
        seen.append(figures(sampler))
        errors = rng.normal(0.0, np.sqrt(sampler.variance / sampler.weights))
        values = sampler.sides["user"].rows.values - sampler.errors + errors
        if scale is not None:  # what is behind them is drawn again by the next step
            sampler._levels = scale.indices(values)
            continue
        rows = tables(values.reshape(N["user"], N["item"]))
        for name, part in sampler.sides.items():
            part.rows = replace(part.rows, values=rows[name].values)
        sampler.errors = errors
    seen = np.array(seen[200:])
    batches = seen.reshape(40, 50, -1).mean(axis=1)  # draws that follow each other are alike
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    off = (seen.mean(axis=0) - expected(features=features)) / error
    assert np.abs(off).max() < 4.5, off.round(1)


# docs/model.md#gibbs-hemf
def test_rows_and_coefficients_are_drawn_from_their_joint_posterior(rng):
    """Against the Gaussian that the formulas give, all in one matrix."""
    sampler = chain(rng)
    user, item = sampler.sides["user"], sampler.sides["item"]
    noise, layout, regression = 0.4, user.layout, user.regression
    user.scales.weights = rng.uniform(0.5, 2.0, N["user"])
    item.scales.weights = rng.uniform(0.5, 2.0, N["item"])
    mean, precision = rng.normal(size=ORDER), np.diag([1.0, 2.0, 3.0]) + 0.5
    blocks = np.array([0.7, 2.5])
    weight = np.outer(user.weights, item.weights) / noise
    found = []
    for _ in range(3000):
        user.mean, user.precision, regression.precision = mean, precision, blocks
        user.draw(item.vectors, weight.astype(np.float32).ravel(), rng, 1)
        drawn = user.vectors[:, layout.free].astype(np.float64)
        found.append(np.concatenate([drawn.ravel(), regression.coefficients.ravel()]))

    n, columns = N["user"] * ORDER, regression.coefficients.size
    matrix, natural_mean = np.zeros((n + columns, n + columns)), np.zeros(n + columns)
    features = regression.design.matrix.toarray()
    for i in range(N["user"]):
        own = slice(i * ORDER, (i + 1) * ORDER)
        regressors = item.vectors[:, layout.free].astype(np.float64)
        ratings = user.rows.values[i * N["item"] : (i + 1) * N["item"]]
        left = ratings - item.vectors[:, layout.pinned]
        matrix[own, own] += regressors.T @ (weight[i, :, None] * regressors)
        natural_mean[own] += regressors.T @ (weight[i] * left)
        design = np.zeros((ORDER, n + columns))  # a_i - Vᵀx_i ~ N(μ, Λ⁻¹)
        design[:, own] = np.eye(ORDER)
        design[:, n:] = -np.kron(features[i], np.eye(ORDER))
        matrix += design.T @ precision @ design
        natural_mean += design.T @ precision @ mean
    matrix[n:, n:] += np.kron(np.diag(regression.design.by_column(blocks)), precision)
    covariance = np.linalg.inv(matrix)
    found = np.array(found)
    error = np.sqrt(np.diag(covariance) / len(found))
    assert np.abs((found.mean(axis=0) - covariance @ natural_mean) / error).max() < 4.5
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.abs((np.cov(found.T) - covariance) / scale).max() < 4.5 * np.sqrt(2 / len(found))


def test_many_features_are_drawn_the_same_without_a_factorisation(monkeypatch):
    """What is solved by is another, the solution is not: the same random numbers, the same draw."""
    monkeypatch.setattr(regression, "ACCURACY", 1e-9)
    drawn = []
    for direct in (ridge.DIRECT, 0):
        monkeypatch.setattr(ridge, "DIRECT", direct)
        sampler = chain(np.random.default_rng(3))
        sampler.step()
        drawn.append(sampler)
    for name in N:
        with_factor, without = (sampler.sides[name] for sampler in drawn)
        assert isinstance(with_factor.regression._solver, ridge.Direct)
        assert isinstance(without.regression._solver, ridge.Iterative)
        found, wanted = without.regression.coefficients, with_factor.regression.coefficients
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        np.testing.assert_allclose(without.vectors, with_factor.vectors, atol=1e-5)
        assert without.regression.not_converged == with_factor.regression.not_converged == 0
