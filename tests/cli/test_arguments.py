"""What people type is understood as they mean it."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from hemf.cli.arguments import parse_columns
from hemf.cli.models import find_id, parse_settings, parse_value
from hemf.cli.output import plain, write_table
from hemf.data.vocabulary import Vocabulary
from hemf.errors import ParameterError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-6", 1e-6),
        ("true", True),
        ("False", False),
        ("none", None),
        ("mean-field", "mean-field"),
        ("'7'", "7"),
        ("1,5", (1, 5)),
        ("(0.5, 5)", (0.5, 5)),
        ("a=b", "a=b"),
    ],
)
def test_values_are_read_as_what_they_look_like(text, value):
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)


def test_the_last_setting_of_a_name_wins():
    assert parse_settings(["tol=1", "n-factors=3", "tol=2"]) == {"tol": 2, "n_factors": 3}
    with pytest.raises(ParameterError, match="name=value"):
        parse_settings(["tol"])


def test_columns_are_names_unless_all_are_positions():
    assert parse_columns(None) is None
    assert parse_columns("2,0,1") == (2, 0, 1)
    assert parse_columns("a, 0,c") == ("a", "0", "c")


def test_an_id_is_found_whatever_its_type():
    day = datetime.date(2024, 2, 29)
    assert find_id(Vocabulary([1, 42]), "42") == (42, True)
    assert find_id(Vocabulary(["42", 42]), "42") == ("42", True)
    assert find_id(Vocabulary([1.5, "x"]), "1.5") == (1.5, True)
    assert find_id(Vocabulary([day, "x"]), "2024-02-29") == (day, True)
    assert find_id(Vocabulary(["true"]), "true") == ("true", True)


def test_an_id_that_is_not_known_is_said_to_be_so():
    assert find_id(Vocabulary([1, 2]), "7") == (7, False)
    assert find_id(Vocabulary([1, 2]), "ann") == ("ann", False)
    assert find_id(Vocabulary(["ann"]), "7") == ("7", False)


def test_nothing_but_json_is_left():
    day = datetime.date(2024, 2, 29)
    given = {day: (np.int64(1), np.nan), "x": {np.float32(0.5)}, "y": np.array([[np.inf, 1.0]])}
    assert plain(given) == {"2024-02-29": [1, None], "x": [0.5], "y": [[None, 1.0]]}


def test_ids_of_several_types_are_written_as_text(tmp_path):
    users = np.array([1, "ann", (2, 3)], dtype=object)
    write_table(tmp_path / "t.csv", {"user": users, "mean": np.array([1.0, 2.0, 3.0])})
    assert '"ann",2' in (tmp_path / "t.csv").read_text()
