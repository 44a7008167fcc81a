from __future__ import annotations

import copy
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.data.vocabulary import Vocabulary
from hemf.errors import DataError

hashables = st.one_of(
    st.integers(), st.text(), st.floats(allow_nan=False), st.binary(), st.booleans(),
    st.tuples(st.integers(), st.text()),
)  # fmt: skip


@given(st.lists(hashables), st.lists(hashables))
@settings(deadline=None)
def test_rows_are_what_a_dict_would_give(first, second):
    vocabulary = Vocabulary(first)
    rows = vocabulary.add(second)
    expected: dict[object, int] = {}
    for id in [*first, *second]:
        expected.setdefault(id, len(expected))
    assert rows.tolist() == [expected[id] for id in second]
    assert vocabulary.ids.tolist() == list(expected)
    assert vocabulary.rows(list(expected)).tolist() == list(range(len(expected)))


@pytest.mark.parametrize("make", [lambda n: n, lambda n: f"id{n}"], ids=["int", "text"])
@pytest.mark.parametrize("asked", [3, 2000], ids=["few", "many"])
def test_known_ids_are_found_and_others_are_minus_one(make, asked, rng):
    vocabulary = Vocabulary([make(n) for n in range(1000)])
    wanted = rng.integers(0, 2000, asked)
    rows = vocabulary.rows([make(int(n)) for n in wanted])
    assert rows.dtype == np.int64
    assert rows.tolist() == np.where(wanted < 1000, wanted, -1).tolist()


@pytest.mark.parametrize("extra", [[], [2000], ["more"]], ids=["as made", "grown", "grown mixed"])
@pytest.mark.parametrize("asked", [2, 2000], ids=["few", "many"])
def test_a_number_is_not_its_text(extra, asked):
    numbers = Vocabulary(range(1000))
    texts = Vocabulary([str(n) for n in range(1000)])
    numbers.add(extra)
    texts.add(extra)
    assert (numbers.rows([str(n % 1000) for n in range(asked)]) == -1).all()
    assert (texts.rows(np.arange(asked) % 1000) == -1).all()
    assert numbers.rows(np.arange(asked) % 1000)[1] == 1
    assert texts.rows([str(n % 1000) for n in range(asked)])[1] == 1


@pytest.mark.parametrize("same", [5, 5.0, np.int32(5), np.uint8(5), np.float32(5)])
def test_numpy_and_python_numbers_are_interchangeable(same):
    assert same in Vocabulary([5])
    assert 5 in Vocabulary([same])
    assert Vocabulary([same]).ids.dtype == np.int64
    assert Vocabulary([4, 5]).rows(np.array([same])).tolist() == [1]


def test_numpy_and_python_text_are_interchangeable():
    assert np.str_("a") in Vocabulary(["a"])
    assert type(Vocabulary([np.str_("a")]).ids[0]) is str
    assert Vocabulary(["a"]).rows(np.array(["a"])).tolist() == [0]


def test_ids_are_integers_only_where_all_are():
    vocabulary = Vocabulary([10**9, 10**18])
    assert vocabulary.ids.dtype == np.int64
    vocabulary.add(["x"])
    assert vocabulary.ids.dtype == object
    assert vocabulary.ids.tolist() == [10**9, 10**18, "x"]


def test_ids_cannot_be_written_to_and_do_not_change_when_it_grows():
    vocabulary = Vocabulary([1])
    before = vocabulary.ids
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 7
    vocabulary.add(np.arange(100))
    assert before.tolist() == [1]


def test_text_from_arrow_becomes_objects_only_when_looked_at():
    vocabulary = Vocabulary(pa.array([f"id{n}" for n in range(100)]))
    assert vocabulary._buffer is None
    assert vocabulary.rows(pa.array(["id7"] * 100 + ["x"])).tolist() == [7] * 100 + [-1]
    assert vocabulary.ids[7] == "id7"


def test_growing_one_by_one_is_not_quadratic():
    vocabulary = Vocabulary()
    buffers = set()
    for n in range(3000):
        vocabulary.add([f"id{n}"])
        buffers.add(id(vocabulary._buffer))
    assert len(buffers) < 30
    assert vocabulary.rows(["id2999"]).tolist() == [2999]


