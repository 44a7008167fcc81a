"""Learning online as people use it: any mix of events, in any form, and a bad batch is no batch."""

from __future__ import annotations

import copy
import json
import time
import warnings
import zipfile
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from hemf import (
    ConvergenceWarning,
    DataError,
    DuplicateWarning,
    HeMF,
    NotFittedError,
    ParameterError,
    Ratings,
    UnknownIdError,
)
from hemf.errors import HistoryWarning
from proofs.sensible import assert_sensible

pytestmark = pytest.mark.filterwarnings("ignore:not all ratings are kept")

HISTORIES = ("full", "none", 5)
SEVERAL = pytest.mark.parametrize("history", HISTORIES)
STARTS = pytest.mark.parametrize("start", ["fitted", "from nothing"])
TABLE = tuple(
    (f"u{u}", f"i{i}", float(1 + (u * i + u) % 5))
    for u, i in product(range(12), range(8))
    if (u * 3 + i) % 4
)
MORE = [("u0", "i0", 5.0), ("eve", "i3", 2.0), ("eve", "tea", 1.0), ("u1", "tea", 4.0)]


def new(history="full", **parameters) -> HeMF:
    return HeMF(**{"n_factors": 2, "history": history, "max_sweeps": 20, "rng": 0, **parameters})


def fitted(history="full", data=(), **parameters) -> HeMF:
    return copy.deepcopy(fitted_once(history, tuple(data or TABLE), **parameters))


@cache
def fitted_once(history, data, **parameters) -> HeMF:
    return quietly_fitted(new(history, **parameters), data)


def quietly_fitted(model: HeMF, data) -> HeMF:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DuplicateWarning)
        return model.fit(data)


def started(start: str, history="full", **parameters) -> HeMF:
    """A model that has learnt the table, in batch or online."""
    if start == "fitted":
        return fitted(history, **parameters)
    return new(history, **parameters).partial_fit(TABLE)


def content(model: HeMF, folder) -> dict[str, bytes]:
    """All that is saved of a model but the time its fit took."""
    model.save(folder / "content")
    with zipfile.ZipFile(folder / "content") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    for report in manifest["history"]:
        del report["seconds"]
    return {**members, "manifest.json": json.dumps(manifest).encode()}


def everything(model: HeMF) -> tuple[np.ndarray, np.ndarray]:
    """Expectations and deviations of all pairs there are."""
    users, items = model.ratings_.users.ids, model.ratings_.items.ids
    pairs = list(product(users, items))
    return model.predict(*map(list, zip(*pairs, strict=True)), return_std=True)


def assert_consistent(model: HeMF) -> None:
    """What is shared is the sum of what the rows have given, and both sides agree."""
    state = model.state_
    users, items = state.stores["user"], state.stores["item"]
    assert users.count.sum() == items.count.sum() == model.n_ratings_
    assert (users.count >= 0).all()
    assert (items.count >= 0).all()
    for name, store in state.stores.items():
        side = state.sides[name]
        assert store.n_rows == side.n_rows == store.history.n_rows
        assert np.shares_memory(side.moments.mean, store.mean)
        given = np.zeros((side.n_communities, store.parts.shape[2]))
        rows, slots = np.nonzero(store.listed >= 0)
        np.add.at(given, store.listed[rows, slots], store.parts[rows, slots])
        order = store.first.shape[1]
        scatter = given[:, 1 + order :]
        scatter = scatter if store.scatter.shape[0] > 1 else scatter.sum(axis=0, keepdims=True)
        near = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(store.size, given[:, 0], **near)
        np.testing.assert_allclose(store.first, given[:, 1 : 1 + order], **near)
        np.testing.assert_allclose(store.scatter, scatter, **near)
        np.testing.assert_allclose(store.totals[0], store.entropy.sum(), **near)
        np.testing.assert_allclose(store.totals[1], store.weight @ store.error, **near)
        others = state.stores["item" if name == "user" else "user"].n_rows
        assert ((store.history.row(0)[0] >= 0) & (store.history.row(0)[0] < others)).all()
    if state.is_complete:
        by_user = {
            (row, int(other)): int(code)
            for row in range(users.n_rows)
            for other, code in zip(*users.history.row(row), strict=True)
        }
        by_item = {
            (int(other), row): int(code)
            for row in range(items.n_rows)
            for other, code in zip(*items.history.row(row), strict=True)
        }
        assert by_user == by_item
        assert len(by_user) == model.n_ratings_
    assert np.isfinite(everything(model)).all()
    assert np.isfinite(model.elbo_)
    assert model.noise_variance_ > 0


# -- events -------------------------------------------------------------------------------------


@SEVERAL
@STARTS
def test_a_batch_may_hold_any_mix_of_events(history, start):
    model = started(start, history)
    gone = [TABLE[5], TABLE[40]]
    batch = [*MORE, ("u3", "i2", 1.0)]
    before = {(u, i): r for u, i, r in TABLE}
    previous = [before.get((u, i), np.nan) for u, i, _ in batch]
    assert np.isfinite(previous).sum() == 1
    model.partial_fit(batch, removed=gone, previous=previous)
    assert (model.n_users_, model.n_items_) == (13, 9)
    assert model.n_ratings_ == len(TABLE) + 4 - 2
    assert_consistent(model)
    assert_sensible(model)
    if history == "full":
        kept = {(u, i): r for u, i, r in TABLE} | {(u, i): r for u, i, r in batch}
        for user, item, _ in gone:
            del kept[user, item]
        assert triples(model.ratings_) == kept


