"""The model of choices, and how choices and ratings are combined to rank items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from hemf import HeMF, ParameterError, Ratings
from hemf._options import fit_options
from hemf._typing import OTHER, SIDES
from hemf.batch.choices import choice_options, fit_choices
from hemf.batch.fit import BatchState, learn_noise, start_state, sweep, update_side
from hemf.batch.relevance import find_links, learn_relevance, without_pairs
from hemf.data.vocabulary import Vocabulary
from hemf.engines.base import CHOICES, LoadOptions
from hemf.engines.threads import Threads
from hemf.model.communities import learn_prior
from hemf.model.links import item_weights, without_user
from hemf.model.rows import pair_moments, unpack

BACKGROUND = 0.2
N_GROUPS = 4


def in_groups(rng: np.random.Generator, n_users: int = 120, n_items: int = 80) -> Ratings:
    """Users choose mostly items of their own group, and like half of these better."""
    user_group = rng.integers(N_GROUPS, size=n_users)
    item_group = np.arange(n_items) % N_GROUPS
    own = user_group[:, None] == item_group
    chosen = rng.random((n_users, n_items)) < np.where(own, 0.5, 0.04)
    chosen[0, 0] = chosen[np.arange(n_users), rng.integers(n_items, size=n_users)] = True
    users, items = np.nonzero(chosen)
    good = np.where(items % (2 * N_GROUPS) < N_GROUPS, 4.0, 2.0)
    values = good + rng.integers(0, 2, users.size)
    return in_order((users, items, values), n_users, n_items)


def in_order(columns: tuple[np.ndarray, ...], n_users: int, n_items: int) -> Ratings:
    """Ratings whose ids are the numbers of their rows."""
    users, items = Vocabulary(range(n_users)), Vocabulary(range(n_items))
    return Ratings.from_any(columns, users=users, items=items)


def started(ratings: Ratings, **changes: Any) -> tuple[BatchState, Any]:
    model = HeMF(n_factors=3, n_choice_factors=5, dtype="float64", n_jobs=1, choices=True)
    options = replace(choice_options(fit_options(model)), **changes)
    engine = Threads.load(ratings, LoadOptions(np.float64, n_jobs=1, background=BACKGROUND))
    return start_state(engine, 1.0, options, np.random.default_rng(3), component=CHOICES), options


def dense(ratings: Ratings) -> np.ndarray:
    """Whether each pair was observed."""
    table = ratings.by_user
    observed = np.zeros((ratings.n_users, ratings.n_items))
    observed[np.repeat(np.arange(table.n_rows), np.diff(table.indptr)), table.indices] = 1.0
    return observed


# docs/model.md#choices
@pytest.mark.parametrize("side", SIDES)
def test_a_row_is_that_of_all_pairs_with_their_weights(side: str, rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    state, options = started(ratings)
    sweep(state, options, rng)
    other = state.sides[OTHER[side]].moments
    second, mean = unpack(other.second), other.mean.copy()
    prior, noise = state.sides[side].communities, state.noise
    update_side(state, side, learn=False)
    observed = dense(ratings) if side == "user" else dense(ratings).T
    weights = np.where(observed > 0.0, 1.0, BACKGROUND)
    for row in (0, 7, 31):
        precision = np.einsum("j,jkl->kl", weights[row], second) / noise + prior.precision[0]
        natural = observed[row] @ mean / noise + prior.natural_mean[0]
        found = state.sides[side].moments
        expected = np.linalg.solve(precision, natural)
        np.testing.assert_allclose(found.mean[row], expected, rtol=1e-9)
        covariance = unpack(found.second[row]) - np.outer(expected, expected)
        np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-12)


# docs/model.md#choices
def test_the_error_is_that_of_all_pairs_with_their_weights(rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    state, options = started(ratings)
    for _ in range(3):
        sweep(state, options, rng)
    observed = dense(ratings)
    users, items = (index.ravel() for index in np.indices(observed.shape))
    moments = (state.sides[side].moments for side in SIDES)
    mean, variance = pair_moments(*moments, users, items, variance=True)
    weights = np.where(observed.ravel() > 0.0, 1.0, BACKGROUND)
    error = weights @ ((observed.ravel() - mean) ** 2 + variance)
    assert state.squared_error == pytest.approx(error, rel=1e-8)
    assert state.noise == pytest.approx(error / weights.sum(), rel=1e-8)


@pytest.mark.parametrize("communities", [1, 4])
def test_no_update_lowers_the_bound_of_choices(communities: int, rng: np.random.Generator) -> None:
    state, options = started(in_groups(rng), max_communities=dict.fromkeys(SIDES, communities))
    schedule = replace(options.schedule, warm_up=3, hold_structure=2)
    for _ in range(6):
        sweep(state, replace(options, schedule=schedule), rng)
    last = sum(state.bound_terms().values())
    for _ in range(4):
        for side in SIDES:
            update_side(state, side)
            last = assert_not_lower(state, last)
            own = state.sides[side]
            own.prior = learn_prior(
                own.prior, own.communities, evb="closed", structure=True, scale=True
            )
            own.refresh()
            last = assert_not_lower(state, last)
        learn_noise(state)
        last = assert_not_lower(state, last)


def assert_not_lower(state: BatchState, last: float) -> float:
    now = sum(state.bound_terms().values())
    assert now >= last - 1e-9 * abs(last)
    return now


# docs/model.md#left-out
def test_leaving_out_a_pair_is_an_update_without_it(rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    state, options = started(ratings)
    for _ in range(3):
        sweep(state, options, rng)
    update_side(state, "user", learn=False)
    prior = state.sides["user"].communities
    for user in (1, 5, 40):
        items = ratings.by_user.row(user)[0]
        left, kept = int(items[0]), items[1:]
        second = unpack(state.sides["item"].moments.second)
        weights = np.full(ratings.n_items, BACKGROUND)
        weights[kept] = 1.0
        sides_prior = used_prior(state, prior)
        precision = np.einsum("j,jkl->kl", weights, second) / state.noise + sides_prior[0]
        natural = state.sides["item"].moments.mean[kept].sum(axis=0) / state.noise + sides_prior[1]
        found = without_pairs(state, "user", np.array([user]), np.array([left]))[0]
        np.testing.assert_allclose(found, np.linalg.solve(precision, natural), rtol=1e-7)


def used_prior(state: BatchState, communities: Any) -> tuple[np.ndarray, np.ndarray]:
    """Prior that the rows were last updated with, from a row's posterior and its data."""
    own, other = state.sides["user"], state.sides["item"]
    columns, _ = state.row_ratings("user", 0)
    mean = own.moments.mean[0]
    precision = np.linalg.inv(unpack(own.moments.second[0]) - np.outer(mean, mean))
    weights = np.full(other.n_rows, BACKGROUND)
    weights[columns] = 1.0
    data = np.einsum("j,jkl->kl", weights, unpack(other.moments.second)) / state.noise
    natural = precision @ mean - other.moments.mean[columns].sum(axis=0) / state.noise
    assert communities.count == 1
    return precision - data, natural


