from __future__ import annotations

import numpy as np
import pytest

from hemf import Ratings
from hemf.data import datasets
from hemf.errors import DataError, ParameterError
from hemf.evaluation import (
    PROTOCOLS,
    fingerprint,
    kept_splits,
    load_splits,
    make_splits,
    passes,
    random_split,
    save_splits,
    weak_generalisation,
)


@pytest.fixture
def data():
    drawn = datasets.draw(60, 40, density=0.3, rng=0)
    return drawn.users, drawn.items, drawn.ratings


@pytest.fixture(params=PROTOCOLS)
def splits(request, data):
    return make_splits(request.param, data, n_splits=3, seed=5)


# -- what is withheld -----------------------------------------------------------------------------


def test_every_split_shares_out_all_rows(splits, data):
    assert len(splits) == 3
    for train, test in splits:
        np.testing.assert_array_equal(
            np.sort(np.concatenate((train, test))), np.arange(len(data[0]))
        )


def test_split_k_is_that_of_its_seed(data):
    users, items, ratings = data
    for k, (_, test) in enumerate(make_splits("weak", data, n_splits=3, seed=5)):
        np.testing.assert_array_equal(test, weak_generalisation(users, items, rng=5 + k)[1])
    for k, (_, test) in enumerate(make_splits("random 90/10", data, n_splits=3, seed=5)):
        np.testing.assert_array_equal(test, random_split(len(ratings), 0.1, rng=5 + k)[1])


def test_the_weak_protocol_withholds_one_rating_of_each_user(data):
    for _, test in make_splits("weak", data):
        assert np.bincount(data[0][test], minlength=60).tolist() == [1] * 60


def test_ratings_and_their_columns_are_split_alike(data):
    ratings = Ratings.from_any(data)
    user_rows, item_rows, _ = ratings.triples()
    mine = {
        (ratings.users.ids[user_rows[row]], ratings.items.ids[item_rows[row]])
        for row in make_splits("weak", ratings, n_splits=1)[0][1]
    }
    test = make_splits("weak", data, n_splits=1)[0][1]
    assert mine == set(zip(data[0][test].tolist(), data[1][test].tolist(), strict=True))


# -- chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_chunks", [10, 30, 60, 100])
def test_chunks_are_the_train_rows_in_equal_parts(data, n_chunks):
    splits = make_splits("chunks", data, n_splits=2, n_chunks=n_chunks)
    for number, (train, test) in enumerate(splits):
        chunks = splits.chunks(number)
        assert len(chunks) == n_chunks
        assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(chunks)), train)
        np.testing.assert_array_equal(test, random_split(len(data[0]), 0.1, rng=number)[1])


def test_chunks_are_dealt_out_at_random(data):
    chunks = make_splits("chunks", data, n_splits=1, n_chunks=4).chunks(0)
    means = [chunk.mean() / len(data[0]) for chunk in chunks]
    np.testing.assert_allclose(means, 0.5, atol=0.08)


def test_there_are_thirty_chunks_unless_said(data):
    assert make_splits("chunks", data, n_splits=1).n_chunks == 30


def test_without_chunks_the_train_rows_are_one(data):
    splits = make_splits("weak", data, n_splits=1)
    (chunk,) = splits.chunks(0)
    np.testing.assert_array_equal(chunk, splits[0][0])


def test_chunks_are_fed_one_after_the_other_and_again():
    chunks = [np.array([3]), np.array([1, 2]), np.array([0])]
    fed = [(again, number, rows.tolist()) for again, number, rows in passes(chunks, 2)]
    once = [(0, [3]), (1, [1, 2]), (2, [0])]
    assert fed == [(again, *chunk) for again in (0, 1) for chunk in once]


# -- fingerprints and files -----------------------------------------------------------------------


def test_equal_data_have_equal_fingerprints(data):
    users, items, ratings = data
    same = fingerprint(data)
    assert fingerprint((users.astype(np.int64), items.tolist(), ratings.astype(float))) == same
    assert fingerprint((users[::-1], items[::-1], ratings[::-1])) != same
    for place in range(3):
        other = [column.copy() for column in data]
        other[place][7] += 1
        assert fingerprint(tuple(other)) != same


def test_ids_of_text_have_fingerprints():
    one = fingerprint((["ab", "c"], ["x", "y"], [1, 2]))
    assert one == fingerprint((np.array(["ab", "c"], dtype=object), ["x", "y"], [1, 2]))
    assert one != fingerprint((["a", "bc"], ["x", "y"], [1, 2]))
    assert fingerprint((["1", "2"], ["x", "y"], [1, 2])) != fingerprint(
        ([1, 2], ["x", "y"], [1, 2])
    )