@pytest.mark.parametrize("nothing", [None, float("nan"), np.datetime64("NaT")])
def test_what_is_missing_is_no_id(nothing):
    vocabulary = Vocabulary(["a"])
    for method in (vocabulary.add, vocabulary.rows):
        with pytest.raises(DataError, match="at row 1 is missing"):
            method(["b", nothing])
    assert len(vocabulary) == 1
    assert nothing not in vocabulary


@pytest.mark.parametrize("ids", [[], [1, 2], ["a", "b"], [f"{n}" for n in range(100)], [1, "a"]])
def test_copies_are_equal_and_independent(ids):
    vocabulary = Vocabulary(ids)
    for twin in (
        vocabulary.copy(),
        copy.deepcopy(vocabulary),
        pickle.loads(pickle.dumps(vocabulary)),
    ):
        assert twin == vocabulary
        twin.add(["new"])
        assert twin != vocabulary
        assert "new" not in vocabulary
        assert len(vocabulary) == len(ids)


def test_equality_is_of_ids_in_order():
    assert Vocabulary(["a", "b"]) != Vocabulary(["b", "a"])
    assert Vocabulary(["a"]) != ["a"]
    assert Vocabulary(["a"]) == Vocabulary(pa.array(["a"]))


def test_it_shows_its_first_ids():
    assert repr(Vocabulary(["a", "b"])) == "Vocabulary(2 ids: 'a', 'b')"
    assert repr(Vocabulary(range(9))) == "Vocabulary(9 ids: 0, 1, 2, …)"


@pytest.mark.parametrize("known", [["a", "b", "c", "d", 5], ["a", "b", "c", "d", "e"]], ids=str)
def test_a_few_objects_are_looked_up_as_many_are(known):
    indexed = Vocabulary(known)
    assert "a" in indexed  # which makes an index
    for wanted in (["c", "z"], ["c", 5], [5.0], [np.int64(5), np.str_("a")], [2**70], [("a",)]):
        ids = np.fromiter(wanted, object, count=len(wanted))
        assert indexed.rows(ids).tolist() == Vocabulary(known).rows(wanted).tolist()
    for bad in ([None], ["a", float("nan")], [["a"]]):
        with pytest.raises(DataError):
            indexed.rows(np.fromiter(bad, object, count=len(bad)))


def test_whole_numbers_are_found_however_far_apart_they_come_to_be():
    rng = np.random.default_rng(0)
    known, rows = Vocabulary(), {}
    for spread in (50, 500, 20_000, 2**40, 2**62):
        ids = rng.integers(-spread, spread, size=300)
        for number in ids.tolist():
            rows.setdefault(number, len(rows))
        assert known.add(ids).tolist() == [rows[number] for number in ids.tolist()]
        asked = np.concatenate([ids, ids + 1])
        assert known.rows(asked).tolist() == [rows.get(number, -1) for number in asked.tolist()]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64])
def test_numbers_beyond_those_known_are_not_found(dtype):
    known = Vocabulary(np.arange(-3, 100))
    ends = np.array([np.iinfo(dtype).min, 7, np.iinfo(dtype).max], dtype)
    for _ in range(300):  # so often that it pays to be quick about it
        found = known.rows(ends)
    assert found.tolist() == [3 if ends[0] == 0 else -1, 10, -1]


def test_text_may_join_whole_numbers_that_lie_close_together():
    known = Vocabulary(np.arange(10))
    known.rows(np.arange(100))
    assert known.add(["ann", 3, 11]).tolist() == [10, 3, 11]
    assert known.rows(np.array([3, 11, 12])).tolist() == [3, 11, -1]


def test_what_is_masked_is_not_looked_up():
    known = Vocabulary(np.arange(7))
    known.rows(np.arange(100))
    with pytest.raises(DataError, match="missing"):
        known.rows(np.ma.array(np.arange(100) % 7, mask=np.arange(100) == 50))