def triples(ratings: Ratings) -> dict[tuple, float]:
    users, items, values = ratings.triples()
    ids = zip(ratings.users.ids[users], ratings.items.ids[items], strict=True)
    return dict(zip(ids, values.tolist(), strict=True))


@SEVERAL
@STARTS
def test_events_may_come_one_at_a_time(history, start):
    model = new(history)
    if start == "fitted":
        model = fitted(history, TABLE[:40])
    for rating in TABLE[40:] if start == "fitted" else TABLE:
        model.partial_fit([rating])
    model.partial_fit([("u3", "i2", 1.0)], previous=[dict_of(TABLE)["u3", "i2"]])
    for rating in TABLE[:3]:
        model.partial_fit(removed=[rating])
    for rating in MORE:
        model.partial_fit([rating])
    assert (model.n_users_, model.n_items_) == (13, 9)
    assert model.n_ratings_ == len(TABLE) - 3 + len(MORE)
    assert_consistent(model)
    assert_sensible(model)


def dict_of(ratings) -> dict[tuple, float]:
    return {(user, item): rating for user, item, rating in ratings}


@SEVERAL
@STARTS
def test_what_is_learnt_shows_in_predictions(history, start):
    model = started(start, history)
    before = model.predict("u4", ["i1", "i2"])
    liked = [("u4", f"i{i}", 5.0) for i in range(8)]
    known = dict_of(TABLE)
    model.partial_fit(liked, previous=[known.get((u, i), np.nan) for u, i, _ in liked])
    assert (model.predict("u4", ["i1", "i2"]) > before).all()
    assert model.predict("u4", "i3") > 3.5


@SEVERAL
@STARTS
def test_a_user_whose_every_rating_is_taken_back_is_a_stranger_again(history, start):
    model = started(start, history)
    model.partial_fit(MORE)
    model.partial_fit(removed=[MORE[1], MORE[2]])
    mean, known = model.predict(["eve", "nobody"], "i3", return_known=True)
    assert known.tolist() == [False, False]
    assert mean[0] == mean[1]
    assert_consistent(model)
    model.partial_fit([MORE[1]])
    assert model.predict("eve", "i3", return_known=True)[1]


@SEVERAL
@STARTS
def test_adding_and_taking_back_changes_little_elsewhere(history, start):
    model = started(start, history)
    model.partial_fit([("u0", "i2", 4.0)], previous=[dict_of(TABLE)["u0", "i2"]])
    users, items = ["u5", "u7", "u9"], ["i1", "i3", "i6"]
    before = model.predict(users, items)
    model.partial_fit([("u0", "i0", 5.0)])
    model.partial_fit(removed=[("u0", "i0", 5.0)])
    assert model.predict(users, items) == pytest.approx(before, abs=0.02)
    assert_consistent(model)


@SEVERAL
@pytest.mark.parametrize("shape", [(2, 2), (4, 3), (10, 8)])
def test_ratings_may_be_taken_back_until_none_is_left(history, shape):
    rng = np.random.default_rng(0)
    ratings = [(u, i, float(rng.integers(1, 6))) for u, i in product(*map(range, shape))]
    model = new(history, rating_range=(1, 5)).partial_fit(ratings)
    for rating in ratings:
        model.partial_fit(removed=[rating])
        assert_consistent(model)
    assert model.n_ratings_ == 0
    model.partial_fit(ratings)
    assert_consistent(model)
    assert model.noise_variance_ > 0.02  # there is noise: learning nothing is no certainty
    assert_sensible(model)


@SEVERAL
def test_minds_may_change_for_ever(history):
    model = fitted(history)
    rng = np.random.default_rng(0)
    for place in rng.integers(len(TABLE), size=120):
        model.partial_fit(removed=[TABLE[place]])
        model.partial_fit([TABLE[place]])
    assert_consistent(model)
    assert model.score(TABLE) > 0.3


@SEVERAL
@pytest.mark.parametrize("n", [20, 150])
def test_ratings_may_be_taken_back_all_at_once(history, n):
    ratings = [(f"u{k % 15}", f"i{k // 15}", float(1 + k * k % 5)) for k in range(n)]
    model = new(history, rating_range=(1, 5)).partial_fit(ratings)
    model.partial_fit(removed=ratings)
    assert model.n_ratings_ == 0
    assert_consistent(model)
    model.partial_fit(ratings)
    assert_consistent(model)


@SEVERAL
def test_noise_is_not_learnt_from_a_batch_that_only_takes_back(history):
    model = fitted(history).partial_fit(MORE)
    for _ in range(5):
        model.partial_fit([("u0", "i4", 3.0)])
        before = model.noise_variance_
        model.partial_fit(removed=[("u0", "i4", 3.0)])
        assert model.noise_variance_ == pytest.approx(before, rel=0.05)


# -- forms of input -----------------------------------------------------------------------------

