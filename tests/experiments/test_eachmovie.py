from __future__ import annotations

import numpy as np
import pytest

from hemf.errors import DatasetError
from hemf.experiments import datasets, read_votes

GOOD = [
    (1, 3, "0", 1, "1996-02-28 00:00:00"),
    (1, 4, "0.2", 1, "1996-02-28 00:00:00"),
    (2, 3, ".4", "0.5", "2/28/96 0:00:00"),
    (2, 4, "0.60", "1.0", ""),
    (9, 3, "0.8", 1, "1997-01-01"),
    (9, 4, "1", 1, "1997-01-01"),
    (9, 5, "0", 0, "1997-01-01"),
]


@pytest.fixture
def written(tmp_path):
    def write(rows, end="\n"):
        path = tmp_path / "vote.txt"
        path.write_bytes("".join("\t".join(map(str, row)) + end for row in rows).encode())
        return path

    return write


def test_scores_are_one_to_six_and_votes_without_weight_are_dropped(written):
    votes = read_votes(written(GOOD))
    assert votes.users.tolist() == [1, 1, 2, 2, 9, 9]
    assert votes.items.tolist() == [3, 4, 3, 4, 3, 4]
    assert votes.ratings.tolist() == [1, 2, 3, 4, 5, 6]
    assert votes.timestamps is None
    assert [column.dtype for column in votes.known] == [np.int32, np.int32, np.float32]


def test_votes_that_count_less_can_be_dropped_too(written):
    assert read_votes(written(GOOD), min_weight=1).ratings.tolist() == [1, 2, 4, 5, 6]


def test_line_ends_of_other_systems_do_not_matter(written):
    assert len(read_votes(written(GOOD, end="\r\n")).ratings) == 6


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((1, 2, 0.5, 1), "row 2 has 4 fields instead of 5"),
        ((1, 2, 0.8, 1, "now", "then"), "row 2 has 6 fields instead of 5"),
        (("ann", 2, 0.8, 1, "now"), "person 'ann' at row 2 is not an integer"),
        ((1, "Heat", 0.8, 1, "now"), "movie 'Heat' at row 2 is not an integer"),
        ((1, 2, "good", 1, "now"), "score 'good' at row 2 is not a number"),
        ((1, 2, "nan", 1, "now"), "score nan at row 2 is not finite|score at row 2 is missing"),
        ((1, 2, "", 1, "now"), "score at row 2 is missing"),
        ((1, 2, 0.5, 1, "now"), "score 0.5 at row 2 is none of 0, 0.2, 0.4, 0.6, 0.8, 1"),
        ((1, 2, 1.2, 1, "now"), "score 1.2.* at row 2 is none of 0, 0.2, 0.4, 0.6, 0.8, 1"),
        ((1, 2, -0.2, 1, "now"), "score -0.2.* at row 2 is none of 0, 0.2, 0.4, 0.6, 0.8, 1"),
        ((1, 2, 0.8, 2, "now"), "weight 2.0 at row 2 is not between 0 and 1"),
        ((1, 2, 0.8, -1, "now"), "weight -1.0 at row 2 is not between 0 and 1"),
        ((1, 2, 0.8, "", "now"), "weight at row 2 is missing"),
        ((2**31, 2, 0.8, 1, "now"), "person 2147483648 at row 2 is not an integer of 32 bits"),
    ],
)
def test_a_malformed_vote_is_named(written, bad, why):
    with pytest.raises(DatasetError, match=f"vote.txt: {why}") as caught:
        read_votes(written([*GOOD[:2], bad, *GOOD[2:]]))
    assert caught.value.row == 2


def test_no_votes_are_an_error(written):
    with pytest.raises(DatasetError, match=r"is empty|no rows"):
        read_votes(written([]))
    with pytest.raises(DatasetError, match="none of the 1 votes has a weight above 0"):
        read_votes(written(GOOD[-1:]))


def test_placed_votes_load_by_name(tmp_path):
    home = tmp_path / "eachmovie"
    home.mkdir()
    (home / "vote.txt").write_text("1\t3\t0.8\t1\tnow\n2\t3\t0\t1\tnow\n")
    assert datasets.load("eachmovie", folder=tmp_path).ratings.tolist() == [5, 1]
    ratings = datasets.load_ratings("eachmovie", folder=tmp_path)
    assert (ratings.n_users, ratings.n_items, ratings.mean) == (2, 1, 3.0)


def test_without_votes_it_is_said_what_to_put_where(tmp_path):
    with pytest.raises(DatasetError, match=r"cannot be downloaded.*vote\.txt into the folder"):
        datasets.load("eachmovie", folder=tmp_path)
    (tmp_path / "eachmovie").mkdir()
    (tmp_path / "eachmovie" / "person.txt").touch()
    with pytest.raises(DatasetError, match=r"holds no vote\.txt; put the file vote\.txt there"):
        datasets.load("eachmovie", folder=tmp_path)