def without_some(ratings: Ratings, rng: np.random.Generator) -> tuple[Ratings, dict[int, int]]:
    """Leave out one liked item of each user that has several ratings."""
    users, items, values = ratings.triples()
    left, keep = {}, np.ones(users.size, bool)
    for place in rng.permutation(users.size):
        user = int(users[place])
        if user not in left and values[place] >= 4.0 and (users[keep] == user).sum() > 3:
            left[user], keep[place] = int(items[place]), False
    return ratings.select(np.flatnonzero(keep)), left


def mean_gain(model: HeMF, left: dict[int, int], **how: Any) -> float:
    """Mean of 1/log2(1 + rank) of the items left out among ten recommended."""
    users = list(left)
    found, _ = model.recommend(users, 10, **how)
    gains = 1.0 / np.log2(np.arange(2, 12))
    return float(np.mean([gains[found[k] == left[user]].sum() for k, user in enumerate(users)]))


# docs/model.md#relevance
def test_relevance_ranks_what_is_chosen_and_liked_above_what_is_liked(
    rng: np.random.Generator,
) -> None:
    train, left = without_some(in_groups(rng, 200), rng)
    model = HeMF(n_factors=4, n_choice_factors=8, choices=True, rng=0).fit(train)
    by_relevance, by_mean = mean_gain(model, left), mean_gain(model, left, strategy="mean")
    by_choice = 0.46 / 2.0  # of ten items of the own group in any order, about half of all unseen
    assert by_relevance > 1.3 * by_mean
    assert by_relevance > by_choice


