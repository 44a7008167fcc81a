"""Similar items and users: correlations of the scores that are expected of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hemf import DataError, HeMF, ParameterError, UnknownIdError
from hemf._typing import OTHER, SIDES
from hemf.data.vocabulary import Vocabulary
from hemf.model.rows import Moments, draw_vectors, pack, unpack
from hemf.model.state import FittedModel
from hemf.queries import similar
from hemf.queries.similar import Tastes, tastes_of

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

N_USERS, N_ITEMS, N_GROUPS = 120, 72, 3
KINDS = ("ratings", "choices")
SMALL = {"n_factors": 3, "n_choice_factors": 4, "max_sweeps": 15, "n_jobs": 1, "rng": 0}


def group(id: str) -> int:
    return int(id.split()[1]) % N_GROUPS


def in_groups() -> list[tuple[str, str, float]]:
    """Users choose more items of their own group, and rate them higher."""
    rng = np.random.default_rng(3)
    own = np.arange(N_USERS)[:, None] % N_GROUPS == np.arange(N_ITEMS) % N_GROUPS
    users, items = np.nonzero(rng.random(own.shape) < np.where(own, 0.6, 0.2))
    stars = np.where(own[users, items], 4.5, 2.0) + rng.normal(0.0, 0.3, users.size)
    named = zip(users.tolist(), items.tolist(), stars.tolist(), strict=True)
    return [(f"user {u}", f"item {i}", value) for u, i, value in named]


RATINGS = in_groups()


@pytest.fixture(scope="module")
def model() -> HeMF:
    return HeMF(**SMALL, choices=True).fit(RATINGS)


def fitted(model: HeMF) -> FittedModel:
    found: FittedModel = model._model
    return found


def ask(model: HeMF, side: str, *args: Any, **how: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(model, f"similar_{side}s")(*args, **how)
    return found


def whole_table(model: FittedModel, side: str, kind: str) -> np.ndarray:
    """Similarity of every row to every other, by rows."""
    units = tastes_of(model, side, kind).units[:-1].astype(np.float64)
    return units @ units.T


def moments_of(model: FittedModel, side: str, kind: str) -> Moments:
    return model.components[kind].sides[side].moments


# docs/model.md#similarity
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_similarity_is_the_correlation_of_scores_over_the_other_side(model, side, kind, rng):
    own, others = (moments_of(fitted(model), name, kind) for name in (side, OTHER[side]))
    factors = fitted(model).components[kind].sides[side].layout.factors
    rows = np.repeat(np.arange(len(others.mean)), 600)
    drawn = draw_vectors(others, rows, rng)[:, factors]
    expected = np.corrcoef(own.mean[:12, factors].astype(np.float64) @ drawn.T)
    found = whole_table(fitted(model), side, kind)[:12, :12]
    np.testing.assert_allclose(found, expected, atol=0.02)


# docs/model.md#similarity
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_the_deviation_is_that_of_draws_from_the_posterior(model, side, kind, rng):
    ids, _, std = ask(model, side, f"{side} 1", 30, by=kind, return_std=True)
    own = moments_of(fitted(model), side, kind)
    root = tastes_of(fitted(model), side, kind).root
    rows = fitted(model).vocabulary(side).rows([f"{side} 1", *ids])
    drawn = draw_vectors(own, np.repeat(rows, 2000), rng) @ root
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    drawn = drawn.reshape(rows.size, 2000, -1)
    spread = np.einsum("kdl,dl->kd", drawn[1:], drawn[0]).std(axis=1)
    np.testing.assert_allclose(std, spread, rtol=0.4)
    assert np.median(std / spread) == pytest.approx(1.0, abs=0.15)
    assert (std > 0.0).all()
    assert (std <= 1.0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_the_most_similar_are_of_the_same_planted_group(model, side, kind):
    for number in range(9):
        ids, similarities = ask(model, side, f"{side} {number}", by=kind)
        assert {group(id) for id in ids} == {number % N_GROUPS}
        assert f"{side} {number}" not in ids
        assert (np.diff(similarities) <= 0.0).all()
        assert (similarities > 0.5).all()


def test_choices_are_what_it_goes_by_where_they_are_learnt(model):
    for side in SIDES:
        default, by_choice = (ask(model, side, f"{side} 5", by=by) for by in (None, "choices"))
        assert default[0].tolist() == by_choice[0].tolist()
        np.testing.assert_array_equal(default[1], by_choice[1])
        assert (ask(model, side, f"{side} 5", by="ratings")[1] != default[1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_similarity_is_symmetric(model, kind):
    for side, n in (("user", N_USERS), ("item", N_ITEMS)):
        one, other = f"{side} 4", f"{side} 8"
        there, back = (
            dict(zip(*ask(model, side, id, n, by=kind), strict=True)) for id in (one, other)
        )
        assert there[other] == pytest.approx(back[one], abs=1e-5)


def with_sides(model: FittedModel, changed: dict[str, Moments], **other: Any) -> FittedModel:
    """A model of ratings with other moments."""
    state = model.state
    sides = {name: replace(state.sides[name], moments=changed[name]) for name in SIDES}
    counts = other.pop("counts", state.counts)
    own = SimpleNamespace(sides=sides, counts=counts, in_place=None)
    return replace(model, components={"ratings": own}, derived={}, **other)


@pytest.mark.parametrize("constant", [False, True])
def test_other_factors_for_the_same_scores_give_the_same_similarities(model, constant, rng):
    """A linear change of the factors, and a constant moved to the offsets of the items."""
    before = fitted(model)
    factors = before.sides["user"].layout.factors
    of_users = np.eye(before.sides["user"].layout.total)
    change = rng.normal(size=(factors.size, factors.size))
    of_users[np.ix_(factors, factors)] = change
    if constant:
        of_users[factors, 0] = change @ rng.normal(size=factors.size)
    maps = {"user": of_users, "item": np.linalg.inv(of_users).T}
    moved = {}
    for side, matrix in maps.items():
        old = before.sides[side].moments
        mean = old.mean.astype(np.float64) @ matrix.T
        moved[side] = Moments(mean, pack(matrix @ unpack(old.second) @ matrix.T))
    after = with_sides(before, moved)
    scores = [m.moments("user").mean @ m.moments("item").mean.T for m in (before, after)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)
    for side in ("item",) if constant else SIDES:
        one, other = (
            similar.similar(m, side, f"{side} 7", 20, "ratings", True) for m in (before, after)
        )
        for mine, theirs in zip(one[1:], other[1:], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-3)


def test_the_order_of_the_ids_does_not_matter(model, rng):
    before, record, counts, moved = fitted(model), {}, {}, {}
    for side in SIDES:
        order, old = rng.permutation(before.sides[side].n_rows), before.sides[side].moments
        moved[side] = Moments(old.mean[order], old.second[order])
        counts[side] = before.state.counts[side][order]
        record[f"{side}s"] = Vocabulary(before.vocabulary(side).ids[order].tolist())
    after = with_sides(before, moved, counts=counts, record=SimpleNamespace(**record))
    for side in SIDES:
        one, other = (
            similar.similar(m, side, f"{side} 7", 20, "ratings", True) for m in (before, after)
        )
        assert one[0].tolist() == other[0].tolist()
        for mine, theirs in zip(one[1:], other[1:], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_several_ids_get_what_each_gets_alone(model, kind, monkeypatch):
    asked = [f"item {number}" for number in (3, 0, 3, 41)]
    whole = model.similar_items(asked, 6, by=kind, return_std=True)
    assert [answer.shape for answer in whole] == [(4, 6)] * 3
    for row, id in enumerate(asked):
        ids, *figures = model.similar_items(id, 6, by=kind, return_std=True)
        assert whole[0][row].tolist() == ids.tolist()
        for figure, one in zip(whole[1:], figures, strict=True):
            np.testing.assert_allclose(figure[row], one, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(similar, "BLOCK_BYTES", 16 * N_ITEMS * 3)
    blocks = model.similar_items(asked, 6, by=kind, return_std=True)
    assert blocks[0].tolist() == whole[0].tolist()
    np.testing.assert_allclose(blocks[2], whole[2], rtol=1e-5)
    assert [answer.shape for answer in model.similar_items([], 6)] == [(0, 6)] * 2


def test_deviations_are_computed_block_by_block_with_the_same_result(model, monkeypatch):
    whole = model.similar_users("user 1", 50, return_std=True)[2]
    monkeypatch.setattr(similar, "BLOCK_ROWS", 7)
    np.testing.assert_allclose(model.similar_users("user 1", 50, return_std=True)[2], whole)


def test_more_than_there_are_gives_all_others(model):
    ids, similarities = model.similar_items("item 2", 10_000)
    assert sorted(ids) == sorted({f"item {i}" for i in range(N_ITEMS)} - {"item 2"})
    assert ((similarities >= -1.0) & (similarities <= 1.0)).all()
    ids, similarities, std = model.similar_items(["item 2"], 10_000, return_std=True)
    assert ids[0, -1] is None
    assert np.isnan(similarities[0, -1])
    assert np.isnan(std[0, -1])
    assert np.isfinite(std[0, :-1]).all()


def test_ids_keep_their_type():
    data = [(u, i, v) for u, i, v in ((int(u[5:]), int(i[5:]), v) for u, i, v in RATINGS)]
    ids, _ = HeMF(**SMALL).fit(data).similar_items(3, 4)
    assert ids.dtype == np.int64


def test_a_row_whose_scores_do_not_vary_is_similar_to_none():
    mean, second = np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 0.0, 1.0], [1.1, 2.0, 4.1]])
    tastes = Tastes(np.eye(2), np.zeros((3, 2)), np.ones(2, bool))
    units, lengths = tastes.directions(Moments(mean, second))
    assert units[0].tolist() == [0.0, 0.0]
    assert lengths[0] == 0.0
    for one, other in ((0, 1), (1, 0)):
        own = Moments(mean[[one]], second[[one]])
        best = similar.BestColumns(np.array([[other]]), np.zeros((1, 1)))
        assert tastes.deviations(own, Moments(mean, second), best).tolist() == [[1.0]]


# -- features and learning online ---------------------------------------------------------------


def test_an_item_with_features_alone_is_similar_to_those_with_the_same_features():
    features = {f"item {i}": {"kind": f"kind {i % N_GROUPS}"} for i in range(N_ITEMS + 1)}
    model = HeMF(**SMALL).fit(RATINGS, item_features=features)
    new = f"item {N_ITEMS}"
    ids, similarities, std = model.similar_items(new, return_std=True)
    assert {group(id) for id in ids} == {N_ITEMS % N_GROUPS}
    assert (similarities > 0.5).all()
    known = model.similar_items("item 0", return_std=True)[2]
    assert np.median(std) > np.median(known)
    both = model.similar_items([new, "item 0"], 5)[0]
    assert both[0].tolist() == ids[:5].tolist()


@pytest.mark.parametrize("history", ["full", "none"])
def test_a_model_that_learns_online_answers_as_of_today(history):
    first, rest = RATINGS[::2], RATINGS[1::2]
    model = HeMF(**SMALL, history=history).fit(first)
    before = model.similar_items("item 0", 5)
    new = [(f"user {u}", "new 1", 4.5 if u % N_GROUPS == 1 else 2.0) for u in range(60)]
    model.partial_fit([*rest, *new])
    ids, similarities = model.similar_items("new 1", by="ratings")
    assert {group(id) for id in ids} == {1}
    after = model.similar_items("item 0", 5)
    assert (after[1] != before[1]).any()
    assert {group(id) for id in after[0]} == {0}
    fresh = replace(fitted(model), derived={})
    again = similar.similar(fresh, "item", "new 1", 10, None, False)
    np.testing.assert_array_equal(again[1], similarities)
    with pytest.raises(ParameterError, match="has not learnt choices"):
        model.similar_items("item 0", by="choices")


def test_what_has_no_rating_left_is_unknown_and_not_listed():
    model = HeMF(**SMALL).fit(RATINGS)
    model.partial_fit(removed=[(user, item) for user, item, _ in RATINGS if item == "item 3"])
    with pytest.raises(UnknownIdError, match="not known to the model: it has no ratings"):
        model.similar_items("item 3")
    assert "item 3" not in model.similar_items("item 6", N_ITEMS)[0]
    assert len(model.similar_items("item 6", N_ITEMS)[0]) == N_ITEMS - 2


def test_a_saved_model_answers_the_same(model, tmp_path):
    model.save(tmp_path / "m.hemf")
    loaded = HeMF.load(tmp_path / "m.hemf")
    for kind in KINDS:
        answers = [m.similar_items("item 1", by=kind, return_std=True) for m in (model, loaded)]
        for mine, theirs in zip(*answers, strict=True):
            np.testing.assert_array_equal(mine, theirs)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_id_is_an_error_with_the_likely_reason(model, kind):
    with pytest.raises(UnknownIdError, match="row 1 is not known to the model: did you mean 'item"):
        model.similar_items(["item 3", "Item-3"], by=kind)
    with pytest.raises(UnknownIdError, match="'user 3' is one of the users, not of the items"):
        model.similar_items("user 3", by=kind)
    with pytest.raises(UnknownIdError, match="user 'nobody' at row 0 is not known"):
        model.similar_users("nobody", by=kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"n": 2.5}, "n must be a whole number of at least 1, got 2.5"),
        ({"by": "looks"}, "by must be one of None, 'choices', 'ratings', got 'looks'"),
        ({"return_std": "yes"}, "return_std must be True or False, got 'yes'"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(model, options, message):
    for side in SIDES:
        with pytest.raises(ParameterError, match=message):
            ask(model, side, f"{side} 1", **options)


@pytest.mark.parametrize("id", [None, float("nan"), [None], [["a"]]], ids=str)
def test_what_is_no_id_is_refused(model, id):
    with pytest.raises(DataError):
        model.similar_items(id)
