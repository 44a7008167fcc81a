from __future__ import annotations

import json

import pytest

from hemf.errors import DataError
from hemf.experiments.plan import Results


def result(key, **other):
    measured = {"test_rmse": 0.5, "train_rmse": 0.4, "cpu_seconds": 1.0, "n_train": 9, "n_test": 1}
    return {"key": key, "settings": {}, "curve": [], **measured, **other}


def written(path, *keys):
    results = Results(path)
    for key in keys:
        results.add(result(key))
    return path.read_bytes()


def test_a_line_cut_in_two_is_dropped_and_the_others_kept(tmp_path):
    path = tmp_path / "results.jsonl"
    content = written(path, "a", "b", "c")
    path.write_bytes(content[:-10])
    results = Results(path)
    assert list(results.by_key) == ["a", "b"]
    assert "cut in two" in results.notes[0]
    assert path.read_bytes() == content[:-10], "reading changes nothing"
    results.add(result("d"))
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "b", "d"]


def test_a_line_that_is_no_result_counts_for_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    content = written(path, "a")
    path.write_bytes(b"[1]\n\xff\n{}\n" + content)
    results = Results(path)
    assert list(results.by_key) == ["a"]
    assert len(results.notes) == 3
    assert "line 2" in results.notes[1]


def test_a_result_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "deep" / "results.jsonl"
    results = Results(path)
    results.add(result("a"))
    assert list(Results(path).by_key) == ["a"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        Results(tmp_path)


def test_what_another_run_has_added_meanwhile_stays(tmp_path):
    path = tmp_path / "results.jsonl"
    written(path, "a")
    early = Results(path)
    written(path, "b")
    early.add(result("c"))
    assert list(Results(path).by_key) == ["a", "b", "c"]


def test_half_a_line_goes_even_if_another_run_has_added_whole_ones(tmp_path):
    path = tmp_path / "results.jsonl"
    early = Results(path)
    content = written(path, "a", "b")
    path.write_bytes(content[:-3])
    early.add(result("c"))
    assert list(Results(path).by_key) == ["a", "c"]
    assert not Results(path).notes


def test_a_file_that_was_made_shorter_meanwhile_is_gone_on_with(tmp_path):
    path = tmp_path / "results.jsonl"
    written(path, "a", "b")
    early = Results(path)
    path.write_bytes(b"")
    early.add(result("c"))
    assert list(Results(path).by_key) == ["c"]


@pytest.mark.parametrize(
    "wrong", [{"curve": None}, {"test_rmse": float("nan")}, {"cpu_seconds": "1"}, {"settings": []}]
)
def test_a_result_that_lacks_something_counts_for_nothing_and_stays(tmp_path, wrong):
    path = tmp_path / "results.jsonl"
    written(path, "a")
    with path.open("a") as file:
        file.write(json.dumps(result("b", **wrong)) + "\n")
    results = Results(path)
    assert list(results.by_key) == ["a"]
    assert "line 2 is no result" in results.notes[0]
    results.add(result("b"))
    assert list(Results(path).by_key) == ["a", "b"]
    assert len(path.read_text().splitlines()) == 3