def test_where_pairs_are_observed_at_random_ratings_decide(rng: np.random.Generator) -> None:
    n_users, n_items = 300, 60
    taste, kind = rng.normal(size=(n_users, 2)), rng.normal(size=(n_items, 2))
    users, items = np.nonzero(rng.random((n_users, n_items)) < 0.4)
    values = 3.0 + (taste[users] * kind[items]).sum(axis=1) + 0.3 * rng.normal(size=users.size)
    ratings = in_order((users, items, values), n_users, n_items)
    model = HeMF(n_factors=4, choices=True, n_choice_factors=8, rng=0).fit(ratings)
    unseen = dense(ratings)[: ratings.n_users] == 0.0
    true = taste @ kind.T
    found, _ = model.recommend(np.arange(n_users), 5)
    gain = np.mean([true[u, found[u].astype(int)].mean() for u in range(n_users)])
    best = np.mean([np.sort(true[u][unseen[u]])[-5:].mean() for u in range(n_users)])
    assert gain > 0.9 * best


# docs/model.md#relevance
@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_best_items_are_those_of_a_full_sort(
    n: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hemf.queries.scorers.CANDIDATES", 5)  # so that more have to be looked at
    ratings = in_groups(rng)
    model = HeMF(n_factors=3, n_choice_factors=5, choices=True, rng=0).fit(ratings)
    users, items = np.arange(ratings.n_users), np.arange(ratings.n_items)
    scores = model.scores(users, items)
    for strategy in ("relevance", "mean"):
        every = scores if strategy == "relevance" else model.scores(users, items, strategy="mean")
        every = np.where(dense(ratings) > 0.0, -np.inf, every)
        found, best = model.recommend(users, n, strategy=strategy)
        expected = np.sort(every, axis=1)[:, ::-1][:, :n]
        np.testing.assert_allclose(best.astype(float), expected, rtol=1e-5, atol=1e-9)
        own = np.take_along_axis(every, found.astype(int), axis=1)
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-9)


