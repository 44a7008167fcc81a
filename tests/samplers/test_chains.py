"""The samplers are of the models they claim to be of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from hemf import Ratings
from hemf.evaluation import random_split, rmse
from hemf.samplers import BPMF, M3FTIB, M3FTIF
from hemf.samplers.bpmf import FactorChain, RatingTable, TopicBiasChain, TopicFactorChain

GUESS = 0.3
COMMON = {
    "n_factors": 2, "noise_variance": GUESS, "learn_noise": True,
    "mean_precision": 2.0, "degrees": 12.0, "wishart_scale": 0.2,
}  # fmt: skip
TOPICS = {"user_topics": 2, "item_topics": 3, "concentration": 4.0, "offset_variance": 0.5}
CHAINS = {
    "BPMF": (FactorChain, BPMF(**COMMON)),
    "M3F-TIB": (TopicBiasChain, M3FTIB(**COMMON, **TOPICS)),
    "M3F-TIF": (TopicFactorChain, M3FTIF(**COMMON, **TOPICS, topic_factors=2)),
}


def table(rng: np.random.Generator) -> RatingTable:
    users, items = (grid.ravel() for grid in np.indices((5, 4)))
    return RatingTable.of(Ratings.from_any((users, items, rng.normal(size=20))))


def figures(chain: FactorChain) -> list[float]:
    """Return numbers whose mean under the prior is known."""
    errors, explained = chain.errors, chain.table.values - chain.errors
    found = [-np.log(chain.noise), np.mean(errors**2) / chain.noise]
    found += [np.mean(errors * part) / chain.noise for part in (explained, chain.product)]
    for side in (0, 1):
        mean, precision = chain.priors[side]
        found += [precision[0, 0], precision[0, 1]]
        apart = chain.factors[side] - mean
        found += [np.mean((apart @ precision * apart).sum(axis=1))]
        found += [mean.sum()]
    if isinstance(chain, TopicBiasChain | TopicFactorChain):
        found += [chain.shares[0][1, 0], *(np.mean(shares**2) for shares in chain.shares)]
    if isinstance(chain, TopicBiasChain):
        found += [np.mean(chain.vectors[side][..., side] ** 2) for side in (0, 1)]
    if isinstance(chain, TopicFactorChain):
        found += [np.mean(biases**2) for biases in chain.biases]
        for side in (0, 1):
            mean, precision = chain.vector_priors[side]
            apart = chain.flat(side) - mean
            found += [np.mean((apart @ precision * apart).sum(axis=1))]
            found += [precision[1, 1]]
    return found


def expected(chain: FactorChain) -> list[float]:
    """Return the means of `figures` under the prior."""
    wanted = [special.digamma(1.0) - np.log(GUESS), 1.0, 0.0, 0.0]
    for _ in (0, 1):
        wanted += [12 * 0.2, 0.0, 2.0, 0.0]
    if isinstance(chain, TopicBiasChain | TopicFactorChain):
        wanted += [1 / 2, (1 / 4) * (1 / 5) + 1 / 4, (2 / 9) / 5 + 1 / 9]
    if isinstance(chain, TopicBiasChain):
        wanted += [0.5, 0.5]
    if isinstance(chain, TopicFactorChain):
        wanted += [0.5, 0.5] + [2.0, 12 * 0.2] * 2
    return wanted


@pytest.mark.parametrize("name", CHAINS)
def test_with_ratings_drawn_anew_at_every_step_a_chain_walks_its_prior(name, rng):
    """Geweke's joint distribution test.

    A step that draws all parameters given ratings, and a draw of ratings given parameters, in
    turn: if and only if each draws from what it should, parameters come out as in the prior.
    """
    kind, settings = CHAINS[name]
    chain = kind(settings, table(rng), rng, threads=1)
    chain.vector_hyper_prior = chain.hyper_prior  # narrow, so that a short chain is enough
    seen = []
    for _ in range(2000):
        chain.step()
        seen.append(figures(chain))
        errors = np.sqrt(chain.noise) * rng.standard_normal(20)
        values = (chain.table.values - chain.errors + errors).astype(np.float32)
        chain.errors = errors.astype(np.float32)
        chain.table = replace(chain.table, values=values)
    seen = np.array(seen[250:])
    batches = seen.reshape(35, 50, -1).mean(axis=1)  # draws that follow each other are alike
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    off = (seen.mean(axis=0) - expected(chain)) / error
    assert np.abs(off).max() < 4.5, off


# -- parameters and held-out likelihood come back ---------------------------------------------

N_USERS, N_ITEMS, NOISE = 250, 150, 0.5
CONCENTRATION = 10.0


def planted(kind: type, rng: np.random.Generator):
    """Ratings from the prior of a model: columns, their exact mean and variance, and offsets."""
    users, items = (grid.ravel() for grid in np.indices((N_USERS, N_ITEMS)))
    factors = [rng.normal(0.0, 0.7, (n, 2)) for n in (N_USERS, N_ITEMS)]
    mean = 3.0 + (factors[0] @ factors[1].T).ravel()
    shares = rng.dirichlet(np.full(2, CONCENTRATION / 2), N_USERS)
    offsets = rng.normal(size=(N_ITEMS, 2))
    if kind is BPMF:
        effects = np.zeros((2, users.size))
    elif kind is M3FTIB:
        mean += rng.normal(size=N_USERS)[users]
        effects = offsets[items].T
    else:
        mean += rng.normal(0, 0.3, N_USERS)[users] + rng.normal(0, 0.3, N_ITEMS)[items]
        vectors = rng.normal(size=(N_USERS, 2))[users], rng.normal(0, 0.5, (N_ITEMS, 2, 2))[items]
        effects = np.einsum("nv,niv->in", *vectors)
    topics = (rng.random(users.size) > shares[users, 0]).astype(int)
    ratings = mean + effects[topics, np.arange(users.size)]
    ratings += rng.normal(0, np.sqrt(NOISE), users.size)
    weight = shares[users].T
    expected = (weight * effects).sum(axis=0)
    variance = (weight * effects**2).sum(axis=0) - expected**2 + NOISE
    return (users, items, ratings), mean + expected, variance, offsets


def log_likelihood(ratings: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """Mean over ratings, of Gaussians with these moments."""
    return float(-0.5 * np.mean((ratings - mean) ** 2 / variance + np.log(2 * np.pi * variance)))


@pytest.mark.parametrize("kind", [BPMF, M3FTIB, M3FTIF])
def test_what_a_model_has_drawn_itself_comes_back(kind, rng):
    data, exact, variance, offsets = planted(kind, rng)
    train, test = random_split(len(exact), 0.2, rng=0)
    common = {"learn_noise": True, "rating_range": None, "rng": 0}
    topics = {"user_topics": 2, "item_topics": 1, "concentration": CONCENTRATION}
    if kind is M3FTIB:
        topics["offset_variance"] = 1.0
    model = kind(n_factors=2, samples=80, burn_in=80, **common, **topics if kind != BPMF else {})
    model.fit(tuple(column[train] for column in data))
    users, items, ratings = (column[test] for column in data)
    mean, std = model.predict(users, items, return_std=True)
    assert model.noise_variance_ == pytest.approx(NOISE, rel=0.05)
    assert rmse(ratings, mean) < 1.05 * rmse(ratings, exact[test])
    best = log_likelihood(ratings, exact[test], variance[test])
    assert log_likelihood(ratings, mean, std**2) > best - 0.06
    if kind is not BPMF:  # factors alone are not as good
        simple = BPMF(n_factors=4, samples=40, burn_in=40, **common)
        simple.fit(tuple(column[train] for column in data))
        assert rmse(ratings, mean) < rmse(ratings, simple.predict(users, items))
    if kind is M3FTIB:  # the order of an item's two offsets is arbitrary
        drawn = [np.ptp(sample.items.vectors[:-1, :, 1], axis=1) for sample in model.samples_]
        known = model.state_.items.ids.ids.astype(int)
        assert np.corrcoef(np.mean(drawn, axis=0), np.ptp(offsets, axis=1)[known])[0, 1] > 0.95