IDS = {
    "text": (["ann", "bob", "eve"], ["tea", "ale"]),
    "integers": ([30, 10, -7], [2**40, 0]),
    "tuples": ([("a", 1), ("a", 2), ("b", 1)], [("x",), ("y", 2)]),
    "mixed": (["1", 1, ("a", 1)], [2.5, "tea"]),
}


@SEVERAL
@STARTS
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_may_be_anything(history, start, ids):
    users, items = ids
    ratings = [(u, i, float(1 + k % 5)) for k, (u, i) in enumerate(product(users, items))]
    if start == "fitted":
        model = fitted(history, ratings[:2]).partial_fit(ratings[2:])
    else:
        model = new(history).partial_fit(ratings[:2]).partial_fit(ratings[2:])
    assert (model.n_users_, model.n_items_) == (3, 2)
    assert model.predict(users, items[:1] * 3, return_known=True)[1].all()
    for user, item in product(users, items):
        assert model.predict([user], [item], return_known=True)[1].all()
    assert model.predict_then_learn([(users[0], items[0], 3.0)]).shape == (1,)
    assert_consistent(model)


def columns_of(rows) -> dict[str, list]:
    return dict(zip(("user", "item", "rating"), map(list, zip(*rows, strict=True)), strict=True))


FORMS = {
    "tuples": lambda rows, folder: rows,
    "iterator": lambda rows, folder: iter(rows),
    "records": lambda rows, folder: pd.DataFrame(columns_of(rows)).to_dict("records"),
    "columns": lambda rows, folder: tuple(columns_of(rows).values()),
    "mapping": lambda rows, folder: columns_of(rows),
    "pandas": lambda rows, folder: pd.DataFrame(columns_of(rows)),
    "polars": lambda rows, folder: pl.DataFrame(columns_of(rows)),
    "polars lazy": lambda rows, folder: pl.DataFrame(columns_of(rows)).lazy(),
    "Arrow": lambda rows, folder: pa.table(columns_of(rows)),
    "array": lambda rows, folder: np.array(rows),
    "sparse": lambda rows, folder: sp.coo_array(
        (columns_of(rows)["rating"], (columns_of(rows)["user"], columns_of(rows)["item"]))
    ),
    "CSV": lambda rows, folder: written(rows, folder / "more.csv"),
    "Parquet": lambda rows, folder: written(rows, folder / "more.parquet"),
}


def written(rows, path):
    frame = pd.DataFrame(columns_of(rows))
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return str(path) if path.suffix == ".csv" else path


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_ratings_may_have_any_form(form, tmp_path):
    table = [(int(u[1:]), int(i[1:]), r) for u, i, r in TABLE]
    more = [(0, 0, 5.0), (1, 7, 4.0), (99, 3, 2.0), (99, 88, 1.0)]
    plain = new().partial_fit(more)
    assert content(new().partial_fit(form(more, tmp_path)), tmp_path) == content(plain, tmp_path)
    forecasts = fitted(data=table).predict_then_learn(form(more, tmp_path))
    np.testing.assert_array_equal(forecasts, fitted(data=table).predict_then_learn(more))


@SEVERAL
def test_pairs_and_their_ratings_may_come_apart(history, tmp_path):
    pairs, ratings = [row[:2] for row in MORE], [row[2] for row in MORE]
    whole = content(fitted(history).partial_fit(MORE), tmp_path)
    assert content(fitted(history).partial_fit(pairs, ratings), tmp_path) == whole
    frame = pd.DataFrame(pairs, columns=["user", "item"])
    assert content(fitted(history).partial_fit(frame, np.array(ratings)), tmp_path) == whole
    apart = fitted(history).predict_then_learn(pairs, ratings)
    np.testing.assert_array_equal(apart, fitted(history).predict_then_learn(MORE))


@pytest.mark.parametrize("given", [None, []])
def test_ratings_without_pairs_are_refused(given):
    with pytest.raises(DataError):
        fitted().partial_fit(given, [4.0])


def test_columns_may_be_named(tmp_path):
    frame = pd.DataFrame({"stars": [5.0, 2.0], "who": ["u0", "eve"], "what": ["i0", "i3"]})
    named = fitted().partial_fit(frame, columns=("who", "what", "stars"))
    plain = fitted().partial_fit([("u0", "i0", 5.0), ("eve", "i3", 2.0)])
    assert content(named, tmp_path) == content(plain, tmp_path)


GONE = {"stars": [r for _, _, r in TABLE[:2]], "what": [i for _, i, _ in TABLE[:2]]}
GONE["who"] = [u for u, _, _ in TABLE[:2]]
NAMED = {
    "pandas": (pd.DataFrame(GONE), ("who", "what", "stars")),
    "records": (pd.DataFrame(GONE).to_dict("records"), ("who", "what", "stars")),
    "by role": (GONE, {"user": "who", "item": "what", "rating": "stars"}),
    "by position": ([row[::-1] for row in TABLE[:2]], (2, 1, 0)),
    "rows have no names": (TABLE[:2], ("who", "what", "stars")),
    "nor have arrays": (np.array(TABLE[:2], dtype=object), ("who", "what", "stars")),
    "nor Ratings": (Ratings.from_any(TABLE[:2]), ("who", "what", "stars")),
}