# docs/model.md#links
def test_links_add_what_the_strongest_weights_expect(rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    model = HeMF(n_factors=3, n_choice_factors=5, choices=True, n_links=4, rng=0).fit(ratings)
    found, observed = find_links(ratings, 4), dense(ratings)
    assert found is not None
    links = found.links
    gram = observed.T @ observed
    penalty = 2.0 * observed.sum() / ratings.n_items
    inverse = np.linalg.inv(gram + penalty * np.eye(ratings.n_items))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    for item in (0, 9, 50):
        kept = np.argsort(-np.abs(weights[:, item]))[:4]
        assert set(np.flatnonzero(links.table[:, [item]].toarray())) == set(kept)
    expected = observed @ links.table.toarray()
    np.testing.assert_allclose(links.scores(csr_array(observed)), expected, rtol=1e-5, atol=1e-6)
    sides = model.state_.engine.components  # the fit is of ratings and choices
    assert set(sides) == {"ratings", "choices"}


# docs/model.md#links-left-out
def test_links_without_a_user_are_those_of_a_table_without_the_row(
    rng: np.random.Generator,
) -> None:
    observed = (rng.random((40, 12)) < 0.4).astype(float)
    weights, diagonal = item_weights(csr_array(observed), 3.0)
    for user in (0, 11, 39):
        chosen = np.flatnonzero(observed[user])
        item, linked = int(chosen[0]), chosen[1:][::2]
        others, _ = item_weights(csr_array(np.delete(observed, user, axis=0)), 3.0)
        found = without_user(weights, diagonal, chosen, item, linked)
        assert found == pytest.approx(float(others[linked, item].sum()), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("strategy", ["relevance", "ucb", "thompson"])
def test_every_strategy_leaves_out_what_was_seen(strategy: str, rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    model = HeMF(n_factors=3, n_choice_factors=5, choices=True, rng=0).fit(ratings)
    found, scores = model.recommend(3, 10, strategy=strategy, rng=1)
    assert not set(found) & set(ratings.by_user.row(3)[0].tolist())
    assert (np.diff(scores) <= 0.0).all()
    again, _ = model.recommend("nobody", 5, strategy=strategy, rng=1, return_known=True)[:2]
    assert len(again) == 5


def test_a_saved_model_recommends_the_same(tmp_path: Any, rng: np.random.Generator) -> None:
    model = HeMF(n_factors=3, n_choice_factors=5, choices=True, rng=0).fit(in_groups(rng))
    model.save(tmp_path / "m.hemf")
    loaded = HeMF.load(tmp_path / "m.hemf")
    users = np.arange(20)
    for ours, theirs in zip(model.recommend(users), loaded.recommend(users), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loaded.save(tmp_path / "again.hemf")
    assert (tmp_path / "m.hemf").read_bytes() == (tmp_path / "again.hemf").read_bytes()


def test_any_number_of_threads_gives_the_same_bits(rng: np.random.Generator) -> None:
    ratings = in_groups(rng)
    one, three = (
        HeMF(n_factors=3, n_choice_factors=5, choices=True, rng=0, n_jobs=n).fit(ratings)
        for n in (1, 3)
    )
    np.testing.assert_array_equal(
        one.scores([0, 5], np.arange(40)), three.scores([0, 5], np.arange(40))
    )


def test_choices_help_to_predict_ratings_where_taste_decides_on_both(
    rng: np.random.Generator,
) -> None:
    n_users, n_items = 400, 150
    taste, kind = rng.normal(size=(n_users, 2)), rng.normal(size=(n_items, 2))
    likes = taste @ kind.T / np.sqrt(2.0)
    chosen = rng.random((n_users, n_items)) < 0.25 / (1.0 + np.exp(-3.0 * likes))
    users, items = np.nonzero(chosen)
    values = 3.0 + likes[users, items] + rng.normal(size=users.size)
    test = rng.random(users.size) < 0.2
    errors = []
    for choices in (False, True):
        model = HeMF(
            n_factors=4, n_choice_factors=6, max_user_communities=1, max_item_communities=1,
            choices=choices, rng=0,
        ).fit((users[~test], items[~test], values[~test]))  # fmt: skip
        predicted = model.predict(users[test], items[test])
        errors.append(np.sqrt(np.mean((predicted - values[test]) ** 2)))
    assert errors[1] < 0.99 * errors[0]


def test_a_model_with_choices_refuses_to_learn_online(rng: np.random.Generator) -> None:
    model = HeMF(n_factors=3, n_choice_factors=5, choices=True, rng=0).fit(in_groups(rng))
    before = model.predict([0, 1], [2, 3])
    with pytest.raises(ParameterError, match="choices=False"):
        model.partial_fit([(0, 2, 5.0)])
    np.testing.assert_array_equal(model.predict([0, 1], [2, 3]), before)


def test_the_rule_without_anything_to_leave_out_is_the_first_one() -> None:
    ratings = Ratings.from_any([("ann", "tea", 5.0), ("bob", "milk", 1.0)])
    options = replace(fit_options(HeMF(n_jobs=1)), n_choice_factors=2, n_factors=2)
    engine = Threads.load(ratings, LoadOptions(np.float32, n_jobs=1, background=BACKGROUND))
    rng = np.random.default_rng(0)
    choices = fit_choices(engine, options, rng)
    rule, _ = learn_relevance(choices, choices, ratings, None, rng)
    assert (rule.level, rule.choice_exponent, rule.rating_exponent) == (3.0, 1.0, 0.5)
