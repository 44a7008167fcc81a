from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from hemf import ConvergenceWarning, HeMF, NotFittedError, ParameterError
from hemf.model.state import TrainingRecord
from hemf.queries.communities import _contrast, _well_known, community_vectors, json_id

LEVELS = np.array([[4.5, 1.5], [1.5, 4.5], [3.0, 3.0]])  # of 3 kinds of users for 2 of items


@pytest.fixture(scope="module")
def planted() -> tuple[HeMF, dict[str, int], dict[int, int]]:
    """A fitted model, and the planted group of each user and item."""
    rng = np.random.default_rng(0)
    groups, kinds = rng.integers(0, 3, 90), rng.integers(0, 2, 60)
    users, items = np.nonzero(rng.random((90, 60)) < 0.3)
    ratings = LEVELS[groups[users], kinds[items]] + rng.normal(0, 0.5, users.size)
    names = [f"u{user}" for user in users]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = HeMF(n_factors=2, n_jobs=1, rng=0)
        model.fit((names, items, np.clip(ratings, 1, 5)))
    return (
        model,
        {f"u{user}": int(group) for user, group in enumerate(groups)},
        dict(enumerate(kinds.tolist())),
    )


@pytest.fixture(scope="module")
def single() -> HeMF:
    ratings = [(u, i, (u + 3 * i) % 5) for u in range(8) for i in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = HeMF(n_factors=1, max_user_communities=1, max_item_communities=1, rng=0)
        return model.set_params(max_sweeps=5, n_jobs=1).fit(ratings)


def test_planted_groups_are_the_communities(planted):
    model, groups, kinds = planted
    assert (len(model.communities("user")), len(model.communities("item"))) == (3, 2)
    for side, truth in (("user", groups), ("item", kinds)):
        labels = model.communities(side).labels
        assert labels.keys() == truth.keys()
        assert len({(labels[key], truth[key]) for key in truth}) == len(set(truth.values()))


@pytest.mark.parametrize("side", ["user", "item"])
def test_sizes_weights_and_probabilities_are_distributions(planted, side):
    view = planted[0].communities(side)
    assert view.probabilities.shape == (len(view.ids), len(view))
    np.testing.assert_allclose(view.probabilities.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(view.probabilities.sum(axis=0), view.sizes, atol=0.01)
    assert view.weights.sum() == pytest.approx(1.0)
    assert (np.diff(view.sizes) <= 0).all()
    assert view.side == side


def test_members_are_those_labelled_so_the_surest_first(planted):
    view = planted[0].communities("user")
    listed = [view.members(d) for d in range(len(view))]
    assert sorted(name for members in listed for name in members) == sorted(view.ids)
    row = {name: number for number, name in enumerate(view.ids)}
    for d, members in enumerate(listed):
        assert {view.labels[name] for name in members} == {d}
        sure = [view.probabilities[row[name], d] for name in members]
        assert sure == sorted(sure, reverse=True)


def test_a_community_that_is_not_there_has_no_members(planted):
    view = planted[0].communities("user")
    for wrong in (3, -1, "a", 0.5, None, True, [0]):
        with pytest.raises(ParameterError, match="at least 0 and at most 2, got ") as caught:
            view.members(wrong)
        assert caught.value.value is wrong
    assert view.members(np.int64(2)) == view.members(2)


def test_typical_items_are_of_the_kind_that_the_community_likes(planted):
    model, groups, kinds = planted
    view = model.communities("user", n=4)
    for d, typical in enumerate(view.typical):
        group = groups[view.members(d)[0]]
        assert len(typical) == 4
        assert [entry.lift for entry in typical] == sorted((e.lift for e in typical), reverse=True)
        if group < 2:  # the third likes both kinds alike
            assert {kinds[entry.id] for entry in typical} == {group}
            assert all(entry.lift > 1.0 for entry in typical)
            assert all(4.0 < entry.rating <= 5.0 for entry in typical)


def test_a_community_that_rates_low_has_typical_items_too():
    """They stand out from its own level and from how the item is rated, not from other levels."""
    expected = np.array([[5.0, 5.0, 4.0, 4.0], [2.5, 1.0, 1.0, 1.5]])
    shares = np.array([0.5, 0.5])
    typical, divisive = _contrast(expected, expected, shares, np.array(list("abcd")), 2)
    assert [entry.id for entry in typical[0]] == ["b", "c"]
    assert [entry.id for entry in typical[1]] == ["a", "d"]
    assert [entry.lift for entry in typical[0]] == pytest.approx([0.5, 0.0])
    assert [entry.lift for entry in typical[1]] == pytest.approx([0.25, 0.25])
    assert divisive[0].id == "b"
    lower = np.array([expected[0], expected[0] - 2.0])  # the same tastes on another level
    alike, _ = _contrast(lower, lower, shares, np.arange(4), 4)
    assert all(entry.lift == pytest.approx(0.0) for every in alike for entry in every)


def test_expected_ratings_are_those_of_the_communities_mean_vectors(planted):
    model = planted[0]
    view = model.communities("user", n=3)
    vectors = community_vectors(model.state_.sides["user"])
    items = model.state_.sides["item"].moments.mean.astype(np.float64)
    expected = np.clip(
        model.global_mean_ + model.rating_scale_ * vectors @ items.T, *model.rating_range_
    )
    row = {name: number for number, name in enumerate(model.ratings_.items.ids.tolist())}
    mean = view.sizes @ expected / view.sizes.sum()
    spread = np.sqrt(view.sizes @ (expected - mean) ** 2 / view.sizes.sum())
    for d, typical in enumerate(view.typical):
        lift = (expected[d] - expected[d].mean()) - (mean - mean.mean())
        for entry in typical:
            assert entry.rating == pytest.approx(expected[d, row[entry.id]])
            assert entry.lift == pytest.approx(lift[row[entry.id]])
        best = np.sort(lift)[::-1][:3]
        assert [entry.lift for entry in typical] == pytest.approx(best.tolist())
    for entry in view.divisive:
        assert entry.ratings == pytest.approx(expected[:, row[entry.id]].tolist())
    assert [e.spread for e in view.divisive] == pytest.approx(np.sort(spread)[::-1][:3].tolist())


def test_the_view_of_the_items_names_users(planted):
    model, groups, kinds = planted
    view = model.communities("item", n=3)
    for d, typical in enumerate(view.typical):
        assert {groups[entry.id] for entry in typical} == {kinds[view.members(d)[0]]}
    assert {groups[entry.id] for entry in view.divisive} <= {0, 1}


def test_one_community_disagrees_with_none_and_likes_what_it_expects_most_of(single):
    view = single.communities("user", n=3)
    assert view.divisive == ()
    ((first, *others),) = view.typical
    assert first.lift == 0.0
    assert all(first.rating >= entry.rating for entry in others)
    assert set(view.labels.values()) == {0}


def test_asking_for_more_than_there_is_gives_all(single):
    assert len(single.communities("user", n=100).typical[0]) == 6


def test_ids_with_hardly_any_ratings_are_not_named_where_there_are_others():
    counts = np.array([1, 2, 50] * 40)
    assert set(counts[_well_known(counts, n=4)]) == {50}
    assert set(counts[_well_known(counts, n=5)]) == {2, 50}  # too few to choose 5 from
    assert _well_known(np.array([1, 9]), n=5).tolist() == [0, 1]


def test_what_a_view_shows_cannot_change_the_model(planted):
    view = planted[0].communities("user")
    for array in (view.probabilities, view.sizes, view.ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]


def test_a_view_is_json(planted):
    model, groups, _ = planted
    answer = json.loads(json.dumps(model.communities("user", n=2).to_dict(labels=True)))
    assert answer["side"] == "user"
    assert sum(entry["members"] for entry in answer["communities"]) == answer["rows"] == len(groups)
    assert [len(entry["typical"]) for entry in answer["communities"]] == [2, 2, 2]
    assert len(answer["divisive"][0]["ratings"]) == 3
    assert (
        dict(zip(answer["ids"], answer["labels"], strict=True)) == model.communities("user").labels
    )
    assert "labels" not in model.communities("user").to_dict()
    json.dumps(model.communities("item").to_dict(labels=True))


def test_a_dictionary_names_the_members_where_asked(planted):
    view = planted[0].communities("user")
    answer = json.loads(json.dumps(view.to_dict(member_ids=True)))
    for d, entry in enumerate(answer["communities"]):
        assert entry.pop("member_ids") == view.members(d)
    assert answer == view.to_dict()  # nothing else is different


def test_ids_of_any_type_have_a_json_form():
    assert json_id(float("inf")) == "inf"
    assert json_id(True) is True
    assert json_id(((1, b"a"), np.float64(2.5))) == [[1, "b'a'"], 2.5]


def test_biclusters_are_the_ratings_by_pair_of_labels(planted):
    model = planted[0]
    found = model.biclusters()
    users, items, values = model.ratings_.triples()
    user_ids, item_ids = model.ratings_.users.ids[users], model.ratings_.items.ids[items]
    predictions = model.predict(user_ids, item_ids)
    d = np.array([model.communities("user").labels[name] for name in user_ids])
    k = np.array([model.communities("item").labels[name] for name in item_ids])
    assert found.size.shape == (3, 2)
    assert found.size.sum() == values.size
    for cell in found.rows():
        inside = (d == cell.user_community) & (k == cell.item_community)
        assert cell.size == inside.sum()
        assert cell.mean_rating == pytest.approx(values[inside].mean(), rel=1e-6)
        assert cell.mean_prediction == pytest.approx(predictions[inside].mean())


def test_blocks_of_ratings_add_up_to_the_same_biclusters(planted, monkeypatch):
    whole = planted[0].biclusters()
    monkeypatch.setattr("hemf.queries.communities.BLOCK", 101)
    pieces = planted[0].biclusters()
    assert pieces.size.tolist() == whole.size.tolist()
    np.testing.assert_allclose(pieces.mean_rating, whole.mean_rating)
    np.testing.assert_allclose(pieces.mean_prediction, whole.mean_prediction)


def test_a_cell_without_ratings_has_no_mean(planted):
    model = planted[0]
    labels = model.communities("item").labels
    users, items, _ = model.ratings_.triples()
    group = np.array(list(model.communities("user").labels.values()))[users]
    kind = np.array([labels[i] for i in model.ratings_.items.ids])[items]
    part = HeMF(**model.get_params())
    record = TrainingRecord(model.ratings_.subset((group != 0) | (kind != 0)))
    part._holder.replace(replace(model._fit, model=replace(model._model, record=record)))
    found = part.biclusters()
    assert found.size[0, 0] == 0
    assert np.isnan(found.mean_rating[0, 0])
    assert np.isnan(found.mean_prediction[0, 0])
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert answer["mean_rating"][0][0] is None
    assert answer["size"] == found.size.tolist()


def test_nothing_learnt_is_nothing_to_view():
    for look in (HeMF().communities, HeMF().biclusters):
        with pytest.raises(NotFittedError):
            look()
