from __future__ import annotations

import pytest

from hemf.data.sources import Source, is_header, locate
from hemf.errors import DataError, ParameterError


def source(names, width, where):
    return Source(names, width, lambda positions: [], where)


def find(names, columns=None, *, rated=True):
    return locate(source(names, len(names), "frame"), columns, rated=rated)


@pytest.mark.parametrize(
    "names",
    [
        ["user", "item", "rating"],
        ["userId", "movieId", "rating"],
        ["USER_ID", "ITEM_ID", "Score"],
        ["uid", "iid", "stars"],
        [" User ID ", "Product-Id", "Rating"],
    ],
)
def test_the_usual_names_are_recognised(names):
    assert find(names) == {"user": 0, "item": 1, "rating": 2}
    assert find(names[::-1]) == {"user": 2, "item": 1, "rating": 0}


@pytest.mark.parametrize("name", ["timestamp", "ts", "time", "Date", "unixReviewTime"])
def test_a_time_is_kept_when_there(name):
    assert find(["user", "item", "rating", name])["timestamp"] == 3


def test_ids_come_before_names_of_things():
    names = ["movie", "movieId", "username", "user", "rating"]
    assert find(names) == {"user": 3, "item": 1, "rating": 4}


def test_columns_can_be_chosen_by_name_by_position_and_by_role():
    names = ["latency", "service", "client", "timestamp"]
    by_name = {"user": 2, "item": 1, "rating": 0}
    assert find(names, ("client", "service", "latency")) == by_name
    assert find(names, [2, 1, 0]) == by_name
    by_role = {"user": "client", "item": "service", "rating": "latency"}
    assert find(names, by_role) == {**by_name, "timestamp": 3}
    assert find(["client", "item", "score"], {"user": "client"}) == {
        "user": 0,
        "item": 1,
        "rating": 2,
    }


def test_pairs_need_no_rating():
    assert find(["item", "user"], rated=False) == {"user": 1, "item": 0}
    assert find(["a", "b", "c"], ("c", "a"), rated=False) == {"user": 2, "item": 0}
    assert find(["user", "item", "rating"], rated=False) == {"user": 0, "item": 1}


def test_missing_columns_are_an_error_that_lists_those_found():
    with pytest.raises(DataError, match="no column for user, rating; found the columns who, item"):
        find(["who", "item"])
    with pytest.raises(DataError, match="no column 'client'; found the columns user, item"):
        find(["user", "item"], ("client", "item", "rating"))
    with pytest.raises(DataError, match="no columns"):
        find([])


def test_the_advice_fits_what_was_found():
    with pytest.raises(DataError, match=r"columns=\(0, 1, 2\) .* --columns 0,1,2$"):
        find(["who", "what", "much"])
    with pytest.raises(DataError, match=r"--columns 0,1; by position, the first line .* is data$"):
        find(["ann", "tea"], rated=False)
    with pytest.raises(DataError, match=r"found the columns who$"):
        find(["who"])


def test_one_column_cannot_be_two_things():
    with pytest.raises(DataError, match="'a' cannot be both user and item"):
        find(["a", "b"], ("a", "a", "b"))


def test_two_columns_of_the_name_asked_for_are_an_error():
    with pytest.raises(DataError, match="2 columns are called 'a'"):
        find(["a", "a", "b"], ("a", "b", "a"))


@pytest.mark.parametrize(
    "columns", ["user", ("user", "item"), ("a", "b", "c", "d", "e"), {"who": "client"}]
)
def test_a_choice_that_makes_no_sense_is_a_parameter_error(columns):
    with pytest.raises(ParameterError, match="columns: "):
        find(["user", "item", "rating"], columns)


def test_nameless_columns_go_by_position():
    def find_in(width, columns=None, rated=True):
        return locate(source(None, width, "array"), columns, rated=rated)

    assert find_in(3) == {"user": 0, "item": 1, "rating": 2}
    assert find_in(3, (1, 0, 2)) == {"user": 1, "item": 0, "rating": 2}
    assert find_in(6, (5, 0, 2)) == {"user": 5, "item": 0, "rating": 2}
    assert find_in(2, rated=False) == {"user": 0, "item": 1}
    with pytest.raises(DataError, match="no column for rating; found 2 columns"):
        find_in(2)
    with pytest.raises(DataError, match="found 7"):
        find_in(7)
    with pytest.raises(DataError, match="no names: choose by position"):
        find_in(3, ("user", "item", "rating"))
    with pytest.raises(DataError, match="no column 3; found 3 columns"):
        find_in(3, (0, 1, 3))


@pytest.mark.parametrize(
    ("line", "columns", "rated", "expected"),
    [
        ("user,item,rating", None, True, True),
        ("client,service,latency", None, True, True),
        ("userId,movieId,rating,2020", None, True, True),
        ("1,2,3.5", None, True, False),
        ("ann,matrix,4", None, True, False),
        ("ann,matrix,good,978300760", None, True, False),
        ("1,2,3", ("a", "b", "c"), True, True),
        ("a,b,c", (0, 1, 2), True, True),
        ("user,item", None, False, True),
        ("1,2", None, False, False),
        ("ann,matrix", (0, 1), False, False),
    ],
)
def test_a_first_line_of_names_is_told_from_one_of_data(line, columns, rated, expected):
    assert is_header(line.split(","), columns, rated=rated) is expected


@pytest.mark.parametrize(
    "names", [["user", "user", "item", "rating"], ["user", "item", "rating", "rating"]]
)
def test_a_name_that_several_columns_have_is_refused(names):
    with pytest.raises(DataError, match="2 columns are called"):
        locate(source(names, 4, "ratings.csv"), None, rated=True)
    assert locate(source(names, 4, "ratings.csv"), (0, 2, 3), rated=True)["item"] == 2