@SEVERAL
@pytest.mark.parametrize(("gone", "columns"), NAMED.values(), ids=NAMED)
def test_columns_of_what_is_removed_may_be_named(history, gone, columns, tmp_path):
    named = fitted(history).partial_fit(removed=gone, columns=columns)
    plain = fitted(history).partial_fit(removed=TABLE[:2])
    assert content(named, tmp_path) == content(plain, tmp_path)


def test_a_frame_and_what_is_removed_have_the_same_columns(tmp_path):
    frame = pd.DataFrame({"stars": [5.0], "who": ["u0"], "what": ["i0"]})
    named = fitted(5).partial_fit(
        frame, removed=pd.DataFrame(GONE), columns=("who", "what", "stars")
    )
    plain = fitted(5).partial_fit([("u0", "i0", 5.0)], removed=TABLE[:2])
    assert content(named, tmp_path) == content(plain, tmp_path)
    without = pd.DataFrame({"who": ["u1"], "stars": [3.0]})
    before = content(named, tmp_path)
    with pytest.raises(DataError, match="what"):
        named.partial_fit(frame, removed=without, columns=("who", "what", "stars"))
    assert content(named, tmp_path) == before


def test_ratings_are_taken_in_the_order_of_their_times():
    rows = [(u, i, r, 100 - k) for k, (u, i, r) in enumerate(TABLE)]
    by_time = fitted().predict_then_learn(Ratings.from_any(rows))
    np.testing.assert_array_equal(by_time, fitted().predict_then_learn(TABLE[::-1]))


@SEVERAL
@pytest.mark.parametrize("form", ["rows", "pandas", "Ratings"])
def test_removed_ratings_may_have_any_form(history, form):
    gone = TABLE[:3]
    forms = {"rows": gone, "pandas": pd.DataFrame(columns_of(gone)), "Ratings": None}
    forms["Ratings"] = Ratings.from_any(gone)
    model = fitted(history).partial_fit(removed=forms[form])
    assert model.n_ratings_ == len(TABLE) - 3


def test_with_a_full_history_pairs_are_enough_to_remove():
    model = fitted().partial_fit(removed=[row[:2] for row in TABLE[:3]])
    assert model.n_ratings_ == len(TABLE) - 3


# -- nothing ------------------------------------------------------------------------------------