def test_splits_come_back_from_a_file_as_they_were(splits, data, tmp_path):
    save_splits(tmp_path / "splits.npz", splits)
    back = load_splits(tmp_path / "splits.npz", data)
    assert (back.protocol, back.seed, back.n_chunks) == (
        splits.protocol, splits.seed, splits.n_chunks,
    )  # fmt: skip
    np.testing.assert_array_equal(back.parts, splits.parts)
    assert [path.name for path in tmp_path.iterdir()] == ["splits.npz"]


def test_splits_of_another_data_set_are_refused(splits, data, tmp_path):
    path = tmp_path / "splits.npz"
    save_splits(path, splits)
    other = (*data[:2], data[2] + 1)
    with pytest.raises(DataError, match=r"splits\.npz holds splits of another data set: 720 rat"):
        load_splits(path, other)


@pytest.mark.parametrize("size", [0, 10, 200, -30])
def test_a_half_written_file_is_damaged(splits, data, tmp_path, size):
    path = tmp_path / "splits.npz"
    save_splits(path, splits)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="is damaged or no file of splits"):
        load_splits(path, data)


def test_files_that_are_no_splits_are_refused(data, tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, numbers=np.arange(3))
    with pytest.raises(DataError, match="is damaged or no file of splits"):
        load_splits(path, data)
    np.savez(path, format=2)
    with pytest.raises(DataError, match="format 2, but this version of hemf reads format 1"):
        load_splits(path, data)
    with pytest.raises(DataError, match="no such file"):
        load_splits(tmp_path / "nothing", data)
    with pytest.raises(DataError, match="is a directory"):
        load_splits(tmp_path, data)
    with pytest.raises(DataError, match="could not be saved"):
        save_splits(tmp_path / "no" / "splits.npz", make_splits("weak", data, n_splits=1))


def test_a_file_of_something_else_is_not_said_to_be_worth_trusting(data, tmp_path):
    path = tmp_path / "weak.npz"
    path.write_text("junk")
    with pytest.raises(DataError, match=r"no file of splits \(no archive, or cut off\); delete it"):
        load_splits(path, data)


def test_objects_in_a_file_are_never_unpickled(data, tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, format=np.array([print], dtype=object))
    with pytest.raises(DataError, match="is damaged"):
        load_splits(path, data)


def test_kept_splits_are_made_once(data, tmp_path):
    path = tmp_path / "splits.npz"
    first = kept_splits(path, "chunks", data, n_splits=2, n_chunks=10, seed=1)
    written = path.read_bytes()
    again = kept_splits(path, "chunks", data, n_splits=2, n_chunks=10, seed=1)
    np.testing.assert_array_equal(first.parts, again.parts)
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"seed": 2}, "seed=0 instead of seed=2"),
        ({"n_splits": 3}, "n_splits=2 instead of n_splits=3"),
        ({"n_chunks": 10}, "n_chunks=30 instead of n_chunks=10"),
        (
            {"protocol": "weak"},
            "protocol='chunks', n_chunks=30 instead of protocol='weak', n_chunks=1",
        ),
    ],
)
def test_kept_splits_that_were_made_otherwise_are_refused(data, tmp_path, asked, why):
    path = tmp_path / "splits.npz"
    kept_splits(path, "chunks", data, n_splits=2)
    options = {"protocol": "chunks", "n_splits": 2, **asked}
    with pytest.raises(DataError, match=why):
        kept_splits(path, options.pop("protocol"), data, **options)


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"protocol": "strong"},
            "protocol must be one of 'weak', 'random 90/10', 'chunks', got 'strong'",
        ),
        ({"n_splits": 0}, "n_splits must be .* got 0"),
        ({"seed": -1}, "seed must be .* got -1"),
        ({"n_chunks": 30}, "n_chunks must be None for the protocol 'weak', got 30"),
        (
            {"protocol": "chunks", "n_chunks": 0},
            "n_chunks must be .* at least 1 and at most 255, got 0",
        ),
        ({"protocol": "chunks", "n_chunks": 256}, "n_chunks must be .* got 256"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(data, options, why):
    options = {"protocol": "weak", **options}
    with pytest.raises(ParameterError, match=why):
        make_splits(options.pop("protocol"), data, **options)
    with pytest.raises(ParameterError, match="n_passes"):
        passes([np.array([0])], 0)


def test_data_that_cannot_be_split_are_refused():
    with pytest.raises(DataError, match="no user has two ratings"):
        make_splits("weak", ([1, 2], [1, 1], [3, 4]))
    with pytest.raises(DataError, match="cannot be divided into 30 chunks"):
        make_splits("chunks", ([1, 2], [1, 1], [3, 4]))
    with pytest.raises(DataError, match="of one length"):
        make_splits("weak", ([1, 2], [1], [3, 4]))
    with pytest.raises(DataError, match="no ratings to split"):
        make_splits("weak", ([], [], []))
