from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hemf import __version__
from hemf.data import datasets


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.delenv("HEMF_DATA", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    for seed, name in enumerate(("ml-1m", "eachmovie-ads-sample")):
        drawn = datasets.draw(25, 15, density=0.5, levels=(1.0, 2.0, 3.0, 4.0, 5.0), rng=seed)
        columns = {"user": drawn.users, "item": drawn.items, "rating": drawn.ratings}
        table = pa.table({name: np.asarray(part) for name, part in columns.items()})
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def test_table_1_from_end_to_end(hemf, data, tmp_path):
    done = hemf("reproduce", "table1", "--quick", "--data", data, "--splits", 1, "--output", "out")
    assert done.code == 0, done.err
    assert "stand-in for EachMovie" in done.err
    assert "of its 1,000,209 ratings are here" in done.err
    assert "0.8311" in done.out
    assert "M³F-TIF(2,2,40)" in done.out
    results = (tmp_path / "out" / "results.jsonl").read_text("utf-8").splitlines()
    assert len(results) == 4 * 4
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "http" not in page
    assert "stand-in" in page
    assert "<b>in part</b>: only" in page

    again = hemf(
        "reproduce", "table1", "--quick", "--data", data, "--splits", 1, "-o", "out", "--json"
    )
    assert again.code == 0, again.err
    methods = again.json["experiments"]["table1"]["comparisons"][0]["methods"]
    assert methods[0]["method"] == "HeMF-bVB"
    assert methods[0]["paper_test_rmse"] == 0.8311
    first = json.loads(results[0])
    assert methods[0]["test_rmse"] == pytest.approx(first["test_rmse"])
    assert (tmp_path / "out" / "results.jsonl").read_text("utf-8").splitlines() == results
    assert again.json["other_versions"] == {}

    older = "\n".join(results).replace(f'"version": "{__version__}"', '"version": "0.0.9"')
    (tmp_path / "out" / "results.jsonl").write_text(older + "\n", "utf-8")
    third = hemf("reproduce", "table1", "--quick", "--data", data, "--splits", 1, "-o", "out")
    assert third.code == 0, third.err
    assert f"other versions of hemf: 16 of 0.0.9. This is {__version__}." in third.err
    assert third.out.split("Report")[0] == done.out.split("Report")[0]


def test_an_unknown_name_is_one_line_with_the_likely_one(hemf):
    failed = hemf("reproduce", "tabel1")
    assert failed.code == 1
    assert failed.err == "hemf: no experiment is called 'tabel1'; did you mean table1?\n"


def test_missing_data_is_one_line_that_says_what_to_do(hemf, tmp_path, monkeypatch):
    monkeypatch.delenv("HEMF_DATA", raising=False)
    failed = hemf("reproduce", "figure5", "--quick", "--output", "out")
    assert failed.code == 1
    assert "hemf data fetch ml-1m" in failed.err
    assert failed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--output", "file"), "is a file"),
        (("--data", "nowhere"), "no such folder"),
        (("--splits", "0"), "--splits"),
    ],
)
def test_a_wrong_option_is_one_line(hemf, tmp_path, options, message):
    (tmp_path / "file").write_text("")
    failed = hemf("reproduce", "figure5", *options)
    assert failed.code != 0
    assert message in failed.err
    assert failed.err.count("\n") == 1
