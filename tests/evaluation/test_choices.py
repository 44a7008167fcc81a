"""The next choice of a user is ranked before it is learnt, as a slow and plain judge would."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hemf.baselines import SGD
from hemf.errors import DataError, ParameterError
from hemf.evaluation import NextChoices, Prequential, choices


def stream(n=400, seed=0):
    rng = np.random.default_rng(seed)
    users = np.array([f"u{k}" for k in rng.integers(0, 12, n)], object)
    items = np.array([f"i{int(k)}" for k in 25 * rng.random(n) ** 2], object)
    return users, items, rng.integers(1, 6, n).astype(np.float32)


def plain(users, items, positions, batch, score):
    """Return ranks by scores and by popularity, one rating and one item at a time."""
    ranks, popular = [], []
    for position in positions:
        begin = position - position % batch
        order = list(dict.fromkeys(items[:begin]))
        if items[position] not in order:
            continue
        pairs = set(zip(users[:begin], items[:begin], strict=True))
        free = [item for item in order if (users[position], item) not in pairs]
        raters = {item: sum(1 for _, other in pairs if other == item) for item in order}
        for found, value in (
            (ranks, lambda item, p=position: score(users[p], item)),
            (popular, raters.get),
        ):
            found.append(1 + sorted(free, key=lambda item: -value(item)).index(items[position]))
    return ranks, popular


def taste(user, item):
    return float((int(user[1:]) * 7 + int(item[1:]) * 5) % 4)  # many are equal


def table(users, items):
    return np.array([[taste(user, item) for item in items] for user in users])


class Learner:
    """Ranks by a fixed taste, and notes when it learns."""

    n_users_ = 1

    def __init__(self):
        self.learnt = 0
        self.asked = []

    def scores(self, users, items):
        self.asked.append((self.learnt, len(users)))
        return table(users, items)

    def predict(self, users, items):
        return np.full(len(users), 3.0)

    def partial_fit(self, ratings):
        self.learnt += len(ratings[0])

    def predict_then_learn(self, ratings, *, return_seconds):
        self.partial_fit(ratings)
        return np.full(len(ratings[0]), 3.0), np.ones(len(ratings[0]))


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("block", [1 << 25, 1])
def test_it_equals_a_plain_judge(batch, block, monkeypatch):
    monkeypatch.setattr(choices, "_BLOCK_BYTES", block)
    users, items, ratings = stream()
    found = NextChoices(users, items, (1, 5), events=10**6)
    Prequential(Learner(), users, items, ratings, batch_size=batch, choices=found).run()
    pairs = list(zip(users, items, strict=True))
    firsts = [k for k, pair in enumerate(pairs) if pair not in pairs[:k]]
    assert found.positions.tolist() == firsts
    ranks, popular = plain(users, items, firsts, batch, taste)
    assert found.ranks.tolist() == ranks
    assert found.popularity_ranks.tolist() == popular
    figures = found.to_dict()
    assert figures["ranked_choices"] == len(ranks) > 100
    for n in (1, 5):
        gains = [1 / math.log2(1 + rank) if rank <= n else 0.0 for rank in ranks]
        assert figures[f"ndcg@{n}"] == pytest.approx(np.mean(gains))
        assert figures[f"hit_rate@{n}"] == pytest.approx(np.mean([rank <= n for rank in ranks]))
        first = [1 / rank if rank <= n else 0.0 for rank in popular]
        assert figures["popularity"][f"reciprocal_rank@{n}"] == pytest.approx(np.mean(first))


def test_a_rating_is_ranked_by_what_was_learnt_just_before_it():
    users, items, ratings = stream()
    learner, found = Learner(), NextChoices(users, items, start=100, events=30)
    learner.learnt = 100
    Prequential(learner, users, items, ratings, start=100, choices=found).run()
    assert len(found.positions) == 30
    assert found.positions.min() >= 100
    known = [k for k in found.positions.tolist() if items[k] in items[:k]]
    assert learner.asked == [(position, 1) for position in known]
    assert learner.learnt == len(users)


def test_a_sample_is_the_same_for_every_model():
    users, items, _ = stream()
    first, second = (NextChoices(users, items, events=20).positions for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_learner_that_is_not_fitted_yet_is_ranked_once_it_is():
    users, items, ratings = stream()
    found = NextChoices(users, items, events=10**6)
    learner = SGD(n_factors=2, rating_range=(1, 5), rng=0)
    run = Prequential(learner, users, items, ratings, choices=found).run()
    assert run.ratings == len(users)
    assert len(found.ranks) == len(found.popularity_ranks) > 100
    assert np.mean(found.ranks) != np.mean(found.popularity_ranks)


def test_what_is_measured_of_predictions_stays_the_same():
    users, items, ratings = stream()
    learners = [SGD(n_factors=2, rating_range=(1, 5), rng=0) for _ in range(2)]
    found = NextChoices(users, items, events=50)
    runs = [
        Prequential(learner, users, items, ratings, choices=own).run()
        for learner, own in zip(learners, (None, found), strict=True)
    ]
    assert runs[0].rmse == runs[1].rmse
    assert [p.ratings for p in runs[0].curve] == [p.ratings for p in runs[1].curve]


def test_nothing_to_rank_has_no_figures():
    found = NextChoices(["ann", "bob"], ["tea", "ale"])
    Prequential(Learner(), ["ann", "bob"], ["tea", "ale"], [3.0, 4.0], choices=found).run()
    assert found.to_dict()["ndcg@10"] is None
    assert found.to_dict()["ranked_choices"] == 0


def test_bad_settings_are_errors():
    users, items, _ = stream(20)
    with pytest.raises(ParameterError, match="events must be"):
        NextChoices(users, items, events=0)
    with pytest.raises(ParameterError, match="n must be"):
        NextChoices(users, items, n=0)
    with pytest.raises(DataError, match="length"):
        NextChoices(users, items[:5])
