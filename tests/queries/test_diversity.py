"""Lists whose items differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hemf import HeMF, ParameterError, Ratings
from hemf.evaluation.ranking import Catalogue
from hemf.model.rows import BestColumns
from hemf.queries import diversity as module
from hemf.queries.diversity import CANDIDATES, diversified
from hemf.queries.similar import tastes_of

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

N_USERS, N_ITEMS = 150, 160
STRATEGIES = ("relevance", "mean", "ucb", "thompson")


def drawn() -> Ratings:
    """Ratings by taste, of items of which some are far more popular than others."""
    rng = np.random.default_rng(1)
    taste, kind = rng.normal(size=(N_USERS, 4)), rng.normal(size=(N_ITEMS, 4))
    popular = np.linspace(0.35, 0.02, N_ITEMS)
    fit = taste @ kind.T
    users, items = np.nonzero(rng.random(fit.shape) < popular * (1.0 + np.tanh(fit)))
    values = 3.0 + 0.5 * fit[users, items] + rng.normal(0.0, 0.4, users.size)
    return Ratings.from_any((users, items, values))


DATA = drawn()


def fit(**parameters: Any) -> HeMF:
    own = {"n_factors": 4, "n_choice_factors": 6, "max_sweeps": 12, "n_jobs": 1, "rng": 0}
    return HeMF(**{**own, **parameters}).fit(DATA)


@pytest.fixture(scope="module", params=[False, True], ids=["ratings", "choices"])
def model(request: pytest.FixtureRequest) -> HeMF:
    return fit(choices=request.param)


def users_of(model: HeMF) -> list[int]:
    found: list[int] = model.ratings_.users.ids.tolist()
    return found


def similarity(model: HeMF) -> np.ndarray:
    """Similarity of all items, by rows."""
    kind = "choices" if model.choices else "ratings"
    units = tastes_of(model._model, "item", kind).units.astype(np.float64)
    return units @ units.T


# docs/model.md#diversity
@pytest.mark.parametrize("delta", [0.3, 0.8, 1.0])
def test_each_item_has_the_highest_marginal_relevance(model, delta):
    n, alike = 7, similarity(model)
    for user in users_of(model)[:12]:
        ids, found = model.recommend(user, CANDIDATES * n)
        rows = model.ratings_.items.rows(ids)
        scaled = (found - found[-1]) / (found[0] - found[-1])
        chosen = [0]
        while len(chosen) < n:
            gain = (1.0 - delta) * scaled - delta * alike[rows][:, rows[chosen]].max(axis=1)
            gain[chosen] = -np.inf
            chosen.append(int(gain.argmax()))
        different, scores = model.recommend(user, n, diversity=delta)
        assert different.tolist() == ids[chosen].tolist()
        np.testing.assert_allclose(scores, found[chosen], rtol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_diversity_lists_are_the_same_to_the_bit(model, strategy):
    users = users_of(model)[:20]
    plain = model.recommend(users, 5, strategy=strategy, rng=3)
    again = model.recommend(users, 5, strategy=strategy, rng=3, diversity=0)
    for one, other in zip(plain, again, strict=True):
        assert one.tobytes() == other.tobytes() or one.tolist() == other.tolist()
    np.testing.assert_array_equal(plain[1], again[1])


def test_diversity_raises_the_distance_within_lists_and_their_coverage(model):
    users, alike, catalogue = users_of(model), similarity(model), Catalogue.of(DATA)
    pairs = np.triu_indices(10, 1)
    distances, coverages, scores = [], [], []
    for delta in (0.0, 0.4, 0.8):
        ids, score = model.recommend(users, 10, diversity=delta)
        rows = model.ratings_.items.rows(ids.ravel().tolist()).reshape(ids.shape)
        within = [1.0 - alike[np.ix_(row, row)][pairs].mean() for row in rows]
        distances.append(np.mean(within))
        coverages.append(catalogue.variety(catalogue.column[rows])["coverage"])
        scores.append(np.mean(score))
    assert distances[1] > 1.05 * distances[0]
    assert distances[2] > 1.05 * distances[1]
    assert coverages[2] > 1.05 * coverages[0]
    assert scores[0] > scores[1] > scores[2]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("delta", [0.5, 1.0])
def test_the_best_item_stays_first_and_none_is_seen_or_repeated(model, delta, strategy):
    users = users_of(model)[:25]
    how = {"strategy": strategy, "rng": 2}
    best = model.recommend(users, 8 * CANDIDATES, **how)[0]
    ids, scores = model.recommend(users, 8, diversity=delta, **how)
    assert ids[:, 0].tolist() == best[:, 0].tolist()
    for user, row, possible in zip(users, ids.tolist(), best.tolist(), strict=True):
        assert len(set(row)) == 8
        assert set(row) <= set(possible)
        seen = DATA.by_user.row(int(DATA.users.rows([user])[0]))[0]
        assert not set(row) & set(DATA.items.ids[seen].tolist())
    assert np.isfinite(scores).all()


def test_many_users_at_once_get_what_each_gets_alone(model, monkeypatch):
    users = [*users_of(model)[:10], "nobody"]
    whole = model.recommend(users, 5, diversity=0.6)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    blocks = model.recommend(users, 5, diversity=0.6)
    assert whole[0].tolist() == blocks[0].tolist()
    np.testing.assert_allclose(whole[1], blocks[1], rtol=1e-6)
    for row, user in enumerate(users):
        ids, scores, _ = model.recommend(user, 5, diversity=0.6, return_known=True)
        assert ids.tolist() == whole[0][row].tolist()
        np.testing.assert_allclose(scores, whole[1][row], rtol=1e-5)


def test_more_than_there_is_gives_all_there_is(model):
    user = users_of(model)[0]
    plain, diverse = (model.recommend(user, 10_000, diversity=d)[0] for d in (0.0, 0.7))
    assert plain.tolist() != diverse.tolist()
    assert sorted(plain) == sorted(diverse)
    some = plain[:3].tolist()
    assert set(model.recommend(user, 9, items=some, diversity=1.0)[0]) == set(some)
    seen = DATA.items.ids[DATA.by_user.row(0)[0]].tolist()
    ids, scores = model.recommend([user], 2, items=seen, diversity=0.5)
    assert ids.tolist() == [[None, None]]
    assert np.isnan(scores).all()


def test_empty_places_come_last_and_equal_scores_are_fine():
    columns = np.array([[3, 1, 0, 2], [2, 0, -1, -1], [-1, -1, -1, -1]])
    scores = np.array([[1.0, 1.0, 1.0, 1.0], [0.5, -2.0, -np.inf, -np.inf], [-np.inf] * 4])
    units = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 0.0]])
    for delta in (0.5, 1.0):
        found = diversified(BestColumns(columns, scores), units, 3, delta)
        assert found.columns.tolist() == [[3, 1, 2], [2, 0, -1], [-1, -1, -1]]
        assert found.scores[1:].tolist() == [[0.5, -2.0, -np.inf], [-np.inf] * 3]
    nothing = BestColumns(np.empty((2, 0), np.int64), np.empty((2, 0)))
    assert diversified(nothing, units, 3, 0.5).columns.shape == (2, 0)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan"), "much", True, None], ids=str)
def test_a_diversity_out_of_range_is_an_error(model, wrong):
    with pytest.raises(ParameterError, match="diversity must be a number between 0 and 1, got"):
        model.recommend(users_of(model)[0], diversity=wrong)