NOTHING = {
    "None": None,
    "list": [],
    "array": np.empty((0, 3)),
    "columns": ([], [], []),
    "mapping": {"user": [], "item": [], "rating": []},
    "pandas": pd.DataFrame({"user": [], "item": [], "rating": []}),
    "polars": pl.DataFrame({"user": [], "item": [], "rating": []}),
    "Ratings": Ratings.from_any(TABLE).subset(np.zeros(len(TABLE), bool)),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_an_empty_batch_changes_nothing(nothing, tmp_path):
    for model in (fitted(), fitted().partial_fit(MORE)):
        before = content(model, tmp_path)
        assert model.partial_fit(nothing) is model
        assert model.predict_then_learn(nothing).shape == (0,)
        assert content(model, tmp_path) == before


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_nothing_is_learnt_from_nothing(nothing):
    model = new()
    with pytest.raises(DataError, match="there are no"):
        model.partial_fit(nothing)
    with pytest.raises(NotFittedError):
        model.predict("ann", "tea")


@SEVERAL
def test_removing_nothing_changes_nothing(history, tmp_path):
    model = fitted(history).partial_fit(MORE)
    before = content(model, tmp_path)
    assert content(model.partial_fit(removed=[]), tmp_path) == before
    assert model.partial_fit([("u2", "i6", 3.0)], removed=[]).n_ratings_ == len(TABLE) + 5


# -- a bad batch is no batch --------------------------------------------------------------------

GOOD = [("u0", "i0", 5.0), ("zoe", "ale", 3.0)]
BAD = {
    "NaN": {"ratings": [*GOOD, ("u1", "i0", np.nan)]},
    "infinite": {"ratings": [*GOOD, ("u1", "i0", np.inf)]},
    "text": {"ratings": [*GOOD, ("u1", "i0", "good")]},
    "missing user": {"ratings": [*GOOD, (None, "i0", 3.0)]},
    "missing item": {"ratings": [*GOOD, ("u1", np.nan, 3.0)]},
    "unhashable user": {"ratings": [*GOOD, (["u1"], "i0", 3.0)]},
    "short row": {"ratings": [*GOOD, ("u1", "i0")]},
    "missing column": {"ratings": pd.DataFrame({"user": ["u1"], "rating": [3.0]})},
    "unequal columns": {"ratings": (["u1", "u2"], ["i0"], [3.0, 4.0])},
    "no such file": {"ratings": "nowhere.csv"},
    "not ratings": {"ratings": 3},
    "out of range": {"ratings": [*GOOD, ("u1", "i0", 5.5)]},
    "too many y": {"ratings": [row[:2] for row in GOOD], "y": [1.0, 2.0, 3.0]},
    "never given": {"ratings": GOOD, "removed": [("u0", "i4", 3.0)]},
    "unknown user": {"ratings": GOOD, "removed": [("nobody", "i3", 3.0)]},
    "unknown item": {"ratings": GOOD, "removed": [("u0", "nothing", 3.0)]},
    "removed is new": {"ratings": GOOD, "removed": [("zoe", "ale", 3.0)]},
    "given and removed": {"ratings": [*GOOD, TABLE[0]], "removed": [TABLE[0]]},
    "removed twice": {"ratings": GOOD, "removed": [TABLE[0], TABLE[0]]},
    "removed text": {"ratings": GOOD, "removed": "nowhere.csv"},
    "short previous": {"ratings": GOOD, "previous": [np.nan]},
    "infinite previous": {"ratings": GOOD, "previous": [np.nan, np.inf]},
    "text previous": {"ratings": GOOD, "previous": ["a", "b"]},
    "impossible previous": {"ratings": [(*TABLE[0][:2], 4.0)], "previous": [17.0]},
    "impossible removed": {"ratings": GOOD, "removed": [(*TABLE[0][:2], 17.0)]},
    "twice": {"ratings": [*GOOD, ("zoe", "ale", 4.0)]},
}

# Without a full history who has met whom is not kept; with one, what was given is on record.
UNKNOWABLE = {False: ("never given",), True: ("impossible removed",)}


@pytest.mark.parametrize(
    ("history", "bad"),
    [
        pytest.param(history, BAD[name], id=f"{name}-{history}")
        for history, name in product(HISTORIES, BAD)
        if name not in UNKNOWABLE[history == "full"]
    ],
)
def test_a_bad_batch_changes_nothing(history, bad, tmp_path):
    model = new(history, rating_range=(1, 5), duplicates="error").partial_fit(TABLE)
    before = content(model, tmp_path)
    seen = (model.elbo_, model.n_users_, model.n_items_, triples(model.ratings_))
    predicted = everything(model)
    arguments = dict(bad)
    with pytest.raises(DataError):
        model.partial_fit(arguments.pop("ratings"), **arguments)
    assert content(model, tmp_path) == before
    assert (model.elbo_, model.n_users_, model.n_items_, triples(model.ratings_)) == seen
    np.testing.assert_array_equal(everything(model), predicted)


@SEVERAL
@STARTS
def test_after_bad_batches_learning_goes_on_as_if_they_had_not_been(history, start, tmp_path):
    def model() -> HeMF:
        return started(start, history, rating_range=(1, 5), duplicates="error")

    tried = model()
    before = content(tried, tmp_path)
    for name, bad in BAD.items():
        if name in UNKNOWABLE[history == "full"]:
            continue
        with pytest.raises(DataError):
            tried.partial_fit(bad["ratings"], **{k: v for k, v in bad.items() if k != "ratings"})
    assert content(tried, tmp_path) == before
    spared = model()
    assert content(tried.partial_fit(GOOD), tmp_path) == content(spared.partial_fit(GOOD), tmp_path)


@SEVERAL
@pytest.mark.parametrize("bad", ["NaN", "text", "missing column", "out of range"])
def test_a_bad_stream_changes_nothing(history, bad, tmp_path):
    model = fitted(history, rating_range=(1, 5))
    before = content(model, tmp_path)
    with pytest.raises(DataError):
        model.predict_then_learn(BAD[bad]["ratings"])
    assert content(model, tmp_path) == before
    untouched = new(history, rating_range=(1, 5))
    with pytest.raises(DataError):
        untouched.predict_then_learn(BAD[bad]["ratings"])
    with pytest.raises(NotFittedError):
        untouched.predict("u0", "i0")


def test_errors_say_what_and_where():
    model = fitted(rating_range=(1, 5), duplicates="error")
    with pytest.raises(DataError, match=r"5\.5 at row 1") as raised:
        model.partial_fit([("u1", "i0", 5.0), ("u2", "i0", 5.5)])
    assert (raised.value.row, raised.value.value) == (1, 5.5)
    with pytest.raises(DataError, match="user 'u0' has no rating of item 'i4'"):
        model.partial_fit(removed=[("u0", "i4")])
    integers = fitted(data=[(1, 2, 3.0), (2, 2, 4.0)])
    with pytest.raises(DataError, match="user 1 has no rating of item 7 "):
        integers.partial_fit(removed=[(1, 7)])


@pytest.mark.parametrize("history", ["none", 5])
def test_without_a_full_history_removing_needs_the_ratings(history, tmp_path):
    model = fitted(history).partial_fit(MORE)
    before = content(model, tmp_path)
    with pytest.raises(DataError, match="removed must hold the ratings"):
        model.partial_fit(removed=[row[:2] for row in TABLE[:2]])
    assert content(model, tmp_path) == before


@pytest.mark.parametrize("history", ["none", 5])
def test_nobody_can_take_back_more_than_was_given(history, tmp_path):
    model = fitted(history).partial_fit([("eve", "i0", 3.0)])
    before = content(model, tmp_path)
    with pytest.raises(DataError):
        model.partial_fit(removed=[("eve", "i0", 3.0), ("eve", "i1", 3.0)])
    assert content(model, tmp_path) == before


@pytest.mark.parametrize("history", ["none", 5])
def test_what_a_pair_was_before_is_refused_of_strangers(history, tmp_path):
    model = fitted(history).partial_fit(MORE)
    before = content(model, tmp_path)
    with pytest.raises(DataError):
        model.partial_fit([("nobody", "i0", 3.0)], previous=[5.0])
    assert content(model, tmp_path) == before


@SEVERAL
@pytest.mark.parametrize("rating", [1e12, -1e30, 3e38])
def test_a_rating_out_of_all_proportion_leaves_no_nan(history, rating):
    model = fitted(history)
    try:
        model.partial_fit([("eve", "i0", rating), ("u1", "i5", 2.0)])
    except DataError:
        assert model.n_users_ == 12
    assert np.isfinite(everything(model)).all()
    assert np.isfinite(model.elbo_)


# -- the same pair twice ------------------------------------------------------------------------

TWICE = [("eve", "i0", 1.0), ("u1", "i5", 3.0), ("eve", "i0", 4.0)]


@SEVERAL
def test_the_last_of_two_ratings_wins_with_a_warning(history, tmp_path):
    model = fitted(history)
    with pytest.warns(DuplicateWarning, match="user 'eve' and item 'i0' at rows 0 and 2") as caught:
        model.partial_fit(TWICE)
    assert caught[0].filename == __file__
    assert content(model, tmp_path) == content(fitted(history).partial_fit(TWICE[1:]), tmp_path)


@SEVERAL
def test_two_ratings_may_both_count(history):
    model = fitted(history, duplicates="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(TWICE)
    assert model.n_ratings_ == len(TABLE) + len(TWICE)
    if history != "none":  # what is on record of the pair is their mean
        assert triples(model.ratings_)["eve", "i0"] == 2.5


def test_a_stream_may_hold_a_pair_twice():
    model = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_then_learn(TWICE)
    assert triples(model.ratings_)["eve", "i0"] == 4.0
    assert model.n_ratings_ == len(TABLE) + 2
    assert_consistent(model)


# -- predict, then learn ------------------------------------------------------------------------


def stream(seed: int, n: int, users: int = 12, items: int = 8) -> list[tuple]:
    rng = np.random.default_rng(seed)
    return [
        (f"u{u}", f"i{i}", float(r))
        for u, i, r in zip(
            rng.integers(users, size=n),
            rng.integers(items, size=n),
            rng.integers(1, 6, size=n),
            strict=True,
        )
    ]


LATER = {
    "ends": [],
    "goes on": stream(1, 60),
    "far ratings": [(u, i, 100.0 * r) for u, i, r in stream(1, 60)],
    "new users": stream(1, 60, users=90),
    "new items": stream(1, 60, items=90),
    "all is new": stream(1, 60, users=90, items=90),
}


@SEVERAL
@pytest.mark.parametrize(
    ("start", "settings", "n"),
    [
        ("fitted", {}, 7),
        ("fitted", {"implicit_features": True}, 7),
        ("from nothing", {}, 7),
        ("from nothing", {}, 195),  # a stream without a fit restarts at 200
        ("from nothing", {"refresh": 0.5}, 195),
    ],
    ids=str,
)
def test_forecasts_do_not_depend_on_what_comes_later(history, start, settings, n):
    first = stream(0, n)
    forecasts = {}
    for name, later in LATER.items():
        model = fitted(history, **settings) if start == "fitted" else new(history, **settings)
        forecasts[name] = model.predict_then_learn([*first, *later])[:n]
        assert np.isfinite(forecasts[name]).all()
    far = {
        name: float(np.abs(forecast - forecasts["ends"]).max())
        for name, forecast in forecasts.items()
    }
    assert far == dict.fromkeys(LATER, 0.0)


@SEVERAL
@STARTS
def test_a_forecast_is_what_would_have_been_predicted(history, start):
    model = started(start, history, rating_range=(1, 5)).partial_fit([("u2", "i6", 3.0)])
    for user, item, rating in [*MORE, ("joe", "ale", 3.0), ("joe", "tea", 2.0)]:
        expected = model.predict(user, item)
        assert model.predict_then_learn([(user, item, rating)])[0] == pytest.approx(
            expected, abs=1e-4
        )
    assert_consistent(model)


@SEVERAL
def test_forecasts_keep_to_the_scale_of_the_ratings(history):
    """A stream from nothing knows one rating at first; its scale is learnt on the way."""
    ratings = [(user, item, 1e6 * rating) for user, item, rating in stream(0, 500)]
    model = new(history, rating_range=None)
    forecasts = model.predict_then_learn(ratings)
    assert (np.abs(forecasts[20:] - 3e6) < 1e7).all()
    assert_consistent(model)


@SEVERAL
@pytest.mark.parametrize("at_once", [True, False])
def test_a_table_without_noise_is_learnt_from_nothing(history, at_once):
    rows = [(f"u{u}", f"i{i}", float(i)) for i, u in product(range(200), range(7))]
    model = new(history)
    if at_once:
        model.partial_fit(rows)
    else:
        model.predict_then_learn(rows)
    assert_consistent(model)


def test_the_very_first_forecast():
    assert new().predict_then_learn([("ann", "tea", 4.0)]).tolist() == [0.0]
    assert new(rating_range=(1, 9)).predict_then_learn([("ann", "tea", 4.0)]).tolist() == [5.0]


@SEVERAL
@STARTS
def test_every_rating_takes_time(history, start):
    model = new(history) if start == "from nothing" else fitted(history)
    model.predict_then_learn(stream(1, 30))  # everything is compiled
    begin = time.perf_counter()
    forecasts, seconds = model.predict_then_learn(stream(0, 400), return_seconds=True)
    wall = time.perf_counter() - begin
    assert forecasts.shape == seconds.shape == (400,)
    assert forecasts.dtype == seconds.dtype == np.float64
    assert (seconds > 0).all()
    assert 0.25 * wall < seconds.sum() <= wall


@SEVERAL
def test_a_stream_leaves_a_consistent_model(history):
    model = new(history)
    model.predict_then_learn(stream(0, 300))
    model.predict_then_learn(stream(1, 300, users=40, items=30))
    assert_consistent(model)
    assert_sensible(model)
    if history == "full":
        assert triples(model.ratings_) == dict_of(stream(0, 300)) | dict_of(stream(1, 300, 40, 30))


# -- life cycle ---------------------------------------------------------------------------------


@SEVERAL
@STARTS
def test_the_same_seed_gives_the_same_model(history, start, tmp_path):
    def made() -> dict[str, bytes]:
        model = started(start, history, refresh=0.3, forgetting=(0.99, 0.95))
        model.predict_then_learn(stream(0, 150, users=30))
        return content(model.partial_fit(MORE), tmp_path)

    assert made() == made()


@SEVERAL
def test_a_fit_after_learning_online_starts_afresh(history, tmp_path):
    model = quietly_fitted(fitted(history).partial_fit(MORE), TABLE)
    again = quietly_fitted(new(history).partial_fit(TABLE), TABLE)
    assert content(model, tmp_path) == content(fitted(history), tmp_path)
    assert content(again, tmp_path) == content(fitted(history), tmp_path)
    assert model.partial_fit(MORE).n_users_ == 13


def test_a_fit_that_fails_leaves_what_was_learnt_online(tmp_path):
    model = fitted().partial_fit(MORE)
    before = content(model, tmp_path)
    with pytest.raises(DataError):
        model.fit([("ann", "tea", np.nan)])
    assert content(model, tmp_path) == before


@SEVERAL
def test_the_history_cannot_be_changed_afterwards(history, tmp_path):
    model = fitted(history).partial_fit(MORE)
    for other in {"full", "none", 5, 7} - {history}:
        model.set_params(history=other)
        with pytest.raises(ParameterError, match="history cannot be changed"):
            model.partial_fit([("u1", "i5", 2.0)])
        with pytest.raises(ParameterError, match="history cannot be changed"):
            model.predict_then_learn([("u1", "i5", 2.0)])
        assert model.n_ratings_ == len(TABLE) + len(MORE)
    model.set_params(history=history)
    twin = fitted(history).partial_fit(MORE)
    last = [("u1", "i5", 2.0)]
    assert content(model.partial_fit(last), tmp_path) == content(twin.partial_fit(last), tmp_path)


@pytest.mark.parametrize(
    "parameters",
    [
        {"history": 0}, {"history": -1}, {"history": 2.5}, {"history": "some"},
        {"history": True}, {"forgetting": 0.0}, {"forgetting": 1.5}, {"forgetting": "x"},
        {"forgetting": (0.9, 0.9, 0.9)}, {"forgetting": (0.9, 2.0)}, {"refresh": -1},
        {"refresh": np.nan}, {"max_online_communities": 0}, {"max_online_communities": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_out_of_range_are_refused(parameters):
    for model in (new(**parameters), fitted().set_params(**parameters)):
        for learn in (model.partial_fit, model.predict_then_learn):
            with pytest.raises(ParameterError, match=next(iter(parameters))):
                learn(MORE)


def test_a_clone_is_a_new_model_with_the_same_parameters():
    model = fitted(5, forgetting=(0.9, 1.0), refresh=0.5, max_online_communities=3)
    twin = clone(model.partial_fit(MORE))
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict("u0", "i0")


@SEVERAL
def test_asking_for_a_stranger_by_name_is_an_error_until_it_has_come(history):
    model = fitted(history)
    with pytest.raises(UnknownIdError, match="eve"):
        model.predict("eve", "i3", unknown="error")
    model.partial_fit(MORE)
    assert 1.0 <= model.predict("eve", "i3", unknown="error") <= 5.0


@pytest.mark.parametrize("history", HISTORIES)
def test_old_ratings_of_a_long_list_fade(history):
    """Of 1,200 ratings half of the weight is in the last one, and the first have none."""
    model = new(history, forgetting=(0.5, 1.0), rating_range=(1, 5), max_item_communities=1)
    rows = [("ann", f"i{k}", 1.0) for k in range(600)] + [("ann", f"j{k}", 5.0) for k in range(600)]
    others = [(f"u{k % 40}", f"{'ij'[k % 2]}{k % 600}", 3.0) for k in range(1200)]
    with pytest.warns(DuplicateWarning, match="600 ratings were replaced"):
        model.partial_fit([*others, *rows[:600]])
    assert model.predict("ann", "i3") < 2.2
    model.partial_fit(rows[600:])
    assert model.predict("ann", "i3") > 3.5
    assert_consistent(model)


# -- what else a model is asked -----------------------------------------------------------------


@STARTS
def test_what_was_just_rated_is_not_recommended(start):
    model = started(start)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "tea" not in model.partial_fit(MORE).recommend("eve", 20)[0]
        assert "i3" not in model.recommend("eve", 20)[0]
        assert "tea" in model.recommend("eve", 20, exclude_seen=False)[0]
        model.partial_fit(removed=[("eve", "tea")])
        assert "tea" in model.recommend("eve", 20)[0]


@pytest.mark.parametrize("history", ["none", 5])
@STARTS
def test_without_a_full_history_a_recommendation_comes_with_a_warning(history, start):
    model = started(start, history).partial_fit(MORE)
    with pytest.warns(HistoryWarning, match="history is not full") as caught:
        assert len(model.recommend("eve", 20)[0]) > 0
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(model.recommend("eve", 20, exclude_seen=False)[0]) == 9


@SEVERAL
@STARTS
def test_every_question_has_an_answer(history, start):
    model = started(start, history)
    model.predict_then_learn(MORE)
    assert_sensible(model)
    assert model.score(TABLE) > 0.0
    assert model.score([row[:2] for row in MORE], [row[2] for row in MORE]) < 1.0
    assert sum(model.communities("item").sizes) == pytest.approx(9, rel=1e-3)
    assert "eve" in str(model.explain("eve", "i5"))
    assert model.biclusters().size.shape == (model.n_user_communities_, model.n_item_communities_)


def outdated(question: str, model: HeMF) -> list[warnings.WarningMessage]:
    """Ask a model, and return the warnings that came with the answer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        {"biclusters": model.biclusters, "explain": lambda: model.explain("u1", "i3")}[question]()
        model.communities("user")  # needs none of the ratings
    return caught


@pytest.mark.parametrize("question", ["biclusters", "explain"])
@STARTS
def test_answers_from_some_of_the_ratings_come_with_a_warning(question, start):
    for history in ("none", 5):
        (warning,) = outdated(question, started(start, history).partial_fit(MORE))
        assert warning.category is HistoryWarning
        assert "history is not full" in str(warning.message)
        assert warning.filename == __file__
    for history in ("full", 50):  # 50 are more than anybody has
        assert not outdated(question, started(start, history).partial_fit(MORE))


@pytest.mark.parametrize("history", ["none", 5])
def test_a_fit_has_all_its_ratings_whatever_is_kept_later(history):
    assert not outdated("biclusters", fitted(history))
    assert not outdated("explain", fitted(history))


def test_what_is_said_of_a_newcomer_needs_no_history():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fitted("none").partial_fit(MORE).explain("nobody", "i3").reasons


def test_communities_know_who_is_well_known_without_a_history():
    """Ids with few ratings are not named, however many of them are kept."""
    rows = planted(0, 3000, 60, 100) + [("u0", f"rare{k}", 5.0) for k in range(30)]
    views = [
        fitted(history, rows, duplicates="mean").partial_fit(MORE).communities("user", n=5)
        for history in HISTORIES
    ]
    for view in views:
        named = [one.id for typical in view.typical for one in typical]
        assert named
        assert not [id for id in named if id.startswith("rare")]


@pytest.mark.parametrize(("history", "start"), [("full", "from nothing"), ("none", "fitted")])
def test_a_report_can_be_written(history, start, tmp_path):
    path = tmp_path / "report.html"
    started(start, history).partial_fit(MORE).report(path, held_out=Ratings.from_any(MORE))
    assert path.stat().st_size > 1000


# -- communities --------------------------------------------------------------------------------


def planted(seed: int, n: int, users: int = 200, items: int = 100) -> list[tuple]:
    """Two kinds of users who disagree about two kinds of items."""
    rng = np.random.default_rng(seed)
    who, what = rng.integers(users, size=n), rng.integers(items, size=n)
    level = np.where(who % 2 == what % 2, 4.5, 1.5)
    ratings = np.clip(rng.normal(level, 0.3), 1, 5)
    rows = zip(who, what, ratings, strict=True)
    return [(f"u{u}", f"i{i}", float(rating)) for u, i, rating in rows]


def test_communities_open_on_the_way_but_not_beyond_the_limits():
    rows = planted(0, 8_000)
    grown = new(rating_range=(1, 5))
    grown.predict_then_learn(rows)
    assert grown.n_user_communities_ > 1
    for history in HISTORIES:
        capped = new(history, rating_range=(1, 5), max_online_communities=1)
        capped.predict_then_learn(rows)
        assert (capped.n_user_communities_, capped.n_item_communities_) == (1, 1)
    one_sided = new(rating_range=(1, 5), max_user_communities=1)
    one_sided.predict_then_learn(rows)
    assert one_sided.n_user_communities_ == 1
    for model in (grown, capped, one_sided):
        assert_consistent(model)


@SEVERAL
def test_a_limit_on_one_side_holds_on_a_fitted_model_too(history):
    settings = {"max_user_communities": 1, "max_item_communities": 1, "duplicates": "mean"}
    model = fitted(history, planted(0, 600, 60, 40), **settings)
    model.partial_fit(planted(1, 1500, 60, 40))
    model.predict_then_learn(planted(2, 1500, 60, 40))
    assert (model.n_user_communities_, model.n_item_communities_) == (1, 1)
