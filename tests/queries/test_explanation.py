from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from hemf import ConvergenceWarning, DataError, HeMF
from hemf.batch.fit import update_side
from hemf.engines.base import LoadOptions
from hemf.engines.threads import Threads
from hemf.model.state import TrainingRecord
from hemf.queries.explain import Explanation, rating_contributions
from proofs.problems import tables

ONE = {"max_user_communities": 1, "max_item_communities": 1}
SEVERAL = {"max_user_communities": 4, "max_item_communities": 4}


def fitted(**parameters) -> HeMF:
    rng = np.random.default_rng(3)
    groups, kinds = rng.integers(0, 2, 50), rng.integers(0, 2, 40)
    users, items = np.nonzero(rng.random((50, 40)) < 0.35)
    level = np.where(groups[users] == kinds[items], 4.2, 1.8) + 0.3 * (items % 3)
    ratings = np.clip(level + rng.normal(0, 0.5, users.size), 1, 5)
    parameters = {"n_factors": 3, "rng": 0, "n_jobs": 1, "max_sweeps": 25, **parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return HeMF(**parameters).fit(([f"u{u}" for u in users], items, ratings))


@pytest.fixture(scope="module")
def model() -> HeMF:
    return fitted(dtype="float64", **SEVERAL)


def pairs(model: HeMF, count: int = 8) -> list[tuple[str, int]]:
    rng = np.random.default_rng(0)
    users = rng.choice(model.ratings_.users.ids, count)
    return list(zip(users.tolist(), rng.choice(model.ratings_.items.ids, count), strict=True))


def refreshed(model: HeMF) -> HeMF:
    """The user rows at their optimum for the items and communities as they are."""
    side = model.state_.sides["user"]
    communities, scales = side.communities, side.noise_scales
    coupled = model.membership == "coupled"
    update_side(model.state_, "user", coupled=coupled, hold=True, learn=False)
    side.communities, side.noise_scales = communities, scales
    return model


def undecided(model: HeMF) -> HeMF:
    """Every user between communities."""
    side = model.state_.sides["user"]
    shares = np.random.default_rng(1).dirichlet(np.ones(side.n_communities), side.n_rows)
    side.membership[:] = shares
    return model


@pytest.mark.parametrize("parameters", [{}, {"offsets": False}, {"dtype": "float64"}], ids=str)
def test_the_parts_add_up_to_the_prediction(parameters):
    model = fitted(rating_range=None, **parameters)
    exact = 1e-12 if model.dtype == "float64" else 1e-5
    for user, item in [*pairs(model), ("stranger", 3), ("u1", "unheard of"), ("who", "what")]:
        why = model.explain(user, item)
        mean, std = model.predict(user, item, return_std=True)
        parts = why.global_mean + why.user_offset + why.item_offset + why.interaction
        assert parts == pytest.approx(mean, abs=exact)
        assert (why.mean, why.std) == (mean, std)
        if not model.offsets:
            assert why.user_offset == why.item_offset == 0.0


def test_the_prediction_is_clipped_but_its_parts_are_not():
    model = fitted(rating_range=(2.9, 3.1))
    why = max((model.explain(*pair) for pair in pairs(model)), key=lambda why: why.interaction)
    assert why.mean == 3.1
    assert why.global_mean + why.user_offset + why.item_offset + why.interaction > 3.1


def test_the_shares_of_uncertainty_are_those_of_the_variance(model):
    for user, item in [*pairs(model), ("stranger", 3), ("u1", "unheard of")]:
        why = model.explain(user, item)
        assert list(why.uncertainty) == ["noise", "user", "item", "both"]
        assert sum(why.uncertainty.values()) == pytest.approx(1.0)
        assert min(why.uncertainty.values()) >= 0.0
        _, taste = model.predict(user, item, return_std=True, include_noise=False)
        rest = 1.0 - why.uncertainty["noise"]
        assert rest * why.std**2 == pytest.approx(taste**2)


def test_not_knowing_the_user_is_what_makes_a_prediction_for_a_stranger_unsure(model):
    known, stranger = model.explain("u1", 3), model.explain("stranger", 3)
    assert stranger.uncertainty["user"] > 5 * known.uncertainty["user"]
    assert stranger.std > known.std


@pytest.mark.parametrize(
    "parameters",
    [
        ONE,
        {**ONE, "offsets": False, "noise_scales": None},
        SEVERAL,
        {**SEVERAL, "user_covariances": "own"},
        {**SEVERAL, "user_covariances": "own", "membership": "mean-field", "dtype": "float32"},
    ],
    ids=str,
)
def test_contributions_and_the_communities_part_are_what_the_ratings_add_to(parameters):
    model = refreshed(undecided(fitted(**{"dtype": "float64", **parameters})))
    exact = 1e-10 if model.dtype == "float64" else 1e-4
    state = model.state_
    side = state.sides["user"]
    assert side.n_communities == (1 if parameters["max_user_communities"] == 1 else 2)
    free = side.layout.free
    for user, item in pairs(model):
        i = model.ratings_.users.rows([user])[0]
        j = model.ratings_.items.rows([item])[0]
        rows = tables(state)["user"]
        rated = rows.indices[rows.indptr[i] : rows.indptr[i + 1]]
        gram = np.zeros((side.layout.total, side.layout.total))
        high, low = np.tril_indices(side.layout.total)
        weights = state.sides["item"].weights[rated] * side.weights[i]
        gram[high, low] = weights @ state.sides["item"].moments.second[rated]
        gram[low, high] = gram[high, low]
        data = gram[np.ix_(free, free)] / state.noise
        count, order = side.communities.mean.shape
        precision = np.broadcast_to(side.communities.precision, (count, order, order))
        share = side.membership[i]
        if parameters.get("membership") == "mean-field":
            precision = np.broadcast_to(np.einsum("d,dij->ij", share, precision), precision.shape)
        target = state.sides["item"].moments.mean[j, free]
        prior = sum(
            q * target @ np.linalg.solve(data + P, natural_mean)
            for q, P, natural_mean in zip(
                share, precision, side.communities.natural_mean, strict=True
            )
        )
        why = model.explain(user, item)
        assert why.from_communities == pytest.approx(prior * model.rating_scale_, abs=exact)
        assert why.from_ratings + why.from_communities == pytest.approx(
            why.user_offset + why.interaction, abs=exact
        )


@pytest.mark.parametrize("parameters", [ONE, {**ONE, "offsets": False}], ids=str)
def test_a_contribution_is_what_the_prediction_loses_when_the_rating_tells_nothing(parameters):
    """With the precision held, the mean is linear in the ratings: change one, and see."""
    model = refreshed(fitted(dtype="float64", rating_range=None, **parameters))
    state, (user, item) = model.state_, pairs(model)[0]
    i, j = int(model.ratings_.users.rows([user])[0]), int(model.ratings_.items.rows([item])[0])
    contributions = rating_contributions(state, i, j)
    before = model.predict(user, item)
    at = tables(state)["user"].indptr[i]
    rated = tables(state)["user"].indices[at]
    tables(state)["user"].values[at] += 1.0
    after_contributions = rating_contributions(state, i, j)
    refreshed(model)
    change = (model.predict(user, item) - before) / model.rating_scale_
    assert (after_contributions - contributions)[0] == pytest.approx(change, abs=1e-10)
    np.testing.assert_allclose((after_contributions - contributions)[1:], 0.0, atol=1e-14)
    assert rated == model.ratings_.by_user.row(i)[0][0]


def test_reasons_are_the_ratings_that_moved_the_prediction_most(model):
    for user, item in pairs(model):
        everything = model.explain(user, item, n=1000)
        rated, ratings = model.ratings_.by_user.row(int(model.ratings_.users.rows([user])[0]))
        assert {r.item: r.rating for r in everything.reasons} == pytest.approx(
            dict(zip(model.ratings_.items.ids[rated].tolist(), ratings.tolist(), strict=True))
        )
        sizes = [abs(reason.contribution) for reason in everything.reasons]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(r.contribution for r in everything.reasons) == pytest.approx(
            everything.from_ratings
        )
        few = model.explain(user, item, n=3)
        assert few.reasons == everything.reasons[:3]
        assert few.from_ratings == everything.from_ratings


def test_similarity_is_the_cosine_of_the_factors(model):
    (user, item), *_ = pairs(model)
    factors = dict(
        zip(
            model.ratings_.items.ids.tolist(),
            model.state_.sides["item"].moments.mean[:, 2:],
            strict=True,
        )
    )
    for reason in model.explain(user, item).reasons:
        a, b = factors[reason.item], factors[item]
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert reason.similarity == pytest.approx(cosine)


def test_communities_are_those_with_at_least_one_percent(model):
    view = model.communities("user")
    why = model.explain("u1", 3)
    probabilities = view.probabilities[view.ids.tolist().index("u1")]
    assert why.user_communities == {d: q for d, q in enumerate(probabilities) if q >= 0.01}
    assert next(iter(why.user_communities)) == view.labels["u1"]
    stranger = model.explain("stranger", 3)
    assert stranger.user_communities == pytest.approx(dict(enumerate(view.weights)))
    assert stranger.item_communities == why.item_communities


@pytest.mark.parametrize(
    ("user", "item", "known"),
    [
        ("u1", 3, (True, True)),
        ("nobody", 3, (False, True)),
        ("u1", "nothing", (True, False)),
        ("nobody", "nothing", (False, False)),
    ],
)
def test_strangers_are_explained_without_reasons_and_said_to_be_strangers(model, user, item, known):
    why = model.explain(user, item)
    assert (why.known_user, why.known_item) == known
    assert bool(why.reasons) == all(known)
    assert ("the user is new" in str(why)) == (not known[0])
    assert ("the item is new" in str(why)) == (not known[1])


def test_a_user_whose_ratings_were_all_held_out_has_no_reasons(model):
    state = model.state_
    ratings = model.ratings_.subset(np.arange(model.ratings_.n_ratings) >= 40)
    bare = HeMF(**model.get_params())
    state = replace(state, engine=Threads.load(ratings, LoadOptions(np.float64)))
    components = {"ratings": state}
    held = replace(model._model, components=components, record=TrainingRecord(ratings), derived={})
    bare._holder.replace(replace(model._fit, model=held))
    user = model.ratings_.users.ids[0]
    why = bare.explain(user, 3)
    assert why.reasons == ()
    assert why.from_ratings == 0.0
    assert (why.known_user, why.known_item) == (False, True)
    assert "the user is new" in str(why)
    assert why.mean == bare.predict(user, 3) == bare.predict("nobody", 3)


def test_an_explanation_is_of_the_fit_whatever_the_parameters_are_now(model):
    other = HeMF(**model.get_params())
    other.__dict__.update(vars(model))
    undecided(other)
    before = other.explain("u1", 3)
    other.set_params(membership="mean-field")
    assert other.explain("u1", 3) == before


def test_an_id_can_be_a_tuple():
    model = HeMF(n_factors=1, max_sweeps=1).fit([((1, "a"), "x", 5), ((2, "b"), "x", 3)])
    why = model.explain((1, "a"), "x")
    assert why.known_user
    assert why.to_dict()["user"] == [1, "a"]


def test_an_id_can_come_from_an_array(model):
    why = model.explain(np.array(["u1"])[0], np.int64(3))
    assert (type(why.user), type(why.item)) == (str, int)
    assert str(why) == str(model.explain("u1", 3))


def test_many_ids_at_once_are_refused(model):
    for several in (["u1", "u2"], ("u1", "u2"), np.array(["u1"])):
        with pytest.raises(DataError, match="about one user, got several"):
            model.explain(several, 3)
    with pytest.raises(DataError, match="about one item, got several"):
        model.explain("u1", (3, 4))


def test_an_explanation_reads_as_a_few_lines(model):
    lines = str(model.explain("u1", 3, n=2)).splitlines()
    assert lines[0].startswith("user 'u1', item 3: ")
    assert "±" in lines[0]
    assert any("% noise" in line for line in lines)
    assert sum("was rated" in line for line in lines) == 2
    assert len(lines) == 6


def test_an_explanation_is_json(model):
    for pair in (("u1", 3), ("nobody", "nothing")):
        why = model.explain(*pair, n=2)
        answer = json.loads(json.dumps(why.to_dict(), allow_nan=False))
        assert answer["mean"] == why.mean
        assert answer["from_communities"] == why.from_communities
        assert [reason["item"] for reason in answer["reasons"]] == [r.item for r in why.reasons]
        assert isinstance(why, Explanation)
