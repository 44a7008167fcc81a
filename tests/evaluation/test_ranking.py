"""Rankings are judged as a slow and plain judge would."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hemf import DataError, HeMF, ParameterError, Ratings
from hemf.baselines import SGD
from hemf.data.datasets import draw
from hemf.evaluation import ranking, ranking_metrics
from hemf.evaluation.ranking import top_columns

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

TRAIN = [
    ("ann", "tea", 5), ("bob", "tea", 4), ("bob", "ale", 2), ("eve", "milk", 1), ("eve", "wine", 3),
    ("ann", "rum", 1),
]  # fmt: skip
ORDER = ["tea", "ale", "milk", "wine", "rum"]  # best first
SCORE = {item: -float(place) for place, item in enumerate(ORDER)}


def by_order(users, items):
    return np.array([[SCORE[item] for item in items] for _ in users])


def plain(scores, train, test, n, relevant):
    """Return the same figures, one user and one item at a time."""
    seen, liked, raters = {}, {}, {}
    for user, item, _ in train:
        seen.setdefault(user, set()).add(item)
        raters[item] = raters.get(item, 0) + 1
    left_out = 0
    for user, item, rating in test:
        if rating < relevant:
            continue
        if user not in seen or item not in raters or item in seen[user]:
            left_out += 1
        else:
            liked.setdefault(user, set()).add(item)
    catalogue = list(dict.fromkeys(item for _, item, _ in train))
    sums = dict.fromkeys(
        ("ndcg", "recall", "precision", "average_precision", "reciprocal_rank", "hit_rate"), 0.0
    )
    shown = []
    for user, wanted in liked.items():
        candidates = [item for item in catalogue if item not in seen[user]]
        ranked = sorted(candidates, key=lambda item: -scores(user, item))[:n]  # stable
        shown += ranked
        places = [rank for rank, item in enumerate(ranked, 1) if item in wanted]
        room = min(len(wanted), n, len(catalogue))
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, room + 1))
        sums["ndcg"] += sum(1 / math.log2(rank + 1) for rank in places) / ideal
        sums["recall"] += len(places) / len(wanted)
        sums["precision"] += len(places) / n
        sums["average_precision"] += sum(k / rank for k, rank in enumerate(places, 1)) / room
        sums["reciprocal_rank"] += 1 / places[0] if places else 0
        sums["hit_rate"] += bool(places)
    figures = {name: total / len(liked) for name, total in sums.items()}
    figures["coverage"] = len(set(shown)) / len(catalogue)
    figures["novelty"] = -np.mean([math.log2(raters[item] / len(seen)) for item in shown])
    return figures, len(liked), left_out


def assert_same(found, expected):
    figures, users, left_out = expected
    for name, value in figures.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
    assert (found.users, found.left_out) == (users, left_out)


def test_by_hand():
    test = [("ann", "milk", 5), ("ann", "wine", 4), ("ann", "ale", 3), ("bob", "rum", 5)]
    found = ranking_metrics(by_order, TRAIN, test, n=2, level=4)
    # Ann is shown ale and milk, and likes milk and wine; Bob is shown milk and wine, and likes rum.
    assert found.users == 2
    assert found.recall == (1 / 2 + 0) / 2
    assert found.precision == (1 / 2 + 0) / 2
    assert found.hit_rate == 1 / 2
    assert found.reciprocal_rank == (1 / 2) / 2
    assert found.average_precision == (1 / 2) / 2 / 2
    gain, most = 1 / np.log2(3), 1 + 1 / np.log2(3)
    assert found.ndcg == pytest.approx(gain / most / 2)
    assert found.coverage == 3 / 5  # ale, milk, wine
    assert found.novelty == pytest.approx(np.log2(3))  # each is known to one in three
    assert found.left_out == 0


def test_a_perfect_ranking_is_one_and_a_useless_one_zero():
    test = [("ann", "ale", 5), ("bob", "milk", 5), ("eve", "tea", 5)]
    found = ranking_metrics(by_order, TRAIN, test, n=1, level=4)
    assert found.ndcg == found.recall == found.precision == found.hit_rate == 1.0
    found = ranking_metrics(lambda u, i: -by_order(u, i), TRAIN, test, n=1, level=4)
    assert found.ndcg == found.recall == found.precision == found.hit_rate == 0.0


@pytest.mark.parametrize("n", [1, 3, 10, 400])
@pytest.mark.parametrize("block", [1 << 26, 9_000, 1])
@pytest.mark.parametrize("steps", [None, 3])
def test_it_equals_a_plain_judge(n, block, steps, monkeypatch):
    """Whatever the blocks, with scores that are all different and with many that are equal."""
    monkeypatch.setattr(ranking, "BLOCK_BYTES", block)
    data = draw(60, 40, density=0.3, rng=3)
    columns = data.users.tolist(), data.items.tolist(), data.ratings.tolist()
    triples = [
        (f"u{user}", f"i{item}", rating) for user, item, rating in zip(*columns, strict=True)
    ]
    train, test = triples[:500], triples[500:]
    test += [("nobody", "i3", 9.0), ("u1", "nothing", 9.0), (*train[0][:2], 9.0)]
    known = Ratings.from_any(train)
    of_item = {id: k for k, id in enumerate(known.items.ids)}
    of_user = {id: k for k, id in enumerate(known.users.ids)}
    table = np.random.default_rng(0).normal(size=(len(of_user), len(of_item)))
    if steps is not None:
        table = np.round(table * steps / 3)

    def scored(users, items):
        return table[np.ix_([of_user[u] for u in users], [of_item[i] for i in items])]

    found = ranking_metrics(scored, train, test, n=n, level=1.0)
    in_order = sorted(train, key=lambda rating: of_item[rating[1]])
    assert_same(found, plain(lambda u, i: table[of_user[u], of_item[i]], in_order, test, n, 1.0))


def test_several_cutoffs_are_judged_like_each_alone():
    test = [("ann", "milk", 5), ("ann", "wine", 4), ("bob", "rum", 5), ("eve", "tea", 5)]
    found = ranking_metrics(by_order, TRAIN, test, n=(3, 1, 40), level=4)
    assert found == [ranking_metrics(by_order, TRAIN, test, n=n, level=4) for n in (3, 1, 40)]
    assert ranking_metrics(by_order, TRAIN, test, n=[2], level=4)[0].n == 2


def test_equal_scores_are_in_the_order_of_columns():
    scores = np.zeros((3, 50))
    scores[1, 7] = 1.0
    scores[2, :49] = -np.inf
    best = top_columns(scores, 3)
    assert best.tolist() == [[0, 1, 2], [7, 0, 1], [49, -1, -1]]


def test_relevant_is_above_the_mean_unless_said():
    test = [("ann", "milk", 2.6), ("bob", "milk", 2.7)]
    mean = np.mean([rating for *_, rating in TRAIN])
    assert mean == pytest.approx(2.6667, abs=1e-4)
    assert ranking_metrics(by_order, TRAIN, test).users == 1
    assert ranking_metrics(by_order, TRAIN, test, level=2.6).users == 2


@pytest.fixture(scope="module")
def drawn():
    data = draw(80, 50, density=0.4, n_factors=2, rng=5)
    triples = data.users, data.items, data.ratings
    cut = data.ratings.size * 4 // 5
    return tuple(column[:cut] for column in triples), tuple(column[cut:] for column in triples)


@pytest.fixture(scope="module")
def model(drawn):
    return HeMF(n_factors=2, max_sweeps=20, rng=0).fit(drawn[0])


def test_a_model_is_judged_by_what_it_would_recommend(model, drawn):
    train, test = drawn
    found = ranking_metrics(model, train, test, n=5)
    assert found == ranking_metrics(model.scores, train, test, n=5)
    liked, mean = {}, np.mean(train[2], dtype=np.float64)
    for user, item, rating in zip(*test, strict=True):
        if rating > mean:
            liked.setdefault(user, set()).add(item)
    hits = [liked[user] & set(model.recommend(user, 5)[0].tolist()) for user in liked]
    assert found.users == len(liked)
    assert found.precision == pytest.approx(np.mean([len(hit) / 5 for hit in hits]))
    random = ranking_metrics(
        lambda u, i: np.random.default_rng(0).random((len(u), len(i))), train, test, n=5
    )
    assert found.ndcg > 1.2 * random.ndcg


def test_scores_are_those_that_recommend_ranks_by(model, drawn):
    (users, items, _), _ = drawn
    for strategy in ("mean", "ucb"):
        best, scores = model.recommend(users[:4], 5, strategy=strategy, exclude_seen=False)
        table = model.scores(users[:4], items[:30], strategy=strategy)
        columns = {item: k for k, item in enumerate(items[:30].tolist())}
        for row in range(4):
            for item, score in zip(best[row], scores[row], strict=True):
                if item in columns:
                    assert table[row, columns[item]] == pytest.approx(score, abs=1e-6)
    assert model.scores(["stranger"], [*items[:2], "nothing"]).shape == (1, 3)


def test_models_that_only_predict_are_judged_too(drawn):
    train, test = drawn
    learnt = SGD(n_factors=2, epochs=30, rng=0).fit(train)
    predicting = SimpleNamespace(predict=learnt.predict)
    found = ranking_metrics(predicting, train, test, n=5)
    as_table = ranking_metrics(
        lambda u, i: np.array([learnt.predict(np.repeat(a, len(i)), i) for a in u]), train, test, 5
    )
    assert found == as_table


def test_what_is_rated_like_the_mean_is_not_relevant_by_default():
    train = [("ann", "tea", 2), ("bob", "milk", 4)]
    found = ranking_metrics(by_order, train, [("ann", "milk", 3), ("bob", "tea", 5)], n=1)
    assert found.users == 1
    assert 3 < found.level < 3.001
    tenths = [("ann", "milk", 3.3), ("bob", "tea", 3.2)]
    assert ranking_metrics(by_order, train, tenths, n=1, level=3.3).users == 1


def test_progress_is_told(monkeypatch, drawn):
    monkeypatch.setattr(ranking, "BLOCK_BYTES", 8 * 50 * 20)
    progressed = []
    train, test = drawn
    ranking_metrics(
        lambda u, i: np.zeros((len(u), len(i))), train, test, 3,
        progress=lambda done, total: progressed.append((done, total)),
    )  # fmt: skip
    assert len(progressed) > 2
    assert progressed[-1][0] == progressed[-1][1] > progressed[0][0]


def test_what_cannot_be_judged_is_said():
    test = [("ann", "milk", 5)]
    with pytest.raises(ParameterError, match=r"n must be .* got 0"):
        ranking_metrics(by_order, TRAIN, test, n=0)
    for several, complaint in (([], "at least one"), ([5, 5], "repetitions"), ([5, 0], "got 0")):
        with pytest.raises(ParameterError, match=complaint):
            ranking_metrics(by_order, TRAIN, test, n=several)
    with pytest.raises(ParameterError, match="level must be a number, got 'high'"):
        ranking_metrics(by_order, TRAIN, test, level="high")
    with pytest.raises(DataError, match="no user and item of training have a rating of 6"):
        ranking_metrics(by_order, TRAIN, test, level=6)
    with pytest.raises(DataError, match=r"a table of \(2, 2\)"):
        ranking_metrics(lambda u, i: np.zeros((2, 2)), TRAIN, test)
    with pytest.raises(DataError, match="not a number"):
        ranking_metrics(lambda u, i: np.full((len(u), len(i)), np.nan), TRAIN, test)
    with pytest.raises(ParameterError, match="neither scores nor predict"):
        ranking_metrics(7, TRAIN, test)
