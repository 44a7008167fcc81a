from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hemf.data import datasets
from hemf.errors import DatasetError
from hemf.experiments.data import QUICK_NETFLIX_SCALE, find, folders


def test_a_data_set_in_the_folder_is_itself(folder):
    found = find("ml-1m", folder)
    assert (found.name, found.stand_in, found.title) == ("ml-1m", None, "MovieLens 1M")
    assert found.ratings.n_ratings == 300
    assert len(found.fingerprint) == 64


def test_a_data_set_that_is_there_in_part_says_so(folder, monkeypatch):
    assert find("ml-1m", folder).shortfall == "only 300 of its 1,000,209 ratings"
    assert find("eachmovie", folder).shortfall is None  # it is a stand-in anyway
    entry = replace(datasets.find("ml-1m"), ratings=310)
    monkeypatch.setattr(datasets, "find", lambda name: entry)
    assert find("ml-1m", folder).shortfall is None


def test_a_sample_stands_in_for_eachmovie_and_says_so(folder):
    found = find("eachmovie", folder)
    assert found.name == "eachmovie-ads-sample"
    assert found.title.startswith("stand-in for EachMovie: a sample")


def test_votes_placed_by_hand_are_preferred_to_a_stand_in(folder):
    votes = folder / "eachmovie" / "vote.txt"
    votes.parent.mkdir()
    votes.write_text("1\t7\t0.2\t1\t1/28/97 0:00:00\n2\t7\t1\t1\t1/28/97 0:00:00\n")
    found = find("eachmovie", folder)
    assert (found.name, found.stand_in) == ("eachmovie", None)
    assert found.ratings.by_user.values.tolist() == [2.0, 6.0]


def test_the_closest_release_stands_in_for_the_latest(folder):
    assert find("ml-latest", folder).name == "ml-1m"
    (folder / "ml-10m.parquet").write_bytes((folder / "ml-1m.parquet").read_bytes())
    assert find("ml-latest", folder).name == "ml-10m"


def test_drawn_ratings_stand_in_for_netflix_and_are_the_same_every_time(folder):
    first, second = (find("netflix", folder, quick=True) for _ in range(2))
    assert first.stand_in is not None
    assert "drawn" in first.stand_in
    assert first.name != find("netflix", folder).name
    assert first.ratings.n_ratings == round(100_480_507 * QUICK_NETFLIX_SCALE)
    assert first.fingerprint == second.fingerprint


def test_data_are_found_by_the_variable_too(folder, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "ml-1m.parquet").rename(elsewhere / "ml-1m.parquet")
    with pytest.raises(DatasetError):
        find("ml-1m", folder)
    monkeypatch.setenv("HEMF_DATA", str(elsewhere))
    assert find("ml-1m", folder).ratings.n_ratings == 300


def test_an_empty_variable_counts_as_unset(folder, monkeypatch):
    monkeypatch.chdir(folder)  # where a relative path would find something
    monkeypatch.setenv("HEMF_DATA", "")
    with pytest.raises(DatasetError):
        find("ml-1m", folder / "empty")
    places = list(folders(None))
    monkeypatch.delenv("HEMF_DATA")
    assert places == list(folders(None))
    root = Path(__file__).parents[2]
    code = "import _data; print(_data.FOLDER)"
    shown = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root / "benchmarks", env=environment,
            capture_output=True, text=True, check=True,
        ).stdout
        for environment in ({**os.environ, "HEMF_DATA": ""}, {**os.environ})
    ]  # fmt: skip
    assert shown[0] == shown[1] != ".\n"


@pytest.mark.parametrize(
    ("name", "advice"),
    [("ml-1m", "hemf data fetch ml-1m"), ("eachmovie", "put the file vote.txt into the folder")],
)
def test_what_is_missing_is_an_error_that_says_what_to_place_where(
    tmp_path, monkeypatch, name, advice
):
    monkeypatch.delenv("HEMF_DATA", raising=False)
    monkeypatch.setenv("HEMF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DatasetError, match=advice) as raised:
        find(name, tmp_path)
    assert f"{name}.parquet" in str(raised.value)
    assert "--data" in str(raised.value)
